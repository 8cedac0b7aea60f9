"""Inputs to compare two models on: plausible ones, and ones that overflow, underflow or mean nothing."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, ValueInfoProto

from tensaurus.check.inputs.integer_uses import Indices
from tensaurus.check.inputs.model_constants import HUGE, NEAR, Constants, beside
from tensaurus.check.inputs.model_interface import required_inputs
from tensaurus.check.inputs.perturbation import perturbed_feed
from tensaurus.check.inputs.try_shapes import Shape
from tensaurus.expr.ir.integer_types import limits
from tensaurus.graph.ir.tensor_data import size_in_bytes
from tensaurus.ops.element_type import dtype_name
from tensaurus.runtimes.backends import Array
from tensaurus.runtimes.measure.machine import memory_bytes
from tensaurus.system.errors import TensaurusError

KINDS = (
    *("random", "blocks", "negative", "zeros", "constant", "large", "tiny", "magnitudes"),
    *("edges", "nan", "infinite"),
)
GIVEN = "given"  # by the caller
PLAUSIBLE = frozenset({"random", "blocks", "negative", GIVEN})
UNREAL = frozenset({"nan", "infinite"})  # no numbers: what a runtime's kernels make of them is not specified
OFFSETS = 24
FEW = 3  # inputs that are no numbers one by one
PARTS, MANY = 4, 24  # feeds of edges at most, and where all inputs together have few elements
TINY = 64
TRIPS = (0, 1, 2, 3, 5)  # rounds of a loop
RANK = 64  # of an array of numpy's
BLOCK = 8  # noise alone leaves many detectors silent: blocks of 8 x 8 have edges and surfaces
WORDS = ("", "a", "zwei", "trois mots ici", "42")


@dataclass(frozen=True)
class Feed:
    """One set of inputs; `kind` names it.  Those that are `pinned` no rounding moves (`near_ties`)."""

    kind: str
    arrays: Mapping[str, Array]
    pinned: frozenset[str] = frozenset()

    @property
    def plausible(self) -> bool:
        return self.kind in PLAUSIBLE

    @property
    def unreal(self) -> bool:
        """Whether not all of it is numbers."""
        return self.kind.split()[0] in UNREAL

    def beside(self, seed: int) -> dict[str, Array]:
        """Inputs for a perturbed copy; those near a threshold stay where they are."""
        moving = {} if self.edge else {n: a for n, a in self.arrays.items() if n not in self.pinned}
        return {**self.arrays, **perturbed_feed(moving, seed)}

    @property
    def edge(self) -> bool:
        """Whether it stands on thresholds."""
        return self.kind.split()[0] == "edges"


@dataclass(frozen=True)
class Values:
    """What the values of inputs may be.

    ranges     of integer inputs, as the caller gave them, both ends included
    indices    what the model uses the other integer inputs for; what is not known there is 0 or 1
    constants  of the models that are compared
    rows       in which large tables of the models differ: places worth looking up
    """

    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    indices: Indices = Indices()
    constants: Constants = Constants()
    rows: tuple[int, ...] = ()

    def narrow(self, names: Iterable[str]) -> list[str]:
        """Of these integer inputs those that are never anything but 0 and 1."""
        known = {*self.ranges, *self.indices.limits, *self.indices.free, *self.indices.trips}
        return [n for n in names if n not in known]


def feeds(
    model: ModelProto, shapes: Mapping[str, Shape], kinds: Sequence[str], seed: int, values: Values
) -> Iterator[Feed]:
    """Inputs of these kinds, several of a kind where one does not hold all that belongs to it."""
    floats = [value.name for value in required_inputs(model) if _float(value)]
    for kind in kinds:
        if kind in UNREAL:
            alone = [[name] for name in floats] if 1 < len(floats) <= FEW else []
            for names in [floats] * bool(floats) + alone:
                made = feed(model, shapes, kind, seed, values, only=names)
                yield made if names is floats else Feed(f"{kind} {names[0]}", made.arrays)
            continue
        for part in range(_parts(model, shapes, values) if kind == "edges" else 1):
            made = feed(model, shapes, kind, seed, values, part=part)
            yield made if not part else Feed(f"{kind} {part + 1}", made.arrays)


def feed(
    model: ModelProto,
    shapes: Mapping[str, Shape],
    kind: str,
    seed: int,
    values: Values | None = None,
    *,
    part: int = 0,
    only: Collection[str] | None = None,
) -> Feed:
    """Inputs of one kind.

    Integers are drawn from the ranges that are given or known, whose ends zeros and large take, else from
    0..1, and far beyond where any number will do and the kind is not plausible.  `part` counts the feeds of
    edges; `only` these inputs are not numbers where the kind is none, all where None.
    Raises TensaurusError for an input that is not a tensor of known elements, or larger than the memory.
    """
    values = values or Values()
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
        own = kind if kind not in UNREAL or only is None or value.name in only else "random"
        if tensor.elem_type == TensorProto.STRING:
            arrays[value.name] = np.asarray(rng.choice(WORDS, shape), object)
            continue
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        if dtype == np.bool_:
            drawn = rng.integers(0, 2, shape)
            arrays[value.name] = np.asarray(_ends(kind, drawn, 0, 1), np.bool_)
        elif _float(value):
            if own == "edges" and dtype.kind != "c":
                made = _edges(_floats_beside(values.constants, dtype), shape, part, rng)
            else:
                made = _floats(own, shape, dtype, rng)
            with np.errstate(all="ignore"):
                arrays[value.name] = np.asarray(made).astype(dtype)
        else:
            arrays[value.name] = _integers(value, shape, own, part, values, rng).astype(dtype)
    return Feed(kind, arrays)


def _dtype(value: ValueInfoProto) -> np.dtype[np.generic] | None:
    code = value.type.tensor_type.elem_type
    known = code in TensorProto.DataType.values() and code not in (0, TensorProto.STRING)
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(code)) if known else None


def is_integer(value: ValueInfoProto) -> bool:
    """Whether an input's elements are integers."""
    dtype = _dtype(value)
    return dtype is not None and (dtype.kind in "iu" or "int" in dtype.name)


def _float(value: ValueInfoProto) -> bool:
    dtype = _dtype(value)
    return dtype is not None and ("float" in dtype.name or dtype.kind == "c")


def _integers(
    value: ValueInfoProto, shape: Shape, kind: str, part: int, values: Values, rng: np.random.Generator
) -> Array:
    """Integers of one input."""
    name, least, most = value.name, *limits(dtype_name(value.type.tensor_type.elem_type))
    if name in values.ranges:
        low, high = values.ranges[name]
        near = _integers_beside(values, name, low, high)
    elif name in values.indices.limits:
        low, high = values.indices.limits[name]
        low, high = max(low, least), min(high, most)
        if kind in ("negative", "constant") and low < 0:  # counted from the end
            return np.asarray(_ends(kind, rng.integers(low, 0, shape), low, high))
        near = _places(low, high, values)
        low = max(low, 0)
    elif name in values.indices.trips:
        low, high, near = TRIPS[0], TRIPS[-1], list(TRIPS)
    elif name in values.indices.free:
        low, high = 0, 1
        near = _integers_beside(values, name, least, most)
        if kind == "large":
            return np.full(shape, most, _carrier(most))
        if kind == "magnitudes":
            drawn = 2.0 ** rng.uniform(0, np.log2(float(most)) - 0.01, shape)
            return np.asarray(drawn * rng.choice((-1, 1) if least < 0 else (1,), shape)).astype(
                _carrier(most)
            )
    else:
        low, high = 0, 1
        near = [0, 1]
    if kind == "edges":
        return _edges(near, shape, part, rng).astype(_carrier(max(near)))
    return np.asarray(_ends(kind, rng.integers(low, high, shape, endpoint=True), low, high))


def _places(low: int, high: int, values: Values) -> list[int]:
    """The ends of what names places, and rows in which the models differ."""
    return list(dict.fromkeys([low, 0, high, *(row for row in values.rows if low <= row <= high)]))


def _carrier(most: int) -> type[np.generic]:
    return np.uint64 if most >= 2**63 else np.int64


def _integers_beside(values: Values, name: str, low: int, high: int) -> list[int]:
    """The ends of the range, and what is at most one away from a constant in it, or from what meets one."""
    constants = values.constants
    whole = [*constants.integers, *(round(number) for number in constants.numbers)]
    whole += [int(number) for number in values.indices.meets.get(name, ())]
    near = dict.fromkeys([low, low + 1, -1, 0, 1, high - 1, high])
    near.update(dict.fromkeys(n + step for n in whole for step in (-1, 0, 1)))
    return [n for n in near if low <= n <= high]


def _floats_beside(constants: Constants, dtype: np.dtype[np.generic]) -> list[float]:
    near = dict.fromkeys(n for number in constants.numbers for n in beside(number, dtype))
    with np.errstate(all="ignore"):
        fine = np.isfinite(np.asarray(list(near), np.float64).astype(dtype).astype(np.float64))
    return [n for n, kept in zip(near, fine, strict=True) if kept] or [0.0]


def _groups(candidates: Sequence[float], size: int) -> list[Sequence[float]]:
    """As many of them as an input holds at once; beside huge ones, the others would have no effect."""
    plain = [n for n in candidates if abs(n) <= HUGE]
    rest = [n for n in candidates if abs(n) > HUGE]
    step = max(size, 1)
    return [part[k : k + step] for part in (plain, rest) for k in range(0, len(part), step)]


def _edges(candidates: Sequence[float], shape: Shape, part: int, rng: np.random.Generator) -> Array:
    """Those of one part, each once at least."""
    groups = _groups(candidates, prod(shape))
    group = groups[part % len(groups)]
    exact = max(map(abs, group)) >= 2**53  # floats would round it
    pool = np.asarray(group, object if exact else np.float64)
    places = np.arange(prod(shape)) % len(pool)
    return np.asarray(rng.permutation(pool[places])).reshape(shape)


def _all_groups(
    model: ModelProto, shapes: Mapping[str, Shape], values: Values
) -> Iterator[list[Sequence[float]]]:
    """What each input takes in of the neighbourhood of the constants, part by part."""
    for value in required_inputs(model):
        dtype, size = _dtype(value), prod(shapes[value.name])
        if dtype is None or dtype.kind in "bc" or not size:
            continue
        if _float(value):
            yield _groups(_floats_beside(values.constants, dtype), size)
        elif value.name in values.indices.limits:
            yield _groups(_places(*values.indices.limits[value.name], values), size)
        elif value.name in values.indices.trips:
            yield _groups(TRIPS, size)
        elif value.name in values.indices.free:
            ends = limits(dtype_name(value.type.tensor_type.elem_type))
            yield _groups(_integers_beside(values, value.name, *ends), size)


def _parts(model: ModelProto, shapes: Mapping[str, Shape], values: Values) -> int:
    """Feeds that hold the neighbourhood of every constant for every input, as many as are made at most."""
    most = max((len(groups) for groups in _all_groups(model, shapes, values)), default=1)
    return min(most, _most(shapes))


def _most(shapes: Mapping[str, Shape]) -> int:
    return MANY if sum(map(prod, shapes.values())) <= TINY else PARTS


def unmet(model: ModelProto, shapes: Mapping[str, Shape], values: Values) -> int:
    """How many constants have no input near them."""
    most = _most(shapes)
    over = (sum(map(len, groups[most:])) for groups in _all_groups(model, shapes, values))
    return values.constants.left + -(-max(over, default=0) // NEAR)


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


def offsets(model: ModelProto, shapes: Mapping[str, Shape], seed: int, values: Values) -> Iterator[Feed]:
    """Inputs that are wholly near one number each time: around powers of ten and the models' constants."""
    numbers = [sign * 10.0**n for n in (0, 1, 2, 4, -2) for sign in (1, -1)]
    numbers += [n * (1 + way) for n in values.constants.numbers for way in (0.25, -0.25)]
    for place, number in enumerate(numbers[:OFFSETS]):
        kind = ("random", "large", "edges", "zeros")[place % 4]  # of what is no float
        rng = np.random.default_rng([seed, place])
        arrays = dict(feed(model, shapes, kind, seed + place, values).arrays)
        for value in required_inputs(model):
            dtype = _dtype(value)
            if dtype is not None and _float(value):
                noise = rng.uniform(0.9, 1.1, shapes[value.name])
                with np.errstate(all="ignore"):
                    arrays[value.name] = np.asarray(number * noise).astype(dtype)
        yield Feed(f"around {number:.3g}", arrays)


