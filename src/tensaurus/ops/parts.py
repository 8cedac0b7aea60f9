"""Declare the operators that join, cut and pad tensors: Concat, Split, Slice, Pad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tensaurus.expr.ir.element_types import Untypable
from tensaurus.expr.ir.scope import Body, Const, Scope, Tensor, compute, where
from tensaurus.expr.sizes.open_questions import has_open_questions, is_recording_questions
from tensaurus.expr.sizes.size import Size, is_negative, is_nonnegative, is_same_size
from tensaurus.ops.axes import axis_form, distinct_axes, one_axis, only_number, replace_index
from tensaurus.ops.declare import op
from tensaurus.ops.slice_bounds import WHOLE_DIMENSION, canonical_bounds, slice_extent

MAX_CHAINED_SELECTS = 16  # more parts are distinguished by a binary tree of selects, which nests less


def _concat_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    return axis_form(tensors, attrs) if tensors else {}


@op("Concat", before={4: {"axis": 1}}, canonicalize=_concat_form, examples=[
    "f32[2,3] f32[2,1] f32[2,4] axis=1", "f32[2,3,4] f32[1,3,4] axis=0", "f32[2,3,2] f32[2,3,5] axis=-1",
    "i64[3] i64[2] axis=0", "f32[2,3] axis=1", "f32[2,0] f32[2,3] axis=1",
])  # fmt: skip
def concat(*xs: Tensor, axis: int) -> Scope:
    """The inputs one after another along an axis."""
    if not xs or axis >= xs[0].rank:
        raise Untypable("nothing to join")
    for x in xs[1:]:
        if x.rank != xs[0].rank or x.dtype != xs[0].dtype:
            raise Untypable(f"{x.dtype} of rank {x.rank} joined to {xs[0].dtype} of rank {xs[0].rank}")
        if not all(map(is_same_size, replace_index(x.shape, axis, 0), replace_index(xs[0].shape, axis, 0))):
            raise Untypable(f"shapes {xs[0].shape} and {x.shape} differ beside axis {axis}")
    starts: list[Size] = [0]
    for x in xs:
        starts.append(starts[-1] + x.shape[axis])

    def element(*indices: Size) -> Body:
        index = indices[axis]
        parts: list[Body] = [
            x[replace_index(indices, axis, index - s)] for x, s in zip(xs, starts, strict=False)
        ]

        def select_part(first: int, stop: int) -> Body:
            """Return the part that holds the index: a chain of selects for few parts, else a binary tree."""
            if stop - first == 1:
                return parts[first]
            middle = first + 1 if stop - first <= MAX_CHAINED_SELECTS else (first + stop) // 2
            # a guard holds where it is at least 0: here where index < starts[middle]
            return where(starts[middle] - 1 - index, select_part(first, middle), select_part(middle, stop))

        return select_part(0, len(parts))

    return compute(replace_index(xs[0].shape, axis, starts[-1]), element)


def _equal_sizes(size: Size, count: int) -> tuple[Size, ...]:
    """Return `count` sizes that add up to a size; the last is smaller where the size is no multiple."""
    part = -((-size) // count)
    if count < 1 or not isinstance(part, int) and not is_same_size(part * count, size):
        raise Untypable(f"a split in {count} needs the value of {size}")
    return (*(part,) * (count - 1), size - part * (count - 1))


def _must_refuse_size(size: Size) -> bool:
    """Return whether a size is negative; in a proof also where that is open, since both answers are tried."""
    return is_negative(size) or is_recording_questions() and not is_nonnegative(size)


def _split_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return `split`, the parts' sizes, or `num_outputs`, their number, where they are symbolic and equal.

    Runtimes refuse a number for an input of size 0: sizes that were given become one only if they are >= 1.
    """
    axis = one_axis(attrs["axis"], tensors[0].rank)
    sizes, count = attrs["split"], attrs["num_outputs"]
    is_counted = sizes is None
    if sizes is None:
        if not count:
            raise Untypable("neither sizes nor a number of outputs")
        sizes = _equal_sizes(tensors[0].shape[axis], count)
    is_counted = is_counted or bool(sizes) and is_nonnegative(sizes[0] - 1)
    if is_counted and not isinstance(sizes[0], int) and all(is_same_size(n, sizes[0]) for n in sizes):
        return {"axis": axis, "split": None, "num_outputs": len(sizes)}
    return {"axis": axis, "split": sizes, "num_outputs": None}


def _split_of_split(outer: dict[str, Any], index: int, inner: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of one split for a split of the `index`-th part of another (Op.merge_nested)."""
    if outer["axis"] != inner["axis"] or outer["split"] is None or inner["split"] is None:
        raise Untypable("parts along two axes")
    split = outer["split"]
    return {"axis": outer["axis"], "split": (*split[:index], *inner["split"], *split[index + 1 :])}


@op("Split", since=2, moved={"split": 13}, output_count="num_outputs", canonicalize=_split_form,
    merge_nested=_split_of_split, examples=[
    "f32[6,2] split=(2,1,3)", "f32[2,6,2] axis=1 num_outputs=3", "f32[2,7] axis=-1 num_outputs=2",
    "f32[4,2] axis=0 split=(4,)", "f32[2,5] axis=1 split=(0,5)", "f32[2,3] split=(1,1)",
])  # fmt: skip
def split(
    x: Tensor, *, axis: int = 0, split: tuple[Size, ...] | None = None, num_outputs: int | None = None
) -> tuple[Scope, ...]:
    """Consecutive parts of these sizes along an axis."""
    if split is None:
        split = _equal_sizes(x.shape[axis], num_outputs or 0)
    if not is_same_size(sum(split), x.shape[axis]) or any(map(_must_refuse_size, split)):
        raise Untypable(f"parts {split} of {x.shape[axis]}")
    starts: list[Size] = [0]
    for size in split:
        starts.append(starts[-1] + size)

    def part(start: Size, size: Size) -> Scope:
        def element(*indices: Size) -> Body:
            return x[replace_index(indices, axis, indices[axis] + start)]

        return compute(replace_index(x.shape, axis, size), element)

    return tuple(part(start, size) for start, size in zip(starts, split, strict=False))


def _slice_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes in one form: axes in order, bounds clamped, no dimension that is kept whole."""
    x, starts, ends = tensors[0], attrs["starts"], attrs["ends"]
    axes = distinct_axes(range(len(starts)) if attrs["axes"] is None else attrs["axes"], x.rank)
    steps = attrs["steps"] or (1,) * len(axes)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise Untypable(f"{len(starts)} starts, {len(ends)} ends, {len(axes)} axes, {len(steps)} steps")
    cuts = {}  # by axis
    for axis, start, end, step in sorted(zip(axes, starts, ends, steps, strict=True)):
        bounds = canonical_bounds(start, end, step, x.shape[axis])
        if bounds != WHOLE_DIMENSION:
            cuts[axis] = bounds
    if not cuts and x.rank:
        cuts[0] = WHOLE_DIMENSION  # a slice must name an axis
    return {
        "axes": tuple(cuts),
        "starts": tuple(bounds.start for bounds in cuts.values()),
        "ends": tuple(bounds.end for bounds in cuts.values()),
        "steps": tuple(bounds.step for bounds in cuts.values()),
    }


@op("Slice", moved={"starts": 10, "ends": 10, "axes": 10, "steps": 10}, canonicalize=_slice_form, examples=[
    "f32[5,6] starts=(1,) ends=(4,)", "f32[5,6] starts=(1,-4) ends=(4,-1) axes=(0,1)",
    "f32[5,6,3] starts=(0,1) ends=(9223372036854775807,2147483647) axes=(-1,-2)",
    "f32[9,6] starts=(1,0) ends=(8,-2) axes=(0,1) steps=(3,2)",
    "f32[7,6] starts=(-1,4) ends=(-9223372036854775808,0) axes=(0,1) steps=(-1,-3)",
    "f32[7] starts=(20,) ends=(-20,) axes=(0,) steps=(-2,)",
    "f32[5,4] starts=(3,) ends=(1,) axes=(1,)", "f32[5,4] starts=(-100,) ends=(100,) axes=(1,)",
    "f32[5,4] starts=(-2,) ends=(-1,) axes=(0,)",
    "f32[3,4] starts=(-7,-9) ends=(-9223372036854775808,-9223372036854775808) axes=(0,1) steps=(-1,-2)",
    "f32[0] starts=(-3,) ends=(-9223372036854775808,) axes=(0,) steps=(-1,)",
])  # fmt: skip
def slice_(
    x: Tensor,
    *, starts: tuple[Size, ...], ends: tuple[Size, ...], axes: tuple[int, ...] | None = None,
    steps: tuple[int, ...] | None = None,
) -> Scope:  # fmt: skip
    """Every `step`-th element from start to end (excluded) along some axes (`slice_bounds`)."""
    assert axes is not None and steps is not None
    shape, strides = list(x.shape), [1] * x.rank
    firsts: list[Size] = [0] * x.rank
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        firsts[axis], shape[axis] = slice_extent(start, end, step, x.shape[axis])
        strides[axis] = step

    def element(*indices: Size) -> Body:
        return x[tuple(f + i * s for f, i, s in zip(firsts, indices, strides, strict=True))]

    return compute(shape, element)


def _pad_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes in one form: pads of every axis, begins before ends; value 0 if none is used."""
    x, pads = tensors[0], attrs["pads"]
    axes = distinct_axes(range(x.rank) if attrs["axes"] is None else attrs["axes"], x.rank)
    if len(pads) != 2 * len(axes):
        raise Untypable(f"{len(pads)} pads for {len(axes)} axes")
    full_pads = [0] * (2 * x.rank)
    for k, axis in enumerate(axes):
        full_pads[axis], full_pads[x.rank + axis] = pads[k], pads[len(axes) + k]
    value = only_number(attrs["value"], "pad value")
    has_no_value = attrs["mode"] != "constant" or value is None
    return {"pads": tuple(full_pads), "axes": None, "value": 0 if has_no_value else value}


@op("Pad", since=2, moved={"pads": 11, "value": 11, "axes": 18}, canonicalize=_pad_form, examples=[
    "f32[2,3] pads=(1,0,2,3)", "f32[2,3,4] pads=(0,1,2,0,0,1) value=1.5", "f32[4] pads=(1,2) axes=(-1,)",
    "f32[4,5] pads=(-1,2,1,-2)", "f32[4,5] mode='reflect' pads=(1,4,3,2)",
    "f32[2,4,5] mode='edge' pads=(0,2,3,0,1,0)", "f32[4,5] mode='wrap' pads=(3,1,2,4)",
    "f32[3,5] mode='reflect' pads=(-1,2,1,-1)", "i64[3,2] pads=(1,0,0,1) value=7",
])  # fmt: skip
def pad(
    x: Tensor,
    *, mode: str = "constant", pads: tuple[int, ...], value: Any = 0, axes: tuple[int, ...] | None = None,
) -> Scope:  # fmt: skip
    """The tensor continued by a constant, its mirror image, its edge or its copy; negative pads crop."""
    begins, ends = pads[: x.rank], pads[x.rank :]
    shape = [n + b + e for n, b, e in zip(x.shape, begins, ends, strict=True)]
    if any(is_negative(n) for n in shape):
        raise Untypable(f"pads {pads} of {x.shape}")
    if mode == "constant":
        # a bool is padded with False or True: a value that a proof does not know decides neither
        pads_with_true = x.dtype == "bool" and not is_same_size(value, 0)
        if pads_with_true and has_open_questions():
            raise Untypable("whether the value is zero is not known")
        edge = Const(pads_with_true if x.dtype == "bool" else value)
        inner = x.padded(edge)
        return compute(shape, lambda *at: inner[tuple(i - b for i, b in zip(at, begins, strict=True))])
    pieces = [_mirror_pieces(mode, *each) for each in zip(x.shape, begins, ends, strict=True)]

    def element(*indices: Size) -> Body:
        return _padded_element(x, pieces, [i - b for i, b in zip(indices, begins, strict=True)], ())

    return compute(shape, element)


class _MirrorPiece(NamedTuple):
    """From index `start` on, the padded tensor's element is that of x at slope * index + offset."""

    start: Size
    slope: int
    offset: Size


def _mirror_pieces(mode: str, n: Size, begin: int, end: int) -> list[_MirrorPiece]:
    """Return how a padded dimension of n elements reads x, piece after piece.

    Index 0 is the first element of x: pads lie below 0 and from n on.  One mirrored element on either side of
    n = 3: (-2, -1, 0), (0, 1, 0), (2, -1, 4), so that index -1 reads 1, and index 3 reads 4 - 3 = 1.
    """
    if mode == "edge":
        front = [_MirrorPiece(-begin, 0, 0)] if begin > 0 else []
        return [*front, _MirrorPiece(0, 1, 0), *([_MirrorPiece(n, 0, n - 1)] if end > 0 else [])]
    if mode not in ("reflect", "wrap"):
        raise Untypable(f"the pad mode {mode}")
    if mode == "wrap" and min(begin, end) < 0:
        raise Untypable("a wrap that crops, on which runtimes disagree")
    period = n if mode == "wrap" else n - 1
    is_period_known = isinstance(period, int) and period > 0
    largest_pad = max(begin, end)
    # a known period is repeated as often as needed; else one copy must suffice: no pad exceeds the period
    if largest_pad > 0 and not is_nonnegative(period - largest_pad) and not is_period_known:
        raise Untypable(f"a {mode} pad of {largest_pad} beside {n}")

    def copy(number: int) -> _MirrorPiece:
        # a copy covers [number * period, (number + 1) * period), mirrored where its number is odd
        if mode == "wrap" or number % 2 == 0:
            return _MirrorPiece(number * period, 1, -number * period)
        return _MirrorPiece(number * period, -1, (number + 1) * period)

    before, after = (-(-pad // period) if is_period_known else int(pad > 0) for pad in (begin, end))
    return [copy(number) for number in range(-max(before, 0), max(after, 0) + 1)]


def _padded_element(
    x: Tensor,
    pieces: Sequence[Sequence[_MirrorPiece]],
    indices: Sequence[Size],
    resolved: tuple[Size, ...],
) -> Body:
    """Return x at `resolved` in its first dimensions, then at `indices`, which `pieces` map into x."""
    if not indices:
        return x[resolved]
    index, *rest = indices

    def element_at(piece: _MirrorPiece) -> Body:
        return _padded_element(x, pieces[1:], rest, (*resolved, index * piece.slope + piece.offset))

    first, *others = pieces[0]
    result = element_at(first)
    for piece in others:
        result = where(index - piece.start, element_at(piece), result)
    return result
