"""The records of a tensor expression: how each element of an output is computed from elements of inputs.

    scope ::=  L[axes](body)                                  one element per point of the axes
    body  ::=  constant | read | fn(body, ...) | where(guard, body, body) | sum[axes](body)
    read  ::=  source[index, ...]    source is a tensor, a literal table or another scope; an index is a size
    guard ::=  size >= 0, ...        a conjunction

    compute((M, N), lambda i, j: total((K,), lambda k: a[i, k] * b[k, j]))         is a matrix product

Scopes are those of EINNET (section 3.1); the `outside` of a read is its value beyond the edge of its source,
EINNET's padding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from tensaurus.expr.sizes.polynomial import HasOwnOperators
from tensaurus.expr.sizes.size import Arithmetic, Atom, Axis, Number, Poly, Size, floordiv, polynomial

Scalar: TypeAlias = bool | int | float | Fraction | Poly
Index: TypeAlias = Size


class Body(HasOwnOperators):
    """A scalar expression over axes.  Arithmetic on bodies builds calls."""

    __slots__ = ()

    def __add__(self, other: Any) -> Body:
        return call("add", self, other)

    def __radd__(self, other: Any) -> Body:
        return call("add", other, self)

    def __mul__(self, other: Any) -> Body:
        return call("mul", self, other)

    def __rmul__(self, other: Any) -> Body:
        return call("mul", other, self)

    def __sub__(self, other: Any) -> Body:
        return call("sub", self, other)

    def __rsub__(self, other: Any) -> Body:
        return call("sub", other, self)

    def __truediv__(self, other: Any) -> Body:
        return call("div", self, other)

    def __rtruediv__(self, other: Any) -> Body:
        return call("div", other, self)

    def __neg__(self) -> Body:
        return call("neg", self)


@dataclass(frozen=True)
class Const(Body):
    """A literal: an exact rational, an infinity, NaN, a bool, or a size (an axis value, a symbolic count)."""

    value: Scalar

    def __post_init__(self) -> None:
        value = polynomial(self.value)
        if isinstance(value, Body):
            raise TypeError("a literal that is computed")
        if isinstance(value, float) and value == value and value not in (float("inf"), float("-inf")):
            value = Fraction(value)
        object.__setattr__(self, "value", _exact(value) if isinstance(value, Fraction) else value)


def _exact(value: Number) -> Number:
    return int(value) if value.denominator == 1 else value


class Indexed:
    """Base of everything that can be read.  Indexing it builds a read."""

    if TYPE_CHECKING:

        @property
        def shape(self) -> tuple[Size, ...]: ...

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __getitem__(self, indices: Any) -> Read:
        return read(self, indices)  # type: ignore[arg-type]

    def padded(self, value: Scalar | Const = 0) -> Padded:
        """Return the source with a constant value beyond every edge."""
        return Padded(self, Const(value) if not isinstance(value, Const) else value)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Tensor(Indexed):
    """A named input, a leaf of an expression.

    `nonzero` states that none of its elements is zero.
    """

    name: str
    shape: tuple[Size, ...]
    dtype: str = "float32"
    nonzero: bool = False


@dataclass(frozen=True)
class Table(Indexed):
    """A literal tensor of exact rationals in row-major order, of rank 1 at least and not empty.

    Its numbers take the type of what they are combined with, as all literals do.  Raises ValueError.
    """

    shape: tuple[int, ...]
    values: tuple[Number, ...]

    def __post_init__(self) -> None:
        if not self.values or not self.shape or len(self.values) != prod(self.shape):
            raise ValueError(f"{len(self.values)} numbers in a table of shape {self.shape}")
        object.__setattr__(self, "values", tuple(map(_exact, self.values)))

    def element(self, indices: Sequence[int]) -> Number | None:
        """Return the number at these indices, None beyond the edge."""
        number = 0
        for index, extent in zip(indices, self.shape, strict=True):
            if not 0 <= index < extent:
                return None
            number = number * extent + index
        return self.values[number]

    def narrow(self, indices: Sequence[Size]) -> tuple[Table, Sequence[Size], Number | None]:
        """Return the sub-table at the indices that are numbers, the other indices, and its only value.

        For example [[1, 0], [2, 2]] at (1, j) gives [2, 2], (j,) and 2.  The only value is None where the
        sub-table holds different numbers, or part of it is beyond the edge.
        """
        pairs = list(zip(indices, self.shape, strict=True))
        ranges = [(index,) if isinstance(index, int) else range(n) for index, n in pairs]
        values = [self.element(point) for point in itertools.product(*ranges)]
        only_value = values[0] if values.count(values[0]) == len(values) else None
        open_indices = [(index, n) for index, n in pairs if not isinstance(index, int)]
        if None in values or len(open_indices) in (0, len(pairs)):
            return self, indices, only_value
        sub_table = Table(tuple(n for _, n in open_indices), tuple(v for v in values if v is not None))
        return sub_table, [index for index, _ in open_indices], only_value

    @cached_property
    def text(self) -> str:
        """The table as nested lists: [[1, 0], [1/2, 1]]."""
        rows = list(map(str, self.values))
        for extent in reversed(self.shape):
            rows = [f"[{', '.join(rows[i : i + extent])}]" for i in range(0, len(rows), extent)]
        return rows[0]


Source: TypeAlias = Union[Tensor, Table, "Scope"]


@dataclass(frozen=True)
class Padded:
    """A source with a constant beyond its edges; indexing it builds a read."""

    source: Source
    outside: Const

    def __getitem__(self, indices: Any) -> Read:
        return read(self.source, indices, self.outside)


@dataclass(frozen=True)
class Read(Body):
    """One element of a source; its value beyond the edge is `outside`, None if no index is beyond it."""

    source: Source
    indices: tuple[Index, ...]
    outside: Const | None = None


@dataclass(frozen=True)
class Call(Body):
    """A scalar function of `expr.ir.scalar_functions` applied to bodies."""

    fn: str
    args: tuple[Body, ...]


@dataclass(frozen=True)
class Select(Body):
    """The value `then` where every size of the guard is >= 0, else `other`; only that branch is evaluated."""

    guard: tuple[Index, ...]
    then: Body
    other: Body


@dataclass(frozen=True)
class Reduce(Body):
    """The sum, max, min or prod of the body over all points of the axes."""

    monoid: str
    axes: tuple[Axis, ...]
    body: Body


@dataclass(frozen=True)
class Scope(Indexed):
    """A tensor that an expression defines; the extents of its axes are its shape.

    Its hash is cached: scopes are shared, and a chain in which each reads the one before twice is a tree of
    exponential size.
    """

    axes: tuple[Axis, ...]
    body: Body

    @property
    def shape(self) -> tuple[Size, ...]:
        return tuple(axis.extent for axis in self.axes)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.axes, self.body))

    def __reduce__(self) -> tuple[Any, ...]:
        return Scope, (self.axes, self.body)  # hashes differ between processes


@dataclass(frozen=True, repr=False)
class Lookup(Atom):
    """An index that is read from an integer tensor, as in Gather: only its bounds are known to analyses."""

    read: Read
    low: Size
    high: Size

    @cached_property
    def key(self) -> str:  # type: ignore[override]
        # only orders atoms: `expr.ir.printer` prints lookups
        source = self.read.source
        name = source.name if isinstance(source, Tensor) else repr(source)
        return f"look({name}{self.read.indices} | {self.read.outside}, {self.low}, {self.high})"

    def interval(self) -> tuple[Size | None, Size | None]:
        return self.low, self.high

    def rebuild(self, change: Callable[[Size], Size]) -> Any:
        inner = Read(self.read.source, tuple(map(change, self.read.indices)), self.read.outside)
        return polynomial(Lookup(inner, change(self.low), change(self.high)))

    def nested_sizes(self) -> tuple[Size, ...]:
        return (*self.read.indices, self.low, self.high)


MONOIDS = ("sum", "max", "min", "prod")
_fresh = itertools.count()


def axis(extent: Size, hint: str = "i") -> Axis:
    """Return a new axis, distinct from every other."""
    return Axis(f"{hint}_{next(_fresh)}", extent)


def digit_axes(split_axis: Axis, step: Size, hint: str = "i") -> tuple[Axis, Axis, Size]:
    """Return new axes for quotient and remainder of an axis by a step, and the axis as a size over both.

        i:6 by 2   ->   h:3, d:2, 2*h + d       (i:5 by 2: also h:3; the last point is beyond the axis)
    """
    high, low = axis(0 - floordiv(0 - split_axis.extent, step), hint), axis(step, hint)
    return high, low, polynomial(high) * step + polynomial(low)


def lift(value: Any) -> Body:
    """Return a number, size or body as a body."""
    if isinstance(value, Body):
        return value
    if isinstance(value, (bool, int, float, Fraction, Arithmetic)):
        return Const(value)  # type: ignore[arg-type]
    raise TypeError(f"{value!r} is not a scalar")


def call(fn: str, *args: Any) -> Call:
    return Call(fn, tuple(map(lift, args)))


def read(source: Source, indices: Any, outside: Const | None = None) -> Read:
    """Return source[indices]; a source of rank 0 is read with ()."""
    index_tuple = indices if isinstance(indices, tuple) else (indices,)
    if len(index_tuple) != source.rank:
        raise ValueError(f"{len(index_tuple)} indices into rank {source.rank}")
    return Read(source, tuple(map(polynomial, index_tuple)), outside)


def look(source: Read, low: Size, high: Size) -> Size:
    """Return a read as an index that is known to lie in low..high (inclusive)."""
    return polynomial(Lookup(source, low, high))  # type: ignore[no-any-return]


def table(rows: Any) -> Table:
    """Return the table of a sequence of numbers, or of rows of one length.  Raises ValueError."""
    shape: list[int] = []
    values = [rows]
    while True:
        lengths = {len(row) if isinstance(row, (list, tuple)) else -1 for row in values}
        if len(lengths) > 1:
            raise ValueError("rows of different lengths")
        if not lengths or lengths == {-1}:
            return Table(tuple(shape), tuple(values))
        shape += lengths
        values = [value for row in values for value in row]


def compute(shape: Sequence[Size], element: Callable[..., Any]) -> Scope:
    """Return the tensor of this shape whose element at (i, j, ...) is element(i, j, ...)."""
    axes = tuple(axis(extent) for extent in shape)
    return Scope(axes, lift(element(*map(polynomial, axes))))


def fold(monoid: str, extents: Sequence[Size], element: Callable[..., Any]) -> Body:
    """Return the reduction of element(r, s, ...) over ranges of these extents."""
    axes = tuple(axis(extent, "r") for extent in extents)
    body = lift(element(*map(polynomial, axes)))
    return Reduce(monoid, axes, body) if axes else body


def total(extents: Sequence[Size], element: Callable[..., Any]) -> Body:
    """Return the sum of element(r, s, ...) over ranges of these extents."""
    return fold("sum", extents, element)


def where(guard: Size | Sequence[Size], then: Any, other: Any) -> Select:
    """Return `then` where every size of the guard is >= 0, else `other`."""
    sizes = tuple(guard) if isinstance(guard, (tuple, list)) else (guard,)
    return Select(tuple(polynomial(size) for size in sizes), lift(then), lift(other))


def within(index: Size, low: Size, high: Size) -> tuple[Size, Size]:
    """Return the guard low <= index < high."""
    return (polynomial(index) - low, high - 1 - polynomial(index))
