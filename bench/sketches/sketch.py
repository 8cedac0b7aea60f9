"""A model while it is drawn: nodes of one opset, and elements of its inputs and constants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from sketches.elements import Array, Random, elements
from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.onnx_frame import Frame
from tensaurus.ops import Op, TensorType, Untypable
from tensaurus.ops.element_type import dtype_code
from tensaurus.ops.onnx_reader import read_node
from tensaurus.ops.onnx_writer import write_node
from tensaurus.ops.schema import NotInOpset, implied_attributes

SIZES = (1, 2, 3, 5, 7)
BEYOND = 401, 5000  # sizes of one dimension, now and then, beside small others
ROOM, LARGE_ROOM = 2000, 20_000  # elements of a value of small sizes, and of one with a large size
SIGNED = 11  # the opset from which on axes may be negative
WRAPPED = 19  # the opset that brought the mode of Pad


class Undrawn(Exception):
    """What was drawn has no meaning, or not in this opset."""


@dataclass
class Sketch:
    """The values so far: inputs and constants with their elements, and what nodes make of them.

    built   the program itself, where it has operators that no file can hold
    named   how likely some of its sizes are names
    near    numbers that it compares sizes with
    """

    opset: int
    rng: Random
    inputs: dict[str, Array] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    nodes: list[NodeProto] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)
    operators: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    dims: dict[str, tuple[int | str, ...]] = field(default_factory=dict)
    origin: str = "operators"
    built: Program | None = None
    named: float = 0.35
    near: list[int] = field(default_factory=list)

    def one(self, choices: Sequence[str]) -> str:
        """One of the choices."""
        return choices[int(self.rng.integers(len(choices)))]

    def leaf(self, kind: TensorType, value: Array | None = None, constant: bool = False) -> str:
        """A new input or constant of this type."""
        name = f"{'c' if constant else 'x'}{len(self.types)}"
        self.types[name] = kind
        held = self.constants if constant else self.inputs
        held[name] = elements(kind, self.rng) if value is None else value
        return name

    def typed(self, op: Op, names: Sequence[str | None], given: Mapping[str, Any]) -> tuple[TensorType, ...]:
        """The types of the outputs.  Raises Undrawn."""
        try:
            kinds = tuple(None if n is None else self.types[n] for n in names)
            attrs = op.canonical(kinds, {**implied_attributes(op, self.opset), **given})
            found = op.types(kinds, attrs)
        except Exception as error:  # as on import: what a declaration cannot read is not ours
            raise Undrawn(str(error)) from error
        require_room([*kinds, *found])
        return found

    def apply(self, op: Op, names: Sequence[str | None], given: Mapping[str, Any]) -> list[str]:
        """A new node, its attributes written as they are given; the names of its outputs.  Raises Undrawn."""
        if self.opset < SIGNED:
            axes = given.get("axes") if "axes" in given else given.get("axis")
            if any(n < 0 for n in (axes if isinstance(axes, tuple) else (axes or 0,))):
                raise Undrawn("a negative axis, which this opset does not know")
        if self.opset < WRAPPED and given.get("mode") == "wrap":
            raise Undrawn("a mode that this opset does not know")
        found = self.typed(op, names, given)
        place = len(self.nodes)
        kinds = [None if n is None else self.types[n] for n in names]
        for count in range(len(found), 0, -1):
            outputs = [f"v{place}_{k}" for k in range(count)]
            try:
                proto, tensors = write_node(
                    op,
                    kinds,
                    given,
                    names,
                    outputs,
                    self.opset,
                    as_given=True,
                    constant_of=self.constants.get,
                )
            except (
                NotInOpset,
                OverflowError,
                TypeError,
            ) as error:  # or a value that it cannot hold
                if count == 1:
                    raise Undrawn(str(error)) from error
                continue
            break
        held = {tensor.name: numpy_helper.to_array(tensor) for tensor in tensors}
        try:
            _, said = read_node(op, proto, self.opset, {**self.constants, **held}.get)
        except Untypable as error:
            raise Undrawn(str(error)) from error
        if self.typed(op, names, said) != found:
            raise Undrawn("an attribute that this opset does not know")
        self.constants.update(held)
        proto.name = f"n{place}"
        self.nodes.append(proto)
        self.types.update(zip(outputs, found, strict=False))
        self.operators.append(op.name)
        return outputs

    # ------------------------------------------------------------------------------------- as a model

    def close(self) -> None:
        """What nothing reads is an output, and now and then what something reads."""
        read = {name for node in self.nodes for name in node.input}
        made = [name for node in self.nodes for name in node.output]
        self.outputs = [n for n in made if n not in read or self.rng.random() < 0.1]

    def name_sizes(self) -> None:
        """Let some sizes of the inputs be names: one for all that are equal, or one each."""
        together = self.rng.random() < 0.7
        sizes = sorted({n for value in self.inputs.values() for n in value.shape})
        chosen = {n for n in sizes if self.rng.random() < 0.6} or set(sizes)
        for name, value in self.inputs.items():
            self.dims[name] = tuple(
                (f"N{n}" if together else f"{name}_{d}") if n in chosen else n
                for d, n in enumerate(value.shape)
            )

    @property
    def dynamic(self) -> bool:
        return any(isinstance(n, str) for dims in self.dims.values() for n in dims)

    def assignments(self, count: int) -> Iterator[dict[str, Array]]:
        """Elements of the inputs: as they were drawn, then at other sizes of the named dimensions."""
        yield dict(self.inputs)
        names = sorted({n for dims in self.dims.values() for n in dims if isinstance(n, str)})
        for _ in range(count if names else 0):
            size = {name: int(self.rng.choice(SIZES)) for name in names}
            one = self.one(names)
            if (draw := self.rng.random()) < 0.15:
                size[one] = 0
            elif draw < 0.25 or self.near and draw < 0.85:
                small = {name: int(self.rng.choice(SIZES[:3])) for name in names}
                large = {**small, one: self._large_size()}
                size = large if self._has_room(large) else small
            feeds = {}
            for name, value in self.inputs.items():
                feeds[name] = _resized(value, self._shape_at(name, size), self.types[name], self.rng)
            yield feeds

    def _shape_at(self, name: str, size: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(size[n] if isinstance(n, str) else n for n in self.dims[name])

    def _has_room(self, size: Mapping[str, int]) -> bool:
        """Whether no input is too large at these sizes: one name may stand for several dimensions."""
        return all(prod(self._shape_at(name, size)) <= LARGE_ROOM for name in self.inputs)

    def _large_size(self) -> int:
        """Beyond 400, or around a number that sizes are compared with."""
        if not self.near:
            return beyond(self.rng)
        return max(1, self.near[int(self.rng.integers(len(self.near)))] + int(self.rng.integers(-1, 2)))

    def model(self) -> ModelProto:
        """The file that an exporter would have written."""
        graph = helper.make_graph(
            self.nodes,
            "sketch",
            [
                self.info(name, self.dims.get(name, kind.shape))
                for name, kind in self.types.items()
                if name in self.inputs
            ],
            [self.info(name, None) for name in self.outputs],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)

    def info(self, name: str, shape: Any, kind: TensorType | None = None) -> ValueInfoProto:
        return helper.make_tensor_value_info(name, dtype_code((kind or self.types[name]).dtype), shape)

    def frame(self, inputs: Sequence[Node], outputs: Sequence[tuple[str, Node]]) -> Frame:
        """What stands around a program that was built without a file."""
        around = helper.make_model(
            helper.make_graph([], "sketch", [], []),
            opset_imports=[helper.make_opsetid("", self.opset)],
            ir_version=8,
        )
        infos = [
            helper.make_tensor_value_info(n.attribute("name"), dtype_code(n.tensor.dtype), n.tensor.shape)
            for n in inputs
        ]
        made = [helper.make_tensor_value_info(name, dtype_code(n.tensor.dtype), None) for name, n in outputs]
        return Frame(around, tuple(infos), tuple(made))


def beyond(rng: Random) -> int:
    """A size beyond 400, as likely of each magnitude."""
    return int(np.exp2(rng.uniform(*np.log2(BEYOND))))


def is_large(shape: Sequence[Any]) -> bool:
    """Whether one of the sizes is beyond 400."""
    return any(isinstance(n, int) and n >= BEYOND[0] for n in shape)


def require_room(kinds: Sequence[TensorType | None]) -> None:
    """Raises Undrawn where there is no room for a tensor of one of the types."""
    for kind in filter(None, kinds):
        if kind.rank > 6 or elements_of(kind) > (LARGE_ROOM if is_large(kind.shape) else ROOM):
            raise Undrawn("too large")


def elements_of(kind: TensorType) -> int:
    return prod(int(n) for n in kind.shape)  # type: ignore[arg-type]


def _resized(value: Array, shape: tuple[int, ...], kind: TensorType, rng: Random) -> Array:
    """The same elements over and over, in another shape: what bounds them still does."""
    if not value.size:
        return elements(TensorType(kind.dtype, shape), rng)
    return np.resize(rng.permutation(value.reshape(-1)), shape)


__all__ = ["Sketch", "TensorProto", "Undrawn", "beyond", "elements_of", "is_large", "require_room"]
