"""Candidates on their target: measured beside the original, the fastest in pairs with it, and checked."""

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
from tensaurus.optimizer.run.open_sizes import NotGeneral, opened, other_sizes
from tensaurus.optimizer.run.target import Target
from tensaurus.optimizer.search.flush_constants import settle
from tensaurus.optimizer.search.outcome import Outcome
from tensaurus.runtimes.measure.comparison import Comparison
from tensaurus.runtimes.measure.end_to_end_times import SECONDS, contest_pairs, contest_times
from tensaurus.runtimes.measure.measure import Pairs
from tensaurus.runtimes.measure.worker import WorkerError
from tensaurus.system.deadline import DeadlineBlock
from tensaurus.system.errors import TensaurusError

__all__ = ["Contender", "Contenders", "Winner", "contenders", "needed_gain"]

LONGER = "raise --time-limit"
OTHERS = 2  # other sizes at which a result is compared that leaves them open
TRIES = 2  # of candidates in pairs with the original: each may by chance be taken for faster
WRITING = 1.0  # seconds that writing a candidate may take at least
CLOSED = 0.05  # a result that runs at fixed sizes alone must gain this share: its user gives up the others
MARGIN = 0.02  # a result gains this share at least: less may be where its memory lies in this process


@dataclass(frozen=True)
class Winner:
    """The build to return, seconds of one run of the original and of it, and why it is right.

    Nothing is applied, and there is no `comparison`, where it is the original.  `checking` is how many
    seconds all checks took; `only` are the sizes of inputs at which it runs, where the original runs at more.
    """

    build: Build
    before: float
    after: float
    comparison: Comparison | None = None
    verdict: Verdict = Verdict(True, 0.0, 0.0, detail="unchanged")
    applied: tuple[Candidate, ...] = ()
    replay: FieldCheck | None = None
    checking: float = 0.0
    only: str = ""

    @property
    def replayed(self) -> str:
        """How the rewrites were checked, in words."""
        if self.replay is None:
            return ""
        return f"{self.replay.detail}: {self.replay.odds}" if self.replay.trials else self.replay.detail


def needed_gain(only: str) -> float:
    """The share that a result must gain which runs only at these sizes, where the original runs at others."""
    return CLOSED if only else MARGIN


@dataclass(frozen=True)
class Contender:
    """A candidate as the target runs it, and seconds of one run; `only` as a Winner's, `closed` is why."""

    candidate: Candidate
    build: Build
    only: str = ""
    closed: str = ""
    seconds: float = inf

    @property
    def gain(self) -> float:
        """The share that it must gain."""
        return needed_gain(self.only)

    @property
    def value(self) -> float:
        """Seconds, with those added that must pay for the sizes that it does not run at."""
        return self.seconds * (1 + self.gain) / (1 + MARGIN)


@dataclass(frozen=True)
class Contenders:
    """Candidates beside the original.

    bodies  what was applied within the bodies of all of them
    base    seconds of one run of the original
    """

    target: Target
    bodies: Sequence[Candidate]
    base: float
    rows: Sequence[Contender]

    def fastest(self, otherwise: str) -> dict[str, float]:
        """Seconds of the fastest of each search; of the one named, where a candidate names none."""
        best: dict[str, float] = {}
        for row in self.rows:
            for by in row.candidate.by or {otherwise}:
                best[by] = min(row.seconds, best.get(by, self.base))
        return best or {otherwise: self.base}

    def winner(self) -> Winner:
        """The fastest whose gain pairs with the original support, and which is equal; else the original."""
        progress = self.target.progress
        faster = [row for row in self.rows if row.value < (1 - MARGIN) * self.base]
        limit, checking, refused = self.target.limit, 0.0, 0
        for place, row in enumerate(sorted(faster, key=lambda row: row.value)):
            if place and limit is not None and not limit.another:
                progress.note(f"no time was left to check {len(faster) - place} more candidates: {LONGER}")
                break
            progress.phase("confirming the speedup in new processes", 5)
            until = inf if limit is None else limit.again
            why = ""
            with DeadlineBlock(until if limit is None else until + limit.patience(2)) as comparing:
                try:
                    pairs = _pairs(self.target, row, until)
                    comparison = pairs.comparison
                except WorkerError as error:
                    why = str(error)
            if comparing.ended:
                progress.note(f"comparing a candidate with the original took too long: {LONGER}")
                break
            if why:
                progress.note(f"rejected a candidate: {why}")
                continue
            if not comparison.shows(row.gain):
                sizes = f", as it runs only at {row.only}" if row.only else ""
                progress.note(f"rejected a candidate: {comparison.refusal(row.gain)}{sizes}")
                refused += 1
                if refused == TRIES:
                    break
                continue
            progress.phase("checking the result against the original", 6)
            applied, began = (*self.bodies, row.candidate), monotonic()
            replay, verdict = self._checked(applied, row)
            checking += (took := monotonic() - began)
            if limit is not None:
                limit.checked = took
            for fault in verdict.faults:
                progress.note(fault)
            if replay.passed and verdict.passed:
                if comparison.disturbed:
                    doubt = f"{comparison.median:.2f}x is void, {comparison.doubt}"
                    progress.note(f"the speedup {doubt}: measure again")
                times = pairs.before, pairs.after
                return Winner(row.build, *times, comparison, verdict, applied, replay, checking, row.only)
            reason = replay.detail if verdict.passed else verdict.detail
            progress.note(f"rejected a faster candidate: {reason}")
        return Winner(self.target.source, self.base, self.base, checking=checking)

    def _checked(self, applied: Sequence[Candidate], row: Contender) -> tuple[FieldCheck, Verdict]:
        """The rewrites replayed, and where they hold the two files compared, which takes longer."""
        target, options = self.target, self.target.options
        replay = check_rewrites(applied, options.seed, target.progress.stage)
        if not replay.passed:
            return replay, Verdict(False, detail=replay.detail, field=replay)
        compared = partial(
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
        verdict = compared(shapes=options.shapes, inputs=target.given or None, answers=target.answers)
        if verdict.passed and target.original.fixed and not row.only:
            verdict = _beyond(target, verdict, compared)
        return replay, verdict


def contenders(target: Target, outcome: Outcome, bodies: Sequence[Candidate]) -> Contenders:
    """The outcome's candidates, measured in turns with the original; what cannot be written is dropped."""
    target.progress.phase("measuring the best programs", 4)
    kept = [candidate for candidate in outcome.candidates if candidate.step is not None or bodies]
    limit, rows = target.limit, list[Contender]()
    until = inf if limit is None else limit.first
    for place, candidate in enumerate(kept):
        if rows and limit is not None and monotonic() + limit.measuring(len(rows) + 2) > until:
            target.progress.note(f"no time was left to measure {len(kept) - place} more candidates: {LONGER}")
            break
        if (written := _written(target, candidate, bodies, until)) is not None:
            rows.append(written)
    for reason in dict.fromkeys(row.closed for row in rows if row.closed):
        target.progress.note(f"a candidate runs only at {target.original.fixed}: {reason}")
    latest = inf if limit is None else max(until, monotonic()) + limit.patience(len(rows) + 1)
    with DeadlineBlock(latest) as measuring:
        base, *times = _times(target, [row.build for row in rows], until)
        rows = [replace(row, seconds=seconds) for row, seconds in zip(rows, times, strict=True)]
    if measuring.ended and limit is not None:
        target.progress.note(f"measuring took too long, so the model is left unchanged: {LONGER}")
        base, rows = limit.run, []
    return Contenders(target, bodies, base, rows)


def _written(
    target: Target, candidate: Candidate, bodies: Sequence[Candidate], until: float
) -> Contender | None:
    """A candidate, flushed, and its model; None, and a note, where there is none, or not in half of the time
    left."""
    now, why = monotonic(), ""
    with DeadlineBlock(now + max(WRITING, (until - now) / 2)) as writing:
        try:
            if SUBNORMALS not in target.options.without:
                candidate = settle(candidate)
            made = _opened(target, candidate, bodies)
        except TensaurusError as error:
            why = f"it cannot be written as ONNX: {error}"
    if writing.ended:
        why = f"writing it as ONNX takes too long: {LONGER}"
    elif not why and made.build.constant_bytes > target.memory:
        sizes = f"{made.build.constant_bytes / 1e6:.3g} MB of constants, more than {target.memory / 1e6:.3g}"
        why = f"it stores {sizes}: --max-memory allows more"
    if why:
        target.progress.note(f"rejected a candidate: {why}")
    return None if why else made


def _opened(target: Target, candidate: Candidate, bodies: Sequence[Candidate]) -> Contender:
    """The candidate's build: with all sizes open that the model leaves open, where its rewrites hold for
    them, else at the sizes that were given.  Raises TensaurusError where it cannot be written."""
    original = target.original
    if not original.fixed:
        return Contender(candidate, target.builds(candidate.program))
    try:
        if bodies:
            raise NotGeneral("its rewrites in the bodies of If, Loop and Scan hold only for the given sizes")
        return Contender(candidate, target.builds(opened(candidate, original.general, target.rules)))
    except TensaurusError as error:
        return Contender(candidate, target.builds(candidate.program), original.fixed, str(error))


def _beyond(target: Target, verdict: Verdict, compared: Callable[..., Verdict]) -> Verdict:
    """The verdict, and that of the first OTHERS other sizes at which the original runs."""
    general, tried = target.original.general, list[str]()
    for shapes in other_sizes(general, symbol_sizes(general, target.feeds)):
        words = " ".join(f"{name}={','.join(map(str, shape))}" for name, shape in shapes.items())
        try:
            other = compared(shapes=shapes, kinds=KINDS[:1])
        except TensaurusError:  # the original does not run at them
            continue
        if not other.passed:
            return replace(other, detail=f"at {words}: {other.detail}")
        tried.append(words)
        if len(tried) == OTHERS:
            break
    more = f"equal, too, at {' and '.join(tried)}" if tried else "it runs at no other sizes that were tried"
    return replace(verdict, detail=f"{verdict.detail}; {more}")


def _times(target: Target, builds: Sequence[Build], until: float) -> list[float]:
    """Seconds of one run of the original, and of each of these; `until` is of `time.monotonic`."""
    return contest_times(
        [(target.backend, build) for build in (target.source, *builds)],
        target.feeds,
        target.machine,
        target.records,
        seconds=SECONDS if target.limit is None else target.limit.turn,
        deadline=until,
    )


def _pairs(target: Target, row: Contender, until: float) -> Pairs:
    """The original and a candidate side by side."""
    return contest_pairs(
        (target.backend, target.source),
        (target.backend, row.build),
        target.feeds,
        target.machine,
        target.records,
        gain=row.gain,
        deadline=until,
    )
