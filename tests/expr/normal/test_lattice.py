"""Maxima and minima are compared in every order of their arguments."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensaurus.expr.evaluate.fields import Rationals
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.ir.scope import Body, Const, Scope, Tensor, call, compute, fold, total
from tensaurus.expr.normal.canonicalize import are_equal_expressions
from tensaurus.expr.sizes.size import Symbol, polynomial

N = polynomial(Symbol("N", 1))
X, Y = Tensor("x", (N, N)), Tensor("y", (N, N))


def points(*grid: int) -> dict[Tensor, Any]:
    """x, y and z at every combination of these numbers."""
    table = np.array(list(itertools.product(grid, repeat=3)))
    field = Rationals(0)
    return {Tensor(name, (len(table),)): field.lift(table[:, n]) for n, name in enumerate("xyz")}


def drawn(seed: int, functions: tuple[str, ...], at: dict[Tensor, Any], *numbers: int) -> tuple[Scope, Scope]:
    """Two terms over some of the tensors, element by element."""
    rng = random.Random(seed)

    def term(i: Any, depth: int = 3) -> Body:
        if depth == 0 or rng.random() < 0.25:
            return rng.choice([*(t[i] for t in at), *map(Const, numbers)])
        return call(rng.choice(functions), *(term(i, depth - 1) for _ in range(2)))

    size = len(next(iter(at.values())))
    return compute((size,), term), compute((size,), term)


def equal(left: Scope, right: Scope, at: dict[Tensor, Any]) -> bool:
    field = Rationals(0)
    return bool((interpret(left, at, field) == interpret(right, at, field)).all())


@settings(max_examples=300)
@given(seed=st.integers(0, 2**40))
def test_terms_of_a_lattice_are_alike_where_they_are_equal(seed: int) -> None:
    """Three numbers have no more orders than three values."""
    at = points(0, 1, 2)
    left, right = drawn(seed, ("max", "min"), at)
    assert are_equal_expressions(left, right) == equal(left, right, at)


@settings(max_examples=300)
@given(seed=st.integers(0, 2**40))
def test_what_is_alike_in_sums_and_products_of_maxima_is_equal(seed: int) -> None:
    at = points(-3, -1, 0, 2)
    left, right = drawn(seed, ("max", "min", "add", "mul"), dict([*at.items()][:2]), 0)
    if are_equal_expressions(left, right):
        assert equal(left, right, at)


def relu(a: Body) -> Body:
    return call("max", a, 0)


EQUAL: dict[str, Callable[[Any, Any], tuple[Body, Body]]] = {
    "square of relu": lambda x, y: (relu(x) * relu(x), x * relu(x)),
    "relu of twice": lambda x, y: (relu(relu(x) + relu(x)), relu(x + relu(x))),
    "products of signs": lambda x, y: (relu(x) * relu(x * y), x * relu(y * relu(x))),
    "distributive": lambda x, y: (
        call("min", call("max", x, y), call("max", x, 1)),
        call("max", x, call("min", y, 1)),
    ),
    "both make the sum": lambda x, y: (call("max", x, y) + call("min", x, y), x + y),
}
DIFFERENT: dict[str, Callable[[Any, Any], tuple[Body, Body]]] = {
    "an order that products do not keep": lambda x, y: (relu(x * y), x * relu(y)),
    "another sign": lambda x, y: (relu(x) * relu(x), y * relu(x)),
    "minimum and maximum": lambda x, y: (call("min", x, y), call("max", x, y)),
    "absorbed by neither": lambda x, y: (call("max", x, call("min", y, 0)), x),
}


@pytest.mark.parametrize("law", [*EQUAL, *DIFFERENT])
def test_elements_are_compared_one_by_one(law: str) -> None:
    left, right = (
        compute((N, N), lambda i, j, side=side: ({**EQUAL, **DIFFERENT}[law](X[i, j], Y[i, j])[side]))
        for side in range(2)
    )
    assert are_equal_expressions(left, right) == (law in EQUAL)


def test_an_order_is_not_one_of_all_that_a_sum_adds() -> None:
    """max(x, y) of some k is x, and of others y."""
    left, right = (
        compute((N,), lambda i, fn=fn: total((N,), lambda k: call(fn, X[i, k], Y[i, k])))
        for fn in ("max", "min")
    )
    assert not are_equal_expressions(left, right)
    whole = compute((N,), lambda i: total((N,), lambda k: X[i, k]))
    larger = compute((N,), lambda i: call("max", whole[i], total((N,), lambda k: Y[i, k])))
    assert not are_equal_expressions(larger, left)


def test_the_largest_of_a_row_may_be_compared() -> None:
    top = compute((N,), lambda i: fold("max", (N,), lambda k: X[i, k]))
    left = compute((N,), lambda i: call("min", top[i], call("max", top[i], Y[i, 0])))
    assert are_equal_expressions(left, top)


def test_many_arguments_end() -> None:
    """As many orders as there are of twelve are not tried."""
    tensors = [Tensor(f"t{n}", (N,)) for n in range(12)]
    left, right = (
        compute(
            (N,),
            lambda i, turn=turn: reduce(
                partial(call, "max"), [call("min", t[i], tensors[n - turn][i]) for n, t in enumerate(tensors)]
            ),
        )
        for turn in (1, 5)
    )
    assert not are_equal_expressions(left, right)
