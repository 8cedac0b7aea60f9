"""What the tests of every operator share: its examples as values, as expressions and as one-node models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any
from zlib import crc32

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from tensaurus.expr.evaluate.fields import Field, Reals
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.ir.scope import Scope
from tensaurus.expr.sizes.size import Symbol, polynomial
from tensaurus.ops import Op, TensorType, Untypable, registry
from tensaurus.ops.declare import Attributes
from tensaurus.ops.element_type import dtype_code
from tensaurus.ops.examples import Array, Example, parse_example
from tensaurus.ops.onnx_writer import write_node
from tensaurus.ops.schema import NEWEST, NotInOpset, versions


@dataclass(frozen=True)
class Sample:
    """One example of one operator."""

    op: Op
    example: Example

    def __str__(self) -> str:
        return f"{self.op.name} {self.example.text}"

    @property
    def types(self) -> tuple[TensorType | None, ...]:
        return self.example.types

    @cached_property
    def attrs(self) -> Attributes:
        return self.op.canonical(self.types, self.example.attrs)

    @cached_property
    def values(self) -> list[Array | None]:
        return self.example.values(np.random.default_rng(crc32(str(self).encode())))

    def evaluate(
        self,
        field: Field,
        values: list[Array | None],
        types: Any = None,
        attrs: Any = None,
        sizes: Any = None,
    ) -> list[Array]:
        """Each output in a field, from elements of it (or ints, bools)."""
        kinds = self.types if types is None else types
        tensors = self.op.tensors(kinds)
        given = {t: v for t, v in zip(tensors, values, strict=False) if t is not None and v is not None}
        scopes = self.op.scopes(kinds, self.attrs if attrs is None else attrs)
        return [interpret(scope, given, field, sizes) for scope in scopes]

    def real(self) -> list[Array]:
        """Each output in float64."""
        field = Reals()
        return self.evaluate(field, [None if v is None else field.lift(v) for v in self.values])

    def model(self, opset: int, outputs: int) -> onnx.ModelProto:
        """The operator alone.  Raises NotInOpset."""
        names = [f"x{i}" if t is not None else None for i, t in enumerate(self.types)]
        results = [f"y{i}" for i in range(outputs)]
        held = dict(zip(names, self.values, strict=True))
        node, initializers = write_node(
            self.op,
            self.types,
            self.attrs,
            names,
            results,
            opset,
            constant_of=held.get,  # type: ignore[arg-type]
        )
        kinds = self.op.types(self.types, self.attrs)
        inputs = [
            info(n, t) for n, t in zip(names, self.types, strict=True) if n in node.input and t is not None
        ]
        graph = helper.make_graph(
            [node], "one", inputs, [info(n, t) for n, t in zip(results, kinds, strict=False)], initializers
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)

    def models(self) -> Iterator[tuple[int, onnx.ModelProto]]:
        """A model for each opset at which the schema changed and that can express this example."""
        count = len(self.op.types(self.types, self.attrs))
        for opset in sorted({*versions(self.op), NEWEST}):
            for outputs in range(count, 0, -1):
                try:
                    yield opset, self.model(opset, outputs)
                    break
                except NotInOpset:
                    continue

    def feeds(self, model: onnx.ModelProto) -> dict[str, Array]:
        return {i.name: self.values[int(i.name[1:])] for i in model.graph.input}  # type: ignore[misc]


def info(name: str, kind: TensorType) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype_code(kind.dtype), kind.shape)  # type: ignore[arg-type]


def samples() -> list[Sample]:
    """Every example of every operator that ONNX has."""
    return [sample for sample in declared_samples() if sample.op.domain == ""]


def declared_samples() -> list[Sample]:
    """Every example of every operator, our own too."""
    return [Sample(op, parse_example(text)) for _, op in sorted(registry.items()) for text in op.examples]


def named(name: str) -> Op:
    """The operator of this name, of whichever domain."""
    return next(op for op in registry.values() if op.name == name)


def scope_of(text: str) -> Scope:
    """The first output of an example, an operator's name before it: "MatMul f32[3,4] f32[4,5]"."""
    name, _, example = text.partition(" ")
    sample = Sample(named(name), parse_example(example))
    return sample.op.scopes(sample.types, sample.attrs)[0]


def with_symbol(sample: Sample) -> Iterator[tuple[TensorType | None, ...]]:
    """The types with a symbol for the leading size of the first input: wherever it leads, or there alone."""
    first = next((t for t in sample.types if t is not None and t.rank), None)
    if first is None:
        return
    for everywhere in (True, False):
        yield tuple(
            TensorType(t.dtype, (polynomial(Symbol("N", 1)), *t.shape[1:]))
            if t is not None and t.rank and (t is first or everywhere and t.shape[0] == first.shape[0])
            else t
            for t in sample.types
        )


def expressions(sample: Sample) -> Iterator[Scope]:
    """Of every output: at the example's sizes, and at unknown ones where it types there."""
    for types in (sample.types, *with_symbol(sample)):
        with suppress(Untypable):
            yield from sample.op.scopes(types, sample.op.canonical(types, sample.example.attrs))


@cache
def newest_of_onnxruntime() -> int:
    """The newest opset that onnxruntime reads."""
    for opset in range(NEWEST, 0, -1):
        try:
            _run(Sample(registry["Relu"], parse_example("f32[1]")).model(opset, 1), None)
            return opset
        except Exception:
            continue
    raise AssertionError("onnxruntime reads no opset")


def _run(model: Any, feeds: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return feeds and session.run(None, feeds)


def differences(ours: list[Any], theirs: list[Any]) -> str:
    """Where outputs differ by more than the rounding of float32; empty where they do not."""
    for y, other in zip(ours, theirs, strict=False):
        z = np.asarray(other)
        if y.shape != z.shape:
            return f"shapes {y.shape} and {z.shape}"
        if z.dtype.kind == "f":
            if not np.allclose(y.astype(np.float64), z, rtol=1e-4, atol=1e-5, equal_nan=True):
                return f"{y.ravel()[:8]} is not {z.ravel()[:8]}"
        elif not np.array_equal(y, z):
            return f"{y.ravel()[:8]} is not {z.ravel()[:8]}"
    return ""
