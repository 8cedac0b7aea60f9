"""The process in which HiGHS runs: one program in, one answer out, both pickled; see `highs`."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
from contextlib import suppress
from typing import Any


def solve(task: dict[str, Any]) -> tuple[float, list[float] | None, bool]:
    """The bound, the values of the best solution, and whether it is proved to be the best."""
    import highspy
    import numpy as np

    rows = task["rows"]
    columns = len(task["costs"])
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = columns, len(rows)
    program.col_cost_ = np.array(task["costs"])
    program.col_lower_, program.col_upper_ = np.zeros(columns), np.array(task["upper"])
    program.row_lower_ = np.array([lower for _, _, lower, _ in rows])
    program.row_upper_ = np.array([lower if equal else highspy.kHighsInf for _, _, lower, equal in rows])
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_ = np.cumsum([0, *(len(places) for places, *_ in rows)])
    program.a_matrix_.index_ = np.array([place for places, *_ in rows for place in places], dtype=np.int32)
    program.a_matrix_.value_ = np.array([factor for _, factors, *_ in rows for factor in factors])
    kinds, whole = highspy.HighsVarType, task["whole"]
    program.integrality_ = [kinds.kInteger] * whole + [kinds.kContinuous] * (columns - whole)
    solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    settings = {
        "output_flag": False,
        "threads": 1,
        "random_seed": task["seed"],
        "time_limit": float(task["seconds"]),
        "mip_rel_gap": 1e-9,
    }
    for name, value in settings.items():
        solver.setOptionValue(name, value)
    solver.passModel(program)
    start = highspy.HighsSolution()
    start.col_value = task["start"]
    solver.setSolution(start)
    solver.run()
    info = solver.getInfo()
    feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    values = list(solver.getSolution().col_value)[:whole] if feasible else None
    done = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return info.mip_dual_bound, values, done


if __name__ == "__main__":
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG, Linux: its parent may be killed
    # What libraries print must not mix with the answer.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    pickle.dump(solve(pickle.load(sys.stdin.buffer)), answers)
    answers.close()
