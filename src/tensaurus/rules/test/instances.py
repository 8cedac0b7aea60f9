"""Typed instances of a rule: concrete nodes on which both of its sides exist, drawn to break the law.

Types and attributes are proposed from the examples of the operators in the rule, from a small pool, and
from what is already known (its broadcastable parts); sizes are made to coincide, or to be 1.  What the left
side does not type, or the conditions refuse, is thrown away.  Where nothing is left, sizes are drawn for the
cases of a proof, which have them from what the rule asks for.

From each instance others are made by one or two changes: a size of one tensor, or of all that have it, an
element of an attribute, a sign, a rank, an element type.  What has been the same in all instances (two
sizes, an attribute) is tried to be made different before any other change: see `coverage`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from math import prod
from typing import Any

import numpy as np

from tensaurus.expr.analysis.breaking_values import draw_integers
from tensaurus.expr.ir.scope import Body
from tensaurus.graph.ir.node import CONSTANT, Node, constant, source
from tensaurus.graph.ir.program import topological_order
from tensaurus.ops import TensorType
from tensaurus.ops.examples import examples_of
from tensaurus.rules.language.match import Binding, Matcher, build_term
from tensaurus.rules.language.occurrences import attribute_expressions, outer_first
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.language.term import Apply
from tensaurus.rules.prove.attribute_domain import MAX_RANK, domain_of
from tensaurus.rules.prove.case_split import CaseSplit, ProofStopped, StepBudget
from tensaurus.rules.prove.rule_case import Case, State
from tensaurus.rules.test.coverage import Coverage, flat
from tensaurus.rules.test.covering_array import Covering
from tensaurus.rules.test.draw_types import UNBUILT, Assignment
from tensaurus.rules.test.mutate_instance import Change
from tensaurus.rules.test.thresholds import numbers_in, picked

LARGEST = 400  # elements of one tensor of an instance
ATTEMPTS = 6000  # proposals until there is an instance
TRIES = 150  # for each that is wanted, where there is one
FOCUS = 12  # tries of each example of each operator, before they are drawn at random
LAST = 100  # tries of a change of attributes that never changed
DRAWS = 30  # of sizes for a case
CASES = 6  # of a proof, of each rank, of which instances are drawn where the examples give none
EACH = 8  # of these cases give all that are wanted
FRUITLESS = 200  # draws of few elements, after which there are no more where none types
MANY = 300  # draws of sizes for a case
STEPS = 3000  # to find them
INSIDE = 4  # times the largest tensor: elements of what is computed on the way
AROUND = (-1, -1 / 8, 0, 1 / 8, 1)  # a number of the law
CHANGES = 12  # tries of a change for each instance that is wanted


@dataclass(frozen=True)
class Instance:
    """Both sides of a rule on concrete leaves.  `pinned` leaves keep the values that conditions saw.

    `nodes` are the leaves by the variables' names, `values` the attributes by theirs.
    """

    left: tuple[Node, ...]
    right: tuple[Node, ...]
    nodes: Mapping[str, Node]
    values: Mapping[str, Any]
    pinned: frozenset[Node]

    @property
    def leaves(self) -> tuple[Node, ...]:
        """In the order of their names."""
        return tuple(self.nodes[name] for name in sorted(self.nodes))

    def __str__(self) -> str:
        said = [f"{name} {self.nodes[name].type}" for name in sorted(self.nodes)]
        said += [f"{name}={value}" for name, value in sorted(flat(self.values).items())]
        return ", ".join(said)


def _asked(rule: Rule, *functions: str, negated: bool = False) -> set[str]:
    """Variables x with function(x) in the right side or in a condition; under `not` only where `negated`."""
    names: set[str] = set()

    def visit(tree: ast.AST) -> None:
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not) and not negated:
            return
        match tree:
            case ast.Call(func=ast.Name(id=name), args=args) if name in functions:
                names.update(a.id for a in args if isinstance(a, ast.Name))
        for child in ast.iter_child_nodes(tree):
            visit(child)

    for condition in rule.where:
        visit(condition)
    for tree in (tree for root in rule.rhs for tree in attribute_expressions(root)):
        visit(tree)
    return names


def _held_equal(rule: Rule) -> dict[str, frozenset[str]]:
    """Of each name, those that a condition holds equal to it."""
    equal: dict[str, frozenset[str]] = {}
    for condition in rule.where:
        match condition:
            case ast.Compare(left=ast.Name(id=a), ops=[ast.Eq()], comparators=[ast.Name(id=b)]):
                group = equal.get(a, frozenset({a})) | equal.get(b, frozenset({b}))
                equal.update(dict.fromkeys(group, group))
    return equal


def instances(rule: Rule, wanted: int, seed: int = 0) -> Iterator[Instance]:
    """Up to `wanted` different instances of a rule, the same for the same seed."""
    return Maker(rule, seed).instances(wanted)


class Maker:
    """Instances of one rule, none of them twice, and what they cover."""

    def __init__(self, rule: Rule, seed: int):
        self.rule = rule
        self.rng = np.random.default_rng(seed)
        self.matcher = Matcher(replace(rule, evidence=None))  # what was shown before is no limit
        self.filled = _asked(rule, "filled", negated=True)
        self.fixed = _asked(rule, "value", "positive", negated=True) | self.filled
        self.static = _asked(rule, "const") | self.fixed
        self.applications = [call for root in rule.lhs for call in outer_first(root)]
        self.seen: dict[Any, Instance] = {}
        self.made: list[Instance] = []
        self.coverage, self.covering = Coverage(), Covering(picked(rule))
        self.numbers = sorted(numbers_in(rule))
        self.whole = [int(n) for n in self.numbers if n.denominator == 1]
        self.tied = _held_equal(rule)
        # the examples of each operator that no instance was made of; each is given some tries
        ops = dict.fromkeys(term.op for term in self.applications)
        self.waiting = [(op, place) for op in ops for place in range(len(examples_of(op)))] * FOCUS

    def instances(self, wanted: int) -> Iterator[Instance]:
        """Up to so many; half of them are proposed, the others are made of those before.

        Beyond them some in which an attribute is another that was the same in all.
        """
        for attempt in range(ATTEMPTS):
            if len(self.made) * 2 >= wanted or self.made and attempt >= TRIES * wanted:
                break
            instance = self.proposed()
            if instance is not None:
                yield instance
        if not self.made:  # no example is like what the rule asks for
            some = []
            for state in self._cases():
                before = len(self.made)
                yield from islice(self.at(state, MANY), -(-wanted // EACH))
                if len(self.made) > before:
                    some.append(state)
                if len(self.made) >= wanted:
                    break
            for state in some:  # few cases give more of each
                yield from islice(self.at(state, MANY), max(0, wanted - len(self.made)))
        for _ in range(CHANGES * wanted):
            if not self.made or len(self.made) >= wanted:
                break
            instance = self.changed()
            if instance is not None:
                yield instance

        for _ in range(LAST if self.made else 0):
            if not self.coverage.constant:
                break
            instance = self.changed(self.coverage.constant)
            if instance is not None:
                yield instance

    def _cases(self) -> Iterator[State]:
        """Symbolic types and values at which the rule applies, as far as so many steps come."""
        steps = StepBudget(STEPS)
        try:
            for rank in range(MAX_RANK + 1):
                cases = (case for case in CaseSplit(self.rule, rank, steps=steps) if isinstance(case, Case))
                for case in islice(cases, CASES):
                    yield case.state
        except (ProofStopped, RecursionError):  # sizes that are nested too deeply
            return

    def at(self, state: State, draws: int = DRAWS, again: bool = False) -> Iterator[Instance]:
        """Those that are drawn at the types and values of a case of a proof.

        Others, or those that there are `again`: then with all sizes as they are written.
        """
        for _ in range(draws):
            drawn = state.draw_numbers(self.rng)
            if drawn is not None and not any(isinstance(v, Body) for v in flat(drawn.values).values()):
                instance = self.instance(drawn.types, drawn.values, written=again, again=again)
                if instance is not None:
                    yield instance

    def small(self, tries: int) -> Iterator[Instance]:
        """Those among so many draws of few elements; none where none of the first FRUITLESS types."""
        typed = False
        for place in range(tries):
            if place >= FRUITLESS and not typed:
                return
            assignment = Assignment(self.rule, self.rng)
            if assignment.draw_small(self.applications):
                typed = True
                instance = self.instance(assignment.types, assignment.values, written=True)
                if instance is not None:
                    yield instance

    def proposed(self) -> Instance | None:
        """One from the operators' examples; None where this one is none."""
        assignment = Assignment(self.rule, self.rng)
        first = self.waiting.pop(0) if self.waiting else None
        assignment.draw(self.applications, dict([first]) if first else {})
        instance = self.instance(assignment.types, assignment.values)
        if instance is not None:
            self.waiting = [other for other in self.waiting if other != first]
        return instance

    def changed(self, names: Sequence[str] = ()) -> Instance | None:
        """One that differs a little from one that there is, in one of these attributes where some are named.

        None where this one is none.
        """
        rng = self.rng
        old = self.made[int(rng.integers(len(self.made)))]
        change = self.change_of(old)
        tied, unvaried = self.coverage.tied, self.coverage.unvaried
        draw = rng.random()
        if names:
            change.attribute(names[int(rng.integers(len(names)))])
        elif tied and draw < 0.4:
            change.untie(tied[int(rng.integers(len(tied)))])
        elif unvaried and draw < 0.7:
            change.attribute(unvaried[int(rng.integers(len(unvaried)))])
        else:
            change.anything("any" in self.rule.tags)
        while rng.random() < 0.4:
            change.anything("any" in self.rule.tags)
        return self.instance(change.types, change.values)

    def change_of(self, old: Instance) -> Change:
        """What may be changed of an instance."""
        types = {name: node.tensor for name, node in old.nodes.items()}
        return Change(types, dict(old.values), self.applications, self.rng, self.tied, self.whole)

    def instance(
        self,
        types: Mapping[str, TensorType],
        values: Mapping[str, Any],
        written: bool = False,
        largest: int = LARGEST,
        again: bool = False,
    ) -> Instance | None:
        """With sizes among attributes as they are `written`, or all in the form that operators give them.

        A program whose sizes are symbols keeps sizes as they are written; axes are counted from the begin.
        No leaf and no result has more than `largest` elements.  None where there is none, and where there is
        one already, unless it may be had `again`.
        """
        if not all(_usable(kind, self.rule, largest) for kind in types.values()):
            return None
        binding = Binding({}, dict(values))
        for name, kind in types.items():
            if name in self.static:
                data = _data(kind, self.rng, self.numbers, name in self.fixed)
                if name in self.filled and data.size and self.rng.random() < 0.9:
                    data = np.full_like(data, data.flat[0])
                binding.nodes[name] = constant(data)
            else:
                binding.nodes[name] = source(name, kind)
        made = self._built(binding, written)
        if made is None:
            return None
        left, right, bound = made
        if any(elements(root.tensor) > largest for root in left):
            return None
        if largest > LARGEST and _most_elements((*left, *right)) > INSIDE * largest:
            return None
        kinds = tuple(bound.nodes[name].types[0] for name in sorted(bound.nodes))
        data = tuple(n.attribute("data") for k, n in sorted(bound.nodes.items()) if k in self.fixed)
        key = (kinds, data, repr(sorted(flat(bound.values).items())))
        if key in self.seen:
            return self.seen[key] if again else None
        # commutative arguments may have changed places
        pinned = frozenset(
            bound.nodes[n] for n in self.fixed & {*bound.nodes} if bound.nodes[n].op is CONSTANT
        )
        instance = Instance(left, right, bound.nodes, bound.values, pinned)
        self.seen[key] = instance
        self.made.append(instance)
        self.coverage.add(instance.nodes, flat(instance.values))
        self.covering.add(instance.nodes, flat(instance.values))
        return instance

    def _built(
        self, binding: Binding, written: bool
    ) -> tuple[tuple[Node, ...], tuple[Node, ...], Binding] | None:
        """Both sides, and what is bound; with the attributes as they are given where they are `written`."""
        dtype = next((node.tensor.dtype for node in binding.nodes.values()), "float32")
        try:
            left: tuple[Node, ...] = tuple(build_term(root, binding, dtype) for root in self.rule.lhs)  # type: ignore[misc]
            if written and not all(_in_form(term, binding, dtype) for term in self.applications):
                return None
            for bound in [binding] if written else self.matcher.bindings(left):
                right = self.matcher.apply(left, bound)
                if right is not None:
                    return left, right, bound
        except UNBUILT:
            return None
        return None


def _in_form(term: Apply, binding: Binding, dtype: str) -> bool:
    """Whether all that are no sizes are written as operators have them: an axis is counted from the begin."""
    given = {name: binding.values[tree.id] for name, tree in term.attrs if isinstance(tree, ast.Name)}
    if term.rest is not None:
        given |= binding.values[term.rest]
    made = build_term(term, binding, dtype, every=True)
    assert made is not None
    own = dict(made.attrs)
    return all(own[n] == value or domain_of(term.op, n).kind == "sizes" for n, value in given.items())


def _usable(kind: TensorType, rule: Rule, largest: int) -> bool:
    plain = "any" in rule.tags or kind.dtype in ("float32", "float64")
    return kind.static and plain and elements(kind) <= largest


def elements(kind: TensorType) -> int:
    """How many elements a tensor of known sizes has."""
    return prod(n for n in kind.shape if isinstance(n, int))


def _most_elements(roots: tuple[Node, ...]) -> int:
    kinds = (kind for node in topological_order(roots) for kind in node.types)
    return max((elements(kind) for kind in kinds if isinstance(kind, TensorType)), default=0)


def _numbers(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Multiples of 1/8, mostly above zero: all of them, all but a few, or as it comes."""
    draw = rng.random()
    if draw < 0.6:
        return rng.integers(1, 40, shape) / 8
    if draw < 0.8:
        return rng.integers(-12, 13, shape) / 8
    return rng.integers(0, 3, shape) / 2


def _data(kind: TensorType, rng: np.random.Generator, own: Sequence[Fraction], pinned: bool) -> Any:
    """Dyadic numbers: exact in every field; where the law asks for them, around its `own`, too."""
    shape = tuple(n for n in kind.shape if isinstance(n, int))
    if not kind.dtype.startswith("float"):
        return draw_integers(kind.dtype, shape, rng, [int(n) for n in own if n.denominator == 1])
    if pinned and own and rng.random() < 0.3:
        around = [float(n) + step for n in own for step in AROUND]
        return np.asarray(rng.choice(around, shape)).astype(kind.dtype)
    if pinned:
        return np.asarray(_numbers(rng, shape)).astype(kind.dtype)
    # odd 64ths: no literal of a rule is one, so no leaf is the same node as a literal
    return np.asarray((2 * rng.integers(-400, 400, shape) + 1) / 64).astype(kind.dtype)

