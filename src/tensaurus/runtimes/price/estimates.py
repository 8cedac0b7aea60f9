"""Expects the seconds of pieces that nobody measured from those of pieces that were.

    a convolution of 1.1 ms, and Relu           ->  the same convolution and Clip: 1.05 ms at least
    an addition of 100,000 elements, 10 us      ->  one of 120,000 elements: 12 us, not worth a measurement

Most estimates are optimistic, too low rather than too high: extraction would never choose, and so never
measure, a piece that seems too expensive.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, log
from typing import Protocol

from tensaurus.expr.analysis.work_counts import product_sizes
from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program_text import workload
from tensaurus.ops import Op, Untypable
from tensaurus.ops.eop import eop
from tensaurus.runtimes.price.operation_counts import product_operations

__all__ = ["Estimates", "Peaks"]

# Every measured operator took some multiple of its roofline estimate.  An optimistic estimate is the roofline
# estimate times this fraction of the least multiple.
OPTIMISM = 0.7
# Share of a convolution's time, as measured among other operators, that it takes at least.
SAME_PRODUCT_SHARE = 0.95
# Largest factor between the estimates of two cheap operators of which one tells the time of the other.
NEAR_ESTIMATE = 1.5


class Peaks(Protocol):
    """Returns what pieces take at the machine's peaks, or at least, in seconds."""

    def estimate(self, piece: Piece) -> float:
        """Return the seconds by arithmetic and traffic."""

    def product_seconds(self, piece: Piece) -> float:
        """Return the seconds of the sums of products; 0 where the piece has none."""

    def kernel_seconds(self, piece: Piece) -> float:
        """Return the seconds that its kernels take at least, by those that were tuned; 0 without any."""


@dataclass
class Estimates:
    """Estimates that follow from measurements.

    least_multiple    for each kind of operator, the least quotient of measured and estimated time
    largest_estimate  for each kind of operator, the largest estimate of a measured one

    The kind of a piece are its operators, and which of their attributes are not at their defaults: runtimes
    have other code for convolutions in groups or with strides, which may be ten times as far from the peak.
    Kernels are of one kind if they have as many sums of products.
    """

    peaks: Peaks
    least_multiple: dict[str, float] = field(default_factory=dict)
    largest_estimate: dict[str, float] = field(default_factory=dict)
    # The least quotient of an operator's time and that of its sums of products at the machine's peak, at most
    # 1: it is less where the runtime uses fast algorithms.
    _least_product_multiple: float = 1.0
    # by the key of a convolution or matrix product: the least seconds of a piece that contains it
    _seconds_with_product: dict[str, float] = field(default_factory=dict)
    # for the label of each piece without products {estimate: seconds} of those that were measured
    _seconds_by_estimate: dict[str, dict[float, float]] = field(default_factory=dict)
    _product_keys: dict[Piece, str] = field(default_factory=dict)
    _kinds: dict[Piece, str] = field(default_factory=dict)

    def learn(self, piece: Piece, seconds: float) -> None:
        """Learn the measured seconds of a piece."""
        estimate = self.peaks.estimate(piece)
        if not (estimate > 0 and 0 < seconds < inf):  # operators that a runtime drops take no time
            return
        kind = self._kind(piece)
        self.least_multiple[kind] = min(self.least_multiple.get(kind, inf), seconds / estimate)
        self.largest_estimate[kind] = max(self.largest_estimate.get(kind, 0.0), estimate)
        if (products := self.peaks.product_seconds(piece)) > 0:
            self._least_product_multiple = min(self._least_product_multiple, seconds / products)
            if key := self._product_key(piece):
                self._seconds_with_product[key] = min(self._seconds_with_product.get(key, inf), seconds)
        elif not piece.has_eoperators:
            self._seconds_by_estimate.setdefault(piece.label, {})[estimate] = seconds

    def optimistic_seconds(self, piece: Piece) -> float:
        """Return an estimate of a piece that is too low rather than too high.

        The larger an operator, the smaller the multiple of its estimate that it takes.  So an operator larger
        than all measured ones of its kind gets the least multiple of any kind, others that of their kind.
        But no kernel adds up products faster than the machine, and no operator of the runtime faster than
        the fastest one that was measured.  Whatever is fused with a convolution, it takes about as long: its
        time with one activation tells that with another.  A kernel runs as far from the peaks as
        others of its kind that were tuned, if there are any.
        """
        kind, estimate = self._kind(piece), self.peaks.estimate(piece)
        least_multiple = min(self.least_multiple.values(), default=1.0)
        if estimate <= self.largest_estimate.get(kind, 0.0):  # the estimate of an empty tensor may be 0
            least_multiple = self.least_multiple.get(kind, least_multiple)
        optimistic = OPTIMISM * least_multiple * estimate
        if (products := self.peaks.product_seconds(piece)) > 0:
            least_multiple = 1.0 if piece.has_eoperators else self._least_product_multiple
            alike = self._seconds_with_product.get(self._product_key(piece), 0.0)
            optimistic = max(optimistic, least_multiple * products, SAME_PRODUCT_SHARE * alike)
        return max(optimistic, self.peaks.kernel_seconds(piece))

    def scaled_seconds(self, piece: Piece, most: float) -> float | None:
        """Return the seconds of a cheap operator from a measured one of its kind and about its size.

        A large network has hundreds of sums and products by constants that a decision hardly depends on; to
        measure each would take many seconds.  None where the operator takes more than `most` seconds, is a
        kernel or adds up products, or where none of its kind and size was measured.
        """
        known = self._seconds_by_estimate.get(piece.label)
        if not known or piece.has_eoperators:
            return None
        estimate = self.peaks.estimate(piece)
        if not 0 < estimate < inf:
            return None
        nearest = min(known, key=lambda other: abs(log(other / estimate)))
        seconds = known[nearest] * estimate / nearest
        is_near = 1 / NEAR_ESTIMATE <= nearest / estimate <= NEAR_ESTIMATE
        return seconds if is_near and seconds < most else None

    def _kind(self, piece: Piece) -> str:
        """Return the kind of a piece: Conv group strides, for a convolution in groups with strides."""
        kind = self._kinds.get(piece)
        if kind is None:
            names = {name for node in piece.inner if not node.static for name in _changed_attributes(node)}
            kind = self._kinds[piece] = " ".join([piece.label, *sorted(names)])
        return kind

    def _product_key(self, piece: Piece) -> str:
        """Return the key of the only operator of a piece that adds up products; "" for other pieces."""
        key = self._product_keys.get(piece)
        if key is None:
            nodes = [node for node in piece.inner if not node.static and product_operations(node) > 0]
            key = self._product_keys[piece] = _operator_key(nodes[0]) if len(nodes) == 1 else ""
        return key


def _changed_attributes(node: Node) -> list[str]:
    """Return the names of a node's attributes that are not at their defaults; of a kernel its sums."""
    op = node.op
    if not isinstance(op, Op):
        return []
    if op is eop:  # a kernel of two convolutions is as far from the peak as others of two
        return [f"of {len(product_sizes(node.attribute('scope')))}"]
    needed = {name: value for name, value in node.attrs if not op.has_default(name)}
    try:
        defaults = dict(op.canonical(node.arg_types(), needed))
    except Untypable:  # the defaults fit to other ranks only
        return [name for name, _ in node.attrs]
    return [name for name, value in node.attrs if value != defaults[name]]


def _operator_key(node: Node) -> str:
    """Return the text of an operator; of a kernel the sizes of its sums of products."""
    if node.op is eop:
        return f"kernel {product_sizes(node.attribute('scope'))}"
    return workload(node, ignore_values=True)
