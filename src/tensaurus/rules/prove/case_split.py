"""All instances of a rule, as few cases whose sizes are symbols.

A case has a rank for each variable, listed attributes one by one, and a symbol for every other size and
number. The left side is built operator by operator. Where one refuses, it has asked whether sizes are equal
or large enough: each question becomes two cases, one in which the answer is yes by the form of the sizes
(`assumption`), and the rest, in which it is no. In the same way come the conditions of the rule, the right
side (each operator as soon as its variables are there), and the comparison of the types of both sides.

So every instance of these ranks and listed values is one of a case, if

1. an expression over symbols is the operator's expression at all values of the symbols: this is what the
   sizes of a dynamic model rely on, and what makes a proof over symbols one about numbers;
2. an operator that refuses symbols after all its questions were answered by no refuses the numbers for
   which that is the answer. One in `EVERY` refusals is tried with small numbers drawn at random: what is
   not refused there is a gap, and so is a question to which yes cannot be assumed, or the value of a symbol
   that is needed.

A gap ends the proof. A condition that holds whatever is answered is not used, which proves more.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from typing import Any, TypeAlias

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
from tensaurus.rules.language.match import build
from tensaurus.rules.language.occurrences import inner_first, named, outputs_named, variables
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.language.side_conditions import FUNCTIONS, Undefined, evaluate_expression, holds
from tensaurus.rules.language.term import Apply, Variable
from tensaurus.rules.prove.attribute_domain import KNOWN, choices, paired
from tensaurus.rules.prove.expression_prover import Means
from tensaurus.rules.prove.rule_case import Case, CaseBinding, Gap, State
from tensaurus.rules.prove.size_assumptions import SIZES, easier, naming, symbol

ASSUMED = 24  # answers of one case, beyond which none is assumed that no replacement makes true
DEEP = 40  # replacements one after the other, twice as many as any proof of a rule has: what goes on from
# there has quotients of quotients of quotients, and no end
EVERY = 4  # refusals of which one is tried with numbers


class Stopped(Exception):
    """What a proof stops at."""


class Different(Stopped):
    """Both sides have different forms."""


class Late(Stopped):
    """It has taken all its steps."""


@dataclass
class Steps:
    """How many more a proof may take: each builds an operator, or compares two sides.

    They are counted, since what ends after so many seconds ends elsewhere on another machine.

    means   what may be asked where sides are compared
    """

    left: float = inf
    means: Means = Means.TYPES

    def take(self) -> None:
        """One more.  Raises Late where there is none."""
        self.left -= 1
        if self.left < 0:
            raise Late("it has taken all its steps")


class NotApplicable(ValueError):
    """The rule does not apply."""


Run: TypeAlias = Callable[[State], Any]


class Cases:
    """The cases of one rule in which the largest rank of a variable is `rank`.

    `low` is the least size; `dtypes` are the element types of the variables, one for all or by name; without
    `ones`, sizes that broadcast are not 1.  Raises Late where no `steps` are left.
    """

    def __init__(
        self,
        rule: Rule,
        rank: int = 0,
        low: int = 1,
        dtypes: Mapping[str, str] | str = "float32",
        ones: bool = True,
        steps: Steps | None = None,
    ):
        self.rule, self.rank, self.low, self.dtypes, self.ones = rule, rank, low, dtypes, ones
        self.steps = steps or Steps()
        self.applications = [a for root in rule.lhs for a in inner_first(root)]
        given = set[str]().union(*map(named, rule.lhs))
        self.conditions = [
            (tree, {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} & given) for tree in rule.where
        ]
        # what the right side computes from names that are bound must type, too
        self.outputs = [output for root in rule.lhs for output in outputs_named(root)]
        self.made = [(a, _read(a)) for root in rule.rhs for a in inner_first(root)]
        self.refusals = 0
        self.broadcasts = False  # whether a size was asked to be 1
        self.rng = np.random.default_rng(len(rule.text))

    def __iter__(self) -> Iterator[Case | Gap]:
        yield from self._step(0, State())

    def _step(self, place: int, state: State) -> Iterator[Case | Gap]:
        if place == len(self.applications):
            if state.types and max(kind.rank for kind in state.types.values()) < self.rank:
                return
            yield from self._settled(state, self._sides, self._case)
            return
        term = self.applications[place]

        def run(now: State) -> Any:
            binding = now.binding()
            unsaid = False
            try:
                self._admitted(binding)
            except Undefined as error:
                # it may be asked of what the operator refuses: a number that divides and is none
                if not (unsaid := _unsaid(error)):
                    raise
            dtype = self._dtype(now)
            _firm(term, binding)
            made = build(term, binding, dtype, every=True)
            assert made is not None
            for other, needed in self.made:
                if needed <= binding.nodes.keys() | binding.values.keys():
                    _firm(other, binding)
                    build(other, binding, dtype, every=True)
            if unsaid:
                self._admitted(binding)
            return len(made.types)

        def then(now: State, outputs: int, _: Any) -> Iterator[Case | Gap]:
            names = [name for name, owner in self.outputs if owner is term and name not in now.values]
            for picked in product(range(outputs), repeat=len(names)):
                values = {**now.values, **dict(zip(names, picked, strict=True))}
                yield from self._step(place + 1, replace(now, values=values))

        for wider in self._introduced(term, state):
            yield from self._settled(wider, run, then)

    def _dtype(self, state: State) -> str:
        return next((kind.dtype for kind in state.types.values()), "float32")

    def _introduced(self, term: Apply, state: State) -> Iterator[State]:
        """The state with what the term names first: ranks of its variables, values of its attributes."""
        new = [a.name for a in term.args if isinstance(a, Variable)]
        new = [name for name in dict.fromkeys(new) if name not in state.types and name not in state.values]
        for ranks in product(range(self.rank + 1), repeat=len(new)):
            types = dict(state.types)
            with naming(state.named) as names:
                for name, rank in zip(new, ranks, strict=True):
                    dtype = self.dtypes if isinstance(self.dtypes, str) else self.dtypes[name]
                    sizes = [symbol(f"{name}{d}", self.low) for d in range(rank)]
                    types[name] = TensorType(dtype, tuple(sizes))
            largest = max((kind.rank for kind in types.values()), default=self.rank)
            if len(types) == len(self.rule.variables) and largest < self.rank:
                continue  # another rank's
            wider = replace(state, types=types, named=names.taken)
            yield from self._with_attributes(term, wider)

    def _with_attributes(self, term: Apply, state: State) -> Iterator[State]:
        named = {name: tree.id for name, tree in term.attrs if isinstance(tree, ast.Name)}
        fixed = {name for name, _ in term.attrs}
        known = set(state.values) | set(state.types)
        single = [(name, key) for name, key in named.items() if key not in known]
        rest = term.rest if term.rest is not None and term.rest not in known else None
        others = [name for name in term.op.attributes if name not in fixed] if rest is not None else []
        if not single and not others:
            yield state if rest is None else replace(state, values={**state.values, rest: {}})
            return
        rank = 0
        if term.args:
            with record_questions(state.assumed):  # as it was typed before
                first = build(term.args[0], state.binding(), self._dtype(state))
            rank = -1 if first is None else first.tensor.rank
        asked = [n for n, _ in single] + others
        with naming(state.named) as names:
            pools = [list(choices(term.op, name, rank)) for name in asked]
        pairs = paired(term.op)
        for picked in _equally_long(pools, [name in pairs for name in asked]):
            values = dict(state.values)
            for (_, key), value in zip(single, picked[: len(single)], strict=True):
                values[key] = value
            if rest is not None:
                values[rest] = dict(zip(others, picked[len(single) :], strict=True))
            yield replace(state, values=values, named=names.taken)

    def _settled(
        self,
        state: State,
        run: Run,
        then: Callable[[State, Any, Sequence[Question]], Iterator[Case | Gap]],
        deep: int = 0,
    ) -> Iterator[Case | Gap]:
        """What follows in every case in which the run succeeds, after so many replacements."""
        self.steps.take()
        if deep > DEEP:
            yield Gap("its sizes are nested too deeply")
            return
        reason: Exception | None = None
        with record_questions(state.assumed) as watch:
            try:
                result = run(state)
            except (Untypable, Undefined, *KNOWN) as error:
                reason = error
        if reason is None:
            yield from then(state, result, tuple(watch.asked))
            return
        rest = state
        for question in _in_order(watch.asked):
            # one that a condition asks for is no broadcasting
            one = _is_one(question) and isinstance(reason, Untypable)
            self.broadcasts |= one
            if one and not self.ones:
                pass
            elif question.kind in SIZES:
                solutions, rest = rest.ways(question)
                if solutions is None and len(rest.assumed) >= ASSUMED:
                    yield Gap(f"cannot assume {_said(question)} at {state}")
                    return
                if solutions is None:  # the sizes keep their form, and the answer is left to whoever proves
                    yield from self._settled(rest.answered(question, True), run, then, deep + 1)
                for values in solutions or ():
                    changed = rest.put(values)
                    if changed is not None:
                        yield from self._settled(changed, run, then, deep + 1)
            else:
                yield from self._settled(rest.answered(question, True), run, then, deep + 1)
            rest = rest.answered(question, False)
        if watch.open_was_tested and rest is not state:
            # all of them answered by no is a state of its own: an attribute then has a value
            yield from self._settled(rest, run, then, deep + 1)
            return
        if not isinstance(reason, (Untypable, Undefined, NotApplicable)) or _unsaid(reason):
            yield Gap(f"{type(reason).__name__}: {reason} at {state}")
            return
        self.refusals += 1
        missed = self._missed(rest, run) if self.refusals % EVERY == 0 else None
        if missed is not None:
            yield Gap(f"{reason}, yet it applies at {missed}")

    def _missed(self, state: State, run: Run) -> State | None:
        """An instance with small sizes in this state that is not refused, if one is drawn."""
        drawn = state.drawn(self.rng)
        if drawn is None:
            return None
        with record_questions(drawn.assumed):
            try:
                run(drawn)
            except (Untypable, Undefined, *KNOWN):
                return None
        return drawn

    def _sides(self, state: State) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
        binding = state.binding()
        self._admitted(binding)
        dtype = self._dtype(state)
        for term in (a for root in (*self.rule.lhs, *self.rule.rhs) for a in inner_first(root)):
            _firm(term, binding)
        left = tuple(build(root, binding, dtype) for root in self.rule.lhs)
        right = tuple(build(root, binding, dtype) for root in self.rule.rhs)
        for old, new in zip(left, right, strict=True):
            forget_open_questions()
            assert old is not None
            if new is None or not _alike(old.tensor, new.tensor):
                raise NotApplicable(f"{old.type} is not {new and new.type}")
        return left, right  # type: ignore[return-value]

    def _admitted(self, binding: CaseBinding) -> None:
        """Raise Refused where a condition is false whose names are all bound."""
        names = binding.names()
        for condition, needed in self.conditions:
            forget_open_questions()
            if needed <= names.keys() and not holds(condition, names):
                raise NotApplicable(ast.unparse(condition))

    def _case(self, state: State, sides: Any, asked: Sequence[Question]) -> Iterator[Case | Gap]:
        left, right = sides
        if any(a is not b for a, b in zip(left, right, strict=True)):
            yield Case(state, left, right, tuple(asked))


def _equally_long(pools: Sequence[Sequence[Any]], paired: Sequence[bool]) -> Iterator[tuple[Any, ...]]:
    """One of each pool, the tuples of those that are paired equally long."""
    tuples = [pool for pool, pair in zip(pools, paired, strict=True) if pair]
    lengths = {len(value) for pool in tuples for value in pool if value is not None}
    for length in sorted(lengths) or [0]:
        yield from product(
            *(
                [v for v in pool if v is None or len(v) == length] if pair else pool
                for pool, pair in zip(pools, paired, strict=True)
            )
        )


def _unsaid(error: Exception) -> bool:
    """Whether an expression has no value because of symbols: of None, which some have, no number has one."""
    return isinstance(error.__cause__, TypeError) and "NoneType" not in str(error.__cause__)


def _firm(term: Apply, binding: CaseBinding) -> None:
    """Raise Refused where an attribute's value depends on an answer that is not assumed yet."""
    names = binding.names()
    for name, tree in term.attrs:
        forget_open_questions()
        evaluate_expression(tree, names)
        if has_open_questions():
            raise NotApplicable(f"{name} depends on sizes")


def _read(term: Apply) -> set[str]:
    """The names that a term and its attributes read."""
    trees = [tree for inner in inner_first(term) for _, tree in inner.attrs]
    names = {n.id for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Name)} - FUNCTIONS.keys()
    loops = {
        n.id
        for tree in trees
        for loop in ast.walk(tree) if isinstance(loop, ast.comprehension)
        for n in ast.walk(loop.target) if isinstance(n, ast.Name)
    }  # fmt: skip
    rests = {inner.rest for inner in inner_first(term) if inner.rest is not None}
    outputs = {name for name, _ in outputs_named(term)}
    return (names - loops) | rests | outputs | set(variables(term))


def _in_order(asked: Iterable[Question]) -> Iterator[Question]:
    """The latest first, and before each what is easier to assume."""
    for question in reversed(tuple(asked)):
        simple = easier(question)
        yield from [question] if simple is None else [simple, question]


def _alike(a: TensorType, b: TensorType) -> bool:
    return a.dtype == b.dtype and a.rank == b.rank and all(map(is_same_size, a.shape, b.shape))


def _is_one(question: Question) -> bool:
    """Whether it asks if a size that is a symbol is 1."""
    (factors, coefficient), *rest = terms_of(question.subject) if question.kind == "zero" else (((), 0),)
    return len(factors) == 1 and isinstance(factors[0], Symbol) and coefficient == 1 and rest == [((), -1)]


def _said(question: Question) -> str:
    return f"{question.subject} {'= 0' if question.kind == 'zero' else '>= 0'}"
