"""Texts are parsed by Python's own parser, from any thread."""

from __future__ import annotations

import ast
from concurrent.futures import ThreadPoolExecutor

import pytest

from tensaurus.syntax import expression, statements

NESTED = "sum(" * 40 + "x" + ")" * 40


def test_threads_may_parse_at_once() -> None:
    """Collecting garbage may hand over to another thread in the middle of a tree (python/cpython#106905)."""
    wanted = ast.dump(ast.parse(NESTED, mode="eval").body)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: ast.dump(expression(NESTED)), range(400))) == {wanted}


def test_what_is_no_expression() -> None:
    with pytest.raises(SyntaxError):
        expression("a = 1")
    assert [type(one) for one in statements("a = 1; b")] == [ast.Assign, ast.Expr]
