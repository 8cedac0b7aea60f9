"""Operations on the values of sizes: ints, integer arrays and Z3 terms."""

from __future__ import annotations

from typing import Any


def is_term(value: Any) -> bool:
    """True for a term of Z3."""
    return type(value).__module__.startswith("z3")


def greater(a: Any, b: Any) -> Any:
    """max of ints, arrays or Z3 terms."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    if is_term(a) or is_term(b):
        import z3

        return z3.If(a >= b, a, b)
    import numpy as np

    return np.maximum(a, b)
