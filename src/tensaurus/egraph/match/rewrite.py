"""Makes plans for rules: the e-nodes that a match inserts, decided once for all matches of equal types.

    rule   Mul(Transpose(x, perm=p), c) => Transpose(Mul(x, c), perm=p) where rank(c) == 0
    match  x f32[2,3], c f32[], p = (1, 0)
    plan   step 0: Mul(x, c) of type f32[2,3]    step 1: Transpose(step 0, perm=(1, 0)) of type f32[3,2]

The attributes and types of a right-hand side depend on the matched heads and on what is known of the
variables, not on their classes.  So callers may cache a plan, or the answer that the rule does not apply.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from tensaurus.egraph.core.class_analysis import Analysis, types_only
from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.enode_head import Head, operator_head, output_head
from tensaurus.egraph.match.insertion import Ref, Step, insert_function
from tensaurus.egraph.match.plan import Plan, RegroupedConstant
from tensaurus.egraph.match.variable_guard import ASKS_CONTENT, ClassFact, called_functions
from tensaurus.expr.ir.integer_types import is_integer
from tensaurus.graph.ir.node import Node, Type, source
from tensaurus.graph.lower.primitives import exact_number, literal
from tensaurus.ops import TensorType, Untypable
from tensaurus.ops.element_type import REAL_TYPES
from tensaurus.rules.language import occurrences
from tensaurus.rules.language.attribute_terms import evaluate_attributes, match_attributes, output_index
from tensaurus.rules.language.evidence_limits import Limits, prove_match
from tensaurus.rules.language.integer_division import added_divisors
from tensaurus.rules.language.match import Binding, argument_orders, build_term
from tensaurus.rules.language.operand_partners import regrouped_variables
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.language.side_conditions import Fact, Undefined, holds
from tensaurus.rules.language.term import Apply, Item, Literal, Term, Variable

__all__ = ["Rewrite", "commuted_rewrites"]


class Rewrite:
    """A rule with its left side in one order of commutative arguments (`side`); makes plans for matches.

    dtypes               element types that the variables may have, None for any
    asks_content         whether the rule asks for elements of constants, not for types only
    is_symmetric         whether one order of the roots is enough (the tag `once`)
    dropped_variables    variables that the left side alone reads
    regrouped_variables  variables that meet other operands on the right side (`operand_partners`)
    added_divisors       variables by which only the right side divides: they must not be integers
    """

    def __init__(self, rule: Rule, side: tuple[Term, ...]):
        self.rule, self.side, self.limits = rule, side, Limits(rule)
        self.dtypes = None if "any" in rule.tags else REAL_TYPES
        roots = (*rule.lhs, *rule.rhs)
        written = [tree for root in roots for tree in occurrences.attribute_expressions(root)]
        self.asks_content = any(called_functions(tree) & ASKS_CONTENT for tree in (*rule.where, *written))
        self.is_symmetric = "once" in rule.tags
        dropped = {name for root in rule.lhs for name in occurrences.variables(root)}
        dropped -= {name for root in rule.rhs for name in occurrences.variables(root)}
        dropped -= {name for tree in written for name in occurrences.names_in(tree)}
        self.dropped_variables = dropped if self.dtypes is not None else set()  # others only move elements
        self.regrouped_variables = regrouped_variables(side, rule.rhs)
        self.added_divisors = added_divisors(rule.lhs, rule.rhs) if self.dtypes is None else frozenset[str]()
        self._needs_other_roots = [self._reads_other_roots(root) for root in side]

    def _reads_other_roots(self, root: Term) -> bool:
        """Return whether a root's attributes name tensors of other roots."""
        trees = occurrences.attribute_expressions(root)
        names = {name for tree in trees for name in occurrences.names_in(tree)}
        return bool(names & (self.rule.variables.keys() - occurrences.variables(root).keys()))

    def attribute_values(
        self,
        root_index: int,
        heads: Sequence[Head],
        analyses: Sequence[Analysis],
        variables: Sequence[str],
        operators: Sequence[Term],
    ) -> dict[str, Any] | None:
        """Return the attribute values that a match of one root binds; None where no such match fits.

        Returns {} where the values depend on other roots.  In `plan` an earlier root may bind a name first:
        a rule must not compute with an axis that an earlier root counts from the end.
        """
        try:
            match = _MatchFacts.of(heads, analyses, variables, operators)
            fits = self._needs_other_roots[root_index] or match.bind_attributes(self.side[root_index])
        except (Untypable, Undefined):
            return {}
        return match.values if fits else None

    def plan(
        self,
        graph: EGraph,
        heads: Sequence[Head],
        analyses: Sequence[Analysis],
        roots: Sequence[Analysis],
        variables: Sequence[str],
        operators: Sequence[Sequence[Term]],
    ) -> Plan | None:
        """Return the plan for a match of these heads and variables; None where the rule does not apply.

        `roots` are the analyses of the roots, `operators` the matched terms of each root, one for each head.
        """
        try:
            match = _MatchFacts.of(heads, analyses, variables, [term for root in operators for term in root])
            if not (self._allows_types(match) and self._binds_and_holds(match)):
                return None
            return self._write_plan(graph, match, roots)
        except (Untypable, Undefined):
            return None

    def _allows_types(self, match: _MatchFacts) -> bool:
        """Return whether the rule applies to the element types of the variables."""
        facts = match.facts
        if self.dtypes is not None and any(fact.dtype not in self.dtypes for fact in facts.values()):
            return False
        return not any(is_integer(facts[name].dtype) for name in self.added_divisors)

    def _binds_and_holds(self, match: _MatchFacts) -> bool:
        """Return whether the attributes match, which binds their names, and the conditions hold."""
        if not all(map(match.bind_attributes, self.side)):
            return False
        names = {**match.facts, **match.values}
        return all(holds(condition, names) for condition in self.rule.where)

    def _write_plan(self, graph: EGraph, match: _MatchFacts, roots: Sequence[Analysis]) -> Plan | None:
        """Return the plan if the right-hand sides have the types of the roots and equal them."""
        dtype = next((fact.dtype for fact in match.facts.values()), "float32")
        writer = _Writer(graph, match, dtype)
        written = [writer.write(root) for root in self.rule.rhs]
        if any(new.types != old.types for new, old in zip(written, roots, strict=True)):
            return None
        if not self.limits.covers(match.facts, match.values) and not self._is_proved_at(match, dtype):
            return None
        steps = tuple(writer.steps)
        constants = {n: name for n, (name, known) in enumerate(match.analyses.items()) if known.static}
        regrouped = self.regrouped_variables
        return Plan(
            steps,
            tuple(new.ref for new in written),
            match.values,
            dtype,
            insert_function(steps, len(match.analyses)),
            constant_steps=_constant_steps(steps, constants.keys()),
            dropped_constants=tuple(n for n, name in constants.items() if name in self.dropped_variables),
            regrouped_constants=tuple(
                RegroupedConstant(n, regrouped[name]) for n, name in constants.items() if name in regrouped
            ),
        )

    def _is_proved_at(self, match: _MatchFacts, dtype: str) -> bool:
        """Return whether both sides are proved equal at these types, which the evidence does not cover."""
        nodes = {name: source(name, TensorType(fact.dtype, fact.shape)) for name, fact in match.facts.items()}
        binding = Binding(nodes, dict(match.values))
        left, right = (
            [node for root in side if (node := build_term(root, binding, dtype)) is not None]
            for side in (self.side, self.rule.rhs)
        )
        return prove_match(left, right, nodes, match.facts) is not None


def _constant_steps(steps: Sequence[Step], constants: Iterable[int]) -> tuple[int, ...]:
    """Return the steps that compute from constants only; () where all of them only write numbers."""
    constant: set[Ref | None] = {None, *constants}
    for number, step in enumerate(steps):
        if step.node is not None or constant.issuperset(step.args):
            constant.add(~number)
    found = tuple(number for number in range(len(steps)) if ~number in constant)
    return found if any(steps[number].node is None for number in found) else ()


@dataclass
class _MatchFacts:
    """What a match binds, as far as a plan depends on it.

    heads     the matched head of each operator of the left side, by the `id` of its term
    analyses  of each variable's class, in the order of the rule's variables
    facts     the variables as conditions see them
    values    the values of names in attributes and of outputs, see `bind_attributes`
    """

    heads: dict[int, Head]
    analyses: dict[str, Analysis]
    facts: dict[str, Fact]
    values: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        heads: Sequence[Head],
        analyses: Sequence[Analysis],
        variables: Sequence[str],
        operators: Sequence[Term],
    ) -> _MatchFacts:
        """Raises Undefined where a variable is not a tensor."""
        known = dict(zip(variables, analyses, strict=True))
        facts: dict[str, Fact] = {name: ClassFact(analysis) for name, analysis in known.items()}
        return cls({id(term): head for term, head in zip(operators, heads, strict=True)}, known, facts)

    def bind_attributes(self, term: Term | None) -> bool:
        """Return whether the matched heads have the attributes of the term, and add what they bind."""
        match term:
            case Item(inner, index):
                place = self.heads[id(term)].attrs[0][1]
                if isinstance(index, str) and self.values.setdefault(index, place) != place:
                    return False
                return self.bind_attributes(inner)
            case Apply(_, args):
                if not all(map(self.bind_attributes, args)):
                    return False
                arg_types = partial(self._types_of_args, args)
                attrs = self.heads[id(term)].attrs
                return match_attributes(term, attrs, self.facts, self.values, arg_types)
        return True

    def _types_of_args(self, args: Sequence[Term | None]) -> tuple[TensorType | None, ...]:
        """Return the types of a matched operator's arguments, derived from those of the variables."""
        return tuple(map(self._type_of, args))

    def _type_of(self, term: Term | None) -> TensorType | None:
        match term:
            case None:
                return None
            case Variable(name, _):
                return self.analyses[name].tensor
            case Literal():
                raise Undefined("the type of a literal")
            case Item(inner):
                return _tensor(self._output_types(inner)[self.heads[id(term)].attrs[0][1]])
            case Apply():
                return _tensor(self._output_types(term)[0])

    def _output_types(self, term: Apply) -> tuple[Type, ...]:
        types: tuple[Type, ...] = term.op.types(self._types_of_args(term.args), self.heads[id(term)].attrs)
        return types


def _tensor(kind: Type) -> TensorType:
    if not isinstance(kind, TensorType):
        raise Untypable("not a tensor")
    return kind


class _Written(NamedTuple):
    """A term of the right side, written as steps: its e-node, and the types of one or all of its outputs."""

    ref: Ref
    types: tuple[Type, ...]


class _Writer:
    """Writes the steps of right-hand sides; `dtype` is the type of numbers that the rule writes."""

    def __init__(self, graph: EGraph, match: _MatchFacts, dtype: str):
        self.graph, self.match, self.dtype = graph, match, dtype
        self.variables = {name: number for number, name in enumerate(match.analyses)}
        self.steps: list[Step] = []

    def write(self, term: Term, all_outputs: bool = False) -> _Written:
        """Write steps for a term."""
        values = self.match.values
        match term:
            case Variable(name, _) if name in values:  # an attribute has bound it to a number
                return self._write_number(exact_number(values[name]))
            case Variable(name, _):
                return _Written(self.variables[name], self.match.analyses[name].types)
            case Literal(value):
                return self._write_number(value)
            case Item(inner, index):
                call = self.write(inner, all_outputs=True)
                place = output_index(index, values, inner.op, len(call.types))
                if len(call.types) == 1:
                    return call
                return self._add_step(output_head(place), (call.ref,), (call.types[place],))
            case Apply(op, args):
                written = [None if arg is None else self.write(arg) for arg in args]
                while written and written[-1] is None:
                    written.pop()
                given = evaluate_attributes(term, self.match.facts, values)
                kinds = tuple(None if arg is None else _tensor(arg.types[0]) for arg in written)
                canonical = op.canonical(kinds, given)
                types = op.types(kinds, canonical)
                types = types if all_outputs else types[:1]
                refs = tuple(None if arg is None else arg.ref for arg in written)
                return self._add_step(operator_head(op, canonical, len(types)), refs, types)
        raise TypeError(term)

    def _write_number(self, value: Fraction) -> _Written:
        node = literal(value, self.dtype)
        return self._add_step(self.graph.head_of(node), (), node.types, node)

    def _add_step(
        self, head: Head, args: tuple[Ref | None, ...], types: tuple[Type, ...], node: Node | None = None
    ) -> _Written:
        self.steps.append(Step(head, args, types_only(types), node))
        return _Written(~(len(self.steps) - 1), types)


def commuted_rewrites(rule: Rule) -> list[Rewrite]:
    """Return a rewrite for every order of the arguments of commutative operators."""
    sides = product(*(argument_orders(root) for root in rule.lhs))
    return [Rewrite(rule, side) for side in sides]  # type: ignore[arg-type]
