"""Types that declarations derive, beside those that a model states and ONNX infers."""

from __future__ import annotations

import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from tensaurus.graph.ir.census import count_nodes
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.ops import TensorType


def model(text: str, opset: int = 17) -> ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')


def ranged(dtype: str, range_: str) -> ModelProto:
    """A range of the size of x, in steps of one."""
    code = TensorProto.DataType.Value(dtype.upper())
    return model(
        f"net (float[N] x) => ({dtype}[K] y)"
        f"<{dtype} zero = {{0}}, {dtype} one = {{1}}, {dtype} back = {{-1}}>"
        f"{{ s = Shape (x) n = Squeeze (s) size = Cast <to = {code}> (n) twice = Add (size, size)"
        f"y = Range ({range_}) }}"
    )


@pytest.mark.parametrize("dtype", ["int32", "int64", "float", "double", "int16"])
@pytest.mark.parametrize("range_", ["zero, size, one", "size, zero, back", "size, twice, one"])
def test_a_range_of_a_size_is_of_its_type(dtype: str, range_: str) -> None:
    """A static input that is known as a size has its own type still."""
    ((_, node),) = import_model(ranged(dtype, range_)).outputs
    kind = node.types[0]
    assert isinstance(kind, TensorType)
    assert kind.dtype == {"float": "float32", "double": "float64"}.get(dtype, dtype)
    assert not node.is_declared or dtype == "int64"  # the others may round, or wrap


@pytest.mark.parametrize(
    ("stated", "reason"),
    [
        (
            helper.make_tensor_value_info("a", TensorProto.INT64, [2, 3]),
            "float32[2, 3], but declared as int64",
        ),
        (helper.make_tensor_value_info("a", TensorProto.FLOAT, [2, 3]), ""),
        (helper.make_tensor_value_info("a", TensorProto.FLOAT, ["N", None]), ""),
    ],
)
def test_a_node_that_is_stated_to_be_of_another_type(stated: onnx.ValueInfoProto, reason: str) -> None:
    found = model("net (float[2,3] x) => (float[2,3] y) { a = Relu (x) y = Neg (a) }")
    found.graph.value_info.append(stated)
    reasons = count_nodes(import_model(found)).reasons
    assert [why for (_, why) in reasons] == ([f"its output a is {reason}"] if reason else [])


def test_a_stale_shape_is_overlooked() -> None:
    """As runtimes do: the output states two dimensions, and has three."""
    found = model("net (float[2,3,4] x) => (float[2,12] y) { a = Relu (x) y = Neg (a) }")
    found.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [24]))
    assert count_nodes(import_model(found)).reasons == {}


def test_a_node_of_which_inference_knows_another_shape() -> None:
    """Negative axes came with version 11: before, ONNX's inference counts other dimensions."""
    for opset, operators in ((10, {"Unsqueeze"}), (12, set())):
        found = model("net (int8[5,2] x) => (int8[A] y) { y = Unsqueeze <axes = [-1,0]> (x) }", opset)
        found.graph.output[0].type.tensor_type.ClearField("shape")
        assert {op for op, _ in count_nodes(import_model(found)).reasons} == operators


def test_types_agree_with_inference() -> None:
    """No example of any operator is left opaque for what ONNX infers of it."""
    from op_samples import samples

    differs = []
    for sample in samples():
        for opset, single in sample.models():
            for output in single.graph.output:
                output.type.tensor_type.ClearField("shape")
            reasons = count_nodes(import_model(single)).reasons
            differs += [(str(sample), opset, why) for _, why in reasons if "but declared as" in why]
    assert differs == []


@pytest.mark.parametrize(
    ("text", "opset", "opaque"),
    [
        ("(float[3,1,2] x) => (float[A] y) { y = Squeeze <axes: ints = []> (x) }", 11, True),
        ("(float[3,2] x) => (float[A] y) { y = Squeeze <axes: ints = []> (x) }", 11, False),
        ("(float[3,N] x) => (float[A] y) { y = Squeeze <axes: ints = []> (x) }", 11, True),
        ("(float[3,1,2] x) => (float[A] y) { y = Squeeze (x) }", 11, False),
        ("(float[3,1,2] x) => (float[A] y) <int64[0] a = {}> { y = Squeeze (x, a) }", 17, True),
        (
            "(float[1,2,7] x) => (float[1,2,A] y)"
            '{ y = MaxPool <kernel_shape = [3], dilations = [2], auto_pad = "SAME_LOWER"> (x) }',
            17,
            True,
        ),
        (
            "(float[1,2,7] x) => (float[1,2,A] y)"
            '{ y = AveragePool <kernel_shape = [3], strides = [2], auto_pad = "SAME_LOWER"> (x) }',
            17,
            False,
        ),
    ],
)
def test_what_runtimes_read_in_their_own_way_stays_as_it_is(text: str, opset: int, opaque: bool) -> None:
    """To onnxruntime a squeeze of no axes is one of every 1, and its pools forget the dilation in padding."""
    found = model(f"net {text}", opset)
    found.graph.output[0].type.tensor_type.ClearField("shape")
    assert bool(import_model(found).opaque) == opaque
