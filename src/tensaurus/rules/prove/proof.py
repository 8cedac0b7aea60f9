"""Prove a rule for all sizes: both sides are equal in each of its cases (`case_split`).

`proved(algebra, all sizes, ...)` uses canonical forms alone; `proved(z3, all reals, all sizes, ...)` means
that Z3 has decided where sums or products of reals keep their order.  The evidence claims:

all ranks       every operator is elementwise (`pointwise`), or moves the results of elementwise operators
                (`data_movement`), or keeps row-major order (`row_major`)
ranks a-b       the largest rank of a variable is one of these, with every combination of smaller ranks;
                b is MAX_RANK, or less where there would be more than MAX_CASES cases
all sizes       every size from 1, independent of the others unless the left side's types, the conditions or
                the right side's types tie them; sizes of 1 that broadcast are cases of their own, up to the
                rank that is named where there are too many such cases
attributes      any number where the operator computes with a symbol in the number's place (pads, strides,
                dilations, groups, slopes); every axis, permutation and switch; of names and steps only those
                in the operator's examples, which the evidence then says ("as in examples")
element types   float32; float64 (for rules tagged `any`: int64 and bool) at the lowest ranks only, since an
                expression depends on them only through conversions; where the rule asks for the type, every
                type of its variables at all ranks
conditions      assumed: sizes by replacing symbols, signs of numbers as assumptions of Z3

1 / 0 is 0, as in every field; a product x * (1/x) is 1 only where x is known not to be 0.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, product
from math import inf
from typing import NamedTuple

from tensaurus.expr.ir.element_types import Untypable
from tensaurus.ops.declare import NUMBERS
from tensaurus.rules.language.evidence import Proved
from tensaurus.rules.language.occurrences import inner_first, names_in
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.language.term import show_term
from tensaurus.rules.prove.attribute_domain import MAX_RANK, domain_of
from tensaurus.rules.prove.attribute_values import has_free_length, is_sampled
from tensaurus.rules.prove.case_split import CaseSplit, DifferentForms, OutOfSteps, ProofBudget, ProofStopped
from tensaurus.rules.prove.data_movement import is_exchange
from tensaurus.rules.prove.expression_prover import (
    MOVED,
    STRENGTH,
    Methods,
    NotProved,
    ProvedEqual,
    Verdict,
    prove_equal,
)
from tensaurus.rules.prove.pointwise import scalar_rule
from tensaurus.rules.prove.row_major import without_order_keepers
from tensaurus.rules.prove.rule_case import Case, CaseState, Gap

MAX_CASES_WITH_ONES = 120  # cases of one rank; if more are expected, higher ranks leave out sizes of one
MAX_CASES = 3000  # cases of one rank; if more are expected without sizes of one, the proof ends before it
MAX_RANK_OF_OTHER_TYPES = 2  # largest rank at which the other element types are tried
MIN_PROVED_RANK = 2  # a proof that runs out of steps before this rank is no evidence
TYPES = ("float32", "int64", "bool")  # of the variables of a rule tagged `any`
FLOATS = ("float32", "float64")
MAX_MIXED_VARIABLES = 3  # with more variables, no mixed element types are tried where one type fails
MAX_TYPE_COMBINATIONS = 27  # of element types, where the rule asks for one
NO_CASES = "it applies at no symbolic type"


@dataclass(frozen=True)
class Unproved:
    """A rule that is not proved for all sizes, and why; `differs` if both sides have different forms."""

    rule: Rule
    reason: str
    differs: bool = False


def prove(rule: Rule, steps: float = inf, methods: Methods = Methods.SOLVED_SIZES) -> Proved | Unproved:
    """Return evidence that a rule is right for all sizes, by these methods.

    When the steps are used up, the evidence names the ranks that are done; the rule is unproved if
    MIN_PROVED_RANK is not among them.
    """
    # theorems that hold for all ranks first, then one case of rank 0 that stands for all, then rank by rank
    ordered = without_order_keepers(rule)  # None where `row_major` says nothing
    if is_exchange(rule) or ordered is not None and show_term(ordered.lhs[0]) == show_term(ordered.rhs[0]):
        return Proved("algebra", "all sizes, all ranks")
    budget = ProofBudget(steps, methods)
    try:
        for each in (rule, ordered):
            if each is not None and (scalar := scalar_rule(each)) is not None:
                with suppress(DifferentForms):  # the rule may need a condition that `scalar_rule` left out
                    if isinstance(proved := _prove_scalar_rule(scalar, budget), Proved):
                        return proved
        return _prove_by_ranks(rule, budget)
    except ProofStopped as stopped:
        return Unproved(rule, str(stopped), isinstance(stopped, DifferentForms))
    except RecursionError:  # from quotients of quotients of sizes
        return Unproved(rule, "its sizes are nested too deeply")
    except Untypable as error:  # a canonical form may have numbers where the variables are booleans
        return Unproved(rule, f"its simplest form does not type: {error}")


def _prove_scalar_rule(scalar: Rule, budget: ProofBudget) -> Proved | Unproved:
    """Prove a rule at rank 0, which stands for all ranks."""
    kinds = product(_element_types(scalar), repeat=len(scalar.variables))
    cases = (CaseSplit(scalar, dtypes=_types_by_variable(scalar, each), budget=budget) for each in kinds)
    used = [by for each in cases for by in _prove_cases(each)]
    if not used:
        return Unproved(scalar, NO_CASES)
    return Proved(*_evidence_fields(used, "all sizes, all ranks" + _sampled_attributes(scalar)))


def states_not_proved(
    rule: Rule, steps: float = inf, methods: Methods = Methods.SOLVED_SIZES
) -> Iterator[CaseState]:
    """Yield symbolic types and values at which these methods prove no equality, within the steps."""
    budget = ProofBudget(steps, methods)
    try:
        for rank in range(MAX_RANK + 1):
            for case in CaseSplit(rule, rank, budget=budget):
                budget.spend()
                if isinstance(case, Case) and isinstance(prove_case(case, methods), NotProved):
                    yield case.state
    except (ProofStopped, RecursionError, Untypable):  # as in `prove`
        return


def _prove_cases(cases: CaseSplit) -> list[str]:
    """Return the method that proves each case.  Raises ProofStopped at the first case that is not proved."""
    used: list[str] = []
    for case in cases:
        cases.budget.spend()
        verdict = case if isinstance(case, Gap) else prove_case(case, cases.budget.methods)
        if isinstance(verdict, Gap):
            raise ProofStopped(verdict.reason)
        if isinstance(verdict, NotProved):
            assert isinstance(case, Case)
            raise DifferentForms(f"{verdict.reason} at {case.state}")
        used.append(verdict.by)
    return used


def _evidence_fields(used: Sequence[str], coverage: str) -> tuple[str, str]:
    return ("z3", f"all reals, {coverage}") if "z3" in used else ("algebra", coverage)


def _prove_by_ranks(rule: Rule, budget: ProofBudget) -> Proved | Unproved:
    """Prove a rule at all ranks for the first element types at which it applies, then for others.

    The other types are tried at as many ranks as the rule may depend on them, see the module's text.
    """
    # one type for all variables; where the rule applies at none, and variables are few, each with its own
    names, types, names_type = rule.variables, _element_types(rule), _depends_on_type(rule)
    uniform = [_types_by_variable(rule, [kind] * len(names)) for kind in types]
    combinations = len(types) ** len(names)
    is_few = combinations <= MAX_TYPE_COMBINATIONS if names_type else len(names) <= MAX_MIXED_VARIABLES
    mixed = (_types_by_variable(rule, kinds) for kinds in product(types, repeat=len(names)) if is_few)
    for kinds in chain(uniform, mixed):
        by_rank, ones_rank = _prove_ranks(rule, kinds, budget)
        if any(by_rank):
            break
    else:
        return Unproved(rule, NO_CASES)
    ranks = [rank for rank, methods in enumerate(by_rank) if methods]
    lowest, highest = ranks[0], ranks[-1]
    methods = [by for found in by_rank for by in found]
    if names_type and not is_few:
        count = len(names)
        raise ProofStopped(f"it asks for an element type, and {count} variables may have any of {len(types)}")
    # rules that only move elements do not depend on their type, unless a condition asks for it
    most = max(lowest, 1 if all(by == MOVED for by in methods) else MAX_RANK_OF_OTHER_TYPES)
    others = uniform[uniform.index(kinds) + 1 :] if kinds in uniform else []
    trials = [(other, highest if names_type else most) for other in others]
    # `mixed` is a generator: combinations that were tried above do not come again
    more = mixed if len(names) > 1 and (names_type or kinds in uniform) else ()
    for other, last in chain(trials, ((other, highest if names_type else lowest) for other in more)):
        for rank in range(lowest, last + 1):
            methods += _prove_cases(CaseSplit(rule, rank, dtypes=other))
    coverage = f"all sizes, ranks {lowest}-{highest}"
    if ones_rank < highest:
        coverage += f", sizes of one in broadcasting to rank {ones_rank}"
    return Proved(*_evidence_fields(methods, coverage + _sampled_attributes(rule)))


class _ProvedRanks(NamedTuple):
    """For each rank from 0 the methods that prove its cases, and the largest rank with sizes of one."""

    methods: list[list[str]]
    ones_rank: int


def _prove_ranks(rule: Rule, dtypes: Mapping[str, str], budget: ProofBudget) -> _ProvedRanks:
    """Prove the cases of one rank after the other, until there are too many cases or the steps end."""
    methods: list[list[str]] = []
    ones_rank = MAX_RANK
    for rank in range(MAX_RANK + 1):
        cases = CaseSplit(rule, rank, dtypes=dtypes, allows_ones=ones_rank == MAX_RANK, budget=budget)
        try:
            methods.append(_prove_cases(cases))
        except OutOfSteps:
            if rank > MIN_PROVED_RANK and any(methods):
                break
            raise
        before, now = len(methods[-2]) if rank else 0, len(methods[-1])
        expected = now * now / before if before else 0  # cases of the next rank, at the same factor of growth
        if ones_rank == MAX_RANK > rank and cases.broadcasts and expected > MAX_CASES_WITH_ONES:
            ones_rank = rank  # higher ranks leave out sizes of one
        elif expected > MAX_CASES:
            break
    return _ProvedRanks(methods, ones_rank)


def _element_types(rule: Rule) -> tuple[str, ...]:
    if "any" not in rule.tags:
        return FLOATS
    return (*TYPES, *sorted(NUMBERS - {*TYPES})) if _depends_on_type(rule) else TYPES


def _depends_on_type(rule: Rule) -> bool:
    """Return whether a condition or an attribute depends on an element type."""
    return any("dtype" in names_in(tree) for tree in rule.expressions)


def _types_by_variable(rule: Rule, kinds: Sequence[str]) -> dict[str, str]:
    return dict(zip(rule.variables, kinds, strict=True))


def _sampled_attributes(rule: Rule) -> str:
    """Return the part of the coverage that names attributes of which the proof covers some values only."""
    names: set[str] = set()
    lengths: set[str] = set()
    counted: set[str] = set()
    integers: set[str] = set()
    for term in (a for root in rule.lhs for a in inner_first(root)):
        free = {name for name, tree in term.attrs if isinstance(tree, ast.Name)}
        if term.rest is not None:
            free |= term.op.attributes.keys() - {name for name, _ in term.attrs}
        names |= {name for name in free if is_sampled(term.op, name)}
        known = {name: domain_of(term.op, name) for name in free}
        lengths |= {name for name, each in known.items() if each.kind == "integers" and each.length is None}
        counted |= {name for name, each in known.items() if each.kind == "listed" and has_free_length(each)}
        integers |= {name for name, each in known.items() if each.kind == "whole"}
    coverage = [f"{' and '.join(sorted(names))} as in examples"] if names else []
    coverage += [f"{' and '.join(sorted(lengths))} of up to {MAX_RANK}"] if lengths else []
    coverage += [f"{' and '.join(sorted(counted - names))} of up to the rank"] if counted - names else []
    coverage += [f"{' and '.join(sorted(integers))} whole"] if integers else []
    return "".join(f", {each}" for each in coverage)


def prove_case(case: Case, methods: Methods = Methods.SOLVED_SIZES) -> Verdict:
    """Prove that the sides of a case are equal."""
    by = MOVED
    for left, right in zip(case.left, case.right, strict=True):
        verdict = prove_equal(left, right, case.state.assumed, methods)
        if isinstance(verdict, NotProved):
            return verdict
        by = max(by, verdict.by, key=STRENGTH.index)
    return ProvedEqual(by)
