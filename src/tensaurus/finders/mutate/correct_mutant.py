"""Corrects mutants: where a mutant differs from the original, the original's expression is computed.

    y[n, f, h, w]  =  c0[n, f, h, 0]                     where w = 8       c0: the original there
                      z[n // 2, f, h, 9*(n % 2) + w]     elsewhere         z: the mutant's operator

The corrected mutant is an ordinary equation, equal in every element (PET, section 5.2, step 3): the e-graph
holds it beside all others, and nothing that is equal in part only ever reaches an extraction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf, prod

import numpy as np

from tensaurus.expr.analysis.box import (
    Box,
    Progression,
    progression_between,
    split_into_progressions,
    subtract_boxes,
)
from tensaurus.expr.ir.scope import Body, Const, Read, Scope, Tensor, where
from tensaurus.expr.ir.walk import replace_tensors, tensors
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.expr.sizes.size import Axis, Size, mod, polynomial
from tensaurus.finders.mutate.compare_boxes import (
    BoxesUndecided,
    ComparedBox,
    compare_boxes,
    error_bits,
    restrict_scope,
)
from tensaurus.finders.mutate.mutant_search import Mutant, OutputMap
from tensaurus.finders.mutate.subprogram import Subprogram
from tensaurus.graph.analysis.program_expression import build_expressions
from tensaurus.graph.ir.node import Node, apply
from tensaurus.ops import Untypable
from tensaurus.ops.eop import eop
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.evidence import Evidence, Proved, Tested
from tensaurus.rules.language.node_text import format_nodes

__all__ = ["CorrectedMutant", "MutantExpressions", "correct_mutant", "join_boxes"]

MAX_WASTE = 0.25  # elements that joining two boxes may correct without need, as a fraction of theirs
MAX_REPEATED = 1.6  # elements of two boxes that are joined, as a multiple of theirs: some are in others, too
MAX_PATHS = 4096  # ways through the choices between the boxes of one output: evaluation visits each


@dataclass(frozen=True)
class CorrectedMutant:
    """A mutant, the boxes in which it equals the original or not, and the equation of the corrected program.

    compared     for each output of the subprogram its boxes
    corrections  for each output the boxes that are corrected, joined where that wastes little
    """

    mutant: Mutant
    compared: tuple[tuple[ComparedBox, ...], ...]
    corrections: tuple[tuple[Box, ...], ...]
    equation: Equation

    @property
    def corrected_share(self) -> float:
        """The share of the elements that corrections compute."""
        total = sum(box.points for boxes in self.compared for box in boxes)
        return sum(_points(box) for boxes in self.corrections for box in boxes) / total

    @property
    def proved_share(self) -> float:
        """The share of the agreeing boxes in which that is proved."""
        agreeing = [box for boxes in self.compared for box in boxes if box.agrees]
        return sum(box.is_proved for box in agreeing) / max(1, len(agreeing))


class MutantExpressions:
    """The expressions of a subprogram's outputs and of a mutant's, over tensors in place of the inputs."""

    def __init__(self, subprogram: Subprogram, mutant: Mutant):
        """Raises Untypable where the mutant's operator does not accept its operands at these sizes."""
        named = {
            node: Tensor(f"x{k}", node.tensor.shape, node.tensor.dtype)
            for k, node in enumerate(subprogram.inputs)
        }
        self._node_of = {tensor: node for node, tensor in named.items()}
        self._core = mutant.candidate.build(subprogram.inputs)
        self._core_tensor = Tensor("core", self._core.tensor.shape, self._core.tensor.dtype)
        core_scope, *originals = build_expressions([self._core, *subprogram.roots], named)
        self.originals: Sequence[Scope] = originals
        self._moved = [_read_map(self._core_tensor, output_map) for output_map in mutant.maps]
        self.mutants = [replace_tensors(moved, {self._core_tensor: core_scope}) for moved in self._moved]

    def correct_output(self, place: int, boxes: Sequence[Box]) -> Node:
        """Return one output: in each box what the original's expression computes, else the mutant."""
        original, moved = self.originals[place], self._moved[place]
        if not boxes and _is_whole(moved, self._core):
            return self._core
        body: Body = moved.body
        node_of = {self._core_tensor: self._core}
        for k, box in reversed(list(enumerate(boxes))):
            slab = _apply_scope(restrict_scope(original, box), self._node_of)
            tensor = Tensor(f"slab{k}", slab.tensor.shape, slab.tensor.dtype)
            node_of[tensor] = slab
            sides = list(zip(moved.axes, box.sides, strict=True))
            element = Read(tensor, tuple(_place_in(a, side) for a, side in sides))
            guard = [size for a, side in sides for size in _membership(a, side)]
            body = where(guard, element, body) if guard else element
        return _apply_scope(Scope(moved.axes, body), node_of)


def correct_mutant(
    subprogram: Subprogram, mutant: Mutant, seed: int = 0, deadline: float = inf
) -> CorrectedMutant:
    """Return the mutant with what it lacks.

    Raises BoxesUndecided where its boxes are not known, or too many would be corrected; Untypable.
    """
    expressions = MutantExpressions(subprogram, mutant)
    results, compared, corrections = list[Node](), list[tuple[ComparedBox, ...]](), list[tuple[Box, ...]]()
    for place, scopes in enumerate(zip(expressions.originals, expressions.mutants, strict=True)):
        boxes = compare_boxes(*scopes, seed, deadline)
        wrong = join_boxes([each.box for each in boxes if not each.agrees])
        if _count_paths(scopes[0], wrong) > MAX_PATHS:
            raise BoxesUndecided(f"{len(wrong)} corrections, which cut the output in too many parts")
        results.append(expressions.correct_output(place, wrong))
        compared.append(tuple(boxes))
        corrections.append(tuple(wrong))
    if any(new.types != old.types for new, old in zip(results, subprogram.roots, strict=True)):
        raise Untypable("a mutant with another type")
    evidence = _make_evidence([b for boxes in compared for b in boxes], sum(map(len, corrections)))
    law = f"{format_nodes(*subprogram.roots)} => {format_nodes(*results)}"
    name = f"mutant-{str(mutant.candidate.op).lower()}"
    equation = Equation(name, law, subprogram.roots, tuple(results), subprogram.inputs, evidence)
    return CorrectedMutant(mutant, tuple(compared), tuple(corrections), equation)


def _points(box: Box) -> int:
    points = box.points
    assert isinstance(points, int)
    return points


def _read_map(source: Tensor, output_map: OutputMap) -> Scope:
    """Return the mutant's elements in the shape of the original's output, 0 where the map leads beyond."""
    return Scope(output_map.axes, Read(source, output_map.indices, Const(0)))


def _make_evidence(compared: Sequence[ComparedBox], corrections: int) -> Evidence:
    """Return a proof where every agreeing box is proved: corrections are the original's expression itself."""
    agreeing = [box for box in compared if box.agrees]
    proved = sum(box.is_proved for box in agreeing)
    if proved == len(agreeing):
        return Proved("algebra", f"equal in {len(agreeing)} boxes, {corrections} corrected, at these sizes")
    coverage = f"{len(agreeing)} boxes at m + 1 places each, {proved} proved, {corrections} corrected"
    return Tested("gf", coverage, 1, error_bits(len(agreeing)))


def join_boxes(boxes: Sequence[Box]) -> list[Box]:
    """Return boxes that hold at least the given ones, fewer where joining some of them wastes little.

    Boxes may overlap: two rows and two columns that cross are four boxes, not eight.
    """
    joined = list(boxes)
    for d in range(len(boxes[0].sides) if boxes else 0):
        joined = _merge_along(joined, d)
    while (joint := _cheap_joint(joined)) is not None:
        joined = [box for box in joined if subtract_boxes(box, [joint])] + [joint]
    return [box for k, box in enumerate(joined) if subtract_boxes(box, joined[:k] + joined[k + 1 :])]


def _merge_along(boxes: Sequence[Box], d: int) -> list[Box]:
    """Return boxes of the same elements: those that differ in side d alone are merged to intervals there.

    Rows 8, 18, 28 and rows 9, 19, 29, as strides leave them, are the rows 8:10, 18:20, 28:30.
    """
    indices: dict[tuple[Progression, ...], set[int]] = {}
    for box in boxes:
        others = (*box.sides[:d], *box.sides[d + 1 :])
        side = box.sides[d]
        numbers = (side[k] for k in range(side.count)) if isinstance(side.count, int) else ()
        indices.setdefault(others, set()).update(n for n in numbers if isinstance(n, int))
    merged = []
    for others, found in indices.items():
        ordered = np.array(sorted(found))
        runs = np.split(ordered, np.flatnonzero(np.diff(ordered) != 1) + 1)
        lattice = list(split_into_progressions(ordered))
        intervals = [Progression(int(run[0]), len(run)) for run in runs]
        sides = lattice if len(lattice) < len(intervals) else intervals
        merged += [Box((*others[:d], side, *others[d:])) for side in sides]
    return merged


def _cheap_joint(boxes: Sequence[Box]) -> Box | None:
    """Return a box that may take the place of those inside it, None where each would waste too much."""
    pairs = (_hull(a, b) for a, b in combinations(boxes, 2))
    for joint in (*_stretched(boxes), *(hull for hull in pairs if hull is not None)):
        inside = [box for box in boxes if not subtract_boxes(box, [joint])]
        own = sum(map(_points, inside))
        if len(inside) < 2 or _points(joint) > MAX_REPEATED * own:
            continue
        uncovered = subtract_boxes(joint, boxes) or ()
        if sum(map(_points, uncovered)) <= MAX_WASTE * own:
            return joint
    return None


def _stretched(boxes: Sequence[Box]) -> Iterator[Box]:
    """Yield each box as long in each dimension as all boxes together."""
    for d in range(len(boxes[0].sides) if boxes else 0):
        low = min(side.start for side in (box.sides[d] for box in boxes) if isinstance(side.start, int))
        high = max(last for box in boxes if isinstance(last := box.sides[d].last, int))
        for box in boxes:
            yield Box((*box.sides[:d], progression_between(low, high), *box.sides[d + 1 :]))


def _hull(a: Box, b: Box) -> Box | None:
    """Return the smallest box of both, None where their sides have no common step."""
    sides = [_hull_of_sides(x, y) for x, y in zip(a.sides, b.sides, strict=True)]
    return None if None in sides else Box(tuple(side for side in sides if side is not None))


def _hull_of_sides(a: Progression, b: Progression) -> Progression | None:
    if a == b:
        return a
    numbers = [n for n in (a.start, b.start, a.last, b.last) if isinstance(n, int)]
    steps = {side.step for side in (a, b) if side.count != 1}
    gap = abs(numbers[0] - numbers[1])
    step = steps.pop() if len(steps) == 1 else gap if not steps else 0
    return progression_between(min(numbers), max(numbers), step) if step and gap % step == 0 else None


def _apply_scope(scope: Scope, node_of: Mapping[Tensor, Node]) -> Node:
    """Return the eOperator of an expression over tensors that stand for nodes."""
    used = tensors(scope)
    names = {x: Tensor(f"x{k}", x.shape, x.dtype) for k, x in enumerate(used)}
    renamed = intern_scope(replace_tensors(scope, names))
    return apply(eop, [node_of[x] for x in used], {"scope": renamed})


def _is_whole(moved: Scope, core: Node) -> bool:
    """Return whether the moved elements are those of the mutant's operator, in their places."""
    body, places = moved.body, tuple(map(polynomial, moved.axes))
    return moved.shape == core.tensor.shape and isinstance(body, Read) and body.indices == places


def _count_paths(scope: Scope, boxes: Sequence[Box]) -> int:
    """Return a bound of the ways in which a place may be in or beyond each of the boxes."""
    guards = [
        sum(len(_membership(a, side)) for a, side in zip(scope.axes, box.sides, strict=True)) for box in boxes
    ]
    return prod(1 + count for count in guards)


def _place_in(a: Axis, side: Progression) -> Size:
    return (polynomial(a) - side.start) // side.step  # type: ignore[no-any-return]


def _membership(a: Axis, side: Progression) -> list[Size]:
    """Return sizes that all are at least 0 where the axis is in the side; none where it always is."""
    index = polynomial(a)
    guard = list[Size]()
    if side.start != 0:
        guard.append(index - side.start)
    if side.stop != a.extent and side.last != a.extent - 1:
        guard.append(side.last - index)
    if side.step > 1:
        guard.append(0 - mod(index - side.start, side.step))
    return guard
