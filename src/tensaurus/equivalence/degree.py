"""How large the degree of a program's polynomials is, between its unknown functions.

A value of an unknown function counts as a fresh variable, so it cuts the degree: what counts is the largest
polynomial that is an output or the argument of an unknown function.  (Schwartz 1980, Zippel 1979.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from tensaurus.algebra.expr import Body, Call, Const, Read, Reduce, Scope, Select, Tensor, reads
from tensaurus.algebra.functions import cast_target
from tensaurus.algebra.size import Axis, atoms
from tensaurus.equivalence.pairs import Laws
from tensaurus.graph.node import CONSTANT, INPUT, ITEM, Node
from tensaurus.graph.program import Program
from tensaurus.ops import Op, TensorType


class Degree(NamedTuple):
    """Of a rational function: its numerator's and its denominator's."""

    top: float = 0
    bottom: float = 0


NONE, ONE = Degree(), Degree(1)


def total_degree(programs: Sequence[Program], laws: Laws) -> float:
    """An upper bound of the degree of every output and every argument of an unknown function; inf if vast."""
    walk = _Walk(laws)
    held: dict[Node, Sequence[Degree]] = {}
    for program in programs:
        for node in program.nodes:
            if node not in held:
                held[node] = walk.node(node, held)
        for _, node in program.outputs:
            for degree in held[node]:
                walk.met(degree)
    return walk.largest


class _Walk:
    def __init__(self, laws: Laws):
        self.laws = laws
        self.largest = 1.0

    def met(self, degree: Degree) -> Degree:
        """Two such values, a/b and c/d, are equal by chance where ad - bc, b or d vanishes."""
        self.largest = max(self.largest, degree.top + 3 * degree.bottom)
        return ONE

    def node(self, node: Node, held: Mapping[Node, Sequence[Degree]]) -> Sequence[Degree]:
        if node.op is CONSTANT:
            return [NONE]
        if node.op is INPUT:
            kind = node.types[0]
            drawn = isinstance(kind, TensorType) and kind.dtype.startswith(("float", "bfloat"))
            return [ONE if drawn else NONE]
        if node.op is ITEM:
            assert node.args[0] is not None
            return [held[node.args[0]][node.attribute("index")]]
        if not isinstance(node.op, Op):
            return [ONE] * len(node.types)
        kinds = tuple(None if a is None else a.tensor for a in node.args)
        leaves = {
            leaf: held[arg][0]
            for leaf, arg in zip(node.op.tensors(kinds), node.args, strict=False)
            if leaf is not None and arg is not None
        }
        return [_Form(self, leaves).scope(s) for s in node.op.scopes(kinds, node.attrs)[: len(node.types)]]


class _Form:
    """The degree of one expression."""

    def __init__(self, walk: _Walk, leaves: Mapping[Tensor, Degree]):
        self.walk, self.leaves = walk, leaves
        self.memo: dict[int, Degree] = {}

    def scope(self, scope: Scope) -> Degree:
        if id(scope) not in self.memo:
            self.memo[id(scope)] = self.body(scope.body)
        return self.memo[id(scope)]

    def body(self, body: Body) -> Degree:
        match body:
            case Const():
                return NONE
            case Read(source, _, _):
                return self.leaves[source] if isinstance(source, Tensor) else self.scope(source)
            case Select(_, then, other):
                return _most(self.body(then), self.body(other))
            case Reduce(monoid, axes, inner):
                return self.reduced(monoid, _count(axes), self.body(inner))
            case Call(fn, args):
                return self.called(fn, args, [self.body(a) for a in args])
        raise TypeError(type(body))

    def reduced(self, monoid: str, count: float, inner: Degree) -> Degree:
        match monoid:
            case "sum" if not inner.bottom:
                return inner
            case "sum":
                return Degree(inner.top + (count - 1) * inner.bottom, count * inner.bottom)
            case "prod":
                return Degree(count * inner.top, count * inner.bottom)
        return inner if self.walk.laws.order else self.walk.met(inner)

    def called(self, fn: str, args: Sequence[Body], degrees: Sequence[Degree]) -> Degree:
        first = degrees[0]
        second = degrees[1] if len(degrees) > 1 else NONE
        if fn == "neg" or (cast_target(fn) or "").startswith(("float", "bfloat")):
            return first
        if all(degree == NONE for degree in degrees):
            return NONE  # a function of constants
        if fn in ("max", "min") and self.walk.laws.order:
            return _most(first, second)
        if fn in ("add", "sub"):
            if not first.bottom and not second.bottom:
                return Degree(max(first.top, second.top))
            top = max(first.top + second.bottom, second.top + first.bottom)
            return Degree(top, first.bottom + second.bottom)
        if fn == "mul":
            return Degree(first.top + second.top, first.bottom + second.bottom)
        if fn == "div":
            if second == NONE:
                return first
            if self.walk.laws.inverse or _single(args[1]):
                return Degree(first.top + second.bottom, first.bottom + second.top)
            self.walk.met(second)
            return Degree(first.top + 1, first.bottom)
        if fn == "pow" and isinstance(args[1], Const) and args[1].value in range(65):
            times = int(args[1].value)  # type: ignore[arg-type]
            return Degree(times * first.top, times * first.bottom)
        for degree in degrees:
            self.walk.met(degree)
        return ONE


def _most(a: Degree, b: Degree) -> Degree:
    return Degree(max(a.top, b.top), max(a.bottom, b.bottom))


def _count(axes: Sequence[Any]) -> float:
    return float(prod(a.extent if isinstance(a.extent, int) else 1 << 20 for a in axes))


def _single(body: Body) -> bool:
    """Whether the body may be one element, of which `Pairs` knows the inverse."""
    found = {a for read in reads(body) for index in read.indices for a in atoms(index)}
    return all(isinstance(a, Axis) and a.extent == 1 for a in found)
