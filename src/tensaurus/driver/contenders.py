"""Candidates on their target: measured beside the original, the fastest in pairs with it, and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from time import monotonic

from tensaurus.cost.measure import Pairs
from tensaurus.cost.whole import SECONDS, contest_pairs, contest_times
from tensaurus.deadline import Bounded
from tensaurus.driver.finders import SUBNORMALS
from tensaurus.driver.target import Target
from tensaurus.equivalence.accuracy import LEVELS
from tensaurus.equivalence.chain import check_rewrites
from tensaurus.equivalence.field_check import FieldCheck
from tensaurus.equivalence.verdict import Verdict, verify
from tensaurus.errors import TensaurusError
from tensaurus.graph.build import Build
from tensaurus.report.comparison import Comparison
from tensaurus.search.candidate import Candidate, Outcome
from tensaurus.search.flushing import settle

__all__ = ["Contenders", "Winner", "contenders"]

LONGER = "a longer --time-limit helps"
TRIES = 2  # of candidates in pairs with the original: each may by chance be taken for faster
WRITING = 1.0  # seconds that writing a candidate may take at least
MARGIN = 0.02  # a result gains this share at least: less may be where its memory lies in this process


@dataclass(frozen=True)
class Winner:
    """The build to return, seconds of one run of the original and of it, and why it is right.

    Nothing is applied, and there is no `comparison`, where it is the original.  `checking` is how many
    seconds all checks took.
    """

    build: Build
    before: float
    after: float
    comparison: Comparison | None = None
    verdict: Verdict = Verdict(True, 0.0, 0.0, detail="unchanged")
    applied: tuple[Candidate, ...] = ()
    replay: FieldCheck | None = None
    checking: float = 0.0

    @property
    def replayed(self) -> str:
        """How the rewrites were checked, in words."""
        if self.replay is None:
            return ""
        return f"{self.replay.detail}: {self.replay.odds}" if self.replay.trials else self.replay.detail


@dataclass(frozen=True)
class Contenders:
    """Candidates as the target runs them, beside the original.

    bodies  what was applied within the bodies of all of them
    base    seconds of one run of the original
    rows    of each candidate its build and its seconds
    """

    target: Target
    bodies: Sequence[Candidate]
    base: float
    rows: Sequence[tuple[Candidate, Build, float]]

    def fastest(self, otherwise: str) -> dict[str, float]:
        """Seconds of the fastest of each search; of the one named, where a candidate names none."""
        best: dict[str, float] = {}
        for candidate, _, seconds in self.rows:
            for by in candidate.by or {otherwise}:
                best[by] = min(seconds, best.get(by, self.base))
        return best or {otherwise: self.base}

    def winner(self) -> Winner:
        """The fastest whose gain pairs with the original support, and which is equal; else the original."""
        progress = self.target.progress
        faster = [row for row in self.rows if row[2] < (1 - MARGIN) * self.base]
        limit, checking, refused = self.target.limit, 0.0, 0
        for place, (candidate, build, _) in enumerate(sorted(faster, key=lambda row: row[2])):
            if place and limit is not None and not limit.another:
                progress.note(f"there was no time to check {len(faster) - place} more: {LONGER}")
                break
            progress.phase("comparing it with the original")
            until = inf if limit is None else limit.again
            with Bounded(until if limit is None else until + limit.patience(2)) as comparing:
                pairs = _pairs(self.target, build, until)
                comparison = pairs.comparison
            if comparing.ended:
                progress.note(f"comparing a program did not end in time: {LONGER}")
                break
            if not comparison.shows(MARGIN):
                progress.note(f"{comparison.refusal(MARGIN)}: a program was thrown away")
                refused += 1
                if refused == TRIES:
                    break
                continue
            progress.phase("checking that it is equal")
            applied, began = (*self.bodies, candidate), monotonic()
            replay, verdict = self._checked(applied, build)
            checking += (took := monotonic() - began)
            if limit is not None:
                limit.checked = took
            for fault in verdict.faults:
                progress.note(fault)
            if replay.passed and verdict.passed:
                if comparison.disturbed:
                    progress.note(f"{comparison.median:.2f}x is void, {comparison.doubt}: measure it again")
                return Winner(
                    build, pairs.before, pairs.after, comparison, verdict, applied, replay, checking
                )
            reason = replay.detail if verdict.passed else verdict.detail
            progress.note(f"a faster program was thrown away: {reason}")
        return Winner(self.target.source, self.base, self.base, checking=checking)

    def _checked(self, applied: Sequence[Candidate], build: Build) -> tuple[FieldCheck, Verdict]:
        """The rewrites replayed, and where they hold the two files compared, which takes longer."""
        target, options = self.target, self.target.options
        replay = check_rewrites(applied, options.seed, target.progress.stage)
        if not replay.passed:
            return replay, Verdict(False, detail=replay.detail, field=replay)
        verdict = verify(
            target.source,
            build,
            shapes=options.shapes,
            ranges=options.ranges,
            inputs=target.given or None,
            seed=options.seed,
            backend=target.backend,
            threads=target.machine.threads,
            field=replay,
            limit=options.run_limit,
            stage=target.progress.stage,
            answers=target.answers,
            margin=LEVELS[options.accuracy],
        )
        return replay, verdict


def contenders(target: Target, outcome: Outcome, bodies: Sequence[Candidate]) -> Contenders:
    """The outcome's candidates, measured in turns with the original; what cannot be written is dropped."""
    target.progress.phase("measuring the best programs")
    kept = [candidate for candidate in outcome.candidates if candidate.step is not None or bodies]
    limit, pairs = target.limit, list[tuple[Candidate, Build]]()
    until = inf if limit is None else limit.first
    for place, candidate in enumerate(kept):
        if pairs and limit is not None and monotonic() + limit.measuring(len(pairs) + 2) > until:
            target.progress.note(f"there was no time to measure {len(kept) - place} more programs: {LONGER}")
            break
        if (written := _written(target, candidate, until)) is not None:
            pairs.append(written)
    latest = inf if limit is None else max(until, monotonic()) + limit.patience(len(pairs) + 1)
    with Bounded(latest) as measuring:
        base, *times = _times(target, [build for _, build in pairs], until)
        rows = [(candidate, build, taken) for (candidate, build), taken in zip(pairs, times, strict=True)]
    if measuring.ended and limit is not None:
        target.progress.note(f"measuring did not end in time, so the model stays as it is: {LONGER}")
        base, rows = limit.run, []
    return Contenders(target, bodies, base, rows)


def _written(target: Target, candidate: Candidate, until: float) -> tuple[Candidate, Build] | None:
    """A candidate, flushed, and its model; None, and a note, where there is none, or not in half of the time
    left."""
    now, why = monotonic(), ""
    with Bounded(now + max(WRITING, (until - now) / 2)) as writing:
        try:
            if SUBNORMALS not in target.options.without:
                candidate = settle(candidate)
            build = target.builds(candidate.program)
        except TensaurusError as error:
            why = f"it cannot be written: {error}"
    if writing.ended:
        why = f"writing it takes too long: {LONGER}"
    elif not why and build.stored > target.memory:
        sizes = f"{build.stored / 1e6:.3g} MB of constants, more than {target.memory / 1e6:.3g}"
        why = f"it stores {sizes}: --max-memory allows more"
    if why:
        target.progress.note(f"a program was dropped, {why}")
    return None if why else (candidate, build)


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


def _pairs(target: Target, build: Build, until: float) -> Pairs:
    """The original and a build side by side."""
    return contest_pairs(
        (target.backend, target.source),
        (target.backend, build),
        target.feeds,
        target.machine,
        target.records,
        gain=MARGIN,
        deadline=until,
    )
