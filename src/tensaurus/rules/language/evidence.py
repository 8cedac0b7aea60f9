"""Evidence: why an equality is right.  Rule files write it as `kind(by, detail)`.

    proved(algebra, all sizes, ranks 0-5)        tested(gf, 40 instances, 2 trials, error < 2^-58)

Every rule and every equation carries its evidence, so that a result can say what its correctness rests on.
`is_exact` tells whether the evidence holds in every field: such an equation can be replayed in GF(p).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

from tensaurus.graph.ir.node import Node

__all__ = [
    *("Unproved", "Axiom", "Bounded", "Derived", "Disproved", "Evidence", "Lemma", "Proved", "Tested"),
    "Widened",
    "parse_evidence",
]


@dataclass(frozen=True)
class Axiom:
    """An equality that is taken for granted; `by` says in words why, such as "symmetry"."""

    kind: ClassVar[str] = "axiom"
    is_exact: ClassVar[bool] = False  # an axiom claims nothing about fields other than the reals
    by: str = ""

    def __str__(self) -> str:
        return _format_evidence(self.kind, self.by)


@dataclass(frozen=True)
class Proved:
    """An equality that is proved for everything that `covers` names.

    by      "algebra" (canonical forms of both sides) or "z3" (uses the order of the reals)
    covers  the sizes and ranks of the proof, and what was only sampled in spite of the proof
    """

    kind: ClassVar[str] = "proved"
    by: str
    covers: str

    @property
    def is_exact(self) -> bool:
        """Whether the equality holds in every field: only the reals have the order that Z3 uses."""
        return self.by == "algebra"

    def __str__(self) -> str:
        return _format_evidence(self.kind, self.by, self.covers)


@dataclass(frozen=True)
class Tested:
    """An equality that was compared on instances.

    field     "gf" (GF(2^31-1)), "z3" (all reals, at these instances), "float64"
    coverage  how many instances there were, and what was varied among them
    trials    number of trials of each instance
    bits      a wrong equality passes with a probability below 2^-bits; 0 where no bound is known
    sampled   whether the bound is for the drawn integers and booleans only
    """

    kind: ClassVar[str] = "tested"
    field: str
    coverage: str
    trials: int = 0
    bits: int = 0
    sampled: bool = False

    @property
    def by(self) -> str:
        """The field, under the name that all evidence shares."""
        return self.field

    @property
    def is_exact(self) -> bool:
        """Whether the equality holds in every field."""
        return self.field == "gf"

    def __str__(self) -> str:
        bound = f"error < 2^-{self.bits}{SAMPLED if self.sampled else ''}" if self.bits else "no error bound"
        trials = f"{self.trials} trials, {bound}"
        return _format_evidence(self.kind, self.field, self.coverage, trials if self.trials else "")


@dataclass(frozen=True)
class Bounded:
    """The two sides differ by less than the rounding of floats.

    by          the method that bounds the difference
    reach       largest magnitude of values at run time for which the bound holds
    distance    largest change of an output; 0 if every sum that is changed rounds the change away
    is_in_body  whether the sides are outputs of a body (of an If, Loop or Scan), which must not change at all
    """

    kind: ClassVar[str] = "bounded"
    is_exact: ClassVar[bool] = False  # the sides differ in every field
    by: str
    reach: float
    distance: float
    is_in_body: bool = False

    def __str__(self) -> str:
        moved = f"outputs move by {self.distance:.1g} at most" if self.distance else "all is rounded away"
        return _format_evidence(self.kind, self.by, f"{moved} while no value exceeds {self.reach:.1g}")


@dataclass(frozen=True)
class Widened:
    """The two sides are one expression over the reals, which the right side computes in a wider type.

    narrow, wide  the float types, such as "float16"; `wide` has every number of each that `narrow` names
    """

    kind: ClassVar[str] = "widened"
    is_exact: ClassVar[bool] = False  # a field of exact numbers takes a rounding for an unknown function
    narrow: str
    wide: str

    @property
    def by(self) -> str:
        """What is compared: the expressions without conversions between float types."""
        return "types"

    def __str__(self) -> str:
        detail = f"the same expression, rounded to {self.narrow} at the end instead of at every step"
        return _format_evidence(self.kind, self.by, detail)


class Lemma(Protocol):
    """One of the equalities that a derived equality follows from: an `equation.Equation`."""

    @property
    def name(self) -> str: ...

    @property
    def left(self) -> tuple[Node, ...]: ...

    @property
    def right(self) -> tuple[Node, ...]: ...

    @property
    def evidence(self) -> Evidence: ...


@dataclass(frozen=True)
class Derived:
    """An equality that follows from others by congruence, in this order."""

    kind: ClassVar[str] = "derived"
    steps: tuple[Lemma, ...]

    @property
    def by(self) -> str:
        """The names of the steps, each once."""
        return ", ".join(dict.fromkeys(step.name for step in self.steps))

    @property
    def is_exact(self) -> bool:
        """Whether all steps hold in every field."""
        return all(step.evidence.is_exact for step in self.steps)

    def __str__(self) -> str:
        return _format_evidence(self.kind, self.by)


@dataclass(frozen=True)
class _WithoutProof:
    """Evidence of a rule that no proof or test supports."""

    kind: ClassVar[str]
    is_exact: ClassVar[bool] = False
    by: str

    def __str__(self) -> str:
        return _format_evidence(self.kind, self.by)


class Unproved(_WithoutProof):
    """A rule that is neither proved nor refuted, and that the user allowed."""

    kind = "unproved"


class Disproved(_WithoutProof):
    """A rule with the tag `off`; `by` says where its sides differ."""

    kind = "refuted"


Evidence: TypeAlias = Axiom | Proved | Tested | Bounded | Widened | Derived | Unproved | Disproved

_TRIALS = re.compile(
    r"(?:(?P<coverage>.*), )?(?P<trials>\d+) trials, "
    r"(?:error < 2\^-(?P<bits>\d+)(?P<sampled> .*)?|no error bound)$"
)
SAMPLED = " for the integers drawn"  # the part of a tested evidence that stands for `sampled`


def parse_evidence(text: str) -> Axiom | Proved | Tested | Unproved | Disproved:
    """Parse the evidence of a rule file; raises ValueError where the text is no evidence."""
    kind, _, inside = text.removesuffix(")").partition("(")
    by, _, detail = inside.partition(", ")
    if kind == "axiom":
        return Axiom(inside)
    if kind == "unproved":
        return Unproved(inside)
    if kind == "refuted":
        return Disproved(inside)
    if kind == "proved":
        return Proved(by, detail)
    if kind == "tested":
        trials = _TRIALS.match(detail)
        if trials is None:
            return Tested(by, detail)
        coverage, bits = trials["coverage"] or "", int(trials["bits"] or 0)
        return Tested(by, coverage, int(trials["trials"]), bits, trials["sampled"] == SAMPLED)
    raise ValueError(f"no evidence: {text}")


def _format_evidence(kind: str, *parts: str) -> str:
    return f"{kind}({', '.join(filter(None, parts))})"
