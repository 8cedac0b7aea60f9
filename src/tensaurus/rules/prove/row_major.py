"""Rules about tensors in row-major order, whatever their shapes.

An operator keeps the order if its result is its only input, element by element in row-major order: as
Reshape does, and what stands for it.

Theorem: let both sides be of one type, and leave out of them every operator that keeps the order.  If what is
left computes element by element, each time of tensors of one shape and of single elements, then the n-th
element of either side, in row-major order, is what is left of it at rank 0, over the n-th elements of its
leaves.  So sides are equal, of whatever sizes and ranks, where that is equal at rank 0.

It asks for one shape, since what is broadcast has another order; and for shapes as they are, as 0 copies the
size at its place: of x in [3,1] and s in [1,1,1], x*s reshaped to (0,-1) is [1,3] and x is [3,1].

Several shapes of one number of elements are as good as one where the result has that number, too: a size that
is broadcast makes more of them, which stay.  The result has it where the other side does, as their types are
equal; where it is zero there is nothing that could differ.
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cache
from math import prod

import numpy as np

from tensaurus.expr.evaluate.fields import Reals
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.ir.scope import Read, Scope, Tensor
from tensaurus.ops import Op
from tensaurus.rules.language.occurrences import attribute_expressions, bound_names, inner_first
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.language.term import (
    Apply,
    Literal,
    RuleError,
    Term,
    Variable,
    require_known_names,
    show_term,
)
from tensaurus.rules.prove.data_movement import equal_shapes, scopes_at_examples, where_equal
from tensaurus.rules.prove.pointwise import elementwise_of_any

__all__ = ["in_row_major_order", "keeps_order"]


@dataclass(frozen=True)
class Shape:
    """Of a term, as far as it is known.

    text     two terms of one text have one shape: empty, that of a number; in parentheses, that of another of
             one element
    count    two terms of one count have as many elements
    least    whether it has that many at least, and in order if it has not more
    """

    text: str
    count: str
    least: bool = False

    @property
    def one(self) -> bool:
        """Whether it is that of a single element."""
        return not self.text or self.text.startswith("(")


@cache
def keeps_order(op: Op) -> bool:
    """Whether its result is its only input in row-major order, at its examples."""
    seen = [
        len(given) == len(scopes) == 1 and given[0] is not None and _in_order(scopes[0], given[0])
        for given, scopes in scopes_at_examples(op)
    ]
    return bool(seen) and all(seen)


def _in_order(scope: Scope, tensor: Tensor) -> bool:
    """Whether the scope's elements are the tensor's, in this order."""
    sizes = [n for n in (*scope.shape, *tensor.shape) if isinstance(n, int)]
    match scope.body:
        case Read(Tensor(name), _, None) if name == tensor.name and len(sizes) == scope.rank + tensor.rank:
            shape = tuple(sizes[scope.rank :])
            numbered = np.arange(float(prod(shape))).reshape(shape)
            return np.array_equal(np.ravel(interpret(scope, {tensor: numbered}, Reals())), numbered.ravel())
    return False


def in_row_major_order(rule: Rule) -> Rule | None:
    """What the theorem leaves of a rule, and of its conditions; None where it does not hold of it."""
    calls = [call for root in (*rule.lhs, *rule.rhs) for call in inner_first(root)]
    if len(rule.lhs) > 1 or not any(keeps_order(call.op) for call in calls):
        return None
    order = _Order(rule)
    sides = [order.known(root) for root in (*rule.lhs, *rule.rhs)]
    if any(side is None for side in sides):
        return None
    (left, first), (right, second) = sides  # type: ignore[misc]
    if (first.least or second.least) and (first.least == second.least or first.count != second.count):
        return None
    if not isinstance(left, Apply) and show_term(left) != show_term(right):
        return None
    known = bound_names(left)
    if not all(_says(tree, known) for tree in attribute_expressions(right)):
        return None
    where = tuple(condition for condition in rule.where if _says(condition, known))
    return replace(rule, lhs=(left,), rhs=(right,), where=where)


def _says(tree: ast.expr, known: Collection[str]) -> bool:
    """Whether it speaks of nothing but these."""
    try:
        require_known_names(tree, known)
    except RuleError:
        return False
    return True


class _Order:
    """The terms of a rule without what keeps the order."""

    def __init__(self, rule: Rule):
        self._equal = equal_shapes(rule)
        self._numbers, self._single = where_equal(rule, "rank", 0), where_equal(rule, "numel", 1)

    def known(self, term: Term | None) -> tuple[Term, Shape] | None:
        """What is left of a term, and its shape; None where the theorem does not hold."""
        match term:
            case Variable(name, optional):
                if optional:
                    return None
                alike = min([name, *(n for pair in self._equal if name in pair for n in pair)])
                text = "" if name in self._numbers else f"({name})" if name in self._single else alike
                return term, Shape(text, alike)
            case Literal():
                return term, Shape("", "")
            case Apply(op, args, attrs, rest):
                if keeps_order(op):
                    known = self.known(args[0]) if len(args) == 1 else None
                    if known is None:
                        return None
                    left, shape = known
                    text = show_term(Apply(op, (Variable(shape.text),), attrs, rest))
                    return left, replace(shape, text=f"({text})" if shape.one else text)
                if not elementwise_of_any(op, tuple(arg is not None for arg in args)):
                    return None
                return self._computed(term)
        return None

    def _computed(self, term: Apply) -> tuple[Term, Shape] | None:
        """Of what computes element by element."""
        operands = [None if arg is None else self.known(arg) for arg in term.args]
        if any(known is None and arg is not None for known, arg in zip(operands, term.args, strict=True)):
            return None
        shapes = [known[1] for known in operands if known is not None]
        wide = {shape for shape in shapes if not shape.one}
        counts = {shape.count for shape in wide}
        if len(counts) > 1:
            return None
        # a single element of more dimensions than the others puts ones before them
        ones = sorted({shape.text for shape in shapes if shape.one and shape.text})
        texts = [*sorted({shape.text for shape in wide}), *ones]
        text = "*".join(texts)
        least = len({shape.text for shape in wide}) > 1 or any(shape.least for shape in wide)
        whole = Shape(text if wide or len(texts) < 2 else f"({text})", "".join(counts), least)
        left = tuple(None if known is None else known[0] for known in operands)
        return Apply(term.op, left, term.attrs, term.rest), whole
