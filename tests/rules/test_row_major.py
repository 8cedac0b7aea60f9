"""Row-major order: which operators keep it, what the theorem proves, and that it proves nothing wrong."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from random import Random

import pytest

from tensaurus.ops import registry
from tensaurus.rules.language.evidence import Proved
from tensaurus.rules.language.rule import Rule, parse_rule
from tensaurus.rules.language.term import Apply, RuleError, Term, parse_terms, show_term
from tensaurus.rules.prove.expression_prover import Methods
from tensaurus.rules.prove.proof import prove
from tensaurus.rules.prove.row_major import keeps_row_major_order, without_order_keepers
from tensaurus.rules.test.verify_rule import Refuted, verify

THEOREM = Proved("algebra", "all sizes, all ranks")


def test_which_operators_keep_the_order_is_read_off_their_expressions() -> None:
    keeping = {name for name, op in registry.items() if keeps_row_major_order(op)}
    assert keeping == {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"}


RIGHT = [
    "Reshape(x, **a) => x",
    "Reshape(Reshape(x, **a), **c) => Reshape(x, **c)",
    "Flatten(Reshape(x, **a), axis=k) => Flatten(x, axis=k)",
    "Reshape(Relu(Reshape(x, **a)), **b) => Relu(Reshape(x, **b))",
    "Reshape(Relu(x), **a) => Relu(x)",
    "Reshape(Mul(x, s), shape=p) <=> Mul(Reshape(x, shape=p), s) where rank(s) == 0",
    "Reshape(Mul(x, s), shape=p) <=> Mul(Reshape(x, shape=p), s) where numel(s) == 1",
    "Reshape(Add(x, y), **a) <=> Add(Reshape(x, **a), Reshape(y, **a)) where shape(x) == shape(y)",
    "Reshape(Add(x, Mul(x, s)), shape=p) => Add(Reshape(x, shape=p), Mul(Reshape(x, shape=p), s))"
    " where rank(s) == 0",
    "Squeeze(Sub(x, 2), axes=a) <=> Sub(Squeeze(x, axes=a), 2)",
    "Reshape(Clip(x, s, t), **a) => Clip(Reshape(x, **a), s, t) where rank(s) == 0, rank(t) == 0",
    # what is broadcast makes more elements than the other side has
    "Add(Reshape(x, shape=s), x) => Add(x, x)",
    "Add(Reshape(x, shape=s), Reshape(x, shape=t)) => Reshape(Add(x, x), shape=s)",
    "Reshape(Mul(x, y), **a) => Mul(x, Reshape(y, **a)) where shape(x) == shape(y)",
    "Flatten(Add(x, x), axis=k) => Add(Squeeze(x, axes=(0,)), x)",
]


@pytest.mark.nightly(every=5)
@pytest.mark.parametrize("law", RIGHT)
def test_laws_within_the_theorem_are_proved_for_all_ranks(law: str) -> None:
    for rule in parse_rule(f"law: {law}"):
        assert without_order_keepers(rule) is not None
        assert prove(rule) == THEOREM
        assert not isinstance(verify(rule, 24, steps=0), Refuted)


OTHERS = [
    "Reshape(Add(x, y), **a) => Add(Reshape(x, **a), y)",  # y may be broadcast
    "Reshape(Add(x, y), **a) => Add(Reshape(x, **a), Reshape(y, **a))",
    "Add(Reshape(x, shape=s), y) => Add(x, y)",  # y may have more elements
    "Add(Reshape(x, shape=s), x) => Sub(Reshape(x, shape=s), Neg(x))",  # broadcast on both sides
    "Reshape(Transpose(x, **a), **b) => Reshape(x, **b)",
    "Reshape(ReduceSum(x, axes=a), **b) => ReduceSum(x, axes=a)",
    "Reshape(x, **a) => Neg(Neg(x))",  # a variable is left
    # 0 copies the size at its place, which a number of three dimensions moves
    "Add(Reshape(Mul(x, s), shape=p), Reshape(x, shape=p))"
    " => Reshape(Add(Mul(x, s), x), shape=p) where numel(s) == 1",
]


@pytest.mark.parametrize("law", OTHERS)
def test_the_theorem_does_not_apply_to_other_laws(law: str) -> None:
    (rule,) = parse_rule(f"law: {law}")
    assert without_order_keepers(rule) is None


@pytest.mark.parametrize(
    "law",
    [
        "Reshape(Relu(x), **a) => Reshape(x, **a)",
        "Reshape(Sub(x, y), **a) => Sub(Reshape(y, **a), Reshape(x, **a)) where shape(x) == shape(y)",
        "Reshape(Mul(x, s), **a) => Reshape(x, **a) where numel(s) == 1",
        "Reshape(Sub(x, Neg(y)), **a) => Sub(x, Reshape(y, **a)) where shape(x) == shape(y)",
    ],
)
def test_a_law_that_differs_at_rank_0_is_not_proved(law: str) -> None:
    (rule,) = parse_rule(f"law: {law}")
    assert without_order_keepers(rule) is not None
    assert not isinstance(prove(rule), Proved) and isinstance(verify(rule, 24), Refuted)


def test_needed_conditions_are_kept() -> None:
    (rule,) = parse_rule("law: Reshape(Relu(x), **a) => Reshape(x, **a) where positive(x)")
    left = without_order_keepers(rule)
    assert left is not None and show_term(left.lhs[0]) == "Relu(x)" and left.where == rule.where


def drawn(rng: Random, depth: int) -> str:
    """Draw a term of x, y and the number s."""
    if depth == 0 or rng.random() < 0.1:
        return rng.choice("xxyys")
    inner = drawn(rng, depth - 1)
    match rng.choice(["Reshape", "Reshape", "Flatten", "Unary", "Binary", "Binary", "Binary"]):
        case "Reshape":
            return f"Reshape({inner}, shape={rng.choice('pq')})"
        case "Flatten":
            return f"Flatten({inner}, axis=k)"
        case "Unary":
            return f"{rng.choice(['Neg', 'Relu'])}({inner})"
    return f"{rng.choice(['Add', 'Mul', 'Sub'])}({inner}, {drawn(rng, depth - 1)})"


def without_reshapes(term: str) -> str:
    """Return the term without operators that keep the order."""
    (root,) = parse_terms(term)

    def left(part: Term | None) -> Term | None:
        if not isinstance(part, Apply):
            return part
        if keeps_row_major_order(part.op):
            return left(part.args[0])
        return Apply(part.op, tuple(map(left, part.args)), part.attrs, part.rest)

    return show_term(left(root))


def laws(rng: Random) -> Iterator[Rule]:
    """Draw laws that compute a term in one shape: right where conditions on shapes allow it."""
    conditions = ["shape(x) == shape(y)", "numel(s) == 1", "rank(s) == 0", "numel(y) == 1"]
    while True:
        left = drawn(rng, 3)
        inner = without_reshapes(left)
        right = rng.choice([inner, f"Reshape({inner}, shape={rng.choice('pq')})", drawn(rng, 2)])
        where = ", ".join(rng.sample(conditions, rng.randrange(3)))
        try:
            (rule,) = parse_rule(f"law: {left} => {right}{' where ' + where if where else ''}")
        except (RuleError, ValueError):  # a side is a variable, or the right one has others
            continue
        yield rule


@pytest.mark.nightly
def test_no_numbers_refute_what_the_theorem_proves() -> None:
    claimed = (rule for rule in islice(laws(Random(5)), 4000) if without_order_keepers(rule) is not None)
    proved = (rule for rule in claimed if isinstance(prove(rule, 300, Methods.FORMS), Proved))
    tried = list(islice(proved, 16))
    assert len(tried) == 16
    for rule in tried:
        assert not isinstance(verify(rule, 6, steps=0), Refuted), rule.text
