"""Merges axes that stand side by side in all stages into one, so that loops are long enough for vectors.

    s[i:64, j:56, k:56] = x[i, j, k] + b[i]   ->   s[i:64, j:3136] = x[i, j] + b[i]

The layout of every tensor stays the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import TypeAlias

from tensaurus.expr.ir.scope import Body, Read, Tensor, axis
from tensaurus.expr.ir.walk import axes_in, bodies, reads, rebuild_body, sizes
from tensaurus.expr.sizes.size import Axis, Size, polynomial
from tensaurus.kernels.stages.stage import Stage, extent, source_name

__all__ = ["merge_axes"]

# (name of a list of axes, d): the axes d and d + 1 of the list, side by side. The list of a tensor's
# dimensions has the tensor's name; the reduced axes of a stage have a list of their own (`_axis_lists`).
NumberedPair: TypeAlias = tuple[str, int]


def merge_axes(
    stages: Sequence[Stage], inputs: Sequence[Tensor]
) -> tuple[tuple[Stage, ...], tuple[Tensor, ...]]:
    """Returns the stages with merged axes, and the inputs with the shapes in which these stages read them.

    All pairs of axes are candidates. A pair is dropped if some stage uses one of its axes without the other.
    That may separate further pairs, so this is repeated until nothing changes.
    """
    tensors = {x.name: x for x in (*inputs, *(s.tensor for s in stages))}
    lengths = {name: len(x.shape) for name, x in tensors.items()}
    lengths |= {name: len(axes) for stage in stages for name, axes in _axis_lists(stage)}
    pairs = {(name, d) for name, length in lengths.items() for d in range(length - 1)}
    while True:
        kept = pairs.difference(*(_pairs_to_drop(stage, pairs) for stage in stages))
        if kept == pairs:
            break
        pairs = kept
    if not pairs:
        return tuple(stages), tuple(inputs)
    merged = {name: replace(x, shape=_merged_shape(x, pairs)) for name, x in tensors.items()}
    return tuple(_merge_stage(s, pairs, merged) for s in stages), tuple(merged[x.name] for x in inputs)


def _axis_lists(stage: Stage) -> tuple[tuple[str, tuple[Axis, ...]], ...]:
    """Returns the two lists of a stage's axes, each with its name."""
    return (stage.tensor.name, stage.axes), (f"reduced axes of {stage.tensor.name}", stage.reduced)


def _pairs_to_drop(stage: Stage, pairs: set[NumberedPair]) -> Iterator[NumberedPair]:
    """Yields the pairs that the stage stores, reduces over or reads, but cannot merge."""
    numbered = {(name, d): p for name, axes in _axis_lists(stage) for d, p in enumerate(pairwise(axes))}
    candidates = {pair for number, pair in numbered.items() if number in pairs}
    mergeable = {pair for pair in candidates if not _is_separated(stage, *pair, pairs)}
    yield from (number for number, pair in numbered.items() if pair not in mergeable)
    extents_of = {(polynomial(a), polynomial(b)): b.extent for a, b in mergeable}
    for read in reads(stage.body):
        for d, indices in enumerate(pairwise(read.indices)):
            # the inner axis must cover its dimension, or the merged index would leave the row
            if extents_of.get(indices) != read.source.shape[d + 1]:
                yield source_name(read), d


def _is_separated(stage: Stage, a: Axis, b: Axis, pairs: set[NumberedPair]) -> bool:
    """Whether the stage uses one of two axes without the other.

    For the pair (i, j) these do so: x[i, j, i], y[i, k] or y[2*i, j], and where(i + j >= 0, ...).
    """
    for body in bodies(stage.body):
        used = body.indices if isinstance(body, Read) else sizes(body)
        places = [d for d, size in enumerate(used) if not {a, b}.isdisjoint(axes_in(size))]
        if places and not (
            isinstance(body, Read)
            and places == [places[0], places[0] + 1]
            and (source_name(body), places[0]) in pairs
            and body.indices[places[0] : places[0] + 2] == (polynomial(a), polynomial(b))
        ):
            return True
    return False


def _group_in_runs(name: str, count: int, pairs: set[NumberedPair]) -> list[list[int]]:
    """Groups the numbers 0..count-1 of a list of axes in runs, each of which is merged to one axis."""
    runs: list[list[int]] = []
    for d in range(count):
        if (name, d - 1) in pairs:
            runs[-1].append(d)
        else:
            runs.append([d])
    return runs


def _merged_shape(tensor: Tensor, pairs: set[NumberedPair]) -> tuple[Size, ...]:
    runs = _group_in_runs(tensor.name, len(tensor.shape), pairs)
    return tuple(prod(tensor.shape[d] for d in run) for run in runs)


def _merge_stage(stage: Stage, pairs: set[NumberedPair], tensors: dict[str, Tensor]) -> Stage:
    merged_index: dict[Size, Size] = {}  # by the index that is the first axis of a run: the merged axis
    axis_lists: list[tuple[Axis, ...]] = []
    for name, old_axes in _axis_lists(stage):
        axes = []
        for run in _group_in_runs(name, len(old_axes), pairs):
            axes.append(old_axes[run[0]])
            if len(run) > 1:
                axes[-1] = axis(prod(extent(old_axes[d]) for d in run), "m")
                merged_index[polynomial(old_axes[run[0]])] = polynomial(axes[-1])
        axis_lists.append(tuple(axes))

    def read_merged(body: Body) -> Body:
        if isinstance(body, Read) and isinstance(body.source, Tensor):
            runs = _group_in_runs(body.source.name, len(body.indices), pairs)
            firsts = ((body.indices[run[0]], len(run) > 1) for run in runs)
            indices = (merged_index[index] if is_merged else index for index, is_merged in firsts)
            return Read(tensors[body.source.name], tuple(indices), body.outside)
        return rebuild_body(body, read_merged, lambda size: size)

    return Stage(
        tensors[stage.tensor.name], axis_lists[0], read_merged(stage.body), axis_lists[1], stage.monoid
    )
