"""Holds a feed (one set of inputs), the kinds of feeds, and the values from which feeds are drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tensaurus.check.inputs.integer_uses import IntegerUses
from tensaurus.check.inputs.model_constants import ModelConstants
from tensaurus.check.inputs.perturbation import perturb_feed
from tensaurus.runtimes.backends import Array

__all__ = ["GIVEN", "KINDS", "NONFINITE", "Feed", "InputValues"]

KINDS = (
    *("random", "blocks", "negative", "zeros", "constant", "large", "tiny", "magnitudes"),
    *("edges", "nan", "infinite"),
)
"""What the values of a feed are like ("edges": near the models' constants); docs/equivalence.md says why."""
GIVEN = "given"  # the kind of inputs that the caller gives
PLAUSIBLE = frozenset({"random", "blocks", "negative", GIVEN})
NONFINITE = frozenset({"nan", "infinite"})  # ONNX does not specify what a runtime's kernels compute of these


@dataclass(frozen=True)
class Feed:
    """One set of inputs of one of the KINDS; the `pinned` inputs (`near_ties`) are never perturbed."""

    kind: str
    arrays: Mapping[str, Array]
    pinned: frozenset[str] = frozenset()

    @property
    def is_plausible(self) -> bool:
        return self.kind in PLAUSIBLE

    @property
    def is_nonfinite(self) -> bool:
        """Whether some elements are infinite or NaN."""
        return self.kind.split()[0] in NONFINITE

    def perturb(self, seed: int) -> dict[str, Array]:
        """Return inputs for a perturbed copy; inputs that stand on thresholds are not moved."""
        moving = {} if self.is_edge else {n: a for n, a in self.arrays.items() if n not in self.pinned}
        return {**self.arrays, **perturb_feed(moving, seed)}

    @property
    def is_edge(self) -> bool:
        """Whether the elements are thresholds of the models, or next to them."""
        return self.kind.split()[0] == "edges"


@dataclass(frozen=True)
class InputValues:
    """Says which values inputs may have.

    ranges     of integer inputs, as the caller gave them, both ends included
    uses       how the model uses the other integer inputs; inputs of unknown use are 0 or 1
    constants  of the models that are compared
    rows       rows in which large tables of the models differ: indices drawn from them show the difference
    """

    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    uses: IntegerUses = IntegerUses()
    constants: ModelConstants = ModelConstants()
    rows: tuple[int, ...] = ()

    def only_zero_or_one(self, names: Iterable[str]) -> list[str]:
        """Return the integer inputs among `names` that are drawn from 0 and 1 alone."""
        uses = self.uses
        known = {*self.ranges, *uses.index_limits, *uses.unrestricted, *uses.loop_counts}
        return [n for n in names if n not in known]
