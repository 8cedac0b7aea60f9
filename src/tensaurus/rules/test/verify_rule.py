"""Verify a rule: compare its two sides on typed instances, in each field that can tell them apart.

    algebra    a proof for all sizes, see `prove.proof`
    reals      float64 with values that break laws: zeros, signs, magnitudes, the limits of integer types
    gf         random points of GF(2^31-1): a false identity of degree d passes one trial with probability d/p
    z3         all real elements at the instances' shapes; constants on which conditions depend are pinned
    rationals  exact fractions with the true max and min, and with numbers near every constant of the rule

A rule that any of these shows to be wrong is refuted, with a counterexample.  A rule that none of them can
settle is undecided, and is not added to a library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import log2
from typing import TypeAlias, TypeVar

import numpy as np

from tensaurus.expr.evaluate.fields import Array, Field, Rationals, Reals, Terms
from tensaurus.expr.evaluate.two_point_field import LAW_LADDER, Laws, Pairs
from tensaurus.expr.ir.integer_types import Overflow, integer_limits, is_integer
from tensaurus.graph.analysis.program_degree import bound_degree
from tensaurus.graph.ir.node import CONSTANT, Node
from tensaurus.rules.language.evidence import Axiom, Evidence, Proved, Tested
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.prove.expression_prover import Means
from tensaurus.rules.prove.proof import prove, states_not_proved
from tensaurus.rules.prove.rule_case import State
from tensaurus.rules.prove.solve_sizes import is_contradictory
from tensaurus.rules.test.combine_attributes import combine_attributes, large_instances
from tensaurus.rules.test.counterexample import Counterexample, results_differ
from tensaurus.rules.test.draw_elements import BreakingDraws, ElementDraws, draw_leaf_values, evaluate_roots
from tensaurus.rules.test.instances import MANY_DRAWS, Instance, InstanceMaker, element_count
from tensaurus.rules.test.thresholds import comparisons_in

T = TypeVar("T")

INSTANCES = 40  # wanted instances of a rule
PROOF_STEPS = 30_000  # `StepBudget` of a proof: about 30 seconds
MAX_STATES_NOT_PROVED = 24  # states with different forms that are tried with numbers
INSTANCES_FACTOR = 5  # a rule that is not proved is tried on five times the wanted instances
MIN_INSTANCES = 3  # a rule with fewer instances is undecided
SMALL_DRAWS = 100  # draws of few elements for each wanted instance
TRIALS = 2  # of each instance, with other elements
TAME_LIMIT = 8.0  # magnitude at which exp and similar functions are far below the largest float
SCALES = 1.0, -1.0, 0.25  # factors of inputs: some are in the domain of every function
DRAWS_PER_INSTANCE = 20  # draws of combinations of attributes for each wanted instance
LARGE_INSTANCES = 8  # instances with one size of hundreds
LARGE_DRAWS = LARGE_INSTANCES * DRAWS_PER_INSTANCE  # most draws of them
MIN_LARGE_NUMBER = 4  # if the law compares sizes with larger numbers, large instances come before a proof
INDEX_SPANS = (3, 2, 1)  # sizes of a dimension to which indices are limited
SOLVER_INSTANCES = 6  # smallest instances, which Z3 is asked about


@dataclass(frozen=True)
class Refuted:
    """A rule that is wrong, with a counterexample."""

    rule: Rule
    counterexample: Counterexample

    @property
    def reason(self) -> str:
        """The counterexample in one line."""
        return str(self.counterexample)


@dataclass(frozen=True)
class Undecided:
    """A rule that is neither shown to be right nor wrong, and why."""

    rule: Rule
    reason: str


Verdict: TypeAlias = Evidence | Refuted | Undecided


def verify(
    rule: Rule, wanted: int = INSTANCES, seed: int = 0, steps: float = PROOF_STEPS, means: Means = Means.TYPES
) -> Verdict:
    """Return the evidence that a rule is right, or a counterexample, or why the rule is undecided.

    A rule that is not refuted is proved for all sizes, if `steps` suffice, and tested otherwise.  A law that
    its line calls an axiom is only tried in float64.  If `means` allows canonical forms only, a rule that
    they do not prove is undecided.
    """
    # 1. instances in float64, then a proof
    maker = InstanceMaker(rule, seed)
    instances, draws, found = _check_first(maker, wanted, seed)
    if found:
        return Refuted(rule, found)
    axiom = isinstance(rule.evidence, Axiom) and len(instances) >= MIN_INSTANCES
    proved = prove(rule, steps, means) if steps and not axiom else None
    if isinstance(proved, Proved):
        return proved
    if means == Means.FORMS and not axiom:
        return Undecided(rule, "the algebra does not prove it")
    # 2. different forms may mean that the rule is wrong in a case that no instance belongs to
    unreached: State | None = None
    if proved is not None and proved.differs:
        for state in islice(states_not_proved(rule, steps, means), MAX_STATES_NOT_PROVED):
            inside = list(maker.instances_of_state(state, include_known=True))
            if not inside:
                inside = list(islice(maker.instances_of_state(state, MANY_DRAWS, include_known=True), 1))
            if found := _find_counterexample(inside, [Reals()] * TRIALS, draws):
                return Refuted(rule, found)
            if unreached is None and not inside and not is_contradictory(state.assumed):
                unreached = state
    # 3. instances that single changes do not reach
    more = list(combine_attributes(maker, DRAWS_PER_INSTANCE * wanted))
    more += large_instances(maker, LARGE_INSTANCES, LARGE_DRAWS)
    if found := _find_counterexample(more, [Reals()], draws):
        return Refuted(rule, found)
    if (count := len(maker.made)) < MIN_INSTANCES:
        return Undecided(rule, f"{count or 'no'} instance{'s' * (count > 1)} of it types")
    # these are the instances of the evidence; others below are only tried in float64
    instances = list(maker.made)
    coverage = ", ".join(filter(None, (str(maker.coverage), str(maker.covering))))
    # most instances may compute almost nothing, such as windows of one element: so more are tried
    more = list(maker.instances(len(maker.made) + (INSTANCES_FACTOR - 1) * wanted))
    if found := _find_counterexample(more, [Reals()], draws):
        return Refuted(rule, found)
    if found := _find_counterexample(list(maker.small_instances(SMALL_DRAWS * wanted)), [Reals()], draws):
        return Refuted(rule, found)
    if axiom:
        assert isinstance(rule.evidence, Axiom)
        return rule.evidence
    if unreached is not None:
        return Undecided(rule, f"its sides have different forms, and no instance is like {unreached}")
    # 4. GF(p) with as few laws as it takes, then exact fractions, then Z3
    for laws, _ in LAW_LADDER:
        fields = [Pairs(seed + t, laws) for t in range(TRIALS)]
        if _find_counterexample(instances, fields, draws.uniform()) is None:
            return _gf_evidence(instances, laws, fields, coverage)
    rationals = [Rationals(seed + t) for t in range(2 * TRIALS)]
    if found := _find_counterexample(instances, rationals, draws):
        return _confirm_in_float64(rule, found)
    return _check_by_solver(rule, coverage, sorted(instances, key=_leaf_elements)[:SOLVER_INSTANCES])


def refute(rule: Rule, wanted: int = INSTANCES, seed: int = 0) -> Refuted | None:
    """Return a counterexample among the instances tried before a proof; for a rule that is already proved."""
    _, _, found = _check_first(InstanceMaker(rule, seed), wanted, seed)
    return Refuted(rule, found) if found else None


def _check_first(
    maker: InstanceMaker, wanted: int, seed: int
) -> tuple[list[Instance], BreakingDraws, Counterexample | None]:
    """Return instances, what is drawn for them, and the first counterexample over the reals.

    Large instances are included where the law compares sizes with numbers.
    """
    instances = list(maker.instances(wanted))
    draws = BreakingDraws(maker.rule, seed, instances)
    found = _find_counterexample(instances, [Reals()] * TRIALS, draws)
    largest = max(maker.law_integers, default=0)
    if found is None and comparisons_in(maker.rule) and largest > MIN_LARGE_NUMBER:
        large = list(large_instances(maker, LARGE_INSTANCES, LARGE_DRAWS))
        found = _find_counterexample(large, [Reals()], draws)
    return instances, draws, found


def _gf_evidence(instances: Sequence[Instance], laws: Laws, fields: Sequence[Pairs], coverage: str) -> Tested:
    """Return evidence with a bound on the error, if elements were drawn from the field."""
    drawn = [(i, {leaf.tensor.dtype[:5] for leaf in i.leaves if leaf not in i.pinned}) for i in instances]
    inside = [instance for instance, kinds in drawn if "float" in kinds]
    if not inside:
        return Tested("gf", coverage, TRIALS)
    degree = max(map(partial(_total_degree, laws=laws), inside))
    bits = int(-sum(log2(field.error(degree)) for field in fields))
    sampled = any(kinds - {"float"} for _, kinds in drawn)
    return Tested("gf", coverage, TRIALS, bits, sampled)


def _check_by_solver(rule: Rule, coverage: str, smallest: Sequence[Instance]) -> Verdict:
    """Ask Z3 about all real elements of the smallest instances.

    This proves nothing about other sizes, attributes and pinned constants.  Instances that Z3 has no terms
    for, such as the maximum of no elements, are left out if there are others.
    """
    without: list[str] = []
    for instance in smallest:
        terms = Terms()
        try:
            values = draw_leaf_values(instance, terms, np.random.default_rng(0))
            sides = [evaluate_roots(roots, values, terms) for roots in (instance.left, instance.right)]
            answers = [terms.solve_equality(a, b) for a, b in zip(*sides, strict=True)]
        except (NotImplementedError, ValueError, TypeError, IndexError, terms.z3.Z3Exception) as error:
            without.append(" ".join(str(error).split())[:100])
            continue
        for place, answer in enumerate(answers):
            if answer is None:
                return Undecided(rule, f"Z3 finds neither a proof nor a counterexample, at {instance}")
            if answer is True:
                continue
            exact = {leaf: terms.model_values(value, answer) for leaf, value in values.items()}
            shown = _compare_once(instance, exact, Rationals())
            if shown is None:
                return Undecided(rule, f"Z3's counterexample says nothing of output {place}, at {instance}")
            return _confirm_in_float64(rule, shown)
    if len(without) == len(smallest):
        return Undecided(rule, f"Z3 has no term of it: {without[0]}")
    return Tested("z3", f"{coverage}, all reals at {len(smallest) - len(without)} of them")


def _confirm_in_float64(rule: Rule, found: Counterexample) -> Refuted | Undecided:
    """Return Refuted where a difference in exact fractions is one in float64, too, else Undecided."""
    values = {
        found.instance.nodes[name]: value.astype(np.float64) if value.dtype.kind == "O" else value
        for name, value in found.inputs.items()
    }
    shown = _compare(found.instance, values, Reals())
    if shown is not None:
        return Refuted(rule, shown)
    return Undecided(rule, f"it rests on more than is known of its functions: {found}")


def _leaf_elements(instance: Instance) -> int:
    return sum(element_count(leaf.tensor) for leaf in instance.leaves)


def _find_counterexample(
    instances: Sequence[Instance], fields: Sequence[Field], draws: ElementDraws
) -> Counterexample | None:
    """Return the first instance on which the sides differ, None where there is none."""
    for place, instance in enumerate(instances):
        for trial, field in enumerate(fields):
            rng = np.random.default_rng((draws.seed, place, trial))
            values = draw_leaf_values(instance, field, rng, draws)
            if (shown := _compare(instance, values, field)) is not None:
                return shown
    return None


def _compare(instance: Instance, values: dict[Node, Array], field: Field) -> Counterexample | None:
    """Return where the sides differ.

    A difference that is not finite is tried again at smaller values: float64 may have overflowed.  A result
    that is NaN in float64, such as the mean of no elements, has no value in another field either.
    """
    shown = _compare_once(instance, values, field)
    if shown is None or not isinstance(field, Reals) and _is_undefined(shown):
        return None
    if isinstance(field, Reals) and _has_unspecified_conversion(shown):
        return None
    if shown.is_finite:
        return shown
    return _compare_once(instance, {leaf: _limit_magnitude(v) for leaf, v in values.items()}, field)


def _has_unspecified_conversion(shown: Counterexample) -> bool:
    """Return whether the left side converts a number to a type that lacks it: machines then differ.

    If only the right side does, the rule is wrong.
    """
    values = {shown.instance.nodes[name]: value for name, value in shown.inputs.items()}
    try:
        evaluate_roots(shown.instance.left, values, Reals(strict=True))
    except Overflow:
        return True
    return False


def _is_undefined(shown: Counterexample) -> bool:
    """Return whether float64 has no number on either side at this index, whatever the inputs are."""
    reals = Reals()
    for scale in SCALES:
        values = draw_leaf_values(shown.instance, reals, np.random.default_rng(0))
        values = {leaf: abs(v) * scale if v.dtype.kind == "f" else v for leaf, v in values.items()}
        for roots in (shown.instance.left, shown.instance.right):
            sides = _with_valid_indices(values, partial(evaluate_roots, roots, field=reals))
            side = None if sides is None else sides[shown.root]
            if side is None or side.dtype.kind != "f" or not np.isnan(side[shown.index]).all():
                return False
    return True


def _limit_magnitude(data: Array) -> Array:
    return np.clip(data, -TAME_LIMIT, TAME_LIMIT) if data.dtype.kind == "f" else data


def _compare_once(instance: Instance, values: dict[Node, Array], field: Field) -> Counterexample | None:
    return _with_valid_indices(values, lambda v: _first_difference(instance, v, field))


def _with_valid_indices(values: dict[Node, Array], ask: Callable[[dict[Node, Array]], T]) -> T | None:
    """Return what `ask` returns for the values; if an index is out of bounds, for integers limited to a span.

    None where no span is small enough.
    """
    for span in (None, *INDEX_SPANS):
        moved = values
        if span is not None:
            moved = {leaf: to_indices(v, span, leaf.tensor.dtype) for leaf, v in values.items()}
        try:
            return ask(moved)
        except IndexError:
            continue
    return None


def to_indices(data: Array, span: int, dtype: str) -> Array:
    """Return integers as indices into `span` elements; types with negatives count from both ends."""
    if not is_integer(dtype):
        return data
    below = span if integer_limits(dtype)[0] < 0 else 0
    return (data % (span + below) - below).astype(data.dtype)


def _first_difference(instance: Instance, values: dict[Node, Array], field: Field) -> Counterexample | None:
    left, right = (evaluate_roots(roots, values, field) for roots in (instance.left, instance.right))
    for root, (a, b) in enumerate(zip(left, right, strict=True)):
        if results_differ(a, b, field):
            inputs = {name: values[node] for name, node in instance.nodes.items() if node in values}
            return Counterexample(instance, inputs, a, b, root, field.name)
    return None


def _total_degree(instance: Instance, laws: Laws) -> float:
    """Return the degree of both sides in all drawn leaves."""
    drawn = [leaf for leaf in instance.leaves if leaf.op is CONSTANT and leaf not in instance.pinned]
    return bound_degree((*instance.left, *instance.right), laws, drawn)
