"""Stages of a composition that are none: what is computed where it is read.

    L[i](max(0, L[j](add(x[j], y[j]))[i]))   ->   L[i](max(0, add(x[i], y[i])))

A scope stays where several read it, where it reduces and its reader computes, and where putting it into its
reader would compute elements more than once: inside a reduction, or in a larger scope.  What only moves
elements is read through wherever it is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tensaurus.expr.ir.element_types import dtype_of, literal_dtype
from tensaurus.expr.ir.scope import Body, Read, Reduce, Scope, Table
from tensaurus.expr.ir.walk import Rewriting, bodies, reads, replace_axes, scopes
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.expr.sizes.size import Atom, Axis, Size, atoms, polynomial, product

__all__ = ["merged"]

ROUNDS = 8  # a stage may come to be read where it is needed only when those between are gone


def merged(scope: Scope) -> Scope:
    """The scope with no more stages than are computed apart, interned.  Its sizes are numbers."""
    scope = intern_scope(scope)
    for _ in range(ROUNDS):
        before, scope = scope, intern_scope(_Merging(scope).scope(scope))
        if scope is before:
            break
    return scope


class _Merging(Rewriting):
    """Bodies of scopes in the place of their reads."""

    def __init__(self, whole: Scope):
        super().__init__()
        found = (read.source for stage in scopes(whole) for read in reads(stage))
        self.read_by = Counter(id(source) for source in found if isinstance(source, Scope))
        self.reader = whole
        self.reducing = False

    def scope(self, scope: Scope) -> Scope:
        around = self.reader, self.reducing
        self.reader, self.reducing = scope, False
        made = super().scope(scope)
        self.reader, self.reducing = around
        return made

    def body(self, body: Body) -> Body:
        if isinstance(body, Read) and isinstance(body.source, Scope):
            made = self.read(body)
            assert isinstance(made.source, Scope)
            return self._through(made, made.source, self.read_by[id(body.source)] == 1)
        if isinstance(body, Reduce):
            around, self.reducing = self.reducing, True
            made_of = super().body(body)
            self.reducing = around
            return made_of
        return super().body(body)

    def _through(self, read: Read, stage: Scope, only: bool) -> Body:
        """The body of the stage at the place of the read; the read where it stays a stage."""
        body = stage.body
        at: dict[Atom, Size] = dict(zip(stage.axes, read.indices, strict=True))
        if literal_dtype(body) != dtype_of(stage):
            return read
        if isinstance(body, Read) and body.outside is None:
            if read.outside is None:
                return replace_axes(body, at)
            if _permutes(stage, body):
                moved = replace_axes(body, at)
                assert isinstance(moved, Read)
                return Read(moved.source, moved.indices, read.outside)
            return read
        larger = product(stage.shape) < product(self.reader.shape)
        # what moves a reduction's elements, and does no more, is the reduction elsewhere; of a combination by
        # a table that is one whose rows nobody writes out
        moves = isinstance(self.reader.body, Read) and isinstance(body, Reduce) and not _looks_up(body, at)
        reduces = not moves and any(isinstance(part, Reduce) for part in bodies(body, nested=False))
        if not only or self.reducing or larger or reduces or read.outside is not None:
            return read
        return replace_axes(body, at)


def _looks_up(body: Body, at: Mapping[Atom, Size]) -> bool:
    """Whether a table would be read by more than an axis there."""
    indices = [i for read in reads(body) if isinstance(read.source, Table) for i in read.indices]
    moved = [polynomial(at[a]) for index in indices for a in atoms(index) if a in at]
    return any(all(size != polynomial(a) for a in atoms(size) if isinstance(a, Axis)) for size in moved)


def _permutes(stage: Scope, body: Read) -> bool:
    """Whether it reads its source in another order of the axes, so that their edges are the same."""
    extents = {polynomial(a): a.extent for a in stage.axes}
    whole = len(body.indices) == len(extents) == len(set(body.indices))
    return whole and all(extents.get(i) == n for i, n in zip(body.indices, body.source.shape, strict=True))
