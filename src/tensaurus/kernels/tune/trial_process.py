"""The process in which schedules are tried: a wrong one may crash it, a slow one is ended."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from ctypes import CDLL
from time import perf_counter
from typing import Any

import numpy as np

from tensaurus.expr.evaluate.fields import Reals
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.ir.expression_text import parse as parse_scope
from tensaurus.expr.normal.intern import interned
from tensaurus.graph.ir.tensor_data import numpy_dtype
from tensaurus.kernels.halide.compile import jit, tensors
from tensaurus.kernels.stages.sketch import parse
from tensaurus.kernels.tune.guard_pages import guarded
from tensaurus.ops import TensorType

__all__ = ["Trials", "aligned"]

ALIGNMENT = 64
KEPT = 1 << 25  # bytes of one allocation that the process keeps when it is freed: kernels have pools
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
FEWEST, MOST = 3, 400  # runs of one timing
_ONE = TensorType("float32", (1,))
TOLERANCE = 1e-4  # of the largest magnitude: one schedule of many; the model's own check has the last word


def aligned(shape: Sequence[int], dtype: Any) -> np.ndarray[Any, Any]:
    """Memory as runtimes give it, at a multiple of 64 bytes; behind it a page that nobody may touch."""
    return guarded(shape, dtype, alignment=ALIGNMENT)


class Trials:
    """Kernels of one expression: compiled, run and timed one after the other."""

    def __init__(self, cpu: str) -> None:
        self.cpu = cpu
        with suppress(AttributeError, OSError):  # no glibc
            allocator = CDLL(None)
            allocator.mallopt(M_MMAP_THRESHOLD, KEPT)
            allocator.mallopt(M_TRIM_THRESHOLD, 16 * KEPT)
        # the first compilation takes ten times as long as the others
        self.take("L[i:1](x0[i])", (_ONE,), _ONE)
        self._bound("flat(u=1*1, p=0)")

    def take(self, scope: str, types: Sequence[TensorType], output: TensorType) -> None:
        """The expression, and what it reads and makes."""
        self.types, self.output = types, output
        self.scope = interned(parse_scope(scope, {x.name: x for x in tensors(types)}))
        rng = np.random.default_rng(0)
        self.arrays = [_values(kind, rng) for kind in types]
        self.result = aligned(_sizes(output), numpy_dtype(output.dtype))
        self.expected: np.ndarray[Any, Any] | None = None
        self._compiled: dict[str, Any] = {}

    def _bound(self, schedule: str) -> Any:
        """Compiled once, for all that is asked of it."""
        if schedule not in self._compiled:
            self._compiled[schedule] = jit(self.scope, self.types, parse(schedule), self.cpu)
        return self._compiled[schedule]

    def bind(self, schedule: str) -> None:
        """Compile it, so that what follows takes no longer than it must."""
        self._bound(schedule)

    def time(self, schedule: str, seconds: float) -> float:
        """Seconds of one run, the fastest quarter's slowest.  Raises whatever Halide finds wrong."""
        run = self._bound(schedule)(self.arrays, self.result)
        run()
        start = perf_counter()
        run()
        first = perf_counter() - start
        samples = []
        for _ in range(max(FEWEST, min(MOST, int(seconds / max(first, 1e-7))))):
            start = perf_counter()
            run()
            samples.append(perf_counter() - start)
        return sorted(samples)[len(samples) // 4]

    def right(self, schedule: str) -> str:
        """What is wrong with what the kernel computes, "" where nothing is."""
        bound = self._bound(schedule)
        for last in (False, True):  # a page that nobody may touch before each array, then behind it
            arrays = [guarded(array.shape, array.dtype, last) for array in self.arrays]
            for array, values in zip(arrays, self.arrays, strict=True):
                array[...] = values
            got = guarded(self.result.shape, self.result.dtype, last)
            # NaN, and no number that an expression is likely to have
            got.reshape(-1).view(np.uint8)[...] = 0xFF
            bound(arrays, got)()
        if self.expected is None:
            pairs = zip(tensors(self.types), self.arrays, strict=True)
            lifted = {x: a.astype(np.float64) if a.dtype.kind == "f" else a for x, a in pairs}
            self.expected = interpret(self.scope, lifted, Reals())
        wanted = self.expected
        if wanted.dtype.kind != "f" or got.dtype.kind != "f":
            return "" if np.array_equal(wanted, got) else "other integers than the expression's"
        if wanted.size == 0:
            return ""
        if not np.array_equal(np.isfinite(wanted), np.isfinite(got)):
            return "infinite or no number where the expression is not, or the other way round"
        finite = np.isfinite(wanted)
        scale = float(np.max(np.abs(wanted[finite]), initial=1e-30))
        error = float(np.max(np.abs(wanted[finite] - got[finite]), initial=0.0)) / scale
        return "" if error <= TOLERANCE else f"an error of {error:.2g} of the largest magnitude"


def _sizes(kind: TensorType) -> tuple[int, ...]:
    return tuple(n for n in kind.shape if isinstance(n, int))


REPEATED = (1 << 20) + 7  # numbers, which repeat in larger tensors, not row by row


def _values(kind: TensorType, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    dtype = numpy_dtype(kind.dtype)
    found = aligned(_sizes(kind), dtype)
    if found.dtype.kind == "f":
        found[...] = np.resize(rng.standard_normal(min(found.size, REPEATED)), found.shape)
    elif found.dtype.kind in "iu":
        found[...] = rng.integers(0, 2, found.shape)
    else:
        found[...] = rng.integers(0, 2, found.shape).astype(bool)
    return found
