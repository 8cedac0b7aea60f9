"""Lists the processor features that kernels require, with the bits of CPUID that report them.

`library/shared_library` writes the bits into each library, which checks them before kernels run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tensaurus.system.errors import TensaurusError

__all__ = ["CPUS", "FEATURES", "NATIVE", "CpuidBit", "missing_features", "required_features"]

NATIVE = "native"
CPUS = (NATIVE, "x86-64-v3", "x86-64-v4")  # processors that kernels can be compiled for

# Bits of XCR0 that say which registers the operating system saves: a feature must not be used without them.
YMM, ZMM, TILES = 0x6, 0xE6, 0x60000


@dataclass(frozen=True)
class CpuidBit:
    """A bit of a register (0 to 3: eax, ebx, ecx, edx) that CPUID returns for a leaf and subleaf (`part`).

    FEATURES passes them by position: sse3 is bit 0 of ecx (2) for leaf 1, subleaf 0.
    """

    leaf: int
    part: int
    register: int
    bit: int
    saved: int = 0  # bits of XCR0 that must be set, too


FEATURES = {
    "sse3": CpuidBit(1, 0, 2, 0),
    "ssse3": CpuidBit(1, 0, 2, 9),
    "sse41": CpuidBit(1, 0, 2, 19),
    "sse42": CpuidBit(1, 0, 2, 20),
    "popcnt": CpuidBit(1, 0, 2, 23),
    "movbe": CpuidBit(1, 0, 2, 22),
    "lzcnt": CpuidBit(0x80000001, 0, 2, 5),
    "bmi1": CpuidBit(7, 0, 1, 3),
    "bmi2": CpuidBit(7, 0, 1, 8),
    "avx": CpuidBit(1, 0, 2, 28, YMM),
    "f16c": CpuidBit(1, 0, 2, 29, YMM),
    "fma": CpuidBit(1, 0, 2, 12, YMM),
    "avx2": CpuidBit(7, 0, 1, 5, YMM),
    "avxvnni": CpuidBit(7, 1, 0, 4, YMM),
    "avx512f": CpuidBit(7, 0, 1, 16, ZMM),
    "avx512cd": CpuidBit(7, 0, 1, 28, ZMM),
    "avx512dq": CpuidBit(7, 0, 1, 17, ZMM),
    "avx512bw": CpuidBit(7, 0, 1, 30, ZMM),
    "avx512vl": CpuidBit(7, 0, 1, 31, ZMM),
    "avx512ifma": CpuidBit(7, 0, 1, 21, ZMM),
    "avx512vbmi": CpuidBit(7, 0, 2, 1, ZMM),
    "avx512vbmi2": CpuidBit(7, 0, 2, 6, ZMM),
    "avx512vnni": CpuidBit(7, 0, 2, 11, ZMM),
    "avx512bitalg": CpuidBit(7, 0, 2, 12, ZMM),
    "avx512vpopcntdq": CpuidBit(7, 0, 2, 14, ZMM),
    "avx512bf16": CpuidBit(7, 1, 0, 5, ZMM),
    "avx512vp2intersect": CpuidBit(7, 0, 3, 8, ZMM),
    "amxtile": CpuidBit(7, 0, 3, 24, TILES),
    "amxint8": CpuidBit(7, 0, 3, 25, TILES),
    "amxbf16": CpuidBit(7, 0, 3, 22, TILES),
}

_V2 = ("sse3", "ssse3", "sse41", "sse42", "popcnt")
_V3 = (*_V2, "movbe", "lzcnt", "bmi1", "bmi2", "avx", "f16c", "fma", "avx2")
_V4 = (*_V3, "avx512f", "avx512cd", "avx512dq", "avx512bw", "avx512vl")
_CANNON_LAKE = (*_V4, "avx512ifma", "avx512vbmi")
_ZEN4 = (*_CANNON_LAKE, "avx512vbmi2", "avx512vnni", "avx512bitalg", "avx512vpopcntdq", "avx512bf16")

# The levels of the x86-64 psABI, and the features of Halide's targets. From avx2 on Halide compiles for a
# model of processor, and LLVM may use every feature of that model.
_FEATURES_OF_WORD = {
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


def required_features(cpu: str) -> tuple[str, ...]:
    """Returns the features that the words of `cpu` require, each once.

    Words are levels, Halide's features or names in `FEATURES`, separated by commas or spaces. Raises
    TensaurusError for other words.
    """
    features_found: dict[str, None] = {}
    for word in re.findall(r"[^\s,]+", cpu):
        features = _FEATURES_OF_WORD.get(word, (word,) if word in FEATURES else None)
        if features is None:
            # the remedy names levels (v2 to v4) and a few features (from avx on), as examples
            raise TensaurusError(
                f"unknown processor feature {word!r}",
                remedy="For example: "
                f"{', '.join(list(_FEATURES_OF_WORD)[1:4])}, {', '.join(list(FEATURES)[9:13])}.",
            )
        features_found.update(dict.fromkeys(features))
    return tuple(features_found)


# Linux's names in /proc/cpuinfo, where they differ from ours.
_LINUX_NAMES = {"sse3": "pni", "sse41": "sse4_1", "sse42": "sse4_2", "lzcnt": "abm", "avxvnni": "avx_vnni"}
_LINUX_NAMES |= {
    f"avx512{name}": f"avx512_{name}" for name in ("vbmi2", "vnni", "bitalg", "vpopcntdq", "bf16")
}
_LINUX_NAMES |= {"avx512vp2intersect": "avx512_vp2intersect"}
_LINUX_NAMES |= {f"amx{name}": f"amx_{name}" for name in ("tile", "int8", "bf16")}


def missing_features(cpu: str) -> tuple[str, ...]:
    """Returns the required features that this processor lacks; none where the system lists no features."""
    flags = _linux_flags()
    return tuple(
        name for name in required_features(cpu) if flags and _LINUX_NAMES.get(name, name) not in flags
    )


@cache
def _linux_flags() -> frozenset[str]:
    """Returns the processor's features by Linux's names; none on other systems."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return frozenset(found[1].split()) if found else frozenset()
