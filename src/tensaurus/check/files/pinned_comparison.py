"""A comparison repeated with pinned scores, where near ties may be all that two models differ by."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tensaurus.check.files.baseline import Baseline, run
from tensaurus.check.files.candidate_trial import Trial
from tensaurus.check.files.compared_model import Model
from tensaurus.check.files.judge import Original, Sight
from tensaurus.check.files.near_ties import Pinned, pin
from tensaurus.check.inputs.draw_inputs import Feed
from tensaurus.graph.onnx.build import Build
from tensaurus.system.errors import TensaurusError
from tensaurus.system.scratch import temporary

__all__ = ["beside_near_ties"]

ASTRAY = 2.0**-8  # of an output's largest element: where the original itself is so far off, ties were met


def beside_near_ties(base: Baseline, sights: list[Sight], margin: float) -> list[Sight]:
    """Return the sights, those of outputs behind an order of scores with these scores pinned.

    They stay as they are where nothing is ordered, or where no order may have made a difference: every output
    passes, and the original itself keeps to its reference.
    """
    large = base.original.large or base.candidate.large
    pair = None if large else pin(base.original.proto, base.candidate.proto)
    if pair is None or not pair.behind:
        return sights
    wrong = {sight.output for sight in sights if not sight.finding.passed}
    if wrong - pair.behind or not (wrong or _is_astray(base, pair)):
        return sights
    try:
        with temporary() as folder, _pinned_baseline(base, pair, folder) as pinned:
            found = Trial(pinned, margin).judge()
    except TensaurusError as error:  # a WorkerError is one
        base.note(f"near ties were not looked at, as models with pinned scores do not run: {error}")
        return sights
    names = " and ".join(pair.operators)
    base.note(
        f"scores that {names} puts in order differ by less than rounding here and there: they are compared,"
        f" and {', '.join(sorted(pair.behind))} with the same scores in both models"
    )
    for note in pinned.notes:
        base.note(note)
    base.faults = [f for f in base.faults if not any(f"output {name} " in f for name in pair.behind)]
    base.faults += [fault for fault in pinned.faults if fault not in base.faults]
    return [sight for sight in sights if sight.output not in pair.behind or sight.feed.unreal] + found


def _is_astray(base: Baseline, pair: Pinned) -> bool:
    """Return whether near ties lead the original, or a perturbed copy, away from the reference."""
    for row in base.rows:
        for name, output in zip(base.names, row.results, strict=False):
            if name in pair.behind and name not in base.random and _strays(output):
                return True
    return False


def _strays(output: Original) -> bool:
    if output.error is not None:
        return bool(output.error.size) and float(output.error.max()) > ASTRAY * output.largest
    return any(np.shape(n) == np.shape(output.own) and bool(np.any(n != output.own)) for n in output.seen)


def _pinned_baseline(base: Baseline, pair: Pinned, place: Path) -> Baseline:
    """Return the pinned original on the inputs of a baseline, with the scores that it has there."""
    original = Model.read(Build.of(pair.original, place, base.original.build.libraries), {}, place)
    candidate = Model.read(Build.of(pair.candidate, place, base.candidate.build.libraries), {}, place)
    scores = Build.of(pair.scores, place, base.original.build.libraries)
    feeds = []
    with base.tried(Model.read(scores, {}, place)) as worker:
        for row in base.rows:
            if not row.results:  # what is no number has no order
                continue
            pins = pair.pins(run(worker, row.feed.arrays))
            feed = Feed(row.feed.kind, {**row.feed.arrays, **pins}, frozenset(pins))
            feeds.append((feed, {name: array.shape for name, array in feed.arrays.items()}))
    return Baseline(
        original,
        candidate,
        {},
        (),
        seed=base.seed,
        backend=base.backend,
        threads=base.threads,
        ranges=base.values.ranges,
        limit=base.limit,
        stage=base.stage,
        rows=feeds,
    )
