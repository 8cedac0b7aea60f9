"""Solves the linear relaxation of extraction in rounds, adding violated rows for cycles and covers.

Without these rows the bound is next to nothing on e-graphs with cycles: classes that read each other support
each other, and pay for nothing else.  GLOP solves the linear programs.

`relax` takes the rows of a `Formulation` and a choice to beat, and returns a lower bound, the rows that prove
it, and the best choice seen.  `exact` calls it before CP-SAT.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from math import frexp, inf, ldexp
from time import monotonic
from typing import Any

from tensaurus.egraph.extract.cover_cuts import Covers
from tensaurus.egraph.extract.cyclic_components import strong_components
from tensaurus.egraph.extract.formulation import Cover, Formulation, Support, exclusion_rows, support_choices
from tensaurus.egraph.extract.greedy import greedy
from tensaurus.egraph.extract.problem import Choice, Problem, dag_cost, needed

__all__ = ["RelaxationResult", "relax"]

MIN_VIOLATION = 1e-4  # rows that are violated by less are not added
# Relative gap: a bound this close to the cost is a proof; a choice whose bound is so far above is excluded.
CLOSED_GAP = 1e-9
MIN_START_VALUE = 0.05  # sets grow from classes with at least this y
MAX_SET_STEPS = 40  # classes by which a set grows
MAX_WAYS_OUT = 4  # choices leaving a set that are considered in each step
ROWS_PER_SET = 4  # rows added for a set: those of its classes with the largest y
TINY = 1e-9  # a smaller x counts as not taken
STALL_ROUNDS = 10  # the relaxation ends if this many rounds close less than MIN_PROGRESS of the gap
MIN_PROGRESS = 0.1  # share of the gap between bound and cost
MAX_BINDING_SLACK = 1e-6  # a row with more slack in the last solution is dropped


@dataclass(frozen=True)
class RelaxationResult:
    """A lower bound, the rows that support it, and the best choice seen on the way.

    `too_expensive` are the choices that no program takes that is cheaper than `choice` (reduced cost fixing).
    """

    bound: float
    supports: list[Support]
    covers: list[Cover]
    too_expensive: set[int]
    choice: dict[int, int]
    cost: float
    rounds: int


def relax(form: Formulation, start: Choice, cost: float, deadline: float) -> RelaxationResult:
    """Solve and add rows until none is violated; each solution also guides a greedy extraction.

    `start` is a choice without a cycle with this cost, which is not 0.
    """
    problem = form.problem
    linear = _LinearProgram(form, 2 * cost, 10 - frexp(cost)[1])  # scaled, `start` costs 2^9 to 2^10
    inner = {group for part in strong_components(problem) if len(part) > 1 for group in part}  # on cycles
    covers, exclusions = Covers(problem), list(exclusion_rows(problem))
    best, bound, rounds = dict(start), 0.0, 0
    least = [0.0] * len(problem.costs)  # for each choice a lower bound of the programs that take it
    marked_bound, marked_round = 0.0, 0  # when the gap last became much smaller
    while linear.solve(deadline - monotonic()):
        rounds += 1
        objective, with_each = linear.bounds()
        bound, least = max(bound, objective), list(map(max, least, with_each))
        x, y = linear.x, linear.y
        # the solution rounded to a program may be cheaper than the best known one
        rounded = _round_greedily(problem, x)
        price = dag_cost(problem, rounded)
        if price < cost:
            best, cost = needed(problem, rounded), price
        if bound >= cost * (1 - CLOSED_GAP):
            break
        # the rows that this solution violates: exclusions, supports of cycles and of other sets, covers
        fresh: list[Support | Cover] = [
            row
            for row in exclusions
            if sum(factor * x[n] for n, factor in row.factors.items()) < -MIN_VIOLATION
        ]
        fresh += [*_violated_supports(problem, x, y, inner), *covers.violated_rows(x, y)]
        if not fresh or monotonic() > deadline:
            break
        if bound - marked_bound > MIN_PROGRESS * (cost - bound):
            marked_bound, marked_round = bound, rounds
        elif rounds - marked_round >= STALL_ROUNDS:
            break
        for row in fresh:
            linear.require(row)
    binding = linear.binding()
    too_expensive = {number for number, price in enumerate(least) if price > cost * (1 + CLOSED_GAP)}
    return RelaxationResult(
        min(bound, cost),
        [row for row in binding if isinstance(row, Support)],
        [row for row in binding if isinstance(row, Cover)],
        too_expensive,
        best,
        cost,
        rounds,
    )


def _round_greedily(problem: Problem, x: Sequence[float]) -> dict[int, int]:
    """Return the cheapest trees for costs reduced by the part of each choice that the solution takes."""
    costs = [price * max(0.0, 1.0 - part) for price, part in zip(problem.costs, x, strict=True)]
    return greedy(replace(problem, costs=costs))


class _LinearProgram:
    """The linear program, with costs cut off at `most` (more than a known program costs), times 2^shift."""

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
        # (GLOP's row, {column: factor}, lower bound, whether the sum equals it)
        self._rows: list[tuple[Any, dict[int, float], float, bool]] = []
        self._required: list[tuple[Support | Cover, dict[int, float], float]] = []  # rows of `require`
        self._values: list[float] = []  # of each column in the last solution
        self.x: list[float] = [0.0] * len(self._costs)  # of each choice in the last solution
        self.y: list[float] = [0.0] * len(form.problem.members)  # of each class in the last solution
        self._y: list[int | None] = []  # the column of each class; None for roots, whose y is 1
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
        """Add a row; a root's y is 1, so that its term moves to the right side."""
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
        """Return the added rows that are tight in the last solution; the others only cost time."""
        value = self._values
        return [
            row
            for row, terms, lower in self._required
            if sum(factor * value[column] for column, factor in terms.items()) < lower + MAX_BINDING_SLACK
        ]

    def _row(self, terms: dict[int, float], lower: float, *, equal: bool = False) -> None:
        row = self._solver.Constraint(lower, lower if equal else self._solver.infinity())
        for column, factor in terms.items():
            row.SetCoefficient(self._columns[column], factor)
        self._rows.append((row, terms, lower, equal))

    def solve(self, seconds: float) -> bool:
        """Solve the program; return whether it was solved within the time."""
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
        """Return a lower bound, and for each choice a lower bound of the programs that take it.

        The bounds do not depend on the solver's tolerances: any multipliers give a bound, as all columns lie
        between 0 and 1 (Neumaier and Shcherbina, 2004): the multiplied right sides plus all negative reduced
        costs, and for a choice that is taken its positive reduced cost.
        """
        total, left = 0.0, list(self._costs)  # `left` becomes the reduced costs
        for row, terms, lower, equal in self._rows:
            multiplier = row.dual_value()
            if multiplier > 0 or (equal and multiplier):
                total += multiplier * lower
                for column, factor in terms.items():
                    left[column] -= multiplier * factor
        total += sum(price for price in left if price < 0)
        rounding, unit = 1 - 1e-11, ldexp(1.0, -self._shift)  # sums above may be rounded up
        each = [(total + max(0.0, price)) * rounding * unit for price in left[: len(self.x)]]
        return max(0.0, total * rounding * unit), each


def _violated_supports(
    problem: Problem, x: Sequence[float], y: Sequence[float], inner: set[int]
) -> Iterator[Support]:
    """Yield violated rows for short cycles and for sets grown from one class; `inner` lie on cycles."""
    seen: set[frozenset[int]] = set()
    for search, rows in ((_short_cycles, len(inner)), (_growing_sets, ROWS_PER_SET)):
        for loop in search(problem, x, y, inner):
            if loop in seen:
                continue
            seen.add(loop)
            outer = support_choices(problem, loop)
            leaving = sum(x[number] for number in outer)
            for group in sorted(loop, key=lambda group: (-y[group], group))[:rows]:
                if y[group] > leaving + MIN_VIOLATION / 2:  # half: `leaving` also adds up each x below TINY
                    yield Support(group, outer)


def _short_cycles(
    problem: Problem, x: Sequence[float], y: Sequence[float], inner: set[int]
) -> Iterator[frozenset[int]]:
    """Yield cycles of which a row is violated: choices that leave the cycle take less than y of some class.

    The distance from a class to a class that it reads is the part of y whose choices do not read it.  As the
    choices that leave a cycle take at most its length, cycles shorter than y of a class of theirs are wanted.
    """
    away: dict[int, dict[int, float]] = {}
    for group in inner:
        reads: dict[int, float] = {}
        if y[group] > MIN_VIOLATION:
            for number in problem.members[group]:
                if x[number] > 0:
                    for child in problem.children[number]:
                        if child in inner:
                            reads[child] = reads.get(child, 0.0) + x[number]
        away[group] = {child: max(0.0, y[group] - part) for child, part in reads.items()}
    for start in sorted(inner):
        loop = _shortest_cycle(away, start, y[start] - MIN_VIOLATION)
        if loop:
            yield frozenset(loop)


def _growing_sets(
    problem: Problem, x: Sequence[float], y: Sequence[float], inner: set[int]
) -> Iterator[frozenset[int]]:
    """Yield sets of classes grown from one class whose y exceeds the x of all choices that leave the set.

    A set need not have a cycle: ten classes with y = 0.1 may all read one class with y = 0.1.  To find the
    best set is hard, as a choice leaves the set only if none of its children is inside.  A set grows by a
    child of one of the largest choices that leave it: the child that closes most and opens least.
    """
    # roots on no cycle: no set grows by them
    acyclic_roots = inner.symmetric_difference(problem.roots) & set(problem.roots)
    starts = [
        group
        for group, part in enumerate(y)
        if part >= MIN_START_VALUE
        and any(TINY < x[number] < part - MIN_VIOLATION for number in problem.members[group])
    ]
    for start in sorted(starts, key=lambda group: (-y[group], group)):
        inside, least, best = {start}, y[start] - MIN_VIOLATION, frozenset[int]()
        # the choices that leave the set, and the children by which it may grow
        outer = {number for number in problem.members[start] if x[number] > TINY}
        reads = {n: [c for c in problem.children[n] if c not in acyclic_roots] for n in outer}
        for _ in range(MAX_SET_STEPS):  # rate the children of the largest choices, and take the best child
            ways = sorted((n for n in outer if reads[n]), key=lambda number: (-x[number], number))[
                :MAX_WAYS_OUT
            ]
            rated = []  # (change of `leaving`, child, choices that then leave, choices that no longer do)
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
            reads |= {n: [c for c in problem.children[n] if c not in acyclic_roots] for n in opened}
            leaving = sum(x[number] for number in outer)
            if leaving < least:
                least, best = leaving, frozenset(inside)
            if leaving <= TINY:
                break
        if best:
            yield best


def _shortest_cycle(away: dict[int, dict[int, float]], start: int, limit: float) -> list[int]:
    """Return the shortest cycle through `start`, [] unless it is shorter than the limit (Dijkstra)."""
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
