"""The canonical form keeps the function, knows laws, and does not depend on how it was written."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_expressions import Expressions

from tensaurus.expr.evaluate.fields import Array, Field, PrimeField, Rationals, Reals
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.ir.element_types import dtype_of
from tensaurus.expr.ir.expression_text import parse, show
from tensaurus.expr.ir.scalar_functions import FUNCTIONS
from tensaurus.expr.ir.scope import (
    Body,
    Call,
    Read,
    Reduce,
    Scope,
    Select,
    Tensor,
    axis,
    call,
    compute,
    fold,
    look,
    total,
    where,
)
from tensaurus.expr.ir.walk import children, reads, replace_axes, replace_tensors, tensors
from tensaurus.expr.normal import intern
from tensaurus.expr.normal.canonicalize import canonicalize, is_symmetric
from tensaurus.expr.sizes.size import Size, Symbol, polynomial
from tensaurus.ops import registry
from tensaurus.ops.examples import parse_example

N, M, K, J, H = (polynomial(Symbol(name, 1)) for name in "NMKJH")


# --- random expressions -------------------------------------------------------------------------------


def fingerprint(scope: Scope) -> str:
    """What scopes of one canonical form share."""
    return intern.fingerprint(canonicalize(scope))




def values(scope: Scope, field: Field, seed: int = 0) -> dict[Tensor, Array]:
    rng = np.random.default_rng(seed)
    return {t: field.random(t.shape, rng) for t in tensors(scope)}  # type: ignore[arg-type]


@pytest.mark.parametrize("field", [PrimeField(3), Rationals(5)], ids=["prime", "rationals"])
@settings(max_examples=150)
@given(seed=st.integers(0, 2**40))
@example(seed=275465305)  # fractions summed to one number
@example(seed=1213290655)  # an index whose bounds leave the tensor, and whose values do not
def test_canonical_keeps_the_function_exactly(field: Field, seed: int) -> None:
    # a maximum of literals alone has its true order, in GF(p) too, and one of elements has not
    scope = Expressions(seed, order=not isinstance(field, PrimeField)).scope(4)
    form = canonicalize(scope)
    assert form.shape == scope.shape
    data = values(scope, field, seed)
    before, after = interpret(scope, data, field), interpret(form, data, field)
    assert field.equal(before, after), f"{show(scope)}\n{show(form)}"


@settings(max_examples=60)
@given(seed=st.integers(0, 2**40))
def test_canonical_keeps_the_function_in_float64(seed: int) -> None:
    scope = Expressions(seed, division=False).scope(3)
    data = {t: a / 4 for t, a in values(scope, Reals(), seed).items()}
    before, after = interpret(scope, data, Reals()), interpret(canonicalize(scope), data, Reals())
    # exp of a large argument multiplies an error by that argument
    np.testing.assert_allclose(before, after, rtol=1e-6, atol=1e-6 * max(1.0, float(np.max(np.abs(before)))))


@settings(max_examples=100)
@given(seed=st.integers(0, 2**40))
def test_canonical_is_idempotent_and_survives_its_text(seed: int) -> None:
    scope = Expressions(seed).scope(3)
    form = canonicalize(scope)
    again = parse(show(form), {t.name: t for t in tensors(form)})
    assert canonicalize(again) == form
    assert fingerprint(again) == fingerprint(scope)


def shuffled(body: Body, rng: random.Random) -> Body:
    """The same expression written otherwise: new names, other orders of arguments, axes and guards."""
    match body:
        case Call(fn, args):
            parts = [shuffled(a, rng) for a in args]
            if FUNCTIONS[fn].commutative if fn in FUNCTIONS else False:
                rng.shuffle(parts)
            return call("add", parts[0], call("neg", parts[1])) if fn == "sub" else Call(fn, tuple(parts))
        case Select(guard, then, other):
            guards = rng.sample(guard, len(guard))
            return Select(tuple(guards), shuffled(then, rng), shuffled(other, rng))
        case Reduce(monoid, axes, inner):
            fresh = {a: axis(a.extent, rng.choice("abz")) for a in axes}
            known = {a: polynomial(b) for a, b in fresh.items()}
            order = rng.sample(list(fresh.values()), len(fresh))
            return Reduce(monoid, tuple(order), shuffled(replace_axes(inner, known), rng))  # type: ignore[arg-type]
        case Read(Scope(axes, inner), indices, outside):
            return Read(Scope(axes, shuffled(inner, rng)), indices, outside)
    return body


@settings(max_examples=100)
@given(seed=st.integers(0, 2**40))
def test_the_fingerprint_does_not_depend_on_the_writing(seed: int) -> None:
    scope = Expressions(seed).scope(3)
    other = Scope(scope.axes, shuffled(scope.body, random.Random(seed)))
    assert show(canonicalize(other)) == show(canonicalize(scope))


# --- laws, at all sizes -------------------------------------------------------------------------------

X = Tensor("x", (N, K))
G = Tensor("g", (K,))
IMAGE = Tensor("x", (N, K, H, H))
WIDER = Tensor("y", (N, M, H, H))
FILTER, OTHER = Tensor("w", (M, K, 3, 3)), Tensor("v", (M, K, 3, 3))


def matmul(a: Any, b: Any) -> Scope:
    return compute((a.shape[0], b.shape[1]), lambda i, j: total((a.shape[1],), lambda k: a[i, k] * b[k, j]))


def transpose(a: Any) -> Scope:
    return compute(a.shape[::-1], lambda i, j: a[j, i])


def add(a: Any, b: Any) -> Scope:
    return compute(a.shape, lambda *i: a[i] + b[i])


def scaled(a: Any, c: Any) -> Scope:
    return compute(a.shape, lambda *i: a[i] * c)


def conv(x: Any, w: Any, pad: int = 1) -> Scope:
    n, c, h, v = x.shape
    out = [size + 2 * pad - w.shape[2] + 1 for size in (h, v)]
    return compute(
        (n, w.shape[0], *out),
        lambda n, f, i, j: total(
            (c, *w.shape[2:]), lambda c, r, s: x.padded()[n, c, i + r - pad, j + s - pad] * w[f, c, r, s]
        ),
    )


def padded(x: Any, pad: int) -> Scope:
    n, c, h, w = x.shape
    return compute(
        (n, c, h + 2 * pad, w + 2 * pad), lambda n, c, i, j: x.padded()[n, c, i - pad, j - pad]
    )


def concat(a: Any, b: Any, dim: int) -> Scope:
    shape = list(a.shape)
    edge = shape[dim]
    shape[dim] = edge + b.shape[dim]

    def element(*i: Any) -> Body:
        shifted = (*i[:dim], i[dim] - edge, *i[dim + 1 :])
        return where(edge - 1 - i[dim], a[i], b[shifted])

    return compute(shape, element)


def part(a: Any, dim: int, start: Size, stop: Size) -> Scope:
    shape = [stop - start if d == dim else n for d, n in enumerate(a.shape)]
    return compute(shape, lambda *i: a[tuple(x + start if d == dim else x for d, x in enumerate(i))])


def maxima(a: Any, outside: float) -> Scope:
    """Of windows of three along the last dimension, which is padded at both ends."""
    return compute(
        a.shape,
        lambda *i: fold("max", (3,), lambda r: a.padded(outside)[(*i[:-1], i[-1] + r - 1)]),
    )


def shifted(a: Any) -> Scope:
    return compute((4,), lambda i: a.padded()[i + 1])


def relu(a: Any) -> Scope:
    return compute(a.shape, lambda *i: call("max", a[i], 0))


def top(a: Any, i: Any) -> Body:
    return fold("max", (a.shape[1],), lambda k: a[i, k])


def mean(a: Any) -> Scope:
    return compute((a.shape[0],), lambda i: total((a.shape[1],), lambda k: a[i, k]) / a.shape[1])


def layernorm(x: Any, one_pass: bool) -> Scope:
    m = mean(x)
    d = compute(x.shape, lambda i, j: x[i, j] - m[i])
    if one_pass:
        square = mean(compute(x.shape, lambda i, j: x[i, j] * x[i, j]))
        var = compute(m.shape, lambda i: square[i] - m[i] * m[i])
    else:
        var = mean(compute(x.shape, lambda i, j: call("pow", d[i, j], 2)))
    scale = compute(m.shape, lambda i: call("sqrt", var[i] + Fraction(1, 100000)))
    return compute(x.shape, lambda i, j: d[i, j] / scale[i] * G[j])


def softmax(x: Any, keepdims: bool) -> Scope:
    rows = (x.shape[0], 1) if keepdims else (x.shape[0],)
    top = compute(rows, lambda i, *_: fold("max", (x.shape[1],), lambda k: x[i, k]))
    e = compute(x.shape, lambda i, j: call("exp", x[i, j] - top[(i, 0) if keepdims else i]))
    mass = compute(rows, lambda i, *_: total((x.shape[1],), lambda k: e[i, k]))
    return compute(x.shape, lambda i, j: e[i, j] / mass[(i, 0) if keepdims else i])


FILTER_SUM = compute((M,), lambda f: total((K, 3, 3), lambda c, r, s: FILTER[f, c, r, s]))
A, B, C = Tensor("A", (N, K)), Tensor("B", (K, J)), Tensor("C", (J, M))
D, E = Tensor("D", (K + M, J)), Tensor("E", (N, K + M))
Y = Tensor("y", (N, M))
Z, U, UNM = Tensor("z", (2, 3, 4)), Tensor("u", (24,)), Tensor("u", (N * M,))
BEYOND = Tensor("v", (N,)).padded(-inf)
FLAT = compute((24,), lambda i: Z[i // 12, i // 4 % 3, i % 4])

LAWS: dict[str, Callable[[], tuple[Scope, Scope]]] = {
    "matmul is associative": lambda: (matmul(matmul(A, B), C), matmul(A, matmul(B, C))),
    "transpose twice": lambda: (transpose(transpose(A)), compute(A.shape, lambda i, j: A[i, j])),
    "transpose of a product": lambda: (transpose(matmul(A, B)), matmul(transpose(B), transpose(A))),
    "conv is linear in w": lambda: (
        conv(IMAGE, add(FILTER, OTHER)),
        add(conv(IMAGE, FILTER), conv(IMAGE, OTHER)),
    ),
    "scaled filter": lambda: (
        conv(IMAGE, scaled(FILTER, Fraction(1, 3))),
        scaled(conv(IMAGE, FILTER), Fraction(1, 3)),
    ),
    "pad then conv": lambda: (conv(padded(IMAGE, 1), FILTER, 0), conv(IMAGE, FILTER, 1)),
    "concat of filters": lambda: (
        conv(IMAGE, concat(FILTER, OTHER, 0)),
        concat(conv(IMAGE, FILTER), conv(IMAGE, OTHER), 1),
    ),
    "maxima of a padded concatenation": lambda: (
        maxima(concat(IMAGE, WIDER, 1), -inf),
        concat(maxima(IMAGE, -inf), maxima(WIDER, -inf), 1),
    ),
    "relu of maxima of a padded concatenation": lambda: (
        relu(maxima(concat(IMAGE, WIDER, 1), 0)),
        concat(relu(maxima(IMAGE, 0)), relu(maxima(WIDER, 0)), 1),
    ),
    "maxima of a padded part": lambda: (
        maxima(part(IMAGE, 0, 1, N), -inf),
        part(maxima(IMAGE, -inf), 0, 1, N),
    ),
    "relu of concat": lambda: (relu(concat(X, Y, 1)), concat(relu(X), relu(Y), 1)),
    "relu twice": lambda: (relu(relu(X)), relu(X)),
    "concat along the sum": lambda: (
        matmul(concat(X, Y, 1), D),
        add(matmul(X, part(D, 0, 0, K)), matmul(Y, part(D, 0, K, K + M))),
    ),
    "halves of a sum": lambda: (
        matmul(E, D),
        add(
            matmul(part(E, 1, 0, K), part(D, 0, 0, K)),
            matmul(part(E, 1, K, K + M), part(D, 0, K, K + M)),
        ),
    ),
    "split then concat": lambda: (
        concat(part(E, 1, 0, K), part(E, 1, K, K + M), 1),
        compute(E.shape, lambda i, j: E[i, j]),
    ),
    "variance in one pass": lambda: (layernorm(X, False), layernorm(X, True)),
    "softmax with and without kept dimensions": lambda: (softmax(X, False), softmax(X, True)),
    "division by a constant": lambda: (
        compute(X.shape, lambda i, j: X[i, j] / 8),
        compute(X.shape, lambda i, j: X[i, j] * Fraction(1, 8)),
    ),
    "reshape there and back": lambda: (
        compute((2, 3, 4), lambda a, b, c: FLAT[a * 12 + b * 4 + c]),
        compute((2, 3, 4), lambda a, b, c: Z[a, b, c]),
    ),
    "a sum over split digits": lambda: (
        compute((), lambda: total((24,), lambda r: FLAT[r] * U[r])),
        compute((), lambda: total((3, 2, 4), lambda b, a, c: Z[a, b, c] * U[a * 12 + b * 4 + c])),
    ),
    "digits that merge": lambda: (
        compute((), lambda: total((N, M), lambda a, b: UNM[a * M + b])),
        compute((), lambda: total((N * M,), lambda r: UNM[r])),
    ),
    "max over a pair": lambda: (
        compute((N,), lambda i: fold("max", (K,), lambda k: call("max", X[i, k], A[i, k]))),
        compute((N,), lambda i: call("max", top(A, i), top(X, i))),
    ),
    "quotients of concatenations": lambda: (
        compute((N, K + M), lambda i, j: concat(X, Y, 1)[i, j] / concat(A, Y, 1)[i, j]),
        concat(
            compute(X.shape, lambda i, j: X[i, j] / A[i, j]),
            compute(Y.shape, lambda i, j: Y[i, j] / Y[i, j]),
            1,
        ),
    ),
    "softmax of rows of a concatenation": lambda: (
        softmax(concat(X, A, 0), False),
        concat(softmax(X, False), softmax(A, False), 0),
    ),
    "an inverse of a square": lambda: (
        compute(X.shape, lambda i, j: X[i, j] / (X[i, j] * X[i, j])),
        compute(X.shape, lambda i, j: 1 / X[i, j]),
    ),
    "a square over its root": lambda: (
        compute(X.shape, lambda i, j: X[i, j] * X[i, j] / X[i, j]),
        compute(X.shape, lambda i, j: X[i, j]),
    ),
    "an absorbed minimum": lambda: (
        compute(X.shape, lambda i, j: call("max", X[i, j], call("min", A[i, j], X[i, j]))),
        compute(X.shape, lambda i, j: X[i, j]),
    ),
    "an unused axis": lambda: (
        compute((N,), lambda i: total((K, K), lambda k, _: X[i, k])),
        compute((N,), lambda i: total((K,), lambda k: X[i, k]) * K),
    ),
}


@pytest.mark.parametrize("law", LAWS)
def test_law(law: str) -> None:
    left, right = LAWS[law]()
    assert show(canonicalize(left)) == show(canonicalize(right))
    assert fingerprint(left) == fingerprint(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        # one element beyond the border: adding before a padded convolution is not adding after it
        (
            conv(compute(IMAGE.shape, lambda *i: IMAGE[i] + 1), FILTER),
            compute((N, M, H, H), lambda n, f, i, j: conv(IMAGE, FILTER)[n, f, i, j] + FILTER_SUM[f]),
        ),
        (conv(padded(IMAGE, 1), FILTER, 1), conv(IMAGE, FILTER, 1)),
        (relu(conv(IMAGE, FILTER)), conv(relu(IMAGE), FILTER)),
        (matmul(A, B), matmul(A, add(B, B))),
        (softmax(X, False), compute(X.shape, lambda i, j: X[i, j])),
        (shifted(Tensor("x", (4,))), shifted(Tensor("x", (5,)))),
        # 1/x * x is 1 only where x is not 0
        (compute((N,), lambda i: X[i, 0] / X[i, 0]), compute((N,), lambda i: Fraction(1))),
        (relu(X), relu(compute(X.shape, lambda i, j: -1 - X[i, j]))),
        # nor does an infinity cancel beyond the border
        (
            compute((N,), lambda i: BEYOND[i + 1] / (BEYOND[i + 1] * BEYOND[i + 1])),
            compute((N,), lambda i: 1 / BEYOND[i + 1]),
        ),
    ],
)
def test_different_functions_have_different_fingerprints(left: Scope, right: Scope) -> None:
    assert fingerprint(left) != fingerprint(right)


def test_a_factor_that_is_undefined_without_the_guard_stays_under_it() -> None:
    x, y = Tensor("x", (4,)), Tensor("y", (4,))
    scope = compute((4,), lambda i: where(i - 1, x[i - 1] * call("exp", y[i - 1]), 0))
    assert show(canonicalize(scope)) == "L[i:4](mul(exp(y[i - 1]), x[i - 1]) if i - 1 >= 0 else 0)"


def test_gather_is_kept_exactly() -> None:
    at = Tensor("at", (5,), "int64")
    positive = compute((5,), lambda i: call("add", at[i], 0))
    scope = compute((5, K), lambda i, j: Tensor("t", (7, K))[look(positive[i], 0, 6), j])
    assert show(canonicalize(scope)) == "L[i:5, j:K](t[look(at[i], 0, 6), j])"


@pytest.mark.parametrize("seed", range(40))
def test_choices_inside_choices_keep_their_values(seed: int) -> None:
    """Maxima of padded concatenations: the case that is told apart may be that of the padding's own axis."""
    rng = random.Random(seed)
    shape = tuple(rng.choice((1, 2, 3)) for _ in range(2))
    other = tuple(rng.choice((1, 2, 3)) if d == (cut := seed % 2) else n for d, n in enumerate(shape))
    x, y = Tensor("x", shape), Tensor("y", other)
    outside = rng.choice((-inf, inf, 0, 2))
    monoid, step = rng.choice(("max", "min")), rng.choice((1, 2))
    whole = concat(x, y, cut) if rng.random() < 0.7 else concat(concat(x, y, cut), y, cut)
    padded_twice = compute(whole.shape, lambda i, j: whole.padded(outside)[i - 1, j])

    def element(i: Any, j: Any) -> Body:
        source = rng.choice((whole, padded_twice))
        folds = fold(monoid, (2, 2), lambda r, s: source.padded(outside)[i * step + r - 1, j + s - 1])
        return call(monoid, folds, x.padded(0)[i, j])

    scope = compute((2, 3), element)
    form = canonicalize(scope)
    for field in (PrimeField(seed), Reals()):
        numbers = np.random.default_rng(seed)
        data = {t: field.lift(numbers.integers(-5, 6, t.shape).astype(float)) for t in (x, y)}
        before, after = interpret(scope, data, field), interpret(form, data, field)
        assert np.array_equal(before, after), show(scope)


def test_dtype_and_shape_are_kept() -> None:
    x = Tensor("x", (1, 4), "float16")
    form = canonicalize(compute(x.shape, lambda i, j: x[i, j] - x[i, j]))
    assert (dtype_of(form), form.shape, show(form)) == ("float16", (1, 4), "L[i:1, j:4](to_float16(0))")


def test_integer_division_truncates_and_stays() -> None:
    n = Tensor("n", (4,), "int64")
    form = canonicalize(compute((4,), lambda i: n[i] / 2 * 2))
    assert show(form) == "L[i:4](mul(2, div(n[i], to_int64(2))))"
    assert interpret(form, {n: np.array([1, 2, -3, 4])}, Reals()).tolist() == [0, 2, -2, 4]


def test_symmetric_inputs() -> None:
    a, b = Tensor("a", (N, K)), Tensor("b", (N, K))
    assert is_symmetric(add(a, b), a, b)
    assert is_symmetric(compute(a.shape, lambda i, j: call("max", a[i, j], b[i, j])), a, b)
    assert not is_symmetric(compute(a.shape, lambda i, j: a[i, j] - b[i, j]), a, b)
    square, other = Tensor("a", (N, N)), Tensor("b", (N, N))
    assert not is_symmetric(matmul(square, other), square, other)


def test_composition_by_replacing_tensors() -> None:
    left, right = Tensor("l", (N, J)), Tensor("r", (J, M))
    node = matmul(left, right)
    whole = replace_tensors(node, {left: matmul(A, B), right: compute(C.shape, lambda i, j: C[i, j])})
    assert fingerprint(whole) == fingerprint(matmul(A, matmul(B, C)))


@pytest.mark.nightly(every=4)
@pytest.mark.parametrize("name", registry)
def test_every_declared_operator(name: str) -> None:
    """Its canonical form survives its text, is its own canonical form, and computes the same numbers."""
    op = registry[name]
    for text in op.examples:
        example = parse_example(text)
        scopes = op.scopes(example.types, op.canonical(example.types, example.attrs))
        for scope in scopes:
            form, named = canonicalize(scope), {t.name: t for t in tensors(scope)}
            assert show(parse(show(scope), named)) == show(scope)
            assert canonicalize(parse(show(form), named)) == form
            if not all(kind is None or kind.static for kind in example.types):
                continue
            arrays = example.values(np.random.default_rng(0))
            pairs = zip(op.tensors(example.types), arrays, strict=True)
            data = {t: Reals().lift(a) for t, a in pairs if t is not None and a is not None}
            before, after = interpret(scope, data, Reals()), interpret(form, data, Reals())
            np.testing.assert_allclose(before, after, rtol=1e-7, atol=1e-9)


def chain(step: Callable[[Any], Scope], count: int) -> Scope:
    found: Any = X
    for _ in range(count):
        found = step(found)
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "scope",
    [chain(lambda x: layernorm(x, False), 8), chain(lambda x: softmax(x, True), 8)],
    ids=["norm", "softmax"],
)
def test_deep_compositions_do_not_explode(scope: Scope) -> None:
    # read three times each, eight layers are a tree of thousands; kept scopes are named, not spelled out
    assert fingerprint(scope) == fingerprint(Scope(scope.axes, scope.body))
    assert total_weight(canonicalize(scope)) < 5000


def total_weight(scope: Scope) -> int:
    seen: dict[int, Scope] = {}

    def weigh(body: Body) -> int:
        inner = 0
        for item in reads(body) if isinstance(body, Read) else ():
            if isinstance(item.source, Scope) and id(item.source) not in seen:
                seen[id(item.source)] = item.source
                inner += weigh(item.source.body)
        return 1 + inner + sum(map(weigh, children(body)))

    return weigh(scope.body)


def test_two_tensors_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two tensors"):
        canonicalize(compute((3,), lambda i: Tensor("x", (3,))[i] + Tensor("x", (4,))[i]))
