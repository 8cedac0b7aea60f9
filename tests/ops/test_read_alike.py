"""What onnxruntime reads otherwise than ONNX's text is opaque here, or read as onnxruntime does."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.match.saturate import Limits, Ruleset, saturate
from tensaurus.graph.ir.node import OPAQUE, Node, apply, constant, source
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.ops import TensorType, registry
from tensaurus.rules.language.rule import library
from tensaurus.runtimes.backends.reference import Session

INFINITE = np.array([1, np.inf, -np.inf, np.nan], np.float32)


def model(body: str, shape: tuple[int, ...], out: int) -> onnx.ModelProto:
    sizes, names = ",".join(map(str, shape)), ",".join("ABCDE"[:out])
    text = f"net (float[{sizes}] x) => (float[{names}] y) {{ {body} }}"
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\n{text}')


def opaque(body: str, *shape: int) -> bool:
    return any(node.op is OPAQUE for node in import_model(model(body, shape, len(shape))).nodes)


def computed(body: str, x: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """By onnxruntime, nothing fused, and by the reference."""
    made = model(body, x.shape, x.ndim)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0], Session(import_model(made)).run(None, {"x": x})[0]


@pytest.mark.parametrize("bounds", ["x, z", "x, , z", "x", "x, z, z"])
def test_infinities_become_the_largest_numbers_where_a_bound_is_absent(bounds: str) -> None:
    body = f"z = Constant<value = float {{0.0}}>() y = Clip({bounds})"
    first, second = computed(body, INFINITE)
    assert first.tolist()[:3] == second.tolist()[:3] and np.isnan(first[3]) and np.isnan(second[3])
    assert np.isfinite(first[:3]).all()


POOL = "y = {}<kernel_shape = [{}, {}], strides = [{}, {}], auto_pad = \"{}\", ceil_mode = {}>(x)"


@pytest.mark.parametrize("name", ["MaxPool", "AveragePool"])
def test_windows_without_padding_that_are_rounded_up(name: str) -> None:
    assert opaque(POOL.format(name, 2, 2, 2, 2, "VALID", 1), 1, 1, 5, 5)
    assert not opaque(POOL.format(name, 2, 2, 2, 2, "VALID", 1), 1, 1, 6, 6)  # nothing is left over
    assert not opaque(POOL.format(name, 2, 2, 2, 2, "VALID", 0), 1, 1, 5, 5)
    x = np.random.default_rng(0).standard_normal((1, 1, 5, 5)).astype(np.float32)
    first, second = computed(POOL.format(name, 2, 2, 2, 2, "VALID", 1), x)
    assert first.shape == second.shape == (1, 1, 3, 3)
    np.testing.assert_allclose(first, second, rtol=1e-6)


def test_windows_far_apart_that_are_padded_to_the_same_size() -> None:
    weight = "<float[1, 1, 1, 1] w = {0.5}>"
    assert opaque(POOL.format("LpPool", 1, 1, 3, 3, "SAME_UPPER", 0), 1, 1, 6, 6)
    assert not opaque(POOL.format("LpPool", 2, 2, 2, 2, "SAME_UPPER", 0), 1, 1, 6, 6)
    for stride, apart in ((2, False), (4, True)):
        text = f"net (float[1, 1, 8, 8] x) => (float[A, B, C, D] y) {weight} {{ y = Conv<strides = "
        text += f'[{stride}, {stride}], auto_pad = "SAME_UPPER">(x, w) }}'
        made = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\n{text}')
        assert any(node.op is OPAQUE for node in import_model(made).nodes) == apart


def test_transposed_windows_far_apart() -> None:
    text = "net (float[1, 1, 4, 4] x) => (float[A, B, C, D] y) <float[1, 1, 1, 1] w = {0.5}>"
    text += ' { y = ConvTranspose<strides = [2, 2], auto_pad = "SAME_UPPER">(x, w) }'
    made = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\n{text}')
    assert any(node.op is OPAQUE for node in import_model(made).nodes)


@pytest.mark.parametrize(
    "shape, axis, refused",
    [((5,), 0, True), ((3, 5), 1, False), ((1, 2, 3, 5), 3, False), ((1, 2, 3, 5), 0, True)],
)
def test_linear_interpolation_that_no_runtime_has(shape: tuple[int, ...], axis: int, refused: bool) -> None:
    scales = ", ".join("2.0" if d == axis else "1.0" for d in range(len(shape)))
    body = f"s = Constant<value_floats = [{scales}]>() y = Resize<mode = \"{{}}\">(x, , s)"
    assert opaque(body.format("linear"), *shape) == refused
    assert not opaque(body.format("nearest"), *shape)


def node(name: str, *args: Node, **attrs: Any) -> Node:
    return apply(registry[name], args, attrs)


@pytest.mark.parametrize("scale, moved", [(0.5, True), (1.0, True), (2.0, False)])
def test_a_scale_that_overflows_stays_outside_of_leakyrelu(scale: float, moved: bool) -> None:
    """2e38 * 2 is infinite before a slope of 0.01 makes it small."""
    x, s = source("x", TensorType("float32", (4,))), constant(np.float32(scale))
    graph = EGraph()
    root = graph.insert_term(node("Mul", node("LeakyRelu", x, alpha=0.01), s))
    rules = [rule for rule in library() if rule.name.startswith("leakyrelu-")]
    saturate(graph, Ruleset(rules), Limits(nodes=100, rounds=3))
    inside = graph.enode_of(node("LeakyRelu", node("Mul", x, s), alpha=0.01))
    made = graph.peek(graph.head_of(node("Mul", x, s)), [graph.insert_term(x), graph.insert_term(s)])
    assert inside is None and (made is not None) == moved
    assert len(graph.members[graph.find(root)]) == 1 + moved
