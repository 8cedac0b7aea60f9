"""Describes the processor that schedules are ranked for, and estimates what several threads gain and lose."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil, prod
from pathlib import Path

from tensaurus.kernels.stages.sketch import BlockSketch, ChainSketch, FlatSketch, Sketch
from tensaurus.runtimes.price.roofline import ONE_CORE

# Threads may compute the transformed data of a chain together, and then read from other cores' caches; or
# each thread computes its own data, and then all threads read all weights. How far away other cores and
# caches are differs between machines, and on some while a kernel runs, as a host moves virtual cores: a chain
# with shared data took 0.42 or 0.91 ms, for seconds at a time. So reading another core's data is measured on
# each machine (`Roofline.exchange`: 0.05 ns a byte where the cores are near).
SHARED_WEIGHT_SECONDS_PER_BYTE = 0.015e-9  # for reading weights beyond the L2 cache that others read, too
PARALLEL_LOOP_SECONDS = 5e-6  # that threads wait for each other at the end of a parallel loop
ELEMENT_BYTES = 4  # of float32, which estimates assume
SPARE_REGISTERS = 4  # vector registers that hold operands instead of accumulators
L1_BYTES, L2_BYTES = 32 << 10, 512 << 10  # cache sizes of one core where the system does not tell them
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")  # where Linux describes them


@dataclass(frozen=True)
class TargetCore:
    """The processor that a schedule is ranked for.

    bits                of a vector
    registers           number of vector registers
    threads             that compute a kernel
    l1_bytes, l2_bytes  sizes of the data caches of one core
    exchange            additional seconds of a byte that a thread reads after another one wrote it
    """

    bits: int
    registers: int
    threads: int
    l1_bytes: int = L1_BYTES
    l2_bytes: int = L2_BYTES
    exchange: float = ONE_CORE.exchange

    @classmethod
    def here(
        cls, has_wide_vectors: bool, threads: int, exchange: float = ONE_CORE.exchange
    ) -> TargetCore:
        """Describes this machine's processor: with vectors of 512 bits, or of 256, and its caches."""
        described = (_read_cache_bytes(1, L1_BYTES), _read_cache_bytes(2, L2_BYTES), exchange)
        return cls(512, 32, threads, *described) if has_wide_vectors else cls(256, 16, threads, *described)

    def lanes(self, dtype: str) -> int:
        """Returns the number of elements in a vector; narrow types are computed in 32 bits."""
        size = 8 if dtype == "bool" else int("".join(c for c in dtype if c.isdigit()))
        return self.bits // max(size, 32)


def _read_cache_bytes(level: int, typical: int) -> int:
    """Reads the size of a core's data cache; returns the `typical` size where the system does not tell it."""
    for folder in sorted(CACHES.glob("index*")):
        with suppress(OSError, ValueError):
            described = [(folder / name).read_text().strip() for name in ("level", "type", "size")]
            if described[0] == str(level) and described[1] in ("Data", "Unified"):
                return int(described[2].removesuffix("K")) << 10
    return typical


@dataclass(frozen=True)
class NestShape:
    """The size of a nest.

    extents   of the axes of its output; of a chain: the tiles along each axis, then the blocks of results
    points    how often its body is computed
    copied    bytes of tensors that threads may compute together: copies by name, "" for a chain's data
    weights   bytes of weights, which all threads read
    products  bytes of a chain's products
    """

    extents: tuple[int, ...]
    points: int
    copied: Mapping[str, int] = field(default_factory=dict, hash=False)
    weights: int = 0
    products: int = 0


def busiest_share(sketch: Sketch, shape: NestShape, threads: int) -> float:
    """Returns the fraction of a nest that the busiest thread computes."""
    if isinstance(sketch, ChainSketch):  # `parallel` chooses no loop, blocks of tiles, or blocks of results
        tasks = (1, _tile_blocks(sketch, shape), shape.extents[-1])[sketch.parallel]
    elif isinstance(sketch, BlockSketch):
        counts = [-(-shape.extents[a] // n) for a, n in sketch.tile if n < shape.extents[a]]
        tasks = prod(counts[: sketch.parallel])
    else:
        steps = dict(sketch.beside) if isinstance(sketch, FlatSketch) else {}
        tasks = prod(-(-n // steps.get(k, 1)) for k, n in enumerate(shape.extents[: sketch.parallel]))
    return -(-tasks // threads) / tasks


def exchange_seconds(sketch: Sketch, shape: NestShape, core: TargetCore) -> float:
    """Estimates the seconds that threads lose by exchanging data and by waiting for each other."""
    threads = core.threads
    if threads == 1 or not sketch.parallel:
        return 0.0
    if isinstance(sketch, ChainSketch) and sketch.parallel == 1:
        return (threads - 1) * max(0, shape.weights - L2_BYTES) * SHARED_WEIGHT_SECONDS_PER_BYTE
    loops, names, moved = 0, list[str](), 0
    if isinstance(sketch, ChainSketch):
        # for each block of tiles the input combinations, the results, and by points the products before these
        loops, names = (2 + sketch.by_points) * _tile_blocks(sketch, shape), [""]
        moved = shape.products if sketch.by_points else 0
    elif isinstance(sketch, BlockSketch):
        names = [name for name, level in sketch.copies if level == 0]
        loops = len(names)
    moved += sum(shape.copied.get(name, 0) for name in names)
    return (threads - 1) / threads * moved * core.exchange + loops * PARALLEL_LOOP_SECONDS


def _tile_blocks(sketch: ChainSketch, shape: NestShape) -> int:
    return prod(ceil(n / t) for n, t in zip(shape.extents, sketch.tile, strict=False))
