"""The canonical form of an expression.

    L[i:N](sum[r:3](mul(w[r], add(x[i + r], y[i + r]))))
 -> L[i:N](add(sum[r:3](mul(w[r], x[i + r])), sum[r:3](mul(w[r], y[i + r]))))

Expressions with equal canonical forms compute the same function: by the laws of a commutative ring (with
1/0 = 0) and of a lattice, by renaming, splitting, merging and narrowing of axes, and by putting a scope's
body where the scope is read.  Equal functions need not have equal forms: laws of transcendental functions,
of the order of numbers and of x * (1/x) = 1 are not used, sums that multiply out to more than
`sums.TERMS` terms stay products, scopes that are large (`INLINED`, `NEST`, `STEPS`) stay scopes, and more
than `record.PERMUTATIONS` orders of indistinguishable axes are not tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tensaurus.expr.ir.element_types import dtype_of, literal_dtype
from tensaurus.expr.ir.float_conversions import is_exact_conversion, is_float
from tensaurus.expr.ir.scalar_functions import FIELD_FUNCTIONS, cast_target
from tensaurus.expr.ir.scope import (
    Body,
    Call,
    Const,
    Read,
    Reduce,
    Scope,
    Select,
    Source,
    Table,
    Tensor,
    axis,
)
from tensaurus.expr.ir.walk import map_reads, operands, replace_tensors, tensors
from tensaurus.expr.normal.canonical_record import Record
from tensaurus.expr.normal.guards import range_guards
from tensaurus.expr.normal.max_min import UNORDERED, Order, assuming, undecided
from tensaurus.expr.normal.normal_form import Apply, Core, Leaf, Sum, is_bool
from tensaurus.expr.normal.normal_to_scope import body_of
from tensaurus.expr.normal.smart_constructors import (
    applied,
    chosen,
    constant,
    folded,
    instantiate,
    inverse,
    leaf,
    plus,
    renewed,
    scaled,
    summed,
    times,
)
from tensaurus.expr.normal.term_limit import TooLarge, limited
from tensaurus.expr.sizes.size import Atom, Axis, Poly, Size, polynomial, substitute

INLINED = 24  # records that a scope may have to be put where it is read
SMALL = 8  # the same, where otherwise too many terms would arise
NEST = 2  # binders of axes in each other that such a scope may have
STEPS = 2000  # terms that may arise on the way to one scope's normal form
ROOM = 8  # times these, where two expressions are compared that seem to differ
_REMEMBERED = 4096
_ROUNDS = 4

_inlined: ContextVar[int] = ContextVar("inlined", default=INLINED)
_room: ContextVar[int] = ContextVar("room", default=1)
_canonical: dict[int, tuple[Scope, Scope]] = {}
_normal: dict[tuple[int, int], tuple[Scope, tuple[Axis, ...], Sum]] = {}


def canonical(scope: Scope) -> Scope:
    """The canonical form: same function, shape and dtype; equal for alpha-equal scopes.

    Its axes have the names that `show` prints, so two results share axes: take care to rename them before
    one is put inside the other's body (composition through reads needs no care).
    """
    found = _canonical.get(id(scope))
    if found is not None:
        return found[1]
    named: dict[str, Tensor] = {}
    for tensor in tensors(scope):
        if named.setdefault(tensor.name, tensor) != tensor:
            raise ValueError(f"two tensors are named {tensor.name}")
    axes, body = normal_form(scope)
    result = body_of(axes, body, scope)
    for _ in range(_ROUNDS if _guarded(body) else 0):
        # some guards decide others only once they are back on the reads that they came from
        axes, body = normal_form(result)
        before, result = result, body_of(axes, body, scope)
        if result == before:
            break
    dtype = dtype_of(scope)
    if dtype_of(result) != dtype:
        # x - x has lost its reads: the dtype is kept by a conversion
        result = body_of(axes, applied(f"to_{dtype}", (body,)), scope)
    _remember(_canonical, id(scope), (scope, result))
    _remember(_canonical, id(result), (result, result))
    return result


def alike(first: Scope, second: Scope) -> bool:
    """Whether two expressions have one canonical form: with more put in where it is read if need be, and in
    every order of what they take the maximum or minimum of."""
    if first.shape != second.shape or dtype_of(first) != dtype_of(second):
        return False
    if _text(first) == _text(second) or canonical(first) == canonical(second):
        return True
    token = _room.set(ROOM)
    try:
        if _text(first) == _text(second):
            return True
        (axes, left), (others, right) = normal_form(first), normal_form(second)
        right = instantiate(right, dict(zip(others, map(polynomial, axes), strict=True)))
        with limited(STEPS * ROOM):
            return _alike_ordered(left, right, axes)
    except TooLarge:
        return False
    finally:
        _room.reset(token)


def _alike_ordered(left: Sum, right: Sum, axes: Sequence[Axis], order: Order = UNORDERED) -> bool:
    """Whether two sums are equal in every order of their elements that extends this one."""
    with assuming(order):
        left, right = renewed(left), renewed(right)
    if left.key == right.key:
        return True
    pair = undecided(left, order, frozenset(axes)) or undecided(right, order, frozenset(axes))
    if pair is None:
        return False
    cases = order.wider(*pair), order.wider(*reversed(pair))
    return all(_alike_ordered(left, right, axes, case) for case in cases)


def _text(scope: Scope) -> str:
    axes, body = normal_form(scope)
    return body.text({a: f"${place}" for place, a in enumerate(axes)})


def symmetric(scope: Scope, a: Tensor, b: Tensor) -> bool:
    """True where exchanging two tensors of one type provably changes nothing: f(a, b) = f(b, a)."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return canonical(replace_tensors(scope, {a: b, b: a})) == canonical(scope)


def _guarded(record: Record) -> bool:
    return (isinstance(record, Core) and bool(record.guards)) or any(map(_guarded, record.parts()))


def _remember(table: dict[Any, Any], key: Any, entry: Any) -> None:
    # the entry holds the scope, so that its id stays its own
    if len(table) >= _REMEMBERED:
        table.clear()
    table[key] = entry


def normal_form(scope: Scope) -> tuple[tuple[Axis, ...], Sum]:
    """The axes of the scope (new ones) and its body in normal form."""
    key = id(scope), _room.get()
    found = _normal.get(key)
    if found is None:
        axes = tuple(axis(a.extent) for a in scope.axes)
        pairs = zip(scope.axes, axes, strict=True)
        known: dict[Atom, Any] = {old: 0 if new.extent == 1 else polynomial(new) for old, new in pairs}
        try:
            with limited(STEPS * key[1]), _inlining(INLINED * key[1]):
                body = normal(scope.body, known)
        except TooLarge:
            with limited(None), _inlining(SMALL):
                body = normal(scope.body, known)
        found = (scope, axes, body)
        _remember(_normal, key, found)
    return found[1], found[2]


@contextmanager
def _inlining(weight: int) -> Iterator[None]:
    token = _inlined.set(weight)
    try:
        yield
    finally:
        _inlined.reset(token)


def normal(body: Body, names: Mapping[Atom, Any]) -> Sum:
    """The normal form of a body under sizes for its open axes."""
    match body:
        case Const(value):
            return constant(size_of(value, names) if isinstance(value, Poly) else value)
        case Read(source, indices, outside):
            return _read(source, tuple(size_of(i, names) for i in indices), outside)
        case Call(fn, args):
            return _call(fn, args, names, body)
        case Select(guard, then, other):
            sizes = [size_of(g, names) for g in guard]
            return chosen(sizes, normal(then, names), normal(other, names))
        case Reduce(monoid, axes, inner):
            fresh = tuple(axis(a.extent, "r") for a in axes)
            wider: dict[Atom, Any] = {**names}
            wider.update({old: polynomial(new) for old, new in zip(axes, fresh, strict=True)})
            found = normal(inner, wider)
            return summed(fresh, (), found) if monoid == "sum" else folded(monoid, fresh, found)
    raise TypeError(type(body))


def size_of(size: Size, names: Mapping[Atom, Any]) -> Size:
    """The size with axes replaced, and the reads inside looked-up indices in canonical form."""
    result = substitute(size, names)
    if not isinstance(result, Poly):
        return result  # type: ignore[no-any-return]
    return map_reads(result, _index_read)


def _index_read(read: Read) -> Read:
    indices = tuple(size_of(i, {}) for i in read.indices)
    if not isinstance(read.source, Scope):
        return Read(read.source, indices, read.outside)
    if read.outside is None:
        axes, inner = normal_form(read.source)
        only = instantiate(inner, dict(zip(axes, indices, strict=True))).factor
        if isinstance(only, Leaf):
            return Read(only.source, only.indices, only.outside)
    return Read(canonical(read.source), indices, read.outside)


def _read(source: Source, indices: tuple[Size, ...], outside: Const | None) -> Sum:
    if not isinstance(source, Scope):
        return leaf(source, indices, outside)
    axes, body = normal_form(source)
    if body.weight > _inlined.get() or body.nest > NEST:
        return leaf(canonical(source), indices, outside)
    inner = instantiate(body, dict(zip(axes, indices, strict=True)))
    if outside is None:
        return inner
    return chosen(range_guards(source.shape, indices), inner, constant(outside.value))


def _call(fn: str, args: tuple[Body, ...], names: Mapping[Atom, Any], body: Body) -> Sum:
    if fn in ("add", "mul"):
        flat = [normal(a, names) for a in operands(body)]
        if not any(_boolean(a) for a in flat):
            return plus(*flat) if fn == "add" else times(*flat)
        return applied(fn, [normal(a, names) for a in args])
    inner = [normal(a, names) for a in args]
    if fn in FIELD_FUNCTIONS and not any(map(_boolean, inner)):
        if fn == "neg":
            return scaled(-1, inner[0])
        if fn == "sub":
            return plus(inner[0], scaled(-1, inner[1]))
        if literal_dtype(body).startswith(("int", "uint")) and literal_dtype(body) != "int":
            # a truncating quotient; literals would be read as rationals, so they say what they are
            return applied(fn, [a if _typed(a) else applied("to_int64", (a,)) for a in inner])
        return times(inner[0], inverse(inner[1]))
    if fn == "pow" and inner[1].constant in (1, 2, 3, 4):
        return times(*[inner[0]] * int(inner[1].constant))
    target = cast_target(fn)
    return applied(fn, inner) if target is None else _converted(inner[0], literal_dtype(args[0]), target)


def _converted(inner: Sum, source: str, target: str) -> Sum:
    """The conversion of a number, of which another that kept every number is none.

        float16 -> float32 -> float16       is no conversion
        int8 -> float64 -> float32          int8 -> float32
    """
    factor = inner.factor
    while isinstance(factor, Apply) and is_float(cast_target(factor.fn) or ""):
        (before,) = factor.args
        own = _dtype(before)
        if own is None or not is_exact_conversion(own, source):
            break
        inner, source, factor = before, own, before.factor
    if source == target or target.startswith("float") and _exact(inner, source):
        return inner
    return applied(f"to_{target}", [inner])


def _dtype(inner: Sum) -> str | None:
    """The element type of what is read or converted, None of anything else."""
    match inner.factor:
        case Leaf(source=source, outside=None) if not isinstance(source, Table):
            return dtype_of(source)
        case Apply(fn=fn):
            return cast_target(fn)
    return None


def _exact(inner: Sum, dtype: str) -> bool:
    """True for numbers and sizes alone, and for a number that is one in every type of integers."""
    if not dtype.startswith(("int", "uint")) or dtype == "int":
        return dtype in ("int", "real")
    value = inner.constant
    return value is not None and (-128 if dtype.startswith("int") else 0) <= value < 128


def _boolean(inner: Sum) -> bool:
    factor = inner.factor
    return factor is not None and is_bool(factor)


def _typed(record: Record) -> bool:
    """True where a read or a conversion gives the record its element type."""
    if isinstance(record, Leaf):
        return not isinstance(record.source, Table)
    return getattr(record, "fn", "").startswith("to_") or any(map(_typed, record.parts()))
