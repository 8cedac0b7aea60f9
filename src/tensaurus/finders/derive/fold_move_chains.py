"""Chains of moves as one expression, by following every element through them.

A product of chunks that slices, concatenations, masks and skewed reshapes put together to a band is

    L[b, i, j](sum[k](q[b, i, k] * k[b, i + j - w, k]) if 0 <= i + j - w < n else -inf)

whatever the chunks are.  Rules of texts would have to undo each exporter's way; numbers do not: every element
carries its number through the moves, and an index form that has these numbers is what they do (EINNET,
section 4.2: expression fusion; 4.1: traversal merging, boundaries).  Of large tensors a sample is followed:
whether the form is right everywhere, the replay of the equation says.
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
from tensaurus.finders.derive.fit_index_map import Sampled, crossings, fitted, points, value_at
from tensaurus.finders.derive.rewrite_step import axes_in, inside, product_of
from tensaurus.finders.derive.trace_elements import Numbers, Places, followed
from tensaurus.graph.ir.node import ITEM, Node, apply
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.ops import Op, TensorType, Untypable
from tensaurus.ops.declare import Attributes
from tensaurus.ops.eop import eop
from tensaurus.runtimes.price.operation_counts import scopes_of

__all__ = ["Flow", "traced"]

CLOSER = 8  # times that the ends of ranges are looked at more closely
MOVES = {"where"}  # functions of what moves elements


class Flow:
    """Who reads what in a program."""

    def __init__(self, program: Program):
        self.roots = frozenset(program.roots)
        self.nodes = topological_order(program.roots)
        self.place = {node: number for number, node in enumerate(self.nodes)}
        self.readers: dict[Node, list[Node]] = {}
        for node in self.nodes:
            for arg in node.args:
                if arg is not None:
                    self.readers.setdefault(arg, []).append(node)

    def surrounded(self, product: Node) -> Piece | None:
        """The product of two tensors with the moves before it and behind it; None where there are none."""
        if _product(product) is None or (root := self._last(product)) is None:
            return None
        operands = tuple(_first(arg) for arg in product.args if arg is not None)
        if root is product and operands == product.args or len(set(operands)) < 2:
            return None
        return Piece(root, operands)

    def _last(self, product: Node) -> Node | None:
        """The last node whose elements are the product's or constants; None where there are several."""
        reached = {product}
        waiting = [self.place[node] for node in self._read_by(product)]
        heapify(waiting)
        while waiting:
            node = self.nodes[heappop(waiting)]
            if node in reached or not node.args or node.static or not _moves(node):
                continue
            changing = _changing(node)
            if changing and reached.issuperset(changing):
                reached.add(node)
                for reader in self._read_by(node):
                    heappush(waiting, self.place[reader])
        ends = [
            node
            for node in reached
            if node in self.roots or any(reader not in reached for reader in self._read_by(node))
        ]
        return ends[0] if len(ends) == 1 else None

    def _read_by(self, node: Node) -> list[Node]:
        found: list[Node] = []
        for reader in self.readers.get(node, ()):
            items = [item for item in self.readers.get(reader, ()) if item.op is ITEM]
            found += items if len(reader.types) > 1 else [reader]
        return found


def traced(piece: Piece, product: Node) -> Node | None:
    """The eOperator of the piece's leaves that its root is; None where they do something else than moving."""
    scope = _product(product)
    operands = piece.leaves
    if scope is None:
        return None
    tensors = [Tensor(f"x{k}", leaf.tensor.shape) for k, leaf in enumerate(operands)]
    args = [arg for arg in product.args if arg is not None]
    assert isinstance(product.op, Op)
    try:
        forms = [_operand(leaf, arg, x) for leaf, arg, x in zip(operands, args, tensors, strict=True)]
        if any(form is None for form in forms):
            return None
        sources = product.op.tensors(product.arg_types())
        found = _whole(scope, dict(zip(sources, forms, strict=True)), piece.root, product)
        made = None if found is None else apply(eop, operands, {"scope": intern_scope(found)})
    except (Untypable, ValueError):
        return None
    return made if made is not None and made.types == piece.root.types else None


def _product(node: Node) -> Scope | None:
    """The expression of a sum of products of two tensors, of known sizes."""
    kinds = [kind for part in (node, *filter(None, node.args)) for kind in part.types]
    if not all(isinstance(k, TensorType) and k.static and k.dtype == "float32" for k in kinds):
        return None
    found = scopes_of(node)
    if len(found) != 1 or len(node.args) != 2 or not isinstance(found[0].body, Reduce):
        return None
    body = found[0].body
    guards, factors = product_of(body.body)
    plain = all(isinstance(f, Read) and isinstance(f.source, Tensor) and f.outside is None for f in factors)
    return found[0] if body.monoid == "sum" and len(factors) == 2 and plain and not guards else None


def _moves(node: Node) -> bool:
    """Whether every element of it is one of its arguments', or a constant."""
    owner = node.args[0] if node.op is ITEM else node
    if owner is None or len(owner.types) != 1 and node is owner:
        return False
    kinds = [kind for part in (owner, *filter(None, owner.args)) for kind in part.types]
    if not isinstance(owner.op, Op) or not all(isinstance(k, TensorType) and k.static for k in kinds):
        return False
    return _moving(owner.op, owner.arg_types(), owner.attrs)


@lru_cache(10_000)
def _moving(op: Op, kinds: tuple[TensorType | None, ...], attrs: Attributes) -> bool:
    """Whether every element of all outputs is an argument's, or a constant."""
    found = op.scopes(kinds, attrs)
    return bool(found) and all(set(called_functions(scope)) <= MOVES for scope in found)


def _changing(node: Node) -> list[Node]:
    """The arguments whose elements are not known; those of the call whose output it is."""
    owner = node.args[0] if node.op is ITEM else node
    assert owner is not None
    return list(dict.fromkeys(arg for arg in owner.args if arg is not None and not arg.static))


def _first(node: Node) -> Node:
    """The node whose elements those of an operand are."""
    while not node.static and _moves(node):
        changing = _changing(node)
        common = {_first(part) for part in changing}
        if len(common) != 1:
            return node
        node = common.pop()
    return node


def _operand(leaf: Node, arg: Node, x: Tensor) -> Scope | None:
    """What an operand reads of its leaf: beyond the leaf's edges, zeros."""
    axes = tuple(axis(n) for n in arg.tensor.shape)
    if leaf is arg:
        return Scope(axes, Read(x, tuple(map(polynomial, axes))))
    shape = tuple(map(_number, x.shape))

    def sampled(d: int) -> Sampled:
        def function(places: Sequence[Numbers]) -> tuple[Numbers, Places]:
            found = followed(arg, leaf, places)
            return np.unravel_index(np.maximum(found.numbers, 0), shape)[d].astype(np.int64), found.known

        return function

    forms = [fitted(sampled(d), axes) for d in range(len(shape))]
    indices = tuple(form for form in forms if form is not None)
    if len(indices) < len(forms):
        return None
    places = points([_number(a.extent) for a in axes], 1)
    found = followed(arg, leaf, places)
    held = np.ones(found.known.shape, bool)
    for index, extent in zip(indices, shape, strict=True):
        values = value_at(index, axes, places)
        held &= (values >= 0) & (values < extent)
    if bool(found.constants[~found.known].any()) or not bool((held == found.known).all()):
        return None
    return Scope(axes, Read(x, indices, None if held.all() and _contained(indices, shape) else Const(0)))


def _contained(indices: Sequence[Size], shape: Sequence[int]) -> bool:
    return all(map(inside, indices, shape))


def _whole(scope: Scope, operands: Mapping[Any, Any], root: Node, product: Node) -> Scope | None:
    """The sum of products at the places that the root's elements come from."""
    body = scope.body
    assert isinstance(body, Reduce)
    _, factors = product_of(body.body)
    reads = list[Read]()
    for factor in factors:
        assert isinstance(factor, Read)
        operand = operands[factor.source]
        at: dict[Atom, Any] = dict(zip(operand.axes, factor.indices, strict=True))
        made = replace_axes(operand.body, at)
        assert isinstance(made, Read)
        reads.append(made)
    if root is product:
        return Scope(scope.axes, Reduce("sum", body.axes, reads[0] * reads[1]))
    axes = tuple(axis(n) for n in root.tensor.shape)
    whole = [_number(n) for n in product.tensor.shape]
    moved = list[Read]()
    for read in reads:
        forms = [
            _composed(index, scope.axes, body.axes, root, product, whole, axes) for index in read.indices
        ]
        if any(form is None for form in forms):
            return None
        moved.append(Read(read.source, tuple(form for form in forms if form is not None), Const(0)))
    ranges = [
        (index, _number(extent))
        for read in moved
        for index, extent in zip(read.indices, read.source.shape, strict=True)
        if axes_in(index).isdisjoint(body.axes)
    ]
    places, known, constants = _looked_at(root, product, [index for index, _ in ranges], axes)
    others = np.unique(constants[~known])
    if len(others) > 1:
        return None
    total: Body = Reduce("sum", body.axes, moved[0] * moved[1])
    outer = [(index, extent, value_at(index, axes, places)) for index, extent in ranges]
    beyond = np.zeros(known.shape, bool)
    for _, extent, values in outer:
        beyond |= (values < 0) | (values >= extent)
    if not others.size or others[0] == 0 and bool(beyond[~known].all()):
        return Scope(axes, total)  # beyond the edges of what is read, products are zero
    guards, held = list[Size](), np.ones(known.shape, bool)
    for index, extent, values in outer:
        low, high = _range(values, known, extent)
        apart = (values < low) | (values > high)
        if apart.any():
            held &= ~apart
            guards += (guard for guard in within(index, low, high + 1) if not is_nonnegative(guard))
    if not bool((held == known).all()):
        return None
    return Scope(axes, Select(tuple(dict.fromkeys(guards)), total, Const(float(others[0]))))


def _looked_at(
    root: Node, product: Node, forms: Sequence[Size], axes: Sequence[Axis]
) -> tuple[list[Numbers], Places, Any]:
    """Places of the root, where the product's elements are there, and the constants elsewhere: all places, or
    some and those at which the values of a form begin and end to be those of the product."""
    places = points([_number(a.extent) for a in axes], 1)
    found = followed(root, product, places)
    known, constants = found.known, found.constants
    for _ in range(CLOSER):
        more = crossings(forms, axes, places, known)
        if more is None:
            break
        found = followed(root, product, more)
        places = [np.concatenate(pair) for pair in zip(places, more, strict=True)]
        known = np.concatenate([known, found.known])
        constants = np.concatenate([constants, found.constants])
    return places, known, constants


def _range(values: Numbers, known: Places, extent: int) -> tuple[int, int]:
    """The least and the greatest value of an index where elements are known: those of the extent, if nothing
    is known of what lies between."""
    low, high = int(values[known].min()), int(values[known].max())
    others = values[~known]
    below, above = others[others < low], others[others > high]
    first = 0 if low >= 0 and not (below >= 0).any() else low
    last = extent - 1 if extent > high and not (above < extent).any() else high
    return first, last


def _number(size: Size) -> int:
    assert isinstance(size, int)
    return size


def _composed(
    index: Size,
    own: Sequence[Axis],
    taps: Sequence[Axis],
    root: Node,
    product: Node,
    shape: Sequence[int],
    axes: Sequence[Axis],
) -> Size | None:
    """An index of an operand of the product over the root's axes; None where it is no sum of a form of these
    and one of the reduced axes."""
    zero: dict[Atom, Any] = dict.fromkeys(taps, 0)
    outer = substitute(index, zero)
    rest = index - outer
    if not axes_in(rest) <= set(taps):
        return None

    def function(places: Sequence[Numbers]) -> tuple[Numbers, Places]:
        found = followed(root, product, places)
        at = np.unravel_index(np.maximum(found.numbers, 0), shape)
        return value_at(outer, own, [np.asarray(part, np.int64) for part in at]), found.known

    form = fitted(function, axes)
    return None if form is None else form + rest
