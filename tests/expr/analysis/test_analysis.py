"""FLOPs, degrees and linearity of expressions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from tensaurus.expr.analysis.polynomial_degree import DEGREE_1, Degrees, linear_inputs
from tensaurus.expr.analysis.work_counts import flops
from tensaurus.expr.evaluate.two_point_field import Laws
from tensaurus.expr.ir.scope import Scope, Tensor, call, compute, fold, look, total, where
from tensaurus.expr.sizes.size import Symbol, polynomial

N, K, M = (polynomial(Symbol(name, 1)) for name in "NKM")
X, Y = Tensor("x", (N, K)), Tensor("y", (N, K))
W = Tensor("w", (K, M))
AT = Tensor("at", (N,), "int64")
INT = Tensor("n", (N, K), "int64")
MATMUL = compute((N, M), lambda i, j: total((K,), lambda k: X[i, k] * W[k, j]))
ROW = compute((N,), lambda i: total((K,), lambda k: X[i, k]))


def each(element: Any) -> Scope:
    return compute((N, K), lambda i, j: element(X[i, j], Y[i, j]))


def test_flops_of_a_matmul_are_two_per_product() -> None:
    assert flops(MATMUL) == 2 * N * K * M


def test_flops_count_an_inner_scope_once() -> None:
    twice = compute((N, K), lambda i, j: X[i, j] - ROW[i] * ROW[i])
    assert flops(twice) == 2 * N * K + N * K
    assert flops(compute((N, K), lambda i, j: ROW[i] + MATMUL[i, 0])) == N * K + N * K + 2 * N * K * M


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_products_with_zeros_between_elements_are_not_counted(stride: int) -> None:
    """A transposed convolution along one axis, of 6 elements each `stride` apart, with a kernel of 3."""
    length = 6 * stride
    spread = compute((length,), lambda i: where(0 - (i - stride * (i // stride)), X[i // stride, 0], 0))
    scope = compute((length - 2,), lambda i: total((3,), lambda k: spread[i + k] * Y[k, 0]))
    assert flops(scope) == Fraction(2 * 3 * (length - 2), stride)


def test_flops_of_copies_are_none_and_of_choices_the_dearer_branch() -> None:
    assert flops(compute((K, N), lambda i, j: X[j, i])) == 0
    assert flops(compute((6,), lambda i: where(i - 2, X[0, 0] * 2 + 1, X[0, 0]))) == 12
    assert flops(each(lambda x, y: call("to_float32", x))) == 0


@pytest.mark.parametrize(
    ("scope", "linear_in"),
    [
        (MATMUL, {X, W}),
        (each(lambda x, y: x + y), set()),  # linear in both together, in neither alone
        (each(lambda x, y: x * y + y), {Y}),
        (each(lambda x, y: x * Fraction(1, 3)), {X}),
        (each(lambda x, y: x + 1), set()),
        (each(lambda x, y: call("max", x, 0) * y), {Y}),
        (compute((N, K), lambda i, j: X.padded()[i + 1, j]), {X}),
        (compute((N, K), lambda i, j: X.padded(1)[i + 1, j]), set()),
        (compute((N, K), lambda i, j: where(i - 1, X[i, j], 0)), {X}),
        (compute((N, K), lambda i, j: X[look(AT[i], 0, N - 1), j]), {X}),
        (compute((N, K), lambda i, j: call("where", call("lt", X[i, j], 0), X[i, j], Y[i, j])), set()),
        (compute((N, K), lambda i, j: INT[i, j] / 2), set()),  # truncates
        (compute((N, K), lambda i, j: call("to_int64", X[i, j])), set()),
    ],
)
def test_multilinear(scope: Scope, linear_in: set[Tensor]) -> None:
    assert linear_inputs(scope) == linear_in


@pytest.mark.parametrize(
    ("scope", "laws", "bound"),
    [
        (MATMUL, Laws(), 2),
        (each(lambda x, y: x * y * x + 1), Laws(), 3),
        (each(lambda x, y: call("pow", x, 3) + y), Laws(), 3),
        (each(lambda x, y: call("exp", x * x) * y), Laws(), 2),
        (each(lambda x, y: call("exp", x * x * x) * y), Laws(), 3),  # the argument is what may coincide
        (each(lambda x, y: call("max", x * x, y)), Laws(), 2),
        (each(lambda x, y: call("max", x * x, y) * x), Laws(order=True), 3),
        (each(lambda x, y: x / y), Laws(), 2),  # of x times an unknown number
        (each(lambda x, y: x / y), Laws(inverse=True), 4),  # numerator 1, three times the denominator
        (compute((N,), lambda i: total((4,), lambda k: X[i, k] / Y[i, k])), Laws(inverse=True), 16),
        (compute((N,), lambda i: fold("prod", (4,), lambda k: X[i, k])), Laws(), 4),
        (compute((N, K), lambda i, j: ROW[i] * Y[i, j]), Laws(), 2),
        (compute((N,), lambda i: 7), Laws(), 1),
    ],
)
def test_degree(scope: Scope, laws: Laws, bound: float) -> None:
    degrees = Degrees(laws)
    degrees.record(degrees.of(scope, dict.fromkeys([X, Y, W, AT, INT], DEGREE_1)))
    assert degrees.largest == bound
