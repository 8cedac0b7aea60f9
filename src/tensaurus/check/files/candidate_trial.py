"""Runs a candidate on every input of a baseline and judges its outputs beside the original's.

The candidate runs on the runtime first, then in float64; either run on one input gives an `OutputFinding` for
each output.  Copies of the original whose weights and inputs are one rounding away (perturbed copies) take
many runs: they run only for inputs on which the errors of the original alone do not decide.

An element is in a *tail* of a function where its error is negligible: less than a few roundings of the
largest element that the output has on plausible inputs, or can have.  A sigmoid's 1e-14 is in a tail.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tensaurus.check.files.baseline import PERTURBED_COPIES, Baseline, run_inputs
from tensaurus.check.files.comparison_row import PRECISE_KINDS, ComparisonRow
from tensaurus.check.files.distribution import distribution_difference
from tensaurus.check.files.judge import Finding, OriginalOutput, OutputFinding
from tensaurus.check.files.output_values import describe_value, float_type_of
from tensaurus.runtimes.measure.worker import WorkerError
from tensaurus.system.errors import TensaurusError

ORDINALS = ("first", "second", "third", "fourth")  # of the PERTURBED_COPIES


class _OpenRow(NamedTuple):
    """An input on which perturbed copies may decide: the outputs of original and candidate in float64."""

    row: ComparisonRow
    originals: list[OriginalOutput]
    results: list[Any]


class CandidateTrial:
    """Judges the candidate of a baseline; its errors may be `margin` times the usual ones."""

    def __init__(self, base: Baseline, margin: float = 1.0):
        self.base, self.margin = base, margin
        self._has_run_unfused = False
        # outputs that passed only without their tails: they fail in the end if float64 never judged that row
        self._passed_without_tails: list[tuple[ComparisonRow, OutputFinding]] = []
        self._judged_in_float64: set[ComparisonRow] = set()

    def judge(self) -> list[OutputFinding]:
        """Judge every output on every input.  Raises WorkerError where the candidate does not run."""
        findings = self._judge_on_runtime() + self._judge_in_float64()
        failed = [found for row, found in self._passed_without_tails if row not in self._judged_in_float64]
        return findings + failed

    def _judge_on_runtime(self) -> list[OutputFinding]:
        rows = [row for row in self.base.rows if row.results]
        findings: list[list[OutputFinding]] = []
        undecided: dict[int, list[Any]] = {}  # the candidate's results where perturbed copies may decide
        with self.base.start_worker(self.base.candidate) as worker:
            for number, row in enumerate(rows):
                self.base.options.stage("result, input", number + 1, len(rows))
                results = run_inputs(worker, row.feed.arrays)
                if len(results) != len(self.base.names):
                    raise WorkerError(f"it has {len(results)} outputs, not {len(self.base.names)}")
                findings.append(self._judge_outputs(row, row.results, results))
                if not _all_pass(findings[-1]):
                    undecided[number] = results
        # each perturbed copy allows larger errors; outputs that fail in spite of all get their last chances
        for copies in range(1, PERTURBED_COPIES + 1):
            self.base.run_perturbed([rows[number] for number in undecided], copies)
            for number, results in list(undecided.items()):
                row, is_last_try = rows[number], copies == PERTURBED_COPIES
                findings[number] = self._judge_outputs(row, row.results, results, is_last_try=is_last_try)
                if _all_pass(findings[number]):
                    del undecided[number]
        return [found for row_findings in findings for found in row_findings]

    def _judge_in_float64(self) -> list[OutputFinding]:
        """Judge all outputs in float64; perturbed copies run only for inputs where they may decide."""
        findings, undecided = self._split_by_passing(self._run_in_float64())
        # where an argmax or a rounding is a tie, the outputs on both sides of the tie are right
        self.base.run_tie_neighbours(row for row, _ in undecided)
        for copies in range(1, PERTURBED_COPIES + 1):
            # copies on the runtime count only on inputs that are not of PRECISE_KINDS (`_expected_outputs`)
            waiting = [row for row, _ in undecided if row.feed.kind not in PRECISE_KINDS and row.results]
            if not waiting:
                break
            self.base.run_perturbed(waiting, copies)
            passing, undecided = self._split_by_passing(undecided)
            findings += passing
        open_rows = [_OpenRow(row, self._expected_outputs(row), results) for row, results in undecided]
        return findings + self._judge_with_copies(open_rows)

    def _split_by_passing(
        self, computed: Iterable[tuple[ComparisonRow, list[Any]]]
    ) -> tuple[list[OutputFinding], list[tuple[ComparisonRow, list[Any]]]]:
        """Judge float64 results of some rows; return the findings of rows that pass, and the other rows."""
        findings: list[OutputFinding] = []
        failing: list[tuple[ComparisonRow, list[Any]]] = []
        for row, results in computed:
            self._judged_in_float64.add(row)
            row_findings = self._judge_outputs(row, self._expected_outputs(row), results, in_float64=True)
            if _all_pass(row_findings):
                findings += row_findings
            else:
                failing.append((row, results))
        return findings, failing

    def _run_in_float64(self) -> Iterator[tuple[ComparisonRow, list[Any]]]:
        """Yield the candidate's outputs in float64 on every input on which the original has some."""
        base, rows = self.base, [row for row in self.base.rows if row.reference_outputs is not None]
        base.reference.plan_runs(base.candidate.build, [(row.feed.arrays, row.shapes) for row in rows])
        for number, row in enumerate(rows, 1):
            base.options.stage("result in float64, input", number, len(rows))
            try:
                results = base.reference.run(base.candidate.build, row.feed.arrays, row.shapes)
            except TensaurusError as error:
                if row.feed.is_nonfinite:
                    base.note(f"not compared on {row.feed.kind} inputs: {error}")
                    continue
                base.note(f"not compared in float64: {error}")
                return
            yield row, results

    def _judge_with_copies(self, open_rows: Sequence[_OpenRow]) -> list[OutputFinding]:
        """Judge rows without perturbed copies in float64, then with one more in each round."""
        findings: list[OutputFinding] = []
        for count in range(1 + (0 if self.base.original.is_large else PERTURBED_COPIES)):
            if not open_rows:
                break
            failed = []
            if count:
                self._plan_perturbed_copy(open_rows, self.base.copy_seed(count - 1))
            for number, opened in enumerate(open_rows, 1):
                if count:
                    words = f"{ORDINALS[count - 1]} perturbed copy in float64, input"
                    self.base.options.stage(words, number, len(open_rows))
                    self._add_perturbed_copy(opened, self.base.copy_seed(count - 1))
                row_findings = self._judge_outputs(*opened, in_float64=True)
                if _all_pass(row_findings):
                    findings += row_findings
                else:
                    failed.append(opened)
            open_rows = failed
        for opened in open_rows:  # what still fails is different
            findings += self._judge_outputs(*opened, in_float64=True)
        return findings

    def _plan_perturbed_copy(self, open_rows: Sequence[_OpenRow], seed: int) -> None:
        """Announce the runs of a perturbed copy on several rows, so that they are computed side by side."""
        wanted = [(opened.row.feed.perturb(seed), opened.row.shapes) for opened in open_rows]
        with suppress(TensaurusError):  # `_add_perturbed_copy` notes it
            self.base.reference.plan_runs(self.base.perturbed_build(seed), wanted)

    def _add_perturbed_copy(self, opened: _OpenRow, seed: int) -> None:
        """Run one more perturbed copy of the original in float64, and allow its distances."""
        row = opened.row
        try:
            build = self.base.perturbed_build(seed)
            results = self.base.reference.run(build, row.feed.perturb(seed), row.shapes)
        except TensaurusError as error:
            self.base.note(f"not compared with a perturbed copy in float64: {error}")
            return
        for original, result in zip(opened.originals, results, strict=True):
            original.add_perturbed(result)

    def _expected_outputs(self, row: ComparisonRow) -> list[OriginalOutput]:
        """Return the original's outputs in float64 with the errors that a candidate may have there.

        An error may be as large as the distance between the original and its perturbed copies on the runtime,
        but for inputs of PRECISE_KINDS, where only copies that run in float64 count.
        """
        outputs = self.base.original.proto.graph.output
        types = [float_type_of(output.type.tensor_type.elem_type) for output in outputs]
        has_infinities = row.feed.is_nonfinite and not row.feed.kind.startswith("nan")
        pairs = zip(row.reference_outputs or [], types, strict=True)
        originals = [OriginalOutput(exact, exact, kind, has_infinities) for exact, kind in pairs]
        if row.feed.kind not in PRECISE_KINDS:
            for expected, own in zip(originals, row.results, strict=False):
                if expected.has_floats and own.has_floats:
                    expected.error = np.maximum(expected.error, own.spread)
        for neighbours in row.tie_neighbours or ():
            for expected, neighbour in zip(originals, neighbours, strict=True):
                expected.add_tie_neighbour(neighbour)
        return originals

    # ---------------------------------------------------------------------------- the outputs on one input

    def _judge_outputs(
        self,
        row: ComparisonRow,
        originals: Sequence[OriginalOutput],
        results: Sequence[Any],
        *,
        in_float64: bool = False,
        is_last_try: bool = False,
    ) -> list[OutputFinding]:
        """Judge all outputs on one input, which were computed on the runtime or in float64.

        With `is_last_try` no perturbed copies will be added, so an output that fails gets its last chances.
        """
        findings = []
        pairs = zip(self.base.names, originals, results, strict=True)
        for index, (name, original, result) in enumerate(pairs):
            if name in self.base.random_outputs:
                finding = Finding() if in_float64 else self._judge_random_output(row, name, original, result)
            else:
                finding = original.judge(result, self.margin)
                if not finding.passed and in_float64 and not row.feed.is_plausible:
                    finding = self._ignore_tails(row, index, original, result, finding)
                if not finding.passed and is_last_try:
                    finding = self._give_last_chances(row, index, original, result, finding)
            findings.append(OutputFinding(name, row.feed, in_float64, finding))
        return findings

    def _judge_random_output(
        self, row: ComparisonRow, name: str, original: OriginalOutput, result: Any
    ) -> Finding:
        """Judge an output that differs from run to run, and so has no float64 value to compare.

        Its type and shape are compared, its distribution on the first input only.
        """
        reason = ""
        if describe_value(result) != describe_value(original.own):
            reason = f"is {describe_value(result)}, not {describe_value(original.own)}"
        elif row is self.base.rows[0]:
            reason = distribution_difference(*self.base.random_outputs[name], result)
        return Finding(not reason, reason=reason)

    def _ignore_tails(
        self, row: ComparisonRow, index: int, original: OriginalOutput, result: Any, first: Finding
    ) -> Finding:
        """Return the finding of a float64 output, which failed, with elements in tails taken to be right.

        With 1e8 at one pixel a rounded weight moves the argument of a sigmoid by tens, and so the sigmoid
        from 1e-14 to 1e-10.  On plausible inputs tails count, so this is not called there.
        """
        if not row.results:  # the runtime does not run on this input
            return first
        tails = row.results[index].is_negligible(result)
        if not tails.any():
            return first
        without_tails = self._judge_replaced(original, result, tails, original.reference)
        return without_tails if without_tails.passed else first

    def _give_last_chances(
        self, row: ComparisonRow, index: int, original: OriginalOutput, result: Any, first: Finding
    ) -> Finding:
        """Return the finding of an output that failed, which may still pass.

        It passes without its tails (float64 judges them later), or where the runtime computes the original
        wrong, too, and the result without graph optimizations (unfused) is right.  Otherwise the reason says
        whether the runtime is to blame.
        """
        tails = original.is_negligible(result)
        if row.reference_outputs is not None and tails.any():  # tails are compared in float64 later
            without_tails = self._judge_replaced(original, result, tails, original.reference)
            if without_tails.passed:
                words = "less than a few roundings of its largest element on plausible inputs"
                name = self.base.names[index]
                self.base.note(f"output {name} differs in tails of a function, by {words}")
                self._passed_without_tails.append((row, OutputFinding(name, row.feed, False, first)))
                return without_tails
        # Where the runtime computes the original wrong, the unfused run may change the verdict.  Elsewhere it
        # only adds a hint to the reason, so that one run is enough.
        if original.miscomputed is None and self._has_run_unfused:
            return first
        self._has_run_unfused = True
        unfused = self.base.run_unfused("result", self.base.candidate, row)
        if unfused is None or len(unfused) != len(self.base.names):
            return first
        if not original.judge(unfused[index], self.margin).passed:
            return first
        blame = f"without graph optimizations {self.base.unfused_runner.name} computes the result right"
        if original.miscomputed is not None and describe_value(result) == describe_value(original.own):
            mixed = self._judge_replaced(original, result, original.miscomputed, unfused[index])
            if mixed.passed:  # wrong only where the runtime computes the original wrong
                backend = self.base.options.backend
                fault = f"{backend} computes the result wrong, but the original right; {blame}"
                self.base.faults += [fault] if fault not in self.base.faults else []
                return mixed
        return replace(first, reason=f"{first.reason}; {blame}")

    def _judge_replaced(self, original: OriginalOutput, result: Any, where: Any, others: Any) -> Finding:
        """Judge a result some of whose elements are replaced by others."""
        return original.judge(np.where(where, others, result).astype(result.dtype), self.margin)


def _all_pass(findings: Sequence[OutputFinding]) -> bool:
    """Return whether all outputs pass; then no perturbed copy, which only allows more, need run."""
    return all(found.finding.passed for found in findings)
