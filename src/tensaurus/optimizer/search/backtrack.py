"""Cost-based backtracking over whole programs (TASO Algorithm 2), to which saturation is compared.

Programs wait in a queue ordered by cost; each step takes the cheapest and applies rules to it; a result
joins the queue if it costs less than `alpha` times the best.  A rule is first applied wherever it matches (a
*pass*, arguments before users); when no program waits for passes, at one place at a time:

    f(a) + f(b)    by f(x) = g(x):  a pass makes g(a) + g(b); then single places make g(a) + f(b), f(a) + g(b)
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
from tensaurus.graph.ir.census import fewest_stored_bytes
from tensaurus.graph.ir.node import Node, replace_args
from tensaurus.graph.ir.program import Program
from tensaurus.optimizer.search.outcome import Outcome
from tensaurus.optimizer.search.part_time_limits import SearchClock
from tensaurus.rules.language.equation import Equation, equation_of_rewrite
from tensaurus.rules.language.match import Rewriter
from tensaurus.rules.language.rule import Rule
from tensaurus.system.signals import Interruptible

Cost: TypeAlias = Callable[[Node], float]  # seconds of one node
Change: TypeAlias = tuple[tuple[Node, ...], tuple[Node, ...]]  # roots before and after

MIN_IMPROVEMENT = 5e-4  # share by which a new best program must be cheaper: measurements are no finer
STALL_STEPS = 60  # steps without a new best program after which a search ends
MAX_REPEATS = 16  # times that a pass applies its rule to one node, as some rules match their own results
MAX_JOINT_MATCHES = 64  # of a multi-pattern rule that are tried on one program


@dataclass
class Backtrack:
    """A configured search; `watch(steps done, best cost)` is called after every step.

    rewriter            applies the rules
    cost                seconds of one node
    alpha               a program waits if it costs at most this many times the best (TASO: 1.05)
    steps               largest number of programs to take from the queue
    deadline            monotonic time at which to stop, or None; a step that outlives it is ended
    keep                number of programs to return: the best, and the earlier bests
    max_constant_bytes  bytes of constants that a program may keep; never less than the original keeps
    stall_steps         steps without a new best program that end the search
    """

    rewriter: Rewriter
    cost: Cost
    alpha: float = 1.05
    steps: int = 100
    deadline: float | None = None
    keep: int = 3
    max_constant_bytes: float = inf
    stall_steps: int = STALL_STEPS
    watch: Callable[[int, float], None] = lambda steps, best: None
    _seen: set[tuple[Node, ...]] = field(default_factory=set)  # roots of all programs that were made
    _original_static: frozenset[Node] = frozenset()  # the original's expressions over constants

    def total_cost(self, program: Program) -> float:
        """Return the sum of the costs of the nodes that compute at run time; infinite after the deadline.

        Measures operators that were never measured.
        """
        total = 0.0
        for node in program.active:
            if self._is_late():
                return inf
            total += self.cost(node)
        return total

    def run(self, program: Program) -> Outcome:
        """Return the best programs found; an interrupt ends the search and keeps them.

        The search looks at the clock itself; a step that outlives the deadline is ended from outside.
        """
        outcome = Outcome([Candidate(program, inf)], programs=1)
        try:
            with Interruptible(), SearchClock.until(self.deadline).limit_part() as walk:
                self._walk(program, outcome)
            if walk.ended:
                outcome.ended_by = "time"
        except KeyboardInterrupt:
            outcome.ended_by = "interrupt"
        return outcome

    def _walk(self, program: Program, outcome: Outcome) -> None:
        """Take programs from the queues and rewrite them; put the best into `outcome`.

        Both queues hold (cost, running number, program): the number decides between equal costs.
        """
        tick = itertools.count()
        for_passes: list[tuple[float, int, Candidate]] = []
        for_single_places: list[tuple[float, int, Candidate]] = []
        self._seen, self._original_static = {program.roots}, program.static
        stored = fewest_stored_bytes(program, self._original_static)
        self.max_constant_bytes = max(self.max_constant_bytes, stored)
        improved = 0  # the number of steps at the last new best program
        first = Candidate(program, self.total_cost(program))  # slow at first: it measures every operator
        outcome.candidates = [first]
        if first.cost < inf:
            heapq.heappush(for_passes, (first.cost, next(tick), first))
        else:
            outcome.ended_by = "time"
        while for_passes or for_single_places:
            if limit := self._reached_limit(outcome.steps, outcome.steps - improved):
                outcome.ended_by = limit
                break
            # a program is taken twice: for passes, and, when no other waits for those, for single places
            passes = bool(for_passes)
            cost, _, current = heapq.heappop(for_passes if passes else for_single_places)
            if cost >= self.alpha * outcome.best.cost and current is not outcome.best:
                continue
            outcome.steps += 1
            if passes:
                heapq.heappush(for_single_places, (cost, next(tick), current))
            for child in self._apply_passes(current) if passes else self._apply_at_places(current):
                outcome.programs += 1
                if self._keep_if_better(outcome, child):
                    improved = outcome.steps
                if child.cost < self.alpha * outcome.best.cost:
                    heapq.heappush(for_passes, (child.cost, next(tick), child))
                if self._is_late():
                    break
            self.watch(outcome.steps, outcome.best.cost)

    def _reached_limit(self, steps: int, steps_without_gain: int) -> str:
        """Return the limit that ends the search now, as `Outcome.ended_by` names it; "" for none."""
        if steps_without_gain >= self.stall_steps:
            return "patience"
        if steps >= self.steps:
            return "steps"
        return "time" if self._is_late() else ""

    def _is_late(self) -> bool:
        return self.deadline is not None and monotonic() >= self.deadline

    def _keep_if_better(self, outcome: Outcome, child: Candidate) -> bool:
        """Put the child before all candidates if it is the new best; return whether it is."""
        is_better = child.cost < (1 - MIN_IMPROVEMENT) * outcome.best.cost
        if is_better:
            outcome.candidates.insert(0, child)
            del outcome.candidates[self.keep :]
        return is_better

    def _apply_passes(self, current: Candidate) -> Iterator[Candidate]:
        """Yield every new program that a pass of one rule makes."""
        for rule in self._count_matches(current.program):
            made, changes = self.rewrite_everywhere(current.program, rule)
            yield from self._make_child(current, made, rule, changes)
        for matcher in self.rewriter.multi_root:
            # `merges`: {root on the left side: what replaces it}
            for merges in itertools.islice(matcher.joint_rewrites(current.program), MAX_JOINT_MATCHES):
                change = (tuple(merges), tuple(merges.values()))
                made = current.program.replace_nodes(merges)
                yield from self._make_child(current, made, matcher.rule, [change])

    def _apply_at_places(self, current: Candidate) -> Iterator[Candidate]:
        """Yield every new program that one rule makes at one of several places where it matches."""
        counts = self._count_matches(current.program)
        for node in current.program.nodes:
            if not node.static:
                for rule, replacement in self.rewriter.rewrites_at(node):
                    if counts[rule] > 1:  # with a single place, the rule's pass was tried already
                        made = current.program.replace_nodes({node: replacement})
                        yield from self._make_child(current, made, rule, [((node,), (replacement,))])

    def _count_matches(self, program: Program) -> Counter[Rule]:
        """Return the rules that match, in the order of their first place, with the number of their places."""
        return Counter(
            rule for node in program.nodes if not node.static for rule, _ in self.rewriter.rewrites_at(node)
        )

    def _make_child(
        self, current: Candidate, made: Program, rule: Rule, changes: Sequence[Change]
    ) -> Iterator[Candidate]:
        """Yield the new program as a candidate; nothing if it was seen before or keeps too many constants."""
        if made.roots not in self._seen:
            self._seen.add(made.roots)
            if fewest_stored_bytes(made, self._original_static) > self.max_constant_bytes:
                return
            applied = partial(_equations_of_changes, rule, tuple(changes))
            yield Candidate(made, self.total_cost(made), Rewritten(applied, current))

    def rewrite_everywhere(self, program: Program, rule: Rule) -> tuple[Program, list[Change]]:
        """Return the program with the rule applied at every node, arguments first, and all applications."""
        changes: list[Change] = []

        def build(node: Node, args: tuple[Node | None, ...]) -> Node:
            made = replace_args(node, args)
            if made.static:
                return made
            for _ in range(MAX_REPEATS):
                rewritten = self.rewriter.rewrite_node(rule, made)
                if rewritten is None:
                    break
                changes.append(((made,), (rewritten,)))
                made = rewritten
            return made

        return program.rebuild(build), changes


def _equations_of_changes(rule: Rule, changes: Sequence[Change]) -> tuple[Equation, ...]:
    """Return the rule's instance at each place."""
    return tuple(equation_of_rewrite(rule, before, after) for before, after in changes)
