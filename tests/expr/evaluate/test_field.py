"""The fields: exact where they say so, and nothing true in them that is false over the reals."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensaurus.expr.evaluate import prime_field
from tensaurus.expr.evaluate.fields import Array, P, Polynomials, PrimeField, Rationals, Reals, Z3Terms
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.evaluate.two_point_field import PrimeFieldPairs, unpack_halves
from tensaurus.expr.ir.scope import Scope, Tensor, call, compute

GF = PrimeField(7)
X, Y, Z = (Tensor(name, (16,)) for name in "xyz")
elements = st.integers(0, P - 1)


def prime(values: Any) -> Array:
    return np.asarray(values, np.uint64)


@pytest.mark.parametrize("shape", [(3, 5, 4), (1, 1, 1), (7, 300, 2)])
@pytest.mark.parametrize("extreme", [False, True])
def test_matmul_by_limbs_equals_big_integers(shape: tuple[int, int, int], extreme: bool) -> None:
    m, k, n = shape
    rng = np.random.default_rng(1)
    a, b = GF.random((2, m, k), rng), GF.random((2, k, n), rng)
    if extreme:
        a[...], b[...] = P - 1, P - 1
    exact = np.matmul(a.astype(object), b.astype(object)) % P
    assert (GF.matmul(a, b).astype(object) == exact).all()


SHAPES_OF_PRODUCTS = [
    ((7, 5), (5, 9)),
    ((3, 7, 5), (5, 9)),
    ((7, 5), (3, 5, 9)),
    ((1, 5), (5, 40)),
    ((40, 5), (5, 1)),
    ((2, 1, 4, 30), (3, 30, 2)),
    ((0, 5), (5, 3)),
    ((4, 0), (0, 3)),
]


@pytest.mark.parametrize(("left", "right"), SHAPES_OF_PRODUCTS)
@pytest.mark.parametrize("part", [1, 4, 64, 1 << 18])
def test_products_in_parts_are_exact_at_both_points(
    left: tuple[int, ...], right: tuple[int, ...], part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever operand is larger, and whichever is of weights, which are the same at both points."""
    monkeypatch.setattr(prime_field, "PART_ELEMENTS", part)
    rng, pairs = np.random.default_rng(2), PrimeFieldPairs(3)
    for has_weights in ((False, False), (True, False), (False, True), (True, True)):
        a, b = (
            pairs.lift(rng.standard_normal(shape).astype(np.float32)) if fixed else pairs.random(shape, rng)
            for shape, fixed in zip((left, right), has_weights, strict=True)
        )
        found = unpack_halves(pairs.matmul(a, b))
        for got, x, y in zip(found, unpack_halves(a), unpack_halves(b), strict=True):
            assert (got.astype(object) == np.matmul(x.astype(object), y.astype(object)) % P).all()


def test_matmul_of_long_rows_is_cut_before_float64_loses_a_bit() -> None:
    length = 2**20 + 3
    a = np.full((1, length), P - 1, np.uint64)
    assert int(GF.matmul(a, a.T)[0, 0]) == pow(P - 1, 2, P) * length % P


@given(a=elements, b=elements)
def test_ring_operations_are_those_of_integers(a: int, b: int) -> None:
    x, y = prime(a), prime(b)
    assert int(GF.apply("add", [x, y])) == (a + b) % P
    assert int(GF.apply("sub", [x, y])) == (a - b) % P
    assert int(GF.apply("mul", [x, y])) == a * b % P
    assert int(GF.apply("neg", [x])) == -a % P
    assert int(GF.apply("div", [x, y])) == a * pow(b, P - 2, P) % P


def test_inverse() -> None:
    values = prime([1, 2, 3, 12345, P - 1])
    assert (GF.apply("mul", [values, GF.inverse(values)]) == 1).all()
    assert int(GF.inverse(prime(0))) == 0


def residue(value: float) -> int:
    exact = Fraction(value)
    return exact.numerator * pow(exact.denominator, -1, P) % P


@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_floats_are_lifted_exactly(value: float) -> None:
    assert int(GF.lift(np.asarray(value))) == residue(value)
    assert int(GF.constant(value)) == residue(value)

@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_arrays_of_any_strides_are_lifted_exactly(dtype: type[np.floating]) -> None:
    rng = np.random.default_rng(5)
    numbers = (rng.standard_normal((300, 90)) * 2.0 ** rng.integers(-12, 12, (300, 90))).astype(dtype)
    for array in (numbers, numbers[:, ::-3].T, numbers[:0]):
        assert GF.lift(array).tolist() == [[residue(float(value)) for value in row] for row in array]



@pytest.mark.parametrize("value", [5e-324, 2.2e-308, -1.5e-310, 1.7e308, -1.7e308, 0.1, -0.0, 2.0**31])
def test_denormal_and_huge_floats_are_lifted_exactly(value: float) -> None:
    assert int(GF.lift(np.asarray(value))) == residue(value)
    assert Rationals().lift(np.asarray([value]))[0] == Fraction(value)


def test_infinities_are_the_least_and_the_greatest() -> None:
    low, high = GF.lift(np.asarray([-np.inf, np.inf]))
    values = GF.random((50,), np.random.default_rng(0))
    assert (GF.apply("max", [values, low]) == values).all()
    assert (GF.apply("min", [values, high]) == values).all()
    assert int(GF.reduce("max", np.append(values, low), (0,))) == int(GF.reduce("max", values, (0,)))


@pytest.mark.parametrize("field", [GF, Rationals(3), Reals()], ids=lambda f: f.name)
@pytest.mark.parametrize("fn", ["max", "min"])
def test_max_and_min_are_a_lattice(field: Any, fn: str) -> None:
    rng = np.random.default_rng(4)
    a, b, c = (field.random((200,), rng) for _ in range(3))

    def top(x: Array, y: Array) -> Array:
        return np.asarray(field.apply(fn, [x, y]))

    other = "min" if fn == "max" else "max"
    assert field.equal(top(a, b), top(b, a))
    assert field.equal(top(a, top(b, c)), top(top(a, b), c))
    assert field.equal(top(a, a), a)
    assert field.equal(top(a, field.apply(other, [a, b])), a)
    stacked = np.stack([a, b, c])
    assert field.equal(field.reduce(fn, stacked, (0,)), top(a, top(b, c)))


@pytest.mark.parametrize("field", [GF, Rationals(3)], ids=lambda f: f.name)
def test_unknown_functions_are_functions_and_no_more(field: Any) -> None:
    a = field.random((100,), np.random.default_rng(2))
    first = field.apply("exp", [a])
    assert field.equal(first, field.apply("exp", [a.copy()]))
    assert not field.equal(first, field.apply("erf", [a]))
    assert not field.equal(first, field.apply("exp", [field.apply("neg", [a])]))
    if field is GF:
        assert not field.equal(first, PrimeField(8).apply("exp", [a]))
        distinct = GF.apply("exp", [np.arange(1000, dtype=np.uint64)])
        assert len(set(distinct.tolist())) == 1000


def holds(left: Scope, right: Scope, field: Any) -> bool:
    rng = np.random.default_rng(0)
    data = {t: field.random(t.shape, rng) for t in (X, Y, Z)}
    return bool(field.equal(interpret(left, data, field), interpret(right, data, field)))


def of(element: Any) -> Scope:
    return compute((16,), lambda i: element(X[i], Y[i], Z[i]))


RELU = of(lambda x, y, z: call("max", x, 0))


@pytest.mark.parametrize(
    "wrong",
    [
        of(lambda x, y, z: x + 0),  # true of the representatives 0 <= x < p with their own order
        of(lambda x, y, z: call("max", -1 - x, 0)),  # true of any even function such as x(x+1)
        of(lambda x, y, z: call("max", -x, 0)),
        of(lambda x, y, z: call("min", x, 0)),
    ],
)
def test_wrong_laws_of_relu_fail_over_the_prime_field(wrong: Scope) -> None:
    assert not holds(RELU, wrong, GF)
    assert not holds(RELU, wrong, Rationals())


RIGHT = [
    (of(lambda x, y, z: x * (y + z)), of(lambda x, y, z: z * x + y * x)),
    (of(lambda x, y, z: (x - y) / 3), of(lambda x, y, z: x * Fraction(1, 3) - y / 3)),
    (of(lambda x, y, z: (x + y) * (x - y)), of(lambda x, y, z: x * x - y * y)),
    (of(lambda x, y, z: call("exp", x + y) * z), of(lambda x, y, z: z * call("exp", y + x))),
    (of(lambda x, y, z: call("pow", x, 3)), of(lambda x, y, z: x * x * x)),
    (of(lambda x, y, z: x / y), of(lambda x, y, z: x * (1 / y))),
]


@pytest.mark.parametrize("field", [GF, Rationals(), Polynomials()], ids=lambda f: f.name)
@pytest.mark.parametrize("law", range(len(RIGHT)))
def test_laws_hold_in_every_exact_field(field: Any, law: int) -> None:
    left, right = RIGHT[law]
    assert holds(left, right, field)
    assert not holds(left, of(lambda x, y, z: x + y + z), field)


def test_z3_proves_hard_sigmoid_and_refutes_a_wrong_constant() -> None:
    x = Tensor("x", ())

    def scope(element: Any) -> Scope:
        return compute((), lambda: element(x[()]))

    def proved(left: Scope, right: Scope) -> bool:
        field = Z3Terms()
        data = {x: field.random((), np.random.default_rng(0))}
        return field.equal(interpret(left, data, field), interpret(right, data, field))

    clipped = scope(lambda v: call("min", call("max", v + 3, 0), 6) / 6)

    def sigmoid(shift: Fraction) -> Scope:
        return scope(lambda v: call("max", 0, call("min", 1, v / 6 + shift)))

    assert proved(clipped, sigmoid(Fraction(1, 2)))
    assert not proved(clipped, sigmoid(Fraction(1, 3)))


def test_division_by_zero_is_zero_where_there_is_no_infinity() -> None:
    assert Rationals().quotient(Fraction(3), Fraction(0)) == 0
    assert int(GF.apply("div", [prime(3), prime(0)])) == 0


@settings(max_examples=50)
@given(n=st.integers(-(2**62), 2**62))
def test_integers_enter_every_field_exactly(n: int) -> None:
    data = np.asarray([n])
    assert int(GF.from_int(data)[0]) == n % P
    assert Rationals().from_int(data)[0] == n
