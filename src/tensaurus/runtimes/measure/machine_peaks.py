"""What this machine can do at most, measured: multiply-adds a second, and bytes a second copied."""

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

__all__ = ["Peaks", "measure_peaks"]

REPEATS = 8  # the best of so many is the peak
GLANCES = 3  # the same, to see whether the machine is at its peaks now
SECONDS = 0.05  # that each of them takes, about
CACHED = 64 * 1024  # floats that a thread copies within its second-level cache: 256 KiB, and as much written
STREAMED = 16 * 1024 * 1024  # floats that a thread copies through memory


@dataclass(frozen=True)
class Peaks:
    """Rates of all computing threads together; bytes count once read and once written, as in STREAM."""

    instructions: str  # what the peak was measured with
    flops: float  # float32 operations a second, a multiply-add counting two
    cache: float  # bytes a second, copied within each thread's second-level cache
    memory: float  # bytes a second, copied through memory

    def reached(self, now: Peaks) -> float:
        """The smallest share of a peak that was reached now."""
        return min(now.flops / self.flops, now.cache / self.cache, now.memory / self.memory)


def measure_peaks(threads: int, repeats: int = REPEATS) -> Peaks:
    """Measure them on `threads` threads; about three seconds, in which nothing else should run."""
    instructions, step, operations = _multiply_adds()
    flops = _best(threads, repeats, lambda: step, operations)
    cache = _best(threads, repeats, lambda: _copying(CACHED, 1000), 8 * CACHED * 1000)
    memory = _best(threads, repeats, lambda: _copying(STREAMED, 1), 8 * STREAMED)
    return Peaks(instructions, flops, cache, memory)


def _best(threads: int, repeats: int, make: Callable[[], Callable[[], object]], amount: float) -> float:
    """The highest rate at which the threads together do the work that is `amount` for each of them."""
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


def _copying(floats: int, times: int) -> Callable[[], object]:
    """A call that copies an array `times` times; numpy lets go of Python's lock meanwhile."""
    source, target = np.ones(floats, np.float32), np.zeros(floats, np.float32)

    def copy() -> None:
        for _ in range(times):
            np.copyto(target, source)

    return copy


def _multiply_adds() -> tuple[str, Callable[[], object], float]:
    """Name, call and float32 operations of a loop of independent multiply-adds on registers."""
    flags = _processor_flags()
    known = (("AVX-512", "avx512f", 512), ("AVX2", "fma", 256))
    for name, width in ((name, width) for name, flag, width in known if flag in flags):
        try:
            loop = _Machine(_loop(width))
        except OSError:  # memory that is written and executed is forbidden here
            break
        count = int(SECONDS * 1.5e9 / 2 / _UNROLLED) + 1
        return name, partial(loop, count), float(count * _UNROLLED * _accumulators(width) * width // 32 * 2)
    size = 1024  # a matrix product of the linear algebra library
    a = np.ones((size, size), np.float32)
    b, c = a.copy(), a.copy()
    return "matrix product", lambda: np.matmul(a, b, out=c), 2.0 * size**3


def _processor_flags() -> frozenset[str]:
    """What the processor can, if it is an x86-64 whose calls this file knows."""
    if os.uname().machine != "x86_64":
        return frozenset()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())


_UNROLLED = 4  # multiply-adds of each accumulator between two tests of the counter


def _accumulators(width: int) -> int:
    """Enough to fill two pipelines of five cycles; two registers are left for the factors."""
    return 24 if width == 512 else 12


def _loop(width: int) -> bytes:
    """Machine code of void loop(int64 count): x86-64, System V calls, where every register used is free.

    All registers are set to 0, so no operand is a denormal number, which some processors are slow with.
    """
    count = _accumulators(width)
    code = b"".join(_three_operands(width, 0xEF, 1, k, k, k) for k in range(count + 2))  # vpxor(d) k, k, k
    fma = b"".join(_three_operands(width, 0xB8, 2, k, count, count + 1) for k in range(count))
    body = fma * _UNROLLED + b"\x48\xff\xcf"  # vfmadd231ps k, a, b ...; dec rdi
    jump = b"\x0f\x85" + (-len(body) - 6).to_bytes(4, "little", signed=True)  # jnz to the body's start
    return code + body + jump + b"\xc5\xf8\x77\xc3"  # vzeroupper; ret


def _three_operands(width: int, opcode: int, table: int, target: int, first: int, second: int) -> bytes:
    """One instruction on vector registers, prefix 66 and W0, of opcode table 1 (0F) or 2 (0F38).

    Encodings: Intel's manual, volume 2, 2.3 (VEX) and 2.7 (EVEX); extension bits are stored inverted.
    """
    operands = 0xC0 | (target & 7) << 3 | second & 7
    low = (~target >> 3 & 1) << 7 | (~second >> 3 & 1) << 5 | table
    if width == 512:
        low |= (~second >> 4 & 1) << 6 | (~target >> 4 & 1) << 4
        high = (~first & 15) << 3 | 0b101
        return bytes((0x62, low, high, 0x40 | (~first >> 4 & 1) << 3, opcode, operands))
    return bytes((0xC4, low | 0x40, (~first & 15) << 3 | 0b101, opcode, operands))


class _Machine:
    """Machine code that can be called, with one integer; calls run without Python's lock."""

    def __init__(self, code: bytes) -> None:
        self._memory = mmap.mmap(-1, len(code), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._memory.write(code)
        self._view = ctypes.c_char.from_buffer(self._memory)  # keeps the memory where it is
        self._call = ctypes.CFUNCTYPE(None, ctypes.c_int64)(ctypes.addressof(self._view))

    def __call__(self, count: int) -> None:
        self._call(count)
