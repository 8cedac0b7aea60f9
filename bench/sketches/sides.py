"""The left side of a rule with surroundings: a model to which the rule applies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from sketches.elements import Random, elements
from sketches.operators import extend
from sketches.sketch import Sketch, Undrawn

from tensaurus.graph.node import CONSTANT, INPUT, ITEM, Node
from tensaurus.graph.program import Program, topological
from tensaurus.ops import Op, registry
from tensaurus.rules.instances import Instance, instances
from tensaurus.rules.rule import Rule

AT_ONCE = 3  # instances that are drawn together
AGAIN = 3  # models of one instance, each with other elements and surroundings
ALIKE = ("Relu", "Neg", "Abs", "Identity", "Sigmoid", "Tanh", "Floor")  # surroundings that keep the type


@lru_cache(maxsize=512)
def _instances(rule: Rule, seed: int) -> Sequence[Instance]:
    return tuple(instances(rule, AT_ONCE, seed))


def of_rule(rule: Rule, turn: int, seed: int, opset: int, rng: Random) -> Sketch:
    """A model that holds an instance of the rule's left side; other turns have others.  Raises Undrawn."""
    place = turn // AGAIN
    found = _instances(rule, seed + place // AT_ONCE)
    if not found:
        raise Undrawn("no instance of it types")
    instance = found[place % AT_ONCE % len(found)]
    nodes = topological(instance.left)
    if any(isinstance(n.op, Op) and n.op.domain for n in nodes):
        return _built(rule, instance, nodes, opset, rng)
    sketch = Sketch(opset, rng, origin=rule.name)
    names: dict[Node, str] = {}
    for leaf in instance.leaves:
        names[leaf] = _leaf(sketch, leaf, leaf in instance.pinned)
    for node in nodes:
        _emit(sketch, node, names)
    if rng.random() < 0.4:
        extend(sketch, int(rng.integers(1, 3)))
    return sketch


def _leaf(sketch: Sketch, leaf: Node, pinned: bool) -> str:
    """A constant, an input, or what an operator makes of an input."""
    kind, rng = leaf.tensor, sketch.rng
    if leaf.op is CONSTANT:
        value = leaf.attribute("data").array
        return sketch.leaf(kind, value if pinned else elements(kind, rng), constant=True)
    name = sketch.leaf(kind)
    if rng.random() < 0.25:
        op = registry[str(rng.choice(ALIKE))]
        try:
            return sketch.apply(op, [name], {})[0]
        except Undrawn:
            return name
    return name


def _emit(sketch: Sketch, node: Node, names: dict[Node, str]) -> None:
    if node in names:
        return
    if node.op is CONSTANT:
        names[node] = sketch.leaf(node.tensor, node.attribute("data").array, constant=True)
    elif node.op is ITEM:
        return
    elif isinstance(node.op, Op):
        inputs = [None if a is None else names[a] for a in node.args]
        found = sketch.apply(node.op, inputs, dict(node.attrs))
        names[node] = found[0]
        names.update({node[k]: name for k, name in enumerate(found[: len(node.types)])})
    else:
        raise Undrawn(f"an instance reads {node.op}")


def _built(rule: Rule, instance: Instance, nodes: Sequence[Node], opset: int, rng: Random) -> Sketch:
    """The left side itself, where it has operators of our own."""
    sketch = Sketch(opset, rng, origin=rule.name)
    inputs = [n for n in nodes if n.op is INPUT]
    for node in inputs:
        name = node.attribute("name")
        sketch.types[name], sketch.inputs[name] = node.tensor, elements(node.tensor, rng)
    outputs = [(f"y{k}", node) for k, node in enumerate(instance.left)]
    sketch.types.update((name, node.tensor) for name, node in outputs)
    sketch.outputs = [name for name, _ in outputs]
    sketch.operators = [node.op.name for node in nodes if isinstance(node.op, Op)]
    sketch.built = Program(tuple(inputs), tuple(outputs), frame=sketch.frame(inputs, outputs))
    return sketch


__all__ = ["Mapping", "of_rule"]
