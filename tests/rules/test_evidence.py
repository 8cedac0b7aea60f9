"""Evidence is right: a value that a field lacks is unknown there, and no two unknowns are equal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tensaurus.check.program.field_check import check_field
from tensaurus.egraph.match.ruleset import Ruleset
from tensaurus.expr.evaluate.fields import Field, PrimeField
from tensaurus.expr.evaluate.two_point_field import Laws, PrimeFieldPairs
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.rules.language import evidence
from tensaurus.rules.language.evidence import Axiom, Disproved, Evidence, Proved, Unproved, parse_evidence
from tensaurus.rules.language.rule import Rule, library, read_rules
from tensaurus.rules.test.annotate_files import annotate_rules
from tensaurus.rules.test.verify_rule import Refuted, verify

FINITE: list[Field] = [
    PrimeField(1),
    PrimeFieldPairs(2),
    PrimeFieldPairs(3, Laws(order=True)),
    PrimeFieldPairs(4, Laws(inverse=True)),
]


@pytest.mark.parametrize("field", FINITE, ids=lambda f: f.name)
def test_a_constant_that_a_field_lacks_equals_no_other_value(field: Field) -> None:
    strange = field.lift(np.array([np.inf, -np.inf, np.nan]))
    numbers = field.lift(np.array([0.0, 1.0, -1.0, 2.0, 0.5, 3.4e38, 1e-45]))
    assert np.unique(np.concatenate([strange, numbers])).size == 10
    drawn = field.random([1000], np.random.default_rng(0))
    for value in strange:
        for fn in ("add", "sub", "mul"):
            found = field.call(fn, [drawn, np.full(1000, value)])
            assert not np.isin(found, strange).any() and np.unique(found).size == 1000
    assert field.constant(float("inf")) == strange[0] and field.constant(float("-inf")) == strange[1]
    assert field.call("neg", [strange[:1]]) == strange[1]


def pooled(value: str) -> Program:
    """Return a max-pool window over padding of this value."""
    return program(
        "net (float[1,1,4,4] x) => (float[1,1,4,4] y) { p = Constant <value_ints = [0,0,1,1,0,0,1,1]> ()"
        f" v = Constant <value = float {{{value}}}> ()  z = Pad(x, p, v)"
        " y = MaxPool <kernel_shape = [3, 3]> (z) }"
    )


def program(text: str) -> Program:
    return import_model(onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 18]> ' + text))


def test_padding_with_minus_infinity_differs_from_padding_with_zeros() -> None:
    own = program(
        "net (float[1,1,4,4] x) => (float[1,1,4,4] y)"
        " { y = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x) }"
    )
    assert not check_field(own, pooled("0")).passed
    assert not check_field(own, pooled("-3.4e38")).passed
    assert not check_field(pooled("0"), pooled("1")).passed


def test_a_rewrite_that_depends_on_order_is_replayed_in_float64() -> None:
    """Over GF(p) a random order has no bound; float64 has the order of the reals."""
    from tensaurus.check.program.replay import refute_equation
    from tensaurus.graph.ir.node import apply, source
    from tensaurus.ops import TensorType, registry
    from tensaurus.rules.language.equation import equation_of_rewrite
    from tensaurus.rules.language.rule import parse_rule

    x = source("x", TensorType("float32", (2, 3)))
    relu = apply(registry["Relu"], [x], {})
    twice = apply(registry["Relu"], [relu], {})
    (right,) = parse_rule("right: Relu(Relu(x)) => Relu(x) | tested(gf, by no one)")
    (wrong,) = parse_rule("wrong: Relu(Relu(x)) => x | tested(gf, by no one)")
    assert refute_equation(equation_of_rewrite(right, (twice,), (relu,))) is None
    assert refute_equation(equation_of_rewrite(wrong, (twice,), (x,))) is not None


@pytest.mark.parametrize(
    ("room", "memory", "replayed"), [(6, 0, True), (5, 767, False), (5, 768, True), (5, 0, False)]
)
def test_an_equation_that_exceeds_memory_is_not_replayed(
    room: int, memory: int, replayed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tensor of 6 elements is replayed if the limit allows it, or the machine has 128 bytes for each."""
    from tensaurus.check.program import replay
    from tensaurus.graph.ir.node import apply, source
    from tensaurus.ops import TensorType, registry
    from tensaurus.rules.language.equation import equation_of_rewrite
    from tensaurus.rules.language.rule import parse_rule

    monkeypatch.setattr(replay, "ALWAYS_REPLAYED_ELEMENTS", room)
    monkeypatch.setattr(replay, "available_memory", lambda: memory)
    x = source("x", TensorType("float32", (2, 3)))
    twice = apply(registry["Neg"], [apply(registry["Neg"], [x], {})], {})
    (law,) = parse_rule("law: Neg(Neg(x)) => x | tested(gf, by no one)")
    reason = replay.refute_equation(equation_of_rewrite(law, (twice,), (x,)))
    assert reason is None if replayed else "of 6 elements needs more memory" in str(reason)


@pytest.mark.parametrize(
    "said",
    [
        Axiom("somebody"),
        Proved("algebra", "all sizes, ranks 1-5"),
        Proved("z3", "all reals, all sizes, all ranks"),
        evidence.Tested("gf", "40 instances, varied dim(x, 0); never a", 2, 59),
        evidence.Tested("gf", "8 instances", 2),
        evidence.Tested("float64", "where it is used"),
        Unproved("allowed by --allow-unproved"),
        Disproved("0 is not 1, at [0] of reals, for x float32[1], p0=(3, 2)"),
    ],
    ids=str,
)
def test_evidence_is_parsed_as_it_is_formatted(said: Evidence) -> None:
    assert parse_evidence(str(said)) == said


def test_evidence_of_every_library_line_survives_parsing() -> None:
    said = [rule.evidence for rule in library() if "off" not in rule.tags]
    assert said and all(isinstance(found, (Axiom, Proved, evidence.Tested)) for found in said)
    for found in said:
        assert parse_evidence(str(found)) == found
        if isinstance(found, evidence.Tested):
            assert found.coverage and (found.trials or found.field == "z3")


UNSOUND = [rule for rule in library() if isinstance(rule.evidence, Disproved)]


@pytest.mark.nightly(every=6)
@pytest.mark.parametrize("rule", UNSOUND, ids=str)
def test_a_rule_kept_as_wrong_is_refuted_and_off(rule: Rule) -> None:
    assert "off" in rule.tags and not Ruleset([rule]).rules
    for seed in (0, 1):
        assert isinstance(verify(replace(rule, evidence=None), seed=seed), Refuted)


def test_a_wrong_rule_is_kept_with_its_counterexample() -> None:
    assert len(UNSOUND) > 12
    wrong = "wrong [off]: Relu(Add(x, y)) => Add(Relu(x), Relu(y))"
    text, refuted = annotate_rules(wrong)
    assert not refuted and " | refuted(" in text
    (rule,) = read_rules(text.splitlines())
    assert isinstance(rule.evidence, Disproved) and annotate_rules(text)[0] == text
    assert annotate_rules(wrong.replace(" [off]", ""))[1]  # what is in use has no such evidence


def test_the_readme_counts_the_proved_rules() -> None:
    rules = [rule for rule in library(ops=()) if "off" not in rule.tags]  # others are of one theorem
    kinds = [rule.evidence.kind for rule in rules if rule.evidence is not None]
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert f"{kinds.count('proved')} of the {len(kinds)} that ship are proved" in readme
    assert kinds.count("proved") >= 0.9 * len(kinds)
