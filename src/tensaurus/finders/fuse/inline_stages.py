"""Inlines the scopes of a composed expression in their readers, where no element is computed twice.

    L[i](max(0, L[j](add(x[j], y[j]))[i]))   ->   L[i](max(0, add(x[i], y[i])))

A scope stays where several scopes read it, where it reduces and its reader computes, and where its reader
would compute elements more than once: because it reads them inside a reduction, or has more elements. A scope
that only moves elements is inlined everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tensaurus.expr.ir.element_types import dtype_of, literal_dtype
from tensaurus.expr.ir.scope import Body, Read, Reduce, Scope, Table
from tensaurus.expr.ir.walk import Rewriting, bodies, reads, replace_axes, scopes
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.expr.sizes.size import Atom, Axis, Size, atoms, polynomial, product

__all__ = ["inline_stages"]

MAX_ROUNDS = 8  # passes over an expression: inlining a scope may make it possible to inline another


def inline_stages(scope: Scope) -> Scope:
    """Returns the interned scope with inner scopes inlined; all sizes must be numbers."""
    scope = intern_scope(scope)
    for _ in range(MAX_ROUNDS):
        before, scope = scope, intern_scope(_StageInliner(scope).scope(scope))
        if scope is before:
            break
    return scope


class _StageInliner(Rewriting):
    """Replaces reads of scopes by the bodies of these scopes.

    read_by   how many reads each scope has, by its identity
    reader    the scope whose body is rewritten at present
    reducing  whether the part that is rewritten is inside a reduction of the reader
    """

    def __init__(self, outermost: Scope):
        super().__init__()
        sources = (read.source for stage in scopes(outermost) for read in reads(stage))
        self.read_by = Counter(id(source) for source in sources if isinstance(source, Scope))
        self.reader = outermost
        self.reducing = False

    def scope(self, scope: Scope) -> Scope:
        outer = self.reader, self.reducing
        self.reader, self.reducing = scope, False
        inlined = super().scope(scope)
        self.reader, self.reducing = outer
        return inlined

    def body(self, body: Body) -> Body:
        if isinstance(body, Read) and isinstance(body.source, Scope):
            rewritten = self.read(body)
            assert isinstance(rewritten.source, Scope)
            return self._inlined_read(rewritten, rewritten.source, self.read_by[id(body.source)] == 1)
        if isinstance(body, Reduce):
            outer, self.reducing = self.reducing, True
            reduction = super().body(body)
            self.reducing = outer
            return reduction
        return super().body(body)

    def _inlined_read(self, read: Read, stage: Scope, is_only_read: bool) -> Body:
        """Returns the stage's body at the indices of the read, or the read if the stage must stay."""
        # a body of literals alone takes its type from its neighbours, so it stays
        body = stage.body
        values: dict[Atom, Size] = dict(zip(stage.axes, read.indices, strict=True))
        if literal_dtype(body) != dtype_of(stage):
            return read
        # a stage that only moves elements: a value outside the stage must be one outside its source, too
        if isinstance(body, Read) and body.outside is None:
            if read.outside is None:
                return replace_axes(body, values)
            if _is_permutation(stage, body):
                moved = replace_axes(body, values)
                assert isinstance(moved, Read)
                return Read(moved.source, moved.indices, read.outside)
            return read
        # a stage that computes stays where elements would be computed twice, or a reduction be nested
        larger = product(stage.shape) < product(self.reader.shape)
        # a reader that only moves the elements of a reduction can be the reduction itself, but not if a
        # combination by a table would be indexed by more than axes then: its rows could not be written out
        moves = (
            isinstance(self.reader.body, Read)
            and isinstance(body, Reduce)
            and not _indexes_table(body, values)
        )
        reduces = not moves and any(isinstance(part, Reduce) for part in bodies(body, nested=False))
        if not is_only_read or self.reducing or larger or reduces or read.outside is not None:
            return read
        return replace_axes(body, values)


def _indexes_table(body: Body, values: Mapping[Atom, Size]) -> bool:
    """Whether a table in the body would be indexed by another size than a single axis."""
    indices = [i for read in reads(body) if isinstance(read.source, Table) for i in read.indices]
    moved = [polynomial(values[a]) for index in indices for a in atoms(index) if a in values]
    return any(all(size != polynomial(a) for a in atoms(size) if isinstance(a, Axis)) for size in moved)


def _is_permutation(stage: Scope, body: Read) -> bool:
    """Whether the stage is its source with permuted axes, so that both have the same edges."""
    extents = {polynomial(a): a.extent for a in stage.axes}
    is_full = len(body.indices) == len(extents) == len(set(body.indices))
    return is_full and all(extents.get(i) == n for i, n in zip(body.indices, body.source.shape, strict=True))
