"""Make typed instances of a rule: concrete nodes on which both sides exist, drawn so that wrong laws fail.

    Transpose(Relu(x), perm=p) => Relu(Transpose(x, perm=p))     x float32[2, 3], p=(1, 0)
                                                                 x float32[2, 2, 3], p=(2, 0, 1)

Types and attributes are drawn from the examples of the rule's operators (`draw_types`).  Where the left side
does not type, or a condition refuses it, there is no instance.  If no draw gives an instance, sizes are drawn
for the cases of a proof, which follow from the rule's requirements.

Instances are then mutated by a few changes of sizes, attributes, ranks and element types (`mutate_instance`).
Attributes and pairs of sizes that had one value in all instances are changed first (`coverage`).
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
from tensaurus.rules.prove.case_split import CaseSplit, ProofBudget, ProofStopped
from tensaurus.rules.prove.rule_case import Case, CaseState
from tensaurus.rules.test.coverage import Coverage, flatten_attributes
from tensaurus.rules.test.covering_array import Covering
from tensaurus.rules.test.draw_types import BUILD_ERRORS, Assignment
from tensaurus.rules.test.mutate_instance import Mutation
from tensaurus.rules.test.thresholds import indexed_tuples, numbers_in

MAX_TENSOR_ELEMENTS = 400  # elements of one tensor of an instance
ATTEMPTS = 6000  # most proposals
PROPOSALS_PER_INSTANCE = 150  # most proposals for each wanted instance, once there is an instance
TRIES_PER_EXAMPLE = 12  # tries of each example of each operator, before examples are drawn at random
FINAL_CHANGES = 100  # last changes of attributes that had one value in all instances
DRAWS_PER_STATE = 30  # draws of sizes for a state of a proof
CASES_PER_RANK = 6  # cases of a proof, for each rank, that are used where examples give no instance
CASES_FOR_ALL = 8  # a case gives at most 1/8 of the wanted instances, so that several cases are used
MAX_UNTYPED_DRAWS = 200  # if the first 200 small draws do not type, no more are made
MANY_DRAWS = 300  # draws of sizes for a state where instances are rare
CASE_STEPS = 3000  # steps (`ProofBudget`) for finding the cases
INNER_ELEMENTS_FACTOR = 4  # how many times larger than the largest leaf intermediate results may be
LITERAL_STEPS = (-1, -1 / 8, 0, 1 / 8, 1)  # added to a number of the law
CHANGES_PER_INSTANCE = 12  # mutations for each wanted instance


@dataclass(frozen=True)
class Instance:
    """Both sides of a rule on concrete leaves.

    nodes   the leaves, by the variables' names
    values  the attributes, by their names
    pinned  leaves that keep their elements, since conditions depend on them
    """

    left: tuple[Node, ...]
    right: tuple[Node, ...]
    nodes: Mapping[str, Node]
    values: Mapping[str, Any]
    pinned: frozenset[Node]

    @property
    def leaves(self) -> tuple[Node, ...]:
        """The leaves in the order of their names."""
        return tuple(self.nodes[name] for name in sorted(self.nodes))

    def __str__(self) -> str:
        parts = [f"{name} {self.nodes[name].type}" for name in sorted(self.nodes)]
        parts += [f"{name}={value}" for name, value in sorted(flatten_attributes(self.values).items())]
        return ", ".join(parts)


def _arguments_of(rule: Rule, *functions: str, negated: bool = False) -> set[str]:
    """Return the variables x for which the right side or a condition calls function(x).

    Calls under `not` count only if `negated`.
    """
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


def _equal_names(rule: Rule) -> dict[str, frozenset[str]]:
    """Return for each name those that a condition requires to be equal."""
    equal: dict[str, frozenset[str]] = {}
    for condition in rule.where:
        match condition:
            case ast.Compare(left=ast.Name(id=a), ops=[ast.Eq()], comparators=[ast.Name(id=b)]):
                group = equal.get(a, frozenset({a})) | equal.get(b, frozenset({b}))
                equal.update(dict.fromkeys(group, group))
    return equal


def instances(rule: Rule, wanted: int, seed: int = 0) -> Iterator[Instance]:
    """Yield up to `wanted` different instances of a rule, the same for the same seed."""
    return InstanceMaker(rule, seed).instances(wanted)


class InstanceMaker:
    """Makes different instances of one rule, and records what they cover.

    static_variables  variables that must be constants
    pinned_variables  those of them whose elements a condition or an attribute reads
    filled_variables  those of them that mostly hold one number throughout
    made              the instances so far
    """

    def __init__(self, rule: Rule, seed: int):
        self.rule = rule
        self.rng = np.random.default_rng(seed)
        self.matcher = Matcher(replace(rule, evidence=None))  # not limited by earlier evidence
        self.filled_variables = _arguments_of(rule, "filled", negated=True)
        self.pinned_variables = _arguments_of(rule, "value", "positive", negated=True) | self.filled_variables
        self.static_variables = _arguments_of(rule, "const") | self.pinned_variables
        self.applications = [call for root in rule.lhs for call in outer_first(root)]
        self.seen: dict[Any, Instance] = {}
        self.made: list[Instance] = []
        self.coverage, self.covering = Coverage(), Covering(indexed_tuples(rule))
        self.numbers = sorted(numbers_in(rule))
        self.law_integers = [int(n) for n in self.numbers if n.denominator == 1]
        self.equal_names = _equal_names(rule)
        # examples from which no instance was made yet, each several times
        ops = dict.fromkeys(term.op for term in self.applications)
        examples = [(op, place) for op in ops for place in range(len(examples_of(op)))]
        self.untried_examples = examples * TRIES_PER_EXAMPLE

    def instances(self, wanted: int) -> Iterator[Instance]:
        """Yield up to `wanted` instances: half are proposals, the others mutations of earlier instances.

        After these, yield mutations of attributes that had one value in all instances.
        """
        for attempt in range(ATTEMPTS):
            if len(self.made) * 2 >= wanted or self.made and attempt >= PROPOSALS_PER_INSTANCE * wanted:
                break
            instance = self.propose()
            if instance is not None:
                yield instance
        if not self.made:  # no example meets the rule's conditions
            yield from self._instances_of_cases(wanted)
        for _ in range(CHANGES_PER_INSTANCE * wanted):
            if not self.made or len(self.made) >= wanted:
                break
            instance = self.mutate()
            if instance is not None:
                yield instance
        for _ in range(FINAL_CHANGES if self.made else 0):
            if not self.coverage.constant_attributes:
                break
            instance = self.mutate(self.coverage.constant_attributes)
            if instance is not None:
                yield instance

    def _instances_of_cases(self, wanted: int) -> Iterator[Instance]:
        """Yield up to `wanted` instances of the first cases of a proof that have any."""
        used_states: list[CaseState] = []
        for state in self._applicable_states():
            before = len(self.made)
            yield from islice(self.instances_of_state(state, MANY_DRAWS), -(-wanted // CASES_FOR_ALL))
            if len(self.made) > before:
                used_states.append(state)
            if len(self.made) >= wanted:
                break
        for state in used_states:  # there were few: draw more instances of each
            yield from islice(self.instances_of_state(state, MANY_DRAWS), max(0, wanted - len(self.made)))

    def _applicable_states(self) -> Iterator[CaseState]:
        """Yield symbolic types and values at which the rule applies, as far as the steps suffice."""
        budget = ProofBudget(CASE_STEPS)
        try:
            for rank in range(MAX_RANK + 1):
                cases = (case for case in CaseSplit(self.rule, rank, budget=budget) if isinstance(case, Case))
                for case in islice(cases, CASES_PER_RANK):
                    yield case.state
        except (ProofStopped, RecursionError):  # out of steps, or sizes are nested too deeply
            return

    def instances_of_state(
        self, state: CaseState, draws: int = DRAWS_PER_STATE, include_known: bool = False
    ) -> Iterator[Instance]:
        """Yield instances drawn at the types and values of a case of a proof.

        With `include_known`, earlier instances are yielded, too, and attributes stay as given.
        """
        for _ in range(draws):
            drawn = state.draw_numbers(self.rng)
            if drawn is None or any(isinstance(v, Body) for v in flatten_attributes(drawn.values).values()):
                continue
            instance = self.make_instance(
                drawn.types, drawn.values, as_given=include_known, include_known=include_known
            )
            if instance is not None:
                yield instance

    def small_instances(self, tries: int) -> Iterator[Instance]:
        """Yield instances of few elements; stop if none of the first MAX_UNTYPED_DRAWS draws types."""
        typed = False
        for place in range(tries):
            if place >= MAX_UNTYPED_DRAWS and not typed:
                return
            assignment = Assignment(self.rule, self.rng)
            if assignment.draw_small(self.applications):
                typed = True
                instance = self.make_instance(assignment.types, assignment.values, as_given=True)
                if instance is not None:
                    yield instance

    def propose(self) -> Instance | None:
        """Return an instance made from the operators' examples, None where the rule does not apply."""
        assignment = Assignment(self.rule, self.rng)
        first = self.untried_examples.pop(0) if self.untried_examples else None
        assignment.draw(self.applications, dict([first]) if first else {})
        instance = self.make_instance(assignment.types, assignment.values)
        if instance is not None:
            self.untried_examples = [other for other in self.untried_examples if other != first]
        return instance

    def mutate(self, names: Sequence[str] = ()) -> Instance | None:
        """Return an instance that differs a little from an earlier one, None where the rule does not apply.

        Changes one of the attributes in `names`, where some are given.
        """
        rng = self.rng
        old = self.made[int(rng.integers(len(self.made)))]
        change = self.start_mutation(old)
        tied, unvaried = self.coverage.tied_sizes, self.coverage.unvaried_attributes
        draw = rng.random()
        if names:
            change.change_attribute(names[int(rng.integers(len(names)))])
        elif tied and draw < 0.4:
            change.untie(tied[int(rng.integers(len(tied)))])
        elif unvaried and draw < 0.7:
            change.change_attribute(unvaried[int(rng.integers(len(unvaried)))])
        else:
            change.change_anything("any" in self.rule.tags)
        while rng.random() < 0.4:
            change.change_anything("any" in self.rule.tags)
        return self.make_instance(change.types, change.values)

    def start_mutation(self, old: Instance) -> Mutation:
        """Return a mutation that starts from an instance."""
        return self.mutation({name: node.tensor for name, node in old.nodes.items()}, dict(old.values))

    def mutation(self, types: dict[str, TensorType], values: dict[str, Any]) -> Mutation:
        """Return a mutation of these types and values."""
        return Mutation(types, values, self.applications, self.rng, self.equal_names, self.law_integers)

    def make_instance(
        self,
        types: Mapping[str, TensorType],
        values: Mapping[str, Any],
        as_given: bool = False,
        largest: int = MAX_TENSOR_ELEMENTS,
        include_known: bool = False,
    ) -> Instance | None:
        """Return the instance at these types and values, None where the rule does not apply.

        as_given       keep sizes in attributes as they are given, as programs over symbols do, instead of
                       in the operators' canonical form; axes must then be counted from the start
        largest        most elements of a leaf and of a result
        include_known  whether an instance that exists already is returned, instead of None
        """
        if not all(_is_usable(kind, self.rule, largest) for kind in types.values()):
            return None
        leaves = {name: self._draw_leaf(name, kind) for name, kind in types.items()}
        made = self._build_sides(Binding(leaves, dict(values)), as_given)
        if made is None:
            return None
        left, right, bound = made  # commutative arguments may have changed places in `bound`
        if any(element_count(root.tensor) > largest for root in left):
            return None
        # intermediate results are limited beside large leaves only
        is_large = largest > MAX_TENSOR_ELEMENTS
        if is_large and _largest_result((*left, *right)) > INNER_ELEMENTS_FACTOR * largest:
            return None
        kinds = tuple(bound.nodes[name].types[0] for name in sorted(bound.nodes))
        pinned = [node for name, node in sorted(bound.nodes.items()) if name in self.pinned_variables]
        flattened = flatten_attributes(bound.values)
        key = kinds, tuple(node.attribute("data") for node in pinned), repr(sorted(flattened.items()))
        if key in self.seen:
            return self.seen[key] if include_known else None
        constants = frozenset(node for node in pinned if node.op is CONSTANT)
        instance = self.seen[key] = Instance(left, right, bound.nodes, bound.values, constants)
        self.made.append(instance)
        self.coverage.add(instance.nodes, flattened)
        self.covering.add(instance.nodes, flattened)
        return instance

    def _draw_leaf(self, name: str, kind: TensorType) -> Node:
        """Return an input, or a constant of drawn elements where the rule needs one."""
        if name not in self.static_variables:
            return source(name, kind)
        data = _draw_constant(kind, self.rng, self.numbers, name in self.pinned_variables)
        if name in self.filled_variables and data.size and self.rng.random() < 0.9:
            data = np.full_like(data, data.flat[0])
        return constant(data)

    def _build_sides(
        self, binding: Binding, as_given: bool
    ) -> tuple[tuple[Node, ...], tuple[Node, ...], Binding] | None:
        """Return both sides and the binding; attributes stay as they are given if `as_given`."""
        dtype = next((node.tensor.dtype for node in binding.nodes.values()), "float32")
        try:
            left: tuple[Node, ...] = tuple(build_term(root, binding, dtype) for root in self.rule.lhs)  # type: ignore[misc]
            if as_given and not all(_is_canonical(term, binding, dtype) for term in self.applications):
                return None
            for bound in [binding] if as_given else self.matcher.match_roots(left):
                right = self.matcher.apply(left, bound)
                if right is not None:
                    return left, right, bound
        except BUILD_ERRORS:
            return None
        return None


def _is_canonical(term: Apply, binding: Binding, dtype: str) -> bool:
    """Return whether all attributes except sizes are in canonical form: axes are counted from the start."""
    given = {name: binding.values[tree.id] for name, tree in term.attrs if isinstance(tree, ast.Name)}
    if term.rest is not None:
        given |= binding.values[term.rest]
    made = build_term(term, binding, dtype, all_outputs=True)
    assert made is not None
    own = dict(made.attrs)
    return all(own[n] == value or domain_of(term.op, n).kind == "integers" for n, value in given.items())


def _is_usable(kind: TensorType, rule: Rule, largest: int) -> bool:
    plain = "any" in rule.tags or kind.dtype in ("float32", "float64")
    return kind.static and plain and element_count(kind) <= largest


def element_count(kind: TensorType) -> int:
    """Return the number of elements of a tensor of known sizes."""
    return prod(n for n in kind.shape if isinstance(n, int))


def _largest_result(roots: tuple[Node, ...]) -> int:
    kinds = (kind for node in topological_order(roots) for kind in node.types)
    return max((element_count(kind) for kind in kinds if isinstance(kind, TensorType)), default=0)


def _draw_multiples(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Draw multiples of 1/8: all positive, any, or 0, 1/2 and 1."""
    draw = rng.random()
    if draw < 0.6:
        return rng.integers(1, 40, shape) / 8
    if draw < 0.8:
        return rng.integers(-12, 13, shape) / 8
    return rng.integers(0, 3, shape) / 2


def _draw_constant(kind: TensorType, rng: np.random.Generator, own: Sequence[Fraction], pinned: bool) -> Any:
    """Draw dyadic numbers, which are exact in every field; for pinned leaves, near the law's numbers, too."""
    shape = tuple(n for n in kind.shape if isinstance(n, int))
    if not kind.dtype.startswith("float"):
        return draw_integers(kind.dtype, shape, rng, [int(n) for n in own if n.denominator == 1])
    if pinned and own and rng.random() < 0.3:
        around = [float(n) + step for n in own for step in LITERAL_STEPS]
        return np.asarray(rng.choice(around, shape)).astype(kind.dtype)
    if pinned:
        return np.asarray(_draw_multiples(rng, shape)).astype(kind.dtype)
    # odd 64ths: no literal of a rule is one, so no leaf is the same node as a literal
    return np.asarray((2 * rng.integers(-400, 400, shape) + 1) / 64).astype(kind.dtype)

