"""Constants whose subnormal elements become 0, and those that keep them."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from time import monotonic
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnx.printer
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from tensaurus.check.program.candidate import Candidate, Rewritten
from tensaurus.check.program.replay import check_rewrites
from tensaurus.graph.analysis.constant_folding import fold_constants
from tensaurus.graph.ir.node import CONSTANT, INPUT, OPAQUE, Node, constant
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.graph.ir.program_text import workload
from tensaurus.graph.ir.subnormal import subnormal_rarity
from tensaurus.graph.ir.tensor_data import TensorData
from tensaurus.graph.onnx.onnx_export import export_with_tensors
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.optimizer.result.result import _count_rewrites
from tensaurus.optimizer.search.model_search import ModelSearch
from tensaurus.optimizer.search.outcome import Outcome
from tensaurus.optimizer.search.prepare_program import (
    flush_bodies,
    flush_candidate,
    flush_program,
    prepend_preparation,
)
from tensaurus.optimizer.search.strategies import Effort
from tensaurus.rules.language.evidence import Bounded
from tensaurus.rules.prove.subnormal_constants import SUBNORMALS, Flushed, flush_subnormals, refute_flush
from tensaurus.runtimes.price.operator_times import OperatorCosts
from tensaurus.runtimes.price.standalone_model import standalone_model
from tensaurus.system.progress import NoProgress

TINY = np.float32(1e-40)


def model(text: str, constants: Mapping[str, Any], opset: int = 18) -> onnx.ModelProto:
    """A model of ONNX's text, with these initializers."""
    made = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> {text}')
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items())
    return made


def flushed(text: str, **constants: Any) -> Flushed:
    """Of a graph with `x` among its inputs; what is flushed is checked as a result's is."""
    found = flush_subnormals(import_model(model(f"g ({text}", constants)))
    if found.equation is not None:
        assert refute_flush(found.equation) is None
    return found


def weights(*shape: int, seed: int = 0, share: float = 0.3) -> np.ndarray[Any, Any]:
    """Random ones, a share of them subnormal."""
    rng = np.random.default_rng(seed)
    array = rng.standard_normal(shape).astype(np.float32)
    array[rng.random(shape) < share] *= TINY
    return array


def subnormal_count(program: Program) -> int:
    arrays = [node.attribute("data").array for node in program.nodes if node.op is CONSTANT]
    floats = [array for array in arrays if array.dtype == np.float32]
    return sum(int(((a != 0) & (np.abs(a) < np.finfo(np.float32).tiny)).sum()) for a in floats)


ONE = np.array([1, TINY, 2, 3], np.float32)
BIAS = np.array([0.5, -0.25, 1e-8, 3], np.float32)

# What a sum rounds away, wherever the constant stands.
GONE: dict[str, tuple[str, dict[str, Any]]] = {
    "weight of a convolution": (
        "float[1,3,H,W] x) => (float[1,4,P,Q] y) { c = Conv(x, w, b) y = Relu(c) }",
        {"w": weights(4, 3, 3, 3), "b": BIAS},
    ),
    "weight, then bias": (
        "float[1,3,9,9] x) => (float[1,4,7,7] y) { c = Conv(x, w) y = Add(c, b) }",
        {"w": weights(4, 3, 3, 3), "b": BIAS.reshape(1, 4, 1, 1)},
    ),
    "a channel that is dead, rounded away behind the next layer": (
        "float[2,5] x) => (float[2,4] y) { h = MatMul(x, v) r = Relu(h) y = Gemm(r, w, b) }",
        {"v": weights(5, 6) * np.array([1, 1, 1e-39, 1, 0, 1], np.float32), "w": weights(6, 4), "b": BIAS},
    ),
    "bias": (
        "float[2,5] x) => (float[2,4] y) { h = Gemm(x, v, d) e = Erf(h) g = Mul(h, e) y = Gemm(g, w, b) }",
        {"v": weights(5, 3), "d": np.array([1, TINY, 2], np.float32), "w": weights(3, 4), "b": BIAS},
    ),
    "scale": (
        "float[2,4] x) => (float[2,4] y) { k = MatMul(x, v) h = Mul(k, s) y = Add(h, b) }",
        {"v": weights(4, 4, share=0), "s": np.array([1, TINY, -TINY, 2], np.float32), "b": BIAS},
    ),
    "divided": (
        "float[2,4] x) => (float[2,4] y) { t = Tanh(x) h = Div(t, d) m = Mul(h, s) y = Add(m, b) }",
        {"d": np.array([2, 3, 1, 5], np.float32), "s": ONE, "b": BIAS},
    ),
    "table of a gather": (
        "int64[7] x) => (float[7,4] y) { g = Gather(t, x) y = Add(g, b) }",
        {"t": weights(9, 4), "b": BIAS},
    ),
    "all of a weight": (
        "float[2,5] x) => (float[2,4] y) { y = Gemm(x, w, b) }",
        {"w": np.full((5, 4), TINY), "b": BIAS},
    ),
    "behind a softmax": (
        "float[2,5] x) => (float[2,4] y) { h = MatMul(x, w) y = Softmax(h) }",
        {"w": weights(5, 4)},
    ),
    "before a layer norm": (
        "float[2,5] x) => (float[2,4] y) { h = MatMul(x, w) y = LayerNormalization(h, s, b) }",
        {"w": weights(5, 4), "s": np.ones(4, np.float32), "b": BIAS},
    ),
    "a comparison of what was rounded": (
        "float[2,5] x) => (bool[2,4] y) { h = Gemm(x, w, b) y = Greater(h, z) }",
        {"w": weights(5, 4), "b": BIAS, "z": np.float32(0)},
    ),
    "a weight that is transposed first": (
        "float[2,5] x) => (float[2,4] y) { t = Transpose(w) h = MatMul(x, t) y = Add(h, b) }",
        {"w": weights(4, 5), "b": BIAS},
    ),
    "no bias, but others in each sum": (
        "float[2,64] x) => (float[2,4] y) { y = MatMul(x, w) }",
        {"w": weights(64, 4)},
    ),
    "a mean over sizes that are open": (
        "float[1,3,H,W] x) => (float[1,4,1,1] y) { c = Conv(x, w) m = GlobalAveragePool(c) y = Add(m, b) }",
        {"w": weights(4, 3, 3, 3), "b": BIAS.reshape(1, 4, 1, 1)},
    ),
    "a root of a magnitude": (
        "float[2,5] x) => (float[2,4] y) { m = MatMul(x, w) a = Abs(m) s = Sqrt(a) y = Add(s, b) }",
        {"w": weights(5, 4), "b": BIAS},
    ),
    "behind attention": (
        "float[2,5] x, float[2,2] k) => (float[2,4] y) "
        "{ n = Add(k, l) s = Softmax(n) m = MatMul(s, x) h = MatMul(m, w) y = Add(h, b) }",
        {"l": np.array([0, -3e38], np.float32), "w": weights(5, 4), "b": BIAS},
    ),
    "behind a root mean square": (
        "float[2,5] x) => (float[2,4] y) { q = Pow(x, p) m = ReduceMean(q, a) f = Add(m, e) s = Sqrt(f) "
        "r = Reciprocal(s) n = Mul(x, r) h = MatMul(n, w) y = Add(h, b) }",
        {
            **{"p": np.float32(2), "a": np.array([1], np.int64), "e": np.float32(1e-5)},
            **{"w": weights(5, 4), "b": BIAS},
        },
    ),
    "a comparison with another number": (
        "float[2,4] x) => (bool[2,4] y) { k = MatMul(x, v) m = Mul(k, c) y = Greater(m, z) }",
        {"v": weights(4, 4, share=0), "c": np.array([1, TINY, 2, 3], np.float32), "z": np.float32(0.5)},
    ),
    "grouped, of biases of both signs": (
        "float[1,4,9,9] x) => (float[1,4,7,7] y) { c = Conv<group=2>(x, w, b) y = Sign(c) }",
        {"w": weights(4, 2, 3, 3), "b": BIAS},
    ),
    "a bias that is gathered": (
        "float[2,5] x, int64[4] k) => (float[2,4] y) { h = MatMul(x, w) b = Gather(t, k) y = Add(h, b) }",
        {"w": weights(5, 4), "t": BIAS},
    ),
    "bfloat16": (
        "bfloat16[2,5] x) => (bfloat16[2,4] y) { h = MatMul(x, w) y = Add(h, b) }",
        {"w": weights(5, 4).astype(ml_dtypes.bfloat16), "b": BIAS.astype(ml_dtypes.bfloat16)},
    ),
    "double": (
        "double[2,5] x) => (double[2,4] y) { h = MatMul(x, w) y = Add(h, b) }",
        {"w": np.where(weights(5, 4) > 0.5, 5e-320, weights(5, 4).astype(float)), "b": BIAS.astype(float)},
    ),
}

GONE["a root of what is positive"] = (
    "float[2,5] x) => (float[2,4] y) { m = MatMul(x, w) r = Relu(m) s = Sqrt(r) y = Add(s, b) }",
    {"w": weights(5, 4), "b": BIAS},
)

LARGE = np.float32(1e38)

# What a result depends on.
KEPT: dict[str, tuple[str, dict[str, Any], str]] = {
    "divisor": ("float[2,4] x) => (float[2,4] y) { y = Div(x, c) }", {"c": ONE}, "quotient"),
    "inverse": (
        "float[2,4] x) => (float[2,4] y) { r = Reciprocal(c) y = Mul(x, r) }",
        {"c": ONE},
        "infinite",
    ),
    "narrower": (
        "float[2,4] x) => (float[2,4] y) { t = Tanh(x) a = Mul(t, c) h = Cast<to=10>(a) y = Cast<to=1>(h) }",
        {"c": ONE},
        "a conversion to a narrower type",
    ),
    "large scales": (
        "float[2,4] x) => (float[2,4] y) { t = Tanh(x) a = Mul(t, c) b = Mul(a, k) y = Mul(b, k) }",
        {"c": ONE, "k": LARGE},
        "may be vast",
    ),
    "many scales": (
        "float[2,4] x) => (float[2,4] y) { t = Tanh(x) a0 = Mul(t, c) "
        + " ".join(f"a{i + 1} = Mul(a{i}, k)" for i in range(20))
        + " y = Mul(a20, k) }",
        {"c": ONE, "k": np.float32(1000)},
        "would be moved by",
    ),
    "a large scale behind a sum": (
        "float[2,4] x) => (float[2] y) { a = MatMul(x, c) b = Mul(a, k) y = Mul(b, k) }",
        {"c": ONE, "k": LARGE},
        "may be vast",
    ),
    "logarithm": ("float[2,4] x) => (float[2,4] y) { l = Log(c) y = Mul(x, l) }", {"c": ONE}, "infinite"),
    "logarithm of a product": (
        "float[2,4] x) => (float[2,4] y) { t = Tanh(x) a = Abs(t) m = Mul(a, c) y = Log(m) }",
        {"c": ONE},
        "logarithm",
    ),
    "equal to 0": (
        "float[2,4] x) => (bool[2,4] y) { t = Tanh(x) m = Mul(t, c) y = Equal(m, z) }",
        {"c": ONE, "z": np.float32(0)},
        "eq of it",
    ),
    "constant equal to 0": (
        "float[2,4] x) => (float[2,4] y) { e = Equal(c, z) y = Where(e, x, c) }",
        {"c": ONE, "z": np.float32(0)},
        "jumps",
    ),
    "sign": (
        "float[2,4] x) => (float[2,4] y) { t = Tanh(x) m = Mul(t, c) y = Sign(m) }",
        {"c": ONE},
        "sign of it",
    ),
    "constant's sign": (
        "float[2,4] x) => (float[2,4] y) { t = Tanh(x) s = Sign(c) y = Mul(t, s) }",
        {"c": ONE},
        "moved",
    ),
    "floor": (
        "float[2,4] x) => (float[2,4] y) { t = Tanh(x) m = Mul(t, c) y = Floor(m) }",
        {"c": ONE},
        "floor of it",
    ),
    "integers": (
        "float[2,4] x) => (int64[2,4] y) { t = Tanh(x) m = Mul(t, c) k = Mul(m, l) y = Cast<to=7>(k) }",
        {"c": ONE, "l": LARGE},
        "conversion",
    ),
    "a condition": (
        "float[2,4] x) => (float[2,4] y) { t = Tanh(x) m = Mul(t, c) b = Cast<to=9>(m) y = Where(b, x, c) }",
        {"c": ONE},
        "conversion",
    ),
    "exponent": (
        "float[2,4] x) => (float[2,4] y) { t = Tanh(x) m = Mul(t, c) y = Pow(m, p) }",
        {"c": ONE, "p": np.float32(-1)},
        "pow of it",
    ),
    "the result itself": (
        "float[2,4] x) => (float[2,4] y) { t = Tanh(x) y = Mul(t, c) }",
        {"c": ONE},
        "changed constants alone",
    ),
    "rows that are the result": (
        "int64[5] x) => (float[5,4] y) { y = Gather(t, x) }",
        {"t": weights(9, 4)},
        "changed constants alone",
    ),
    "a dead channel": (
        "float[2,5] x) => (float[2,4] y) { y = MatMul(x, w) }",
        {"w": weights(5, 4) * np.array([1, 1e-39, 1, 1], np.float32)},
        "changed constants alone",
    ),
    "a place": (
        "float[2,4] x) => (int64[2,1] y) { t = Tanh(x) m = Mul(t, c) y = ArgMax<axis=1>(m) }",
        {"c": ONE},
        "eq of it",
    ),
    "an order": (
        "float[2,4] x) => (float[2,2] y, int64[2,2] i) { t = Tanh(x) m = Mul(t, c) y, i = TopK(m, k) }",
        {"c": ONE, "k": np.array([2], np.int64)},
        "nothing is known",
    ),
    "the largest": (
        "float[2,4] x) => (float[2,4] y) { t = Tanh(x) m = Mul(t, c) y = Hardmax(m) }",
        {"c": ONE},
        "eq of it",
    ),
    "a bias that is as small": (
        "float[2,4] x) => (float[2,4] y) { t = Tanh(x) m = Mul(t, c) y = Add(m, b) }",
        {"c": ONE, "b": np.full(4, 1e-37, np.float32)},
        "changed constants alone",
    ),
    "float16": (
        "float16[2,5] x) => (float16[2,4] y) { h = MatMul(x, w) y = Add(h, b) }",
        {"w": np.full((5, 4), 1e-6, np.float16), "b": BIAS.astype(np.float16)},
        "moved by",
    ),
    "a factor of what may be infinite": (
        "float[2,4] x) => (float[2,4] y) { m = Mul(x, c) a = Add(m, b) y = Sigmoid(a) }",
        {"c": ONE, "b": BIAS},
        "infinite",
    ),
    "a factor of a sum of one term": (
        "float[2,4] x) => (float[2,4] y) { u = Unsqueeze(x, k) s = ReduceSum<keepdims=0>(u, k) m = Mul(s, c) "
        "y = Add(m, b) }",
        {"c": ONE, "b": BIAS, "k": np.array([1], np.int64)},
        "infinite",
    ),
    "a factor of a sum of magnitudes": (
        "float[2,4] x) => (float[2,4] y) { s = ReduceL1(x, k) m = Mul(s, c) y = Add(m, b) }",
        {"c": ONE, "b": BIAS, "k": np.array([1], np.int64)},
        "infinite",
    ),
    "a factor of what is infinite in places": (
        "float[2,4] x) => (float[2,4] y) { t = Tanh(x) w = Max(t, i) m = Mul(w, c) y = Add(m, b) }",
        {"c": ONE, "b": BIAS, "i": np.array([0, inf, 0, 0], np.float32)},
        "infinite",
    ),
    "a matrix that meets an exponential": (
        "float[2,5] x) => (float[2,4] y) { e = Exp(x) m = MatMul(e, w) y = Add(m, b) }",
        {"w": weights(5, 4), "b": BIAS},
        "may be vast",
    ),
    "a matrix that meets inverses": (
        "float[2,5] x) => (float[2,4] y) { e = Reciprocal(x) m = MatMul(e, w) y = Add(m, b) }",
        {"w": weights(5, 4), "b": BIAS},
        "may be vast",
    ),
    "a root": (
        "float[2,5] x) => (float[2,4] y) { m = MatMul(x, w) s = Sqrt(m) y = Add(s, b) }",
        {"w": weights(5, 4), "b": BIAS},
        "root of what may be negative",
    ),
    "what meets infinity ahead of time": (
        "float[2,4] x) => (float[2,4] y) { a = Mul(i, c) y = Add(x, a) }",
        {"c": ONE, "i": np.full(4, inf, np.float32)},
        "no number",
    ),
    "a quotient beside an infinite one": (
        "int64[4] k, float[4] x) => (float[4] y) { a = Gather(c, k) q = Div(a, d) y = Add(q, x) }",
        {"c": np.array([1, TINY, inf, 3], np.float32), "d": np.full(4, 1e-30, np.float32)},
        "would be moved by",
    ),
    "a factor, scaled, of what may be infinite": (
        "float[4] x, float[4] z) => (float[4] y) { s = Sigmoid(x) a = Mul(c, s) b = Div(x, z) m = Mul(a, b) "
        "y = Add(m, x) }",
        {"c": ONE},
        "infinite",
    ),
    "a root of what becomes negative": (
        "float[4] x) => (float[4] y) { m = Max(x, c) k = Mul(j, j) d = Sub(m, k) s = Sqrt(d) y = Add(s, b) }",
        {"c": np.full(4, 2e-40, np.float32), "j": np.full(4, 1e-20, np.float32), "b": BIAS},
        "root of what may be negative",
    ),
    "what alone is inside at a corner": (
        "float[1,1,5,5] x) => (float[1,1,5,5] y) { y = Conv<pads=[1,1,1,1]>(x, w) }",
        {"w": np.array([[[[1, 1, 1], [1, TINY, TINY], [1, TINY, TINY]]]], np.float32)},
        "changed constants alone",
    ),
    "a factor of an exponential": (
        "float[2,5] x) => (float[2,4] y) { h = MatMul(x, w) e = Exp(h) m = Mul(e, c) y = Add(m, b) }",
        {"w": weights(5, 4, share=0), "c": ONE, "b": BIAS},
        "may be vast",
    ),
}


@pytest.mark.parametrize("name", GONE)
def test_what_is_rounded_away_becomes_zero(name: str) -> None:
    text, constants = GONE[name]
    found = flushed(text, **constants)
    assert not found.kept
    assert found.equation is not None
    assert subnormal_count(found.program) == 0
    assert isinstance(found.equation.evidence, Bounded)


@pytest.mark.parametrize("name", KEPT)
def test_what_a_result_depends_on_is_kept(name: str) -> None:
    text, constants, reason = KEPT[name]
    found = flushed(text, **constants)
    assert found.equation is None
    (kept,) = set(found.kept.values())
    assert reason in kept, kept


def test_signs_of_zero_stay() -> None:
    found = flushed(*[GONE["scale"][0]], **GONE["scale"][1])
    arrays = [n.attribute("data").array for n in found.program.nodes if n.op is CONSTANT]
    (array,) = [array for array in arrays if array.ravel()[-1] == 2]
    assert array.tolist() == [1, 0, 0, 2]
    assert np.signbit(array).tolist() == [False, False, True, False]


def test_each_constant_is_judged_by_itself() -> None:
    text = "float[2,4] x) => (float[2,4] y, float[2,4] z) { y = Gemm(x, w, b) z = Div(x, c) }"
    found = flushed(text, w=weights(4, 4), b=BIAS, c=ONE)
    (reason,) = found.kept.values()
    assert "quotient" in reason
    assert subnormal_count(found.program) == 1
    assert found.equation is not None and found.equation.law.endswith("subnormal elements of w")


def test_one_constant_that_two_read() -> None:
    text = "float[2,4] x) => (float[2,4] y) { h = Mul(x, c) g = Add(h, b) y = Div(g, c) }"
    found = flushed(text, b=BIAS, c=ONE)
    assert found.equation is None


def test_others_nodes_and_values_stay() -> None:
    body = "t = Tanh(x) h = Mul(t, c) y = Add(h, b) z = Relu(x)"
    text = f"float[2,4] x) => (float[2,4] y, float[2,4] z) {{ {body} }}"
    before = import_model(model(f"g ({text}", {"c": ONE, "b": BIAS}))
    found = flush_subnormals(before)
    assert found.equation is not None
    assert len(found.equation.left) == 1  # z is not touched
    assert found.program.roots[1] is before.roots[1]
    assert found.program.outputs[0][0] == "y"


def test_a_program_without_them_is_the_same_one() -> None:
    before = import_model(model("g (float[2,4] x) => (float[2,4] y) { y = Add(x, b) }", {"b": BIAS}))
    assert flush_subnormals(before) == Flushed(before, None, {})


def test_an_empty_constant_has_none() -> None:
    text = "g (float[2,0] x) => (float[2,4] y) { y = MatMul(x, w) }"
    before = import_model(model(text, {"w": np.zeros((0, 4), np.float32)}))
    assert flush_subnormals(before).program is before


def test_a_body_returns_nothing_that_was_moved() -> None:
    text = "g (float[2,4] x) => (float[2,4] y) { t = Tanh(x) y = Mul(t, c) }"
    dense = "g (float[2,4] x) => (float[2,4] y) { y = MatMul(x, w) }"
    for graph, constants in ((text, {"c": ONE}), (dense, {"w": weights(4, 4)})):
        (reason,) = flush_subnormals(import_model(model(graph, constants)), is_in_body=True).kept.values()
        assert "leaves its body" in reason
    biased = "g (float[2,4] x) => (float[2,4] y) { m = MatMul(x, w) y = Add(m, b) }"
    proto = model(biased, {"w": weights(4, 4), "b": BIAS})
    assert flush_subnormals(import_model(proto), is_in_body=True).equation


def test_a_wrong_flush_is_refuted() -> None:
    """What is said to be flushed is checked from the two sides alone."""
    text = "float[2,4] x) => (float[2,4] y) { y = Gemm(x, w, b) }"
    constants = {"w": weights(4, 4), "b": BIAS}
    before = import_model(model(f"g ({text}", constants))
    good = flush_subnormals(before).equation
    assert good is not None

    def after(**changed: Any) -> Program:
        return import_model(model(f"g ({text}", {**constants, **changed}))

    more = np.where(np.abs(constants["w"]) < 0.1, np.float32(0), constants["w"])
    assert "more than" in str(refute_flush(replace(good, right=after(w=more).roots)))
    assert "more than" in str(refute_flush(replace(good, right=after(b=2 * BIAS).roots)))
    assert "more than" in str(refute_flush(replace(good, right=after(w=-constants["w"]).roots)))
    divided = import_model(model("g (float[2,4] x) => (float[2,4] y) { y = Div(x, c) }", {"c": ONE}))
    zeros = import_model(
        model("g (float[2,4] x) => (float[2,4] y) { y = Div(x, c) }", {"c": np.where(ONE < 1e-38, 0, ONE)})
    )
    wrong = replace(good, left=divided.roots, right=zeros.roots, leaves=divided.inputs)
    assert "quotient" in str(refute_flush(wrong))


def run(proto: onnx.ModelProto, x: Sequence[Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {"x": x}))


FLOATING = [name for name, (text, _) in GONE.items() if text.startswith(("float[2,4] x)", "float[2,5] x)"))]


@pytest.mark.parametrize("name", FLOATING)
def test_outputs_are_bit_identical(name: str) -> None:
    """On a runtime, for inputs of every size, zeros among them."""
    text, constants = GONE[name]
    proto = model(f"g ({text}", constants)
    made = export_with_tensors(flush_subnormals(import_model(proto)).program)[0]
    (kind,) = [i.type.tensor_type.shape for i in proto.graph.input]
    shape = [d.dim_value for d in kind.dim]
    rng = np.random.default_rng(1)
    for size in (1e-30, 1e-6, 1, 1e6):
        x = (rng.standard_normal(shape) * size * (rng.random(shape) < 0.5)).astype(np.float32)
        for before, after in zip(run(proto, x), run(made, x), strict=True):
            np.testing.assert_array_equal(before, after)


def test_a_search_begins_with_it() -> None:
    """The candidate alone is among those of a search that has no time, and its chain is checked."""
    text, constants = GONE["weight of a convolution"]
    program = import_model(model(f"g ({text}", constants))

    class Nothing:
        def search(self, program: Program, effort: Effort, watch: Any) -> Outcome:
            return Outcome([Candidate(program, 1.0)])

    runtime = SimpleNamespace(costs=SimpleNamespace(before_measuring=None))
    outcome, bodies = ModelSearch(Nothing(), runtime, Effort(), NoProgress()).run(program)  # type: ignore[arg-type]
    assert not bodies
    (candidate,) = outcome.candidates
    assert outcome.original.program is program
    assert [made.name for made in candidate.applied] == [SUBNORMALS]
    check = check_rewrites([candidate])
    assert check.passed
    assert "1 not exactly equal, but within one rounding" in check.detail
    assert check.trials == 0  # nothing was compared over a field
    kept, _ = ModelSearch(Nothing(), runtime, Effort(), NoProgress(), flush=False).run(program)  # type: ignore[arg-type]
    assert kept.best.program is program


def test_bodies_are_flushed() -> None:
    text = """g (bool k, float[2,4] x) => (float[2,4] y) {
        y = If (k) <then_branch = t () => (float[2,4] p) { m = MatMul(x, w) p = Add(m, b) },
                    else_branch = e () => (float[2,4] q) { q = Div(x, c) }>
    }"""
    proto = model(text, {})
    for attribute in proto.graph.node[0].attribute:
        arrays = {"t": {"w": weights(4, 4), "b": BIAS}, "e": {"c": ONE}}[attribute.g.name]
        attribute.g.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
    program, chains = flush_bodies(import_model(proto))
    assert [made.name for chain in chains for made in chain.applied] == [SUBNORMALS]
    assert check_rewrites(chains).passed
    (body,) = [node for node in program.nodes if node.op is OPAQUE]
    counts = {name: subnormal_count(inner) for name, inner in body.attribute("form").bodies}
    assert counts == {"then_branch": 0, "else_branch": 1}


def test_what_estimates_favour_comes_behind_it() -> None:
    text, constants = GONE["weight of a convolution"]
    program = import_model(model(f"g ({text}", constants))
    first = flush_program(program)
    alone = Candidate(first.program, inf)
    guessed = Candidate(program, 1.0, Rewritten(lambda: (), alone), sure=False)
    outcome = prepend_preparation(first, Outcome([guessed, alone]))
    assert [len(candidate.chain) for candidate in outcome.candidates] == [2, 3]
    known = prepend_preparation(first, Outcome([replace(guessed, sure=True), alone]))
    assert [len(candidate.chain) for candidate in known.candidates] == [3, 2]


def test_bounds_of_much_stay_small() -> None:
    """A table of places that meets a large matrix is told by its columns alone."""
    text = "float[1,600,300] x) => (float[1,600,4] y) { h = Add(x, t) k = MatMul(h, v) y = MatMul(k, w) }"
    table, narrow = weights(1, 600, 300), weights(300, 200, share=0)
    began = tracemalloc.start() or monotonic()
    found = flushed(text, t=table, v=narrow, w=weights(200, 4, share=0))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2e9 and monotonic() - began < 20
    assert found.kept or found.equation


def piece(w: np.ndarray[Any, Any]) -> Piece:
    program = import_model(model("g (float[2,5] x) => (float[2,4] y) { y = MatMul(x, w) }", {"w": w}))
    return Piece.of(program.roots[0])


def test_times_are_of_weights_like_the_models_own() -> None:
    """Operators are measured with as many subnormal numbers, and have keys of their own for it."""
    usual, rare, many = weights(5, 4, share=0), weights(5, 4, share=0), weights(5, 4, share=0)
    rare[0, 0], many[:, 2:] = TINY, TINY
    keys = {name: piece(w).text for name, w in (("usual", usual), ("rare", rare), ("many", many))}
    assert keys["usual"] == "MatMul(float32[2, 5], const float32[5, 4]) -> float32[2, 4]"
    assert keys["rare"] == "MatMul(float32[2, 5], const subnormal 2^-4 float32[5, 4]) -> float32[2, 4]"
    assert keys["many"] == "MatMul(float32[2, 5], const subnormal 2^-1 float32[5, 4]) -> float32[2, 4]"
    assert piece(2 * many).text == keys["many"]  # others of the same share are measured together
    assert workload(piece(many).root, ignore_values=True) == keys["usual"]


def test_times_of_several_operators_tell_them_apart() -> None:
    text = "g (float[2,300] x) => (float[2,40] y) { h = MatMul(x, w) y = Relu(h) }"

    def fused(w: np.ndarray[Any, Any]) -> Piece:
        program = import_model(model(text, {"w": w}))
        return Piece(program.roots[0], tuple(n for n in program.nodes if n.op in (CONSTANT, INPUT)))

    plain, tiny = fused(weights(300, 40, share=0)), fused(weights(300, 40, share=0.25))
    assert "subnormal" not in plain.text and "subnormal 2^-2 w" in tiny.text
    made, _ = standalone_model(tiny, 17, copies=2)
    assert 0.2 < subnormal_count(made) / (2 * 300 * 40) < 0.3
    assert subnormal_count(standalone_model(plain, 17)[0]) == 0


def test_what_runs_in_the_original_runs_without_subnormals() -> None:
    """An operator that a runtime refuses alone is estimated, not given up, once its weights are flushed."""
    text, constants = GONE["weight of a convolution"]
    program = import_model(model(f"g ({text}", constants))
    costs = object.__new__(OperatorCosts)
    costs._sizes, costs._sized_pieces = {}, {}
    costs._original_operators = set(costs._operators(program))
    flushed_too = flush_program(program).program
    assert flushed_too is not program
    assert all(costs._runs_in_original(costs._at_sizes(Piece.of(node))) for node in flushed_too.active)


SHARES = [(0, -1), (1, -1), (8, 13), (30_000, 1), (50_000, 1), (60_000, 0), (100_000, 0)]


@pytest.mark.parametrize(("count", "rarity"), SHARES)
def test_shares(count: int, rarity: int) -> None:
    array = np.ones(100_000, np.float32)
    array[:count] = TINY
    assert subnormal_rarity(TensorData(array)) == rarity
    assert subnormal_rarity(TensorData(array.astype(np.int64))) == -1


def test_what_is_computed_ahead_of_time_is_flushed_too() -> None:
    """A scale that is multiplied into weights may make subnormal numbers of numbers that are none."""
    text = "g (float[2,5] x) => (float[2,4] y) { s = Mul(w, c) h = MatMul(x, s) y = Add(h, b) }"
    w = np.where(weights(5, 4) > 0.5, np.float32(1e-30), weights(5, 4, share=0))
    program = import_model(model(text, {"w": w, "c": np.float32(1e-9), "b": BIAS}))
    assert subnormal_count(program) == 0 and flush_subnormals(program).equation is None
    assert subnormal_count(fold_constants(program)) > 0
    candidate = flush_candidate(Candidate(program, 1.0))
    assert subnormal_count(candidate.program) == 0
    assert [made.name for made in candidate.applied] == [SUBNORMALS]
    assert check_rewrites([candidate]).passed
    (made,) = candidate.applied
    other = fold_constants(program.replace_nodes(_doubled(program))).roots
    assert "more than" in str(refute_flush(replace(made, right=other)))


def _doubled(program: Program) -> dict[Node, Node]:
    (bias,) = [n for n in program.nodes if n.op is CONSTANT and n.attribute("data").shape == (4,)]
    return {bias: constant(2 * bias.attribute("data").array)}


def test_ordinary_constants_are_not_computed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "g (float[2,5] x) => (float[2,4] y) { s = Mul(w, c) h = MatMul(x, s) y = Add(h, b) }"
    program = import_model(model(text, {"w": weights(5, 4, share=0), "c": np.float32(1e-3), "b": BIAS}))
    monkeypatch.setattr(
        "tensaurus.rules.prove.subnormal_constants.fold_constants", lambda program: pytest.fail("computed")
    )
    candidate = Candidate(program, 1.0)
    assert flush_candidate(candidate) is candidate


UNARY = ("Relu", "Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Sign", "Floor", "Abs", "Erf", "Neg")
WITH_ROW = ("Mul", "Add", "Sub", "Div", "Max", "Min")
OTHERS = ("Inverse", "Power", "Greater", "Where", "Rest", "Norm", "Softmax")
KINDS = (*UNARY, *3 * WITH_ROW, *5 * ("MatMul",), *OTHERS)


def drawn(rng: np.random.Generator) -> onnx.ModelProto:
    """A chain of a few operators over [3, 4], with subnormal numbers among its constants."""
    constants: dict[str, Any] = {}
    lines: list[str] = []

    def constant_of(*shape: int) -> str:
        array = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4)
        if rng.random() < 0.2:
            array = np.full(shape, 10.0 ** rng.integers(-38, 38))
        array *= rng.random(shape) < rng.choice([0.5, 1])
        array = np.where(rng.random(shape) < rng.choice([0, 0.3, 1], p=[0.4, 0.5, 0.1]), TINY * array, array)
        name = f"c{len(constants)}"
        constants[name] = array.astype(np.float32)
        return name

    values = ["x"]
    for place in range(rng.integers(2, 9)):
        last, other, made, kind = values[-1], rng.choice(values), f"v{place}", rng.choice(KINDS)
        if kind in UNARY or kind == "Softmax":
            line = f"{made} = {kind}({last})"
        elif kind in WITH_ROW:
            line = f"{made} = {kind}({last}, {constant_of(4)})"
        elif kind == "MatMul":
            line = f"{made} = MatMul({last}, {constant_of(4, 4)})"
        elif kind == "Inverse":
            line = f"{made} = Div({constant_of(4)}, {last})"
        elif kind == "Power":
            constants[f"p{place}"] = np.float32(rng.choice([2, 0.5, 3, -1]))
            line = f"{made} = Pow({last}, p{place})"
        elif kind == "Greater":
            line = f"g{place} = Greater({last}, {constant_of(4)}) {made} = Cast<to=1>(g{place})"
        elif kind == "Where":
            line = f"g{place} = Less({last}, {other}) {made} = Where(g{place}, {last}, {constant_of(4)})"
        elif kind == "Rest":
            line = f"{made} = {rng.choice(['Add', 'Mul', 'Sub'])}({last}, {other})"
        else:
            line = f"{made} = LayerNormalization({last}, {constant_of(4)}, {constant_of(4)})"
        lines.append(line)
        values.append(made)
    body = "\n".join(lines)
    return model(f"g (float[3,4] x) => (float[3,4] y) {{ {body}\ny = Identity({values[-1]}) }}", constants)


@pytest.mark.parametrize("seed", range(8))
def test_random_chains_compute_the_same_without(seed: int) -> None:
    """On a runtime, written as they are, for inputs of all sizes, many of them zero."""
    rng = np.random.default_rng(seed)
    flushes = 0
    while flushes < 12:
        proto = drawn(rng)
        found = flush_subnormals(import_model(proto))
        if found.equation is None:
            continue
        flushes += 1
        after = export_with_tensors(found.program, folded=False)[0]
        for size, sparse in itertools.product((0, 1e-35, 1e-20, 1e-5, 1, 1e3, 1e6), (1, 0.5, 0.2)):
            x = (rng.standard_normal((3, 4)) * size * (rng.random((3, 4)) < sparse)).astype(np.float32)
            (one,), (two,) = run(proto, x), run(after, x)
            told = onnx.printer.to_text(proto)
            np.testing.assert_allclose(two, one, rtol=1e-5, atol=2.0**-80, err_msg=told)


def test_a_summary_says_within_what_it_holds() -> None:
    text, constants = GONE["weight of a convolution"]
    (applied,) = _count_rewrites([flush_program(import_model(model(f"g ({text}", constants)))])
    assert (applied.rule, applied.count) == (SUBNORMALS, 1)
    assert applied.evidence == "bounded(intervals, all is rounded away while no value exceeds 2e+19)"
    assert applied.law == "0 in the place of 31 subnormal elements of w"
