"""Draws inputs to compare two models on: plausible ones, and others that overflow, underflow or are NaN.

`draw_feeds` yields all inputs of a comparison (`files/baseline`), `draw_feed` one feed, for timing, too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, ValueInfoProto

from tensaurus.check.inputs.integer_uses import IntegerUses
from tensaurus.check.inputs.model_constants import (
    HUGE_NUMBER,
    NUMBERS_BESIDE_ONE,
    ModelConstants,
    numbers_beside,
)
from tensaurus.check.inputs.model_interface import required_inputs
from tensaurus.check.inputs.perturbation import perturb_feed
from tensaurus.check.inputs.try_shapes import Shape
from tensaurus.expr.ir.integer_types import integer_limits
from tensaurus.graph.ir.tensor_data import size_in_bytes
from tensaurus.ops.element_type import dtype_name
from tensaurus.runtimes.backends import Array
from tensaurus.runtimes.measure.machine import memory_bytes
from tensaurus.system.errors import TensaurusError

KINDS = (
    *("random", "blocks", "negative", "zeros", "constant", "large", "tiny", "magnitudes"),
    *("edges", "nan", "infinite"),
)
"""What the values of a feed are like ("edges": near the models' constants); docs/equivalence.md says why."""
GIVEN = "given"  # the kind of inputs that the caller gives
PLAUSIBLE = frozenset({"random", "blocks", "negative", GIVEN})
NONFINITE = frozenset({"nan", "infinite"})  # ONNX does not specify what a runtime's kernels compute of these
MAX_OFFSET_FEEDS = 24  # feeds around one number each that are tried to reach a branch
MAX_SINGLE_NONFINITE = 3  # a model with at most this many float inputs gets feeds in which one is nonfinite
MAX_EDGE_FEEDS = 4  # feeds of the kind "edges", which hold numbers near the models' constants
# Edge feeds of a model all of whose inputs together have at most SMALL_ELEMENTS elements.
MAX_SMALL_EDGE_FEEDS, SMALL_ELEMENTS = 24, 64
LOOP_COUNTS = (0, 1, 2, 3, 5)  # numbers of rounds of a Loop that are tried
MAX_RANK = 64  # numpy's limit
BLOCK_SIZE = 8  # pixels along a block: many detectors find nothing in noise, but do in edges and surfaces
TEXTS = ("", "a", "zwei", "trois mots ici", "42")


@dataclass(frozen=True)
class Feed:
    """One set of inputs of one of the KINDS; the `pinned` inputs (`near_ties`) are never perturbed."""

    kind: str
    arrays: Mapping[str, Array]
    pinned: frozenset[str] = frozenset()

    @property
    def is_plausible(self) -> bool:
        return self.kind in PLAUSIBLE

    @property
    def is_nonfinite(self) -> bool:
        """Whether some elements are infinite or NaN."""
        return self.kind.split()[0] in NONFINITE

    def perturb(self, seed: int) -> dict[str, Array]:
        """Return inputs for a perturbed copy; inputs that stand on thresholds are not moved."""
        moving = {} if self.is_edge else {n: a for n, a in self.arrays.items() if n not in self.pinned}
        return {**self.arrays, **perturb_feed(moving, seed)}

    @property
    def is_edge(self) -> bool:
        """Whether the elements are thresholds of the models, or next to them."""
        return self.kind.split()[0] == "edges"


@dataclass(frozen=True)
class InputValues:
    """Says which values inputs may have.

    ranges     of integer inputs, as the caller gave them, both ends included
    uses       how the model uses the other integer inputs; inputs of unknown use are 0 or 1
    constants  of the models that are compared
    rows       rows in which large tables of the models differ: indices drawn from them show the difference
    """

    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    uses: IntegerUses = IntegerUses()
    constants: ModelConstants = ModelConstants()
    rows: tuple[int, ...] = ()

    def only_zero_or_one(self, names: Iterable[str]) -> list[str]:
        """Return the integer inputs among `names` that are drawn from 0 and 1 alone."""
        uses = self.uses
        known = {*self.ranges, *uses.index_limits, *uses.unrestricted, *uses.loop_counts}
        return [n for n in names if n not in known]


def draw_feeds(
    model: ModelProto, shapes: Mapping[str, Shape], kinds: Sequence[str], seed: int, values: InputValues
) -> Iterator[Feed]:
    """Yield inputs of these kinds, several of a kind where one feed has no room for all its values."""
    floats = [value.name for value in required_inputs(model) if _is_float(value)]
    for kind in kinds:
        if kind in NONFINITE:
            # all float inputs at once, then each one alone, its name in the kind of the feed
            alone = [[name] for name in floats] if 1 < len(floats) <= MAX_SINGLE_NONFINITE else []
            for names in [floats] * bool(floats) + alone:
                made = draw_feed(model, shapes, kind, seed, values, only=names)
                yield made if names is floats else Feed(f"{kind} {names[0]}", made.arrays)
            continue
        for part in range(_edge_feed_count(model, shapes, values) if kind == "edges" else 1):
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
    arrays = {}
    for value in required_inputs(model):
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type"):
            reason = f"input {value.name} is not a tensor, so no values can be generated for it"
            raise TensaurusError(reason, remedy="Export the model with tensors as its only inputs.")
        if tensor.elem_type not in TensorProto.DataType.values() or not tensor.elem_type:
            reason = f"the element type of input {value.name} is not known to this version of ONNX"
            raise TensaurusError(reason, remedy="Export the model with a type that ONNX defines.")
        shape = shapes[value.name]
        _require_room(value.name, tensor.elem_type, shape)
        own = kind if kind not in NONFINITE or only is None or value.name in only else "random"
        if tensor.elem_type == TensorProto.STRING:
            arrays[value.name] = np.asarray(rng.choice(TEXTS, shape), object)
            continue
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        if dtype == np.bool_:
            drawn = rng.integers(0, 2, shape)
            arrays[value.name] = np.asarray(_draws_or_ends(kind, drawn, 0, 1), np.bool_)
        elif _is_float(value):
            if own == "edges" and dtype.kind != "c":
                made = _draw_edges(_floats_beside(values.constants, dtype), shape, part, rng)
            else:
                made = _draw_floats(own, shape, dtype, rng)
            with np.errstate(all="ignore"):
                arrays[value.name] = np.asarray(made).astype(dtype)
        else:
            arrays[value.name] = _draw_integers(value, shape, own, part, values, rng).astype(dtype)
    return Feed(kind, arrays)


def _dtype(value: ValueInfoProto) -> np.dtype[np.generic] | None:
    code = value.type.tensor_type.elem_type
    known = code in TensorProto.DataType.values() and code not in (0, TensorProto.STRING)
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(code)) if known else None


def is_integer(value: ValueInfoProto) -> bool:
    """Return whether an input's elements are integers."""
    dtype = _dtype(value)
    return dtype is not None and (dtype.kind in "iu" or "int" in dtype.name)


def _is_float(value: ValueInfoProto) -> bool:
    dtype = _dtype(value)
    return dtype is not None and ("float" in dtype.name or dtype.kind == "c")


def _draw_integers(
    value: ValueInfoProto, shape: Shape, kind: str, part: int, values: InputValues, rng: np.random.Generator
) -> Array:
    """Draw the integers of one input from its range or by its use; of "edges", those of `near` in turn."""
    name, least, most = value.name, *integer_limits(dtype_name(value.type.tensor_type.elem_type))
    if name in values.ranges:
        low, high = values.ranges[name]
        near = _integers_beside(values, name, low, high)
    elif name in values.uses.index_limits:
        low, high = values.uses.index_limits[name]
        low, high = max(low, least), min(high, most)
        if kind in ("negative", "constant") and low < 0:  # counted from the end
            return np.asarray(_draws_or_ends(kind, rng.integers(low, 0, shape), low, high))
        near = _edge_indices(low, high, values)
        low = max(low, 0)
    elif name in values.uses.loop_counts:
        low, high, near = LOOP_COUNTS[0], LOOP_COUNTS[-1], list(LOOP_COUNTS)
    elif name in values.uses.unrestricted:
        low, high = 0, 1
        near = _integers_beside(values, name, least, most)
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
        return _draw_edges(near, shape, part, rng).astype(_carrier_type(max(near)))
    return np.asarray(_draws_or_ends(kind, rng.integers(low, high, shape, endpoint=True), low, high))


def _edge_indices(low: int, high: int, values: InputValues) -> list[int]:
    """Return the least and the largest index, 0, and the rows in which the models differ."""
    return list(dict.fromkeys([low, 0, high, *(row for row in values.rows if low <= row <= high)]))


def _carrier_type(most: int) -> type[np.generic]:
    """Return the type in which integers up to `most` are drawn."""
    return np.uint64 if most >= 2**63 else np.int64


def _integers_beside(values: InputValues, name: str, low: int, high: int) -> list[int]:
    """Return numbers in the range: its ends, and those at most 1 away from a constant or a turning point."""
    constants = values.constants
    whole = [*constants.integers, *(round(number) for number in constants.numbers)]
    whole += [int(number) for number in values.uses.turning_numbers.get(name, ())]
    near = dict.fromkeys([low, low + 1, -1, 0, 1, high - 1, high])
    near.update(dict.fromkeys(n + step for n in whole for step in (-1, 0, 1)))
    return [n for n in near if low <= n <= high]


def _floats_beside(constants: ModelConstants, dtype: np.dtype[np.generic]) -> list[float]:
    """Return the numbers beside constants that are finite in the type; 0 where there are none."""
    near = dict.fromkeys(n for number in constants.numbers for n in numbers_beside(number, dtype))
    with np.errstate(all="ignore"):
        fine = np.isfinite(np.asarray(list(near), np.float64).astype(dtype).astype(np.float64))
    return [n for n, kept in zip(near, fine, strict=True) if kept] or [0.0]


def _group_by_feed(candidates: Sequence[float], size: int) -> list[Sequence[float]]:
    """Cut the candidates into groups that an input holds at once; beside huge ones others have no effect."""
    plain = [n for n in candidates if abs(n) <= HUGE_NUMBER]
    rest = [n for n in candidates if abs(n) > HUGE_NUMBER]
    step = max(size, 1)
    return [part[k : k + step] for part in (plain, rest) for k in range(0, len(part), step)]


def _draw_edges(candidates: Sequence[float], shape: Shape, part: int, rng: np.random.Generator) -> Array:
    """Return the numbers of one group, each at least once, at random positions."""
    groups = _group_by_feed(candidates, prod(shape))
    group = groups[part % len(groups)]
    exact = max(map(abs, group)) >= 2**53  # float64 would round the largest
    pool = np.asarray(group, object if exact else np.float64)
    return np.asarray(rng.permutation(pool[np.arange(prod(shape)) % len(pool)])).reshape(shape)


def _edge_groups(
    model: ModelProto, shapes: Mapping[str, Shape], values: InputValues
) -> Iterator[list[Sequence[float]]]:
    """Yield for each input the groups of numbers near constants that its edge feeds hold."""
    for value in required_inputs(model):
        dtype, size = _dtype(value), prod(shapes[value.name])
        if dtype is None or dtype.kind in "bc" or not size:
            continue
        if _is_float(value):
            yield _group_by_feed(_floats_beside(values.constants, dtype), size)
        elif value.name in values.uses.index_limits:
            yield _group_by_feed(_edge_indices(*values.uses.index_limits[value.name], values), size)
        elif value.name in values.uses.loop_counts:
            yield _group_by_feed(LOOP_COUNTS, size)
        elif value.name in values.uses.unrestricted:
            ends = integer_limits(dtype_name(value.type.tensor_type.elem_type))
            yield _group_by_feed(_integers_beside(values, value.name, *ends), size)


def _edge_feed_count(model: ModelProto, shapes: Mapping[str, Shape], values: InputValues) -> int:
    """Return how many edge feeds hold numbers near every constant for every input; at most the maximum."""
    most = max((len(groups) for groups in _edge_groups(model, shapes, values)), default=1)
    return min(most, _max_edge_feeds(shapes))


def _max_edge_feeds(shapes: Mapping[str, Shape]) -> int:
    return MAX_SMALL_EDGE_FEEDS if sum(map(prod, shapes.values())) <= SMALL_ELEMENTS else MAX_EDGE_FEEDS


def count_untried_constants(model: ModelProto, shapes: Mapping[str, Shape], values: InputValues) -> int:
    """Return how many constants no edge feed comes near; each has NUMBERS_BESIDE_ONE numbers in groups."""
    most = _max_edge_feeds(shapes)
    over = (sum(map(len, groups[most:])) for groups in _edge_groups(model, shapes, values))
    return values.constants.omitted_count + -(-max(over, default=0) // NUMBERS_BESIDE_ONE)


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


def require_ranges(model: ModelProto, ranges: Mapping[str, tuple[int, int]]) -> None:
    """Raise TensaurusError for a range of what is no integer input, or beyond what its type holds."""
    kinds = {value.name: value.type.tensor_type.elem_type for value in required_inputs(model)}
    for name, (low, high) in ranges.items():
        if name not in kinds:
            known = ", ".join(kinds) or "none"
            reason = f"--range names {name}, which is no input"
            raise TensaurusError(reason, remedy=f"The model's inputs are: {known}")
        kind = TensorProto.DataType.Name(kinds[name]).lower()
        sizes = re.fullmatch(r"(u?)int(\d+)", kind)
        if sizes is None:
            reason = f"--range names input {name}, which is {kind}, not an integer type"
            raise TensaurusError(reason, remedy="Give values of other inputs with --inputs.")
        bits = min(63, int(sizes[2]) - (not sizes[1]))
        least, most = 0 if sizes[1] else -(2**bits), 2**bits - 1
        if low < least or high > most:
            reason = f"--range {name}={low},{high} exceeds the type {kind} of the input"
            raise TensaurusError(reason, remedy=f"Its values go from {least} to {most}.")


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
            dtype = _dtype(value)
            if dtype is not None and _is_float(value):
                noise = rng.uniform(0.9, 1.1, shapes[value.name])
                with np.errstate(all="ignore"):
                    arrays[value.name] = np.asarray(number * noise).astype(dtype)
        yield Feed(f"around {number:.3g}", arrays)
