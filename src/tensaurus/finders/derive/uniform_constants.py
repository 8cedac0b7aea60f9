"""Constants whose elements are one number, as that number: with such weights a sum of products is one of
elements.

    sum[r, s](x[i + r, j + s] * w[r, s])  =  sum[r, s](x[i + r, j + s] * 1/9)      w: 1/9 everywhere
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from tensaurus.expr.ir.scope import Body, Const, Read, Scope, Tensor
from tensaurus.expr.ir.walk import Rewriting
from tensaurus.graph.ir.node import CONSTANT, Node
from tensaurus.ops import TensorType

__all__ = ["alike", "filled"]

FEW = 64  # elements that are looked at first


def alike(node: Node) -> Fraction | None:
    """The number that all elements of a constant are; None where they differ, or are none of floats, and for
    zero: infinity times zero is none."""
    kind = node.types[0] if node.op is CONSTANT else None
    if not isinstance(kind, TensorType) or not kind.dtype.startswith("float"):
        return None
    numbers = node.attribute("data").array.reshape(-1)
    first = numbers[0] if numbers.size else 0
    if not first or not np.isfinite(first) or not (numbers[:FEW] == first).all():
        return None
    return Fraction(float(first)) if (numbers == first).all() else None


def filled(scope: Scope, numbers: Mapping[Tensor, Fraction]) -> Scope:
    """The scope with numbers in the place of what it reads of such constants."""
    return _Filling(numbers).scope(scope) if numbers else scope


class _Filling(Rewriting):
    def __init__(self, numbers: Mapping[Tensor, Fraction]):
        super().__init__()
        self.numbers = numbers

    def body(self, body: Body) -> Body:
        if isinstance(body, Read) and isinstance(body.source, Tensor) and body.source in self.numbers:
            number = Const(self.numbers[body.source])
            if body.outside in (None, number):
                return number
        return super().body(body)
