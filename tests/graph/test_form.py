"""Models that ONNX's checker refuses but runtimes accept are imported, kept and exported so that they run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.datasets import get_example

from tensaurus.check.inputs.model_interface import inputs_of, interface_differences, required_inputs
from tensaurus.graph.lower import program_lowering
from tensaurus.graph.onnx import onnx_export
from tensaurus.graph.onnx.model_file import load_model
from tensaurus.graph.onnx.onnx_export import export_model
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.system.errors import TensaurusError


def plain() -> ModelProto:
    return onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        small (float[1, 3] x, bool c) => (float[1, 2] y, float[1, 2] z)
        <float[3, 2] w = {1, 2, 3, 4, 5, 6}>
        {
            p = MatMul (x, w)
            q = If (c) <then_branch = one () => (float[1, 2] t) { t = Relu (p) },
                        else_branch = two () => (float[1, 2] e) { e = Neg (p) }>
            y = Tanh (q)
            z = Abs (y)
        }
        """
    )


def answers(model: ModelProto) -> list[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {"x": np.array([[0.5, -1.0, 0.25]], np.float32), "c": np.array(True)}
    return list(session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()}))


def without_name(model: ModelProto) -> None:
    model.graph.name = ""


def before_opsets(model: ModelProto) -> None:
    model.ir_version = 2


def weight_that_is_no_input(model: ModelProto) -> None:
    model.ir_version = 3


def domain_that_is_not_imported(model: ModelProto) -> None:
    model.graph.node.append(helper.make_node("FusedMatMul", ["x", "w"], ["m"], domain="com.microsoft"))
    model.graph.output.append(helper.make_tensor_value_info("m", TensorProto.FLOAT, [1, 2]))


def domain_by_its_other_name(model: ModelProto) -> None:
    model.graph.node[2].domain = "ai.onnx"


def output_without_type(model: ModelProto) -> None:
    model.graph.output[0].ClearField("type")


def no_shapes(model: ModelProto) -> None:
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")


def repeated_metadata(model: ModelProto) -> None:
    for text in ("one", "another"):
        model.metadata_props.add(key="key", value=text)


def backwards(model: ModelProto) -> None:
    nodes = [NodeProto.FromString(node.SerializeToString()) for node in reversed(model.graph.node)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


@pytest.mark.parametrize(
    "change",
    [
        without_name,
        before_opsets,
        weight_that_is_no_input,
        domain_that_is_not_imported,
        domain_by_its_other_name,
        output_without_type,
        no_shapes,
        repeated_metadata,
        backwards,
    ],
)
def test_models_that_runtimes_accept_are_kept(change: Callable[[ModelProto], None], tmp_path: Path) -> None:
    original = plain()
    change(original)
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(original)
    path = tmp_path / "m.onnx"
    path.write_bytes(original.SerializeToString())
    loaded = load_model(path)
    if change is not backwards:
        assert loaded == original
    exported = export_model(import_model(loaded, file=path))
    for kept in ("metadata_props", "opset_import"):
        assert getattr(exported, kept) == getattr(original, kept)
    for kept in ("name", "input", "output"):
        assert getattr(exported.graph, kept) == getattr(original.graph, kept)
    for found, wanted in zip(answers(exported), answers(original), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_nodes_on_a_cycle_are_refused(tmp_path: Path) -> None:
    model = plain()
    model.graph.node[0].input[0] = "z"
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(TensaurusError, match="sorted"):
        load_model(path)


def test_a_bad_tensor_in_a_malformed_model_is_refused(tmp_path: Path) -> None:
    model = plain()
    model.graph.name = ""
    model.graph.initializer.append(TensorProto(name="v", data_type=TensorProto.FLOAT, dims=[-2]))
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(TensaurusError):
        import_model(load_model(path))


def test_an_example_of_onnxruntime() -> None:
    path = get_example("mul_1.onnx")
    program = import_model(load_model(path), file=path)
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    session = ort.InferenceSession(export_model(program).SerializeToString())
    np.testing.assert_array_equal(session.run(None, {"X": x})[0], x * np.arange(1, 7).reshape(3, 2))


def test_a_model_without_opset_is_exported_with_the_first() -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.ones(2, np.float32), "unused")],
    )
    model = helper.make_model(graph, ir_version=2)
    del model.opset_import[:]
    assert [entry.version for entry in export_model(import_model(model)).opset_import] == [1]


def test_equal_nodes_are_checked_against_the_opset_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    written = program_lowering.write_in_opset

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return written(*arguments)

    for module in (program_lowering, onnx_export):
        monkeypatch.setattr(module, "write_in_opset", counted)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("v0", "v1000")]
    nodes = [helper.make_node("Relu" if k % 2 else "Tanh", [f"v{k}"], [f"v{k + 1}"]) for k in range(1000)]
    model = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:]), ir_version=8)
    assert len(export_model(import_model(model)).graph.node) == 1000
    assert len(calls) == 1002


def test_sparse_weights_that_are_listed_are_no_inputs() -> None:
    """Before IR version 4 every initializer is an input, too, the sparse ones among them."""
    model = onnx.parser.parse_model(
        '<ir_version: 3, opset_import: ["": 8]>'
        " old (float[4] x, float[4] s) => (float[4] y) { y = Mul(x, s) }"
    )
    values = onnx.numpy_helper.from_array(np.array([2.0], np.float32), "s")
    places = onnx.numpy_helper.from_array(np.array([1], np.int64), "")
    model.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, places, [4]))
    assert [value.name for value in inputs_of(model)] == ["x"]
    assert [value.name for value in required_inputs(model)] == ["x"]
    assert not interface_differences(model, export_model(import_model(model)))
