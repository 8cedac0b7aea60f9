"""What several tests share: small programs, random problems of extraction, random inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import product
from math import inf
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tensaurus.app.zoo.builder import Builder, Value
from tensaurus.check.inputs.draw_inputs import draw_feed
from tensaurus.check.inputs.feed import InputValues
from tensaurus.check.inputs.try_shapes import shape_assignments
from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.extract.problem import Problem, dag_cost
from tensaurus.egraph.match.saturate import Ruleset
from tensaurus.expr.evaluate.fields import Field
from tensaurus.expr.ir.scope import Scope, Tensor
from tensaurus.expr.ir.walk import tensors
from tensaurus.graph.ir.node import INPUT, Node, apply, source
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.graph.onnx.onnx_frame import light_copy
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.ops import TensorType, registry
from tensaurus.rules.language.rule import Rule, library, parse_rule
from tensaurus.runtimes.backends import Array


def rules(*lines: str) -> list[Rule]:
    return [rule for number, line in enumerate(lines) for rule in parse_rule(f"r{number}: {line}")]


def random_inputs(
    model: onnx.ModelProto,
    seed: int = 0,
    shapes: Mapping[str, Sequence[int]] | None = None,
    ranges: Mapping[str, tuple[int, int]] | None = None,
) -> dict[str, Array]:
    """Plausible inputs of the model, what it leaves open made up."""
    sizes, _ = next(shape_assignments(model, shapes or {}))
    return dict(draw_feed(model, sizes, "random", seed, InputValues(ranges or {})).arrays)


def session_of(model: onnx.ModelProto, threads: int, optimized: bool = True) -> ort.InferenceSession:
    """Of a plain onnxruntime; large weights are handed over as they are, not written into a message first."""
    light, options, weights = light_copy(model), ort.SessionOptions(), dict[str, ort.OrtValue]()
    for tensor, copy in zip(model.graph.initializer, light.graph.initializer, strict=True):
        if copy.data_location == onnx.TensorProto.EXTERNAL:
            copy.external_data.add(key="location", value="handed over")
            weights[tensor.name] = ort.OrtValue.ortvalue_from_numpy(onnx.numpy_helper.to_array(tensor))
    options.add_external_initializers(list(weights), list(weights.values()))
    options.intra_op_num_threads = threads
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(light.SerializeToString(), options, providers=["CPUExecutionProvider"])


@cache
def whole_library() -> Ruleset:
    return Ruleset(library())


def node(name: str, *args: Node, **attrs: object) -> Node:
    return apply(registry[name], args, attrs)


X, Y, Z = (source(name, TensorType("float32", (4, 4))) for name in "xyz")


def program(*outputs: Node) -> Program:
    others = dict.fromkeys(n for n in topological_order(outputs) if n.op is INPUT and n not in (X, Y, Z))
    return Program((X, Y, Z, *others), tuple((f"o{k}", out) for k, out in enumerate(outputs)))


def model(make: Callable[[Builder], Value | Sequence[Value]]) -> onnx.ModelProto:
    b = Builder("small")
    made = make(b)
    return b.model(*(made if isinstance(made, Sequence) else (made,)))


def small(make: Callable[[Builder], Value | Sequence[Value]]) -> Program:
    return import_model(model(make), {}, "small")


def residual(b: Builder) -> Value:
    x = b.input("x", 1, 4, 6, 6)
    y = b.relu(b.batch_norm(b.conv(x, "a", 4, 3, padding=1), "n"))
    z = b.batch_norm(b.conv(y, "c", 4, 3, padding=1, bias=True), "m")
    return b.relu(b.add(z, b.mul(x, b.constant([[[[2.0]]]]))))


def attention(b: Builder) -> Value:
    x = b.input("x", 6, 8)
    q, k, v = (b.node("MatMul", x, b.weight(name, (8, 8), std=0.3)) for name in "qkv")
    scores = b.node("Softmax", b.node("MatMul", q, b.transpose(k, 1, 0)), axis=-1)
    return b.node("MatMul", b.node("MatMul", scores, v), b.weight("o", (8, 8), std=0.3))


def gates(b: Builder) -> list[Value]:
    x, h = b.input("x", 2, 8), b.input("h", 2, 8)
    sums = [
        b.add(b.node("MatMul", x, b.weight(f"w{k}", (8, 8))), b.node("MatMul", h, b.weight(f"u{k}", (8, 8))))
        for k in range(3)
    ]
    return [b.mul(b.node("Sigmoid", sums[0]), b.node("Tanh", sums[1])), b.relu(sums[2])]


def branches(b: Builder) -> Value:
    x = b.input("x", 1, 4, 5, 5)
    parts = [b.relu(b.conv(x, f"c{k}", 2 + k, 1)) for k in range(3)]
    return b.global_pool(b.concat(*parts[:2])) if len(parts) < 2 else b.concat(b.concat(*parts[:2]), parts[2])


PROGRAMS = {f.__name__: f for f in (residual, attention, gates, branches)}


def graph_of(whole: Program) -> tuple[EGraph, list[int]]:
    graph = EGraph()
    roots = [graph.insert_term(out) for _, out in whole.outputs]
    graph.rebuild()
    return graph, roots


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Random e-graphs, cyclic ones too; class 0 is the root."""
    classes = draw(st.integers(1, 9))
    costs, children, groups, members = [], [], [], [[] for _ in range(classes)]
    for group in range(classes):
        for _ in range(draw(st.integers(1, 3))):
            reads = draw(st.sets(st.integers(0, classes - 1), max_size=3)) - {group}
            members[group].append(len(costs))
            groups.append(group)
            costs.append(float(draw(st.integers(0, 9))))
            children.append(tuple(sorted(reads)))
    return Problem(costs, children, groups, members, (0,))


def brute_force(problem: Problem) -> float:
    choices = product(*problem.members)
    return min((dag_cost(problem, dict(enumerate(choice))) for choice in choices), default=inf)


# root: (a, b); a: shared or own 6; b: shared or own 6; shared: 7
TWO_READERS = Problem(
    [0.0, 0.0, 6.0, 0.0, 6.0, 7.0],
    [(1, 2), (3,), (), (3,), (), ()],
    [0, 1, 1, 2, 2, 3],
    [[0], [1, 2], [3, 4], [5]],
    (0,),
)


def tensor(name: str, *shape: int, scale: float = 1.0) -> onnx.TensorProto:
    rng = np.random.default_rng(len(name) + sum(shape))
    return numpy_helper.from_array((rng.standard_normal(shape) * scale).astype(np.float32), name)


def number(name: str, value: float) -> onnx.TensorProto:
    return numpy_helper.from_array(np.float32(value), name)


def affine_model(opset: int = 12, size: int = 40) -> onnx.ModelProto:
    """What an exporter writes for conv, learned affine map, hardswish, affine map, conv."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Mul", ["scale", "a"], ["b"]),
        helper.make_node("Add", ["b", "shift"], ["c"]),
        helper.make_node("Add", ["c", "three"], ["d"]),
        helper.make_node("Clip", ["d", "zero", "six"], ["e"]),
        helper.make_node("Mul", ["c", "e"], ["f"]),
        helper.make_node("Div", ["f", "six"], ["g"]),
        helper.make_node("Mul", ["g", "scale"], ["h"]),
        helper.make_node("Add", ["h", "shift"], ["i"]),
        helper.make_node("Conv", ["i", "w2", "bias"], ["y"]),
    ]
    constants = [
        tensor("w1", 16, 8, 3, 3, scale=0.1),
        tensor("w2", 8, 16, 1, 1, scale=0.2),
        tensor("bias", 8),
        number("scale", 1.25),
        number("shift", -0.5),
        number("three", 3),
        number("zero", 0),
        number("six", 6),
    ]
    graph = helper.make_graph(
        nodes,
        "affine",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, size, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, size, size])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)
    model.metadata_props.add(key="author", value="somebody")
    return model


def values_of(scope: Scope, field: Field, seed: int) -> dict[Tensor, Any]:
    rng = np.random.default_rng(seed)
    return {x: field.random(x.shape, rng) for x in tensors(scope)}  # type: ignore[arg-type]
