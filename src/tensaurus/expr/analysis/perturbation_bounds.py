"""How far what an expression computes moves, when some elements of its tensors are moved a little.

    x*w + b   w moved by 2^-127, |x| <= 2^24, |b| >= 1: by nothing, as the sum rounds it away

An abstract interpretation: each element has bounds of its value, and of the distance that it is moved.  A
distance below a fraction of half an ulp of another term of the same sum, which is there for every input,
counts as none: floats cannot tell.  What may make a large difference of a tiny one (a comparison, a quotient
by what may be zero, an index) refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import reduce
from math import inf, prod
from typing import Any

import numpy as np

from tensaurus.expr.analysis.infinite_values import Infinities
from tensaurus.expr.analysis.perturbation_rules import (
    SMOOTH,
    UNKNOWN,
    Array,
    Influence,
    Part,
    Sensitive,
    added,
    aligned,
    clean,
    collapsed,
    either,
    negated,
    power,
    product,
    reduced,
    root,
    together,
)
from tensaurus.expr.ir.element_types import is_rounding_cast
from tensaurus.expr.ir.scalar_functions import cast_target
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Select, Source, Table, Tensor
from tensaurus.expr.ir.walk import lookups_in, reads, sizes
from tensaurus.expr.sizes.size import Axis, Poly, Size, interval, is_nonnegative, is_same_size, polynomial

__all__ = ["Influence", "Sensitive", "influence"]


def influence(
    scope: Scope,
    sources: Mapping[Source, Influence],
    unit: float,
    flushed: float = 0.0,
    moved: Set[Source] = frozenset(),
    infinities: Infinities | None = None,
) -> Influence:
    """Return bounds of what the scope computes; a float rounds away what is below `unit` beside 1.

    Each operation may make 0 of what is below `flushed`.  What is computed of `moved` may become 0, and meet
    what is infinite: it must be one of several terms of a sum.  Raises Sensitive.
    """
    with np.errstate(all="ignore"):
        return _Spreading(sources, unit, flushed, moved, infinities).scope(scope)


class _Spreading:
    """Through one scope and those that it reads."""

    def __init__(
        self,
        sources: Mapping[Source, Influence],
        unit: float,
        flushed: float,
        moved: Set[Source],
        infinities: Infinities | None,
    ):
        self.sources, self.unit, self.flushed = sources, unit, flushed
        self.moved, self.infinities = moved, infinities
        self.terms = 1.0  # of the sums around what is looked at
        self.inner: dict[tuple[int, bool], Influence] = {}

    def scope(self, scope: Scope) -> Influence:
        key = id(scope), self.terms == 1
        if key not in self.inner:
            part = self.body(scope.body)
            low, high, change, scale, least = (aligned(a, part.axes, scope.axes) for a in part.arrays())
            self.inner[key] = Influence(low, high, change, scale, least)
        return self.inner[key]

    def source(self, source: Source) -> Influence:
        if isinstance(source, Scope):
            return self.scope(source)
        if isinstance(source, Table):
            return Influence.known(np.array([_float(v) for v in source.values]).reshape(source.shape))
        assert isinstance(source, Tensor)
        return self.sources.get(source) or Influence.within(-inf, inf, source.rank)

    def body(self, body: Body) -> Part:
        for size in sizes(body):
            if any(self.body(atom.read).moves for atom in lookups_in(size)):
                raise Sensitive("a place is computed from it")
        match body:
            case Const(value):
                return _constant(value)
            case Read():
                return self.read(body)
            case Select(_, then, other):
                return either(self.body(then), self.body(other))
            case Reduce(monoid, axes, inner):
                times = 1.0 if monoid in ("max", "min") else _terms(axes)
                return self.rounded(reduced(monoid, self.term(inner, times), axes), times)
            case Call("div", (Reduce("sum", axes, inner), Const(count))) if is_same_size(_count(axes), count):
                return self.rounded(reduced("mean", self.term(inner, _terms(axes)), axes), 2.0)
            case Call(fn, args):
                parts = together([self.body(arg) for arg in args])
                if self.terms == 1:
                    self.check_infinities(fn, args, parts)
                if is_rounding_cast(body) and parts[0].moves:  # across a tie, perhaps
                    raise Sensitive("a conversion to a narrower type of it")
                return self.rounded(self.called(fn, parts, len(args) == 2 and args[0] == args[1]))
        raise TypeError(type(body))

    def check_infinities(self, fn: str, args: Sequence[Body], parts: Sequence[Part]) -> None:
        """Refuse 0 times infinity, and 0 by 0, where one 0 was another number before it was moved."""
        if self.infinities is None or fn not in ("mul", "div"):
            return
        for part, arg, other in zip(parts, args, args[::-1], strict=True):
            if not part.may_vanish or not self.reads_moved(arg):
                continue
            if fn == "mul" and self.infinities.arise_in(other):
                raise Sensitive("a product with what may be infinite")
            if fn == "div" and arg is args[0] and self.infinities.vanish_in(other):
                raise Sensitive("a quotient of it by what may be zero")

    def reads_moved(self, body: Body) -> bool:
        return any(read.source in self.moved for read in reads(body, nested=True))

    def term(self, body: Body, count: float) -> Part:
        """One of so many terms."""
        outer, self.terms = self.terms, self.terms * count
        found = self.body(body)
        self.terms = outer
        return found

    def rounded(self, part: Part, times: float = 1.0) -> Part:
        """The result of so many operations, each of which may have flushed it to 0."""
        if not self.flushed:
            return part
        return part.or_zero(part.floor - part.change, self.flushed, times)

    def read(self, read: Read) -> Part:
        axes: list[Axis] = []
        arrays: list[Array] = list(np.broadcast_arrays(*self.source(read.source).arrays()))
        for place in reversed(range(len(read.indices))):
            length = arrays[0].shape[place]
            at = _axis(read.indices[place], length) if length > 1 else None
            if at is not None and at not in axes:
                arrays = [a[(slice(None),) * place + (slice(at.extent),)] for a in arrays]
                axes.insert(0, at)
                continue
            arrays = collapsed(arrays, place)
        if read.outside is not None:
            outside = _constant(read.outside.value)
            arrays[:2] = np.minimum(arrays[0], outside.low), np.maximum(arrays[1], outside.high)
            # a sum may consist of what is moved alone, where all else lies outside
            arrays[3] = np.where(arrays[2] == 0, np.minimum(arrays[3], outside.scale), arrays[3])
            arrays[4] = np.minimum(arrays[4], outside.floor)
        return Part.of(arrays, tuple(axes))

    def called(self, fn: str, parts: Sequence[Part], square: bool) -> Part:
        """A function of parts over the same axes."""
        if fn in ("add", "sub"):
            return added(parts[0], parts[1] if fn == "add" else negated(parts[1]), self.unit)
        if fn == "mul":
            return product(*parts, square=square)
        if fn == "pow" and (exponent := power(parts[1])) is not None:
            if exponent == 0.5:
                return root(parts[0])
            return reduce(lambda a, b: product(a, b, square=a is parts[0]), [parts[0]] * int(exponent))
        if fn == "exp" and parts[0].moves:  # a factor of exp(change)
            if not parts[0].change.max() <= self.unit:
                raise Sensitive("an exponential of it")
            return clean(fn, parts)
        if fn in SMOOTH:
            return SMOOTH[fn](*parts)
        target = cast_target(fn)
        if target is not None and target.startswith(("float", "bfloat")):
            return parts[0]
        if fn in ("eq", "lt", "le") and not added(parts[0], negated(parts[1]), self.unit).moves:
            parts = [replace(part, change=np.zeros_like(part.change)) for part in parts]
        if any(part.moves for part in parts):
            raise Sensitive(f"{'a conversion' if target else fn} of it")
        return clean(fn, parts)


def _constant(value: Any) -> Part:
    low, high = interval(value) if isinstance(value, Poly) else (value, value)
    least = 1.0 if isinstance(value, Poly) and is_nonnegative(value - 1) else -inf
    most = inf
    if low is not None and not isinstance(low, Poly):
        least = _float(low)
    if high is not None and not isinstance(high, Poly):
        most = _float(high)
    return Part.of(Influence.within(least, most).arrays())


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return inf if value > 0 else -inf


def _count(axes: Sequence[Axis]) -> Size:
    return reduce(lambda a, b: a * b, (polynomial(a.extent) for a in axes), 1)


def _terms(axes: Sequence[Axis]) -> float:
    return prod(float(a.extent) if isinstance(a.extent, int) else UNKNOWN for a in axes)


def _axis(index: Size, length: int) -> Axis | None:
    """The axis that an index is, of a dimension of this length."""
    found = polynomial(index)
    if not isinstance(found, Poly) or len(found.terms) != 1:
        return None
    ((factors, coefficient),) = found.terms
    if coefficient != 1 or len(factors) != 1 or not isinstance(factors[0], Axis):
        return None
    extent = factors[0].extent
    return factors[0] if isinstance(extent, int) and 0 < extent <= length else None
