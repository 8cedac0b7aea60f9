"""Split all instances of a rule into few cases whose sizes are symbols.

A case has a rank for each variable, a value for each listed attribute, and a symbol for every other size and
number.  The left side is built operator by operator.  If an operator refuses, it has asked whether sizes are
equal or large enough: each question becomes two cases, one in which the answer is yes by the form of the
sizes (`size_assumptions`), and one in which it is no.  The rule's conditions, its right side (each operator
as soon as its variables are known), and the comparison of the types of both sides split cases in the same
way.

For x [a, b] and y [c, d], Concat(x, y, axis=0) refuses, having asked whether b = d.  So there is one case, in
which d is b; where the answer is no, the rule does not apply.

Every instance of these ranks and listed values belongs to a case, if

1. an expression over symbols is the operator's expression at all values of the symbols.  Models with open
   sizes rely on the same property;
2. an operator that refuses symbols after all its questions were answered by no also refuses all numbers with
   these answers.  One in REFUSALS_PER_CHECK refusals is checked with small random numbers.

A *gap* is a set of instances that no case covers: numbers of such a check are accepted, or yes cannot be
assumed, or code needs the value of a symbol.  A gap ends the proof.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import inf
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tensaurus.expr.sizes.open_questions import (
    Question,
    forget_open_questions,
    has_open_questions,
    record_questions,
)
from tensaurus.expr.sizes.size import Symbol, is_same_size, terms_of
from tensaurus.graph.ir.node import Node
from tensaurus.ops import TensorType, Untypable
from tensaurus.rules.language.match import build_term
from tensaurus.rules.language.occurrences import (
    attribute_expressions,
    bound_names,
    inner_first,
    named_outputs,
    names_in,
    variables,
)
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.language.side_conditions import FUNCTIONS, Undefined, evaluate_expression, holds
from tensaurus.rules.language.term import Apply, Variable
from tensaurus.rules.prove.attribute_domain import equal_length_attributes
from tensaurus.rules.prove.attribute_values import representative_values
from tensaurus.rules.prove.expression_prover import Methods
from tensaurus.rules.prove.rule_case import Case, CaseBinding, CaseState, Gap
from tensaurus.rules.prove.size_assumptions import SIZE_QUESTIONS, easier_question, fresh_names, new_symbol
from tensaurus.rules.prove.unknown_values import UNKNOWN_VALUE_ERRORS

MAX_ANSWERS = 24  # a case with more answers must make each yes true by a replacement of symbols
# Replacements of symbols one after the other: twice as many as the proof of any rule of the library has.  A
# longer chain nests quotients in quotients without end.
MAX_REPLACEMENTS = 40
REFUSALS_PER_CHECK = 4  # every fourth refusal is checked with random numbers


class ProofStopped(Exception):
    """The proof cannot be completed, with the reason."""


class DifferentForms(ProofStopped):
    """The sides have different forms in some case."""


class OutOfSteps(ProofStopped):
    """The proof has used up its steps."""


@dataclass
class ProofBudget:
    """The steps that a proof may still take; a step builds an operator, or compares two sides.

    Steps are counted instead of seconds, so that a proof ends at the same place on every machine.

    means  the methods that may compare two sides
    """

    remaining: float = inf
    methods: Methods = Methods.SOLVED_SIZES

    def spend(self) -> None:
        """Take one step.  Raises OutOfSteps where none remains."""
        self.remaining -= 1
        if self.remaining < 0:
            raise OutOfSteps("it has taken all its steps")


class NotApplicable(ValueError):
    """The rule does not apply."""


Build: TypeAlias = Callable[[CaseState], Any]  # builds nodes of a state, and raises where it refuses


class _Built(NamedTuple):
    state: CaseState
    result: Any


class CaseSplit:
    """Iterates over the cases of one rule in which the largest rank of a variable is `rank`.

    dtypes          element types of the variables, one for all or by name
    allows_ones     whether sizes that broadcast may be 1
    budget          steps of the proof; OutOfSteps is raised where they are used up
    skip_identical  whether cases are left out in which both sides are the same nodes
    """

    def __init__(
        self,
        rule: Rule,
        rank: int = 0,
        dtypes: Mapping[str, str] | str = "float32",
        allows_ones: bool = True,
        budget: ProofBudget | None = None,
        skip_identical: bool = True,
    ):
        self.rule, self.rank, self.dtypes, self.allows_ones = rule, rank, dtypes, allows_ones
        self.budget = budget or ProofBudget()
        self.skip_identical = skip_identical
        self.applications = [a for root in rule.lhs for a in inner_first(root)]
        given = set[str]().union(*map(bound_names, rule.lhs))
        # conditions, and calls of the right side, each with the names read; names of outputs, with the call
        self.conditions = [(tree, names_in(tree) & given) for tree in rule.where]
        self.outputs = [output for root in rule.lhs for output in named_outputs(root)]
        self.right_calls = [(a, _names_read(a)) for root in rule.rhs for a in inner_first(root)]
        self.refusals = 0  # after all questions were answered by no
        self.broadcasts = False  # whether an operator asked a size to be 1
        self.rng = np.random.default_rng(len(rule.text))

    def __iter__(self) -> Iterator[Case | Gap]:
        yield from self._cases_from(0, CaseState())

    def _cases_from(self, place: int, state: CaseState) -> Iterator[Case | Gap]:
        """Yield the cases of a state in which the first `place` operators of the left side are built."""
        if place == len(self.applications):
            if state.types and max(kind.rank for kind in state.types.values()) < self.rank:
                return  # a case of another `rank`
            for built in self._split(state, self._build_sides):
                if isinstance(built, Gap):
                    yield built
                elif not self.skip_identical or built.result[0] != built.result[1]:
                    yield Case(built.state, *built.result)
            return
        term = self.applications[place]
        for wider in self._introduce_variables(term, state):
            for built in self._split(wider, partial(self._build_operator, term)):
                if isinstance(built, Gap):
                    yield built
                    continue
                values = built.state.values
                names = [name for name, owner in self.outputs if owner is term and name not in values]
                for picked in product(range(built.result), repeat=len(names)):
                    more = {**values, **dict(zip(names, picked, strict=True))}
                    yield from self._cases_from(place + 1, replace(built.state, values=more))

    def _build_operator(self, term: Apply, state: CaseState) -> int:
        """Build an operator, and what is known of the right side; return how many outputs it has."""
        binding = state.binding()
        is_open = False
        try:
            self._check_conditions(binding)
        except Undefined as error:
            # the operator itself may refuse the value that leaves the condition open, as a divisor of 0
            if not (is_open := _is_left_open(error)):
                raise
        dtype = self._dtype(state)
        _require_known_attributes(term, binding)
        made = build_term(term, binding, dtype, all_outputs=True)
        assert made is not None
        for other, needed in self.right_calls:
            if needed <= binding.nodes.keys() | binding.values.keys():
                _require_known_attributes(other, binding)
                build_term(other, binding, dtype, all_outputs=True)
        if is_open:
            self._check_conditions(binding)
        return len(made.types)

    def _dtype(self, state: CaseState) -> str:
        return next((kind.dtype for kind in state.types.values()), "float32")

    def _introduce_variables(self, term: Apply, state: CaseState) -> Iterator[CaseState]:
        """Yield the state with each choice of ranks and attributes for the names that the term uses first."""
        new = [a.name for a in term.args if isinstance(a, Variable)]
        new = [name for name in dict.fromkeys(new) if name not in state.types and name not in state.values]
        for ranks in product(range(self.rank + 1), repeat=len(new)):
            types = dict(state.types)
            with fresh_names(state.name_counts) as names:
                for name, rank in zip(new, ranks, strict=True):
                    dtype = self.dtypes if isinstance(self.dtypes, str) else self.dtypes[name]
                    sizes = [new_symbol(f"{name}{d}", 1) for d in range(rank)]
                    types[name] = TensorType(dtype, tuple(sizes))
            largest = max((kind.rank for kind in types.values()), default=self.rank)
            if len(types) == len(self.rule.variables) and largest < self.rank:
                continue  # these ranks belong to the cases of another `rank`
            wider = replace(state, types=types, name_counts=names.taken)
            yield from self._introduce_attributes(term, wider)

    def _introduce_attributes(self, term: Apply, state: CaseState) -> Iterator[CaseState]:
        """Yield the state with each choice of values for the attributes that the term uses first."""
        known = set(state.values) | set(state.types)
        # attributes whose value has a name of its own: perm=p; then those that `**rest` stands for
        names_given = ((name, tree.id) for name, tree in term.attrs if isinstance(tree, ast.Name))
        named = [(name, key) for name, key in names_given if key not in known]
        rest = term.rest if term.rest is not None and term.rest not in known else None
        fixed = {name for name, _ in term.attrs}
        others = [name for name in term.op.attributes if name not in fixed] if rest is not None else []
        if not named and not others:
            yield state if rest is None else replace(state, values={**state.values, rest: {}})
            return
        rank = 0
        if term.args:
            with record_questions(state.assumed):  # typed under the same answers as before
                first = build_term(term.args[0], state.binding(), self._dtype(state))
            rank = -1 if first is None else first.tensor.rank
        attributes = [name for name, _ in named] + others
        with fresh_names(state.name_counts) as names:
            pools = [list(representative_values(term.op, name, rank)) for name in attributes]
        paired = equal_length_attributes(term.op)
        for picked in _combine_values(pools, [name in paired for name in attributes]):
            values = dict(state.values)
            values.update((key, value) for (_, key), value in zip(named, picked, strict=False))
            if rest is not None:
                values[rest] = dict(zip(others, picked[len(named) :], strict=True))
            yield replace(state, values=values, name_counts=names.taken)

    def _split(self, state: CaseState, build: Build, replacements: int = 0) -> Iterator[_Built | Gap]:
        """Yield each case of a state in which `build` succeeds, with its result.

        Where `build` refuses, it is tried again with each question that it asked answered by yes, the latest
        first; the questions tried before are then answered by no.
        """
        self.budget.spend()
        if replacements > MAX_REPLACEMENTS:
            yield Gap("its sizes are nested too deeply")
            return
        reason: Exception | None = None
        with record_questions(state.assumed) as watch:
            try:
                result = build(state)
            except (Untypable, Undefined, *UNKNOWN_VALUE_ERRORS) as error:
                reason = error
        if reason is None:
            yield _Built(state, result)
            return
        rest = state  # with the questions tried so far answered by no
        for question in _order_questions(watch.asked):
            # a question of a condition has nothing to do with broadcasting
            may_broadcast = _asks_for_one(question) and isinstance(reason, Untypable)
            self.broadcasts |= may_broadcast
            if may_broadcast and not self.allows_ones:
                pass  # no case in which the answer is yes
            elif question.kind in SIZE_QUESTIONS:
                solutions, rest = rest.solve(question)
                if solutions is None and len(rest.assumed) >= MAX_ANSWERS:
                    yield Gap(f"cannot assume {_format_question(question)} at {state}")
                    return
                if solutions is None:  # the sizes keep their form: the answer is an assumption for the prover
                    yield from self._split(rest.with_answer(question, True), build, replacements + 1)
                for values in solutions or ():
                    changed = rest.substitute(values)
                    if changed is not None:
                        yield from self._split(changed, build, replacements + 1)
            else:
                yield from self._split(rest.with_answer(question, True), build, replacements + 1)
            rest = rest.with_answer(question, False)
        if watch.open_was_tested and rest is not state:
            # "no" to all questions is a state of its own, in which an attribute has a known value
            yield from self._split(rest, build, replacements + 1)
            return
        # code that needs the value of a symbol has not refused all numbers
        if not isinstance(reason, (Untypable, Undefined, NotApplicable)) or _is_left_open(reason):
            yield Gap(f"{type(reason).__name__}: {reason} at {state}")
            return
        self.refusals += 1
        missed = self._find_missed_instance(rest, build) if self.refusals % REFUSALS_PER_CHECK == 0 else None
        if missed is not None:
            yield Gap(f"{reason}, yet it applies at {missed}")

    def _find_missed_instance(self, state: CaseState, build: Build) -> CaseState | None:
        """Return an instance with small sizes in this state that `build` accepts, if one is drawn."""
        drawn = state.draw_numbers(self.rng)
        if drawn is None:
            return None
        with record_questions(drawn.assumed):
            try:
                build(drawn)
            except (Untypable, Undefined, *UNKNOWN_VALUE_ERRORS):
                return None
        return drawn

    def _build_sides(self, state: CaseState) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
        binding = state.binding()
        self._check_conditions(binding)
        dtype = self._dtype(state)
        for term in (a for root in (*self.rule.lhs, *self.rule.rhs) for a in inner_first(root)):
            _require_known_attributes(term, binding)
        left = tuple(build_term(root, binding, dtype) for root in self.rule.lhs)
        right = tuple(build_term(root, binding, dtype) for root in self.rule.rhs)
        for old, new in zip(left, right, strict=True):
            forget_open_questions()
            assert old is not None
            if new is None or not _are_same_types(old.tensor, new.tensor):
                raise NotApplicable(f"{old.type} is not {new and new.type}")
        return left, right  # type: ignore[return-value]

    def _check_conditions(self, binding: CaseBinding) -> None:
        """Raise NotApplicable where a condition is false whose names are all bound."""
        names = binding.names()
        for condition, needed in self.conditions:
            forget_open_questions()
            if needed <= names.keys() and not holds(condition, names):
                raise NotApplicable(ast.unparse(condition))


def _combine_values(pools: Sequence[Sequence[Any]], paired: Sequence[bool]) -> Iterator[tuple[Any, ...]]:
    """Yield one value of each pool; those of paired attributes are tuples of one length."""
    tuples = [pool for pool, pair in zip(pools, paired, strict=True) if pair]
    lengths = {len(value) for pool in tuples for value in pool if value is not None}
    for length in sorted(lengths) or [0]:
        yield from product(
            *(
                [v for v in pool if v is None or len(v) == length] if pair else pool
                for pool, pair in zip(pools, paired, strict=True)
            )
        )


def _is_left_open(error: Exception) -> bool:
    """Return whether an expression has no value because of symbols.

    Symbols are no reason for an error about None: the expression has no value for any number either.
    """
    return isinstance(error.__cause__, TypeError) and "NoneType" not in str(error.__cause__)


def _require_known_attributes(term: Apply, binding: CaseBinding) -> None:
    """Raise NotApplicable where an attribute's value depends on an answer that is not assumed yet."""
    names = binding.names()
    for name, tree in term.attrs:
        forget_open_questions()
        evaluate_expression(tree, names)
        if has_open_questions():
            raise NotApplicable(f"{name} depends on sizes")


def _names_read(term: Apply) -> set[str]:
    """Return the names that a term and its attributes read."""
    trees = attribute_expressions(term)
    names = set[str]().union(*map(names_in, trees)) - FUNCTIONS.keys()
    loops = (loop for tree in trees for loop in ast.walk(tree) if isinstance(loop, ast.comprehension))
    loop_names = set[str]().union(*(names_in(loop.target) for loop in loops))
    rests = {inner.rest for inner in inner_first(term) if inner.rest is not None}
    outputs = {name for name, _ in named_outputs(term)}
    return (names - loop_names) | rests | outputs | set(variables(term))


def _order_questions(asked: Iterable[Question]) -> Iterator[Question]:
    """Yield the latest question first, and before each question one that is easier to assume."""
    for question in reversed(tuple(asked)):
        simple = easier_question(question)
        yield from [question] if simple is None else [simple, question]


def _are_same_types(a: TensorType, b: TensorType) -> bool:
    return a.dtype == b.dtype and a.rank == b.rank and all(map(is_same_size, a.shape, b.shape))


def _asks_for_one(question: Question) -> bool:
    """Return whether the question is if a symbol is 1: symbol - 1 = 0."""
    (factors, coefficient), *rest = terms_of(question.subject) if question.kind == "zero" else (((), 0),)
    return len(factors) == 1 and isinstance(factors[0], Symbol) and coefficient == 1 and rest == [((), -1)]


def _format_question(question: Question) -> str:
    return f"{question.subject} {'= 0' if question.kind == 'zero' else '>= 0'}"
