"""Compiles, runs and times schedules in a child process: a wrong schedule may crash it, a slow one is killed.
"""

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
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.graph.ir.tensor_data import numpy_dtype
from tensaurus.kernels.halide.compile import input_tensors, jit
from tensaurus.kernels.library.loaded_object import ObjectLoader
from tensaurus.kernels.stages.sketch import parse_schedule
from tensaurus.kernels.tune.guard_pages import guarded_array
from tensaurus.ops import TensorType

__all__ = ["Trials", "aligned_array"]

ALIGNMENT_BYTES = 64  # a cache line, as runtimes align tensors
KEPT_BYTES = 1 << 25  # freed memory up to this size stays with the process, as in the pool of library/shim.c
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt
MIN_RUNS, MAX_RUNS = 3, 400  # runs of a kernel in one timing
_ONE_FLOAT = TensorType("float32", (1,))
# Largest error of a schedule, as a fraction of the largest magnitude: it only finds wrong schedules, as the
# check of the whole model decides about accuracy.
RELATIVE_TOLERANCE = 1e-4


def aligned_array(shape: Sequence[int], dtype: Any) -> np.ndarray[Any, Any]:
    """Returns an array at a multiple of 64 bytes, as runtimes have them, before a protected page."""
    return guarded_array(shape, dtype, alignment=ALIGNMENT_BYTES)


class Trials:
    """Tries schedules of one expression; `TimingProcesses` calls its methods by name."""

    def __init__(self, cpu: str, loads: int) -> None:
        """Prepares to try schedules for a processor; `loads` is 1 where objects may be loaded, else 0."""
        self.cpu = cpu
        with suppress(AttributeError, OSError):  # no glibc
            allocator = CDLL(None)
            allocator.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
            allocator.mallopt(M_TRIM_THRESHOLD, 16 * KEPT_BYTES)
        self.loader = ObjectLoader(cpu) if loads else None
        self.set_expression("L[i:1](x0[i])", (_ONE_FLOAT,), _ONE_FLOAT)
        if not loads:  # the first compilation takes ten times as long as later ones
            self._kernel_of("flat(u=1*1, p=0)")

    def set_expression(self, scope: str, types: Sequence[TensorType], output: TensorType) -> None:
        """Sets the expression (as text), the types of its inputs and of its output, and draws inputs."""
        self.types, self.output = types, output
        self.scope = intern_scope(parse_scope(scope, {x.name: x for x in input_tensors(types)}))
        rng = np.random.default_rng(0)
        self.arrays = [_random_array(kind, rng) for kind in types]
        self.result = aligned_array(_number_shape(output), numpy_dtype(output.dtype))
        self.expected: np.ndarray[Any, Any] | None = None
        self._compiled: dict[str, Any] = {}

    def _kernel_of(self, schedule: str) -> Any:
        """Returns the compiled kernel of a schedule, which is compiled once."""
        if schedule not in self._compiled:
            self._compiled[schedule] = jit(self.scope, self.types, parse_schedule(schedule), self.cpu)
        return self._compiled[schedule]

    def load(self, schedule: str, code: bytes) -> None:
        """Takes the schedule's object, to time and check it in the place of a compilation in this process."""
        assert self.loader is not None, "this process times no objects"
        self._compiled[schedule] = self.loader.load(
            code, self.scope, self.types, self.output, parse_schedule(schedule)
        )

    def time(self, schedule: str, seconds: float) -> float:
        """Returns the seconds of one run: the lower quartile of several. Raises LoweringError."""
        run = self._kernel_of(schedule)(self.arrays, self.result)
        run()
        start = perf_counter()
        run()
        first = perf_counter() - start
        samples = []
        for _ in range(max(MIN_RUNS, min(MAX_RUNS, int(seconds / max(first, 1e-7))))):
            start = perf_counter()
            run()
            samples.append(perf_counter() - start)
        return sorted(samples)[len(samples) // 4]

    def find_error(self, schedule: str) -> str:
        """Returns what is wrong with the kernel's results, "" where they are right."""
        bind = self._kernel_of(schedule)
        for last in (False, True):  # the protected page lies before each array, then behind it
            arrays = [guarded_array(array.shape, array.dtype, last) for array in self.arrays]
            for array, values in zip(arrays, self.arrays, strict=True):
                array[...] = values
            result = guarded_array(self.result.shape, self.result.dtype, last)
            # NaN in floats, and an unlikely number in integers, so that unwritten elements are noticed
            result.reshape(-1).view(np.uint8)[...] = 0xFF
            bind(arrays, result)()
        if self.expected is None:
            pairs = zip(input_tensors(self.types), self.arrays, strict=True)
            lifted = {x: a.astype(np.float64) if a.dtype.kind == "f" else a for x, a in pairs}
            self.expected = interpret(self.scope, lifted, Reals())
        expected = self.expected
        if expected.dtype.kind != "f" or result.dtype.kind != "f":
            return "" if np.array_equal(expected, result) else "other integers than the expression's"
        if expected.size == 0:
            return ""
        if not np.array_equal(np.isfinite(expected), np.isfinite(result)):
            return "infinite or no number where the expression is not, or the other way round"
        finite = np.isfinite(expected)
        scale = float(np.max(np.abs(expected[finite]), initial=1e-30))
        error = float(np.max(np.abs(expected[finite] - result[finite]), initial=0.0)) / scale
        return "" if error <= RELATIVE_TOLERANCE else f"an error of {error:.2g} of the largest magnitude"


def _number_shape(kind: TensorType) -> tuple[int, ...]:
    return tuple(n for n in kind.shape if isinstance(n, int))


MAX_DISTINCT = (1 << 20) + 7  # random numbers drawn for a tensor; a larger one repeats them, at odd distances


def _random_array(kind: TensorType, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    dtype = numpy_dtype(kind.dtype)
    array = aligned_array(_number_shape(kind), dtype)
    if array.dtype.kind == "f":
        array[...] = np.resize(rng.standard_normal(min(array.size, MAX_DISTINCT)), array.shape)
    elif array.dtype.kind in "iu":
        array[...] = rng.integers(0, 2, array.shape)
    else:
        array[...] = rng.integers(0, 2, array.shape).astype(bool)
    return array
