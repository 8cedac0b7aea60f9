"""The arithmetic of sliding windows, shared by convolution and pooling.

Along each spatial dimension, output i reads input i*stride + r*dilation - pad for r in range(kernel).  As in
ONNX, `pads` holds the pads before all dimensions (begins), then those after them (ends).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensaurus.expr.ir.element_types import Untypable
from tensaurus.expr.sizes.size import Size, is_negative, is_nonnegative, largest, smallest


def per_dimension(values: Sequence[Any] | None, count: int, default: int, name: str) -> tuple[Any, ...]:
    """Return an attribute with one number per dimension; the default everywhere where it is absent."""
    if not values:
        return (default,) * count
    if len(values) != count:
        raise Untypable(f"{name} has {len(values)} numbers, not {count}")
    return tuple(values)


def dilated_extent(kernel: Size, dilation: Size) -> Size:
    """Return the extent that a dilated kernel covers."""
    return (kernel - 1) * dilation + 1


def window_attributes(
    sizes: Sequence[Size], kernel: Sequence[Size], attrs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return strides, dilations and pads written out, and auto_pad as pads."""
    rank = len(sizes)
    if len(kernel) != rank:
        raise Untypable(f"a kernel of rank {len(kernel)} over {rank} spatial dimensions")
    strides = per_dimension(attrs["strides"], rank, 1, "strides")
    dilations = per_dimension(attrs.get("dilations"), rank, 1, "dilations")
    if not all(is_nonnegative(n - 1) for n in (*strides, *dilations)):
        raise Untypable("strides and dilations are positive")
    result: dict[str, Any] = {"strides": strides, "auto_pad": "NOTSET"}
    if "dilations" in attrs:
        result["dilations"] = dilations
    match attrs["auto_pad"]:
        case "NOTSET" | "":
            result["pads"] = per_dimension(attrs["pads"], 2 * rank, 0, "pads")
        case "VALID":
            result["pads"] = (0,) * (2 * rank)
        case "SAME_UPPER" | "SAME_LOWER" as kind:
            pairs = [
                same_pads(*each, upper=kind == "SAME_UPPER")
                for each in zip(sizes, kernel, strides, dilations, strict=True)
            ]
            result["pads"] = (*(begin for begin, _ in pairs), *(end for _, end in pairs))
        case other:
            raise Untypable(f"auto_pad {other}")
    return result


def same_pads(size: Size, kernel: Size, stride: int, dilation: int, *, upper: bool) -> tuple[int, int]:
    """Return the pads for ceil(size / stride) windows; an odd one more at the end (`upper`) or in front."""
    count = -((-size) // stride)
    missing = (count - 1) * stride + dilated_extent(kernel, dilation) - size
    # refuse where `missing`, which is at least dilated_extent - stride, may be below -1
    if not is_nonnegative(dilated_extent(kernel, dilation) - stride + 1) and not is_nonnegative(missing + 1):
        raise Untypable("windows far apart, padded to the same size, on which runtimes disagree")
    total = largest(missing, 0)
    if not isinstance(total, int):
        raise Untypable(f"padding to the same size needs the value of {size}")
    half = total // 2
    return (half, total - half) if upper else (total - half, half)


def output_sizes(
    sizes: Sequence[Size],
    kernel: Sequence[Size],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    ceil: bool = False,
) -> tuple[Size, ...]:
    """Return the number of windows that fit; `ceil` counts a partial one that starts before the end pad."""
    counts: list[Size] = []
    begins, ends = pads[: len(sizes)], pads[len(sizes) :]
    for size, k, stride, dilation, begin, end in zip(
        sizes, kernel, strides, dilations, begins, ends, strict=True
    ):
        room = size + begin + end - dilated_extent(k, dilation)
        if is_negative(room):
            raise Untypable(
                f"a window of {dilated_extent(k, dilation)} does not fit {size} + {begin} + {end}"
            )
        count = room // stride + 1
        if ceil:
            count = smallest(-((-room) // stride), (size + begin - 1) // stride) + 1
        counts.append(count)
    return tuple(counts)


def window_indices(
    outputs: Sequence[Size],
    kernel: Sequence[Size],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
) -> tuple[Size, ...]:
    """Return i*stride + r*dilation - pad for output indices i and kernel indices r."""
    steps = zip(outputs, kernel, strides, dilations, pads[: len(outputs)], strict=True)
    return tuple(i * s + r * d - p for i, r, s, d, p in steps)
