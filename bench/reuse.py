"""Operator sets of whole networks, tuned from nothing and with reuse (ETO, section 7.2, Figures 9 and 10).

From nothing, each operator of a set is tuned by itself for --tuning seconds.  With reuse, a tree of least
cost says which operators are tuned like that, and which of the others reuses which
(`kernels/tune/reuse_trees`): operators that differ in sizes only can, and are tuned in a few trials
(`Tuner.least_seconds`).  Here any size can reuse any other, so that bridge operators would change nothing.
Nothing that ships is used.  Both kernels of an operator are then timed in turns.  Counts compilations, as the
paper counts measured programs.

Writes tables/reuse.md.

    python bench/reuse.py [--tuning 5] [SET ...]
"""

from __future__ import annotations

import argparse
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from math import inf
from pathlib import Path
from time import monotonic

from operator_sets import products
from revision import name_commit

from tensaurus.expr.ir.expression_text import show
from tensaurus.expr.ir.scope import Scope
from tensaurus.finders.fuse.composition import compose_region
from tensaurus.graph.ir.node import replace_args
from tensaurus.graph.ir.piece import Piece
from tensaurus.kernels.stages.sketch import Schedule, format_schedule
from tensaurus.kernels.tune.kernel_speeds import KernelSpeeds, form_distance
from tensaurus.kernels.tune.reduction_histories import MIN_TUNING_SECONDS, ReductionHistories
from tensaurus.kernels.tune.reuse_trees import ROOT, cheapest_reuse_tree, tuning_order
from tensaurus.kernels.tune.tune import Tuner
from tensaurus.ops import TensorType
from tensaurus.ops.eop import eop
from tensaurus.runtimes.measure.database import Database
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.price.roofline import Roofline
from tensaurus.system.scratch import temporary_folder

TABLE = Path(__file__).parent / "tables" / "reuse.md"
SETS = ("mobilenetv2", "resnet50", "dcgan", "bert_base_128")
FULL_TRIALS, REUSE_TRIALS = 50.0, 5.0  # about, of a tuning from nothing, and with reuse
TURNS, TURN_SECONDS = 5, 0.1  # of the two kernels of one operator, of which the fastest counts


@dataclass(frozen=True)
class Kernel:
    """An operator's expression, as a tuner takes it; `count` is how often the set has it."""

    scope: Scope
    types: tuple[TensorType, ...]
    output: TensorType
    is_constant: tuple[bool, ...]
    form: str
    count: int


@dataclass
class Tuning:
    """A way to tune a set: compilations, seconds, and the schedules in the order of the kernels."""

    tried: int
    seconds: float
    schedules: list[Schedule | None]


def kernel_of(piece: Piece, tuner: Tuner, count: int = 1) -> Kernel | None:
    """Return a piece as one kernel; None where no kernel computes it, or it reduces nothing."""
    node = piece.root
    if node.op is not eop:
        if (equation := compose_region(piece)) is None:
            return None
        leaf_of = dict(zip(equation.leaves, piece.leaves, strict=True))
        right = equation.right[0]
        node = replace_args(right, tuple(arg and leaf_of[arg] for arg in right.args))
    types = tuple(kind for kind in node.arg_types() if kind is not None)
    is_constant = tuple(arg is not None and arg.static for arg in node.args)
    scope = node.attribute("scope")
    form = tuner.reduction_form(scope, types, is_constant)
    return None if form is None else Kernel(scope, types, node.tensor, is_constant, form.text, count)


def kernels_of(name: str, tuner: Tuner) -> Iterator[Kernel]:
    """Yield the operators of a set as expressions; those that no kernel computes are left out."""
    for piece, count in products(name):
        if kernel := kernel_of(piece, tuner, count):
            yield kernel


def reuse_order(kernels: Sequence[Kernel]) -> list[int]:
    """Return the kernels' numbers in the order in which they are tuned, each after the one that it reuses."""
    costs: dict[tuple[Hashable, Hashable], float] = {(ROOT, k): FULL_TRIALS for k in range(len(kernels))}
    for a, b in permutations(range(len(kernels)), 2):
        distance = form_distance(kernels[a].form, kernels[b].form)
        if distance < inf:
            costs[a, b] = REUSE_TRIALS + distance
    tree = cheapest_reuse_tree(costs, range(len(kernels)))
    return [int(str(operator)) for operator, _ in tuning_order(tree)]


def tune_set(
    kernels: Sequence[Kernel], machine: Machine, folder: Path, seconds: float, reuse: bool
) -> Tuning:
    """Tune all kernels, each from nothing, or with what was found for others before."""
    schedules: list[Schedule | None] = [None] * len(kernels)
    with Database(folder / f"reuse {reuse}.sqlite") as records:
        tuner = Tuner(records, machine, "native", ships=False)
        tuner.begin_start()
        tuner.wait_for_start()
        use_records(tuner, records)
        began = monotonic()
        for number in reuse_order(kernels) if reuse else range(len(kernels)):
            kernel = kernels[number]
            least = tuner.least_seconds(kernel.scope, kernel.types, kernel.is_constant)
            schedules[number] = tuner.best_schedule(
                kernel.scope, kernel.types, kernel.output,
                least if least < MIN_TUNING_SECONDS else seconds, kernel.is_constant,
            )  # fmt: skip
            if not reuse:
                records.clear()
                use_records(tuner, records)
        tried, spent = tuner.tried_count, monotonic() - began
        tuner.close()
    return Tuning(tried, spent, schedules)


@cache
def read_roofline() -> Roofline:
    """Return this machine's roofline, measured once."""
    with temporary_folder() as folder, Database(folder / "peaks.sqlite") as records:
        return Roofline.here(records, Machine.here(None))


def use_records(tuner: Tuner, records: Database) -> None:
    """Let a tuner know what these records have, and nothing else."""
    speeds = KernelSpeeds(read_roofline)
    tuner.database = records
    tuner.histories = ReductionHistories(records, tuner.backend, tuner.machine.key, dict, speeds)


def timed_in_turns(kernel: Kernel, schedules: Sequence[Schedule], tuner: Tuner) -> list[float]:
    """Return the least seconds of each schedule, timed in turns."""
    tuner.timer.set_expression(show(kernel.scope), kernel.types, kernel.output)
    texts = [format_schedule(schedule) for schedule in schedules]
    timer = tuner.timer
    turns = [[timer.time_on_all_threads(text, TURN_SECONDS, 10.0) for text in texts] for _ in range(TURNS)]
    return [min(column) for column in zip(*turns, strict=True)]


def compare_tunings(
    kernels: Sequence[Kernel], nothing: Tuning, reuse: Tuning, tuner: Tuner
) -> tuple[float, float, float]:
    """Return the seconds of a set tuned from nothing and with reuse, and the worst kernel's throughput.

    Each kernel counts as often as the network has it; what `reuse` tuned beyond the kernels does not count.
    """
    total, reused, worst = 0.0, 0.0, inf
    for kernel, first, second in zip(kernels, nothing.schedules, reuse.schedules, strict=False):
        if first is None or second is None:
            raise SystemExit(f"no kernel for {kernel.form}")
        own, other = timed_in_turns(kernel, [first, second], tuner)
        total, reused = total + kernel.count * own, reused + kernel.count * other
        worst = min(worst, own / other)
    return total, reused, worst


def measure_set(name: str, seconds: float) -> str:
    """Return the line of a set."""
    machine = Machine.here(None)
    with temporary_folder() as folder, Database(folder / "forms.sqlite") as records:
        tuner = Tuner(records, machine, "native", ships=False)
        kernels = list(kernels_of(name, tuner))
        nothing, reuse = (tune_set(kernels, machine, folder, seconds, way) for way in (False, True))
        total, reused, worst = compare_tunings(kernels, nothing, reuse, tuner)
        tuner.close()
    return (
        f"| {name} | {len(kernels)} | {total * 1e3:.3g} | {reused * 1e3:.3g}"
        f" | {total / reused:.3f} | {worst:.2f} |"
        f" {nothing.tried} | {reuse.tried} | {nothing.tried / reuse.tried:.1f}x |"
        f" {nothing.seconds:.0f} | {reuse.seconds:.0f} |"
    )


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("sets", nargs="*")
    parser.add_argument("--tuning", type=float, default=5.0)
    options = parser.parse_args()
    lines = [
        "# What tuning saves by reuse",
        "",
        f"{Machine.here(None).processor}, 2 threads; `python bench/reuse.py`; made by {name_commit()}.",
        "Milliseconds of the kernels of a set, each as often as the network has it: tuned from nothing, and",
        "with reuse; the throughput with reuse, and the worst kernel's; schedules compiled, and seconds.",
        "",
        "| set | kernels | from nothing | reuse | throughput | worst | compiled | reuse | saved | s | s |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in options.sets or SETS:
        lines.append(measure_set(name, options.tuning))
        print(lines[-1], flush=True)
        TABLE.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
