"""Rules about tensors in row-major order, whatever their shapes.

An operator keeps the order if its result is its only input, element by element in row-major order: as
Reshape does, and what stands for it.

Theorem: let both sides be of one type, and leave out of them every operator that keeps the order.  If what is
left computes element by element, each time of tensors of one shape and of single elements, then the n-th
element of either side, in row-major order, is what is left of it at rank 0, over the n-th elements of its
leaves.  So sides are equal, of whatever sizes and ranks, where that is equal at rank 0.

It asks for one shape, since what is broadcast has another order; and for shapes as they are, as 0 copies the
size at its place: of x in [3,1] and s in [1,1,1], x*s reshaped to (0,-1) is [1,3] and x is [3,1].
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import replace
from functools import cache
from math import prod
from typing import TypeAlias

import numpy as np

from tensaurus.algebra.expr import Read, Scope, Tensor
from tensaurus.algebra.field import Reals
from tensaurus.algebra.interpret import interpret
from tensaurus.ops import Op
from tensaurus.rules.movement import equal_shapes, scopes_at_examples, where_equal
from tensaurus.rules.occurrences import attributes, inner_first, named
from tensaurus.rules.pointwise import elementwise_of_any
from tensaurus.rules.rule import Rule
from tensaurus.rules.term import Apply, Literal, RuleError, Term, Variable, require_known, show_term

__all__ = ["in_row_major_order", "keeps_order"]

Shape: TypeAlias = str  # two terms of one text have one shape


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
    left, right = order.left_of(rule.lhs[0]), order.left_of(rule.rhs[0])
    if left is None or right is None:
        return None
    if not isinstance(left, Apply) and show_term(left) != show_term(right):
        return None
    known = named(left)
    if not all(_says(tree, known) for tree in attributes(right)):
        return None
    where = tuple(condition for condition in rule.where if _says(condition, known))
    return replace(rule, lhs=(left,), rhs=(right,), where=where)


def _says(tree: ast.expr, known: Collection[str]) -> bool:
    """Whether it speaks of nothing but these."""
    try:
        require_known(tree, known)
    except RuleError:
        return False
    return True


class _Order:
    """The terms of a rule without what keeps the order."""

    def __init__(self, rule: Rule):
        self._equal = equal_shapes(rule)
        self._numbers, self._single = where_equal(rule, "rank", 0), where_equal(rule, "numel", 1)

    def left_of(self, term: Term) -> Term | None:
        """The term without them; None where the theorem does not hold."""
        known = self._known(term)
        return None if known is None else known[0]

    def _known(self, term: Term | None) -> tuple[Term, Shape] | None:
        """What is left of a term, and its shape: empty, for that of a number, or in parentheses, for another
        of one element."""
        match term:
            case Variable(name, optional):
                if optional:
                    return None
                alike = sorted([name, *(n for pair in self._equal if name in pair for n in pair)])
                shape = "" if name in self._numbers else f"({name})" if name in self._single else alike[0]
                return term, shape
            case Literal():
                return term, ""
            case Apply(op, args, attrs, rest):
                if keeps_order(op):
                    known = self._known(args[0]) if len(args) == 1 else None
                    if known is None:
                        return None
                    shape = show_term(Apply(op, (Variable(known[1]),), attrs, rest))
                    return known[0], f"({shape})" if _one(known[1]) else shape
                if not elementwise_of_any(op, tuple(arg is not None for arg in args)):
                    return None
                return self._computed(term)
        return None

    def _computed(self, term: Apply) -> tuple[Term, Shape] | None:
        """Of what computes element by element."""
        left: list[Term | None] = []
        shapes: list[Shape] = []
        for arg in term.args:
            if arg is None:
                left.append(None)
                continue
            known = self._known(arg)
            if known is None:
                return None
            left.append(known[0])
            shapes.append(known[1])
        wide = {shape for shape in shapes if not _one(shape)}
        if len(wide) > 1:
            return None
        # a single element of more dimensions than the others puts ones before them
        ones = sorted({shape for shape in shapes if _one(shape) and shape})
        whole = "*".join([*wide, *ones])
        shape = whole if len(wide) + len(ones) < 2 else whole if wide else f"({whole})"
        return Apply(term.op, tuple(left), term.attrs, term.rest), shape


def _one(shape: Shape) -> bool:
    """Whether it is that of a single element."""
    return not shape or shape.startswith("(")

