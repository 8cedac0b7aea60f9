"""The left side of a rule with surroundings: a model to which the rule applies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from sketches.attributes import attributes
from sketches.elements import Random, elements
from sketches.operators import extend
from sketches.sketch import Sketch, Undrawn
from tensaurus.graph.data import numpy_dtype
from tensaurus.graph.node import CONSTANT, INPUT, ITEM, Node
from tensaurus.graph.program import Program, topological
from tensaurus.ops import Op, TensorType, registry
from tensaurus.ops.declare import NUMBERS
from tensaurus.rules.instances import Instance, instances
from tensaurus.rules.rule import Rule

AT_ONCE = 3  # instances of one seed
AGAIN = 4  # models of one instance, each with other elements and surroundings
ALIKE = ("Relu", "Neg", "Abs", "Identity", "Sigmoid", "Tanh", "Floor")  # surroundings that keep the type


_drawn: dict[tuple[Rule, int], tuple[Iterator[Instance], list[Instance]]] = {}


def _instance(rule: Rule, place: int, seed: int) -> Instance:
    """The rule's instances in their order, drawn when they are asked for.  Raises Undrawn."""
    key = rule, seed + place // AT_ONCE
    if key not in _drawn:
        _drawn[key] = iter(instances(rule, AT_ONCE, key[1])), []
    waiting, found = _drawn[key]
    found += islice(waiting, max(0, place % AT_ONCE + 1 - len(found)))
    if not found:
        raise Undrawn("no instance of it types")
    return found[place % AT_ONCE % len(found)]


def of_rule(rule: Rule, turn: int, seed: int, opset: int, rng: Random) -> Sketch:
    """A model that holds an instance of the rule's left side; other turns have others.  Raises Undrawn."""
    instance = _instance(rule, turn // AGAIN, seed)
    nodes = topological(instance.left)
    if any(isinstance(n.op, Op) and n.op.domain for n in nodes):
        return _built(rule, instance, nodes, opset, rng)
    sketch = Sketch(opset, rng, origin=rule.name)
    dtypes: dict[str, str] = {}
    if "any" in rule.tags and rng.random() < 0.6:
        dtypes = {leaf.tensor.dtype: str(rng.choice(sorted(NUMBERS))) for leaf in instance.leaves}
    names: dict[Node, str] = {}
    for leaf in instance.leaves:
        names[leaf] = _leaf(sketch, leaf, leaf in instance.pinned, dtypes)
    changed: dict[Any, Any] | None = {} if rng.random() < 0.4 else None
    for node in nodes:
        _emit(sketch, node, names, dtypes, changed)
    if rng.random() < 0.4:
        extend(sketch, int(rng.integers(1, 3)))
    return sketch


def _leaf(sketch: Sketch, leaf: Node, pinned: bool, dtypes: dict[str, str]) -> str:
    """A constant, an input, or what an operator makes of one; of the element type that `dtypes` says."""
    rng = sketch.rng
    kind = TensorType(dtypes.get(leaf.tensor.dtype, leaf.tensor.dtype), leaf.tensor.shape)
    if leaf.op is CONSTANT:
        value = leaf.attribute("data").array.astype(numpy_dtype(kind.dtype))
        return sketch.leaf(kind, value if pinned else elements(kind, rng), constant=True)
    name = sketch.leaf(kind)
    if rng.random() < 0.25:
        op = registry[str(rng.choice(ALIKE))]
        try:
            return sketch.apply(op, [name], {})[0]
        except Undrawn:
            return name
    return name


def _emit(
    sketch: Sketch, node: Node, names: dict[Node, str], dtypes: dict[str, str], changed: dict[Any, Any] | None
) -> None:
    if node in names or node.op is ITEM:
        return
    if node.op is CONSTANT:
        names[node] = sketch.leaf(node.tensor, node.attribute("data").array, constant=True)
    elif isinstance(node.op, Op):
        inputs = [None if a is None else names[a] for a in node.args]
        attrs = {k: dtypes.get(v, v) if isinstance(v, str) else v for k, v in node.attrs}
        if changed is not None:
            attrs = _changed(
                node.op,
                attrs,
                tuple(None if n is None else sketch.types[n] for n in inputs),
                changed,
                sketch.rng,
            )
        found = sketch.apply(node.op, inputs, attrs)
        if len(node.types) == 1:
            names[node] = found[0]
        else:
            names.update({node[k]: name for k, name in enumerate(found[: len(node.types)])})
    else:
        raise Undrawn(f"an instance reads {node.op}")


def _changed(
    op: Op, attrs: dict[str, Any], types: tuple[TensorType | None, ...], changed: dict[Any, Any], rng: Random
) -> dict[str, Any]:
    """Some attributes drawn anew: equal ones of one operator stay equal, since the rule may tie them."""
    drawn = attributes(op, attrs, types, rng, share=0.3)
    for name, value in attrs.items():
        new = drawn.get(name) if value is not None else None
        drawn[name] = changed.setdefault((op, name, value), new)
    return {name: drawn[name] for name in attrs}


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
