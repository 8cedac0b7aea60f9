"""A rule proved for all sizes: both sides are equal in each of its cases.

`proved(algebra, all sizes, ...)` by canonical forms alone, in each order of what a maximum compares;
`proved(z3, all reals, all sizes, ...)` where Z3 has decided what depends on sums or products of the reals
keeping their order.  What is claimed:

all ranks       every operator is elementwise (`pointwise`), or moves what those compute (`movement`), or
                keeps their elements in row-major order (`row_major`)
ranks a-b       the largest rank of a variable is one of these, every rank up to it in every combination;
                b is 5 (`RANK`), less where there would be more than `MOST` cases
all sizes       every size from 1, each of its own unless the left side's types, the conditions or the types
                of the right side tie it to others; sizes of 1 that broadcast are cases of their own, up to
                the rank that is named where they are too many
attributes      numbers are any numbers where the operator computes with a symbol in their place (pads,
                strides, dilations, groups, slopes); axes, permutations and switches are every one there is;
                of names and steps those that the operator's examples have, and then it is said ("as in
                examples")
element types   float32; float64 (of rules tagged `any`: int64 and bool) at the least ranks alone, since an
                expression depends on them through conversions only; where the rule asks for one, every type
                of its variables, at all ranks
conditions      assumed: sizes by what their symbols stand for, signs of numbers as assumptions of Z3

1 / 0 is 0, as in every field; a product x * (1/x) is 1 only where x is known not to be 0.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, product
from math import inf

from tensaurus.expr.ir.element_types import Untypable
from tensaurus.ops.declare import NUMBERS
from tensaurus.rules.language.evidence import Proved
from tensaurus.rules.language.occurrences import attribute_expressions, inner_first
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.language.term import show_term
from tensaurus.rules.prove.attribute_domain import MAX_RANK, domain_of, has_free_length, is_sampled
from tensaurus.rules.prove.case_split import CaseSplit, DifferentForms, OutOfSteps, ProofStopped, StepBudget
from tensaurus.rules.prove.data_movement import swaps
from tensaurus.rules.prove.expression_prover import MOVED, STRENGTH, Means, Open, Settled, equal
from tensaurus.rules.prove.pointwise import scalar_rule
from tensaurus.rules.prove.row_major import in_row_major_order
from tensaurus.rules.prove.rule_case import Case, Gap, State

LIMIT = 120  # cases of one rank: if there may be more, sizes of one are left out from the next rank on
MOST = 3000  # cases of one rank: if there may be more, and no sizes of one among them, the rank is left out
SMALL = 2  # the largest rank for which other element types than the first are tried
LEAST_RANK = 2  # a proof of fewer ranks, where there are more, says too little
TYPES = ("float32", "int64", "bool")  # of variables that may be of any
FLOATS = ("float32", "float64")
MIXED = 3  # variables whose element types are tried in all combinations, where one type for all does not do
COMBINATIONS = 27  # of element types, at most, where the rule asks for one
NOWHERE = "it applies at no symbolic type"


@dataclass(frozen=True)
class Unproved:
    """A rule that is not proved for all sizes, and what stops it: `differs`, if sides have other forms."""

    rule: Rule
    reason: str
    differs: bool = False


def prove(rule: Rule, steps: float = inf, means: Means = Means.TYPES) -> Proved | Unproved:
    """Evidence that a rule is right for all sizes, by what may be asked.

    After so many steps the evidence names the ranks that are done; it is none where LEAST_RANK is not.
    """
    ordered = in_row_major_order(rule)
    if swaps(rule) or ordered is not None and show_term(ordered.lhs[0]) == show_term(ordered.rhs[0]):
        return Proved("algebra", "all sizes, all ranks")
    left = StepBudget(steps, means)
    try:
        for each in (rule, ordered):
            if each is not None and (scalar := scalar_rule(each)) is not None:
                with suppress(DifferentForms):  # it may be true only of what conditions that are left out say
                    if isinstance(proved := _of_elements(scalar, left), Proved):
                        return proved
        return _by_ranks(rule, left)
    except ProofStopped as stopped:
        return Unproved(rule, str(stopped), isinstance(stopped, DifferentForms))
    except RecursionError:  # divisions by sizes that are quotients of quotients
        return Unproved(rule, "its sizes are nested too deeply")
    except Untypable as error:  # truths where the simplest form has numbers
        return Unproved(rule, f"its simplest form does not type: {error}")


def _of_elements(scalar: Rule, steps: StepBudget) -> Proved | Unproved:
    """What a rule is proved by at rank 0, which stands for all ranks."""
    kinds = product(_types(scalar), repeat=len(scalar.variables))
    cases = (CaseSplit(scalar, dtypes=_named(scalar, each), steps=steps) for each in kinds)
    used = [by for each in cases for by in _proved(each)]
    if not used:
        return Unproved(scalar, NOWHERE)
    return Proved(*_by(used, "all sizes, all ranks" + _sampled(scalar)))


def differing(rule: Rule, steps: float = inf, means: Means = Means.TYPES) -> Iterator[State]:
    """Types and values over symbols at which these means show no equality, within so many steps."""
    left = StepBudget(steps, means)
    try:
        for rank in range(MAX_RANK + 1):
            for case in CaseSplit(rule, rank, steps=left):
                left.spend()
                if isinstance(case, Case) and isinstance(settled(case, means), Open):
                    yield case.state
    except (ProofStopped, RecursionError, Untypable):  # as in `prove`
        return


def _proved(cases: CaseSplit) -> list[str]:
    """What each case is proved by.  Raises Stopped at the first that is not."""
    used: list[str] = []
    for case in cases:
        cases.steps.spend()
        verdict = case if isinstance(case, Gap) else settled(case, cases.steps.means)
        if isinstance(verdict, Gap):
            raise ProofStopped(verdict.reason)
        if isinstance(verdict, Open):
            assert isinstance(case, Case)
            raise DifferentForms(f"{verdict.reason} at {case.state}")
        used.append(verdict.by)
    return used


def _by(used: Sequence[str], said: str) -> tuple[str, str]:
    return ("z3", f"all reals, {said}") if "z3" in used else ("algebra", said)


def _by_ranks(rule: Rule, steps: StepBudget) -> Proved | Unproved:
    names, types = rule.variables, _types(rule)
    uniform = [_named(rule, [kind] * len(names)) for kind in types]
    asked = _asks_type(rule)
    few = len(types) ** len(names) <= COMBINATIONS if asked else len(names) <= MIXED
    mixed = (_named(rule, kinds) for kinds in product(types, repeat=len(names)) if few)
    for kinds in chain(uniform, mixed):
        used, whole = _ranks(rule, kinds, steps)
        if any(used):
            break
    else:
        return Unproved(rule, NOWHERE)
    ranks = [rank for rank, found in enumerate(used) if found]
    moves = all(by == MOVED for found in used for by in found)
    if asked and not few:
        count = len(names)
        raise ProofStopped(f"it asks for an element type, and {count} variables may have any of {len(types)}")
    for other in uniform[uniform.index(kinds) + 1 :] if kinds in uniform else ():
        # what only moves elements does not ask what they are, unless the rule does
        most = ranks[-1] if asked else 1 if moves else SMALL
        for rank in range(ranks[0], max(ranks[0], most) + 1):
            used.append(_proved(CaseSplit(rule, rank, dtypes=other)))
    if len(names) > 1 and (asked or kinds in uniform):
        for other in mixed:
            for rank in range(ranks[0], (ranks[-1] if asked else ranks[0]) + 1):
                used.append(_proved(CaseSplit(rule, rank, dtypes=other)))
    said = f"all sizes, ranks {ranks[0]}-{ranks[-1]}"
    if whole < ranks[-1]:
        said += f", sizes of one in broadcasting to rank {whole}"
    return Proved(*_by([by for found in used for by in found], said + _sampled(rule)))


def _ranks(rule: Rule, dtypes: Mapping[str, str], steps: StepBudget) -> tuple[list[list[str]], int]:
    """What the cases of each rank are proved by, and the rank up to which sizes of one are among them."""
    used: list[list[str]] = []
    whole = MAX_RANK
    for rank in range(MAX_RANK + 1):
        cases = CaseSplit(rule, rank, dtypes=dtypes, ones=whole == MAX_RANK, steps=steps)
        try:
            used.append(_proved(cases))
        except OutOfSteps:
            if rank > LEAST_RANK and any(used):
                break
            raise
        before, now = (len(found) for found in (*[[]], *used)[-2:])
        if whole == MAX_RANK > rank and cases.broadcasts and now * now > LIMIT * before > 0:
            whole = rank
        elif now * now > MOST * before > 0:
            break
    return used, whole


def _types(rule: Rule) -> tuple[str, ...]:
    if "any" not in rule.tags:
        return FLOATS
    return (*TYPES, *sorted(NUMBERS - {*TYPES})) if _asks_type(rule) else TYPES


def _asks_type(rule: Rule) -> bool:
    """Whether a condition or an attribute depends on an element type."""
    trees = [*rule.where, *(tree for root in (*rule.lhs, *rule.rhs) for tree in attribute_expressions(root))]
    return any(isinstance(n, ast.Name) and n.id == "dtype" for tree in trees for n in ast.walk(tree))


def _named(rule: Rule, kinds: Sequence[str]) -> dict[str, str]:
    return dict(zip(rule.variables, kinds, strict=True))


def _sampled(rule: Rule) -> str:
    """What is said of attributes that are not all tried."""
    names: set[str] = set()
    lengths: set[str] = set()
    counted: set[str] = set()
    whole: set[str] = set()
    for term in (a for root in rule.lhs for a in inner_first(root)):
        free = {name for name, tree in term.attrs if isinstance(tree, ast.Name)}
        if term.rest is not None:
            free |= term.op.attributes.keys() - {name for name, _ in term.attrs}
        names |= {name for name in free if is_sampled(term.op, name)}
        known = {name: domain_of(term.op, name) for name in free}
        lengths |= {name for name, each in known.items() if each.kind == "sizes" and each.length is None}
        counted |= {name for name, each in known.items() if each.kind == "listed" and has_free_length(each)}
        whole |= {name for name, each in known.items() if each.kind == "number"}
    said = [f"{' and '.join(sorted(names))} as in examples"] if names else []
    said += [f"{' and '.join(sorted(lengths))} of up to {MAX_RANK}"] if lengths else []
    said += [f"{' and '.join(sorted(counted - names))} of up to the rank"] if counted - names else []
    said += [f"{' and '.join(sorted(whole))} whole"] if whole else []
    return "".join(f", {each}" for each in said)


def settled(case: Case, means: Means = Means.TYPES) -> Settled | Open:
    """Whether the sides of a case are equal."""
    by = MOVED
    for left, right in zip(case.left, case.right, strict=True):
        verdict = equal(left, right, case.state.assumed, means)
        if isinstance(verdict, Open):
            return verdict
        by = max(by, verdict.by, key=STRENGTH.index)
    return Settled(by)
