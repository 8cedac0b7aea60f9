"""What a node or a piece costs on a backend: measured once as a model of its own, else estimated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import inf, prod
from typing import Any

import numpy as np
import onnx

from tensaurus.algebra.analysis import flops
from tensaurus.algebra.expr import Scope
from tensaurus.algebra.size import Arithmetic, Symbol
from tensaurus.algebra.size import evaluate as value_of
from tensaurus.cost.database import Database, Measurement
from tensaurus.cost.machine import Machine
from tensaurus.cost.measure import Stopwatch
from tensaurus.errors import TensaurusError
from tensaurus.graph.build import Build
from tensaurus.graph.frame import Frame
from tensaurus.graph.lowering import Expand
from tensaurus.graph.node import CONSTANT, INPUT, ITEM, OPAQUE, Node, constant, source
from tensaurus.graph.onnx_export import export_model
from tensaurus.graph.piece import Piece
from tensaurus.graph.program import Program
from tensaurus.ops import Op, TensorType
from tensaurus.rules.match import FLOATS

# Where nothing can be measured: operations and bytes a second of one core, roughly.
FLOPS = 2.0e10
BYTES = 5.0e9
UNCACHED = 1 << 26  # bytes of weights that come from memory in every run
SMALL = 1 << 12  # bytes of weights below which an operator is measured as one without
HOT = 1 << 19  # bytes that an operator finds in the cache, as those before it wrote them
COPIES = 64  # of an operator that are measured together, at most
LONG = 5e-3  # seconds of their arithmetic, about
UNKNOWN = 64  # what a size that is not known counts as


class OperatorCosts:
    """Seconds of single nodes and of pieces, from the database or measured now; callable as a cost function.

    Leaves, projections and nodes over constants alone cost nothing.  Opaque nodes cost nothing either: every
    candidate has the same ones.

    What the runtime refuses costs infinitely much, unless it is made of the original's own operators: these
    run within the original, whatever they do alone, so that they are estimated, and never known.
    """

    def __init__(
        self,
        database: Database,
        stopwatch: Stopwatch,
        backend: str,
        machine: Machine,
        opset: int,
        expand: Expand | None = None,
        measuring: Callable[[], None] = lambda: None,
        weights: int = 0,
        original: Program | None = None,
        supports: Callable[[Node], bool] = lambda node: True,
        sizes: Mapping[Symbol, int] | None = None,
    ):
        """For the program `original`, which reads `weights` bytes of constants in each run.

        What is not supported (`Backend.supports`) is not even tried; `sizes` are those of the program's
        symbols at which pieces are measured.
        """
        self.database = database
        self.stopwatch = stopwatch
        self.backend = machine.backend_key(backend)
        self.device = machine.key
        self.opset = opset
        self.expand = expand
        self.measuring = measuring
        self.weights = _rounded(weights)
        self.supports = supports
        self.measured = 0
        self._sizes = dict(sizes or {})
        self._bound: dict[Piece, Piece] = {}
        self._running = set() if original is None else set(self._operators(original))
        self._known: dict[Node, float] = {}
        self._texts: dict[str, float] = {}

    def __call__(self, node: Node) -> float:
        found = self._known.get(node)
        if found is None:
            found = self._known[node] = 0.0 if _free(node) else self.measure(Piece.of(node))
        return found

    def measure(self, piece: Piece) -> float:
        """Seconds, measured now unless they are known."""
        piece = self._at(piece)
        text = self._text(piece)
        found = self._stored(text)
        if found is None:
            found = self._measure(piece, text)
        return estimate(piece) if found == inf and self._runs(piece) else found

    def estimate(self, piece: Piece) -> float:
        """Seconds by arithmetic and traffic alone."""
        return estimate(self._at(piece))

    def known(self, piece: Piece) -> float | None:
        """Seconds, as they were measured before; None where nobody has, or nobody can."""
        piece = self._at(piece)
        found = self._stored(self._text(piece))
        return None if found == inf and self._runs(piece) else found

    def _at(self, piece: Piece) -> Piece:
        found = self._bound.get(piece)
        if found is None:
            found = self._bound[piece] = piece.at(lambda symbol: self._sizes.get(symbol, UNKNOWN))
        return found

    def _text(self, piece: Piece) -> str:
        return f"opset {self.opset}, {self.weights / 2**20:g} MiB of weights: {piece.text}"

    def _stored(self, text: str) -> float | None:
        if text not in self._texts:
            stored = self.database.get(text, self.backend, self.device)
            if stored is None:
                return None
            self._texts[text] = stored.seconds
        return self._texts[text]

    def _runs(self, piece: Piece) -> bool:
        """Whether it is made of operators on types that the original has too."""
        return all(_free(node) or Piece.of(node).text in self._running for node in piece.inner)

    def _operators(self, program: Program) -> Iterator[str]:
        """The text of every operator, of those of bodies too."""
        for node in program.nodes:
            if not _free(node):
                yield self._at(Piece.of(node)).text
            elif node.op is OPAQUE:
                for _, body in node.attribute("form").bodies:
                    yield from self._operators(body)

    def _measure(self, piece: Piece, text: str) -> float:
        self.measuring()
        seconds: float | None = None
        if all(map(self.supports, piece.inner)):
            copies = _copies(piece, self.weights)
            for number in dict.fromkeys((copies, 1)):  # there may be no room for copies of its weights
                try:
                    model, feeds = alone(piece, self.opset, self.expand, number)
                    seconds = self.stopwatch.measure(Build(model.SerializeToString()), feeds)
                except (TensaurusError, ValueError, MemoryError):
                    continue
                seconds = None if seconds is None else seconds / number
                break
        self.measured += 1
        value = inf if seconds is None else seconds
        self.database.put(Measurement(text, self.backend, self.device, "", value))
        self._texts[text] = value
        return value


def _free(node: Node) -> bool:
    return node.static or node.op in (INPUT, CONSTANT, ITEM, OPAQUE)


def _rounded(weights: int) -> int:
    """At most what no cache holds, in steps of a half so that models share measurements."""
    steps = (number << power for power in range(19, 26) for number in (2, 3))
    return min(steps, key=lambda step: abs(step - min(weights, UNCACHED)))


def _copies(piece: Piece, weights: int) -> int:
    """How many to run together so that one costs what it does in its program.

    A program reads all its weights between two uses of one, so that they come from where that many fit; and
    it is called once for many operators, not for each.  What computes long needs no company: its weights are
    the least of it.
    """
    own = 4 * sum(_elements(leaf) for leaf in piece.leaves if leaf.static)
    passed = 4 * sum(_elements(node) for node in (*piece.leaves, piece.root) if not node.static)
    wanted = weights // own if own >= SMALL else HOT // max(1, passed)
    return max(1, min(wanted, COPIES, int(LONG / max(_arithmetic(piece), 1e-9))))


def _elements(node: Node) -> int:
    return sum(elements_of(kind) for kind in node.types if isinstance(kind, TensorType))


def estimate(piece: Piece) -> float:
    """The roofline, in seconds: the larger of arithmetic and traffic."""
    kinds = [kind for node in (*piece.leaves, piece.root) for kind in node.types]
    moved = 4 * sum(elements_of(kind) for kind in kinds if isinstance(kind, TensorType))
    return max(_arithmetic(piece), moved / BYTES)


def _arithmetic(piece: Piece) -> float:
    """Seconds that its operations take."""
    return sum(map(operations, piece.inner)) / FLOPS


def operations(node: Node, unknown: int = UNKNOWN) -> int:
    """Scalar operations of one node; sizes that are not known count as `unknown`, opaque nodes as none."""
    return sum(number_of(flops(scope), unknown) for scope in scopes_of(node))


def scopes_of(node: Node) -> tuple[Scope, ...]:
    """The expression of each of the node's outputs; none of an opaque node."""
    if not isinstance(node.op, Op):
        return ()
    kinds = node.kinds()
    return tuple(node.op.scopes(kinds, node.attrs)[: len(node.types)])


def elements_of(kind: TensorType) -> int:
    """How many the tensor has."""
    return prod(number_of(n) for n in kind.shape)


def number_of(size: Any, unknown: int = UNKNOWN) -> int:
    """The size, with `unknown` in the place of every symbol in it."""
    return int(value_of(size, lambda atom: unknown)) if isinstance(size, Arithmetic) else int(size)


def alone(
    piece: Piece, opset: int, expand: Expand | None, copies: int = 1
) -> tuple[onnx.ModelProto, dict[str, np.ndarray[Any, Any]]]:
    """A model of the piece alone, and inputs for it: weights are constants in it, as in the whole program.

    Copies have weights of their own and share their inputs; without weights they have inputs of their own, as
    a runtime would compute them once.
    """
    rng = np.random.default_rng(0)
    feeds: dict[str, np.ndarray[Any, Any]] = {}
    shared = any(
        leaf.static and _elements(leaf) > 1 and leaf.tensor.dtype in FLOATS for leaf in piece.leaves
    )  # integers are all 0: their copies would be one node
    inputs: dict[str, Node] = {}
    outputs: list[tuple[str, Node]] = []
    for copy in range(copies):
        new: dict[Node, Node] = {}
        for place, leaf in enumerate(piece.leaves):
            kind = leaf.tensor
            shape = tuple(number_of(n) for n in kind.shape)
            name = f"x{place}" if shared or not copy else f"x{place}_{copy}"
            if leaf.op is CONSTANT and prod(shape) == 1:
                new[leaf] = leaf
            elif leaf.static:
                new[leaf] = constant(_random(kind.dtype, shape, rng))
            elif name in inputs:
                new[leaf] = inputs[name]
            else:
                new[leaf] = inputs[name] = source(name, TensorType(kind.dtype, shape))
                feeds[name] = _random(kind.dtype, shape, rng)
        made = piece.over(new)
        outputs += [(f"y{k}_{copy}" if copy else f"y{k}", made[k]) for k in range(len(made.types))]
    shell = onnx.ModelProto(ir_version=10)
    shell.opset_import.add(domain="", version=opset)
    shell.graph.name = "alone"
    frame = Frame(
        shell,
        tuple(_value(name, n.tensor) for name, n in inputs.items()),
        tuple(_value(name, n.tensor) for name, n in outputs),
    )
    program = Program(tuple(inputs.values()), tuple(outputs), frame=frame)
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
