"""Find the numbers and sizes at which a law may change, those that its comparisons name or depend on.

No small instance refutes a law that is wrong from 500 rows on.  So each number of a condition or an attribute
is a size to try, and so is each size at which a comparison changes (500 for 3 * dim(x, 0) + 5 <= 1505).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

from tensaurus.graph.ir.node import Node
from tensaurus.rules.language.match import NodeFact
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.language.side_conditions import Undefined, evaluate_expression
from tensaurus.rules.language.term import Apply, Item, Literal, Term

__all__ = ["comparisons_in", "indexed_tuples", "numbers_in", "sizes_where_answers_change", "types_in"]

TYPES = frozenset(
    {"bool", "float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}
)
GROWTH = 1.5  # factor between sizes at which comparisons are evaluated


def numbers_in(rule: Rule) -> frozenset[Fraction]:
    """Return all numbers that the law names, in its terms, attributes and conditions."""
    own = {number for root in (*rule.lhs, *rule.rhs) for number in _literals(root)}
    return frozenset(own | {number for tree in rule.expressions for number in _constants(tree)})


def indexed_tuples(rule: Rule) -> frozenset[str]:
    """Return the names of tuples of which the law reads single elements."""
    parts = (part for tree in rule.expressions for part in ast.walk(tree))
    read = (part.value for part in parts if isinstance(part, ast.Subscript))
    return frozenset(tree.id for tree in read if isinstance(tree, ast.Name))


def types_in(rule: Rule) -> list[str]:
    """Return the element types that conditions name."""
    texts = (p.value for tree in rule.where for p in ast.walk(tree) if isinstance(p, ast.Constant))
    return [text for text in dict.fromkeys(texts) if isinstance(text, str) and text in TYPES]


def comparisons_in(rule: Rule) -> list[ast.Compare]:
    """Return the comparisons in attributes and conditions."""
    every = (part for tree in rule.expressions for part in ast.walk(tree))
    return [part for part in every if isinstance(part, ast.Compare)]


def sizes_where_answers_change(
    comparisons: Sequence[ast.Compare],
    nodes_at: Callable[[int], dict[str, Node]],
    values: dict[str, object],
    most: int,
) -> list[int]:
    """Return sizes up to `most` at which a comparison has another answer than at the size before."""

    def answers(size: int) -> tuple[int | None, ...]:
        names = {**{name: NodeFact(node) for name, node in nodes_at(size).items()}, **values}
        return tuple(_answer(tree, names) for tree in comparisons)

    found: list[int] = []
    size, here = 1, answers(1)
    while size < most:
        after = min(most, max(size + 1, int(size * GROWTH)))
        there = answers(after)
        if there != here:  # bisect for the first size with another answer
            low, high = size, after
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if answers(middle) == here else (low, middle)
            found.append(high)
        size, here = after, there
    return found


def _answer(tree: ast.Compare, names: dict[str, object]) -> int | None:
    """Return the order of both sides (-1, 0, 1) if they are numbers, else whether the comparison holds."""
    try:
        sides = [evaluate_expression(side, names) for side in (tree.left, tree.comparators[0])]
        if all(isinstance(side, (int, Fraction)) for side in sides):
            return int(sides[0] > sides[1]) - int(sides[0] < sides[1])
        return int(bool(evaluate_expression(tree, names)))
    except Undefined:
        return None


def _literals(term: Term | None) -> Iterator[Fraction]:
    match term:
        case Literal(value):
            yield value
        case Apply(_, args, _, _):
            for arg in args:
                yield from _literals(arg)
        case Item(inner, _):
            yield from _literals(inner)


def _constants(tree: ast.expr) -> Iterator[Fraction]:
    for part in ast.walk(tree):
        match part:
            case ast.Constant(value=bool()):
                pass
            case ast.Constant(value=(int() | float()) as value):
                yield Fraction(str(value))
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=(int() | float()) as value)):
                yield -Fraction(str(value))
            case ast.BinOp(ast.Constant(value=int() as a), ast.Div(), ast.Constant(value=int() as b)) if b:
                yield Fraction(a, b)
