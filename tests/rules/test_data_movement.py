"""Operators that move elements change places with elementwise ones: which do, and what that proves."""

from __future__ import annotations

from collections import Counter

import pytest

from tensaurus.finders.synthesis.movement_rules import movement_rule_lines
from tensaurus.ops import registry
from tensaurus.rules.language.evidence import Proved
from tensaurus.rules.language.rule import Rule, library, parse_rule
from tensaurus.rules.language.term import RuleError
from tensaurus.rules.prove.data_movement import is_exchange, moved_inputs
from tensaurus.rules.prove.pointwise import is_elementwise_for_all_types
from tensaurus.rules.prove.proof import prove
from tensaurus.rules.test.instances import instances
from tensaurus.rules.test.verify_rule import Refuted, verify

ALONE = {rule.name for rule in library(ops=())}
MANY = [rule for rule in library() if rule.name not in ALONE]


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("Transpose", {0}),
        ("Reshape", {0}),
        ("Concat", {0}),
        ("Split", {0}),
        ("Gather", {0}),  # indices are no elements of the result
        ("OneHot", {1}),
        ("Where", {1, 2}),
        ("Pad", set()),  # writes a number
        ("Relu", set()),
        ("Cast", set()),
        ("MaxPool", set()),
        ("ReduceMax", set()),
        ("CumSum", set()),
        ("Resize", set()),
    ],
)
def test_moved_inputs_follow_from_the_expression(name: str, inputs: set[int]) -> None:
    assert moved_inputs(registry[name]) == inputs


def test_elementwise_is_tested_for_every_type() -> None:
    taken = {
        name
        for name, op in registry.items()
        if op.inputs and is_elementwise_for_all_types(op, (True,) + (False,) * (len(op.inputs) - 1))
    }
    assert {"Relu", "Not", "Cast", "IsNaN", "Abs"} <= taken
    assert not {"Softmax", "CumSum", "Transpose", "ReduceSum", "Pad"} & taken


THEOREM = Proved("algebra", "all sizes, all ranks")
RIGHT = [
    "Transpose(Relu(x), **a) <=> Relu(Transpose(x, **a))",
    "Concat(Exp(x), Exp(y), **a) <=> Exp(Concat(x, y, **a))",
    "Reshape(Add(x, y), **a) <=> Add(Reshape(x, **a), Reshape(y, **a)) where shape(x) == shape(y)",
    "Split(Mul(x, s), **a)[i] <=> Mul(Split(x, **a)[i], s) where rank(s) == 0",
    "Slice(Sub(3, x), **a) <=> Sub(3, Slice(x, **a))",
]
WRONG = [
    "Transpose(Relu(x), **a) => Exp(Transpose(x, **a))",
    "Pad(Sigmoid(x), **a) => Sigmoid(Pad(x, **a))",
    "Transpose(Softmax(x, **b), **a) => Softmax(Transpose(x, **a), **b)",
    "Concat(Add(x, s), Add(y, t), **a) => Add(Concat(x, y, **a), s) where rank(s) == 0, rank(t) == 0",
    "Concat(Sub(x, s), Sub(s, y), **a) => Sub(Concat(x, y, **a), s) where rank(s) == 0",
    "Concat(Elu(x, alpha=a), Elu(y, alpha=b), axis=0) => Elu(Concat(x, y, axis=0), alpha=a)",
    "Split(Neg(x), axis=0, split=s)[0] => Neg(Split(x, axis=0, split=s)[1])",
    "Slice(Neg(x), starts=(1,), ends=(2,), axes=(0,)) => Neg(Slice(x, starts=(0,), ends=(1,), axes=(0,)))",
    "Reshape(Sub(x, y), **a) => Sub(Reshape(y, **a), Reshape(x, **a)) where shape(x) == shape(y)",
]


@pytest.mark.parametrize("law", RIGHT)
def test_an_exchange_is_proved_at_once(law: str) -> None:
    for rule in parse_rule(f"law: {law}"):
        assert is_exchange(rule)
        assert verify(rule, 12) == THEOREM


@pytest.mark.parametrize("law", WRONG)
def test_a_law_that_is_no_exchange_is_not_proved_by_the_theorem(law: str) -> None:
    (rule,) = parse_rule(f"law: {law}")
    assert not is_exchange(rule)
    assert isinstance(verify(rule, 12), Refuted)


def test_the_theorem_needs_equal_shapes() -> None:
    """x of shape [2, 1] and y of shape [3] must not be reshaped separately."""
    (rule, _) = parse_rule("law: Reshape(Add(x, y), **a) <=> Add(Reshape(x, **a), Reshape(y, **a))")
    assert not is_exchange(rule)


def test_shipped_exchanges_are_proved_and_cover_every_moving_operator() -> None:
    one_theorem = [rule for rule in MANY if rule.evidence == THEOREM]
    generated = [rule for rule in one_theorem if rule.tags >= {"any", "explore", "long"}]
    assert len(generated) > 3000 and all(map(is_exchange, generated))
    movers = Counter(rule.name.split("-of-")[0] for rule in generated)
    named = {op.name.lower() for op in registry.values() if moved_inputs(op)}
    assert set(movers) == named - {"identity"}


@pytest.mark.nightly(every=8)
@pytest.mark.parametrize("rule", MANY[::151], ids=str)
def test_a_law_of_several_operators_holds_for_each(rule: Rule) -> None:
    assert not isinstance(verify(rule, 6, steps=0), Refuted)
    assert rule.law in rule.text and "for f in" not in rule.law


def test_nearly_all_exchanges_are_tried_with_numbers() -> None:
    """Few examples have booleans and indices, or three tensors of one shape."""
    some = MANY[::211]
    tried = [rule for rule in some if next(instances(rule, 1), None) is not None]
    assert len(tried) > 0.8 * len(some)


def test_an_exchange_that_others_derive_is_left_out() -> None:
    law = "Transpose(Relu(x), **a) <=> Relu(Transpose(x, **a))"
    others = [], parse_rule(f"own [any]: {law}"), parse_rule(f"own: {law}")
    every, rest, floats = map(movement_rule_lines, others)

    def said(of: list[str]) -> set[str]:
        (line,) = (line for line in of if line.startswith("transpose-of-each "))
        return set(line.split(" for f in ")[1].split(" | ")[0].split())

    assert said(every) - said(rest) == {"Relu"} and len(every) == len(rest)
    assert floats == every  # it says nothing of integers


def test_a_line_is_a_rule_for_each_operator() -> None:
    line = "law [long]: f(Neg(x)) <=> Neg(f(x)) where rank(x) == 2 for f in Tanh Erf | axiom(symmetry)"
    rules = parse_rule(line)
    assert [rule.name for rule in rules] == ["law-tanh", "law-tanh-back", "law-erf", "law-erf-back"]
    assert rules[2].law == "Erf(Neg(x)) <=> Neg(Erf(x)) where rank(x) == 2" and len(rules[2].where) == 1
    assert [rule.name for rule in parse_rule(line, {"Erf"})] == ["law-erf", "law-erf-back"]
    with pytest.raises(RuleError, match="unknown operator Nothing"):
        parse_rule("law: f(Neg(x)) => x for f in Nothing")


def test_a_rule_whose_simplest_form_does_not_type_is_not_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Selected booleans have no canonical form yet: the result is a reason, not a traceback."""
    monkeypatch.setattr("tensaurus.rules.prove.proof.is_exchange", lambda rule: False)
    alike = "shape(x) == shape(y), shape(x) == shape(z), shape(w) == shape(u), shape(w) == shape(v)"
    (rule,) = parse_rule(
        "law [any]: Concat(Where(x, y, z), Where(w, u, v), **a)"
        f" => Where(Concat(x, w, **a), Concat(y, u, **a), Concat(z, v, **a)) where {alike}"
    )
    assert "does not type" in prove(rule).reason  # type: ignore[union-attr]


def test_indices_are_drawn_within_bounds() -> None:
    right, wrong = (
        parse_rule(f"law [any]: Gather(Gather(x, i, axis=0), j, axis=0) => Gather(x, {text}, axis=0)")[0]
        for text in ("Gather(i, j, axis=0)", "Gather(i, Neg(j), axis=0)")
    )
    assert isinstance(verify(right, 12), Proved)
    assert isinstance(verify(wrong, 12), Refuted)
