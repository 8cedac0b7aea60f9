"""Finds the regions of a program that are derived: products with the moves of elements around them.

    y = Transpose(MatMul(Reshape(x), w))   ->   the region of the product MatMul, from leaves x, w to root y

A product is a node such as MatMul or Conv: a sum of products, or any expression that is bound by arithmetic.
A program is split at operators that are not linear (EINNET, section 6.3).  eOperators are in no region: their
expressions were composed of operators that were derived before.  Where moves follow a product or mask it, the
numbers of elements are traced through the moves, and one expression of the region is fitted to them
(`finders/derive/fold_move_chains`).  Regions that read one tensor, none of which needs another, also form a
joint region (section 4.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tensaurus.expr.ir.scope import Read, Scope, Tensor
from tensaurus.finders.derive.derivation_search import initial_expressions
from tensaurus.finders.derive.derivation_state import MIN_INTENSITY, intensity
from tensaurus.finders.derive.fold_move_chains import fold_moves
from tensaurus.finders.derive.move_finder import MoveFinder
from tensaurus.finders.derive.uniform_constants import uniform_value
from tensaurus.graph.ir.node import Node, source
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.ops import TensorType
from tensaurus.ops.eop import eop
from tensaurus.runtimes.price.operation_counts import scopes_of

__all__ = ["LinearRegion", "find_linear_regions", "product_piece"]

MAX_JOINT_PRODUCTS = 6  # products in one joint region: more are divided in groups of six, in program order


@dataclass(frozen=True)
class LinearRegion:
    """One product with the moves around it, or several independent products that read one tensor.

    pieces    for each product the nodes from the root of the moves after it to the leaves before it
    products  the nodes of the products themselves
    """

    pieces: tuple[Piece, ...]
    products: tuple[Node, ...]

    @cached_property
    def single_regions(self) -> tuple[LinearRegion, ...]:
        """A region for each product."""
        return tuple(LinearRegion((p,), (node,)) for p, node in zip(self.pieces, self.products, strict=True))

    @cached_property
    def leaves(self) -> tuple[Node, ...]:
        return tuple(dict.fromkeys(leaf for piece in self.pieces for leaf in piece.leaves))

    @cached_property
    def inner(self) -> tuple[Node, ...]:
        """The nodes of all pieces, each once."""
        return tuple(dict.fromkeys(node for piece in self.pieces for node in piece.inner))

    @cached_property
    def names(self) -> Mapping[Node, Node]:
        """For each leaf an input x0, x1, ...; w0, w1, ... for constants."""
        return {
            leaf: source(f"{'w' if leaf.static else 'x'}{k}", leaf.types[0])
            for k, leaf in enumerate(self.leaves)
        }

    @cached_property
    def forms(self) -> tuple[Node, ...]:
        """The pieces over these inputs: equal for regions that compute the same of other leaves."""
        return tuple(piece.with_leaves(dict(self.names)) for piece in self.pieces)

    @cached_property
    def weights(self) -> frozenset[Node]:
        """The inputs of the forms that stand for constants."""
        return frozenset(name for leaf, name in self.names.items() if leaf.static)

    def expressions(self) -> tuple[tuple[Scope, ...], tuple[tuple[Tensor, Node], ...]] | None:
        """Return the forms as expressions, and (tensor, input) pairs.

        Each piece is folded to one eOperator if possible.  Else its form is taken as it is, unless moves
        follow the product: then the result is None.
        """
        nodes = list[Node]()
        for piece, product, form in zip(self.pieces, self.products, self.forms, strict=True):
            if (folded := fold_moves(piece, product)) is not None:
                form = Piece(folded, piece.leaves).with_leaves(dict(self.names))
            elif piece.root is not product:
                return None
            nodes.append(form)
        return initial_expressions(nodes, tuple(self.names.values()), self.weights)


def find_linear_regions(program: Program) -> Iterator[LinearRegion]:
    """Yield a region for each product of the program, then joint regions of products that read one tensor."""
    moves = MoveFinder(program)
    single = list[LinearRegion]()
    # single regions: a product with moves on both sides of it, else one with the moves before it
    for product in program.active:
        if product.op is eop:
            continue
        if (piece := moves.piece_around(product) or product_piece(product)) is not None:
            single.append(LinearRegion((piece,), (product,)))
    yield from single
    # joint regions: single ones that read the same leaf, in groups of independent ones
    readers: dict[Node, list[LinearRegion]] = {}
    for region in single:
        for leaf in region.leaves:
            if not leaf.static:
                readers.setdefault(leaf, []).append(region)
    groups = (group for regions in readers.values() if len(regions) > 1 for group in _independent(regions))
    limit = MAX_JOINT_PRODUCTS
    small_groups = (group[k : k + limit] for group in groups for k in range(0, len(group), limit))
    yield from dict.fromkeys(_join(group) for group in small_groups if len(group) > 1)


def _join(regions: Sequence[LinearRegion]) -> LinearRegion:
    pieces = tuple(piece for region in regions for piece in region.pieces)
    return LinearRegion(pieces, tuple(node for region in regions for node in region.products))


def _independent(regions: Sequence[LinearRegion]) -> Iterator[Sequence[LinearRegion]]:
    """Yield groups of regions, in program order, in each of which none needs another's result."""
    waiting = [(region, frozenset(topological_order(region.leaves))) for region in regions]
    while waiting:
        roots, group, later = set[Node](), list[LinearRegion](), list[tuple[LinearRegion, frozenset[Node]]]()
        for region, needed in waiting:
            if roots.isdisjoint(needed):
                roots.update(piece.root for piece in region.pieces)
                group.append(region)
            else:
                later.append((region, needed))
        yield group
        waiting = later


def product_piece(node: Node) -> Piece | None:
    """Return a sum of products that is bound by arithmetic, with the moves before it, None for others."""
    (scope,) = scopes_of(node) if len(scopes_of(node)) == 1 else (None,)
    kind = node.types[0]
    if scope is None or not isinstance(kind, TensorType) or not kind.static:
        return None
    if intensity(scope) < MIN_INTENSITY:
        return None
    if not all(isinstance(a.types[0], TensorType) and a.types[0].static for a in node.args if a is not None):
        return None
    # constants of one number become part of the expression
    leaves = dict.fromkeys(arg for arg in node.args if arg is not None and uniform_value(arg) is None)
    while (moving := next((leaf for leaf in leaves if _moves_one_tensor(leaf)), None)) is not None:
        del leaves[moving]
        leaves |= dict.fromkeys(arg for arg in moving.args if arg is not None)
    return Piece(node, tuple(leaves))


def _moves_one_tensor(node: Node) -> bool:
    if node.static or len(node.types) != 1 or sum(arg is not None for arg in node.args) != 1:
        return False
    scopes = scopes_of(node)
    return len(scopes) == 1 and isinstance(scopes[0].body, Read)
