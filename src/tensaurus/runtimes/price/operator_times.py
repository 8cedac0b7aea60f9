"""Measures an operator, or a piece of several that the runtime fuses, once, as a model of its own.

A piece that runs within the original but not alone is estimated.  A generated kernel was timed when it was
tuned: it is not measured again, unless its time depends on where its weights come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import inf
from time import monotonic

from tensaurus.expr.sizes.size import Symbol
from tensaurus.graph.ir.node import OPAQUE, Node
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.graph.ir.program_text import workload as operator_text
from tensaurus.graph.lower.program_lowering import Expand, can_export
from tensaurus.graph.onnx.build import Build
from tensaurus.ops.eop import eop
from tensaurus.runtimes.measure.database import Database, Measurement
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.measure.measure import Stopwatch
from tensaurus.runtimes.price.operation_counts import (
    UNKNOWN_SIZE,
    bytes_of,
    is_alias,
    is_free,
    product_operations,
)
from tensaurus.runtimes.price.roofline import ONE_CORE, Roofline, estimate
from tensaurus.runtimes.price.standalone_model import copies_to_measure, round_weight_bytes, standalone_model
from tensaurus.system.deadline import DeadlineBlock
from tensaurus.system.errors import TensaurusError
from tensaurus.system.timeline import record

__all__ = ["OperatorCosts"]

TIME_SHARE = 0.25  # share of the time left that exporting, compiling and measuring one piece may take
MIN_LIMIT_SECONDS = 3.0  # least time for these three: a process may have to be started
KERNEL_LIMIT_SECONDS = 12.0  # least time for a kernel, which is tuned and checked, but not past the deadline
# Share of a kernel's time above which fetching its weights from memory decides: then it is measured.
MAX_FETCH_SHARE = 0.5
# Bytes taken to stay in the last-level cache: a model with more weights reads them from memory in every run.
CACHED_BYTES = 1 << 25
# The least multiple of its time at the machine's peaks that a kernel takes: of 25 without sums one took less.
LEAST_KERNEL_MULTIPLE = 1.3
# Assumed for a piece that copies nothing.  Alone it would copy: runtimes copy an input that is an output.
CALL_SECONDS = 1e-6


class OperatorCosts:
    """The seconds of single nodes and of pieces, from the database or measured now; a cost function of nodes.

    - A piece that ONNX cannot express, or that the runtime refuses, costs infinity.  A refused piece of
      operators that the original has, too, is estimated instead, and never counts as known: within the
      original these operators do run.
    - A piece that only gives its input another shape costs CALL_SECONDS, whatever its size.
    - Leaves, outputs of a call, and nodes over constants only cost nothing.  Opaque nodes cost nothing, as
      every candidate has the same.

    measured  how many pieces were measured now
    deadline  of measuring (of `time.monotonic`)
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
        before_measuring: Callable[[], None] = lambda: None,
        weight_bytes: int = 0,
        original: Program | None = None,
        supports: Callable[[Node], bool] = lambda node: True,
        sizes: Mapping[Symbol, int] | None = None,
        roofline: Roofline = ONE_CORE,
        kernel_cpu: str = "",
        tuned_seconds: Callable[[Node], float | None] = lambda node: None,
        expected_seconds: Callable[[Node], float] = lambda node: 0.0,
    ):
        """Prepare to measure pieces of programs that equal `original`.

        builds            exports a program of one piece
        expand            expands operators that ONNX lacks
        before_measuring  is called before each measurement
        weight_bytes      bytes of constants that the original reads in each run, see `copies_to_measure`
        supports          says whether the runtime can run a node at all (`Backend.supports`): else it costs
                          infinity without being tried
        sizes             numbers for the symbolic sizes at which pieces are measured
        roofline          the machine's
        kernel_cpu        the processor for which kernels of eOperators are compiled; "" where none are
        tuned_seconds     tunes the kernel of an eOperator and returns its seconds; None where it has none
        expected_seconds  returns the seconds that the kernel of an eOperator takes at least
        """
        self.database, self.stopwatch = database, stopwatch
        self.backend, self.device = machine.backend_key(backend), machine.key
        self.opset, self.expand, self.builds, self.kernel_cpu = opset, expand, builds, kernel_cpu
        self.before_measuring = before_measuring
        self.weight_bytes = round_weight_bytes(weight_bytes)
        self.supports, self.roofline = supports, roofline
        self.tuned_seconds, self.expected_seconds = tuned_seconds, expected_seconds
        self.measured = 0
        self.deadline = inf
        self._sizes = dict(sizes or {})
        self._sized_pieces: dict[Piece, Piece] = {}
        self._original_operators = set() if original is None else set(self._operators(original))
        self._observed: dict[Piece, float] = {}
        # answers that were given before
        self._seconds_of_node: dict[Node, float] = {}
        self._seconds_of_workload: dict[str, float] = {}
        self._estimates: dict[Piece, float] = {}
        self._product_seconds: dict[Piece, float] = {}
        self._aliases: dict[Piece, bool] = {}
        self._exportable: dict[Node, bool] = {}

    def __call__(self, node: Node) -> float:
        seconds = self._seconds_of_node.get(node)
        if seconds is None:
            seconds = self._seconds_of_node[node] = 0.0 if is_free(node) else self.measure(Piece.of(node))
        return seconds

    def measure(self, piece: Piece) -> float:
        """Return the seconds of a piece, measured now unless they are known."""
        if (fixed := self._fixed_seconds(piece)) is not None:
            return fixed
        piece = self._at_sizes(piece)
        workload = self._workload(piece)
        seconds = self._stored(workload)
        if seconds is None:
            seconds = self._measure(piece, workload)
        # infinite: the runtime refuses the piece alone, though perhaps not within the original
        return estimate(piece, self.roofline) if seconds == inf and self._runs_in_original(piece) else seconds

    def estimate(self, piece: Piece) -> float:
        """Return the seconds that the piece takes by arithmetic and traffic at the machine's peaks.

        A kernel fetches its weights as well: it is tuned, and so timed, with weights in the caches.
        """
        seconds = self._estimates.get(piece)
        if seconds is None:
            seconds = inf
            if self._is_alias(piece):
                seconds = CALL_SECONDS
            elif self._is_exportable(piece):
                sized = self._at_sizes(piece)
                weight_seconds = self._weight_seconds(sized) if piece.has_eoperators else 0.0
                seconds = estimate(sized, self.roofline) + weight_seconds
            self._estimates[piece] = seconds
        return seconds

    def product_seconds(self, piece: Piece) -> float:
        """Return the seconds that its sums of products take at the machine's peak; 0 where it has none."""
        seconds = self._product_seconds.get(piece)
        if seconds is None:
            inner = (node for node in self._at_sizes(piece).inner if not node.static)
            seconds = sum(map(product_operations, inner)) * self.roofline.operation
            self._product_seconds[piece] = seconds
        return seconds

    def kernel_seconds(self, piece: Piece) -> float:
        """Return the seconds that its kernels take at least, by kernels that were tuned; 0 without kernels.

        A kernel may compute with the first of its weights while it fetches the next.
        """
        if not piece.has_eoperators:
            return 0.0
        sized = self._at_sizes(piece)
        kernels = [node for node in sized.inner if self._has_kernel(node)]
        at_peaks = sum(estimate(Piece.of(node), self.roofline) for node in kernels)
        seconds = max(LEAST_KERNEL_MULTIPLE * at_peaks, sum(map(self.expected_seconds, kernels)))
        return max(seconds, self._weight_seconds(sized)) if seconds > 0 else 0.0

    def known(self, piece: Piece) -> float | None:
        """Return the seconds measured before; None where the piece was not measured, or cannot be."""
        if (fixed := self._fixed_seconds(piece)) is not None:
            return fixed
        piece = self._at_sizes(piece)
        seconds = self._stored(self._workload(piece))
        return None if seconds == inf and self._runs_in_original(piece) else seconds

    def measured_or_observed(self, node: Node) -> float | None:
        """Return the measured seconds of an operator, else those observed in a program.

        None where there are neither, or the runtime refuses the operator.
        """
        piece = Piece.of(node)
        known = self.known(piece)
        known = self._observed.get(piece) if known is None else known
        return None if known == inf else known

    def note_observed(self, piece: Piece, seconds: float) -> None:
        """Keep the seconds of a piece in a program, for where the piece is not measured."""
        self._observed[piece] = seconds

    def _fixed_seconds(self, piece: Piece) -> float | None:
        """Return the seconds of a piece that is never measured, None for others."""
        if not self._is_exportable(piece):
            return inf
        return CALL_SECONDS if self._is_alias(piece) else None

    def _is_exportable(self, piece: Piece) -> bool:
        """Return whether ONNX can express the nodes without kernels; at open sizes it cannot express some."""
        is_exportable = self._exportable.get(piece.root)
        if is_exportable is None:
            is_exportable = self._exportable[piece.root] = can_export(
                [node for node in piece.inner if not self._has_kernel(node)], self.opset, self.expand
            )
        return is_exportable

    def _is_alias(self, piece: Piece) -> bool:
        """Return whether runtimes copy nothing for the piece."""
        known = self._aliases.get(piece)
        if known is None:
            inner = piece.inner
            known = self._aliases[piece] = bool(inner) and all(map(is_alias, inner))
        return known

    def _at_sizes(self, piece: Piece) -> Piece:
        """Return the piece with numbers for its symbolic sizes."""
        bound = self._sized_pieces.get(piece)
        if bound is None:
            bound = piece.with_sizes(lambda symbol: self._sizes.get(symbol, UNKNOWN_SIZE))
            self._sized_pieces[piece] = bound
        return bound

    def _has_kernel(self, node: Node) -> bool:
        """Return whether a kernel is compiled for the node: never at open sizes."""
        kinds = (*node.arg_types(), node.tensor) if node.op is eop and self.kernel_cpu else (None,)
        return all(kind is not None and kind.static for kind in kinds)

    def _workload(self, piece: Piece) -> str:
        """Return the piece's key in the database: its own text, and what else its time depends on."""
        has_kernels = any(map(self._has_kernel, piece.inner))
        kernels = f", kernels that fetch their data, for {self.kernel_cpu}" if has_kernels else ""
        return f"opset {self.opset}, {self.weight_bytes / 2**20:g} MiB of weights{kernels}: {piece.text}"

    def _stored(self, workload: str) -> float | None:
        """Return the seconds that the database has, infinity for a piece that was refused."""
        if workload not in self._seconds_of_workload:
            stored = self.database.get(workload, self.backend, self.device)
            if stored is None:
                return None
            self._seconds_of_workload[workload] = stored.seconds
        return self._seconds_of_workload[workload]

    def _runs_in_original(self, piece: Piece) -> bool:
        """Return whether the original has all operators of the piece, too, on the same types."""
        computed = (node for node in piece.inner if not is_free(node))
        return all(operator_text(node, ignore_values=True) in self._original_operators for node in computed)

    def _operators(self, program: Program) -> Iterator[str]:
        """Yield the text of every operator, those of bodies too."""
        for node in program.nodes:
            if not is_free(node):
                yield operator_text(self._at_sizes(Piece.of(node)).root, ignore_values=True)
            elif node.op is OPAQUE:
                for _, body in node.attribute("form").bodies:
                    yield from self._operators(body)

    def _measure(self, piece: Piece, workload: str) -> float:
        self.before_measuring()
        expected = {"peak_ms": 1e3 * self.estimate(piece), "least_ms": 1e3 * self.kernel_seconds(piece)}
        seconds: float | None = None
        now = monotonic()
        left = self.deadline - now
        limit = max(MIN_LIMIT_SECONDS, TIME_SHARE * left)
        if any(map(self._has_kernel, piece.inner)):
            limit = max(limit, min(KERNEL_LIMIT_SECONDS, left))
        with DeadlineBlock(now + limit) as measuring:
            if all(map(self.supports, piece.inner)):
                seconds = self._tuned(piece)
                seconds = self._measure_copies(piece) if seconds is None else seconds
        self.measured += 1
        value = inf if seconds is None else seconds
        spent = monotonic() - now
        record("operator", took_ms=value * 1e3, measuring_seconds=spent, **expected, operator=piece.text)
        # a refusal is stored, too, but no time limit or crash: the next run may be luckier
        if value < inf or not (measuring.ended or self.stopwatch.ended):
            self.database.put(Measurement(workload, self.backend, self.device, "", value))
        self._seconds_of_workload[workload] = value
        return value

    def _tuned(self, piece: Piece) -> float | None:
        """Return the seconds of a single kernel from its tuning; None where it must be measured.

        While a kernel is tuned, its tensors are in the nearest caches.  In a program they are not: kernels of
        ResNet-50 took 1.06 and those of ResNet-18 1.11 times as long, mostly to fetch weights from memory.
        """
        computed = [node for node in piece.inner if not is_free(node)]
        if len(computed) != 1 or not self._has_kernel(computed[0]):
            return None
        seconds = self.tuned_seconds(computed[0])
        if seconds is None or _weight_bytes(piece) * self.roofline.streamed > MAX_FETCH_SHARE * seconds:
            return None
        passed = sum(
            bytes_of(kind) for node in (*piece.leaves, piece.root) if not node.static for kind in node.types
        )
        activation_seconds = passed * self.roofline.cached if passed <= CACHED_BYTES else 0.0
        return seconds + self._weight_seconds(piece) + activation_seconds

    def _weight_seconds(self, piece: Piece) -> float:
        """Return the seconds to fetch a kernel's weights from where the model's stay between two runs."""
        if self.weight_bytes <= self.roofline.cache_bytes:
            return 0.0
        is_in_cache = self.weight_bytes <= CACHED_BYTES
        return _weight_bytes(piece) * (self.roofline.shared if is_in_cache else self.roofline.streamed)

    def _measure_copies(self, piece: Piece) -> float | None:
        """Return the seconds of a piece, measured in several copies or in one; None where it does not run."""
        wanted = copies_to_measure(piece, self.weight_bytes)
        for number in dict.fromkeys((wanted, 1)):  # there may be no memory for copies of its weights
            try:
                program, feeds = standalone_model(piece, self.opset, number)
                seconds = self.stopwatch.measure(self.builds(program), feeds)
            except (TensaurusError, ValueError, MemoryError):
                continue
            return None if seconds is None else seconds / number
        return None


def _weight_bytes(piece: Piece) -> int:
    return sum(bytes_of(kind) for leaf in piece.leaves if leaf.static for kind in leaf.types)
