"""Chooses the model that a run returns: the fastest candidate whose speedup and equality are confirmed.

The fastest `CandidateModel` is compared with the original in pairs of runs, in new processes, which shows
whether the speedup is real.  Then it is checked: its rewrites are replayed, and the two models compared.
Where it fails, the next one is tried; where all fail, the original is the `Winner`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from time import monotonic

from tensaurus.check.files.allowed_error import ERROR_FACTORS
from tensaurus.check.files.verdict import Verdict, verify
from tensaurus.check.inputs.feed import KINDS
from tensaurus.check.inputs.timing_inputs import symbol_sizes
from tensaurus.check.program.candidate import Candidate
from tensaurus.check.program.field_check import FieldCheck
from tensaurus.check.program.replay import check_rewrites
from tensaurus.expr.sizes.size import Symbol
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.build import Build
from tensaurus.graph.onnx.value_types import symbol_of
from tensaurus.ops import TensorType
from tensaurus.optimizer.result.candidate_models import (
    MIN_GAIN,
    RAISE_LIMIT,
    CandidateModel,
    MeasuredModels,
    format_skipped,
)
from tensaurus.optimizer.run.optimization_run import OptimizationRun
from tensaurus.runtimes.measure.comparison import Comparison
from tensaurus.runtimes.measure.end_to_end_times import time_model_pairs
from tensaurus.runtimes.measure.measure import Pairs
from tensaurus.runtimes.measure.worker import WorkerError
from tensaurus.system.deadline import DeadlineBlock
from tensaurus.system.errors import TensaurusError

__all__ = ["Winner", "choose_winner", "propose_other_sizes"]

OTHER_SIZES_CHECKED = 2  # sizes beside the given ones at which a result with open sizes is compared
MAX_REFUSED = 2  # after so many refusals by pairs no further model is tried: one more may win by chance


@dataclass(frozen=True)
class Winner:
    """The model that the run returns: a candidate, confirmed and checked, or the original.

    `Result` is made from it.

    original_seconds, seconds  of one run of the original and of the winner, in the last measurement of them:
                               by pairs of runs, or in turns where the winner is the original
    comparison                 the statistics of those pairs; None for the original
    candidates                 whose rewrites lead to the winner: those of bodies, then the program's; () for
                               the original
    replay                     the check of the rewrites
    checking_seconds           seconds that the checks of all candidates took
    fixed_sizes                inputs at whose sizes alone the winner runs, where the original runs at others
    """

    build: Build
    original_seconds: float
    seconds: float
    comparison: Comparison | None = None
    verdict: Verdict = Verdict(True, 0.0, 0.0, detail="unchanged")
    candidates: tuple[Candidate, ...] = ()
    replay: FieldCheck | None = None
    checking_seconds: float = 0.0
    fast_sizes: str = ""
    fixed_sizes: str = ""

    @property
    def replay_text(self) -> str:
        """How the rewrites were checked, for users."""
        if self.replay is None:
            return ""
        return f"{self.replay.detail}: {self.replay.odds}" if self.replay.trials else self.replay.detail


def choose_winner(run: OptimizationRun, measured: MeasuredModels) -> Winner:
    """Return the fastest model with a confirmed speedup that passes the check, or the original."""
    progress, limit = run.progress, run.time_limit
    # try those that gained enough in turns, the fastest first, until one is confirmed and checked
    max_seconds = (1 - MIN_GAIN) * measured.original_seconds
    faster = [model for model in measured.models if model.penalized_seconds < max_seconds]
    faster.sort(key=lambda model: model.penalized_seconds)
    checking_seconds, refusals, refuted = 0.0, 0, 0
    for number, model in enumerate(faster):
        # the first is always tried; after it was refuted one more, even a little late
        has_time = limit is None or limit.has_time_for_another
        if number and not has_time and not (limit and refuted == 1 and limit.has_time_for_second_check):
            progress.note(format_skipped(len(faster) - number, "faster rewritten program", "checked"))
            break
        # 1. pairs of runs with the original must show the gain
        progress.phase("confirming the speedup in new processes", 5)
        try:
            pairs = _compare_with_original(run, model)
        except WorkerError as error:
            dropped = "dropped a rewritten program that failed while it was compared with the original"
            progress.note(f"{dropped}: {error}; the next best one is tried")
            continue
        if pairs is None:
            progress.note(f"comparing a rewritten program with the original took too long: {RAISE_LIMIT}")
            break
        comparison = pairs.comparison
        if not comparison.shows(model.needed_gain):
            sizes = f", as it runs only at {model.fixed_sizes}" if model.fixed_sizes else ""
            progress.note(f"dropped a rewritten program: {comparison.refusal(model.needed_gain)}{sizes}")
            refusals += 1
            if refusals == MAX_REFUSED:
                break
            continue
        # 2. its rewrites must hold when they are replayed, and both models must be equal
        progress.phase("checking the result against the original", 6)
        check_start = monotonic()
        replay, verdict = _check_model(run, measured, model)
        checking_seconds += (seconds := monotonic() - check_start)
        if limit is not None:
            limit.last_check_seconds = seconds
        for fault in verdict.faults:
            progress.note(fault)
        if replay.passed and verdict.passed:
            if comparison.disturbed:
                doubt = "cannot be relied on, because other processes disturbed the measurement"
                told = f"the speedup of {comparison.median:.2f}x {doubt}"
                progress.note(f"{told}: run it again while the machine is idle")
            return Winner(
                model.build, pairs.before, pairs.after, comparison, verdict,
                measured.candidates_in(model), replay, checking_seconds, model.fast_sizes, model.fixed_sizes,
            )
        reason = replay.detail if verdict.passed else verdict.detail
        progress.note(f"dropped a faster program: {reason}")
        refuted += 1
    seconds = measured.original_seconds
    return Winner(run.source, seconds, seconds, checking_seconds=checking_seconds)


def _compare_with_original(run: OptimizationRun, model: CandidateModel) -> Pairs | None:
    """Run the original and the model in pairs; return None where that takes too long.  Raises WorkerError."""
    limit = run.time_limit
    deadline = inf if limit is None else limit.confirming_deadline
    # the comparison looks at `deadline` after each pair; one that hangs is ended at `latest`
    latest = deadline if limit is None else deadline + limit.patience_seconds(2)
    with DeadlineBlock(latest):
        return time_model_pairs(
            (run.backend, run.source), (run.backend, model.build),
            run.feeds, run.machine, run.database, gain=model.needed_gain, deadline=deadline,
        )
    return None  # reached only where the block was ended


def _check_model(
    run: OptimizationRun, measured: MeasuredModels, model: CandidateModel
) -> tuple[FieldCheck, Verdict]:
    """Replay the rewrites, and if they hold compare the two models, which takes longer."""
    options = run.options
    replay = check_rewrites(measured.candidates_in(model), options.seed, run.progress.stage)
    if not replay.passed:
        return replay, Verdict(False, detail=replay.detail, field=replay)
    compare = partial(
        verify, run.source, model.build, ranges=options.ranges, seed=options.seed,
        backend=run.backend, threads=run.machine.threads, limit=options.run_limit,
        field=replay, stage=run.progress.stage, margin=ERROR_FACTORS[options.accuracy],
    )
    verdict = compare(shapes=options.shapes, inputs=run.user_inputs or None, answers=run.answers)
    if verdict.passed and run.original.fixed_sizes and not model.fixed_sizes:
        verdict = _check_other_sizes(run, verdict, compare)
    return replay, verdict


def _check_other_sizes(run: OptimizationRun, verdict: Verdict, compare: Callable[..., Verdict]) -> Verdict:
    """Compare the models at other sizes, too, at which the original runs; return the joint verdict."""
    program, checked = run.original.open_program, list[str]()
    for shapes in propose_other_sizes(program, symbol_sizes(program, run.feeds)):
        sizes = " ".join(f"{name}={','.join(map(str, shape))}" for name, shape in shapes.items())
        try:
            other = compare(shapes=shapes, kinds=KINDS[:1])  # random inputs only
        except TensaurusError:  # the original does not run at these sizes
            continue
        if not other.passed:
            return replace(other, detail=f"at {sizes}: {other.detail}")
        checked.append(sizes)
        if len(checked) == OTHER_SIZES_CHECKED:
            break
    none = "the original runs at no other sizes that were tried"
    more = f"equal, too, at {' and '.join(checked)}" if checked else none
    return replace(verdict, detail=f"{verdict.detail}; {more}")


def propose_other_sizes(
    program: Program, sizes: Mapping[Symbol, int]
) -> Iterator[dict[str, tuple[int, ...]]]:
    """Yield shapes of all inputs at other sizes of the symbols, the likeliest to be valid first.

    Many models need multiples of 8 or 32; half of a size, or a quarter more, often is one.
    """
    plans: tuple[Callable[[int], int], ...] = (
        lambda n: n // 2 if n % 2 == 0 else n + 1,
        lambda n: n + n // 4 if n % 4 == 0 else n + 1,
        lambda n: n + 1,
        lambda n: 3 if n == 1 else n,
    )
    seen = [dict(sizes)]
    for plan in plans:
        new_sizes = {symbol: plan(size) for symbol, size in sizes.items()}
        shapes: dict[str, tuple[int, ...]] = {}
        for node in program.inputs:
            kind = node.types[0]
            if isinstance(kind, TensorType):
                shape = [n if isinstance(n, int) else new_sizes.get(symbol_of(n)) for n in kind.shape]  # type: ignore[arg-type]
                if None in shape:  # a size that is no single symbol, such as 2*n
                    return
                shapes[node.attribute("name")] = tuple(n for n in shape if n is not None)
        if new_sizes not in seen:
            seen.append(new_sizes)
            yield shapes
