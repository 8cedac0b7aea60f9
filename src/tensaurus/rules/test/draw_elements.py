"""Elements for the leaves of an instance, drawn where laws break, and what its sides make of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import islice

import numpy as np

from tensaurus.expr.analysis.breaking_values import draw_integers
from tensaurus.expr.analysis.turning_points import GapRecorder, turning_points
from tensaurus.expr.evaluate.fields import Array, Field, Reals
from tensaurus.expr.ir.integer_types import integer_limits, is_integer
from tensaurus.graph.analysis.constant_folding import evaluate_node
from tensaurus.graph.ir.node import CONSTANT, ITEM, Node
from tensaurus.graph.ir.program import topological_order
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.test.instances import Instance
from tensaurus.rules.test.thresholds import numbers_in

__all__ = ["Draws", "Special", "leaf_values", "run"]

OFFSETS = tuple(Fraction(n, 8) for n in (-8, -1, 0, 1, 8))  # around a number that a rule writes
GRID = 64  # numbers are multiples of 1 / GRID: what is computed of them is exact in float64
FARTHEST = 1 << 20  # beyond, products of such are no longer
WATCHED = 2  # instances in which it is watched what numbers meet
LONG = 2**62  # the largest integer that a tensor is filled with to watch


class Draws:
    """Elements drawn uniformly; integers around what the law compares them with, and everywhere else.

    `whole` are the integers that the law names, `near` the numbers that a leaf meets, by its name.
    """

    def __init__(
        self, seed: int, whole: Collection[int] = (), near: Mapping[str, Collection[float]] | None = None
    ):
        self.seed, self.whole, self.near = seed, list(whole), dict(near or {})

    def floats(self, field: Field, shape: tuple[int, ...], rng: np.random.Generator, name: str) -> Array:
        return field.random(shape, rng)

    def integers(self, dtype: str, shape: tuple[int, ...], rng: np.random.Generator, name: str) -> Array:
        return draw_integers(dtype, shape, rng, [*self.whole, *map(int, self.near.get(name, ()))])


class Special(Draws):
    """Numbers at which laws break: zeros, both signs, fractions, large ones, and around those that meet the
    rule's own in one of the instances."""

    def __init__(self, rule: Rule, seed: int, instances: Iterable[Instance] = ()):
        own = numbers_in(rule)
        whole = sorted(int(n) for n in own if n.denominator == 1)
        super().__init__(seed, whole, met(islice(instances, WATCHED), seed))
        plain = [Fraction(n, 4) for n in (-40, -12, -7, -4, -2, -1, 0, 0, 0, 1, 2, 3, 4, 7, 12, 40)]
        around = sorted({number + step for number in own for step in OFFSETS})
        # no larger ones: products of three are still exact in float64
        self.numbers = np.array([float(n) for n in (*plain, -(2**14), 2**14, *around)])
        self._beside = {name: _beside(points) for name, points in self.near.items()}

    def uniform(self) -> Draws:
        """The same integers, and floats drawn uniformly."""
        return Draws(self.seed, self.whole, self.near)

    def floats(self, field: Field, shape: tuple[int, ...], rng: np.random.Generator, name: str) -> Array:
        if rng.random() < 0.3:
            return field.random(shape, rng)
        numbers = self.numbers[rng.integers(0, len(self.numbers), shape)]
        beside = self._beside.get(name)
        if beside is not None and rng.random() < 0.5:
            near = beside[rng.integers(0, len(beside), shape)]
            numbers = np.where(rng.random(shape) < 0.5, near, numbers)
        return field.lift(np.asarray(numbers))


def _beside(points: Collection[float]) -> Array | None:
    """Dyadic numbers at and beside each point: where it is none of them, which side is larger is rounding."""
    whole = {np.floor(p * GRID) for p in points if abs(p) < FARTHEST}
    near = sorted({(n + step) / GRID for n in whole for step in (-GRID, -1, 0, 1, 2, GRID)})
    return np.array(near) if near else None


def met(instances: Iterable[Instance], seed: int) -> dict[str, list[float]]:
    """Of each leaf by name, the numbers at which something that is computed from it turns."""
    found: dict[str, dict[float, None]] = {}
    for place, instance in enumerate(instances):
        base = leaf_values(instance, Reals(), np.random.default_rng((seed, place)))
        for name, leaf in sorted(instance.nodes.items()):
            if leaf not in instance.pinned and leaf.tensor.dtype != "bool" and base[leaf].size:
                found.setdefault(name, {}).update(dict.fromkeys(_met(instance, base, leaf)))
    return {name: list(points) for name, points in found.items() if points}


def _met(instance: Instance, base: Mapping[Node, Array], leaf: Node) -> list[float]:
    data, whole = base[leaf], is_integer(leaf.tensor.dtype)

    def gaps_at(number: float) -> Array | None:
        watched = GapRecorder()
        filled = np.full(data.shape, int(number) if whole else number, data.dtype)
        try:
            for roots in (instance.left, instance.right):
                run(roots, {**base, leaf: filled}, watched)
        except (IndexError, OverflowError):  # a place that there is not
            return None
        return watched.gaps

    if not whole:
        return turning_points(gaps_at)
    low, high = integer_limits(leaf.tensor.dtype)
    return turning_points(gaps_at, max(low, -LONG), min(high, LONG), whole=True)


def leaf_values(
    instance: Instance, field: Field, rng: np.random.Generator, draws: Draws | None = None
) -> dict[Node, Array]:
    """Elements for every leaf of an instance, but for the pinned ones their own."""
    draws = draws or Draws(0)
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


def run(roots: Sequence[Node], leaves: Mapping[Node, Array], field: Field) -> list[Array]:
    """The roots' elements in a field, given those of the leaves."""
    values = dict(leaves)
    for node in topological_order(roots):
        if node in values:
            continue
        if node.op is CONSTANT:
            values[node] = field.lift(node.attribute("data").array)
        elif node.op is ITEM or len(node.types) == 1:
            values[node] = evaluate_node(node, values, field)
    return [values[root] for root in roots]
