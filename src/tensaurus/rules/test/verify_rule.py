"""Is a rule right?  Its two sides are compared on typed instances, in every field that may tell.

`algebra`    a proof for all sizes, see `proof`
`reals`      float64 with what breaks laws: zeros, signs, magnitudes, integers at the ends of their types
`gf`         random points of GF(2^31-1): a false identity of degree d passes one trial with probability d/p
`z3`         all real elements at the instances' shapes, with the constants that they have pinned
`rationals`  exact fractions with the true max and min, and with numbers around every constant of the rule

What any of them shows to be wrong is refuted, with a counterexample.  What none of them can settle is
unknown, and no rule of a library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import log2
from typing import TypeVar

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
from tensaurus.rules.test.combine_attributes import combined, large
from tensaurus.rules.test.counterexample import Counterexample, differ
from tensaurus.rules.test.draw_elements import Draws, Special, leaf_values, run
from tensaurus.rules.test.instances import MANY, Instance, Maker, elements
from tensaurus.rules.test.thresholds import compared

T = TypeVar("T")

INSTANCES = 40
STEPS = 30_000  # of a proof, about as many seconds as thousands
DIFFERING = 24  # cases in which forms differ that are tried with numbers
MORE = 5  # times as many instances in all, at which what is not proved is not refuted
FEWEST = 3
FEW = 100  # draws of what has few elements for each instance that is wanted, at which it is tried, too
TRIALS = 2
TAME = 8.0  # where a function as exp is still far from the largest float
SCALES = 1.0, -1.0, 0.25  # of inputs, so that some are in the domain of every function
COMBINED = 20  # draws of combinations of attributes for each instance that is wanted
LARGE = 8  # instances with one size of hundreds
SIZE = 4  # larger numbers that a law compares sizes with are tried as sizes before a proof
PLACES = (3, 2, 1)  # ends of a tensor that indices may name
SMALL = 6  # instances that Z3 is asked about, the smallest


@dataclass(frozen=True)
class Refuted:
    """A rule that is wrong, and where."""

    rule: Rule
    counterexample: Counterexample

    @property
    def reason(self) -> str:
        """In one line."""
        return str(self.counterexample)


@dataclass(frozen=True)
class Undecided:
    """A rule of which neither was shown, and why."""

    rule: Rule
    reason: str


def verify(
    rule: Rule, wanted: int = INSTANCES, seed: int = 0, steps: float = STEPS, means: Means = Means.TYPES
) -> Evidence | Refuted | Undecided:
    """The evidence that a rule is right, where it is wrong, or why it is not known.

    What is not refuted is proved for all sizes if it can be within so many steps, and tested otherwise; a
    law that its line calls an axiom is only tried in float64.  Where canonical forms alone may be asked for,
    what they do not prove is undecided.
    """
    maker = Maker(rule, seed)
    instances, special, wrong = _first(maker, wanted, seed)
    if wrong:
        return Refuted(rule, wrong)
    axiom = isinstance(rule.evidence, Axiom) and len(instances) >= FEWEST
    proved = prove(rule, steps, means) if steps and not axiom else None
    if isinstance(proved, Proved):
        return proved
    if means == Means.FORMS and not axiom:
        return Undecided(rule, "the algebra does not prove it")
    # where the forms of both sides differ they may well be wrong, even if no other instance is like it
    unreached: State | None = None
    if proved is not None and proved.differs:
        for state in islice(states_not_proved(rule, steps, means), DIFFERING):
            inside = list(maker.at(state, again=True)) or list(islice(maker.at(state, MANY, again=True), 1))
            if wrong := _wrong(inside, [Reals()] * TRIALS, special):
                return Refuted(rule, wrong)
            if unreached is None and not inside and not is_contradictory(state.assumed):
                unreached = state
    more = [*combined(maker, COMBINED * wanted), *large(maker, LARGE, COMBINED * LARGE)]
    if wrong := _wrong(more, [Reals()], special):
        return Refuted(rule, wrong)
    if (count := len(maker.made)) < FEWEST:
        return Undecided(rule, f"{count or 'no'} instance{'s' * (count > 1)} of it types")
    instances = list(maker.made)
    coverage = f"{maker.coverage}{'' if (said := str(maker.covering)) == '' else f', {said}'}"
    # where most instances compute next to nothing, as windows of one element do, few of them tell
    if wrong := _wrong(list(maker.instances(len(maker.made) + (MORE - 1) * wanted)), [Reals()], special):
        return Refuted(rule, wrong)
    if wrong := _wrong(list(maker.small(FEW * wanted)), [Reals()], special):
        return Refuted(rule, wrong)
    if axiom:
        assert isinstance(rule.evidence, Axiom)
        return rule.evidence
    if unreached is not None:
        return Undecided(rule, f"its sides have different forms, and no instance is like {unreached}")
    for laws, _ in LAW_LADDER:
        fields = [Pairs(seed + t, laws) for t in range(TRIALS)]
        if _wrong(instances, fields, special.uniform()) is None:
            return _tested(instances, laws, fields, coverage)
    if wrong := _wrong(instances, [Rationals(seed + t) for t in range(2 * TRIALS)], special):
        return _confirmed(rule, wrong)
    return _by_z3(rule, coverage, sorted(instances, key=_elements)[:SMALL])


def refuted(rule: Rule, wanted: int = INSTANCES, seed: int = 0) -> Refuted | None:
    """Where a rule is wrong, of what is tried before a proof: for one that is proved already."""
    _, _, wrong = _first(Maker(rule, seed), wanted, seed)
    return Refuted(rule, wrong) if wrong else None


def _first(maker: Maker, wanted: int, seed: int) -> tuple[list[Instance], Special, Counterexample | None]:
    """So many instances, what is drawn for them, and the first that is wrong over the reals; large ones, too,
    where the law compares sizes with numbers."""
    instances = list(maker.instances(wanted))
    special = Special(maker.rule, seed, instances)
    wrong = _wrong(instances, [Reals()] * TRIALS, special)
    if wrong is None and compared(maker.rule) and max(maker.whole, default=0) > SIZE:
        wrong = _wrong(list(large(maker, LARGE, COMBINED * LARGE)), [Reals()], special)
    return instances, special, wrong


def _tested(instances: Sequence[Instance], laws: Laws, fields: Sequence[Pairs], coverage: str) -> Tested:
    """With a bound on the error of what was drawn from the field; of integers alone nothing was."""
    drawn = [(i, {leaf.tensor.dtype[:5] for leaf in i.leaves if leaf not in i.pinned}) for i in instances]
    inside = [instance for instance, kinds in drawn if "float" in kinds]
    if not inside:
        return Tested("gf", coverage, TRIALS)
    degree = max(map(partial(_degree, laws=laws), inside))
    bits = int(-sum(log2(field.error(degree)) for field in fields))
    sampled = any(kinds - {"float"} for _, kinds in drawn)
    return Tested("gf", coverage, TRIALS, bits, sampled)


def _by_z3(rule: Rule, coverage: str, smallest: Sequence[Instance]) -> Evidence | Refuted | Undecided:
    """No proof of the rule: what the instances pin (sizes, attributes, constants) is a sample.

    Of those that Z3 has no terms of, as of the maximum of nothing, nothing is said, if there are others.
    """
    without: list[str] = []
    for instance in smallest:
        terms = Terms()
        try:
            values = leaf_values(instance, terms, np.random.default_rng(0))
            sides = [run(roots, values, terms) for roots in (instance.left, instance.right)]
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
            shown = _compared(instance, exact, Rationals())
            if shown is None:
                return Undecided(rule, f"Z3's counterexample says nothing of output {place}, at {instance}")
            return _confirmed(rule, shown)
    if len(without) == len(smallest):
        return Undecided(rule, f"Z3 has no term of it: {without[0]}")
    return Tested("z3", f"{coverage}, all reals at {len(smallest) - len(without)} of them")


def _confirmed(rule: Rule, wrong: Counterexample) -> Refuted | Undecided:
    """Whether a difference in exact fractions is one in float64, too.

    There, functions as exp are what they are, and not any function.
    """
    values = {
        wrong.instance.nodes[name]: value.astype(np.float64) if value.dtype.kind == "O" else value
        for name, value in wrong.inputs.items()
    }
    shown = _tried(wrong.instance, values, Reals())
    if shown is not None:
        return Refuted(rule, shown)
    return Undecided(rule, f"it rests on more than is known of its functions: {wrong}")


def _elements(instance: Instance) -> int:
    return sum(elements(leaf.tensor) for leaf in instance.leaves)


def _wrong(instances: Sequence[Instance], fields: Sequence[Field], draws: Draws) -> Counterexample | None:
    """The first instance on which the sides differ."""
    for place, instance in enumerate(instances):
        for trial, field in enumerate(fields):
            values = leaf_values(instance, field, np.random.default_rng((draws.seed, place, trial)), draws)
            if (shown := _tried(instance, values, field)) is not None:
                return shown
    return None


def _tried(instance: Instance, values: dict[Node, Array], field: Field) -> Counterexample | None:
    """Where the sides differ; at tamer values too, where it may be that the range of float64 ends.

    What is no number at all, as the mean of nothing, has no value in another field either.
    """
    shown = _compared(instance, values, field)
    if shown is None or not isinstance(field, Reals) and _undefined(shown):
        return None
    if isinstance(field, Reals) and _unspecified(shown):
        return None
    if shown.finite:
        return shown
    return _compared(instance, {leaf: _tamed(v) for leaf, v in values.items()}, field)


def _unspecified(shown: Counterexample) -> bool:
    """Whether a number on the left side is none of its type, of which every machine makes something else.

    Where it is one on the right side alone, that is no law.
    """
    values = {shown.instance.nodes[name]: value for name, value in shown.inputs.items()}
    try:
        run(shown.instance.left, values, Reals(strict=True))
    except Overflow:
        return True
    return False


def _undefined(shown: Counterexample) -> bool:
    """Whether float64 has no number on either side where these differ, whatever the inputs are."""
    reals = Reals()
    for scale in SCALES:
        values = leaf_values(shown.instance, reals, np.random.default_rng(0))
        values = {leaf: abs(v) * scale if v.dtype.kind == "f" else v for leaf, v in values.items()}
        for roots in (shown.instance.left, shown.instance.right):
            sides = _where_places_are(values, partial(run, roots, field=reals))
            side = None if sides is None else sides[shown.root]
            if side is None or side.dtype.kind != "f" or not np.isnan(side[shown.place]).all():
                return False
    return True


def _tamed(data: Array) -> Array:
    return np.clip(data, -TAME, TAME) if data.dtype.kind == "f" else data


def _compared(instance: Instance, values: dict[Node, Array], field: Field) -> Counterexample | None:
    """Where the sides differ."""
    return _where_places_are(values, lambda v: _differing(instance, v, field))


def _where_places_are(values: dict[Node, Array], ask: Callable[[dict[Node, Array]], T]) -> T | None:
    """What is asked of the values; where integers are places that there are not, of others, if any are."""
    for span in (None, *PLACES):
        moved = values
        if span is not None:
            moved = {leaf: within(v, span, leaf.tensor.dtype) for leaf, v in values.items()}
        try:
            return ask(moved)
        except IndexError:
            continue
    return None


def within(data: Array, span: int, dtype: str) -> Array:
    """Integers of a type that are places in so many elements, where it has negative ones from both ends."""
    if not is_integer(dtype):
        return data
    below = span if integer_limits(dtype)[0] < 0 else 0
    return (data % (span + below) - below).astype(data.dtype)


def _differing(instance: Instance, values: dict[Node, Array], field: Field) -> Counterexample | None:
    left, right = (run(roots, values, field) for roots in (instance.left, instance.right))
    for root, (a, b) in enumerate(zip(left, right, strict=True)):
        if differ(a, b, field):
            inputs = {name: values[node] for name, node in instance.nodes.items() if node in values}
            return Counterexample(instance, inputs, a, b, root, field.name)
    return None


def _degree(instance: Instance, laws: Laws) -> float:
    """Of both sides, in every leaf that is drawn."""
    drawn = [leaf for leaf in instance.leaves if leaf.op is CONSTANT and leaf not in instance.pinned]
    return bound_degree((*instance.left, *instance.right), laws, drawn)
