"""Applies rules to matches in an e-graph by plans, each made once for all matches of the same types.

The attributes and types of a right-hand side depend on the matched heads and on what is known of the
variables, not on their classes.  So callers may cache a plan, or the answer that the rule does not apply.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, partial
from itertools import product
from typing import Any

from tensaurus.egraph.core.class_analysis import Analysis, types_only
from tensaurus.egraph.core.egraph import ABSENT, EGraph
from tensaurus.egraph.core.enode_head import Head, operator_head, output_head
from tensaurus.egraph.match.insertion import Insert, Step, insert_function
from tensaurus.egraph.match.variable_guard import ASKS_CONTENT, ClassFact, called_functions
from tensaurus.expr.ir.integer_types import is_integer
from tensaurus.graph.analysis.cancellation import (
    is_large_constant,
    must_keep_operand,
    removes_needed_rounding,
)
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

__all__ = ["Plan", "Rewrite", "commuted_rewrites"]


@dataclass(frozen=True)
class Plan:
    """The right-hand sides of a rule, for all matches with the same heads and types.

    steps     the e-nodes to insert, arguments first
    roots     for each root of the rule what equals it: the number of a variable, or ~number of a step
    values    the attribute values that the match binds
    dtype     the type of numbers that the rule writes
    insert    the compiled steps
    combined  the steps that compute from constants only
    dropped   the constant variables that the right-hand side does not read
    rigid     (variable, where: "sum", "product") of the constant variables that meet other partners there, as
              the factor a in (x * a) * b => (x * b) * a; see `loses_rounding`
    """

    steps: tuple[Step, ...]
    roots: tuple[int, ...]
    values: dict[str, Any] = field(compare=False)
    dtype: str
    insert: Insert = field(compare=False)
    combined: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    rigid: tuple[tuple[int, frozenset[str]], ...] = ()

    @cached_property
    def asks_constants(self) -> bool:
        """Whether `loses_rounding` may be true for some matches."""
        return bool(self.combined or self.dropped or self.rigid)

    def missing(self, graph: EGraph, terms: Sequence[int]) -> int:
        """Return how many e-nodes the plan would insert, at most."""
        made: list[int | None] = []
        for step in self.steps:
            if step.node is not None:
                made.append(graph.number_of(step.node))
                continue
            args = [ABSENT if a is None else terms[a] if a >= 0 else made[~a] for a in step.args]
            made.append(None if None in args else graph.peek(step.head, args))  # type: ignore[arg-type]
        return made.count(None)

    def loses_rounding(self, graph: EGraph, terms: Sequence[int]) -> bool:
        """Return whether the plan combines constants whose rounding has a meaning (`cancellation`).

        Its e-nodes are then not even inserted, as another rule could merge them with the original.
        """
        if any(is_large_constant(graph.term(graph.constant_of(terms[place]))) for place in self.dropped):
            return True
        rigid = ((graph.term(graph.constant_of(terms[place])), kinds) for place, kinds in self.rigid)
        if any(must_keep_operand(node, kinds) for node, kinds in rigid):
            return True
        # the constants that the steps would make, by ~number of the step; existing e-nodes as their terms
        made: dict[int, Node] = {}
        numbers: dict[int, int | None] = {}  # of steps whose e-nodes exist already
        for number in self.combined:
            head, args, _, node = self.steps[number]
            if node is None:
                known = [ABSENT if a is None else numbers[a] if a < 0 else terms[a] for a in args]
                found = None if None in known else graph.peek(head, known)  # type: ignore[arg-type]
                if found is None:
                    parts = [None if a is None else made[a] if a < 0 else graph.term(terms[a]) for a in args]
                    node = head.build(parts)
                else:
                    node = graph.term(found)
            else:
                found = graph.number_of(node)
            if removes_needed_rounding(node):
                return True
            made[~number], numbers[~number] = node, found
        return False

    def needs(self, graph: EGraph, terms: Sequence[int], made: Sequence[int]) -> list[tuple[int, int]]:
        """Return the pairs of equal arguments where an existing e-node has taken the place of a step."""
        needs: list[tuple[int, int]] = []
        for step, number in zip(self.steps, made, strict=True):
            if step.node is None:
                args = (ABSENT if a is None else terms[a] if a >= 0 else made[~a] for a in step.args)
                needs += [(a, b) for a, b in zip(graph.original_args[number], args, strict=True) if a != b]
        return needs


class Rewrite:
    """A rule with its left side in one order of commutative arguments (`side`); makes plans for matches."""

    def __init__(self, rule: Rule, side: tuple[Term, ...]):
        self.rule, self.side, self.limits = rule, side, Limits(rule)
        self.dtypes = None if "any" in rule.tags else REAL_TYPES  # element types of the variables; None: any
        roots = (*rule.lhs, *rule.rhs)
        written = [tree for root in roots for tree in occurrences.attribute_expressions(root)]
        self.asks_content = any(called_functions(tree) & ASKS_CONTENT for tree in (*rule.where, *written))
        self.once = "once" in rule.tags  # whether one order of the roots is enough
        # variables that the left side alone reads
        gone = {name for root in rule.lhs for name in occurrences.variables(root)}
        gone -= {name for root in rule.rhs for name in occurrences.variables(root)}
        gone -= {n.id for tree in written for n in ast.walk(tree) if isinstance(n, ast.Name)}
        self.dropped = gone if self.dtypes is not None else set()  # rules for any types only move elements
        self.regrouped = regrouped_variables(side, rule.rhs)
        # variables by which only the right side divides: they must not be integers
        self.divisors = added_divisors(rule.lhs, rule.rhs) if self.dtypes is None else frozenset[str]()
        self.names_other_roots = [self._names_other_roots(root) for root in side]

    def _names_other_roots(self, root: Term) -> bool:
        """Return whether a root's attributes name tensors of other roots."""
        nodes = (node for tree in occurrences.attribute_expressions(root) for node in ast.walk(tree))
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        return bool(names & (self.rule.variables.keys() - occurrences.variables(root).keys()))

    def attribute_values(
        self,
        place: int,
        heads: Sequence[Head],
        analyses: Sequence[Analysis],
        variables: Sequence[str],
        operators: Sequence[Term],
    ) -> dict[str, Any] | None:
        """Return the attribute values that a match of one root binds; None where no such match fits.

        Returns {} where the values depend on other roots.  In `plan` an earlier root may bind a name first:
        a rule must not compute with an axis that an earlier root counts from the end.
        """
        known = dict(zip(variables, analyses, strict=True))
        matched = {id(term): head for term, head in zip(operators, heads, strict=True)}
        names: dict[str, Any] = {name: ClassFact(analysis) for name, analysis in known.items()}
        values: dict[str, Any] = {}
        try:
            side = self.side[place]
            fits = self.names_other_roots[place] or _match_attributes(side, matched, known, names, values)
        except (Untypable, Undefined):
            return {}
        return values if fits else None

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
            return self._plan_unchecked(graph, heads, analyses, roots, variables, operators)
        except (Untypable, Undefined):
            return None

    def _plan_unchecked(
        self,
        graph: EGraph,
        heads: Sequence[Head],
        analyses: Sequence[Analysis],
        roots: Sequence[Analysis],
        variables: Sequence[str],
        operators: Sequence[Sequence[Term]],
    ) -> Plan | None:
        # do the element types allow the rule?
        known = dict(zip(variables, analyses, strict=True))
        kinds = [analysis.tensor for analysis in analyses]
        if any(kind is None or (self.dtypes is not None and kind.dtype not in self.dtypes) for kind in kinds):
            return None
        types = dict(zip(variables, kinds, strict=True))
        if any(is_integer(kind.dtype) for name in self.divisors if (kind := types[name])):
            return None
        # do the attributes match, and the conditions hold?
        names: dict[str, Any] = {name: ClassFact(analysis) for name, analysis in known.items()}
        values: dict[str, Any] = {}
        flat = [term for group in operators for term in group]
        matched = {id(term): head for term, head in zip(flat, heads, strict=True)}
        for root in self.side:
            if not _match_attributes(root, matched, known, names, values):
                return None
        if not all(holds(condition, {**names, **values}) for condition in self.rule.where):
            return None
        # write the steps: the right-hand sides must have the types of the roots, by evidence or a proof here
        dtype = next((kind.dtype for kind in kinds if kind is not None), "float32")
        writer = _Writer(
            graph, {name: place for place, name in enumerate(variables)}, known, names, values, dtype
        )
        written = [writer.write(root) for root in self.rule.rhs]
        if any(types != analysis.types for (_, types), analysis in zip(written, roots, strict=True)):
            return None
        if not self.limits.covers(names, values) and not self._is_proved_at(names, values, dtype):
            return None
        # note what the plan does to constants, for `loses_rounding`
        steps = tuple(writer.steps)
        static = {place for place, analysis in enumerate(analyses) if analysis.static}
        dropped = tuple(place for place in sorted(static) if variables[place] in self.dropped)
        rigid = tuple(
            (place, self.regrouped[variables[place]])
            for place in sorted(static)
            if variables[place] in self.regrouped
        )
        insert = insert_function(steps, len(variables))
        combined = _constant_steps(steps, static)
        roots_at = tuple(ref for ref, _ in written)
        return Plan(steps, roots_at, values, dtype, insert, combined, dropped, rigid)

    def _is_proved_at(self, facts: Mapping[str, Fact], values: Mapping[str, Any], dtype: str) -> bool:
        """Return whether both sides are proved equal at these types, which the evidence does not cover."""
        nodes = {name: source(name, TensorType(fact.dtype, fact.shape)) for name, fact in facts.items()}
        binding = Binding(nodes, dict(values))
        left, right = (
            [node for root in side if (node := build_term(root, binding, dtype)) is not None]
            for side in (self.side, self.rule.rhs)
        )
        return prove_match(left, right, nodes, facts) is not None


def _constant_steps(steps: Sequence[Step], static: set[int]) -> tuple[int, ...]:
    """Return the steps that compute from constants only, where the variables `static` are constants."""
    known = set(static)
    for number, step in enumerate(steps):
        if step.node is not None or all(arg is None or arg in known for arg in step.args):
            known.add(~number)
    found = tuple(number for number in range(len(steps)) if ~number in known)
    return found if any(steps[number].node is None for number in found) else ()


def _match_attributes(
    term: Term | None,
    matched: dict[int, Head],
    known: dict[str, Analysis],
    names: dict[str, Any],
    values: dict[str, Any],
) -> bool:
    """Return whether the matched heads have the attributes of the term; bind its names in `values`."""
    match term:
        case Item(inner, index):
            place = matched[id(term)].attrs[0][1]
            if isinstance(index, str) and values.setdefault(index, place) != place:
                return False
            return _match_attributes(inner, matched, known, names, values)
        case Apply(_, args):
            if not all(_match_attributes(arg, matched, known, names, values) for arg in args):
                return False
            kinds = partial(_kinds, args, matched, known)
            return match_attributes(term, matched[id(term)].attrs, names, values, kinds)
    return True


def _kinds(
    args: Sequence[Term | None], matched: dict[int, Head], known: dict[str, Analysis]
) -> tuple[Any, ...]:
    """Return the types of a matched operator's arguments, derived from those of the variables."""

    def kind(term: Term | None) -> TensorType | None:
        match term:
            case None:
                return None
            case Variable(name, _):
                return known[name].tensor
            case Literal():
                raise Undefined("the type of a literal")
            case Item(inner):
                return _tensor(types(inner)[matched[id(term)].attrs[0][1]])
            case Apply():
                return _tensor(types(term)[0])

    def types(term: Apply) -> tuple[Type, ...]:
        derived: tuple[Type, ...] = term.op.types(tuple(map(kind, term.args)), matched[id(term)].attrs)
        return derived

    return tuple(map(kind, args))


def _tensor(kind: Type) -> TensorType:
    if not isinstance(kind, TensorType):
        raise Untypable("not a tensor")
    return kind


@dataclass
class _Writer:
    """Writes the steps of right-hand sides, from what a match binds."""

    graph: EGraph
    numbers: dict[str, int]  # of the variables, as `known`
    known: dict[str, Analysis]
    names: dict[str, Any]  # facts for conditions and attributes
    values: dict[str, Any]  # of the attributes
    dtype: str  # of numbers that the rule writes
    steps: list[Step] = field(default_factory=list)

    def write(self, term: Term, all_outputs: bool = False) -> tuple[int, tuple[Type, ...]]:
        """Write steps for a term; return its number as in `Step.args`, and types of one or all outputs."""
        match term:
            case Variable(name, _) if name in self.values:  # an attribute has bound it to a number
                return self._constant(exact_number(self.values[name]))
            case Variable(name, _):
                return self.numbers[name], self.known[name].types
            case Literal(value):
                return self._constant(value)
            case Item(inner, index):
                ref, types = self.write(inner, all_outputs=True)
                place = output_index(index, self.values, inner.op, len(types))
                if len(types) == 1:
                    return ref, types
                return self._step(Step(output_head(place), (ref,), types_only((types[place],)), None))
            case Apply(op, args):
                written = [None if arg is None else self.write(arg) for arg in args]
                while written and written[-1] is None:
                    written.pop()
                given = evaluate_attributes(term, self.names, self.values)
                kinds = tuple(None if entry is None else _tensor(entry[1][0]) for entry in written)
                canonical = op.canonical(kinds, given)
                types = op.types(kinds, canonical)
                types = types if all_outputs else types[:1]
                head = operator_head(op, canonical, len(types))
                refs = tuple(None if entry is None else entry[0] for entry in written)
                return self._step(Step(head, refs, types_only(types), None))
        raise TypeError(term)

    def _constant(self, value: Fraction) -> tuple[int, tuple[Type, ...]]:
        node = literal(value, self.dtype)
        return self._step(Step(self.graph.head_of(node), (), types_only(node.types), node))

    def _step(self, step: Step) -> tuple[int, tuple[Type, ...]]:
        self.steps.append(step)
        return ~(len(self.steps) - 1), step.analyses[0].types


def commuted_rewrites(rule: Rule) -> list[Rewrite]:
    """Return a rewrite for every order of the arguments of commutative operators."""
    sides = product(*(argument_orders(root) for root in rule.lhs))
    return [Rewrite(rule, side) for side in sides]  # type: ignore[arg-type]
