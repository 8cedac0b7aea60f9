"""The records of a tensor expression: how each element of an output is computed from elements of inputs.

    scope ::=  L[axes](body)                                  one element per point of the axes
    body  ::=  constant | read | fn(body, ...) | where(guard, body, body) | sum[axes](body)
    read  ::=  source[index, ...]    source is a tensor or another scope; an index is a size over axes
    guard ::=  size >= 0, ...        a conjunction

(EINNET section 3: scopes and traversals; `outside` is the value of a read beyond the edge of its source.)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

from tensaurus.algebra.size import Arithmetic, Atom, Axis, Poly, Size, atoms, polynomial, substitute

Scalar: TypeAlias = bool | int | float | Fraction | Poly
Index: TypeAlias = Size


class Body:
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
    """A literal: an exact rational, an infinity, a bool, or a size (an axis value, a symbolic count)."""

    value: Scalar

    def __post_init__(self) -> None:
        value = polynomial(self.value)
        if isinstance(value, Body):
            raise TypeError("a literal that is computed")
        if isinstance(value, float) and value == value and value not in (float("inf"), float("-inf")):
            value = Fraction(value)
        if isinstance(value, Fraction) and value.denominator == 1:
            value = int(value)
        object.__setattr__(self, "value", value)


@dataclass(frozen=True)
class Tensor:
    """A named input: the leaves of an expression.  Indexing it builds a read.

    `nonzero` says that none of its elements is zero.
    """

    name: str
    shape: tuple[Size, ...]
    dtype: str = "float32"
    nonzero: bool = False

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __getitem__(self, indices: Any) -> Read:
        return read(self, indices)

    def padded(self, value: Scalar | Const = 0) -> Padded:
        """The tensor, continued beyond every edge by a constant."""
        return Padded(self, Const(value) if not isinstance(value, Const) else value)


@dataclass(frozen=True)
class Padded:
    source: Tensor | Scope
    outside: Const

    def __getitem__(self, indices: Any) -> Read:
        return read(self.source, indices, self.outside)


@dataclass(frozen=True)
class Read(Body):
    """One element of a source; beyond the edge its value is `outside` (None: the index never is beyond)."""

    source: Tensor | Scope
    indices: tuple[Index, ...]
    outside: Const | None = None


@dataclass(frozen=True)
class Call(Body):
    """A scalar function of `algebra.functions` applied to bodies."""

    fn: str
    args: tuple[Body, ...]


@dataclass(frozen=True)
class Select(Body):
    """`then` where every size of the guard is >= 0, else `other`; only the chosen branch is defined."""

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
class Scope:
    """A tensor given by an expression: its axes' extents are its shape."""

    axes: tuple[Axis, ...]
    body: Body

    @property
    def shape(self) -> tuple[Size, ...]:
        return tuple(axis.extent for axis in self.axes)

    @property
    def rank(self) -> int:
        return len(self.axes)

    def __getitem__(self, indices: Any) -> Read:
        return read(self, indices)

    def padded(self, value: Scalar | Const = 0) -> Padded:
        return Padded(self, Const(value) if not isinstance(value, Const) else value)


@dataclass(frozen=True, repr=False)
class Looked(Atom):
    """An index that is itself read from an integer tensor (Gather): opaque to every analysis but bounds."""

    read: Read
    low: Size
    high: Size

    @property
    def key(self) -> str:  # type: ignore[override]
        from tensaurus.algebra.text import show

        return f"look({show(self.read)}, {self.low}, {self.high})"

    def interval(self) -> tuple[Size | None, Size | None]:
        return self.low, self.high

    def rebuild(self, change: Callable[[Size], Size]) -> Any:
        inner = Read(self.read.source, tuple(map(change, self.read.indices)), self.read.outside)
        return polynomial(Looked(inner, change(self.low), change(self.high)))

    def inside(self) -> tuple[Size, ...]:
        return (*self.read.indices, self.low, self.high)


MONOIDS = ("sum", "max", "min", "prod")
_fresh = itertools.count()


def axis(extent: Size, hint: str = "i") -> Axis:
    """A new axis, distinct from every other."""
    return Axis(f"{hint}_{next(_fresh)}", extent)


def lift(value: Any) -> Body:
    """A number, size or body as a body."""
    if isinstance(value, Body):
        return value
    if isinstance(value, (bool, int, float, Fraction, Arithmetic)):
        return Const(value)  # type: ignore[arg-type]
    raise TypeError(f"{value!r} is not a scalar")


def call(fn: str, *args: Any) -> Call:
    return Call(fn, tuple(map(lift, args)))


def read(source: Tensor | Scope, indices: Any, outside: Const | None = None) -> Read:
    """source[indices]; a scope of rank 0 or a tensor of rank 0 is read with ()."""
    spots = indices if isinstance(indices, tuple) else (indices,)
    if len(spots) != source.rank:
        raise ValueError(f"{len(spots)} indices into rank {source.rank}")
    return Read(source, tuple(polynomial(spot) for spot in spots), outside)


def look(source: Read, low: Size, high: Size) -> Size:
    """A read as an index, known to lie in low..high (inclusive)."""
    return polynomial(Looked(source, low, high))  # type: ignore[no-any-return]


def compute(shape: Sequence[Size], element: Callable[..., Any]) -> Scope:
    """The tensor of this shape whose element at (i, j, ...) is element(i, j, ...)."""
    axes = tuple(axis(extent) for extent in shape)
    return Scope(axes, lift(element(*map(polynomial, axes))))


def fold(monoid: str, extents: Sequence[Size], element: Callable[..., Any]) -> Body:
    """Reduce element(r, s, ...) over ranges of these extents."""
    axes = tuple(axis(extent, "r") for extent in extents)
    body = lift(element(*map(polynomial, axes)))
    return Reduce(monoid, axes, body) if axes else body


def total(extents: Sequence[Size], element: Callable[..., Any]) -> Body:
    """The sum over ranges of these extents."""
    return fold("sum", extents, element)


def where(guard: Size | Sequence[Size], then: Any, other: Any) -> Select:
    """`then` where every size of the guard is >= 0."""
    sizes = tuple(guard) if isinstance(guard, (tuple, list)) else (guard,)
    return Select(tuple(polynomial(size) for size in sizes), lift(then), lift(other))


def within(index: Size, low: Size, high: Size) -> tuple[Size, Size]:
    """The guard low <= index < high."""
    return (polynomial(index) - low, high - 1 - polynomial(index))


def children(body: Body) -> tuple[Body, ...]:
    """The bodies directly inside (not those of a source scope)."""
    match body:
        case Call(_, args):
            return args
        case Select(_, then, other):
            return (then, other)
        case Reduce(_, _, inner):
            return (inner,)
    return ()


def reads(body: Body) -> Iterator[Read]:
    """Every read of the body, those inside indices included, those inside source scopes not."""
    if isinstance(body, Read):
        yield body
    for size in sizes(body):
        for atom in atoms(size):
            if isinstance(atom, Looked):
                yield from reads(atom.read)
    for child in children(body):
        yield from reads(child)


def sizes(body: Body) -> tuple[Size, ...]:
    """The sizes that stand directly in this body."""
    match body:
        case Read(_, indices, _):
            return indices
        case Select(guard, _, _):
            return guard
        case Const(value) if isinstance(value, Poly):
            return (value,)
    return ()


def tensors(scope: Scope) -> tuple[Tensor, ...]:
    """The tensors an expression reads, each once, in order of their first appearance."""
    found: dict[Tensor, None] = {}
    visited: set[int] = set()

    def visit(body: Body) -> None:
        for item in reads(body):
            if isinstance(item.source, Scope):
                if id(item.source) not in visited:
                    visited.add(id(item.source))
                    visit(item.source.body)
            else:
                found.setdefault(item.source)

    visit(scope.body)
    return tuple(found)


def rewrite_sizes(body: Body, change: Callable[[Size], Size]) -> Body:
    """The body with every size in it changed; source scopes are closed and stay."""
    match body:
        case Const(value) if isinstance(value, Poly):
            return Const(change(value))
        case Const():
            return body
        case Read(source, indices, outside):
            return Read(source, tuple(map(change, indices)), outside)
        case Call(fn, args):
            return Call(fn, tuple(rewrite_sizes(a, change) for a in args))
        case Select(guard, then, other):
            chosen = rewrite_sizes(then, change), rewrite_sizes(other, change)
            return Select(tuple(map(change, guard)), *chosen)
        case Reduce(monoid, axes, inner):
            return Reduce(monoid, axes, rewrite_sizes(inner, change))
    raise TypeError(type(body))


def replace_axes(body: Body, values: Mapping[Atom, Any]) -> Body:
    """The body with axes replaced by sizes."""
    return rewrite_sizes(body, lambda size: substitute(size, values)) if values else body


def replace_tensors(scope: Scope, values: Mapping[Tensor, Tensor | Scope]) -> Scope:
    """The scope with tensors replaced by sources of the same shape: how nodes compose to expressions."""

    memo: dict[int, Scope] = {}

    def source_of(source: Tensor | Scope) -> Tensor | Scope:
        if isinstance(source, Tensor):
            return values.get(source, source)
        if id(source) not in memo:
            memo[id(source)] = Scope(source.axes, visit(source.body))
        return memo[id(source)]

    def visit_size(size: Size) -> Size:
        looked = [a for a in atoms(size) if isinstance(a, Looked)] if isinstance(size, Poly) else []
        if not looked:
            return size
        inner: dict[Atom, Any] = {a: polynomial(Looked(visit_read(a.read), a.low, a.high)) for a in looked}
        return substitute(size, inner)  # type: ignore[no-any-return]

    def visit_read(body: Read) -> Read:
        return Read(source_of(body.source), tuple(map(visit_size, body.indices)), body.outside)

    def visit(body: Body) -> Body:
        match body:
            case Const(value):
                return Const(visit_size(value)) if isinstance(value, Poly) else body
            case Read():
                return visit_read(body)
            case Call(fn, args):
                return Call(fn, tuple(map(visit, args)))
            case Select(guard, then, other):
                return Select(tuple(map(visit_size, guard)), visit(then), visit(other))
            case Reduce(monoid, axes, inner):
                return Reduce(monoid, axes, visit(inner))
        raise TypeError(type(body))

    return Scope(scope.axes, visit(scope.body))
