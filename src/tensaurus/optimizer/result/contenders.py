"""Measures the candidates of a search beside the original, and chooses the winner.

The search prices a candidate by its operators.  Here each candidate is run as a whole: first all of them in
turns with the original, then the fastest in pairs with the original, in new processes, which shows whether
the speedup is real.  Then it is checked: its rewrites are replayed, and the two models compared.

    Outcome  --measure_candidates-->  Contenders  --choose_winner-->  Winner  (--> Result)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from time import monotonic

from tensaurus.check.files.allowed_error import ERROR_FACTORS
from tensaurus.check.files.verdict import Verdict, verify
from tensaurus.check.inputs.draw_inputs import KINDS
from tensaurus.check.inputs.timing_inputs import symbol_sizes
from tensaurus.check.program.candidate import Candidate
from tensaurus.check.program.field_check import FieldCheck
from tensaurus.check.program.replay import check_rewrites
from tensaurus.graph.onnx.build import Build
from tensaurus.optimizer.run.available_finders import SUBNORMALS
from tensaurus.optimizer.run.open_sizes import NotGeneral, open_all_sizes, propose_other_sizes
from tensaurus.optimizer.run.target import Target
from tensaurus.optimizer.search.flush_constants import flush_candidate
from tensaurus.optimizer.search.outcome import Outcome
from tensaurus.runtimes.measure.comparison import Comparison
from tensaurus.runtimes.measure.end_to_end_times import SECONDS, contest_pairs, contest_times
from tensaurus.runtimes.measure.measure import Pairs
from tensaurus.runtimes.measure.worker import WorkerError
from tensaurus.system.deadline import DeadlineBlock
from tensaurus.system.errors import TensaurusError
from tensaurus.system.timeline import record

__all__ = ["Contender", "Contenders", "Winner", "measure_candidates", "needed_gain"]

LONGER = "raise --time-limit"  # the remedy in notes about work for which there was no time
OTHER_SIZES_CHECKED = 2  # sizes beside the given ones at which a result with open sizes is compared
MAX_REFUSED = 2  # after so many refusals by pairs no contender is tried: one more may win by chance
MIN_WRITING_SECONDS = 1.0  # that writing a candidate as ONNX may take, however little time is left
FIXED_SIZES_GAIN = 0.05  # least gain of a result that runs only at fixed sizes, which makes up for that loss
MIN_GAIN = 0.02  # least gain of a result; the place of a model's memory in a process may make as much


@dataclass(frozen=True)
class Winner:
    """The program that the run returns: a contender, confirmed and checked, or the original.

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
    fixed_sizes: str = ""

    @property
    def replay_text(self) -> str:
        """How the rewrites were checked, for users."""
        if self.replay is None:
            return ""
        return f"{self.replay.detail}: {self.replay.odds}" if self.replay.trials else self.replay.detail


def needed_gain(fixed_sizes: str) -> float:
    """Return the share of time that a result must gain, which is more if it runs only at fixed sizes."""
    return FIXED_SIZES_GAIN if fixed_sizes else MIN_GAIN


@dataclass(frozen=True)
class Contender:
    """A `Candidate` that was written as ONNX and run as a whole beside the others; one becomes the `Winner`.

    (`measure.Contender` is another thing: any model that is to be timed on a backend.)

    seconds      of one run, measured in turns with the original and the other contenders
    fixed_sizes  inputs at whose sizes alone it runs; `why_fixed` tells why
    """

    candidate: Candidate
    build: Build
    fixed_sizes: str = ""
    why_fixed: str = ""
    seconds: float = inf

    @property
    def needed_gain(self) -> float:
        """The share of time that it must gain."""
        return needed_gain(self.fixed_sizes)

    @property
    def penalized_seconds(self) -> float:
        """Seconds, increased where the contender runs only at fixed sizes, to rank it behind equal ones."""
        return self.seconds * (1 + self.needed_gain) / (1 + MIN_GAIN)


@dataclass(frozen=True)
class Contenders:
    """All contenders of a run, measured beside the original.

    bodies            candidates for the bodies of If, Loop and Scan, which all contenders contain
    original_seconds  of one run of the original, measured in turns with the contenders
    """

    target: Target
    bodies: Sequence[Candidate]
    original_seconds: float
    rows: Sequence[Contender]

    def fastest_by_search(self, default_search: str) -> dict[str, float]:
        """Return the seconds of the fastest contender of each search; one without a name is the default's."""
        best: dict[str, float] = {}
        for row in self.rows:
            for search in row.candidate.by or {default_search}:
                best[search] = min(row.seconds, best.get(search, self.original_seconds))
        return best or {default_search: self.original_seconds}

    def choose_winner(self) -> Winner:
        """Return the fastest contender with a confirmed speedup that passes the check, or the original."""
        progress = self.target.progress
        # try those that gained enough in turns, the fastest first, until one is confirmed and checked
        max_seconds = (1 - MIN_GAIN) * self.original_seconds
        faster = [row for row in self.rows if row.penalized_seconds < max_seconds]
        limit, checking_seconds, refused = self.target.time_limit, 0.0, 0
        for count, row in enumerate(sorted(faster, key=lambda row: row.penalized_seconds)):
            if count and limit is not None and not limit.has_time_for_another:  # the first is always tried
                progress.note(_unfinished(len(faster) - count, "faster rewritten program", "checked"))
                break
            # 1. pairs of runs with the original must show the gain
            progress.phase("confirming the speedup in new processes", 5)
            deadline, failure = inf if limit is None else limit.confirming_deadline, ""
            # the comparison looks at `deadline` after each pair; one that hangs is ended at `latest`
            latest = deadline if limit is None else deadline + limit.patience_seconds(2)
            with DeadlineBlock(latest) as comparing:
                try:
                    pairs = _compare_pairs(self.target, row, deadline)
                    comparison = pairs.comparison
                except WorkerError as error:
                    failure = str(error)
            if comparing.ended:
                progress.note(f"comparing a rewritten program with the original took too long: {LONGER}")
                break
            if failure:
                dropped = "dropped a rewritten program that failed while it was compared with the original"
                progress.note(f"{dropped}: {failure}; the next best one is tried")
                continue
            if not comparison.shows(row.needed_gain):
                sizes = f", as it runs only at {row.fixed_sizes}" if row.fixed_sizes else ""
                progress.note(f"dropped a rewritten program: {comparison.refusal(row.needed_gain)}{sizes}")
                refused += 1
                if refused == MAX_REFUSED:
                    break
                continue
            # 2. its rewrites must hold when they are replayed, and both models must be equal
            progress.phase("checking the result against the original", 6)
            candidates, check_start = (*self.bodies, row.candidate), monotonic()
            replay, verdict = self._check(candidates, row)
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
                checked = verdict, candidates, replay, checking_seconds, row.fixed_sizes
                return Winner(row.build, pairs.before, pairs.after, comparison, *checked)
            reason = replay.detail if verdict.passed else verdict.detail
            progress.note(f"dropped a faster program: {reason}")
        seconds = self.original_seconds
        return Winner(self.target.source, seconds, seconds, checking_seconds=checking_seconds)

    def _check(self, candidates: Sequence[Candidate], row: Contender) -> tuple[FieldCheck, Verdict]:
        """Replay the rewrites, and if they hold compare the two models, which takes longer."""
        target, options = self.target, self.target.options
        replay = check_rewrites(candidates, options.seed, target.progress.stage)
        if not replay.passed:
            return replay, Verdict(False, detail=replay.detail, field=replay)
        compare = partial(
            verify,
            target.source,
            row.build,
            ranges=options.ranges,
            seed=options.seed,
            backend=target.backend,
            threads=target.machine.threads,
            field=replay,
            limit=options.run_limit,
            stage=target.progress.stage,
            margin=ERROR_FACTORS[options.accuracy],
        )
        verdict = compare(shapes=options.shapes, inputs=target.user_inputs or None, answers=target.answers)
        if verdict.passed and target.original.fixed_sizes and not row.fixed_sizes:
            verdict = _check_other_sizes(target, verdict, compare)
        return replay, verdict


def measure_candidates(target: Target, outcome: Outcome, bodies: Sequence[Candidate]) -> Contenders:
    """Write the outcome's candidates as ONNX and measure them in turns with the original.

    A candidate that cannot be written, or not in time, is dropped with a note.
    """
    target.progress.phase("measuring the best programs", 4)
    # the candidate without a step is the search's original: the model itself, unless bodies were improved
    candidates = [candidate for candidate in outcome.candidates if candidate.step is not None or bodies]
    limit, rows = target.time_limit, list[Contender]()
    deadline = inf if limit is None else limit.measuring_deadline
    for number, candidate in enumerate(candidates):
        # + 2: this candidate and the original; the first candidate is always measured
        if rows and limit is not None and monotonic() + limit.measuring_seconds(len(rows) + 2) > deadline:
            count = len(candidates) - number
            target.progress.note(_unfinished(count, "rewritten program", "measured"))
            break
        if (row := _write_candidate(target, candidate, bodies, deadline)) is not None:
            rows.append(row)
    for reason in dict.fromkeys(row.why_fixed for row in rows if row.why_fixed):
        loss = f"a rewritten program would accept only the sizes {target.original.fixed_sizes} ({reason})"
        target.progress.note(f"{loss}; it is kept only if it gains at least {100 * FIXED_SIZES_GAIN:g} %")
    latest = inf if limit is None else max(deadline, monotonic()) + limit.patience_seconds(len(rows) + 1)
    with DeadlineBlock(latest) as measuring:
        original_seconds, *times = _measure_times(target, [row.build for row in rows], deadline)
        for row, seconds in zip(rows, times, strict=True):
            expected_ms, original_ms = row.candidate.cost * 1e3, original_seconds * 1e3
            record("run", expected_ms=expected_ms, took_ms=seconds * 1e3, original_ms=original_ms)
        rows = [replace(row, seconds=seconds) for row, seconds in zip(rows, times, strict=True)]
    if measuring.ended and limit is not None:
        target.progress.note(f"measuring took too long, so the model is left unchanged: {LONGER}")
        original_seconds, rows = limit.run_seconds, []
    return Contenders(target, bodies, original_seconds, rows)


def _unfinished(count: int, what: str, done: str) -> str:
    """Return the note on programs for which there was no time."""
    some = f"1 {what} was" if count == 1 else f"{count} {what}s were"
    return f"{some} not {done}, for lack of time: a higher --time-limit may give a faster result"


def _write_candidate(
    target: Target, candidate: Candidate, bodies: Sequence[Candidate], deadline: float
) -> Contender | None:
    """Return a candidate with its model; None, and a note, if it cannot be written in half the time left."""
    now, failure = monotonic(), ""
    with DeadlineBlock(now + max(MIN_WRITING_SECONDS, (deadline - now) / 2)) as writing:
        try:
            if SUBNORMALS not in target.options.without:
                candidate = flush_candidate(candidate)
            contender = _build_candidate(target, candidate, bodies)
        except TensaurusError as error:
            failure = f"it cannot be written as ONNX: {error}"
    if writing.ended:
        failure = f"writing it as ONNX takes too long: {LONGER}"
    elif not failure and contender.build.constant_bytes > target.memory:
        megabytes = f"{contender.build.constant_bytes / 1e6:.3g} MB of constants"
        failure = f"it stores {megabytes}, more than {target.memory / 1e6:.3g} MB: --max-memory allows more"
    if failure:
        target.progress.note(f"dropped a rewritten program: {failure}")
    return None if failure else contender


def _build_candidate(target: Target, candidate: Candidate, bodies: Sequence[Candidate]) -> Contender:
    """Return the candidate's build with all sizes open that the model leaves open, if its rewrites hold for
    them, else at the given sizes.  Raises TensaurusError where it cannot be written."""
    original = target.original
    if not original.fixed_sizes:
        return Contender(candidate, target.builds(candidate.program))
    try:
        if bodies:
            raise NotGeneral("its rewrites in the bodies of If, Loop and Scan hold only for the given sizes")
        program = open_all_sizes(candidate, original.open_program, target.rules)
        return Contender(candidate, target.builds(program))
    except TensaurusError as error:
        return Contender(candidate, target.builds(candidate.program), original.fixed_sizes, str(error))


def _check_other_sizes(target: Target, verdict: Verdict, compare: Callable[..., Verdict]) -> Verdict:
    """Compare the models at other sizes, too, at which the original runs; return the joint verdict."""
    program, checked = target.original.open_program, list[str]()
    for shapes in propose_other_sizes(program, symbol_sizes(program, target.feeds)):
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


def _measure_times(target: Target, builds: Sequence[Build], deadline: float) -> list[float]:
    """Return the seconds of one run of the original, then of each build, measured in turns."""
    return contest_times(
        [(target.backend, build) for build in (target.source, *builds)],
        target.feeds,
        target.machine,
        target.database,
        seconds=SECONDS if target.time_limit is None else target.time_limit.turn_seconds,
        deadline=deadline,
    )


def _compare_pairs(target: Target, row: Contender, deadline: float) -> Pairs:
    """Run the original and a contender in pairs."""
    return contest_pairs(
        (target.backend, target.source),
        (target.backend, row.build),
        target.feeds,
        target.machine,
        target.database,
        gain=row.needed_gain,
        deadline=deadline,
    )
