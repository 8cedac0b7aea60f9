"""Tells by a hash which code of this package runs, for files that other code must not use.

For example: a proof depends on the prover's code, and a kernel's object on the code generator's.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable

__all__ = ["source_hash"]


@cache
def source_hash(*distributions: str) -> str:
    """Return a hash of all sources of this package, and of the versions of other distributions."""
    digest = sha256("\0".join(map(version, distributions)).encode())
    for name, text in _read_sources(files("tensaurus"), ""):
        digest.update(f"{name}\0{text}\0".encode())
    return digest.hexdigest()


def _read_sources(folder: Traversable, prefix: str) -> list[tuple[str, str]]:
    sources: list[tuple[str, str]] = []
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        if entry.is_dir():
            sources += _read_sources(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith((".py", ".toml")):
            sources.append((prefix + entry.name, entry.read_text("utf-8")))
    return sources
