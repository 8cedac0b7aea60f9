"""Rules that a user brings are verified first: wrong and undecided rules are refused, with the reason."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

import numpy as np
import onnx
import pytest
from explored import equal
from typer.testing import CliRunner

import tensaurus
from tensaurus.app.cli.app import app
from tensaurus.graph.ir.node import apply, constant, source
from tensaurus.ops import TensorType, registry
from tensaurus.rules.language.rule import Rule, library
from tensaurus.rules.test import user_rules as own
from tensaurus.rules.test.user_rules import load_user_rules
from tensaurus.rules.test.verify_rule import verify
from tensaurus.system.errors import TensaurusError

UNKNOWN = "exps: Mul(Exp(x), Exp(y)) => Exp(Add(x, y))"


def written(folder: Path, *lines: str) -> Path:
    file = folder / "mine.rules"
    file.write_text("\n".join(lines))
    return file


def test_a_wrong_rule_is_refused_and_shown(tmp_path: Path) -> None:
    file = written(tmp_path, "clamp: Min(x, 1000000) => x | proved(by me, on a good day)")
    with pytest.raises(TensaurusError, match=r"mine.rules: rule clamp is wrong: 1000000 is not 1000000\.0"):
        load_user_rules([file], library())


def test_an_undecided_rule_is_refused_unless_allowed(tmp_path: Path) -> None:
    file = written(tmp_path, UNKNOWN)
    with pytest.raises(TensaurusError, match="rule exps could be neither proved nor refuted"):
        load_user_rules([file], library())
    notes: list[str] = []
    (rule,) = load_user_rules([file], library(), allow_unproved=True, note=notes.append)
    assert rule.evidence is not None and rule.evidence.kind == "unproved"
    assert len(notes) == 1 and "exps is used although it could be neither" in notes[0]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("add-zero: Add(x, 0) => x", "a rule named add-zero already exists"),
        ("odd: Add(x, 0) => x where rnk(x) == 1", "unknown function rnk; did you mean rank?"),
        ("odd: Ad(x, 0) => x", "unknown operator Ad"),
        ("odd Add(x, 0)", "not of the form NAME: LEFT => RIGHT"),
    ],
)
def test_an_error_names_the_line_that_cannot_be_parsed(tmp_path: Path, line: str, reason: str) -> None:
    with pytest.raises(TensaurusError, match="mine.rules: ") as error:
        load_user_rules([written(tmp_path, line)], library())
    assert reason in str(error.value) and "\n" not in str(error.value)


def test_user_rules_are_used(tmp_path: Path) -> None:
    """The library has no rule about two sums of hyperbolic sines."""
    lines = ["mine: Add(Sinh(x), Sinh(x)) => Mul(Sinh(x), 2)", "neg: Neg(Tan(x)) => Tan(Neg(x))"]
    file = written(tmp_path, *lines)
    assert not [rule for rule in library(ops=()) if "Sinh" in rule.law]
    with pytest.raises(TensaurusError, match="rule neg could be neither proved nor refuted"):
        load_user_rules([file], library())
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> net (float[64,256] x) => (float[64,256] y)'
        " { a = Sinh(x)  b = Sinh(x)  c = Add(a, b)"
        " half = Constant <value = float {0.5}> ()  y = Mul(c, half) }"
    )
    result = tensaurus.optimize(
        model, steps=5, rules=[file], allow_unproved=True, database=tmp_path / "db.sqlite", threads=1
    )
    assert result.summary.equivalence.passed  # whether it is used is the machine's to say
    own = load_user_rules([file], library(), allow_unproved=True)
    leaf = source("x", TensorType("float32", (2, 3)))
    sinh = apply(registry["Sinh"], [leaf], {})
    two = constant(np.asarray(2.0, np.float32))
    twice, scaled = apply(registry["Add"], [sinh, sinh], {}), apply(registry["Mul"], [sinh, two], {})
    proof = equal(twice, scaled, own)
    assert proof is not None and [equation.name for equation in proof.equations] == ["mine"]
    assert proof.equations[0].evidence.kind == "proved" and equal(twice, scaled, own[1:]) is None
    x = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    (y,) = result.session().run(None, {"x": x})
    np.testing.assert_allclose(y, np.sinh(x), rtol=1e-5)


def test_the_command_line_refuses_a_rule_in_one_line(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17]> net (float[2] x) => (float[2] y) { y = Relu(x) }'
        ),
        model,
    )
    file = written(tmp_path, "clamp: Min(x, 1000000) => x")
    output = tmp_path / "out.onnx"
    found = CliRunner().invoke(app, ["optimize", str(model), "-o", str(output), "--rules", str(file)])
    assert found.exit_code != 0 and not output.exists()


def test_a_rule_whose_verification_never_ends_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verified(rule: Rule) -> object:
        while rule.name == "endless":
            pass
        return verify(rule)

    monkeypatch.setattr(own, "verify", verified)
    file = written(tmp_path, "known: Neg(Neg(Neg(x))) => Neg(x)", "endless: Neg(Neg(Abs(x))) => Abs(x)")
    notes: list[str] = []
    made = load_user_rules([file], library(), note=notes.append, deadline=monotonic() + 3)
    assert [rule.name for rule in made] == ["known"]
    assert notes == ["rule endless is not used: verifying it takes longer than the time limit allows"]
