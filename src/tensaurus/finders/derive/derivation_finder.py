"""The finder: what the linear parts of the programs that are known to be good are derived to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
from time import monotonic

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.finder_protocol import Proposal
from tensaurus.expr.analysis.work_counts import multiply_adds
from tensaurus.expr.ir.scope import Scope, Tensor
from tensaurus.finders.derive.derivation_cache import Memory
from tensaurus.finders.derive.derivation_equation import equation
from tensaurus.finders.derive.derivation_search import Derived, Search
from tensaurus.finders.derive.joint_search import searched
from tensaurus.finders.derive.linear_regions import Part, parts_of
from tensaurus.finders.derive.operator_matching import operators
from tensaurus.finders.derive.price_as_operators import REACHED, written
from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.program import Program
from tensaurus.ops import Untypable
from tensaurus.rules.language.equation import Equation
from tensaurus.runtimes.price.operation_counts import is_free, number_of, scopes_of
from tensaurus.runtimes.price.roofline import ONE_CORE, Roofline
from tensaurus.system.errors import TensaurusError

__all__ = ["Derive"]

FORMS = 3  # of one part, that are proposed
KEPT = 6  # of one part, that are kept for other runs and sizes
STATES = 80  # of the search for one part
WRITTEN = 24  # kinds of forms of one part that are written as operators to see what they take
GAIN = 0.8  # of a part's time, that a form should take at most
WORTH = 0.02  # of a program's time, that others of its parts' forms may save, at least


@dataclass
class Derive:
    """Derivations of the e-graph's programs, as a `Finder`: those that should gain most first.

    seconds   what an operator takes; None where it is not known
    roofline  the machine's
    states    of the search for one product, at most
    budget    seconds for all searches, until more are granted
    memory    what was derived before, and whether kernels may run what is no operator: else it is written as
              operators that the runtime has
    """

    seconds: Callable[[Node], float | None] = lambda node: None
    roofline: Roofline = ONE_CORE
    states: int = STATES
    budget: float = inf
    memory: Memory = field(default_factory=Memory)
    _parts: dict[tuple[Node, ...], tuple[Part, ...]] = field(default_factory=dict, repr=False)
    _programs: dict[tuple[Node, ...], list[Derived]] = field(default_factory=dict, repr=False)
    _known: dict[tuple[Node, ...], tuple[tuple[float, Equation], ...]] = field(
        default_factory=dict, repr=False
    )
    _written: dict[Node, float] = field(default_factory=dict, repr=False)  # of single expressions
    _cut: dict[tuple[Node, ...], _Cut] = field(default_factory=dict, repr=False)

    def __call__(self, graph: EGraph, room: int) -> Iterator[Proposal]:
        """What parts are equal to, in about so many e-nodes."""
        for program in graph.programs:
            if program.roots not in self._parts:
                self._parts[program.roots] = tuple(parts_of(program))
        # of the first programs nothing was measured when they were shown, and later ones are fused
        alike: dict[tuple[Node, ...], list[tuple[Part, float]]] = {}  # by their forms
        hoped: dict[tuple[Node, ...], float] = {}
        for part in dict.fromkeys(part for parts in self._parts.values() for part in parts):
            now, least = self.times(part)
            if GAIN * now > least:
                alike.setdefault(part.forms, []).append((part, now))
                hoped[part.forms] = hoped.get(part.forms, 0.0) + now - least
        whole = max((self._whole(program) for program in graph.programs), default=0.0)
        # what is derived together begins at what each is derived to alone
        worth = [forms for forms in alike if hoped[forms] >= WORTH * whole]
        made = [
            (gain, part, derivation)
            for forms in sorted(worth, key=lambda forms: (len(forms) > 1, -hoped[forms]))
            for part, now in alike[forms]
            for gain, derivation in self._of(part, now)
        ]
        made.sort(key=lambda each: -each[0])
        for _, part, derivation in islice(made, max(room // 4, 0)):
            yield Proposal(derivation, tuple(map(graph.insert_term, part.leaves)))

    def grant_time(self, seconds: float) -> bool:
        """So much more may be spent; false where no search was cut for want of time."""
        self.budget = max(self.budget, 0.0) + seconds
        return bool(self._cut)

    def _whole(self, program: Program) -> float:
        """What the program takes, as far as that is known."""
        return sum(filter(None, map(self.seconds, program.active)))

    def times(self, part: Part) -> tuple[float, float]:
        """What the part takes, and what operators of the runtime that do as much may be expected to."""
        # at least: nobody measures alone what a runtime fuses
        now = sum(filter(None, (self.seconds(node) for node in part.inner if not is_free(node))))
        least = 0.0
        for piece, product in zip(part.pieces, part.products, strict=True):
            work = 2 * number_of(multiply_adds(scopes_of(product)[0])) * self.roofline.operation / REACHED
            # of a band of chunks half of the products, about, are read
            least += work if piece.root is product else work / 2
        return now, least

    def _of(self, part: Part, now: float) -> tuple[tuple[float, Equation], ...]:
        """Forms over leaves x0, w1, ... with the seconds that each should save: of several products beside
        what each is derived to alone."""
        forms = part.forms
        operators()  # are seen once, for all searches
        if (forms not in self._known or forms in self._cut) and self.budget > 0:
            now = now if len(forms) == 1 else sum(map(self._reached, part.alone))
            began = monotonic()
            self._known[forms] = tuple(self._forms(part, self._derived(part, began + self.budget, now), now))
            self.budget -= monotonic() - began
        elif forms not in self._known:
            self._cut[forms] = _Cut()
        return self._known.get(forms, ())

    def _reached(self, part: Part) -> float:
        """What one product may take by the best form that is proposed for it."""
        now, _ = self.times(part)
        return now - max((gain for gain, _ in self._of(part, now)), default=0.0)

    def _forms(self, part: Part, found: Iterable[Derived], now: float) -> Iterator[tuple[float, Equation]]:
        made = 0
        leaves = tuple(part.names.values())
        for one in _kinds(found):
            if one.seconds > GAIN * now or made == FORMS:
                return
            try:
                law = equation(part.forms, leaves, one)
            except Untypable:
                continue
            if law is not None:
                made += 1
                yield now - one.seconds, law

    def _derived(self, part: Part, deadline: float, now: float) -> list[Derived]:
        """What a part is equal to: on the trails that are known of it or, where these lead to what may be
        faster, of its like at other sizes; else what a search finds."""
        made = part.expressions()
        found = [] if made is None else self._at_best(part, *made, deadline, now)
        if len(part.forms) == 1:  # others begin there
            self._programs[part.forms] = found
        return found

    def _at_best(
        self,
        part: Part,
        roots: tuple[Scope, ...],
        nodes: tuple[tuple[Tensor, Node], ...],
        deadline: float,
        now: float,
    ) -> list[Derived]:
        if (cut := self._cut.pop(part.forms, _Cut())).search is not None:
            cut.search.deadline = deadline
            new = self._timed(part, cut.search.resumed(), now)
            return self._kept(part, roots, cut.search, new, cut.found)
        search = Search(
            self.roofline,
            states=self.states,
            deadline=deadline,
            kernels=self.memory.kernels,
            weights=part.weights,
        )
        known = self.memory.at(roots)
        trails = self.memory.alike(roots) if known is None else known
        ends = [search.followed(roots, nodes, trail) for trail in trails]
        unlike = {one.state.key: one for found in ends for one in found}
        found = self._timed(part, sorted(unlike.values(), key=lambda one: (one.seconds, one.length)), now)
        useful = any(one.seconds <= GAIN * now for one in found)
        if search.late:
            self._cut[part.forms] = _Cut()
            return found
        if useful if known is None else not known or ends[0]:
            return found
        alone = [self._programs.get(one.forms, []) for one in part.alone]
        new = self._timed(part, searched(part, roots, nodes, search, alone), now)
        return self._kept(part, roots, search, new, found)

    def _kept(
        self,
        part: Part,
        roots: tuple[Scope, ...],
        search: Search,
        new: list[Derived],
        before: list[Derived],
    ) -> list[Derived]:
        """What a search has `new`, kept for other runs; where it was cut, with what was known `before`."""
        if search.late:
            self._cut[part.forms] = _Cut(search, before)
            return sorted((*new, *before), key=lambda one: (one.seconds, one.length))
        self.memory.keep(roots, list(islice(_kinds(new), KEPT)))
        return new

    def _timed(self, part: Part, found: list[Derived], now: float) -> list[Derived]:
        """They with the seconds of what a runtime is given, the fastest first: without kernels, of the kinds
        that may be among the first ones."""
        if self.memory.kernels:
            return found
        made, most = dict[int, float](), GAIN * now
        for one in islice(_kinds(found), WRITTEN):
            if one.seconds > most:  # at the peaks
                break
            try:
                made[id(one)] = written(one.state.results, part.weights, self.roofline, self._written)
            except (TensaurusError, Untypable):
                continue
            most = min([most, *sorted(made.values())[FORMS - 1 : FORMS]])
        again = [replace(one, seconds=made.get(id(one), inf)) for one in found]
        return sorted(again, key=lambda one: one.seconds)


@dataclass
class _Cut:
    """A search that time has ended, and what was known before it; None where there was no time to begin."""

    search: Search | None = None
    found: list[Derived] = field(default_factory=list)


def _kinds(found: Iterable[Derived]) -> Iterator[Derived]:
    """The first of those whose parts became the same: the same around it is no other form."""
    kinds = set[tuple[Node, ...]]()
    for one in found:
        kind = tuple(node for _, node in one.state.nodes)
        if kind not in kinds:
            kinds.add(kind)
            yield one
