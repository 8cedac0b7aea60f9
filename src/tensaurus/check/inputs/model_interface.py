"""Reads and compares the interfaces of models: names, order, types and shapes of inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, TypeProto, ValueInfoProto

from tensaurus.graph.onnx.onnx_frame import initializer_names, stated_sizes
from tensaurus.ops.element_type import dtype_name


def inputs_of(model: ModelProto) -> list[ValueInfoProto]:
    """Return the inputs that a caller may give; IR versions below 4 list weights as inputs, too."""
    weights = initializer_names(model.graph) if model.ir_version < 4 else set()
    return [value for value in model.graph.input if value.name not in weights]


def required_inputs(model: ModelProto) -> list[ValueInfoProto]:
    """Return the inputs that a caller must give: those without a default."""
    weights = initializer_names(model.graph)
    return [value for value in model.graph.input if value.name not in weights]


def dtype_of(value: ValueInfoProto) -> np.dtype[np.generic] | None:
    """Return the numpy type of an input's elements; None for strings and unknown types."""
    code = value.type.tensor_type.elem_type
    known = code in TensorProto.DataType.values() and code not in (0, TensorProto.STRING)
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(code)) if known else None


def is_integer(value: ValueInfoProto) -> bool:
    """Return whether an input's elements are integers."""
    dtype = dtype_of(value)
    return dtype is not None and (dtype.kind in "iu" or "int" in dtype.name)


def is_float(value: ValueInfoProto) -> bool:
    """Return whether an input's elements are floats or complex numbers."""
    dtype = dtype_of(value)
    return dtype is not None and ("float" in dtype.name or dtype.kind == "c")


def interface_differences(a: ModelProto, b: ModelProto) -> list[str]:
    """Return in words how two interfaces differ; [] where a caller cannot tell them apart.

    The name of an open size does not count.  Outputs may state more or less of their shape, as long as both
    statements can be true.
    """
    return _differences("input", inputs_of(a), inputs_of(b), strict=True) + _differences(
        "output", list(a.graph.output), list(b.graph.output), strict=False
    )


def _differences(
    what: str, left: Sequence[ValueInfoProto], right: Sequence[ValueInfoProto], strict: bool
) -> list[str]:
    """Return in words how two lists of inputs, or of outputs, differ; for `strict` see `_types_agree`."""
    names, others = [v.name for v in left], [v.name for v in right]
    if names != others:
        if sorted(names) == sorted(others):
            return [f"the {what}s are in the order {_join_names(others)}, not {_join_names(names)}"]
        return [f"the {what}s are {_join_names(others)}, not {_join_names(names)}"]
    differences = []
    for one, other in zip(left, right, strict=True):
        if not _types_agree(one.type, other.type, strict):
            differences.append(
                f"{what} {one.name} is {_describe_type(other.type)}, not {_describe_type(one.type)}"
            )
    return differences


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _types_agree(one: TypeProto, other: TypeProto, strict: bool) -> bool:
    """Return whether two types are equal, or unless `strict` can both be true."""
    if not one.HasField("tensor_type") or not other.HasField("tensor_type"):
        if not strict and (one.WhichOneof("value") is None or other.WhichOneof("value") is None):
            return True
        return bool(one == other)
    codes = one.tensor_type.elem_type, other.tensor_type.elem_type
    if codes[0] != codes[1] and (strict or all(codes)):
        return False
    sizes, others = stated_sizes(one), stated_sizes(other)
    if strict:
        return sizes == others
    if sizes is None or others is None:
        return True
    return len(sizes) == len(others) and all(
        m is None or n is None or m == n for m, n in zip(sizes, others, strict=True)
    )


def _describe_type(kind: TypeProto) -> str:
    if not kind.HasField("tensor_type"):
        return f"a {(kind.WhichOneof('value') or 'value').removesuffix('_type')}"
    sizes = stated_sizes(kind)
    shape = "" if sizes is None else f"[{', '.join('?' if n is None else str(n) for n in sizes)}]"
    code = kind.tensor_type.elem_type
    return f"{dtype_name(code) if code else 'untyped'}{shape}"
