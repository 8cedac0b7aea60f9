"""Inlining a model's own functions, and calls that are refused before anything is inlined."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto

from tensaurus.graph.onnx.inlining import MAX_NODES, inline_functions
from tensaurus.graph.onnx.onnx_export import export_model
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.system.errors import TensaurusError

HEAD = '<ir_version: 8, opset_import: ["": 17, "own": 1]> g (float[2,3] x) => (float[2,3] y) {{ {calls} }}'
DOMAIN = '<domain: "own", opset_import: ["": {opset}, "own": 1]>'
X = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)


def model(calls: str, *functions: str, opset: int = 17) -> ModelProto:
    """A model with functions of domain `own`."""
    text = "\n".join(DOMAIN.format(opset=opset) + function for function in functions)
    return onnx.parser.parse_model(HEAD.format(calls=calls) + text)


def run(found: ModelProto) -> Any:
    session = ort.InferenceSession(found.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": X})[0]


def refused(found: ModelProto, *words: str) -> None:
    with pytest.raises(TensaurusError) as caught:
        inline_functions(found, "m.onnx")
    message = str(caught.value)
    assert message.startswith("m.onnx: ")
    assert "\n" not in message
    for word in words:
        assert word in message


def doubling(depth: int) -> list[str]:
    """Functions that call the next twice: f0 makes 2^depth nodes."""
    calls = (f"f{k} (v) => (r) {{ m = own.f{k + 1}(v)  r = own.f{k + 1}(m) }}" for k in range(depth))
    return [*calls, f"f{depth} (v) => (r) {{ r = Relu(v) }}"]


def test_a_model_without_functions_is_itself() -> None:
    found = model("y = Relu(x)")
    assert inline_functions(found) is found


def test_calls_are_inlined() -> None:
    found = inline_functions(model("y = own.f0(x)", *doubling(3)))
    assert [node.op_type for node in found.graph.node] == ["Relu"] * 8
    assert not found.functions


@pytest.mark.parametrize(
    ("calls", "functions", "words"),
    [
        ("y = own.f(x, x)", ["f (v) => (r) { r = Relu(v) }"], ["node y", "own.f", "2 arguments", "1"]),
        ("y, z = own.f(x)", ["f (v) => (r) { r = Relu(v) }"], ["node y", "own.f", "2 outputs", "1"]),
        (
            "y = own.h(x)",
            ["f (v) => (r) { r = Relu(v) }", "h (v) => (r) { r = own.f(v, v) }"],
            ["node r", "in the function own.h", "2 arguments"],
        ),
        ("y = own.f(x)", ["f (v) => (r) { r = own.f(v) }"], ["own.f", "calls itself"]),
        (
            "y = own.f(x)",
            ["f (v) => (r) { r = own.h(v) }", "h (v) => (r) { r = own.f(v) }"],
            ["calls itself"],
        ),
    ],
)
def test_calls_with_too_many_values_are_refused(calls: str, functions: list[str], words: list[str]) -> None:
    refused(model(calls, *functions), *words)


@pytest.mark.parametrize("depth", [20, 24, 90, 2000])
def test_too_many_nodes_are_refused_before_inlining(depth: int) -> None:
    refused(model("y = own.f0(x)", *doubling(depth)), "nodes", f"{MAX_NODES:,}")


def test_calls_in_bodies_count() -> None:
    sides = "then_branch = t () => (b) {{ b = own.f{0}(v) }}, else_branch = e () => (d) {{ d = own.f{0}(v) }}"
    call = f"If (c) <{sides}>"
    true = "c = Constant <value = bool {1}> ()"
    functions = [f"f{k} (v) => (r) {{ {true} r = {call.format(k + 1)} }}" for k in range(24)]
    refused(model("y = own.f0(x)", *functions, "f24 (v) => (r) { r = Relu(v) }"), "nodes")


def test_the_default_of_an_attribute_is_not_forgotten() -> None:
    slope = "f <slope: float = 0.5> (v) => (r) { r = LeakyRelu <alpha: float = @slope> (v) }"
    given, left = "m = own.f <slope = 0.25> (x)", "y = own.h(m)"
    original = model(f"{given} {left}", slope, "h (v) => (r) { r = own.f(v) }")
    found = inline_functions(original)
    assert [node.attribute[0].f for node in found.graph.node] == [0.25, 0.5]
    np.testing.assert_allclose(run(found), run(original))
    assert all(len(f.node[0].attribute) == (f.name == "f") for f in original.functions)  # it stays as it is


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_a_function_with_the_name_of_an_operator(domain: str) -> None:
    """onnxruntime runs the operator, onnx writes the function out: the model has no one meaning."""
    found = model("y = Relu(x)", "Relu (v) => (r) { r = Neg(v) }")
    found.functions[0].domain = domain
    refused(found, "Relu", "ONNX operator")


def test_a_function_of_another_opset_keeps_what_it_calls() -> None:
    original = model("m = own.f(x)  y = Neg(m)", "h (v) => (r) { r = Relu(v) }")
    other = model("y = Relu(x)", "f (v) => (r) { r = own.h(v) }", opset=16)
    original.functions.extend(other.functions)
    found = inline_functions(original)
    assert [f.name for f in found.functions] == ["f", "h"]
    exported = export_model(import_model(found))
    np.testing.assert_array_equal(run(exported), run(original))


def test_an_attribute_of_another_type_stays_opaque() -> None:
    """No checker sees what a call hands to a node within its function."""
    slope = "f <slope: float = 0.5> (v) => (r) { r = LeakyRelu <alpha: float = @slope> (v) }"
    original = model("y = own.f <slope = [1, 2]> (x)", slope)
    program = import_model(inline_functions(original))
    assert [node.attribute("form").operator for node in program.opaque] == ["LeakyRelu"]
    assert list(export_model(program).graph.node[0].attribute[0].ints) == [1, 2]
