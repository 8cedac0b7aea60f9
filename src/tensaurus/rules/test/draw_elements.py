"""Draw elements for the leaves of an instance where laws are likely to break, and evaluate both sides.

Laws break near the numbers that they write, and where a computed value *turns*: where a comparison, max or
rounding in the computation changes its outcome (`turning_points`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import islice

import numpy as np

from tensaurus.expr.analysis.breaking_values import draw_integers
from tensaurus.expr.analysis.turning_points import GapRecorder, turning_points
from tensaurus.expr.evaluate.fields import Array, Field, Reals
from tensaurus.expr.ir.integer_types import integer_limits, is_integer
from tensaurus.graph.analysis.evaluate_node import evaluate_node
from tensaurus.graph.ir.node import CONSTANT, ITEM, Node
from tensaurus.graph.ir.program import topological_order
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.test.instances import Instance
from tensaurus.rules.test.thresholds import numbers_in

__all__ = ["ElementDraws", "BreakingDraws", "draw_leaf_values", "evaluate_roots"]

LITERAL_OFFSETS = tuple(Fraction(n, 8) for n in (-8, -1, 0, 1, 8))  # added to each number that a rule writes
GRID = 64  # drawn numbers are multiples of 1 / GRID, so that float64 results are exact
MAX_EXACT = 1 << 20  # products of larger multiples of 1 / GRID are not exact
WATCHED_INSTANCES = 2  # instances that are evaluated to find turning points
MAX_WATCHED_INTEGER = 2**62  # largest integer that a leaf is filled with to find turning points


class ElementDraws:
    """Draws floats uniformly, and integers uniformly or near those that the law compares them with.

    law_integers  the integers that the law names
    thresholds    by leaf, the numbers at which a value computed from the leaf turns
    """

    def __init__(
        self,
        seed: int,
        law_integers: Collection[int] = (),
        thresholds: Mapping[str, Collection[float]] | None = None,
    ):
        self.seed, self.law_integers, self.thresholds = seed, list(law_integers), dict(thresholds or {})

    def floats(self, field: Field, shape: tuple[int, ...], rng: np.random.Generator, name: str) -> Array:
        return field.random(shape, rng)

    def integers(self, dtype: str, shape: tuple[int, ...], rng: np.random.Generator, name: str) -> Array:
        near = [*self.law_integers, *map(int, self.thresholds.get(name, ()))]
        return draw_integers(dtype, shape, rng, near)


class BreakingDraws(ElementDraws):
    """Draws numbers at which laws break: zeros, both signs, fractions, large numbers, and near thresholds.

    Thresholds are the law's own numbers, and those at which a computed value turns in one of the instances.
    """

    def __init__(self, rule: Rule, seed: int, instances: Iterable[Instance] = ()):
        own = numbers_in(rule)
        law_integers = sorted(int(n) for n in own if n.denominator == 1)
        watched = islice(instances, WATCHED_INSTANCES)
        super().__init__(seed, law_integers, leaf_turning_points(watched, seed))
        plain = [Fraction(n, 4) for n in (-40, -12, -7, -4, -2, -1, 0, 0, 0, 1, 2, 3, 4, 7, 12, 40)]
        around = sorted({number + step for number in own for step in LITERAL_OFFSETS})
        # no larger numbers: products of three of these are exact in float64
        self.numbers = np.array([float(n) for n in (*plain, -(2**14), 2**14, *around)])
        self._neighbours = {name: _dyadic_neighbours(points) for name, points in self.thresholds.items()}

    def uniform(self) -> ElementDraws:
        """Return draws of the same integers, with floats drawn uniformly."""
        return ElementDraws(self.seed, self.law_integers, self.thresholds)

    def floats(self, field: Field, shape: tuple[int, ...], rng: np.random.Generator, name: str) -> Array:
        if rng.random() < 0.3:
            return field.random(shape, rng)
        numbers = self.numbers[rng.integers(0, len(self.numbers), shape)]
        beside = self._neighbours.get(name)
        if beside is not None and rng.random() < 0.5:
            near = beside[rng.integers(0, len(beside), shape)]
            numbers = np.where(rng.random(shape) < 0.5, near, numbers)
        return field.lift(np.asarray(numbers))


def _dyadic_neighbours(points: Collection[float]) -> Array | None:
    """Return dyadic numbers at and near each point: at other points rounding would decide comparisons."""
    floors = {np.floor(p * GRID) for p in points if abs(p) < MAX_EXACT}
    near = sorted({(n + step) / GRID for n in floors for step in (-GRID, -1, 0, 1, 2, GRID)})
    return np.array(near) if near else None


def leaf_turning_points(instances: Iterable[Instance], seed: int) -> dict[str, list[float]]:
    """Return, by leaf, the numbers at which a value computed from the leaf turns."""
    found: dict[str, dict[float, None]] = {}
    for place, instance in enumerate(instances):
        base = draw_leaf_values(instance, Reals(), np.random.default_rng((seed, place)))
        for name, leaf in sorted(instance.nodes.items()):
            if leaf not in instance.pinned and leaf.tensor.dtype != "bool" and base[leaf].size:
                found.setdefault(name, {}).update(dict.fromkeys(_turning_points_of(instance, base, leaf)))
    return {name: list(points) for name, points in found.items() if points}


def _turning_points_of(instance: Instance, base: Mapping[Node, Array], leaf: Node) -> list[float]:
    data, is_whole = base[leaf], is_integer(leaf.tensor.dtype)

    def gaps_at(number: float) -> Array | None:
        watched = GapRecorder()
        filled = np.full(data.shape, int(number) if is_whole else number, data.dtype)
        try:
            for roots in (instance.left, instance.right):
                evaluate_roots(roots, {**base, leaf: filled}, watched)
        except (IndexError, OverflowError):  # the number is used as an index
            return None
        return watched.gaps

    if not is_whole:
        return turning_points(gaps_at)
    low, high = integer_limits(leaf.tensor.dtype)
    return turning_points(gaps_at, max(low, -MAX_WATCHED_INTEGER), min(high, MAX_WATCHED_INTEGER), whole=True)


def draw_leaf_values(
    instance: Instance, field: Field, rng: np.random.Generator, draws: ElementDraws | None = None
) -> dict[Node, Array]:
    """Draw elements for every leaf of an instance; pinned leaves keep their own."""
    draws = draws or ElementDraws(0)
    values: dict[Node, Array] = {}
    for name, leaf in sorted(instance.nodes.items()):
        kind = leaf.tensor
        shape = tuple(n for n in kind.shape if isinstance(n, int))
        if leaf in instance.pinned:
            values[leaf] = field.lift(leaf.attribute("data").array)
        elif kind.dtype.startswith("float"):
            values[leaf] = draws.floats(field, shape, rng, name)
        else:
            values[leaf] = field.lift(draws.integers(kind.dtype, shape, rng, name))
    return values


def evaluate_roots(roots: Sequence[Node], leaves: Mapping[Node, Array], field: Field) -> list[Array]:
    """Return the roots' elements in a field, given those of the leaves."""
    values = dict(leaves)
    for node in topological_order(roots):
        if node in values:
            continue
        if node.op is CONSTANT:
            values[node] = field.lift(node.attribute("data").array)
        elif node.op is ITEM or len(node.types) == 1:
            values[node] = evaluate_node(node, values, field)
    return [values[root] for root in roots]
