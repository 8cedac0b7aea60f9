"""Integers of every element type are what they are on a runtime: they wrap, and uint64 has no sign."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from tensaurus.expr.evaluate.field_protocol import Reals
from tensaurus.expr.evaluate.fields import Field, PrimeField, Rationals
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.ir.integer_types import (
    Overflow,
    integer_limits,
    to_native,
    truncate_floats,
    wrap_to_dtype,
)
from tensaurus.expr.ir.scope import Tensor, call, compute
from tensaurus.graph.ir.tensor_data import numpy_dtype
from tensaurus.graph.onnx.onnx_export import export_model
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.runtimes.backends.reference import Session

TYPES = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
PAIRWISE = ["Add", "Sub", "Mul", "Div", "Max", "Min", "Less", "LessOrEqual", "Greater", "Equal"]
ALONE = ["Neg", "Abs", "Sign"]


def code(dtype: str) -> int:
    return int(getattr(TensorProto, dtype.upper()))


def edges(dtype: str) -> np.ndarray[Any, Any]:
    """The ends of the type, and small numbers."""
    low, high = integer_limits(dtype)
    numbers = {low, low + 1, -2, -1, 0, 1, 2, 3, 100, high // 2, high // 2 + 1, high - 1, high}
    return np.array([n for n in sorted(numbers) if low <= n <= high], numpy_dtype(dtype))


def ran(model: onnx.ModelProto, feeds: dict[str, Any]) -> Any:
    """What onnxruntime computes, without its own folding; None where it has no kernel."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(model.SerializeToString(), options)
    except ort.capi.onnxruntime_pybind11_state.NotImplemented:
        return None
    except ort.capi.onnxruntime_pybind11_state.Fail:  # a type that the operator does not take
        return None
    except ort.capi.onnxruntime_pybind11_state.InvalidGraph:
        return None
    return session.run(None, feeds)[0]


def model_of(node: Any, feeds: dict[str, Any], output: int) -> onnx.ModelProto:
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feeds.items()
    ]
    shape = next(iter(feeds.values())).shape
    graph = helper.make_graph(
        [node], "net", inputs, [helper.make_tensor_value_info("y", output, shape)]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize("dtype", TYPES)
def test_operators_are_what_they_are_on_a_runtime(dtype: str) -> None:
    seen = set()
    x, w = (np.array(pair) for pair in zip(*product(edges(dtype), repeat=2), strict=True))
    for name in [*PAIRWISE, *ALONE]:
        feeds = {"x": x, "w": w} if name in PAIRWISE else {"x": x}
        if name == "Div":  # neither quotient has a value
            fine = (w != 0) & ~((x == integer_limits(dtype)[0]) & (w.astype(object) == -1))
            feeds = {"x": x[fine], "w": w[fine]}
        output = TensorProto.BOOL if name in PAIRWISE[6:] else code(dtype)
        model = model_of(helper.make_node(name, list(feeds), ["y"]), feeds, output)
        theirs = ran(model, feeds)
        if theirs is None:
            continue
        seen.add(name)
        ours = Session(import_model(model)).run(None, feeds)[0]
        np.testing.assert_array_equal(ours, theirs, err_msg=name)
        # and so it is when it is folded
        constants = [
            helper.make_node("Constant", [], [n], value=onnx.numpy_helper.from_array(v))
            for n, v in feeds.items()
        ]
        graph = helper.make_graph([*constants, model.graph.node[0]], "net", [], model.graph.output)
        static = helper.make_model(graph, opset_imports=model.opset_import, ir_version=8)
        folded = export_model(import_model(static))
        assert not [n for n in folded.graph.node if n.op_type == name]
        np.testing.assert_array_equal(ran(folded, {}), theirs, err_msg=f"{name} folded")
    assert len(seen) > (5 if dtype in ("int32", "int64") else 0)


@pytest.mark.parametrize("source", TYPES)
def test_casts_between_integers_wrap(source: str) -> None:
    x = edges(source)
    for target in TYPES:
        feeds = {"x": x}
        model = model_of(helper.make_node("Cast", ["x"], ["y"], to=code(target)), feeds, code(target))
        ours = Session(import_model(model)).run(None, feeds)[0]
        np.testing.assert_array_equal(ours, ran(model, feeds), err_msg=target)
        np.testing.assert_array_equal(ours, x.astype(target), err_msg=target)


@pytest.mark.parametrize("dtype", [*TYPES, "int4", "uint4", "int2", "uint2"])
def test_what_is_carried_comes_back(dtype: str) -> None:
    low, high = integer_limits(dtype)
    numbers = np.array([low, -1 if low else 0, 0, 1, high], object)
    kept = wrap_to_dtype(np.array([int(n) % 2**64 for n in numbers], np.uint64).view(np.int64), dtype)
    assert [int(n) for n in to_native(kept, dtype)] == list(numbers)
    if high < 2**63 - 1:
        assert [int(n) for n in wrap_to_dtype(np.array([high + 1, low - 1]), dtype)] == [low, high]


@pytest.mark.parametrize("dtype", TYPES)
def test_what_has_no_value_is_not_folded(dtype: str) -> None:
    for value in (
        np.nan,
        np.inf,
        -np.inf,
        float(integer_limits(dtype)[1]) * 2 + 2,
        float(integer_limits(dtype)[0]) * 2 - 2,
    ):
        with pytest.raises(Overflow):
            truncate_floats(np.array([1.0, value]), dtype, strict=True)
    fine = [float(integer_limits(dtype)[0]), 1.9, -0.9, 100.0]
    found = to_native(truncate_floats(np.array(fine), dtype, strict=True), dtype)
    assert [int(n) for n in found] == [int(n) for n in fine]
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> net () => ({dtype}[2] y) {{'
        f" x = Constant <value = float[2] {{1.0, 1e30}}> ()  y = Cast <to = {code(dtype)}> (x) }}"
    )
    assert [node.op_type for node in export_model(import_model(model)).graph.node].count("Cast") == 1
    field = Reals(strict=True)
    low = wrap_to_dtype(np.array([integer_limits(dtype)[0]]), dtype) if dtype[0] != "u" else np.array([1])
    for fn in ("div", "mod", "fmod"):
        with pytest.raises(Overflow):
            field.call(fn, [low, np.array([0])], dtype)
        if dtype[0] != "u":
            with pytest.raises(Overflow):
                field.call(fn, [low, np.array([-1])], dtype)


def test_the_branch_that_wrapping_decides() -> None:
    """An If whose condition is known only where int32 wraps."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> net (float[2] x) => (float[2] y) {'
        " a = Constant <value = int32 {2147483647}> ()  one = Constant <value = int32 {1}> ()"
        " zero = Constant <value = int32 {0}> ()  b = Add(a, one)  c = Less(b, zero)"
        " y = If (c) <then_branch = yes () => (float[2] p) { p = Neg(x) },"
        " else_branch = no () => (float[2] q) { q = Abs(x) }> }"
    )
    found = export_model(import_model(model))
    assert [node.op_type for node in found.graph.node] == ["Neg"]


def test_each_type_is_another_function_over_a_finite_field() -> None:
    """A float that is no int8 is some int8 and some int32, and not the same one."""
    field = PrimeField(1)
    x = field.random([64], np.random.default_rng(0))
    small, large = (field.call(f"to_{t}", [x]) for t in ("int8", "int32"))
    assert not np.array_equal(small, field.call("to_int8", [large], "int32"))


@pytest.mark.parametrize("field", [Reals(), PrimeField(), Rationals()], ids=lambda field: field.kind)
@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("target", [*TYPES, "bool", "float32", "float64"])
def test_a_sum_wraps_before_it_is_converted(field: Field, source: str, target: str) -> None:
    """Inside one expression no tensor is stored between the sum and the conversion."""
    a, b = (side.ravel() for side in np.meshgrid(edges(source), edges(source)))
    x, y = (Tensor(name, a.shape, source) for name in "xy")
    scope = compute(a.shape, lambda i: call(f"to_{target}", call("add", x[i], y[i])))
    found = interpret(scope, {x: field.lift(a), y: field.lift(b)}, field)
    with np.errstate(all="ignore"):
        summed = (a + b).astype(numpy_dtype(source))
        expected = field.lift(summed.astype(numpy_dtype(target)))
        if target.startswith("float"):
            wide = field.call(f"to_{target}", [field.lift(summed)], source)
            expected = wide if field.has_elements(wide) else expected
    assert field.equal(found, expected)
