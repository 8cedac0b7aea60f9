"""Turns a law of terms into a rewrite rule, as general as can be proved.

Terms of a world have fixed types and attributes.  A rule's text may leave attributes open, and only
conditions such as rank(x) == 2 restrict its types.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import inf
from typing import NamedTuple

from tensaurus.finders.synthesis.journal import Journal
from tensaurus.finders.synthesis.law_precision import allowed_directions
from tensaurus.finders.synthesis.law_text import (
    MATRIX_RANK,
    LawText,
    attribute_names,
    attribute_texts,
    call_text,
    format_term,
    law_texts,
)
from tensaurus.finders.synthesis.multi_pattern import find_joined_sides, format_multi_pattern
from tensaurus.finders.synthesis.term_order import order_key, variables_in
from tensaurus.finders.synthesis.terms import Application, Term, Variable
from tensaurus.finders.synthesis.world import World
from tensaurus.rules.language.evidence import Proved, parse_evidence
from tensaurus.rules.language.rule import Rule, parse_rule
from tensaurus.rules.language.term import RuleError
from tensaurus.rules.prove.attribute_domain import MAX_RANK
from tensaurus.rules.prove.expression_prover import Methods
from tensaurus.rules.test.verify_rule import Refuted, verify

__all__ = ["StatedLaw", "state_law", "state_multi_patterns"]

NAMES = "xyzwuvst"
INSTANCES = 12  # instances on which a rule is tried before it is proved
REFUTED = "wrong: "  # begins the reason where there is a counterexample
PROOF_STEPS = 20_000  # steps of the prover after which a proof is given up
WEAKENING_STEPS = 6_000  # steps of a proof with fewer conditions: such proofs succeed soon or not at all


@dataclass(frozen=True)
class StatedLaw:
    """The text of a law with its rules and their evidence, or the reasons why nothing is proved.

    A law with neither rules nor reasons is known already.  `sides` are the terms of the text; None for a
    multi-pattern, and for a law that may be applied in no direction.
    """

    text: str
    rules: tuple[Rule, ...] = ()
    evidence: Proved | None = None
    reasons: tuple[str, ...] = ()
    sides: tuple[Term, Term] | None = None

    @property
    def is_proved(self) -> bool:
        """Whether there is a proof of all rules."""
        return bool(self.rules)

    @property
    def is_two_way(self) -> bool:
        """Whether each side may replace the other."""
        return "<=>" in self.text

    @property
    def is_refuted(self) -> bool:
        """Whether a counterexample meets all conditions, such as one with a zero divisor."""
        return bool(self.reasons) and self.reasons[-1].startswith(REFUTED)

    @property
    def is_proved_by_algebra(self) -> bool:
        """Whether canonical forms alone prove the law."""
        return self.evidence is not None and self.evidence.by == "algebra"

    @property
    def proved_ranks(self) -> tuple[float, float]:
        """The lowest and the highest rank for which the law is proved."""
        ranks = re.search(r"ranks (\d+)-(\d+)", str(self.evidence))
        return (float(ranks[1]), float(ranks[2])) if ranks else (0, inf)

    @property
    def has_all_ranks(self) -> bool:
        """Whether the law is proved for as high a rank as proofs try."""
        return self.proved_ranks[1] >= MAX_RANK


def state_law(
    world: World, left: Term, right: Term, known: Container[str], journal: Journal | None = None
) -> StatedLaw:
    """Return the law as a rule, with as few conditions and attributes as are proved to suffice.

    A direction that loses digits, or has a variable on the new side alone, is left out.  A text in `known`
    needs no proof: the result then has no rules.
    """
    # the left side is the larger term, or the other one where the law may be applied from that one alone
    first, second = sorted((left, right), key=order_key, reverse=True)
    forth, back = allowed_directions(world, first, second)
    if not (forth and set(variables_in(second)) <= set(variables_in(first))):
        first, second, forth, back = second, first, back, forth
    variables = dict.fromkeys((*variables_in(first), *variables_in(second)))
    names = {x: NAMES[k] for k, x in enumerate(variables)}
    if not (forth and set(variables_in(second)) <= set(variables_in(first))):
        text = f"{format_term(first, names, {})} = {format_term(second, names, {})}"
        return StatedLaw(text, reasons=("the side that is written lacks a variable, or digits in float32",))
    texts = law_texts(first, second, names, back)
    stated = _state_most_general(world, texts, names, known, journal or Journal())
    return replace(stated, sides=(first, second))


def state_multi_patterns(
    world: World, left: Term, right: Term, known: Container[str], journal: Journal | None = None
) -> Iterator[tuple[StatedLaw, Application]]:
    """Yield the multi-patterns that follow from the law, each with the term that joins its parts."""
    for joined, whole in find_joined_sides(left, right):
        names = {x: NAMES[k] for k, x in enumerate(dict.fromkeys(variables_in(joined)))}
        ranks = {name: len(world.shapes[x.type]) for x, name in names.items()}
        texts: list[LawText] = []
        for attributes in attribute_texts(joined, whole):
            join_attributes = attributes[call_text(joined.use)]
            if attribute_names(join_attributes):  # the parts, which are matched, do not bind such a name
                continue
            parts = [format_term(part, names, attributes) for part in joined.args]
            whole_text = format_term(whole, names, attributes)
            both = format_multi_pattern(joined.use, parts, whole_text, join_attributes, ranks)
            texts += [LawText(both[0], "=>", both[1])] if both is not None else []
        if texts:
            yield _state_most_general(world, texts, names, known, journal or Journal()), joined


def _state_most_general(
    world: World, all_texts: Iterable[LawText], names: Mapping[Variable, str], known: Container[str],
    journal: Journal
) -> StatedLaw:
    """Return the first text that algebra proves for all ranks that are tried, with few conditions.

    False texts are refuted soon, and proofs take long: so conditions are added until a text is proved.  Where
    no text is proved for all ranks, the one that is proved for the most ranks is taken; but a text for all
    attributes counts more than texts for some, even where the steps end its proof early.  Z3 is asked where
    algebra proves nothing.  If the world's own attributes under all conditions are not proved, nothing is.
    """
    # the law under all conditions, without names: if that is not proved, nothing else is tried
    texts = list(all_texts)
    conditions = _possible_conditions(world, names)
    least_general = next((text for text in reversed(texts) if not text.has_names), texts[-1])
    narrowest = least_general.where(conditions[-1])
    if narrowest not in known:
        law = _prove(narrowest, PROOF_STEPS, journal, by_algebra=False)
        if not law.is_proved:
            return StatedLaw(texts[-1].where(()), reasons=law.reasons)
    search = _Generalization(texts, conditions, known, journal)
    stated = search.find_most_general(by_algebra=True)
    return search.find_most_general(by_algebra=False) if stated.reasons else stated


class _ProvedText(NamedTuple):
    text: LawText
    conditions: Sequence[str]
    law: StatedLaw


@dataclass(frozen=True)
class _Generalization:
    """Searches the most general text of a law that is proved.

    texts       from general to special; the first, for any attributes, is more general under the condition of
                equal shapes than the others are without conditions
    conditions  lists of conditions, from few to many
    refuted     the wrong laws so far, by their texts
    """

    texts: Sequence[LawText]
    conditions: Sequence[Sequence[str]]
    known: Container[str]
    journal: Journal
    refuted: dict[str, StatedLaw] = field(default_factory=dict)

    def find_most_general(self, by_algebra: bool) -> StatedLaw:
        """Return the most general law that is proved or known, else one with the reason of each failure.

        With `by_algebra`, canonical forms alone must prove a text before the solver is tried on more general
        ones.  Conditions are tried from few to many, and for each the texts from general to special.  A text
        that is proved ends the search if nothing more general can follow, and is kept otherwise.  Preferred
        are, in this order: a text that is known; the first text under more conditions, over a special text
        under fewer; what algebra proves for all ranks; what algebra proves; the widest span of ranks.
        """
        reasons: list[str] = []
        proved: list[_ProvedText] = []
        for place, conditions in enumerate(self.conditions):
            fixes_rank = _fixes_rank(conditions)
            undecided: list[LawText] = []  # algebra neither proves nor refutes these
            for text in self.texts:
                if (rule_text := text.where(conditions)) in self.known:
                    return StatedLaw(rule_text)
                law = self.refuted.get(rule_text) or self._prove(text, conditions, by_algebra)
                if not law.is_proved:
                    reasons += law.reasons
                    if law.is_refuted:
                        self.refuted[rule_text] = law
                    elif by_algebra:
                        undecided.append(text)
                    continue
                # the solver may prove a more general text under these conditions; algebra might under others
                tried = [_ProvedText(t, conditions, self._prove(t, conditions, False)) for t in undecided]
                solved = [each for each in tried if each.law.is_proved]
                undecided.clear()
                proved += solved
                if any(each.law.has_all_ranks for each in solved):
                    break
                # rather the first text, for any attributes, under further conditions than this special text
                is_first = text is self.texts[0]
                further = [more for more in self.conditions[place + 1 :] if not _fixes_rank(more)]
                may_prefer_first = by_algebra and not is_first and not fixes_rank and further
                if may_prefer_first and self._prove(self.texts[0], further[-1], by_algebra).is_proved:
                    first_text = replace(self, texts=self.texts[:1], conditions=further)
                    return first_text.find_most_general(by_algebra)
                # proved by algebra for all ranks, or for any attributes: nothing more general can follow
                found = _ProvedText(text, conditions, law)
                if law.is_proved_by_algebra and law.has_all_ranks:
                    return self._drop_conditions(found)
                if law.is_proved_by_algebra and is_first and not fixes_rank:
                    return law
                proved.append(found)
                if law.has_all_ranks:  # texts for fewer attributes follow from this one
                    break
        if not proved:
            return StatedLaw(self.texts[-1].where(()), reasons=tuple(reasons))
        best = max(proved, key=lambda each: (each.law.is_proved_by_algebra, _rank_span(each.law)))
        return self._drop_conditions(best) if best.law.is_proved_by_algebra else best.law

    def _prove(self, text: LawText, conditions: Sequence[str], by_algebra: bool) -> StatedLaw:
        return _prove(text.where(conditions), PROOF_STEPS, self.journal, by_algebra)

    def _drop_conditions(self, found: _ProvedText) -> StatedLaw:
        """Return the law without those conditions on equal shapes that algebra does not need."""
        text, conditions, law = found
        remaining = list(conditions)
        for condition in [c for c in conditions if c.startswith("shape(")] if len(conditions) > 1 else ():
            fewer = [c for c in remaining if c != condition]
            weaker = _prove(text.where(fewer), WEAKENING_STEPS, self.journal, by_algebra=True)
            if weaker.is_proved:
                remaining, law = fewer, weaker
        return law


def _fixes_rank(conditions: Iterable[str]) -> bool:
    return any(re.match(r"rank\(\w+\) == [1-9]", condition) for condition in conditions)


def _rank_span(law: StatedLaw) -> float:
    low, high = law.proved_ranks
    return high - low


def _prove(text: str, steps: float, journal: Journal, by_algebra: bool) -> StatedLaw:
    """Return the law with its proof, or with the reason why there is none."""
    question = f"proof{' by algebra' if by_algebra else ''} in {steps:g} steps: {text}"
    evidence_text, reason = journal.answer(question, lambda: _verify_text(text, steps, by_algebra))
    if not evidence_text:
        return StatedLaw(text, reasons=(reason,))
    evidence = parse_evidence(evidence_text)
    assert isinstance(evidence, Proved)
    return StatedLaw(text, tuple(parse_rule(f"law: {text}")), evidence)


def _verify_text(text: str, steps: float, by_algebra: bool) -> list[str]:
    """Return [evidence, ""] where all rules of the text are proved, else ["", reason]."""
    try:
        rules = parse_rule(f"law: {text}")
    except RuleError as error:
        return ["", str(error)]
    evidence: list[Proved] = []
    methods = Methods.FORMS if by_algebra else Methods.SOLVER
    for rule in rules:
        verdict = verify(rule, INSTANCES, steps=steps, methods=methods)
        if not isinstance(verdict, Proved):
            reason = str(getattr(verdict, "reason", verdict))[:200]
            return ["", f"{REFUTED}{reason}" if isinstance(verdict, Refuted) else reason]
        evidence.append(verdict)
    # the weakest proof is the evidence of all: "z3" comes after "algebra"
    return [str(max(evidence, key=lambda each: each.by)), ""]


def _possible_conditions(world: World, names: Mapping[Variable, str]) -> list[list[str]]:
    """Return lists of conditions that the variables' types suggest, from none to all.

    x of f32[3,3] and y of f32[]: [], [numel(y) == 1], [rank(y) == 0], [numel(y) == 1, rank(x) >= 2], ...
    """
    tensors = {x: name for x, name in names.items() if world.kinds[x.type].shape}
    one_element = [f"numel({name}) == 1" for x, name in names.items() if x not in tensors]
    scalars = [f"rank({name}) == 0" for x, name in names.items() if x not in tensors]
    same_shape = [
        f"shape({tensors[a]}) == shape({tensors[b]})" for a, b in combinations(tensors, 2) if a.type == b.type
    ]
    ranks = [f"rank({name}) == {len(world.kinds[x.type].shape)}" for x, name in tensors.items()]
    # a law of matrices may hold for batches of them; operators on images fix the rank themselves
    are_matrices = all(len(world.kinds[x.type].shape) <= MATRIX_RANK for x in tensors)
    min_ranks = [each.replace("==", ">=") for each in ranks] if are_matrices else []
    conditions: tuple[list[str], ...] = (
        [],
        one_element,
        scalars,
        [*one_element, *min_ranks],
        [*one_element, *same_shape],
        [*one_element, *same_shape, *min_ranks],
        [*one_element, *ranks],
        [*one_element, *same_shape, *ranks],
    )
    return [each for k, each in enumerate(conditions) if each not in conditions[:k]]
