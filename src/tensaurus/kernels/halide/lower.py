"""Loop nests as Halide functions, without a schedule.

A tensor's last axis is a function's first argument: Halide stores the first one densely.  What is read is in
range wherever it is used, or chosen away; indices are clamped only where bounds do not show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from typing import Any

import halide as hl
import numpy as np

from tensaurus.expr.ir.scalar_functions import MONOID_FUNCTIONS
from tensaurus.expr.ir.scope import Body, Call, Const, Lookup, Read, Select, Table, Tensor, axis
from tensaurus.expr.ir.walk import free_axes, replace_axes
from tensaurus.expr.sizes.size import Atom, Axis, Floor, Largest, Poly, Size, interval, polynomial, terms_of
from tensaurus.kernels.halide.lowering_errors import Unlowered
from tensaurus.kernels.math.halide_functions import constant, expression, halide_type
from tensaurus.kernels.stages.copy_operands import slopes
from tensaurus.kernels.stages.stage import Stage, extent, neutral, operand_dtypes

__all__ = ["LARGEST", "Lowered", "lower"]

LARGEST = 2**31 - 1  # of what places and sizes are computed in


@dataclass
class Lowered:
    """The functions of some stages, by the names of their tensors.

    accumulators  those of reductions; a stage that is one has a function of its own that reads it
    interiors     of copies with edges: the loop over the inside of a row, and its size
    variables     the loops' own
    """

    inputs: list[hl.ImageParam]
    funcs: dict[str, hl.Func] = field(default_factory=dict)
    accumulators: dict[str, hl.Func] = field(default_factory=dict)
    interiors: dict[str, tuple[Any, int]] = field(default_factory=dict)
    sources: dict[str, Any] = field(default_factory=dict)
    variables: dict[Axis, Any] = field(default_factory=dict)
    tables: dict[tuple[Table, str], Any] = field(default_factory=dict)


def dense(param: Any, shape: Sequence[int]) -> None:
    """Says that a buffer has this shape and no gaps."""
    stride = 1
    for place, size in enumerate(reversed(shape)):
        param.dim(place).set_bounds(0, size).set_stride(stride)
        stride *= size


def lower(
    stages: Sequence[Stage], inputs: Sequence[Tensor], orders: Mapping[str, Sequence[int]] | None = None
) -> Lowered:
    """The stages over these inputs.

    `orders`: by the name of a stage its reduced axes, innermost first.  Of few reductions Halide knows that
    another order than the one in which they are written gives the same.
    """
    params = []
    for x in inputs:
        param = hl.ImageParam(halide_type(x.dtype), len(x.shape), x.name)
        dense(param, [n for n in x.shape if isinstance(n, int)])
        params.append(param)
    found = Lowered(params, sources={p.name(): p for p in params})
    for stage in stages:
        order = (orders or {}).get(stage.tensor.name)
        _define(stage, found, range(len(stage.reduced))[::-1] if order is None else order)
    return found


def _define(stage: Stage, lowered: Lowered, order: Sequence[int]) -> None:
    name, dtype = stage.tensor.name, stage.tensor.dtype
    for a in stage.axes:
        lowered.variables[a] = hl.Var(f"{name}_{len(lowered.variables)}")
    place = tuple(lowered.variables[a] for a in reversed(stage.axes))
    func = hl.Func(name)
    if stage.monoid:
        reduced = [stage.reduced[k] for k in order]
        domain = hl.RDom([(0, extent(a)) for a in reduced])
        for number, a in enumerate(reduced):
            lowered.variables[a] = domain[number]
        sums = lowered.accumulators[name] = hl.Func(f"{name}_sums")
        sums[place] = Terms(lowered).body(neutral(stage.monoid, dtype), dtype)
        if stage.monoid == "sum" and dtype.startswith("float"):
            value = Terms(lowered).summand(stage.body, dtype)
        else:
            value = Terms(lowered).body(stage.body, dtype)
        if free_axes(stage.body).isdisjoint(reduced):
            value = hl.select(domain[0] >= 0, value, value)  # else Halide sees no reduction
        if stage.monoid == "sum" and dtype.startswith("float"):
            sums[place] += value
        else:
            sums[place] = expression(MONOID_FUNCTIONS[stage.monoid], [sums[place], value], dtype)
        func[place] = sums[place]
    elif stage.linear:
        func[place] = Terms(lowered).linear(stage.body, dtype)
    elif not _filled(stage, func, lowered):
        func[place] = Terms(lowered).body(stage.body, dtype)
    lowered.funcs[name] = lowered.sources[name] = func


def _filled(stage: Stage, func: hl.Func, lowered: Lowered) -> bool:
    """A copy with edges as one that is filled with what is outside, and its rows' insides copied over that.

    A choice within a vector is three times slower (measured).
    """
    body = stage.body
    if not (isinstance(body, Read) and isinstance(body.source, Tensor) and stage.axes):
        return False
    if body.outside is None:
        return False
    form = slopes(body.indices[-1], stage.axes)
    last = stage.axes[-1]
    if form != {last: 1} or any(last in (slopes(i, stage.axes) or {last: 1}) for i in body.indices[:-1]):
        return False
    offset = body.indices[-1] - last
    size = body.source.shape[-1]
    assert isinstance(offset, int) and isinstance(size, int)
    first, end = max(0, -offset), min(extent(last), size - offset)
    if first == 0 and end == extent(last) or end <= first:
        return False
    terms = Terms(lowered)
    place = tuple(lowered.variables[a] for a in reversed(stage.axes))
    func[place] = terms.body(body.outside, stage.tensor.dtype)
    row = hl.RDom([(first, end - first)]).x
    inner = axis(end - first, "row")
    moved = replace_axes(body, {last: polynomial(inner) + first})
    value = Terms(lowered, {inner: row - first}).body(moved, stage.tensor.dtype)
    others = tuple(lowered.variables[a] for a in reversed(stage.axes[:-1]))
    func[(row, *others)] = value
    lowered.interiors[stage.tensor.name] = row, end - first
    return True


def _reciprocal(value: Any) -> bool:
    """Whether a literal has a reciprocal that is a number."""
    return isinstance(value, (int, Fraction)) and not isinstance(value, bool) and value != 0


def _remainder(size: Size) -> tuple[int, Size, int, Size] | None:
    """(m, t, k, rest) where the size is rest + m * (t % k): of a remainder Halide has bounds."""
    terms = terms_of(size)
    for factors, coefficient in terms:
        match factors:
            case (Floor(top, int(bottom)) as floor,):
                # of what it is the quotient: the top, or a quotient of a smaller divisor
                of = [(top, bottom), *_quotients(top, terms, bottom)]
                for inner, times in of:
                    if coefficient % times:
                        continue
                    rest = size + coefficient // times * (inner - times * polynomial(floor))
                    if len(terms_of(rest)) < len(terms):
                        return -int(coefficient) // times, inner, times, rest
    return None


def _quotients(top: Size, terms: Any, bottom: int) -> list[tuple[Size, int]]:
    """Quotients of the same by smaller numbers, and by what they are divided for the one by `bottom`."""
    found: list[tuple[Size, int]] = []
    for factors, _ in terms:
        match factors:
            case (Floor(same, int(smaller)) as floor,) if same == top and 1 < smaller < bottom:
                if bottom % smaller == 0:
                    found.append((polynomial(floor), bottom // smaller))
    return found


class Terms:
    """Bodies as Halide's expressions; `values` are expressions for axes that are no loops of their own."""

    def __init__(self, lowered: Lowered, values: Mapping[Axis, Any] | None = None):
        self.lowered = lowered
        self.values = values or {}

    def body(self, body: Body, dtype: str) -> hl.Expr:
        """The body, whose literals are of this type."""
        match body:
            case Const(value) if isinstance(value, Poly):
                return hl.cast(halide_type(dtype), self.size(value))
            case Const(value):
                return constant(value, dtype)  # type: ignore[arg-type]
            case Read():
                return self.read(body, dtype)
            case Call(fn, args):
                return self.call(fn, args, dtype)
            case Select(guard, then, other):
                sides = [self.body(then, dtype), self.body(other, dtype)]
                return expression("where", [self.guard(guard), *sides], dtype)
        raise TypeError(type(body))

    def summand(self, body: Body, dtype: str) -> hl.Expr:
        """A body that is added up: its product is Halide's own, so that both become one instruction.

        What a guard leaves out adds nothing; it is decided where its axes are unrolled.
        """
        match body:
            case Call("mul", (a, b)):
                return self.summand(a, dtype) * self.summand(b, dtype)
            case Select(guard, then, Const(0)):
                return hl.select(self.guard(guard), self.summand(then, dtype), constant(0, dtype))
        return self.body(body, dtype)

    def linear(self, body: Body, dtype: str) -> hl.Expr:
        """A sum of products that is written out, by Halide's own, as what a reduction adds up."""
        match body:
            case Call("add", (a, b)):
                return self.linear(a, dtype) + self.linear(b, dtype)
            case Call("sub", (a, b)):
                return self.linear(a, dtype) - self.linear(b, dtype)
            case Call("mul", (Const() as a, b)):
                return self.body(a, dtype) * self.linear(b, dtype)
            case Select(guard, then, other):
                return hl.select(self.guard(guard), self.linear(then, dtype), self.linear(other, dtype))
        return self.body(body, dtype)

    def call(self, fn: str, args: Sequence[Body], dtype: str) -> hl.Expr:
        kinds = operand_dtypes(fn, args, dtype)
        own = kinds[-1]
        divisor = args[1].value if fn == "div" and isinstance(args[1], Const) else None
        if own.startswith("float") and isinstance(divisor, (int, Fraction)) and _reciprocal(divisor):
            # one rounding more than the quotient's own
            fn, args = "mul", (args[0], Const(1 / Fraction(divisor)))
        parts = [self.part(a, kind) for a, kind in zip(args, kinds, strict=True)]
        if not any(isinstance(part, hl.Expr) for part in parts):
            parts[0] = constant(parts[0], kinds[0])
        return expression(fn, parts, own)

    def part(self, body: Body, dtype: str) -> Any:
        """As `body`; a literal stays one, as functions have cheaper forms for them."""
        plain = isinstance(body, Const) and not isinstance(body.value, Poly)
        return body.value if plain else self.body(body, dtype)  # type: ignore[attr-defined]

    def guard(self, guard: Sequence[Size]) -> hl.Expr:
        whole: Any = None
        for size in guard:
            test = self.size(size) >= 0
            whole = test if whole is None else whole & test
        return whole

    def read(self, read: Read, dtype: str) -> hl.Expr:
        source, indices = read.source, read.indices
        if isinstance(source, Table):
            target: Any = self.table(source, dtype)
        else:
            assert isinstance(source, Tensor)
            target = self.lowered.sources[source.name]
        shape = source.shape
        own = source.dtype if isinstance(source, Tensor) else dtype
        if 0 in shape:  # nothing is read
            return self.body(neutral("sum", own) if read.outside is None else read.outside, own)
        places, tests = [], []
        for index, size in zip(indices, shape, strict=True):
            assert isinstance(size, int)
            expr = self.size(index)
            low, high = interval(index)
            below = not (isinstance(low, int) and low >= 0)
            above = not (isinstance(high, int) and high < size)
            if below and read.outside is not None:
                tests.append(expr >= 0)
            if above and read.outside is not None:
                tests.append(expr < size)
            if below or above:
                expr = hl.clamp(expr, 0, size - 1)
            places.append(expr)
        value = hl.cast(halide_type(own), target[tuple(reversed(places))])  # a Func's element is no Expr yet
        if not tests:
            return value
        whole = tests[0]
        for test in tests[1:]:
            whole = whole & test
        assert read.outside is not None
        return expression("where", [whole, value, self.body(read.outside, own)], own)

    def table(self, table: Table, dtype: str) -> Any:
        key = table, dtype
        if key not in self.lowered.tables:
            lift = float if dtype.startswith("float") else int
            data = np.array([lift(v) for v in table.values], dtype).reshape(table.shape)
            self.lowered.tables[key] = hl.Buffer(data, name=f"t{len(self.lowered.tables)}")
        return self.lowered.tables[key]

    def size(self, size: Size) -> hl.Expr:
        """An integer as a 32-bit expression.  Raises Unlowered where it does not fit."""
        if any(isinstance(end, int) and abs(end) > LARGEST for end in interval(size)):
            raise Unlowered(f"an index beyond 32 bits: {size}")
        remainder = _remainder(size)
        if remainder is not None:
            times, top, bottom, rest = remainder
            return self.size(rest) + times * (self.size(top) % bottom)
        whole: Any = hl.i32(0)
        for factors, coefficient in terms_of(size):
            term: Any = hl.i32(int(coefficient))
            for atom in factors:
                term = term * self.atom(atom)
            whole = whole + term
        return whole

    def atom(self, atom: Atom) -> hl.Expr:
        if isinstance(atom, Floor):
            return self.size(atom.top) // self.size(atom.bottom)
        if isinstance(atom, Largest):
            first, *others = map(self.size, atom.args)
            return reduce(hl.max, others, first)
        if isinstance(atom, Axis):
            return self.values[atom] if atom in self.values else hl.Expr(self.lowered.variables[atom])
        if isinstance(atom, Lookup):
            value = hl.cast(hl.Int(32), self.read(atom.read, "int64"))
            return hl.clamp(value, self.size(atom.low), self.size(atom.high))
        raise TypeError(type(atom))
