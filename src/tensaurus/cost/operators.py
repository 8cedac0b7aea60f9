"""What a node or a piece costs on a backend: measured once as a model of its own, else estimated."""

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
from tensaurus.graph.node import CONSTANT, INPUT, ITEM, OPAQUE, Node, constant, source
from tensaurus.graph.onnx_export import Expand, export_model
from tensaurus.graph.piece import Piece
from tensaurus.graph.program import Program
from tensaurus.ops import Op, TensorType

# Where nothing can be measured: operations and bytes a second of one core, roughly.
FLOPS = 2.0e10
BYTES = 5.0e9
UNKNOWN = 64  # what a size that is not known counts as


class OperatorCosts:
    """Seconds of single nodes and of pieces, from the database or measured now; callable as a cost function.

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
            found = self._known[node] = 0.0 if _free(node) else self.measure(Piece.of(node))
        return found

    def measure(self, piece: Piece) -> float:
        """Seconds, measured now unless they are known."""
        found = self.known(piece)
        if found is None:
            found = self._measure(piece, self._text(piece))
        return self._usable(piece, found)

    def known(self, piece: Piece) -> float | None:
        """Seconds, as they were measured before; None where nobody has."""
        text = self._text(piece)
        if text not in self._texts:
            stored = self.database.get(text, self.backend, self.device)
            if stored is None:
                return None
            self._texts[text] = stored.seconds
        return self._usable(piece, self._texts[text])

    def _text(self, piece: Piece) -> str:
        return f"opset {self.opset}: {piece.text}"

    def _usable(self, piece: Piece, seconds: float) -> float:
        """What the runtime refuses to run alone is estimated."""
        return seconds if np.isfinite(seconds) else estimate(piece)

    def _measure(self, piece: Piece, text: str) -> float:
        self.told()
        seconds: float | None = None
        try:
            model, feeds = alone(piece, self.opset, self.expand)
            seconds = self.stopwatch.measure(model.SerializeToString(), feeds)
        except (TensaurusError, ValueError):
            pass
        self.measured += 1
        value = float("inf") if seconds is None else seconds
        self.database.put(Measurement(text, self.backend, self.device, "", value))
        self._texts[text] = value
        return value


def _free(node: Node) -> bool:
    return node.static or node.op in (INPUT, CONSTANT, ITEM, OPAQUE)


def estimate(piece: Piece) -> float:
    """The roofline, in seconds: the larger of arithmetic and traffic."""
    kinds = [kind for node in (*piece.leaves, piece.root) for kind in node.types]
    moved = 4 * sum(elements_of(kind) for kind in kinds if isinstance(kind, TensorType))
    return max(sum(map(operations, piece.inner)) / FLOPS, moved / BYTES)


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
    piece: Piece, opset: int, expand: Expand | None
) -> tuple[onnx.ModelProto, dict[str, np.ndarray[Any, Any]]]:
    """A model of the piece alone, and inputs for it: weights are constants in it, as in the whole program."""
    rng = np.random.default_rng(0)
    new: dict[Node, Node] = {}
    feeds: dict[str, np.ndarray[Any, Any]] = {}
    for place, leaf in enumerate(piece.leaves):
        kind = leaf.tensor
        shape = tuple(number_of(n) for n in kind.shape)
        if leaf.op is CONSTANT and prod(shape) == 1:
            new[leaf] = leaf
        elif leaf.static:
            new[leaf] = constant(_random(kind.dtype, shape, rng))
        else:
            new[leaf] = source(f"x{place}", TensorType(kind.dtype, shape))
            feeds[f"x{place}"] = _random(kind.dtype, shape, rng)
    made = piece.over(new)
    inputs = tuple(node for node in new.values() if node.op is INPUT)
    outputs = tuple((f"y{k}", made[k]) for k in range(len(made.types)))
    shell = onnx.ModelProto(ir_version=10)
    shell.opset_import.add(domain="", version=opset)
    shell.graph.name = "alone"
    frame = Frame(
        shell,
        tuple(_value(n.attribute("name"), n.tensor) for n in inputs),
        tuple(_value(name, n.tensor) for name, n in outputs),
    )
    program = Program(inputs, outputs, frame=frame)
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
