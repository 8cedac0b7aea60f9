"""Decides in which boxes of the output a mutant equals the original (PET, sections 5.1 and 5.2).

Both programs are sums of products.  The output is cut into boxes in which both add up the same terms at
every place, and read affine indices (`expr/analysis/summation_regions`).  In such a box two multilinear
programs are equal where they are equal at one place and its neighbour in each dimension (theorem 1), and
there where they have the same value at a random point of GF(p), p = 2^31 - 1, but with a probability of at
most 2 / p (theorem 2).

What agrees is also proved, if the canonical forms of both expressions in the box are the same: then no
probability is left.  A box in which the programs differ at the tested places is corrected as a whole
(`correct_mutant`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, inf, log2
from time import monotonic
from typing import Any

import numpy as np

from tensaurus.expr.analysis.box import Box, Progression, intersection, is_empty
from tensaurus.expr.analysis.summation_regions import Region, summation_regions
from tensaurus.expr.evaluate.interpret import Evaluation
from tensaurus.expr.evaluate.prime_field import P
from tensaurus.expr.evaluate.two_point_field import PrimeFieldPairs
from tensaurus.expr.ir.scope import Body, Reduce, Scope, Tensor, axis
from tensaurus.expr.ir.walk import rebuild_body, replace_axes, tensors
from tensaurus.expr.normal.canonicalize import are_equal_expressions
from tensaurus.expr.normal.flatten import FlatBodyTooLarge, flatten
from tensaurus.expr.sizes.size import Atom, polynomial
from tensaurus.finders.mutate.subprogram import known_number

__all__ = ["BoxesUndecided", "ComparedBox", "compare_boxes", "error_bits", "restrict_scope"]

MAX_BOX_PAIRS = 512  # overlaps of a box of each program: more are not worth correcting
DEGREE = 2  # of the polynomials: a sum of products of data and weights


class BoxesUndecided(Exception):
    """Raised where the boxes of two programs are not known, or are too many; the text says why."""


@dataclass(frozen=True)
class ComparedBox:
    """A box of the output, and whether both programs agree in all of it.

    is_proved  whether that follows from their canonical forms; else it was tested over GF(2^31 - 1)
    """

    box: Box
    agrees: bool
    is_proved: bool = False

    @property
    def points(self) -> int:
        points = self.box.points
        assert isinstance(points, int)
        return points


def compare_boxes(original: Scope, mutant: Scope, seed: int = 0, deadline: float = inf) -> list[ComparedBox]:
    """Compare two multilinear programs of one shape, whose sizes are numbers, in each pair of their boxes.

    After the deadline (of `time.monotonic`) boxes are tested, but not proved.  Raises BoxesUndecided.
    """
    regions = [_affine_regions(scope) for scope in (original, mutant)]
    pairs = [(a, b, _common_box(a, b)) for a in regions[0] for b in regions[1]]
    overlaps = [(a, b, box) for a, b, box in pairs if box is not None]
    if len(overlaps) > MAX_BOX_PAIRS:
        raise BoxesUndecided(f"{len(overlaps)} boxes, more than {MAX_BOX_PAIRS}")
    tester = _Tester(original, mutant, seed)
    compared = []
    for a, b, box in overlaps:
        agrees = tester.agree_near_corner(box)
        proved = agrees and monotonic() < deadline and tester.are_equal_in(box, a, b)
        compared.append(ComparedBox(box, agrees, proved))
    return compared


def error_bits(boxes: int) -> int:
    """Return b where a wrong agreement in any of so many boxes has a probability below 2^-b.

    Every test is at two independent points of the field.
    """
    return int(2 * log2(P / DEGREE) - ceil(log2(max(1, boxes))))


def restrict_scope(scope: Scope, box: Box) -> Scope:
    """Return the expression of the elements in the box, of the shape of its counts."""
    values: dict[Atom, Any] = {}
    axes = []
    for old, side in zip(scope.axes, box.sides, strict=True):
        new = axis(side.count)
        axes.append(new)
        values[old] = side.start + polynomial(new) * side.step
    return Scope(tuple(axes), replace_axes(scope.body, values))


def _affine_regions(scope: Scope) -> Sequence[Region]:
    regions = summation_regions(scope, affine=True)
    if any(region.summations is None for region in regions):
        raise BoxesUndecided("its summation intervals are not known")
    if not all(region.affine for region in regions):
        raise BoxesUndecided("its indices are not affine in boxes")
    return regions


def _common_box(a: Region, b: Region) -> Box | None:
    common = intersection(a.box, b.box)
    if common is None:
        raise BoxesUndecided("its boxes have no numbers as sizes")
    return None if is_empty(common) else common


class _Tester:
    """Evaluates both programs at places of boxes, on the same random inputs from the field."""

    def __init__(self, original: Scope, mutant: Scope, seed: int):
        field = PrimeFieldPairs(seed)
        rng = np.random.default_rng(seed)
        inputs = dict.fromkeys((*tensors(original), *tensors(mutant)))
        values = {x: field.random(tuple(map(known_number, x.shape)), rng) for x in _in_order(inputs)}
        self.evaluation = Evaluation(values, field, {})
        try:  # without inner scopes: of these every element would be computed, not just those of a place
            self.scopes = [Scope(scope.axes, flatten(scope)) for scope in (original, mutant)]
        except FlatBodyTooLarge as error:
            raise BoxesUndecided("its expression is too large") from error

    def agree_near_corner(self, box: Box) -> bool:
        """Return whether both agree at the first place of the box and at all its neighbours there.

        These are the m + 1 places of theorem 1, and those between them.
        """
        near = Box(tuple(_first_two(side) for side in box.sides))
        first, second = (self.evaluation.scope(restrict_scope(scope, near)) for scope in self.scopes)
        return bool(np.array_equal(first, second))

    def are_equal_in(self, box: Box, *regions: Region) -> bool:
        """Return whether the canonical forms of both are the same in the box, which is in a region of each.

        Sums are cut to the points that contribute there, so that no guard is left to compare.
        """
        first, second = (
            restrict_scope(_narrow_sums(scope, region), box)
            for scope, region in zip(self.scopes, regions, strict=True)
        )
        return are_equal_expressions(first, second)


def _narrow_sums(scope: Scope, region: Region) -> Scope:
    """Return a flat scope whose sums run over the points that contribute in the region, where known."""
    summations = iter(region.summations or ())

    def narrow(body: Body) -> Body:
        if not isinstance(body, Reduce):
            return rebuild_body(body, narrow, lambda size: size)
        summation = next(summations)
        inner = narrow(body.body)
        if summation.points is None or summation.axes != body.axes:
            return Reduce(body.monoid, body.axes, inner)
        values: dict[Atom, Any] = {}
        axes = []
        for a, side in zip(body.axes, summation.points.sides, strict=True):
            axes.append(axis(side.count))
            values[a] = side.start + polynomial(axes[-1]) * side.step
        return Reduce(body.monoid, tuple(axes), replace_axes(inner, values))

    return Scope(scope.axes, narrow(scope.body))


def _first_two(side: Progression) -> Progression:
    return Progression(side.start, min(2, known_number(side.count)), side.step)


def _in_order(inputs: dict[Tensor, None]) -> Iterator[Tensor]:
    yield from sorted(inputs, key=lambda x: (len(x.name), x.name))
