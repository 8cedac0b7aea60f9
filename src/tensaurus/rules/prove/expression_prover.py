"""Whether two expressions are equal for all values of their leaves, of real numbers and of sizes.

First by their canonical forms.  Where these differ only in what is computed from numbers, the bodies go to Z3
over the reals, with what is the same at all places taken out of their maxima (`extremes`).  What is no
arithmetic (a read, a reduction, a choice by indices) is a variable there, the same for equal texts, and a
transcendental function is any function.  Where they differ in places, too, these are integers of Z3 within
their ranges, under all that is assumed of the sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from functools import cached_property, partial

from tensaurus.expr.analysis.work_counts import called_functions
from tensaurus.expr.ir.expression_text import show
from tensaurus.expr.ir.scalar_functions import cast_target
from tensaurus.expr.ir.scope import Body, Const, Scope, Source, Tensor, call
from tensaurus.expr.ir.walk import replace_axes
from tensaurus.expr.normal.canonicalize import are_equal_expressions
from tensaurus.expr.sizes.open_questions import CacheByAnswers, Question, record_questions
from tensaurus.expr.sizes.size import Atom, Size, polynomial
from tensaurus.graph.analysis.program_expression import build_expressions
from tensaurus.graph.ir.node import CONSTANT, INPUT, Node
from tensaurus.rules.prove.attribute_domain import REAL_PREFIX
from tensaurus.rules.prove.factor_out_of_max import taken_out
from tensaurus.rules.prove.solve_sizes import solved
from tensaurus.rules.prove.z3_terms import PlacedTerms, SolverTerms
from tensaurus.system.deadline import cancel_at_deadline

MOVED = "moved"
STRENGTH = (MOVED, "algebra", "z3")
WORK = 5_000_000  # of Z3 for one question, in its own units, a second or two: on every machine it ends alike
LITTLE = 200_000  # the same where a search waits for it
TIMEOUT = 60_000  # milliseconds, in which it stops even where it does not count what it does


class Means(IntEnum):
    """What a proof may ask: canonical forms; Z3 where these differ; what types say of sizes where Z3 shows
    nothing, which takes many times as long."""

    FORMS = 0
    SOLVER = 1
    TYPES = 2


@dataclass(frozen=True)
class Settled:
    """Equal, as `by` shows, one of STRENGTH: "moved" where elements are moved, and nothing is computed."""

    by: str


@dataclass(frozen=True)
class Open:
    """Not shown to be equal, and why."""

    reason: str


def _leaf(node: Node, nonzero: frozenset[str]) -> Source | None:
    """Tensors of the inputs' names, `nonzero` some of them, and numbers."""
    if node.op is INPUT:
        name = node.attribute("name")
        dtype = "real" if name.startswith(REAL_PREFIX) else node.tensor.dtype
        return Tensor(name, node.tensor.shape, dtype, name in nonzero)
    if node.op is CONSTANT:
        array = node.attribute("data").array
        return Scope((), call(f"to_{node.tensor.dtype}", Const(Fraction(array.item()))))
    return None


@dataclass(eq=False)
class _Pair:
    """The expressions of two nodes."""

    first: Scope
    second: Scope

    @cached_property
    def alike(self) -> bool:
        """Whether they have the same canonical form."""
        return are_equal_expressions(self.first, self.second)

    @cached_property
    def taken_out(self) -> tuple[Scope, Scope]:
        """Both, with what is the same at all places taken out of their maxima."""
        return taken_out(self.first), taken_out(self.second)


_pairs = CacheByAnswers[_Pair](4096)


def equal(
    left: Node, right: Node, assumed: Mapping[Question, bool], means: Means = Means.TYPES
) -> Settled | Open:
    """Whether both nodes are the same function of their inputs, under what is assumed of these."""
    positive = frozenset(q.subject for q, known in assumed.items() if q.kind == "positive" and known)
    nodes = sorted((left, right), key=lambda node: node.serial)  # one question, from left to right and back
    with record_questions(assumed):  # as they were typed
        pair = _pairs.get(
            (*nodes, positive), lambda: _Pair(*build_expressions(nodes, partial(_leaf, nonzero=positive)))
        )
    return _judged(pair, positive, assumed, means)


def equal_over(left: Node, right: Node, leaves: Callable[[Node], Source | None]) -> Settled | Open:
    """Whether both nodes are the same function of these leaves, at their own types: by little work, as a
    search waits for it.

    Raises ValueError, Untypable where one has no expression over them.
    """
    return _judged(_Pair(*build_expressions((left, right), leaves)), frozenset(), {}, Means.SOLVER, LITTLE)


def _judged(
    pair: _Pair,
    positive: frozenset[str],
    assumed: Mapping[Question, bool],
    means: Means,
    work: int = WORK,
) -> Settled | Open:
    computes = _computes(pair.first, pair.second)
    if pair.alike:
        return Settled("algebra" if computes else MOVED)
    if means == Means.FORMS:
        return Open("canonical forms differ")
    verdict = _by_numbers(pair, positive, assumed, work)
    if isinstance(verdict, Settled):
        return verdict
    verdict = _by_places(pair, positive, assumed, work)
    if isinstance(verdict, Open) and means == Means.TYPES:
        decided = solved((pair.first, pair.second), assumed)
        if decided is not None and are_equal_expressions(*decided):
            verdict = Settled("z3")
    return verdict if computes or isinstance(verdict, Open) else Settled(MOVED)


def _by_numbers(
    pair: _Pair, positive: frozenset[str], assumed: Mapping[Question, bool], work: int
) -> Settled | Open:
    """Whether what is computed is equal, the places being so."""
    a, b = pair.taken_out
    if a.shape != b.shape:
        return Open("shapes have different forms")
    return _asked(SolverTerms(a, positive), a.body, b.body, assumed, work)


def _by_places(
    pair: _Pair, positive: frozenset[str], assumed: Mapping[Question, bool], work: int
) -> Settled | Open:
    """Whether they are equal where sizes and places are so by what is assumed."""
    a, b = pair.taken_out
    places: dict[Atom, Size] = {own: polynomial(other) for own, other in zip(b.axes, a.axes, strict=True)}
    return _asked(PlacedTerms(a, positive), a.body, replace_axes(b.body, places), assumed, work)


def _asked(
    terms: SolverTerms, first: Body, second: Body, assumed: Mapping[Question, bool], work: int
) -> Settled | Open:
    import z3

    try:
        left, right = terms.of(first), terms.of(second)
        for question, yes in assumed.items():
            terms.assume(question, yes)
        terms.admit()
        solver = z3.Solver()
        solver.set("rlimit", work)
        solver.set("timeout", TIMEOUT)
        solver.add(*terms.facts)
        solver.add(left != right)
        with cancel_at_deadline(z3.main_ctx().interrupt):
            answer = solver.check()
    except (NotImplementedError, TypeError, z3.Z3Exception) as error:
        return Open(f"canonical forms differ, and Z3 has no {error}")
    if answer == z3.unsat:
        return Settled("z3")
    if answer == z3.unknown:
        return Open("canonical forms differ, and Z3 says unknown")
    forms = f"{show(Scope(terms.axes, first))} and {show(Scope(terms.axes, second))}"
    return Open(f"canonical forms differ: {forms if len(forms) < 600 else forms[:600] + '...'}")


def _computes(*scopes: Scope) -> bool:
    """Whether a function of elements is called, or a reduction of them; conversions are none."""
    return any(cast_target(fn) is None for scope in scopes for fn in called_functions(scope))
