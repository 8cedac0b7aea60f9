"""Operators that join, cut and pad tensors: Concat, Split, Slice, Pad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensaurus.expr.ir.element_types import Untypable
from tensaurus.expr.ir.scope import Body, Const, Scope, Tensor, compute, where
from tensaurus.expr.sizes.open_questions import has_open_questions, is_recording_questions
from tensaurus.expr.sizes.size import Size, is_negative, is_nonnegative, is_same_size, largest, smallest
from tensaurus.ops.axes import distinct_axes, one_axis, replace_index
from tensaurus.ops.declare import op

SLICE_LAST = 2**63 - 1  # as the end of a slice: up to the last element
SLICE_FIRST = -(2**63)  # as the end of a slice with a negative step: down to the first element
OPEN_END = 2**31 - 1  # exporters write "to the end" as any number from here on
MAX_CHAINED_SELECTS = 16  # more parts are distinguished by a binary tree of selects, which nests less


def _first_axis(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {"axis": one_axis(attrs["axis"], tensors[0].rank)} if tensors else {}


@op(
    "Concat",
    before={4: {"axis": 1}},
    canonicalize=_first_axis,
    examples=[
        "f32[2,3] f32[2,1] f32[2,4] axis=1",
        "f32[2,3,4] f32[1,3,4] axis=0",
        "f32[2,3,2] f32[2,3,5] axis=-1",
        "i64[3] i64[2] axis=0",
        "f32[2,3] axis=1",
        "f32[2,0] f32[2,3] axis=1",
    ],
)
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


@op(
    "Split",
    since=2,
    moved={"split": 13},
    output_count="num_outputs",
    canonicalize=_split_form,
    merge_nested=_split_of_split,
    examples=[
        "f32[6,2] split=(2,1,3)",
        "f32[2,6,2] axis=1 num_outputs=3",
        "f32[2,7] axis=-1 num_outputs=2",
        "f32[4,2] axis=0 split=(4,)",
        "f32[2,5] axis=1 split=(0,5)",
        "f32[2,3] split=(1,1)",
    ],
)
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


def first_and_count(start: Size, end: Size, step: int, size: Size) -> tuple[Size, Size]:
    """Return (first index, count) of a slice of a dimension of this size, which may be symbolic.

    Bounds below 0 count from the end, and bounds beyond an edge are moved to it.  The special cases give the
    same numbers as the general formula at the end, as simpler sizes.
    """
    if step == 0:
        raise Untypable("a slice with step 0")
    stop: Size  # the index that ends the slice, itself excluded
    if step > 0:
        first = _from_front(start, size, 0) if is_below_zero(start) else start
        # a start beyond a symbolic size stays: the count is 0 then
        first = smallest(first, size) if isinstance(size, int) else first
        stop = (
            _from_front(end, size, 0) if is_below_zero(end) else size if _is_far(end) else smallest(end, size)
        )
        if is_same_size(first, 0):  # `stop` is at least 0
            return 0, (stop + step - 1) // step
        if is_below_zero(start) and _is_far(end) and not is_below_zero(end):  # x[-k:]: min(k, size) elements
            return first, (smallest(0 - start, size) + step - 1) // step
        return first, largest((stop - first + step - 1) // step, 0)
    if _is_far(end) and not is_below_zero(end):
        raise Untypable("a slice with a negative step to beyond the last element: runtimes disagree")
    # unlike in numpy, a start before the front is clamped to the front
    if is_below_zero(start):
        first = size - 1 if is_same_size(start, -1) else smallest(_from_front(start, size, 0), size - 1)
    else:
        first = size - 1 if _is_far(start) else smallest(start, size - 1)
    stop = _from_front(end, size, -1) if is_below_zero(end) else end
    return first, largest((first - stop - step - 1) // -step, 0)


def is_below_zero(size: Size) -> bool:
    """Return whether a size is negative.  Raises Untypable where its symbols do not decide."""
    if is_nonnegative(size):
        return False
    if is_nonnegative(-1 - size):
        return True
    raise Untypable(f"the sign of {size} is not known")


def _is_far(index: Size) -> bool:
    return isinstance(index, int) and abs(index) >= OPEN_END


def _from_front(index: Size, size: Size, lowest: int) -> Size:
    """Return an index from the end as one from the front, at least `lowest`."""
    return lowest if _is_far(index) else largest(size + index, lowest)


def _slice_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes in one form: axes in order, bounds clamped, no dimension that is kept whole."""
    x, starts, ends = tensors[0], attrs["starts"], attrs["ends"]
    axes = distinct_axes(range(len(starts)) if attrs["axes"] is None else attrs["axes"], x.rank)
    steps = attrs["steps"] or (1,) * len(axes)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise Untypable(f"{len(starts)} starts, {len(ends)} ends, {len(axes)} axes, {len(steps)} steps")
    kept: list[tuple[int, Size, Size, int]] = []  # (axis, start, end, step)
    for axis, start, end, step in sorted(zip(axes, starts, ends, steps, strict=True)):
        bounds = _canonical_bounds(start, end, step, x.shape[axis])
        if bounds != (0, SLICE_LAST, 1):
            kept.append((axis, *bounds))
    if not kept and x.rank:
        kept.append((0, 0, SLICE_LAST, 1))  # a slice must name an axis
    names = ("axes", "starts", "ends", "steps")
    return {name: tuple(row[i] for row in kept) for i, name in enumerate(names)}


def _canonical_bounds(start: Size, end: Size, step: int, size: Size) -> tuple[Size, Size, int]:
    """Return (start, end, step) in one form for equal slices; of symbols, only far bounds are changed.

    Of numbers, the end is the index after the last element in the slice's direction, SLICE_LAST or
    SLICE_FIRST where that is an edge; an empty slice is (0, 0, 1).
    """
    if step == 0:
        raise Untypable("a slice with step 0")
    if not (isinstance(start, int) and isinstance(end, int) and isinstance(size, int)):
        if _is_far(start):
            if is_below_zero(start):
                start = 0 if step > 0 else start
            else:
                start = SLICE_LAST if step < 0 else start
        if _is_far(end):
            end = SLICE_FIRST if is_below_zero(end) else SLICE_LAST
        return start, end, step
    first, count = first_and_count(start, end, step, size)
    assert isinstance(first, int) and isinstance(count, int)
    if count == 0:
        return 0, 0, 1
    if count == 1:
        step = 1
    last = first + (count - 1) * step
    if step > 0:
        return first, SLICE_LAST if last == size - 1 else last + 1, step
    return first, SLICE_FIRST if last == 0 else last - 1, step


@op(
    "Slice",
    moved={"starts": 10, "ends": 10, "axes": 10, "steps": 10},
    canonicalize=_slice_form,
    examples=[
        "f32[5,6] starts=(1,) ends=(4,)",
        "f32[5,6] starts=(1,-4) ends=(4,-1) axes=(0,1)",
        "f32[5,6,3] starts=(0,1) ends=(9223372036854775807,2147483647) axes=(-1,-2)",
        "f32[9,6] starts=(1,0) ends=(8,-2) axes=(0,1) steps=(3,2)",
        "f32[7,6] starts=(-1,4) ends=(-9223372036854775808,0) axes=(0,1) steps=(-1,-3)",
        "f32[7] starts=(20,) ends=(-20,) axes=(0,) steps=(-2,)",
        "f32[5,4] starts=(3,) ends=(1,) axes=(1,)",
        "f32[5,4] starts=(-100,) ends=(100,) axes=(1,)",
        "f32[5,4] starts=(-2,) ends=(-1,) axes=(0,)",
        "f32[3,4] starts=(-7,-9) ends=(-9223372036854775808,-9223372036854775808) axes=(0,1) steps=(-1,-2)",
        "f32[0] starts=(-3,) ends=(-9223372036854775808,) axes=(0,) steps=(-1,)",
    ],
)
def slice_(
    x: Tensor,
    *,
    starts: tuple[Size, ...],
    ends: tuple[Size, ...],
    axes: tuple[int, ...] | None = None,
    steps: tuple[int, ...] | None = None,
) -> Scope:
    """Slices with constant bounds; unlike in numpy, a start before the front is moved to the front."""
    assert axes is not None and steps is not None
    shape, strides = list(x.shape), [1] * x.rank
    firsts: list[Size] = [0] * x.rank
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        first, count = first_and_count(start, end, step, x.shape[axis])
        shape[axis], firsts[axis], strides[axis] = count, first, step

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
    value = attrs["value"]
    if isinstance(value, tuple):
        if len(value) != 1:
            raise Untypable(f"a pad value of {len(value)} elements")
        value = value[0]
    has_no_value = attrs["mode"] != "constant" or value is None
    return {"pads": tuple(full_pads), "axes": None, "value": 0 if has_no_value else value}


@op(
    "Pad",
    since=2,
    moved={"pads": 11, "value": 11, "axes": 18},
    canonicalize=_pad_form,
    examples=[
        "f32[2,3] pads=(1,0,2,3)",
        "f32[2,3,4] pads=(0,1,2,0,0,1) value=1.5",
        "f32[4] pads=(1,2) axes=(-1,)",
        "f32[4,5] pads=(-1,2,1,-2)",
        "f32[4,5] mode='reflect' pads=(1,4,3,2)",
        "f32[2,4,5] mode='edge' pads=(0,2,3,0,1,0)",
        "f32[4,5] mode='wrap' pads=(3,1,2,4)",
        "f32[3,5] mode='reflect' pads=(-1,2,1,-1)",
        "i64[3,2] pads=(1,0,0,1) value=7",
    ],
)
def pad(
    x: Tensor,
    *,
    mode: str = "constant",
    pads: tuple[int, ...],
    value: Any = 0,
    axes: tuple[int, ...] | None = None,
) -> Scope:
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
    pieces = [_pad_pieces(mode, *each) for each in zip(x.shape, begins, ends, strict=True)]

    def element(*indices: Size) -> Body:
        return _padded_element(x, pieces, [i - b for i, b in zip(indices, begins, strict=True)], ())

    return compute(shape, element)


def _pad_pieces(mode: str, n: Size, begin: int, end: int) -> list[tuple[Size, int, Size]]:
    """Return (start, slope, offset) in order: from index `start` on, x is read at slope * index + offset.

    Index 0 is the first element of x: pads lie below 0 and from n on.  One mirrored element on either side of
    n = 3: (-2, -1, 0), (0, 1, 0), (2, -1, 4), so that index -1 reads 1, and index 3 reads 4 - 3 = 1.
    """
    middle: list[tuple[Size, int, Size]] = [(0, 1, 0)]
    if mode == "edge":
        front: list[tuple[Size, int, Size]] = [(-begin, 0, 0)] if begin > 0 else []
        return [*front, *middle, *([(n, 0, n - 1)] if end > 0 else [])]
    if mode not in ("reflect", "wrap"):
        raise Untypable(f"the pad mode {mode}")
    if mode == "wrap" and min(begin, end) < 0:
        raise Untypable("a wrap that crops, on which runtimes disagree")
    period = n if mode == "wrap" else n - 1
    largest_pad = max(begin, end)
    # a known period >= 1 is repeated as often as needed; else one copy must suffice: no pad exceeds a period
    if (
        largest_pad > 0
        and not is_nonnegative(period - largest_pad)
        and (not isinstance(period, int) or period < 1)
    ):
        raise Untypable(f"a {mode} pad of {largest_pad} beside {n}")

    def piece(count: int) -> tuple[Size, int, Size]:
        # copy number `count` covers [count * period, (count + 1) * period), mirrored where count is odd
        if mode == "wrap" or count % 2 == 0:
            return count * period, 1, -count * period
        return count * period, -1, (count + 1) * period

    is_period_known = isinstance(period, int) and period > 0
    before, after = (-(-pad // period) if is_period_known else int(pad > 0) for pad in (begin, end))
    return [piece(count) for count in range(-max(before, 0), max(after, 0) + 1)]


def _padded_element(
    x: Tensor,
    pieces: Sequence[Sequence[tuple[Size, int, Size]]],
    indices: Sequence[Size],
    resolved: tuple[Size, ...],
) -> Body:
    """Return x at `resolved` in its first dimensions, then at `indices`, which `pieces` map into x."""
    if not indices:
        return x[resolved]
    index, *rest = indices

    def element_at(slope: int, offset: Size) -> Body:
        return _padded_element(x, pieces[1:], rest, (*resolved, index * slope + offset))

    (_, slope, offset), *others = pieces[0]
    result = element_at(slope, offset)
    for start, slope, offset in others:
        result = where(index - start, element_at(slope, offset), result)
    return result
