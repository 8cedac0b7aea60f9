"""What of a program is derived: sums of products with what only moves elements around them.

Programs are split at what is not linear (EINNET, section 6.3).  Of eOperators there are no parts: what they
were made of was derived.  Where moves lie behind a product, too, or mask it, its expression is read from the
elements themselves (`finders/derive/fold_move_chains`).  Parts that read one tensor, none of which needs
another, are derived together, too (section 4.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tensaurus.expr.ir.scope import Read, Scope, Tensor
from tensaurus.finders.derive.derivation_search import initial
from tensaurus.finders.derive.derivation_state import INTENSE, intensity
from tensaurus.finders.derive.fold_move_chains import Flow, traced
from tensaurus.finders.derive.uniform_constants import alike
from tensaurus.graph.ir.node import Node, source
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.ops import TensorType
from tensaurus.ops.eop import eop
from tensaurus.runtimes.price.operation_counts import scopes_of

__all__ = ["Part", "part", "parts_of"]

TOGETHER = 6  # products of one tensor at most that are derived together: of more, every six in their order


@dataclass(frozen=True)
class Part:
    """One product with what moves elements around it, or several independent ones of one tensor."""

    pieces: tuple[Piece, ...]
    products: tuple[Node, ...]

    @cached_property
    def alone(self) -> tuple[Part, ...]:
        """Each of them by itself."""
        return tuple(Part((p,), (node,)) for p, node in zip(self.pieces, self.products, strict=True))

    @cached_property
    def leaves(self) -> tuple[Node, ...]:
        return tuple(dict.fromkeys(leaf for piece in self.pieces for leaf in piece.leaves))

    @cached_property
    def inner(self) -> tuple[Node, ...]:
        """The nodes of the pieces, each once."""
        return tuple(dict.fromkeys(node for piece in self.pieces for node in piece.inner))

    @cached_property
    def names(self) -> Mapping[Node, Node]:
        """Leaves x0, w1, ... for its own, w for what is constant."""
        return {
            leaf: source(f"{'w' if leaf.static else 'x'}{k}", leaf.types[0])
            for k, leaf in enumerate(self.leaves)
        }

    @cached_property
    def forms(self) -> tuple[Node, ...]:
        """The pieces over those leaves: the same of parts that differ in what their leaves are."""
        return tuple(piece.with_leaves(dict(self.names)) for piece in self.pieces)

    @cached_property
    def weights(self) -> frozenset[Node]:
        """The leaves of its forms that are constant."""
        return frozenset(name for leaf, name in self.names.items() if leaf.static)

    def expressions(self) -> tuple[tuple[Scope, ...], tuple[tuple[Tensor, Node], ...]] | None:
        """The forms as sums of products, and which tensors the leaves are there; None where something around
        a product does more than moving elements."""
        found = list[Node]()
        for piece, product, form in zip(self.pieces, self.products, self.forms, strict=True):
            if (made := traced(piece, product)) is not None:
                form = Piece(made, piece.leaves).with_leaves(dict(self.names))
            elif piece.root is not product:
                return None
            found.append(form)
        return initial(found, tuple(self.names.values()), self.weights)


def parts_of(program: Program) -> Iterator[Part]:
    """Those of a program, each alone, then what reads one tensor."""
    flow = Flow(program)
    single = list[Part]()
    for product in program.active:
        if product.op is not eop and (piece := flow.surrounded(product) or part(product)) is not None:
            single.append(Part((piece,), (product,)))
    yield from single
    readers: dict[Node, list[Part]] = {}
    for each in single:
        for leaf in each.leaves:
            if not leaf.static:
                readers.setdefault(leaf, []).append(each)
    groups = (group for parts in readers.values() if len(parts) > 1 for group in _independent(parts))
    sixes = (group[k : k + TOGETHER] for group in groups for k in range(0, len(group), TOGETHER))
    yield from dict.fromkeys(_joint(group) for group in sixes if len(group) > 1)


def _joint(parts: Sequence[Part]) -> Part:
    pieces = tuple(piece for one in parts for piece in one.pieces)
    return Part(pieces, tuple(node for one in parts for node in one.products))


def _independent(parts: Sequence[Part]) -> Iterator[Sequence[Part]]:
    """They in groups, in the program's order, in each of which none needs another."""
    waiting = [(one, frozenset(topological_order(one.leaves))) for one in parts]
    while waiting:
        roots, group, left = set[Node](), list[Part](), list[tuple[Part, frozenset[Node]]]()
        for one, needed in waiting:
            if roots.isdisjoint(needed):
                roots.update(piece.root for piece in one.pieces)
                group.append(one)
            else:
                left.append((one, needed))
        yield group
        waiting = left


def part(node: Node) -> Piece | None:
    """The operator, if it adds up products, with those that only move elements in front of it."""
    (scope,) = scopes_of(node) if len(scopes_of(node)) == 1 else (None,)
    kind = node.types[0]
    if scope is None or not isinstance(kind, TensorType) or not kind.static or intensity(scope) < INTENSE:
        return None
    if not all(isinstance(a.types[0], TensorType) and a.types[0].static for a in node.args if a is not None):
        return None
    # constants of one number are part of the expression
    leaves = dict.fromkeys(arg for arg in node.args if arg is not None and alike(arg) is None)
    while (moving := next((leaf for leaf in leaves if _moves(leaf)), None)) is not None:
        del leaves[moving]
        leaves |= dict.fromkeys(arg for arg in moving.args if arg is not None)
    return Piece(node, tuple(leaves))


def _moves(node: Node) -> bool:
    """Whether it only moves elements of one tensor."""
    if node.static or len(node.types) != 1 or sum(arg is not None for arg in node.args) != 1:
        return False
    found = scopes_of(node)
    return len(found) == 1 and isinstance(found[0].body, Read)
