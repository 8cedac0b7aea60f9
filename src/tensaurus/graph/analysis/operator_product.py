"""Reads an operator's declaration as a sum of products of two tensors, data and weights, and its dimensions.

    Conv at an example   ->   sum[c, r, s](data[n, c, h + r - 1, w + s - 1] * weights[f, c, r, s])
    dimensions of data   ->   (n), (c), window of h and r, window of w and s

A sum of one tensor, as AveragePool, is taken for a product with weights that are all ones.
`matchable_operators` and `attribute_roles` look at operators in this form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

from tensaurus.expr.analysis.index_digits import order_by_slope
from tensaurus.expr.analysis.iterator_table import IteratorTable, iterator_table
from tensaurus.expr.ir.scope import Call, Const, Read, Reduce, Scope, Tensor
from tensaurus.expr.ir.walk import operands
from tensaurus.expr.sizes.affine import LinearForm
from tensaurus.expr.sizes.size import Axis, polynomial
from tensaurus.ops import Op, TensorType, Untypable

__all__ = ["Dimension", "Window", "product_table", "read_dimension", "split_scale"]


@dataclass(frozen=True)
class Window:
    """A dimension whose index is stride * place + dilation * tap - padding.

    place  an iterator of the output
    tap    a summation iterator
    """

    place: Axis
    tap: Axis


Dimension: TypeAlias = tuple[Axis, ...] | Window
"""The iterators whose row-major number is the index in a dimension, the slowest first; or a window."""


def product_table(op: Op, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> IteratorTable | None:
    """Return the iterator table of the operator as a sum of products, None where it is no such sum.

    The table's operands are data, weights and output.  A number by which a sum of one tensor is multiplied,
    as in a mean, is left out: a match takes it into account (`OperatorMatch.factor`).
    """
    try:
        canonical = op.canonical(tuple(types), dict(attrs))
        scopes = op.scopes(tuple(types), canonical)
    except (Untypable, ValueError):
        return None
    if len(scopes) != 1 or (split := split_scale(scopes[0])) is None:
        return None
    product, number = split
    if len(types) == 1:
        product = _times_ones(product)
    elif number != 1:
        return None  # a match of two tensors has no factor
    return iterator_table(product) if _is_product(product) else None


def split_scale(scope: Scope) -> tuple[Scope, Fraction] | None:
    """Return (sum, factor) where the scope is a sum times a number, else None."""
    body, number = scope.body, Fraction(1)
    if isinstance(body, Call) and body.fn in ("mul", "div") and isinstance(body.args[1], Const):
        value = body.args[1].value
        if isinstance(value, bool) or not isinstance(value, int | Fraction) or not value:
            return None
        number = Fraction(value) if body.fn == "mul" else 1 / Fraction(value)
        body = body.args[0]
    if not isinstance(body, Reduce) or body.monoid != "sum":
        return None
    return Scope(scope.axes, body), number


def _times_ones(scope: Scope) -> Scope:
    """Return a sum of elements as a sum of products with a tensor over the summation axes."""
    body = scope.body
    assert isinstance(body, Reduce)
    ones = Read(Tensor("ones", tuple(a.extent for a in body.axes)), tuple(map(polynomial, body.axes)))
    return Scope(scope.axes, Reduce(body.monoid, body.axes, Call("mul", (body.body, ones))))


def _is_product(scope: Scope) -> bool:
    """Return whether the scope adds up products of elements of two tensors, 0 beyond their edges."""
    body = scope.body
    if not isinstance(body, Reduce) or body.monoid != "sum" or not isinstance(body.body, Call):
        return False
    factors = operands(body.body)
    reads = [f for f in factors if isinstance(f, Read) and isinstance(f.source, Tensor)]
    zeros_outside = all(read.outside in (None, Const(0)) for read in reads)
    return body.body.fn == "mul" and len(reads) == len(factors) == 2 and zeros_outside


def read_dimension(form: LinearForm, extent: Any, table: IteratorTable) -> Dimension | None:
    """Return the dimension with this index, None where that is neither mixed-radix digits nor a window.

    Digits are one iterator, or several as in 4*h + d with d < 4.
    """
    digits = _mixed_radix_digits(form, extent)
    if digits is not None:
        return digits
    places = [a for a in form.slopes if not table.monoids[a]]
    taps = [a for a in form.slopes if table.monoids[a]]
    if len(places) != 1 or len(taps) != 1 or not all(isinstance(s, int) for s in form.slopes.values()):
        return None
    return Window(places[0], taps[0])


def _mixed_radix_digits(form: LinearForm, extent: Any) -> tuple[Axis, ...] | None:
    """Return the iterators, slowest first, if the form takes each value below the extent once; else None."""
    order = order_by_slope(form, {a: a.extent for a in form.slopes}, dense=False)
    if order is None or form.rest != 0:
        return None
    stride: Any = 1
    for a in order:
        if form.slopes[a] != stride:
            return None
        stride = stride * a.extent
    return tuple(reversed(order)) if stride == extent else None
