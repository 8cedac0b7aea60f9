"""Translate bodies of expressions to terms of Z3.

`SolverTerms` compares elements only: max(x[i], 0) is If(e >= 0, e, 0), where e is a real variable for x[i].
`IndexedTerms` also compares indices and sizes: x is a function there, applied to the integer i.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

from tensaurus.expr.ir.element_types import dtype_of
from tensaurus.expr.ir.expression_text import show
from tensaurus.expr.ir.integer_types import RING_FUNCTIONS, is_integer
from tensaurus.expr.ir.scalar_functions import cast_target
from tensaurus.expr.ir.scope import Body, Call, Const, Index, Read, Scope, Select, Table, Tensor
from tensaurus.expr.ir.walk import replace_axes
from tensaurus.expr.sizes.open_questions import Question
from tensaurus.expr.sizes.size import Atom, Axis, Floor, Symbol, atoms, evaluate, polynomial, terms_of
from tensaurus.rules.prove.size_assumptions import NO_LOWER_BOUND

__all__ = ["IndexedTerms", "SolverTerms"]

SELECTIONS = frozenset({"where", "not", "and", "or", "xor"})  # functions that select elements by booleans
COMPARISONS = {"lt": operator.lt, "le": operator.le, "eq": operator.eq}  # by kind of question


class SolverTerms:
    """Terms over the reals.  Whatever is not arithmetic (a read, a choice by indices) is a variable.

    Variables are named by the expression's text, so that equal texts are one variable.  The bodies read the
    axes of `scope`.  `facts` is what the solver may assume beside the terms; `positive` are the names of
    tensors whose elements are all above 0.
    """

    def __init__(self, scope: Scope, positive: frozenset[str]):
        import z3

        self.z3, self.axes, self.positive = z3, scope.axes, positive
        self.facts: list[Any] = []
        self.integer_types: set[str] = set()
        self.called_functions: set[str] = set()

    def check_integers(self) -> None:
        """Raise NotImplementedError if a proof over the reals would not hold for the integers that occur.

        Integers wrap: polynomials and selections that are equal over the reals stay equal, but comparisons,
        divisions and the like do not carry over.  They are refused wherever they occur, as their operands may
        be integers.  Call it when all terms are built.
        """
        if self.integer_types and self.called_functions - RING_FUNCTIONS - SELECTIONS:
            fns = " and ".join(sorted(self.called_functions - RING_FUNCTIONS - SELECTIONS))
            raise NotImplementedError(f"{fns} of {' and '.join(sorted(self.integer_types))}")

    def term(self, body: Body) -> Any:
        """Return the term of a body."""
        z3 = self.z3
        match body:
            case Const(value):
                if isinstance(value, bool):
                    return z3.BoolVal(value)
                if isinstance(value, float):  # an infinity or NaN: other numbers are exact fractions
                    raise NotImplementedError(f"number {value}")
                return self._polynomial(value)
            case Call(fn, args):
                return self._call(fn, [self.term(a) for a in args])
        name = show(Scope(self.axes, body))
        kind = dtype_of(Scope((), body))
        if kind == "bool":
            return z3.Bool(name)
        if not kind.startswith("float"):
            raise NotImplementedError(f"variables of type {kind}")  # integers wrap, reals do not
        variable = z3.Real(name)
        match body:
            case Read(Tensor(known), _, None) if known in self.positive:
                self.facts.append(variable > 0)
        return variable

    def _polynomial(self, value: Any) -> Any:
        z3 = self.z3
        total: Any = z3.RealVal(0)
        for factors, coefficient in terms_of(value):
            exact = Fraction(coefficient)
            term: Any = z3.Q(exact.numerator, exact.denominator)
            for atom in factors:
                term = term * self._size_as_real(atom)
            total = total + term
        return total

    def _size_as_real(self, atom: Atom) -> Any:
        """Return the real-valued term of a factor of a size."""
        variable = self.z3.Real(f"size {atom.key}")
        if isinstance(atom, Symbol) and atom.low > NO_LOWER_BOUND:
            self.facts.append(variable >= atom.low)
        return variable

    def assume(self, question: Question, yes: bool) -> None:
        """Add the answer to the facts if it is yes and compares numbers; fewer facts make a proof harder."""
        if yes and question.kind in COMPARISONS:
            a, b = (self.term(x) if isinstance(x, Body) else self._polynomial(x) for x in question.subject)
            self.facts.append(COMPARISONS[question.kind](a, b))

    def _call(self, fn: str, args: list[Any]) -> Any:
        z3 = self.z3
        target = cast_target(fn)
        if target is not None:
            return z3.Function(fn, args[0].sort(), self._sort(target))(*args)
        self.called_functions.add(fn)
        plain: dict[str, Callable[..., Any]] = {
            "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg,
            "lt": operator.lt, "le": operator.le, "eq": operator.eq,
            "not": z3.Not, "and": z3.And, "or": z3.Or, "xor": z3.Xor, "where": z3.If,
        }  # fmt: skip
        match fn:
            case "div":
                # 1 / 0 is 0 in all proofs, as in `rules.prove.proof`; Z3 would leave it open
                return z3.If(args[1] == 0, z3.RealVal(0), args[0] / args[1])
            case "max":
                return z3.If(args[0] >= args[1], args[0], args[1])
            case "min":
                return z3.If(args[0] <= args[1], args[0], args[1])
            case "abs":
                return z3.If(args[0] >= 0, args[0], -args[0])
            case "sign":
                return z3.If(args[0] > 0, z3.RealVal(1), z3.If(args[0] < 0, z3.RealVal(-1), z3.RealVal(0)))
        if fn in plain:
            return plain[fn](*args)
        # an unknown function of reals or bools
        sorts = [a.sort() for a in args]
        bools = fn in ("isnan", "isinf")
        return z3.Function(fn, *sorts, z3.BoolSort() if bools else z3.RealSort())(*args)

    def _sort(self, dtype: str) -> Any:
        if is_integer(dtype):
            self.integer_types.add(dtype)
        return self.z3.BoolSort() if dtype == "bool" else self.z3.RealSort()


class IndexedTerms(SolverTerms):
    """Terms in which indices and sizes are integers too: a read is a function of its indices.

    Elements of integer types are reals: polynomials that are equal for all reals are equal in every ring.
    """

    def __init__(self, scope: Scope, positive: frozenset[str]):
        super().__init__(scope, positive)
        self.index_terms: dict[Any, Any] = {}

    def term(self, body: Body) -> Any:
        match body:
            case Const(float(value)):  # an infinity or NaN: an unknown number, equal only to itself
                return self.z3.Real(f"literal {value}")
            case Select(guard, then, other):
                return self._choose([self.size(g) >= 0 for g in guard], then, other)
            case Read(source, indices, outside):
                if isinstance(source, Scope):
                    by_axis: dict[Atom, Any] = dict(zip(source.axes, indices, strict=True))
                    inside = self.term(replace_axes(source.body, by_axis))
                else:
                    inside = self._element(source, indices)
                if outside is None:
                    return inside
                places = [self.size(index) for index in indices]
                ends = [self.size(n) for n in source.shape]
                within = [c for p, end in zip(places, ends, strict=True) for c in (p >= 0, p < end)]
                return self._choose(within, inside, outside)
        return super().term(body)

    def size(self, size: Index) -> Any:
        """Return the integer term of a size."""
        for atom in atoms(size):  # `evaluate` computes quotients itself, which would add no facts of them
            if isinstance(atom, Floor):
                self._index_term(atom)
        return evaluate(size, self._index_term)

    def assume(self, question: Question, yes: bool) -> None:
        """Add the answer to the facts, also of questions about sizes."""
        if question.kind in ("zero", "nonnegative"):
            size = self.size(question.subject)
            fact = size == 0 if question.kind == "zero" else size >= 0
            self.facts.append(fact if yes else self.z3.Not(fact))
        else:
            super().assume(question, yes)

    def _index_term(self, atom: Any) -> Any:
        """Return the integer of a symbol, an axis or a quotient, with its bounds among the facts."""
        if atom in self.index_terms:
            return self.index_terms[atom]
        match atom:
            case Symbol(_, low, high):
                variable = self.index_terms[atom] = self.z3.Int(f"size {atom.key}")
                if low > NO_LOWER_BOUND:
                    self.facts.append(variable >= low)
                if high is not None:
                    self.facts.append(variable <= self.size(high))
            case Axis(_, extent):
                variable = self.index_terms[atom] = self.z3.Int(f"place {len(self.index_terms)}")
                self.facts += [variable >= 0, variable < self.size(extent)]
            case Floor(_, bottom):
                variable = self.index_terms[atom] = atom.value(self._index_term, self.size)
                self.facts.append(self.size(bottom) >= 1)
            case _:
                raise NotImplementedError(f"place {atom.key}")
        return variable

    def _element(self, tensor: Tensor | Table, indices: Sequence[Index]) -> Any:
        z3 = self.z3
        places = [self.size(index) for index in indices]
        if isinstance(tensor, Table):
            numbers = z3.Function(tensor.text, *[z3.IntSort()] * len(places), z3.RealSort())
            for spot in product(*map(range, tensor.shape)):
                self.facts.append(numbers(*spot) == self._polynomial(tensor.element(spot)))
            return numbers(*places)
        name, sort = f"tensor {tensor.name}", self._sort(tensor.dtype)
        element = z3.Const(name, sort)
        if places:
            element = z3.Function(name, *[z3.IntSort()] * len(places), sort)(*places)
        if tensor.name in self.positive:
            self.facts.append(element > 0)
        return element

    def _choose(self, conditions: Sequence[Any], then: Any, other: Any) -> Any:
        pair = [self.term(x) if isinstance(x, Body) else x for x in (then, other)]
        return self.z3.If(self.z3.And(*conditions), *pair)

    def _size_as_real(self, atom: Atom) -> Any:
        return self.z3.ToReal(self.size(polynomial(atom)))
