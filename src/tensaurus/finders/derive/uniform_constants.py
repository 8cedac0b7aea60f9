"""Replaces constants whose elements are all one number by that number.

    sum[r, s](x[i + r, j + s] * w[r, s])  =  sum[r, s](x[i + r, j + s] * 1/9)      w: 1/9 everywhere

A sum of products with such weights can then match an operator of one tensor, such as AveragePool.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from tensaurus.expr.ir.scope import Body, Const, Read, Scope, Tensor
from tensaurus.expr.ir.walk import Rewriting
from tensaurus.graph.ir.node import CONSTANT, Node
from tensaurus.ops import TensorType

__all__ = ["inline_numbers", "uniform_value"]

FIRST_ELEMENTS = 64  # elements that are compared first: most constants differ within these


def uniform_value(node: Node) -> Fraction | None:
    """Return the number that all elements of a float constant are, None where they differ or for other nodes.

    None for zero, too: it must not replace a tensor, as infinity times zero is not zero.
    """
    kind = node.types[0] if node.op is CONSTANT else None
    if not isinstance(kind, TensorType) or not kind.dtype.startswith("float"):
        return None
    numbers = node.attribute("data").array.reshape(-1)
    first = numbers[0] if numbers.size else 0
    if not first or not np.isfinite(first) or not (numbers[:FIRST_ELEMENTS] == first).all():
        return None
    return Fraction(float(first)) if (numbers == first).all() else None


def inline_numbers(scope: Scope, numbers: Mapping[Tensor, Fraction]) -> Scope:
    """Return the scope with reads of these tensors replaced by numbers.

    A read that has another value outside the tensor stays.
    """
    return _Inlining(numbers).scope(scope) if numbers else scope


class _Inlining(Rewriting):
    def __init__(self, numbers: Mapping[Tensor, Fraction]):
        super().__init__()
        self.numbers = numbers

    def body(self, body: Body) -> Body:
        if isinstance(body, Read) and isinstance(body.source, Tensor) and body.source in self.numbers:
            number = Const(self.numbers[body.source])
            if body.outside in (None, number):
                return number
        return super().body(body)
