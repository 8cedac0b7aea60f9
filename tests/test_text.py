"""Expressions as text: exact both ways, the same for alpha-equal expressions, and never run."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_simplify import Expressions

from tensaurus.algebra.expr import Const, Scope, Tensor, call, compute, fold, look, total, where, within
from tensaurus.algebra.size import Symbol, floordiv, largest, polynomial, smallest
from tensaurus.algebra.text import declarations, parse, parse_size, show
from tensaurus.algebra.walk import tensors

N = polynomial(Symbol("N", 1))
B = polynomial(Symbol("batch size"))
X, W = Tensor("x", (N, 5)), Tensor("w", (3,))
AT = Tensor("layer/at:0", (7,), "int64")
S = Tensor("s", (), "bool")
NAMED = {t.name: t for t in (X, W, AT, S, Tensor("b", (B,)))}
CONV = compute((N, 5), lambda i, j: total((3,), lambda r: X.padded()[i + r - 1, j] * W[r]))

GOLDEN = {
    "L[i:N, j:5](sum[r:3](mul(x[i + r - 1, j] | 0, w[r])))": CONV,
    "L[()](3)": compute((), lambda: 3),
    "L[i:4](add(1/3, -2, inf, -inf))": compute(
        (4,), lambda i: Const(Fraction(1, 3)) + -2 + float("inf") + float("-inf")
    ),
    "L[i:4](where(s[()], True, not_(and_(s[()], False))))": compute(
        (4,), lambda i: call("where", S[()], True, call("not", call("and", S[()], False)))
    ),
    "L[i:7, j:5](x[look('layer/at:0'[i], 0, N - 1), j])": compute(
        (7, 5), lambda i, j: X[look(AT[i], 0, N - 1), j]
    ),
    "L[i:12](x[(i // 4), -4*(i // 4) + i] if i - 1 >= 0 and -i + 4 >= 0 else w[0])": compute(
        (12,), lambda i: where(within(i, 1, 5), X[i // 4, i % 4], W[0])
    ),
    "L[i:N](L[j:N, k:5](sum[r:3](mul(x[j + r - 1, k] | 0, w[r])))[i, 0] | 1/2)": compute(
        (N,), lambda i: CONV.padded(Fraction(1, 2))[i, 0]
    ),
    "L[i:4](max[r:(N // 2)](x[i + r, 0] | -inf))": compute(
        (4,), lambda i: fold("max", (floordiv(N, 2),), lambda r: X.padded(float("-inf"))[i + r, 0])
    ),
    "L[i:max(3, symbol(N, 1))](size(max(3, symbol(N, 1))))": compute((largest(N, 3),), lambda i: largest(N, 3)),
    "L[i:'batch size'](b[i])": compute((B,), lambda i: NAMED["b"][i]),
    "L[i:4]((1 if i - 2 >= 0 else 2) if i - 1 >= 0 else 3)": compute(
        (4,), lambda i: where(i - 1, where(i - 2, 1, 2), 3)
    ),
    "L[i:4](add(w[0], add(w[1], w[2])))": compute((4,), lambda i: W[0] + (W[1] + W[2])),
    "L[i:4](2*i + 1)": compute((4,), lambda i: 2 * i + 1),
}


@pytest.mark.parametrize("text", GOLDEN)
def test_golden_text(text: str) -> None:
    assert show(GOLDEN[text]) == text
    assert show(parse(text, NAMED)) == text


@settings(max_examples=100)
@given(seed=st.integers(0, 2**40))
def test_random_expressions_survive(seed: int) -> None:
    scope = Expressions(seed).scope(4)
    text = show(scope)
    assert show(parse(text, {t.name: t for t in tensors(scope)})) == text


def test_no_axis_has_the_name_of_something_else() -> None:
    i, r = Tensor("i", (polynomial(Symbol("j")),)), Tensor("r", (4,))
    scope = compute(i.shape, lambda a: total((4,), lambda b: i[a] * r[b]))
    assert show(scope) == "L[k:j](sum[s:4](mul(i[k], r[s])))"
    assert show(parse(show(scope), {"i": i, "r": r})) == show(scope)


def test_open_bodies_keep_the_names_of_their_axes() -> None:
    (axis,) = compute((4,), lambda i: 0).axes
    assert show(W[polynomial(axis) + 1]) == f"w[{axis.name} + 1]"


def test_the_lowest_value_of_a_symbol_is_kept() -> None:
    scope = parse("L[i:N](x[i, 0])", NAMED)
    assert isinstance(scope, Scope) and scope.shape == (N,)
    assert declarations(scope) == "N >= 1; x: float32[N, 5]"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("L[i:3](", "not an expression"),
        ("i + 1", "not a scope"),
        ("L[i:3](q[i])", "no tensor q"),
        ("L[i:3](x[i])", "1 indices into rank 2"),
        ("L[i:3](open('/etc/passwd'))", "no function open"),
        ("L[i:3](__import__('os').system('true'))", "not a size"),
        ("L[i:3](add(1))", "add takes 2"),
        ("L[i:3, i:4](0)", "an axis twice"),
        ("L[i:3](w[i] if i > 0 else 0)", "not a guard"),
        ("L[i:3](mean[r:3](w[r]))", "not a reduction"),
        ("L[i:3](3 | 0)", "only a read"),
        ("L[i:3:2](0)", "not a range"),
        ("L[i:3](lambda: 0)", "not a size"),
        ("L[i:3](w[i / 2])", "not a size"),
    ],
)
def test_what_is_no_expression_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse(text, NAMED)


def test_sizes() -> None:
    a, b = polynomial(Symbol("a")), polynomial(Symbol("b"))
    assert parse_size("2*a + b // 3 - max(a, 1) % 2") == 2 * a + b // 3 - largest(a, 1) % 2
    assert parse_size("min(a, b)", {"a": a, "b": b}) == smallest(a, b)
    assert parse_size("7 // 2") == 3
    with pytest.raises(ValueError, match="unknown name"):
        parse_size("a + c", {"a": a})
