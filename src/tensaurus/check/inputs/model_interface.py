"""What a caller sees of a model: names, order, element types and shapes of its inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import ModelProto, TypeProto, ValueInfoProto

from tensaurus.graph.onnx.onnx_frame import initializer_names, sizes_of
from tensaurus.ops.element_type import dtype_name


def inputs_of(model: ModelProto) -> list[ValueInfoProto]:
    """What a caller gives: before IR version 4 every weight is listed as an input, and none counts."""
    weights = initializer_names(model.graph) if model.ir_version < 4 else set()
    return [value for value in model.graph.input if value.name not in weights]


def required_inputs(model: ModelProto) -> list[ValueInfoProto]:
    """What a caller must give: inputs without a default."""
    weights = initializer_names(model.graph)
    return [value for value in model.graph.input if value.name not in weights]


def same_interface(a: ModelProto, b: ModelProto) -> list[str]:
    """The differences, in words; none where a caller cannot tell the models apart by their signatures.

    A size that is not known has no value, whatever its name.  Outputs may state more or less of their shape,
    as long as nothing contradicts.
    """
    return _different("input", inputs_of(a), inputs_of(b), strict=True) + _different(
        "output", list(a.graph.output), list(b.graph.output), strict=False
    )


def _different(
    what: str, left: Sequence[ValueInfoProto], right: Sequence[ValueInfoProto], strict: bool
) -> list[str]:
    names, others = [v.name for v in left], [v.name for v in right]
    if names != others:
        if sorted(names) == sorted(others):
            return [f"the {what}s are in the order {_listed(others)}, not {_listed(names)}"]
        return [f"the {what}s are {_listed(others)}, not {_listed(names)}"]
    differences = []
    for one, other in zip(left, right, strict=True):
        if not _agree(one.type, other.type, strict):
            differences.append(f"{what} {one.name} is {_text(other.type)}, not {_text(one.type)}")
    return differences


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _agree(one: TypeProto, other: TypeProto, strict: bool) -> bool:
    if not one.HasField("tensor_type") or not other.HasField("tensor_type"):
        if not strict and (one.WhichOneof("value") is None or other.WhichOneof("value") is None):
            return True
        return bool(one == other)
    codes = one.tensor_type.elem_type, other.tensor_type.elem_type
    if codes[0] != codes[1] and (strict or all(codes)):
        return False
    sizes, others = sizes_of(one), sizes_of(other)
    if strict:
        return sizes == others
    if sizes is None or others is None:
        return True
    return len(sizes) == len(others) and all(
        m is None or n is None or m == n for m, n in zip(sizes, others, strict=True)
    )


def _text(kind: TypeProto) -> str:
    if not kind.HasField("tensor_type"):
        return f"a {(kind.WhichOneof('value') or 'value').removesuffix('_type')}"
    sizes = sizes_of(kind)
    shape = "" if sizes is None else f"[{', '.join('?' if n is None else str(n) for n in sizes)}]"
    code = kind.tensor_type.elem_type
    return f"{dtype_name(code) if code else 'untyped'}{shape}"
