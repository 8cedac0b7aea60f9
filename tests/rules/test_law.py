"""How laws are written: axes from the end, numbers of rank 0; and proofs by the algebra alone, without Z3."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensaurus.finders.synthesis.journal import Journal
from tensaurus.finders.synthesis.law import state_law
from tensaurus.finders.synthesis.operator_use import Use
from tensaurus.finders.synthesis.terms import Application, Term, Variable
from tensaurus.finders.synthesis.world import World
from tensaurus.ops import Untypable
from tensaurus.rules.language.evidence import Proved
from tensaurus.rules.language.rule import parse_rule
from tensaurus.rules.prove.expression_prover import Methods, NotProved
from tensaurus.rules.test.verify_rule import Refuted, Undecided, verify

WORLD = World(
    "slices",
    ("f32[5,4]", "f32[4,6]", "f32[5,6]", "f32[2,4]", "f32[2,6]", "f32[4,5]", "f32[5]", "f32[]"),
    (1, 1, 0, 0, 0, 0, 0, 1),
    (
        "Add",
        "MatMul",
        "ReduceSum axes=(1,) keepdims=0",
        "Concat axis=0",
        "Softmax axis=1",
        "Transpose perm=(1,0)",
        "Slice starts=(1,) ends=(3,) axes=(0,)",
    ),
    size=2,
)
X, Y, S = Variable(0, 0), Variable(1, 0), Variable(7, 0)


def call(use: Use, *args: Term) -> Application:
    """Return the use on these arguments."""
    return Application(use, args)


def used(name: str, *args: Term) -> Application:
    """Return the world's use of an operator on these arguments."""

    def type_of(term: Term) -> object:
        return WORLD.kinds[term.type] if isinstance(term, Variable) else term.use.result

    (use,) = (u for u in WORLD.uses if u.name == name and [*u.types] == [type_of(a) for a in args])
    return Application(use, args)


@pytest.mark.parametrize(
    ("name", "args", "attribute", "value", "other"),
    [
        ("Slice", (X,), "axes", (0,), (-2,)),
        ("Slice", (X,), "starts", (1,), None),  # any numbers, and none names a dimension
        ("ReduceSum", (X,), "axes", (1,), (-1,)),
        ("ReduceSum", (X,), "keepdims", 0, None),
        ("ReduceSum", (X,), "noop_with_empty_axes", 0, None),
        ("Softmax", (X,), "axis", 1, -1),
        ("Softmax", (X,), "flatten", 0, None),
        ("Transpose", (X,), "perm", (1, 0), None),  # no permutation counts from the end
    ],
)
def test_axes_are_counted_from_the_end(
    name: str, args: tuple[Term, ...], attribute: str, value: object, other: object
) -> None:
    use = used(name, *args)[0]
    assert use.count_from_end(attribute, value) == other


@pytest.mark.nightly
def test_rows_of_a_product_are_those_of_batches() -> None:
    """The axis is written from the end, and the law holds of more ranks than the world has."""
    rows = used("Slice", used("MatMul", X, Y)), used("MatMul", used("Slice", X), Y)
    found = state_law(WORLD, *rows, set())
    assert found.text == (
        "Slice(MatMul(x, y), starts=s0, ends=s1, axes=(-2,)) <=> MatMul(Slice(x, starts=s0, ends=s1,"
        " axes=(-2,)), y) where rank(x) >= 2, rank(y) >= 2"
    )
    assert "algebra" in str(found.evidence) and "ranks 2-5" in str(found.evidence)


BY_Z3 = "law: Sub(Relu(x), Relu(Neg(x))) => x"


def test_the_algebra_alone_asks_no_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    (rule,) = parse_rule(BY_Z3)
    assert str(verify(rule, 12)).startswith("proved(z3")

    def asked(*args: object) -> NotProved:
        raise AssertionError("Z3 is asked")

    monkeypatch.setattr("tensaurus.rules.prove.expression_prover._ask_solver", asked)
    alone = verify(rule, 12, methods=Methods.FORMS)
    assert isinstance(alone, Undecided) and "algebra" in alone.reason


def test_the_algebra_alone_proves_and_refutes() -> None:
    (right,) = parse_rule("law: Mul(x, Add(y, 1)) => Add(Mul(x, y), x)")
    (wrong,) = parse_rule("law: Relu(Add(x, y)) => Add(Relu(x), Relu(y))")
    assert isinstance(verify(right, 12, methods=Methods.FORMS), Proved)
    assert isinstance(verify(wrong, 12, methods=Methods.FORMS), Refuted)


def test_verdicts_with_and_without_the_solver_are_two_questions(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "x")
    relu = World("relu", ("f32[3,2]",), (1,), ("Relu", "Neg", "Sub", "0"), size=3)
    names = {u.name: u for u in relu.uses}
    x: Term = Variable(0, 0)
    less = call(names["Sub"], call(names["Relu"], x), call(names["Relu"], call(names["Neg"], x)))
    found = state_law(relu, less, x, set(), journal)
    assert str(found.evidence).startswith("proved(z3")
    questions = [line for line in (tmp_path / "x.jsonl").read_text().splitlines() if "proof" in line]
    assert any("by algebra" in line for line in questions) and any("by algebra" not in q for q in questions)


@pytest.mark.nightly
def test_a_law_for_any_attributes_claims_more_than_one_without_conditions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Means along the last axis may be broadcast when they are added, and no others."""
    monkeypatch.setattr("tensaurus.finders.synthesis.law.PROOF_STEPS", 2000)
    rows = World("rows", ("f32[3,4]", "f32[3]"), (2, 0), ("Add", "ReduceMean axes=(1,) keepdims=0"))
    mean, add = ([u for u in rows.uses if u.name == name] for name in ("ReduceMean", "Add"))
    plus = {use.result.shape: use for use in add if use.types[0] == use.types[1]}
    x, y = Variable(0, 0), Variable(0, 1)
    sums = call(plus[(3,)], call(mean[0], x), call(mean[0], y)), call(mean[0], call(plus[(3, 4)], x, y))
    assert state_law(rows, *sums, set()).text == (
        "Add(ReduceMean(x, **a), ReduceMean(y, **a)) <=> ReduceMean(Add(x, y), **a)"
        " where shape(x) == shape(y)"
    )


def test_an_operator_may_be_used_at_some_types_alone() -> None:
    types = ("f32[3,4]", "f32[4]", "f32[6,4]")
    alone = World("norms", types, (1, 1, 0), ("LayerNormalization f32[3,4] f32[4] axis=-1",))
    whole = World("norms", types, (1, 1, 0), ("LayerNormalization axis=-1",))
    assert [[str(kind) for kind in use.types] for use in alone.uses] == [["float32[3, 4]", "float32[4]"]]
    with pytest.raises(Untypable):
        _ = World("norms", types, (1, 1, 0), ("LayerNormalization f32[4] f32[3,4] axis=-1",)).uses
    with pytest.raises(ValueError, match="left out"):
        _ = World("norms", types, (1, 1, 0), ("LayerNormalization f32[3,4] - f32[4] axis=-1",)).uses
    assert len(whole.uses) > 1 and alone.uses[0].types in {use.types for use in whole.uses}
