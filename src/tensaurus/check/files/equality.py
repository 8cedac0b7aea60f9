"""Holds the result of comparing two models, as the summary of an optimization keeps it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rich.text import Text

__all__ = ["Equality"]


@dataclass(frozen=True)
class Equality:
    """Whether two models passed a comparison, and the largest errors against the float64 reference.

    Errors that were not measured are NaN; `detail` is that of the `Verdict`.
    """

    max_abs_error: float
    max_rel_error: float
    passed: bool
    detail: str = ""

    def rounded(self) -> Equality:
        """Return a copy with three digits of each error.

        Later digits are not reproducible: they depend on where in memory the reference computes.
        """
        largest, relative = (float(f"{error:.3g}") for error in (self.max_abs_error, self.max_rel_error))
        return Equality(largest, relative, self.passed, self.detail)

    def render(self) -> Text:
        """Return one line: equal or not, the errors where they were measured, and the detail."""
        word, style = ("equal", "bold green") if self.passed else ("NOT EQUAL", "bold red")
        if math.isnan(self.max_abs_error) and math.isnan(self.max_rel_error):
            return Text.assemble((word, style), f": {self.detail}" if self.detail else "")
        absolute, relative = _format_error(self.max_abs_error), _format_error(self.max_rel_error)
        errors = f": max error {absolute} absolute, {relative} relative"
        return Text.assemble((word, style), errors, f" ({self.detail})" if self.detail else "")


def _format_error(error: float) -> str:
    return "unknown" if math.isnan(error) else f"{error:.2g}"
