"""Repeats a comparison of two models that order scores, as TopK does, if near ties may make the difference.

`near_ties` makes pinned copies of both models: the scores become outputs, and the ordering operators read
added inputs in their place.  Both copies get the original's scores there, and so the same order; all outputs,
the scores among them, are then compared as usual.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from tensaurus.check.files.baseline import Baseline, run_inputs
from tensaurus.check.files.candidate_trial import CandidateTrial
from tensaurus.check.files.compared_model import ComparedModel
from tensaurus.check.files.judge import OriginalOutput, OutputFinding
from tensaurus.check.files.near_ties import PinnedPair, pin_scores
from tensaurus.check.files.run_original import run_original
from tensaurus.check.inputs.feed import Feed
from tensaurus.graph.onnx.build import Build
from tensaurus.system.errors import TensaurusError
from tensaurus.system.scratch import temporary_folder

__all__ = ["recheck_with_pinned_scores"]

# An error of the original beyond this share of an output's largest element shows that near ties were met.
STRAY_SHARE = 2.0**-8


def recheck_with_pinned_scores(
    base: Baseline, findings: list[OutputFinding], margin: float
) -> list[OutputFinding]:
    """Replace the findings of outputs that depend on the order of scores by findings of pinned models.

    The findings are returned unchanged where the models order no scores, or too large ones; where an output
    is wrong that depends on no order; where nothing is wrong and the original agrees with its reference; and
    where the pinned models do not run.
    """
    large = base.original.is_large or base.candidate.is_large
    pair = None if large else pin_scores(base.original.proto, base.candidate.proto)
    if pair is None or not pair.dependent_outputs:
        return findings
    wrong = {finding.output for finding in findings if not finding.finding.passed}
    if wrong - pair.dependent_outputs or not (wrong or _is_astray(base, pair)):
        return findings
    try:
        with temporary_folder() as folder, _pinned_baseline(base, pair, folder) as pinned:
            pinned_findings = CandidateTrial(pinned, margin).judge()
    except TensaurusError as error:  # a WorkerError is one
        base.note(f"near ties were not examined: the models with pinned scores do not run: {error}")
        return findings
    names = " and ".join(pair.operators)
    base.note(
        f"some scores that {names} puts in order differ by less than rounding, which leaves their order open:"
        f" the scores are compared, and {', '.join(sorted(pair.dependent_outputs))} with the same scores in"
        " both models"
    )
    for note in pinned.notes:
        base.note(note)
    # what was found wrong in these outputs may come from near ties; a fault names its output
    base.faults = [
        f for f in base.faults if not any(f"output {name} " in f for name in pair.dependent_outputs)
    ]
    base.faults += [fault for fault in pinned.faults if fault not in base.faults]
    # nothing is pinned on inputs with infinities or NaN, so that their findings stay
    return [
        finding
        for finding in findings
        if finding.output not in pair.dependent_outputs or finding.feed.is_nonfinite
    ] + pinned_findings


def _is_astray(base: Baseline, pair: PinnedPair) -> bool:
    """Return whether near ties lead the original, or a perturbed copy, away from the reference."""
    for row in base.rows:
        for name, output in zip(base.names, row.results, strict=False):
            is_compared = name in pair.dependent_outputs and name not in base.random_outputs
            if is_compared and _is_output_astray(output):
                return True
    return False


def _is_output_astray(output: OriginalOutput) -> bool:
    if output.has_floats:
        return bool(output.error.size) and float(output.error.max()) > STRAY_SHARE * output.largest
    # integers, as indices are, have no error: the reference, or a perturbed copy, has others
    return any(np.shape(n) == np.shape(output.own) and bool(np.any(n != output.own)) for n in output.accepted)


def _pinned_baseline(base: Baseline, pair: PinnedPair, folder: Path) -> Baseline:
    """Return a baseline of the pinned models, with the original's scores as added inputs."""
    first = Build.from_model(pair.original, folder, base.original.build.libraries)
    original = ComparedModel.read(first, {}, folder)
    second = Build.from_model(pair.candidate, folder, base.candidate.build.libraries)
    candidate = ComparedModel.read(second, {}, folder)
    scores = Build.from_model(pair.scores, folder, base.original.build.libraries)
    feeds = []
    with base.start_worker(ComparedModel.read(scores, {}, folder)) as worker:
        for row in base.rows:
            if row.results:  # infinities and NaN have no order
                pins = pair.pinned_inputs(run_inputs(worker, row.feed.arrays))
                feeds.append(Feed(row.feed.kind, {**row.feed.arrays, **pins}, frozenset(pins)))
    return run_original(original, candidate, replace(base.options, shapes={}, answers=None), feeds=feeds)
