"""Pieces that a runtime fuses, as patterns.

Each place where one matches is measured, by itself: a fusion that takes more of its surroundings (a layout
that its neighbours share, for instance) is expected there all the same.  What a search returns is
measured whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from tensaurus.egraph.match.pattern import LOOPS, Pattern, compiled, loops, shape
from tensaurus.graph.ir.node import ITEM, Node
from tensaurus.graph.ir.piece import Piece
from tensaurus.ops import Op
from tensaurus.rules.language.match import scalar_value
from tensaurus.rules.language.term import Apply, Item, Literal, Term, Variable

__all__ = ["fusions"]


def fusions(pieces: Iterable[Piece]) -> list[Pattern]:
    """The pieces' patterns, each once; attributes and sizes may be any, as each instance is measured.

    A piece that is too large for a pattern has none: a pattern is a tree, and repeats what the piece shares.
    """
    terms: dict[object, Term] = {}
    for piece in pieces:
        term = _term(piece)
        if loops(term) <= LOOPS:
            terms.setdefault(shape(term, {}), term)
    return [compiled(term) for term in terms.values()]


def _term(piece: Piece) -> Term:
    names = {leaf: f"x{place}" for place, leaf in enumerate(piece.leaves)}
    fresh = count()

    def visit(node: Node) -> Term:
        number = scalar_value(node)
        if number is not None:
            return Literal(number)
        if node in names:
            return Variable(names[node])
        if node.op is ITEM:
            assert node.args[0] is not None
            inner = visit(node.args[0])
            assert isinstance(inner, Apply)
            return Item(inner, node.attribute("index"))
        assert isinstance(node.op, Op)
        args = tuple(None if arg is None else visit(arg) for arg in node.args)
        return Apply(node.op, args, (), f"a{next(fresh)}")

    return visit(piece.root)
