"""Computes a model's outputs with its conversions to narrower floats rounded to the other side of ties.

    1.00048828 -> 1 in float16,  1.00048835 -> 1.00097656

The last digit of a float32 decides about the last digit of a float16, a thousand times larger.  So wherever
rounding in earlier operators may have moved a number across such a tie, both float16 neighbours are right.
How far rounding may have moved a number (its *doubt*) is measured by two runs, one in which the result of
every operator is rounded and an exact one; inputs, and what is only rearranged, are the same in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tensaurus.check.files.judge import ALLOWED_SPREADS
from tensaurus.check.files.typical_errors import typical_errors
from tensaurus.expr.analysis.work_counts import called_functions
from tensaurus.expr.evaluate.fields import Reals
from tensaurus.expr.ir.float_conversions import float_spacing, is_float
from tensaurus.expr.ir.scalar_functions import cast_target
from tensaurus.graph.ir.node import OPAQUE
from tensaurus.graph.ir.program import Program
from tensaurus.ops import Op
from tensaurus.runtimes.backends import Array
from tensaurus.runtimes.backends.reference import Session

__all__ = ["tie_neighbours"]


class _RecordedConversions(Reals):
    """The reals, recording all numbers that are converted to narrower floats."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[Array] = []

    def _round_to(self, data: Array, target: str) -> Array:
        self.numbers.append(data)
        return super()._round_to(data, target)


class _ShiftedConversions(Reals):
    """The reals, with each number moved by its doubt, at most half a step of the narrow type, and converted.

    A coin decides whether a number moves up or down, so that sums of the moved numbers do not drift in one
    direction.  `sign` is 1 or -1, which reverses all coins; `doubts` are in the order of the conversions.
    """

    def __init__(self, doubts: list[Array], sign: int) -> None:
        super().__init__()
        self.doubts, self.sign, self.coins = iter(doubts), sign, np.random.default_rng(0)

    def _round_to(self, data: Array, target: str) -> Array:
        doubt = next(self.doubts, None)
        if doubt is not None and doubt.shape == data.shape:
            side = self.sign * self.coins.choice((-1.0, 1.0), data.shape)
            data = data + side * np.minimum(doubt, float_spacing(data, target) / 2)
        return super()._round_to(data, target)


def tie_neighbours(session: Session, arrays: Mapping[str, Any]) -> list[list[Any]]:
    """Return all outputs for each sign of the doubts; [] where no conversion is in doubt."""
    if not _may_convert(session.program):  # a run would only show this, and take as long as the reference
        return []
    rounded, exact = _RecordedConversions(), _RecordedConversions()
    session.run(None, arrays, rounded=True, field=rounded)
    if not rounded.numbers:
        return []
    session.run(None, arrays, field=exact)
    doubts = list(_doubts(exact.numbers, rounded.numbers))
    if not any(doubt.any() for doubt in doubts):
        return []
    return [session.run(None, arrays, field=_ShiftedConversions(doubts, sign)) for sign in (1, -1)]


def _may_convert(program: Program) -> bool:
    """Return whether an operator of the program, or of a body in it, may convert to a narrower float."""
    for node in program.nodes:
        if isinstance(node.op, Op):
            scopes = node.op.scopes(node.arg_types(), node.attrs)
            targets = {cast_target(fn) for scope in scopes for fn in called_functions(scope)} - {None}
            if any(is_float(str(target)) for target in targets):
                return True
        elif node.op is OPAQUE and any(_may_convert(body) for _, body in node.attribute("form").bodies):
            return True
    return False


def _doubts(exact_numbers: list[Array], rounded_numbers: list[Array]) -> Iterator[Array]:
    """Yield for each converted tensor how far rounding may have moved its elements."""
    for exact, rounded in zip(exact_numbers, rounded_numbers, strict=False):
        if exact.shape != rounded.shape:  # another branch was taken
            return
        with np.errstate(all="ignore"):
            moved = np.abs(rounded - exact)
        moved = np.where(np.isfinite(moved), moved, 0.0)
        size = np.abs(np.where(np.isfinite(exact), exact, 0.0))
        yield ALLOWED_SPREADS * np.maximum(moved, typical_errors(size, moved))
