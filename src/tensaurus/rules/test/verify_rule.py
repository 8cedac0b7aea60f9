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

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import log2
from typing import TypeAlias

import numpy as np

from tensaurus.expr.evaluate.fields import Rationals, Reals, Z3Terms
from tensaurus.expr.evaluate.two_point_field import LAW_LADDER, Laws, PrimeFieldPairs
from tensaurus.graph.analysis.program_degree import bound_degree
from tensaurus.graph.ir.node import CONSTANT
from tensaurus.rules.language.evidence import Axiom, Evidence, Proved, Tested
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.prove.expression_prover import Methods
from tensaurus.rules.prove.proof import prove, states_not_proved
from tensaurus.rules.prove.rule_case import CaseState
from tensaurus.rules.prove.solve_sizes import is_contradictory
from tensaurus.rules.test.combine_attributes import combine_attributes, large_instances
from tensaurus.rules.test.compare_sides import compare, compare_once, find_counterexample
from tensaurus.rules.test.counterexample import Counterexample
from tensaurus.rules.test.draw_elements import BreakingDraws, draw_leaf_values, evaluate_roots
from tensaurus.rules.test.instances import MANY_DRAWS, Instance, InstanceMaker, element_count
from tensaurus.rules.test.thresholds import comparisons_in

INSTANCES = 40  # wanted instances of a rule
PROOF_STEPS = 30_000  # `ProofBudget` of a proof: about 30 seconds
MAX_STATES_NOT_PROVED = 24  # states with different forms that are tried with numbers
INSTANCES_FACTOR = 5  # a rule that is not proved is tried on five times the wanted instances
MIN_INSTANCES = 3  # a rule with fewer instances is undecided
SMALL_DRAWS = 100  # draws of few elements for each wanted instance
TRIALS = 2  # of each instance, with other elements
DRAWS_PER_INSTANCE = 20  # draws of combinations of attributes for each wanted instance
LARGE_INSTANCES = 8  # instances with one size of hundreds
LARGE_DRAWS = LARGE_INSTANCES * DRAWS_PER_INSTANCE  # most draws of them
MIN_LARGE_NUMBER = 4  # if the law compares sizes with larger numbers, large instances come before a proof
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
    rule: Rule,
    wanted: int = INSTANCES,
    seed: int = 0,
    steps: float = PROOF_STEPS,
    methods: Methods = Methods.SOLVED_SIZES,
) -> Verdict:
    """Return the evidence that a rule is right, or a counterexample, or why the rule is undecided.

    A rule that is not refuted is proved for all sizes, if `steps` suffice, and tested otherwise.  A law that
    its line calls an axiom is only tried in float64.  If `methods` are canonical forms only, a rule that they
    do not prove is undecided.
    """
    trial = _Trial(rule, wanted, seed)
    if found := trial.try_first_instances():
        return Refuted(rule, found)
    axiom = rule.evidence if isinstance(rule.evidence, Axiom) else None
    if len(trial.first_instances) < MIN_INSTANCES:
        axiom = None
    proved = prove(rule, steps, methods) if steps and axiom is None else None
    if isinstance(proved, Proved):
        return proved
    if methods == Methods.FORMS and axiom is None:
        return Undecided(rule, "the algebra does not prove it")
    untried: CaseState | None = None
    if proved is not None and proved.differs:
        found, untried = trial.try_states(states_not_proved(rule, steps, methods))
        if found:
            return Refuted(rule, found)
    if found := trial.try_combined_attributes():
        return Refuted(rule, found)
    made = trial.maker.made
    if (count := len(made)) < MIN_INSTANCES:
        return Undecided(rule, f"{count or 'no'} instance{'s' * (count > 1)} of it types")
    # these are the instances of the evidence; others below are only tried in float64
    instances = list(made)
    coverage = ", ".join(filter(None, (str(trial.maker.coverage), str(trial.maker.covering))))
    if found := trial.try_many_instances():
        return Refuted(rule, found)
    if axiom is not None:
        return axiom
    if untried is not None:
        return Undecided(rule, f"its sides have different forms, and no instance is like {untried}")
    return _check_in_exact_fields(rule, instances, trial.draws, coverage)


def refute(rule: Rule, wanted: int = INSTANCES, seed: int = 0) -> Refuted | None:
    """Return a counterexample among the instances tried before a proof; for a rule that is already proved."""
    found = _Trial(rule, wanted, seed).try_first_instances()
    return Refuted(rule, found) if found else None


class _Trial:
    """Tries a rule in float64: each method returns the first counterexample among other instances."""

    def __init__(self, rule: Rule, wanted: int, seed: int):
        self.wanted = wanted
        self.maker = InstanceMaker(rule, seed)
        self.first_instances = list(self.maker.instances(wanted))
        self.draws = BreakingDraws(rule, seed, self.first_instances)

    def try_first_instances(self) -> Counterexample | None:
        """Try the first instances, and large ones where the law compares sizes with numbers."""
        found = self._try(self.first_instances, TRIALS)
        largest = max(self.maker.law_integers, default=0)
        if found is None and comparisons_in(self.maker.rule) and largest > MIN_LARGE_NUMBER:
            found = self._try(large_instances(self.maker, LARGE_INSTANCES, LARGE_DRAWS))
        return found

    def try_states(self, states: Iterator[CaseState]) -> tuple[Counterexample | None, CaseState | None]:
        """Try instances of states with different forms, and return the first state that has none, too.

        Different forms may mean that the rule is wrong in a case that no instance so far belongs to.
        """
        untried: CaseState | None = None
        for state in islice(states, MAX_STATES_NOT_PROVED):
            inside = list(self.maker.instances_of_state(state, include_known=True))
            if not inside:
                rare = self.maker.instances_of_state(state, MANY_DRAWS, include_known=True)
                inside = list(islice(rare, 1))
            if found := self._try(inside, TRIALS):
                return found, untried
            if untried is None and not inside and not is_contradictory(state.assumed):
                untried = state
        return None, untried

    def try_combined_attributes(self) -> Counterexample | None:
        """Try instances that single changes do not reach."""
        combined = combine_attributes(self.maker, DRAWS_PER_INSTANCE * self.wanted)
        return self._try([*combined, *large_instances(self.maker, LARGE_INSTANCES, LARGE_DRAWS)])

    def try_many_instances(self) -> Counterexample | None:
        """Try more instances: most may compute almost nothing, such as windows of one element."""
        count = len(self.maker.made) + (INSTANCES_FACTOR - 1) * self.wanted
        found = self._try(self.maker.instances(count))
        return found or self._try(self.maker.small_instances(SMALL_DRAWS * self.wanted))

    def _try(self, instances: Iterable[Instance], trials: int = 1) -> Counterexample | None:
        return find_counterexample(list(instances), [Reals()] * trials, self.draws)


def _check_in_exact_fields(
    rule: Rule, instances: Sequence[Instance], draws: BreakingDraws, coverage: str
) -> Verdict:
    """Compare both sides in GF(p) with as few laws as it takes, then in exact fractions, then by Z3."""
    for laws, _ in LAW_LADDER:
        fields = [PrimeFieldPairs(draws.seed + t, laws) for t in range(TRIALS)]
        if find_counterexample(instances, fields, draws.uniform()) is None:
            return _gf_evidence(instances, laws, fields, coverage)
    rationals = [Rationals(draws.seed + t) for t in range(2 * TRIALS)]
    if found := find_counterexample(instances, rationals, draws):
        return _confirm_in_float64(rule, found)
    return _check_by_solver(rule, coverage, sorted(instances, key=_leaf_elements)[:SOLVER_INSTANCES])


def _gf_evidence(
    instances: Sequence[Instance], laws: Laws, fields: Sequence[PrimeFieldPairs], coverage: str
) -> Tested:
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
        terms = Z3Terms()
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
            shown = compare_once(instance, exact, Rationals())
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
    shown = compare(found.instance, values, Reals())
    if shown is not None:
        return Refuted(rule, shown)
    return Undecided(rule, f"it rests on more than is known of its functions: {found}")


def _leaf_elements(instance: Instance) -> int:
    return sum(element_count(leaf.tensor) for leaf in instance.leaves)


def _total_degree(instance: Instance, laws: Laws) -> float:
    """Return the degree of both sides in all drawn leaves."""
    drawn = [leaf for leaf in instance.leaves if leaf.op is CONSTANT and leaf not in instance.pinned]
    return bound_degree((*instance.left, *instance.right), laws, drawn)
