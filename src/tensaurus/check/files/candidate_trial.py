"""A candidate on every input, beside the original."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tensaurus.check.files.baseline import PERTURBED, Baseline, run
from tensaurus.check.files.comparison_row import FINE, Row
from tensaurus.check.files.distribution import difference
from tensaurus.check.files.judge import Finding, Original, Sight, unit_of
from tensaurus.runtimes.measure.worker import WorkerError
from tensaurus.system.errors import TensaurusError

PERTURBED_EXACT = 2  # in float64
CLEAR = 0.5  # of what is allowed: no perturbed copies are asked


class Trial:
    """Judges the candidate of a baseline by what the original computes.

    Its errors may be `margin` times the usual ones.
    """

    def __init__(self, base: Baseline, margin: float = 1.0):
        self.base, self.margin = base, margin
        self._witness_asked = False
        self._tails: list[tuple[Row, Sight]] = []  # that were left to the comparison in float64
        self._compared: set[int] = set()  # rows that were compared there, by identity

    def judge(self) -> list[Sight]:
        """Every output on every input.  Raises WorkerError where the candidate does not run."""
        rows = [row for row in self.base.rows if row.results]
        sights: list[list[Sight]] = []
        left: dict[int, list[Any]] = {}  # rows where perturbed copies may decide, with the results
        with self.base.tried(self.base.candidate) as worker:
            for number, row in enumerate(rows):
                self.base.stage("result, input", number + 1, len(rows))
                results = run(worker, row.feed.arrays)
                if len(results) != len(self.base.names):
                    raise WorkerError(f"it has {len(results)} outputs, not {len(self.base.names)}")
                sights.append(self._judged(row, row.results, results))
                if not _clear(sights[-1]):
                    left[number] = results
        self.base.run_perturbed(rows[number] for number in left)
        for number, results in left.items():
            sights[number] = self._judged(rows[number], rows[number].results, results, settled=True)
        exact = self._judge_exact()
        left_over = [sight for row, sight in self._tails if id(row) not in self._compared]
        return [sight for several in sights for sight in several] + exact + left_over

    def _judged(
        self,
        row: Row,
        originals: Sequence[Original],
        results: Sequence[Any],
        exact: bool = False,
        settled: bool = False,
    ) -> list[Sight]:
        """`settled` where nothing more will be allowed: then a witness may speak for the candidate."""
        sights = []
        pairs = zip(self.base.names, originals, results, strict=True)
        for place, (name, original, result) in enumerate(pairs):
            if name not in self.base.random:
                finding = original.judge(result, self.margin)
                if not finding.passed and exact and not row.feed.plausible:
                    finding = self._beside_tails(row, place, original, result, finding)
                if not finding.passed and settled:
                    finding = self._second(row, place, original, result, finding)
            elif _kind(result) == _kind(original.own) or exact:
                reason = "" if exact or row is not self.base.rows[0] else self._distributed(name, result)
                finding = Finding(not reason, reason=reason)
            else:
                finding = Finding(False, reason=f"is {_kind(result)}, not {_kind(original.own)}")
            sights.append(Sight(name, row.feed, exact, finding))
        return sights

    def _distributed(self, name: str, result: Any) -> str:
        return difference(*self.base.random[name], result)

    def _beside_tails(self, row: Row, place: int, original: Original, result: Any, first: Finding) -> Finding:
        """The finding in float64 without a function's tails: 1e8 at one pixel and a rounded weight move what
        a sigmoid is of by tens, from 1e-14 to 1e-10.  On plausible inputs tails are compared, too."""
        if not row.results:  # the runtime does not run on them
            return first
        tails = row.results[place].negligible(result)
        if not tails.any():
            return first
        rest = original.judge(np.where(tails, original.reference, result).astype(result.dtype), self.margin)
        return rest if rest.passed else first

    def _second(self, row: Row, place: int, original: Original, result: Any, first: Finding) -> Finding:
        """The finding once more: without tails, or with the runtime on the candidate as it is written."""
        tails = original.negligible(result)
        if row.truth is not None and tails.any():  # in float64 they are compared, too
            mended = np.where(tails, original.reference, result).astype(result.dtype)
            rest = original.judge(mended, self.margin)
            if rest.passed:
                words = "less than some roundings of its largest element on plausible inputs"
                name = self.base.names[place]
                self.base.note(f"output {name} differs in tails of a function, by {words}")
                self._tails.append((row, Sight(name, row.feed, False, first)))
                return rest
        if original.miscomputed is None and self._witness_asked:
            return first
        self._witness_asked = True
        outputs = self.base.witnessed("result", self.base.candidate, row)
        if outputs is None or len(outputs) != len(self.base.names):
            return first
        right = original.judge(outputs[place], self.margin)
        if not right.passed:
            return first
        said = f"without graph optimizations {self.base.witness.name} computes the result right"
        if original.miscomputed is not None and _kind(result) == _kind(original.own):
            mixed = original.judge(np.where(original.miscomputed, outputs[place], result), self.margin)
            if mixed.passed:  # wrong only where the original is
                fault = f"{self.base.backend} computes the result wrong where it does the original; {said}"
                self.base.faults += [fault] if fault not in self.base.faults else []
                return mixed
        return replace(first, reason=f"{first.reason}; {said}")

    def _judge_exact(self) -> list[Sight]:
        """Both models by the reference.  Perturbed copies run only for the inputs where they may decide."""
        done: list[Sight] = []
        open_rows: list[tuple[Row, list[Original], list[Any]]] = []  # what is expected, and what came
        rows = [row for row in self.base.rows if row.truth is not None]
        self.base.reference.ahead(self.base.candidate.build, [(row.feed.arrays, row.shapes) for row in rows])
        for number, row in enumerate(rows, 1):
            self.base.stage("result in float64, input", number, len(rows))
            try:
                outputs = self.base.reference.run(self.base.candidate.build, row.feed.arrays, row.shapes)
            except TensaurusError as error:
                if row.feed.unreal:
                    self.base.note(f"not compared on {row.feed.kind} inputs: {error}")
                    continue
                self.base.note(f"not compared in float64: {error}")
                break
            self._compared.add(id(row))
            sights = self._judged(row, self._expected(row), outputs, exact=True)
            if _clear(sights):
                done += sights
            else:
                open_rows.append((row, [], outputs))
        self.base.run_perturbed(row for row, _, _ in open_rows if row.feed.kind not in FINE)
        self.base.run_neighbours(row for row, _, _ in open_rows)
        open_rows = [(row, self._expected(row), outputs) for row, _, outputs in open_rows]
        for count in range(1 + (0 if self.base.original.large else PERTURBED_EXACT)):
            left = []
            for number, (row, originals, outputs) in enumerate(open_rows, 1):
                if count:
                    words = f"{('first', 'second')[count - 1]} model one rounding away in float64, input"
                    self.base.stage(words, number, len(open_rows))
                    self._move(row, originals, self.base.seed * 1_000_003 + PERTURBED + count - 1)
                sights = self._judged(row, originals, outputs, exact=True)
                if all(sight.finding.passed for sight in sights):
                    done += sights
                else:
                    left.append((row, originals, outputs))
            open_rows = left
        for row, originals, outputs in open_rows:
            done += self._judged(row, originals, outputs, exact=True)
        return done

    def _expected(self, row: Row) -> list[Original]:
        """What the candidate is compared with in float64.

        For most kinds of inputs the distances that the runtime's perturbed copies keep are measure enough.
        """
        outputs = self.base.original.proto.graph.output
        kinds = [unit_of(output.type.tensor_type.elem_type) for output in outputs]
        endless = row.feed.unreal and not row.feed.kind.startswith("nan")
        originals = [Original(e, e, unit, endless) for e, unit in zip(row.truth or [], kinds, strict=True)]
        if row.feed.kind not in FINE:
            for expected, own in zip(originals, row.results, strict=False):
                if expected.error is not None and own.spread is not None:
                    expected.error = np.maximum(expected.error, own.spread)
        for outputs in row.neighbours or ():
            for expected, output in zip(originals, outputs, strict=True):
                expected.lean(output)
        return originals

    def _move(self, row: Row, originals: Sequence[Original], seed: int) -> None:
        """One more perturbed copy of the original in float64."""
        try:
            results = self.base.reference.run(self.base.perturbed(seed), row.feed.beside(seed), row.shapes)
        except TensaurusError as error:
            self.base.note(f"not compared with a perturbed copy in float64: {error}")
            return
        for original, result in zip(originals, results, strict=True):
            original.add(result)


def _clear(sights: Sequence[Sight]) -> bool:
    """Whether they pass, and by far: what perturbed copies would allow beside does not matter."""
    return all(sight.finding.passed and sight.finding.worst <= CLEAR for sight in sights)


def _kind(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
