"""Prove that two expressions are equal for all real elements of their leaves and for all sizes.

`proof` asks for the sides of a case of a rule, `evidence_limits` for those of one match.  Tried in turn:

1. Both have the same canonical form.
2. Z3 proves the bodies equal over the reals, after terms that do not depend on a maximum's axes are moved out
   of the maximum (`factor_out_of_max`).  Reads, reductions and choices by indices are variables, the same for
   equal texts; a transcendental function is an unknown function.
3. Z3 also treats indices as integers within their ranges, under all assumptions about sizes.
4. Sizes are solved from the assumptions (`solve_sizes`), and the canonical forms are compared again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from functools import cached_property, partial
from typing import TypeAlias

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
from tensaurus.rules.prove.factor_out_of_max import factor_out_of_max
from tensaurus.rules.prove.solve_sizes import solve_maxima
from tensaurus.rules.prove.unknown_values import REAL_PREFIX
from tensaurus.rules.prove.z3_terms import IndexedTerms, SolverTerms
from tensaurus.system.deadline import cancel_at_deadline

MOVED = "moved"  # `ProvedEqual.by` where both sides only move elements
STRENGTH = (MOVED, "algebra", "z3")  # from the fewest to the most assumptions about the elements
# Z3's limit for one question, in its own units (a second or two): the answer is the same on every machine.
SOLVER_WORK = 5_000_000
SEARCH_SOLVER_WORK = 200_000  # the same limit for a question that a search waits for
SOLVER_TIMEOUT_MS = 60_000  # ends a question during which Z3 does not count its work


class Methods(IntEnum):
    """The methods that a proof may use, each with those before it."""

    FORMS = 0  # canonical forms
    SOLVER = 1  # Z3 where the forms differ
    SOLVED_SIZES = 2  # sizes solved from the assumptions where Z3 fails, which takes many times as long


@dataclass(frozen=True)
class ProvedEqual:
    """Both are equal, with the method of STRENGTH that showed it."""

    by: str


@dataclass(frozen=True)
class NotProved:
    """No proof that both are equal was found, and why."""

    reason: str


Verdict: TypeAlias = ProvedEqual | NotProved


def _leaf(node: Node, nonzero: frozenset[str]) -> Source | None:
    """Return the tensor of an input, or the number of a constant; inputs in `nonzero` are never 0."""
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
    def has_equal_forms(self) -> bool:
        """Whether both have the same canonical form."""
        return are_equal_expressions(self.first, self.second)

    @cached_property
    def factored(self) -> tuple[Scope, Scope]:
        """Both expressions with terms that are the same at all indices moved out of their maxima."""
        return factor_out_of_max(self.first), factor_out_of_max(self.second)


_pairs = CacheByAnswers[_Pair](4096)


def prove_equal(
    left: Node, right: Node, assumed: Mapping[Question, bool], methods: Methods = Methods.SOLVED_SIZES
) -> Verdict:
    """Prove that both nodes are the same function of their inputs, under the assumptions."""
    positive = frozenset(q.subject for q, known in assumed.items() if q.kind == "positive" and known)
    nodes = sorted((left, right), key=lambda node: node.serial)  # (a, b) and (b, a) share a cache entry
    with record_questions(assumed):  # typed under the same answers as before
        pair = _pairs.get(
            (*nodes, positive), lambda: _Pair(*build_expressions(nodes, partial(_leaf, nonzero=positive)))
        )
    return _prove_pair(pair, positive, assumed, methods)


def prove_equal_over(left: Node, right: Node, leaves: Callable[[Node], Source | None]) -> Verdict:
    """Prove that both nodes are the same function of these leaves, at their own types, with a search's limit.

    Raises ValueError, and Untypable where a node has no expression over the leaves.
    """
    pair = _Pair(*build_expressions((left, right), leaves))
    return _prove_pair(pair, frozenset(), {}, Methods.SOLVER, SEARCH_SOLVER_WORK)


def _prove_pair(
    pair: _Pair,
    positive: frozenset[str],
    assumed: Mapping[Question, bool],
    methods: Methods,
    work: int = SOLVER_WORK,
) -> Verdict:
    computes = _computes(pair.first, pair.second)  # else both only move elements
    if pair.has_equal_forms:
        return ProvedEqual("algebra" if computes else MOVED)
    if methods == Methods.FORMS:
        return NotProved("canonical forms differ")
    verdict = _prove_elements(pair, positive, assumed, work)
    if isinstance(verdict, ProvedEqual):
        return verdict
    verdict = _prove_indices(pair, positive, assumed, work)
    if isinstance(verdict, NotProved) and methods == Methods.SOLVED_SIZES:
        decided = solve_maxima((pair.first, pair.second), assumed)
        if decided is not None and are_equal_expressions(*decided):
            verdict = ProvedEqual("z3")
    return verdict if computes or isinstance(verdict, NotProved) else ProvedEqual(MOVED)


def _prove_elements(
    pair: _Pair, positive: frozenset[str], assumed: Mapping[Question, bool], work: int
) -> Verdict:
    """Prove that the elements are equal where all indices and sizes are equal by their form."""
    a, b = pair.factored
    if a.shape != b.shape:
        return NotProved("shapes have different forms")
    return _ask_solver(SolverTerms(a, positive), a.body, b.body, assumed, work)


def _prove_indices(
    pair: _Pair, positive: frozenset[str], assumed: Mapping[Question, bool], work: int
) -> Verdict:
    """Prove that both are equal where indices and sizes are equal by the assumptions."""
    a, b = pair.factored
    places: dict[Atom, Size] = {own: polynomial(other) for own, other in zip(b.axes, a.axes, strict=True)}
    return _ask_solver(IndexedTerms(a, positive), a.body, replace_axes(b.body, places), assumed, work)


def _ask_solver(
    terms: SolverTerms, first: Body, second: Body, assumed: Mapping[Question, bool], work: int
) -> Verdict:
    import z3

    try:
        left, right = terms.term(first), terms.term(second)
        for question, yes in assumed.items():
            terms.assume(question, yes)
        terms.check_integers()
        solver = z3.Solver()
        solver.set("rlimit", work)
        solver.set("timeout", SOLVER_TIMEOUT_MS)
        solver.add(*terms.facts)
        solver.add(left != right)
        with cancel_at_deadline(z3.main_ctx().interrupt):
            answer = solver.check()
    except (NotImplementedError, TypeError, z3.Z3Exception) as error:
        return NotProved(f"canonical forms differ, and Z3 has no {error}")
    if answer == z3.unsat:
        return ProvedEqual("z3")
    if answer == z3.unknown:
        return NotProved("canonical forms differ, and Z3 says unknown")
    forms = f"{show(Scope(terms.axes, first))} and {show(Scope(terms.axes, second))}"
    return NotProved(f"canonical forms differ: {forms if len(forms) < 600 else forms[:600] + '...'}")


def _computes(*scopes: Scope) -> bool:
    """Return whether the expressions compute or reduce elements; type conversions do not count."""
    return any(cast_target(fn) is None for scope in scopes for fn in called_functions(scope))
