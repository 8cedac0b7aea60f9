"""Why an equality is right.  As rule files write it: `kind(by, detail)`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

from tensaurus.graph.ir.node import Node

__all__ = [
    *("Allowed", "Axiom", "Bounded", "Derived", "Disproved", "Evidence", "Lemma", "Proved", "Tested"),
    "parse_evidence",
]


@dataclass(frozen=True)
class Axiom:
    """Taken for granted."""

    kind: ClassVar[str] = "axiom"
    by: str = ""

    @property
    def exact(self) -> bool:
        """Whether it holds in every field: nobody says."""
        return False

    def __str__(self) -> str:
        return _said(self.kind, self.by)


@dataclass(frozen=True)
class Proved:
    """Shown for everything that `covers` says.

    by      "algebra" (canonical forms of both sides) or "z3" (for the order of the reals)
    covers  sizes and ranks; what is a sample in spite of the proof
    """

    kind: ClassVar[str] = "proved"
    by: str
    covers: str

    @property
    def exact(self) -> bool:
        """Whether it holds in every field; the order of the reals no other has."""
        return self.by == "algebra"

    def __str__(self) -> str:
        return _said(self.kind, self.by, self.covers)


@dataclass(frozen=True)
class Tested:
    """Compared at instances.

    field     "gf" (GF(2^31-1)), "z3" (all reals, at these instances), "float64"
    coverage  the instances: how many, what was varied
    trials    of each instance
    bits      wrong with a probability below 2^-bits; 0 where there is no bound
    sampled   whether there were integers or truths, too, of which those drawn are a sample
    """

    kind: ClassVar[str] = "tested"
    field: str
    coverage: str
    trials: int = 0
    bits: int = 0
    sampled: bool = False

    @property
    def by(self) -> str:
        """As of what is proved."""
        return self.field

    @property
    def exact(self) -> bool:
        """Whether it holds in every field."""
        return self.field == "gf"

    def __str__(self) -> str:
        bound = f"error < 2^-{self.bits}{SAMPLED if self.sampled else ''}" if self.bits else "no error bound"
        trials = f"{self.trials} trials, {bound}"
        return _said(self.kind, self.field, self.coverage, trials if self.trials else "")


@dataclass(frozen=True)
class Bounded:
    """The two sides differ, by less than floats can tell.

    by        what bounds the difference
    reach     how large values at run time may be for that
    distance  how far an output is moved at most; 0: each sum that is moved rounds that away
    within    whether the sides are outputs of a body, which nothing may move
    """

    kind: ClassVar[str] = "bounded"
    by: str
    reach: float
    distance: float
    within: bool = False

    @property
    def exact(self) -> bool:
        """Whether it holds in every field: in none."""
        return False

    def __str__(self) -> str:
        moved = f"outputs move by {self.distance:.1g} at most" if self.distance else "all is rounded away"
        return _said(self.kind, self.by, f"{moved} while no value exceeds {self.reach:.1g}")


class Lemma(Protocol):
    """One equality of several that another follows from: an `equation.Equation`."""

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
    """Follows from other equalities by congruence, in this order."""

    kind: ClassVar[str] = "derived"
    steps: tuple[Lemma, ...]

    @property
    def by(self) -> str:
        """The names of the steps, each once."""
        return ", ".join(dict.fromkeys(step.name for step in self.steps))

    @property
    def exact(self) -> bool:
        """Whether it holds in every field: where all steps do."""
        return all(step.evidence.exact for step in self.steps)

    def __str__(self) -> str:
        return _said(self.kind, self.by)


@dataclass(frozen=True)
class _Unshown:
    """What nothing shows: it holds in no field that anybody knows of."""

    kind: ClassVar[str]
    by: str

    @property
    def exact(self) -> bool:
        """Whether it holds in every field: no, or nobody knows."""
        return False

    def __str__(self) -> str:
        return _said(self.kind, self.by)


class Allowed(_Unshown):
    """Neither shown nor refuted, and used because somebody allowed it."""

    kind = "unproved"


class Disproved(_Unshown):
    """Of a rule that is off: where its sides differ."""

    kind = "refuted"


Evidence: TypeAlias = Axiom | Proved | Tested | Bounded | Derived | Allowed | Disproved

_TRIALS = re.compile(
    r"(?:(?P<coverage>.*), )?(?P<trials>\d+) trials, "
    r"(?:error < 2\^-(?P<bits>\d+)(?P<sampled> .*)?|no error bound)$"
)
SAMPLED = " for the integers drawn"


def parse_evidence(text: str) -> Axiom | Proved | Tested | Allowed | Disproved:
    """What a rule file says; raises ValueError where it is none."""
    kind, _, inside = text.removesuffix(")").partition("(")
    by, _, detail = inside.partition(", ")
    if kind == "axiom":
        return Axiom(inside)
    if kind == "unproved":
        return Allowed(inside)
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


def _said(kind: str, *parts: str) -> str:
    return f"{kind}({', '.join(filter(None, parts))})"
