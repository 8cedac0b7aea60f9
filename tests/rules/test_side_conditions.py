"""Attributes and conditions of open sizes: an open answer is neither true nor false."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from tensaurus.expr.sizes.size import Symbol, polynomial
from tensaurus.graph.ir.node import apply, source
from tensaurus.ops import TensorType, registry
from tensaurus.rules.language.match import Matcher
from tensaurus.rules.language.rule import parse_rule
from tensaurus.rules.language.side_conditions import Undefined, evaluate_expression, holds
from tensaurus.rules.language.term import parse_expression

N, M = polynomial(Symbol("n", 1)), polynomial(Symbol("m", 1))
NAMES = {"n": N, "m": M, "s": (N, M), "t": (N, 3)}


@pytest.mark.parametrize(
    "text",
    [
        *("n == m", "n != m", "n == 8", "not n == 8", "n - 1", "not n - 1", "n < 9", "s == t", "s != t"),
        *("0 if n == 8 else 1", "0 if n - 8 else 1", "n in (3, 4)", "n not in (3, 4)"),
        *("len(set(s))", "set(s) == set(t)", "index(s, 3)", "index(s, m)", "sorted(s)", "at_least(n, 2)"),
        *("n == 8 and m == n", "n == 8 or m == n", "any(k == 3 for k in s)", "(1, 0)[n]", "n // (m - 2)"),
        *("all(k == 3 for k in s)", "n % (1 - m)"),
        *("(1,)*n", "ones(n)", "all(s[1:]) and n == 2", "1 < n < 5", "abs(n)", "set(s) < set(t)"),
    ],
)
def test_an_expression_that_depends_on_an_open_size_has_no_value(text: str) -> None:
    with pytest.raises(Undefined):
        holds(parse_expression(text), NAMES)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("n == n", True), ("n != n", False), ("n == n + 1", False), ("n != n + 1", True), ("n", True)),
        *(("n == 8 or n == n", True), ("n == n or n == 8", True), ("n == 8 and n == n + 1", False)),
        *(("not (n == 8 and n == n + 1)", True), ("n == 0", False), ("n + 1 in (3, 1, n + 1)", True)),
        *(("any(k == n for k in (3, m, n))", True), ("all(k == n for k in (3, n + 1))", False)),
        *(("at_least(n, 1)", True), ("at_least(0, n)", False), ("index((n + 1, n), n)", True)),
    ],
)
def test_an_expression_that_no_open_size_decides_has_a_value(text: str, value: bool) -> None:
    assert holds(parse_expression(text), NAMES) is value


def test_a_set_has_each_size_once() -> None:
    assert evaluate_expression(parse_expression("len(set((n, n, n + 1)))"), NAMES) == 2


@pytest.mark.parametrize("branch", ["dim(x, 0) == 8", "dim(x, 0) != 8", "dim(x, 0) - 8", "dim(x, 0) in (8,)"])
def test_a_branch_that_depends_on_an_open_size_has_no_value(branch: str) -> None:
    (rule,) = parse_rule(f"r: Relu(x) => LeakyRelu(x, alpha=0 if {branch} else 1)")

    def rewritten(size: Any) -> Any:
        return Matcher(rule).rewrite(apply(registry["Relu"], [source("x", TensorType("float32", (size, 2)))]))

    assert rewritten(N) is None
    alphas = {dict(made.attrs)["alpha"] for made in map(rewritten, (8, 7)) if made is not None}
    assert {Fraction(alpha) for alpha in alphas} == {0, 1}
