"""Decides whether the runtime or the float64 reference is right where rounding cannot explain the difference.

`Baseline` calls `settle_disagreements` once the original has run on all inputs; it changes what candidates
are compared with, in the outputs of the baseline's rows.

First case: the model rounds on purpose (`rounded_meaning`), and the runtime is right.  Otherwise the model
runs once more without the runtime's graph optimizations (unfused).  If that result agrees with the reference,
the runtime is wrong.  If it does not, nobody can tell which is wrong, and a candidate must agree with both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from tensaurus.check.files.compared_model import ComparedModel
from tensaurus.check.files.comparison_row import ComparisonRow
from tensaurus.check.files.judge import OriginalOutput
from tensaurus.check.files.output_bounds import largest_magnitude
from tensaurus.check.files.reference import Reference
from tensaurus.check.files.rounded_meaning import adopt_unfused_results, far_from_exact
from tensaurus.check.files.unfused_run import UnfusedRunner
from tensaurus.system.errors import TensaurusError

__all__ = ["BaselineView", "settle_disagreements"]


class BaselineView(Protocol):
    """The part of `Baseline` that this module uses."""

    original: ComparedModel
    names: list[str]
    rows: list[ComparisonRow]
    random: dict[str, tuple[Any, Any]]  # outputs that differ between two equal runs: nothing is settled
    faults: list[str]
    backend: str
    unfused_runner: UnfusedRunner
    reference: Reference

    @property
    def digits(self) -> int: ...
    def run_perturbed(self, rows: Iterable[ComparisonRow]) -> None: ...
    def run_unfused(self, whose: str, model: ComparedModel, row: ComparisonRow) -> list[Any] | None: ...
    def note(self, text: str) -> None: ...


def settle_disagreements(comparison: BaselineView) -> None:
    """Choose the reference of every output on every input, and report where the runtime is wrong.

    First store in each output how large it is on plausible inputs (`Feed.is_plausible`), and can be at all.
    An *implausible* output is another matter: its error is larger than rounding explains.
    """
    scales = [
        max((row.results[n].largest for row in comparison.rows if row.feed.is_plausible), default=0.0)
        for n in range(len(comparison.names))
    ]
    # the largest magnitude that the operators before an output allow: 1 after a Sigmoid, 0 for not known
    upper_bounds = [largest_magnitude(comparison.original.proto.graph, name) for name in comparison.names]
    for row in comparison.rows:
        for original, scale, upper_bound in zip(row.results, scales, upper_bounds, strict=False):
            original.scale, original.possible_largest = scale, upper_bound
    _settle_rounding(comparison)
    _settle_wrong(comparison)


def _settle_rounding(comparison: BaselineView) -> None:
    """Make the original's own results the reference of outputs whose meaning is rounding."""
    worst_rounding: dict[str, tuple[float, str]] = {}  # by output: (share of the largest element, kind)
    rows: list[tuple[ComparisonRow, list[int]]] = []  # with the indices of outputs far from the exact result
    for row in comparison.rows:
        plausible = row.feed.is_plausible
        indices = _outputs_where(
            row, lambda o, plausible=plausible: far_from_exact(o, o.own, comparison.digits, plausible)
        )
        if indices and row.reference_outputs is not None:
            rows.append((row, indices))
    comparison.run_perturbed(row for row, _ in rows)  # stores in the outputs how far rounding moves them
    for row, indices in rows:
        unfused = comparison.run_unfused("original", comparison.original, row)
        rounded = _run_rounded_reference(comparison, row)
        if unfused is None or rounded is None:
            continue
        for index in indices:
            if (name := comparison.names[index]) not in comparison.random:
                plausible = row.feed.is_plausible
                size = adopt_unfused_results(
                    row.results[index], unfused[index], rounded[index], comparison.digits, plausible
                )
                worst_rounding[name] = max(worst_rounding.get(name, (0.0, "")), (size, row.feed.kind))
    for name, (size, kind) in worst_rounding.items():
        if size:
            what = f"rounding makes {size:.2g} of the largest element of output {name} on {kind} inputs"
            comparison.note(
                f"{what}, so it is part of the model: the original's own results are the reference"
            )


def _settle_wrong(comparison: BaselineView) -> None:
    """Settle by an unfused run which is wrong where an error is implausible, and report how large it is.

    `OriginalOutput.compare_with_unfused` changes the output: what candidates are compared with, and how much
    they may differ.
    """
    # the largest error by output, relative to its largest element, with the kind of inputs that shows it
    wrong: dict[str, tuple[float, str]] = {}  # where the runtime is wrong
    doubtful: dict[str, tuple[float, str]] = {}  # where the runtime or the reference is wrong
    comparison.run_perturbed(row for row in comparison.rows if _implausible_outputs(row))
    for row in comparison.rows:
        if not _implausible_outputs(row):
            continue
        # the reference with rounded operators may explain the error, which then is no longer implausible
        for original, output in zip(row.results, _run_rounded_reference(comparison, row) or (), strict=False):
            original.add_rounded(output)
        if not (still_implausible := _implausible_outputs(row)):
            continue
        outputs = comparison.run_unfused("original", comparison.original, row)
        for index in still_implausible:
            if (name := comparison.names[index]) in comparison.random:
                continue
            unfused = None if outputs is None else outputs[index]
            for worst, size in zip(
                (wrong, doubtful), row.results[index].compare_with_unfused(unfused), strict=True
            ):
                worst[name] = max(worst.get(name, (0.0, "")), (size, row.feed.kind))
    plainly = f"{comparison.unfused_runner.name} without graph optimizations"
    for name, (size, kind) in wrong.items():
        if size:
            what = f"{comparison.backend} computes output {name} of the original wrong, by {size:.2g} of its"
            how = f"{plainly} agrees with the float64 reference"
            comparison.faults.append(f"{what} largest element on {kind} inputs: {how}")
    for name, (size, kind) in doubtful.items():
        if size:
            what = f"output {name} of the original is {size:.2g} of its largest element off the float64"
            more = "one of them is wrong, so the result must agree with both"
            how = f"{plainly} does not agree with the reference either: {more}"
            comparison.faults.append(f"{what} reference on {kind} inputs, and {how}")


def _implausible_outputs(row: ComparisonRow) -> list[int]:
    """Return the indices of outputs whose error no rounding explains."""
    return _outputs_where(row, lambda original: original.implausible)


def _outputs_where(row: ComparisonRow, differs: Any) -> list[int]:
    """Return the indices of outputs, arrays of numbers, for which `differs` holds at some element."""
    return [n for n, o in enumerate(row.results) if _is_array(o) and differs(o).any()]


def _is_array(original: OriginalOutput) -> bool:
    return isinstance(original.own, np.ndarray) and original.own.dtype.kind not in "OSU"


def _run_rounded_reference(comparison: BaselineView, row: ComparisonRow) -> Sequence[Any] | None:
    """Run the reference with every operator's result rounded to its type; None where this fails."""
    with suppress(TensaurusError):
        return comparison.reference.run(comparison.original.build, row.feed.arrays, row.shapes, rounded=True)
    return None
