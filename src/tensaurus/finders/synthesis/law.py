"""A law of terms as a rewrite rule: said as generally as it can be proved.

Terms of a world have types and attributes; a rule has neither, unless a condition asks for them.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import inf

from tensaurus.finders.synthesis.journal import Journal
from tensaurus.finders.synthesis.law_precision import directions
from tensaurus.finders.synthesis.law_text import MATRIX, Saying, attributes_of, call, named, said, sayings
from tensaurus.finders.synthesis.multi_pattern import parted, together
from tensaurus.finders.synthesis.term_order import key, variables
from tensaurus.finders.synthesis.terms import Term
from tensaurus.finders.synthesis.world import World
from tensaurus.rules.language.evidence import Proved, parse_evidence
from tensaurus.rules.language.rule import Rule, parse_rule
from tensaurus.rules.language.term import RuleError
from tensaurus.rules.prove.attribute_domain import MAX_RANK
from tensaurus.rules.prove.expression_prover import Means
from tensaurus.rules.test.verify_rule import Refuted, verify

__all__ = ["Stated", "parts", "state"]

NAMES = "xyzwuvst"
INSTANCES = 12
WRONG = "wrong: "  # so the reason begins where there is a counterexample
STEPS, FEWER = 20_000, 6_000  # of a proof, and of one of a law that is said more generally


@dataclass(frozen=True)
class Stated:
    """What a law is said as: its rules with their evidence, or the reasons why there are none.

    sides  its terms, in the order in which they are said
    """

    text: str
    rules: tuple[Rule, ...] = ()
    evidence: Proved | None = None
    reasons: tuple[str, ...] = ()
    sides: tuple[Term, Term] | None = None

    @property
    def both(self) -> bool:
        """Whether each side may stand for the other."""
        return "<=>" in self.text

    @property
    def wrong(self) -> bool:
        """Whether there is a counterexample of it as it is said with every condition: a zero divisor, say."""
        return bool(self.reasons) and self.reasons[-1].startswith(WRONG)


def state(
    world: World, left: Term, right: Term, known: Container[str], journal: Journal | None = None
) -> Stated:
    """The law as a rule, said as generally as it is proved; what is `known` needs no proof.

    Without conditions, where that holds; else with more and more of what its variables' types suggest.
    In both directions, but for one in which digits are lost or variables are made up.
    """
    first, second = sorted((left, right), key=key, reverse=True)
    forth, back = directions(world, first, second)
    if not (forth and set(variables(second)) <= set(variables(first))):
        first, second, forth, back = second, first, back, forth
    names = {x: NAMES[k] for k, x in enumerate(dict.fromkeys((*variables(first), *variables(second))))}
    if not (forth and set(variables(second)) <= set(variables(first))):
        text = f"{said(first, names, {})} = {said(second, names, {})}"
        return Stated(text, reasons=("the side that is written lacks a variable, or digits in float32",))
    stated = _general(world, sayings(first, second, names, back), names, known, journal or Journal())
    return replace(stated, sides=(first, second))


def parts(
    world: World, left: Term, right: Term, known: Container[str], journal: Journal | None = None
) -> Iterator[tuple[Stated, Term]]:
    """The multi-patterns that the law says, as general as those are proved, and what puts them together."""
    for joined, whole in together(left, right):
        names = {x: NAMES[k] for k, x in enumerate(dict.fromkeys(variables(joined)))}
        ranks = {name: len(world.shapes[x[1]]) for x, name in names.items()}
        ways: list[Saying] = []
        for attributes in attributes_of(joined, whole):
            if named(attributes[call(joined[0])]):  # no part says where the parts lie
                continue
            written = [said(part, names, attributes) for part in joined[1:]]
            whole_said = said(whole, names, attributes)
            both = parted(joined[0], written, whole_said, attributes[call(joined[0])], ranks)
            ways += [Saying(both[0], "=>", both[1])] if both is not None else []
        if ways:
            yield _general(world, ways, names, known, journal or Journal()), joined


def _general(
    world: World,
    ways: Iterable[Saying],
    names: Mapping[Term, str],
    known: Container[str],
    journal: Journal,
) -> Stated:
    """The first saying that the algebra proves for all ranks that are tried, with few conditions.

    What is wrong is refuted soon, and proofs take long: so conditions are added until one is proved.  Where
    none ever is, it is that which is proved for the most ranks; but what is said of all attributes is, where
    steps end its proof early, still more than what is said of some.  Z3 is asked where the algebra proves
    none at all.  What is not even proved of the world's own attributes under all conditions, is of no others.
    """
    every = list(ways)
    order = _conditions(world, names)
    least = next((saying for saying in reversed(every) if not saying.named), every[-1])
    narrow = least.where(order[-1])
    if narrow not in known and isinstance(reason := _proved(narrow, STEPS, journal, algebra=False), str):
        return Stated(every[-1].where(()), reasons=(reason,))
    wrong: dict[str, str] = {}
    stated = _most_general(every, order, known, journal, wrong, algebra=True)
    if not isinstance(stated, Stated):
        stated = _most_general(every, order, known, journal, wrong, algebra=False)
    return stated if isinstance(stated, Stated) else Stated(every[-1].where(()), reasons=stated)


def _most_general(
    every: Sequence[Saying],
    order: Sequence[Sequence[str]],
    known: Container[str],
    journal: Journal,
    wrong: dict[str, str],
    algebra: bool,
) -> Stated | tuple[str, ...]:
    """By the algebra alone, or with Z3; or the reasons why there is none.

    What is said of any attributes, where shapes are equal, is more than what is said of some without.

    order  of the conditions, the fewest first
    wrong  those that are refuted, with the reason: what was before, and what is now
    """
    reasons: list[str] = []
    others: list[tuple[Saying, Sequence[str], Stated]] = []
    for place, conditions in enumerate(order):
        one_rank = _of_one_rank(conditions)
        open_ones: list[Saying] = []  # those that the algebra neither proves nor refutes
        for saying in every:
            if (text := saying.where(conditions)) in known:
                return Stated(text)
            found = wrong.get(text) or _proved(text, STEPS, journal, algebra)
            if isinstance(found, str):
                reasons.append(found)
                if found.startswith(WRONG):
                    wrong[text] = found
                elif algebra:
                    open_ones.append(saying)
                continue
            # Z3 may prove what says more of these conditions; others may let the algebra prove it, too
            solved = [(each, _proved(each.where(conditions), STEPS, journal, False)) for each in open_ones]
            open_ones.clear()
            others += [(each, conditions, made) for each, made in solved if isinstance(made, Stated)]
            if any(isinstance(made, Stated) and _ranks(made)[1] >= MAX_RANK for _, made in solved):
                break
            rest = [more for more in order[place + 1 :] if not _of_one_rank(more)]
            asked = algebra and saying is not every[0] and not one_rank and rest
            if asked and isinstance(_proved(every[0].where(rest[-1]), STEPS, journal, algebra), Stated):
                return _most_general(every[:1], rest, known, journal, wrong, algebra)
            if _by(found) == "algebra" and _ranks(found)[1] >= MAX_RANK:
                return _weakened(saying, conditions, found, journal)
            if _by(found) == "algebra" and saying is every[0] and not one_rank:
                return found
            others.append((saying, conditions, found))
            if _ranks(found)[1] >= MAX_RANK:  # what it is said for fewer attributes follows
                break
    if not others:
        return tuple(reasons)
    saying, conditions, found = max(others, key=lambda each: (_by(each[2]) == "algebra", _span(each[2])))
    return _weakened(saying, conditions, found, journal) if _by(found) == "algebra" else found


def _of_one_rank(conditions: Iterable[str]) -> bool:
    return any(re.match(r"rank\(\w+\) == [1-9]", condition) for condition in conditions)


def _span(stated: Stated) -> float:
    low, high = _ranks(stated)
    return high - low


def _ranks(stated: Stated) -> tuple[float, float]:
    """The ranks that its proof is of."""
    said = re.search(r"ranks (\d+)-(\d+)", str(stated.evidence))
    return (float(said[1]), float(said[2])) if said else (0, inf)


def _weakened(saying: Saying, conditions: Sequence[str], found: Stated, journal: Journal) -> Stated:
    """Without the equal shapes that the algebra still proves it without."""
    left = list(conditions)
    for condition in [c for c in conditions if c.startswith("shape(")] if len(conditions) > 1 else ():
        rest = [c for c in left if c != condition]
        made = _proved(saying.where(rest), FEWER, journal, algebra=True)
        if isinstance(made, Stated):
            left, found = rest, made
    return found


def _by(stated: Stated) -> str:
    return stated.evidence.by if stated.evidence is not None else ""


def _proved(text: str, steps: float, journal: Journal, algebra: bool) -> Stated | str:
    """The law as it is said here, where it is proved; else why it is not."""
    question = f"proof{' by algebra' if algebra else ''} in {steps:g} steps: {text}"
    evidence, reason = journal.answer(question, lambda: _verdict(text, steps, algebra))
    if not evidence:
        return reason
    shown = parse_evidence(evidence)
    assert isinstance(shown, Proved)
    return Stated(text, tuple(parse_rule(f"law: {text}")), shown)


def _verdict(text: str, steps: float, algebra: bool) -> list[str]:
    """Its evidence, or why there is none."""
    try:
        rules = parse_rule(f"law: {text}")
    except RuleError as error:
        return ["", str(error)]
    evidence: list[Proved] = []
    for rule in rules:
        found = verify(rule, INSTANCES, steps=steps, means=Means.FORMS if algebra else Means.SOLVER)
        if not isinstance(found, Proved):
            reason = str(getattr(found, "reason", found))[:200]
            return ["", f"{WRONG}{reason}" if isinstance(found, Refuted) else reason]
        evidence.append(found)
    return [str(max(evidence, key=lambda each: each.by)), ""]


def _conditions(world: World, names: Mapping[Term, str]) -> list[list[str]]:
    """What the types of the variables suggest: nothing, then more and more of it."""
    wide = {x: name for x, name in names.items() if world.kinds[x[1]].shape}
    scalars = [f"numel({name}) == 1" for x, name in names.items() if x not in wide]
    numbers = [f"rank({name}) == 0" for x, name in names.items() if x not in wide]
    alike = [f"shape({wide[a]}) == shape({wide[b]})" for a, b in combinations(wide, 2) if a[1] == b[1]]
    ranks = [f"rank({name}) == {len(world.kinds[x[1]].shape)}" for x, name in wide.items()]
    # a law of matrices may be one of batches of them; of images every operator says the rank itself
    matrices = all(len(world.kinds[x[1]].shape) <= MATRIX for x in wide)
    least = [each.replace("==", ">=") for each in ranks] if matrices else []
    order: tuple[list[str], ...] = (
        [],
        scalars,
        numbers,
        [*scalars, *least],
        [*scalars, *alike],
        [*scalars, *alike, *least],
        [*scalars, *ranks],
        [*scalars, *alike, *ranks],
    )
    return [each for k, each in enumerate(order) if each not in order[:k]]
