"""Scopes that are equal in form are one object, and have one fingerprint; nested scopes stay nested.

    L[i:4](add(0, sum[r:2](sum[s:3](mul(w[s], x[i, r])))))   is   L[i:4](sum[r:3, s:2](mul(w[r], x[i, s])))

Equal in form are scopes that differ in the names of bound axes, in the order and nesting of the operands of
add, mul, max, min, and, or, in the order of the axes of a reduction and of reductions by one monoid directly
inside each other, in the order of guards, and in what is trivial (`expr.ir.cleanup`).  No other law is used:
what a derivation has built stays.  Of more than `record.PERMUTATIONS` orders of indistinguishable axes equal
scopes may be two objects; different ones never are one.
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
from tensaurus.expr.normal.canonical_record import Naming, Record, bind_names, ordered
from tensaurus.expr.sizes.size import Axis, Size

__all__ = ["fingerprint", "interned"]

_scopes: WeakValueDictionary[str, Scope] = WeakValueDictionary()  # by fingerprint
_known: IdentityCache[tuple[str, Scope | None]] = (
    IdentityCache()
)  # fingerprints and interned scopes, None: itself


def interned(scope: Scope) -> Scope:
    """The one object for all scopes that are equal in form.

    Raises ValueError where two tensors have one name, and Untypable.
    """
    return _entry(scope)[1] or scope


def fingerprint(scope: Scope) -> str:
    """A short name of what is equal in form, the same in all processes; types and bounds are part of it."""
    return _entry(scope)[0]


def _entry(scope: Scope) -> tuple[str, Scope | None]:
    for inner in innermost_first(scope, _known):
        name, found = _named(inner)
        _known[found] = name, None
        if found is not inner:
            _known[inner] = name, found
    return _known[scope]


def _named(scope: Scope) -> tuple[str, Scope]:
    """The fingerprint, and the scope that has it."""
    body = Simplification(interned, scope.axes).body(scope.body)
    if literal_dtype(body) != literal_dtype(scope.body):
        # 1/2 + 1/2 is a real, and 1 an integer
        body = Simplification(interned, scope.axes, literals=False).body(scope.body)
    free = free_names(Scope(scope.axes, body), nested=False)
    if len({t.name for t in free.tensors}) < len(free.tensors):
        raise ValueError("two tensors have one name")
    term = Term(body)
    names = {**free.unbounded, **{a: f"${place}" for place, a in enumerate(scope.axes)}}
    shape = ", ".join(show_size(n, names) for n in scope.shape)
    text = f"{show_declarations(free)} [{shape}] {term.text(names)}"
    name = blake2b(text.encode(), digest_size=16).hexdigest()
    found = _scopes.get(name)
    if found is None:
        writer = _Writer(scope.axes, free.names)
        found = _scopes[name] = Scope(writer.axes, writer.body(term, names, 0))
    return name, found


class Term(Record):
    """A body in which the order of what commutes means nothing; chains of operands are flat."""

    __slots__ = ("body", "inside")

    def __init__(self, body: Body):
        super().__init__()
        self.body = body
        self.inside = tuple(map(Term, operands(body) if isinstance(body, Call) else children(body)))

    def sizes(self) -> tuple[Size, ...]:
        return sizes(self.body)

    def parts(self) -> Sequence[Record]:
        return self.inside

    def bound(self) -> tuple[Axis, ...]:
        return bound_axes(self.body)

    def ranked(self, names: Names, depth: int) -> Sequence[Term]:
        """The operands, those of a commutative function by their texts."""
        assert isinstance(self.body, Call)
        function = FUNCTIONS.get(self.body.fn)
        if function is None or not function.commutative:
            return self.inside
        return sorted(self.inside, key=lambda term: term.text(names, depth))

    @property
    def factors(self) -> Sequence[Term]:
        """What it multiplies: axes are told apart by the factors that they occur in."""
        return self.inside if isinstance(self.body, Call) and self.body.fn == "mul" else (self,)

    def _print(self, names: Names, depth: int) -> str:
        match self.body:
            case Const(value):
                return show_constant(value, names)
            case Read(source, indices, outside):
                name = f"{{{fingerprint(source)}}}" if isinstance(source, Scope) else show_source_name(source)
                text = f"{name}[{', '.join(show_size(i, names) for i in indices)}]"
                return text if outside is None else f"{text} | {show_constant(outside.value, names)}"
            case Call(fn, _):
                return f"{fn}({', '.join(term.text(names, depth) for term in self.ranked(names, depth))})"
            case Select(guard, _, _):
                then, other = (term.text(names, depth) for term in self.inside)
                return f"({then} if {', '.join(sorted(show_size(g, names) for g in guard))} else {other})"
            case Reduce(monoid, axes, _):
                (inner,) = self.inside
                wider, ranges = bind_names(axes, inner.factors, (), names, depth)
                return f"{monoid}{ranges}({inner.text(wider, depth + len(axes))})"
        raise TypeError(type(self.body))


class _Writer(Naming):
    """Writes terms in the order of their texts."""

    def body(self, term: Term, names: Names, depth: int) -> Body:
        match term.body:
            case Call(fn, args):
                found = [self.body(a, names, depth) for a in term.ranked(names, depth)]
                if len(found) > len(args):
                    return reduce(lambda a, b: Call(fn, (a, b)), found)
                return Call(fn, tuple(found))
            case Select(guard, _, _):
                ranked = sorted(guard, key=lambda g: show_size(g, names))
                then, other = (self.body(a, names, depth) for a in term.inside)
                return Select(tuple(map(self.size, ranked)), then, other)
            case Reduce(monoid, axes, _):
                (inner,) = term.inside
                order = ordered(axes, inner.factors, (), names, depth)
                wider = {**names, **{a: f"~{depth + place}" for place, a in enumerate(order)}}
                return Reduce(monoid, self.bind(order), self.body(inner, wider, depth + len(axes)))
        return rebuild_body(term.body, lambda body: body, self.size)
