"""Searches by equality saturation: all rewrites fill an e-graph, the cheapest program is extracted.

See TENSAT (MLSys'21), sections 4 and 5.  A *piece* is what the runtime computes at once: one operator, or
several that it fuses.  The search repeats three steps until the cheapest program is one that was run whole:

    extract   the cheapest program, by measured costs, by optimistic estimates where there are none
    measure   the pieces of that program whose costs are estimates; extract again until none is left
    run       the whole program, a first one early (`interim_run`); charge its pieces with their times in it

For example, the first extraction uses a fused kernel that is estimated at 0.2 ms.  It is tuned, and measured
at 0.5 ms; the next extraction does without it, and is the cheapest program known.

Before anything is measured, the program that is cheapest by estimates alone is extracted, so that folding and
fusing are tried however short the time is.  The programs of another search enter the e-graph as equations,
and one extraction chooses among everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from time import monotonic

from tensaurus.check.program.candidate import Candidate
from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.finder_protocol import TimedFinder, ended_lines, insert_all, timed_finders
from tensaurus.egraph.extract.extraction_choices import Choices, Place
from tensaurus.egraph.extract.measurement_gains import measurement_gains
from tensaurus.egraph.extract.problem import Selection, cheapest_selection, dag_cost
from tensaurus.egraph.match.commuting_calls import commute
from tensaurus.egraph.match.flatten_nested_calls import flatten
from tensaurus.egraph.match.fusion_patterns import fusion_patterns
from tensaurus.egraph.match.pattern import Pattern
from tensaurus.egraph.match.saturate import Exploration, saturate
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.optimizer.search.estimated_program import EstimatedProgram, extract_by_estimates
from tensaurus.optimizer.search.interim_run import LIKELY_GAIN, InterimRun, find_measured_program
from tensaurus.optimizer.search.outcome import Outcome, describe_size, describe_unmeasured
from tensaurus.optimizer.search.part_time_limits import Extractor, Extractors, SearchClock
from tensaurus.optimizer.search.program_pool import Extracted, Extraction, ProgramPool
from tensaurus.optimizer.search.rank_programs import Ranking
from tensaurus.optimizer.search.rounds import plan_rounds
from tensaurus.optimizer.search.run_finders import MAX_NEW_ENODES, FinderRunner
from tensaurus.optimizer.search.saturation_config import SaturationConfig
from tensaurus.runtimes.price.constant_limits import packing_key
from tensaurus.runtimes.price.costs import Costs, Prices
from tensaurus.system.timeline import record

__all__ = ["SaturatingSearch"]

MEASURING_SHARE = 0.75  # share of the time left after the original was run in which pieces are measured
EARLY_RUN_SHARE = 0.2  # of the time left, in which the first program can be run before finders see it
MIN_IMPROVEMENT = 5e-4  # share by which a new best program must be cheaper: measurements are no finer


class SaturatingSearch:
    """The search of one program.  `saturation` calls its parts in order, and at the end `outcome`.

    `choices` are the e-nodes and fused chains of which an extraction chooses, `prices` their costs, a
    `selection` is a program: {class: number of what was chosen there}.
    """

    def __init__(self, config: SaturationConfig, program: Program):
        self.config, self.program = config, program
        self.graph = EGraph()
        self.roots = [self.graph.insert_term(node) for _, node in program.outputs]
        self.original_enodes = len(self.graph.heads)  # e-nodes with smaller numbers are the program's own
        self.costs = Costs(config.standalone_costs)
        self.pool = ProgramPool()
        self.ended_by = "exhausted"
        self.steps, self.exploration = 0, Exploration("time")
        self.can_explore = True
        self.is_measured: list[bool] = []  # of each piece of the last extraction
        self.fusion_patterns: list[Pattern] = []
        self.fused_pieces: list[Piece] = []  # that the patterns were made of
        self.estimated: EstimatedProgram | None = None
        self.other_candidates: list[Candidate] = []  # of the other search
        self.other_places: list[tuple[Place, ...]] = []  # their e-nodes
        self.notes: list[str] = []
        self.unmeasured_note = ""  # what there was no time to measure, for people
        self.asked_other_search = False
        self.interim_run = InterimRun()
        self.longest_run = 0.0  # seconds to run a whole program
        self.not_run: Extraction | None = None  # the best program, while there was no time to run it
        self.clock = SearchClock.until(config.deadline)
        self.extractors = Extractors(config.extractors, self.clock)
        self.finders = (*timed_finders((flatten, commute), self.clock.deadline), *config.finders)
        self.finder_runner = FinderRunner(self.graph, config.finders)

    def run_part(self, part: Callable[[], None], share: float = 1.0) -> None:
        """Run a part of the search; end it where it outlives this share of the time that is left."""
        with self.clock.limit_part(share) as block:
            part()
        if block.ended:
            self.ended_by = "time"
            self.graph.rebuild()

    def extend_deadline(self) -> bool:
        """Take time that turned out to be left; return whether there was any."""
        if self.ended_by != "time" and not self.costs.is_measuring_over:  # more time would not help
            return False
        deadline = self.config.extend_deadline(self.program, self.pool.has_gain(LIKELY_GAIN))
        if deadline is None:
            return False
        exploring = replace(self.config.exploration_limits, deadline=deadline)
        self.config = replace(self.config, deadline=deadline, exploration_limits=exploring)
        self.clock.deadline = deadline
        for finder in self.finders:
            if isinstance(finder, TimedFinder):
                finder.deadline = deadline
        return True

    def observe_original(self) -> None:
        """Run the original whole: where its time goes tells the costs of its operators.

        To measure an operator alone takes a tenth of a second, so only those that make up most of the time
        are, to compare both times.  Where the runtime cannot tell where the time goes,
        `extract_by_measurements` measures each operator alone.
        """
        self._learn_fusions(self.program)
        # extract the program's own e-nodes, which chooses what of it the runtime fuses
        choices = self._choices(self.original_enodes)
        prices = self.costs.prices(choices)
        problem = choices.problem(prices.of_choices()).without_infinite_costs()
        selection = self.extractors.extract_first(problem)
        if selection is None or dag_cost(problem, selection) == inf:
            return
        program, places = choices.program(self.program, selection), choices.places(selection)
        extracted = Extracted(program, places, prices.total(selection))
        original = Extraction(extracted, choices, selection, prices)
        if self._run_whole(original):
            self._set_original(original)
            prices = self.costs.prices(choices)
            extracted.cost = prices.total(selection)  # as results are predicted, by what was learnt
            for key in prices.keys_to_calibrate(selection):
                if self._has_no_time():
                    return
                prices.measure(key)

    def _set_original(self, original: Extraction) -> None:
        """Keep the original as it was extracted; the bytes of constants that it needs are always allowed."""
        constant_limits = self.costs.constant_limits
        stored = original.choices.stored_bytes(original.selection)
        constant_limits.max_stored_bytes = max(self.config.max_constant_bytes, stored)
        constant_limits.original_read_bytes = original.choices.packed_bytes(original.selection)
        self.pool.original = self.pool.add(original.extracted)

    def explore(self) -> None:
        """Fill the e-graph, or continue where the time ended an earlier exploration."""
        if self.can_explore:
            self.can_explore = False  # an exploration that does not come back is not tried again
            self.graph.rebuild()
            config, limits = self.config, self.config.limit_exploration(self.original_enodes)
            self.exploration = saturate(
                self.graph, config.ruleset, limits, simplifying=config.simplifying,
                later=config.later, finders=self.finders, refutation=config.refutation,
            )
            whole = config.exploration_limits.deadline
            if self.exploration.ended_by == "time" and whole is not None and monotonic() < whole:
                self.exploration.ended_by = "share"  # it is not continued: extractions are of more use now
            self.can_explore = self.exploration.ended_by == "time"
        self.ended_by = self.exploration.ended_by

    def extract_by_estimates(self) -> None:
        """Extract the program that is cheapest by estimates alone."""
        self.estimated = extract_by_estimates(
            self.config, self.extractors, self.program, self._choices, self.original_enodes
        )
        if not self.pool.is_original_run:  # else the finders soon see the cheapest program by observed costs
            self._run_finders(self.estimated.program if self.estimated else self.program)

    def _run_finders(self, program: Program) -> None:
        """Let the finders propose equations for an extracted program, if there is time."""
        if self.config.finders and not self._has_no_time():
            self.finder_runner.run(program)

    def extract_by_measurements(self) -> None:
        """Extract, measure and run until the cheapest program is one that was run."""
        # 1. the original, if it was not observed: measure its operators, then run it
        self.unmeasured_note = ""
        can_run_whole = self.pool.is_original_run
        if not can_run_whole:
            if (original := self._extract_and_measure(self._choices(self.original_enodes))) is None:
                self.unmeasured_note = describe_unmeasured(self.is_measured, self.ended_by)
                return
            self._set_original(original)
            can_run_whole = self._run_whole(original)
        # 2. more equations: those of the finders, then those of the other search's programs
        self._run_finders(self.program)  # finders need the measured times of its operators
        if self.config.deadline is not None:  # the rest of the time is for choosing and running programs
            now, share = monotonic(), MEASURING_SHARE
            self.costs.measuring_deadline = (1 - share) * now + share * self.config.deadline
            self.interim_run.plan(self.config.deadline)
        self._add_other_search()
        # 3. the cheapest program.  Where programs can be run, rounds run some each: first with kernels priced
        # below their cost, since costs alone may mislead about kernels among others, at last at true prices
        if not can_run_whole:
            self._extract_until_stable()
            return
        if self.not_run is not None and self.not_run.extracted.measured is None:  # the time was over before
            self._run_whole(self.not_run)
        best: Extraction | None = None
        constant_limits = self.costs.constant_limits
        for view in plan_rounds(constant_limits.original_read_bytes):
            self.costs.kernel_cost_factor = view.kernel_cost_factor
            constant_limits.restart_with_limit(view.max_constant_bytes)
            for _ in range(view.max_runs):
                best = self._extract_until_stable()
                if best is None or best.extracted.measured is not None or not self._run_whole(best):
                    break
        # 4. the same with what finders had no time for until now
        while best and self.finder_runner.run_deferred(best.extracted.program, self.config.deadline):
            best = self._extract_until_stable()
            if best is not None and best.extracted.measured is None:
                self._run_whole(best)

    def _choices(self, before: float = inf) -> Choices:
        """Return the choices among the e-nodes numbered below `before`."""
        return Choices(
            self.graph, self.roots, self.fusion_patterns,
            enode_limit=before, original_enodes=self.original_enodes, packing=packing_key,
        )

    def _add_other_search(self) -> None:
        """Add the programs of the other search to the e-graph, with the rewrites that lead to them."""
        outcome = None if self.asked_other_search else self.config.search_otherwise(self.program)
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

    def _extract_until_stable(self) -> Extraction | None:
        """Return the cheapest program, once its fusions are known and finders know no other form of it."""
        while True:
            unions = self.finder_runner.unions
            best = self._extract_and_measure(self._choices(), may_run_finders=True)
            if self.finder_runner.unions > unions:
                continue
            if best is None:
                return None
            is_first = not self.pool.has_run_other and best.extracted.measured is None
            if is_first and self.clock.has_time_for(self.longest_run, EARLY_RUN_SHARE):
                self._run_whole(best)  # the finders go by what it costs in context
            self._run_finders(best.extracted.program)
            if not self._learn_fusions(best.extracted.program) and self.finder_runner.unions == unions:
                return best

    def _learn_fusions(self, program: Program) -> bool:
        """Learn which pieces the runtime fuses in the program; return whether a pattern is new."""
        self.fused_pieces += self.config.find_fused(program)
        known = len(self.fusion_patterns)
        self.fusion_patterns = fusion_patterns(self.fused_pieces)
        return len(self.fusion_patterns) > known

    def _run_whole(self, extraction: Extraction) -> bool:
        """Run a whole program, if there is time; return whether the run told where its time goes."""
        if self._has_no_time(self.longest_run):
            return False
        self.not_run, (extracted, choices, selection, prices) = None, extraction
        began = monotonic()
        if (seen := self.config.observe(extracted.program)) is None:
            return False
        record("run", expected_ms=extracted.cost * 1e3, took_ms=seen.seconds * 1e3)
        self.longest_run = max(self.longest_run, monotonic() - began)
        self.costs.learn(seen, choices.computed_nodes(selection), prices, choices.packed_bytes(selection))
        extracted.measured = seen.seconds
        self.pool.drop_programs_not_run()
        return True

    def _run_measured(self, choices: Choices, prices: Prices) -> Prices:
        """Run the best program of measured pieces, if it gains; return the prices by what the run told."""
        self.interim_run.cancel()
        prices.update()
        pool, limits = self.pool, self.costs.constant_limits
        found = find_measured_program(self.program, choices, prices, self.extractors, pool, limits)
        if found is not None and self.clock.has_time_for(self.longest_run, EARLY_RUN_SHARE):
            self._run_whole(found)
        prices = self.costs.prices(choices)
        self.is_measured = prices.is_measured
        return prices

    def _extract_and_measure(self, choices: Choices, *, may_run_finders: bool = False) -> Extraction | None:
        """Return the cheapest program by measured costs; None where a limit ends the search before.

        Each extractor in turn extracts a program, and its unmeasured pieces are measured, until it extracts
        one without such pieces that is within the limits of constants.  A program beyond them raises the
        price of a byte, so that the next one has fewer.  Programs on the way are kept if they are within the
        limits and either all measured or better than all before.

        may_run_finders  run the finders as soon as many kernels are measured: they may know another form of a
                         slow kernel while there is time to tune it; if they do, return the best so far
        """
        unions = self.finder_runner.unions
        prices, constant_limits = self.costs.prices(choices), self.costs.constant_limits
        self.is_measured = prices.is_measured
        # programs known from earlier extractions, as choices here: an extractor starts from the cheapest
        known_places = [*(known.places for known in self.pool), *self.other_places]
        starts: list[Selection] = [start for at in known_places if (start := choices.selection_at(at))]
        best: Extraction | None = None
        for extractor in self.extractors:
            is_final = False
            while not is_final:
                if self.steps >= self.config.steps:
                    self.ended_by = "steps"
                if self.ended_by == "steps" or self._has_no_time():
                    return None
                if (selection := self._extract(extractor, choices, prices, starts)) is None:
                    return best
                starts.append(selection)
                self.steps += 1
                unmeasured = self._pieces_to_measure(choices, selection, prices)
                in_time = self._measure(prices, unmeasured, selection)
                if in_time and self.interim_run.is_due:
                    prices = self._run_measured(choices, prices)
                    continue
                cost, read_bytes = prices.total(selection), choices.packed_bytes(selection)
                is_allowed = constant_limits.admits(choices.stored_bytes(selection), read_bytes)
                # a program whose measurements have just shown it to be no better than the best is not kept
                is_better = cost < (1 - MIN_IMPROVEMENT) * self.pool.best_seconds
                is_known = prices.are_measured(selection, kernels_only=not in_time)
                if is_allowed and is_known and cost < inf and (is_better or not unmeasured or not in_time):
                    program = choices.program(self.program, selection)
                    new = Extracted(program, choices.places(selection), cost, sure=in_time)
                    best = self.not_run = Extraction(self.pool.add(new), choices, selection, prices)
                record("extraction", number=self.steps, expected_ms=cost * 1e3, unmeasured=len(unmeasured))
                self.config.watch(self.steps, self.pool.best_seconds)
                # a program beyond the limits raises the price of a byte, so that the next one reads less
                is_beyond = not is_allowed and cost < inf
                if not in_time or (is_beyond and not constant_limits.try_raise_price(cost, read_bytes)):
                    return None
                if may_run_finders and self.finder_runner.is_due and cost < inf:
                    self._run_finders(choices.program(self.program, selection))
                    if self.finder_runner.unions > unions:
                        return best
                is_final = is_allowed and not unmeasured
        return best

    def _extract(
        self, extractor: Extractor, choices: Choices, prices: Prices, starts: list[Selection]
    ) -> Selection | None:
        """Return the cheapest program; None where the runtime refuses each e-node of some e-class."""
        problem = choices.problem(prices.of_choices()).without_infinite_costs()
        selection = self.extractors.extract(extractor, problem, cheapest_selection(problem, starts))
        return None if selection is None or dag_cost(problem, selection) == inf else selection

    def _pieces_to_measure(self, choices: Choices, selection: Selection, prices: Prices) -> dict[int, float]:
        """Return the unmeasured pieces of a program, {piece number: seconds it may save}."""
        # the savings at true prices: the round's factor for kernels must not count
        problem = choices.problem(prices.of_choices(kernel_cost_factor=1))
        return prices.keys_to_measure(measurement_gains(problem, selection, prices.measured_choices))

    def _measure(self, prices: Prices, unmeasured: Mapping[int, float], selection: Selection) -> bool:
        """Measure those of the pieces that still promise a gain; return False if the time ends."""
        places = Counter(prices.choices.keys[number] for number in selection.values())
        waiting, pieces = dict(unmeasured), prices.choices.pieces
        while waiting:
            ranked = prices.rank_by_expected_gain(waiting, places)
            self.config.plan_measuring({pieces[key]: gain for key, gain in ranked.items()})
            if self._has_no_time():
                return False
            if self.interim_run.is_due:
                break
            key, began = next(iter(ranked)), monotonic()
            if not prices.has_lost_gain(key, waiting.pop(key), places[key]):
                prices.measure(key)
                spent = monotonic() - began
                self.finder_runner.measuring_seconds += spent if pieces[key].has_eoperators else 0.0
        if unmeasured:
            prices.update()
        return True

    def _has_no_time(self, seconds: float = 0.0) -> bool:
        """Return whether no time is left for a step of these seconds; the search then `ended_by` the time."""
        if self.config.deadline is None or monotonic() + seconds < self.config.deadline:
            return False
        self.ended_by = "time"
        return True

    def outcome(self) -> Outcome:
        """Return the programs that the search found, ranked, each with its proof."""
        ranking = Ranking(self.graph, self.program, self.roots, self.clock, self.notes)
        ranked = ranking.rank(self.pool, self.config.keep, self.estimated, self.other_candidates)
        self.notes += [self.unmeasured_note] if self.unmeasured_note else []
        self.notes += ended_lines(self.finders) + list(self.extractors.ended.values())
        programs = len(self.pool) + len(self.other_candidates)
        detail = describe_size(self.graph, self.exploration.rounds, self.is_measured)
        return Outcome(ranked, self.ended_by, self.steps, programs, detail, self.notes)
