"""Expressions as text: exact both ways, the same for alpha-equal expressions, and never run."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from op_samples import Sample, declared_samples, expressions
from random_scopes import Everything

from tensaurus.expr.ir.expression_text import declarations, parse, parse_declarations, parse_size, show
from tensaurus.expr.ir.scope import (
    Const,
    Scope,
    Tensor,
    call,
    compute,
    fold,
    look,
    table,
    total,
    where,
    within,
)
from tensaurus.expr.ir.walk import tensors
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.expr.sizes.size import Symbol, floordiv, largest, polynomial, smallest

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
    "L[i:max(3, symbol(N, 1))](size(max(3, symbol(N, 1))))": compute(
        (largest(N, 3),), lambda i: largest(N, 3)
    ),
    "L[i:'batch size'](b[i])": compute((B,), lambda i: NAMED["b"][i]),
    "L[i:4]((1 if i - 2 >= 0 else 2) if i - 1 >= 0 else 3)": compute(
        (4,), lambda i: where(i - 1, where(i - 2, 1, 2), 3)
    ),
    "L[i:4](add(w[0], add(w[1], w[2])))": compute((4,), lambda i: W[0] + (W[1] + W[2])),
    "L[i:4](2*i + 1)": compute((4,), lambda i: 2 * i + 1),
    "L[i:2](sum[r:2](mul([[1, 0], [1/2, -1]][i, r] | 0, w[r])))": compute(
        (2,), lambda i: total((2,), lambda r: table([[1, 0], [Fraction(1, 2), -1]]).padded()[i, r] * W[r])
    ),
}


@pytest.mark.parametrize("text", GOLDEN)
def test_golden_text(text: str) -> None:
    assert show(GOLDEN[text]) == text
    assert show(parse(text, NAMED)) == text


def survives(scope: Scope) -> None:
    """Text and declarations together are the expression."""
    declared = parse_declarations(declarations(scope))
    assert declared == {t.name: t for t in tensors(scope)}
    text, form = show(scope), intern_scope(scope)
    again = parse(text, declared)
    assert show(again) == text
    assert again.shape == scope.shape and intern_scope(again) is form, text
    assert show(parse(show(form), declared)) == show(form)
    unrelated = {t.name: t for t in (*NAMED.values(), *tensors(scope))}
    assert intern_scope(parse(show(form), unrelated)) is form


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**40))
def test_random_expressions_survive(seed: int) -> None:
    survives(Everything(seed).scope(4))


def test_tensors_of_every_kind_survive() -> None:
    high = polynomial(Symbol("M", 2, polynomial(Symbol("K", -3, 9))))
    size = polynomial(Symbol("N m", 1, high))
    names = ["a; b", "it's \"so\"", "\\", "lambda", "é", "0", "", "L", "sum", "look", "i", "x\n", "N m"]
    kinds = ["float16", "bfloat16", "float64", "bool", "uint8", "int4", "real"]
    point = call("to_int8", Tensor("p", (), "float32")[()])
    for place, name in enumerate(names):
        data = Tensor(name, (size, floordiv(size + 1, 2), 3), kinds[place % len(kinds)], bool(place % 2))
        survives(compute((4,), lambda i, data=data: call("to_int8", data[0, i, 2]) + point))


def test_symbols_of_one_name_survive() -> None:
    one, other, free = (polynomial(Symbol("N", *bounds)) for bounds in [(), (1,), (1, 7)])
    survives(compute((one, other, free), lambda i, j, k: one * i + other * j + free * k))
    survives(compute((3,), lambda i: Tensor("a", (one,))[i] + Tensor("b", (other, free))[i, 0]))


def test_literals_survive() -> None:
    infinite = map(float, ("inf", "-inf", "nan"))
    for value in (0, -1, 10**30, Fraction(-22, 7), 0.1, 1e-300, True, False, *infinite):
        survives(compute((2,), lambda i, value=value: value))
        if value == value:
            survives(compute((2,), lambda i, value=value: W.padded(value)[i + 2]))


def doubled(times: int, again: bool) -> Scope:
    """Each stage reads the one before it twice; where `again`, as one object, else as two that are equal."""
    if not times:
        return compute((3,), lambda i: call("exp", W[i]))
    one = doubled(times - 1, again)
    other = one if again else doubled(times - 1, again)
    return compute((3,), lambda i: one[i] + other[2 - i])


def test_what_is_read_twice_is_written_once() -> None:
    text = "L[i:3](add((A := L[j:3](add((B := L[k:3](exp(w[k])))[j], B[-j + 2])))[i], A[-i + 2]))"
    assert show(doubled(2, again=True)) == show(doubled(2, again=False)) == text
    assert intern_scope(parse(text, NAMED)) is intern_scope(doubled(2, again=False))
    whole = "L[i:3](add({0}[i], {0}[-i + 2]))"
    old = whole.format(whole.format("L[i:3](exp(w[i]))"))  # as it was written once
    assert intern_scope(parse(old, NAMED)) is intern_scope(doubled(2, again=True))
    survives(doubled(60, again=True))
    assert len(show(doubled(60, again=True))) < 3000


def test_names_of_scopes_are_new() -> None:
    """Of tensors, symbols and axes none is taken; what is unrelated may have the same."""
    a, b = Tensor("A", (polynomial(Symbol("B")),)), Tensor("C", (3,))
    inner = compute((3,), lambda i: a.padded()[i] + b[i])
    scope = compute((3,), lambda i: inner[i] * inner[2 - i] + inner.padded(1)[i + 1])
    assert "(D := " in show(scope)
    survives(scope)
    assert intern_scope(parse(show(doubled(2, True)), {**NAMED, "A": a})) is intern_scope(doubled(2, True))


def test_a_scope_in_an_index_and_beside_it_survives() -> None:
    at = compute((3,), lambda i: AT[i] * 2)
    again = compute((3,), lambda i: at[i] + at[2 - i])
    places = [lambda i: look(again[i], -9, 9), lambda i: look(again[2 - i], -9, 9)]
    survives(compute((3,), lambda i: W.padded()[places[0](i)] + W.padded()[places[1](i)]))
    survives(compute((3,), lambda i: where(look(again[i], -9, 9), again[i], at[i])))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**40))
def test_random_expressions_that_share_survive(seed: int) -> None:
    rng, made = Random(seed), Everything(seed)
    stages = [made.scope(2) for _ in range(2)]
    for _ in range(6):
        one, other = rng.choices(stages, k=2)
        stages.append(
            compute(
                (4,),
                lambda i, one=one, other=other: (
                    call("to_float32", one.padded()[tuple(i for _ in one.axes) or ()])
                    + call("to_float32", other.padded(1)[tuple(i - 1 for _ in other.axes) or ()])
                ),
            )
        )
    survives(stages[-1])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("L[i:3]((A := L[j:3](A[j]))[i])", "no tensor A"),
        ("L[i:3](add((A := L[j:3](w[j]))[i], (A := L[j:3](w[j]))[i]))", "two scopes of one name"),
        ("L[i:3]((A := w)[i])", "not a scope"),
        ("(A := L[i:3](w[i]))", "not a scope"),
    ],
)
def test_names_of_scopes_that_mean_nothing(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse(text, NAMED)


@pytest.mark.nightly(every=4)
@pytest.mark.parametrize("sample", declared_samples(), ids=str)
def test_every_operator_survives(sample: Sample) -> None:
    for scope in expressions(sample):
        survives(scope)
        survives(intern_scope(scope))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x", "not a declaration"),
        ("x: 3", "not a type"),
        ("x: f[N", "not an expression"),
        ("N > 3", "not a declaration"),
    ],
)
def test_what_is_no_declaration_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_declarations(text)


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
        ("L[i:3]([1, 2][i, 0])", "2 indices into rank 1"),
        ("L[i:3]([[1, 2], [3]][i, 0])", "different lengths"),
        ("L[i:3]([[1, 2], 3][i, 0])", "different lengths"),
        ("L[i:3]([][i])", "0 numbers in a table"),
        ("L[i:3]([w][i])", "unknown name"),
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
