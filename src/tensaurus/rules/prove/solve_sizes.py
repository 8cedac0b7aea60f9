"""Sizes that are known where all that is assumed of them is taken together.

A slice of n elements from s on has max(min(e, n) - s, 0) of them.  Where a rule asks that these be n, as its
types must be equal, s is 0.  No form of one size says so.  Z3 says, over the integers, which arguments of
maxima are the largest; what is assumed to be zero is linear then, and is solved for a symbol.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from tensaurus.expr.ir.scope import Const, Scope, Source, Tensor
from tensaurus.expr.ir.walk import Rewriting, bodies, sizes
from tensaurus.expr.sizes.open_questions import Question
from tensaurus.expr.sizes.size import Atom, Axis, Largest, Size, atoms, polynomial, substitute
from tensaurus.rules.prove.size_assumptions import SIZES, ways
from tensaurus.rules.prove.z3_terms import PlacedTerms

__all__ = ["contradictory", "solved"]

WORK = 500_000  # of Z3 for one question, in its own units


def solved(pair: tuple[Scope, Scope], assumed: Mapping[Question, bool]) -> tuple[Scope, Scope] | None:
    """Both expressions with their largest arguments in the place of maxima, and with symbols that have one
    value under what is assumed; None where there are none, where what is assumed contradicts itself, or where
    it says of no maximum what it is."""
    try:
        return _solved(pair, assumed)
    except (ZeroDivisionError, ValueError):  # a divisor is none, so what is assumed is never so
        return None


def contradictory(assumed: Mapping[Question, bool]) -> bool:
    """Whether no sizes are as it is assumed, as far as Z3 shows."""
    try:
        return _Orders(assumed).contradictory
    except (ZeroDivisionError, ValueError):  # a divisor is none, so what is assumed is never so
        return True


def _solved(pair: tuple[Scope, Scope], assumed: Mapping[Question, bool]) -> tuple[Scope, Scope] | None:
    zero = [q.subject for q, yes in assumed.items() if yes and q.kind == "zero"]
    if not any(isinstance(a, Largest) for size in zero for a in atoms(size)):
        return None
    first = pair
    while values := dict(_decided(pair, assumed)):
        pair, zero = _replaced(pair, values), [substitute(size, values) for size in zero]
    if pair is first:
        return None
    for place in range(len(zero)):
        values = _solution(zero[place])
        pair, zero = _replaced(pair, values), [substitute(size, values) for size in zero]
    return pair


def _solution(size: Size) -> dict[Atom, Size]:
    """What the symbols are where the size is zero, if that is one value of each."""
    solutions = ways(Question("zero", size)) or []
    if len(solutions) != 1:
        return {}
    values = solutions[0]
    known = all(atoms(polynomial(value)) <= atoms(size) for value in values.values())
    return dict(values) if known else {}


def _replaced(pair: tuple[Scope, Scope], values: Mapping[Atom, Size]) -> tuple[Scope, Scope]:
    change = _Replacing(values)
    return change.scope(pair[0]), change.scope(pair[1])


def _decided(pair: tuple[Scope, Scope], assumed: Mapping[Question, bool]) -> Iterator[tuple[Atom, Size]]:
    """Each maximum with its largest argument; none over axes, which say that there is a place at all."""
    inside = {a for scope in pair for size in _sizes(scope) for a in atoms(size) if isinstance(a, Largest)}
    every = [a for a in sorted(inside, key=str) if not any(isinstance(b, Axis) for b in atoms(a))]
    orders = _Orders(assumed) if every else None
    if orders is None or orders.contradictory:
        return
    for atom in every:
        for value in atom.args:
            if all(orders.at_least(value, other) for other in atom.args if other is not value):
                yield atom, value
                break


def _sizes(scope: Scope) -> Iterator[Size]:
    yield from scope.shape
    for body in bodies(scope):
        yield from sizes(body)


class _Replacing(Rewriting):
    """Atoms replaced by sizes, in extents and sources, too."""

    def __init__(self, values: Mapping[Atom, Size]):
        super().__init__()
        self._values = values

    def size(self, size: Size) -> Size:
        return substitute(super().size(size), self._values)  # type: ignore[no-any-return]

    def axes(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(axis.name, self.size(axis.extent)) for axis in axes)

    def source(self, source: Source) -> Source:
        if isinstance(source, Tensor):
            return replace(source, shape=tuple(map(self.size, source.shape)))
        return super().source(source)


class _Orders:
    """What is known of the order of sizes."""

    def __init__(self, assumed: Mapping[Question, bool]):
        import z3

        self._z3, self._solver = z3, z3.Solver()
        self._solver.set("rlimit", WORK)
        self._terms = PlacedTerms(Scope((), Const(0)), frozenset())
        for question, yes in assumed.items():
            with suppress(NotImplementedError, TypeError, z3.Z3Exception):  # less is known
                if question.kind in SIZES:
                    self._terms.assume(question, yes)

    @property
    def contradictory(self) -> bool:
        """Whether no sizes are so."""
        return bool(self._solver.check(*self._terms.facts) == self._z3.unsat)

    def at_least(self, first: Size, second: Size) -> bool:
        """Whether the first is at least the second, as far as is known."""
        try:
            below = self._terms.size(first) < self._terms.size(second)
            return bool(self._solver.check(*self._terms.facts, below) == self._z3.unsat)
        except (NotImplementedError, TypeError, self._z3.Z3Exception):
            return False
