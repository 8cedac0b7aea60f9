"""Records of how far the elements of tensors and bodies are moved, and operations on their arrays.

    x in 2..3, moved by at most 1e-9:     low [2.0]   high [3.0]   change [1e-9]   scale [3.0]

`perturbation_rules` computes with them; `perturbation_bounds` says what they are for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from tensaurus.expr.sizes.symbol import Axis

Array: TypeAlias = np.ndarray[Any, Any]

MAX_ARRAY_ELEMENTS = 1 << 24  # 128 MB of float64: a dozen such arrays are alive at once


class Sensitive(Exception):
    """Raised with the reason why an expression may turn a tiny difference into a large one."""


class PerturbationArrays(NamedTuple):
    """The arrays of a `Perturbation`, where the least magnitude is always given."""

    low: Array
    high: Array
    change: Array
    scale: Array
    min_magnitude: Array


@dataclass(frozen=True, eq=False)
class Perturbation:
    """How far the elements of a tensor are moved, and bounds of their values.

    All are arrays of the tensor's rank, of length 1 where all elements are alike.

    low, high  bounds of an element, before and after it is moved
    change     largest distance that an element is moved; NaN where that is unknown
    scale      magnitude of an element where all inputs have their largest, 0 where it is unknown; a change of
               an output must be tiny beside its scale
    least      lower bound of an element's magnitude; None where that follows from low and high
    """

    low: Array
    high: Array
    change: Array
    scale: Array
    least: Array | None = None

    @classmethod
    def within(cls, low: float, high: float, rank: int = 0) -> Perturbation:
        """Return the perturbation of any numbers within these bounds, which are not moved."""
        least, most = np.full([1] * rank, low), np.full([1] * rank, high)
        bound = max(abs(low), abs(high))
        return cls(least, most, np.zeros_like(least), np.full_like(least, bound if bound < inf else 0.0))

    @classmethod
    def known(cls, value: Array, moved: Array | None = None) -> Perturbation:
        """Return the perturbation of known numbers, and of the numbers that they are moved to."""
        value = np.asarray(value, np.float64)
        if moved is None:
            return cls(value, value, np.zeros([1] * value.ndim), np.abs(value))
        is_unmoved = (moved == value) | (np.isnan(moved) & np.isnan(value))
        with np.errstate(invalid="ignore"):
            change = np.where(is_unmoved, 0.0, np.abs(moved - value))
        return cls(np.minimum(value, moved), np.maximum(value, moved), change, np.abs(value))

    @property
    def is_moved(self) -> bool:
        """Whether any element is moved."""
        return bool(self.change.any())

    @property
    def may_vanish(self) -> bool:
        """Whether any moved element may become 0."""
        return bool(((self.change != 0) & ~(self.low > 0) & ~(self.high < 0)).any())

    @property
    def max_magnitude(self) -> Array:
        """The largest magnitude of each element."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @property
    def min_magnitude(self) -> Array:
        """The least magnitude of each element."""
        bound = np.maximum(0.0, np.maximum(self.low, -self.high))
        return bound if self.least is None else np.maximum(bound, self.least)

    def after_flushing(self, min_magnitude: Array, flushed: float, operations: float = 1.0) -> Self:
        """Return the perturbation after this many operations that flush numbers below `flushed` to 0.

        `min_magnitude` is the least magnitude that the flushed numbers may have had.
        """
        may_be_flushed = ~(min_magnitude >= flushed)
        return replace(
            self,
            low=np.where(may_be_flushed, np.minimum(self.low, 0.0), self.low),
            high=np.where(may_be_flushed, np.maximum(self.high, 0.0), self.high),
            change=self.change + np.where(may_be_flushed, operations * flushed, 0.0),
            least=np.where(may_be_flushed, 0.0, self.min_magnitude),
        )

    def arrays(self) -> PerturbationArrays:
        return PerturbationArrays(self.low, self.high, self.change, self.scale, self.min_magnitude)


@dataclass(frozen=True, eq=False)
class BodyPerturbation(Perturbation):
    """The perturbation of a body: the dimensions of its arrays are `axes`."""

    axes: tuple[Axis, ...] = ()

    @classmethod
    def of(cls, arrays: PerturbationArrays, axes: tuple[Axis, ...] = ()) -> BodyPerturbation:
        return cls(*arrays, axes)


def align_array(array: Array, axes: Sequence[Axis], target_axes: Sequence[Axis]) -> Array:
    """Return the array with its dimensions in the order of these axes, of length 1 for missing ones."""
    order = [axes.index(a) for a in target_axes if a in axes]
    return array.transpose(order).reshape(
        [array.shape[axes.index(a)] if a in axes else 1 for a in target_axes]
    )


def collapse_dimension(arrays: PerturbationArrays, d: int) -> PerturbationArrays:
    """Return arrays that hold for all elements along dimension d."""
    low, high, change, scale, min_magnitude = arrays
    low, scale, min_magnitude = (np.asarray(a.min(axis=d, initial=inf)) for a in (low, scale, min_magnitude))
    high, change = (np.asarray(a.max(axis=d, initial=i)) for a, i in ((high, -inf), (change, 0.0)))
    return PerturbationArrays(low, high, change, scale, min_magnitude)


def _limit_sizes(perturbations: Sequence[BodyPerturbation]) -> Sequence[BodyPerturbation]:
    """Return the perturbations with some axes collapsed where all together have too many elements."""
    while True:
        shapes = [np.broadcast_shapes(*(a.shape for a in part.arrays())) for part in perturbations]
        lengths: dict[Axis, int] = {}
        for part, shape in zip(perturbations, shapes, strict=True):
            for a, n in zip(part.axes, shape, strict=True):
                lengths[a] = max(lengths.get(a, 1), n)
        if prod(lengths.values()) <= MAX_ARRAY_ELEMENTS:
            return perturbations
        # collapse the longest axis that the largest operand lacks (else any): that operand keeps its detail
        largest = perturbations[max(range(len(perturbations)), key=lambda k: prod(shapes[k]))]
        others = {a: n for a, n in lengths.items() if a not in largest.axes and n > 1} or lengths
        longest = max(others, key=others.__getitem__)
        perturbations = [_collapse_axis(part, longest) for part in perturbations]


def _collapse_axis(part: BodyPerturbation, axis: Axis) -> BodyPerturbation:
    if axis not in part.axes:
        return part
    d = part.axes.index(axis)
    arrays = collapse_dimension(PerturbationArrays(*np.broadcast_arrays(*part.arrays())), d)
    return BodyPerturbation.of(arrays, part.axes[:d] + part.axes[d + 1 :])


def broadcast_perturbations(perturbations: Sequence[BodyPerturbation]) -> list[BodyPerturbation]:
    """Return the perturbations over the same axes."""
    perturbations = _limit_sizes(perturbations)
    axes = tuple(dict.fromkeys(a for part in perturbations for a in part.axes))
    return [
        BodyPerturbation.of(
            PerturbationArrays(*(align_array(x, part.axes, axes) for x in part.arrays())), axes
        )
        for part in perturbations
    ]
