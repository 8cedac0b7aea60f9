"""Whatever branch is planted in a law, and wherever: no law is proved that is wrong in one of them.

More of them: `python tests/rules/test_planted.py SEED`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from random import Random

import pytest
from planted import JOINED, LARGEST, PLACES, SIZES, answers, laws

from tensaurus.rules.language.evidence import Proved
from tensaurus.rules.language.rule import parse_rule
from tensaurus.rules.prove.proof import prove

EACH = 3  # questions at each place
RIGHT = 0.7  # at least this share of the right laws is proved


def questions(rng: Random, count: int) -> Iterator[str]:
    """Yield single questions, and combinations of two."""
    for _ in range(count):
        pair = rng.sample(SIZES, 2)
        yield rng.choice(JOINED).format(*pair) if rng.random() < 0.4 else pair[0]


def planted(place: str, seed: int, count: int) -> list[tuple[str, bool]]:
    """Return laws with questions at a position, and whether they are wrong."""
    rng = Random(f"{place} {seed}")
    return [law for question in questions(rng, count) for law in laws(question, place)]


def proved(law: str) -> bool:
    (rule,) = parse_rule(f"planted: {law}")
    return isinstance(prove(rule), Proved)


@pytest.mark.nightly(every=2)
@pytest.mark.parametrize("place", PLACES)
def test_no_law_is_proved_that_is_wrong_in_a_branch(place: str) -> None:
    every = planted(place, 0, EACH)
    assert any(wrong for _, wrong in every)
    assert [law for law, wrong in every if wrong and proved(law)] == []
    right = [law for law, wrong in every if not wrong]
    assert sum(map(proved, right)) >= RIGHT * len(right)


def test_both_answers_of_every_question_occur() -> None:
    assert all(answers(question, lambda n, m: n <= LARGEST >= m) == {True, False} for question in SIZES)


def test_branches_are_planted_into_every_part_of_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    import rule_mutations
    from rule_mutations import branched, fate

    (rule,) = parse_rule("leaky: Relu(x) => LeakyRelu(x, alpha=0) where rank(x) == 2")
    condition, alpha = made = list(branched(rule))
    assert [m.rule for m in branched(rule)] == [m.rule for m in made] and condition.rule != alpha.rule
    assert "rank(x) == 2 or " in condition.what and alpha.what.startswith("alpha: 0 -> 1 if ")
    assert fate(condition, 10, 2000)[0] in ("proved", "tested")  # it holds of every rank
    assert fate(alpha, 10, 2000)[0] == "refuted"
    monkeypatch.setattr(rule_mutations, "_fate", lambda *given: ("proved", "planted"))
    assert fate(alpha, 10, 2000)[0] == "missed"


if __name__ == "__main__":
    for place in PLACES:
        for law, wrong in planted(place, int(sys.argv[1]), 60):
            if proved(law) and wrong:
                print(f"proved, and wrong: {law}", flush=True)
