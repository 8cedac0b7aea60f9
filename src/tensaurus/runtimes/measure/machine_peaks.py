"""Measures the peaks of this machine: multiply-adds a second, bytes copied a second, and their exchange."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Barrier
from time import perf_counter

import numpy as np

__all__ = ["Peaks", "measure_exchange", "measure_last_cache", "measure_peaks"]

REPEATS = 8  # measurements of each rate, of which the best is the peak
QUICK_REPEATS = 3  # enough to see whether the machine is at its peaks now
SECONDS = 0.05  # about the time of one measurement
CACHED_FLOATS = 64 * 1024  # copied within a second-level cache: 256 KiB read, and as much written
STREAMED_FLOATS = 16 * 1024 * 1024  # copied through memory
SHARED_FLOATS = 1024 * 1024  # copied within the last-level cache: 4 MiB read, and as much written
EXCHANGED_FLOATS = 64 * 1024  # read after another thread wrote them: 256 KiB, which its own cache holds
EXCHANGES = 100  # rounds of an exchange, of which the median counts


@dataclass(frozen=True)
class Peaks:
    """Rates of all computing threads together; bytes count once read and once written, as in STREAM."""

    instructions: str  # what the peak was measured with
    flops: float  # float32 operations a second, a multiply-add counting two
    cache: float  # bytes a second, copied within each thread's second-level cache
    memory: float  # bytes a second, copied through memory

    def reached(self, now: Peaks) -> float:
        """Return the smallest share of a peak that `now` reaches."""
        return min(now.flops / self.flops, now.cache / self.cache, now.memory / self.memory)


def measure_peaks(threads: int, repeats: int = REPEATS) -> Peaks:
    """Measure the peaks on `threads` threads, in about three seconds; nothing else should run meanwhile."""
    instructions, step, operations = _multiply_add_loop()
    flops = _best_rate(threads, repeats, lambda: step, operations)
    cache = _best_rate(
        threads, repeats, lambda: _copy_function(CACHED_FLOATS, 1000), 8 * CACHED_FLOATS * 1000
    )
    memory = _best_rate(threads, repeats, lambda: _copy_function(STREAMED_FLOATS, 1), 8 * STREAMED_FLOATS)
    return Peaks(instructions, flops, cache, memory)


def measure_last_cache(threads: int, repeats: int = REPEATS) -> float:
    """Measure the bytes a second that all threads copy within the last-level cache, beyond their own."""
    return _best_rate(threads, repeats, lambda: _copy_function(SHARED_FLOATS, 16), 8 * SHARED_FLOATS * 16)


def measure_exchange(threads: int) -> float:
    """Measure how many seconds longer reading a byte takes if another thread wrote it than if the reader did.

    In each round every thread copies an array that was written in the round before: its own, or that of its
    neighbour, whose core still has it in its cache.  One thread exchanges nothing: 0.
    """
    if threads == 1:
        return 0.0
    own, others = (_exchange_seconds(threads, distance) for distance in (0, 1))
    return max(0.0, others - own) / (4 * EXCHANGED_FLOATS)


def _exchange_seconds(threads: int, distance: int) -> float:
    """Return the median seconds of copying an array of the thread that is `distance` threads further."""
    barrier = Barrier(threads)
    arrays = [[np.ones(EXCHANGED_FLOATS, np.float32) for _ in range(threads)] for _ in range(2)]

    def work(number: int) -> list[float]:
        times = []
        for turn in range(EXCHANGES):
            source, target = arrays[turn % 2][(number + distance) % threads], arrays[1 - turn % 2][number]
            barrier.wait()
            start = perf_counter()
            np.copyto(target, source)
            times.append(perf_counter() - start)
            barrier.wait()
        return times

    with ThreadPoolExecutor(threads) as pool:
        return float(np.median([seconds for each in pool.map(work, range(threads)) for seconds in each]))


def _best_rate(threads: int, repeats: int, make: Callable[[], Callable[[], object]], amount: float) -> float:
    """Return the highest rate of all threads together.

    `make` returns a thread's own function, which does work of this `amount` in a call.
    """
    barrier = Barrier(threads)

    def work(number: int) -> list[tuple[float, float]]:
        call = make()
        call()
        times = []
        for _ in range(repeats):
            barrier.wait()
            start = perf_counter()
            call()
            times.append((start, perf_counter()))
        return times

    with ThreadPoolExecutor(threads) as pool:
        rounds = zip(*pool.map(work, range(threads)), strict=True)
        taken = [max(end for _, end in each) - min(start for start, _ in each) for each in rounds]
    return float(threads * amount / min(taken))


def _copy_function(floats: int, times: int) -> Callable[[], object]:
    """Return a function that copies an array `times` times; numpy releases the GIL meanwhile."""
    source, target = np.ones(floats, np.float32), np.zeros(floats, np.float32)

    def copy() -> None:
        for _ in range(times):
            np.copyto(target, source)

    return copy


def _multiply_add_loop() -> tuple[str, Callable[[], object], float]:
    """Return a loop of independent multiply-adds: its name, a function, and its float32 operations."""
    flags = _processor_flags()
    known = (("AVX-512", "avx512f", 512), ("AVX2", "fma", 256))
    for name, width in ((name, width) for name, flag, width in known if flag in flags):
        try:
            loop = _MachineCode(_loop_code(width))
        except OSError:  # memory that is written and executed is forbidden here
            break
        # at 3 GHz and two instructions a cycle: 0.08 s with AVX2, 0.15 s with AVX-512
        count = int(SECONDS * 1.5e9 / 2 / _UNROLLED) + 1
        return name, partial(loop, count), float(count * _UNROLLED * _accumulators(width) * width // 32 * 2)
    size = 1024  # a matrix product of the linear algebra library
    a = np.ones((size, size), np.float32)
    b, c = a.copy(), a.copy()
    return "matrix product", lambda: np.matmul(a, b, out=c), 2.0 * size**3


def _processor_flags() -> frozenset[str]:
    """Return the processor's feature flags; none unless it is an x86-64, the only one with code here."""
    if os.uname().machine != "x86_64":
        return frozenset()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())


_UNROLLED = 4  # multiply-adds of each accumulator between two tests of the counter


def _accumulators(width: int) -> int:
    """Return how many accumulators fill two pipelines of five cycles; two registers hold the factors."""
    return 24 if width == 512 else 12


def _loop_code(width: int) -> bytes:
    """Return the machine code of void loop(int64 count), for x86-64 with System V calls.

    Callers save none of the registers that it uses.  All are set to 0: with subnormal operands some
    processors are slow.
    """
    count = _accumulators(width)
    code = b"".join(
        _vector_instruction(width, 0xEF, 1, k, k, k) for k in range(count + 2)
    )  # vpxor(d) k, k, k
    fma = b"".join(_vector_instruction(width, 0xB8, 2, k, count, count + 1) for k in range(count))
    body = fma * _UNROLLED + b"\x48\xff\xcf"  # vfmadd231ps k, a, b ...; dec rdi
    jump = b"\x0f\x85" + (-len(body) - 6).to_bytes(4, "little", signed=True)  # jnz to the body's start
    return code + body + jump + b"\xc5\xf8\x77\xc3"  # vzeroupper; ret


def _vector_instruction(width: int, opcode: int, table: int, target: int, first: int, second: int) -> bytes:
    """Encode an instruction on three vector registers, prefix 66 and W0, of opcode table 1 (0F) or 2 (0F38).

    Encodings: Intel's manual, volume 2, 2.3 (VEX) and 2.7 (EVEX); extension bits are stored inverted.
    """
    operands = 0xC0 | (target & 7) << 3 | second & 7
    low = (~target >> 3 & 1) << 7 | (~second >> 3 & 1) << 5 | table
    if width == 512:
        low |= (~second >> 4 & 1) << 6 | (~target >> 4 & 1) << 4
        high = (~first & 15) << 3 | 0b101
        return bytes((0x62, low, high, 0x40 | (~first >> 4 & 1) << 3, opcode, operands))
    return bytes((0xC4, low | 0x40, (~first & 15) << 3 | 0b101, opcode, operands))


class _MachineCode:
    """Machine code that is called with one integer, without holding the GIL."""

    def __init__(self, code: bytes) -> None:
        self._memory = mmap.mmap(-1, len(code), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._memory.write(code)
        self._view = ctypes.c_char.from_buffer(self._memory)  # keeps the memory where it is
        self._call = ctypes.CFUNCTYPE(None, ctypes.c_int64)(ctypes.addressof(self._view))

    def __call__(self, count: int) -> None:
        self._call(count)
