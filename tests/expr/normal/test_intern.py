"""Interned scopes: one object for what is equal in form, never for what is not; one name in all processes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from op_samples import Sample, declared_samples, expressions
from random_scopes import Everything, Mistaken, Rewritten, agree, swapped

from tensaurus.expr.evaluate.fields import Field, PrimeField, Rationals
from tensaurus.expr.ir.element_types import dtype_of
from tensaurus.expr.ir.expression_text import parse, show
from tensaurus.expr.ir.scope import (
    Axis,
    Call,
    Const,
    Read,
    Reduce,
    Scope,
    Tensor,
    call,
    compute,
    fold,
    table,
    total,
    where,
)
from tensaurus.expr.ir.walk import scopes
from tensaurus.expr.normal import intern
from tensaurus.expr.normal.intern import fingerprint, intern_scope
from tensaurus.expr.sizes.size import Symbol, polynomial

N, POSITIVE = polynomial(Symbol("N")), polynomial(Symbol("N", 1))
X, W, V = Tensor("x", (4, 4)), Tensor("w", (4,)), Tensor("v", (N, N))






@pytest.mark.parametrize("field", [PrimeField(3), Rationals(5)], ids=["prime", "rationals"])
@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**40))
def test_the_interned_scope_is_the_same_function(field: Field, seed: int) -> None:
    scope = Everything(seed, order=not isinstance(field, PrimeField)).scope(4)
    form = intern_scope(scope)
    assert (form.shape, dtype_of(form)) == (scope.shape, dtype_of(scope))
    assert intern_scope(form) is form and fingerprint(form) == fingerprint(scope)
    assert agree(scope, form, field), f"{show(scope)}\n{show(form)}"


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**40), other=st.integers(0, 2**40))
def test_another_way_of_writing_is_the_same_object(seed: int, other: int) -> None:
    scope = Everything(seed).scope(4)
    again = Rewritten(other).scope(scope)
    assert intern_scope(again) is intern_scope(scope), f"{show(scope)}\n{show(again)}"


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**40), other=st.integers(0, 2**40))
def test_what_is_one_object_is_one_function(seed: int, other: int) -> None:
    scope = Everything(seed).scope(3, (2, 2) if seed % 2 else None)
    for changed in (Mistaken(other).scope(scope), swapped(scope)):
        if intern_scope(changed) is intern_scope(scope):
            assert agree(scope, changed, Rationals(other)), f"{show(scope)}\n{show(changed)}"


@pytest.mark.nightly(every=4)
@pytest.mark.parametrize("sample", declared_samples(), ids=str)
def test_another_way_of_writing_an_operator_is_the_same_object(sample: Sample) -> None:
    for scope in expressions(sample):
        for seed in range(3):
            again = Rewritten(seed).scope(scope)
            assert intern_scope(again) is intern_scope(scope), f"{show(scope)}\n{show(again)}"


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**40))
def test_nested_scopes_stay_and_are_interned(seed: int) -> None:
    form = intern_scope(Everything(seed).scope(4))
    assert all(intern_scope(inner) is inner for inner in scopes(form))


def pairs() -> dict[str, tuple[Scope, Scope, bool]]:
    """Two scopes, and whether they are one object."""
    x, w = X, W
    one = compute((4,), lambda i: w[i])

    def of(body: object) -> Scope:
        return compute((4,), lambda i: body)

    return {
        "nested reductions": (
            of(total((4,), lambda r: total((4,), lambda s: x[r, s]))),
            of(total((4, 4), lambda r, s: x[s, r])),
            True,
        ),
        "transposed": (
            compute((4, 4), lambda i, j: x[i, j]), compute((4, 4), lambda i, j: x[j, i]), False
        ),
        "two monoids": (
            of(fold("max", (4,), lambda r: total((4,), lambda s: x[r, s]))),
            of(total((4,), lambda s: fold("max", (4,), lambda r: x[r, s]))),
            False,
        ),
        "a factor between": (
            of(total((4,), lambda r: w[r] * total((4,), lambda s: x[r, s]))),
            of(total((4, 4), lambda r, s: w[r] * x[r, s])),
            False,
        ),
        "not idempotent": (of(call("max", w[0], w[0])), of(w[0]), False),
        "constants": (compute((4,), lambda i: w[i] + 1 + 2), compute((4,), lambda i: 3 + w[i]), True),
        "rationals": (of(w[0] + Fraction(1, 2) + Fraction(1, 2)), of(w[0] + 1), True),
        "a real 1 and an integer 1": (of(call("add", Fraction(1, 2), Fraction(1, 2))), of(1), False),
        "true and 1": (of(Const(True)), of(1), False),
        "an empty range": (of(total((0,), lambda r: w[0])), of(0), False),
        "one point": (of(total((1,), lambda r: w[r])), of(w[0]), False),
        "zero times": (of(w[0] * 0), of(0), False),
        "difference": (of(w[0] - w[1]), of(w[1] - w[0]), False),
        "neutral": (of(call("min", float("inf"), w[0]) / 1 - 0), of(w[0]), True),
        "not neutral": (of(call("max", float("inf"), w[0])), of(w[0]), False),
        "guards": (
            compute((4, 4), lambda i, j: where((i - 1, j - 2), w[i], 0)),
            compute((4, 4), lambda i, j: where((j - 2, 3, i - 1, j - 2), w[i], 0)),
            True,
        ),
        "decided": (of(where((3, -1), w[0], w[1])), of(w[1]), True),
        "a type that a branch gives": (
            of(where((0,), 7, Tensor("n", (), "int8")[()]) / 2), of(Fraction(7, 2)), False
        ),
        "outside": (
            compute((4,), lambda i: w.padded(0)[i + 1]), compute((4,), lambda i: w.padded(1)[i + 1]), False
        ),
        "bounds of symbols": (compute((N,), lambda i: 1), compute((POSITIVE,), lambda i: 1), False),
        "bounds of symbols inside": (
            of(total((N,), lambda r: w[0])), of(total((POSITIVE,), lambda r: w[0])), False
        ),
        "types": (of(w[0]), of(Tensor("w", (4,), "float64")[0]), False),
        "without zeros": (of(w[0]), of(Tensor("w", (4,), "float32", True)[0]), False),
        "tables": (of(table([1, 2])[0]), of(1), True),
        "other tables": (
            compute((2,), lambda i: table([1, 2])[i]), compute((2,), lambda i: table([2, 1])[i]), False
        ),
        "a nested copy": (compute((4,), lambda i: one[i]), one, False),
        "symbolic": (
            compute((N,), lambda i: total((N,), lambda r: V[i, r] * N + 2 * i)),
            compute((N,), lambda i: total((N,), lambda r: 2 * i + N * V[i, r])),
            True,
        ),
        "casts": (of(call("to_int8", w[0])), of(call("to_int16", w[0])), False),
        "exclusive or": (
            of(call("xor", call("lt", w[0], w[1]), call("lt", w[2], w[3]))),
            of(call("xor", call("lt", w[2], w[3]), call("lt", w[0], w[1]))),
            True,
        ),
    }


@pytest.mark.parametrize("name", pairs())
def test_pairs(name: str) -> None:
    left, right, same = pairs()[name]
    assert (intern_scope(left) is intern_scope(right)) == same, (
        f"{show(intern_scope(left))}\n{show(intern_scope(right))}"
    )
    assert (fingerprint(left) == fingerprint(right)) == same


def test_an_axis_that_is_bound_again_is_another() -> None:
    r = Axis("r", 4)
    inner = Reduce("sum", (r,), W[polynomial(r)])
    plain = Scope((), total((4,), lambda a: W[a] * total((4,), lambda b: W[b])))
    assert intern_scope(
        Scope((), Reduce("sum", (r,), Call("mul", (W[polynomial(r)], inner))))
    ) is intern_scope(plain)
    twice = Scope((), Reduce("sum", (r,), inner))  # 4 times the sum
    assert intern_scope(twice) is intern_scope(Scope((), total((4, 4), lambda a, b: W[b])))
    assert intern_scope(twice) is not intern_scope(Scope((), inner))
    assert agree(intern_scope(twice), Scope((), 4 * inner), Rationals())


@pytest.mark.parametrize("together", [True, False])
def test_axes_of_one_name_are_told_apart(together: bool) -> None:
    small, large = Axis("i", 2), Axis("i", 4)

    def scope(a: Axis, b: Axis, *indices: Axis) -> Scope:
        item = X[tuple(map(polynomial, indices))]
        inner = Reduce("sum", (a, b), item) if together else Reduce("sum", (a,), Reduce("sum", (b,), item))
        return compute((4,), lambda k: Call("add", (W[k], inner)))

    one, other = scope(small, large, small, large), scope(small, large, large, small)
    assert intern_scope(one) is not intern_scope(other)
    assert intern_scope(one) is intern_scope(scope(large, small, small, large))
    assert agree(one, intern_scope(one), Rationals()) and agree(other, intern_scope(other), Rationals())
    kept = Scope((small, large), X[polynomial(small), polynomial(large)])
    assert intern_scope(kept) is intern_scope(compute((2, 4), lambda i, j: X[i, j]))


def test_many_axes_that_nothing_tells_apart() -> None:
    def ring(order: list[int]) -> Scope:
        def body(*axes: object) -> object:
            found = [X[axes[a], axes[b]] for a, b in zip(order, order[1:] + order[:1], strict=True)]
            return call("mul", call("mul", found[0], found[1]), call("mul", found[2], found[3]))

        return Scope((), total((4,) * 4, body))

    assert intern_scope(ring([0, 1, 2, 3])) is intern_scope(ring([2, 0, 3, 1]))


def test_two_tensors_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="one name"):
        intern_scope(compute((4,), lambda i: W[i] + Tensor("w", (2,))[0]))


def test_nesting_may_be_deep_and_shared() -> None:
    def turned(source: Tensor | Scope) -> Scope:
        return compute((4,), lambda i: source[3 - i] + source[i])

    scope: Tensor | Scope = W
    other: Tensor | Scope = W
    for _ in range(300):
        scope, other = compute((4,), lambda i, s=scope: s[i] + s[3 - i]), turned(other)
    assert isinstance(scope, Scope) and isinstance(other, Scope)
    assert intern_scope(scope) is intern_scope(other)


@pytest.mark.nightly
def test_nothing_is_kept_alive() -> None:
    gc.collect()
    before = len(intern._scopes), len(intern._entries)
    for n in range(50):
        intern_scope(compute((4,), lambda i, n=n: W[i] + (1000 + n)))
    gc.collect()
    assert (len(intern._scopes), len(intern._entries)) <= (before[0] + 2, before[1] + 4)


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    texts = [show(Everything(seed).scope(3)) for seed in range(20)]
    code = (
        "import sys\nfrom random_scopes import Everything\n"
        "from tensaurus.expr.normal.intern import fingerprint\n"
        "for seed in range(20): print(fingerprint(Everything(seed).scope(3)))"
    )
    env = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    found = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert found.stdout.split() == [fingerprint(Everything(seed).scope(3)) for seed in range(20)], texts


def test_a_read_of_a_scope_names_what_it_reads() -> None:
    inner = compute((4,), lambda i: W[i] * 2)
    outer = intern_scope(compute((4,), lambda i: inner[i]))
    assert isinstance(outer.body, Read) and outer.body.source is intern_scope(inner)
    assert intern_scope(parse(show(outer), {"w": W})) is outer
