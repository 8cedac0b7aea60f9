"""What one node costs on a backend: measured once as a model of its own, estimated where it cannot be."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import onnx

from tensaurus.algebra.analysis import flops
from tensaurus.algebra.expr import Scope
from tensaurus.algebra.size import Arithmetic
from tensaurus.algebra.size import evaluate as value_of
from tensaurus.cost.database import Database, Measurement
from tensaurus.cost.machine import Machine
from tensaurus.cost.measure import Stopwatch
from tensaurus.errors import TensaurusError
from tensaurus.graph.frame import Frame
from tensaurus.graph.node import CONSTANT, INPUT, ITEM, OPAQUE, Node, again, constant, source
from tensaurus.graph.onnx_export import Expand, export_model
from tensaurus.graph.program import Program
from tensaurus.graph.text import workload
from tensaurus.ops import Op, TensorType

# Where nothing can be measured: operations and bytes a second of one core, roughly.
FLOPS = 2.0e10
BYTES = 5.0e9
UNKNOWN = 64  # what a size that is not known counts as


class OperatorCosts:
    """Seconds of single nodes, from the database or measured now; callable as a cost function.

    Leaves, projections and nodes over constants alone cost nothing.  Opaque nodes cost nothing either: every
    candidate has the same ones.
    """

    def __init__(
        self,
        database: Database,
        stopwatch: Stopwatch,
        backend: str,
        machine: Machine,
        opset: int,
        expand: Expand | None = None,
        told: Callable[[], None] = lambda: None,
    ):
        self.database = database
        self.stopwatch = stopwatch
        self.backend = machine.backend_key(backend)
        self.device = machine.key
        self.opset = opset
        self.expand = expand
        self.told = told
        self.measured = 0
        self._known: dict[Node, float] = {}
        self._texts: dict[str, float] = {}

    def __call__(self, node: Node) -> float:
        found = self._known.get(node)
        if found is None:
            found = self._known[node] = self._cost(node)
        return found

    def _cost(self, node: Node) -> float:
        if node.static or node.op in (INPUT, CONSTANT, ITEM, OPAQUE):
            return 0.0
        text = f"opset {self.opset}: {workload(node)}"
        if text in self._texts:
            return self._texts[text]
        stored = self.database.get(text, self.backend, self.device)
        seconds = stored.seconds if stored is not None else self._measure(node, text)
        if not np.isfinite(seconds):
            seconds = estimate(node)
        self._texts[text] = seconds
        return seconds

    def _measure(self, node: Node, text: str) -> float:
        self.told()
        seconds: float | None = None
        try:
            model, feeds = alone(node, self.opset, self.expand)
            seconds = self.stopwatch.measure(model.SerializeToString(), feeds)
        except (TensaurusError, ValueError):
            pass
        self.measured += 1
        value = float("inf") if seconds is None else seconds
        self.database.put(Measurement(text, self.backend, self.device, "", value))
        return value


def estimate(node: Node) -> float:
    """The roofline, in seconds: the larger of arithmetic and traffic."""
    kinds = tuple(None if a is None else a.tensor for a in node.args)
    moved = 4 * sum(elements_of(k) for k in (*kinds, *node.types) if isinstance(k, TensorType))
    return max(operations(node) / FLOPS, moved / BYTES)


def operations(node: Node, unknown: int = UNKNOWN) -> int:
    """Scalar operations of one node; sizes that are not known count as `unknown`, opaque nodes as none."""
    return sum(number_of(flops(scope), unknown) for scope in scopes_of(node))


def scopes_of(node: Node) -> tuple[Scope, ...]:
    """The expression of each of the node's outputs; none of an opaque node."""
    if not isinstance(node.op, Op):
        return ()
    kinds = tuple(None if a is None else a.tensor for a in node.args)
    return tuple(node.op.scopes(kinds, node.attrs)[: len(node.types)])


def elements_of(kind: TensorType) -> int:
    """How many the tensor has."""
    return prod(number_of(n) for n in kind.shape)


def number_of(size: Any, unknown: int = UNKNOWN) -> int:
    """The size, with `unknown` in the place of every symbol in it."""
    return int(value_of(size, lambda atom: unknown)) if isinstance(size, Arithmetic) else int(size)


def alone(
    node: Node, opset: int, expand: Expand | None
) -> tuple[onnx.ModelProto, dict[str, np.ndarray[Any, Any]]]:
    """A model of the node alone, and inputs for it: weights are constants in it, as in the whole program."""
    rng = np.random.default_rng(0)
    inputs: dict[Node, Node] = {}
    feeds: dict[str, np.ndarray[Any, Any]] = {}
    args: list[Node | None] = []
    for place, arg in enumerate(node.args):
        if arg is None:
            args.append(None)
            continue
        kind = arg.tensor
        shape = tuple(number_of(n) for n in kind.shape)
        if arg.op is CONSTANT and prod(shape) == 1:
            args.append(arg)
        elif arg.static:
            args.append(constant(_random(kind.dtype, shape, rng)))
        else:
            if arg not in inputs:
                inputs[arg] = source(f"x{place}", TensorType(kind.dtype, shape))
                feeds[f"x{place}"] = _random(kind.dtype, shape, rng)
            args.append(inputs[arg])
    made = again(node, tuple(args))
    outputs = tuple((f"y{k}", made[k]) for k in range(len(made.types)))
    shell = onnx.ModelProto(ir_version=10)
    shell.opset_import.add(domain="", version=opset)
    shell.graph.name = "alone"
    frame = Frame(
        shell,
        tuple(_value(n.attribute("name"), n.tensor) for n in inputs.values()),
        tuple(_value(name, n.tensor) for name, n in outputs),
    )
    program = Program(tuple(inputs.values()), outputs, frame=frame)
    return export_model(program, folded=False, expand=expand), feeds


def _value(name: str, kind: TensorType) -> onnx.ValueInfoProto:
    code = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind.dtype))
    sizes = [n if isinstance(n, int) else None for n in kind.shape]
    return onnx.helper.make_tensor_value_info(name, code, sizes)


def _random(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        return np.zeros(shape, kind)
    if kind.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    return rng.standard_normal(shape).astype(kind)
