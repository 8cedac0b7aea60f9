"""Holds one input of a comparison with the outputs that the original computes from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensaurus.check.files.judge import OriginalOutput
from tensaurus.check.inputs.feed import Feed

__all__ = ["PRECISE_KINDS", "ComparisonRow"]

# Kinds of inputs (`feed.KINDS`) on which the comparison in float64 is strict: only perturbed copies
# that run in float64, too, widen the allowed error.  On extreme inputs one rounding may move single elements
# far, which two copies in float64 may miss: there the distances of the copies on the runtime count as well.
PRECISE_KINDS = frozenset({"random", "blocks"})


@dataclass(eq=False)
class ComparisonRow:
    """One feed (a set of inputs) with the original's outputs.

    shapes             sizes of inputs, by name, that the reference fixes when it loads the model
    results            outputs on the runtime; empty where the feed holds infinities or NaN
    reference_outputs  outputs in float64; None where there is no reference
    copies_run         how many perturbed copies of the original have run on this feed
    tie_neighbours     outputs of the reference on the other sides of ties (`tie_neighbours`); None: not yet
                       computed
    """

    feed: Feed
    shapes: Mapping[str, Sequence[int]]
    results: list[OriginalOutput]
    reference_outputs: list[Any] | None
    copies_run: int = 0
    tie_neighbours: list[list[Any]] | None = None
