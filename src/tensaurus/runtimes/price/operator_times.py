"""What a node or a piece costs on a backend: measured once as a model of its own, else estimated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import inf
from time import monotonic

from tensaurus.expr.sizes.size import Symbol
from tensaurus.graph.ir.node import OPAQUE, Node
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.graph.ir.program_text import workload
from tensaurus.graph.lower.lowering import Expand, exportable
from tensaurus.graph.onnx.build import Build
from tensaurus.ops.eop import eop
from tensaurus.runtimes.measure.database import Database, Measurement
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.measure.measure import Stopwatch
from tensaurus.runtimes.price.operation_counts import UNKNOWN, aliases, free
from tensaurus.runtimes.price.roofline import ONE_CORE, Roofline, estimate
from tensaurus.runtimes.price.standalone_model import alone
from tensaurus.runtimes.price.weight_costs import copies, rounded
from tensaurus.system.deadline import Bounded
from tensaurus.system.errors import TensaurusError

__all__ = ["OperatorCosts"]

SHARE = 0.25  # of the time that is left, after which writing, compiling and measuring a piece are ended
LEAST = 3.0  # seconds that they may take at least: a process may have to be started
CALL = 1e-6  # seconds of a node that computes nothing: to measure it alone would be to measure a copy


class OperatorCosts:
    """Seconds of single nodes and of pieces, from the database or measured now; callable as a cost function.

    What only gives its input another shape costs a call, whatever its size.
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
        builds: Callable[[Program], Build],
        expand: Expand | None = None,
        measuring: Callable[[], None] = lambda: None,
        weights: int = 0,
        original: Program | None = None,
        supports: Callable[[Node], bool] = lambda node: True,
        sizes: Mapping[Symbol, int] | None = None,
        roofline: Roofline = ONE_CORE,
        generated: str = "",
    ):
        """`builds` makes models of pieces alone, which need no folding; of eOperators by kernels where
        `generated` says for what processor.  For the program `original`, which reads `weights` bytes of
        constants in each run.

        What is not supported (`Backend.supports`) is not even tried; `sizes` are those of the program's
        symbols at which pieces are measured; `roofline` is the machine's.
        """
        self.database = database
        self.stopwatch = stopwatch
        self.backend = machine.backend_key(backend)
        self.device = machine.key
        self.opset = opset
        self.expand, self.builds, self.generated = expand, builds, generated
        self.measuring = measuring
        self.weights = rounded(weights)
        self.supports, self.roofline = supports, roofline
        self.measured = 0
        self.deadline = inf  # of measuring (of `time.monotonic`)
        self._sizes = dict(sizes or {})
        self._bound: dict[Piece, Piece] = {}
        self._running = set() if original is None else set(self._operators(original))
        self._aliased: dict[Piece, bool] = {}
        self._known: dict[Node, float] = {}
        self._texts: dict[str, float] = {}
        self._exported: dict[Node, bool] = {}

    def __call__(self, node: Node) -> float:
        seconds = self._known.get(node)
        if seconds is None:
            seconds = self._known[node] = 0.0 if free(node) else self.measure(Piece.of(node))
        return seconds

    def measure(self, piece: Piece) -> float:
        """Seconds, measured now unless they are known."""
        if not self._written(piece):
            return inf
        if self._aliases(piece):
            return CALL
        piece = self._at(piece)
        text = self._text(piece)
        seconds = self._stored(text)
        if seconds is None:
            seconds = self._measure(piece, text)
        return estimate(piece, self.roofline) if seconds == inf and self._runs(piece) else seconds

    def estimate(self, piece: Piece) -> float:
        """Seconds by arithmetic and traffic alone."""
        if self._aliases(piece):
            return CALL
        return estimate(self._at(piece), self.roofline) if self._written(piece) else inf

    def known(self, piece: Piece) -> float | None:
        """Seconds, as they were measured before; None where nobody has, or nobody can."""
        if not self._written(piece):
            return inf
        if self._aliases(piece):
            return CALL
        piece = self._at(piece)
        seconds = self._stored(self._text(piece))
        return None if seconds == inf and self._runs(piece) else seconds

    def alone(self, node: Node) -> float | None:
        """Seconds of an operator, where they were measured and it runs."""
        known = self.known(Piece.of(node))
        return None if known == inf else known

    def _written(self, piece: Piece) -> bool:
        """Whether a model can say it: at unknown sizes ONNX has no operators for some expressions."""
        found = self._exported.get(piece.root)
        if found is None:
            found = self._exported[piece.root] = exportable(
                [node for node in piece.inner if not self._has_kernel(node)], self.opset, self.expand
            )
        return found

    def _aliases(self, piece: Piece) -> bool:
        """Whether runtimes copy nothing for it."""
        found = self._aliased.get(piece)
        if found is None:
            inner = piece.inner
            found = self._aliased[piece] = bool(inner) and all(map(aliases, inner))
        return found

    def _at(self, piece: Piece) -> Piece:
        bound = self._bound.get(piece)
        if bound is None:
            bound = self._bound[piece] = piece.at(lambda symbol: self._sizes.get(symbol, UNKNOWN))
        return bound

    def _has_kernel(self, node: Node) -> bool:
        """Whether it is compiled: at unknown sizes it is not."""
        kinds = (*node.kinds(), node.tensor) if node.op is eop and self.generated else (None,)
        return all(kind is not None and kind.static for kind in kinds)

    def _text(self, piece: Piece) -> str:
        kernels = f", kernels for {self.generated}" if any(map(self._has_kernel, piece.inner)) else ""
        return f"opset {self.opset}, {self.weights / 2**20:g} MiB of weights{kernels}: {piece.text}"

    def _stored(self, text: str) -> float | None:
        if text not in self._texts:
            stored = self.database.get(text, self.backend, self.device)
            if stored is None:
                return None
            self._texts[text] = stored.seconds
        return self._texts[text]

    def _runs(self, piece: Piece) -> bool:
        """Whether it is made of operators on types that the original has too."""
        return all(free(node) or workload(node, plain=True) in self._running for node in piece.inner)

    def _operators(self, program: Program) -> Iterator[str]:
        """The text of every operator, of those of bodies too."""
        for node in program.nodes:
            if not free(node):
                yield workload(self._at(Piece.of(node)).root, plain=True)
            elif node.op is OPAQUE:
                for _, body in node.attribute("form").bodies:
                    yield from self._operators(body)

    def _measure(self, piece: Piece, text: str) -> float:
        self.measuring()
        seconds: float | None = None
        now = monotonic()
        with Bounded(now + max(LEAST, SHARE * (self.deadline - now))) as measuring:
            seconds = self._run(piece) if all(map(self.supports, piece.inner)) else None
        self.measured += 1
        value = inf if seconds is None else seconds
        if value < inf or not (measuring.ended or self.stopwatch.ended):
            self.database.put(Measurement(text, self.backend, self.device, "", value))
        self._texts[text] = value
        return value

    def _run(self, piece: Piece) -> float | None:
        """Seconds of a piece that runs."""
        wanted = copies(piece, self.weights)
        for number in dict.fromkeys((wanted, 1)):  # there may be no room for copies of its weights
            try:
                program, feeds = alone(piece, self.opset, number)
                seconds = self.stopwatch.measure(self.builds(program), feeds)
            except (TensaurusError, ValueError, MemoryError):
                continue
            return None if seconds is None else seconds / number
        return None
