"""Rules for what needs no enumeration: what moves elements and what computes each change places.

Which operators do is read off their declarations, and the theorem of `rules/prove/data_movement` proves a
rule for every pair of them; what other rules derive is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tensaurus.egraph.match.ruleset import Ruleset
from tensaurus.finders.synthesis.derivable import derived
from tensaurus.ops import Op, registry
from tensaurus.ops.examples import examples_of
from tensaurus.rules.language.evidence import Proved
from tensaurus.rules.language.match import is_commutative
from tensaurus.rules.language.occurrences import inner_first
from tensaurus.rules.language.rule import Rule, parse_rule
from tensaurus.rules.prove.data_movement import is_exchange, moved_inputs
from tensaurus.rules.prove.pointwise import is_elementwise_for_all_types
from tensaurus.rules.test.instances import Instance, instances

__all__ = ["lines"]

NAMES = "xyzwuvstmnpq"
TRIED = 2  # instances of each element type at which other rules are asked to derive one
DRAWN = 16  # instances, among which these are


@dataclass(frozen=True)
class _Call:
    """How f is called: its inputs are tensors of one shape, or numbers."""

    name: str
    numbers: tuple[bool, ...]

    def fits(self, op: Op) -> bool:
        """Whether the operator takes so many inputs, and says something new of these."""
        count = len(self.numbers)
        optional = [given.is_optional for given in op.inputs]
        variadic = op.is_variadic and count == 2
        if not variadic and (count > len(op.inputs) or not all(optional[count:])):
            return False
        if self.numbers[0] and is_commutative(op):
            return False  # the number may as well come last
        if _outputs(op) > 1 or _is_its_input(op):
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


class _Known:
    """Other rules, and the operators that they are about."""

    def __init__(self, rules: Iterable[Rule]):
        self.ruleset = Ruleset(rules)
        terms = (term for rule in self.ruleset.rules for root in rule.lhs for term in inner_first(root))
        self.operators = {term.op.name for term in terms}


def lines(known: Iterable[Rule]) -> list[str]:
    """A line for each operator that moves and each way to call one that computes, without what is derived."""
    others = _Known(known)
    return [line for op in _movers() for call in CALLS if (line := _line(op, call, others)) is not None]


def _movers() -> Iterator[Op]:
    for _, op in sorted(registry.items()):
        if moved_inputs(op) and not _is_its_input(op):
            yield op


def _is_its_input(op: Op) -> bool:
    given = (True,) + (False,) * (len(op.inputs) - 1)
    return moved_inputs(op) == {0} and is_elementwise_for_all_types(op, given)


def _outputs(op: Op) -> int:
    """How many, at most, at its examples."""
    return max(len(op.scopes(kinds, op.canonical(kinds, dict(attrs)))) for kinds, attrs in examples_of(op))


def _line(mover: Op, call: _Call, known: _Known) -> str | None:
    law = _law(mover, call)
    ops = [
        name
        for name, op in sorted(registry.items())
        if op is not mover and call.fits(op) and _new(f"{name}: {law.replace('f(', f'{name}(')}", known)
    ]
    if not ops:
        return None
    name = f"{mover.name.lower()}-of-{call.name}"
    evidence = Proved("algebra", "all sizes, all ranks")
    return f"{name} [any, explore, long]: {law} for f in {' '.join(ops)} | {evidence}"


def _law(mover: Op, call: _Call) -> str:
    """f of what is moved, as what is moved of f."""
    names = iter(NAMES)
    numbers = [next(names) if number else "" for number in call.numbers]
    moved = moved_inputs(mover)
    count = 2 if mover.is_variadic else len(mover.inputs)
    inputs: list[list[str] | str] = []  # of the mover: what f reads in its place, or what is no part of f
    conditions = [f"rank({number}) == 0" for number in numbers if number]
    for place in range(count):
        if min(place, len(mover.inputs) - 1) in moved:
            own = [next(names) for number in numbers if not number]
            inputs.append(own)
            conditions += [f"shape({own[0]}) == shape({other})" for other in own[1:]]
        else:
            inputs.append(next(names))
    output = "[i]" if _outputs(mover) > 1 else ""

    def called(args: Iterable[str]) -> str:
        """f of these, and of the numbers in their places."""
        rest = iter(args)
        return f"f({', '.join(number or next(rest) for number in numbers)}, **b)"

    def on(args: Iterable[str]) -> str:
        return f"{mover.name}({', '.join(args)}, **a){output}"

    inner = on(each if isinstance(each, str) else called(each) for each in inputs)
    tensors = sum(not number for number in numbers)
    outer = called(on(e if isinstance(e, str) else e[k] for e in inputs) for k in range(tensors))
    where = f" where {', '.join(conditions)}" if conditions else ""
    return f"{inner} <=> {outer}{where}"


def _new(text: str, known: _Known) -> bool:
    """Whether it is right, and not derived in both directions."""
    name, _, law = text.partition(":")
    rules = parse_rule(f"{name} [any]:{law}")
    if not all(map(is_exchange, rules)):
        return False
    if name not in known.operators:
        return True
    tried = [one for rule in rules for one in _of_each_type(rule)]
    return not tried or not all(derived(one.left, one.right, known.ruleset) for one in tried)


def _of_each_type(rule: Rule) -> Iterator[Instance]:
    """Some instances of floats alone, and some others: a rule of floats derives none of integers."""
    count = Counter[bool]()
    for one in instances(rule, DRAWN):
        floats = all(leaf.tensor.dtype.startswith("float") for leaf in one.leaves)
        count[floats] += 1
        if count[floats] <= TRIED:
            yield one
