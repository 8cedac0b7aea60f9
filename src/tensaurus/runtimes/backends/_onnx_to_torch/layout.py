"""Renders operators that move elements in torch: layout, indexing, resampling."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from math import ceil, prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as nn

from tensaurus.runtimes.backends._onnx_to_torch.arithmetic import pad_last_axes
from tensaurus.runtimes.backends._onnx_to_torch.rendering import Refused, Rendered, renders

# ------------------------------------------------------------------------------- layout, indexing


@renders("Reshape")
def _reshape(node: Rendered, x: Any, shape: Any = None) -> Any:
    sizes = node.ints("shape", 1) or []
    if not node.attribute("allowzero"):
        sizes = [size or node.shapes[0][axis] for axis, size in enumerate(sizes)]
    return x.reshape(sizes)


@renders("Flatten")
def _flatten(node: Rendered, x: Any) -> Any:
    shape, axis = node.shapes[0], node.attribute("axis")
    return x.reshape(prod(shape[:axis]), prod(shape[axis:]))


@renders("Transpose")
def _transpose(node: Rendered, x: Any) -> Any:
    return x.permute(node.attribute("perm") or list(reversed(range(len(node.shapes[0])))))


@renders("Squeeze")
def _squeeze(node: Rendered, x: Any, axes: Any = None) -> Any:
    chosen = node.ints("axes", 1)
    return torch.squeeze(x) if chosen is None else torch.squeeze(x, tuple(chosen))


@renders("Unsqueeze")
def _unsqueeze(node: Rendered, x: Any, axes: Any = None) -> Any:
    chosen = node.ints("axes", 1) or []
    rank = len(node.shapes[0]) + len(chosen)
    return reduce(torch.unsqueeze, sorted(axis % rank for axis in chosen), x)


@renders("Expand")
def _expand(node: Rendered, x: Any, shape: Any) -> Any:
    return torch.broadcast_to(x, np.broadcast_shapes(node.shapes[0], tuple(node.ints("", 1) or ())))


@renders("Tile")
def _tile(node: Rendered, x: Any, repeats: Any) -> Any:
    return torch.tile(x, tuple(node.ints("", 1) or ()))


@renders("Concat")
def _concat(node: Rendered, *parts: Any) -> Any:
    return torch.cat(parts, node.attribute("axis"))


@renders("Split")
def _split(node: Rendered, x: Any, split: Any = None) -> Any:
    axis, sizes = node.attribute("axis"), node.ints("split", 1)
    if sizes is None:
        size, parts = node.shapes[0][axis], node.attribute("num_outputs") or node.outputs
        each = ceil(size / parts)
        sizes = [min(each, size - each * part) for part in range(parts)]
    return torch.split(x, sizes, axis)


@renders("Slice")
def _slice(node: Rendered, x: Any, *bounds: Any) -> Any:
    starts, ends = node.ints("starts", 1) or [], node.ints("ends", 2) or []
    axes = node.ints("axes", 3) or list(range(len(starts)))
    steps = node.ints("steps", 4) or [1] * len(starts)
    shape = node.shapes[0]
    cuts = [slice(None)] * len(shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step > 0:
            cuts[axis] = slice(start, min(end, shape[axis]), step)
        else:  # torch has no slices of negative step: select the elements
            places = np.arange(shape[axis])[start : (None if end < -shape[axis] else end) : step]
            x = _select_places(node, x, axis, places)
    return x[tuple(cuts)]


def _select_places(node: Rendered, x: Any, axis: int, places: Any) -> Any:
    return torch.index_select(x, axis, node.constant(torch.tensor(np.array(places), dtype=torch.int64)))


@renders("Gather")
def _gather(node: Rendered, x: Any, places: Any) -> Any:
    axis = node.attribute("axis") % len(node.shapes[0])
    try:
        known = node.known(1)
    except Refused:
        known = None
    if known is not None and known.ndim == 0:
        return torch.select(x, axis, int(known))
    if not node.shapes[1]:
        return x[(slice(None),) * axis + (places.reshape(1),)].squeeze(axis)
    return x[(slice(None),) * axis + (places,)]


@renders("Pad")
def _pad_node(node: Rendered, x: Any, *more: Any) -> Any:
    mode, shape = node.attribute("mode"), node.shapes[0]
    pads = node.ints("pads", 1) or []
    axes = (node.ints("", 3) if len(node.shapes) > 3 else None) or list(range(len(pads) // 2))
    begin, end = [0] * len(shape), [0] * len(shape)
    for place, axis in enumerate(axes):
        begin[axis], end[axis] = pads[place], pads[place + len(axes)]
    if mode == "constant":
        given = node.attribute("value")  # an attribute before version 11
        value = node.known(2) if len(node.shapes) > 2 else None
        return pad_last_axes(x, begin, end, (given or 0.0) if value is None else value.item())
    # torch pads only the axes behind batch and channels in these modes; a reflection must be shorter than x
    spatial = max(1, len(shape) - 2)
    named = {"reflect": "reflect", "edge": "replicate"}.get(mode)
    if named and len(shape) in (3, 4, 5) and not any(begin[:-spatial] + end[:-spatial]):
        flat = [size for pair in zip(reversed(begin), reversed(end), strict=True) for size in pair]
        inner = flat[: 2 * spatial]
        if min(inner) >= 0 and all(size < shape[-1 - place // 2] for place, size in enumerate(inner)):
            return nn.pad(x, inner, mode=named)
    for axis, (before, after) in enumerate(zip(begin, end, strict=True)):
        if before or after:
            kept = np.arange(shape[axis])[max(0, -before) : shape[axis] + min(0, after)]
            x = _select_places(node, x, axis, np.pad(kept, (max(0, before), max(0, after)), mode=mode))
    return x


@renders("Shape")
def _shape(node: Rendered, x: Any) -> Any:
    return torch.tensor(
        node.shapes[0][node.attribute("start") or 0 : node.attribute("end")], dtype=torch.int64
    )


@renders("ConstantOfShape")
def _constant_of_shape(node: Rendered, shape: Any) -> Any:
    value = node.attribute("value")
    value = torch.zeros(1) if value is None else value
    return torch.full(tuple(node.ints("", 0) or ()), value.item(), dtype=value.dtype)


@renders("Range")
def _range(node: Rendered, *bounds: Any) -> Any:
    start, limit, step = (known.item() for place in range(3) if (known := node.known(place)) is not None)
    return torch.arange(start, limit, step, dtype=node.dtypes[0])


@renders("DepthToSpace")
def _depth_to_space(node: Rendered, x: Any) -> Any:
    block, (n, c, h, w) = node.attribute("blocksize"), node.shapes[0]
    if node.attribute("mode") == "CRD":
        return nn.pixel_shuffle(x, block)
    unfolded = x.reshape(n, block, block, c // block**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return unfolded.reshape(n, c // block**2, h * block, w * block)


# ------------------------------------------------------------------------------------ resampling


@renders("Resize")
def _resize(node: Rendered, x: Any, *more: Any) -> Any:
    shape = node.shapes[0]
    # inputs: x, scales in version 10; x, roi, scales, sizes from version 11 on
    scales, sizes = node.known(2 if node.opset > 10 else 1), node.ints("", 3)
    axes = [axis % len(shape) for axis in node.attribute("axes") or range(len(shape))]
    ways = {"nearest": _nearest, "linear": _linear}
    if node.attribute("mode") not in ways or node.attribute("antialias"):
        raise Refused("this mode")
    if node.attribute("keep_aspect_ratio_policy") not in (None, "stretch"):
        raise Refused("keep_aspect_ratio_policy")
    # the scale and the output size of each resized axis
    if sizes:
        scale = {axis: size / shape[axis] for axis, size in zip(axes, sizes, strict=True)}
        size = dict(zip(axes, sizes, strict=True))
    else:
        values = [] if scales is None else scales.double().tolist()
        scale = dict(zip(axes, values, strict=True))
        size = {axis: int(shape[axis] * factor) for axis, factor in scale.items()}
    resized = sorted(axis for axis in axes if size[axis] != shape[axis] or scale[axis] != 1)
    return ways[node.attribute("mode")](node, x, {axis: (scale[axis], size[axis]) for axis in resized})


def _nearest(node: Rendered, x: Any, resized: Mapping[int, tuple[float, int]]) -> Any:
    shape = node.shapes[0]
    places = {axis: _nearest_places(node, shape[axis], *to) for axis, to in resized.items()}
    out = [resized[axis][1] if axis in resized else shape[axis] for axis in range(len(shape))]
    spatial = min(resized, default=2) >= 2 and len(shape) in (3, 4, 5) and node.dtypes[0].is_floating_point
    for mode, offset in (("nearest", 0.0), ("nearest-exact", 0.5)):  # torch's, if it reads the same places
        torch_places = {
            axis: np.floor((np.arange(size) + offset) * (shape[axis] / size))
            for axis, (_, size) in resized.items()
        }
        if spatial and all(np.array_equal(places[axis], torch_places[axis]) for axis in resized):
            return nn.interpolate(x, size=out[2:], mode=mode)
    for axis, chosen in places.items():
        x = _select_places(node, x, axis, chosen)
    return x


def _nearest_places(node: Rendered, input_size: int, scale: float, output_size: int) -> Any:
    """Return the input position for each output position of one axis."""
    y = np.arange(output_size)
    x: Any
    match _coordinates(node):
        case "asymmetric":
            x = y / scale
        case "half_pixel":
            x = (y + 0.5) / scale - 0.5
        case "align_corners" if output_size > 1:
            x = y * (input_size - 1) / (output_size - 1)
        case other:
            raise Refused(f"coordinate_transformation_mode {other}")
    rounded = {
        "round_prefer_floor": lambda: np.ceil(x - 0.5),
        "round_prefer_ceil": lambda: np.floor(x + 0.5),
        "floor": lambda: np.floor(x),
        "ceil": lambda: np.ceil(x),
    }[node.attribute("nearest_mode") or "floor"]()
    return np.clip(rounded, 0, input_size - 1).astype(np.int64)


def _linear(node: Rendered, x: Any, resized: Mapping[int, tuple[float, int]]) -> Any:
    shape, how = node.shapes[0], _coordinates(node)
    modes = {3: "linear", 4: "bilinear", 5: "trilinear"}
    if how == "pytorch_half_pixel" and all(size > 1 for _, size in resized.values()):
        how = "half_pixel"
    if how not in ("half_pixel", "align_corners"):
        raise Refused(f"coordinate_transformation_mode {how}")
    if min(resized, default=2) < 2 or len(shape) not in modes:
        raise Refused("axes that are not spatial")
    to = [resized.get(axis, (1.0, shape[axis])) for axis in range(2, len(shape))]
    mode, corners = modes[len(shape)], how == "align_corners"
    if all(shape[axis] * scale == size for axis, (scale, size) in resized.items()):
        return nn.interpolate(x, size=[size for _, size in to], mode=mode, align_corners=corners)
    return nn.interpolate(x, scale_factor=[scale for scale, _ in to], mode=mode, align_corners=corners)


def _coordinates(node: Rendered) -> str:
    return str(node.attribute("coordinate_transformation_mode") or "asymmetric")  # none in version 10
