"""Shapes to try for inputs whose sizes a model leaves open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import onnx
from onnx import ModelProto, TypeProto

from tensaurus.check.inputs.model_interface import required_inputs
from tensaurus.graph.onnx.onnx_frame import sizes_of
from tensaurus.system.errors import TensaurusError

DIMENSIONS = 6  # that are made 1 alone
# batch and other size where a model leaves them open, in the order of trying
GUESSES = ((1, 32), (2, 64), (1, 48), (2, 48), (1, 16), (2, 8), (1, 4), (2, 3), (1, 1), (1, 224), (1, 512))
FIRST, LAST = 4, 1024  # constants that sizes are tried around; smaller ones are tried anyway
ELEMENTS, TIMES = 1 << 16, 8  # of all inputs then, or this many times those of the first
Shape = tuple[int, ...]


def assignments(
    model: ModelProto, shapes: Mapping[str, Sequence[int]]
) -> Iterator[tuple[dict[str, Shape], str]]:
    """Shapes of all inputs to try, with words for the sizes made up ("" where none were).

    An unknown first dimension is a batch of 1, and later of 2; every other unknown size is one number, the
    likeliest first.  Where none fits, all but last dimensions count as batches (states of recurrent models
    have theirs in the middle).  Raises TensaurusError for an input of unknown rank.
    """
    entries = required_inputs(model)
    known: dict[str, list[int | None]] = {}
    for value in entries:
        sizes = list(shapes[value.name]) if value.name in shapes else _sizes(value.type)
        if sizes is None:
            raise TensaurusError(
                f"the rank of input {value.name} is not known", remedy=f"Give it: --shape {value.name}=..."
            )
        known[value.name] = list(sizes)
    if all(n is not None for sizes in known.values() for n in sizes):
        yield {name: tuple(n for n in sizes if n is not None) for name, sizes in known.items()}, ""
        return
    labels = {value.name: _labels(value) for value in entries}
    firsts = {marks[0] for marks in labels.values() if marks}
    inner = {mark for marks in labels.values() for mark in marks[:-1]}
    for (batch, other), batches in (
        (guess, marks) for marks in (firsts, firsts | inner) for guess in GUESSES
    ):
        made: dict[str, Shape] = {}
        said: list[str] = []
        for name, sizes in known.items():
            fill = [batch if mark in batches else other for mark in labels[name]]
            full = tuple(f if n is None else n for n, f in zip(sizes, fill, strict=True))
            made[name] = full
            if None in sizes:
                said.append(f"{name}={','.join(map(str, full))}")
        yield made, " ".join(said)


def give_sizes(model: ModelProto, shapes: Mapping[str, Sequence[int]]) -> str:
    """Return the remedy where a model runs on nothing that was made up: the inputs whose sizes are open."""
    given = [value for value in required_inputs(model) if value.name not in shapes]
    loose = [value.name for value in given if None in (_sizes(value.type) or ())]
    sizes = f"sizes that it runs at (--shape {loose[0]}=...) or " if loose else ""
    return f"Give it {sizes}inputs of yours (--inputs data.npz)."


def variations(
    model: ModelProto, shapes: Mapping[str, Sequence[int]], first: Mapping[str, Shape]
) -> Iterator[tuple[dict[str, Shape], str]]:
    """Small and odd sizes of what the model leaves open, beside those of `first`; with words for them.

    All of them 1, 2 and 3, all of them odd and different, and each of them 1 beside the others of `first`.
    """
    entries = required_inputs(model)
    labels = {value.name: _labels(value) for value in entries}
    loose: dict[str, int] = {}
    for value in entries:
        sizes = list(shapes[value.name]) if value.name in shapes else _sizes(value.type)
        for mark, known, size in zip(
            labels[value.name], sizes or [], first.get(value.name, ()), strict=False
        ):
            if known is None:
                loose.setdefault(mark, size)
    if not loose:
        return
    plans: list[dict[str, int]] = [dict.fromkeys(loose, n) for n in (1, 2, 3)]
    batches = {marks[0] for marks in labels.values() if marks}  # each costs as much as the whole model
    plans.append({mark: 3 if mark in batches else 5 + 2 * place for place, mark in enumerate(loose)})
    plans += [loose | {mark: 1} for mark in list(loose)[:DIMENSIONS]]
    seen = [loose]
    for plan in plans:
        if plan in seen:
            continue
        seen.append(plan)
        made = {
            name: tuple(plan.get(mark, n) for mark, n in zip(labels[name], sizes, strict=True))
            for name, sizes in first.items()
        }
        changed = [name for name in made if any(mark in loose for mark in labels[name])]
        yield made, " ".join(f"{name}={','.join(map(str, made[name]))}" for name in changed)


def around_constants(
    model: ModelProto,
    shapes: Mapping[str, Sequence[int]],
    first: Mapping[str, Shape],
    numbers: Sequence[int],
) -> Iterator[dict[str, Shape]]:
    """Yield shapes where one open size is a constant, one more or one less; the others are those of `first`.

    A model may compare its sizes with them: a Slice that ends at 300, a branch at a batch of 6.
    """
    entries = required_inputs(model)
    labels = {value.name: _labels(value) for value in entries}
    loose: dict[str, None] = {}
    for value in entries:
        sizes = list(shapes[value.name]) if value.name in shapes else _sizes(value.type)
        loose.update((m, None) for m, n in zip(labels[value.name], sizes or [], strict=False) if n is None)
    near = [n for n in dict.fromkeys(numbers) if FIRST <= n <= LAST]
    most, seen = max(ELEMENTS, TIMES * sum(map(prod, first.values()))), [dict(first)]
    for n, step, mark in ((n, step, mark) for step in (1, 0, -1) for n in near for mark in loose):
        made = {
            name: tuple(n + step if m == mark else own for m, own in zip(labels[name], sizes, strict=True))
            for name, sizes in first.items()
        }
        if made not in seen and sum(map(prod, made.values())) <= most:
            seen.append(made)
            yield made


def _sizes(kind: TypeProto) -> list[int | None] | None:
    if not kind.HasField("tensor_type"):
        return []
    return sizes_of(kind)


def _labels(value: onnx.ValueInfoProto) -> list[str]:
    """A name for every dimension: equal names are equal sizes."""
    dims = value.type.tensor_type.shape.dim
    return [d.dim_param if d.dim_param.isidentifier() else f"{value.name}:{k}" for k, d in enumerate(dims)]
