"""Intern scopes: those that are equal in form become one object with one fingerprint (EINNET section 6.2).

    L[i:4](add(0, sum[r:2](sum[s:3](mul(w[s], x[i, r])))))   is   L[i:4](sum[r:3, s:2](mul(w[r], x[i, s])))

Scopes are equal in form if they differ only in the names of bound axes, in the order and nesting of the
operands of add, mul, max, min, and, or, in the order of the axes of a reduction and of reductions by one
monoid directly inside each other, in the order of guards, and in what `expr.ir.cleanup` simplifies.  No other
law is used, so that a derived expression keeps its structure; nested scopes stay nested.  Scopes that are not
equal in form are never one object.  Scopes that are may be two, with more than
`canonical_record.MAX_AXIS_ORDERS` orders of indistinguishable axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from hashlib import blake2b
from weakref import WeakValueDictionary

from tensaurus.expr.ir.cleanup import Simplification
from tensaurus.expr.ir.element_types import literal_dtype
from tensaurus.expr.ir.identity_cache import IdentityCache
from tensaurus.expr.ir.printer import (
    Names,
    free_names,
    show_constant,
    show_declarations,
    show_size,
    show_source_name,
)
from tensaurus.expr.ir.scalar_functions import FUNCTIONS
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Select
from tensaurus.expr.ir.walk import bound_axes, children, innermost_first, operands, rebuild_body, sizes
from tensaurus.expr.normal.canonical_record import (
    AxisNaming,
    Record,
    canonical_axis_order,
    name_bound_axes,
    names_by_position,
)
from tensaurus.expr.sizes.size import Axis, Size

__all__ = ["fingerprint", "intern_scope"]

_scopes: WeakValueDictionary[str, Scope] = WeakValueDictionary()  # by fingerprint
_Entry = tuple[str, Scope | None]  # fingerprint and interned scope, None for a scope that is interned itself
_entries: IdentityCache[_Entry] = IdentityCache()


def intern_scope(scope: Scope) -> Scope:
    """Return the one object for all scopes that are equal in form.

    Raises ValueError where two tensors have one name, and Untypable.
    """
    return _entry(scope)[1] or scope


def fingerprint(scope: Scope) -> str:
    """Return a hash of what is equal in form, the same in all processes; it covers types and bounds."""
    return _entry(scope)[0]


def _entry(scope: Scope) -> _Entry:
    for inner in innermost_first(scope, _entries):
        name, interned = _fingerprint_and_scope(inner)
        _entries[interned] = name, None
        if interned is not inner:
            _entries[inner] = name, interned
    return _entries[scope]


def _fingerprint_and_scope(scope: Scope) -> tuple[str, Scope]:
    """Return the fingerprint, and the interned scope that has it."""
    # simplify, with interned scopes in place of those that are read
    body = Simplification(intern_scope, scope.axes).body(scope.body)
    if literal_dtype(body) != literal_dtype(scope.body):
        # 1/2 + 1/2 is a real, 1 is an integer
        body = Simplification(intern_scope, scope.axes, literals=False).body(scope.body)
    free = free_names(Scope(scope.axes, body), nested=False)
    if len({t.name for t in free.tensors}) < len(free.tensors):
        raise ValueError("two tensors have one name")
    # the fingerprint is the hash of a text that has no names of bound axes and no order of operands
    term = UnorderedTerm(body)
    names = {**free.unbounded, **{a: f"${number}" for number, a in enumerate(scope.axes)}}
    shape = ", ".join(show_size(n, names) for n in scope.shape)
    text = f"{show_declarations(free)} [{shape}] {term.text(names)}"
    name = blake2b(text.encode(), digest_size=16).hexdigest()
    interned = _scopes.get(name)
    if interned is None:
        writer = _Writer(scope.axes, free.names)
        interned = _scopes[name] = Scope(writer.axes, writer.body(term, names, 0))
    return name, interned


class UnorderedTerm(Record):
    """A body in which the order of commuting operands has no meaning; chains of operands are flat."""

    __slots__ = ("body", "operands")

    def __init__(self, body: Body):
        super().__init__()
        self.body = body
        self.operands = tuple(
            map(UnorderedTerm, operands(body) if isinstance(body, Call) else children(body))
        )

    def sizes(self) -> tuple[Size, ...]:
        return sizes(self.body)

    def parts(self) -> Sequence[Record]:
        return self.operands

    def bound(self) -> tuple[Axis, ...]:
        return bound_axes(self.body)

    def sorted_operands(self, names: Names, depth: int) -> Sequence[UnorderedTerm]:
        """Return the operands, those of a commutative function sorted by their texts."""
        assert isinstance(self.body, Call)
        function = FUNCTIONS.get(self.body.fn)
        if function is None or not function.commutative:
            return self.operands
        return sorted(self.operands, key=lambda term: term.text(names, depth))

    @property
    def factors(self) -> Sequence[UnorderedTerm]:
        """The factors of a product: axes are distinguished by the factors that they occur in."""
        return self.operands if isinstance(self.body, Call) and self.body.fn == "mul" else (self,)

    def _print(self, names: Names, depth: int) -> str:
        match self.body:
            case Const(value):
                return show_constant(value, names)
            case Read(source, indices, outside):
                name = f"{{{fingerprint(source)}}}" if isinstance(source, Scope) else show_source_name(source)
                text = f"{name}[{', '.join(show_size(i, names) for i in indices)}]"
                return text if outside is None else f"{text} | {show_constant(outside.value, names)}"
            case Call(fn, _):
                texts = [term.text(names, depth) for term in self.sorted_operands(names, depth)]
                return f"{fn}({', '.join(texts)})"
            case Select(guard, _, _):
                then, other = (term.text(names, depth) for term in self.operands)
                return f"({then} if {', '.join(sorted(show_size(g, names) for g in guard))} else {other})"
            case Reduce(monoid, axes, _):
                (inner,) = self.operands
                wider, ranges = name_bound_axes(axes, inner.factors, (), names, depth)
                return f"{monoid}{ranges}({inner.text(wider, depth + len(axes))})"
        raise TypeError(type(self.body))


class _Writer(AxisNaming):
    """Writes terms as bodies, operands in the order of their texts."""

    def body(self, term: UnorderedTerm, names: Names, depth: int) -> Body:
        match term.body:
            case Call(fn, args):
                written = [self.body(a, names, depth) for a in term.sorted_operands(names, depth)]
                if len(written) > len(args):
                    return reduce(lambda a, b: Call(fn, (a, b)), written)
                return Call(fn, tuple(written))
            case Select(guard, _, _):
                sorted_guards = sorted(guard, key=lambda g: show_size(g, names))
                then, other = (self.body(a, names, depth) for a in term.operands)
                return Select(tuple(map(self.size, sorted_guards)), then, other)
            case Reduce(monoid, axes, _):
                (inner,) = term.operands
                order = canonical_axis_order(axes, inner.factors, (), names, depth)
                wider = names_by_position(order, names, depth)
                return Reduce(monoid, self.bind(order), self.body(inner, wider, depth + len(axes)))
        return rebuild_body(term.body, lambda body: body, self.size)
