"""An expression as loop nests: each computes one tensor, from inputs and from the tensors of nests before it.

    L[i:4](sum[r:8](exp(x[i, r])) * 2)

    s0[i:4] = sum[r:8] exp(x[i, r])
    s1[i:4] = s0[i] * 2

Scopes that only move elements are put in their readers, and axes of extent 1 are gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, TypeGuard

from tensaurus.expr.analysis.summation_regions import NEUTRAL
from tensaurus.expr.ir.element_types import dtype_of, literal_dtype
from tensaurus.expr.ir.integer_types import integer_literal
from tensaurus.expr.ir.scalar_functions import FUNCTIONS, cast_target
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Select, Source, Tensor, axis
from tensaurus.expr.ir.walk import (
    bodies,
    free_axes,
    innermost_first,
    map_reads,
    reads,
    rebuild_body,
    replace_axes,
    sizes,
)
from tensaurus.expr.normal.flatten import chosen
from tensaurus.expr.normal.guards import range_guards
from tensaurus.expr.sizes.size import Atom, Axis, Floor, Size, atoms, polynomial, substitute

__all__ = [
    "Stage",
    "extent",
    "in_digits",
    "neutral",
    "operand_dtypes",
    "staged",
]

DEFAULTS = {"int": "int64", "real": "float32"}


@dataclass(frozen=True)
class Stage:
    """tensor[axes] = body, or its reduction over the axes `reduced`; the body has neither scopes nor
    reductions.

    `linear`: it is a sum of products that is written out, and rounds as a reduction does.
    """

    tensor: Tensor
    axes: tuple[Axis, ...]
    body: Body
    reduced: tuple[Axis, ...] = ()
    monoid: str = ""
    linear: bool = False

    @property
    def points(self) -> int:
        """How often the body is computed."""
        return prod(extent(a) for a in (*self.axes, *self.reduced))

    @cached_property
    def sources(self) -> tuple[Tensor, ...]:
        """The tensors that it reads, each once."""
        return tuple(dict.fromkeys(r.source for r in reads(self.body) if isinstance(r.source, Tensor)))


def extent(a: Axis) -> int:
    assert isinstance(a.extent, int)
    return a.extent


def operand_dtypes(fn: str, args: Sequence[Body], dtype: str) -> tuple[str, ...]:
    """The types of a function's arguments where the result is of this type: literals adapt to what they
    meet.
    """
    kinds = [literal_dtype(a) for a in (args[1:] if fn == "where" else args)]
    own = next((k for k in kinds if k not in DEFAULTS), None)
    if own is None:
        target = cast_target(fn)
        if target is None and FUNCTIONS[fn].result != "bool":
            own = dtype
        elif target is not None and target.startswith("float"):
            own = target  # rounded once
        else:
            own = DEFAULTS["real" if "real" in kinds else "int"]
    return ("bool", own, own) if fn == "where" else (own,) * len(args)


def neutral(monoid: str, dtype: str) -> Const:
    """What a reduction of no elements of this type is."""
    value = NEUTRAL[monoid]
    if dtype.startswith("float"):
        return Const(value)
    whole = int(integer_literal(value, dtype))
    return Const(bool(whole) if dtype == "bool" else whole)


def staged(scope: Scope) -> tuple[Stage, ...]:
    """The loop nests of a scope whose sizes are numbers, sources before readers, the output last."""
    return tuple(map(in_digits, _Staging().of(scope)))


class _Staging:
    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self.known: dict[Scope, Source | Scope] = {}  # by identity: scopes are read in many places
        self.ids: dict[int, tuple[Scope, Tensor | Scope]] = {}

    def of(self, scope: Scope) -> tuple[Stage, ...]:
        for inner in innermost_first(scope, _Keys(self.ids)):
            self.ids[id(inner)] = inner, self.scope(inner, last=inner is scope)
        made = self.ids[id(scope)][1]
        assert isinstance(made, Tensor)
        return tuple(self.stages)

    def scope(self, scope: Scope, last: bool) -> Tensor | Scope:
        """The tensor that a stage computes; or the scope itself, over tensors, where it only moves
        elements.
        """
        # axes of their own: equal axes stand in many scopes
        values: dict[Atom, Any] = {a: 0 if a.extent == 1 else polynomial(axis(a.extent)) for a in scope.axes}
        axes = tuple(b for a in scope.axes if isinstance(b := _only(values[a]), Axis))
        dtype = dtype_of(scope)
        if any(a.extent == 0 for a in axes):  # nothing is computed
            return self.stage(axes, neutral("max", dtype), dtype)
        body = replace_axes(scope.body, values)
        if isinstance(body, Reduce):
            return self.reduction(body, axes, dtype)
        body = self.body(body, axes, dtype)
        if not last and _moves(body):
            return Scope(tuple(b if isinstance(b := _only(values[a]), Axis) else a for a in scope.axes), body)
        return self.stage(axes, body, dtype)

    def stage(self, axes: tuple[Axis, ...], body: Body, dtype: str, **more: Any) -> Tensor:
        tensor = Tensor(f"s{len(self.stages)}", tuple(a.extent for a in axes), dtype)
        self.stages.append(Stage(tensor, axes, body, **more))
        return tensor

    def reduction(self, body: Reduce, axes: tuple[Axis, ...], dtype: str) -> Tensor:
        unit: dict[Atom, Any] = {a: 0 for a in body.axes if a.extent == 1}
        fresh = {a: axis(a.extent, "r") for a in body.axes if a.extent != 1}
        renamed = replace_axes(body.body, {**unit, **{a: polynomial(b) for a, b in fresh.items()}})
        reduced = tuple(fresh.values())
        inner = self.body(renamed, (*axes, *reduced), dtype)
        used = free_axes(inner)
        times = prod(extent(a) for a in reduced if a not in used)
        if any(extent(a) == 0 for a in reduced):
            inner, used = neutral(body.monoid, dtype), set()
        elif body.monoid == "prod":
            used |= set(reduced)
        elif body.monoid == "sum" and times != 1:
            inner = Call("mul", (inner, Const(times)))
        reduced = tuple(a for a in reduced if a in used)
        return self.stage(axes, inner, dtype, reduced=reduced, monoid=body.monoid if reduced else "")

    def body(self, body: Body, axes: tuple[Axis, ...], dtype: str) -> Body:
        """The body with reductions and scopes that compute replaced by reads of their stages.

        Literals in it are of the type `dtype`.
        """
        match body:
            case Reduce():
                used = free_axes(body)
                kept = tuple(a for a in axes if a in used)
                places = tuple(axis(a.extent) for a in kept)
                renamed = replace_axes(body, {a: polynomial(b) for a, b in zip(kept, places, strict=True)})
                assert isinstance(renamed, Reduce)
                found = literal_dtype(body)
                made = self.reduction(renamed, places, dtype if found in DEFAULTS else found)
                return Read(made, tuple(map(polynomial, kept)))
            case Read():
                return self.read(body, axes)
            case Call(fn, args):
                own = operand_dtypes(fn, args, dtype)
                return Call(fn, tuple(self.body(a, axes, d) for a, d in zip(args, own, strict=True)))
            case Select(guard, then, other):
                sides = [self.body(part, axes, dtype) for part in (then, other)]
                return chosen([self.size(g, axes) for g in guard], sides[0], sides[1])
        return rebuild_body(
            body, lambda inner: self.body(inner, axes, dtype), lambda size: self.size(size, axes)
        )

    def size(self, size: Size, axes: tuple[Axis, ...]) -> Size:
        def changed(read: Read) -> Read:
            made = self.read(read, axes)
            if isinstance(made, Read):
                return made
            return Read(self.stage(axes, made, "int64"), tuple(map(polynomial, axes)))

        return map_reads(size, changed)

    def read(self, read: Read, axes: tuple[Axis, ...]) -> Body:
        indices = tuple(self.size(i, axes) for i in read.indices)
        source = read.source
        if isinstance(source, Scope):
            inner = self.ids[id(source)][1]
            if isinstance(inner, Scope):
                known: dict[Atom, Any] = dict(zip(inner.axes, indices, strict=True))
                inside = _substituted(inner.body, known)
                if literal_dtype(inside) in DEFAULTS:  # of its own type, whatever it meets
                    inside = Call(f"to_{dtype_of(source)}", (inside,))
            else:
                inside = Read(inner, tuple(i for i, n in zip(indices, source.shape, strict=True) if n != 1))
        elif isinstance(source, Tensor):
            kept = [(i, n) for i, n in zip(indices, source.shape, strict=True) if n != 1]
            plain = Tensor(source.name, tuple(n for _, n in kept), source.dtype)
            inside = Read(plain, tuple(i for i, _ in kept))
        else:
            inside = Read(source, indices)
        if read.outside is None:
            return inside
        left = range_guards(source.shape, indices)
        if isinstance(inside, Read) and inside.outside is None:
            # where the edge is one of the tensor itself it stays an edge
            edges = range_guards(inside.source.shape, inside.indices)
            if not set(edges).isdisjoint(left):
                inside = replace(inside, outside=read.outside)
                left = tuple(g for g in left if g not in edges)
        return chosen(list(left), inside, read.outside)


def _only(size: Size) -> Atom | None:
    """The axis that a size is."""
    return next(iter(atoms(size)), None)


class _Keys:
    """Scopes by identity."""

    def __init__(self, ids: Mapping[int, Any]):
        self.ids = ids

    def __contains__(self, scope: object) -> bool:
        return id(scope) in self.ids


def _substituted(body: Body, values: Mapping[Atom, Any]) -> Body:
    """The body at these places; guards that they decide are decided."""
    match body:
        case Select(guard, then, other):
            sides = _substituted(then, values), _substituted(other, values)
            return chosen([substitute(g, values) for g in guard], *sides)
        case Const():
            return rebuild_body(body, lambda b: b, lambda size: substitute(size, values))
    return rebuild_body(body, lambda b: _substituted(b, values), lambda size: substitute(size, values))


def _moves(body: Body) -> bool:
    """Whether it is put in its readers: an element of a source, or a constant.

    A choice of which element (a concatenation) stays, as a reader whose vectors cross it would choose for
    each
    element; but one by a remainder goes, as phases (`kernels.stages.split_phases`) take it out of the reader.
    """
    match body:
        case Const() | Read():
            return True
        case Select(guard, then, other):
            strided = any(isinstance(atom, Floor) for size in guard for atom in atoms(size))
            return strided and _moves(then) and _moves(other)
    return False


def in_digits(stage: Stage) -> Stage:
    """The stage with as many reduced axes as its reads take one apart: where they read r // 4 and r % 4, r is
    4 * q + p.
    """
    values: dict[Any, Any] = {}
    reduced: list[Axis] = []
    for r in stage.reduced:
        own = (atom for body in bodies(stage.body) for size in sizes(body) for atom in atoms(size))
        floors = {atom.bottom for atom in own if _divides(atom, r)}
        steps = sorted(n for n in floors if isinstance(n, int))
        if any(b % a for a, b in zip([1, *steps], [*steps, extent(r)], strict=True)):
            return stage
        parts = [axis(b // a, "r") for a, b in zip([1, *steps], [*steps, extent(r)], strict=True)]
        values[r] = sum((polynomial(a) * n for a, n in zip(parts, [1, *steps], strict=True)), polynomial(0))
        reduced += reversed(parts)
    if len(reduced) == len(stage.reduced):
        return stage
    return replace(stage, body=replace_axes(stage.body, values), reduced=tuple(reduced))


def _divides(atom: Atom, r: Axis) -> TypeGuard[Floor]:
    return isinstance(atom, Floor) and atom.top == polynomial(r)
