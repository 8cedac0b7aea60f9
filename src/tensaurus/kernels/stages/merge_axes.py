"""Merges axes that stand side by side in all stages into one, so that loops are long enough for vectors.

The layout of every tensor stays the same.

s[i:64, j:56, k:56] = x[i, j, k] + b[i]   ->   s[i:64, j:3136] = x[i, j] + b[i]
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

    All pairs of neighbouring dimensions and reduced axes are candidates; those that some stage uses apart are
    dropped until a fixed point is reached.
    """
    tensors = {x.name: x for x in (*inputs, *(s.tensor for s in stages))}
    pairs = {(x.name, d) for x in tensors.values() for d in range(len(x.shape) - 1)}
    reduced = {(s.tensor.name, d) for s in stages for d in range(len(s.reduced) - 1)}
    while True:
        kept_pairs, kept_reduced = set(pairs), set(reduced)
        for stage in stages:
            together = _adjacent(stage, pairs, reduced)
            apart = {b for pair in _separated_pairs(stage, together, pairs, tensors) for b in pair}
            for place, (a, b) in enumerate(pairwise(stage.axes)):
                if (a, b) in apart or (a, b) not in together:
                    kept_pairs.discard((stage.tensor.name, place))
            for place, (a, b) in enumerate(pairwise(stage.reduced)):
                if (a, b) in apart or (a, b) not in together:
                    kept_reduced.discard((stage.tensor.name, place))
            for body in _tensor_reads(stage):
                for place, (e, f) in enumerate(pairwise(body.indices)):
                    pairs_read = ((a, b) for a, b in together if polynomial(a) == e and polynomial(b) == f)
                    match = next(pairs_read, None)
                    assert isinstance(body.source, Tensor)
                    fits = match is not None and body.source.shape[place + 1] == match[1].extent
                    if not fits or match in apart:
                        kept_pairs.discard((body.source.name, place))
        if (kept_pairs, kept_reduced) == (pairs, reduced):
            break
        pairs, reduced = kept_pairs, kept_reduced
    if not pairs and not reduced:
        return tuple(stages), tuple(inputs)
    shapes = {name: replace(x, shape=_merged_shape(x, pairs)) for name, x in tensors.items()}
    return tuple(_merge_stage(s, pairs, reduced, shapes) for s in stages), tuple(
        shapes[x.name] for x in inputs
    )


def _tensor_reads(stage: Stage) -> Iterator[Read]:
    for body in bodies(stage.body):
        if isinstance(body, Read) and isinstance(body.source, Tensor):
            yield body


def _adjacent(stage: Stage, pairs: set[DimensionPair], reduced: set[DimensionPair]) -> set[tuple[Axis, Axis]]:
    name = stage.tensor.name
    first = {p for d, p in enumerate(pairwise(stage.axes)) if (name, d) in pairs}
    return first | {p for d, p in enumerate(pairwise(stage.reduced)) if (name, d) in reduced}


def _separated_pairs(
    stage: Stage, together: set[tuple[Axis, Axis]], pairs: set[DimensionPair], tensors: dict[str, Tensor]
) -> Iterator[set[tuple[Axis, Axis]]]:
    """Yields sets of axis pairs of which a stage uses one axis without the other."""
    for body in bodies(stage.body):
        if isinstance(body, Read) and isinstance(body.source, Tensor):
            for place, (e, f) in enumerate(pairwise(body.indices)):
                for a, b in together:
                    if e == polynomial(a) and f == polynomial(b) and (body.source.name, place) in pairs:
                        for d, other in enumerate(body.indices):
                            if d not in (place, place + 1) and {a, b} & set(axes_in(other)):
                                yield {(a, b)}
            for d, index in enumerate(body.indices):
                inside = set(axes_in(index))
                for a, b in together:
                    paired = any(
                        d in (p, p + 1)
                        and (body.source.name, p) in pairs
                        and body.indices[p] == polynomial(a)
                        and body.indices[p + 1] == polynomial(b)
                        for p in (d - 1, d)
                        if 0 <= p < len(body.indices) - 1
                    )
                    if {a, b} & inside and not paired:
                        yield {(a, b)}
        else:
            inside = {x for size in sizes(body) for x in axes_in(size)}
            yield {pair for pair in together if set(pair) & inside}


def _group_in_runs(count: int, joined: Any) -> list[list[int]]:
    """Groups the places 0..count-1 in runs; `joined(p)` says whether p and p + 1 are in one run."""
    runs: list[list[int]] = []
    for place in range(count):
        if place and joined(place - 1):
            runs[-1].append(place)
        else:
            runs.append([place])
    return runs


def _merged_shape(tensor: Tensor, pairs: set[DimensionPair]) -> tuple[Size, ...]:
    runs = _group_in_runs(len(tensor.shape), lambda d: (tensor.name, d) in pairs)
    return tuple(prod(tensor.shape[d] for d in run) for run in runs)


def _merge_stage(
    stage: Stage, pairs: set[DimensionPair], reduced: set[DimensionPair], shapes: dict[str, Tensor]
) -> Stage:
    name = stage.tensor.name
    places: dict[Axis, Axis] = {}  # the first axis of a run -> the merged axis
    axes = _merge_axis_runs(stage.axes, lambda d: (name, d) in pairs, places)
    inner = _merge_axis_runs(stage.reduced, lambda d: (name, d) in reduced, places)

    def changed(body: Body) -> Body:
        if isinstance(body, Read) and isinstance(body.source, Tensor):
            source = body.source
            runs = _group_in_runs(len(source.shape), lambda d: (source.name, d) in pairs)
            indices = []
            for run in runs:
                index = body.indices[run[0]]
                if len(run) > 1:
                    index = next(polynomial(b) for a, b in places.items() if polynomial(a) == index)
                indices.append(index)
            return Read(shapes[source.name], tuple(indices), body.outside)
        return rebuild_body(body, changed, lambda size: size)

    return Stage(shapes[name], axes, changed(stage.body), inner, stage.monoid)


def _merge_axis_runs(axes: Sequence[Axis], joined: Any, places: dict[Axis, Axis]) -> tuple[Axis, ...]:
    merged = []
    for run in _group_in_runs(len(axes), joined):
        merged_axis = axes[run[0]]
        if len(run) > 1:
            merged_axis = axis(prod(extent(axes[d]) for d in run), "m")
            places[axes[run[0]]] = merged_axis
        merged.append(merged_axis)
    return tuple(merged)
