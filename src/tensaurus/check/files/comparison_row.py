"""Holds one input of a comparison with the outputs that the original computes from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensaurus.check.files.judge import OriginalOutput
from tensaurus.check.inputs.draw_inputs import Feed

__all__ = ["PRECISE_KINDS", "ComparisonRow"]

# Kinds of inputs on which errors in float64 are compared with those of perturbed copies in float64; on other
# kinds with those of perturbed copies in float32, which allow more.
PRECISE_KINDS = frozenset({"random", "blocks"})


@dataclass
class ComparisonRow:
    """One feed with the original's outputs.

    shapes             sizes that are fixed where the reference reads the model
    results            outputs on the runtime; empty where the feed holds infinities or NaN
    reference_outputs  outputs in float64; None where there is no reference
    is_perturbed       whether perturbed copies of the original have run on this feed
    tie_neighbours     outputs of the reference beyond ties (module `tie_neighbours`); None: not computed yet
    """

    feed: Feed
    shapes: Mapping[str, Sequence[int]]
    results: list[OriginalOutput]
    reference_outputs: list[Any] | None
    is_perturbed: bool = False
    tie_neighbours: list[list[Any]] | None = None
