"""Generates rules from the declarations of operators (TASO, sections 2 to 4).

A law is an equality of two terms, which are operators applied to variables.  Candidates for laws are terms
of equal values (`term_classes`), enumerated by size and compared at further points.  A candidate that known
laws make smaller, or that rules derive, is dropped; any other is stated as a rule and proved (`law`).  Within
a size, candidates of more variables come first: the general before the special.

    Split(Relu(x))[0] and Relu(Split(x)[0]) have equal values
 -> split-relu-24373e: Split(Relu(x), **a)[i] <=> Relu(Split(x, **a)[i]) | proved(algebra, ...)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from time import monotonic
from typing import Any, TypeAlias

from tensaurus.egraph.match.ruleset import Ruleset
from tensaurus.expr.evaluate.prime_field import PrimeField
from tensaurus.finders.synthesis.derivable import is_derivable
from tensaurus.finders.synthesis.journal import Journal
from tensaurus.finders.synthesis.law import StatedLaw, state_law, state_multi_patterns
from tensaurus.finders.synthesis.multi_pattern import has_symmetric_parts
from tensaurus.finders.synthesis.reservoir import Reservoir
from tensaurus.finders.synthesis.second_fingerprint import ComparisonPoints
from tensaurus.finders.synthesis.term_classes import Candidate, TermClasses, possible_laws
from tensaurus.finders.synthesis.term_order import Laws, order_key, rank_key, variables_in
from tensaurus.finders.synthesis.terms import Application, Pair, Term, Variable
from tensaurus.finders.synthesis.world import World
from tensaurus.graph.ir.node import INPUT, Node, source
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.graph.ir.program_text import format_program
from tensaurus.ops import Op
from tensaurus.rules.language.match import Matcher, is_commutative
from tensaurus.rules.language.rule import Rule

__all__ = ["GeneratedRule", "Generation", "Sides", "format_roots"]

Sides: TypeAlias = tuple[tuple[Node, ...], tuple[Node, ...]]  # the roots of both sides of an equation
POINTS = 64  # points at which terms are compared again: for scalars perhaps one in four shows a difference
NOTE_SECONDS = 60.0  # seconds between two notes on the progress
MAX_NAMINGS = 24  # ways to name a candidate's variables that are tried


@dataclass(frozen=True)
class GeneratedRule:
    """A law of a world as a line of a rules file: one rule, or one for each direction.

    sides  both sides on inputs of the world's types, in the order of the text
    size   number of operators in the law's larger term
    """

    world: str
    size: int
    text: str
    rules: tuple[Rule, ...]
    evidence: str
    sides: Sides
    tags: tuple[str, ...] = ()

    @property
    def directions(self) -> Iterator[Sides]:
        """For each rule its left and right side."""
        first, second = self.sides
        yield first, second
        if len(self.rules) > 1:
            yield second, first

    @property
    def name(self) -> str:
        """The names of the operators, and a hash of the text: the same in every run."""
        words = dict.fromkeys(word.lower() for word in re.findall(r"\b[A-Z]\w*(?=\()", self.text))
        return f"{'-'.join(words)}-{sha256(self.text.encode()).hexdigest()[:6]}"

    @property
    def line(self) -> str:
        """The line of a rules file; tagged `off` if it states commutativity alone, which matching knows."""
        texts = re.split(r" <=> | => ", self.text)
        grows = "<=>" in self.text and texts[0].count("(") != texts[1].split(" where ")[0].count("(")
        off = ["off"] if len(self.sides[0]) == 1 and _is_reordering(*self.sides[0], *self.sides[1]) else []
        tags = ", ".join([*self.tags, *off, *(["back"] if grows else [])])
        return f"{self.name}{f' [{tags}]' if tags else ''}: {self.text} | {self.evidence}"


@dataclass
class Generation:
    """Generates the rules of one world up to a size.

    sample    size of the sample `dropped` of derivable equations
    journal   verdicts that are known
    shard     (k, n): part k, counted from 0, of n parts into which candidates of the last size are divided
    counts    for each size the number of terms and classes so far, of candidates, of rules, and of candidates
              that known laws make smaller (reduced), that differ at further points or have a counterexample
              (refuted), that known rules derive (derived), that are not proved (unproved), or that refuted or
              unproved laws make smaller (resting on what is no rule)
    unproved  laws that are neither proved nor refuted, or that may be applied in no direction
    """

    world: World
    size: int
    seed: int = 0
    note: Callable[[str], None] = lambda text: None
    sample: int = 0
    journal: Journal = field(default_factory=Journal)
    shard: tuple[int, int] = (0, 1)
    found: list[GeneratedRule] = field(default_factory=list)
    unproved: list[StatedLaw] = field(default_factory=list)
    counts: dict[int, Counter[str]] = field(default_factory=dict)
    dropped: list[Sides] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._terms = TermClasses(self.world, self.seed)
        self._points = ComparisonPoints(self.world, PrimeField(self.seed + 1), POINTS, self.seed)
        # proved laws, and equations that proved rules derive: they make later candidates smaller
        self._laws = Laws()
        # of one rank, all types count as one: a proof fails for all of them alike
        self._unproved_laws = Laws(rank_key)
        self._known_texts: set[str] = set()  # of the laws that are rules
        self._rules: list[Rule] = []
        self._ruleset = Ruleset(self._rules)
        self._dropped = Reservoir[Candidate | Pair](self.sample, self.seed)

    def run(self) -> list[GeneratedRule]:
        """Return the rules, the smallest first."""
        began = monotonic()
        for size in range(1, self.size + 1):
            counts = self.counts[size] = Counter()
            equations = self._equations_of_size(size)
            self.note(f"size {size}: {counts['terms']} terms, {counts['classes']} classes,"
                      f" {len(equations)} candidates, {monotonic() - began:.0f} s")  # fmt: skip
            noted = monotonic()
            for place, (left, right) in enumerate(sorted(equations, key=_generality)):
                if monotonic() - noted > NOTE_SECONDS:
                    noted = monotonic()
                    self.note(f"size {size}: {place} of {len(equations)} candidates, {noted - began:.0f} s")
                self._process_equation(left, right, size)
        self.dropped = list(self._dropped_equations())
        return self.found

    def _equations_of_size(self, size: int) -> list[Pair]:
        """Grow the terms of a size and return the equations among candidates that hold at further points."""
        counts = self.counts[size]
        equations: list[Pair] = []
        different: list[Candidate] = []  # from their class, however their variables are named
        for candidate, equal in self._points.keep_equal(self._irreducible_candidates(size)):
            equations += equal
            if not equal and not candidate.is_representative:
                different.append(candidate)
        counts["refuted"] += len(different)
        for candidate in different if size < self.size else ():
            self._terms.separate(candidate)
        counts["terms"] = self._terms.count
        counts["classes"] = sum(len(family.origins) for family in self._terms.families.values())
        return equations

    def _irreducible_candidates(self, size: int) -> Iterator[tuple[Candidate, list[Pair]]]:
        """Yield the candidates of a size that no law makes smaller, with the laws that each may stand for."""
        counts = self.counts[size]
        place, shards = self.shard if size == self.size else (0, 1)
        for candidate in self._terms.grow(last=size == self.size):
            if candidate.equal_class.number % shards != place:  # equal terms are in one shard
                continue
            counts["candidates"] += 1
            if self._laws.reduces(candidate.term):
                counts["reduced"] += 1
                self._dropped.offer(candidate)
            elif pairs := list(islice(possible_laws(candidate), MAX_NAMINGS)):
                yield candidate, pairs

    def _process_equation(self, left: Term, right: Term, size: int) -> None:
        """Drop an equation that follows from known laws; prove any other, and add its rules."""
        counts = self.counts[size]
        smaller, larger = sorted((left, right), key=order_key)
        if self._laws.reduces_inside(larger) or self._laws.reduces_inside(smaller):
            counts["reduced"] += 1
            self._dropped.offer((larger, smaller))
        elif self._unproved_laws.reduces_inside(larger):
            counts["resting on what is no rule"] += 1
        elif self._is_derivable(self._node(larger), self._node(smaller)):
            counts["derived"] += 1
            self._dropped.offer((larger, smaller))
            self._laws.add(left, right)  # candidates that this law makes smaller are derivable, too
        else:
            self._prove_law(left, right, size)

    def _is_derivable(self, first: Node, second: Node) -> bool:
        """Return whether the rules derive one side from the other."""

        def decide() -> bool:
            ways = ((first, second), (second, first))
            return any(is_derivable((start,), (goal,), self._ruleset) for start, goal in ways)

        laws = sha256("\n".join(rule.law for rule in self._ruleset.rules).encode()).hexdigest()
        question = f"derived by {laws}: {format_roots((first,))} = {format_roots((second,))}"
        return self.journal.answer(question, decide)

    def _prove_law(self, left: Term, right: Term, size: int) -> None:
        """State the law as a rule, and as multi-pattern rules if it joins two terms; add those proved."""
        law = state_law(self.world, left, right, self._known_texts, self.journal)
        if not law.rules and law.reasons:
            self.counts[size]["refuted" if law.is_refuted else "unproved"] += 1
            self.unproved += [] if law.is_refuted else [law]
            self._unproved_laws.add(left, right)
            return
        assert law.sides is not None
        self._laws.add(*law.sides, back=law.is_two_way)
        if not law.rules:  # the law's text is known: the law is an instance of a rule
            return
        self._known_texts.add(law.text)
        self._rules += law.rules
        self._ruleset = Ruleset(self._rules)
        matched, other = map(self._node, law.sides)
        self._add_rule(law, size, ((matched,), (other,)))
        for pattern, joined in state_multi_patterns(self.world, left, right, self._known_texts, self.journal):
            if pattern.rules:
                self._known_texts.add(pattern.text)
                tags = ("once",) if has_symmetric_parts(joined) else ()
                self._add_rule(pattern, size, self._multi_pattern_sides(pattern.rules[0], joined), tags)

    def _add_rule(self, law: StatedLaw, size: int, sides: Sides, tags: tuple[str, ...] = ()) -> None:
        rule = GeneratedRule(self.world.name, size, law.text, law.rules, str(law.evidence), sides, tags)
        self.found.append(rule)
        self.counts[size]["multi-patterns" if len(sides[0]) > 1 else "rules"] += 1
        self.note(f"{law.text} | {law.evidence}")

    def _multi_pattern_sides(self, rule: Rule, joined: Application) -> Sides:
        """Return the parts of the joined term, and the result of the rule on them."""
        parts, matcher = tuple(map(self._node, joined.args)), Matcher(rule)
        results = (matcher.apply(parts, binding) for binding in matcher.match_roots(parts))
        return parts, next(result for result in results if result is not None)

    def _dropped_equations(self) -> Iterator[Sides]:
        """Yield an equation for each sampled pair, or candidate, that holds at further points, too."""
        groups = (
            list(islice(possible_laws(one), MAX_NAMINGS)) if isinstance(one, Candidate) else [one]
            for one in self._dropped.sample
        )
        for _, equal in self._points.keep_equal(enumerate(groups)):
            for left, right in equal[:1]:
                yield (self._node(left),), (self._node(right),)

    def _node(self, term: Term) -> Node:
        """Return the term on inputs of the world's types."""
        if isinstance(term, Variable):
            return source(f"x{term.number}_{term.type}", self.world.kinds[term.type])
        return term.use.node([self._node(part) for part in term.args])


def _generality(pair: Pair) -> tuple[Any, ...]:
    """Return a sort key: laws of more variables come first, and of these laws of smaller terms.

    T(x) + T(y) = T(x + y) comes before T(x + T(y)) = T(x) + y, from which it follows in one direction only.
    """
    first, second = sorted(map(order_key, pair))
    return -max(len(set(variables_in(side))) for side in pair), second, first


def format_roots(roots: tuple[Node, ...]) -> str:
    """Return the text of a program with these outputs."""
    inputs = tuple(node for node in topological_order(roots) if node.op is INPUT)
    return format_program(Program(inputs, tuple((f"y{k}", root) for k, root in enumerate(roots))))


def _is_reordering(first: Node, second: Node) -> bool:
    """Return whether two terms differ in the order of commuting operands at most."""
    if first.op is not second.op or first.attrs != second.attrs:
        return False
    orders = [second.args]
    if len(second.args) == 2 and isinstance(second.op, Op) and is_commutative(second.op):
        orders.append(second.args[::-1])
    return any(
        len(order) == len(first.args)
        and all(
            a is b or a is not None and b is not None and _is_reordering(a, b)
            for a, b in zip(first.args, order, strict=True)
        )
        for order in orders
    )
