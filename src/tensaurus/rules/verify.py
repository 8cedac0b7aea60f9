"""Is a rule right?  Its two sides are compared on typed instances, in the strongest field that settles it.

`gf`         random points of GF(2^31-1): a false identity of degree d passes one trial with probability d/p
`z3`         a proof for all real elements at the instance's shapes (max, min, abs, signs of constants)
`rationals`  exact fractions with the true max and min: no error bound, used where Z3 gives no answer
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

import numpy as np

from tensaurus.algebra.analysis import degree
from tensaurus.algebra.field import Array, Field, P, Prime, Rationals, Terms
from tensaurus.graph.fold import evaluated
from tensaurus.graph.node import CONSTANT, INPUT, ITEM, Node
from tensaurus.graph.program import topological
from tensaurus.ops import Op, TensorType
from tensaurus.rules.instances import Instance, elements, instances
from tensaurus.rules.rule import Evidence, Rule

INSTANCES = 8
TRIALS = 2


@dataclass(frozen=True)
class Refuted:
    """A rule that is wrong, with a counterexample; or one on which nothing could be tried."""

    rule: Rule
    reason: str


def verify(rule: Rule, wanted: int = INSTANCES, seed: int = 0) -> Evidence | Refuted:
    """The evidence that a rule is right, or why it is not."""
    found = list(instances(rule, wanted, seed))
    if not found:
        return Refuted(rule, "no instance of it types")
    failure = _failing(found, [Prime(seed + t) for t in range(TRIALS)], seed)
    if failure is None:
        bound = max(_degree(i) for i in found) / P
        text = f"error < 2^{-int(-TRIALS * log2(bound))}"
        return Evidence("tested", "gf", f"{len(found)} instances, {TRIALS} trials, {text}")
    failure = _failing(found, [Rationals(seed + t) for t in range(2 * TRIALS)], seed)
    if failure is not None:
        return Refuted(rule, f"differs on {failure}")
    small = sorted(found, key=_elements)[:3]
    try:
        if _failing(small, [Terms()], seed) is None:
            return Evidence("proved", "z3", f"all reals, {len(small)} instances")
    except (NotImplementedError, ValueError, TypeError):
        pass
    return Evidence("tested", "rationals", f"{len(found)} instances, {2 * TRIALS} trials, no error bound")


def _elements(instance: Instance) -> int:
    return sum(elements(leaf.tensor) for leaf in instance.leaves)


def _failing(found: Sequence[Instance], fields: Sequence[Field], seed: int) -> Instance | None:
    for place, instance in enumerate(found):
        for trial, field in enumerate(fields):
            values = leaf_values(instance, field, np.random.default_rng((seed, place, trial)))
            left, right = (run(roots, values, field) for roots in (instance.left, instance.right))
            if not all(field.equal(a, b) for a, b in zip(left, right, strict=True)):
                return instance
    return None


def leaf_values(instance: Instance, field: Field, rng: np.random.Generator) -> dict[Node, Array]:
    """Random elements for every leaf of an instance, but for the pinned ones their own."""
    values: dict[Node, Array] = {}
    for leaf in instance.leaves:
        kind = leaf.tensor
        shape = tuple(n for n in kind.shape if isinstance(n, int))
        if leaf in instance.pinned:
            values[leaf] = field.lift(leaf.attribute("data").array)
        elif kind.dtype.startswith("float"):
            values[leaf] = field.random(shape, rng)
        elif kind.dtype == "bool":
            values[leaf] = rng.integers(0, 2, shape).astype(bool)
        else:
            values[leaf] = rng.integers(-9, 10, shape)
    return values


def run(roots: Sequence[Node], leaves: dict[Node, Array], field: Field) -> list[Array]:
    """The roots' elements in a field, given those of the leaves."""
    values = dict(leaves)
    for node in topological(roots):
        if node in values:
            continue
        if node.op is CONSTANT:
            values[node] = field.lift(node.attribute("data").array)
        elif node.op is ITEM or len(node.types) == 1:
            values[node] = evaluated(node, values, field)
    return [values[root] for root in roots]


def _degree(instance: Instance) -> int:
    """A bound of the total degree of both sides; what is unknown to the field counts as a fresh variable."""
    degrees: dict[Node, int] = {}
    for node in topological([*instance.left, *instance.right]):
        degrees[node] = _node_degree(node, degrees)
    return max(2, *(degrees[root] for root in (*instance.left, *instance.right)))


def _node_degree(node: Node, degrees: dict[Node, int]) -> int:
    if node.op in (INPUT, CONSTANT):
        return 1
    owner = node.args[0] if node.op is ITEM else node
    assert owner is not None
    if not isinstance(owner.op, Op):
        return 1
    index = node.attribute("index") if node.op is ITEM else 0
    kinds = tuple(None if a is None else a.tensor for a in owner.args)
    scope = owner.op.scopes(kinds, owner.attrs)[index]
    total = 0
    for leaf, arg in zip(owner.op.tensors(kinds), owner.args, strict=True):
        if leaf is not None and arg is not None and isinstance(arg.type, TensorType):
            found = degree(scope, leaf)
            # a quotient a/b brought to one denominator adds the degree of b: count it as one more factor
            total += (2 if found is None else found) * degrees.get(arg, 1)
    return max(1, total)
