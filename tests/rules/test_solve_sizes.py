"""Sizes that follow from all assumptions together."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from tensaurus.expr.ir.scope import Const, Read, Scope, Tensor
from tensaurus.expr.sizes.open_questions import Question
from tensaurus.expr.sizes.size import Axis, Size, Symbol, atoms, evaluate, largest, polynomial, smallest
from tensaurus.rules.language.evidence import Proved
from tensaurus.rules.language.rule import parse_rule
from tensaurus.rules.prove.expression_prover import Methods
from tensaurus.rules.prove.proof import Unproved, prove
from tensaurus.rules.prove.solve_sizes import solve_maxima
from tensaurus.rules.test.verify_rule import Refuted, verify

SYMBOLS = tuple(Symbol(name, low) for name, low in (("n", 1), ("m", 1), ("s", -(2**62)), ("e", 0)))


def number(size: Size) -> Scope:
    return Scope((), Const(polynomial(size)))


def test_a_slice_as_long_as_its_input_starts_at_0() -> None:
    n, _, s, e = map(polynomial, SYMBOLS)
    length, begin = largest(smallest(e, n) - largest(s, 0), 0), largest(s, 0)
    assumed = {Question("zero", length - n): True}
    pair = solve_maxima((number(begin), number(length)), assumed)
    assert pair is not None and (pair[0].body, pair[1].body) == (Const(0), Const(n))
    # of which less is assumed, nothing is known
    assert solve_maxima((number(begin), number(length)), {Question("zero", length - n): False}) is None


def test_extents_and_sources_are_solved_too() -> None:
    n, _, s, e = map(polynomial, SYMBOLS)
    length = largest(smallest(e, n) - largest(s, 0), 0)
    axis = Axis("i", length)
    scope = Scope((axis,), Read(Tensor("x", (n,)), (polynomial(axis) + largest(s, 0),)))
    pair = solve_maxima((scope, scope), {Question("zero", length - n): True})
    whole = Axis("i", n)
    assert pair is not None and pair[0] == Scope((whole,), Read(Tensor("x", (n,)), (polynomial(whole),)))


def drawn(rng: Random, depth: int) -> Size:
    if depth == 0:
        size: Size = polynomial(rng.choice(SYMBOLS)) if rng.random() < 0.8 else rng.randrange(-1, 3)
        return size
    a, b = drawn(rng, depth - 1), drawn(rng, depth - 1)
    return rng.choice([largest, smallest, lambda p, q: p - q, lambda p, q: p + q])(a, b)  # type: ignore[no-any-return]


def test_solved_sizes_are_right_wherever_the_assumptions_hold() -> None:
    rng, changed = Random(3), 0
    places = [
        dict(zip(SYMBOLS, values, strict=True))
        for values in product(range(1, 5), range(1, 4), range(-3, 5), range(5))
    ]
    for _ in range(400):
        sizes = drawn(rng, 3), drawn(rng, 2)
        subject = polynomial(drawn(rng, 2) - drawn(rng, 1))
        if isinstance(subject, int):
            continue
        kind = rng.choice(["zero", "zero", "nonnegative"])
        assumed = {Question(kind, subject): rng.random() < 0.8}
        pair = solve_maxima((number(sizes[0]), number(sizes[1])), assumed)
        if pair is None:
            continue
        admitted = 0
        for place in places:
            value = evaluate(subject, place.__getitem__)
            if (value == 0 if kind == "zero" else value >= 0) is not next(iter(assumed.values())):
                continue
            admitted += 1
            for before, after in zip(sizes, pair, strict=True):
                assert isinstance(after.body, Const)
                now = evaluate(after.body.value, place.__getitem__)
                assert evaluate(before, place.__getitem__) == now, (assumed, before, after)
        changed += bool(admitted)
    assert changed >= 20


@pytest.mark.parametrize(
    "law",
    [
        "Slice(x, starts=s, ends=e, axes=(0,)) => x",
        "Slice(MatMul(x, y), starts=s, ends=e, axes=(-2,)) => MatMul(x, y)",
        "Slice(MatMul(x, y), starts=s, ends=e, axes=(-1,))"
        " => MatMul(x, Slice(y, starts=s, ends=e, axes=(-2,)))",
    ],
)
def test_slices_that_the_types_determine_are_proved(law: str) -> None:
    (rule,) = parse_rule(f"law: {law}")
    found = prove(rule, 3000)
    assert isinstance(found, Proved)
    assert isinstance(prove(rule, 3000, Methods.FORMS), Unproved)


@pytest.mark.nightly(every=3)
@pytest.mark.parametrize(
    "law",
    [
        # the last rows of four may be all of two
        "Slice(Slice(x, starts=p, ends=q, axes=(-2,)), starts=s, ends=e, axes=(-1,))"
        " => Slice(Slice(x, starts=s, ends=e, axes=(-2,)), starts=p, ends=q, axes=(-2,))",
        # of a batch one is taken, and broadcast
        "Slice(MatMul(x, y), starts=s, ends=e, axes=(-2,))"
        " => MatMul(Slice(x, starts=s, ends=e, axes=(-3,)), y)",
        # a shape with an unknown size is another for tensors of other sizes
        "Add(Reshape(x, **a), Reshape(y, **a)) => Reshape(Add(x, y), **a)",
    ],
)
def test_a_law_that_few_cases_refute_is_refuted(law: str) -> None:
    (rule,) = parse_rule(f"law: {law}")
    assert isinstance(verify(rule), Refuted)


def test_assumptions_may_contradict_each_other_or_divide_by_zero() -> None:
    n, m, s, e = map(polynomial, SYMBOLS)
    for divisor, zero in ((e, e), (s, s + 1)):
        assumed = {Question("zero", zero): True, Question("nonnegative", n - m): True}
        assert solve_maxima((number(largest(n, m) + m // divisor), number(n)), assumed) is None
    never = {Question("nonnegative", n - m): True, Question("nonnegative", n - m - 1): False,
             Question("zero", n - m): False}
    assert solve_maxima((number(largest(n, m)), number(n)), never) is None
    law = (
        "Reshape(Slice(x, starts=s, ends=e, axes=(0,)), shape=p)"
        " => Slice(Reshape(x, shape=p), starts=s, ends=e, axes=(0,)) where rank(x) == 2, len(p) == 2"
    )
    (rule,) = parse_rule(f"law: {law}")
    assert not isinstance(prove(rule, 1500), Proved)


def test_solving_adds_no_symbols() -> None:
    n, m, s, e = map(polynomial, SYMBOLS)
    product_ = largest(n * m, e)
    pair = solve_maxima((number(product_), number(s)), {Question("zero", product_ - n * m): True})
    assert pair is not None and atoms(pair[0].body.value) <= {*SYMBOLS}  # type: ignore[union-attr]
