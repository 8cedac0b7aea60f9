"""Collects the numbers that models hold: near them a comparison, a clip or a rounding may turn.

`edge_values` draws inputs near these numbers: of a model with Clip(x, 0, 6), numbers around 0 and 6.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from onnx import AttributeProto, ModelProto, TensorProto, numpy_helper

from tensaurus.expr.ir.float_conversions import FLOAT_FORMATS
from tensaurus.graph.onnx.onnx_frame import graphs_in
from tensaurus.ops.abrupt_operators import STEP_INPUT
from tensaurus.ops.element_type import dtype_name
from tensaurus.runtimes.backends import Array

MAX_THRESHOLD_ELEMENTS = 64  # a larger tensor holds weights, not a threshold or one for each channel
NUMBERS_BESIDE_ONE = 5  # how many numbers `numbers_beside` returns
HUGE_NUMBER = 1e6  # beside a larger number in one input, others have no effect
MAX_DIFFERING_ROWS = 32
MAX_HALF_STEPS, MAX_SCALES = 7, 8  # multiples of half a scale on either side of 0; scales of one rounding
# element types of tables whose rows are not compared
UNCOMPARED = frozenset({TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.COMPLEX128})
MAX_CONSTANTS = 4096  # numbers of each kind that are kept


@dataclass(frozen=True)
class ModelConstants:
    """Numbers that models hold, each once, those of tensors with one element first.

    numbers        of floating-point types, and integers that are not huge, which may be converted to floats
    integers       of integer types
    omitted_count  how many more numbers there are
    """

    numbers: tuple[float, ...] = ()
    integers: tuple[int, ...] = ()
    omitted_count: int = 0

    @property
    def integral_numbers(self) -> list[int]:
        """Return all integral numbers, of whatever type."""
        return [*self.integers, *(int(n) for n in self.numbers if n == int(n))]


def collect_constants(models: Sequence[ModelProto]) -> ModelConstants:
    """Return the finite numbers in small tensors and in attributes of all models."""
    arrays = [np.ravel(array) for model in models for array in _constant_arrays(model)]
    arrays.sort(key=lambda array: array.size > 1)  # single numbers first: they are kept if there are many
    whole = [int(v) for array in arrays if array.dtype.kind in "iu" for v in array]
    values: dict[float, None] = {}
    for array in (*arrays, *(halves for model in models for halves in _rounding_thresholds(model))):
        wide = np.asarray(array, np.float64)
        fine = np.isfinite(wide) if array.dtype.kind not in "iu" else np.abs(wide) <= HUGE_NUMBER
        values.update((float(v), None) for v in wide[fine])
    numbers = list(values)
    return ModelConstants(
        tuple(numbers[:MAX_CONSTANTS]),
        tuple(dict.fromkeys(whole))[:MAX_CONSTANTS],
        len(numbers[MAX_CONSTANTS:]),
    )


def find_differing_rows(one: ModelProto, other: ModelProto) -> tuple[int, ...]:
    """Return the rows in which large tables of two models differ, the most different first."""
    found: dict[int, float] = {}
    tables = {tensor.name: tensor for tensor in other.graph.initializer}
    for tensor in one.graph.initializer:
        # the table of the same name, or else the only one of its shape and type
        twin = tables.get(tensor.name)
        alike = [t for t in tables.values() if t.dims == tensor.dims and t.data_type == tensor.data_type]
        twin = twin if twin in alike else alike[0] if len(alike) == 1 else None
        if (
            twin is None
            or not tensor.dims
            or tensor.dims[0] <= MAX_THRESHOLD_ELEMENTS
            or tensor.data_type in UNCOMPARED
        ):
            continue
        a, b = (_as_float64(t).reshape(tensor.dims[0], -1) for t in (tensor, twin))
        with np.errstate(all="ignore"):
            gaps = np.nan_to_num(np.abs(a - b).max(axis=1, initial=0.0), nan=np.inf)
        for row in np.argsort(-gaps, kind="stable")[:MAX_DIFFERING_ROWS]:
            if gaps[row]:
                found[int(row)] = max(found.get(int(row), 0.0), float(gaps[row]))
    return tuple(sorted(found, key=lambda row: -found[row])[:MAX_DIFFERING_ROWS])


def _as_float64(tensor: TensorProto) -> Array:
    return numpy_helper.to_array(tensor).astype(np.float64)


def _rounding_thresholds(model: ModelProto) -> Iterator[Array]:
    """Yield numbers at which roundings turn: multiples of half a scale."""
    small = {
        t.name: t for t in model.graph.initializer if np.prod(t.dims, dtype=object) <= MAX_THRESHOLD_ELEMENTS
    }
    for node in model.graph.node:
        if (scale := STEP_INPUT.get(node.op_type)) is None:  # the index of the input that holds the scale
            continue
        scales = np.ones(1)
        if scale < len(node.input) and node.input[scale] in small:
            scales = np.ravel(numpy_helper.to_array(small[node.input[scale]]).astype(np.float64))[:MAX_SCALES]
        halves = np.arange(-MAX_HALF_STEPS, MAX_HALF_STEPS + 1) / 2
        yield np.ravel(scales[:, None] * halves)


def shared_numbers(one: ModelProto, other: ModelProto) -> frozenset[float]:
    """Return the single numbers that both models hold: no rewrite has rounded them."""
    first, second = ({float(a.item()) for a in _constant_arrays(m) if a.size == 1} for m in (one, other))
    return frozenset(first & second)


def numbers_beside(number: float, dtype: np.dtype[np.generic]) -> list[float]:
    """Return the number, its neighbours in the type, and the numbers a small step away."""
    with np.errstate(all="ignore"):
        near = np.asarray(number).astype(dtype)
        if dtype.kind == "f":
            steps = [np.nextafter(near, np.asarray(way, dtype)) for way in (-np.inf, np.inf)]
        else:  # bfloat16 and the like: a step of 1/16 of the number's power of two
            unit = 2.0 ** (np.floor(np.log2(abs(number) or 1.0)) - 2)
            steps = [near - unit * 0.25, near + unit * 0.25]
    step = max(abs(number) / 64, 2.0**-10)
    return [number, float(steps[0]), float(steps[1]), number - step, number + step]


def _constant_arrays(model: ModelProto) -> Iterator[Array]:
    graphs = list(graphs_in(model.graph))
    for graph in graphs:
        for tensor in graph.initializer:
            yield from _small_array(tensor)
    for node in chain.from_iterable(part.node for part in (*graphs, *model.functions)):
        for attribute in node.attribute:
            match attribute.type:
                case AttributeProto.TENSOR:
                    yield from _small_array(attribute.t)
                case AttributeProto.FLOAT:
                    yield np.asarray([attribute.f], np.float32)
                case AttributeProto.FLOATS if len(attribute.floats) <= MAX_THRESHOLD_ELEMENTS:
                    yield np.asarray(attribute.floats, np.float32)
                case AttributeProto.INT if attribute.name == "value_int":
                    yield np.asarray([attribute.i], np.int64)
                case AttributeProto.INT if attribute.name == "to":
                    yield from _conversion_thresholds(attribute.i)
                case AttributeProto.INTS if (
                    attribute.name == "value_ints" and len(attribute.ints) <= MAX_THRESHOLD_ELEMENTS
                ):
                    yield np.asarray(attribute.ints, np.int64)


def _conversion_thresholds(elem_type: int) -> Iterator[Array]:
    """Yield numbers at which a conversion to a narrow float type turns.

    The numbers are halfway between two of the type's, and at the ends of its range: the largest, the first
    that becomes infinite, the last that becomes 0.  The range of bfloat16 ends where that of float32 does.
    """
    name = dtype_name(elem_type)
    if name not in ("float16", "bfloat16"):
        return
    digits, largest, least = FLOAT_FORMATS[name]
    half, most = 2.0**-digits, 2.0**largest
    ends = [most * (2 - 2 * half), most * (2 - half), 2.0 ** (least - digits)] if name == "float16" else []
    yield np.array([1 + half, 1 + 3 * half, *ends])


def _small_array(tensor: TensorProto) -> Iterator[Array]:
    if np.prod(tensor.dims, dtype=object) > MAX_THRESHOLD_ELEMENTS or tensor.data_type == TensorProto.STRING:
        return
    array = numpy_helper.to_array(tensor)
    if array.dtype.kind != "c":
        yield array
