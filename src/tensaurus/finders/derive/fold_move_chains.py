"""Folds the moves around a product into the product's expression, by tracing elements through them.

Slices, concatenations, masks and skewed reshapes that assemble products of chunks to a band become

    L[b, i, j](sum[c](q[b, i, c] * k[b, i + j - w, c]) if 0 <= i + j - w < n else -inf)

Moves are operators that only move elements (`move_finder`).  Rewrite rules would have to undo each exporter's
way to write a band.  Here every element's number is traced through the moves, and an index expression is
fitted to the numbers (EINNET, section 4.2: expression fusion; 4.1: traversal merging, boundaries).  Of large
tensors a sample is traced; the replay of the equation checks that the expression is right everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tensaurus.expr.analysis.fit_index_map import (
    Booleans,
    IndexFunction,
    Integers,
    evaluate_at,
    fit_index,
    places_between,
    sample_places,
)
from tensaurus.expr.ir.scope import Const, Read, Reduce, Scope, Select, Source, Tensor, axis, within
from tensaurus.expr.ir.walk import replace_axes
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.expr.sizes.size import Atom, Axis, Size, is_nonnegative, polynomial, substitute
from tensaurus.finders.derive.move_finder import product_scope
from tensaurus.finders.derive.rewrite_step import axes_in, is_in_range, product_of
from tensaurus.finders.derive.trace_elements import trace_elements
from tensaurus.graph.ir.node import Node, apply
from tensaurus.graph.ir.piece import Piece
from tensaurus.ops import Op, Untypable
from tensaurus.ops.eop import eop
from tensaurus.runtimes.price.operation_counts import number_of

__all__ = ["fold_moves"]

MAX_REFINEMENTS = 8  # rounds that add places near the ends of known ranges to the sample


def fold_moves(piece: Piece, product: Node) -> Node | None:
    """Return the piece's root as one eOperator of its leaves, None where no expression fits the moves."""
    scope = product_scope(product)
    if scope is None:
        return None
    tensors = [Tensor(f"x{k}", leaf.tensor.shape) for k, leaf in enumerate(piece.leaves)]
    args = [arg for arg in product.args if arg is not None]
    assert isinstance(product.op, Op)
    try:
        operands = [_fold_operand(*each) for each in zip(piece.leaves, args, tensors, strict=True)]
        reads = _operand_reads(scope, operands, product.op.tensors(product.arg_types()))
        if reads is None:
            return None
        folded = _fold_output(scope, reads, piece.root, product)
        node = None if folded is None else apply(eop, piece.leaves, {"scope": intern_scope(folded)})
    except (Untypable, ValueError):
        return None
    return node if node is not None and node.types == piece.root.types else None


def _fold_operand(leaf: Node, arg: Node, x: Tensor) -> Scope | None:
    """Return an operand as a read of its leaf x, with zeros beyond the leaf's edges, None for other moves."""
    axes = tuple(axis(n) for n in arg.tensor.shape)
    if leaf is arg:
        return Scope(axes, Read(x, tuple(map(polynomial, axes))))
    shape = tuple(map(number_of, x.shape))

    def leaf_index(d: int) -> IndexFunction:
        def index_at(places: Sequence[Integers]) -> tuple[Integers, Booleans]:
            traced = trace_elements(arg, leaf, places)
            numbers = np.maximum(traced.numbers, 0)
            return np.unravel_index(numbers, shape)[d].astype(np.int64), traced.is_element

        return index_at

    # fit the index in each dimension of the leaf; it must be in range exactly where elements of the leaf are
    forms = [fit_index(leaf_index(d), axes) for d in range(len(shape))]
    indices = tuple(form for form in forms if form is not None)
    if len(indices) < len(forms):
        return None
    places = sample_places([number_of(a.extent) for a in axes], 1)
    traced = trace_elements(arg, leaf, places)
    in_range = np.ones(traced.is_element.shape, bool)
    for index, extent in zip(indices, shape, strict=True):
        values = evaluate_at(index, axes, places)
        in_range &= (values >= 0) & (values < extent)
    other_constants = bool(traced.constants[~traced.is_element].any())
    if other_constants or not bool((in_range == traced.is_element).all()):
        return None
    stays_inside = in_range.all() and all(map(is_in_range, indices, shape))
    return Scope(axes, Read(x, indices, None if stays_inside else Const(0)))


def _operand_reads(
    scope: Scope, operands: Sequence[Scope | None], tensors: Sequence[Source | None]
) -> list[Read] | None:
    """Return the product's factors as reads of the leaves, over its own axes; None where an operand is None.

    `operands` are the expressions of the product's `tensors`.
    """
    found = {x: operand for x, operand in zip(tensors, operands, strict=True) if operand is not None}
    if len(found) < len(operands):
        return None
    assert isinstance(scope.body, Reduce)
    reads = list[Read]()
    for factor in product_of(scope.body.body).factors:
        assert isinstance(factor, Read)
        operand = found[factor.source]
        at: dict[Atom, Any] = dict(zip(operand.axes, factor.indices, strict=True))
        read = replace_axes(operand.body, at)
        assert isinstance(read, Read)
        reads.append(read)
    return reads


_Indices: TypeAlias = Sequence[tuple[Size, int]]  # each with the extent of the dimension that is read


class _RootSample(NamedTuple):
    """Places of the root, whether an element of the product is at each, and the constants elsewhere."""

    places: list[Integers]
    is_product: Booleans
    constants: Any


def _fold_output(scope: Scope, reads: Sequence[Read], root: Node, product: Node) -> Scope | None:
    """Return the sum of products of the reads at the places from which the root's elements are moved.

    Elsewhere the root must have one constant.  Where that is 0 and the operands are read beyond their edges
    exactly there, the sum is 0 by itself; else guards on the indices select the constant.
    """
    body = scope.body
    assert isinstance(body, Reduce)
    if root is product:
        return Scope(scope.axes, Reduce("sum", body.axes, reads[0] * reads[1]))
    # the same reads over the root's axes
    axes = tuple(axis(n) for n in root.tensor.shape)
    moved = list[Read]()
    for read in reads:
        forms = [_compose_index(i, scope.axes, body.axes, root, product, axes) for i in read.indices]
        if any(form is None for form in forms):
            return None
        moved.append(Read(read.source, tuple(form for form in forms if form is not None), Const(0)))
    # indices without summation iterators, and extents: they say which elements of the root are the product's
    output_indices = [
        (index, number_of(extent))
        for read in moved
        for index, extent in zip(read.indices, read.source.shape, strict=True)
        if axes_in(index).isdisjoint(body.axes)
    ]
    sample = _sample_root(root, product, [index for index, _ in output_indices], axes)
    other_constants = np.unique(sample.constants[~sample.is_product])
    if len(other_constants) > 1:
        return None
    total = Reduce("sum", body.axes, moved[0] * moved[1])
    if not other_constants.size:
        return Scope(axes, total)
    constant = float(other_constants[0])
    if constant == 0 and _is_zero_elsewhere(output_indices, axes, sample):
        return Scope(axes, total)
    guards = _product_guards(output_indices, axes, sample)
    return None if guards is None else Scope(axes, Select(guards, total, Const(constant)))


def _sample_root(root: Node, product: Node, forms: Sequence[Size], axes: Sequence[Axis]) -> _RootSample:
    """Return all places of a small root, else a sample with some near the ends of the ranges of `forms`."""
    places = sample_places([number_of(a.extent) for a in axes], 1)
    traced = trace_elements(root, product, places)
    is_product, constants = traced.is_element, traced.constants
    for _ in range(MAX_REFINEMENTS):
        more = places_between(forms, axes, places, is_product)
        if more is None:
            break
        traced = trace_elements(root, product, more)
        places = [np.concatenate(pair) for pair in zip(places, more, strict=True)]
        is_product = np.concatenate([is_product, traced.is_element])
        constants = np.concatenate([constants, traced.constants])
    return _RootSample(places, is_product, constants)


def _is_zero_elsewhere(indices: _Indices, axes: Sequence[Axis], sample: _RootSample) -> bool:
    """Return whether an operand is read beyond an edge wherever no element of the product is."""
    is_outside = np.zeros(sample.is_product.shape, bool)
    for index, extent in indices:
        values = evaluate_at(index, axes, sample.places)
        is_outside |= (values < 0) | (values >= extent)
    return bool(is_outside[~sample.is_product].all())


def _product_guards(indices: _Indices, axes: Sequence[Axis], sample: _RootSample) -> tuple[Size, ...] | None:
    """Return guards on the ranges of the indices that hold exactly at the product's elements, or None."""
    guards, holds = list[Size](), np.ones(sample.is_product.shape, bool)
    for index, extent in indices:
        values = evaluate_at(index, axes, sample.places)
        low, high = _product_range(values, sample.is_product, extent)
        fails = (values < low) | (values > high)
        if fails.any():
            holds &= ~fails
            guards += (guard for guard in within(index, low, high + 1) if not is_nonnegative(guard))
    return tuple(dict.fromkeys(guards)) if bool((holds == sample.is_product).all()) else None


def _product_range(values: Integers, is_product: Booleans, extent: int) -> tuple[int, int]:
    """Return (first, last) of the values that an index has where elements of the product are.

    The range is extended to 0 and to the extent where no place of the sample contradicts.
    """
    low, high = int(values[is_product].min()), int(values[is_product].max())
    others = values[~is_product]
    below, above = others[others < low], others[others > high]
    first = 0 if low >= 0 and not (below >= 0).any() else low
    last = extent - 1 if extent > high and not (above < extent).any() else high
    return first, last


def _compose_index(
    index: Size, product_axes: Sequence[Axis], reduced: Sequence[Axis], root: Node, product: Node,
    axes: Sequence[Axis]
) -> Size | None:
    """Return an operand's index over the root's axes in place of the product's.

    None where no expression fits, or where the index mixes the product's axes with reduced axes.
    """
    shape = [number_of(n) for n in product.tensor.shape]
    zero: dict[Atom, Any] = dict.fromkeys(reduced, 0)
    outer = substitute(index, zero)
    rest = index - outer
    if not axes_in(rest) <= set(reduced):
        return None

    def index_at(places: Sequence[Integers]) -> tuple[Integers, Booleans]:
        traced = trace_elements(root, product, places)
        at = [np.asarray(i, np.int64) for i in np.unravel_index(np.maximum(traced.numbers, 0), shape)]
        return evaluate_at(outer, product_axes, at), traced.is_element

    form = fit_index(index_at, axes)
    return None if form is None else form + rest
