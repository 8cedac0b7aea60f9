"""Cost-based backtracking over whole programs (TASO Algorithm 2).

Programs wait in a queue ordered by cost; each step takes the cheapest and applies rules to it; a result
waits in turn if it costs less than `alpha` times the best.  A rule is applied everywhere at once (a *pass*,
arguments before users); when no program waits for passes any more, at one place at a time.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from time import monotonic
from typing import TypeAlias

from tensaurus.check.program.candidate import Candidate, Rewritten
from tensaurus.graph.ir.census import bytes_to_store
from tensaurus.graph.ir.node import Node, replace_args
from tensaurus.graph.ir.program import Program
from tensaurus.optimizer.search.outcome import Outcome
from tensaurus.optimizer.search.part_time_limits import Patience
from tensaurus.rules.language.equation import Equation, equation_of_rewrite
from tensaurus.rules.language.match import Rewriter
from tensaurus.rules.language.rule import Rule
from tensaurus.system.signals import Interruptible

Cost: TypeAlias = Callable[[Node], float]  # seconds of one node
Change: TypeAlias = tuple[tuple[Node, ...], tuple[Node, ...]]  # roots before and after

GAIN = 5e-4  # a new best program is cheaper by at least this share: measurements are no finer
PATIENCE = 60  # steps without a new best program that end a search
REPEATS = 16  # times that a pass applies its rule to one node
JOINT = 64  # matches of a rule with several roots that are tried on one program


@dataclass
class Backtrack:
    """A search; `watch(steps done, best cost)` is called after every step.

    rewriter    the rules
    cost        seconds of one node
    alpha       how much worse than the best a waiting program may be (TASO: 1.05)
    steps       programs to take from the queue at most
    deadline    monotonic time at which to stop, None for none: a step that outlives it is ended
    keep        how many programs to return: the best, and the bests before it
    memory      bytes of constants that a program may keep; never less than the original keeps
    patience    steps without a new best program that end it
    """

    rewriter: Rewriter
    cost: Cost
    alpha: float = 1.05
    steps: int = 100
    deadline: float | None = None
    keep: int = 3
    memory: float = inf
    patience: int = PATIENCE
    watch: Callable[[int, float], None] = lambda steps, best: None
    _seen: set[tuple[Node, ...]] = field(default_factory=set)
    _own: frozenset[Node] = frozenset()  # the original's expressions over constants

    def total(self, program: Program) -> float:
        """The sum of the costs of the nodes that compute at run time; infinite after the deadline.

        An operator that nobody has measured is measured for it.
        """
        total = 0.0
        for node in program.active:
            if self._late():
                return inf
            total += self.cost(node)
        return total

    def run(self, program: Program) -> Outcome:
        """The best programs found; an interrupt ends the search and keeps them."""
        start = monotonic()
        outcome = Outcome([Candidate(program, inf)], programs=1)
        try:
            with Interruptible(), Patience.until(self.deadline).part() as walk:
                self._walk(program, outcome)
            if walk.ended:
                outcome.ended_by = "time"
        except KeyboardInterrupt:
            outcome.ended_by = "interrupt"
        outcome.seconds = monotonic() - start
        return outcome

    def _walk(self, program: Program, outcome: Outcome) -> None:
        """Fill the outcome."""
        tick = itertools.count()
        wide: list[tuple[float, int, Candidate]] = []
        narrow: list[tuple[float, int, Candidate]] = []
        self._seen, self._own = {program.roots}, program.static
        self.memory = max(self.memory, bytes_to_store(program, self._own))
        improved = 0
        first = Candidate(program, self.total(program))  # measures every operator: long, the first time
        outcome.candidates = [first]
        if first.cost < inf:
            heapq.heappush(wide, (first.cost, next(tick), first))
        else:
            outcome.ended_by = "time"
        while wide or narrow:
            if outcome.steps - improved >= self.patience:
                outcome.ended_by = "patience"
                break
            if outcome.steps >= self.steps:
                outcome.ended_by = "steps"
                break
            if self._late():
                outcome.ended_by = "time"
                break
            passes = bool(wide)
            cost, _, current = heapq.heappop(wide if passes else narrow)
            if cost >= self.alpha * outcome.best.cost and current is not outcome.best:
                continue
            outcome.steps += 1
            if passes:
                heapq.heappush(narrow, (cost, next(tick), current))
            for child in self.passes(current) if passes else self.places(current):
                outcome.programs += 1
                if self._keep(outcome, child):
                    improved = outcome.steps
                if child.cost < self.alpha * outcome.best.cost:
                    heapq.heappush(wide, (child.cost, next(tick), child))
                if self._late():
                    break
            self.watch(outcome.steps, outcome.best.cost)

    def _late(self) -> bool:
        return self.deadline is not None and monotonic() >= self.deadline

    def _keep(self, outcome: Outcome, child: Candidate) -> bool:
        better = child.cost < (1 - GAIN) * outcome.best.cost
        if better:
            outcome.candidates.insert(0, child)
            del outcome.candidates[self.keep :]
        return better

    def passes(self, current: Candidate) -> Iterator[Candidate]:
        """Every new program that one rule makes, applied wherever it matches."""
        for rule in self._matching(current.program):
            made, changes = self.everywhere(current.program, rule)
            yield from self._child(current, made, rule, changes)
        for matcher in self.rewriter.multi_root:
            for merges in itertools.islice(matcher.joint_rewrites(current.program), JOINT):
                change = (tuple(merges), tuple(merges.values()))
                yield from self._child(current, current.program.replace_nodes(merges), matcher.rule, [change])

    def places(self, current: Candidate) -> Iterator[Candidate]:
        """Every new program that one rule makes at one of several places."""
        counts = self._matching(current.program)
        for node in current.program.nodes:
            if not node.static:
                for rule, replacement in self.rewriter.rewrites_at(node):
                    if counts[rule] > 1:
                        made = current.program.replace_nodes({node: replacement})
                        yield from self._child(current, made, rule, [((node,), (replacement,))])

    def _matching(self, program: Program) -> Counter[Rule]:
        """The rules that apply, in order of their first place, and at how many places."""
        return Counter(
            rule for node in program.nodes if not node.static for rule, _ in self.rewriter.rewrites_at(node)
        )

    def _child(
        self, current: Candidate, made: Program, rule: Rule, changes: Sequence[Change]
    ) -> Iterator[Candidate]:
        key = made.roots
        if key not in self._seen:
            self._seen.add(key)
            if bytes_to_store(made, self._own) > self.memory:
                return
            applied = partial(_equations, rule, tuple(changes))
            yield Candidate(made, self.total(made), Rewritten(applied, current))

    def everywhere(self, program: Program, rule: Rule) -> tuple[Program, list[Change]]:
        """The program with the rule applied at every node, arguments first, and each application."""
        changes: list[Change] = []

        def build(node: Node, args: tuple[Node | None, ...]) -> Node:
            made = replace_args(node, args)
            if made.static:
                return made
            for _ in range(REPEATS):
                rewritten = self.rewriter.rewrite_node(rule, made)
                if rewritten is None:
                    break
                changes.append(((made,), (rewritten,)))
                made = rewritten
            return made

        return program.rebuild(build), changes


def _equations(rule: Rule, changes: Sequence[Change]) -> tuple[Equation, ...]:
    """The rule at each place."""
    return tuple(equation_of_rewrite(rule, before, after) for before, after in changes)
