"""Operations on the values of sizes, which are ints, integer arrays or Z3 terms."""

from __future__ import annotations

from typing import Any


def is_z3_term(value: Any) -> bool:
    """Return whether the value is a Z3 term, without importing Z3."""
    return type(value).__module__.startswith("z3")


def maximum_value(a: Any, b: Any) -> Any:
    """Return the maximum of ints, arrays or Z3 terms."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    if is_z3_term(a) or is_z3_term(b):
        import z3

        return z3.If(a >= b, a, b)
    import numpy as np

    return np.maximum(a, b)
