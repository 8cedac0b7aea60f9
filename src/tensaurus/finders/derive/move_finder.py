"""Finds the moves around the products of a program: operators that only move elements, such as Transpose.

    Slice(Reshape(MatMul(Transpose(x), w)))   ->   the piece of the MatMul: leaves x and w, root Slice

`fold_move_chains` turns such a piece into one expression.
"""

from __future__ import annotations

from functools import lru_cache
from heapq import heapify, heappop, heappush

from tensaurus.expr.analysis.work_counts import called_functions
from tensaurus.expr.ir.scope import Read, Reduce, Scope, Tensor
from tensaurus.finders.derive.rewrite_step import product_of
from tensaurus.graph.ir.node import ITEM, Node
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.ops import Op, TensorType
from tensaurus.ops.declare import Attributes
from tensaurus.runtimes.price.operation_counts import scopes_of

__all__ = ["MoveFinder", "product_scope"]

MOVE_FUNCTIONS = {"where"}  # functions that an expression that only moves elements may call


class MoveFinder:
    """Finds the moves before and after the products of one program.

    nodes     all nodes, each after its arguments
    position  the position of each node in `nodes`
    readers   the nodes that read each node
    """

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
        if product_scope(product) is None or (root := self._last_move(product)) is None:
            return None
        # no piece where nothing moves, or where both operands come from one tensor
        operands = tuple(_origin(arg) for arg in product.args if arg is not None)
        if root is product and operands == product.args or len(set(operands)) < 2:
            return None
        return Piece(root, operands)

    def _last_move(self, product: Node) -> Node | None:
        """Return the last node whose elements are all the product's or constants, None for several.

        Nodes are visited in program order, so that all inputs of a node are decided before the node.
        """
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
        ends = [n for n in reached if n in self.roots or not reached.issuperset(self._readers_of(n))]
        return ends[0] if len(ends) == 1 else None

    def _readers_of(self, node: Node) -> list[Node]:
        """Return the readers; of a reader with several outputs its output nodes."""
        found: list[Node] = []
        for reader in self.readers.get(node, ()):
            items = [item for item in self.readers.get(reader, ()) if item.op is ITEM]
            found += items if len(reader.types) > 1 else [reader]
        return found


def product_scope(node: Node) -> Scope | None:
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
