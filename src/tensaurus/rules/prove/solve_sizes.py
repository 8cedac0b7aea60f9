"""Solve sizes from all assumptions together, where no single assumption decides them.

A slice of n elements from s on has max(min(e, n) - s, 0) elements.  Where a rule requires this to be n, since
its types must be equal, s is 0; the form of one size cannot tell.  Z3 decides over the integers which
argument of each maximum is the largest.  Sizes that are assumed to be zero are then linear, and are solved
for a symbol.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from tensaurus.expr.ir.scope import Const, Scope, Source, Tensor
from tensaurus.expr.ir.walk import Rewriting, bodies, sizes
from tensaurus.expr.sizes.open_questions import Question
from tensaurus.expr.sizes.size import Atom, Axis, Largest, Size, atoms, polynomial, substitute
from tensaurus.rules.prove.size_assumptions import SIZE_QUESTIONS, solve_question
from tensaurus.rules.prove.z3_terms import IndexedTerms

__all__ = ["is_contradictory", "solve_maxima"]

SOLVER_WORK = 500_000  # Z3's limit for one question, in its own units


def solve_maxima(pair: tuple[Scope, Scope], assumed: Mapping[Question, bool]) -> tuple[Scope, Scope] | None:
    """Return both expressions with maxima replaced by their largest argument, and with solved symbols.

    None where no maximum is decided, or the assumptions contradict each other.
    """
    try:
        return _solve_maxima(pair, assumed)
    except (ZeroDivisionError, ValueError):  # a divisor is 0: the assumptions contradict each other
        return None


def is_contradictory(assumed: Mapping[Question, bool]) -> bool:
    """Return whether Z3 shows that no sizes satisfy the assumptions."""
    try:
        return _SizeOrder(assumed).is_contradictory
    except (ZeroDivisionError, ValueError):  # as in `solve_maxima`
        return True


def _solve_maxima(pair: tuple[Scope, Scope], assumed: Mapping[Question, bool]) -> tuple[Scope, Scope] | None:
    zero = [q.subject for q, yes in assumed.items() if yes and q.kind == "zero"]
    if not any(isinstance(a, Largest) for size in zero for a in atoms(size)):
        return None
    # maxima inside maxima are decided round by round; then each size that is assumed to be 0 gives a symbol
    first = pair
    while values := dict(_known_maxima(pair, assumed)):
        pair, zero = _replace_sizes(pair, values), [substitute(size, values) for size in zero]
    if pair is first:
        return None
    for place in range(len(zero)):
        values = _unique_solution(zero[place])
        pair, zero = _replace_sizes(pair, values), [substitute(size, values) for size in zero]
    return pair


def _unique_solution(size: Size) -> dict[Atom, Size]:
    """Return the values of symbols for which the size is zero, {} unless there is one solution."""
    solutions = solve_question(Question("zero", size)) or []
    if len(solutions) != 1:
        return {}
    values = solutions[0]
    known = all(atoms(polynomial(value)) <= atoms(size) for value in values.values())
    return dict(values) if known else {}


def _replace_sizes(pair: tuple[Scope, Scope], values: Mapping[Atom, Size]) -> tuple[Scope, Scope]:
    change = _SizeReplacement(values)
    return change.scope(pair[0]), change.scope(pair[1])


def _known_maxima(pair: tuple[Scope, Scope], assumed: Mapping[Question, bool]) -> Iterator[tuple[Atom, Size]]:
    """Yield each maximum with its largest argument.

    Maxima over axes are left out: Z3 would assume that the axes are not empty.
    """
    inside = {a for scope in pair for size in _sizes(scope) for a in atoms(size) if isinstance(a, Largest)}
    every = [a for a in sorted(inside, key=str) if not any(isinstance(b, Axis) for b in atoms(a))]
    orders = _SizeOrder(assumed) if every else None
    if orders is None or orders.is_contradictory:
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


class _SizeReplacement(Rewriting):
    """Replaces atoms by sizes, also in extents and sources."""

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


class _SizeOrder:
    """Decides the order of sizes under the assumptions, by Z3."""

    def __init__(self, assumed: Mapping[Question, bool]):
        import z3

        self._z3, self._solver = z3, z3.Solver()
        self._solver.set("rlimit", SOLVER_WORK)
        self._terms = IndexedTerms(Scope((), Const(0)), frozenset())
        for question, yes in assumed.items():
            with suppress(NotImplementedError, TypeError, z3.Z3Exception):  # fewer facts are still sound
                if question.kind in SIZE_QUESTIONS:
                    self._terms.assume(question, yes)

    @property
    def is_contradictory(self) -> bool:
        """Whether no sizes satisfy the assumptions."""
        return bool(self._solver.check(*self._terms.facts) == self._z3.unsat)

    def at_least(self, first: Size, second: Size) -> bool:
        """Return whether the first size is provably at least the second."""
        try:
            below = self._terms.size(first) < self._terms.size(second)
            return bool(self._solver.check(*self._terms.facts, below) == self._z3.unsat)
        except (NotImplementedError, TypeError, self._z3.Z3Exception):
            return False
