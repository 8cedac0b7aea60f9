"""What comparing two models found, as the summary of an optimization keeps it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rich.text import Text

__all__ = ["Equality"]


@dataclass(frozen=True)
class Equality:
    """Two models compared on the same inputs; errors are against a float64 reference."""

    max_abs_error: float
    max_rel_error: float
    passed: bool
    detail: str = ""

    def rounded(self) -> Equality:
        """With three digits of each error: the tenth depends on where in memory the reference computes."""
        largest, relative = (float(f"{error:.3g}") for error in (self.max_abs_error, self.max_rel_error))
        return Equality(largest, relative, self.passed, self.detail)

    def render(self) -> Text:
        """One line: equal or not, the errors where they were measured, how it was found."""
        word, style = ("equal", "bold green") if self.passed else ("NOT EQUAL", "bold red")
        if math.isnan(self.max_abs_error) and math.isnan(self.max_rel_error):
            return Text.assemble((word, style), f": {self.detail}" if self.detail else "")
        errors = f": max error {_figure(self.max_abs_error)} absolute, {_figure(self.max_rel_error)} relative"
        return Text.assemble((word, style), errors, f" ({self.detail})" if self.detail else "")


def _figure(error: float) -> str:
    return "unknown" if math.isnan(error) else f"{error:.2g}"
