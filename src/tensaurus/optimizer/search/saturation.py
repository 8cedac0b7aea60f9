"""Equality saturation: all rewrites at once in an e-graph, then its cheapest program (TENSAT, MLSys'21).

Extract, ask, repeat.  Extraction goes by estimates that flatter what was not measured yet; what the cheapest
program uses is measured, and it is extracted again, until its cost rests on measurements.  That program is
then run as a whole, its operators cost what they took there, and it is extracted again, until the cheapest
program is one that was run.  As soon as many kernels are measured, the finders are shown the program of them:
what else a slow one may be made of is tried while there is time for it.

Before anything is measured, the program that is cheapest by estimates alone is extracted: what is folded,
fused or removed there is tried however little time there is.  What another search has made enters the e-graph
as equations, so that one extraction chooses among everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from time import monotonic

from tensaurus.check.program.candidate import Candidate
from tensaurus.egraph.core.check_egraph import Refutation
from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.finder_protocol import Finder, TimedFinder, ended_lines, insert_all, timed_finders
from tensaurus.egraph.extract.extraction_choices import Choices, Place
from tensaurus.egraph.extract.measurement_gains import measurement_gains
from tensaurus.egraph.extract.problem import Choice, cheapest_choice, dag_cost
from tensaurus.egraph.match.commuting_calls import commute
from tensaurus.egraph.match.flatten_nested_calls import nest
from tensaurus.egraph.match.fusion_patterns import fusion_patterns
from tensaurus.egraph.match.pattern import Pattern
from tensaurus.egraph.match.saturate import Exploration, Limits, Ruleset, saturate
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.optimizer.search.outcome import Outcome
from tensaurus.optimizer.search.part_time_limits import Extractor, Extractors, Patience
from tensaurus.optimizer.search.program_pool import Cheapest, Extracted, Programs
from tensaurus.optimizer.search.rank_programs import Ranking
from tensaurus.optimizer.search.run_finders import ENTERING, Showing
from tensaurus.runtimes.measure.observe import Observation
from tensaurus.runtimes.price.costs import Costs, Prices, StandaloneCosts
from tensaurus.runtimes.price.weight_costs import packing_key
from tensaurus.system.signals import Interruptible

__all__ = ["Saturation"]

STEPS = 400  # extractions at most
MEASURED = 0.8  # of the time that is left when the original was run, until which pieces are measured
LOOKS, FIRST = 12, 4  # programs run as a whole, at most, and those before that read no more constants
FAVOURED = (0.5, inf, 1), (0.7, inf, 1)  # of what kernels cost, constants, runs: right after the original
WORTH = 0.01  # of the original's time, that a program must save for its check to be likely
GAIN = 5e-4  # a new best program is cheaper by at least this share: measurements are no finer


@dataclass
class Saturation:
    """A search; `watch(steps done, best cost)` is called after every extraction.

    ruleset     the rules, compiled; `later` those and such as only long searches take, see `saturate`
    alone       what pieces cost by themselves
    extractors  one after the other: a quick one finds what to measure, the last one proves the optimum; each
                returns the choices of the classes that the roots need, and of no others
    fused       pieces of a program that its runtime fuses
    observe     runs a whole program, tells where its time goes; None: that cannot be told
    other       another search, whose programs enter the e-graph; None: there is none, or it found nothing
    finders     propose equalities that no rule writes, beside nested calls and commutativity
    limits      of the exploration
    memory      bytes of constants that a program may keep; never less than the original keeps
    steps       extractions at most
    deadline    monotonic time at which to stop, None for none: what outlives it is ended (`patience`)
    keep        how many programs to return beside the original
    expect      is given what will be measured, before it is, and what each may save
    extended    a later deadline, given whether something was found: what was kept for the check of a result
                may be left; None: there is none
    refutation  checks every union of the exploration where it is given
    """

    ruleset: Ruleset
    alone: StandaloneCosts
    extractors: Sequence[Extractor]
    fused: Callable[[Program], Iterable[Piece]] = lambda program: ()
    observe: Callable[[Program], Observation | None] = lambda program: None
    other: Callable[[Program], Outcome | None] = lambda program: None
    finders: Sequence[Finder] = ()
    limits: Limits = Limits()
    memory: float = inf
    steps: int = STEPS
    deadline: float | None = None
    keep: int = 3
    watch: Callable[[int, float], None] = lambda steps, best: None
    expect: Callable[[Mapping[Piece, float]], None] = lambda pieces: None
    refutation: Refutation | None = None
    later: Ruleset | None = None
    extended: Callable[[Program, bool], float | None] = lambda program, found: None

    def run(self, program: Program) -> Outcome:
        """The best programs, the best first; an interrupt ends the search and keeps them."""
        start = monotonic()
        outcome = Outcome([Candidate(program, inf)])
        search: _Search | None = None
        try:
            try:
                with Interruptible():
                    search = _Search(self, program)
                    for part in (search.explore, search.estimate, search.settle):
                        search.timed(part)
                    while search.goes_on():
                        for part in (search.explore, search.settle):
                            search.timed(part)
            except KeyboardInterrupt:
                outcome.ended_by = "interrupt"
            if search is not None:
                if outcome.ended_by == "interrupt":
                    search.ended_by = "interrupt"
                outcome = search.outcome()
        except KeyboardInterrupt:
            outcome.ended_by = "interrupt"
        outcome.seconds = monotonic() - start
        return outcome


class _Search:
    """The search of one program."""

    def __init__(self, limits: Saturation, program: Program):
        self.limits, self.program = limits, program
        self.graph = EGraph()
        self.roots = [self.graph.insert_term(node) for _, node in program.outputs]
        self.own = len(self.graph.heads)  # e-nodes before this one are the program's
        self.costs = Costs(limits.alone)
        self.programs = Programs()
        self.ended_by = "exhausted"
        self.steps = 0
        self.explored = Exploration("time")
        self.explores = True  # whether there is more to explore
        self.sure: list[bool] = []  # of the pieces of the last extraction, whether they were measured
        self.patterns: list[Pattern] = []
        self.pieces: list[Piece] = []  # that the patterns are of
        self.estimated: tuple[Program, list[float]] | None = None  # what it costs, and what the original does
        self.others: list[Candidate] = []  # of the other search
        self.seeds: list[tuple[Place, ...]] = []  # their e-nodes
        self.notes: list[str] = []
        self.unmeasured = ""  # what there was no time for, for people to read
        self.asked = False  # whether the other search was
        self.looked = 0.0  # seconds that it takes to run a program as a whole, at most
        self.patience = Patience.until(limits.deadline)
        self.extractors = Extractors(limits.extractors, self.patience)
        self.finders = (*timed_finders((nest, commute), self.patience.deadline), *limits.finders)
        self.showing = Showing(self.graph, limits.finders)

    def timed(self, part: Callable[[], None]) -> None:
        """Do a part of the search, and end it where it outlives the search's time."""
        with self.patience.part() as block:
            part()
        if block.ended:
            self.ended_by = "time"
            self.graph.rebuild()

    def goes_on(self) -> bool:
        """Whether there is more time, from now on."""
        if self.ended_by != "time" and not self.costs.is_measuring_over:
            return False
        original = self.programs.original
        found = original is not None and self.programs.best < (1 - WORTH) * original.seconds
        deadline = self.limits.extended(self.program, found)
        if deadline is None:
            return False
        exploring = replace(self.limits.limits, deadline=deadline)
        self.limits = replace(self.limits, deadline=deadline, limits=exploring)
        self.patience.deadline = deadline
        for finder in self.finders:
            if isinstance(finder, TimedFinder):
                finder.deadline = deadline
        return True

    def explore(self) -> None:
        """Fill the e-graph; go on with it where the time ended that."""
        if self.explores:
            self.explores = False  # unless this comes back
            self.graph.rebuild()
            own = self.limits
            self.explored = saturate(
                self.graph,
                own.ruleset,
                own.limits,
                later=own.later,
                finders=self.finders,
                refutation=own.refutation,
            )
            self.explores = self.explored.ended_by == "time"
        self.ended_by = self.explored.ended_by

    def estimate(self) -> None:
        """Extract the cheapest program by estimates alone."""
        totals: list[float] = []
        for before in (self.own, inf):
            choices = self._choices(before)
            costs = [self.limits.alone.estimate(piece) for piece in choices.pieces]
            priced = choices.keyed(costs)
            extract = next(iter(self.extractors), None)
            problem = choices.problem(priced)
            choice = None if extract is None else self.extractors.choice(extract, problem, None)
            if choice is None:
                break
            totals.insert(0, sum(priced[number] for number in choice.values()))
            if before == self.own:
                most = max(self.limits.memory, choices.memory(choice))
            elif choices.memory(choice) <= most:
                self.estimated = choices.program(self.program, choice), totals
        self._show(self.estimated[0] if self.estimated else self.program)

    def _show(self, program: Program) -> None:
        """Let the finders look at a program that was extracted, if there is time."""
        if self.limits.finders and not self._overdue():
            self.showing(program)

    def settle(self) -> None:
        """Extract, measure and run until the cheapest program is one that was run."""
        self.unmeasured = ""
        self._learn_fusions(self.program)
        if (best := self._cheapest(self._choices(self.own))) is None:
            if self.ended_by == "time" and not all(self.sure):
                known = f"{sum(self.sure)} of the model's {len(self.sure)} kinds of operators"
                self.unmeasured = (
                    f"there was time to measure {known}: only what estimates favour is tried."
                    " A longer --time-limit helps, and so does another run: measurements are kept"
                )
            return
        allowance = self.costs.allowance
        allowance.keep = max(self.limits.memory, best.choices.memory(best.choice))
        allowance.footprint = best.choices.footprint(best.choice)
        self.programs.original = best.entry
        observed = self._look(best)
        self._show(self.program)  # what finders make of it depends on what its operators take
        if self.limits.deadline is not None:  # what is known at the end must be chosen among, and be run
            self.costs.measuring_deadline = (1 - MEASURED) * monotonic() + MEASURED * self.limits.deadline
        self._ask_other()
        if not observed:
            self._settled()
            return
        # what reads more constants may slow everything down: what can be gained without is seen first;
        # before that, as each kernel among others' operators pays for layouts, what many gain together
        own = allowance.footprint
        for favour, read, looks in (*FAVOURED, (1.0, own, FIRST), (1.0, inf, LOOKS)):
            self.costs.kernel_cost_factor = favour
            allowance.begin(read)
            for _ in range(looks):
                best = self._settled()
                if best is None or best.entry.measured is not None or not self._look(best):
                    break
        while best is not None and self.showing.unhurried(best.entry.program, self.limits.deadline):
            best = self._settled()
            if best is not None and best.entry.measured is None:
                self._look(best)

    def _choices(self, before: float = inf) -> Choices:
        return Choices(
            self.graph, self.roots, self.patterns, before=before, own=self.own, packing=packing_key
        )

    def _ask_other(self) -> None:
        """Let the programs of the other search into the e-graph, with the rewrites that lead to them."""
        outcome = None if self.asked else self.limits.other(self.program)
        self.asked = True
        if outcome is None:
            return
        self.notes += outcome.notes
        if outcome.ended_by == "interrupt":
            raise KeyboardInterrupt
        self.steps += outcome.steps
        self.others = [candidate for candidate in outcome.candidates if candidate.step is not None]
        applied = dict.fromkeys(e for candidate in self.others for e in candidate.applied)
        insert_all(self.graph, applied, len(self.graph) + ENTERING)
        for candidate in self.others:
            self.seeds.append(tuple((self.graph.insert_term(node),) for node in candidate.program.nodes))
        self.graph.rebuild()

    def _settled(self) -> Cheapest | None:
        """The cheapest program, when its fusions are known and finders make no more of it."""
        while True:
            before = self.showing.unions
            best = self._cheapest(self._choices(), grows=True)
            if self.showing.unions > before:
                continue
            if best is None:
                return None
            self._show(best.entry.program)
            if not self._learn_fusions(best.entry.program) and self.showing.unions == before:
                return best

    def _learn_fusions(self, program: Program) -> bool:
        """Whether the program has some that were not known."""
        self.pieces += self.limits.fused(program)
        known, self.patterns = len(self.patterns), fusion_patterns(self.pieces)
        return len(self.patterns) > known

    def _look(self, best: Cheapest) -> bool:
        """Run a program as a whole, if there is time for it; whether that told where its time goes."""
        if self._overdue(self.looked):
            return False
        began = monotonic()
        if (seen := self.limits.observe(best.entry.program)) is None:
            return False
        self.looked = max(self.looked, monotonic() - began)
        read = best.choices.footprint(best.choice)
        self.costs.learn(seen, best.choices.computed(best.choice), best.prices, read)
        best.entry.measured = seen.seconds
        self.programs.forget_expectations()
        return True

    def _cheapest(self, choices: Choices, *, grows: bool = False) -> Cheapest | None:
        """The cheapest program by measured costs; None where the limits end the search before.

        Where the e-graph `grows` as finders look at kernels that were measured, it is the best until then.
        """
        before = self.showing.unions
        prices = self.costs.prices(choices)
        self.sure = prices.sure
        places = [*(entry.places for entry in self.programs), *self.seeds]
        starts: list[Choice] = [known for at in places if (known := choices.at(at))]
        best: Cheapest | None = None
        for extract in self.extractors:
            settled = False
            while not settled:
                if self._late():
                    return None
                problem = choices.problem(prices.of_choices()).without_infinite_costs()
                choice = self.extractors.choice(extract, problem, cheapest_choice(problem, starts))
                # of some class the runtime refuses everything
                if choice is None or dag_cost(problem, choice) == inf:
                    return best
                starts.append(choice)
                self.steps += 1
                plain = choices.problem(prices.of_choices(kernel_cost_factor=1))
                unsure = prices.unsure(measurement_gains(plain, choice, prices.sure_choices))
                in_time = self._measure(prices, unsure)
                allowance, read = self.costs.allowance, choices.footprint(choice)
                cost = prices.total(choice)
                fits = allowance.admits(choices.memory(choice), read)
                worth = not unsure or not in_time or cost < (1 - GAIN) * self.programs.best
                if fits and cost < inf and worth:
                    entry = Extracted(choices.program(self.program, choice), choices.places(choice), cost)
                    entry.sure = in_time
                    best = Cheapest(self.programs.keep(entry), choices, choice, prices)
                self.limits.watch(self.steps, self.programs.best)
                if not in_time or not (fits or cost == inf or allowance.raised(cost, read)):
                    return None
                if grows and self.showing.due and cost < inf:
                    self._show(choices.program(self.program, choice))
                    if self.showing.unions > before:
                        return best
                settled = fits and not unsure
        return best

    def _measure(self, prices: Prices, unsure: Mapping[int, float]) -> bool:
        """Measure what was not, and may save so much; false where the time ends before."""
        left = {prices.choices.pieces[key]: gain for key, gain in unsure.items()}
        for key in unsure:
            self.limits.expect(left)
            if self._overdue():
                return False
            piece, began = prices.choices.pieces[key], monotonic()
            prices.measure(key)
            self.showing.measured += monotonic() - began if piece.generated else 0.0
            del left[piece]
        if unsure:
            prices.settle()
        return True

    @property
    def detail(self) -> str:
        """How large the e-graph became, and how many of its operators had to be measured."""
        graph, rounds, known = self.graph, self.explored.rounds, self.sure
        size = f"{len(graph)} e-nodes in {len(graph.members)} classes after {rounds} rounds"
        return f"{size}, {sum(known)} of {len(known)} operators measured" if known else size

    def _late(self) -> bool:
        if self.steps >= self.limits.steps:
            self.ended_by = "steps"
            return True
        return self._overdue()

    def _overdue(self, seconds: float = 0.0) -> bool:
        """Whether there is no time for what takes so many seconds."""
        if self.limits.deadline is None or monotonic() + seconds < self.limits.deadline:
            return False
        self.ended_by = "time"
        return True

    def outcome(self) -> Outcome:
        """What the search has come to."""
        ranking = Ranking(self.graph, self.program, self.roots, self.patience, self.notes)
        best = self.programs.ranked(self.program.roots), self.limits.keep, self.estimated
        made = ranking.candidates(self.programs.original, *best, self.others)
        self.notes += [self.unmeasured] if self.unmeasured else []
        self.notes += ended_lines(self.finders) + list(self.extractors.ended.values())
        programs = len(self.programs) + len(self.others)
        return Outcome(made, self.ended_by, self.steps, programs, 0.0, self.detail, self.notes)
