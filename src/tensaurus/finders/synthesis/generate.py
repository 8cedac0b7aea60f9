"""Rules grown from operators: enumerated, confirmed, proved, and pruned as they come (TASO, sections 2 to 4).

A candidate that laws before it make smaller follows from these and from smaller candidates, and is dropped
unseen; so what is verified is about what is kept.  Rules come in the order of their size, and of rules of one
size those of more variables first: the general before the special.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from time import monotonic
from typing import Any, TypeAlias

from tensaurus.egraph.match.ruleset import Ruleset
from tensaurus.expr.evaluate.prime_field import Prime
from tensaurus.finders.synthesis.derivable import derived
from tensaurus.finders.synthesis.journal import Journal
from tensaurus.finders.synthesis.law import Stated, parts, state
from tensaurus.finders.synthesis.multi_pattern import symmetric
from tensaurus.finders.synthesis.operator_use import Use
from tensaurus.finders.synthesis.reservoir import Reservoir
from tensaurus.finders.synthesis.second_fingerprint import Points
from tensaurus.finders.synthesis.term_order import Laws, key, of_ranks, variables
from tensaurus.finders.synthesis.terms import Candidate, Pair, Term, Terms, equations
from tensaurus.finders.synthesis.world import World
from tensaurus.graph.ir.node import INPUT, Node, source
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.graph.ir.program_text import format_program
from tensaurus.ops import Op
from tensaurus.rules.language.match import Matcher, is_commutative
from tensaurus.rules.language.rule import Rule

__all__ = ["Found", "Generation", "Roots", "shown"]

Roots: TypeAlias = tuple[tuple[Node, ...], tuple[Node, ...]]
Dropped: TypeAlias = Reservoir[Candidate | Pair]
POINTS = 64  # at which a candidate is tried once more: where it is one number, one in four may tell
PERIOD = 60.0  # seconds between two notes of how far it is
TIES = 24  # ways to name a candidate's variables that are tried


@dataclass(frozen=True)
class Found:
    """What a law of a world is said as: one line, which stands for one rule or for two.

    sides  the roots on inputs of the world's types: of a law its terms, the larger one first
    size   of the larger term of the law
    """

    world: str
    size: int
    text: str
    rules: tuple[Rule, ...]
    evidence: str
    sides: Roots
    tags: tuple[str, ...] = ()

    @property
    def ways(self) -> Iterator[Roots]:
        """From the left side of each of its rules to the right side."""
        first, second = self.sides
        yield first, second
        if len(self.rules) > 1:
            yield second, first

    @property
    def name(self) -> str:
        """Its operators, and what tells it from others of these; the same wherever it was generated."""
        words = dict.fromkeys(word.lower() for word in re.findall(r"\b[A-Z]\w*(?=\()", self.text))
        return f"{'-'.join(words)}-{sha256(self.text.encode()).hexdigest()[:6]}"

    @property
    def line(self) -> str:
        """As a file of rules has it: off where operands only change places, which every matching knows."""
        smaller = re.split(r" <=> | => ", self.text)
        grows = "<=>" in self.text and smaller[0].count("(") != smaller[1].split(" where ")[0].count("(")
        matched = ["off"] if len(self.sides[0]) == 1 and _same(*self.sides[0], *self.sides[1]) else []
        tags = ", ".join([*self.tags, *matched, *(["back"] if grows else [])])
        return f"{self.name}{f' [{tags}]' if tags else ''}: {self.text} | {self.evidence}"


@dataclass
class Generation:
    """The rules of one world up to a size.

    counts    of each size: terms and classes that there are, candidates for laws, those that laws before them
              make smaller (reduced), that other values tell apart (refuted), that rules before them derive
              (derived), that nothing proves (unproved) or that rest on those two, and rules
    unproved  what could be neither proved nor refuted, or needs variables that a side lacks
    sample    how many of the equations that are no rules, for others derive them, are kept in `dropped`
    journal   of verdicts that are known
    shard     which of how many parts of the candidates of the last size: (0, 1) is all of them
    """

    world: World
    size: int
    seed: int = 0
    note: Callable[[str], None] = lambda text: None
    sample: int = 0
    journal: Journal = field(default_factory=Journal)
    shard: tuple[int, int] = (0, 1)
    found: list[Found] = field(default_factory=list)
    unproved: list[Stated] = field(default_factory=list)
    counts: dict[int, Counter[str]] = field(default_factory=dict)
    dropped: list[Roots] = field(default_factory=list)

    def run(self) -> list[Found]:
        """The rules, the smallest first."""
        terms, laws, points = Terms(self.world, self.seed), Laws(), self._points()
        unproved = Laws(of_ranks)  # what rests on such a law of one type rests on it of another
        known: set[str] = set()
        rules: list[Rule] = []
        ruleset = Ruleset(rules)
        dropped = Dropped(self.sample, self.seed)
        began = monotonic()
        for size in range(1, self.size + 1):
            counts = self.counts[size] = Counter()
            waiting: list[Pair] = []
            different: list[Candidate] = []
            asked = self._asked(terms, laws, dropped, size)
            for candidate, equal in points.equal(asked):
                waiting += equal
                if not equal and not _representative(candidate):
                    different.append(candidate)
            counts["refuted"] += len(different)
            for candidate in different if size < self.size else ():
                terms.part(candidate)
            counts["terms"] = terms.count
            counts["classes"] = sum(len(f.origins) for f in terms.families.values())
            self.note(f"size {size}: {terms.count} terms, {counts['classes']} classes,"
                      f" {len(waiting)} candidates, {monotonic() - began:.0f} s")  # fmt: skip
            noted = monotonic()
            for place, (left, right) in enumerate(sorted(waiting, key=_generality)):
                if monotonic() - noted > PERIOD:
                    noted = monotonic()
                    self.note(f"size {size}: {place} of {len(waiting)} candidates, {noted - began:.0f} s")
                first, second = sorted((left, right), key=key)
                if laws.reduces_inside(second) or laws.reduces_inside(first):
                    counts["reduced"] += 1
                    dropped.offer((second, first))
                    continue
                if unproved.reduces_inside(second):
                    counts["resting on what is no rule"] += 1
                    continue
                nodes = self._node(second), self._node(first)
                if self._derived(nodes, ruleset):
                    counts["derived"] += 1
                    dropped.offer((second, first))
                    laws.add(left, right)  # what it makes smaller is derived, too
                    continue
                stated = state(self.world, left, right, known, self.journal)
                if not stated.rules and stated.reasons:
                    counts["refuted" if stated.wrong else "unproved"] += 1
                    self.unproved += [] if stated.wrong else [stated]
                    unproved.add(left, right)
                    continue
                assert stated.sides is not None
                laws.add(*stated.sides, back=stated.both)
                if not stated.rules:  # an instance of a rule that is known, by what it says
                    continue
                known.add(stated.text)
                rules += stated.rules
                ruleset = Ruleset(rules)
                said, other = map(self._node, stated.sides)
                self._keep(stated, size, ((said,), (other,)))
                for several, joined in parts(self.world, left, right, known, self.journal):
                    if several.rules:
                        known.add(several.text)
                        tags = ("once",) if symmetric(joined) else ()
                        self._keep(several, size, self._roots(several.rules[0], joined), tags)
        self.dropped = list(self._true(dropped.kept))
        return self.found

    def _asked(
        self, terms: Terms, laws: Laws, dropped: Dropped, size: int
    ) -> Iterator[tuple[Candidate, list[Pair]]]:
        """The candidates of a size that no law makes smaller, and what each may stand for."""
        counts = self.counts[size]
        place, shards = self.shard if size == self.size else (0, 1)
        for candidate in terms.grow(last=size == self.size):
            if candidate.equal[1] % shards != place:  # what is equal is in one part
                continue
            counts["candidates"] += 1
            if laws.reduces(candidate.term):
                counts["reduced"] += 1
                dropped.offer(candidate)
            elif pairs := list(islice(equations(candidate), TIES)):
                yield candidate, pairs

    def _true(self, sample: Iterable[Candidate | Pair]) -> Iterator[Roots]:
        """Of each equation, or candidate for one, both sides, where other values are equal, too."""
        several = (list(islice(equations(s), TIES)) if isinstance(s, Candidate) else [s] for s in sample)
        for _, equal in self._points().equal(enumerate(several)):
            for left, right in equal[:1]:
                yield (self._node(left),), (self._node(right),)

    def _points(self) -> Points:
        """Other values than those at which terms are found equal."""
        return Points(self.world, Prime(self.seed + 1), POINTS, self.seed)

    def _derived(self, sides: tuple[Node, Node], ruleset: Ruleset) -> bool:
        """Whether one side comes out of the other."""
        first, second = sides[:1], sides[1:]

        def follows() -> bool:
            return derived(first, second, ruleset) or derived(second, first, ruleset)

        laws = sha256("\n".join(rule.law for rule in ruleset.rules).encode()).hexdigest()
        return self.journal.answer(f"derived by {laws}: {shown(first)} = {shown(second)}", follows)

    def _keep(self, stated: Stated, size: int, sides: Roots, tags: tuple[str, ...] = ()) -> None:
        self.found.append(
            Found(self.world.name, size, stated.text, stated.rules, str(stated.evidence), sides, tags)
        )
        self.counts[size]["multi-patterns" if len(sides[0]) > 1 else "rules"] += 1
        self.note(f"{stated.text} | {stated.evidence}")

    def _roots(self, rule: Rule, term: Term) -> Roots:
        """The parts that a term puts together, and what the rule makes of them."""
        parts, matcher = tuple(map(self._node, term[1:])), Matcher(rule)
        made = (matcher.apply(parts, binding) for binding in matcher.bindings(parts))
        return parts, next(other for other in made if other is not None)

    def _node(self, term: Term) -> Node:
        """The term on inputs of the world's types."""
        if term[0] == "x":
            return source(f"x{term[2]}_{term[1]}", self.world.kinds[term[1]])
        use: Use = term[0]
        return use.node([self._node(part) for part in term[1:]])


def _generality(pair: Pair) -> tuple[Any, ...]:
    """Less for a law of more variables, of these for one whose larger side is smaller.

    That T(x) + T(y) is T(x + y) comes before T(x + T(y)) = T(x) + y, from which it follows one way alone.
    """
    first, second = sorted(map(key, pair))
    return -max(len(set(variables(side))) for side in pair), second, first


def shown(roots: tuple[Node, ...]) -> str:
    """Terms as a program's text."""
    inputs = tuple(node for node in topological_order(roots) if node.op is INPUT)
    return format_program(Program(inputs, tuple((f"y{k}", root) for k, root in enumerate(roots))))


def _same(first: Node, second: Node) -> bool:
    """Whether two terms are one but for the order of operands that commute."""
    if first.op is not second.op or first.attrs != second.attrs:
        return False
    orders = [second.args]
    if len(second.args) == 2 and isinstance(second.op, Op) and is_commutative(second.op):
        orders.append(second.args[::-1])
    return any(
        len(order) == len(first.args)
        and all(
            a is b or a is not None and b is not None and _same(a, b)
            for a, b in zip(first.args, order, strict=True)
        )
        for order in orders
    )


def _representative(candidate: Candidate) -> bool:
    """Whether it is the class's own, of which it is asked which of its variables are alike."""
    family, number = candidate.equal
    return family.origins[number] == (candidate.use, candidate.args)
