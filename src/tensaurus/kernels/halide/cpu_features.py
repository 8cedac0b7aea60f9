"""What a kernel needs of a processor, by the bits of CPUID that tell whether it is there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tensaurus.system.errors import TensaurusError

__all__ = ["CPUS", "FEATURES", "NATIVE", "Bit", "lacking", "needed"]

NATIVE = "native"
CPUS = (NATIVE, "x86-64-v3", "x86-64-v4")  # that kernels can be compiled for

YMM, ZMM, TILES = 0x6, 0xE6, 0x60000  # of XCR0: the registers that the operating system saves


@dataclass(frozen=True)
class Bit:
    """One of a register (0 to 3: eax, ebx, ecx, edx) that CPUID gives for a leaf and its part."""

    leaf: int
    part: int
    register: int
    bit: int
    saved: int = 0  # bits of XCR0 that must be set, too


FEATURES = {
    "sse3": Bit(1, 0, 2, 0),
    "ssse3": Bit(1, 0, 2, 9),
    "sse41": Bit(1, 0, 2, 19),
    "sse42": Bit(1, 0, 2, 20),
    "popcnt": Bit(1, 0, 2, 23),
    "movbe": Bit(1, 0, 2, 22),
    "lzcnt": Bit(0x80000001, 0, 2, 5),
    "bmi1": Bit(7, 0, 1, 3),
    "bmi2": Bit(7, 0, 1, 8),
    "avx": Bit(1, 0, 2, 28, YMM),
    "f16c": Bit(1, 0, 2, 29, YMM),
    "fma": Bit(1, 0, 2, 12, YMM),
    "avx2": Bit(7, 0, 1, 5, YMM),
    "avxvnni": Bit(7, 1, 0, 4, YMM),
    "avx512f": Bit(7, 0, 1, 16, ZMM),
    "avx512cd": Bit(7, 0, 1, 28, ZMM),
    "avx512dq": Bit(7, 0, 1, 17, ZMM),
    "avx512bw": Bit(7, 0, 1, 30, ZMM),
    "avx512vl": Bit(7, 0, 1, 31, ZMM),
    "avx512ifma": Bit(7, 0, 1, 21, ZMM),
    "avx512vbmi": Bit(7, 0, 2, 1, ZMM),
    "avx512vbmi2": Bit(7, 0, 2, 6, ZMM),
    "avx512vnni": Bit(7, 0, 2, 11, ZMM),
    "avx512bitalg": Bit(7, 0, 2, 12, ZMM),
    "avx512vpopcntdq": Bit(7, 0, 2, 14, ZMM),
    "avx512bf16": Bit(7, 1, 0, 5, ZMM),
    "avx512vp2intersect": Bit(7, 0, 3, 8, ZMM),
    "amxtile": Bit(7, 0, 3, 24, TILES),
    "amxint8": Bit(7, 0, 3, 25, TILES),
    "amxbf16": Bit(7, 0, 3, 22, TILES),
}

_V2 = ("sse3", "ssse3", "sse41", "sse42", "popcnt")
_V3 = (*_V2, "movbe", "lzcnt", "bmi1", "bmi2", "avx", "f16c", "fma", "avx2")
_V4 = (*_V3, "avx512f", "avx512cd", "avx512dq", "avx512bw", "avx512vl")
_CANNON_LAKE = (*_V4, "avx512ifma", "avx512vbmi")
_ZEN4 = (
    *(*_CANNON_LAKE, "avx512vbmi2", "avx512vnni", "avx512bitalg"),
    *("avx512vpopcntdq", "avx512bf16"),
)

# The levels of the x86-64 psABI, and the features of Halide's targets: from avx2 on Halide compiles for a
# model of processor, which may use all that it has.
_SETS = {
    "x86-64": (),
    "x86-64-v2": _V2,
    "x86-64-v3": _V3,
    "x86-64-v4": _V4,
    "avx2": _V3,
    "avx512": (*_V3, "avx512f", "avx512cd"),
    "avx512_skylake": _V4,
    "avx512_cannonlake": _CANNON_LAKE,
    "avx512_zen4": _ZEN4,
    "avx512_zen5": (*_ZEN4, "avxvnni", "avx512vp2intersect"),
    "avx512_sapphirerapids": (*_ZEN4, "avxvnni", "amxtile", "amxint8", "amxbf16"),
}


def needed(cpu: str) -> tuple[str, ...]:
    """The features that these words ask for, each once: levels, features of Halide's, or of `FEATURES`.

    Words are parted by commas or spaces; none ask for nothing.  Raises TensaurusError for others.
    """
    found: dict[str, None] = {}
    for word in re.findall(r"[^\s,]+", cpu):
        features = _SETS.get(word, (word,) if word in FEATURES else None)
        if features is None:
            raise TensaurusError(
                f"no feature of a processor is known as {word!r}",
                remedy=f"For example: {', '.join(list(_SETS)[1:4])}, {', '.join(list(FEATURES)[9:13])}.",
            )
        found.update(dict.fromkeys(features))
    return tuple(found)


# What Linux calls otherwise, or writes with an underscore.
_LINUX = {"sse3": "pni", "sse41": "sse4_1", "sse42": "sse4_2", "lzcnt": "abm", "avxvnni": "avx_vnni"}
_LINUX |= {f"avx512{name}": f"avx512_{name}" for name in ("vbmi2", "vnni", "bitalg", "vpopcntdq", "bf16")}
_LINUX |= {"avx512vp2intersect": "avx512_vp2intersect"}
_LINUX |= {f"amx{name}": f"amx_{name}" for name in ("tile", "int8", "bf16")}


def lacking(cpu: str) -> tuple[str, ...]:
    """What this machine's processor lacks of `needed(cpu)`; nothing where the system does not tell."""
    flags = _flags()
    return tuple(name for name in needed(cpu) if flags and _LINUX.get(name, name) not in flags)


@cache
def _flags() -> frozenset[str]:
    """The processor's features, by Linux's names."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return frozenset(found[1].split()) if found else frozenset()
