"""Python's own parser, for texts that are never run: one thread at a time.

CPython 3.11 keeps the depth of its recursion for the whole interpreter: of threads that parse at once one may
be told of a "recursion depth mismatch" (python/cpython#106905).
"""

from __future__ import annotations

import ast
from threading import RLock

__all__ = ["expression", "statements"]

_parsing = RLock()  # what is collected meanwhile may parse in the same thread


def expression(text: str) -> ast.expr:
    """The tree of an expression.  Raises SyntaxError, and RecursionError or MemoryError of one too deep."""
    with _parsing:
        return ast.parse(text, mode="eval").body


def statements(text: str) -> list[ast.stmt]:
    """The trees of statements, likewise."""
    with _parsing:
        return ast.parse(text).body
