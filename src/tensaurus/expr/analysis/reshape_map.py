"""Write a reshape as a map of indices, and recognize expressions that are reshapes.

    reshape_map((6, 4), (2, 3, 4))  is  (i:2, j:3, k:4) -> (3*i + j, k)

`ops.layout` declares Reshape by `reshape_map`; finders and costs ask `is_reshape`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensaurus.expr.analysis.index_map import IndexMap
from tensaurus.expr.ir.scope import Read, Scope, axis
from tensaurus.expr.sizes.mixed_radix import ravel_index, unravel_index
from tensaurus.expr.sizes.size import Atom, Size, is_same_size, polynomial, product, substitute


def reshape_map(old: Sequence[Size], new: Sequence[Size]) -> IndexMap | None:
    """Return the map from places of the shape `new` to the places of `old` at the same row-major position.

    Only dimensions that are mixed appear in quotients.  None where factors of symbolic sizes do not line up.
    """
    axes = tuple(axis(size) for size in new)
    indices: list[Size] = [0] * len(old)
    kept_dims = [d for d in range(len(old)) if not is_same_size(old[d], 1)]
    open_dims = [d for d in range(len(new)) if not is_same_size(new[d], 1)]
    if any(is_same_size(n, 0) for n in new):
        return IndexMap(axes, tuple(indices)) if any(is_same_size(n, 0) for n in old) else None
    for old_run, new_run in _pair_runs([old[d] for d in kept_dims], [new[d] for d in open_dims]):
        sizes = [old[kept_dims[d]] for d in old_run]
        if not is_same_size(product(sizes), product(new[open_dims[d]] for d in new_run)):
            return None
        run_axes = [axes[open_dims[d]] for d in new_run]
        position = ravel_index(run_axes, [a.extent for a in run_axes])
        for d, index in zip(old_run, unravel_index(position, sizes), strict=True):
            indices[kept_dims[d]] = index
    return IndexMap(axes, tuple(indices))


def is_reshape(scope: Scope) -> bool:
    """Return whether the scope reshapes (or copies) one tensor: elements keep their row-major position.

        L[i:2, j:3](x[3*i + j])    of x[6]
    """
    read = scope.body
    if not isinstance(read, Read) or read.outside is not None:
        return False
    if not is_same_size(product(scope.shape), product(read.source.shape)):
        return False
    fixed_axes: dict[Atom, Any] = {a: 0 for a in scope.axes if is_same_size(a.extent, 1)}
    source_position = substitute(polynomial(ravel_index(read.indices, read.source.shape)), fixed_axes)
    return is_same_size(
        source_position, substitute(polynomial(ravel_index(scope.axes, scope.shape)), fixed_axes)
    )


def _pair_runs(old: Sequence[Size], new: Sequence[Size]) -> list[tuple[list[int], list[int]]]:
    """Pair runs of dimensions of equal product, as short as possible; the last products may differ.

    For (4, 6) and (2, 2, 6) these are ([0], [0, 1]) and ([1], [2]).
    """
    runs: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        old_run, new_run = ([i], [j]) if i < len(old) and j < len(new) else ([], [])
        old_product: Size = old[i] if old_run else 1
        new_product: Size = new[j] if new_run else 1
        i, j = i + len(old_run), j + len(new_run)
        while not is_same_size(old_product, new_product) or not old_run:
            if i < len(old) and (j >= len(new) or _should_extend_first(old_product, new_product)):
                old_product, i = old_product * old[i], i + 1
                old_run.append(i - 1)
            elif j < len(new):
                new_product, j = new_product * new[j], j + 1
                new_run.append(j - 1)
            else:
                break
        runs.append((old_run, new_run))
    return runs


def _should_extend_first(a: Size, b: Size) -> bool:
    """Return whether to extend the run of product a rather than that of b: a is less, or divides b."""
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int)
    return is_same_size(b % a, 0) or not is_same_size(a % b, 0)
