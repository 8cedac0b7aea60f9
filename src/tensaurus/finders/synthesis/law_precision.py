"""Decides in which directions a law may be applied in float32: never towards a side that loses digits.

    x + (y - x)   ->   min(max(x, y), y)      both are y over the reals

Beside a large x, the sum keeps no digit of a small y, while the minimum keeps all: the law may be applied
from left to right only.  Reassociated sums are another matter: they lose digits where numbers cancel
each other, which is rare.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensaurus.expr.evaluate.field_protocol import Array, Reals
from tensaurus.finders.synthesis.term_order import variables_in
from tensaurus.finders.synthesis.terms import Term, evaluate_term
from tensaurus.finders.synthesis.world import World

__all__ = ["allowed_directions"]

POINTS = 64  # points at which both sides are evaluated
MAX_EXPONENT = 15  # numbers are from 2^-15 to 2^15: where they cancel, float64 still has a float32's digits
ACCURATE, INACCURATE = 2.0**-20, 2.0**-12  # relative errors: nearly all digits are right, and half of them
MAX_SHARE = 0.01  # fraction of the elements in which the new side may be inaccurate and the old one accurate


class _Float32(Reals):
    """Evaluates in float32: every operation is rounded."""

    name = "float32"

    def constant(self, value: Any) -> Array:
        return super().constant(value).astype(np.float32)

    def lift(self, data: Array) -> Array:
        lifted = super().lift(data)
        return lifted.astype(np.float32) if lifted.dtype.kind == "f" else lifted

    def from_int(self, data: Array) -> Array:
        return data.astype(np.float32)

    def apply(self, fn: str, args: Sequence[Array]) -> Array:
        result = super().apply(fn, args)
        return result.astype(np.float32) if result.dtype.kind == "f" else result


def allowed_directions(world: World, left: Term, right: Term) -> tuple[bool, bool]:
    """Return whether the law may be applied from left to right, and from right to left.

    A side must not replace the other one if it often loses half of the digits that the other one keeps.
    """
    rng = np.random.default_rng(0)
    leaves = {}
    for x in dict.fromkeys((*variables_in(left), *variables_in(right))):
        shape = (POINTS, *world.shapes[x.type])
        numbers = np.exp2(rng.uniform(-MAX_EXPONENT, MAX_EXPONENT, shape)) * rng.choice([-1, 1], shape)
        leaves[x] = numbers.astype(np.float32)
    wide = {x: numbers.astype(np.float64) for x, numbers in leaves.items()}
    exact = evaluate_term(left, wide, Reals(), POINTS)
    with np.errstate(all="ignore"):
        is_finite = np.isfinite(exact.astype(np.float32))
    if not is_finite.any():
        return True, True
    left_errors, right_errors = (
        _relative_errors(evaluate_term(side, leaves, _Float32(), POINTS), exact)[is_finite]
        for side in (left, right)
    )
    forth, back = (
        np.mean((old <= ACCURATE) & ~(new <= INACCURATE)) <= MAX_SHARE
        for old, new in ((left_errors, right_errors), (right_errors, left_errors))
    )
    return bool(forth), bool(back)


def _relative_errors(values: Array, exact: Array) -> Array:
    """Return relative errors: infinite where the exact value is 0 and the result is not."""
    with np.errstate(all="ignore"):
        errors = np.abs(values.astype(np.float64) - exact)
        return np.where(errors == 0, 0.0, errors / np.abs(exact))
