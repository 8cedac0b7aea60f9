"""Splits an expression into stages: each stage computes one tensor from inputs and from earlier stages.

    L[i:4](sum[r:8](exp(x[i, r])) * 2)
 ->
    s0[i:4] = sum[r:8] exp(x[i, r])
    s1[i:4] = s0[i] * 2

A stage becomes a loop nest later. Scopes that only move elements are substituted into their readers, and axes
of extent 1 are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, TypeGuard

from tensaurus.expr.ir.element_types import dtype_of, literal_dtype
from tensaurus.expr.ir.expression_text import show
from tensaurus.expr.ir.integer_types import integer_literal
from tensaurus.expr.ir.scalar_functions import FUNCTIONS, NEUTRAL_ELEMENTS, cast_target
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Select, Tensor, axis
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
from tensaurus.expr.normal.flatten import select_undecided
from tensaurus.expr.normal.guards import range_guards
from tensaurus.expr.sizes.size import Atom, Axis, Floor, Size, atoms, polynomial, substitute

# The element type of a literal where no operand beside it has a type, by the answer of `literal_dtype`.
LITERAL_DTYPES = {"int": "int64", "real": "float32"}


@dataclass(frozen=True)
class Stage:
    """tensor[axes] = body, or the reduction of the body over the axes `reduced` by `monoid`.

    The body has neither scopes nor reductions. `linear` says that the body is a sum of products that is
    written out term by term; it is compiled to fused multiply-adds, as a reduction is.
    """

    tensor: Tensor
    axes: tuple[Axis, ...]
    body: Body
    reduced: tuple[Axis, ...] = ()
    monoid: str = ""
    linear: bool = False

    @property
    def points(self) -> int:
        """The number of times that the body is computed."""
        return prod(extent(a) for a in (*self.axes, *self.reduced))

    @cached_property
    def sources(self) -> tuple[Tensor, ...]:
        """The tensors that the body reads, each once, in the order of the first reads."""
        return tuple(dict.fromkeys(r.source for r in reads(self.body) if isinstance(r.source, Tensor)))


def define_stage(
    name: str,
    dtype: str,
    axes: tuple[Axis, ...],
    body: Body,
    reduced: tuple[Axis, ...] = (),
    monoid: str = "",
) -> Stage:
    """Returns the stage of a new tensor, whose dimensions are the axes."""
    return Stage(Tensor(name, tuple(a.extent for a in axes), dtype), axes, body, reduced, monoid)


def format_stages(stages: Sequence[Stage]) -> str:
    """Returns one line for each stage: the tensor and the expression of its loop nest."""
    lines = []
    for stage in stages:
        body = Reduce(stage.monoid, stage.reduced, stage.body) if stage.reduced else stage.body
        lines.append(f"{stage.tensor.name} = {show(Scope(stage.axes, body))}")
    return "\n".join(lines)


def extent(a: Axis) -> int:
    """Returns the extent of an axis, which must be a number."""
    assert isinstance(a.extent, int)
    return a.extent


def source_name(read: Read) -> str:
    """Returns the name of the tensor that a stage reads, "" for a literal table."""
    return read.source.name if isinstance(read.source, Tensor) else ""


def operand_dtypes(fn: str, args: Sequence[Body], dtype: str) -> tuple[str, ...]:
    """Returns the element types of a function's arguments; literals take the type of other operands.

    Where all arguments are literals, they take `dtype`, the type of the body that the call is part of, unless
    the function is a cast or a test.
    """
    kinds = [literal_dtype(a) for a in (args[1:] if fn == "where" else args)]
    shared_dtype = next((k for k in kinds if k not in LITERAL_DTYPES), None)
    if shared_dtype is None:
        target = cast_target(fn)
        if target is None and FUNCTIONS[fn].result != "bool":
            shared_dtype = dtype
        elif target is not None and target.startswith("float"):
            shared_dtype = target  # so that a literal is rounded once
        else:
            shared_dtype = LITERAL_DTYPES["real" if "real" in kinds else "int"]
    return ("bool", shared_dtype, shared_dtype) if fn == "where" else (shared_dtype,) * len(args)


def neutral_element(monoid: str, dtype: str) -> Const:
    """Returns the neutral element of a monoid in this element type: the reduction of no elements."""
    value = NEUTRAL_ELEMENTS[monoid]
    if dtype.startswith("float"):
        return Const(value)
    integer = int(integer_literal(value, dtype))
    return Const(bool(integer) if dtype == "bool" else integer)


def build_stages(scope: Scope) -> tuple[Stage, ...]:
    """Returns the stages of a scope whose sizes are numbers: sources before readers, the output last."""
    return tuple(map(split_reduced_axes, _StageBuilder().build(scope)))


class _StageBuilder:
    """Makes the stages of a scope and of the scopes that it reads, sources first."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        # by identity, as scopes are shared: the tensor of a scope's stage, or the scope to substitute
        self.lowered: dict[int, tuple[Scope, Tensor | Scope]] = {}

    def build(self, scope: Scope) -> tuple[Stage, ...]:
        for inner in innermost_first(scope, _IdentityKeys(self.lowered)):
            self.lowered[id(inner)] = inner, self.add_scope(inner, last=inner is scope)
        output = self.lowered[id(scope)][1]
        assert isinstance(output, Tensor)
        return tuple(self.stages)

    def add_scope(self, scope: Scope, last: bool) -> Tensor | Scope:
        """Returns the tensor of the scope's stage, or the rewritten scope where it only moves elements."""
        # by old axis: a fresh one, as one axis may stand in many scopes, or 0 where the extent is 1
        values: dict[Atom, Any] = {a: 0 if a.extent == 1 else polynomial(axis(a.extent)) for a in scope.axes}
        axes = tuple(b for a in scope.axes if isinstance(b := _only_atom(values[a]), Axis))
        dtype = dtype_of(scope)
        if any(a.extent == 0 for a in axes):  # no element is computed
            return self.add_stage(axes, neutral_element("max", dtype), dtype)
        body = replace_axes(scope.body, values)
        if isinstance(body, Reduce):
            return self.add_reduction(body, axes, dtype)
        body = self.rewrite_body(body, axes, dtype)
        if not last and _only_moves_elements(body):  # readers have an index for axes of extent 1, too
            return Scope(
                tuple(b if isinstance(b := _only_atom(values[a]), Axis) else a for a in scope.axes), body
            )
        return self.add_stage(axes, body, dtype)

    def add_stage(self, axes: tuple[Axis, ...], body: Body, dtype: str, **more: Any) -> Tensor:
        self.stages.append(define_stage(f"s{len(self.stages)}", dtype, axes, body, **more))
        return self.stages[-1].tensor

    def add_reduction(self, body: Reduce, axes: tuple[Axis, ...], dtype: str) -> Tensor:
        unit: dict[Atom, Any] = {a: 0 for a in body.axes if a.extent == 1}
        fresh = {a: axis(a.extent, "r") for a in body.axes if a.extent != 1}
        renamed = replace_axes(body.body, {**unit, **{a: polynomial(b) for a, b in fresh.items()}})
        reduced = tuple(fresh.values())
        inner = self.rewrite_body(renamed, (*axes, *reduced), dtype)
        # a reduced axis that the body does not use repeats the body: a sum is multiplied, a product keeps the
        # axis, and a max or min drops it
        used = free_axes(inner)
        repetitions = prod(extent(a) for a in reduced if a not in used)
        if any(extent(a) == 0 for a in reduced):
            inner, used = neutral_element(body.monoid, dtype), set()
        elif body.monoid == "prod":
            used |= set(reduced)
        elif body.monoid == "sum" and repetitions != 1:
            inner = Call("mul", (inner, Const(repetitions)))
        reduced = tuple(a for a in reduced if a in used)
        return self.add_stage(axes, inner, dtype, reduced=reduced, monoid=body.monoid if reduced else "")

    def rewrite_body(self, body: Body, axes: tuple[Axis, ...], dtype: str) -> Body:
        """Replaces reductions and computing scopes in the body by reads of their stages.

        Literals of the body take the element type `dtype`.
        """
        match body:
            case Reduce():  # becomes a stage over those axes that it uses
                used = free_axes(body)
                kept = tuple(a for a in axes if a in used)
                fresh_axes = tuple(axis(a.extent) for a in kept)
                fresh: dict[Atom, Any] = dict(zip(kept, map(polynomial, fresh_axes), strict=True))
                renamed = replace_axes(body, fresh)
                assert isinstance(renamed, Reduce)
                kind = literal_dtype(body)
                tensor = self.add_reduction(renamed, fresh_axes, dtype if kind in LITERAL_DTYPES else kind)
                return Read(tensor, tuple(map(polynomial, kept)))
            case Read():
                return self.rewrite_read(body, axes)
            case Call(fn, args):
                dtypes = operand_dtypes(fn, args, dtype)
                typed = zip(args, dtypes, strict=True)
                return Call(fn, tuple(self.rewrite_body(arg, axes, kind) for arg, kind in typed))
            case Select(guard, then, other):
                sides = [self.rewrite_body(part, axes, dtype) for part in (then, other)]
                return select_undecided([self.rewrite_size(g, axes) for g in guard], sides[0], sides[1])
        return rebuild_body(
            body,
            lambda inner: self.rewrite_body(inner, axes, dtype),
            lambda size: self.rewrite_size(size, axes),
        )

    def rewrite_size(self, size: Size, axes: tuple[Axis, ...]) -> Size:
        """Replaces the reads of the size's lookups (`Lookup`) by reads of inputs and stages."""

        def replace_read(read: Read) -> Read:
            value = self.rewrite_read(read, axes)
            if isinstance(value, Read):
                return value
            return Read(self.add_stage(axes, value, "int64"), tuple(map(polynomial, axes)))

        return map_reads(size, replace_read)

    def rewrite_read(self, read: Read, axes: tuple[Axis, ...]) -> Body:
        """Returns the read of the source's stage without axes of extent 1, or the substituted element."""
        indices = tuple(self.rewrite_size(i, axes) for i in read.indices)
        source = read.source
        if isinstance(source, Scope):
            inner = self.lowered[id(source)][1]
            if isinstance(inner, Scope):  # which only moves elements: the element that it moves here
                places: dict[Atom, Any] = dict(zip(inner.axes, indices, strict=True))
                value = _substitute_axes(inner.body, places)
                if literal_dtype(value) in LITERAL_DTYPES:  # keep the scope's type, whatever stands beside it
                    value = Call(f"to_{dtype_of(source)}", (value,))
            else:
                value = Read(inner, tuple(i for i, n in zip(indices, source.shape, strict=True) if n != 1))
        elif isinstance(source, Tensor):
            kept = [(i, n) for i, n in zip(indices, source.shape, strict=True) if n != 1]
            squeezed = Tensor(source.name, tuple(n for _, n in kept), source.dtype)
            value = Read(squeezed, tuple(i for i, _ in kept))
        else:
            value = Read(source, indices)
        if read.outside is None:
            return value
        guards = range_guards(source.shape, indices)
        if isinstance(value, Read) and value.outside is None:
            # guards that say that an index is in range become an edge of the read (`Read.outside`)
            edges = range_guards(value.source.shape, value.indices)
            if not set(edges).isdisjoint(guards):
                value = replace(value, outside=read.outside)
                guards = tuple(g for g in guards if g not in edges)
        return select_undecided(list(guards), value, read.outside)


def _only_atom(size: Size) -> Atom | None:
    """Returns the one atom of a size that is an axis alone, or None for a constant."""
    return next(iter(atoms(size)), None)


class _IdentityKeys:
    """Contains the scopes whose identities are keys of a mapping: those that `innermost_first` skips."""

    def __init__(self, ids: Mapping[int, Any]):
        self.lowered = ids

    def __contains__(self, scope: object) -> bool:
        return id(scope) in self.lowered


def _substitute_axes(body: Body, values: Mapping[Atom, Any]) -> Body:
    """Substitutes sizes for axes in the body, and drops guards that are decided by the substitution."""
    match body:
        case Select(guard, then, other):
            sides = _substitute_axes(then, values), _substitute_axes(other, values)
            return select_undecided([substitute(g, values) for g in guard], *sides)
        case Const():
            return rebuild_body(body, lambda b: b, lambda size: substitute(size, values))
    return rebuild_body(body, lambda b: _substitute_axes(b, values), lambda size: substitute(size, values))


def _only_moves_elements(body: Body) -> bool:
    """Whether the body is an element of a source or a constant, and may be substituted into readers.

    A choice between elements (a concatenation) stays a stage, as readers whose vectors cross the seam would
    choose for each element. A choice by a remainder is substituted: `kernels.stages.split_phases` removes it
    from readers.
    """
    match body:
        case Const() | Read():
            return True
        case Select(guard, then, other):
            strided = any(isinstance(atom, Floor) for size in guard for atom in atoms(size))
            return strided and _only_moves_elements(then) and _only_moves_elements(other)
    return False


def split_reduced_axes(stage: Stage) -> Stage:
    """Splits reduced axes by the digits that reads take: for r // 4 and r % 4, r becomes 4 * q + p."""
    values: dict[Any, Any] = {}
    reduced: list[Axis] = []
    for r in stage.reduced:
        size_atoms = (atom for body in bodies(stage.body) for size in sizes(body) for atom in atoms(size))
        divisors = {atom.bottom for atom in size_atoms if _is_quotient_of(atom, r)}
        steps = sorted(n for n in divisors if isinstance(n, int))  # [4] for r // 4; digits of r:8 are 2 and 4
        if any(b % a for a, b in zip([1, *steps], [*steps, extent(r)], strict=True)):
            return stage  # quotients by divisors that do not divide each other are no digits of r
        digits = [axis(b // a, "r") for a, b in zip([1, *steps], [*steps, extent(r)], strict=True)]
        values[r] = sum((polynomial(a) * n for a, n in zip(digits, [1, *steps], strict=True)), polynomial(0))
        reduced += reversed(digits)
    if len(reduced) == len(stage.reduced):
        return stage
    return replace(stage, body=replace_axes(stage.body, values), reduced=tuple(reduced))


def _is_quotient_of(atom: Atom, r: Axis) -> TypeGuard[Floor]:
    return isinstance(atom, Floor) and atom.top == polynomial(r)
