"""Searches by equality saturation: all rewrites fill an e-graph, the cheapest program is extracted.

See TENSAT (MLSys'21), sections 4 and 5.  A *piece* is what the runtime computes at once: one operator, or
several that it fuses.  The search repeats three steps until the cheapest program is one that was run whole:

    extract   the cheapest program, by measured costs, by optimistic estimates where there are none
    measure   the pieces of that program whose costs are estimates; extract again until none is left
    run       the whole program; charge its pieces with the times that they took in it

Before that the original is run whole: where its time goes tells the costs of its operators, each of which
would take a tenth of a second to measure by itself.

As soon as many kernels are measured, the finders see the program that uses them: they may know another form
of a slow kernel while there is time to tune it.  Before anything is measured, the program that is cheapest by
estimates alone is extracted, so that folding and fusing are tried however short the time is.  The programs of
another search enter the e-graph as equations, and one extraction chooses among everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from time import monotonic

from tensaurus.check.program.candidate import Candidate
from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.finder_protocol import TimedFinder, ended_lines, insert_all, timed_finders
from tensaurus.egraph.extract.extraction_choices import Choices, Place
from tensaurus.egraph.extract.measurement_gains import measurement_gains
from tensaurus.egraph.extract.problem import Choice, cheapest_choice, dag_cost
from tensaurus.egraph.match.commuting_calls import commute
from tensaurus.egraph.match.flatten_nested_calls import flatten
from tensaurus.egraph.match.fusion_patterns import fusion_patterns
from tensaurus.egraph.match.pattern import Pattern
from tensaurus.egraph.match.saturate import Exploration, saturate
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.optimizer.search.outcome import Outcome
from tensaurus.optimizer.search.part_time_limits import Extractors, Patience
from tensaurus.optimizer.search.program_pool import Cheapest, Extracted, Programs
from tensaurus.optimizer.search.rank_programs import Ranking
from tensaurus.optimizer.search.run_finders import MAX_NEW_ENODES, FinderRunner
from tensaurus.optimizer.search.run_rounds import run_rounds
from tensaurus.optimizer.search.saturation_config import SaturationConfig
from tensaurus.runtimes.price.costs import Costs, Prices
from tensaurus.runtimes.price.weight_costs import packing_key
from tensaurus.system.timeline import record

__all__ = ["SaturatingSearch"]

MEASURING_SHARE = 0.8  # share of the time left after the original was run in which pieces are measured
LIKELY_GAIN = 0.01  # share of the original's time that a program must save for a check to be likely
MIN_IMPROVEMENT = 5e-4  # share by which a new best program must be cheaper: measurements are no finer


class SaturatingSearch:
    """The search of one program; `Saturation.run` calls its parts in order.

        observe_original, explore, extract_by_estimates, extract_by_measurements
        while extend_deadline(): explore, extract_by_measurements

    `choices` are the e-nodes, and fused chains of them, of which an extraction chooses; `prices` their costs.
    A `choice` is a program: {class: number of what was chosen there}.
    """

    def __init__(self, config: SaturationConfig, program: Program):
        self.config, self.program = config, program
        self.graph = EGraph()
        self.roots = [self.graph.insert_term(node) for _, node in program.outputs]
        self.original_enodes = len(self.graph.heads)  # e-nodes with smaller numbers are the program's own
        self.costs = Costs(config.alone)
        self.programs = Programs()
        self.ended_by = "exhausted"
        self.steps = 0
        self.exploration = Exploration("time")
        self.can_explore = True
        self.is_measured: list[bool] = []  # of each piece of the last extraction
        self.fusion_patterns: list[Pattern] = []
        self.fused_pieces: list[Piece] = []  # that the patterns were made of
        self.estimated: tuple[Program, list[float]] | None = None  # with its cost and the original's
        self.other_candidates: list[Candidate] = []  # of the other search
        self.other_places: list[tuple[Place, ...]] = []  # their e-nodes
        self.notes: list[str] = []
        self.unmeasured_note = ""  # what there was no time to measure, for people
        self.asked_other_search = False
        self.longest_run = 0.0  # seconds to run a whole program
        self.patience = Patience.until(config.deadline)
        self.extractors = Extractors(config.extractors, self.patience)
        self.finders = (*timed_finders((flatten, commute), self.patience.deadline), *config.finders)
        self.finder_runner = FinderRunner(self.graph, config.finders)

    def run_part(self, part: Callable[[], None], share: float = 1.0) -> None:
        """Run a part of the search; end it where it outlives this share of the time that is left."""
        with self.patience.part(share) as block:
            part()
        if block.ended:
            self.ended_by = "time"
            self.graph.rebuild()

    def extend_deadline(self) -> bool:
        """Take time that turned out to be left; return whether there was any."""
        if self.ended_by != "time" and not self.costs.is_measuring_over:  # more time would not help
            return False
        original = self.programs.original
        # where programs can be run whole, only what was run is found: costs alone promise small gains in vain
        best = self.programs.best_run if self.is_original_observed else self.programs.best
        found = original is not None and best < (1 - LIKELY_GAIN) * original.seconds
        deadline = self.config.extended(self.program, found)
        if deadline is None:
            return False
        exploring = replace(self.config.exploration_limits, deadline=deadline)
        self.config = replace(self.config, deadline=deadline, exploration_limits=exploring)
        self.patience.deadline = deadline
        for finder in self.finders:
            if isinstance(finder, TimedFinder):
                finder.deadline = deadline
        return True

    def observe_original(self) -> None:
        """Run the original whole: where its time goes tells the costs of its operators.

        Only those that make up most of the time are measured alone, too, to compare both times.  Where the
        runtime cannot tell where the time goes, `extract_by_measurements` measures each operator alone.
        """
        self._learn_fusions(self.program)
        # extract the program's own e-nodes, which chooses what of it the runtime fuses
        choices = self._choices(self.original_enodes)
        prices = self.costs.prices(choices)
        problem = choices.problem(prices.of_choices()).without_infinite_costs()
        extract = next(iter(self.extractors), None)
        choice = None if extract is None else self.extractors.choice(extract, problem, None)
        if choice is None or dag_cost(problem, choice) == inf:
            return
        entry = Extracted(choices.program(self.program, choice), choices.places(choice), prices.total(choice))
        best = Cheapest(entry, choices, choice, prices)
        if self._run_whole(best):
            self._set_original(best)
            prices = self.costs.prices(choices)
            entry.cost = prices.total(choice)  # as results are predicted, by what was learnt
            for key in prices.keys_to_calibrate(choice):
                if self._has_no_time():
                    return
                prices.measure(key)

    @property
    def is_original_observed(self) -> bool:
        """Whether the original was run whole."""
        return self.programs.original is not None and self.programs.original.measured is not None

    def _set_original(self, best: Cheapest) -> None:
        """Keep the original as it was extracted; the bytes of constants that it needs are always allowed."""
        allowance = self.costs.allowance
        allowance.max_stored_bytes = max(self.config.memory, best.choices.stored_bytes(best.choice))
        allowance.original_read_bytes = best.choices.packed_bytes(best.choice)
        self.programs.original = self.programs.keep(best.entry)

    def explore(self) -> None:
        """Fill the e-graph, or continue where the time ended an earlier exploration."""
        if self.can_explore:
            self.can_explore = False  # an exploration that does not come back is not tried again
            self.graph.rebuild()
            config = self.config
            self.exploration = saturate(
                self.graph,
                config.ruleset,
                config.exploration_limits,
                later=config.later,
                finders=self.finders,
                refutation=config.refutation,
            )
            self.can_explore = self.exploration.ended_by == "time"
        self.ended_by = self.exploration.ended_by

    def extract_by_estimates(self) -> None:
        """Extract the program that is cheapest by estimates alone."""
        totals: list[float] = []
        for before in (self.original_enodes, inf):  # the original, then the cheapest of all programs
            choices = self._choices(before)
            costs = [self.config.alone.estimate(piece) for piece in choices.pieces]
            priced = choices.price_choices(costs)
            extract = next(iter(self.extractors), None)
            problem = choices.problem(priced)
            choice = None if extract is None else self.extractors.choice(extract, problem, None)
            if choice is None:
                break
            totals.insert(0, sum(priced[number] for number in choice.values()))
            if before == self.original_enodes:  # a program may always store as much as the original
                most = max(self.config.memory, choices.stored_bytes(choice))
            elif choices.stored_bytes(choice) <= most:
                self.estimated = choices.program(self.program, choice), totals
        if not self.is_original_observed:  # else the finders soon see the cheapest program by observed costs
            self._run_finders(self.estimated[0] if self.estimated else self.program)

    def _run_finders(self, program: Program) -> None:
        """Let the finders propose equations for an extracted program, if there is time."""
        if self.config.finders and not self._has_no_time():
            self.finder_runner.run(program)

    def extract_by_measurements(self) -> None:
        """Extract, measure and run until the cheapest program is one that was run."""
        # 1. the original, if it was not observed: measure its operators, then run it
        self.unmeasured_note = ""
        best: Cheapest | None = None
        observed = self.is_original_observed
        if not observed:
            if (best := self._extract_and_measure(self._choices(self.original_enodes))) is None:
                self._note_unmeasured()
                return
            self._set_original(best)
            observed = self._run_whole(best)
        # 2. more equations: those of the finders, then those of the other search's programs
        self._run_finders(self.program)  # finders need the measured times of its operators
        if self.config.deadline is not None:  # the rest of the time is for choosing and running programs
            now, share = monotonic(), MEASURING_SHARE
            self.costs.measuring_deadline = (1 - share) * now + share * self.config.deadline
        self._add_other_search()
        # 3. the cheapest program; where programs can be run, each round runs some, by its own view of costs
        if not observed:
            self._extract_until_stable()
            return
        allowance = self.costs.allowance
        for view in run_rounds(allowance.original_read_bytes):
            self.costs.kernel_cost_factor = view.kernel_cost_factor
            allowance.restart_with_limit(view.max_constant_bytes)
            for _ in range(view.max_runs):
                best = self._extract_until_stable()
                if best is None or best.entry.measured is not None or not self._run_whole(best):
                    break
        # 4. the same with what finders had no time for until now
        while best is not None and self.finder_runner.run_deferred(best.entry.program, self.config.deadline):
            best = self._extract_until_stable()
            if best is not None and best.entry.measured is None:
                self._run_whole(best)

    def _note_unmeasured(self) -> None:
        """Tell how many of the original's operators were measured, if the time was too short for all."""
        if self.ended_by == "time" and not all(self.is_measured):
            known = f"{sum(self.is_measured)} of the model's {len(self.is_measured)} kinds of operators"
            self.unmeasured_note = (
                f"only {known} were measured in time: only rewrites with a good estimate are tried."
                " Raise --time-limit, or run again: measurements are kept"
            )

    def _choices(self, before: float = inf) -> Choices:
        """Return the choices among the e-nodes numbered below `before`."""
        graph, patterns, own = self.graph, self.fusion_patterns, self.original_enodes
        return Choices(graph, self.roots, patterns, before=before, own=own, packing=packing_key)

    def _add_other_search(self) -> None:
        """Add the programs of the other search to the e-graph, with the rewrites that lead to them."""
        outcome = None if self.asked_other_search else self.config.other(self.program)
        self.asked_other_search = True
        if outcome is None:
            return
        self.notes += outcome.notes
        if outcome.ended_by == "interrupt":
            raise KeyboardInterrupt
        self.steps += outcome.steps
        self.other_candidates = [candidate for candidate in outcome.candidates if candidate.step is not None]
        applied = dict.fromkeys(e for candidate in self.other_candidates for e in candidate.applied)
        insert_all(self.graph, applied, len(self.graph) + MAX_NEW_ENODES)
        for candidate in self.other_candidates:
            nodes = candidate.program.nodes
            self.other_places.append(tuple((self.graph.insert_term(node),) for node in nodes))
        self.graph.rebuild()

    def _extract_until_stable(self) -> Cheapest | None:
        """Return the cheapest program, once its fusions are known and finders know no other form of it."""
        while True:
            before = self.finder_runner.unions
            best = self._extract_and_measure(self._choices(), grows=True)
            if self.finder_runner.unions > before:
                continue
            if best is None:
                return None
            self._run_finders(best.entry.program)
            if not self._learn_fusions(best.entry.program) and self.finder_runner.unions == before:
                return best

    def _learn_fusions(self, program: Program) -> bool:
        """Learn which pieces the runtime fuses in the program; return whether a pattern is new."""
        self.fused_pieces += self.config.fused(program)
        known = len(self.fusion_patterns)
        self.fusion_patterns = fusion_patterns(self.fused_pieces)
        return len(self.fusion_patterns) > known

    def _run_whole(self, best: Cheapest) -> bool:
        """Run a whole program, if there is time; return whether the run told where its time goes."""
        if self._has_no_time(self.longest_run):
            return False
        began = monotonic()
        if (seen := self.config.observe(best.entry.program)) is None:
            return False
        record("run", expected_ms=best.entry.cost * 1e3, took_ms=seen.seconds * 1e3)
        self.longest_run = max(self.longest_run, monotonic() - began)
        read = best.choices.packed_bytes(best.choice)
        self.costs.learn(seen, best.choices.computed_nodes(best.choice), best.prices, read)
        best.entry.measured = seen.seconds
        self.programs.forget_expectations()
        return True

    def _extract_and_measure(self, choices: Choices, *, grows: bool = False) -> Cheapest | None:
        """Return the cheapest program by measured costs; None where a limit ends the search before.

        Each extractor in turn extracts a program, and its unmeasured pieces are measured, until it extracts
        one without such pieces that is within the limits of constants.

        grows  run the finders once enough kernels are measured; after their unions, return the best so far
        """
        before = self.finder_runner.unions
        prices = self.costs.prices(choices)
        self.is_measured = prices.is_measured
        # programs known from earlier extractions, as choices here: an extractor starts from the cheapest
        places = [*(entry.places for entry in self.programs), *self.other_places]
        starts: list[Choice] = [known for at in places if (known := choices.choice_at(at))]
        best: Cheapest | None = None
        for extract in self.extractors:
            settled = False
            while not settled:
                if self._is_over():
                    return None
                problem = choices.problem(prices.of_choices()).without_infinite_costs()
                choice = self.extractors.choice(extract, problem, cheapest_choice(problem, starts))
                # infinite: the runtime refuses each e-node of some e-class
                if choice is None or dag_cost(problem, choice) == inf:
                    return best
                starts.append(choice)
                self.steps += 1
                # what measuring may save, at true prices: the round's factor must not count
                plain = choices.problem(prices.of_choices(kernel_cost_factor=1))
                unsure = prices.keys_to_measure(measurement_gains(plain, choice, prices.measured_choices))
                in_time = self._measure(prices, unsure)
                allowance, read = self.costs.allowance, choices.packed_bytes(choice)
                cost = prices.total(choice)
                fits = allowance.admits(choices.stored_bytes(choice), read)
                # a program whose measurements have just shown it to be no better than the best is not kept
                worth = not unsure or not in_time or cost < (1 - MIN_IMPROVEMENT) * self.programs.best
                if fits and cost < inf and worth:
                    entry = Extracted(choices.program(self.program, choice), choices.places(choice), cost)
                    entry.sure = in_time
                    best = Cheapest(self.programs.keep(entry), choices, choice, prices)
                record("extraction", number=self.steps, expected_ms=cost * 1e3, unmeasured=len(unsure))
                self.config.watch(self.steps, self.programs.best)
                # a program beyond the limits raises the price of a byte, so that the next one reads less
                if not in_time or not (fits or cost == inf or allowance.try_raise_price(cost, read)):
                    return None
                if grows and self.finder_runner.is_due and cost < inf:
                    self._run_finders(choices.program(self.program, choice))
                    if self.finder_runner.unions > before:
                        return best
                settled = fits and not unsure
        return best

    def _measure(self, prices: Prices, unsure: Mapping[int, float]) -> bool:
        """Measure the `unsure` pieces, {piece number: seconds it may save}; return False if the time ends."""
        waiting = {prices.choices.pieces[key]: gain for key, gain in unsure.items()}
        for key in unsure:
            self.config.expect(waiting)
            if self._has_no_time():
                return False
            piece, began = prices.choices.pieces[key], monotonic()
            prices.measure(key)
            self.finder_runner.measuring_seconds += monotonic() - began if piece.has_eoperators else 0.0
            del waiting[piece]
        if unsure:
            prices.update()
        return True

    @property
    def detail(self) -> str:
        """The size of the e-graph, and how many operators are measured, for users."""
        graph, rounds, known = self.graph, self.exploration.rounds, self.is_measured
        size = f"{len(graph)} e-nodes in {len(graph.members)} classes after {rounds} rounds"
        return f"{size}, {sum(known)} of {len(known)} operators measured" if known else size

    def _is_over(self) -> bool:
        if self.steps >= self.config.steps:
            self.ended_by = "steps"
            return True
        return self._has_no_time()

    def _has_no_time(self, seconds: float = 0.0) -> bool:
        """Return whether no time is left for a step of these seconds; the search then `ended_by` the time."""
        if self.config.deadline is None or monotonic() + seconds < self.config.deadline:
            return False
        self.ended_by = "time"
        return True

    def outcome(self) -> Outcome:
        """Return the programs that the search found, ranked, each with its proof."""
        ranking = Ranking(self.graph, self.program, self.roots, self.patience, self.notes)
        best = self.programs.ranked(self.program.roots), self.config.keep, self.estimated
        made = ranking.candidates(self.programs.original, *best, self.other_candidates)
        self.notes += [self.unmeasured_note] if self.unmeasured_note else []
        self.notes += ended_lines(self.finders) + list(self.extractors.ended.values())
        programs = len(self.programs) + len(self.other_candidates)
        return Outcome(made, self.ended_by, self.steps, programs, self.detail, self.notes)
