"""Whether two expressions are equal for all values of their leaves, of real numbers and of sizes.

First by their canonical forms.  Where these differ only in what is computed from numbers, the bodies go to Z3
over the reals: what is no arithmetic (a read, a reduction, a choice by indices) is a variable there, the same
for equal texts, and a transcendental function is any function.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from tensaurus.algebra.expr import Body, Call, Const, Read, Scope, Tensor, call, compute
from tensaurus.algebra.simplify import alike, canonical
from tensaurus.algebra.size import Symbol, terms_of
from tensaurus.algebra.text import show
from tensaurus.algebra.typing import dtype_of
from tensaurus.algebra.undecided import Question
from tensaurus.graph.node import CONSTANT, INPUT, Node
from tensaurus.rules.assumption import LEAST
from tensaurus.rules.domain import REAL
from tensaurus.rules.expression import Source, expression

TIMEOUT = 3_000  # milliseconds for one question to Z3
COMPARED = {"lt": operator.lt, "le": operator.le, "eq": operator.eq}  # kinds of questions about numbers


@dataclass(frozen=True)
class Settled:
    """Equal, as `by` shows: "algebra" or "z3"."""

    by: str


@dataclass(frozen=True)
class Open:
    """Not shown to be equal, and why."""

    reason: str


def _leaf(node: Node, nonzero: frozenset[str]) -> Source | None:
    """Tensors of the inputs' names, `nonzero` some of them, and numbers."""
    if node.op is INPUT:
        name = node.attribute("name")
        dtype = "real" if name.startswith(REAL) else node.tensor.dtype
        return Tensor(name, node.tensor.shape, dtype, name in nonzero)
    if node.op is CONSTANT:
        array = node.attribute("data").array
        return Scope((), call(f"to_{node.tensor.dtype}", Const(Fraction(array.item()))))
    return None


def equal(left: Node, right: Node, assumed: Mapping[Question, bool]) -> Settled | Open:
    """Whether both nodes are the same function of their inputs, under what is assumed of these."""
    positive = frozenset(q.subject for q, known in assumed.items() if q.kind == "positive" and known)
    memo: dict[Node, Source] = {}
    leaf = partial(_leaf, nonzero=positive)
    first, second = (_scope(expression(node, leaf, memo)) for node in (left, right))
    if alike(first, second):
        return Settled("algebra")
    a, b = canonical(first), canonical(second)
    if a.shape != b.shape:
        return Open(f"shapes {a.shape} and {b.shape}")
    return _ordered(a, b, positive, assumed)


def _scope(source: Source) -> Scope:
    return source if isinstance(source, Scope) else compute(source.shape, lambda *i: source[i])


def _ordered(
    a: Scope, b: Scope, positive: frozenset[str], assumed: Mapping[Question, bool]
) -> Settled | Open:
    import z3

    terms = _Terms(a, positive)
    try:
        left, right = terms.of(a.body), terms.of(b.body)
        known = [
            terms.compared(question.kind, *question.subject)
            for question, yes in assumed.items()
            if yes and question.kind in COMPARED
        ]
        solver = z3.Solver()
        solver.set("timeout", TIMEOUT)
        solver.add(*known, *terms.facts)
        solver.add(left != right)
        found = solver.check()
    except (NotImplementedError, z3.Z3Exception) as error:
        return Open(f"canonical forms differ, and Z3 has no {error}")
    if found == z3.unsat:
        return Settled("z3")
    if found == z3.unknown:
        return Open("canonical forms differ, and Z3 says unknown")
    forms = f"{show(a)} and {show(b)}"
    return Open(f"canonical forms differ: {forms if len(forms) < 600 else forms[:600] + '...'}")


class _Terms:
    """Bodies as Z3's terms."""

    def __init__(self, scope: Scope, positive: frozenset[str]):
        import z3

        self.z3, self.axes, self.positive = z3, scope.axes, positive
        self.facts: list[Any] = []

    def of(self, body: Body) -> Any:
        z3 = self.z3
        match body:
            case Const(value):
                if isinstance(value, bool):
                    return z3.BoolVal(value)
                if isinstance(value, float):
                    raise NotImplementedError(f"number {value}")
                return self._polynomial(value)
            case Call(fn, args):
                return self._call(fn, [self.of(a) for a in args])
        name = show(Scope(self.axes, body))
        kind = dtype_of(Scope((), body))
        if kind == "bool":
            return z3.Bool(name)
        if not kind.startswith("float"):
            raise NotImplementedError(f"order of {kind}")
        found = z3.Real(name)
        match body:
            case Read(Tensor(known), _, None) if known in self.positive:
                self.facts.append(found > 0)
        return found

    def _polynomial(self, value: Any) -> Any:
        z3 = self.z3
        total: Any = z3.RealVal(0)
        for factors, coefficient in terms_of(value):
            exact = Fraction(coefficient)
            term: Any = z3.Q(exact.numerator, exact.denominator)
            for atom in factors:
                name = z3.Real(f"size {atom.key}")
                if isinstance(atom, Symbol) and atom.low > LEAST:
                    self.facts.append(name >= atom.low)
                term = term * name
            total = total + term
        return total

    def compared(self, kind: str, a: Any, b: Any) -> Any:
        left, right = (self.of(x) if isinstance(x, Body) else self._polynomial(x) for x in (a, b))
        return COMPARED[kind](left, right)

    def _call(self, fn: str, args: list[Any]) -> Any:
        z3 = self.z3
        plain: dict[str, Callable[..., Any]] = {
            "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg,
            "lt": operator.lt, "le": operator.le, "eq": operator.eq,
            "not": z3.Not, "and": z3.And, "or": z3.Or, "xor": z3.Xor, "where": z3.If,
        }  # fmt: skip
        match fn:
            case "div":
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
        # a function of which nothing is known, of reals or bools
        sorts = [a.sort() for a in args]
        bools = fn in ("isnan", "isinf", "to_bool")
        return z3.Function(fn, *sorts, z3.BoolSort() if bools else z3.RealSort())(*args)
