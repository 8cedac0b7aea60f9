"""Boundary tightening: elements that are zero for all inputs are not computed (EINNET, section 4.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tensaurus.expr.analysis.constant_regions import constant_boxes
from tensaurus.expr.analysis.summation_regions import summation_regions
from tensaurus.expr.ir.scope import Const, Read, Reduce, Scope, axis
from tensaurus.expr.ir.walk import operands, replace_axes
from tensaurus.expr.sizes.affine import affine_coefficients
from tensaurus.expr.sizes.size import Atom, Axis, Size, interval, polynomial
from tensaurus.finders.derive.rewrite_step import Step, axes_in, base_name, numeric_extent, product_of

__all__ = ["tightened"]


def tightened(scope: Scope) -> Iterator[Step]:
    """Yield the scope computed on the smallest box outside which its elements are zero, with zeros around it.

        L[t:6](sum[c](A[t - 1, c] | 0))   ->   L[t:6]({L[u:4](sum[c](A[u, c]))}[t - 1] | 0)      A of 4 rows
    """
    if not scope.axes or not all(isinstance(n, int) and n > 0 for n in scope.shape):
        return
    ranges = _nonzero_by_bounds(scope) if _is_product(scope) else _nonzero_by_regions(scope)
    if ranges is None or all(r == (0, numeric_extent(a) - 1) for a, r in ranges.items()):
        return
    values, axes, indices = dict[Atom, Any](), list[Axis](), list[Size]()
    for a, (low, high) in ranges.items():
        axes.append(axis(high - low + 1, base_name(a)))
        values[a] = polynomial(axes[-1]) + low
        indices.append(polynomial(a) - low)
    inner = Scope(tuple(axes), replace_axes(scope.body, values))
    name = " x ".join(str(a.extent) for a in axes)
    yield Step("boundary tightening", name, Scope(scope.axes, Read(inner, tuple(indices), Const(0))))


def _is_product(scope: Scope) -> bool:
    """Return whether the scope is a product or a sum of products: zero wherever one factor is."""
    body = scope.body
    if isinstance(body, Reduce):
        return body.monoid == "sum"
    return isinstance(body, Read) or len(operands(body, "mul")) > 1


def _nonzero_by_bounds(scope: Scope) -> Mapping[Axis, tuple[int, int]] | None:
    """Return {axis: (first, last)}: elsewhere a guard fails, or a factor is 0 as it is read beyond an edge.

    Guards and indices are bounded one by one.  None where the range of an axis is empty.
    """
    body = scope.body
    guards, factors = product_of(body.body if isinstance(body, Reduce) else body)
    required: list[Size] = list(guards)  # sizes of which none may be negative, or the product is zero
    for factor in factors:
        if isinstance(factor, Read) and factor.outside == Const(0):
            for index, extent in zip(factor.indices, factor.source.shape, strict=True):
                required += [index, extent - 1 - polynomial(index)]
    ranges = {a: (0, numeric_extent(a) - 1) for a in scope.axes}
    for size in required:
        inside = [a for a in scope.axes if a in axes_in(size)]
        if len(inside) != 1 or (form := affine_coefficients(size, inside)) is None:
            continue
        (a,), rest = inside, interval(form.rest)[1]
        slope = form.slopes.get(a)
        if not isinstance(slope, int) or not isinstance(rest, int) or slope == 0:
            continue
        low, high = ranges[a]
        # slope * a + rest >= 0 for the largest possible rest
        ranges[a] = (max(low, -(rest // slope)), high) if slope > 0 else (low, min(high, rest // -slope))
    return ranges if all(low <= high for low, high in ranges.values()) else None


def _nonzero_by_regions(scope: Scope) -> Mapping[Axis, tuple[int, int]] | None:
    """Return {axis: (first, last)} of the boxes that are not known to be zero, None where none is zero."""
    zero = {box for box, value in constant_boxes(scope) if value == 0 and not isinstance(value, bool)}
    boxes = [region.box for region in summation_regions(scope) if region.box not in zero] if zero else []
    ranges = dict[Axis, tuple[int, int]]()
    for number, a in enumerate(scope.axes):
        ends = [(box.sides[number].start, box.sides[number].last) for box in boxes]
        numbers = [(low, high) for low, high in ends if isinstance(low, int) and isinstance(high, int)]
        if not ends or len(numbers) < len(ends):
            return None
        ranges[a] = min(low for low, _ in numbers), max(high for _, high in numbers)
    return ranges
