"""A rule proved for all sizes: both sides are equal in each of its cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from tensaurus.rules.cases import Case, Cases, Gap
from tensaurus.rules.domain import RANK
from tensaurus.rules.pointwise import scalar_rule
from tensaurus.rules.prover import Open, Proved, equal
from tensaurus.rules.rule import Evidence, Rule

LIMIT = 700  # cases of one rank: if there may be more, sizes of one are left out from there on
SMALL = 2  # the largest rank for which other element types than the first are tried
TYPES = ("float32", "int64", "bool")
NOWHERE = "it applies at no symbolic type"


@dataclass(frozen=True)
class Unproved:
    """A rule that is not proved for all sizes, and what stops it."""

    rule: Rule
    reason: str


def prove(rule: Rule) -> Evidence | Unproved:
    """Evidence that a rule is right for all sizes."""
    scalar = scalar_rule(rule)
    try:
        if scalar is not None:
            used = _proved(Cases(scalar))
            if not used:
                return Unproved(rule, NOWHERE)
            return Evidence("proved", *_by(used, "all sizes, all ranks"))
        return _by_ranks(rule)
    except _Stopped as stopped:
        return Unproved(rule, str(stopped))


class _Stopped(Exception):
    """What a proof stops at."""


def _proved(cases: Cases) -> list[str]:
    """What each case is proved by.  Raises _Stopped at the first that is not."""
    used: list[str] = []
    for found in cases:
        verdict = found if isinstance(found, Gap) else settled(found)
        if not isinstance(verdict, Proved):
            raise _Stopped(verdict.reason + (f" at {found.state}" if isinstance(found, Case) else ""))
        used.append(verdict.by)
    return used


def _by(used: Sequence[str], said: str) -> tuple[str, str]:
    return ("z3", f"all reals, {said}") if "z3" in used else ("algebra", said)


def _by_ranks(rule: Rule) -> Evidence | Unproved:
    dtypes = _element_types(rule)
    if not dtypes:
        return Unproved(rule, NOWHERE)
    used: list[list[str]] = []
    ones = True
    whole = RANK
    for rank in range(RANK + 1):
        cases = Cases(rule, rank, dtypes=dtypes[0], ones=ones)
        used.append(_proved(cases))
        before, now = (len(found) for found in (*[[]], *used)[-2:])
        if ones and rank < RANK and now * now > LIMIT * before > 0:
            ones, whole = False, rank
    for other in dtypes[1:]:
        for rank in range(SMALL + 1):
            used.append(_proved(Cases(rule, rank, dtypes=other)))
    ranks = [rank for rank, found in enumerate(used[: RANK + 1]) if found]
    said = f"all sizes, ranks {ranks[0]}-{ranks[-1]}"
    if whole < ranks[-1]:
        said += f", sizes of one in broadcasting to rank {whole}"
    return Evidence("proved", *_by([by for found in used for by in found], said))


def _element_types(rule: Rule) -> list[Mapping[str, str] | str]:
    """Element types of the variables with which the rule applies somewhere."""
    uniform: list[Mapping[str, str] | str] = list(TYPES if "any" in rule.tags else TYPES[:1])
    names = list(rule.variables)
    mixed = [dict(zip(names, kinds, strict=True)) for kinds in product(TYPES, repeat=len(names))]
    for tried in (uniform, mixed if "any" in rule.tags and len(names) <= 3 else []):
        found = [kinds for kinds in tried if _applies(rule, kinds)]
        if found:
            return found
    return []


def _applies(rule: Rule, dtypes: Mapping[str, str] | str) -> bool:
    return any(True for rank in range(RANK + 1) for _ in Cases(rule, rank, dtypes=dtypes, ones=False))


def settled(case: Case) -> Proved | Open:
    """Whether the sides of a case are equal."""
    by = "algebra"
    for left, right in zip(case.left, case.right, strict=True):
        verdict = equal(left, right, case.state.assumed)
        if isinstance(verdict, Open):
            return verdict
        by = verdict.by if verdict.by != "algebra" else by
    return Proved(by)
