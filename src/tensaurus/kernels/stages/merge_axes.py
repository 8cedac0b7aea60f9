"""Axes that always go together as one: a tensor's memory is the same under both.

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

__all__ = ["merged"]

Pair = tuple[str, int]  # two dimensions of a tensor side by side, by the place of the first


def merged(stages: Sequence[Stage], inputs: Sequence[Tensor]) -> tuple[tuple[Stage, ...], tuple[Tensor, ...]]:
    """The stages, and the inputs as they read them."""
    tensors = {x.name: x for x in (*inputs, *(s.tensor for s in stages))}
    pairs = {(x.name, d) for x in tensors.values() for d in range(len(x.shape) - 1)}
    reduced = {(s.tensor.name, d) for s in stages for d in range(len(s.reduced) - 1)}
    while True:
        kept_pairs, kept_reduced = set(pairs), set(reduced)
        for stage in stages:
            good = _adjacent(stage, pairs, reduced)
            bad = {b for pair in _split_by(stage, good, pairs, tensors) for b in pair}
            for place, (a, b) in enumerate(pairwise(stage.axes)):
                if (a, b) in bad or (a, b) not in good:
                    kept_pairs.discard((stage.tensor.name, place))
            for place, (a, b) in enumerate(pairwise(stage.reduced)):
                if (a, b) in bad or (a, b) not in good:
                    kept_reduced.discard((stage.tensor.name, place))
            for body in _reads(stage):
                for place, (e, f) in enumerate(pairwise(body.indices)):
                    match = next(((a, b) for a, b in good if polynomial(a) == e and polynomial(b) == f), None)
                    assert isinstance(body.source, Tensor)
                    fits = match is not None and body.source.shape[place + 1] == match[1].extent
                    if not fits or match in bad:
                        kept_pairs.discard((body.source.name, place))
        if (kept_pairs, kept_reduced) == (pairs, reduced):
            break
        pairs, reduced = kept_pairs, kept_reduced
    if not pairs and not reduced:
        return tuple(stages), tuple(inputs)
    shapes = {name: replace(x, shape=_shape(x, pairs)) for name, x in tensors.items()}
    return tuple(_stage(s, pairs, reduced, shapes) for s in stages), tuple(shapes[x.name] for x in inputs)


def _reads(stage: Stage) -> Iterator[Read]:
    for body in bodies(stage.body):
        if isinstance(body, Read) and isinstance(body.source, Tensor):
            yield body


def _adjacent(stage: Stage, pairs: set[Pair], reduced: set[Pair]) -> set[tuple[Axis, Axis]]:
    name = stage.tensor.name
    first = {p for d, p in enumerate(pairwise(stage.axes)) if (name, d) in pairs}
    return first | {p for d, p in enumerate(pairwise(stage.reduced)) if (name, d) in reduced}


def _split_by(
    stage: Stage, good: set[tuple[Axis, Axis]], pairs: set[Pair], tensors: dict[str, Tensor]
) -> Iterator[set[tuple[Axis, Axis]]]:
    """Pairs of which one axis is used without the other."""
    for body in bodies(stage.body):
        whole: set[int] = set()
        if isinstance(body, Read) and isinstance(body.source, Tensor):
            for place, (e, f) in enumerate(pairwise(body.indices)):
                for a, b in good:
                    if e == polynomial(a) and f == polynomial(b) and (body.source.name, place) in pairs:
                        whole |= {place, place + 1}
                        for d, other in enumerate(body.indices):
                            if d not in (place, place + 1) and {a, b} & set(axes_in(other)):
                                yield {(a, b)}
            for d, index in enumerate(body.indices):
                inside = set(axes_in(index))
                for a, b in good:
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
            yield {pair for pair in good if set(pair) & inside}


def _runs(count: int, joined: Any) -> list[list[int]]:
    """Places in runs: a place is in one with the place before where `joined` says so."""
    found: list[list[int]] = []
    for place in range(count):
        if place and joined(place - 1):
            found[-1].append(place)
        else:
            found.append([place])
    return found


def _shape(tensor: Tensor, pairs: set[Pair]) -> tuple[Size, ...]:
    runs = _runs(len(tensor.shape), lambda d: (tensor.name, d) in pairs)
    return tuple(prod(tensor.shape[d] for d in run) for run in runs)


def _stage(stage: Stage, pairs: set[Pair], reduced: set[Pair], shapes: dict[str, Tensor]) -> Stage:
    name = stage.tensor.name
    places: dict[Axis, Axis] = {}  # the first of a run -> the whole
    axes = _merged_axes(stage.axes, lambda d: (name, d) in pairs, places)
    inner = _merged_axes(stage.reduced, lambda d: (name, d) in reduced, places)

    def changed(body: Body) -> Body:
        if isinstance(body, Read) and isinstance(body.source, Tensor):
            source = body.source
            runs = _runs(len(source.shape), lambda d: (source.name, d) in pairs)
            indices = []
            for run in runs:
                index = body.indices[run[0]]
                if len(run) > 1:
                    index = next(polynomial(b) for a, b in places.items() if polynomial(a) == index)
                indices.append(index)
            return Read(shapes[source.name], tuple(indices), body.outside)
        return rebuild_body(body, changed, lambda size: size)

    return Stage(shapes[name], axes, changed(stage.body), inner, stage.monoid)


def _merged_axes(axes: Sequence[Axis], joined: Any, places: dict[Axis, Axis]) -> tuple[Axis, ...]:
    found = []
    for run in _runs(len(axes), joined):
        whole = axes[run[0]]
        if len(run) > 1:
            whole = axis(prod(extent(axes[d]) for d in run), "m")
            places[axes[run[0]]] = whole
        found.append(whole)
    return tuple(found)
