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

    read_counts      how many reads each scope has, by its identity
    reader           the scope whose body is rewritten at present
    is_in_reduction  whether the part that is rewritten is inside a reduction of the reader
    """

    def __init__(self, outermost: Scope):
        super().__init__()
        sources = (read.source for stage in scopes(outermost) for read in reads(stage))
        self.read_counts = Counter(id(source) for source in sources if isinstance(source, Scope))
        self.reader = outermost
        self.is_in_reduction = False

    def scope(self, scope: Scope) -> Scope:
        outer = self.reader, self.is_in_reduction
        self.reader, self.is_in_reduction = scope, False
        inlined = super().scope(scope)
        self.reader, self.is_in_reduction = outer
        return inlined

    def body(self, body: Body) -> Body:
        if isinstance(body, Read) and isinstance(body.source, Scope):
            rewritten = self.read(body)
            stage = rewritten.source
            assert isinstance(stage, Scope)
            # literals alone take their type from their neighbours, so such a stage stays
            if literal_dtype(stage.body) != dtype_of(stage):
                return rewritten
            if isinstance(stage.body, Read) and stage.body.outside is None:
                return _inline_move(rewritten, stage, stage.body)
            is_only_read = self.read_counts[id(body.source)] == 1
            if not is_only_read or self.is_in_reduction or not self._may_compute(rewritten, stage):
                return rewritten
            return replace_axes(stage.body, _axis_values(stage, rewritten))
        if isinstance(body, Reduce):
            outer, self.is_in_reduction = self.is_in_reduction, True
            reduction = super().body(body)
            self.is_in_reduction = outer
            return reduction
        return super().body(body)

    def _may_compute(self, read: Read, stage: Scope) -> bool:
        """Whether the reader may compute the stage's elements: each once, and no reduction within another."""
        if read.outside is not None or product(stage.shape) < product(self.reader.shape):
            return False
        if not any(isinstance(part, Reduce) for part in bodies(stage.body, nested=False)):
            return True
        # a reader that only moves the elements of a reduction can be the reduction itself, but not if a
        # combination by a table would be indexed by more than axes then: its rows could not be written out
        is_move = isinstance(self.reader.body, Read) and isinstance(stage.body, Reduce)
        return is_move and not _indexes_table(stage.body, _axis_values(stage, read))


def _axis_values(stage: Scope, read: Read) -> dict[Atom, Size]:
    return dict(zip(stage.axes, read.indices, strict=True))


def _inline_move(read: Read, stage: Scope, body: Read) -> Body:
    """Returns the read of a stage that only moves elements as a read of the stage's source."""
    moved = replace_axes(body, _axis_values(stage, read))
    if read.outside is None:
        return moved
    # a place outside the stage must be outside its source, too
    assert isinstance(moved, Read)
    return Read(moved.source, moved.indices, read.outside) if _is_permutation(stage, body) else read


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
