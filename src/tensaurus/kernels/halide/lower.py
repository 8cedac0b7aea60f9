"""Translates stages to Halide functions without a schedule.

    s[i:4] = sum[r:8] x[i, r]   ->   s_sums(i) = 0;  s_sums(i) += x(r, i);  s(i) = s_sums(i)

A tensor's last axis is a function's first argument, as Halide stores the first one densely. Where a read has
a value outside (`Read.outside`), a select chooses between both values; every index whose bounds do not show
that it is in range is clamped, so that the memory access is valid even where the select drops its value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from typing import Any, NamedTuple, TypeGuard

import halide as hl
import numpy as np

from tensaurus.expr.ir.scalar_functions import MONOID_FUNCTIONS
from tensaurus.expr.ir.scope import Body, Call, Const, Lookup, Read, Select, Table, Tensor, axis
from tensaurus.expr.ir.walk import free_axes, replace_axes
from tensaurus.expr.sizes.size import Atom, Axis, Floor, Largest, Poly, Size, interval, polynomial, terms_of
from tensaurus.kernels.halide.lowering_errors import LoweringError
from tensaurus.kernels.math.halide_functions import apply_function, halide_type, literal_constant
from tensaurus.kernels.stages.copy_operands import axis_coefficients
from tensaurus.kernels.stages.stage import Stage, extent, neutral_element, operand_dtypes

__all__ = ["MAX_INDEX", "LoweredStages", "lower_stages"]

MAX_INDEX = 2**31 - 1  # indices and sizes are computed as int32


@dataclass
class LoweredStages:
    """The Halide functions of stages, by the names of their tensors.

    inputs        the parameters of the kernel
    funcs         the function that stores the tensor of a stage
    accumulators  the function that a reduction updates; the stage's function reads it
    interiors     for copies with edges: the reduction variable over the inside of a row, and its extent
    sources       all that a body may read: parameters and functions
    variables     the loop variable of each axis
    tables        buffers of literal tables, by table and element type
    """

    inputs: list[hl.ImageParam]
    funcs: dict[str, hl.Func] = field(default_factory=dict)
    accumulators: dict[str, hl.Func] = field(default_factory=dict)
    interiors: dict[str, tuple[Any, int]] = field(default_factory=dict)
    sources: dict[str, Any] = field(default_factory=dict)
    variables: dict[Axis, Any] = field(default_factory=dict)
    tables: dict[tuple[Table, str], Any] = field(default_factory=dict)


def set_dense_layout(param: Any, shape: Sequence[int]) -> None:
    """Tells Halide that a buffer has this shape, and strides without gaps."""
    stride = 1
    for place, size in enumerate(reversed(shape)):
        param.dim(place).set_bounds(0, size).set_stride(stride)
        stride *= size


def lower_stages(
    stages: Sequence[Stage], inputs: Sequence[Tensor], orders: Mapping[str, Sequence[int]] | None = None
) -> LoweredStages:
    """Lowers the stages over these inputs.

    `orders` has, by the name of a stage, its reduced axes, innermost first. The order is fixed here because
    Halide reorders a reduction later only where it can prove that this is right, which is seldom.
    """
    params = []
    for x in inputs:
        param = hl.ImageParam(halide_type(x.dtype), len(x.shape), x.name)
        set_dense_layout(param, [n for n in x.shape if isinstance(n, int)])
        params.append(param)
    lowered = LoweredStages(params, sources={p.name(): p for p in params})
    for stage in stages:
        order = (orders or {}).get(stage.tensor.name)
        _define_func(stage, lowered, range(len(stage.reduced))[::-1] if order is None else order)
    return lowered


def _define_func(stage: Stage, lowered: LoweredStages, order: Sequence[int]) -> None:
    """Defines the function of a stage, and the accumulators of a reduction, whose axes run in this order."""
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
        # the accumulators: a neutral element, then an update for each point of the domain
        sums = lowered.accumulators[name] = hl.Func(f"{name}_sums")
        lowering = _BodyLowering(lowered)
        sums[place] = lowering.lower_body(neutral_element(stage.monoid, dtype), dtype)
        is_float_sum = stage.monoid == "sum" and dtype.startswith("float")
        value = (lowering.lower_summand if is_float_sum else lowering.lower_body)(stage.body, dtype)
        if free_axes(stage.body).isdisjoint(reduced):
            # the select mentions the domain: without it Halide would see no reduction
            value = hl.select(domain[0] >= 0, value, value)
        if is_float_sum:
            sums[place] += value
        else:
            sums[place] = apply_function(MONOID_FUNCTIONS[stage.monoid], [sums[place], value], dtype)
        func[place] = sums[place]
    elif stage.linear:
        func[place] = _BodyLowering(lowered).lower_linear(stage.body, dtype)
    elif not _define_filled_copy(stage, func, lowered):
        func[place] = _BodyLowering(lowered).lower_body(stage.body, dtype)
    lowered.funcs[name] = lowered.sources[name] = func


def _define_filled_copy(stage: Stage, func: hl.Func, lowered: LoweredStages) -> bool:
    """Defines a copy with edges: filled with the value outside, then the inside of each row copied.

        s[i:3, j:8] = x[i, j - 1] | 0, x of 3 x 6   ->   s(j, i) = 0;  s(r, i) = x(r - 1, i) for r in 1..6

    Selecting within each vector is three times slower (measured). Returns False where the stage is no such
    copy: only the source's last index may move with the stage's last axis, by one element at a step, and a
    part of each row must be inside, another outside.
    """
    body = stage.body
    if not (isinstance(body, Read) and isinstance(body.source, Tensor) and stage.axes):
        return False
    if body.outside is None:
        return False
    form = axis_coefficients(body.indices[-1], stage.axes)
    last = stage.axes[-1]
    # an index that is not affine (None) may move with `last`; a constant one ({}) is counted as such, too
    if form != {last: 1} or any(
        last in (axis_coefficients(i, stage.axes) or {last: 1}) for i in body.indices[:-1]
    ):
        return False
    offset = body.indices[-1] - last
    size = body.source.shape[-1]
    assert isinstance(offset, int) and isinstance(size, int)
    first, end = max(0, -offset), min(extent(last), size - offset)  # the inside of a row, along `last`
    if first == 0 and end == extent(last) or end <= first:
        return False
    # fill the whole copy, then update the inside of each row
    terms = _BodyLowering(lowered)
    place = tuple(lowered.variables[a] for a in reversed(stage.axes))
    func[place] = terms.lower_body(body.outside, stage.tensor.dtype)
    row = hl.RDom([(first, end - first)]).x
    # the index is written over an axis as long as the inside: its bounds then show that it is in range
    inner = axis(end - first, "row")
    moved = replace_axes(body, {last: polynomial(inner) + first})
    value = _BodyLowering(lowered, {inner: row - first}).lower_body(moved, stage.tensor.dtype)
    others = tuple(lowered.variables[a] for a in reversed(stage.axes[:-1]))
    func[(row, *others)] = value
    lowered.interiors[stage.tensor.name] = row, end - first
    return True


def _has_reciprocal(value: object) -> TypeGuard[int | Fraction]:
    """Whether a literal is a number other than 0."""
    return isinstance(value, (int, Fraction)) and not isinstance(value, bool) and value != 0


class _RemainderForm(NamedTuple):
    """The size rest + factor * (dividend % divisor)."""

    factor: int
    dividend: Size
    divisor: int
    rest: Size


def _match_remainder(size: Size) -> _RemainderForm | None:
    """Returns a size with one remainder, which sizes write as a quotient, in this form, or None.

        j + 3*i - 12*(i // 4)   ->   (3, i, 4, j)            j + 3 * (i % 4)
        i // 2 - 2*(i // 4)     ->   (1, i // 2, 2, 0)       i // 4 is (i // 2) // 2

    Halide bounds i % 4, but not i - 4 * (i // 4).
    """
    terms = terms_of(size)
    for factors, coefficient in terms:
        match factors:
            case (Floor(top, int(bottom)) as floor,):
                # the dividend is the top, or a quotient of the top by a smaller divisor
                for dividend, divisor in [(top, bottom), *_quotients(top, terms, bottom)]:
                    if coefficient % divisor:  # the quotient's coefficient must be -factor * divisor
                        continue
                    rest = size + coefficient // divisor * (dividend - divisor * polynomial(floor))
                    if len(terms_of(rest)) < len(terms):  # the size has the dividend, too
                        return _RemainderForm(-int(coefficient) // divisor, dividend, divisor, rest)
    return None


def _quotients(top: Size, terms: Any, bottom: int) -> list[tuple[Size, int]]:
    """Returns (top // d, bottom // d) for quotients of `top` by divisors d of `bottom` among the terms."""
    found: list[tuple[Size, int]] = []
    for factors, _ in terms:
        match factors:
            case (Floor(same, int(smaller)) as floor,) if same == top and 1 < smaller < bottom:
                if bottom % smaller == 0:
                    found.append((polynomial(floor), bottom // smaller))
    return found


class _BodyLowering:
    """Translates bodies to Halide expressions.

    `values` has the expressions of axes that are no loop variables of their own.
    """

    def __init__(self, lowered: LoweredStages, values: Mapping[Axis, Any] | None = None):
        self.lowered = lowered
        self.values = values or {}

    def lower_body(self, body: Body, dtype: str) -> hl.Expr:
        """Lowers a body, whose literals take the element type `dtype`."""
        match body:
            case Const(value) if isinstance(value, Poly):
                return hl.cast(halide_type(dtype), self.lower_size(value))
            case Const(value):
                return literal_constant(value, dtype)  # type: ignore[arg-type]
            case Read():
                return self.lower_read(body, dtype)
            case Call(fn, args):
                return self.lower_call(fn, args, dtype)
            case Select(guard, then, other):
                sides = [self.lower_body(then, dtype), self.lower_body(other, dtype)]
                return apply_function("where", [self.lower_guard(guard), *sides], dtype)
        raise TypeError(type(body))

    def lower_summand(self, body: Body, dtype: str) -> hl.Expr:
        """Lowers the body of a sum by Halide's own product: product and sum become a fused multiply-add.

        Where a guard fails, 0 is added; unrolling the guard's axes decides it at compile time.
        """
        match body:
            case Call("mul", (a, b)):
                return self.lower_summand(a, dtype) * self.lower_summand(b, dtype)
            case Select(guard, then, Const(0)):
                return hl.select(
                    self.lower_guard(guard), self.lower_summand(then, dtype), literal_constant(0, dtype)
                )
        return self.lower_body(body, dtype)

    def lower_linear(self, body: Body, dtype: str) -> hl.Expr:
        """Lowers a sum of products by Halide's own operations, which become fused multiply-adds."""
        match body:
            case Call("add", (a, b)):
                return self.lower_linear(a, dtype) + self.lower_linear(b, dtype)
            case Call("sub", (a, b)):
                return self.lower_linear(a, dtype) - self.lower_linear(b, dtype)
            case Call("mul", (Const() as a, b)):
                return self.lower_body(a, dtype) * self.lower_linear(b, dtype)
            case Select(guard, then, other):
                return hl.select(
                    self.lower_guard(guard), self.lower_linear(then, dtype), self.lower_linear(other, dtype)
                )
        return self.lower_body(body, dtype)

    def lower_call(self, fn: str, args: Sequence[Body], dtype: str) -> hl.Expr:
        kinds = operand_dtypes(fn, args, dtype)
        operand_dtype = kinds[-1]  # the first argument of `where` is a bool
        divisor = args[1].value if fn == "div" and isinstance(args[1], Const) else None
        if operand_dtype.startswith("float") and _has_reciprocal(divisor):
            # a product is faster than a quotient; it rounds once more, as the reciprocal is rounded, too
            fn, args = "mul", (args[0], Const(1 / Fraction(divisor)))
        lowered_args = [self.lower_argument(a, kind) for a, kind in zip(args, kinds, strict=True)]
        if not any(isinstance(part, hl.Expr) for part in lowered_args):
            # the special forms for a literal, such as a divisor 0, want an expression beside the literal
            lowered_args[0] = literal_constant(lowered_args[0], kinds[0])
        return apply_function(fn, lowered_args, operand_dtype)

    def lower_argument(self, body: Body, dtype: str) -> Any:
        """Lowers an argument of a function; literals stay, as some functions have cheaper forms for them."""
        plain = isinstance(body, Const) and not isinstance(body.value, Poly)
        return body.value if plain else self.lower_body(body, dtype)  # type: ignore[attr-defined]

    def lower_guard(self, guard: Sequence[Size]) -> hl.Expr:
        condition: Any = None
        for size in guard:
            test = self.lower_size(size) >= 0
            condition = test if condition is None else condition & test
        return condition

    def lower_read(self, read: Read, dtype: str) -> hl.Expr:
        """Lowers a read; literal tables take the element type `dtype`."""
        source, indices = read.source, read.indices
        if isinstance(source, Table):
            target: Any = self.lower_table(source, dtype)
        else:
            assert isinstance(source, Tensor)
            target = self.lowered.sources[source.name]
        shape = source.shape
        own_dtype = source.dtype if isinstance(source, Tensor) else dtype
        if 0 in shape:  # every read is outside
            outside = neutral_element("sum", own_dtype) if read.outside is None else read.outside
            return self.lower_body(outside, own_dtype)
        # places: the indices, clamped where they may be out of range; tests: whether they are in range
        places, tests = [], []
        for index, size in zip(indices, shape, strict=True):
            assert isinstance(size, int)
            expr = self.lower_size(index)
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
        # the cast makes an Expr of an element of a Func
        value = hl.cast(halide_type(own_dtype), target[tuple(reversed(places))])
        if not tests:
            return value
        in_range = tests[0]
        for test in tests[1:]:
            in_range = in_range & test
        assert read.outside is not None
        return apply_function("where", [in_range, value, self.lower_body(read.outside, own_dtype)], own_dtype)

    def lower_table(self, table: Table, dtype: str) -> Any:
        key = table, dtype
        if key not in self.lowered.tables:
            lift = float if dtype.startswith("float") else int
            data = np.array([lift(v) for v in table.values], dtype).reshape(table.shape)
            self.lowered.tables[key] = hl.Buffer(data, name=f"t{len(self.lowered.tables)}")
        return self.lowered.tables[key]

    def lower_size(self, size: Size) -> hl.Expr:
        """Lowers a size to an int32 expression. Raises LoweringError where it may not fit."""
        if any(isinstance(end, int) and abs(end) > MAX_INDEX for end in interval(size)):
            raise LoweringError(f"an index beyond 32 bits: {size}")
        form = _match_remainder(size)
        if form is not None:
            remainder = self.lower_size(form.dividend) % form.divisor
            return self.lower_size(form.rest) + form.factor * remainder
        total: Any = hl.i32(0)
        for factors, coefficient in terms_of(size):
            term: Any = hl.i32(int(coefficient))
            for atom in factors:
                term = term * self.lower_atom(atom)
            total = total + term
        return total

    def lower_atom(self, atom: Atom) -> hl.Expr:
        if isinstance(atom, Floor):
            return self.lower_size(atom.top) // self.lower_size(atom.bottom)
        if isinstance(atom, Largest):
            first, *others = map(self.lower_size, atom.args)
            return reduce(hl.max, others, first)
        if isinstance(atom, Axis):
            return self.values[atom] if atom in self.values else hl.Expr(self.lowered.variables[atom])
        if isinstance(atom, Lookup):
            value = hl.cast(hl.Int(32), self.lower_read(atom.read, "int64"))
            return hl.clamp(value, self.lower_size(atom.low), self.lower_size(atom.high))
        raise TypeError(type(atom))
