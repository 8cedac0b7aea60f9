"""Quantized models: integers multiplied exactly, weights left to the runtime, ranges of any length."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.expr.evaluate.field_protocol import MAX_EXACT_INTEGER, integer_matmul
from tensaurus.expr.evaluate.fields import Reals
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.ir.scope import Tensor
from tensaurus.graph.analysis.constant_folding import fold_constants
from tensaurus.graph.ir.census import count_nodes
from tensaurus.graph.onnx.onnx_export import export_model
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.ops import registry
from tensaurus.ops.undeclared import why_undeclared
from tensaurus.runtimes.backends.reference import evaluate

RNG = np.random.default_rng(0)


def runtime(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options).run(None, feeds)


@pytest.mark.parametrize("top", [255, 2**20, 2**40])
def test_whole_products_are_exact(top: int) -> None:
    """BLAS where float64 holds the sums, integers that wrap around where it does not."""
    a, b = RNG.integers(-top, top + 1, (2, 5, 7)), RNG.integers(-top, top + 1, (2, 7, 6))
    with np.errstate(over="ignore"):
        wanted = (a[..., :, :, None] * b[..., None, :, :]).sum(-2)
    assert np.array_equal(integer_matmul(a, b), wanted)
    assert (7 * top**2 > MAX_EXACT_INTEGER) == (top > 2**20)


def test_an_empty_sum_of_integers_is_an_integer() -> None:
    op = registry["MatMul"]
    a, b = (Tensor(name, shape, "int64") for name, shape in (("a", (2, 0)), ("b", (0, 3))))
    found = interpret(
        op.declare(a, b), {a: np.zeros((2, 0), np.int64), b: np.zeros((0, 3), np.int64)}, Reals()
    )
    assert found.dtype == np.int64 and found.shape == (2, 3) and not found.any()


def quantized(path: Path, kind: str) -> onnx.ModelProto:
    """A convolution and a dense layer as onnxruntime's own quantizer writes them."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static

    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[1, 3, 8, 8] x) => (float[1, 5] y)
        {
            a = Conv <pads = [1, 1, 1, 1]> (x, w)
            b = Relu (a)
            c = Flatten (b)
            y = MatMul (c, v)
        }
        """
    )
    for name, shape in (("w", (4, 3, 3, 3)), ("v", (256, 5))):
        weight = RNG.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    onnx.save_model(model, path / "float.onnx")
    source, target = str(path / "float.onnx"), str(path / f"{kind}.onnx")
    if kind == "dynamic":
        quantize_dynamic(source, target)
    else:

        class Reader(CalibrationDataReader):
            def __init__(self) -> None:
                self.left = [{"x": RNG.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(4)]

            def get_next(self) -> dict[str, np.ndarray] | None:
                return self.left.pop() if self.left else None

        form = QuantFormat.QDQ if kind == "qdq" else QuantFormat.QOperator
        quantize_static(source, target, Reader(), quant_format=form, per_channel=True)
    return onnx.load_model(target)


@pytest.mark.parametrize("kind", ["dynamic", "qdq", "qoperator"])
def test_quantized_models_are_typed_and_computed(kind: str, tmp_path: Path) -> None:
    model = quantized(tmp_path, kind)
    program = import_model(model)
    assert not count_nodes(program).opaque
    x = RNG.standard_normal((1, 3, 8, 8)).astype(np.float32)
    (wanted,) = runtime(model, {"x": x})
    found = evaluate(program, {"x": x.astype(np.float64)}, Reals())["y"]
    assert np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max()  # a step of the quantization
    (again,) = runtime(export_model(program), {"x": x})
    assert np.array_equal(again, wanted)


def test_a_quantized_weight_stays_quantized(tmp_path: Path) -> None:
    """onnxruntime fuses it with what reads it; folded, it would be four times as large and float32."""
    program = import_model(quantized(tmp_path, "qdq"))
    kept = [node for node in fold_constants(program).active if node.is_declared and node.op.is_never_folded]
    assert len(kept) == len([node for node in program.nodes if node.is_declared and node.op.is_never_folded])
    graph = EGraph()
    for _, node in program.outputs:
        graph.insert_term(node)
    graph.rebuild()
    facts = [
        graph.analyses[graph.find(number)] for node in kept if (number := graph.enode_of(node)) is not None
    ]
    assert len(facts) == len(kept) and not any(fact.static for fact in facts)
    assert not any(node.static for node in kept)


def test_a_range_of_symbolic_length() -> None:
    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[N, 3] x) => (int64[M] y, int32[K] z)
        <int64 zero = {0}, int64 one = {1}, int64 first = {0}, int32 three = {3}, int32 two = {2},
         int32 nine = {9}>
        {
            s = Shape (x)
            n = Gather (s, first)
            y = Range (zero, n, one)
            z = Range (nine, three, two)
        }
        """
    )
    program = import_model(model)
    assert not count_nodes(program).opaque
    (_, y), (_, z) = program.outputs
    assert str(y.tensor) == "int64[N]" and str(z.tensor) == "int32[0]"
    found = runtime(export_model(program), {"x": np.zeros((4, 3), np.float32)})
    assert found[0].tolist() == [0, 1, 2, 3] and found[1].dtype == np.int32 and found[1].shape == (0,)


def test_what_has_no_declaration_says_why() -> None:
    """Never of an operator that has one."""
    from tensaurus.ops.undeclared import _REASONS

    assert not set(_REASONS) & set(registry)
    known = {s.name for s in onnx.defs.get_all_schemas_with_history()}
    assert {name.rpartition(".")[2] for name in _REASONS if not name.startswith("com.")} <= known
    assert (
        why_undeclared("LSTM") == why_undeclared("com.microsoft.DynamicQuantizeLSTM") != why_undeclared("Foo")
    )
    node = helper.make_node("NonZero", ["x"], ["y"])
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [2, "n"])],
    )
    program = import_model(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )
    assert list(count_nodes(program).reasons) == [("NonZero", "the size of its output depends on values")]
