"""Literal tables: read in every field, folded where it is known what is read, typed, interned, printed."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_scopes import agree

from tensaurus.expr.analysis.polynomial_degree import DEGREE_0, DEGREE_1, Degrees, linear_inputs
from tensaurus.expr.evaluate.fields import Field, Polynomials, PrimeField, Rationals, Reals, Z3Terms
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.evaluate.two_point_field import Laws, PrimeFieldPairs
from tensaurus.expr.ir.element_types import Untypable, dtype_of
from tensaurus.expr.ir.expression_text import show
from tensaurus.expr.ir.scope import Const, Read, Scope, Table, Tensor, call, compute, table, total, where
from tensaurus.expr.ir.walk import reads
from tensaurus.expr.normal.canonicalize import are_equal_expressions, canonicalize
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.expr.sizes.size import polynomial
from tensaurus.rules.prove.expression_prover import SOLVER_WORK, ProvedEqual, _ask_solver
from tensaurus.rules.prove.z3_terms import IndexedTerms

HALF = Fraction(1, 2)
A = table([[1, 0], [1, 1], [1, -1], [0, -1]])
B = table([[1, 0, 0, 0], [0, 1, -1, 1], [-1, 1, 1, 0], [0, 0, 0, -1]])
G = table([[1, 0, 0], [HALF, HALF, HALF], [HALF, -HALF, HALF], [0, 0, 1]])
D, W = Tensor("d", (10,)), Tensor("w", (3,))
FIELDS: list[Callable[[], Field]] = [Reals, PrimeField, Rationals, Polynomials, PrimeFieldPairs, Z3Terms]


def winograd() -> Scope:
    """F(2, 3) of Winograd's minimal filtering algorithms: tiles of two outputs, four products each."""
    data = compute((4, 4), lambda p, m: total((4,), lambda k: B[k, m] * D[2 * p + k]))
    weights = compute((4,), lambda m: total((3,), lambda r: G[m, r] * W[r]))
    tiles = compute((4, 2), lambda p, o: total((4,), lambda m: A[m, o] * (weights[m] * data[p, m])))
    return compute((8,), lambda i: tiles[i // 2, i % 2])


@pytest.mark.parametrize("field", FIELDS, ids=[f.__name__ for f in FIELDS])
def test_winograd_is_convolution_in_every_field(field: Callable[[], Field]) -> None:
    found, rng = field(), np.random.default_rng(0)
    plain = compute((8,), lambda i: total((3,), lambda r: D[i + r] * W[r]))
    values = {t: found.random(t.shape, rng) for t in (D, W)}  # type: ignore[arg-type]
    for scope in (winograd(), canonicalize(winograd()), intern_scope(winograd())):
        a, b = (interpret(s, values, found) for s in (plain, scope))
        assert np.allclose(a, b) if isinstance(found, Reals) else found.equal(a, b)


numbers = st.one_of(st.integers(-3, 3), st.fractions(-2, 2, max_denominator=3))


@st.composite
def tables(draw: Any) -> Table:
    shape = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    count = int(np.prod(shape))
    few = draw(st.lists(numbers, min_size=1, max_size=3))
    return Table(shape, tuple(draw(st.lists(st.sampled_from(few), min_size=count, max_size=count))))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_folding_keeps_the_elements(data: Any) -> None:
    drawn = data.draw(tables())
    spots = data.draw(st.lists(st.integers(-2, 3), min_size=drawn.rank, max_size=drawn.rank))
    open_ = data.draw(st.lists(st.booleans(), min_size=drawn.rank, max_size=drawn.rank))
    outside = data.draw(st.one_of(numbers, st.just(float("inf"))))

    def body(i: Any, j: Any) -> Any:
        axes = [i, 2 * j - i, i // 2]
        places = [a + s if o else s for a, s, o in zip(axes[: drawn.rank], spots, open_, strict=True)]
        return Read(drawn, tuple(places), Const(outside)) + Tensor("x", ())[()]

    scope = compute((2, 3), body)
    for form in (canonicalize(scope), intern_scope(scope)):
        assert agree(scope, form, Rationals()), f"{show(scope)}\n{show(form)}"


def test_what_is_known_is_a_number() -> None:
    one = table([[2, 2], [1, HALF]])
    x = Tensor("x", (2,))
    for scope, expected in [
        (compute((2,), lambda i: x[i] * one[1, 1]), compute((2,), lambda i: x[i] * HALF)),
        (compute((2,), lambda i: x[i] * one[0, i]), compute((2,), lambda i: x[i] * 2)),
        (compute((2, 1), lambda i, j: x[i] * one[j, 1 - j]), compute((2, 1), lambda i, j: 2 * x[i])),
        (compute((2,), lambda i: x[i] * one[1, i]), compute((2,), lambda i: table([1, HALF])[i] * x[i])),
        (
            compute((3,), lambda i: x.padded()[i] * table([7, 7]).padded(7)[i + 4]),
            compute((3,), lambda i: 7 * x.padded()[i]),
        ),
        (
            compute((2,), lambda i: where(i - 1, table([5])[i - 1] * x[i], 0)),
            compute((2,), lambda i: where(i - 1, 5 * x[i], 0)),
        ),
    ]:
        assert are_equal_expressions(scope, expected), show(canonicalize(scope))
    other = compute((2,), lambda i: table([2, 1])[i] * x[i])
    assert not are_equal_expressions(other, compute((2,), lambda i: table([1, 2])[i] * x[i]))
    assert [r.source for r in reads(canonicalize(other)) if r.source != x] == [table([2, 1])]


def test_tables_adapt_to_the_type_they_meet() -> None:
    whole, real = table([1, 2]), table([1, HALF])
    at = Tensor("at", (2,), "int8")
    assert (dtype_of(whole), dtype_of(real)) == ("int64", "float32")
    assert dtype_of(compute((2,), lambda i: at[i] * whole[i])) == "int8"
    assert dtype_of(compute((2,), lambda i: call("to_float64", at[i]) * real[i])) == "float64"
    with pytest.raises(Untypable):
        dtype_of(compute((2,), lambda i: at[i] * real[i]))
    half = compute((), lambda: real[0])
    assert dtype_of(canonicalize(half)) == dtype_of(intern_scope(half)) == "float32"
    wrapped = compute((2,), lambda i: at[i] * table([100, 3])[i])
    found = interpret(wrapped, {at: np.array([2, -50])}, Reals())
    assert found.tolist() == [-56, 106]


def test_degrees() -> None:
    assert linear_inputs(winograd()) == {D, W}
    assert Degrees(Laws()).of(winograd(), {D: DEGREE_1, W: DEGREE_1}).top == 2
    assert Degrees(Laws()).of(compute((4, 2), lambda i, j: A[i, j]), {}) == DEGREE_0
    bent = compute((2,), lambda i: W[0] + table([0, 1])[i])
    straight = compute((2,), lambda i: W[0] + table([0, 0])[i])
    assert (linear_inputs(bent), linear_inputs(straight)) == (frozenset(), {W})


@pytest.mark.parametrize(("shape", "values"), [((), (1,)), ((0,), ()), ((2,), (1,)), ((2, 0), ())])
def test_what_is_no_table_is_refused(shape: tuple[int, ...], values: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="numbers in a table"):
        Table(shape, values)


@pytest.mark.parametrize(("values", "proved"), [([1, 2], True), ([1, 3], False)])
def test_the_solver_knows_the_numbers(values: list[int], proved: bool) -> None:
    x = Tensor("x", (2,))
    left = compute((2,), lambda i: table(values)[i] * x[i])
    body = x[polynomial(left.axes[0])] * (1 + polynomial(left.axes[0]))
    verdict = _ask_solver(IndexedTerms(left, frozenset()), left.body, body, {}, SOLVER_WORK)
    assert isinstance(verdict, ProvedEqual) == proved
