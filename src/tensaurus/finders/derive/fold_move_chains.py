"""Folds the moves around a product into the product's expression, by tracing elements through them.

Slices, concatenations, masks and skewed reshapes that assemble products of chunks to a band become

    L[b, i, j](sum[c](q[b, i, c] * k[b, i + j - w, c]) if 0 <= i + j - w < n else -inf)

Moves are operators that only move elements.  Rewrite rules would have to undo each exporter's way to write a
band.  Here every element's number is traced through the moves, and an index expression is fitted to the
numbers (EINNET, section 4.2: expression fusion; 4.1: traversal merging, boundaries).  Of large tensors a
sample is traced; the replay of the equation checks that the expression is right everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from tensaurus.expr.analysis.work_counts import called_functions
from tensaurus.expr.ir.scope import Body, Const, Read, Reduce, Scope, Select, Tensor, axis, within
from tensaurus.expr.ir.walk import replace_axes
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.expr.sizes.size import Atom, Axis, Size, is_nonnegative, polynomial, substitute
from tensaurus.finders.derive.fit_index_map import (
    IndexFunction,
    evaluate_at,
    fit_index,
    places_between,
    sample_places,
)
from tensaurus.finders.derive.rewrite_step import axes_in, is_in_range, product_of
from tensaurus.finders.derive.trace_elements import Booleans, Integers, trace_elements
from tensaurus.graph.ir.node import ITEM, Node, apply
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.ops import Op, TensorType, Untypable
from tensaurus.ops.declare import Attributes
from tensaurus.ops.eop import eop
from tensaurus.runtimes.price.operation_counts import number_of, scopes_of

__all__ = ["MoveFinder", "fold_moves"]

MAX_REFINEMENTS = 8  # rounds that add places near the ends of known ranges to the sample
MOVE_FUNCTIONS = {"where"}  # functions that an expression that only moves elements may call


class MoveFinder:
    """Finds the moves before and behind the products of one program; nodes are numbered arguments first."""

    def __init__(self, program: Program):
        self.roots = frozenset(program.roots)
        self.nodes = topological_order(program.roots)
        self.position = {node: number for number, node in enumerate(self.nodes)}
        self.readers: dict[Node, list[Node]] = {}
        for node in self.nodes:
            for arg in node.args:
                if arg is not None:
                    self.readers.setdefault(arg, []).append(node)

    def piece_around(self, product: Node) -> Piece | None:
        """Return the product of two tensors with the moves around it, None where there are none."""
        if _product_scope(product) is None or (root := self._last_move(product)) is None:
            return None
        # no piece where nothing moves, or where both operands come from one tensor
        operands = tuple(_origin(arg) for arg in product.args if arg is not None)
        if root is product and operands == product.args or len(set(operands)) < 2:
            return None
        return Piece(root, operands)

    def _last_move(self, product: Node) -> Node | None:
        """Return the last node whose elements are all the product's or constants, None for several."""
        # in program order, so that all inputs of a node are decided before the node
        reached = {product}
        waiting = [self.position[node] for node in self._readers_of(product)]
        heapify(waiting)
        while waiting:
            node = self.nodes[heappop(waiting)]
            if node in reached or not node.args or node.static or not _only_moves(node):
                continue
            inputs = _variable_inputs(node)
            if inputs and reached.issuperset(inputs):
                reached.add(node)
                for reader in self._readers_of(node):
                    heappush(waiting, self.position[reader])
        # ends: nodes of the moves that something else reads, or that are outputs
        ends = [
            node
            for node in reached
            if node in self.roots or any(reader not in reached for reader in self._readers_of(node))
        ]
        return ends[0] if len(ends) == 1 else None

    def _readers_of(self, node: Node) -> list[Node]:
        """Return the readers; of a reader with several outputs its output nodes."""
        found: list[Node] = []
        for reader in self.readers.get(node, ()):
            items = [item for item in self.readers.get(reader, ()) if item.op is ITEM]
            found += items if len(reader.types) > 1 else [reader]
        return found


def fold_moves(piece: Piece, product: Node) -> Node | None:
    """Return the piece's root as one eOperator of its leaves, None where no expression fits the moves."""
    scope = _product_scope(product)
    operands = piece.leaves
    if scope is None:
        return None
    tensors = [Tensor(f"x{k}", leaf.tensor.shape) for k, leaf in enumerate(operands)]
    args = [arg for arg in product.args if arg is not None]
    assert isinstance(product.op, Op)
    try:
        moved = [_fold_operand(leaf, arg, x) for leaf, arg, x in zip(operands, args, tensors, strict=True)]
        if any(operand is None for operand in moved):
            return None
        sources = product.op.tensors(product.arg_types())
        folded = _fold_output(scope, dict(zip(sources, moved, strict=True)), piece.root, product)
        node = None if folded is None else apply(eop, operands, {"scope": intern_scope(folded)})
    except (Untypable, ValueError):
        return None
    return node if node is not None and node.types == piece.root.types else None


def _product_scope(node: Node) -> Scope | None:
    """Return the expression of a sum of products of two float32 tensors of known sizes, None for others."""
    kinds = [kind for part in (node, *filter(None, node.args)) for kind in part.types]
    if not all(isinstance(k, TensorType) and k.static and k.dtype == "float32" for k in kinds):
        return None
    scopes = scopes_of(node)
    if len(scopes) != 1 or len(node.args) != 2 or not isinstance(scopes[0].body, Reduce):
        return None
    body = scopes[0].body
    guards, factors = product_of(body.body)
    plain = all(isinstance(f, Read) and isinstance(f.source, Tensor) and f.outside is None for f in factors)
    return scopes[0] if body.monoid == "sum" and len(factors) == 2 and plain and not guards else None


def _only_moves(node: Node) -> bool:
    """Return whether every element of the node is an element of an argument, or a constant."""
    owner = node.args[0] if node.op is ITEM else node
    if owner is None or len(owner.types) != 1 and node is owner:
        return False
    kinds = [kind for part in (owner, *filter(None, owner.args)) for kind in part.types]
    if not isinstance(owner.op, Op) or not all(isinstance(k, TensorType) and k.static for k in kinds):
        return False
    return _operator_only_moves(owner.op, owner.arg_types(), owner.attrs)


@lru_cache(10_000)
def _operator_only_moves(op: Op, kinds: tuple[TensorType | None, ...], attrs: Attributes) -> bool:
    scopes = op.scopes(kinds, attrs)
    return bool(scopes) and all(set(called_functions(scope)) <= MOVE_FUNCTIONS for scope in scopes)


def _variable_inputs(node: Node) -> list[Node]:
    """Return the arguments that are no constants; for one of several outputs, the operator's arguments."""
    owner = node.args[0] if node.op is ITEM else node
    assert owner is not None
    return list(dict.fromkeys(arg for arg in owner.args if arg is not None and not arg.static))


def _origin(node: Node) -> Node:
    """Return the node from which all elements of an operand that are no constants are moved."""
    while not node.static and _only_moves(node):
        origins = {_origin(arg) for arg in _variable_inputs(node)}
        if len(origins) != 1:
            return node
        node = origins.pop()
    return node


def _fold_operand(leaf: Node, arg: Node, x: Tensor) -> Scope | None:
    """Return an operand as a read of its leaf x, with zeros beyond the leaf's edges, None for other moves."""
    axes = tuple(axis(n) for n in arg.tensor.shape)
    if leaf is arg:
        return Scope(axes, Read(x, tuple(map(polynomial, axes))))
    shape = tuple(map(number_of, x.shape))

    def index_function(d: int) -> IndexFunction:
        def function(places: Sequence[Integers]) -> tuple[Integers, Booleans]:
            traced = trace_elements(arg, leaf, places)
            numbers = np.maximum(traced.numbers, 0)
            return np.unravel_index(numbers, shape)[d].astype(np.int64), traced.is_element

        return function

    # fit the index in each dimension of the leaf; it must be in range exactly where elements of the leaf are
    forms = [fit_index(index_function(d), axes) for d in range(len(shape))]
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


def _fold_output(scope: Scope, operands: Mapping[Any, Any], root: Node, product: Node) -> Scope | None:
    """Return the sum of products at the places from which the root's elements are moved.

    Elsewhere the root must have one constant.  Where that is 0 and the operands are read beyond their edges
    exactly there, the sum is 0 by itself; else guards on the indices select the constant.
    """
    # the factors as reads of the leaves, still over the product's axes
    body = scope.body
    assert isinstance(body, Reduce)
    _, factors = product_of(body.body)
    reads = list[Read]()
    for factor in factors:
        assert isinstance(factor, Read)
        operand = operands[factor.source]
        at: dict[Atom, Any] = dict(zip(operand.axes, factor.indices, strict=True))
        read = replace_axes(operand.body, at)
        assert isinstance(read, Read)
        reads.append(read)
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
    output_indices = [  # without summation iterators: these say which elements of the root are the product's
        (index, number_of(extent))
        for read in moved
        for index, extent in zip(read.indices, read.source.shape, strict=True)
        if axes_in(index).isdisjoint(body.axes)
    ]
    places, is_product, constants = _trace_root(root, product, [index for index, _ in output_indices], axes)
    other_constants = np.unique(constants[~is_product])
    if len(other_constants) > 1:
        return None
    # first choice: the sum alone, which is 0 wherever an operand is read beyond an edge
    total: Body = Reduce("sum", body.axes, moved[0] * moved[1])
    indices = [(index, extent, evaluate_at(index, axes, places)) for index, extent in output_indices]
    is_outside = np.zeros(is_product.shape, bool)
    for _, extent, values in indices:
        is_outside |= (values < 0) | (values >= extent)
    if not other_constants.size or other_constants[0] == 0 and bool(is_outside[~is_product].all()):
        return Scope(axes, total)
    # second choice: guards on the ranges of these indices, which must hold exactly at the product's elements
    guards, holds = list[Size](), np.ones(is_product.shape, bool)
    for index, extent, values in indices:
        low, high = _product_range(values, is_product, extent)
        fails = (values < low) | (values > high)
        if fails.any():
            holds &= ~fails
            guards += (guard for guard in within(index, low, high + 1) if not is_nonnegative(guard))
    if not bool((holds == is_product).all()):
        return None
    return Scope(axes, Select(tuple(dict.fromkeys(guards)), total, Const(float(other_constants[0]))))


def _trace_root(
    root: Node, product: Node, forms: Sequence[Size], axes: Sequence[Axis]
) -> tuple[list[Integers], Booleans, Any]:
    """Return places of the root, whether elements of the product are there, and the constants elsewhere.

    A sample of places contains some near the ends of the ranges of `forms`.
    """
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
    return places, is_product, constants


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

    def function(places: Sequence[Integers]) -> tuple[Integers, Booleans]:
        traced = trace_elements(root, product, places)
        at = [np.asarray(i, np.int64) for i in np.unravel_index(np.maximum(traced.numbers, 0), shape)]
        return evaluate_at(outer, product_axes, at), traced.is_element

    form = fit_index(function, axes)
    return None if form is None else form + rest
