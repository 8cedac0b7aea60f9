"""A rule proved for all sizes: both sides are equal in each of its cases."""

from __future__ import annotations

from dataclasses import dataclass

from tensaurus.rules.cases import Case, Cases, Gap
from tensaurus.rules.domain import RANK
from tensaurus.rules.pointwise import scalar_rule
from tensaurus.rules.prover import Open, Proved, equal
from tensaurus.rules.rule import Evidence, Rule

LIMIT = 700  # cases of one rank that are looked at: beyond, the rank is left out
SPLITS = 3  # how often a case that resists is split


@dataclass(frozen=True)
class Unproved:
    """A rule that is not proved for all sizes, and what stops it."""

    rule: Rule
    reason: str


def prove(rule: Rule) -> Evidence | Unproved:
    """Evidence that a rule is right for all sizes."""
    scalar = scalar_rule(rule)
    if scalar is not None:
        count, used = 0, set[str]()
        for found in Cases(scalar):
            verdict = found if isinstance(found, Gap) else settled(found)
            if not isinstance(verdict, Proved):
                return Unproved(rule, verdict.reason)
            used.add(verdict.by)
            count += 1
        if not count:
            return Unproved(rule, "it applies at no scalars")
        return Evidence("proved", *_by(used, "all sizes, all ranks"))
    return _by_ranks(rule)


def _by(used: set[str], said: str) -> tuple[str, str]:
    return ("z3", f"all reals, {said}") if "z3" in used else ("algebra", said)


def _by_ranks(rule: Rule) -> Evidence | Unproved:
    used: set[str] = set()
    counts: list[int] = []
    work = 0
    for rank in range(RANK + 1):
        count = 0
        cases = Cases(rule, rank=rank)
        for found in cases:
            verdict = found if isinstance(found, Gap) else settled(found)
            if not isinstance(verdict, Proved):
                where = f" at {found.state}" if isinstance(found, Case) else ""
                return Unproved(rule, verdict.reason + where)
            used.add(verdict.by)
            count += 1
        counts.append(count)
        work, before = count + cases.refusals // 8, work
        if rank < RANK and any(counts) and work * work > LIMIT * before > 0:
            break
    ranks = [rank for rank, count in enumerate(counts) if count]
    if not ranks:
        return Unproved(rule, "it applies at no symbolic type")
    return Evidence("proved", *_by(used, f"all sizes, ranks {ranks[0]}-{ranks[-1]}, {sum(counts)} cases"))


def settled(case: Case) -> Proved | Open:
    """Whether the sides of a case are equal."""
    by = "algebra"
    for left, right in zip(case.left, case.right, strict=True):
        verdict = equal(left, right, case.state.assumed)
        if isinstance(verdict, Open):
            return verdict
        by = verdict.by if verdict.by != "algebra" else by
    return Proved(by)
