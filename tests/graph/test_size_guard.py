"""One model for the sizes that it was made for, another for all others, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from tensaurus.graph.onnx.build import Build
from tensaurus.graph.onnx.size_guard import guard_sizes
from tensaurus.system.errors import TensaurusError


def model(text: str, opset: int = 17, **weights: Any) -> onnx.ModelProto:
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> g {text}')
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items())
    return made


def run(proto: onnx.ModelProto, types: bool = True, **feeds: Any) -> list[np.ndarray]:
    onnx.checker.check_model(proto, full_check=types)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


X = np.arange(12, dtype=np.float32)
ONE, TWO = np.float32(1), np.float32(2)


def test_each_model_runs_at_its_sizes() -> None:
    general = model("(float[N,M] x) => (float[N,M] y) { y = Add(x, w) }", w=ONE)
    fast = model("(float[3,4] x) => (float[3,4] y) { t = Add(x, w) y = Relu(t) }", w=TWO)
    joined = guard_sizes(fast, general, {"x": (3, 4)})
    assert [*joined.graph.input] == [*general.graph.input]
    assert [*joined.graph.output] == [*general.graph.output]
    assert np.array_equal(run(joined, x=X.reshape(3, 4))[0], X.reshape(3, 4) + 2)
    for shape in ((4, 3), (1, 12), (12, 1)):
        assert np.array_equal(run(joined, x=X.reshape(shape))[0], X.reshape(shape) + 1)
    assert run(joined, x=np.zeros((0, 4), np.float32))[0].shape == (0, 4)


def test_all_sizes_of_all_inputs_count() -> None:
    general = model("(float[N] a, float[M] b, float[2] c) => (float s) { s = Identity(w) }", w=ONE)
    fast = model("(float[3] a, float[4] b, float[2] c) => (float s) { s = Identity(w) }", w=TWO)
    joined = guard_sizes(fast, general, {"a": (3,), "b": (4,)})
    for sizes, wanted in {(3, 4): 2, (4, 3): 1, (3, 3): 1, (4, 4): 1}.items():
        feeds = {"a": X[: sizes[0]], "b": X[: sizes[1]], "c": X[:2]}
        assert run(joined, **feeds)[0] == wanted


# bodies of graphs whose inputs have the size SIZE
NAMES = {
    "an output that is an input": (
        "(float[SIZE] x) => (float[SIZE] x, float[SIZE] y) { y = Neg(x) }", {}
    ),
    "an output that is a weight": (
        "(float[SIZE] x) => (float[2] w, float[SIZE] y) { y = Neg(x) }", {"w": X[:2]}
    ),
    "a value and an output": (
        "(float[SIZE] x) => (float[SIZE] a, float[SIZE] b) { a = Add(x, w) b = Neg(a) }", {"w": ONE}
    ),
    "a body that reads a weight, a value and an input": (
        """(float[SIZE] x) => (float[SIZE] y) {
            a = Add(x, w) s = ReduceSum<keepdims=0>(a) k = Greater(s, w)
            y = If (k) <then_branch = t () => (float[SIZE] p) { q = Mul(a, w) p = Add(q, x) },
                        else_branch = e () => (float[SIZE] p) { p = Neg(x) }>
        }""",
        {"w": TWO},
    ),
    "names of what is added": (
        """(float[SIZE] x) => (float[SIZE] all_same) {
            found = Neg(x) wanted = Abs(found) all_same = Add(wanted, w)
        }""",
        {"w": ONE},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NAMES)
def test_names_never_clash(case: str) -> None:
    """Where both models compute the same, the joined one is equal at all sizes."""
    text, weights = NAMES[case]
    general, fast = (model(text.replace("SIZE", size), **weights) for size in ("N", "3"))
    joined = guard_sizes(fast, general, {"x": (3,)})
    for size in (3, 5):
        for x in (X[:size] - 2, X[:size] + 2):
            assert all(map(np.array_equal, run(joined, x=x), run(general, x=x)))


def test_a_model_that_computes_nothing_is_refused() -> None:
    text = "(float[SIZE] x) => (float[SIZE] x) {}"
    general, fast = (model(text.replace("SIZE", size)) for size in ("N", "3"))
    with pytest.raises(TensaurusError, match="computes nothing"):
        guard_sizes(fast, general, {"x": (3,)})


def test_each_branch_has_its_own_weights() -> None:
    """Those that it reads from the graph around it are slow in onnxruntime."""
    text = "(float[N] x) => (float[N] y) { y = Mul(x, w) }"
    joined = guard_sizes(model(text.replace("[N]", "[3]"), w=TWO), model(text, w=ONE), {"x": (3,)})
    (choice,) = (node for node in joined.graph.node if node.op_type == "If")
    for attribute in choice.attribute:
        assert [tensor.name.split("/")[-1] for tensor in attribute.g.initializer] == ["w"]
    assert [tensor.name for tensor in joined.graph.initializer] == ["choose_sizes/wanted"]


def test_a_sparse_weight_that_a_body_reads() -> None:
    text = """(float[N] x) => (float[N] y) {
        s = ReduceSum<keepdims=0>(x) z = Sub(s, s) k = Equal(s, z)
        y = If (k) <then_branch = t () => (float[3] p) { p = Neg(w) },
                    else_branch = e () => (float[3] p) { p = Identity(w) }>
    }"""
    general = model(text)
    values = numpy_helper.from_array(np.array([2, 3], np.float32), "w")
    indices = numpy_helper.from_array(np.array([0, 2], np.int64), "places")
    general.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, [3]))
    joined = guard_sizes(general, general, {"x": (3,)})
    for size in (3, 4):
        for x in (X[:size], 0 * X[:size]):
            assert np.array_equal(run(joined, False, x=x)[0], run(general, False, x=x)[0])


def test_default_values_of_inputs_stay() -> None:
    text = "(float[N] x, float w) => (float[N] y) { y = Mul(x, w) }"
    general, fast = model(text, w=TWO), model(text.replace("N", "3"), w=TWO)
    joined = guard_sizes(fast, general, {"x": (3,)})
    for size in (3, 4):
        assert np.array_equal(run(joined, x=X[:size])[0], 2 * X[:size])
        assert np.array_equal(run(joined, x=X[:size], w=np.array(5, np.float32))[0], 5 * X[:size])


def test_weights_in_files_stay_there(tmp_path: Path) -> None:
    w = np.random.default_rng(0).standard_normal((600, 600)).astype(np.float32)
    text = "(float[N,600] x) => (float[N,600] y) { y = MatMul(x, w) }"
    fast_text = "(float[2,600] x) => (float[2,600] y) { t = MatMul(x, w) y = Relu(t) }"
    builds = [Build.from_model(model(each, w=w), tmp_path) for each in (fast_text, text)]
    fast, general = (build.proto(weights=False) for build in builds)
    joined = Build.from_model(guard_sizes(fast, general, {"x": (2, 600)}), tmp_path)
    assert len([*tmp_path.glob("*.weights")]) == 1 and joined.size < 10_000
    x = np.random.default_rng(1).standard_normal((2, 600)).astype(np.float32)
    (found,) = run(joined.proto(), x=x)
    assert np.allclose(found, np.maximum(x @ w, 0), atol=1e-3)
    (found,) = run(joined.proto(), x=x[:1])
    assert np.allclose(found, x[:1] @ w, atol=1e-3)


def test_outputs_that_are_no_tensors() -> None:
    text = """(float[SIZE] x) => (seq(float[SIZE]) s, optional(float[SIZE]) o, float[SIZE] y) {
        y = Neg(x) s = SequenceConstruct(x, y) o = Optional(y)
    }"""
    general, fast = (model(text.replace("SIZE", size)) for size in ("N", "3"))
    joined = guard_sizes(fast, general, {"x": (3,)})
    for size in (3, 4):
        sequence, optional, y = run(joined, x=X[:size])
        assert np.array_equal(sequence, [X[:size], -X[:size]]) and np.array_equal(optional, y)


def test_domains_and_functions_are_kept() -> None:
    general = model("(float[N] x) => (float[N] y) { y = Neg(x) }")
    fast = model("(float[3] x) => (float[3] y) { y = Neg(x) }")
    fast.opset_import.add(domain="own", version=2)
    general.opset_import.add(domain="other", version=1)
    joined = guard_sizes(fast, general, {"x": (3,)})
    found = {entry.domain: entry.version for entry in joined.opset_import}
    assert found == {"": 17, "own": 2, "other": 1}


@pytest.mark.parametrize("opset", [9, 10, 11, 12, 13, 15, 18, 19, 21])
def test_every_opset(opset: int) -> None:
    text = "(float[N,M] x, int64[N] k) => (float[N,M] y, int64[N] k2) { y = Neg(x) k2 = Identity(k) }"
    fast_text = "(float[2,3] x, int64[2] k) => (float[2,3] y, int64[2] k2) { y = Abs(x) k2 = Identity(k) }"
    joined = guard_sizes(model(fast_text, opset), model(text, opset), {"x": (2, 3), "k": (2,)})
    for shape, sign in {(2, 3): 1, (3, 2): -1, (2, 2): -1}.items():
        x, k = np.ones(shape, np.float32), np.arange(shape[0])
        found = run(joined, x=x, k=k)
        assert np.array_equal(found[0], sign * x) and np.array_equal(found[1], k)


def test_an_old_opset_is_refused() -> None:
    text = "(float[N] x) => (float[N] y) { y = Neg(x) }"
    with pytest.raises(TensaurusError, match="needs opset 9, the model has 8"):
        guard_sizes(model(text, opset=8), model(text, opset=8), {"x": (3,)})
