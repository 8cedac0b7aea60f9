"""Nodes whose dimensions are named by axes, and operations on them that match dimensions by name.

`expression_lowering` writes expressions by them (`expr/evaluate/labelled_arrays` has the same for arrays).

    apply_function("mul", a[i, k], b[k, j])                ->   a node over [i, k, j]
    contract_factors([a[i, k], b[k, j]], summed_axes=[k], ...)    ->   MatMul(a, b), over [i, j]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from tensaurus.expr.ir.integer_types import is_integer
from tensaurus.expr.sizes.size import Axis
from tensaurus.graph.ir.node import Node, apply
from tensaurus.graph.lower.primitives import call_function, call_reduction, literal
from tensaurus.ops import Untypable
from tensaurus.ops.contraction import matmul
from tensaurus.ops.layout import reshape, tile, transpose
from tensaurus.ops.schema import NEWEST, NotInOpset, check_input_types
from tensaurus.system.errors import TensaurusError

SUM_DTYPE = "int64"  # reductions of integer types that ONNX does not reduce are computed in this type


@dataclass(frozen=True)
class LabelledNode:
    """A node with the axis of each dimension."""

    node: Node
    axes: tuple[Axis, ...]

    @property
    def dtype(self) -> str:
        return self.node.tensor.dtype

    def aligned(self, axes: Sequence[Axis]) -> Node:
        """Return the node with dimensions in this order, ready to broadcast.

        An axis that the node lacks has length 1, or no dimension in front of its first axis.
        """
        first = next((k for k, a in enumerate(axes) if a in self.axes), len(axes))
        node = transpose_node(self.node, [self.axes.index(a) for a in axes if a in self.axes])
        return reshape_node(node, [length(a) if a in self.axes else 1 for a in axes[first:]])

    def expanded(self, axes: Sequence[Axis]) -> Node:
        """Return the node with dimensions in this order, its values repeated along axes that it lacks."""
        shape = [length(a) if a in self.axes else 1 for a in axes]
        repeats = tuple(1 if a in self.axes else length(a) for a in axes)
        node = reshape_node(self.aligned(axes), shape)
        return apply(tile, [node], {"repeats": repeats}) if any(n > 1 for n in repeats) else node


def length(a: Axis) -> int:
    """Return the extent of an axis.  Raises TensaurusError where it is no number."""
    if not isinstance(a.extent, int):
        raise TensaurusError(f"an expression over the open size {a.extent} cannot be written in ONNX")
    return a.extent


def order_axes(item: LabelledNode, axes: Sequence[Axis]) -> LabelledNode:
    """Return the node with its dimensions in the order of `axes`."""
    ordered = tuple(a for a in axes if a in item.axes)
    return LabelledNode(transpose_node(item.node, [item.axes.index(a) for a in ordered]), ordered)


def transpose_node(node: Node, perm: Sequence[int]) -> Node:
    """Return the node transposed: dimension d of the output is dimension perm[d] of the node."""
    return node if list(perm) == list(range(len(perm))) else apply(transpose, [node], {"perm": tuple(perm)})


def reshape_node(node: Node, shape: Sequence[int]) -> Node:
    """Return the same elements in another shape."""
    return node if node.tensor.shape == tuple(shape) else apply(reshape, [node], {"shape": tuple(shape)})


def _union_axes(items: Sequence[LabelledNode]) -> tuple[Axis, ...]:
    """Return the axes of all items; those of the item with most axes come first."""
    return tuple(dict.fromkeys(a for item in sorted(items, key=lambda x: -len(x.axes)) for a in item.axes))


def apply_function(fn: str, *items: LabelledNode) -> LabelledNode:
    """Return a scalar function of each element, over the axes of all arguments."""
    axes = _union_axes(items)
    result = call_function(fn, *(item.aligned(axes) for item in items))
    return LabelledNode(reshape_node(result, tuple(map(length, axes))), axes)


def reduce_axes(monoid: str, item: LabelledNode, axes: Sequence[Axis]) -> LabelledNode:
    """Return the item reduced over axes, none of them of length 0.

    Along an axis that the item lacks, its value repeats: the sum is multiplied by the length, and so on.
    """
    dims = [d for d, a in enumerate(item.axes) if a in axes]
    result = item
    if dims:
        remaining = tuple(a for a in item.axes if a not in axes)
        result = LabelledNode(_reduce_dimensions(monoid, item.node, dims), remaining)
    repeats = prod(length(a) for a in axes if a not in item.axes)
    if repeats == 1 or monoid in ("max", "min"):
        return result
    if monoid == "sum":
        return apply_function("mul", result, LabelledNode(literal(repeats, item.dtype), ()))
    return _power(result, repeats)


def _reduce_dimensions(monoid: str, node: Node, dims: Sequence[int]) -> Node:
    dtype = node.tensor.dtype
    try:
        return call_reduction(monoid, node, dims)
    except Untypable:
        if not is_integer(dtype) or dtype == SUM_DTYPE:
            raise
        # sums and products wrap around: a result that is right modulo 2^64 is right modulo 2^32, 2^16, 2^8
        wide = call_function(f"to_{SUM_DTYPE}", node)
        return call_function(f"to_{dtype}", call_reduction(monoid, wide, dims))


def _power(item: LabelledNode, exponent: int) -> LabelledNode:
    """Return the item to a positive integer power."""
    if exponent == 1:
        return item
    half = _power(item, exponent // 2)
    square = apply_function("mul", half, half)
    return apply_function("mul", square, item) if exponent % 2 else square


def contract_factors(
    factors: Sequence[LabelledNode], summed_axes: Sequence[Axis], order: Sequence[Axis]
) -> LabelledNode:
    """Return the sum over the axes `summed_axes` of the product of the factors, by products of two factors.

    Axes in `order` come in this order in the result, if that costs no transposition.
    """
    # begin with the factor of the fewest axes; each next one shares an axis with the product if possible
    queue = sorted(factors, key=lambda f: len(f.axes))
    remaining = set(summed_axes)
    result = queue.pop(0)
    while queue:
        sharing = [k for k, f in enumerate(queue) if not set(f.axes).isdisjoint(result.axes)] or [0]
        other = queue.pop(sharing[0])
        # axes that no later factor has can be summed now
        pair_axes = {*result.axes, *other.axes}.difference(*(f.axes for f in queue))
        summed = [a for a in summed_axes if a in remaining and a in pair_axes]
        result = _contract_pair(result, other, summed, order)
        remaining.difference_update(summed)
    return reduce_axes("sum", result, [a for a in summed_axes if a in remaining])


def _contract_pair(
    a: LabelledNode, b: LabelledNode, summed_axes: Sequence[Axis], order: Sequence[Axis]
) -> LabelledNode:
    """Return the sum over `summed_axes` of a * b, as a matrix product wherever both have a summed axis."""
    # an axis of one factor alone is summed before the product
    a = reduce_axes("sum", a, [x for x in summed_axes if x in a.axes and x not in b.axes])
    b = reduce_axes("sum", b, [x for x in summed_axes if x in b.axes and x not in a.axes])
    inner = [x for x in summed_axes if x in a.axes and x in b.axes]
    if not inner:
        return apply_function("mul", a, b)
    if not _has_matmul(a.node, b.node):
        return reduce_axes("sum", apply_function("mul", a, b), inner)
    # the axes of the result: those of `order` first
    known = [x for x in order if x in a.axes or x in b.axes]
    outer = [*known, *(x for x in _union_axes([a, b]) if x not in known and x not in inner)]
    if outer and outer[-1] in a.axes and outer[-1] not in b.axes:  # b has the last axis, that of the columns
        a, b = b, a
    batch, rows, columns = _matmul_axes(a, b, outer)
    # MatMul of [batch, m, depth] and [batch, depth, n]
    m, n, depth = (prod(map(length, xs)) for xs in (rows, columns, inner))
    left = _as_matrices(a, batch, [*rows, *inner], (m, depth))
    right = _as_matrices(b, batch, [*inner, *columns], (depth, n))
    axes = (*batch, *rows, *columns)
    product = apply(matmul, [left, right])
    return LabelledNode(reshape_node(product, tuple(map(length, axes))), axes)


class _MatmulAxes(NamedTuple):
    """The axes of a MatMul's result: of its batch, rows of the left factor, columns of the right one."""

    batch: list[Axis]
    rows: list[Axis]
    columns: list[Axis]


def _matmul_axes(a: LabelledNode, b: LabelledNode, outer: Sequence[Axis]) -> _MatmulAxes:
    """Return the axes of a result over `outer`: for a[n, i, k], b[n, k, j] and [n, i, j]: [n], [i], [j].

    A leading axis that only one side has may be of the batch where that saves transposing the result.
    """
    shared = [x for x in outer if x in a.axes and x in b.axes]
    # outer[last:] are the trailing axes of b alone, outer[first:last] those of a alone before them
    last = len(outer)
    while last and outer[last - 1] in b.axes and outer[last - 1] not in a.axes:
        last -= 1
    first = last
    while first and outer[first - 1] in a.axes and outer[first - 1] not in b.axes:
        first -= 1
    # `outer` may be batch, rows and columns as it stands, unless that leaves a batch of single rows
    if (first < last or first == 0) and set(shared) <= set(outer[:first]):
        return _MatmulAxes(list(outer[:first]), list(outer[first:last]), list(outer[last:]))
    rows, columns = ([x for x in outer if x not in other.axes] for other in (b, a))
    return _MatmulAxes(shared, rows, columns)


def _as_matrices(
    item: LabelledNode, batch: Sequence[Axis], inside: Sequence[Axis], shape: tuple[int, int]
) -> Node:
    """Return the item as matrices of this shape, behind the axes of the batch.

    An axis of the batch that the item lacks has length 1; an item without any is one matrix.
    """
    batch_axes = [x for x in batch if x in item.axes]
    present = [x for x in (*batch_axes, *inside) if x in item.axes]
    node = transpose_node(item.node, [item.axes.index(x) for x in present])
    if not batch_axes:
        return reshape_node(node, shape)
    return reshape_node(node, [*(length(x) if x in item.axes else 1 for x in batch), *shape])


def _has_matmul(a: Node, b: Node) -> bool:
    """Return whether ONNX's MatMul accepts the element types of these nodes."""
    try:
        check_input_types(matmul, (a.tensor, b.tensor), NEWEST)
    except NotInOpset:
        return False
    return True
