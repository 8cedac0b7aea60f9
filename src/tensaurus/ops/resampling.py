"""Declare resizing by nearest or linear interpolation, with exact rational coordinates: Resize, Upsample.

An output index x lies at the input coordinate (slope * x + offset) / scale with integers (`CoordinateMap`),
so that neighbours and weights are computed with integers alone.  Twice as long, with half_pixel coordinates:

    (x + 1/2) / 2 - 1/2   ->   CoordinateMap(slope=2, offset=-1, scale=4)

The canonical attributes of both are the ratios of output to input sizes (`scales`); a Resize has the output's
`sizes` instead where float32, the type of ONNX's scales, cannot hold the ratios.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm, prod
from typing import Any

import numpy as np

from tensaurus.expr.ir.element_types import Untypable
from tensaurus.expr.ir.scope import Body, Scope, Tensor, compute, lift
from tensaurus.expr.sizes.size import Size, is_nonnegative, is_same_size, largest, smallest
from tensaurus.ops.axes import distinct_axes
from tensaurus.ops.declare import op

HALF = Fraction(1, 2)
# by rank, the sets of axes along which runtimes interpolate linearly
_LINEAR_AXES = {2: [{0, 1}], 3: [{0, 1, 2}], 4: [{2, 3}, {1, 2}], 5: [{2, 3, 4}]}


@dataclass(frozen=True)
class CoordinateMap:
    """The function (slope * x + offset) / scale from an output's index x to its coordinate in the input.

    `scale` is positive; the three numbers have no common factor.
    """

    slope: int
    offset: int
    scale: int

    def floor(self, x: Size) -> Size:
        """Return the coordinate of x rounded down."""
        # cancel a common factor; `offset // shared` drops a fraction that the floor below would drop, too
        shared = gcd(self.slope, self.scale)
        top: Size = self.slope // shared * x + self.offset // shared
        return top // (self.scale // shared)

    def remainder(self, x: Size) -> Size:
        """Return scale * (coordinate - floor)."""
        return self.slope * x + self.offset - self.scale * self.floor(x)

    def nearest(self, x: Size, mode: str) -> Size:
        """Return the coordinate of x rounded as ONNX's `nearest_mode` says."""
        match mode:
            case "floor":
                return self.floor(x)
            case "ceil":
                return _integer_map(self.slope, self.offset + self.scale - 1, self.scale).floor(x)
            case "round_prefer_ceil":  # floor(c + 1/2): halves go up
                return _integer_map(2 * self.slope, 2 * self.offset + self.scale, 2 * self.scale).floor(x)
            case "round_prefer_floor":
                above = 2 * self.offset + self.scale - 1  # ceil(c - 1/2): halves go down
                return _integer_map(2 * self.slope, above, 2 * self.scale).floor(x)
        raise Untypable(f"the rounding {mode}")


def _integer_map(slope: int, offset: int, scale: int) -> CoordinateMap:
    """Return (slope * x + offset) / scale in lowest terms."""
    shared = gcd(slope, offset, scale)
    return CoordinateMap(slope // shared, offset // shared, scale // shared)


def _rational_map(slope: Fraction, offset: Fraction) -> CoordinateMap:
    """Return slope * x + offset."""
    scale = lcm(slope.denominator, offset.denominator)
    return _integer_map(int(slope * scale), int(offset * scale), scale)


def coordinate_map(mode: str, ratio: Fraction, size: Size, count: Size) -> CoordinateMap:
    """Return the map from an output's index to its input coordinate, by ONNX's formula for the mode.

    size is the input's, count the output's: ratio * size, maybe rounded.
    """
    match mode:
        case "asymmetric":
            return _rational_map(1 / ratio, Fraction(0))
        case "tf_half_pixel_for_nn":
            return _rational_map(1 / ratio, HALF / ratio)
        case "half_pixel":
            return _rational_map(1 / ratio, HALF / ratio - HALF)
    if not isinstance(size, int) or not isinstance(count, int):
        raise Untypable(f"{mode} coordinates need the value of {size}")
    match mode:
        case "align_corners":
            return _rational_map(Fraction(size - 1, count - 1) if count > 1 else Fraction(0), Fraction(0))
        case "pytorch_half_pixel":
            return coordinate_map("half_pixel" if count > 1 else "asymmetric", ratio, size, count)
        case "half_pixel_symmetric":
            shift = Fraction(size, 2) * (1 - count / (ratio * size))
            return _rational_map(1 / ratio, shift + HALF / ratio - HALF)
    raise Untypable(f"the coordinate mode {mode}")


def resize_by(x: Tensor, ratios: Sequence[Fraction], mode: str, coordinates: str, rounding: str) -> Scope:
    """Return x with dimension d made ratios[d] times as long.

    mode, coordinates, rounding   ONNX's mode, coordinate_transformation_mode and nearest_mode
    """
    shape = [_scaled(n, r) for n, r in zip(x.shape, ratios, strict=True)]
    maps = {
        d: coordinate_map(coordinates, ratio, x.shape[d], shape[d])
        for d, ratio in enumerate(ratios)
        if ratio != 1
    }
    if mode == "nearest":
        return compute(shape, lambda *indices: _nearest_element(x, maps, rounding, indices))
    if mode != "linear":
        raise Untypable(f"the interpolation {mode}")
    if not x.dtype.startswith(("float", "bfloat")):
        raise Untypable(f"linear interpolation of {x.dtype}")
    if not any(set(maps) <= axes for axes in _LINEAR_AXES.get(x.rank, ())):
        raise Untypable(f"linear interpolation along {list(maps)} of rank {x.rank}, which runtimes refuse")
    total_scale = prod(coordinate.scale for coordinate in maps.values())

    def element(*indices: Size) -> Body:
        blended = _blend_neighbours(x, maps, indices, list(maps))
        return blended if total_scale == 1 else blended / total_scale

    return compute(shape, element)


def _clamp(x: Tensor, d: int, index: Size) -> Size:
    """Return the index into dimension d, moved to the edge where it is beyond."""
    inside: Size = smallest(largest(index, 0), x.shape[d] - 1)
    return inside


def _nearest_element(
    x: Tensor, maps: Mapping[int, CoordinateMap], rounding: str, indices: Sequence[Size]
) -> Body:
    """Return the element of x that is nearest to an output's indices."""
    return x[
        tuple(_clamp(x, d, maps[d].nearest(i, rounding)) if d in maps else i for d, i in enumerate(indices))
    ]


def _blend_neighbours(
    x: Tensor, maps: Mapping[int, CoordinateMap], indices: Sequence[Size], dims: Sequence[int]
) -> Body:
    """Return the interpolated value along `dims`, times the product of their scales.

    Along each dimension: (scale - remainder) times the lower neighbour plus remainder times the upper one.
    """
    if not dims:
        return x[tuple(indices)]
    d, *rest = dims
    lower_index, weight = maps[d].floor(indices[d]), maps[d].remainder(indices[d])

    def neighbour(index: Size) -> Body:
        return _blend_neighbours(x, maps, (*indices[:d], _clamp(x, d, index), *indices[d + 1 :]), rest)

    if maps[d].scale == 1:
        return neighbour(lower_index)
    lower, upper = neighbour(lower_index), neighbour(lower_index + 1)
    return lower * lift(maps[d].scale - weight) + upper * lift(weight)


def _scaled(size: Size, ratio: Fraction) -> Size:
    """Return floor(size * ratio); where the product is no integer, in float32, as every runtime does."""
    if isinstance(size, int):
        exact = size * ratio
        return int(exact) if exact.denominator == 1 else int(np.floor(np.float32(size) * np.float32(ratio)))
    if ratio.denominator > 1024:  # float32 may round the product of a long fraction to another integer
        raise Untypable(f"{size} times {ratio} needs the value of {size}")
    dividend: Size = size * ratio.numerator
    return dividend // ratio.denominator


def _known_ratio(size: Size, count: Size) -> Fraction | None:
    """Return count / size where that is a known number, else None."""
    if isinstance(size, int) and isinstance(count, int) and size > 0 and count > 0:
        return Fraction(count, size)
    for bottom in (1, 2, 4):  # of symbolic sizes only multiples of 1/4 are recognized
        top = count * bottom // size if is_nonnegative(size - 1) else None
        if isinstance(top, int) and top > 0 and is_same_size(size * top, count * bottom):
            return Fraction(top, bottom)
    return None


def _ratios(scales: Sequence[Any], rank: int) -> tuple[Fraction, ...]:
    """Return the scales of all dimensions as fractions.  Raises Untypable unless all are positive numbers."""
    if len(scales) != rank:
        raise Untypable(f"{len(scales)} scales of rank {rank}")
    if any(not isinstance(s, (int, Fraction)) or s <= 0 for s in scales):
        raise Untypable(f"scales {scales}")
    return tuple(map(Fraction, scales))


def _common_ratio(
    x: Tensor, ratios: Sequence[Fraction], axes: Sequence[int], policy: str
) -> tuple[Fraction, ...]:
    """Return one ratio for all axes: the least or the largest of those that the sizes ask for."""
    if policy not in ("not_larger", "not_smaller"):
        raise Untypable(f"the policy {policy}")
    shared = (min if policy == "not_larger" else max)(ratios[d] for d in axes)
    for d in axes:
        n = x.shape[d]
        # a given policy rounds sizes to nearest, a given ratio rounds them down
        if not isinstance(n, int) or _scaled(n, shared) != (n * shared + HALF) // 1:
            raise Untypable(f"{policy}: {n} times {shared} is not exact")
    return tuple(shared if d in axes else Fraction(1) for d in range(x.rank))


def _resize_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes in canonical form, with defaults for those that change nothing here.

    The form has scales of all dimensions, or sizes where float32 cannot express the scales.  Raises Untypable
    for attributes that are not declared.
    """
    x = tensors[0]
    scales, sizes = attrs["scales"] or (), attrs["sizes"] or ()
    if bool(scales) == bool(sizes):
        raise Untypable("either scales or sizes")
    axes = distinct_axes(range(x.rank) if attrs["axes"] is None else attrs["axes"], x.rank)
    values = scales or sizes
    if len(values) != len(axes):
        raise Untypable(f"{len(values)} scales or sizes for {len(axes)} axes")
    value_by_axis = dict(zip(axes, values, strict=True))
    counts: tuple[Size, ...] | None = None  # the output's sizes, where these were asked for
    if scales:
        ratios = _ratios([value_by_axis.get(d, 1) for d in range(x.rank)], x.rank)
    else:
        counts = tuple(value_by_axis.get(d, n) for d, n in enumerate(x.shape))
        known_ratios = [_known_ratio(n, c) for n, c in zip(x.shape, counts, strict=True)]
        ratios = tuple(r for r in known_ratios if r is not None)
        if len(ratios) < x.rank:
            raise Untypable(f"{x.shape} resized to {counts}")
        if attrs["keep_aspect_ratio_policy"] != "stretch":
            ratios, counts = _common_ratio(x, ratios, axes, attrs["keep_aspect_ratio_policy"]), None
    if attrs["antialias"] and attrs["mode"] != "nearest" and any(r < 1 for r in ratios):
        raise Untypable("antialiasing")
    # ONNX's scales are float32: where that rounds the ratios, the sizes must state them
    are_exact = all(Fraction(float(np.float32(r))) == r for r in ratios)
    if not are_exact and counts is None and not scales:
        raise Untypable(f"ratios {ratios} are no float32 numbers")
    coordinates = attrs["coordinate_transformation_mode"]
    # these two modes differ only where an output has length 1
    if coordinates == "pytorch_half_pixel" and all(
        is_nonnegative(_scaled(n, r) - 2) for n, r in zip(x.shape, ratios, strict=True) if r != 1
    ):
        coordinates = "half_pixel"
    return {
        "antialias": 0,
        "axes": None,
        "coordinate_transformation_mode": coordinates,
        "cubic_coeff_a": Fraction(-3, 4),
        "exclude_outside": 0,
        "extrapolation_value": 0,
        "keep_aspect_ratio_policy": "stretch",
        "nearest_mode": _canonical_rounding(attrs, ratios),
        "roi": (),
        "scales": ratios if are_exact else (),
        "sizes": None if are_exact else counts,
    }


def _canonical_rounding(attrs: Mapping[str, Any], ratios: Sequence[Fraction]) -> str:
    """Return the canonical `nearest_mode`: its default where nothing is rounded, never "simple"."""
    mode = attrs["nearest_mode"]
    if attrs["mode"] != "nearest":
        return "round_prefer_floor"
    if mode == "simple":  # opset 10, as onnxruntime reads it: down to the next element, up when shrinking
        if all(r >= 1 for r in ratios):
            return "floor"
        if all(r <= 1 for r in ratios):
            return "ceil"
        raise Untypable("a resize of opset 10 that both grows and shrinks")
    return str(mode)


@op("Resize", since=10, moved={"roi": 11, "scales": 10, "sizes": 11}, order=("x", "roi", "scales", "sizes"),
    before={11: {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "simple"}},
    canonicalize=_resize_form, examples=[
    "f32[1,2,3,4] scales=(1,1,2,2) coordinate_transformation_mode=asymmetric nearest_mode=floor",
    "f32[1,2,3,4] scales=(1.0,1.0,2.0,3.0)",
    "f32[1,2,5,4] scales=(1.0,1.0,0.6,1.7) nearest_mode=round_prefer_ceil",
    "f32[1,1,5,7] sizes=(1,1,3,5) nearest_mode=ceil coordinate_transformation_mode=align_corners",
    "f32[1,1,5,7] sizes=(1,1,8,10) nearest_mode=floor coordinate_transformation_mode=half_pixel",
    "f32[1,2,3,4] scales=(1,1,2,2) mode=linear",
    "f32[1,2,3,4] scales=(1,1,2,3) mode=linear coordinate_transformation_mode=asymmetric",
    "f32[1,1,4,5] sizes=(1,1,7,8) mode=linear coordinate_transformation_mode=align_corners",
    "f32[1,1,4,5] sizes=(1,1,3,1) mode=linear coordinate_transformation_mode=pytorch_half_pixel",
    "f32[1,1,4,6] scales=(1,1,0.5,1.5) mode=linear", "f32[2,3,5] scales=(1,1,2.5) mode=linear",
    "f32[1,1,4,5] sizes=(3,10) axes=(2,3) mode=linear",
    "f32[1,1,2,4] sizes=(7,8) axes=(2,3) keep_aspect_ratio_policy=not_larger",
    "f32[1,1,2,4] sizes=(3,5) axes=(2,3) keep_aspect_ratio_policy=not_smaller mode=linear",
    "f32[1,1,4,5] scales=(1,1,0.8,1.3) mode=linear coordinate_transformation_mode=half_pixel_symmetric",
    "i32[1,1,2,3] scales=(1,1,2,2) nearest_mode=floor coordinate_transformation_mode=asymmetric",
])  # fmt: skip
def resize(
    x: Tensor,
    *, antialias: int = 0, axes: tuple[int, ...] | None = None,
    coordinate_transformation_mode: str = "half_pixel", cubic_coeff_a: Any = -0.75, exclude_outside: int = 0,
    extrapolation_value: Any = 0, keep_aspect_ratio_policy: str = "stretch", mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor", roi: tuple[Any, ...] | None = None,
    scales: tuple[Any, ...] | None = None, sizes: tuple[Size, ...] | None = None,
) -> Scope:  # fmt: skip
    """Nearest or linear interpolation at evenly spaced coordinates, edges repeated."""
    if scales:
        ratios = tuple(map(Fraction, scales))
    else:
        assert sizes is not None
        ratios = tuple(_known_ratio(n, c) or Fraction(1) for n, c in zip(x.shape, sizes, strict=True))
    return resize_by(x, ratios, mode, coordinate_transformation_mode, nearest_mode)


def _upsample_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scales as fractions.  Raises Untypable where they shrink."""
    ratios = _ratios(attrs["scales"], tensors[0].rank)
    if any(r < 1 for r in ratios):
        raise Untypable(f"scales {attrs['scales']} shrink")
    return {"scales": ratios}


@op("Upsample", since=7, moved={"scales": 9}, canonicalize=_upsample_form, examples=[
    "f32[1,2,3,4] scales=(1,1,2,2)", "f32[1,2,3,4] scales=(1,1,1.5,3)",
    "f32[1,2,3,4] scales=(1,1,2,2) mode=linear",
])  # fmt: skip
def upsample(x: Tensor, *, mode: str = "nearest", scales: tuple[Any, ...]) -> Scope:
    """Nearest (rounded down) or linear interpolation; output x lies at x / scale."""
    return resize_by(x, tuple(map(Fraction, scales)), mode, "asymmetric", "floor")
