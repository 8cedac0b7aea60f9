"""Parse texts in Python's syntax that are never run (sizes, scopes, rules), one thread at a time.

CPython 3.11 keeps one recursion depth of its parser for the whole interpreter: two threads that parse at the
same time may fail with "recursion depth mismatch" (python/cpython#106905).
"""

from __future__ import annotations

import ast
from threading import RLock

__all__ = ["parse_expression", "parse_statements"]

_parsing = RLock()  # reentrant: a finalizer that the garbage collector runs meanwhile may parse, too


def parse_expression(text: str) -> ast.expr:
    """Return an expression's tree.  Raises SyntaxError; RecursionError or MemoryError if it is too deep."""
    with _parsing:
        return ast.parse(text, mode="eval").body


def parse_statements(text: str) -> list[ast.stmt]:
    """Return the trees of statements.  Raises as `parse_expression` does."""
    with _parsing:
        return ast.parse(text).body
