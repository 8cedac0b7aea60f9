"""Nodes whose dimensions are named by axes, and what elementwise functions and reductions make of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tensaurus.expr.ir.integer_types import is_integer
from tensaurus.expr.sizes.size import Axis
from tensaurus.graph.ir.node import Node, apply
from tensaurus.graph.lower.primitives import call_function, call_reduction, literal
from tensaurus.ops import Untypable
from tensaurus.ops.contraction import matmul
from tensaurus.ops.layout import reshape, tile, transpose
from tensaurus.ops.onnx_form import check_types
from tensaurus.ops.schema import NEWEST, NotInOpset
from tensaurus.system.errors import TensaurusError

__all__ = [
    "Labelled", "apply_function", "contract_factors", "length", "order_axes", "reduce_axes", "reshape_node",
    "transpose_node",
]  # fmt: skip

SUM_DTYPE = "int64"  # in which integers are added whose own type ONNX does not add


@dataclass(frozen=True)
class Labelled:
    """A node whose dimensions are these axes, in this order."""

    node: Node
    axes: tuple[Axis, ...]

    @property
    def dtype(self) -> str:
        return self.node.tensor.dtype

    def aligned(self, axes: Sequence[Axis]) -> Node:
        """Its dimensions in this order, of length 1 for axes that it lacks; leading ones are left out."""
        first = next((k for k, a in enumerate(axes) if a in self.axes), len(axes))
        node = transpose_node(self.node, [self.axes.index(a) for a in axes if a in self.axes])
        return reshape_node(node, [length(a) if a in self.axes else 1 for a in axes[first:]])

    def whole(self, axes: Sequence[Axis]) -> Node:
        """Its dimensions in this order, repeated along axes that it lacks."""
        shape = [length(a) if a in self.axes else 1 for a in axes]
        repeats = tuple(1 if a in self.axes else length(a) for a in axes)
        node = reshape_node(self.aligned(axes), shape)
        return apply(tile, [node], {"repeats": repeats}) if any(n > 1 for n in repeats) else node


def length(a: Axis) -> int:
    """The extent of an axis.  Raises TensaurusError where it is not known."""
    if not isinstance(a.extent, int):
        raise TensaurusError(f"an expression over the open size {a.extent} cannot be written in ONNX")
    return a.extent


def order_axes(item: Labelled, axes: Sequence[Axis]) -> Labelled:
    """With its dimensions in this order, those that it lacks left out."""
    kept = tuple(a for a in axes if a in item.axes)
    return Labelled(transpose_node(item.node, [item.axes.index(a) for a in kept]), kept)


def transpose_node(node: Node, perm: Sequence[int]) -> Node:
    """Dimension d of the output is dimension perm[d]."""
    return node if list(perm) == list(range(len(perm))) else apply(transpose, [node], {"perm": tuple(perm)})


def reshape_node(node: Node, shape: Sequence[int]) -> Node:
    """The same elements in another shape."""
    return node if node.tensor.shape == tuple(shape) else apply(reshape, [node], {"shape": tuple(shape)})


def union_axes(items: Sequence[Labelled]) -> tuple[Axis, ...]:
    """The axes of all, in the order of those that have most."""
    return tuple(dict.fromkeys(a for item in sorted(items, key=lambda x: -len(x.axes)) for a in item.axes))


def apply_function(fn: str, *items: Labelled) -> Labelled:
    """A scalar function of each element."""
    axes = union_axes(items)
    made = call_function(fn, *(item.aligned(axes) for item in items))
    return Labelled(reshape_node(made, tuple(map(length, axes))), axes)


def reduce_axes(monoid: str, item: Labelled, axes: Sequence[Axis]) -> Labelled:
    """Reduced over axes, none of them empty; those that it lacks repeat its value."""
    places = [k for k, a in enumerate(item.axes) if a in axes]
    result = item
    if places:
        left = tuple(a for a in item.axes if a not in axes)
        result = Labelled(_reduce_dimensions(monoid, item.node, places), left)
    repeats = prod(length(a) for a in axes if a not in item.axes)
    if repeats == 1 or monoid in ("max", "min"):
        return result
    if monoid == "sum":
        return apply_function("mul", result, Labelled(literal(repeats, item.dtype), ()))
    return _power(result, repeats)


def _reduce_dimensions(monoid: str, node: Node, places: Sequence[int]) -> Node:
    dtype = node.tensor.dtype
    try:
        return call_reduction(monoid, node, places)
    except Untypable:
        if not is_integer(dtype) or dtype == SUM_DTYPE:
            raise
        # sums and products wrap around: what is right modulo 2^64 is right modulo every smaller power of two
        wide = call_function(f"to_{SUM_DTYPE}", node)
        return call_function(f"to_{dtype}", call_reduction(monoid, wide, places))


def _power(item: Labelled, exponent: int) -> Labelled:
    """The product of so many copies."""
    if exponent == 1:
        return item
    half = _power(item, exponent // 2)
    square = apply_function("mul", half, half)
    return apply_function("mul", square, item) if exponent % 2 else square


def contract_factors(factors: Sequence[Labelled], gone: Sequence[Axis], order: Sequence[Axis]) -> Labelled:
    """The sum over `gone` of the product of the factors, two at a time; `order` is that of the result."""
    queue = sorted(factors, key=lambda f: len(f.axes))
    left = set(gone)
    result = queue.pop(0)
    while queue:
        mates = [k for k, f in enumerate(queue) if not set(f.axes).isdisjoint(result.axes)] or [0]
        other = queue.pop(mates[0])
        elsewhere = {a for f in queue for a in f.axes}
        now = [a for a in gone if a in left and a not in elsewhere and (a in result.axes or a in other.axes)]
        result = _contract_pair(result, other, now, order)
        left.difference_update(now)
    return reduce_axes("sum", result, [a for a in gone if a in left])


def _contract_pair(a: Labelled, b: Labelled, gone: Sequence[Axis], order: Sequence[Axis]) -> Labelled:
    """The sum over `gone` of a * b: a matrix product wherever that saves the product of all pairs."""
    a = reduce_axes("sum", a, [x for x in gone if x in a.axes and x not in b.axes])
    b = reduce_axes("sum", b, [x for x in gone if x in b.axes and x not in a.axes])
    inner = [x for x in gone if x in a.axes and x in b.axes]
    if not inner:
        return apply_function("mul", a, b)
    if not _has_matmul(a.node, b.node):
        return reduce_axes("sum", apply_function("mul", a, b), inner)
    known = [x for x in order if x in a.axes or x in b.axes]
    kept = [*known, *(x for x in union_axes([a, b]) if x not in known and x not in inner)]
    if kept and kept[-1] in a.axes and kept[-1] not in b.axes:
        a, b = b, a
    batch, rows, columns = _split_dimensions(a, b, kept)
    m, n, depth = (prod(map(length, xs)) for xs in (rows, columns, inner))
    left = _as_matrices(a, batch, [*rows, *inner], (m, depth))
    right = _as_matrices(b, batch, [*inner, *columns], (depth, n))
    axes = (*batch, *rows, *columns)
    product = apply(matmul, [left, right])
    return Labelled(reshape_node(product, tuple(map(length, axes))), axes)


def _split_dimensions(
    a: Labelled, b: Labelled, kept: Sequence[Axis]
) -> tuple[list[Axis], list[Axis], list[Axis]]:
    """Which of the dimensions that are kept, in order, are of the batch, rows of a and columns of b.

    What only one side has may be of the batch where that saves moving the result, if it comes first there.
    """
    shared = [x for x in kept if x in a.axes and x in b.axes]
    last = len(kept)
    while last and kept[last - 1] in b.axes and kept[last - 1] not in a.axes:
        last -= 1
    first = last
    while first and kept[first - 1] in a.axes and kept[first - 1] not in b.axes:
        first -= 1
    if (first < last or first == 0) and set(shared) <= set(kept[:first]):
        return list(kept[:first]), list(kept[first:last]), list(kept[last:])
    rows = [x for x in kept if x not in b.axes]
    return shared, rows, [x for x in kept if x not in a.axes]


def _as_matrices(
    item: Labelled, batch: Sequence[Axis], inside: Sequence[Axis], shape: tuple[int, int]
) -> Node:
    """The dimensions of a matrix behind those of the batch, of length 1 for those that it lacks."""
    own = [x for x in batch if x in item.axes]
    present = [x for x in (*own, *inside) if x in item.axes]
    node = transpose_node(item.node, [item.axes.index(x) for x in present])
    if not own:
        return reshape_node(node, shape)
    return reshape_node(node, [*(length(x) if x in item.axes else 1 for x in batch), *shape])


def _has_matmul(a: Node, b: Node) -> bool:
    """Whether ONNX multiplies matrices of these elements."""
    try:
        check_types(matmul, (a.tensor, b.tensor), NEWEST)
    except NotInOpset:
        return False
    return True
