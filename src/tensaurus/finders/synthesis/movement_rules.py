"""Writes the rules by which operators that move elements change places with elementwise operators.

    Transpose(f(x), **a) <=> f(Transpose(x, **a))   for f in Abs Gelu ...

The declarations show which operators move elements; one theorem (`rules/prove/data_movement`) proves the rule
of each pair, so that no pair is enumerated.  Rules that other rules derive are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tensaurus.egraph.match.ruleset import Ruleset
from tensaurus.finders.synthesis.derivable import is_derivable
from tensaurus.ops import Op, registry
from tensaurus.ops.examples import examples_of
from tensaurus.rules.language.evidence import Proved
from tensaurus.rules.language.match import is_commutative
from tensaurus.rules.language.occurrences import inner_first
from tensaurus.rules.language.rule import Rule, parse_rule
from tensaurus.rules.prove.data_movement import is_exchange, moved_inputs
from tensaurus.rules.prove.pointwise import is_elementwise_for_all_types
from tensaurus.rules.test.instances import Instance, instances

__all__ = ["movement_rule_lines"]

NAMES = "xyzwuvstmnpq"
# A rule is left out if other rules derive it at this many instances of floats, and as many of other types.
TRIED_INSTANCES = 2
DRAWN_INSTANCES = 16  # instances that are drawn, among which these are looked for


@dataclass(frozen=True)
class _Call:
    """How f is called: which of its inputs are scalars (`numbers`); the others are tensors of one shape."""

    name: str
    numbers: tuple[bool, ...]

    def fits(self, op: Op) -> bool:
        """Return whether f may be this operator.

        It accepts these inputs, has one output, computes element by element, and no other call means the
        same.
        """
        count = len(self.numbers)
        optional = [given.is_optional for given in op.inputs]
        variadic = op.is_variadic and count == 2
        if not variadic and (count > len(op.inputs) or not all(optional[count:])):
            return False
        if self.numbers[0] and is_commutative(op):
            return False  # the call with the scalar as the last input means the same
        if _count_outputs(op) > 1 or _copies_input(op):
            return False
        given = (True,) * count if variadic else (True,) * count + (False,) * (len(op.inputs) - count)
        return is_elementwise_for_all_types(op, given)


CALLS = (
    _Call("each", (False,)),
    _Call("pairs", (False, False)),
    _Call("each-and-number", (False, True)),
    _Call("number-and-each", (True, False)),
    _Call("each-and-numbers", (False, True, True)),
    _Call("triples", (False, False, False)),
)


class _OtherRules:
    """Other rules, and the names of the operators on their left sides."""

    def __init__(self, rules: Iterable[Rule]):
        self.ruleset = Ruleset(rules)
        terms = (term for rule in self.ruleset.rules for root in rule.lhs for term in inner_first(root))
        self.operators = {term.op.name for term in terms}


def movement_rule_lines(other_rules: Iterable[Rule]) -> list[str]:
    """Return a line for each moving operator and call, for all f whose rule the other rules do not derive."""
    others = _OtherRules(other_rules)
    return [line for op in _movers() for call in CALLS if (line := _line(op, call, others)) is not None]


def _movers() -> Iterator[Op]:
    for _, op in sorted(registry.items()):
        if moved_inputs(op) and not _copies_input(op):
            yield op


def _copies_input(op: Op) -> bool:
    """Return whether the operator returns its input as it is, as Identity does."""
    given = (True,) + (False,) * (len(op.inputs) - 1)
    return moved_inputs(op) == {0} and is_elementwise_for_all_types(op, given)


def _count_outputs(op: Op) -> int:
    """Return the greatest number of outputs at the operator's examples."""
    return max(len(op.scopes(kinds, op.canonical(kinds, dict(attrs)))) for kinds, attrs in examples_of(op))


def _line(mover: Op, call: _Call, others: _OtherRules) -> str | None:
    law = _law(mover, call)
    ops = [
        name
        for name, op in sorted(registry.items())
        if op is not mover and call.fits(op) and _is_new(f"{name}: {law.replace('f(', f'{name}(')}", others)
    ]
    if not ops:
        return None
    name = f"{mover.name.lower()}-of-{call.name}"
    evidence = Proved("algebra", "all sizes, all ranks")
    return f"{name} [any, explore, long]: {law} for f in {' '.join(ops)} | {evidence}"


def _law(mover: Op, call: _Call) -> str:
    """Return the law that the mover and f change places.

        Gather(f(x, y, **b), z, **a) <=> f(Gather(x, z, **a), Gather(y, z, **a), **b) where ...

    Here `inputs` is [["x", "y"], "z"]: f's tensors for an input whose elements are moved, else one name.
    """
    # numbers: the name of each scalar input of f, "" for a tensor
    names = iter(NAMES)
    numbers = [next(names) if number else "" for number in call.numbers]
    moved = moved_inputs(mover)
    input_count = 2 if mover.is_variadic else len(mover.inputs)
    inputs: list[list[str] | str] = []
    conditions = [f"rank({number}) == 0" for number in numbers if number]
    for place in range(input_count):
        if min(place, len(mover.inputs) - 1) in moved:
            tensors = [next(names) for number in numbers if not number]
            inputs.append(tensors)
            conditions += [f"shape({tensors[0]}) == shape({other})" for other in tensors[1:]]
        else:
            inputs.append(next(names))
    output = "[i]" if _count_outputs(mover) > 1 else ""

    def call_f(args: Iterable[str]) -> str:
        tensors = iter(args)
        return f"f({', '.join(number or next(tensors) for number in numbers)}, **b)"

    def call_mover(args: Iterable[str]) -> str:
        return f"{mover.name}({', '.join(args)}, **a){output}"

    inner = call_mover(each if isinstance(each, str) else call_f(each) for each in inputs)
    tensor_count = sum(not number for number in numbers)
    outer = call_f(call_mover(e if isinstance(e, str) else e[k] for e in inputs) for k in range(tensor_count))
    where = f" where {', '.join(conditions)}" if conditions else ""
    return f"{inner} <=> {outer}{where}"


def _is_new(text: str, others: _OtherRules) -> bool:
    """Return whether the theorem proves the rule, and the other rules do not derive both directions."""
    f_name, _, law = text.partition(":")
    rules = parse_rule(f"{f_name} [any]:{law}")
    if not all(map(is_exchange, rules)):
        return False
    if f_name not in others.operators:  # no other rule rewrites f, so none can derive this one
        return True
    tried = [one for rule in rules for one in _typed_instances(rule)]
    return not tried or not all(is_derivable(one.left, one.right, others.ruleset) for one in tried)


def _typed_instances(rule: Rule) -> Iterator[Instance]:
    """Yield instances whose leaves are all floats, and as many others.

    Rules without the tag `any` match floats only: they may derive the former and not the latter.
    """
    count = Counter[bool]()
    for one in instances(rule, DRAWN_INSTANCES):
        is_float = all(leaf.tensor.dtype.startswith("float") for leaf in one.leaves)
        count[is_float] += 1
        if count[is_float] <= TRIED_INSTANCES:
            yield one
