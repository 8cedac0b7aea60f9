"""Computes the roofline: the time that arithmetic and traffic take at the machine's peaks."""

from __future__ import annotations

from dataclasses import dataclass

from tensaurus.graph.ir.piece import Piece
from tensaurus.runtimes.measure.database import Database, Measurement
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.measure.machine_peaks import (
    QUICK_REPEATS,
    measure_exchange,
    measure_last_cache,
    measure_peaks,
)
from tensaurus.runtimes.price.operation_counts import bytes_of, operations

__all__ = ["ONE_CORE", "Roofline", "estimate"]

CACHE_BYTES = 1 << 20  # bytes of tensors that are taken to stay in the caches of one core
OPERATIONS = "one float32 operation at the peak"
BYTES = "one byte copied, {}"
EXCHANGE = "one byte read that another thread wrote"


@dataclass(frozen=True)
class Roofline:
    """The peaks of a machine, as seconds for one unit of work.  The defaults are roughly those of one core.

    operation    seconds of one float32 operation
    cached       seconds of one byte that stays in the cores' own caches
    streamed     seconds of one byte that goes through memory
    cache_bytes  bytes that the cores' own caches hold
    shared       seconds of one byte in the last-level cache, which all cores share
    exchange     additional seconds of one byte that a thread reads after another one wrote it; the default is
                 between those of near and of far cores
    """

    operation: float = 1 / 2.0e10
    cached: float = 1 / 5.0e9
    streamed: float = 1 / 5.0e9
    cache_bytes: int = CACHE_BYTES
    shared: float = 1 / 5.0e9
    exchange: float = 1 / 4.0e9

    @classmethod
    def here(cls, database: Database, machine: Machine) -> Roofline:
        """Return this machine's roofline, from the database or measured now, which takes about a second."""
        places = "within a cache", "through memory", "within the last-level cache"
        texts = (OPERATIONS, *map(BYTES.format, places), EXCHANGE)
        stored = [database.get(text, "peaks", machine.key) for text in texts]
        if all(entry is not None for entry in stored):
            peaks_found = [entry.seconds for entry in stored if entry is not None]
            operation, cached, streamed, shared, exchange = peaks_found
        else:
            peaks = measure_peaks(machine.threads, QUICK_REPEATS)
            operation, cached, streamed = 1 / peaks.flops, 1 / peaks.cache, 1 / peaks.memory
            shared = 1 / measure_last_cache(machine.threads, QUICK_REPEATS)
            exchange = measure_exchange(machine.threads)
            rows = zip(texts, (operation, cached, streamed, shared, exchange), strict=True)
            database.put_many(Measurement(text, "peaks", machine.key, "", s) for text, s in rows)
        return cls(operation, cached, streamed, CACHE_BYTES * machine.threads, shared, exchange)

    def seconds(self, operations: float, moved: float) -> float:
        """Return the larger of the times of `operations` and of `moved` bytes."""
        beyond = max(0.0, moved - self.cache_bytes)
        return max(operations * self.operation, (moved - beyond) * self.cached + beyond * self.streamed)


ONE_CORE = Roofline()


def estimate(piece: Piece, roofline: Roofline = ONE_CORE) -> float:
    """Return the seconds of one run of the piece at the peaks."""
    kinds = [kind for node in (*piece.leaves, piece.root) for kind in node.types]
    return roofline.seconds(sum(map(operations, piece.inner)), sum(map(bytes_of, kinds)))
