"""The finder of derivations: proposes what the linear regions of the e-graph's programs can be derived to.

Only regions are searched whose measured time is clearly more than their arithmetic should take, those that
may save the most first, within a time budget.  A search that the budget cuts is resumed when more is granted.
Regions with equal forms (`LinearRegion.forms`) compute the same of other leaves: they are searched once.  A
`Program` is a whole model here, a `DerivedProgram` what a search has found for a region.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
from time import monotonic
from typing import NamedTuple, TypeAlias

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.finder_protocol import Proposal
from tensaurus.expr.analysis.work_counts import multiply_adds
from tensaurus.expr.ir.scope import Scope, Tensor
from tensaurus.finders.derive.derivation_cache import DerivationCache
from tensaurus.finders.derive.derivation_equation import make_equation
from tensaurus.finders.derive.derivation_search import DerivedProgram, Search
from tensaurus.finders.derive.joint_search import search_region
from tensaurus.finders.derive.linear_regions import LinearRegion, find_linear_regions
from tensaurus.finders.derive.price_as_operators import PEAK_FRACTION, estimate_seconds
from tensaurus.graph.analysis.matchable_operators import matchable_operators
from tensaurus.graph.ir.node import Node
from tensaurus.ops import Untypable
from tensaurus.rules.language.equation import Equation
from tensaurus.runtimes.price.operation_counts import is_free, number_of, scopes_of
from tensaurus.runtimes.price.roofline import ONE_CORE, Roofline
from tensaurus.system.errors import TensaurusError

__all__ = ["Derive"]

MAX_PROPOSALS = 3  # programs that are proposed for one region
MAX_STORED = 6  # programs of one region that are stored for other runs and sizes
MAX_STATES = 80  # states that the search for one region explores, at most
MAX_PRICED = 24  # programs of one region that are expanded into standard operators to estimate their time
MAX_TIME_RATIO = 0.8  # a program's estimated time, as a fraction of the region's: estimates are rough
MIN_SAVED_SHARE = 0.02  # fraction of a model's time that equal regions must be able to save for a search


Forms: TypeAlias = tuple[Node, ...]  # `LinearRegion.forms`: equal for regions that compute the same


class RegionSeconds(NamedTuple):
    """The seconds of a region's operators as measured, and the least that its arithmetic should take."""

    measured: float
    least: float


class _Saving(NamedTuple):
    """An equation, and the estimated seconds that its right side takes less than its left side."""

    seconds: float
    equation: Equation


@dataclass
class Derive:
    """Proposes derivations of the e-graph's programs, as a `Finder`: first those that should save most.

    seconds     returns the time of an operator, None where it was not measured
    roofline    the machine's peaks
    max_states  states that the search for one region explores
    budget      seconds for all searches, until more are granted
    cache       derivations that are known, and whether kernels can be generated: without them, derived
                programs are priced as standard operators

    The private tables are by a program's roots (_regions), by a region's forms (_programs of single regions,
    _savings, _unfinished), or by a node (_prices in seconds).
    """

    seconds: Callable[[Node], float | None] = lambda node: None
    roofline: Roofline = ONE_CORE
    max_states: int = MAX_STATES
    budget: float = inf
    cache: DerivationCache = field(default_factory=DerivationCache)
    _regions: dict[tuple[Node, ...], tuple[LinearRegion, ...]] = field(default_factory=dict, repr=False)
    _programs: dict[Forms, list[DerivedProgram]] = field(default_factory=dict, repr=False)
    _savings: dict[Forms, tuple[_Saving, ...]] = field(default_factory=dict, repr=False)
    _prices: dict[Node, float] = field(default_factory=dict, repr=False)
    _unfinished: dict[Forms, _UnfinishedSearch] = field(default_factory=dict, repr=False)

    def __call__(self, graph: EGraph, max_new_enodes: int) -> Iterator[Proposal]:
        """Yield proposals that add about `max_new_enodes` e-nodes."""
        for program in graph.programs:
            if program.roots not in self._regions:
                self._regions[program.roots] = tuple(find_linear_regions(program))
        # regions of earlier programs are looked at again: they may have been measured since, and in later
        # programs they are hidden in fused kernels
        slow_regions: dict[Forms, list[LinearRegion]] = {}
        possible_savings: dict[Forms, float] = {}
        for region in dict.fromkeys(region for regions in self._regions.values() for region in regions):
            seconds = self.region_seconds(region)
            if MAX_TIME_RATIO * seconds.measured > seconds.least:
                forms = region.forms
                slow_regions.setdefault(forms, []).append(region)
                saved = possible_savings.get(forms, 0.0)
                possible_savings[forms] = saved + seconds.measured - seconds.least
        times = (sum(filter(None, map(self.seconds, program.active))) for program in graph.programs)
        total = max(times, default=0.0)
        promising = [forms for forms in slow_regions if possible_savings[forms] >= MIN_SAVED_SHARE * total]
        # single regions first: joint derivations begin at what was found for each of their products
        promising.sort(key=lambda forms: (len(forms) > 1, -possible_savings[forms]))
        proposals = [
            (region, saving)
            for forms in promising
            for region in slow_regions[forms]
            for saving in self._derive(region)
        ]
        proposals.sort(key=lambda proposal: -proposal[1].seconds)
        # an equation is taken to add four e-nodes
        for region, (_, equation) in islice(proposals, max(max_new_enodes // 4, 0)):
            yield Proposal(equation, tuple(map(graph.insert_term, region.leaves)))

    def grant_time(self, seconds: float) -> bool:
        """Add to the time budget; return whether a search is left that needs it."""
        self.budget = max(self.budget, 0.0) + seconds
        return bool(self._unfinished)

    def region_seconds(self, region: LinearRegion) -> RegionSeconds:
        """Return the measured seconds of the region's unfused operators, and the least for its arithmetic."""
        measured = sum(filter(None, (self.seconds(node) for node in region.inner if not is_free(node))))
        least = 0.0
        for piece, product in zip(region.pieces, region.products, strict=True):
            count = number_of(multiply_adds(scopes_of(product)[0]))
            work = 2 * count * self.roofline.operation / PEAK_FRACTION
            # moves after a product, such as those that cut out a band, drop about half of its elements
            least += work if piece.root is product else work / 2
        return RegionSeconds(measured, least)

    def _derive(self, region: LinearRegion) -> tuple[_Saving, ...]:
        """Return the equations of a region, searched for now if there is time; a table keeps them."""
        forms = region.forms
        matchable_operators()  # computed and cached here, so that no search is charged for it
        if (forms not in self._savings or forms in self._unfinished) and self.budget > 0:
            is_joint = len(forms) > 1
            now = self.region_seconds(region).measured
            if is_joint:  # it must beat the best programs of its products
                now = sum(map(self._best_seconds, region.single_regions))
            began = monotonic()
            deadline, expressions = began + self.budget, region.expressions()
            programs = [] if expressions is None else self._search(region, *expressions, deadline, now)
            if not is_joint:  # joint searches begin at these
                self._programs[forms] = programs
            self._savings[forms] = tuple(self._make_equations(region, programs, now))
            self.budget -= monotonic() - began
        elif forms not in self._savings:
            self._unfinished[forms] = _UnfinishedSearch()
        return self._savings.get(forms, ())

    def _best_seconds(self, region: LinearRegion) -> float:
        """Return the seconds of a single region with the best proposal for it."""
        now = self.region_seconds(region).measured
        return now - max((saving.seconds for saving in self._derive(region)), default=0.0)

    def _make_equations(
        self, region: LinearRegion, programs: Iterable[DerivedProgram], now: float
    ) -> Iterator[_Saving]:
        """Yield the equations of the first programs that are fast enough; the region takes `now` seconds."""
        count = 0
        leaves = tuple(region.names.values())
        for program in _distinct_programs(programs):
            if program.seconds > MAX_TIME_RATIO * now or count == MAX_PROPOSALS:
                return
            try:
                equation = make_equation(region.forms, leaves, program)
            except Untypable:
                continue
            if equation is not None:
                count += 1
                yield _Saving(now - program.seconds, equation)

    def _search(
        self, region: LinearRegion, roots: tuple[Scope, ...], nodes: tuple[tuple[Tensor, Node], ...],
        deadline: float, now: float
    ) -> list[DerivedProgram]:
        """Return the programs of an unfinished search, of stored trails, or of a new search.

        Trails from other sizes suffice only where they lead to a faster program.
        """
        # first case: a search was cut before, and goes on
        unfinished = self._unfinished.pop(region.forms, _UnfinishedSearch())
        if unfinished.search is not None:
            unfinished.search.deadline = deadline
            new = self._price(region, unfinished.search.resume(), now)
            return self._store(region, roots, unfinished.search, new, unfinished.earlier)
        search = Search(
            self.roofline, max_states=self.max_states, deadline=deadline,
            allows_kernels=self.cache.allows_kernels, weights=region.weights,
        )  # fmt: skip
        # second case: stored trails, of these sizes or else of others, are followed
        known = self.cache.trails_at(roots)
        trails = self.cache.similar_trails(roots) if known is None else known
        ends = [search.follow_trail(roots, nodes, trail) for trail in trails]
        distinct = {program.state.key: program for programs in ends for program in programs}
        found = self._price(region, _sort_programs(distinct.values()), now)
        is_faster = any(program.seconds <= MAX_TIME_RATIO * now for program in found)
        if search.is_late:
            self._unfinished[region.forms] = _UnfinishedSearch()
            return found
        # Trails from other sizes must lead to a faster program.  At these sizes an empty list is an answer,
        # too (a search found nothing); else the best trail must still lead to its end.
        if is_faster if known is None else not known or ends[0]:
            return found
        # third case: a new search, which for a joint region begins at its products' own programs
        alone = [self._programs.get(single.forms, []) for single in region.single_regions]
        new = self._price(region, search_region(region, roots, nodes, search, alone), now)
        return self._store(region, roots, search, new, found)

    def _store(
        self, region: LinearRegion, roots: tuple[Scope, ...], search: Search, new: list[DerivedProgram],
        earlier: list[DerivedProgram]
    ) -> list[DerivedProgram]:
        """Store a finished search's programs; keep one that was cut, and return earlier programs, too."""
        if search.is_late:
            self._unfinished[region.forms] = _UnfinishedSearch(search, earlier)
            return _sort_programs((*new, *earlier))
        self.cache.store(roots, list(islice(_distinct_programs(new), MAX_STORED)))
        return new

    def _price(
        self, region: LinearRegion, programs: list[DerivedProgram], now: float
    ) -> list[DerivedProgram]:
        """Without kernels, replace the seconds by those of standard operators, inf where not priced."""
        if self.cache.allows_kernels:
            return programs
        prices, limit = dict[int, float](), MAX_TIME_RATIO * now
        for program in islice(_distinct_programs(programs), MAX_PRICED):
            if program.seconds > limit:  # by the roofline model, which is a lower bound
                break
            try:
                results = program.state.results
                prices[id(program)] = estimate_seconds(results, region.weights, self.roofline, self._prices)
            except (TensaurusError, Untypable):
                continue
            # once there are MAX_PROPOSALS prices, a program must beat the worst of the best ones
            limit = min([limit, *sorted(prices.values())[MAX_PROPOSALS - 1 : MAX_PROPOSALS]])
        priced = [replace(program, seconds=prices.get(id(program), inf)) for program in programs]
        return sorted(priced, key=lambda program: program.seconds)


@dataclass
class _UnfinishedSearch:
    """A search that the deadline cut (None: it was not begun), and programs known before the search."""

    search: Search | None = None
    earlier: list[DerivedProgram] = field(default_factory=list)


def _sort_programs(programs: Iterable[DerivedProgram]) -> list[DerivedProgram]:
    return sorted(programs, key=lambda program: (program.seconds, program.text_length))


def _distinct_programs(programs: Iterable[DerivedProgram]) -> Iterator[DerivedProgram]:
    """Yield the first of the programs that have the same operators: the others differ in moves alone."""
    seen = set[tuple[Node, ...]]()
    for program in programs:
        operators = tuple(node for _, node in program.state.nodes)
        if operators not in seen:
            seen.add(operators)
            yield program
