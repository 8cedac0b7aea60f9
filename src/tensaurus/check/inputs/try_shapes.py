"""Proposes shapes for inputs whose sizes a model leaves open, to run it without asking the caller.

An input of [N, 3, H, W] is tried at [1, 3, 32, 32], then at [2, 3, 64, 64], and so on; the caller, such as
`files/run_original`, keeps the shapes at which the model runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

import onnx
from onnx import ModelProto, TypeProto

from tensaurus.check.inputs.model_interface import required_inputs
from tensaurus.graph.onnx.onnx_frame import stated_sizes
from tensaurus.system.errors import TensaurusError

MAX_SINGLE_ONES = 6  # open sizes each of which is tried as 1 beside larger others
# Pairs of batch and other open size, in the order of trying.
SIZE_GUESSES = (
    (1, 32),
    (2, 64),
    (1, 48),
    (2, 48),
    (1, 16),
    (2, 8),
    (1, 4),
    (2, 3),
    (1, 1),
    (1, 224),
    (1, 512),
)
MIN_CONSTANT, MAX_CONSTANT = 4, 1024  # sizes near constants in this range are tried; smaller sizes always are
# Shapes near constants have at most MAX_ELEMENTS elements, or MAX_GROWTH times those of the first shapes.
MAX_ELEMENTS, MAX_GROWTH = 1 << 16, 8
Shape = tuple[int, ...]


class _InputShape(NamedTuple):
    """The shape of an input as far as it is known.

    sizes   None for an open size; None as a whole where the rank is unknown
    labels  a name for every dimension; dimensions of one name have equal sizes
    """

    name: str
    sizes: list[int | None] | None
    labels: list[str]


def shape_assignments(
    model: ModelProto, shapes: Mapping[str, Sequence[int]]
) -> Iterator[tuple[dict[str, Shape], str]]:
    """Yield shapes of all inputs to try, with words for the sizes that are guesses ("" where none are).

    An open first dimension is a batch of 1, and later of 2; all other open sizes are equal, the likeliest
    number first.  After these guesses all dimensions but the last count as batches: states of recurrent
    models have theirs in the middle.  Raises TensaurusError for an input of unknown rank.
    """
    inputs = _input_shapes(model, shapes)
    known: dict[str, list[int | None]] = {}
    for one in inputs:
        if one.sizes is None:
            remedy = f"Give --shape {one.name}=..."
            raise TensaurusError(f"the rank of input {one.name} is not known", remedy=remedy)
        known[one.name] = one.sizes
    if all(n is not None for sizes in known.values() for n in sizes):
        yield {name: tuple(n for n in sizes if n is not None) for name, sizes in known.items()}, ""
        return
    firsts = _first_labels(inputs)
    inner = {label for one in inputs for label in one.labels[:-1]}
    for batch_labels in (firsts, firsts | inner):
        for batch, other in SIZE_GUESSES:
            filled: dict[str, Shape] = {}
            words: list[str] = []
            for one in inputs:
                sizes = known[one.name]
                guesses = [batch if label in batch_labels else other for label in one.labels]
                full = tuple(f if n is None else n for n, f in zip(sizes, guesses, strict=True))
                filled[one.name] = full
                if None in sizes:
                    words.append(f"{one.name}={','.join(map(str, full))}")
            yield filled, " ".join(words)


def input_remedy(model: ModelProto, shapes: Mapping[str, Sequence[int]]) -> str:
    """Return the remedy where a model runs on no drawn inputs: give its open sizes, or inputs."""
    not_fixed = [value for value in required_inputs(model) if value.name not in shapes]
    open_inputs = [value.name for value in not_fixed if None in (_known_sizes(value.type) or ())]
    sizes = f"sizes that the model runs at (--shape {open_inputs[0]}=...) or " if open_inputs else ""
    return f"Give {sizes}your own inputs (--inputs data.npz)."


def small_shapes(
    model: ModelProto, shapes: Mapping[str, Sequence[int]], first: Mapping[str, Shape]
) -> Iterator[tuple[dict[str, Shape], str]]:
    """Yield shapes with small and odd numbers for the open sizes, with words for them.

    All open sizes are 1, 2 or 3; or all are odd and different; or one is 1 beside the others of `first`.
    """
    inputs = _input_shapes(model, shapes)
    open_sizes = _open_sizes(inputs, first)
    if not open_sizes:
        return
    plans: list[dict[str, int]] = [dict.fromkeys(open_sizes, n) for n in (1, 2, 3)]
    # a larger batch makes the whole model as many times slower
    batches = _first_labels(inputs)
    plans.append({label: 3 if label in batches else 5 + 2 * k for k, label in enumerate(open_sizes)})
    plans += [open_sizes | {label: 1} for label in list(open_sizes)[:MAX_SINGLE_ONES]]
    labels = {one.name: one.labels for one in inputs}
    changed = [name for name in first if not open_sizes.keys().isdisjoint(labels[name])]
    seen = [open_sizes]
    for plan in plans:
        if plan not in seen:
            seen.append(plan)
            made = _shapes_with(inputs, first, plan)
            yield made, " ".join(f"{name}={','.join(map(str, made[name]))}" for name in changed)


def shapes_near_constants(
    model: ModelProto,
    shapes: Mapping[str, Sequence[int]],
    first: Mapping[str, Shape],
    numbers: Sequence[int],
) -> Iterator[dict[str, Shape]]:
    """Yield shapes where one open size is a constant, one more or one less; the others are those of `first`.

    A model may compare its sizes with constants: a Slice that ends at 300, a branch at a batch of 6.
    """
    inputs = _input_shapes(model, shapes)
    open_sizes = _open_sizes(inputs, first)
    near = [n for n in dict.fromkeys(numbers) if MIN_CONSTANT <= n <= MAX_CONSTANT]
    most, seen = max(MAX_ELEMENTS, MAX_GROWTH * sum(map(prod, first.values()))), [dict(first)]
    for n, step, label in ((n, step, label) for step in (1, 0, -1) for n in near for label in open_sizes):
        made = _shapes_with(inputs, first, {label: n + step})
        if made not in seen and sum(map(prod, made.values())) <= most:
            seen.append(made)
            yield made


def _input_shapes(model: ModelProto, shapes: Mapping[str, Sequence[int]]) -> list[_InputShape]:
    """Return the shapes of the required inputs; `shapes` has sizes that are fixed."""
    return [
        _InputShape(
            value.name,
            list(shapes[value.name]) if value.name in shapes else _known_sizes(value.type),
            _dimension_names(value),
        )
        for value in required_inputs(model)
    ]


def _first_labels(inputs: Sequence[_InputShape]) -> set[str]:
    return {one.labels[0] for one in inputs if one.labels}


def _open_sizes(inputs: Sequence[_InputShape], first: Mapping[str, Shape]) -> dict[str, int]:
    """Return the open sizes by their labels, as they are in the shapes `first`."""
    found: dict[str, int] = {}
    for one in inputs:
        for label, known, size in zip(one.labels, one.sizes or [], first.get(one.name, ()), strict=False):
            if known is None:
                found.setdefault(label, size)
    return found


def _shapes_with(
    inputs: Sequence[_InputShape], first: Mapping[str, Shape], sizes: Mapping[str, int]
) -> dict[str, Shape]:
    """Return the shapes `first` with other sizes for some labels."""
    labels = {one.name: one.labels for one in inputs}
    return {
        name: tuple(sizes.get(label, own) for label, own in zip(labels[name], shape, strict=True))
        for name, shape in first.items()
    }


def _known_sizes(kind: TypeProto) -> list[int | None] | None:
    """Return the sizes of a type, None for open ones; None where the rank is unknown."""
    if not kind.HasField("tensor_type"):
        return []
    return stated_sizes(kind)


def _dimension_names(value: onnx.ValueInfoProto) -> list[str]:
    """Return the labels of `_InputShape`."""
    dims = value.type.tensor_type.shape.dim
    return [d.dim_param if d.dim_param.isidentifier() else f"{value.name}:{k}" for k, d in enumerate(dims)]
