"""A rule proved for all sizes: both sides are equal in each of its cases."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tensaurus.algebra.size import Poly, atoms, substitute, Floor
from tensaurus.algebra.undecided import Question
from tensaurus.rules.assumption import split_quotient, ways
from tensaurus.rules.cases import SIZES, Case, Cases, Gap, State
from tensaurus.rules.pointwise import scalar_rule
from tensaurus.rules.prover import Open, Proved, equal
from tensaurus.rules.rule import Evidence, Rule

SPLITS = 3  # how often a case that resists is split


@dataclass(frozen=True)
class Unproved:
    """A rule that is not proved for all sizes, and what stops it."""

    rule: Rule
    reason: str


def prove(rule: Rule) -> Evidence | Unproved:
    """Evidence that a rule is right for all sizes."""
    scalar = scalar_rule(rule)
    cases = Cases(rule) if scalar is None else Cases(scalar, rank=0)
    used: set[str] = set()
    count = 0
    for found in cases:
        if isinstance(found, Gap):
            return Unproved(rule, found.reason)
        count += 1
        verdict = settled(found)
        if isinstance(verdict, Open):
            return Unproved(rule, f"{verdict.reason} at {found.state}")
        used.add(verdict.by)
    if not count:
        return Unproved(rule, "it applies at no symbolic type")
    return Evidence("proved", "z3" if "z3" in used else "algebra", f"all sizes, {count} cases")


def settled(case: Case) -> Proved | Open:
    """Whether the sides of a case are equal."""
    by = "algebra"
    for left, right in zip(case.left, case.right, strict=True):
        verdict = equal(left, right, case.state.assumed)
        if isinstance(verdict, Open):
            return verdict
        by = verdict.by if verdict.by != "algebra" else by
    return Proved(by)
