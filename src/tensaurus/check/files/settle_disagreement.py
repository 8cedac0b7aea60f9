"""Decides whether the runtime or the float64 reference is right where rounding cannot explain the difference.

`run_original` calls `settle_disagreements` once the original has run on all inputs; it changes what
candidates are compared with, in the outputs of the baseline's rows.

First case: the model rounds on purpose (`rounded_meaning`), and the runtime is right.  Otherwise the model
runs once more without the runtime's graph optimizations (`implausible_errors`).  If that result agrees with
the reference, the runtime is wrong.  If it does not, nobody can tell which is wrong, and a candidate must
agree with both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from tensaurus.check.files.baseline import Baseline
from tensaurus.check.files.comparison_row import ComparisonRow
from tensaurus.check.files.implausible_errors import compare_with_unfused, find_implausible
from tensaurus.check.files.judge import OriginalOutput
from tensaurus.check.files.output_bounds import largest_magnitude
from tensaurus.check.files.rounded_meaning import adopt_unfused_results, far_from_exact
from tensaurus.system.errors import TensaurusError

__all__ = ["settle_disagreements"]


class _Error(NamedTuple):
    """An error of an output, relative to its largest element, and the kind of inputs that show it."""

    size: float = 0.0
    kind: str = ""


def settle_disagreements(base: Baseline) -> None:
    """Choose the reference of every output on every input, and report where the runtime is wrong.

    First store in each output how large it is on plausible inputs (`Feed.is_plausible`), and can be at all.
    An *implausible* output is another matter: its error is larger than rounding explains.
    """
    scales = [
        max((row.results[n].largest for row in base.rows if row.feed.is_plausible), default=0.0)
        for n in range(len(base.names))
    ]
    # the largest magnitude that the operators before an output allow: 1 after a Sigmoid, 0 for not known
    upper_bounds = [largest_magnitude(base.original.proto.graph, name) for name in base.names]
    for row in base.rows:
        for original, scale, upper_bound in zip(row.results, scales, upper_bounds, strict=False):
            original.scale, original.possible_largest = scale, upper_bound
    _settle_rounding(base)
    _settle_implausible(base)


def _settle_rounding(base: Baseline) -> None:
    """Make the original's own results the reference of outputs whose meaning is rounding."""
    rows: list[tuple[ComparisonRow, list[int]]] = []  # with the indices of outputs far from the exact result
    for row in base.rows:
        plausible = row.feed.is_plausible
        indices = [
            index
            for index, output in enumerate(row.results)
            if _is_of_numbers(output) and far_from_exact(output, output.own, base.digits, plausible).any()
        ]
        if indices and row.reference_outputs is not None:
            rows.append((row, indices))
    base.run_perturbed(row for row, _ in rows)  # stores in the outputs how far rounding moves them
    worst: defaultdict[str, _Error] = defaultdict(_Error)  # by name of an output
    wanted = [(row.feed.arrays, row.shapes) for row, _ in rows]
    base.reference.plan_runs(base.original.build, wanted, rounded=True)
    for row, indices in rows:
        unfused = base.run_unfused("original", base.original, row)
        rounded = _run_rounded_reference(base, row)
        if unfused is None or rounded is None:
            continue
        for index in indices:
            if (name := base.names[index]) not in base.random_outputs:
                size = adopt_unfused_results(
                    row.results[index], unfused[index], rounded[index], base.digits, row.feed.is_plausible
                )
                worst[name] = max(worst[name], _Error(size, row.feed.kind))
    for name, (size, kind) in worst.items():
        if size:
            what = f"rounding makes {size:.2g} of the largest element of output {name} on {kind} inputs"
            base.note(f"{what}, so it is part of the model: the original's own results are the reference")


def _settle_implausible(base: Baseline) -> None:
    """Settle by an unfused run which is wrong where an error is implausible, and report how large it is.

    `compare_with_unfused` changes the output: what candidates are compared with, and their allowed errors.
    """
    runtime_wrong: defaultdict[str, _Error] = defaultdict(_Error)  # by name of an output
    undecided: defaultdict[str, _Error] = defaultdict(_Error)
    base.run_perturbed(row for row in base.rows if _implausible_outputs(row))
    wanted = [(row.feed.arrays, row.shapes) for row in base.rows if _implausible_outputs(row)]
    base.reference.plan_runs(base.original.build, wanted, rounded=True)
    for row in base.rows:
        if not _implausible_outputs(row):
            continue
        # the reference with rounded operators may explain the error, which then is no longer implausible
        for original, output in zip(row.results, _run_rounded_reference(base, row) or (), strict=False):
            original.add_rounded(output)
        if not (still_implausible := _implausible_outputs(row)):
            continue
        outputs = base.run_unfused("original", base.original, row)
        for index in still_implausible:
            if (name := base.names[index]) not in base.random_outputs:
                unfused = None if outputs is None else outputs[index]
                errors = compare_with_unfused(row.results[index], unfused)
                kind = row.feed.kind
                runtime_wrong[name] = max(runtime_wrong[name], _Error(errors.runtime_wrong, kind))
                undecided[name] = max(undecided[name], _Error(errors.undecided, kind))
    plainly = f"{base.unfused_runner.name} without graph optimizations"
    for name, (size, kind) in runtime_wrong.items():
        if size:
            what = f"{base.options.backend} computes output {name} of the original wrong"
            how = f"by {size:.2g} of its largest element on {kind} inputs"
            base.faults.append(f"{what}, {how}: {plainly} agrees with the float64 reference")
    for name, (size, kind) in undecided.items():
        if size:
            what = f"output {name} of the original is {size:.2g} of its largest element off the float64"
            more = "one of them is wrong, so the result must agree with both"
            how = f"{plainly} does not agree with the reference either: {more}"
            base.faults.append(f"{what} reference on {kind} inputs, and {how}")


def _implausible_outputs(row: ComparisonRow) -> list[int]:
    """Return the indices of outputs whose error no rounding explains."""
    outputs = enumerate(row.results)
    return [index for index, output in outputs if _is_of_numbers(output) and find_implausible(output).any()]


def _is_of_numbers(output: OriginalOutput) -> bool:
    return isinstance(output.own, np.ndarray) and output.own.dtype.kind not in "OSU"


def _run_rounded_reference(base: Baseline, row: ComparisonRow) -> Sequence[Any] | None:
    """Run the reference with every operator's result rounded to its type; None where this fails."""
    with suppress(TensaurusError):
        return base.reference.run(base.original.build, row.feed.arrays, row.shapes, rounded=True)
    return None
