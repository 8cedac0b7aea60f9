"""Solves the linear relaxation of extraction in rounds, adding violated rows for cycles and covers.

Without these rows the bound is next to nothing on e-graphs with cycles: classes that read each other support
each other, and pay for nothing else.  GLOP solves the linear programs.  With x the share of each choice and y
of each class, the rows that are added are

    support    y of a class <= the sum of x of the choices that read no class of a set around it: some class
               of a cycle must have a choice that leaves the cycle
    cover      sum of factor times x >= least + sum of y of some classes (see `cover_cuts`)
    exclusion  a cover of no class: sum of x of choices of A that need B <= sum of x of choices of B that do
               not need A, as one of A and B is computed first

`relax` takes the rows of a `Formulation` and a selection to beat, and returns a lower bound, the rows that
prove it, and the best selection seen.  `exact` calls it before CP-SAT.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from math import frexp, inf, ldexp
from time import monotonic
from typing import Any, NamedTuple

from tensaurus.egraph.extract.cover_cuts import CoverSeparator
from tensaurus.egraph.extract.cyclic_components import strong_components
from tensaurus.egraph.extract.formulation import Cover, Formulation, Support, exclusion_rows, support_choices
from tensaurus.egraph.extract.greedy import greedy
from tensaurus.egraph.extract.problem import Problem, Selection, dag_cost, keep_needed

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
    """A lower bound, the rows that support it, and the best selection seen on the way.

    `too_expensive` are the choices that no program takes that is cheaper than `selection` (reduced cost
    fixing).
    """

    bound: float
    supports: list[Support]
    covers: list[Cover]
    too_expensive: set[int]
    selection: dict[int, int]
    cost: float
    rounds: int


def relax(form: Formulation, start: Selection, cost: float, deadline: float) -> RelaxationResult:
    """Solve and add rows until none is violated; each solution also guides a greedy extraction.

    `start` is a selection without a cycle with this cost, which is not 0.
    """
    problem = form.problem
    linear = _LinearProgram(form, 2 * cost, 10 - frexp(cost)[1])  # scaled, `start` costs 2^9 to 2^10
    cyclic = {eclass for part in strong_components(problem) if len(part) > 1 for eclass in part}  # on cycles
    separator, exclusions = CoverSeparator(problem), list(exclusion_rows(problem))
    best, bound, rounds = dict(start), 0.0, 0
    bound_of_choice = [0.0] * len(problem.costs)  # a lower bound of the programs that take the choice
    marked_bound, marked_round = 0.0, 0  # when the gap last became much smaller
    while linear.solve(deadline - monotonic()):
        rounds += 1
        new_bound, new_bound_of_choice = linear.bounds()
        bound = max(bound, new_bound)
        bound_of_choice = list(map(max, bound_of_choice, new_bound_of_choice))
        x, y = linear.x, linear.y
        # the solution rounded to a program may be cheaper than the best known one
        rounded = _round_greedily(problem, x)
        price = dag_cost(problem, rounded)
        if price < cost:
            best, cost = keep_needed(problem, rounded), price
        if bound >= cost * (1 - CLOSED_GAP):
            break
        # the rows that this solution violates: exclusions, supports of cycles and of other sets, covers
        fresh: list[Support | Cover] = [
            row
            for row in exclusions
            if sum(factor * x[n] for n, factor in row.factors.items()) < -MIN_VIOLATION
        ]
        fresh += [*_violated_supports(problem, x, y, cyclic), *separator.violated_rows(x, y)]
        if not fresh or monotonic() > deadline:
            break
        if bound - marked_bound > MIN_PROGRESS * (cost - bound):
            marked_bound, marked_round = bound, rounds
        elif rounds - marked_round >= STALL_ROUNDS:
            break
        for row in fresh:
            linear.require(row)
    binding = linear.binding_rows()
    too_expensive = {n for n, least in enumerate(bound_of_choice) if least > cost * (1 + CLOSED_GAP)}
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


class _Row(NamedTuple):
    """A row of the linear program: the sum of factor * column is at least `lower`, or equal to it."""

    constraint: Any  # GLOP's object
    terms: dict[int, float]  # {column: factor}
    lower: float
    is_equation: bool


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
        self._rows: list[_Row] = []
        self._required: list[tuple[Support | Cover, _Row]] = []  # by `require`
        self._values: list[float] = []  # of each column in the last solution
        self.x: list[float] = [0.0] * len(self._costs)  # of each choice in the last solution
        self.y: list[float] = [0.0] * len(form.problem.members)  # of each class in the last solution
        self._y: list[int | None] = []  # the column of each class; None for roots, whose y is 1
        roots = set(form.problem.roots)
        for eclass, members in enumerate(form.problem.members):
            if eclass in roots:
                self._y.append(None)
                self._add_row(dict.fromkeys(members, 1.0), 1.0, is_equation=True)
            elif len(members) == 1:
                self._y.append(members[0])
            else:
                self._y.append(len(self._columns))
                self._columns.append(self._solver.NumVar(0.0, 1.0, ""))
                self._costs.append(0.0)
                terms = {**dict.fromkeys(members, 1.0), len(self._columns) - 1: -1.0}
                self._add_row(terms, 0.0, is_equation=True)
        for choices, eclass in form.reads:
            column = self._y[eclass]
            if column is not None:
                self._add_row({**dict.fromkeys(choices, -1.0), column: 1.0}, 0.0)

    def require(self, row: Support | Cover) -> None:
        """Add a row; a root's y is 1, so that its term moves to the right side."""
        if isinstance(row, Support):
            terms, eclasses, lower = dict.fromkeys(row.choices, 1.0), [row.eclass], 1.0
        else:
            terms = {choice: float(factor) for choice, factor in row.factors.items()}
            eclasses, lower = row.eclasses, float(row.least)
        for eclass in eclasses:
            column = self._y[eclass]
            if column is not None:
                terms[column] = terms.get(column, 0.0) - 1.0
                lower -= 1.0
        self._required.append((row, self._add_row(terms, lower)))

    def binding_rows(self) -> list[Support | Cover]:
        """Return the added rows that are tight in the last solution; the others only cost time."""
        value = self._values
        return [
            required
            for required, row in self._required
            if sum(factor * value[column] for column, factor in row.terms.items())
            < row.lower + MAX_BINDING_SLACK
        ]

    def _add_row(self, terms: dict[int, float], lower: float, *, is_equation: bool = False) -> _Row:
        constraint = self._solver.Constraint(lower, lower if is_equation else self._solver.infinity())
        for column, factor in terms.items():
            constraint.SetCoefficient(self._columns[column], factor)
        row = _Row(constraint, terms, lower, is_equation)
        self._rows.append(row)
        return row

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
        """Return a lower bound of all programs, and for each choice one of the programs that take it.

        The bounds do not depend on the solver's tolerances: any multipliers give a bound, as all columns lie
        between 0 and 1 (Neumaier and Shcherbina, 2004): the multiplied right sides plus all negative reduced
        costs, and for a choice that is taken its positive reduced cost.
        """
        total, reduced_costs = 0.0, list(self._costs)
        for row in self._rows:
            multiplier = row.constraint.dual_value()
            if multiplier > 0 or (row.is_equation and multiplier):
                total += multiplier * row.lower
                for column, factor in row.terms.items():
                    reduced_costs[column] -= multiplier * factor
        total += sum(price for price in reduced_costs if price < 0)
        rounding, unit = 1 - 1e-11, ldexp(1.0, -self._shift)  # sums above may be rounded up
        each = [(total + max(0.0, price)) * rounding * unit for price in reduced_costs[: len(self.x)]]
        return max(0.0, total * rounding * unit), each


def _violated_supports(
    problem: Problem, x: Sequence[float], y: Sequence[float], cyclic: set[int]
) -> Iterator[Support]:
    """Yield violated rows for short cycles and for sets grown from one class; `cyclic` lie on cycles."""
    seen: set[frozenset[int]] = set()
    for search, max_rows in ((_short_cycles, len(cyclic)), (_growing_sets, ROWS_PER_SET)):
        for loop in search(problem, x, y, cyclic):
            if loop in seen:
                continue
            seen.add(loop)
            outer = support_choices(problem, loop)
            leaving = sum(x[choice] for choice in outer)
            for eclass in sorted(loop, key=lambda eclass: (-y[eclass], eclass))[:max_rows]:
                if y[eclass] > leaving + MIN_VIOLATION / 2:  # half: `leaving` also adds up each x below TINY
                    yield Support(eclass, outer)


def _short_cycles(
    problem: Problem, x: Sequence[float], y: Sequence[float], cyclic: set[int]
) -> Iterator[frozenset[int]]:
    """Yield cycles of which a row is violated: choices that leave the cycle take less than y of some class.

    The distance from a class to a class that it reads is the part of y whose choices do not read it.  As the
    choices that leave a cycle take at most its length, cycles shorter than y of a class of theirs are wanted.
    """
    away: dict[int, dict[int, float]] = {}
    for eclass in cyclic:
        reads: dict[int, float] = {}
        if y[eclass] > MIN_VIOLATION:
            for choice in problem.members[eclass]:
                if x[choice] > 0:
                    for child in problem.children[choice]:
                        if child in cyclic:
                            reads[child] = reads.get(child, 0.0) + x[choice]
        away[eclass] = {child: max(0.0, y[eclass] - part) for child, part in reads.items()}
    for start in sorted(cyclic):
        loop = _shortest_cycle(away, start, y[start] - MIN_VIOLATION)
        if loop:
            yield frozenset(loop)


class _GrowthStep(NamedTuple):
    """A class by which a set may grow: the change of the x that leaves, and the choices that cause it."""

    change: float
    child: int
    opened: list[int]  # choices that leave the larger set, not the smaller one
    hidden: list[int]  # choices that leave the smaller set, not the larger one


def _growing_sets(
    problem: Problem, x: Sequence[float], y: Sequence[float], cyclic: set[int]
) -> Iterator[frozenset[int]]:
    """Yield sets of classes grown from one class whose y exceeds the x of all choices that leave the set.

    A set need not have a cycle: ten classes with y = 0.1 may all read one class with y = 0.1.  To find the
    best set is hard, as a choice leaves the set only if none of its children is inside.  A set grows by a
    child of one of the largest choices that leave it: the child that closes most and opens least.
    """
    # roots on no cycle: no set grows by them
    acyclic_roots = set(problem.roots) - cyclic
    starts = [
        eclass
        for eclass, part in enumerate(y)
        if part >= MIN_START_VALUE
        and any(TINY < x[choice] < part - MIN_VIOLATION for choice in problem.members[eclass])
    ]
    for start in sorted(starts, key=lambda eclass: (-y[eclass], eclass)):
        inside, least, best = {start}, y[start] - MIN_VIOLATION, frozenset[int]()
        # the choices that leave the set, and the children by which it may grow
        outer = {choice for choice in problem.members[start] if x[choice] > TINY}
        reads = {n: [c for c in problem.children[n] if c not in acyclic_roots] for n in outer}
        for _ in range(MAX_SET_STEPS):  # rate the children of the largest choices, and take the best child
            ways = sorted((n for n in outer if reads[n]), key=lambda choice: (-x[choice], choice))[
                :MAX_WAYS_OUT
            ]
            steps: list[_GrowthStep] = []
            for child in {c for n in ways for c in reads[n]}:
                larger = {*inside, child}
                opened = [
                    n
                    for n in problem.members[child]
                    if x[n] > TINY and larger.isdisjoint(problem.children[n])
                ]
                hidden = [n for n in outer if child in problem.children[n]]
                change = sum(x[n] for n in opened) - sum(x[n] for n in hidden)
                steps.append(_GrowthStep(change, child, opened, hidden))
            if not steps:
                break
            step = min(steps)  # of equal changes the child of the smallest number
            inside.add(step.child)
            outer.difference_update(step.hidden)
            outer.update(step.opened)
            reads |= {n: [c for c in problem.children[n] if c not in acyclic_roots] for n in step.opened}
            leaving = sum(x[choice] for choice in outer)
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
        length, eclass, reader = heappop(heap)
        if eclass in above:
            continue
        above[eclass] = reader
        if eclass == start:
            loop = [start]
            while (eclass := above[eclass]) != start:
                loop.append(eclass)
            return loop
        for child, step in away[eclass].items():
            total = length + step
            if total < limit and child not in above and total < best.get(child, inf):
                best[child] = total
                heappush(heap, (total, child, eclass))
    return []
