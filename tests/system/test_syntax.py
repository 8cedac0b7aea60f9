"""Texts are parsed by Python's own parser, from any thread."""

from __future__ import annotations

import ast
import gc
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from tensaurus.system.syntax import parse_expression, parse_statements

NESTED = "sum(" * 40 + "x" + ")" * 40
BEFORE = 60  # objects of a tree, after which garbage is collected


@pytest.mark.nightly
def test_threads_may_parse_at_once() -> None:
    """Garbage that is collected while a tree is made may hand over to another thread, which parses from a
    deeper stack: with nothing between them CPython 3.11 raises SystemError (python/cpython#106905)."""
    collecting, parsed = Event(), Event()

    class Garbage:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            collecting.set()
            parsed.wait(0.5)

    def other(deep: int = 9) -> ast.expr:
        if deep:
            return other(deep - 1)
        assert collecting.wait(60)
        found = parse_expression(NESTED)
        parsed.set()
        return found

    wanted, before = ast.dump(ast.parse(NESTED, mode="eval").body), gc.get_threshold()
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(other)
        gc.collect()
        gc.freeze()  # what other tests have made is looked at no more: there is much of it
        try:
            Garbage()
            gc.set_threshold(BEFORE)
            own = parse_expression(NESTED)
        finally:
            gc.set_threshold(*before)
            gc.collect()
            gc.unfreeze()
        assert ast.dump(own) == ast.dump(theirs.result()) == wanted


def test_what_is_no_expression() -> None:
    with pytest.raises(SyntaxError):
        parse_expression("a = 1")
    assert [type(one) for one in parse_statements("a = 1; b")] == [ast.Assign, ast.Expr]
