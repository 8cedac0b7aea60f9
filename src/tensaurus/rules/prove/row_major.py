"""Prove rules about tensors in row-major order, whatever their shapes are.

    Reshape(Relu(x), s) = Relu(Reshape(x, s))

An operator keeps the order if its result is its only input, element by element in row-major order, as that of
Reshape is.

Theorem: let both sides have one type, and remove every operator that keeps the order.  If the remaining
operators are elementwise, each on tensors of one shape and on single elements, then the n-th element of
either side, in row-major order, is the remaining term at rank 0 over the n-th elements of its leaves.  So the
sides are equal for all sizes and ranks if the remaining terms are equal at rank 0.

One shape is required because broadcasting changes the order.  Shape attributes must be equal as texts and
applied to equal shapes, since 0 copies a size: for x in [3,1] and s in [1,1,1], x*s reshaped to (0,-1) is
[1,3], but x is [3,1].

Several shapes with one number of elements are allowed if the result has that number, too: broadcasting would
add elements, and no later operator removes any.  The result has that number where the other side has it,
since their types are equal; an empty result has no elements that could differ.
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
from tensaurus.rules.language.term import Apply, Literal, RuleError, Term, Variable, check_names, show_term
from tensaurus.rules.prove.data_movement import equal_shape_pairs, scopes_at_examples, variables_where
from tensaurus.rules.prove.pointwise import is_elementwise_for_all_types

__all__ = ["without_order_keepers", "keeps_row_major_order"]


@dataclass(frozen=True)
class Shape:
    """The shape of a term, as far as it is known.

    text      equal texts mean equal shapes: "" for rank 0, in parentheses for another shape of one element
    count     equal counts mean equal numbers of elements
    at_least  the term has at least that many elements, and is in order if it has no more
    """

    text: str
    count: str
    at_least: bool = False

    @property
    def is_single(self) -> bool:
        """Whether this is the shape of a single element."""
        return not self.text or self.text.startswith("(")


@cache
def keeps_row_major_order(op: Op) -> bool:
    """Return whether the operator's result is its only input in row-major order, at all of its examples."""
    seen = [
        len(given) == len(scopes) == 1 and given[0] is not None and _in_order(scopes[0], given[0])
        for given, scopes in scopes_at_examples(op)
    ]
    return bool(seen) and all(seen)


def _in_order(scope: Scope, tensor: Tensor) -> bool:
    sizes = [n for n in (*scope.shape, *tensor.shape) if isinstance(n, int)]
    match scope.body:
        case Read(Tensor(name), _, None) if name == tensor.name and len(sizes) == scope.rank + tensor.rank:
            shape = tuple(sizes[scope.rank :])
            numbered = np.arange(float(prod(shape))).reshape(shape)
            return np.array_equal(np.ravel(interpret(scope, {tensor: numbered}, Reals())), numbered.ravel())
    return False


def without_order_keepers(rule: Rule) -> Rule | None:
    """Return the rule without operators that keep the order, and without conditions about them.

    Returns None where the theorem does not apply.
    """
    calls = [call for root in (*rule.lhs, *rule.rhs) for call in inner_first(root)]
    if len(rule.lhs) > 1 or not any(keeps_row_major_order(call.op) for call in calls):
        return None
    order = _OrderKeeperRemoval(rule)
    sides = [order.strip(root) for root in (*rule.lhs, *rule.rhs)]
    if any(side is None for side in sides):
        return None
    (left, first), (right, second) = sides  # type: ignore[misc]  # terms and their shapes
    bounds = first.at_least, second.at_least  # one side must have its number of elements for certain
    if any(bounds) and (all(bounds) or first.count != second.count):
        return None
    if not isinstance(left, Apply) and show_term(left) != show_term(right):
        return None
    known = bound_names(left)
    if not all(_uses_only(tree, known) for tree in attribute_expressions(right)):
        return None
    where = tuple(condition for condition in rule.where if _uses_only(condition, known))
    return replace(rule, lhs=(left,), rhs=(right,), where=where)


def _uses_only(tree: ast.expr, known: Collection[str]) -> bool:
    try:
        check_names(tree, known)
    except RuleError:
        return False
    return True


class _OrderKeeperRemoval:
    """Removes the operators that keep the order from the terms of a rule."""

    def __init__(self, rule: Rule):
        self._equal = equal_shape_pairs(rule)
        self._numbers, self._single = variables_where(rule, "rank", 0), variables_where(rule, "numel", 1)

    def strip(self, term: Term | None) -> tuple[Term, Shape] | None:
        """Return the term without order-keeping operators, and its shape; None if the theorem fails."""
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
                if keeps_row_major_order(op):
                    known = self.strip(args[0]) if len(args) == 1 else None
                    if known is None:
                        return None
                    left, shape = known
                    text = show_term(Apply(op, (Variable(shape.text),), attrs, rest))
                    return left, replace(shape, text=f"({text})" if shape.is_single else text)
                if not is_elementwise_for_all_types(op, tuple(arg is not None for arg in args)):
                    return None
                return self._strip_elementwise(term)
        return None

    def _strip_elementwise(self, term: Apply) -> tuple[Term, Shape] | None:
        """Return a call of an elementwise operator with stripped arguments, and its shape, see `strip`."""
        operands = [None if arg is None else self.strip(arg) for arg in term.args]
        if any(known is None and arg is not None for known, arg in zip(operands, term.args, strict=True)):
            return None
        shapes = [known[1] for known in operands if known is not None]
        wide = {shape for shape in shapes if not shape.is_single}
        counts = {shape.count for shape in wide}
        if len(counts) > 1:  # numbers of elements that are not known to be equal
            return None
        # a single element with more dimensions than the others adds leading dimensions of size 1
        ones = sorted({shape.text for shape in shapes if shape.is_single and shape.text})
        texts = [*sorted({shape.text for shape in wide}), *ones]
        text = "*".join(texts)
        # shapes of one count that are not known to be equal may broadcast to more elements
        at_least = len({shape.text for shape in wide}) > 1 or any(shape.at_least for shape in wide)
        result_shape = Shape(text if wide or len(texts) < 2 else f"({text})", "".join(counts), at_least)
        left = tuple(None if known is None else known[0] for known in operands)
        return Apply(term.op, left, term.attrs, term.rest), result_shape
