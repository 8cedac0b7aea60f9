"""Bound how far the result of an expression moves when some elements of its tensors are moved a little.

    x*w + b   does not move if w moves by 2^-127, |x| <= 2^24 and |b| >= 1: the sum rounds the change away

`graph.analysis.change_bounds` proves by this that subnormal weights may be replaced by 0.

An abstract interpretation: from the `Perturbation` of each tensor that a scope reads, `bound_perturbation`
computes that of the scope: for each element bounds of its value, and the largest distance that it is moved.
An element is *moved* where this distance, its `change`, is not 0.  A change is dropped where, for all inputs,
another term of the same sum is so large that the change is below a fraction of half its ulp: floats cannot
represent the difference.  An operation that may turn a tiny difference into a large one (a comparison, a
quotient by what may be zero, an index) raises Sensitive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import reduce
from math import inf, prod
from typing import Any

import numpy as np

from tensaurus.expr.analysis.infinite_values import Infinities
from tensaurus.expr.analysis.perturbation import (
    BodyPerturbation,
    Perturbation,
    PerturbationArrays,
    Sensitive,
    align_array,
    broadcast_perturbations,
    collapse_dimension,
)
from tensaurus.expr.analysis.perturbation_rules import (
    FUNCTION_RULES,
    UNKNOWN_EXTENT,
    add,
    constant_exponent,
    either_of,
    multiply,
    negate,
    reduce_perturbation,
    square_root,
    unmoved_call,
)
from tensaurus.expr.ir.element_types import is_rounding_cast
from tensaurus.expr.ir.scalar_functions import cast_target
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Select, Source, Table, Tensor
from tensaurus.expr.ir.walk import lookups_in, reads, sizes
from tensaurus.expr.sizes.size import (
    Axis,
    Poly,
    Size,
    interval,
    is_nonnegative,
    is_same_size,
    polynomial,
    single_atom,
)

__all__ = ["Perturbation", "Sensitive", "bound_perturbation"]


def bound_perturbation(
    scope: Scope,
    sources: Mapping[Source, Perturbation],
    unit: float,
    flushed: float = 0.0,
    moved: Set[Source] = frozenset(),
    infinities: Infinities | None = None,
) -> Perturbation:
    """Return bounds of the scope's elements.

    sources     the bounds of the tensors that the scope reads
    unit        a change of a term is rounded away where it is below `unit` times another term, itself unmoved
    flushed     each operation may replace numbers below this one by 0
    moved       tensors with moved elements.  A number computed from them may become 0, and 0 times infinity
                is NaN: its product with what may be infinite is refused, unless a sum of several terms is
                around it
    infinities  tells where infinities may arise; None: nowhere

    Raises Sensitive.
    """
    with np.errstate(all="ignore"):
        return _PerturbationAnalysis(sources, unit, flushed, moved, infinities).scope(scope)


class _PerturbationAnalysis:
    """Computes the perturbation of one scope and of those that it reads."""

    def __init__(
        self,
        sources: Mapping[Source, Perturbation],
        unit: float,
        flushed: float,
        moved: Set[Source],
        infinities: Infinities | None,
    ):
        self.sources, self.unit, self.flushed = sources, unit, flushed
        self.moved, self.infinities = moved, infinities
        self.terms = 1.0  # number of terms of all sums around the current body: 1, it is in no sum
        self.perturbations: dict[
            tuple[int, bool], Perturbation
        ] = {}  # by scope, and by whether it is in no sum

    def scope(self, scope: Scope) -> Perturbation:
        key = id(scope), self.terms == 1
        if key not in self.perturbations:
            part = self.body(scope.body)
            aligned = (align_array(a, part.axes, scope.axes) for a in part.arrays())
            self.perturbations[key] = Perturbation(*aligned)
        return self.perturbations[key]

    def source(self, source: Source) -> Perturbation:
        if isinstance(source, Scope):
            return self.scope(source)
        if isinstance(source, Table):
            return Perturbation.known(np.array([_float(v) for v in source.values]).reshape(source.shape))
        assert isinstance(source, Tensor)
        return self.sources.get(source) or Perturbation.within(-inf, inf, source.rank)

    def body(self, body: Body) -> BodyPerturbation:
        for size in sizes(body):  # an index or guard that is read from a moved tensor: any jump is possible
            if any(self.body(atom.read).is_moved for atom in lookups_in(size)):
                raise Sensitive("a place is computed from it")
        match body:
            case Const(value):
                return _constant(value)
            case Read():
                return self.read(body)
            case Select(_, then, other):
                return either_of(self.body(then), self.body(other))
            case Reduce(monoid, axes, inner):
                operations = 1.0 if monoid in ("max", "min") else _terms(axes)  # a maximum adds nothing
                return self.with_flushing(
                    reduce_perturbation(monoid, self.term_perturbation(inner, operations), axes), operations
                )
            # a mean as a whole: a sum over an axis of unknown size alone would have very wide bounds
            case Call("div", (Reduce("sum", axes, inner), Const(count))) if is_same_size(_count(axes), count):
                return self.with_flushing(
                    reduce_perturbation("mean", self.term_perturbation(inner, _terms(axes)), axes), 2.0
                )
            case Call(fn, args):
                arguments = broadcast_perturbations([self.body(arg) for arg in args])
                if self.terms == 1:
                    self.check_infinities(fn, args, arguments)
                if is_rounding_cast(body) and arguments[0].is_moved:  # the change may cross a tie
                    raise Sensitive("a conversion to a narrower type of it")
                return self.with_flushing(
                    self.call_perturbation(fn, arguments, len(args) == 2 and args[0] == args[1])
                )
        raise TypeError(type(body))

    def check_infinities(self, fn: str, args: Sequence[Body], parts: Sequence[BodyPerturbation]) -> None:
        """Raise Sensitive for 0 * infinity, and 0 / 0, where a 0 was another number before it was moved."""
        if self.infinities is None or fn not in ("mul", "div"):
            return
        for part, arg, other in zip(parts, args, args[::-1], strict=True):  # each operand beside the other
            if not part.may_vanish or not self.reads_moved(arg):
                continue
            if fn == "mul" and self.infinities.arise_in(other):
                raise Sensitive("a product with what may be infinite")
            if fn == "div" and arg is args[0] and self.infinities.vanish_in(other):
                raise Sensitive("a quotient of it by what may be zero")

    def reads_moved(self, body: Body) -> bool:
        return any(read.source in self.moved for read in reads(body, nested=True))

    def term_perturbation(self, body: Body, count: float) -> BodyPerturbation:
        """Return the perturbation of a body that is one of `count` terms."""
        outer, self.terms = self.terms, self.terms * count
        part = self.body(body)
        self.terms = outer
        return part

    def with_flushing(self, part: BodyPerturbation, operations: float = 1.0) -> BodyPerturbation:
        """Return the perturbation after this many operations, each of which may flush its result to 0."""
        if not self.flushed:
            return part
        return part.after_flushing(part.min_magnitude - part.change, self.flushed, operations)

    def read(self, read: Read) -> BodyPerturbation:
        """Return that of what is read: a dimension indexed by an axis stays, others are collapsed."""
        axes: list[Axis] = []
        arrays = PerturbationArrays(*np.broadcast_arrays(*self.source(read.source).arrays()))
        for d in reversed(range(len(read.indices))):  # from the last: collapsing d keeps those before it
            length = arrays.low.shape[d]
            whole_axis = _axis(read.indices[d], length) if length > 1 else None
            if whole_axis is not None and whole_axis not in axes:
                selector = (slice(None),) * d + (slice(whole_axis.extent),)
                arrays = PerturbationArrays(*(a[selector] for a in arrays))
                axes.insert(0, whole_axis)
                continue
            arrays = collapse_dimension(arrays, d)
        if read.outside is not None:
            outside = _constant(read.outside.value)
            arrays = PerturbationArrays(
                np.minimum(arrays.low, outside.low),
                np.maximum(arrays.high, outside.high),
                arrays.change,
                # all unmoved terms of a sum may be beyond the edge at once, so that they count for the scale
                # no more than the value there
                np.where(arrays.change == 0, np.minimum(arrays.scale, outside.scale), arrays.scale),
                np.minimum(arrays.min_magnitude, outside.min_magnitude),
            )
        return BodyPerturbation.of(arrays, tuple(axes))

    def call_perturbation(
        self, fn: str, arguments: Sequence[BodyPerturbation], is_square: bool
    ) -> BodyPerturbation:
        """Return the perturbation of a function of arguments over the same axes."""
        if fn in ("add", "sub"):
            return add(arguments[0], arguments[1] if fn == "add" else negate(arguments[1]), self.unit)
        if fn == "mul":
            return multiply(*arguments, is_square=is_square)
        if fn == "pow" and (exponent := constant_exponent(arguments[1])) is not None:
            if exponent == 0.5:
                return square_root(arguments[0])
            return reduce(
                lambda a, b: multiply(a, b, is_square=a is arguments[0]), [arguments[0]] * int(exponent)
            )
        if fn == "exp" and arguments[0].is_moved:  # exp(x + d) is exp(x) * exp(d), and exp(d) rounds to 1
            if not arguments[0].change.max() <= self.unit:
                raise Sensitive("an exponential of it")
            return unmoved_call(fn, arguments)
        if fn in FUNCTION_RULES:
            return FUNCTION_RULES[fn](*arguments)
        target = cast_target(fn)
        if target is not None and target.startswith(("float", "bfloat")):
            return arguments[0]
        # a comparison is not moved where rounding hides the change of the difference that it tests
        if fn in ("eq", "lt", "le") and not add(arguments[0], negate(arguments[1]), self.unit).is_moved:
            arguments = [replace(part, change=np.zeros_like(part.change)) for part in arguments]
        if any(part.is_moved for part in arguments):
            raise Sensitive(f"{'a conversion' if target else fn} of it")
        return unmoved_call(fn, arguments)


def _constant(value: Any) -> BodyPerturbation:
    """Return that of a literal; of a symbolic size only numeric bounds, and "at least 1", count."""
    low, high = interval(value) if isinstance(value, Poly) else (value, value)
    least = 1.0 if isinstance(value, Poly) and is_nonnegative(value - 1) else -inf
    most = inf
    if low is not None and not isinstance(low, Poly):
        least = _float(low)
    if high is not None and not isinstance(high, Poly):
        most = _float(high)
    return BodyPerturbation.of(Perturbation.within(least, most).arrays())


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return inf if value > 0 else -inf


def _count(axes: Sequence[Axis]) -> Size:
    return reduce(lambda a, b: a * b, (polynomial(a.extent) for a in axes), 1)


def _terms(axes: Sequence[Axis]) -> float:
    """Return the number of terms of a sum over the axes, where UNKNOWN_EXTENT stands for open sizes."""
    return prod(float(a.extent) if isinstance(a.extent, int) else UNKNOWN_EXTENT for a in axes)


def _axis(index: Size, length: int) -> Axis | None:
    """Return the axis that an index is equal to, in a dimension of this length; None for any other index."""
    atom = single_atom(index)
    if not isinstance(atom, Axis) or not isinstance(atom.extent, int):
        return None
    return atom if 0 < atom.extent <= length else None
