"""Inputs to compare two models on: plausible ones, and ones that overflow, underflow or mean nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, TypeProto

from tensaurus.backends import Array
from tensaurus.cost.machine import memory_bytes
from tensaurus.equivalence.interface import required_inputs, sizes_of
from tensaurus.errors import TensaurusError
from tensaurus.graph.data import size_in_bytes
from tensaurus.ops.onnx_form import dtype_name

KINDS = ("random", "blocks", "negative", "zeros", "constant", "large", "tiny")
PLAUSIBLE = frozenset({"random", "blocks", "negative"})
# batch and other size where a model leaves them open, in the order of trying
GUESSES = ((1, 32), (2, 64), (1, 48), (2, 48), (1, 16), (2, 8), (1, 4), (2, 3), (1, 1), (1, 224), (1, 512))
SMALL = (1, 2, 3, 5, 7)  # sizes at which remainders show
ALONE = 4  # dimensions that are made odd each by itself
RANK = 64  # of an array of numpy's
BLOCK = 8  # noise alone leaves many detectors silent: blocks of 8 x 8 have edges and surfaces
WORDS = ("", "a", "zwei", "trois mots ici", "42")

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Feed:
    """One set of inputs; `kind` names it."""

    kind: str
    arrays: Mapping[str, Array]

    @property
    def plausible(self) -> bool:
        return self.kind in PLAUSIBLE


def feed(
    model: ModelProto,
    shapes: Mapping[str, Shape],
    kind: str,
    seed: int,
    ranges: Mapping[str, tuple[int, int]] | None = None,
) -> Feed:
    """Inputs of one kind.  Integers are drawn from `ranges` (else 0..1); zeros and large take its ends.

    Raises TensaurusError for an input that is not a tensor of known elements, or larger than the memory.
    """
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    arrays = {}
    for value in required_inputs(model):
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type"):
            raise TensaurusError(f"input {value.name} is not a tensor: no values can be made up")
        if tensor.elem_type not in TensorProto.DataType.values() or not tensor.elem_type:
            raise TensaurusError(f"the element type of input {value.name} is not known")
        shape = shapes[value.name]
        _require_room(value.name, tensor.elem_type, shape)
        if tensor.elem_type == TensorProto.STRING:
            arrays[value.name] = np.asarray(rng.choice(WORDS, shape), object)
            continue
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        if dtype == np.bool_:
            drawn = rng.integers(0, 2, shape)
            arrays[value.name] = np.asarray(_ends(kind, drawn, 0, 1), np.bool_)
        elif dtype.kind in "iu" or "int" in dtype.name:
            low, high = (ranges or {}).get(value.name, (0, 1))
            drawn = rng.integers(low, high, shape, endpoint=True)
            arrays[value.name] = np.asarray(_ends(kind, drawn, low, high)).astype(dtype)
        else:
            arrays[value.name] = np.asarray(_floats(kind, shape, dtype, rng)).astype(dtype)
    return Feed(kind, arrays)


def _require_room(name: str, elem_type: int, shape: Shape) -> None:
    """Raise TensaurusError for values that the memory cannot hold, drawn as they are in eight bytes each."""
    if len(shape) > RANK:
        raise TensaurusError(f"input {name} has {len(shape)} dimensions, numpy's arrays at most {RANK}")
    size = size_in_bytes(dtype_name(elem_type), shape)
    if size + 8 * prod(shape) > memory_bytes():
        raise TensaurusError(
            f"input {name} of shape {list(shape)} is too large for this machine: {size:,} bytes",
            remedy=f"Give it a smaller one: --shape {name}=...",
        )


def _ends(kind: str, drawn: Array, low: int, high: int) -> Array:
    if kind in ("zeros", "constant"):
        return np.full_like(drawn, low)
    return np.full_like(drawn, high) if kind == "large" else drawn


def _floats(kind: str, shape: Shape, dtype: np.dtype[np.generic], rng: np.random.Generator) -> Array:
    match kind:
        case "blocks":
            coarse = rng.uniform(-1, 1, [_coarse(shape, k) for k in range(len(shape))])
            grid = np.ix_(*(np.arange(n) * c // max(n, 1) for n, c in zip(shape, coarse.shape, strict=True)))
            return np.asarray(coarse[grid]) if shape else coarse
        case "negative":
            return -rng.uniform(0, 1, shape)
        case "zeros":
            return np.zeros(shape)
        case "constant":
            return np.full(shape, rng.uniform(0.1, 1))
        case "large":
            half = dtype.itemsize < 4
            return rng.standard_normal(shape) * (1e2 if half else 10 ** rng.uniform(3, 4))
        case "tiny":
            return rng.standard_normal(shape) * (1e-6 if dtype.itemsize < 4 else 1e-40)
    return rng.standard_normal(shape)


def _coarse(shape: Shape, place: int) -> int:
    """Blocks along a dimension: of the last two of four, or the last of three."""
    blocked = place >= max(2, len(shape) - 2)
    return -(-shape[place] // BLOCK) if blocked else shape[place]


def require_ranges(model: ModelProto, ranges: Mapping[str, tuple[int, int]]) -> None:
    """Raise TensaurusError for a range of what is no integer input, or beyond what its type holds."""
    kinds = {value.name: value.type.tensor_type.elem_type for value in required_inputs(model)}
    for name, (low, high) in ranges.items():
        if name not in kinds:
            known = ", ".join(kinds) or "none"
            raise TensaurusError(f"a range is given for {name}, but the inputs are {known}")
        kind = TensorProto.DataType.Name(kinds[name]).lower()
        sizes = re.fullmatch(r"(u?)int(\d+)", kind)
        if sizes is None:
            raise TensaurusError(f"a range is given for input {name}, which is {kind} and not an integer")
        bits = min(63, int(sizes[2]) - (not sizes[1]))
        if low < (0 if sizes[1] else -(2**bits)) or high >= 2**bits:
            raise TensaurusError(f"the range {low},{high} of input {name} goes beyond its type {kind}")


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


def edges(
    model: ModelProto, shapes: Mapping[str, Sequence[int]], ran: Mapping[str, Shape]
) -> Iterator[tuple[dict[str, Shape], str]]:
    """Shapes beside those that `ran`, with words for them: open sizes small, or one more than they were.

    A pool that rounds up, and what a runtime makes of it, may be right at even sizes and wrong at odd ones.
    All open sizes are small, or one more, at once; then each alone is one more.
    """
    entries = required_inputs(model)
    open_: dict[str, list[str | None]] = {}
    for value in entries:
        sizes = None if value.name in shapes else _sizes(value.type)
        marks = _labels(value)
        open_[value.name] = [
            mark if n is None else None for mark, n in zip(marks, sizes or [0] * len(marks), strict=True)
        ]
    labels = list(dict.fromkeys(mark for marks in open_.values() for mark in marks if mark is not None))
    changes: list[tuple[Sequence[str], int | None]] = [(labels, n) for n in SMALL] if labels else []
    changes += [(labels, None)] if labels else []
    changes += [([label], None) for label in labels[:ALONE]] if len(labels) > 1 else []
    for chosen, size in changes:
        made = {
            name: tuple(
                n if mark not in chosen else n + 1 if size is None else size
                for n, mark in zip(ran[name], marks, strict=True)
            )
            for name, marks in open_.items()
        }
        told = (f"{name}={','.join(map(str, made[name]))}" for name, marks in open_.items() if any(marks))
        yield made, " ".join(told)


def _sizes(kind: TypeProto) -> list[int | None] | None:
    if not kind.HasField("tensor_type"):
        return []
    return sizes_of(kind)


def _labels(value: onnx.ValueInfoProto) -> list[str]:
    """A name for every dimension: equal names are equal sizes."""
    dims = value.type.tensor_type.shape.dim
    return [d.dim_param if d.dim_param.isidentifier() else f"{value.name}:{k}" for k, d in enumerate(dims)]
