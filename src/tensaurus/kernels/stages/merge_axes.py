"""Merges axes that stand side by side in all stages into one, so that loops are long enough for vectors.

    s[i:64, j:56, k:56] = x[i, j, k] + b[i]   ->   s[i:64, j:3136] = x[i, j] + b[i]

The layout of every tensor stays the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

from tensaurus.expr.ir.scope import Body, Read, Tensor, axis
from tensaurus.expr.ir.walk import axes_in, bodies, rebuild_body, sizes
from tensaurus.expr.sizes.size import Axis, Size, polynomial
from tensaurus.kernels.stages.stage import Stage, extent

__all__ = ["merge_axes"]

DimensionPair = tuple[str, int]  # dimensions d and d + 1 of a tensor, as (the tensor's name, d)


def merge_axes(
    stages: Sequence[Stage], inputs: Sequence[Tensor]
) -> tuple[tuple[Stage, ...], tuple[Tensor, ...]]:
    """Returns the stages with merged axes, and the inputs with the shapes in which these stages read them.

    Candidates are all pairs (d, d + 1) of dimensions of a tensor, and of reduced axes of a stage. A pair is
    dropped if some stage uses one of its axes without the other. That may separate further pairs, so this is
    repeated until nothing changes.
    """
    # `reduced` has the pairs of reduced axes, as (name of the stage's tensor, number of the first axis)
    tensors = {x.name: x for x in (*inputs, *(s.tensor for s in stages))}
    dimension_pairs = {(x.name, d) for x in tensors.values() for d in range(len(x.shape) - 1)}
    reduced = {(s.tensor.name, d) for s in stages for d in range(len(s.reduced) - 1)}
    while True:
        kept_pairs, kept_reduced = set(dimension_pairs), set(reduced)
        for stage in stages:
            axis_pairs = _candidate_axis_pairs(stage, dimension_pairs, reduced)
            separated = set[tuple[Axis, Axis]]().union(*_separated_pairs(stage, axis_pairs, dimension_pairs))
            # a separated pair is dropped where the stage stores it, where it reduces over it, and where it
            # reads it
            for place, (a, b) in enumerate(pairwise(stage.axes)):
                if (a, b) in separated or (a, b) not in axis_pairs:
                    kept_pairs.discard((stage.tensor.name, place))
            for place, (a, b) in enumerate(pairwise(stage.reduced)):
                if (a, b) in separated or (a, b) not in axis_pairs:
                    kept_reduced.discard((stage.tensor.name, place))
            for body in _tensor_reads(stage):
                for place, indices in enumerate(pairwise(body.indices)):
                    pairs_read = (p for p in axis_pairs if (polynomial(p[0]), polynomial(p[1])) == indices)
                    match = next(pairs_read, None)
                    assert isinstance(body.source, Tensor)
                    # the inner axis must cover its dimension, or the merged index would leave the row
                    fits = match is not None and body.source.shape[place + 1] == match[1].extent
                    if not fits or match in separated:
                        kept_pairs.discard((body.source.name, place))
        if (kept_pairs, kept_reduced) == (dimension_pairs, reduced):
            break
        dimension_pairs, reduced = kept_pairs, kept_reduced
    if not dimension_pairs and not reduced:
        return tuple(stages), tuple(inputs)
    shapes = {name: replace(x, shape=_merged_shape(x, dimension_pairs)) for name, x in tensors.items()}
    return tuple(_merge_stage(s, dimension_pairs, reduced, shapes) for s in stages), tuple(
        shapes[x.name] for x in inputs
    )


def _tensor_reads(stage: Stage) -> Iterator[Read]:
    for body in bodies(stage.body):
        if isinstance(body, Read) and isinstance(body.source, Tensor):
            yield body


def _candidate_axis_pairs(
    stage: Stage, dimension_pairs: set[DimensionPair], reduced: set[DimensionPair]
) -> set[tuple[Axis, Axis]]:
    """Returns the pairs (a, b) of axes side by side in the stage that are still candidates.

    Their dimensions are in `dimension_pairs`, or as reduced axes they are in `reduced`.
    """
    name = stage.tensor.name
    first = {p for d, p in enumerate(pairwise(stage.axes)) if (name, d) in dimension_pairs}
    return first | {p for d, p in enumerate(pairwise(stage.reduced)) if (name, d) in reduced}


def _separated_pairs(
    stage: Stage, axis_pairs: set[tuple[Axis, Axis]], dimension_pairs: set[DimensionPair]
) -> Iterator[set[tuple[Axis, Axis]]]:
    """Yields sets of axis pairs of which a stage uses one axis without the other.

    For the pair (i, j) these are x[i, j, i], y[i, k] or y[2*i, j], and where(i + j >= 0, ...).
    """
    for body in bodies(stage.body):
        if isinstance(body, Read) and isinstance(body.source, Tensor):
            # case 1: a read by both axes side by side, and by one of them in another dimension, too
            for place, (index, next_index) in enumerate(pairwise(body.indices)):
                for a, b in axis_pairs if (body.source.name, place) in dimension_pairs else ():
                    if index == polynomial(a) and next_index == polynomial(b):
                        for d, other in enumerate(body.indices):
                            if d not in (place, place + 1) and {a, b} & set(axes_in(other)):
                                yield {(a, b)}
            # case 2: an index with one of the axes, unless the neighbouring index is the other axis
            for d, single_index in enumerate(body.indices):
                inside = set(axes_in(single_index))
                for a, b in axis_pairs:
                    # whether this index and a neighbour are just a and b, in dimensions that still may merge
                    paired = any(
                        d in (p, p + 1)
                        and (body.source.name, p) in dimension_pairs
                        and body.indices[p] == polynomial(a)
                        and body.indices[p + 1] == polynomial(b)
                        for p in (d - 1, d)
                        if 0 <= p < len(body.indices) - 1
                    )
                    if {a, b} & inside and not paired:
                        yield {(a, b)}
        else:
            # case 3: a guard or a number that depends on one of the axes
            inside = {x for size in sizes(body) for x in axes_in(size)}
            yield {pair for pair in axis_pairs if set(pair) & inside}


def _group_in_runs(count: int, joined: Any) -> list[list[int]]:
    """Groups the places 0..count-1 in runs; `joined(p)` says whether p and p + 1 are in one run."""
    runs: list[list[int]] = []
    for place in range(count):
        if place and joined(place - 1):
            runs[-1].append(place)
        else:
            runs.append([place])
    return runs


def _merged_shape(tensor: Tensor, dimension_pairs: set[DimensionPair]) -> tuple[Size, ...]:
    runs = _group_in_runs(len(tensor.shape), lambda d: (tensor.name, d) in dimension_pairs)
    return tuple(prod(tensor.shape[d] for d in run) for run in runs)


def _merge_stage(
    stage: Stage,
    dimension_pairs: set[DimensionPair],
    reduced: set[DimensionPair],
    shapes: dict[str, Tensor],
) -> Stage:
    name = stage.tensor.name
    merged_axes: dict[Axis, Axis] = {}  # the first axis of a run -> the merged axis
    axes = _merge_axis_runs(stage.axes, lambda d: (name, d) in dimension_pairs, merged_axes)
    inner = _merge_axis_runs(stage.reduced, lambda d: (name, d) in reduced, merged_axes)

    def changed(body: Body) -> Body:
        if isinstance(body, Read) and isinstance(body.source, Tensor):
            source = body.source
            runs = _group_in_runs(len(source.shape), lambda d: (source.name, d) in dimension_pairs)
            indices = []
            for run in runs:
                index = body.indices[run[0]]
                if len(run) > 1:
                    index = next(polynomial(b) for a, b in merged_axes.items() if polynomial(a) == index)
                indices.append(index)
            return Read(shapes[source.name], tuple(indices), body.outside)
        return rebuild_body(body, changed, lambda size: size)

    return Stage(shapes[name], axes, changed(stage.body), inner, stage.monoid)


def _merge_axis_runs(axes: Sequence[Axis], joined: Any, merged_axes: dict[Axis, Axis]) -> tuple[Axis, ...]:
    merged = []
    for run in _group_in_runs(len(axes), joined):
        merged_axis = axes[run[0]]
        if len(run) > 1:
            merged_axis = axis(prod(extent(axes[d]) for d in run), "m")
            merged_axes[axes[run[0]]] = merged_axis
        merged.append(merged_axis)
    return tuple(merged)
