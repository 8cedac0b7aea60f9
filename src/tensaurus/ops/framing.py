"""CenterCropPad: cuts a tensor to a size around its centre, or pads it there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensaurus.expr.ir.scope import Body, Scope, Tensor, compute
from tensaurus.expr.sizes.size import Size, is_nonnegative
from tensaurus.ops.declare import Untypable, op


def _crop_pad_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a size for every axis."""
    x = tensors[0]
    axes = range(x.rank) if attrs["axes"] is None else attrs["axes"]
    if len(axes) != len(attrs["shape"]):
        raise Untypable(f"{len(attrs['shape'])} sizes for {len(axes)} axes")
    sizes = list(x.shape)
    for axis, size in zip(axes, attrs["shape"], strict=True):
        if not -x.rank <= axis < x.rank:
            raise Untypable(f"there is no axis {axis} in rank {x.rank}")
        sizes[axis] = size
    return {"shape": tuple(sizes), "axes": None}


@op("CenterCropPad", since=18, moved={"shape": 18}, canonicalize=_crop_pad_form, examples=[
    "f32[5,6] shape=(3,8)", "f32[4,7] shape=(7,4)", "f32[2,5,6] shape=(4,3) axes=(-2,-1)",
    "i64[6,3,2] shape=(3,) axes=(0,)",
])  # fmt: skip
def center_crop_pad(x: Tensor, *, shape: tuple[Size, ...], axes: tuple[int, ...] | None = None) -> Scope:
    """x cut or zero-padded to this shape; of an odd difference the larger half is at the end."""
    shifts: list[Size] = []
    for old, new in zip(x.shape, shape, strict=True):
        if is_nonnegative(old - new):
            shifts.append((old - new) // 2)
        elif is_nonnegative(new - old):
            shifts.append(0 - (new - old) // 2)
        else:
            raise Untypable(f"whether {old} is cut or padded to {new} is not known")

    def element(*indices: Size) -> Body:
        return x.padded(0)[tuple(i + shift for i, shift in zip(indices, shifts, strict=True))]

    return compute(shape, element)
