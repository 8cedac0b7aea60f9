"""Runs a candidate on every input of a baseline and judges its outputs beside the original's.

The candidate runs on the runtime first, then in float64; either run on one input gives an `OutputFinding` for
each output.  Copies of the original whose weights and inputs are one rounding away (perturbed copies) take
many runs: they run only for inputs on which the errors of the original alone do not decide.

An element is in a *tail* of a function where its error is negligible: less than a few roundings of the
largest element that the output has on plausible inputs, or can have.  A sigmoid's 1e-14 is in a tail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tensaurus.check.files.baseline import PERTURBED_COPIES, Baseline, run_inputs
from tensaurus.check.files.comparison_row import PRECISE_KINDS, ComparisonRow
from tensaurus.check.files.distribution import distribution_difference
from tensaurus.check.files.judge import Finding, OriginalOutput, OutputFinding, float_type_of
from tensaurus.runtimes.measure.worker import WorkerError
from tensaurus.system.errors import TensaurusError

EXACT_PERTURBED_COPIES = 2  # copies of the original one rounding away that run in float64, at most
CLEAR_SHARE = 0.5  # an error below this share of the allowed one needs no perturbed copies to pass


class CandidateTrial:
    """Judges the candidate of a baseline; its errors may be `margin` times the usual ones."""

    def __init__(self, base: Baseline, margin: float = 1.0):
        self.base, self.margin = base, margin
        self._has_run_unfused = False
        # outputs that passed only without their tails: they fail in the end if float64 never judged that row
        self._tails: list[tuple[ComparisonRow, OutputFinding]] = []
        self._compared_exactly: set[int] = set()  # id() of the rows that were compared in float64

    def judge(self) -> list[OutputFinding]:
        """Judge every output on every input.  Raises WorkerError where the candidate does not run."""
        rows = [row for row in self.base.rows if row.results]
        findings: list[list[OutputFinding]] = []
        undecided: dict[int, list[Any]] = {}  # the candidate's results where perturbed copies may decide
        with self.base.start_worker(self.base.candidate) as worker:
            for number, row in enumerate(rows):
                self.base.stage("result, input", number + 1, len(rows))
                results = run_inputs(worker, row.feed.arrays)
                if len(results) != len(self.base.names):
                    raise WorkerError(f"it has {len(results)} outputs, not {len(self.base.names)}")
                findings.append(self._judge_outputs(row, row.results, results))
                if not _pass_clearly(findings[-1]):
                    undecided[number] = results
        # perturbed copies allow larger errors; outputs that fail in spite of them get their last chances
        self.base.run_perturbed(rows[number] for number in undecided)
        for number, results in undecided.items():
            row = rows[number]
            findings[number] = self._judge_outputs(row, row.results, results, is_last_try=True)
        exact = self._judge_exact()
        failed_tails = [finding for row, finding in self._tails if id(row) not in self._compared_exactly]
        return [finding for row_findings in findings for finding in row_findings] + exact + failed_tails

    def _judge_outputs(
        self,
        row: ComparisonRow,
        originals: Sequence[OriginalOutput],
        results: Sequence[Any],
        exact: bool = False,
        is_last_try: bool = False,
    ) -> list[OutputFinding]:
        """Judge all outputs on one input; `exact`: they were computed in float64.

        With `is_last_try` no perturbed copies will be added, so an output that fails gets its last chances.
        """
        findings = []
        pairs = zip(self.base.names, originals, results, strict=True)
        for index, (name, original, result) in enumerate(pairs):
            if name in self.base.random:
                finding = self._judge_random_output(row, name, original, result, exact)
            else:
                finding = original.judge(result, self.margin)
                if not finding.passed and exact and not row.feed.is_plausible:
                    finding = self._judge_without_tails(row, index, original, result, finding)
                if not finding.passed and is_last_try:
                    finding = self._give_last_chances(row, index, original, result, finding)
            findings.append(OutputFinding(name, row.feed, exact, finding))
        return findings

    def _judge_random_output(
        self, row: ComparisonRow, name: str, original: OriginalOutput, result: Any, exact: bool
    ) -> Finding:
        """Judge an output that differs from run to run: it has no float64 value to compare.

        Its type and shape are compared on the runtime, its distribution on the first input only.
        """
        reason = ""
        if not exact and _describe_value(result) != _describe_value(original.own):
            reason = f"is {_describe_value(result)}, not {_describe_value(original.own)}"
        elif not exact and row is self.base.rows[0]:
            reason = distribution_difference(*self.base.random[name], result)
        return Finding(not reason, reason=reason)

    def _judge_without_tails(
        self, row: ComparisonRow, index: int, original: OriginalOutput, result: Any, first: Finding
    ) -> Finding:
        """Judge a float64 output whose elements in tails are taken to be right; `first` failed with them.

        With 1e8 at one pixel a rounded weight moves the argument of a sigmoid by tens, and so the sigmoid
        from 1e-14 to 1e-10.  On plausible inputs tails count, so this is not called there.
        """
        if not row.results:  # the runtime does not run on this input
            return first
        tails = row.results[index].negligible(result)
        if not tails.any():
            return first
        mended = np.where(tails, original.reference, result).astype(result.dtype)
        without_tails = original.judge(mended, self.margin)
        return without_tails if without_tails.passed else first

    def _give_last_chances(
        self, row: ComparisonRow, index: int, original: OriginalOutput, result: Any, first: Finding
    ) -> Finding:
        """Return the finding of an output that failed, which may still pass.

        It passes without its tails (float64 judges them later), or where the runtime computes the original
        wrong, too, and the result without graph optimizations (unfused) is right.  Otherwise the reason says
        whether the runtime is to blame.
        """
        tails = original.negligible(result)
        if row.reference_outputs is not None and tails.any():  # tails are compared in float64 later
            mended = np.where(tails, original.reference, result).astype(result.dtype)
            without_tails = original.judge(mended, self.margin)
            if without_tails.passed:
                words = "less than a few roundings of its largest element on plausible inputs"
                name = self.base.names[index]
                self.base.note(f"output {name} differs in tails of a function, by {words}")
                self._tails.append((row, OutputFinding(name, row.feed, False, first)))
                return without_tails
        # Where the runtime computes the original wrong, the unfused run may change the verdict.  Elsewhere it
        # only adds a hint to the reason, so that one run is enough.
        if original.miscomputed is None and self._has_run_unfused:
            return first
        self._has_run_unfused = True
        outputs = self.base.run_unfused("result", self.base.candidate, row)
        if outputs is None or len(outputs) != len(self.base.names):
            return first
        unfused = original.judge(outputs[index], self.margin)
        if not unfused.passed:
            return first
        blame = f"without graph optimizations {self.base.unfused_runner.name} computes the result right"
        if original.miscomputed is not None and _describe_value(result) == _describe_value(original.own):
            mixed = original.judge(np.where(original.miscomputed, outputs[index], result), self.margin)
            if mixed.passed:  # wrong only where the runtime computes the original wrong
                fault = f"{self.base.backend} computes the result wrong, but the original right; {blame}"
                self.base.faults += [fault] if fault not in self.base.faults else []
                return mixed
        return replace(first, reason=f"{first.reason}; {blame}")

    def _judge_exact(self) -> list[OutputFinding]:
        """Judge all outputs in float64; perturbed copies run only for inputs where they may decide."""
        done: list[OutputFinding] = []
        # rows that perturbed copies may decide, with outputs of the original (filled in below: [] at first,
        # since the copies change which errors they allow) and of the candidate
        open_rows: list[tuple[ComparisonRow, list[OriginalOutput], list[Any]]] = []
        rows = [row for row in self.base.rows if row.reference_outputs is not None]
        self.base.reference.plan_runs(
            self.base.candidate.build, [(row.feed.arrays, row.shapes) for row in rows]
        )
        for number, row in enumerate(rows, 1):
            self.base.stage("result in float64, input", number, len(rows))
            try:
                outputs = self.base.reference.run(self.base.candidate.build, row.feed.arrays, row.shapes)
            except TensaurusError as error:
                if row.feed.is_nonfinite:
                    self.base.note(f"not compared on {row.feed.kind} inputs: {error}")
                    continue
                self.base.note(f"not compared in float64: {error}")
                break
            self._compared_exactly.add(id(row))
            findings = self._judge_outputs(row, self._expected_outputs(row), outputs, exact=True)
            if _pass_clearly(findings):
                done += findings
            else:
                open_rows.append((row, [], outputs))
        # copies on the runtime count only on inputs that are not of PRECISE_KINDS (`_expected_outputs`)
        self.base.run_perturbed(row for row, _, _ in open_rows if row.feed.kind not in PRECISE_KINDS)
        # where an argmax or a rounding is a tie, the outputs on both sides of the tie are right
        self.base.run_tie_neighbours(row for row, _, _ in open_rows)
        open_rows = [(row, self._expected_outputs(row), outputs) for row, _, outputs in open_rows]
        # round 0 judges without perturbed copies in float64, each later round adds one; their seeds follow
        # those of the copies that ran on the runtime
        for count in range(1 + (0 if self.base.original.is_large else EXACT_PERTURBED_COPIES)):
            undecided = []
            for number, (row, originals, outputs) in enumerate(open_rows, 1):
                if count:
                    words = f"{('first', 'second')[count - 1]} perturbed copy in float64, input"
                    self.base.stage(words, number, len(open_rows))
                    seed = self.base.seed * 1_000_003 + PERTURBED_COPIES + count - 1
                    self._add_perturbed_copy(row, originals, seed)
                findings = self._judge_outputs(row, originals, outputs, exact=True)
                if all(finding.finding.passed for finding in findings):
                    done += findings
                else:
                    undecided.append((row, originals, outputs))
            open_rows = undecided
        for row, originals, outputs in open_rows:  # what still fails is different
            done += self._judge_outputs(row, originals, outputs, exact=True)
        return done

    def _expected_outputs(self, row: ComparisonRow) -> list[OriginalOutput]:
        """Return the original's outputs in float64 with the errors that a candidate may have there.

        An error may be as large as the distance between the original and its perturbed copies on the runtime,
        but for inputs of PRECISE_KINDS, where only copies that run in float64 count.
        """
        outputs = self.base.original.proto.graph.output
        kinds = [float_type_of(output.type.tensor_type.elem_type) for output in outputs]
        has_infinities = row.feed.is_nonfinite and not row.feed.kind.startswith("nan")
        pairs = zip(row.reference_outputs or [], kinds, strict=True)
        originals = [OriginalOutput(exact, exact, kind, has_infinities) for exact, kind in pairs]
        if row.feed.kind not in PRECISE_KINDS:
            for expected, own in zip(originals, row.results, strict=False):
                if expected.error is not None and own.spread is not None:
                    expected.error = np.maximum(expected.error, own.spread)
        for outputs in row.tie_neighbours or ():
            for expected, output in zip(originals, outputs, strict=True):
                expected.add_tie_neighbour(output)
        return originals

    def _add_perturbed_copy(self, row: ComparisonRow, originals: Sequence[OriginalOutput], seed: int) -> None:
        """Run one more perturbed copy of the original in float64, and allow its distances."""
        try:
            results = self.base.reference.run(self.base.perturbed(seed), row.feed.perturb(seed), row.shapes)
        except TensaurusError as error:
            self.base.note(f"not compared with a perturbed copy in float64: {error}")
            return
        for original, result in zip(originals, results, strict=True):
            original.add_perturbed(result)


def _pass_clearly(findings: Sequence[OutputFinding]) -> bool:
    """Return whether all findings pass by far: perturbed copies, which only allow more, need not run then."""
    return all(finding.finding.passed and finding.finding.worst <= CLEAR_SHARE for finding in findings)


def _describe_value(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
