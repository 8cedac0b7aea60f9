"""Every declared operator, from its declaration alone, against ONNX and onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from onnx import AttributeProto, NodeProto, TypeProto, defs, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator
from op_samples import Sample, _run, differences, newest_of_onnxruntime, samples, with_symbol

from tensaurus.expr.evaluate.fields import P, PrimeField, Rationals, Reals
from tensaurus.expr.ir.scalar_functions import FIELD_FUNCTIONS
from tensaurus.expr.ir.scope import Body, Call, Reduce, Scope
from tensaurus.expr.ir.walk import children, reads
from tensaurus.expr.sizes.open_questions import record_questions
from tensaurus.expr.sizes.size import Symbol, polynomial, substitute
from tensaurus.ops import Op, TensorType, Untypable, registry
from tensaurus.ops.element_type import dtype_name
from tensaurus.ops.onnx_reader import DTYPE_ATTRIBUTES, read_node
from tensaurus.ops.onnx_writer import write_node
from tensaurus.ops.schema import NEWEST, NotInOpset, formal_inputs, implied_attributes, schema_of, versions

OPS = [op for _, op in sorted(registry.items()) if op.domain == ""]
SAMPLES = samples()
every_op = pytest.mark.parametrize("op", OPS, ids=repr)
every_sample = pytest.mark.parametrize("sample", SAMPLES, ids=str)

# Where an oracle's answer is not what ONNX specifies; the other oracle agrees with the declaration.
WRONG = {
    ("reference", "AveragePool"): "version 1 counts padding",
    ("reference", "BatchNormalization"): "version 9 takes the statistics of the batch",
    ("reference", "DequantizeLinear"): "int32 are rounded before they are subtracted, not after",
    ("reference", "DynamicQuantizeLinear"): "the scale of zeros is 1/255, for onnxruntime 1",
    ("reference", "GlobalMaxPool"): "drops the kept axes of rank 3",
    ("reference", "Hardmax"): "versions below 13 do not flatten",
    ("reference", "LRN"): "stops at the channel numbered like the batch is long",
    ("reference", "LogSoftmax"): "versions below 13 do not flatten; the logarithm of what underflows",
    ("reference", "LpNormalization"): "p=1 sums without the absolute value",
    ("reference", "Clip"): "keeps infinities where a bound is absent: by the text it is the least or largest",
    ("reference", "LpPool"): "ceil_mode reads other windows",
    ("reference", "QuantizeLinear"): "infinities wrap around",
    ("reference", "Softmax"): "versions below 13 do not flatten",
}

# What onnxruntime does not implement at the newest opset it reads.
ORT_LACKS = {
    "GlobalLpPool": "from version 22 on",
    "Swish": "its kernel",
}

# Versions that neither oracle computes; the declaration says that they mean what others do.
UNCHECKED = {("AveragePool", 1), ("GlobalLpPool", 22), ("GlobalLpPool", NEWEST)}








def outcomes(op: Op) -> Iterator[tuple[str, Sample, int, str]]:
    """(oracle, sample, opset, "agrees" or "lacks" or a difference), at every opset with another schema."""
    limit = newest_of_onnxruntime()
    for sample in (s for s in SAMPLES if s.op is op):
        ours = sample.real()
        for opset, model in sample.models():
            feeds = sample.feeds(model)
            for oracle in ("reference", "onnxruntime"):
                try:
                    if oracle == "reference":
                        theirs = ReferenceEvaluator(model).run(None, feeds)
                    else:
                        old = model if opset <= limit else sample.model(limit, len(model.graph.output))
                        theirs = _run(old, feeds)
                except Exception:
                    yield oracle, sample, opset, "lacks"
                    continue
                yield oracle, sample, opset, differences(ours, list(theirs)) or "agrees"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@every_op
def test_against_onnx_and_onnxruntime(op: Op) -> None:
    """The values, at the newest opset and at every older one at which the schema changed."""
    assert op.examples
    found = list(outcomes(op))
    wrong = {(oracle, op.name) for oracle, _, _, how in found if how not in ("agrees", "lacks")}
    listed = {key for key in WRONG if key[1] == op.name}
    assert wrong == listed, "\n".join(f"{o} {s} at {v}: {h}" for o, s, v, h in found if h != "agrees")
    agreed = {(str(sample), opset) for _, sample, opset, how in found if how == "agrees"}
    for _, sample, opset, _ in found:
        assert (str(sample), opset) in agreed or (op.name, opset) in UNCHECKED, f"{sample} at {opset}"
    last = max(opset for _, _, opset, _ in found)
    ran = any(o == "onnxruntime" and v == last and h == "agrees" for o, _, v, h in found)
    assert ran != (op.name in ORT_LACKS)


@every_op
def test_every_version_has_an_example(op: Op) -> None:
    reached = {opset for s in SAMPLES if s.op is op for opset, _ in s.models()}
    assert reached >= set(versions(op)) and reached


def _value(attribute: AttributeProto, name: str) -> Any:
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    if name in DTYPE_ATTRIBUTES:
        return dtype_name(value)
    return tuple(value) if isinstance(value, list) else value


# Attributes of old versions that the declarations leave out: any value but the default makes a node opaque.
LEFT_OUT = {"BatchNormalization": {"spatial"}, "Reshape": {"consumed_inputs"}, "SpaceToDepth": {"mode"}}


@every_op
def test_schema(op: Op) -> None:
    """Inputs, attributes and defaults of every version since `since` are ONNX's own."""
    for opset in versions(op):
        schema = schema_of(op, opset)
        names = formal_inputs(op, opset)
        assert op.is_variadic or len(names) == len(schema.inputs), f"inputs {names} at {opset}"
        for formal, theirs in zip(op.inputs, schema.inputs, strict=False):
            if names[: len(op.inputs)] == tuple(i.name for i in op.inputs):
                optional = theirs.option == defs.OpSchema.FormalParameterOption.Optional
                assert formal.is_optional >= optional, f"{formal.name} at {opset}"
        ours = {op.old_names.get(n, n) if opset < op.moved.get(n, 0) else n for n in op.attributes}
        ours |= {op.old_names.get(n, n) for n in op.moved}
        assert set(schema.attributes) - ours <= LEFT_OUT.get(op.name, set()), f"at {opset}"
        defaults = implied_attributes(op, opset)
        for name, attribute in schema.attributes.items():
            parameter = next((p for p, old in op.old_names.items() if old == name), name)
            if parameter not in op.attributes:
                continue
            if attribute.required:
                assert defaults.get(parameter) is None, f"{name} at {opset}"
            elif attribute.default_value.name:
                theirs_value = _value(attribute.default_value, name)
                mine = defaults[parameter]
                assert (float(mine) if isinstance(mine, Fraction) else mine) == theirs_value, (
                    f"{name} at {opset}"
                )
    last = schema_of(op, versions(op)[-1])
    extra = set(op.attributes) - set(last.attributes) - set(op.moved) - set(op.dtype_inputs)
    assert extra <= {name for values in op.before.values() for name in values}


@every_sample
def test_types(sample: Sample) -> None:
    """Element types and shapes are those that ONNX infers."""
    kinds = sample.op.types(sample.types, sample.attrs)
    for opset, model in sample.models():
        node = model.graph.node[0]
        inputs = {i.name: i.type for i in model.graph.input}
        data = {t.name: t for t in model.graph.initializer}
        for name, tensor in data.items():
            inputs[name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        found = shape_inference.infer_node_outputs(
            schema_of(sample.op, opset), node, inputs, data,
            opset_imports=list(model.opset_import), ir_version=10,
        )  # fmt: skip
        for name, kind in zip(node.output, kinds, strict=False):
            theirs: TypeProto = found[name]
            assert dtype_name(theirs.tensor_type.elem_type) == kind.dtype
            if theirs.tensor_type.HasField("shape"):
                sizes = [
                    d.dim_value if d.HasField("dim_value") else None for d in theirs.tensor_type.shape.dim
                ]
                assert len(sizes) == kind.rank
                assert all(a in (None, b) for a, b in zip(sizes, kind.shape, strict=True)), (sizes, kind)


@every_sample
def test_read_back(sample: Sample) -> None:
    """What is written is read as the same node."""
    for opset, model in sample.models():
        node: NodeProto = model.graph.node[0]
        held = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        _, attrs = read_node(sample.op, node, opset, held.get)
        again = sample.op.canonical(sample.types, attrs)
        assert sample.op.types(sample.types, again) == sample.op.types(sample.types, sample.attrs)
        names = [f"x{i}" if t is not None else None for i, t in enumerate(sample.types)]
        values = dict(zip(names, sample.values, strict=True))
        twice, _ = write_node(
            sample.op,
            sample.types,
            again,
            names,
            list(node.output),
            opset,
            constant_of=values.get,  # type: ignore[arg-type]
        )
        assert twice == node


def ring_only(scope: Scope) -> bool:
    """Whether the expression has nothing but sums and the field's operations."""

    def fine(body: Body) -> bool:
        match body:
            case Call(fn, _) if fn not in FIELD_FUNCTIONS and not fn.startswith("to_float"):
                return False
            case Reduce(monoid, _, _) if monoid not in ("sum", "prod"):
                return False
        return all(fine(child) for child in children(body)) and all(
            ring_only(r.source) for r in reads(body) if isinstance(r.source, Scope)
        )

    return fine(scope.body)


RINGS = [s for s in SAMPLES if all(ring_only(scope) for scope in s.op.scopes(s.types, s.attrs))]


@pytest.mark.parametrize("sample", RINGS, ids=str)
def test_modulo_a_prime(sample: Sample) -> None:
    """Ring-only operators over GF(p) are their exact values modulo p."""
    prime, exact = PrimeField(), Rationals()
    rng = np.random.default_rng(0)
    whole = [
        v if v is None or v.dtype.kind != "f" else rng.integers(1, 10, v.shape).astype(v.dtype)
        for v in sample.values
    ]
    small = sample.evaluate(prime, [None if v is None else prime.lift(v) for v in whole])
    large = sample.evaluate(exact, [None if v is None else exact.lift(v) for v in whole])
    for a, b in zip(small, large, strict=True):
        if b.dtype == object:
            b = np.array([_modulo(Fraction(x)) for x in b.ravel()], np.uint64).reshape(b.shape)
        np.testing.assert_array_equal(a, b)


def _modulo(x: Fraction) -> int:
    return x.numerator * pow(x.denominator, -1, P) % P


# Operators whose leading size must be a number, and why.
NEED_SIZES: dict[str, str] = {}


def symbolic(sample: Sample) -> str:
    """Type and evaluate with a symbol for the leading size; empty if that works, else why not."""
    reason = ""
    for types in with_symbol(sample):
        try:
            attrs = sample.op.canonical(types, sample.example.attrs)
            kinds = sample.op.types(types, attrs)
        except Untypable as error:
            reason = str(error)
            continue
        size = next(t for t in sample.types if t is not None and t.rank).shape[0]
        assert isinstance(size, int)
        bound = {Symbol("N", 1): size}
        expected = sample.op.types(sample.types, sample.attrs)
        for kind, concrete in zip(kinds, expected, strict=True):
            assert tuple(substitute(n, bound) for n in kind.shape) == concrete.shape
            assert kind.dtype == concrete.dtype
        field = Reals()
        values = [None if v is None else field.lift(v) for v in sample.values]
        for a, b in zip(sample.real(), sample.evaluate(field, values, types, attrs, bound), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
        return ""
    return reason


SIZED = [s for s in SAMPLES if any(t is not None and t.rank for t in s.types)]


@pytest.mark.parametrize("op", dict.fromkeys(s.op for s in SIZED), ids=str)
def test_symbolic_sizes(op: Op) -> None:
    """A symbol for the leading size types, and binds back to the same shapes and values."""
    reasons = [symbolic(s) for s in SIZED if s.op is op]
    assert ("" in reasons) != (op.name in NEED_SIZES), reasons


def test_an_opset_that_cannot_say_it() -> None:
    clip = registry["Clip"]
    with pytest.raises(NotInOpset):
        write_node(registry["Gelu"], (), {}, [], ["y"], 19)
    kinds = (TensorType("float32", (2,)), TensorType("float32", ()))
    with pytest.raises(NotInOpset, match="constant"):
        write_node(clip, kinds, {}, ["x", "low"], ["y"], 6)


def test_symbolic_static_input() -> None:
    """A size that is not a number is written as the name of a tensor that holds it, and read back."""
    expand, n = registry["Expand"], polynomial(Symbol("N", 1))
    kinds = (TensorType("float32", (1, 3)),)
    attrs = expand.canonical(kinds, {"shape": (n, 3)})
    asked: list[Any] = []

    def symbolic(sizes: tuple[Any, ...]) -> str:
        asked.append(sizes)
        return "sizes"

    node, initializers = write_node(expand, kinds, attrs, ["x"], ["y"], 14, write_sizes=symbolic)
    assert list(node.input) == ["x", "sizes"] and not initializers
    held = np.empty(2, object)
    held[:] = asked[0]
    args, found = read_node(expand, node, 14, {"sizes": held}.get)
    assert args == ("x",) and expand.canonical(kinds, found) == attrs
    with pytest.raises(NotInOpset):
        write_node(expand, kinds, attrs, ["x"], ["y"], 14)


def test_what_does_not_type_is_remembered_without_its_callers() -> None:
    """A traceback would keep every frame above it alive, and with them models and e-graphs."""
    op, kinds = registry["MatMul"], (TensorType("float32", (2, 3)), TensorType("float32", (4, 5)))
    for _ in range(2):
        with pytest.raises(Untypable):
            op.scopes(kinds, ())
        with record_questions({}), pytest.raises(Untypable):
            op.scopes(kinds, ())
    known, records = op._scopes._unconditional[kinds, ()], op._scopes._conditional[kinds, ()]
    kept = [found for found in (known, *(r.value for r in records)) if isinstance(found, Untypable)]
    assert len(kept) == 2 and all(found.__traceback__ is None and found.__context__ is None for found in kept)


@pytest.mark.parametrize("name", ["Sum", "Mean", "Max", "Min"])
def test_an_operator_of_thousands_of_arguments_is_typed(name: str) -> None:
    kind = TensorType("float32", (2,))
    assert registry[name].types((kind,) * 3000, ()) == (kind,)
