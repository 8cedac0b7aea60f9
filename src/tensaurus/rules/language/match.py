"""Match rules against nodes of a program, and build the nodes that replace a match.

    rule                  Transpose(Transpose(x, perm=p), perm=q) => Transpose(x, perm=tuple(p[i] for i in q))
    node                  Transpose(Transpose(a, perm=(1, 2, 0)), perm=(0, 2, 1))
    binding               x: a, p: (1, 2, 0), q: (0, 2, 1)      `match_term`, `Matcher.match_roots`
    node that replaces    Transpose(a, perm=(1, 0, 2))          `build_term`, `Matcher.apply`

`Matcher` applies one rule, `Rewriter` a set of rules.  Nodes are immutable and interned, so the result of a
single-root rule at a node is a function of the node: `Rewriter` computes it once for all programs that share
the node.  (E-graphs are matched elsewhere, by `egraph/match`.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from tensaurus.expr.ir.integer_types import is_integer
from tensaurus.expr.normal.canonicalize import is_symmetric
from tensaurus.graph.analysis.needed_rounding import must_keep_operand, rewrite_removes_rounding
from tensaurus.graph.ir.node import CONSTANT, ITEM, Node, apply, item
from tensaurus.graph.ir.program import Program
from tensaurus.graph.lower.primitives import exact_number, literal
from tensaurus.ops import Op, TensorType, Untypable
from tensaurus.ops.element_type import REAL_TYPES
from tensaurus.rules.language.attribute_terms import evaluate_attributes, match_attributes, output_index
from tensaurus.rules.language.evidence_limits import Limits, prove_match
from tensaurus.rules.language.integer_division import added_divisors
from tensaurus.rules.language.operand_partners import regrouped_variables
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.language.side_conditions import Fact, Undefined, holds
from tensaurus.rules.language.term import Apply, Item, Literal, Term, Variable


class NodeFact(Fact):
    """What conditions may ask of a node that a variable is bound to."""

    def __init__(self, node: Node):
        kind = node.tensor
        self.shape, self.dtype, self.static, self.node = kind.shape, kind.dtype, node.static, node

    @property
    def value(self) -> Fraction:
        value = scalar_value(self.node)
        if value is None:
            raise Undefined("not a scalar constant")
        return value

    @property
    def filled(self) -> Fraction:
        number = filled_value(self.node)
        if number is None:
            raise Undefined("not a constant of one number")
        return number

    @property
    def positive(self) -> bool:
        return self.node.op is CONSTANT and bool((self.node.attribute("data").array > 0).all())


def filled_value(node: Node) -> Fraction | None:
    """Return the exact number that all elements of a constant equal; None where they differ."""
    if node.op is not CONSTANT:
        return None
    data = node.attribute("data").array
    if data.dtype.kind not in "fiu" or not data.size or (data != data.flat[0]).any():
        return None
    number = data.flat[0].item()
    return Fraction(number) if np.isfinite(number) else None


def scalar_value(node: Node) -> Fraction | None:
    """Return the exact value of a numeric constant of one element; None for any other node."""
    if node.op is not CONSTANT:
        return None
    data = node.attribute("data")
    if any(n != 1 for n in data.shape) or data.array.dtype.kind not in "fiu":
        return None
    number = data.array.reshape(()).item()
    return Fraction(number) if np.isfinite(number) else None


@dataclass
class Binding:
    """What a match has bound: variables to nodes, attribute names to values (rests to dicts of values)."""

    nodes: dict[str, Node]
    values: dict[str, Any]

    def copy(self) -> Binding:
        return Binding(dict(self.nodes), dict(self.values))

    def facts(self) -> Mapping[str, Fact]:
        """Return what conditions may ask of the variables, by name."""
        return {name: NodeFact(node) for name, node in self.nodes.items()}

    def names(self) -> dict[str, Any]:
        """Return everything that conditions may read, by name."""
        return {**self.facts(), **self.values}


@cache
def is_commutative(op: Op) -> bool:
    """Return whether the declaration of an operator is symmetric in two inputs, as its expressions show."""
    if op.attributes or not (op.is_variadic or len(op.inputs) == 2):
        return False
    symmetries: list[bool] = []
    # products of vectors commute, products of matrices do not: so several ranks are tested
    for kind in (TensorType(dtype, shape) for dtype in ("float32", "bool") for shape in ((2,), (3, 3))):
        try:
            op.types((kind, kind), ())
        except Untypable:
            continue
        (scope, *_) = op.scopes((kind, kind), ())
        a, b = op.tensors((kind, kind))
        assert a is not None and b is not None
        symmetries.append(is_symmetric(scope, a, b))
    return bool(symmetries) and all(symmetries)


def argument_orders(term: Term | None) -> list[Term | None]:
    """Return the term with the arguments of commutative operators in every order."""
    match term:
        case Apply(op, args, attrs, rest):
            inner = [list(choice) for choice in product(*(argument_orders(a) for a in args))]
            if len(args) == 2 and is_commutative(op) and args[0] != args[1]:
                inner += [choice[::-1] for choice in inner]
            return [Apply(op, tuple(choice), attrs, rest) for choice in inner]
        case Item(inner_term, index):
            return [Item(t, index) for t in argument_orders(inner_term) if isinstance(t, Apply)]
    return [term]


def match_term(term: Term | None, node: Node | None, binding: Binding, dtypes: frozenset[str] | None) -> bool:
    """Return whether the term matches the node, and extend the binding.

    A binding is of no use after a failure: part of the term may be bound.  Variables match the element types
    `dtypes`, any type where None.
    """
    if term is None or node is None:
        return term is None and node is None
    match term:
        case Variable(name, _):
            bound = binding.nodes.get(name)
            if bound is not None:
                return bound is node
            kind = node.types[0]
            if len(node.types) != 1 or not isinstance(kind, TensorType):
                return False
            if dtypes is not None and kind.dtype not in dtypes:
                return False
            binding.nodes[name] = node
            return True
        case Literal(value):
            return scalar_value(node) == value
        case Item(inner, index):
            if node.op is not ITEM:
                return False
            place = node.attribute("index")
            if place != (binding.values.setdefault(index, place) if isinstance(index, str) else index):
                return False
            return match_term(inner, node.args[0], binding, dtypes)
        case Apply(op, args):
            if node.op is not op or len(node.args) != len(args):
                return False
            for arg, inner_node in zip(args, node.args, strict=True):
                if not match_term(arg, inner_node, binding, dtypes):
                    return False
            try:
                return match_attributes(term, node.attrs, binding.facts(), binding.values, node.arg_types)
            except (Undefined, Untypable):
                return False


def build_term(term: Term | None, binding: Binding, dtype: str, all_outputs: bool = False) -> Node | None:
    """Return the node of a term, with only its first output unless `all_outputs`.

    `dtype` is the type of numbers that the rule writes.  Raises Untypable or Undefined.
    """
    match term:
        case None:
            return None
        case Variable(name, _):
            if name in binding.nodes:
                return binding.nodes[name]
            return literal(exact_number(binding.values[name]), dtype)  # a number that an attribute gave
        case Literal(value):
            return literal(value, dtype)
        case Item(inner, index):
            whole = build_term(inner, binding, dtype, all_outputs=True)
            assert whole is not None
            place = output_index(index, binding.values, whole.op, len(whole.types))
            return item(whole, place)
        case Apply(op, args):
            given = evaluate_attributes(term, binding.facts(), binding.values)
            nodes = [build_term(a, binding, dtype) for a in args]
            return apply(op, nodes, given, 0 if all_outputs else 1)
    raise TypeError(term)


class Matcher:
    """One rule, ready to match.

    dtypes               element types that variables may have, None for any
    regrouped_variables  variables that meet other operands on the right side (`operand_partners`)
    added_divisors       variables by which the right side alone divides: they must not be integers
    left_sides           the left side in every order of commutative arguments
    root_operators       operators of the left side's roots; of an output of a call, that of the call
    """

    def __init__(self, rule: Rule):
        self.rule, self.limits = rule, Limits(rule)
        self.dtypes = None if "any" in rule.tags else REAL_TYPES
        self.regrouped_variables = regrouped_variables(rule.lhs, rule.rhs)
        self.added_divisors = added_divisors(rule.lhs, rule.rhs) if self.dtypes is None else frozenset[str]()
        self.left_sides = list(product(*(argument_orders(root) for root in rule.lhs)))
        self.root_operators = tuple(_root_operator(root) for root in rule.lhs)

    def rewrite(self, node: Node) -> Node | None:
        """Return what a single-root rule makes of this node; None where the rule does not apply."""
        for binding in self.match_roots((node,)):
            built = self.apply((node,), binding)
            if built is not None:
                return built[0]
        return None

    def match_roots(self, roots: Sequence[Node]) -> Iterator[Binding]:
        """Yield every binding by which the left side matches these roots.  Conditions are not checked."""
        for side in self.left_sides:
            binding = Binding({}, {})
            if all(match_term(t, n, binding, self.dtypes) for t, n in zip(side, roots, strict=True)):
                yield binding

    def apply(self, roots: Sequence[Node], binding: Binding) -> tuple[Node, ...] | None:
        """Return the right side under a binding; None if a condition, a type or the evidence refuses."""
        try:
            facts = binding.facts()
            built = self._build(binding, facts)
        except (Untypable, Undefined):
            return None
        # the types must stay, and something must change
        if built is None or [new.types for new in built] != [old.types for old in roots]:
            return None
        if all(old is new for old, new in zip(roots, built, strict=True)):
            return None
        # beyond the limits of the evidence the match is proved by itself
        is_covered = self.limits.covers(facts, binding.values)
        if not is_covered and not prove_match(roots, built, binding.nodes, facts):
            return None
        # constants that a model rounds with on purpose stay apart, and keep their operands
        if rewrite_removes_rounding(roots, built, binding.nodes.values(), self.dtypes is None):
            return None
        regrouped = ((binding.nodes.get(name), calls) for name, calls in self.regrouped_variables.items())
        if any(node is not None and must_keep_operand(node, calls) for node, calls in regrouped):
            return None
        return built

    def _build(self, binding: Binding, facts: Mapping[str, Fact]) -> tuple[Node, ...] | None:
        """Return the right side under a binding; None where a condition fails.

        Raises Untypable or Undefined.
        """
        if any(is_integer(facts[name].dtype) for name in self.added_divisors & facts.keys()):
            return None
        names = {**facts, **binding.values}
        if not all(holds(condition, names) for condition in self.rule.where):
            return None
        dtype = next((n.tensor.dtype for n in binding.nodes.values()), "float32")
        return tuple([build_term(root, binding, dtype) for root in self.rule.rhs])  # type: ignore[misc]

    def joint_rewrites(self, program: Program) -> Iterator[dict[Node, Node]]:
        """Yield the replacements that a multi-root rule makes in a program, one match after another."""
        nodes_by_operator = defaultdict(list)
        for node in program.nodes:
            if not node.static:
                nodes_by_operator[_operator_of(node)].append(node)
        for side in self.left_sides:
            yield from self._join(side, (), Binding({}, {}), nodes_by_operator)

    def _join(
        self,
        side: Sequence[Term | None],
        chosen: tuple[Node, ...],
        binding: Binding,
        nodes_by_operator: Mapping[Any, Sequence[Node]],
    ) -> Iterator[dict[Node, Node]]:
        """Extend a match of the first roots, which are `chosen`, by every node that the next root matches."""
        if len(chosen) == len(side):
            built = self.apply(chosen, binding)
            if built is not None:
                yield dict(zip(chosen, built, strict=True))
            return
        for node in nodes_by_operator.get(self.root_operators[len(chosen)], ()):
            if node in chosen:  # each root is another node
                continue
            trial = binding.copy()
            if match_term(side[len(chosen)], node, trial, self.dtypes):
                yield from self._join(side, (*chosen, node), trial, nodes_by_operator)


def _operator_of(node: Node) -> Any:
    """Return the operator of a node; of an output of a call, that of the call."""
    if node.op is ITEM:
        assert node.args[0] is not None
        return node.args[0].op
    return node.op


def _root_operator(term: Term) -> Any:
    match term:
        case Apply(op, _, _, _):
            return op
        case Item(inner, _):
            return inner.op
    raise ValueError(f"a rule's left side must be an operator, not {term}")


class Rewriter:
    """A set of rules over interned nodes, with a cache of what each rule makes of each node.

    Leaves out rules tagged `off`, and those tagged `explore` unless `explore` asks for them.
    """

    def __init__(self, rules: Iterable[Rule], *, explore: bool = False):
        excluded_tags = {"off"} if explore else {"off", "explore"}
        self.matchers = [Matcher(r) for r in rules if not r.tags & excluded_tags]
        self.single_root = [m for m in self.matchers if len(m.rule.lhs) == 1]
        self.multi_root = [m for m in self.matchers if len(m.rule.lhs) > 1]
        self._by_operator: dict[Any, list[Matcher]] = defaultdict(list)
        for matcher in self.single_root:
            self._by_operator[matcher.root_operators[0]].append(matcher)
        self._by_rule = {m.rule: m for m in self.single_root}
        self._memo: dict[Rule, WeakKeyDictionary[Node, Node | None]] = {
            m.rule: WeakKeyDictionary() for m in self.single_root
        }

    def rewrite_node(self, rule: Rule, node: Node) -> Node | None:
        """Return what a single-root rule makes of a node; None where the rule does not apply."""
        matcher = self._by_rule[rule]
        if _operator_of(node) is not matcher.root_operators[0]:
            return None
        memo = self._memo[rule]
        if node not in memo:
            memo[node] = matcher.rewrite(node)
        return memo[node]

    def rewrites_at(self, node: Node) -> Iterator[tuple[Rule, Node]]:
        """Yield (rule, replacement) for every single-root rule that applies at this node."""
        for matcher in self._by_operator.get(_operator_of(node), ()):
            built = self.rewrite_node(matcher.rule, node)
            if built is not None:
                yield matcher.rule, built


def make_expander(rules: Iterable[Rule]) -> Callable[[Node, int], Node | None]:
    """Return a function that rewrites a node which an opset lacks by the rules tagged `expand`.

    The function returns None where no rule applies.
    """
    rewriter = Rewriter(rule for rule in rules if "expand" in rule.tags)

    def expand(node: Node, opset: int) -> Node | None:
        return next((built for _, built in rewriter.rewrites_at(node)), None)

    return expand
