"""Extraction by HiGHS: a mixed-integer program with real orders, in a process of its own.

OR-tools and highspy bring different versions of one library, and whichever is loaded second fails.  A process
can also be ended at once, whatever it is at.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from math import frexp, ldexp
from pathlib import Path
from typing import Any

from tensaurus.egraph.extract.formulation import Answer, Formulation, heights
from tensaurus.egraph.extract.problem import Choice
from tensaurus.system.scratch import environment
from tensaurus.system.signals import adopt, disown

__all__ = ["Highs"]

PROGRAM = Path(__file__).with_name("highs_process.py")
GRACE = 10.0  # seconds after which a process that does not keep its time limit is ended


class Highs:
    """One search; `stop` ends it from another thread."""

    def __init__(self, seed: int):
        self._seed = seed
        # -P: the modules beside the program must not be found under their bare names
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            process_group=0,  # Ctrl-C reaches the parent alone, which ends it
        )
        adopt(self._process.pid)

    def stop(self) -> None:
        """End the search."""
        self._process.kill()
        disown(self._process.pid)

    def solve(self, form: Formulation, start: Choice, cost: float, seconds: float) -> Answer:
        """The best choice and the bound within the time; `start` is one without a cycle, and its cost."""
        # HiGHS stops within an absolute gap of 1e-6: costs must be of ordinary size.
        shift = 10 - frexp(cost)[1]
        task = _program(form, start, cost, shift) | {"seconds": seconds, "seed": self._seed}
        try:
            written, _ = self._process.communicate(pickle.dumps(task), seconds + GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            written, _ = self._process.communicate()
        if not written:
            return Answer(None, 0.0, False)
        bound, values, done = pickle.loads(written)
        choice = None
        if values is not None:
            choice = {form.problem.groups[n]: n for n, value in enumerate(values) if value > 0.5}
        # Its bound holds up to its tolerances.
        return Answer(choice, max(0.0, ldexp(bound - 1e-6, -shift)), done)


def _program(form: Formulation, start: Choice, cost: float, shift: int) -> dict[str, Any]:
    """Columns with costs, limits and values to start from; rows of terms that are at least a number."""
    problem = form.problem
    roots = set(problem.roots)
    costs = [ldexp(min(price, 2 * cost), shift) for price in problem.costs]
    upper = [1.0] * len(costs)
    first = [float(start.get(group) == number) for number, group in enumerate(problem.groups)]
    rows: list[tuple[list[int], list[float], float, bool]] = []  # ...the last: equal to the number
    y: list[int | None] = []
    for group, members in enumerate(problem.members):
        if group in roots:
            y.append(None)
            rows.append((list(members), [1.0] * len(members), 1.0, True))
        elif len(members) == 1:
            y.append(members[0])
        else:
            y.append(len(costs))
            rows.append(([*members, len(costs)], [1.0] * len(members) + [-1.0], 0.0, True))
            costs.append(0.0)
            upper.append(1.0)
            first.append(float(group in start))
    for numbers, group in form.reads:
        column = y[group]
        if column is not None:
            rows.append(([*numbers, column], [-1.0] * len(numbers) + [1.0], 0.0, False))
    for group, numbers in form.supports:
        column = y[group]
        if column is None:
            rows.append((numbers, [1.0] * len(numbers), 1.0, False))
        elif column not in numbers:
            rows.append(([*numbers, column], [1.0] * len(numbers) + [-1.0], 0.0, False))
    for factors, groups, least in form.covers:
        terms = {number: float(factor) for number, factor in factors.items()}
        for group in groups:
            column = y[group]
            assert column is not None
            terms[column] = terms.get(column, 0.0) - 1.0
        rows.append((list(terms), list(terms.values()), float(least - len(groups)), False))
    t: dict[int, int] = {}
    order = heights(form, start)
    for group, count in form.ranges.items():
        t[group] = len(costs)
        costs.append(0.0)
        upper.append(float(count - 1))
        first.append(float(order[group]))
    for number, above, below in form.orders:
        most = float(form.ranges[above])  # equation (4), with steps of 1
        rows.append(([t[above], t[below], number], [1.0, -1.0, -most], 1.0 - most, False))
    return {"costs": costs, "upper": upper, "whole": len(problem.costs), "rows": rows, "start": first}
