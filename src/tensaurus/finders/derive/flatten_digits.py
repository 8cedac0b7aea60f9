"""Merges dimensions that are read by the mixed-radix digits of one number into one dimension.

    L[k:4096](x[k // 64, k % 64])  =  L[k:4096](y[k]),  y = x with both dimensions of 64 as one of 4096

A reshape costs nothing, while a loop nest that reads by digits divides: it compiles slowly and runs slowly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from math import prod
from typing import TypeAlias

from tensaurus.expr.ir.scope import Read, Scope, Tensor
from tensaurus.expr.ir.walk import Rewriting, reads, tensors
from tensaurus.expr.sizes.mixed_radix import ravel_index
from tensaurus.expr.sizes.size import Floor, Size, atoms
from tensaurus.finders.derive.rewrite_step import is_in_range
from tensaurus.runtimes.price.operation_counts import number_of

__all__ = ["flatten_dimensions"]

Groups: TypeAlias = Sequence[tuple[int, ...]]
"""A partition of a tensor's dimensions into groups of neighbours, in order."""


def flatten_dimensions(scope: Scope) -> tuple[Scope, Mapping[Tensor, Tensor]]:
    """Return an equal scope over flattened tensors, and {tensor: flattened tensor}; the caller reshapes data.

    All sizes of the scope must be numbers.  A tensor stays unless every read of it loses its quotients.
    """
    groups: dict[Tensor, Groups] = {}
    for x in tensors(scope):
        reads_of_x = [read for read in reads(scope, nested=True) if read.source == x]
        groups_of_x = _group_dimensions(reads_of_x, len(x.shape))
        if len(groups_of_x) < len(x.shape) and all(_can_flatten(r, groups_of_x) for r in reads_of_x):
            groups[x] = groups_of_x
    flat = {
        x: Tensor(x.name, tuple(prod(_sizes(x.shape, group)) for group in groups_of_x), x.dtype)
        for x, groups_of_x in groups.items()
    }
    return _Flattening(groups, flat).scope(scope) if groups else scope, flat


def _group_dimensions(reads_of_x: Iterable[Read], rank: int) -> Groups:
    """Group neighbouring dimensions whose indices contain quotients; every other dimension is a group.

    k % 64 is k - 64 * (k // 64), so it contains a quotient, too.
    """
    has_quotients = [any(_has_quotient(read.indices[d]) for read in reads_of_x) for d in range(rank)]
    groups: list[tuple[int, ...]] = []
    for is_group, neighbours in groupby(range(rank), key=has_quotients.__getitem__):
        dimensions = tuple(neighbours)
        groups += [dimensions] if is_group else [(d,) for d in dimensions]
    return groups


def _can_flatten(read: Read, groups: Groups) -> bool:
    """Return whether flattening a read is worthwhile and right.

    Its flat indices must have no quotient.  Where it has a value outside, no index may leave its dimension:
    the flat index would be another element's.
    """
    for group in groups:
        if len(group) == 1:
            continue
        shape = _sizes(read.source.shape, group)
        indices = [read.indices[d] for d in group]
        if _has_quotient(ravel_index(indices, shape)):
            return False
        if read.outside is not None and not all(map(is_in_range, indices, shape)):
            return False
    return True


def _has_quotient(index: Size) -> bool:
    return any(isinstance(atom, Floor) for atom in atoms(index))


def _sizes(shape: Sequence[Size], group: Iterable[int]) -> list[int]:
    return [number_of(shape[d]) for d in group]


class _Flattening(Rewriting):
    def __init__(self, groups: Mapping[Tensor, Groups], flat: Mapping[Tensor, Tensor]):
        super().__init__()
        self.groups, self.flat = groups, flat

    def read(self, read: Read) -> Read:
        found = super().read(read)
        x = found.source
        if not isinstance(x, Tensor) or x not in self.flat:
            return found
        indices = [
            ravel_index([found.indices[d] for d in group], _sizes(x.shape, group))
            for group in self.groups[x]
        ]
        return Read(self.flat[x], tuple(indices), found.outside)
