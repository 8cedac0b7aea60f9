"""Compute the canonical form of an expression, by which equal expressions are recognized.

    L[i:N](sum[r:3](mul(w[r], add(x[i + r], y[i + r]))))
 -> L[i:N](add(sum[r:3](mul(w[r], x[i + r])), sum[r:3](mul(w[r], y[i + r]))))

Expressions with equal canonical forms compute the same function.  The form uses the laws of a commutative
ring (with 1/0 = 0) and of a lattice; it renames, splits, merges and narrows axes, and inlines scopes that are
read.  Equal functions need not have equal forms: laws of transcendental functions, of the order of numbers
and of x * (1/x) = 1 are not used, products of more than `smart_constructors.MAX_PRODUCT_TERMS` terms are not
multiplied out, large scopes (`MAX_INLINED_RECORDS`, `MAX_BINDER_DEPTH`, `MAX_TERMS`) are not inlined, and
more than `canonical_record.MAX_AXIS_ORDERS` orders of indistinguishable axes are not tried.

A body becomes a `Sum` of `normal_form`, built by `smart_constructors`; `normal_to_scope` writes it as a scope
again.  `rules/prove` and `rules/language` compare expressions in this form.
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
from tensaurus.expr.normal.max_min import UNORDERED, AssumedOrder, assume_order, undecided_pair
from tensaurus.expr.normal.normal_form import Apply, Core, Leaf, Sum, is_bool
from tensaurus.expr.normal.normal_to_scope import scope_of_sum
from tensaurus.expr.normal.smart_constructors import (
    apply_function,
    constant_sum,
    instantiate,
    inverse,
    plus,
    read_sum,
    reduce_over,
    scale,
    select_sum,
    sum_over,
    times,
    with_fresh_axes,
)
from tensaurus.expr.normal.term_limit import TooManyTerms, limit_terms
from tensaurus.expr.sizes.size import Atom, Axis, Poly, Size, polynomial, substitute

MAX_INLINED_RECORDS = 24  # a larger scope, in records, is not inlined where it is read
FEW_INLINED_RECORDS = 8  # the same where inlining larger scopes made too many terms
MAX_BINDER_DEPTH = 2  # nor is one with deeper nested binders: the time to order axes is exponential in it
MAX_TERMS = 2000  # terms that may arise on the way to one scope's normal form
RETRY_FACTOR = 8  # raises MAX_INLINED_RECORDS and MAX_TERMS for two expressions that seem to differ
_CACHE_ENTRIES = 4096
_MAX_ROUNDS = 4  # rounds of turning guards into edges of reads, which may decide other guards

_inline_limit: ContextVar[int] = ContextVar("inline_limit", default=MAX_INLINED_RECORDS)
_limit_factor: ContextVar[int] = ContextVar("limit_factor", default=1)
_canonical: dict[int, tuple[Scope, Scope]] = {}  # (scope, canonical form) by id
_normal: dict[tuple[int, int], tuple[Scope, tuple[Axis, ...], Sum]] = {}  # by id and limit factor


def canonicalize(scope: Scope) -> Scope:
    """Return the canonical form: same function, shape and dtype; equal for alpha-equal scopes.

    Its axes have the names that `show` prints, so that two results share axes: rename them before putting one
    inside the other's body.  Composing them by reads is safe.  Raises ValueError where two tensors have one
    name.
    """
    cached = _canonical.get(id(scope))
    if cached is not None:
        return cached[1]
    tensors_by_name: dict[str, Tensor] = {}
    for tensor in tensors(scope):
        if tensors_by_name.setdefault(tensor.name, tensor) != tensor:
            raise ValueError(f"two tensors are named {tensor.name}")
    axes, body = normal_form(scope)
    result = scope_of_sum(axes, body, scope)
    for _ in range(_MAX_ROUNDS if _has_guards(body) else 0):
        # some guards decide other guards only once they have become edges of reads
        axes, body = normal_form(result)
        before, result = result, scope_of_sum(axes, body, scope)
        if result == before:
            break
    dtype = dtype_of(scope)
    if dtype_of(result) != dtype:
        # x - x has no read left that gives the dtype: a conversion does
        result = scope_of_sum(axes, apply_function(f"to_{dtype}", (body,)), scope)
    _store(_canonical, id(scope), (scope, result))
    _store(_canonical, id(result), (result, result))
    return result


def are_equal_expressions(first: Scope, second: Scope) -> bool:
    """Return whether two expressions are provably equal by their canonical forms.

    Where the forms differ, more scopes are inlined, and every order of the arguments of max and min is tried.
    """
    if first.shape != second.shape or dtype_of(first) != dtype_of(second):
        return False
    if _canonical_text(first) == _canonical_text(second) or canonicalize(first) == canonicalize(second):
        return True
    # compare once more with larger limits, then in every order of the arguments of max and min
    token = _limit_factor.set(RETRY_FACTOR)
    try:
        if _canonical_text(first) == _canonical_text(second):
            return True
        (axes, left), (others, right) = normal_form(first), normal_form(second)
        right = instantiate(right, dict(zip(others, map(polynomial, axes), strict=True)))
        with limit_terms(MAX_TERMS * RETRY_FACTOR):
            return _are_equal_in_orders(left, right, axes)
    except TooManyTerms:
        return False
    finally:
        _limit_factor.reset(token)


def _are_equal_in_orders(
    left: Sum, right: Sum, axes: Sequence[Axis], order: AssumedOrder = UNORDERED
) -> bool:
    """Return whether two sums are equal in every order of their elements that extends this one."""
    with assume_order(order):
        left, right = with_fresh_axes(left), with_fresh_axes(right)
    if left.key == right.key:
        return True
    # else two arguments of a max or min are ordered in one way, then in the other
    pair = undecided_pair(left, order, frozenset(axes)) or undecided_pair(right, order, frozenset(axes))
    if pair is None:
        return False
    cases = order.with_pair(*pair), order.with_pair(*reversed(pair))
    return all(_are_equal_in_orders(left, right, axes, case) for case in cases)


def _canonical_text(scope: Scope) -> str:
    axes, body = normal_form(scope)
    return body.text({a: f"${number}" for number, a in enumerate(axes)})


def is_symmetric(scope: Scope, a: Tensor, b: Tensor) -> bool:
    """Return whether exchanging two tensors of one type provably changes nothing: f(a, b) = f(b, a)."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return canonicalize(replace_tensors(scope, {a: b, b: a})) == canonicalize(scope)


def _has_guards(record: Record) -> bool:
    return any(isinstance(inner, Core) and inner.guards for inner in record.walk())


def _store(table: dict[Any, Any], key: Any, entry: Any) -> None:
    # the entry holds the scope, so that no other object gets its id
    if len(table) >= _CACHE_ENTRIES:
        table.clear()
    table[key] = entry


def normal_form(scope: Scope) -> tuple[tuple[Axis, ...], Sum]:
    """Return new axes for those of the scope, and its body in normal form over them."""
    key = id(scope), _limit_factor.get()
    cached = _normal.get(key)
    if cached is None:
        axes = tuple(axis(a.extent) for a in scope.axes)
        pairs = zip(scope.axes, axes, strict=True)
        values: dict[Atom, Any] = {old: 0 if new.extent == 1 else polynomial(new) for old, new in pairs}
        try:
            with limit_terms(MAX_TERMS * key[1]), _inlining(MAX_INLINED_RECORDS * key[1]):
                body = normalize_body(scope.body, values)
        except TooManyTerms:
            with limit_terms(None), _inlining(FEW_INLINED_RECORDS):
                body = normalize_body(scope.body, values)
        cached = (scope, axes, body)
        _store(_normal, key, cached)
    return cached[1], cached[2]


@contextmanager
def _inlining(weight: int) -> Iterator[None]:
    token = _inline_limit.set(weight)
    try:
        yield
    finally:
        _inline_limit.reset(token)


def normalize_body(body: Body, values: Mapping[Atom, Any]) -> Sum:
    """Return the normal form of a body; `values` gives its open axes as sizes."""
    match body:
        case Const(value):
            return constant_sum(normalize_size(value, values) if isinstance(value, Poly) else value)
        case Read(source, indices, outside):
            return _normalize_read(source, tuple(normalize_size(i, values) for i in indices), outside)
        case Call(fn, args):
            return _normalize_call(fn, args, values, body)
        case Select(guard, then, other):
            sizes = [normalize_size(g, values) for g in guard]
            return select_sum(sizes, normalize_body(then, values), normalize_body(other, values))
        case Reduce(monoid, axes, inner):
            fresh = tuple(axis(a.extent, "r") for a in axes)
            wider: dict[Atom, Any] = {**values}
            wider.update({old: polynomial(new) for old, new in zip(axes, fresh, strict=True)})
            inner_sum = normalize_body(inner, wider)
            return (
                sum_over(fresh, (), inner_sum) if monoid == "sum" else reduce_over(monoid, fresh, inner_sum)
            )
    raise TypeError(type(body))


def normalize_size(size: Size, values: Mapping[Atom, Any]) -> Size:
    """Return the size with axes replaced, and with the reads inside lookups in canonical form."""
    result = substitute(size, values)
    if not isinstance(result, Poly):
        return result  # type: ignore[no-any-return]
    return map_reads(result, _normalize_lookup_read)


def _normalize_lookup_read(read: Read) -> Read:
    indices = tuple(normalize_size(i, {}) for i in read.indices)
    if not isinstance(read.source, Scope):
        return Read(read.source, indices, read.outside)
    if read.outside is None:
        axes, inner = normal_form(read.source)
        only = instantiate(inner, dict(zip(axes, indices, strict=True))).factor
        if isinstance(only, Leaf):
            return Read(only.source, only.indices, only.outside)
    return Read(canonicalize(read.source), indices, read.outside)


def _normalize_read(source: Source, indices: tuple[Size, ...], outside: Const | None) -> Sum:
    if not isinstance(source, Scope):
        return read_sum(source, indices, outside)
    axes, body = normal_form(source)
    if body.weight > _inline_limit.get() or body.binder_depth > MAX_BINDER_DEPTH:  # too large to inline
        return read_sum(canonicalize(source), indices, outside)
    inner = instantiate(body, dict(zip(axes, indices, strict=True)))
    if outside is None:
        return inner
    return select_sum(range_guards(source.shape, indices), inner, constant_sum(outside.value))


def _normalize_call(fn: str, args: tuple[Body, ...], values: Mapping[Atom, Any], body: Body) -> Sum:
    if fn in ("add", "mul"):  # nested sums and products are flattened; those of bools stay as they are
        flat = [normalize_body(a, values) for a in operands(body)]
        if not any(_is_boolean(a) for a in flat):
            return plus(*flat) if fn == "add" else times(*flat)
        return apply_function(fn, [normalize_body(a, values) for a in args])
    inner = [normalize_body(a, values) for a in args]
    # the other functions of a ring, and division, are written by +, * and 1/x
    if fn in FIELD_FUNCTIONS and not any(map(_is_boolean, inner)):
        if fn == "neg":
            return scale(-1, inner[0])
        if fn == "sub":
            return plus(inner[0], scale(-1, inner[1]))
        if literal_dtype(body).startswith(("int", "uint")) and literal_dtype(body) != "int":
            # a quotient that truncates: converted to int64, a literal such as 7 is no rational number
            return apply_function(
                fn, [a if _has_element_type(a) else apply_function("to_int64", (a,)) for a in inner]
            )
        return times(inner[0], inverse(inner[1]))
    if fn == "pow" and inner[1].constant in (1, 2, 3, 4):
        return times(*[inner[0]] * int(inner[1].constant))
    target = cast_target(fn)
    return (
        apply_function(fn, inner)
        if target is None
        else _normalize_conversion(inner[0], literal_dtype(args[0]), target)
    )


def _normalize_conversion(inner: Sum, source: str, target: str) -> Sum:
    """Return the conversion of a number without an exact conversion before it.

        float16 -> float32 -> float16       is no conversion
        int8 -> float64 -> float32          int8 -> float32
    """
    factor = inner.factor
    while isinstance(factor, Apply) and is_float(cast_target(factor.fn) or ""):
        (argument,) = factor.args
        argument_dtype = _dtype(argument)
        if argument_dtype is None or not is_exact_conversion(argument_dtype, source):
            break
        inner, source, factor = argument, argument_dtype, argument.factor
    if source == target or target.startswith("float") and _is_exact_number(inner, source):
        return inner
    return apply_function(f"to_{target}", [inner])


def _dtype(inner: Sum) -> str | None:
    """Return the element type of a read or a conversion, None for anything else."""
    match inner.factor:
        case Leaf(source=source, outside=None) if not isinstance(source, Table):
            return dtype_of(source)
        case Apply(fn=fn):
            return cast_target(fn)
    return None


def _is_exact_number(inner: Sum, dtype: str) -> bool:
    """Return whether the sum is literals and sizes alone, or a number in the range of every integer type."""
    if not dtype.startswith(("int", "uint")) or dtype == "int":
        return dtype in ("int", "real")
    value = inner.constant
    return value is not None and (-128 if dtype.startswith("int") else 0) <= value < 128


def _is_boolean(inner: Sum) -> bool:
    factor = inner.factor
    return factor is not None and is_bool(factor)


def _has_element_type(record: Record) -> bool:
    """Return whether a read or a conversion gives the record an element type."""
    if isinstance(record, Leaf):
        return not isinstance(record.source, Table)
    return getattr(record, "fn", "").startswith("to_") or any(map(_has_element_type, record.parts()))
