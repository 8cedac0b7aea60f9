"""One input of a comparison, with what the original computes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensaurus.check.files.judge import Original
from tensaurus.check.inputs.draw_inputs import Feed

__all__ = ["FINE", "Row"]

FINE = frozenset({"random", "blocks"})  # inputs on which float64 has a measure of its own


@dataclass
class Row:
    """One feed: the original's outputs on the runtime (none where it is no numbers), and in float64 (None
    where there is no reference, which reads the model with these `shapes`)."""

    feed: Feed
    shapes: Mapping[str, Sequence[int]]
    results: list[Original]
    truth: list[Any] | None
    perturbed: bool = False  # whether perturbed copies have run on it
    neighbours: list[list[Any]] | None = None  # the reference's, see `neighbours`; None: not asked for
