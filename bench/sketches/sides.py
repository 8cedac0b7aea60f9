"""The left side of a rule with surroundings: a model to which the rule applies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from sketches.attributes import attributes
from sketches.elements import Random, elements
from sketches.operators import extend
from sketches.sketch import Sketch, Undrawn, beyond, require_room
from tensaurus.graph.ir.node import CONSTANT, INPUT, ITEM, Node
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.graph.ir.tensor_data import numpy_dtype
from tensaurus.ops import Op, TensorType, registry
from tensaurus.ops.declare import NUMBERS
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.test.instances import Instance, instances

AT_ONCE = 3  # instances of one seed
AGAIN = 4  # models of one instance, each with other elements and surroundings
LARGE = 0.06  # of the models have one size beyond 400
FEW, MANY = (0, 1, 3), (1, 2, 3, 4, 5, 6, 7)  # sizes
SIZED = frozenset({"shape", "split", "sizes", "kernel_shape"})  # attributes that are sizes
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
    nodes = topological_order(instance.left)
    if any(isinstance(n.op, Op) and n.op.domain for n in nodes):
        return _built(rule, instance, nodes, opset, rng)
    sketch = Sketch(opset, rng, origin=rule.name)
    changes = _changes(rule, instance, rng)
    names: dict[Node, str] = {}
    for leaf in instance.leaves:
        names[leaf] = _leaf(sketch, leaf, leaf in instance.pinned, changes)
    for node in nodes:
        _emit(sketch, node, names, changes)
    if rng.random() < 0.4:
        extend(sketch, int(rng.integers(1, 3)))
    return sketch


@dataclass
class Changes:
    """What a model has otherwise than the instance: element types, sizes, attributes.

    dtypes   the new element type for each old one
    sizes    the new size for each old one: what is equal stays equal
    single   a leaf, one of its dimensions, and the new size of that alone
    drawn    attributes as they were drawn anew; equal ones of one operator stay equal, since the rule may tie
             them; None where they stay
    """

    dtypes: dict[str, str]
    sizes: dict[int, int]
    single: tuple[Node | None, int, int]
    drawn: dict[Any, Any] | None

    def kind(self, leaf: Node) -> TensorType:
        shape = [self.sizes.get(int(n), int(n)) for n in leaf.tensor.shape]  # type: ignore[arg-type]
        node, place, size = self.single
        if node is leaf:
            shape[place] = size
        return TensorType(self.dtypes.get(leaf.tensor.dtype, leaf.tensor.dtype), tuple(shape))

    def attributes(
        self, op: Op, given: dict[str, Any], types: tuple[TensorType | None, ...], rng: Random
    ) -> dict[str, Any]:
        found = {k: self.dtypes.get(v, v) if isinstance(v, str) else v for k, v in given.items()}
        for name in SIZED & found.keys():
            if isinstance(found[name], tuple):
                found[name] = tuple(self.sizes.get(n, n) for n in found[name])
        if self.drawn is None:
            return found
        other = attributes(op, found, types, rng, share=0.4)
        return {
            name: self.drawn.setdefault((op, name, value), None if value is None else other.get(name))
            for name, value in found.items()
        }


def _changes(rule: Rule, instance: Instance, rng: Random) -> Changes:
    dtypes: dict[str, str] = {}
    if "any" in rule.tags and rng.random() < 0.6:
        dtypes = {leaf.tensor.dtype: str(rng.choice(sorted(NUMBERS))) for leaf in instance.leaves}
    sizes: dict[int, int] = {}
    if rng.random() < 0.35:
        old = _sizes(instance)
        new = FEW if rng.random() < 0.3 else MANY
        sizes = {n: int(rng.choice(new)) for n in old if n != 1 or rng.random() < 0.2}
    elif rng.random() < LARGE and (old := _sizes(instance)):
        sizes = {n: int(rng.choice((1, 2, 3))) for n in old if n != 1} | {int(rng.choice(old)): beyond(rng)}
    single: tuple[Node | None, int, int] = (None, 0, 0)
    leaf = instance.leaves[int(rng.integers(len(instance.leaves)))] if instance.leaves else None
    if leaf is not None and leaf.tensor.rank and rng.random() < 0.15:
        single = leaf, int(rng.integers(leaf.tensor.rank)), int(rng.choice(MANY))
    return Changes(dtypes, sizes, single, {} if rng.random() < 0.5 else None)


def _sizes(instance: Instance) -> list[int]:
    return sorted({int(n) for leaf in instance.leaves for n in leaf.tensor.shape})  # type: ignore[arg-type]


def _leaf(sketch: Sketch, leaf: Node, pinned: bool, changes: Changes) -> str:
    """A constant, an input, or what an operator makes of one."""
    rng, kind = sketch.rng, changes.kind(leaf)
    require_room([kind])
    if leaf.op is CONSTANT:
        value = leaf.attribute("data").array.astype(numpy_dtype(kind.dtype))
        kept = np.resize(value, kind.shape) if pinned else elements(kind, rng)  # type: ignore[arg-type]
        return sketch.leaf(kind, kept, constant=True)
    name = sketch.leaf(kind)
    if rng.random() < 0.25:
        op = registry[str(rng.choice(ALIKE))]
        try:
            return sketch.apply(op, [name], {})[0]
        except Undrawn:
            return name
    return name


def _emit(sketch: Sketch, node: Node, names: dict[Node, str], changes: Changes) -> None:
    if node in names or node.op is ITEM:
        return
    if node.op is CONSTANT:
        names[node] = sketch.leaf(node.tensor, node.attribute("data").array, constant=True)
    elif isinstance(node.op, Op):
        if any(a is not None and a not in names for a in node.args):
            raise Undrawn("an output that the changed attributes leave out")
        inputs = [None if a is None else names[a] for a in node.args]
        types = tuple(None if n is None else sketch.types[n] for n in inputs)
        attrs = changes.attributes(node.op, dict(node.attrs), types, sketch.rng)
        found = sketch.apply(node.op, inputs, attrs)
        if len(node.types) == 1:
            names[node] = found[0]
        else:
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
