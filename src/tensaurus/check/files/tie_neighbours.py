"""What a model computes where its conversions to narrower floats meet the other side of a tie.

    1.00048828 -> 1 in float16,  1.00048835 -> 1.00097656

The last digit of a float32 decides about the last digit of a float16, a thousand times larger.  So wherever
rounding of the operators before may have led a number across such a tie, its neighbour is as right.  How far
rounding leads is seen where the result of every operator is rounded; what came in, and what is only moved,
is where it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tensaurus.check.files.judge import K, typical
from tensaurus.expr.evaluate.fields import Reals
from tensaurus.expr.ir.float_conversions import spacing
from tensaurus.runtimes.backends import Array
from tensaurus.runtimes.backends.reference import Session

__all__ = ["neighbours"]


class _Seen(Reals):
    """The reals, and what was converted to narrower floats."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[Array] = []

    def _rounded(self, data: Array, target: str) -> Array:
        self.numbers.append(data)
        return super()._rounded(data, target)


class _Moved(Reals):
    """The reals, where such numbers first move by their doubts, half a step of the narrower type at most.

    Each moves up or down as a coin says, or with the other sign the other way round: what is summed up behind
    does not go one way.
    """

    def __init__(self, doubts: list[Array], sign: int) -> None:
        super().__init__()
        self.doubts, self.sign, self.coins = iter(doubts), sign, np.random.default_rng(0)

    def _rounded(self, data: Array, target: str) -> Array:
        doubt = next(self.doubts, None)
        if doubt is not None and doubt.shape == data.shape:
            side = self.sign * self.coins.choice((-1.0, 1.0), data.shape)
            data = data + side * np.minimum(doubt, spacing(data, target) / 2)
        return super()._rounded(data, target)


def neighbours(session: Session, arrays: Mapping[str, Any]) -> list[list[Any]]:
    """All outputs, twice; nothing where no conversion is in doubt."""
    roughly, exactly = _Seen(), _Seen()
    session.run(None, arrays, rounded=True, field=roughly)
    if not roughly.numbers:
        return []
    session.run(None, arrays, field=exactly)
    doubts = list(_doubts(exactly.numbers, roughly.numbers))
    if not any(doubt.any() for doubt in doubts):
        return []
    return [session.run(None, arrays, field=_Moved(doubts, sign)) for sign in (1, -1)]


def _doubts(exactly: list[Array], roughly: list[Array]) -> Iterator[Array]:
    for exact, rough in zip(exactly, roughly, strict=False):
        if exact.shape != rough.shape:  # another branch was taken
            return
        with np.errstate(all="ignore"):
            moved = np.abs(rough - exact)
        moved = np.where(np.isfinite(moved), moved, 0.0)
        size = np.abs(np.where(np.isfinite(exact), exact, 0.0))
        yield K * np.maximum(moved, typical(size, moved))
