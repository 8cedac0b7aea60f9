"""Decides in which directions a law may be applied in float32: never to a side that loses digits.

    x + (y - x)   ->   min(max(x, y), y)      both are y over the reals

Beside a large x, the sum has none of the digits of a small y, and the minimum has all: the law may be
applied from left to right only.  Reassociated sums are another matter: they lose digits where numbers cancel
each other, which is rare.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensaurus.expr.evaluate.field_protocol import Array, Reals
from tensaurus.finders.synthesis.term_order import variables
from tensaurus.finders.synthesis.terms import Term, value
from tensaurus.finders.synthesis.world import World

__all__ = ["directions"]

POINTS = 64
POWER = 15  # numbers are up to two to it, and as much below one: float64 keeps the digits of what cancels
KEPT, LOST = 2.0**-20, 2.0**-12  # relative errors of what keeps its digits, and of what lost half of them
OFTEN = 0.01  # of the elements


class _Singles(Reals):
    """float32: every operation is rounded."""

    name = "float32"

    def constant(self, value: Any) -> Array:
        return super().constant(value).astype(np.float32)

    def lift(self, data: Array) -> Array:
        lifted = super().lift(data)
        return lifted.astype(np.float32) if lifted.dtype.kind == "f" else lifted

    def from_int(self, data: Array) -> Array:
        return data.astype(np.float32)

    def apply(self, fn: str, args: Sequence[Array]) -> Array:
        made = super().apply(fn, args)
        return made.astype(np.float32) if made.dtype.kind == "f" else made


def directions(world: World, left: Term, right: Term) -> tuple[bool, bool]:
    """Whether the right side may stand for the left one, and the left one for the right one.

    A side must not replace the other one if it often loses half of the digits that the other one keeps.
    """
    rng = np.random.default_rng(0)
    leaves = {}
    for x in dict.fromkeys((*variables(left), *variables(right))):
        shape = (POINTS, *world.shapes[x[1]])
        numbers = np.exp2(rng.uniform(-POWER, POWER, shape)) * rng.choice([-1, 1], shape)
        leaves[x] = numbers.astype(np.float32)
    wide = {x: numbers.astype(np.float64) for x, numbers in leaves.items()}
    exact = value(left, wide, Reals(), POINTS)
    with np.errstate(all="ignore"):
        known = np.isfinite(exact.astype(np.float32))
    if not known.any():
        return True, True
    a, b = (_errors(value(side, leaves, _Singles(), POINTS), exact)[known] for side in (left, right))
    forth, back = (np.mean((kept <= KEPT) & ~(lost <= LOST)) <= OFTEN for kept, lost in ((a, b), (b, a)))
    return bool(forth), bool(back)


def _errors(found: Array, exact: Array) -> Array:
    """Return relative errors: infinite where the exact value is 0 and the result is not."""
    with np.errstate(all="ignore"):
        off = np.abs(found.astype(np.float64) - exact)
        return np.where(off == 0, 0.0, off / np.abs(exact))
