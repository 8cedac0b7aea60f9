"""Dimensions that are read by digits of one number become the dimension of that number.

    L[k:4096](x[k // 64, k % 64])  =  L[k:4096](y[k]),  y = x with both dimensions of 64 as one of 4096

A reshape costs nothing, while a loop that reads by digits divides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from math import prod
from typing import TypeAlias

from tensaurus.expr.analysis.index_map import row_major_number
from tensaurus.expr.ir.scope import Read, Scope, Tensor
from tensaurus.expr.ir.walk import Rewriting, reads, tensors
from tensaurus.expr.sizes.size import Floor, Size, atoms
from tensaurus.finders.derive.rewrite_step import inside
from tensaurus.runtimes.price.operation_counts import number_of

__all__ = ["flattened"]

Groups: TypeAlias = Sequence[tuple[int, ...]]  # of neighbouring dimensions, all in order


def flattened(scope: Scope) -> tuple[Scope, Mapping[Tensor, Tensor]]:
    """The scope over tensors of fewer dimensions, and which they are of its own; sizes are numbers."""
    found: dict[Tensor, Groups] = {}
    for x in tensors(scope):
        own = [read for read in reads(scope, nested=True) if read.source == x]
        groups = _by_digits(own, len(x.shape))
        if len(groups) < len(x.shape) and all(_mends(read, groups) for read in own):
            found[x] = groups
    made = {
        x: Tensor(x.name, tuple(prod(_sizes(x.shape, g)) for g in groups), x.dtype)
        for x, groups in found.items()
    }
    return _Flattening(found, made).scope(scope) if found else scope, made


def _by_digits(own: Iterable[Read], rank: int) -> Groups:
    """Neighbours whose indices have quotients in some read are one group; other dimensions one each."""
    divided = [any(_has_quotient(read.indices[d]) for read in own) for d in range(rank)]
    groups: list[tuple[int, ...]] = []
    for together, neighbours in groupby(range(rank), key=divided.__getitem__):
        dimensions = tuple(neighbours)
        groups += [dimensions] if together else [(d,) for d in dimensions]
    return groups


def _mends(read: Read, groups: Groups) -> bool:
    """Whether no quotient is left, and each group's number is one of an element wherever it is read."""
    for group in groups:
        if len(group) == 1:
            continue
        shape = _sizes(read.source.shape, group)
        apart = [read.indices[d] for d in group]
        if _has_quotient(row_major_number(apart, shape)):
            return False
        if read.outside is not None and not all(map(inside, apart, shape)):
            return False
    return True


def _has_quotient(index: Size) -> bool:
    return any(isinstance(atom, Floor) for atom in atoms(index))


def _sizes(shape: Sequence[Size], group: Iterable[int]) -> list[int]:
    return [number_of(shape[d]) for d in group]


class _Flattening(Rewriting):
    def __init__(self, groups: Mapping[Tensor, Groups], made: Mapping[Tensor, Tensor]):
        super().__init__()
        self.groups, self.made = groups, made

    def read(self, read: Read) -> Read:
        found = super().read(read)
        x = found.source
        if not isinstance(x, Tensor) or x not in self.made:
            return found
        indices = [
            row_major_number([found.indices[d] for d in group], _sizes(x.shape, group))
            for group in self.groups[x]
        ]
        return Read(self.made[x], tuple(indices), found.outside)
