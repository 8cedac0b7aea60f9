"""Draws inputs to compare two models on: plausible ones, and others that overflow, underflow or are NaN.

`draw_feeds` yields all inputs of a comparison (`files/run_original`), `draw_feed` one feed, for timing, too.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto

from tensaurus.check.inputs.edge_values import (
    LOOP_COUNTS,
    draw_edges,
    edge_feed_count,
    edge_indices,
    floats_beside,
    integers_beside,
)
from tensaurus.check.inputs.feed import KINDS, NONFINITE, Feed, InputValues
from tensaurus.check.inputs.model_interface import dtype_of, is_float, required_inputs
from tensaurus.check.inputs.try_shapes import Shape
from tensaurus.expr.ir.integer_types import integer_limits
from tensaurus.graph.ir.tensor_data import size_in_bytes
from tensaurus.ops.element_type import dtype_name
from tensaurus.runtimes.backends import Array
from tensaurus.runtimes.measure.machine import memory_bytes
from tensaurus.system.errors import TensaurusError

MAX_OFFSET_FEEDS = 24  # feeds around one number each that are tried to reach a branch
MAX_SINGLE_NONFINITE = 3  # a model with at most this many float inputs gets feeds in which one is nonfinite
MAX_RANK = 64  # numpy's limit
BLOCK_SIZE = 8  # pixels along a block: many detectors find nothing in noise, but do in edges and surfaces
TEXTS = ("", "a", "zwei", "trois mots ici", "42")


def draw_feeds(
    model: ModelProto, shapes: Mapping[str, Shape], kinds: Sequence[str], seed: int, values: InputValues
) -> Iterator[Feed]:
    """Yield inputs of these kinds, several of a kind where one feed has no room for all its values."""
    floats = [value.name for value in required_inputs(model) if is_float(value)]
    for kind in kinds:
        if kind in NONFINITE:
            # all float inputs at once, then each one alone, its name in the kind of the feed
            alone = [[name] for name in floats] if 1 < len(floats) <= MAX_SINGLE_NONFINITE else []
            for names in [floats] * bool(floats) + alone:
                made = draw_feed(model, shapes, kind, seed, values, only=names)
                yield made if names is floats else Feed(f"{kind} {names[0]}", made.arrays)
            continue
        for part in range(edge_feed_count(model, shapes, values) if kind == "edges" else 1):
            made = draw_feed(model, shapes, kind, seed, values, part=part)
            yield made if not part else Feed(f"{kind} {part + 1}", made.arrays)


def draw_feed(
    model: ModelProto,
    shapes: Mapping[str, Shape],
    kind: str,
    seed: int,
    values: InputValues | None = None,
    *,
    part: int = 0,
    only: Collection[str] | None = None,
) -> Feed:
    """Return inputs of one kind.

    Integers are drawn from the ranges that are given or known, else from 0..1; the kinds "zeros" and "large"
    take the ends of the range.  Where any number will do, implausible kinds draw from the whole type.
    `part` is the number of the feed among those of the kind "edges".  Of the kinds "nan" and "infinite" the
    inputs named in `only` are not finite (None: all).
    Raises TensaurusError for an input that is not a tensor of known element type, or larger than the memory.
    """
    values = values or InputValues()
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    arrays: dict[str, Array] = {}
    for value in required_inputs(model):
        _require_drawable(value, shapes)
        own = kind if kind not in NONFINITE or only is None or value.name in only else "random"
        arrays[value.name] = _draw_input(value, shapes[value.name], own, part, values, rng)
    return Feed(kind, arrays)


def _require_drawable(value: ValueInfoProto, shapes: Mapping[str, Shape]) -> None:
    """Raise TensaurusError for an input that is not a tensor of a known type, or larger than the memory."""
    tensor = value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        reason = f"input {value.name} is not a tensor, so no values can be generated for it"
        raise TensaurusError(reason, remedy="Export the model with tensors as its only inputs.")
    if tensor.elem_type not in TensorProto.DataType.values() or not tensor.elem_type:
        reason = f"the element type of input {value.name} is not known to this version of ONNX"
        raise TensaurusError(reason, remedy="Export the model with a type that ONNX defines.")
    _require_room(value.name, tensor.elem_type, shapes[value.name])


def _draw_input(
    value: ValueInfoProto, shape: Shape, kind: str, part: int, values: InputValues, rng: np.random.Generator
) -> Array:
    dtype = dtype_of(value)
    if dtype is None:
        return np.asarray(rng.choice(TEXTS, shape), object)
    if dtype == np.bool_:
        return np.asarray(_draws_or_ends(kind, rng.integers(0, 2, shape), 0, 1), np.bool_)
    if not is_float(value):
        return _draw_integers(value, shape, kind, part, values, rng).astype(dtype)
    if kind == "edges" and dtype.kind != "c":
        drawn = draw_edges(floats_beside(values.constants, dtype), shape, part, rng)
    else:
        drawn = _draw_floats(kind, shape, dtype, rng)
    with np.errstate(all="ignore"):
        return np.asarray(drawn).astype(dtype)


def _draw_integers(
    value: ValueInfoProto, shape: Shape, kind: str, part: int, values: InputValues, rng: np.random.Generator
) -> Array:
    """Draw the integers of one input from its range or by its use; of "edges", those of `near` in turn."""
    name, least, most = value.name, *integer_limits(dtype_name(value.type.tensor_type.elem_type))
    if name in values.ranges:
        low, high = values.ranges[name]
        near = integers_beside(values, name, low, high)
    elif name in values.uses.index_limits:
        low, high = values.uses.index_limits[name]
        low, high = max(low, least), min(high, most)
        if kind in ("negative", "constant") and low < 0:  # counted from the end
            return np.asarray(_draws_or_ends(kind, rng.integers(low, 0, shape), low, high))
        near = edge_indices(low, high, values)
        low = max(low, 0)
    elif name in values.uses.loop_counts:
        low, high, near = LOOP_COUNTS[0], LOOP_COUNTS[-1], list(LOOP_COUNTS)
    elif name in values.uses.unrestricted:
        low, high = 0, 1
        near = integers_beside(values, name, least, most)
        if kind == "large":
            return np.full(shape, most, _carrier_type(most))
        if kind == "magnitudes":
            # the 0.01 keeps all below `most`, however they are rounded
            drawn = 2.0 ** rng.uniform(0, np.log2(float(most)) - 0.01, shape)
            return np.asarray(drawn * rng.choice((-1, 1) if least < 0 else (1,), shape)).astype(
                _carrier_type(most)
            )
    else:
        low, high = 0, 1
        near = [0, 1]
    if kind == "edges":
        return draw_edges(near, shape, part, rng).astype(_carrier_type(max(near)))
    return np.asarray(_draws_or_ends(kind, rng.integers(low, high, shape, endpoint=True), low, high))


def _carrier_type(most: int) -> type[np.generic]:
    """Return the type in which integers up to `most` are drawn."""
    return np.uint64 if most >= 2**63 else np.int64


def _require_room(name: str, elem_type: int, shape: Shape) -> None:
    """Raise TensaurusError for values that the memory cannot hold, drawn as they are in eight bytes each."""
    remedy = f"Give a smaller shape: --shape {name}=..."
    if len(shape) > MAX_RANK:
        reason = f"input {name} has {len(shape)} dimensions, numpy supports at most {MAX_RANK}"
        raise TensaurusError(reason, remedy=remedy)
    size = size_in_bytes(dtype_name(elem_type), shape)
    if size + 8 * prod(shape) > memory_bytes():
        raise TensaurusError(
            f"input {name} of shape {list(shape)} is too large for this machine: {size:,} bytes",
            remedy=remedy,
        )
    if 8 * prod(n for n in shape if n) > sys.maxsize:  # numpy refuses such an array even where a size is 0
        raise TensaurusError(f"input {name} of shape {list(shape)} is larger than any array", remedy=remedy)


def _draws_or_ends(kind: str, drawn: Array, low: int, high: int) -> Array:
    """Return the numbers drawn; in their place one end of the range for kinds that hold one number."""
    if kind in ("zeros", "constant"):
        return np.full_like(drawn, low)
    return np.full_like(drawn, high) if kind == "large" else drawn


def _draw_floats(kind: str, shape: Shape, dtype: np.dtype[np.generic], rng: np.random.Generator) -> Array:
    """Draw float64 numbers of a kind; for types of less than four bytes, less extreme ones."""
    match kind:
        case "blocks":
            coarse = rng.uniform(-1, 1, [_block_count(shape, k) for k in range(len(shape))])
            grid = np.ix_(*(np.arange(n) * c // max(n, 1) for n, c in zip(shape, coarse.shape, strict=True)))
            return np.asarray(coarse[grid]) if shape else coarse
        case "negative":
            return -rng.uniform(0, 1, shape)
        case "zeros":
            return np.zeros(shape)
        case "nan":
            return np.full(shape, np.nan)
        case "infinite":
            return np.asarray(rng.choice((-np.inf, np.inf), shape))
        case "magnitudes":
            top = 4 if dtype.itemsize < 4 else 6
            return np.asarray(rng.choice((-1.0, 1.0), shape)) * 10.0 ** rng.uniform(-6, top, shape)
        case "constant":
            return np.full(shape, rng.uniform(0.1, 1))
        case "large":
            half = dtype.itemsize < 4
            return rng.standard_normal(shape) * (1e2 if half else 10 ** rng.uniform(3, 4))
        case "tiny":
            return rng.standard_normal(shape) * (1e-6 if dtype.itemsize < 4 else 1e-40)
    return rng.standard_normal(shape)


def _block_count(shape: Shape, dimension: int) -> int:
    """Return how many blocks lie along a dimension; in one that is not spatial each element is a block."""
    is_spatial = dimension >= max(2, len(shape) - 2)
    return -(-shape[dimension] // BLOCK_SIZE) if is_spatial else shape[dimension]


def draw_offset_feeds(
    model: ModelProto, shapes: Mapping[str, Shape], seed: int, values: InputValues
) -> Iterator[Feed]:
    """Yield feeds all of whose floats are near one number: a power of ten or a constant of the models."""
    numbers = [sign * 10.0**n for n in (0, 1, 2, 4, -2) for sign in (1, -1)]
    numbers += [n * (1 + way) for n in values.constants.numbers for way in (0.25, -0.25)]
    for count, number in enumerate(numbers[:MAX_OFFSET_FEEDS]):
        kind = ("random", "large", "edges", "zeros")[count % 4]  # of inputs that are no floats
        rng = np.random.default_rng([seed, count])
        arrays = dict(draw_feed(model, shapes, kind, seed + count, values).arrays)
        for value in required_inputs(model):
            dtype = dtype_of(value)
            if dtype is not None and is_float(value):
                noise = rng.uniform(0.9, 1.1, shapes[value.name])
                with np.errstate(all="ignore"):
                    arrays[value.name] = np.asarray(number * noise).astype(dtype)
        yield Feed(f"around {number:.3g}", arrays)
