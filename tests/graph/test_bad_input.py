"""Bad models: one TensaurusError that names the file, never a traceback, never a crash."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tensaurus.graph.onnx.model_file import check_model, load_model, save_model
from tensaurus.graph.onnx.onnx_export import export_model
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.system.errors import TensaurusError


def model_with_weight() -> ModelProto:
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    return helper.make_model(
        helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
            "graph",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
            [numpy_helper.from_array(weight, "w")],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )


def refused(path: Path, *words: str) -> None:
    with pytest.raises(TensaurusError) as caught:
        load_model(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    for word in words:
        assert word in message


# What is no model


def test_no_file(tmp_path: Path) -> None:
    refused(tmp_path / "absent.onnx", "No such file")
    refused(tmp_path, "directory")
    refused(tmp_path / ("long" * 100), "File name too long")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "not a regular file")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00",
        b"\n",
        b"hello",
        b"\x89PNG\r\n\x1a\n",
        b"PK\x03\x04",
        b"\x80\x04\x95",
        b"\x08\x07",
        b"\xff" * 99,
    ],
)
def test_other_content(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    refused(path, "not an ONNX model")


def test_a_pickle_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"cos\nsystem\n(S'touch " + bytes(tmp_path / "ran") + b"'\ntR.")
    refused(path)
    assert not (tmp_path / "ran").exists()


def test_random_bytes(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    rng = random.Random(0)
    for _ in range(300):
        path.write_bytes(rng.randbytes(rng.randrange(1, 200)))
        refused(path)


def test_every_cut_is_refused_or_is_a_whole_model(tmp_path: Path) -> None:
    """Only a cut between two fields of the model itself may leave a smaller model that is valid."""
    path = tmp_path / "m.onnx"
    model = model_with_weight()
    model.metadata_props.add(key="author", value="nobody")
    whole = model.SerializeToString()
    accepted = []
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        try:
            found = load_model(path)
        except TensaurusError as error:
            assert str(error).startswith(f"{path}: ")
        else:
            accepted.append(end)
            assert found.graph == model.graph
    assert len(accepted) <= 1


def model_with_bodies() -> ModelProto:
    return onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["": 17]>
        g (bool c, int64 n, float[2] x) => (float[2] y, float[2] z)
        {
          y = If (c) < then_branch = t () => (float[2] a) { h = Neg(x)  a = Relu(h) },
                       else_branch = e () => (float[2] b) { b = Abs(x) } >
          z = Loop (n, c, x) < body = b (int64 i, bool d, float[2] s) => (bool e, float[2] r)
            { e = Identity(d)  r = Add(s, x) } >
        }
        """
    )


@pytest.mark.parametrize("make", [model_with_weight, model_with_bodies])
def test_damaged_bytes_never_crash(make: Callable[[], ModelProto], tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    whole = make().SerializeToString()
    rng = random.Random(1)
    for _ in range(800):
        damaged = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            export_model(import_model(load_model(path), file=path))
        except TensaurusError as error:
            assert str(error).startswith(f"{path}: ")


def test_unknown_fields_are_not_dropped_silently(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model_with_weight().SerializeToString() + b"\xf2\x7f\x03abc")
    refused(path, "not an ONNX model")


# Models that ONNX refuses, or that contradict themselves


def unknown_operator(model: ModelProto) -> None:
    model.graph.node[0].op_type = "MatMull"


def missing_value(model: ModelProto) -> None:
    model.graph.node[0].input[1] = "nowhere"


def twice(model: ModelProto) -> None:
    model.graph.node.append(model.graph.node[0])


def no_opset(model: ModelProto) -> None:
    del model.opset_import[:]


def short_weight(model: ModelProto) -> None:
    model.graph.initializer[0].raw_data = b"\0" * 44


def many_numbers(model: ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.float_data.extend([1.0] * 11)


def negative_size(model: ModelProto) -> None:
    model.graph.initializer[0].dims[0] = -3


def strange_type(model: ModelProto) -> None:
    model.graph.initializer[0].data_type = 99


def no_version(model: ModelProto) -> None:
    model.ClearField("ir_version")


def attribute_without_schema(model: ModelProto) -> None:
    model.graph.node[0].attribute.append(helper.make_attribute("alpha", 1.0))


def wrong_output(model: ModelProto) -> None:
    model.graph.output.append(helper.make_tensor_value_info("w", TensorProto.INT64, [3, 4]))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (wrong_output, ["output w", "float32", "int64"]),
        (unknown_operator, ["MatMull", "product"]),
        (missing_value, ["nowhere", "product"]),
        (twice, ["y"]),
        (no_opset, []),
        (short_weight, ["w"]),
        (many_numbers, ["w"]),
        (negative_size, ["w"]),
        (strange_type, []),
        (no_version, []),
        (attribute_without_schema, ["alpha"]),
    ],
)
def test_refused_models(damage: Callable[[ModelProto], None], words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = model_with_weight()
    damage(model)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(TensaurusError) as caught:
        import_model(load_model(path), file=path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    for word in words:
        assert word in message
    with pytest.raises(TensaurusError):  # a model in memory is checked alike
        check_model(model, path)
        import_model(model, file=path)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"z": (1,)}, ["z", "x"]),
        ({"x": (1, 2, 3)}, ["x", "3"]),
        ({"x": (1, 4)}, ["x", "dimension 1"]),
        ({"w": (3, 4)}, ["w"]),
    ],
)
def test_contradictory_shapes(shapes: dict[str, tuple[int, ...]], words: list[str]) -> None:
    with pytest.raises(TensaurusError) as caught:
        import_model(model_with_weight(), shapes, "m.onnx")
    assert str(caught.value).startswith("m.onnx: ")
    for word in words:
        assert word in str(caught.value)


def test_one_name_two_sizes() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]>'
        "g (float[N,2] a, float[N,2] b) => (float[N,2] c) { c = Add(a,b) }"
    )
    with pytest.raises(TensaurusError, match=r"m\.onnx: .*N.*3.*4"):
        import_model(model, {"a": (3, 2), "b": (4, 2)}, "m.onnx")
    program = import_model(model, {"a": (3, 2)})
    assert all(node.tensor.shape == (3, 2) for node in program.nodes)


# External data


def external(folder: Path, **entries: str | int | None) -> Path:
    """A model whose weight lies in weights.bin, with other entries if they are given."""
    folder.mkdir(exist_ok=True)
    model = model_with_weight()
    tensor = model.graph.initializer[0]
    (folder / "weights.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "weights.bin", "offset": 0, "length": 48, **entries}.items():
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_external_data_is_read(tmp_path: Path) -> None:
    expected = model_with_weight()
    for entries in (
        {},
        {"length": None},
        {"offset": None},
        {"checksum": "00"},
        {"location": "./weights.bin"},
    ):
        found = load_model(external(tmp_path / "in", **entries))
        assert found == expected
    (tmp_path / "in").rename(tmp_path / "moved")
    os.symlink(tmp_path / "moved", tmp_path / "linked")
    assert load_model(tmp_path / "linked" / "m.onnx") == expected


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"location": "absent.bin"}, ["missing", "absent.bin"]),
        ({"location": "../weights.bin"}, ["outside"]),
        ({"location": "deeper/../../weights.bin"}, ["outside"]),
        ({"location": "/etc/hostname"}, ["outside"]),
        ({"location": "C:\\weights.bin"}, ["outside"]),
        ({"location": "link.bin"}, ["outside"]),
        ({"location": "loop.bin"}, []),
        ({"location": "."}, []),
        ({"location": ""}, ["location"]),
        ({"location": None}, ["location"]),
        ({"offset": 1}, ["truncated", "48"]),
        ({"offset": -4}, []),
        ({"offset": "much"}, []),
        ({"offset": 2**70}, []),
        ({"length": 44}, ["44", "48"]),
        ({"length": 2**40}, []),
        ({"length": -48}, []),
    ],
)
def test_external_data_refused(
    entries: dict[str, str | int | None], words: list[str], tmp_path: Path
) -> None:
    path = external(tmp_path / "in", **entries)
    (tmp_path / "weights.bin").write_bytes(b"\0" * 48)
    os.symlink(tmp_path / "weights.bin", tmp_path / "in" / "link.bin")
    os.symlink(tmp_path / "in" / "loop.bin", tmp_path / "in" / "loop.bin")
    refused(path, "tensor w", *words)


def test_external_data_that_nobody_loaded(tmp_path: Path) -> None:
    model = onnx.load_model(external(tmp_path), load_external_data=False)
    with pytest.raises(TensaurusError, match=r"m\.onnx: the tensor w is malformed \(.*not loaded"):
        import_model(model, file="m.onnx")


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensaurus.graph.onnx.model_file.TWO_GIGABYTES", 10)
    path = tmp_path / "m.onnx"
    path.write_bytes(b"old")
    (tmp_path / "m.onnx.data").mkdir()
    with pytest.raises(TensaurusError, match="cannot be written"):
        save_model(model_with_weight(), path)
    assert path.read_bytes() == b"old"
    assert sorted(f.name for f in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]


def every_text() -> ModelProto:
    """A model that has each of its texts once, all of them starting with `!`."""
    model = model_with_weight()
    graph, node = model.graph, model.graph.node[0]
    model.producer_name, model.domain, model.doc_string, graph.doc_string = "!0", "!1", "!2", "!3"
    model.metadata_props.add(key="!4", value="!5")
    node.doc_string, node.attribute.add(name="!6", doc_string="!7").ref_attr_name = "!8", "!9"
    tensor = graph.initializer[0]
    tensor.doc_string = "!10"
    tensor.external_data.add(key="!11", value="!12")
    graph.input[0].type.denotation = "!13"
    graph.quantization_annotation.add(tensor_name="!14").quant_parameter_tensor_names.add(key="!15")
    graph.sparse_initializer.add().values.name = "!16"
    function = model.functions.add(name="!17", domain="!18", doc_string="!19")
    function.input.append("!20")
    function.node.add(op_type="!21").output.append("!22")
    model.training_info.add().initialization.name = "!23"
    return model


@pytest.mark.parametrize("number", range(24))
def test_no_text_may_be_other_than_utf_8(number: int, tmp_path: Path) -> None:
    content = every_text().SerializeToString()
    said = f"!{number}".encode()
    assert content.count(bytes([len(said)]) + said) == 1
    path = tmp_path / "model.onnx"
    path.write_bytes(content.replace(bytes([len(said)]) + said, bytes([len(said)]) + b"\xff" * len(said)))
    refused(path, "not UTF-8")
