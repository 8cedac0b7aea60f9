"""Equality saturation: all rewrites at once in an e-graph, then its cheapest program (TENSAT, MLSys'21).

Operators are measured when they matter: extraction goes by estimates that flatter what was not measured yet,
what the cheapest program uses is measured, and it is extracted again, until its cost rests on measurements.
That program is then run as a whole, its operators cost what they took there, and it is extracted again, until
the cheapest program is one that was run.

Before anything is measured, the program that is cheapest by estimates alone is extracted: what is folded,
fused or removed there is tried however little time there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from time import monotonic
from typing import Protocol, TypeAlias

from tensaurus.cost.observe import Observation
from tensaurus.egraph.check import Refutation
from tensaurus.egraph.choices import Choices, Place
from tensaurus.egraph.commuting import commute
from tensaurus.egraph.egraph import EGraph
from tensaurus.egraph.fusion import fusions
from tensaurus.egraph.nesting import nest
from tensaurus.egraph.pattern import Pattern
from tensaurus.egraph.proof import prove
from tensaurus.egraph.saturate import Exploration, Limits, Ruleset, saturate
from tensaurus.extraction.problem import Choice, Problem, dag_cost
from tensaurus.graph.node import Node
from tensaurus.graph.piece import Piece
from tensaurus.graph.program import Program
from tensaurus.search.candidate import Candidate, Outcome, Step
from tensaurus.search.neighbourhoods import Neighbourhoods, Placed
from tensaurus.signals import Interruptible

__all__ = ["Prices", "Saturation"]

Extractor: TypeAlias = Callable[[Problem, float, Choice | None], Choice]  # within seconds, from one

STEPS = 400  # extractions at most
FLATTERY = 0.7  # of what the luckiest operator of its kind would make of its estimate
SHARE = 0.25  # of the time that is left, for one extraction
PATIENCE = 30.0  # seconds of one extraction where there is no deadline
LOOKS, FIRST = 12, 4  # programs run as a whole, at most, and those before that read no more constants
GAIN = 5e-4  # a new best program is cheaper by at least this share: measurements are no finer
DEARER = 4.0  # by how much a byte's price grows until a program keeps few enough
TOO_DEAR = 1e3  # a price of bytes is at most this times what computing costs, and at least its inverse


class Prices(Protocol):
    """What pieces cost."""

    def known(self, piece: Piece) -> float | None:
        """Seconds, where it was measured."""

    def measure(self, piece: Piece) -> float:
        """Seconds; measured now unless they are known."""

    def estimate(self, piece: Piece) -> float:
        """Seconds by arithmetic and traffic alone."""


@dataclass
class Saturation:
    """A search; `watch(steps done, best cost)` is told after every extraction.

    ruleset     the rules, compiled
    prices      what pieces cost
    extractors  one after the other: a quick one finds what to measure, the last one proves the optimum; each
                returns the choices of the classes that the roots need, and of no others
    fused       pieces of a program that its runtime fuses
    observe     runs a whole program, tells where its time goes; None: that cannot be told
    limits      of the exploration
    memory      bytes of constants that a program may keep; never less than the original keeps
    steps       extractions at most
    deadline    monotonic time at which to stop, None for none
    keep        how many programs to return beside the original
    refutation  checks every union of the exploration where it is given
    """

    ruleset: Ruleset
    prices: Prices
    extractors: Sequence[Extractor]
    fused: Callable[[Program], Iterable[Piece]] = lambda program: ()
    observe: Callable[[Program], Observation | None] = lambda program: None
    limits: Limits = Limits()
    memory: float = inf
    steps: int = STEPS
    deadline: float | None = None
    keep: int = 3
    watch: Callable[[int, float], None] = lambda steps, best: None
    refutation: Refutation | None = None

    def run(self, program: Program) -> Outcome:
        """The best programs found; an interrupt ends the search and keeps them."""
        start = monotonic()
        outcome = Outcome([Candidate(program, inf)])
        hunt: _Hunt | None = None
        try:
            try:
                with Interruptible():
                    hunt = _Hunt(self, program)
                    hunt.explore()
                    hunt.estimate()
                    hunt.settle()
            except KeyboardInterrupt:
                outcome.ended_by = "interrupt"
            if hunt is not None:
                ended_by = outcome.ended_by if outcome.ended_by == "interrupt" else hunt.ended_by
                outcome = Outcome(
                    hunt.candidates(), ended_by, hunt.steps, len(hunt.found), 0.0, hunt.detail, hunt.notes
                )
        except KeyboardInterrupt:
            outcome.ended_by = "interrupt"
        outcome.seconds = monotonic() - start
        return outcome


@dataclass
class _Ledger:
    """Costs by key, measured or estimated; an estimate that is too high would never be found out.

    The larger an operator, the less of its estimate it takes: beyond what was measured of its kind, it has
    the luck of the luckiest.
    """

    prices: Prices
    luck: dict[str, float] = field(default_factory=dict)  # least share of its estimate that an operator took
    largest: dict[str, float] = field(default_factory=dict)  # estimate that was measured, by operator

    def read(self, pieces: Sequence[Piece]) -> tuple[list[float], list[bool]]:
        """Of each piece its cost, and whether that was measured."""
        known = [self.prices.known(piece) for piece in pieces]
        for piece, seconds in zip(pieces, known, strict=True):
            if seconds is not None:
                self._note(piece, seconds)
        costs = [
            self._flattered(piece) if seconds is None else seconds
            for piece, seconds in zip(pieces, known, strict=True)
        ]
        return costs, [seconds is not None for seconds in known]

    def measure(self, piece: Piece) -> float:
        """What it costs from now on."""
        seconds = self.prices.measure(piece)
        self._note(piece, seconds)
        return seconds

    def _note(self, piece: Piece, seconds: float) -> None:
        estimate = self.prices.estimate(piece)
        if estimate > 0:
            name = piece.label
            self.luck[name] = min(self.luck.get(name, inf), seconds / estimate)
            self.largest[name] = max(self.largest.get(name, 0.0), estimate)

    def _flattered(self, piece: Piece) -> float:
        name, estimate = piece.label, self.prices.estimate(piece)
        luck = min(self.luck.values(), default=1.0)
        if estimate <= self.largest.get(name, 0.0):  # of what has no elements the estimate may be 0
            luck = self.luck.get(name, luck)
        return FLATTERY * luck * estimate


@dataclass
class _Found:
    """A program with the seconds that were expected of it, and those that it took, if it was run."""

    program: Program
    places: tuple[Place, ...]  # of the choices that it is made of
    cost: float
    measured: float | None = None

    @property
    def seconds(self) -> float:
        """The best that is known."""
        return self.cost if self.measured is None else self.measured


@dataclass(frozen=True)
class _Extracted:
    """A program with the choices that it is made of, and the seconds of each key alone."""

    entry: _Found
    choices: Choices
    choice: Choice
    alone: Sequence[float]


class _Hunt:
    """One search."""

    def __init__(self, told: Saturation, program: Program):
        self.told, self.program = told, program
        self.graph = EGraph()
        self.roots = [self.graph.adopt(node) for _, node in program.outputs]
        self.own = len(self.graph.heads)  # e-nodes before this one are the program's
        self.ledger = _Ledger(told.prices)
        self.ended_by = "exhausted"
        self.steps = 0
        self.explored = Exploration()
        self.byte = 0.0
        self.kept = 0  # bytes of constants, by the program as it is
        self.footprint = 0  # bytes of constants that its kernels read
        self.most = inf  # of them
        self.known: list[bool] = []  # of the pieces of the last choices, whether they were measured
        self.seen = Neighbourhoods()
        self.found: dict[tuple[Node, ...], _Found] = {}
        self.original: _Found | None = None  # what is computed twice is written once in it
        self.patterns: list[Pattern] = []
        self.pieces: list[Piece] = []  # that the patterns are of
        # by estimates: the cheapest program, what it costs and what the original does
        self.estimated: tuple[Program, list[float]] | None = None
        self.notes: list[str] = []

    def explore(self) -> None:
        """Fill the e-graph."""
        self.graph.rebuild()
        told = self.told
        found = saturate(
            self.graph, told.ruleset, told.limits, finders=(nest, commute), refutation=told.refutation
        )
        self.ended_by = found.ended_by
        self.explored = found

    def estimate(self) -> None:
        """Extract the cheapest program by estimates alone."""
        totals: list[float] = []
        for before in (self.own, inf):
            choices = Choices(self.graph, self.roots, before=before)
            costs = [self.told.prices.estimate(piece) for piece in choices.pieces]
            choice = self.told.extractors[0](choices.problem(costs), self._patience(), None)
            totals.insert(0, sum(costs[key] for key in choices.used(choice)))
            if before == self.own:
                most = max(self.told.memory, choices.memory(choice))
            elif choices.memory(choice) <= most:
                self.estimated = choices.program(self.program, choice), totals

    def settle(self) -> None:
        """Extract, measure and run until the cheapest program is one that was run."""
        self._learn_fusions(self.program)
        best = self._cheapest(Choices(self.graph, self.roots, self.patterns, before=self.own))
        if best is None:
            if self.ended_by == "time":
                known = f"{sum(self.known)} of the model's {len(self.known)} kinds of operators"
                self.notes.append(
                    f"there was time to measure {known}: only what estimates favour is tried."
                    " A longer --time-limit helps, and so does another run: measurements are kept"
                )
            return
        self.kept = best.choices.memory(best.choice)
        self.footprint = best.choices.footprint(best.choice)
        self.original = best.entry
        if not self._look(best):
            self._settled()
            return
        # what reads more constants may slow everything down: what can be gained without is seen first
        for most, looks in ((self.footprint, FIRST), (inf, LOOKS)):
            self.most, self.byte = most, 0.0
            for _ in range(looks):
                best = self._settled()
                if best is None or best.entry.measured is not None or not self._look(best):
                    break

    def _settled(self) -> _Extracted | None:
        """The cheapest program, when its fusions are known."""
        while True:
            best = self._cheapest(Choices(self.graph, self.roots, self.patterns))
            if best is None or not self._learn_fusions(best.entry.program):
                return best

    def _learn_fusions(self, program: Program) -> bool:
        """Whether the program has some that were not known."""
        self.pieces += self.told.fused(program)
        known, self.patterns = len(self.patterns), fusions(self.pieces)
        return len(self.patterns) > known

    def _look(self, best: _Extracted) -> bool:
        """Run a program as a whole; whether that told where its time goes."""
        if self._overdue() or (seen := self.told.observe(best.entry.program)) is None:
            return False
        choices = best.choices
        nodes = choices.computed(best.choice)
        parts = [
            Placed(choices.place(number), choices.pieces[key], best.alone[key], nodes[number])
            for number, key in ((number, choices.keys[number]) for number in nodes)
        ]
        self.seen.note(seen, parts, choices.footprint(best.choice))
        best.entry.measured = seen.seconds
        # what was expected of the others was expected before this was seen
        self.found = {root: found for root, found in self.found.items() if found.measured is not None}
        return True

    def _cheapest(self, choices: Choices) -> _Extracted | None:
        """The cheapest program by measured costs; None where the limits end the search before."""
        alone, sure = self.ledger.read(choices.pieces)
        self.known = sure
        seen = self.seen.places
        placed = {n: seen[place] for n in range(len(choices.keys)) if (place := choices.place(n)) in seen}
        costs = self.seen.elsewhere(choices.pieces, alone)
        starts: list[Choice] = [known for entry in self._entries() if (known := choices.at(entry.places))]
        found: _Extracted | None = None
        for extract in self.told.extractors:
            while True:
                if self._late():
                    return None
                problem = choices.problem(costs, self.byte + self.seen.byte)
                if placed:
                    problem = replace(
                        problem, costs=[placed.get(n, cost) for n, cost in enumerate(problem.costs)]
                    )
                totals = [dag_cost(problem, known) for known in starts]
                start = starts[totals.index(min(totals))] if totals else None
                choice = extract(problem, self._patience(), start)
                starts.append(choice)
                self.steps += 1
                numbers = [number for number in choice.values() if choices.keys[number] >= 0]
                unsure = [key for key in dict.fromkeys(choices.keys[n] for n in numbers) if not sure[key]]
                for key in unsure:
                    if self._overdue():
                        return None
                    alone[key], sure[key] = self.ledger.measure(choices.pieces[key]), True
                if unsure:
                    costs = self.seen.elsewhere(choices.pieces, alone)
                footprint = choices.footprint(choice)
                fits = footprint <= self.most and choices.memory(choice) <= max(self.told.memory, self.kept)
                cost = sum(placed.get(n, costs[choices.keys[n]]) for n in numbers)
                cost += self.seen.rest + self.seen.byte * max(0, footprint - self.footprint)
                if fits and (not unsure or cost < (1 - GAIN) * self._best()):
                    places = tuple(choices.place(number) for number in choice.values())
                    entry = self._keep(_Found(choices.program(self.program, choice), places, cost))
                    found = _Extracted(entry, choices, choice, alone)
                self.told.watch(self.steps, self._best())
                if fits and not unsure:
                    break
                if not fits:
                    if self.byte * footprint > TOO_DEAR * cost:
                        return None
                    self.byte = max(DEARER * self.byte, cost / TOO_DEAR / footprint)
        return found

    def _entries(self) -> list[_Found]:
        """The programs that are known, the original's first."""
        return [*([] if self.original is None else [self.original]), *self.found.values()]

    def _keep(self, new: _Found) -> _Found:
        entry = self.found.setdefault(new.program.roots, new)
        if entry.measured is None and new.cost < entry.cost:
            entry.cost, entry.places = new.cost, new.places
        return entry

    def _best(self) -> float:
        return min((found.seconds for found in self.found.values()), default=inf)

    @property
    def detail(self) -> str:
        """How large the e-graph became, and how many of its operators had to be measured."""
        graph, rounds, known = self.graph, self.explored.rounds, self.known
        size = f"{len(graph)} e-nodes in {len(graph.members)} classes after {rounds} rounds"
        return f"{size}, {sum(known)} of {len(known)} operators measured" if known else size

    def _late(self) -> bool:
        if self.steps >= self.told.steps:
            self.ended_by = "steps"
            return True
        return self._overdue()

    def _overdue(self) -> bool:
        if self.told.deadline is None or monotonic() < self.told.deadline:
            return False
        self.ended_by = "time"
        return True

    def _patience(self) -> float:
        deadline = self.told.deadline
        return PATIENCE if deadline is None else max(0.5, SHARE * (deadline - monotonic()))

    def candidates(self) -> list[Candidate]:
        """The cheapest programs, each with the rewrites that its proof is made of, and the original.

        Behind them, unless nothing was measured, the cheapest by estimates.
        """
        self.found.pop(self.program.roots, None)
        original = self.original or _Found(self.program, (), inf)
        first = Candidate(self.program, original.cost, measured=original.measured)
        ranked = sorted(self.found.values(), key=lambda found: found.seconds)[: self.told.keep]
        made = [first]
        for found in ranked:
            if (step := self._step(found.program, first)) is not None:
                made.append(Candidate(found.program, found.cost, step, found.measured))
        made.sort(key=lambda candidate: candidate.seconds)
        if self.estimated is None:
            return made
        program, (cost, before) = self.estimated
        if any(program.roots == candidate.program.roots for candidate in made):
            return made
        if (step := self._step(program, first)) is not None:
            unknown = first.seconds == inf
            cost = cost if unknown or not before else cost / before * first.seconds
            made.insert(0 if unknown else len(made), Candidate(program, cost, step, sure=False))
        return made

    def _step(self, program: Program, first: Candidate) -> Step | None:
        """The rewrites that lead to a program; None, and a note, where they do not."""
        proof = prove(self.graph, list(zip(self.roots, program.roots, strict=True)))
        if not proof.holds():
            count = len(proof.equations)
            self.notes.append(f"a program was dropped, as its {count} rewrites do not prove it")
            return None
        applied = tuple(dict.fromkeys(proof.equations))
        return Step(lambda: applied, first)
