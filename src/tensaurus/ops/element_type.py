"""Translate between ONNX's element types and our names for them, which are numpy's."""

from __future__ import annotations

from onnx import TensorProto

# Element types of the variables of all rules without the tag `any`: the laws of the reals hold in them up to
# rounding. Integers wrap, and Div truncates them.
REAL_TYPES = frozenset({"float32", "float64"})

_ONNX_NAMES = {"float32": "float", "float64": "double"}  # where ONNX has another name


def dtype_name(code: int) -> str:
    """Return the name of an ONNX element type: "float32" for 1."""
    name = str(TensorProto.DataType.Name(code)).lower()
    return next((ours for ours, theirs in _ONNX_NAMES.items() if theirs == name), name)


def dtype_code(name: str) -> int:
    """Return the ONNX element type of a name: 1 for "float32"."""
    return int(TensorProto.DataType.Value(_ONNX_NAMES.get(name, name).upper()))


def tensor_text(dtype: str) -> str:
    """Return the element type as schemas write it: "tensor(float)" for "float32"."""
    return f"tensor({_ONNX_NAMES.get(dtype, dtype)})"
