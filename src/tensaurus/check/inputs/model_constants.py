"""The numbers that models hold: where a comparison, a clip or a rounding may turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from onnx import AttributeProto, ModelProto, TensorProto, numpy_helper

from tensaurus.expr.ir.float_conversions import FORMATS
from tensaurus.graph.onnx.onnx_frame import graphs_in
from tensaurus.ops.element_type import dtype_name
from tensaurus.ops.ordering import ROUNDING
from tensaurus.runtimes.backends import Array

SMALL = 64  # elements of a tensor that is no threshold, or one for each channel
NEAR = 5  # numbers beside one
HUGE = 1e6
ROWS = 32  # of tables that differ
STEPS, FEW = 7, 8  # halves of a scale on either side of 0, and scales of one rounding
UNCOMPARED = frozenset({TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.COMPLEX128})
MOST = 4096  # constants that inputs are made of


@dataclass(frozen=True)
class Constants:
    """numbers   of floating-point types, and integers that are not huge, which may be converted to such
    integers  of integer types
    left      how many more numbers there are

    Each once, those of single elements first.
    """

    numbers: tuple[float, ...] = ()
    integers: tuple[int, ...] = ()
    left: int = 0

    @property
    def whole(self) -> list[int]:
        """Return all that are integers, of whatever type."""
        return [*self.integers, *(int(n) for n in self.numbers if n == int(n))]


def constants_of(models: Sequence[ModelProto]) -> Constants:
    """The finite numbers in small tensors and in attributes of all of them."""
    arrays = [np.ravel(array) for model in models for array in _arrays(model)]
    arrays.sort(key=lambda array: array.size > 1)
    whole = [int(v) for array in arrays if array.dtype.kind in "iu" for v in array]
    values: dict[float, None] = {}
    for array in (*arrays, *(halves for model in models for halves in _half_steps(model))):
        wide = np.asarray(array, np.float64)
        fine = np.isfinite(wide) if array.dtype.kind not in "iu" else np.abs(wide) <= HUGE
        values.update((float(v), None) for v in wide[fine])
    numbers = list(values)
    return Constants(tuple(numbers[:MOST]), tuple(dict.fromkeys(whole))[:MOST], len(numbers[MOST:]))


def differing_rows(one: ModelProto, other: ModelProto) -> tuple[int, ...]:
    """Return the rows in which large tables of two models differ, the most different first."""
    found: dict[int, float] = {}
    tables = {tensor.name: tensor for tensor in other.graph.initializer}
    for tensor in one.graph.initializer:
        twin = tables.get(tensor.name)
        alike = [t for t in tables.values() if t.dims == tensor.dims and t.data_type == tensor.data_type]
        twin = twin if twin in alike else alike[0] if len(alike) == 1 else None
        if twin is None or not tensor.dims or tensor.dims[0] <= SMALL or tensor.data_type in UNCOMPARED:
            continue
        a, b = (_wide(t).reshape(tensor.dims[0], -1) for t in (tensor, twin))
        with np.errstate(all="ignore"):
            gaps = np.nan_to_num(np.abs(a - b).max(axis=1, initial=0.0), nan=np.inf)
        for row in np.argsort(-gaps, kind="stable")[:ROWS]:
            if gaps[row]:
                found[int(row)] = max(found.get(int(row), 0.0), float(gaps[row]))
    return tuple(sorted(found, key=lambda row: -found[row])[:ROWS])


def _wide(tensor: TensorProto) -> Array:
    return numpy_helper.to_array(tensor).astype(np.float64)


def _half_steps(model: ModelProto) -> Iterator[Array]:
    """Yield where roundings turn: multiples of half a scale."""
    small = {t.name: t for t in model.graph.initializer if np.prod(t.dims, dtype=object) <= SMALL}
    for node in model.graph.node:
        if (place := ROUNDING.get(node.op_type)) is None:
            continue
        scales = np.ones(1)
        if place < len(node.input) and node.input[place] in small:
            scales = np.ravel(numpy_helper.to_array(small[node.input[place]]).astype(np.float64))[:FEW]
        halves = np.arange(-STEPS, STEPS + 1) / 2
        yield np.ravel(scales[:, None] * halves)


def shared(one: ModelProto, other: ModelProto) -> frozenset[float]:
    """The single numbers that both models hold: no rewrite has rounded them."""
    first, second = ({float(a.item()) for a in _arrays(m) if a.size == 1} for m in (one, other))
    return frozenset(first & second)


def beside(number: float, dtype: np.dtype[np.generic]) -> list[float]:
    """The number, its neighbours in the type, and numbers a small step away."""
    with np.errstate(all="ignore"):
        near = np.asarray(number).astype(dtype)
        if dtype.kind == "f":
            steps = [np.nextafter(near, np.asarray(way, dtype)) for way in (-np.inf, np.inf)]
        else:  # a type that numpy does not know: two units in the last place
            unit = 2.0 ** (np.floor(np.log2(abs(number) or 1.0)) - 2)
            steps = [near - unit * 0.25, near + unit * 0.25]
    step = max(abs(number) / 64, 2.0**-10)
    return [number, float(steps[0]), float(steps[1]), number - step, number + step]


def _arrays(model: ModelProto) -> Iterator[Array]:
    graphs = list(graphs_in(model.graph))
    for graph in graphs:
        for tensor in graph.initializer:
            yield from _small(tensor)
    for node in chain.from_iterable(part.node for part in (*graphs, *model.functions)):
        for attribute in node.attribute:
            match attribute.type:
                case AttributeProto.TENSOR:
                    yield from _small(attribute.t)
                case AttributeProto.FLOAT:
                    yield np.asarray([attribute.f], np.float32)
                case AttributeProto.FLOATS if len(attribute.floats) <= SMALL:
                    yield np.asarray(attribute.floats, np.float32)
                case AttributeProto.INT if attribute.name == "value_int":
                    yield np.asarray([attribute.i], np.int64)
                case AttributeProto.INT if attribute.name == "to":
                    yield from _ties(attribute.i)
                case AttributeProto.INTS if attribute.name == "value_ints" and len(attribute.ints) <= SMALL:
                    yield np.asarray(attribute.ints, np.int64)


def _ties(elem_type: int) -> Iterator[Array]:
    """Where a conversion to a narrow type of floats turns: halfway between its numbers, and at its ends.

    Not at bfloat16's, where the sums of float32 end as well.
    """
    name = dtype_name(elem_type)
    if name not in ("float16", "bfloat16"):
        return
    digits, largest, least = FORMATS[name]
    half, most = 2.0**-digits, 2.0**largest
    ends = [most * (2 - 2 * half), most * (2 - half), 2.0 ** (least - digits)] if name == "float16" else []
    yield np.array([1 + half, 1 + 3 * half, *ends])


def _small(tensor: TensorProto) -> Iterator[Array]:
    if np.prod(tensor.dims, dtype=object) > SMALL or tensor.data_type == TensorProto.STRING:
        return
    array = numpy_helper.to_array(tensor)
    if array.dtype.kind != "c":
        yield array
