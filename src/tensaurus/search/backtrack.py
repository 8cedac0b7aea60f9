"""Cost-based backtracking over whole programs (TASO Algorithm 2).

Programs wait in a queue ordered by cost; each step takes the cheapest and applies rules to it; a result
waits in turn if it costs less than `alpha` times the best.  A rule is applied everywhere at once (a *pass*,
arguments before users) and, where passes from the best program bring nothing more, at one place at a time.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeAlias

from tensaurus.graph.node import Node, again
from tensaurus.graph.program import Program
from tensaurus.rules.match import Rewriter
from tensaurus.rules.rule import Rule

Cost: TypeAlias = Callable[[Node], float]  # seconds of one node

GAIN = 5e-4  # a new best program is cheaper by at least this share: measurements are no finer
REPEATS = 16  # times that a pass applies its rule to one node
JOINT = 64  # matches of a rule with several roots that are tried on one program


@dataclass(frozen=True)
class Step:
    """One rewrite of a whole program: the rule, how often it applied, and the program before it."""

    rule: Rule
    count: int
    before: Candidate


@dataclass(frozen=True)
class Candidate:
    """A program on the way, with its estimated cost in seconds and the step that made it."""

    program: Program
    cost: float
    step: Step | None = None

    @property
    def chain(self) -> list[Candidate]:
        """From the original program to this one."""
        line, at = [self], self
        while at.step is not None:
            at = at.step.before
            line.append(at)
        return line[::-1]


@dataclass
class Outcome:
    """best first; `ended_by` is "exhausted", "steps", "time" or "interrupt"."""

    candidates: list[Candidate]
    ended_by: str = "exhausted"
    steps: int = 0
    programs: int = 0
    seconds: float = 0.0

    @property
    def best(self) -> Candidate:
        return self.candidates[0]


@dataclass
class Backtrack:
    """A search; `watch(steps done, best cost)` is told after every step.

    rewriter    the rules
    cost        seconds of one node
    alpha       how much worse than the best a waiting program may be (TASO: 1.05)
    steps       programs to take from the queue at most
    deadline    monotonic time at which to stop, None for none
    keep        how many programs to return: the best, and the bests before it
    """

    rewriter: Rewriter
    cost: Cost
    alpha: float = 1.05
    steps: int = 100
    deadline: float | None = None
    keep: int = 3
    watch: Callable[[int, float], None] = lambda steps, best: None
    _seen: set[tuple[Node, ...]] = field(default_factory=set)

    def total(self, program: Program) -> float:
        """The sum of the costs of the nodes that compute at run time."""
        return sum(self.cost(node) for node in program.active)

    def run(self, program: Program) -> Outcome:
        """The best programs found; an interrupt ends the search and keeps them."""
        start = monotonic()
        first = Candidate(program, self.total(program))
        outcome = Outcome([first], programs=1)
        tick = itertools.count()
        queue: list[tuple[float, int, Candidate]] = [(first.cost, next(tick), first)]
        self._seen = {_key(program)}
        try:
            while queue:
                if outcome.steps >= self.steps:
                    outcome.ended_by = "steps"
                    break
                if self._late():
                    outcome.ended_by = "time"
                    break
                cost, _, current = heapq.heappop(queue)
                if cost >= self.alpha * outcome.best.cost and current is not outcome.best:
                    continue
                outcome.steps += 1
                for child in self.children(current):
                    outcome.programs += 1
                    self._keep(outcome, child)
                    if child.cost < self.alpha * outcome.best.cost:
                        heapq.heappush(queue, (child.cost, next(tick), child))
                    if self._late():
                        break
                self.watch(outcome.steps, outcome.best.cost)
        except KeyboardInterrupt:
            outcome.ended_by = "interrupt"
        outcome.seconds = monotonic() - start
        return outcome

    def _late(self) -> bool:
        return self.deadline is not None and monotonic() >= self.deadline

    def _keep(self, outcome: Outcome, child: Candidate) -> None:
        if child.cost < (1 - GAIN) * outcome.best.cost:
            outcome.candidates.insert(0, child)
            del outcome.candidates[self.keep :]

    def children(self, current: Candidate) -> Iterator[Candidate]:
        """Every new program one step away: passes first, single places where no pass gains."""
        places: dict[Rule, int] = {}
        for node in current.program.nodes:
            if not node.static:
                for rule, _ in self.rewriter.local(node):
                    places[rule] = places.get(rule, 0) + 1
        gained = False
        for rule in places:
            made, count = self.everywhere(current.program, rule)
            child = self._child(current, made, rule, count)
            if child is not None:
                gained = gained or child.cost < current.cost
                yield child
        for matcher in self.rewriter.several:
            for changes in itertools.islice(matcher.joint(current.program), JOINT):
                child = self._child(current, current.program.replaced(changes), matcher.rule, 1)
                if child is not None:
                    gained = gained or child.cost < current.cost
                    yield child
        if gained:
            return
        for node in current.program.nodes:
            if not node.static:
                for rule, replacement in self.rewriter.local(node):
                    if places[rule] > 1:
                        made = current.program.replaced({node: replacement})
                        child = self._child(current, made, rule, 1)
                        if child is not None:
                            yield child

    def _child(self, current: Candidate, made: Program, rule: Rule, count: int) -> Candidate | None:
        key = _key(made)
        if key in self._seen:
            return None
        self._seen.add(key)
        return Candidate(made, self.total(made), Step(rule, count, current))

    def everywhere(self, program: Program, rule: Rule) -> tuple[Program, int]:
        """The program with the rule applied at every node, arguments first, and how often it applied."""
        count = 0

        def build(node: Node, args: tuple[Node | None, ...]) -> Node:
            nonlocal count
            made = again(node, args)
            if made.static:
                return made
            for _ in range(REPEATS):
                found = self.rewriter.one(rule, made)
                if found is None:
                    break
                made, count = found, count + 1
            return made

        return program.rebuilt(build), count


def _key(program: Program) -> tuple[Node, ...]:
    return tuple(node for _, node in program.outputs)
