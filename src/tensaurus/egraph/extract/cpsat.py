"""Solves an extraction formulation by CP-SAT, with booleans, clauses, and integer orders.

`exact` calls it for parts that the linear relaxation leaves open, and gets an `Answer`.
"""

from __future__ import annotations

from math import floor, frexp, ldexp
from time import monotonic
from typing import Any

from tensaurus.egraph.extract.formulation import Answer, Formulation, order_values
from tensaurus.egraph.extract.problem import Selection

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

    def solve(self, form: Formulation, start: Selection, cost: float, deadline: float) -> Answer:
        """Search until `deadline` (monotonic), from a selection `start` without a cycle that costs `cost`."""
        problem, cp = form.problem, self._cp
        model = cp.CpModel()
        # x[n]: e-node n is chosen; y[g]: e-class g is needed; t[g]: its height in an order, against cycles
        x = [model.new_bool_var("") for _ in problem.costs]
        roots = set(problem.roots)
        one = model.new_constant(1)
        y: list[Any] = []
        for eclass, members in enumerate(problem.members):
            if eclass in roots:
                y.append(one)
                model.add_exactly_one(x[choice] for choice in members)
            elif len(members) == 1:
                y.append(x[members[0]])
            else:
                y.append(model.new_bool_var(""))
                model.add_exactly_one([*(x[choice] for choice in members), ~y[-1]])
                model.add_hint(y[-1], eclass in start)
        # a chosen e-node needs the class; at most one of `choices` is taken, as they are of one class
        for choices, eclass in form.reads:
            if eclass not in roots:
                model.add_at_most_one([*(x[choice] for choice in choices), ~y[eclass]])
        # a needed class on a cycle needs one of the e-nodes that lead out of the cycle
        for eclass, choices in form.supports:
            model.add_bool_or([*(x[choice] for choice in choices), ~y[eclass]])
        for factors, eclasses, least in form.covers:  # see `exclusion_rows` and `cover_cuts`
            taken = [x[choice] for choice in factors] + [~y[eclass] for eclass in eclasses]
            model.add(cp.LinearExpr.weighted_sum(taken, [*factors.values(), *[1] * len(eclasses)]) >= least)
        t = {eclass: model.new_int_var(0, count - 1, "") for eclass, count in form.ranges.items()}
        for choice, upper, lower in form.orders:
            model.add(t[upper] >= t[lower] + 1).only_enforce_if(x[choice])
        for choice, eclass in enumerate(problem.class_of_choice):  # the search begins at `start`
            model.add_hint(x[choice], start.get(eclass) == choice)
        for eclass, height in order_values(form, start).items():
            model.add_hint(t[eclass], height)
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
        taken = [choice for choice, value in enumerate(x) if self._solver.boolean_value(value)]
        selection = {problem.class_of_choice[choice]: choice for choice in taken}
        return Answer(selection, bound, status == cp.OPTIMAL)
