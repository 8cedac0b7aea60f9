"""Solves an extraction formulation by CP-SAT, with booleans, clauses, and integer orders.

`exact` calls it for what the linear relaxation leaves open, and gets an `Answer`: a choice and a lower bound.
"""

from __future__ import annotations

from math import floor, frexp, ldexp
from time import monotonic
from typing import Any

from tensaurus.egraph.extract.formulation import Answer, Formulation, order_values
from tensaurus.egraph.extract.problem import Choice

__all__ = ["CpSat"]

COST_BITS = 40  # of the scaled integer costs; rounding loses less than one unit for each class


class CpSat:
    """One search by CP-SAT, in this thread."""

    def __init__(self, workers: int, seed: int):
        from ortools.sat.python import cp_model  # slow to load

        self._cp: Any = cp_model
        self._solver: Any = cp_model.CpSolver()
        self._solver.parameters.num_workers = workers
        self._solver.parameters.random_seed = seed
        # By default CP-SAT handles Ctrl-C itself, and leaves the process without any handler of it.
        self._solver.parameters.catch_sigint_signal = False
        # By default CP-SAT leaves clauses out of its linear relaxation.  Level 2 includes them: among
        # them are the rows against cycles, which tighten the bound most.
        self._solver.parameters.linearization_level = 2

    def solve(self, form: Formulation, start: Choice, cost: float, deadline: float) -> Answer:
        """Search until `deadline` (monotonic), from a choice `start` without a cycle that costs `cost`."""
        problem, cp = form.problem, self._cp
        model = cp.CpModel()
        # x[n]: e-node n is chosen; y[g]: e-class g is needed; t[g]: its height in an order, against cycles
        x = [model.new_bool_var("") for _ in problem.costs]
        roots = set(problem.roots)
        one = model.new_constant(1)
        y: list[Any] = []
        for group, members in enumerate(problem.members):
            if group in roots:
                y.append(one)
                model.add_exactly_one(x[number] for number in members)
            elif len(members) == 1:
                y.append(x[members[0]])
            else:
                y.append(model.new_bool_var(""))
                model.add_exactly_one([*(x[number] for number in members), ~y[-1]])
                model.add_hint(y[-1], group in start)
        # a chosen e-node needs the class; at most one of `numbers` is chosen, as they are of one class
        for numbers, group in form.reads:
            if group not in roots:
                model.add_at_most_one([*(x[number] for number in numbers), ~y[group]])
        # a needed class on a cycle needs one of the e-nodes that lead out of the cycle
        for group, numbers in form.supports:
            model.add_bool_or([*(x[number] for number in numbers), ~y[group]])
        for factors, groups, least in form.covers:  # see `exclusion_rows` and `cover_cuts`
            taken = [x[number] for number in factors] + [~y[group] for group in groups]
            model.add(cp.LinearExpr.weighted_sum(taken, [*factors.values(), *[1] * len(groups)]) >= least)
        t = {group: model.new_int_var(0, count - 1, "") for group, count in form.ranges.items()}
        for number, upper, lower in form.orders:
            model.add(t[upper] >= t[lower] + 1).only_enforce_if(x[number])
        for number, group in enumerate(problem.groups):  # the search begins at `start`
            model.add_hint(x[number], start.get(group) == number)
        for group, height in order_values(form, start).items():
            model.add_hint(t[group], height)
        # Costs are scaled by a power of two (exact) and rounded down, so the solver's lower bound also bounds
        # the real cost from below.  A price over twice the start's cost is cut to that: even so the e-node is
        # in no optimum, because the start is cheaper.
        shift = COST_BITS - frexp(cost)[1]
        prices = [floor(ldexp(min(price, 2 * cost), shift)) for price in problem.costs]
        model.minimize(cp.LinearExpr.weighted_sum(x, prices))
        # loading the solver and writing the model may have taken all of the time
        self._solver.parameters.max_time_in_seconds = max(0.0, deadline - monotonic())
        status = self._solver.solve(model)
        if status == cp.MODEL_INVALID:
            raise ValueError(f"CP-SAT refuses the program: {model.validate()}")
        bound = max(0.0, ldexp(floor(self._solver.best_objective_bound), -shift))
        if status not in (cp.OPTIMAL, cp.FEASIBLE):
            return Answer(None, bound, False)
        choice = {problem.groups[n]: n for n, value in enumerate(x) if self._solver.boolean_value(value)}
        return Answer(choice, bound, status == cp.OPTIMAL)
