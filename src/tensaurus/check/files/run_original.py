"""Runs the original on every input of a comparison: the caller's, drawn ones, and some that reach branches.

`verdict.verify` calls `run_original`, which returns a `Baseline` with a row for each input.  Where the model
leaves sizes open, they are guessed (`try_shapes`): inputs of all kinds at the first sizes at which the model
runs, and one input each at further, at small sizes, and at sizes near the models' constants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from time import monotonic
from typing import Any

from tensaurus.check.files.baseline import Baseline, ComparisonOptions
from tensaurus.check.files.compared_model import ComparedModel
from tensaurus.check.files.comparison_row import PRECISE_KINDS
from tensaurus.check.files.output_values import are_identical
from tensaurus.check.files.settle_disagreement import settle_disagreements
from tensaurus.check.inputs.draw_inputs import draw_feeds, draw_offset_feeds
from tensaurus.check.inputs.edge_values import count_untried_constants
from tensaurus.check.inputs.feed import GIVEN, Feed
from tensaurus.check.inputs.model_interface import is_integer, required_inputs
from tensaurus.check.inputs.try_shapes import (
    Shape,
    input_remedy,
    shape_assignments,
    shapes_near_constants,
    small_shapes,
)
from tensaurus.runtimes.measure.worker import WorkerError
from tensaurus.system.errors import TensaurusError

__all__ = ["run_original"]

MAX_NEAR_CONSTANTS = 36  # shapes with sizes near constants of the models that are tried, at most
NEAR_CONSTANTS_SECONDS = 10.0  # time for all of these shapes together


def run_original(
    original: ComparedModel,
    candidate: ComparedModel,
    options: ComparisonOptions,
    *,
    kinds: Sequence[str] = (),
    given: Mapping[str, Any] | None = None,
    feeds: Sequence[Feed] = (),
) -> Baseline:
    """Run the original on drawn inputs of these kinds (`feed.KINDS`) and on the caller's, `given`.

    With `feeds` (of pinned models) no other inputs are tried.  Raises TensaurusError where the original does
    not run.
    """
    base = Baseline(original, candidate, options)
    try:
        for feed in feeds:
            base.add_input(feed, _shapes_of(feed))
        if not feeds:
            _add_user_inputs(base, given or {})
            _add_drawn_inputs(base, kinds)
            _reach_branches(base)
        settle_disagreements(base)
        if not feeds:
            _note_constant_outputs(base)
            _note_untried_values(base, "edges" in kinds)
    except BaseException:
        base.close()
        raise
    return base


def _shapes_of(feed: Feed) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in feed.arrays.items()}


def _add_user_inputs(base: Baseline, arrays: Mapping[str, Any]) -> None:
    if arrays:
        feed = Feed(GIVEN, arrays)
        try:
            base.add_input(feed, _shapes_of(feed))
        except WorkerError as error:
            reason = f"the original does not run on the inputs given: {error.reason}"
            remedy = error.remedy or "Give arrays that the model accepts."
            raise TensaurusError(reason, remedy=remedy) from error


def _add_drawn_inputs(base: Baseline, kinds: Sequence[str]) -> None:
    """Add inputs of all kinds at the first sizes that run; at guessed sizes, one kind at others, too."""
    proto, fixed_shapes, seed = base.original.proto, base.options.shapes, base.options.seed
    has_user_inputs = bool(base.rows)
    first_refusal: WorkerError | None = None  # why the original refused the first shapes that it refused
    guessed: list[str] = []  # the guessed sizes at which it ran, in words
    tried: list[Mapping[str, Shape]] = []  # the shapes at which it ran
    # `words` are "" where no size is a guess; after the first shapes that run, one more guess must run
    for shapes, words in shape_assignments(proto, fixed_shapes):
        feeds = list(draw_feeds(proto, shapes, kinds, seed, base.values))
        sizes = shapes if words else fixed_shapes  # the reference must be told the guesses
        if tried:
            feeds = feeds[:1]
        else:
            base.reference.plan_runs(base.original.build, [(feed.arrays, sizes) for feed in feeds])
        row_count = len(base.rows)
        refusal = _add_feeds(base, feeds, sizes, words if tried else "")
        if refusal is not None:
            if not base.worker.is_alive and not has_user_inputs:
                raise TensaurusError(f"the original does not run: {refusal}") from refusal
            first_refusal = first_refusal or refusal  # the sizes may not fit each other
            base.restart_worker()
        elif len(base.rows) > row_count:
            guessed += [words] if words else []
            tried.append(shapes)
            if len(tried) == 2 or not words:  # two guesses are enough; known sizes are the only ones
                break
    if not tried:
        failure = f"the original does not run on generated inputs: {first_refusal}"
        if not has_user_inputs:
            raise TensaurusError(failure, remedy=input_remedy(proto, fixed_shapes))
        return base.note(failure)
    small, refused = _add_small_sizes(base, kinds[:1], tried)
    if guessed:
        base.note(f"sizes that were not given were chosen: {', then '.join([*guessed, *small])}")
    if refused:
        base.note(f"the original does not run on {', nor on '.join(refused)}")


def _add_feeds(
    base: Baseline, feeds: Sequence[Feed], sizes: Mapping[str, Sequence[int]], words: str
) -> WorkerError | None:
    """Add inputs of the same sizes; return why the original refuses the first, None where it runs on it."""
    for number, feed in enumerate(feeds, 1):
        base.options.stage("original and its float64 reference, input", number, len(feeds))
        try:
            base.add_input(feed, sizes, words)
        except WorkerError as error:
            if number == 1:
                return error
            base.note(f"the original does not run on {feed.kind} inputs: {error}")
            base.restart_worker()
    return None


def _add_small_sizes(
    base: Baseline, kinds: Sequence[str], tried: Sequence[Mapping[str, Shape]]
) -> tuple[list[str], list[str]]:
    """Add inputs of small sizes, and near constants; return where the original runs, and where not."""
    proto, fixed_shapes, seed = base.original.proto, base.options.shapes, base.options.seed
    plans = [plan for plan in small_shapes(proto, fixed_shapes, tried[0]) if plan[0] not in tried]
    ran: list[str] = []
    refused: list[str] = []
    for number, (shapes, words) in enumerate(plans, 1):
        base.options.stage("original at small sizes,", number, len(plans))
        (feed, *_) = draw_feeds(proto, shapes, kinds, seed, base.values)
        try:
            base.add_input(feed, shapes, words)
            ran.append(words)
        except WorkerError:
            refused.append(words)
            base.restart_worker()
    if count := _add_sizes_near_constants(base, kinds, tried[0]):
        ran.append(f"{count} around constants of the models")
    return ran, refused


def _add_sizes_near_constants(base: Baseline, kinds: Sequence[str], first: Mapping[str, Shape]) -> int:
    """Add inputs whose sizes are near constants of the models; return on how many the original runs."""
    proto, numbers = base.original.proto, base.values.constants.integral_numbers
    count, until = 0, monotonic() + NEAR_CONSTANTS_SECONDS
    plans = shapes_near_constants(proto, base.options.shapes, first, numbers)
    for shapes in islice(plans, MAX_NEAR_CONSTANTS):
        if monotonic() > until:
            base.note("no time was left to try all sizes near the models' constants")
            break
        (feed, *_) = draw_feeds(proto, shapes, kinds, base.options.seed, base.values)
        words = " ".join(f"{name}={','.join(map(str, shape))}" for name, shape in shapes.items())
        try:
            base.add_input(feed, shapes, words)
            count += 1
        except WorkerError:
            base.restart_worker()
    return count


def _reach_branches(base: Baseline) -> None:
    """Look for inputs that reach every branch of both models, and name those never reached."""
    for model, whose in ((base.original, "the original"), (base.candidate, "the result")):
        if not model.has_branches:
            continue
        try:
            # by branch, the branch around it
            around = base.reference.facts(model.build, base.options.shapes).branches
            missed = list(around)
            for row in list(base.rows) if missed else []:
                missed = _without_reached(base, model, row.feed, missed)
            missed = _search_branches(base, model, missed)
        except TensaurusError as error:
            base.note(f"it is not known which branches of {whose} were taken: {error}")
            continue
        # a missed branch within a missed branch is not named
        if outer := [branch for branch in missed if around[branch] not in missed]:
            base.note(f"branches of {whose} that no input took were not compared: {', '.join(outer)}")


def _search_branches(base: Baseline, model: ComparedModel, missed: list[str]) -> list[str]:
    """Add inputs that reach branches among `missed`; return the others."""
    shapes = _shapes_of(base.rows[0].feed)
    for feed in draw_offset_feeds(base.original.proto, shapes, base.options.seed, base.values):
        if not missed:
            break
        still_missed = _without_reached(base, model, feed, missed)
        if len(still_missed) < len(missed):
            try:
                base.add_input(feed, base.rows[0].shapes)
                missed = still_missed
            except WorkerError as error:
                base.note(f"the original does not run on inputs {feed.kind}: {error}")
                base.restart_worker()
    return missed


def _without_reached(base: Baseline, model: ComparedModel, feed: Feed, missed: list[str]) -> list[str]:
    """Return the branches among `missed` that these inputs do not reach either."""
    taken = base.reference.branches_taken(model.build, feed.arrays, base.options.shapes)
    return [branch for branch in missed if branch not in taken]


def _note_constant_outputs(base: Baseline) -> None:
    rows = [row for row in base.rows if row.feed.kind in PRECISE_KINDS]
    if len(rows) < 2 or not rows[0].feed.arrays:
        return
    for index, name in enumerate(base.names):
        one, other = (row.results[index].own for row in rows)
        if name not in base.random_outputs and are_identical(one, other):
            base.note(f"output {name} is the same on two random inputs: comparing it shows little")


def _note_untried_values(base: Baseline, edges: bool) -> None:
    """Note integer inputs that were only 0 and 1; with `edges`, how many constants no input was near."""
    given = {name for row in base.rows if row.feed.kind == GIVEN for name in row.feed.arrays}
    names = [v.name for v in required_inputs(base.original.proto) if is_integer(v)]
    for name in base.values.only_zero_or_one(name for name in names if name not in given):
        values = f"give it other values with --range {name}=LOW,HIGH"
        base.note(f"integer input {name} was only 0 and 1: {values}")
    shapes = _shapes_of(base.rows[0].feed)
    if edges and (count := count_untried_constants(base.original.proto, shapes, base.values)):
        base.note(f"{count} constants of the models were not tried: no input values are near them")
