"""Read elements of a node at computed indices, by operators of ONNX.

    x[2*i + 1]              ->   Slice(x, start 1, step 2)
    x[i + r - 1 | 0]        ->   a Concat of one Slice of Pad(x) for each r, or a Gather of Pad(x)
    x[table[i]]             ->   Gather(x, table)

Slices and pads are used where indices step evenly, because runtimes copy them fastest; else a Gather.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tensaurus.expr.evaluate.fields import Array, Reals
from tensaurus.expr.evaluate.interpret import Evaluation
from tensaurus.expr.sizes.size import Axis, Size, atoms, interval, polynomial
from tensaurus.graph.ir.node import Node, apply, constant
from tensaurus.graph.lower.labelled_nodes import (
    LabelledNode,
    apply_function,
    length,
    reshape_node,
    transpose_node,
)
from tensaurus.graph.lower.primitives import exact_attribute, literal
from tensaurus.ops.indexing import gather
from tensaurus.ops.parts import concat, pad, slice_
from tensaurus.system.errors import TensaurusError

AxisOrder: TypeAlias = Mapping[Axis, int]  # the number of each axis: dimensions are sorted by it
IndexNodes: TypeAlias = Callable[[Size], LabelledNode | None]  # makes the node of an index that is read

MAX_TABLE_ELEMENTS = 1 << 24  # of a table of indices, which the model stores
MIN_GATHER_BLOCK = 8  # a Gather that copies fewer elements at once is slower than several slices
MAX_SLICES = 16  # more slices are slower than one Gather


def tabulate_size(size: Size, axis_order: AxisOrder) -> tuple[Array, tuple[Axis, ...]]:
    """Return the values of a size over the axes in it, and these axes in `axis_order`."""
    require_small([size])
    values = Evaluation({}, Reals(), {}).index(size)
    axes = tuple(sorted(values.axes, key=axis_order.__getitem__))
    return np.asarray(values.align(axes)), axes


def require_small(sizes: Iterable[Size]) -> None:
    """Raise TensaurusError where the axes in these sizes have too many points for a table."""
    axes = {a for size in sizes for a in atoms(size) if isinstance(a, Axis)}
    if (points := prod(map(length, axes))) > MAX_TABLE_ELEMENTS:
        raise TensaurusError(f"a table of {points} numbers is too large for a model")


@dataclass(frozen=True)
class _Dimension:
    """One dimension of the tensor that is read, with its index over `axes`.

    number     number of the dimension
    values     the values of the index, where they are known ahead of time
    node       the node that computes the index at run time otherwise
    is_inside  whether an index that is computed at run time is never beyond the edge
    """

    number: int
    size: int
    axes: tuple[Axis, ...]
    values: Array | None = None
    node: LabelledNode | None = None
    is_inside: bool = True

    def inside_mask(self) -> Array:
        """Return for each value of a known index whether it is not beyond the edge."""
        assert self.values is not None
        return np.asarray((self.values >= 0) & (self.values < self.size))


class _Run(NamedTuple):
    """Every `step`-th element from `first` on, `length` in all, with padding `before` and `after`.

    x[i - 1 | 0] for i < 5 and x of 5 elements: _Run(first=0, step=1, length=4, before=1, after=0).
    """

    first: int
    step: int
    length: int
    before: int
    after: int


@dataclass(frozen=True)
class _GroupPlan:
    """How to read a group of dimensions, which are first reshaped to one.

    size           of this one dimension
    axes           the dimensions of the result
    runs           runs of elements to concatenate, or
    indices        the indices for a Gather; the index `size` stands for an element beyond the edge
    has_fill_slot  whether one element is padded at the index `size`, to be read beyond the edge
    valid          mask of the elements that are not beyond the edge, None where all are inside
    """

    size: int
    axes: tuple[Axis, ...]
    runs: tuple[_Run, ...] = ()
    indices: Node | None = None
    has_fill_slot: bool = False
    valid: LabelledNode | None = None


def read_elements(
    source: Node, indices: Sequence[Size], outside: Any, axis_order: AxisOrder, index_nodes: IndexNodes
) -> LabelledNode:
    """Return source[indices], with the value `outside` beyond the edge (any value where that is None)."""
    dtype = source.tensor.dtype
    beyond = 0 if outside is None else outside
    dimensions = [
        _describe_dimension(number, size, index, axis_order, index_nodes)
        for number, (size, index) in enumerate(zip(_known_shape(source), indices, strict=True))
    ]
    nowhere = LabelledNode(literal(beyond, dtype), ())  # the result where every element is beyond the edge
    if any(d.size == 0 or d.values is not None and not d.inside_mask().any() for d in dimensions):
        return nowhere
    # dimensions whose indices share an axis, such as x[i, i], are read as one
    groups = _group_by_axes(dimensions)
    # for each group, the number of contiguous elements behind it, which a Gather copies at once
    blocks = [prod(d.size for later in groups[k + 1 :] for d in later) for k in range(len(groups))]
    planned = [_plan_group(*pair, outside is None, axis_order) for pair in zip(groups, blocks, strict=True)]
    plans = [plan for plan in planned if plan is not None]
    if len(plans) < len(groups):  # a group is wholly beyond the edge
        return nowhere
    fill = exact_attribute(beyond, dtype)
    node = _build_read(source, groups, plans, 0 if fill is None else fill)
    elements = LabelledNode(node, tuple(a for plan in plans for a in plan.axes))
    for plan in plans if fill is None else ():  # a value that cannot be an attribute is selected afterwards
        if plan.valid is not None:
            elements = apply_function("where", plan.valid, elements, nowhere)
    return elements


def _known_shape(node: Node) -> list[int]:
    if not all(isinstance(n, int) for n in node.tensor.shape):
        raise TensaurusError(
            f"a tensor of type {node.tensor} is indexed in a way that ONNX operators express only for known "
            "sizes",
            remedy="Give the sizes with --shape.",
        )
    return [int(n) for n in node.tensor.shape]  # type: ignore[arg-type]


def _describe_dimension(
    number: int, size: int, index: Size, axis_order: AxisOrder, index_nodes: IndexNodes
) -> _Dimension:
    computed = index_nodes(index)
    if computed is not None:
        low, high = interval(index)
        is_inside = isinstance(low, int) and isinstance(high, int) and low >= 0 and high < size
        return _Dimension(number, size, computed.axes, node=computed, is_inside=is_inside)
    values, axes = tabulate_size(index, axis_order)
    return _Dimension(number, size, axes, values)


def _group_by_axes(dimensions: Sequence[_Dimension]) -> list[list[_Dimension]]:
    """Return the dimensions in groups, so that indices of different groups share no axis."""
    groups: list[list[_Dimension]] = []
    for d in dimensions:
        joined = [g for g in groups if any(not set(d.axes).isdisjoint(other.axes) for other in g)]
        groups = [g for g in groups if all(g is not other for other in joined)]
        groups.append([*(other for g in joined for other in g), d])
    for g in groups:
        g.sort(key=lambda d: d.number)
    return sorted(groups, key=lambda g: g[0].number)


def _plan_group(
    group: Sequence[_Dimension], block: int, ignores_edge: bool, axis_order: AxisOrder
) -> _GroupPlan | None:
    """Return how to read a group of dimensions, None where every element is beyond the edge.

    block         number of contiguous elements for each index
    ignores_edge  whether elements beyond the edge may have any value
    """
    size = prod(d.size for d in group)
    axes = tuple(sorted({a for d in group for a in d.axes}, key=axis_order.__getitem__))
    require_small(map(polynomial, axes))
    if any(d.node is not None for d in group):
        return _plan_computed(group, size, axes, ignores_edge)
    linear, valid = _linear_indices(group, axes)
    if not valid.any():
        return None
    # with axes in the order of their strides, a reshape or one slice may be enough
    steps = {a: _index_step(linear, k) for k, a in enumerate(axes)}
    ordered = tuple(sorted(axes, key=lambda a: -steps[a]))
    perm = [axes.index(a) for a in ordered]
    linear, valid = linear.transpose(perm), valid.transpose(perm)
    mask = None if valid.all() else LabelledNode(constant(np.ascontiguousarray(valid)), ordered)
    run = _find_run(linear.ravel(), valid.ravel())
    if run is not None:
        return _GroupPlan(size, ordered, (run,), valid=mask)
    if block < MIN_GATHER_BLOCK:  # several slices are faster than a Gather of few elements at once
        for k, a in enumerate(ordered):
            if runs := _find_runs(linear, valid, k):
                return _GroupPlan(size, (a, *ordered[:k], *ordered[k + 1 :]), runs, valid=mask)
    # else a Gather, which reads element 0 beyond the edge (any value will do), or the fill slot
    beyond = 0 if ignores_edge else size
    indices = constant(np.ascontiguousarray(np.where(valid, linear, beyond), dtype=np.int64))
    has_fill_slot = mask is not None and not ignores_edge
    return _GroupPlan(size, ordered, indices=indices, has_fill_slot=has_fill_slot, valid=mask)


def _linear_indices(group: Sequence[_Dimension], axes: Sequence[Axis]) -> tuple[Array, Array]:
    """Return, for each point of the axes, the index into the group as one dimension, and if it is valid."""
    strides = [prod(d.size for d in group[k + 1 :]) for k in range(len(group))]
    shape = [length(a) for a in axes]
    parts = [_align(d.values, d.axes, axes) for d in group]  # type: ignore[arg-type]
    linear = np.broadcast_to(sum((p * s for p, s in zip(parts, strides, strict=True)), np.int64(0)), shape)
    inside = reduce(np.logical_and, (_align(d.inside_mask(), d.axes, axes) for d in group))
    return linear, np.broadcast_to(inside, shape)


def _align(data: Array, data_axes: Sequence[Axis], axes: Sequence[Axis]) -> Array:
    return data.reshape([length(a) if a in data_axes else 1 for a in axes])


def _index_step(linear: Array, d: int) -> int:
    """Return by how much the index grows for one step along dimension d."""
    if linear.shape[d] < 2:
        return 0
    point = [0] * linear.ndim
    first = linear[tuple(point)]
    point[d] = 1
    return int(linear[tuple(point)] - first)


def _find_run(linear: Array, valid: Array) -> _Run | None:
    """Return the run of the valid indices, None where they have gaps or are not evenly spaced."""
    positions = np.flatnonzero(valid)
    if not len(positions):
        return None
    first, last = int(positions[0]), int(positions[-1])
    if last - first + 1 != len(positions):
        return None
    inner = linear[first : last + 1]
    step = int(inner[1] - inner[0]) if len(inner) > 1 else 1
    if step < 1 or not (np.diff(inner) == step).all():
        return None
    return _Run(int(inner[0]), step, len(inner), first, len(linear) - 1 - last)


def _find_runs(linear: Array, valid: Array, k: int) -> tuple[_Run, ...]:
    """Return one run for each index of dimension k, none where that is impossible or takes too many."""
    if linear.shape[k] > MAX_SLICES:
        return ()
    rows = zip(np.moveaxis(linear, k, 0), np.moveaxis(valid, k, 0), strict=True)
    runs = [_find_run(row.ravel(), good.ravel()) for row, good in rows]
    return () if None in runs else tuple(run for run in runs if run is not None)


def _plan_computed(
    group: Sequence[_Dimension], size: int, axes: tuple[Axis, ...], ignores_edge: bool
) -> _GroupPlan:
    """Return how to read a group of dimensions of which an index is computed when the model runs."""
    linear: LabelledNode | None = None
    valid: LabelledNode | None = None
    for k, d in enumerate(group):
        index = d.node or LabelledNode(constant(np.asarray(d.values, np.int64)), d.axes)
        stride = prod(other.size for other in group[k + 1 :])
        # an index that may be beyond the edge is compared with both ends
        if not (d.is_inside if d.values is None else d.inside_mask().all()):
            above, below = (_integer(0), index), (index, _integer(d.size))
            for good in (apply_function("le", *above), apply_function("lt", *below)):
                valid = good if valid is None else apply_function("and", valid, good)
        part = index if stride == 1 else apply_function("mul", index, _integer(stride))
        linear = part if linear is None else apply_function("add", linear, part)
    assert linear is not None
    if valid is not None:
        linear = apply_function("where", valid, linear, _integer(0 if ignores_edge else size))
    has_fill_slot = valid is not None and not ignores_edge
    return _GroupPlan(size, axes, indices=linear.expanded(axes), has_fill_slot=has_fill_slot, valid=valid)


def _integer(value: int) -> LabelledNode:
    return LabelledNode(literal(value, "int64"), ())


def _build_read(
    source: Node, groups: Sequence[Sequence[_Dimension]], plans: Sequence[_GroupPlan], fill: Any
) -> Node:
    """Return the read: the dimensions of each group become one, which is sliced, padded and gathered."""
    node = transpose_node(source, [d.number for group in groups for d in group])
    node = reshape_node(node, [p.size for p in plans])
    # groups of one run are done by one Slice and Pad; the others get their fill slot, and follow below
    runs = [p.runs[0] if len(p.runs) == 1 else _Run(0, 1, p.size, 0, int(p.has_fill_slot)) for p in plans]
    node = _slice_and_pad(node, runs, fill)
    # from the last dimension on, as a Gather puts several dimensions in the place of one
    for d, p in reversed(list(enumerate(plans))):
        if p.indices is not None:
            node = apply(gather, [node, p.indices], {"axis": d})
        elif len(p.runs) > 1:
            others = [_Run(0, 1, n, 0, 0) for n in _known_shape(node)]
            cuts = ([*others[:d], run, *others[d + 1 :]] for run in p.runs)
            parts = [_slice_and_pad(node, cut, fill) for cut in cuts]
            node = apply(concat, parts, {"axis": d})
    return reshape_node(node, [length(a) for p in plans for a in p.axes])


def _slice_and_pad(node: Node, runs: Sequence[_Run], fill: Any) -> Node:
    """Return one run of each dimension."""
    cuts = [
        (d, run.first, run.first + (run.length - 1) * run.step + 1, run.step)
        for d, (run, size) in enumerate(zip(runs, _known_shape(node), strict=True))
        if run[:3] != (0, 1, size)
    ]
    if cuts:
        names = ("axes", "starts", "ends", "steps")
        node = apply(slice_, [node], dict(zip(names, zip(*cuts, strict=True), strict=True)))
    pads = (*(run.before for run in runs), *(run.after for run in runs))
    return apply(pad, [node], {"pads": pads, "value": fill}) if any(pads) else node
