"""Tunes the kernels that a model may gain from ahead of its optimization (`tensaurus tune`).

The database keeps the schedules, so a later optimization has its whole time limit for the search.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path

from tensaurus.expr.ir.expression_text import show
from tensaurus.finders.fuse import Fuse
from tensaurus.graph.ir.node import replace_args
from tensaurus.graph.ir.piece import Piece
from tensaurus.optimizer.run.kernel_budget import KernelBudget
from tensaurus.optimizer.run.options import Options
from tensaurus.optimizer.run.original import Original
from tensaurus.runtimes.measure.database import Database
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.price.roofline import Roofline, estimate
from tensaurus.system.errors import TensaurusError, name_file_in_errors
from tensaurus.system.progress import Progress

__all__ = ["TunedKernel", "tune_kernels"]


@dataclass(frozen=True)
class TunedKernel:
    """The kernel of one eOperator.

    scope       the expression that it computes
    places      number of places in the model where it can stand
    schedule    "" where the expression could not be compiled; `seconds` are infinite then
    seconds     of one run
    peak_share  part of the seconds that the work would take at the machine's peaks
    """

    name: str
    scope: str
    places: int
    schedule: str
    seconds: float
    peak_share: float


def tune_kernels(model: str | Path, options: Options, progress: Progress) -> Iterator[TunedKernel]:
    """Yield the kernels of all regions that can be fused, the most promising first, each when it is tuned.

    Kernels whose schedule is in the database are not tuned again.  Raises TensaurusError where no kernels can
    be generated.
    """
    progress.phase("reading the model")
    original, machine = Original.read(model, options), Machine.here(options.threads)
    with (
        name_file_in_errors(original.name),
        Database(options.database) as records,
        KernelBudget.of_run(options, options.first_backend, machine, records) as kernels,
    ):
        if kernels.reason_absent:
            raise TensaurusError(f"no kernels are generated: {kernels.reason_absent}")
        roofline = Roofline.here(records, machine)
        fusions = Fuse(roofline=roofline).find_fusions(original.program)
        progress.phase("tuning")
        for number, fusion in enumerate(fusions):
            progress.stage("kernel", number + 1, len(fusions))
            # the equation is over leaves x0, x1, ...: put the model's own nodes in their places
            piece, equation = fusion.matches[0]
            leaf_of = dict(zip(equation.leaves, piece.leaves, strict=True))
            right = equation.right[0]
            node = replace_args(right, tuple(arg and leaf_of[arg] for arg in right.args))
            kernel, seconds = kernels(node), kernels.seconds_of(node)
            peak_share = estimate(Piece.of(node), roofline) / seconds if 0 < seconds < inf else 0.0
            schedule = "" if kernel is None else kernels.schedule(kernel.name)
            scope = show(node.attribute("scope"))
            yield TunedKernel(equation.name, scope, len(fusion.matches), schedule, seconds, peak_share)
