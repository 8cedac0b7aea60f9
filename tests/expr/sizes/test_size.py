"""Sizes against Python's integers: every identity at random values, every bound at every point."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensaurus.expr.ir.expression_text import parse_size, show_size
from tensaurus.expr.sizes.affine import affine_coefficients
from tensaurus.expr.sizes.size import (
    Axis,
    Poly,
    Size,
    Symbol,
    atoms,
    evaluate,
    floordiv,
    interval,
    is_nonnegative,
    largest,
    mod,
    polynomial,
    product,
    smallest,
    substitute,
    terms_of,
)

N, M = Symbol("N"), Symbol("M", 1)
X, J, R = Axis("i", 6), Axis("j", 4), Axis("r", polynomial(M))
LEAVES = [N, M, X, J, R]
OPERATIONS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
}


@st.composite
def trees(draw: Any, depth: int = 3) -> Any:
    """A nest of operations: built as a size, and run on ints."""
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        return draw(st.one_of(st.integers(-5, 12), st.sampled_from(LEAVES)))
    op = draw(st.sampled_from(["+", "+", "-", "*", "//", "%", "max", "min"]))
    left = draw(trees(depth - 1))
    right = draw(st.integers(1, 8) if op in ("//", "%") else trees(depth - 1))
    return op, left, right


def build(tree: Any) -> Size:
    if not isinstance(tree, tuple):
        return polynomial(tree)  # type: ignore[no-any-return]
    op, left, right = tree
    a, b = build(left), build(right)
    if op in ("//", "%"):
        return (floordiv if op == "//" else mod)(a, b)  # type: ignore[no-any-return]
    return {"max": largest, "min": smallest, **OPERATIONS}[op](a, b)  # type: ignore[no-any-return]


def run(tree: Any, at: dict[Any, int]) -> int:
    if not isinstance(tree, tuple):
        return at.get(tree, tree)
    op, left, right = tree
    return {"max": max, "min": min, **OPERATIONS}[op](run(left, at), run(right, at))  # type: ignore[no-any-return]


def points(n: int, m: int) -> list[dict[Any, int]]:
    places = itertools.product((0, 1, 4, 5), range(4), {0, m - 1})
    return [{N: n, M: m, X: i, J: j, R: r} for i, j, r in places]


@settings(max_examples=300)
@given(tree=trees(), n=st.integers(0, 40), m=st.integers(1, 9))
def test_sizes_are_integers(tree: Any, n: int, m: int) -> None:
    size = build(tree)
    for at in points(n, m):
        assert evaluate(size, at.__getitem__) == run(tree, at), size
        values: dict[Any, Any] = {N: n, M: m, R: at[R], X: at[X], J: at[J]}
        assert substitute(size, values) == run(tree, at)


@settings(max_examples=300)
@given(tree=trees(), n=st.integers(0, 40), m=st.integers(1, 9))
def test_interval_bounds_and_nonnegative_never_lies(tree: Any, n: int, m: int) -> None:
    size = build(tree)
    low, high = interval(size)
    for at in points(n, m):
        value = run(tree, at)
        if low is not None:
            assert evaluate(low, at.__getitem__) <= value
        if high is not None:
            assert value <= evaluate(high, at.__getitem__)
        if is_nonnegative(size):
            assert value >= 0
    for bound in (low, high):
        assert bound is None or not any(isinstance(a, Axis) for a in atoms(bound))


@pytest.mark.nightly
@settings(max_examples=200)
@given(tree=trees())
def test_rebuilding_and_printing_change_nothing(tree: Any) -> None:
    size = build(tree)
    assert substitute(size, {}) == size
    names = {"i": X, "j": J, "r": R, "N": N, "M": M}
    assert parse_size(show_size(size, {}), names) == size
    assert parse_size(str(size), names) == size


@settings(max_examples=100)
@given(tree=trees(), n=st.integers(0, 40), m=st.integers(1, 9))
def test_arrays_are_evaluated_at_once(tree: Any, n: int, m: int) -> None:
    at = {N: n, M: m, X: np.arange(6)[:, None], J: np.arange(4), R: m - 1}
    found = np.broadcast_to(evaluate(build(tree), at.__getitem__), (6, 4))
    for i, j in np.ndindex(6, 4):
        assert found[i, j] == run(tree, {N: n, M: m, X: i, J: j, R: m - 1})


@settings(max_examples=25)
@given(tree=trees(2), n=st.integers(0, 20), m=st.integers(1, 9), i=st.integers(0, 5), j=st.integers(0, 3))
def test_z3_terms_mean_the_same(tree: Any, n: int, m: int, i: int, j: int) -> None:
    import z3

    terms = {a: z3.Int(a.name) for a in LEAVES}
    found = evaluate(build(tree), terms.__getitem__)  # type: ignore[arg-type]
    at = {N: n, M: m, X: i, J: j, R: 0}
    known = [(terms[a], z3.IntVal(v)) for a, v in at.items()]
    value = z3.simplify(z3.substitute(found, *known)) if isinstance(found, z3.ExprRef) else found
    assert int(str(value)) == run(tree, at)


A, B, K = polynomial(Symbol("A", 1)), polynomial(Symbol("B", 1)), polynomial(Symbol("K", 1))
DIGIT = polynomial(Axis("d", B))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((K * B + DIGIT) // B, K),
        ((K * B + DIGIT) % B, DIGIT),
        ((6 * K + 4) // 2, 3 * K + 2),
        ((K // 2) // 3, K // 6),
        ((2 * K + 1) // 2, K),
        ((0 - K) % 3, (2 * K) % 3),
        (largest(A + B, A), A + B),
        (smallest(A, A + B), A),
        ((A * B) // B, A),
        (((A + B) * K) // (A + B), K),
        (A // (A + B), 0),
        ((A + B - 1) // (A + B), 0),
        ((3 * A + 3 * B - 1) // (A + B), 2),
        (polynomial(N) // (N + 1), 0),
        (polynomial(N) % (N + 1), polynomial(N)),
        ((A - 1) // (A + 1), 0),
        ((DIGIT + A) // (A + B), 0),
        (((A + B) * (K - 2 * A) + B) // (A + B), K - 2 * A),
        (K % 1, 0),
        (polynomial(X) // 6, 0),
        (polynomial(X) % 8, polynomial(X)),
        (A - A, 0),
    ],
)
def test_one_form(left: Size, right: Size) -> None:
    assert left == right


@pytest.mark.parametrize(
    "size", [K - 1, K - K // 2, K // 3, A * B - 1, A + K // 2 - 1, K % 5, 4 - K % 5, largest(K, 0), K * K]
)
def test_nonnegative_is_proved(size: Size) -> None:
    assert is_nonnegative(size)


@pytest.mark.parametrize("size", [K - 2, K // 2 - 1, A - B, polynomial(N) - 1, 3 - K, Fraction(-1, 2) * K])
def test_nonnegative_is_not_proved_of_what_may_be_negative(size: Size) -> None:
    assert not is_nonnegative(size)


def test_coefficients_of_an_affine_size() -> None:
    size = 3 * polynomial(X) + K * polynomial(J) - 2
    assert affine_coefficients(size, [X, J]) == ({X: 3, J: K}, -2)
    assert affine_coefficients(polynomial(X) // 4, [X]) is None
    assert affine_coefficients(polynomial(X) * polynomial(J), [X, J]) is None


def test_division_by_what_is_not_positive_is_an_error() -> None:
    with pytest.raises(ValueError, match="division by 0"):
        floordiv(K, 0)


TERMS = st.tuples(st.integers(-3, 3), st.lists(st.sampled_from([A, B, K, DIGIT]), max_size=2))
SUMS = st.lists(TERMS, min_size=1, max_size=4)


def sum_of(terms: Any, sign: Any = lambda c: c) -> Any:
    return sum((product([sign(c), *factors]) for c, factors in terms), 0)


@settings(max_examples=300)
@given(
    divisor=SUMS, multiple=SUMS, rest=SUMS, numbers=st.tuples(*[st.integers(1, 6)] * 3), d=st.integers(0, 5)
)
def test_division_by_sums(divisor: Any, multiple: Any, rest: Any, numbers: Any, d: int) -> None:
    """Of positive terms, as sizes are."""
    bottom = sum_of(divisor, abs) + A
    top = sum_of(multiple) * bottom + sum_of(rest)
    at = dict(zip((A, B, K), numbers, strict=True))
    values = {terms_of(size)[0][0][0]: number for size, number in at.items()}
    values[terms_of(DIGIT)[0][0][0]] = min(d, at[B] - 1)
    quotient = evaluate(floordiv(top, bottom), values.__getitem__)
    assert quotient == evaluate(top, values.__getitem__) // evaluate(bottom, values.__getitem__)
    assert floordiv(sum_of(multiple) * bottom, bottom) == sum_of(multiple)


def test_division_ends_where_two_symbols_have_one_name() -> None:
    one, other = Symbol("N", 1), Symbol("N", 2)
    assert str(floordiv(one * one, one + other)) == "((N*N) // (N + N))"


def test_a_size_is_a_plain_int_without_atoms() -> None:
    assert type(K - K + 3) is int
    assert isinstance(K, Poly) and hash(K) == hash(1 * K)
