"""Makes the schedules that ship for the class of this machine's processor.

Each model is searched as `tensaurus optimize` does it, without measuring and checking the result, with one
database for all.  Then every reduction form that these searches tuned is tuned again, longer, the slowest
kernels first, until --retune seconds are over.  At last the fastest kernel of each form is timed beside a
matrix product, which tells when other virtual machines slow this one down: how far from the peaks it runs is
to be of a quiet moment.  The file kernels/tune/schedules/CLASS.jsonl gets the fastest schedules; forms that
it has and that were not met now stay.  Ctrl-C keeps what was found; the same database goes on from there.

With --forms, the forms of another class's file come first, as far as an expression of them can be written
(`form_expressions`), so that a new class of processors has most of the library in half an hour.

    python bench/library.py --db schedules.sqlite [--search 45] [--retune 1800] [--file FILE] [MODEL ...]
    python bench/library.py --db schedules.sqlite --forms 512-amd.jsonl --search 0 --retune 0
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from statistics import median
from time import monotonic

from form_expressions import write_expression

from tensaurus.app.zoo.selection import Subject, select_models
from tensaurus.expr.ir.expression_text import parse, show
from tensaurus.expr.ir.scope import Scope
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.graph.ir.node import apply, source
from tensaurus.kernels.halide.compile import input_tensors
from tensaurus.kernels.stages.sketch import format_schedule
from tensaurus.kernels.tune import shipped_schedules
from tensaurus.kernels.tune.kernel_speeds import KernelSpeeds
from tensaurus.kernels.tune.reduction_histories import KEPT_SCHEDULES
from tensaurus.kernels.tune.schedule_reuse import count_form_work
from tensaurus.kernels.tune.shipped_schedules import TunedForm, write_schedules
from tensaurus.kernels.tune.tune import Tuner
from tensaurus.ops import TensorType
from tensaurus.ops.eop import eop
from tensaurus.optimizer.run.optimization_run import OptimizationRun
from tensaurus.optimizer.run.options import Options
from tensaurus.optimizer.run.original import Original
from tensaurus.optimizer.search.model_search import ModelSearch
from tensaurus.optimizer.search.strategies import STRATEGIES
from tensaurus.rules.language.rule import library
from tensaurus.runtimes.measure.database import Database
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.price.roofline import Roofline
from tensaurus.system.errors import TensaurusError
from tensaurus.system.progress import NoProgress

SCHEDULES = Path(shipped_schedules.__file__).parent / "schedules"
MODELS = ("zoo", "pretrained")
SEARCH_SHARE = 0.7  # about, of a time limit: the rest is reserved for measuring and checking
# The product that tells how fast the machine is at the moment; seconds of one timing, and of a kernel's.
REFERENCE = "L[i:128, j:784](sum[r:128](mul(x0[r, j], x1[i, r])))"
REFERENCE_SECONDS, KERNEL_SECONDS, PATIENCE = 0.01, 0.03, 7.0
TURNS, MAX_SLOWDOWN = 3, 1.1  # timings of a kernel, and up to which slowdown one counts
# Seconds to tune a kernel again, by the seconds that one run of it takes.
RETUNING = ((1e-4, 6.0), (2e-5, 4.0), (0.0, 2.0))
# Seconds to tune a kernel with another processor's schedules to begin with, by its operations.
FORM_SECONDS = ((2e7, 1.5), (1e6, 0.8), (0.0, 0.4))


def search_model(subject: Subject, seconds: float, database: Path) -> None:
    """Search one model, for the kernels that the search tunes on its way."""
    options = Options(
        shapes=dict(subject.shapes),
        ranges=dict(subject.ranges),
        time_limit=seconds / SEARCH_SHARE,
        database=database,
    )
    original, progress = Original.read(subject.load(), options), NoProgress()
    rules = library(long=options.is_long_search, ops={str(node.op) for node in original.program.nodes})
    with OptimizationRun(original, options, rules, progress, monotonic()) as run:
        strategy = STRATEGIES[options.search](rules, run.runtime)
        ModelSearch(strategy, run.runtime, run.effort, progress, True).run(original.program)


@dataclass(frozen=True)
class Kernel:
    """An expression that was tuned, and the seconds of its fastest schedule."""

    scope: Scope
    types: tuple[TensorType, ...]
    is_constant: tuple[bool, ...]
    seconds: float

    @property
    def output(self) -> TensorType:
        """The type of what it computes."""
        leaves = [source(f"x{k}", kind) for k, kind in enumerate(self.types)]
        return apply(eop, leaves, {"scope": self.scope}).tensor

    @classmethod
    def of_row(cls, workload: str, seconds: float) -> Kernel:
        """Return the kernel of a row: L[...](...) over float32[8], float32[8, 8] where x1 is constant."""
        text, _, rest = workload.partition(" over ")
        kinds, _, constants = rest.partition(" where ")
        types = tuple(
            TensorType(dtype, tuple(int(n) for n in sizes.split(",") if n.strip()))
            for dtype, sizes in re.findall(r"(\w+)\[([\d, ]*)\]", kinds)
        )
        names = re.findall(r"x\d+", constants)
        scope = intern_scope(parse(text, {x.name: x for x in input_tensors(types)}))
        return cls(scope, types, tuple(f"x{k}" in names for k in range(len(types))), seconds)


def tuned_kernels(database: Database, tuner: Tuner) -> Iterator[Kernel]:
    """Yield one kernel of each reduction form in the database, the slowest first."""
    fastest: dict[str, float] = {}
    for row in database.all():
        if row.backend == tuner.backend and row.device == tuner.machine.key and row.workload.startswith("L["):
            fastest[row.workload] = min(row.seconds, fastest.get(row.workload, row.seconds))
    seen = set()
    for workload, seconds in sorted(fastest.items(), key=lambda pair: -pair[1]):
        kernel = Kernel.of_row(workload, seconds)
        form = tuner.reduction_form(kernel.scope, kernel.types, kernel.is_constant)
        if form is not None and form.text not in seen:
            seen.add(form.text)
            yield kernel


def tune_again(kernel: Kernel, tuner: Tuner) -> float:
    """Tune a kernel on, and return the seconds of its fastest schedule."""
    seconds = next(seconds for least, seconds in RETUNING if kernel.seconds >= least)
    tuner.tune_on(kernel.scope, kernel.types, kernel.output, seconds, kernel.is_constant)
    return tuner.measured_schedules(kernel.scope, kernel.types, kernel.is_constant)[0].seconds


def tune_forms(file: Path, tuner: Tuner) -> None:
    """Tune the forms of another class's file that the database lacks, those of most operations first."""
    texts = [json.loads(line)[0] for line in file.read_text(encoding="utf-8").splitlines()[1:]]
    known = {form.text for form in tuner.histories.tuned_forms()}
    count, missing = 0, [text for text in texts if text not in known]
    for text in sorted(missing, key=lambda text: -count_form_work(text)[0]):
        if (made := write_expression(text, tuner)) is None:
            continue
        kernel = Kernel(made.scope, made.types, made.is_constant, inf)
        operations = count_form_work(text)[0]
        seconds = next(seconds for least, seconds in FORM_SECONDS if operations >= least)
        found = tuner.tune_on(kernel.scope, kernel.types, kernel.output, seconds, kernel.is_constant)
        count += found is not None
        print(f"{count} of {len(missing)} forms are tuned; {text.splitlines()[0][:70]}", flush=True)


class Clock:
    """Times kernels at the machine's best speed, which a matrix product tells before and after."""

    def __init__(self, records: Database, machine: Machine):
        self.tuner = Tuner(records, machine, "native", ships=False)
        types = TensorType("float32", (128, 784)), TensorType("float32", (128, 128))
        scope = intern_scope(parse(REFERENCE, {x.name: x for x in input_tensors(types)}))
        schedule = self.tuner.best_schedule(scope, types, TensorType("float32", (128, 784)), 3.0)
        assert schedule is not None
        self.schedule = format_schedule(schedule)
        self.tuner.timer.set_expression(REFERENCE, types, TensorType("float32", (128, 784)))
        self.least = min(self.reference() for _ in range(TURNS))

    def reference(self) -> float:
        """Return the seconds of the product now."""
        return self.tuner.timer.time_on_all_threads(self.schedule, REFERENCE_SECONDS, PATIENCE)

    def seconds(self, kernel: Kernel, tuner: Tuner) -> float:
        """Return the least seconds of a kernel's fastest schedule while the machine is not slowed down.

        Where it always is, the seconds are divided by how much.
        """
        rows = tuner.measured_schedules(kernel.scope, kernel.types, kernel.is_constant)
        tuner.timer.set_expression(show(kernel.scope), kernel.types, kernel.output)
        quiet, scaled = list[float](), list[float]()
        for _ in range(TURNS):
            before = self.reference()
            spent = tuner.timer.time_on_all_threads(rows[0].schedule, KERNEL_SECONDS, PATIENCE)
            slowdown = min(before, self.reference()) / self.least
            scaled.append(spent / slowdown)
            quiet += [spent] if slowdown < MAX_SLOWDOWN else []
        return min(quiet) if quiet else median(scaled)


def with_quiet_speeds(forms: list[TunedForm], records: Database, tuner: Tuner) -> list[TunedForm]:
    """Return the forms with how many times as long as at the peaks their kernels take in quiet moments."""
    clock = Clock(records, tuner.machine)
    speeds = KernelSpeeds(partial(Roofline.here, records, tuner.machine))
    for kernel in tuned_kernels(records, tuner):
        form = tuner.reduction_form(kernel.scope, kernel.types, kernel.is_constant)
        assert form is not None
        speeds.learn(form.text, clock.seconds(kernel, tuner))
    clock.tuner.close()
    return [replace(form, peak_multiple=speeds.multiple(form.text)) for form in forms]


def with_known_forms(forms: list[TunedForm], file: Path) -> list[TunedForm]:
    """Return the forms, and the file's own where they are others; of equal ones the schedules of both."""
    found = {form.text: form for form in forms}
    for line in file.read_text(encoding="utf-8").splitlines()[1:] if file.exists() else ():
        text, seconds, multiple, fastest = json.loads(line)
        new = found.get(text, TunedForm(text, 0.0, multiple, ()))
        schedules = tuple(dict.fromkeys((*new.fastest, *fastest)))[:KEPT_SCHEDULES]
        found[text] = replace(new, seconds=max(new.seconds, seconds), fastest=schedules)
    return [*found.values()]


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--db", type=Path, required=True)
    parser.add_argument("--search", type=float, default=45.0)
    parser.add_argument("--retune", type=float, default=1800.0)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--forms", type=Path)
    options = parser.parse_args()
    with Database(options.db) as database:
        tuner = Tuner(database, Machine.here(None), "native")
        file = options.file or SCHEDULES / f"{tuner.processor_class}.jsonl"
        try:
            if options.forms:
                tune_forms(options.forms, tuner)
            for subject in select_models(options.models or MODELS) if options.search else ():
                try:
                    search_model(subject, options.search, options.db)
                except TensaurusError as error:
                    print(f"{subject.name}: {error}", flush=True)
                count = len(tuner.histories.tuned_forms())
                print(f"{subject.name}: {count} forms are tuned", flush=True)
            end = monotonic() + options.retune
            for kernel in tuned_kernels(database, tuner):
                if monotonic() > end:
                    break
                seconds = tune_again(kernel, tuner)
                print(f"{kernel.seconds * 1e6:.1f} -> {seconds * 1e6:.1f} us", flush=True)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        finally:
            timed = with_quiet_speeds(tuner.histories.tuned_forms(), database, tuner)
            forms = with_known_forms(timed, file)
            write_schedules(file, tuner.machine.key, tuner.backend, forms)
            print(f"wrote {len(forms)} forms to {file}")
            tuner.close()


if __name__ == "__main__":
    main()
