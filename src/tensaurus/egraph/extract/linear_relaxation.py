"""The linear relaxation of extraction, with rows for cycles and covers that its solution breaks, in rounds.

The bound of the relaxation without them is next to nothing on e-graphs with cycles: classes that read each
other take each other and pay for nothing else.  GLOP solves the programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from math import frexp, inf, ldexp
from time import monotonic
from typing import Any

from tensaurus.egraph.extract.cover_cuts import Covers
from tensaurus.egraph.extract.cyclic_components import components
from tensaurus.egraph.extract.formulation import Cover, Formulation, Support, exclusions, support
from tensaurus.egraph.extract.greedy import greedy
from tensaurus.egraph.extract.problem import Choice, Problem, dag_cost, needed

__all__ = ["Relaxed", "relax"]

VIOLATION = 1e-4  # rows that are broken by less are let be
CLOSED = 1e-9  # a bound that is this close to the cost ends it; one this far above it excludes a choice
WORTH = 0.05  # sets grow from classes of which at least this is taken
STEPS = 40  # by so many classes at most
WAYS = 4  # ways out that are looked at in each step
ROWS = 4  # of each set: for the classes that take most
TINY = 1e-9  # what counts as not taken
PATIENCE = 10  # rounds in which some of the gap between bound and cost must be closed...
PROGRESS = 0.1  # ...this part
SLACK = 1e-6  # what a row that holds up a solution may have left


@dataclass(frozen=True)
class Relaxed:
    """A lower bound, the rows found, and the best choice seen on the way.

    `dear` are choices that no program takes which costs less than that (reduced cost fixing).
    """

    bound: float
    supports: list[Support]
    covers: list[Cover]
    dear: set[int]
    choice: dict[int, int]
    cost: float
    rounds: int


def relax(form: Formulation, start: Choice, cost: float, deadline: float) -> Relaxed:
    """Solve and add rows until none is broken; every solution also leads a greedy extraction.

    `start` is a choice without a cycle, and its cost, which is not 0.
    """
    problem = form.problem
    linear = _Linear(form, 2 * cost, 10 - frexp(cost)[1])
    inner = {group for part in components(problem) if len(part) > 1 for group in part}
    covers, detours = Covers(problem), list(exclusions(problem))
    best, bound, rounds = dict(start), 0.0, 0
    least = [0.0] * len(problem.costs)  # of programs that take the choice
    mark, since = 0.0, 0
    while linear.solve(deadline - monotonic()):
        rounds += 1
        objective, with_each = linear.bounds()
        bound, least = max(bound, objective), list(map(max, least, with_each))
        x, y = linear.x, linear.y
        rounded = _rounded(problem, x)
        price = dag_cost(problem, rounded)
        if price < cost:
            best, cost = needed(problem, rounded), price
        if bound >= cost * (1 - CLOSED):
            break
        fresh: list[Support | Cover] = [
            row for row in detours if sum(factor * x[n] for n, factor in row.factors.items()) < -VIOLATION
        ]
        fresh += [*_broken(problem, x, y, inner), *covers.broken(x, y)]
        if not fresh or monotonic() > deadline:
            break
        if bound - mark > PROGRESS * (cost - bound):
            mark, since = bound, rounds
        elif rounds - since >= PATIENCE:
            break
        for row in fresh:
            linear.require(row)
    binding = linear.binding()
    dear = {number for number, price in enumerate(least) if price > cost * (1 + CLOSED)}
    return Relaxed(
        min(bound, cost),
        [row for row in binding if isinstance(row, Support)],
        [row for row in binding if isinstance(row, Cover)],
        dear,
        best,
        cost,
        rounds,
    )


def _rounded(problem: Problem, x: Sequence[float]) -> dict[int, int]:
    """The cheapest trees where choices are the cheaper the more of them the solution takes."""
    costs = [price * max(0.0, 1.0 - part) for price, part in zip(problem.costs, x, strict=True)]
    return greedy(replace(problem, costs=costs))


class _Linear:
    """The linear program.  No choice counts as dearer than `most`, more than a program known costs."""

    def __init__(self, form: Formulation, most: float, shift: int):
        from ortools.linear_solver import pywraplp  # slow to load

        self._problem, self._shift = form.problem, shift
        self._solver: Any = pywraplp.Solver.CreateSolver("GLOP")
        self._optimal: int = pywraplp.Solver.OPTIMAL
        self._costs = [ldexp(min(price, most), shift) for price in form.problem.costs]
        self._columns = [self._solver.NumVar(0.0, 1.0, "") for _ in self._costs]
        objective = self._solver.Objective()
        for column, price in zip(self._columns, self._costs, strict=True):
            objective.SetCoefficient(column, price)
        self._rows: list[tuple[Any, dict[int, float], float, bool]] = []
        self._required: list[tuple[Support | Cover, dict[int, float], float]] = []
        self._values: list[float] = []
        self.x: list[float] = [0.0] * len(self._costs)  # of each choice, as of the last solution
        self.y: list[float] = [0.0] * len(form.problem.members)  # of each class
        self._y: list[int | None] = []  # of each class its column; none where it is 1
        roots = set(form.problem.roots)
        for group, members in enumerate(form.problem.members):
            if group in roots:
                self._y.append(None)
                self._row(dict.fromkeys(members, 1.0), 1.0, equal=True)
            elif len(members) == 1:
                self._y.append(members[0])
            else:
                self._y.append(len(self._columns))
                self._columns.append(self._solver.NumVar(0.0, 1.0, ""))
                self._costs.append(0.0)
                self._row({**dict.fromkeys(members, 1.0), len(self._columns) - 1: -1.0}, 0.0, equal=True)
        for numbers, group in form.reads:
            column_of = self._y[group]
            if column_of is not None:
                self._row({**dict.fromkeys(numbers, -1.0), column_of: 1.0}, 0.0)

    def require(self, row: Support | Cover) -> None:
        """Add a row."""
        if isinstance(row, Support):
            terms, groups, lower = dict.fromkeys(row.choices, 1.0), [row.group], 1.0
        else:
            terms = {number: float(factor) for number, factor in row.factors.items()}
            groups, lower = row.groups, float(row.least)
        for group in groups:
            column = self._y[group]
            if column is not None:
                terms[column] = terms.get(column, 0.0) - 1.0
                lower -= 1.0
        self._required.append((row, terms, lower))
        self._row(terms, lower)

    def binding(self) -> list[Support | Cover]:
        """The rows that were added and hold up the last solution; the others are not worth their weight."""
        value = self._values
        return [
            row
            for row, terms, lower in self._required
            if sum(factor * value[column] for column, factor in terms.items()) < lower + SLACK
        ]

    def _row(self, terms: dict[int, float], lower: float, *, equal: bool = False) -> None:
        row = self._solver.Constraint(lower, lower if equal else self._solver.infinity())
        for column, factor in terms.items():
            row.SetCoefficient(self._columns[column], factor)
        self._rows.append((row, terms, lower, equal))

    def solve(self, seconds: float) -> bool:
        """Whether it was solved within the time."""
        if seconds <= 0:
            return False
        self._solver.SetTimeLimit(max(1, int(seconds * 1000)))
        if self._solver.Solve() != self._optimal:
            return False
        self._values = solved = [column.solution_value() for column in self._columns]
        self.x = solved[: len(self._problem.costs)]
        self.y = [1.0 if column is None else solved[column] for column in self._y]
        return True

    def bounds(self) -> tuple[float, list[float]]:
        """A lower bound that does not rest on the solver's tolerances; and one where each choice is taken.

        Any multipliers bound the program, as all columns lie between 0 and 1 (Neumaier and Shcherbina, 2004).
        """
        total, left = 0.0, list(self._costs)
        for row, terms, lower, equal in self._rows:
            multiplier = row.dual_value()
            if multiplier > 0 or (equal and multiplier):
                total += multiplier * lower
                for column, factor in terms.items():
                    left[column] -= multiplier * factor
        total += sum(price for price in left if price < 0)
        few, unit = 1 - 1e-11, ldexp(1.0, -self._shift)
        each = [(total + max(0.0, price)) * few * unit for price in left[: len(self.x)]]
        return max(0.0, total * few * unit), each


def _broken(problem: Problem, x: Sequence[float], y: Sequence[float], inner: set[int]) -> Iterator[Support]:
    """Rows that the solution breaks: of short cycles, and of sets that grow from one class."""
    seen: set[frozenset[int]] = set()
    for search, rows in ((_cycles, len(inner)), (_sets, ROWS)):
        for loop in search(problem, x, y, inner):
            if loop in seen:
                continue
            seen.add(loop)
            outer = support(problem, loop)
            leaving = sum(x[number] for number in outer)
            for group in sorted(loop, key=lambda group: (-y[group], group))[:rows]:
                if y[group] > leaving + VIOLATION / 2:
                    yield Support(group, outer)


def _cycles(
    problem: Problem, x: Sequence[float], y: Sequence[float], inner: set[int]
) -> Iterator[frozenset[int]]:
    """Cycles that less leaves than one of their classes takes.

    Going from a class to one that it reads costs the part of the class that does not read it; a cycle that is
    shorter than y of one of its classes is one.
    """
    away: dict[int, dict[int, float]] = {}
    for group in inner:
        reads: dict[int, float] = {}
        if y[group] > VIOLATION:
            for number in problem.members[group]:
                if x[number] > 0:
                    for child in problem.children[number]:
                        if child in inner:
                            reads[child] = reads.get(child, 0.0) + x[number]
        away[group] = {child: max(0.0, y[group] - part) for child, part in reads.items()}
    for start in sorted(inner):
        loop = _shorter(away, start, y[start] - VIOLATION)
        if loop:
            yield frozenset(loop)


def _sets(
    problem: Problem, x: Sequence[float], y: Sequence[float], inner: set[int]
) -> Iterator[frozenset[int]]:
    """Sets of classes grown from one that takes more than leaves them.

    A set need not have a cycle: ten classes of each of which a tenth is taken may all read one of which a
    tenth is taken.  To find the best set is hard, as a choice is out only if all that it reads is.  The set
    grows by a class that one of the largest ways out reads, the one that hides most and opens least.
    """
    roots = inner.symmetric_difference(problem.roots) & set(problem.roots)
    starts = [
        group
        for group, part in enumerate(y)
        if part >= WORTH and any(TINY < x[number] < part - VIOLATION for number in problem.members[group])
    ]
    for start in sorted(starts, key=lambda group: (-y[group], group)):
        inside, least, best = {start}, y[start] - VIOLATION, frozenset[int]()
        outer = {number for number in problem.members[start] if x[number] > TINY}
        reads = {n: [c for c in problem.children[n] if c not in roots] for n in outer}
        for _ in range(STEPS):
            ways = sorted((n for n in outer if reads[n]), key=lambda number: (-x[number], number))[:WAYS]
            rated = []
            for child in {c for n in ways for c in reads[n]}:
                larger = {*inside, child}
                opened = [
                    n
                    for n in problem.members[child]
                    if x[n] > TINY and larger.isdisjoint(problem.children[n])
                ]
                hidden = [n for n in outer if child in problem.children[n]]
                rated.append((sum(x[n] for n in opened) - sum(x[n] for n in hidden), child, opened, hidden))
            if not rated:
                break
            _, child, opened, hidden = min(rated)
            inside.add(child)
            outer.difference_update(hidden)
            outer.update(opened)
            reads |= {n: [c for c in problem.children[n] if c not in roots] for n in opened}
            leaving = sum(x[number] for number in outer)
            if leaving < least:
                least, best = leaving, frozenset(inside)
            if leaving <= TINY:
                break
        if best:
            yield best


def _shorter(away: dict[int, dict[int, float]], start: int, limit: float) -> list[int]:
    """The classes of the shortest cycle through the class, if it is shorter than the limit (Dijkstra)."""
    above: dict[int, int] = {}
    best: dict[int, float] = {}
    heap = [(length, child, start) for child, length in away[start].items() if length < limit]
    heapify(heap)
    while heap:
        length, group, reader = heappop(heap)
        if group in above:
            continue
        above[group] = reader
        if group == start:
            loop = [start]
            while (group := above[group]) != start:
                loop.append(group)
            return loop
        for child, step in away[group].items():
            total = length + step
            if total < limit and child not in above and total < best.get(child, inf):
                best[child] = total
                heappush(heap, (total, child, group))
    return []
