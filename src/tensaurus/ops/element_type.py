"""ONNX's element types and our names of them: numpy's."""

from __future__ import annotations

from onnx import TensorProto

# Types whose elements the laws of the reals hold for, up to rounding; integers wrap, and Div truncates them.
REAL_TYPES = frozenset({"float32", "float64"})

_SHORT = {"float32": "float", "float64": "double"}  # what ONNX calls otherwise


def dtype_name(code: int) -> str:
    """The name of an ONNX element type: "float32" for 1."""
    name = str(TensorProto.DataType.Name(code)).lower()
    return next((ours for ours, theirs in _SHORT.items() if theirs == name), name)


def dtype_code(name: str) -> int:
    """The ONNX element type of a name: 1 for "float32"."""
    return int(TensorProto.DataType.Value(_SHORT.get(name, name).upper()))


def tensor_text(dtype: str) -> str:
    """The element type as schemas write it: "tensor(float)" for "float32"."""
    return f"tensor({_SHORT.get(dtype, dtype)})"
