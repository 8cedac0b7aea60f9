"""Compiles pieces, operators that a runtime fuses, to patterns by which extraction finds them in an e-graph.

Extraction assumes a fusion wherever its pattern matches, and measures the piece alone.  The runtime may ask
for more, such as a layout that neighbours share; the whole program is measured in the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from tensaurus.egraph.match.pattern import MAX_LOOPS, Pattern, compile_pattern, count_loops, pattern_shape
from tensaurus.graph.ir.node import ITEM, Node
from tensaurus.graph.ir.piece import Piece
from tensaurus.ops import Op
from tensaurus.rules.language.match import scalar_value
from tensaurus.rules.language.term import Apply, Item, Literal, Term, Variable

__all__ = ["fusion_patterns"]


def fusion_patterns(pieces: Iterable[Piece]) -> list[Pattern]:
    """Return the patterns of the pieces, each once, for any attributes and sizes.

    A piece that is too large has no pattern: a pattern is a tree, which repeats shared parts of the piece.
    """
    terms: dict[object, Term] = {}
    for piece in pieces:
        term = _term(piece)
        if count_loops(term) <= MAX_LOOPS:
            terms.setdefault(pattern_shape(term, {}), term)
    return [compile_pattern(term) for term in terms.values()]


def _term(piece: Piece) -> Term:
    """Return the piece as a term, its leaves as variables."""
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
