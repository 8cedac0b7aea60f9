"""Elements of a node at indices over axes: slices and pads where the indices step evenly, else a Gather."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tensaurus.expr.evaluate.fields import Reals
from tensaurus.expr.evaluate.interpret import Evaluation
from tensaurus.expr.sizes.size import Axis, Size, atoms, interval, polynomial
from tensaurus.graph.ir.node import Node, apply, constant
from tensaurus.graph.lower.labelled_nodes import (
    Labelled,
    apply_function,
    length,
    reshape_node,
    transpose_node,
)
from tensaurus.graph.lower.primitives import exact_attribute, literal
from tensaurus.ops.indexing import gather
from tensaurus.ops.parts import concat, pad, slice_
from tensaurus.system.errors import TensaurusError

__all__ = ["read_elements", "require_small", "tabulate_size"]

Array: TypeAlias = np.ndarray[Any, Any]

MAX_TABLE_ELEMENTS = 1 << 24  # elements of a table of indices
MIN_GATHER_BLOCK = 8  # elements that a Gather copies at once, below which slices are faster
MAX_SLICES = 16  # slices in place of one Gather


def tabulate_size(size: Size, places: Mapping[Axis, int]) -> tuple[Array, tuple[Axis, ...]]:
    """The values of a size over the axes in it, in the order of their places."""
    require_small([size])
    found = Evaluation({}, Reals(), {}).index(size)
    axes = tuple(sorted(found.axes, key=places.__getitem__))
    return np.asarray(found.align(axes)), axes


def require_small(sizes: Iterable[Size]) -> None:
    """Raises TensaurusError where the axes in these sizes have too many points for a table."""
    axes = {a for size in sizes for a in atoms(size) if isinstance(a, Axis)}
    if (points := prod(map(length, axes))) > MAX_TABLE_ELEMENTS:
        raise TensaurusError(f"a table of {points} numbers is too large for a model")


@dataclass(frozen=True)
class _Dimension:
    """One dimension of what is read: its index, known ahead of time or computed."""

    place: int
    size: int
    axes: tuple[Axis, ...]
    known: Array | None = None
    computed: Labelled | None = None
    inside: bool = True  # a computed index is never beyond the edge


class _Run(NamedTuple):
    """Every `step`-th element, pads before and after them."""

    first: int
    step: int
    length: int
    before: int
    after: int


@dataclass(frozen=True)
class _GroupPlan:
    """What is taken from dimensions that are read together, as one: runs of elements, or those at indices.

    size   of the dimensions together
    runs   one after another
    at     indices; size itself stands for what is beyond the edge
    """

    size: int
    axes: tuple[Axis, ...]
    runs: tuple[_Run, ...] = ()
    at: Node | None = None
    slot: bool = False
    valid: Labelled | None = None  # where it is not beyond the edge, unless that is nowhere


def read_elements(
    source: Node,
    indices: Sequence[Size],
    outside: Any,
    places: Mapping[Axis, int],
    computed: Callable[[Size], Labelled | None],
) -> Labelled:
    """source[indices], `outside` beyond the edge; where that is None, what stands there does not matter.

    `computed` gives an index that is read from another tensor, None for one that is known ahead of time.
    """
    dtype = source.tensor.dtype
    beyond = 0 if outside is None else outside
    dimensions = [
        _describe_dimension(place, size, index, places, computed)
        for place, (size, index) in enumerate(zip(_known_shape(source), indices, strict=True))
    ]
    nowhere = Labelled(literal(beyond, dtype), ())
    if any(d.size == 0 or d.known is not None and not _is_inside(d).any() for d in dimensions):
        return nowhere
    groups = _group_by_axes(dimensions)
    inner = [prod(d.size for later in groups[k + 1 :] for d in later) for k in range(len(groups))]
    picks = [
        _plan_group(group, outside is None, places, size) for group, size in zip(groups, inner, strict=True)
    ]
    if None in picks:
        return nowhere
    fill = exact_attribute(beyond, dtype)
    node = _build_read(source, groups, [p for p in picks if p is not None], 0 if fill is None else fill)
    found = Labelled(node, tuple(a for p in picks if p is not None for a in p.axes))
    for p in picks if fill is None else ():
        if p is not None and p.valid is not None:
            found = apply_function("where", p.valid, found, nowhere)
    return found


def _known_shape(node: Node) -> list[int]:
    if not all(isinstance(n, int) for n in node.tensor.shape):
        raise TensaurusError(f"a read of {node.tensor} needs known sizes to be written as ONNX operators")
    return [int(n) for n in node.tensor.shape]  # type: ignore[arg-type]


def _describe_dimension(
    place: int,
    size: int,
    index: Size,
    places: Mapping[Axis, int],
    computed: Callable[[Size], Labelled | None],
) -> _Dimension:
    found = computed(index)
    if found is not None:
        low, high = interval(index)
        inside = isinstance(low, int) and isinstance(high, int) and low >= 0 and high < size
        return _Dimension(place, size, found.axes, computed=found, inside=inside)
    data, axes = tabulate_size(index, places)
    return _Dimension(place, size, axes, known=data)


def _is_inside(d: _Dimension) -> Array:
    assert d.known is not None
    return np.asarray((d.known >= 0) & (d.known < d.size))


def _group_by_axes(dimensions: Sequence[_Dimension]) -> list[list[_Dimension]]:
    """Dimensions whose indices share an axis, directly or not, in one group."""
    groups: list[list[_Dimension]] = []
    for d in dimensions:
        met = [g for g in groups if any(not set(d.axes).isdisjoint(other.axes) for other in g)]
        groups = [g for g in groups if all(g is not m for m in met)]
        groups.append([*(other for g in met for other in g), d])
    for g in groups:
        g.sort(key=lambda d: d.place)
    return sorted(groups, key=lambda g: g[0].place)


def _plan_group(
    group: Sequence[_Dimension], careless: bool, places: Mapping[Axis, int], inner: int
) -> _GroupPlan | None:
    """What a group's indices take; None where all of it is beyond the edge.

    inner  elements that stand together for one index: a Gather copies so many at once
    """
    size = prod(d.size for d in group)
    axes = tuple(sorted({a for d in group for a in d.axes}, key=places.__getitem__))
    require_small(map(polynomial, axes))
    if any(d.computed is not None for d in group):
        return _plan_computed(group, size, axes, careless)
    strides = [prod(d.size for d in group[k + 1 :]) for k in range(len(group))]
    shape = [length(a) for a in axes]
    parts = [_align(d.known, d.axes, axes) for d in group]  # type: ignore[arg-type]
    linear = np.broadcast_to(sum((p * s for p, s in zip(parts, strides, strict=True)), np.int64(0)), shape)
    valid = np.broadcast_to(
        reduce(np.logical_and, (_align(_is_inside(d), d.axes, axes) for d in group)), shape
    )
    if not valid.any():
        return None
    # axes by what a step along them skips: then a reshape, or a slice, may say it all
    steps = {a: _index_step(linear, k) for k, a in enumerate(axes)}
    ordered = sorted(axes, key=lambda a: -steps[a])
    perm = [axes.index(a) for a in ordered]
    linear, valid = linear.transpose(perm), valid.transpose(perm)
    mask = None if valid.all() else Labelled(constant(np.ascontiguousarray(valid)), tuple(ordered))
    run = _find_run(linear.ravel(), valid.ravel())
    if run is not None:
        return _GroupPlan(size, tuple(ordered), (run,), valid=mask)
    for k in range(linear.ndim if inner < MIN_GATHER_BLOCK else 0):
        rows = zip(np.moveaxis(linear, k, 0), np.moveaxis(valid, k, 0), strict=True)
        few = linear.shape[k] <= MAX_SLICES
        runs = [_find_run(row.ravel(), good.ravel()) for row, good in rows] if few else [None]
        if None not in runs:
            windows = (ordered[k], *ordered[:k], *ordered[k + 1 :])
            return _GroupPlan(size, windows, tuple(run for run in runs if run is not None), valid=mask)
    spare = 0 if careless else size
    at = constant(np.ascontiguousarray(np.where(valid, linear, spare), dtype=np.int64))
    return _GroupPlan(size, tuple(ordered), at=at, slot=mask is not None and not careless, valid=mask)


def _align(data: Array, own: Sequence[Axis], axes: Sequence[Axis]) -> Array:
    return data.reshape([length(a) if a in own else 1 for a in axes])


def _index_step(linear: Array, place: int) -> int:
    """What one step along a dimension adds to the index."""
    if linear.shape[place] < 2:
        return 0
    spot = [0] * linear.ndim
    first = linear[tuple(spot)]
    spot[place] = 1
    return int(linear[tuple(spot)] - first)


def _find_run(linear: Array, valid: Array) -> _Run | None:
    """Indices of which those that are valid are evenly spaced and without gaps."""
    spots = np.flatnonzero(valid)
    if not len(spots):
        return None
    first, last = int(spots[0]), int(spots[-1])
    if last - first + 1 != len(spots):
        return None
    inner = linear[first : last + 1]
    step = int(inner[1] - inner[0]) if len(inner) > 1 else 1
    if step < 1 or not (np.diff(inner) == step).all():
        return None
    return _Run(int(inner[0]), step, len(inner), first, len(linear) - 1 - last)


def _plan_computed(
    group: Sequence[_Dimension], size: int, axes: tuple[Axis, ...], careless: bool
) -> _GroupPlan:
    """Indices that are computed when the model runs."""
    linear: Labelled | None = None
    valid: Labelled | None = None
    for k, d in enumerate(group):
        index = d.computed or Labelled(constant(np.asarray(d.known, np.int64)), d.axes)
        stride = prod(other.size for other in group[k + 1 :])
        if d.known is None and not d.inside or d.known is not None and not _is_inside(d).all():
            above, below = (_integer(0), index), (index, _integer(d.size))
            for good in (apply_function("le", *above), apply_function("lt", *below)):
                valid = good if valid is None else apply_function("and", valid, good)
        part = index if stride == 1 else apply_function("mul", index, _integer(stride))
        linear = part if linear is None else apply_function("add", linear, part)
    assert linear is not None
    if valid is not None:
        linear = apply_function("where", valid, linear, _integer(0 if careless else size))
    slot = valid is not None and not careless
    return _GroupPlan(size, axes, at=linear.whole(axes), slot=slot, valid=valid)


def _integer(value: int) -> Labelled:
    return Labelled(literal(value, "int64"), ())


def _build_read(
    source: Node, groups: Sequence[Sequence[_Dimension]], picks: Sequence[_GroupPlan], fill: Any
) -> Node:
    """The groups' dimensions brought together, cut, padded, and gathered."""
    node = transpose_node(source, [d.place for group in groups for d in group])
    node = reshape_node(node, [p.size for p in picks])
    alone = [p.runs[0] if len(p.runs) == 1 else _Run(0, 1, p.size, 0, int(p.slot)) for p in picks]
    node = _slice_and_pad(node, alone, fill)
    for place, p in reversed(list(enumerate(picks))):
        if p.at is not None:
            node = apply(gather, [node, p.at], {"axis": place})
        elif len(p.runs) > 1:
            whole = [_Run(0, 1, n, 0, 0) for n in _known_shape(node)]
            parts = [_slice_and_pad(node, [*whole[:place], run, *whole[place + 1 :]], fill) for run in p.runs]
            node = apply(concat, parts, {"axis": place})
    return reshape_node(node, [length(a) for p in picks for a in p.axes])


def _slice_and_pad(node: Node, runs: Sequence[_Run], fill: Any) -> Node:
    """A run of each dimension."""
    cuts = [
        (place, run.first, run.first + (run.length - 1) * run.step + 1, run.step)
        for place, (run, size) in enumerate(zip(runs, _known_shape(node), strict=True))
        if run[:3] != (0, 1, size)
    ]
    if cuts:
        names = ("axes", "starts", "ends", "steps")
        node = apply(slice_, [node], dict(zip(names, zip(*cuts, strict=True), strict=True)))
    pads = (*(run.before for run in runs), *(run.after for run in runs))
    return apply(pad, [node], {"pads": pads, "value": fill}) if any(pads) else node
