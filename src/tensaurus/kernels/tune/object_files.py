"""Keeps compiled objects of kernels on disk, so that a second run compiles nothing again.

The files lie beside the measurement database, in a folder for each version of the code generator. They are a
cache: what is damaged, missing or cannot be written is compiled again.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from tensaurus.system.errors import TensaurusError
from tensaurus.system.files import replace_file
from tensaurus.system.source_hash import source_hash

__all__ = ["ObjectFiles", "objects_folder"]

MAX_BYTES = 1 << 28  # of all files of one version; an object has 10 to 200 kB
DIGEST_BYTES = 32  # a file begins with the SHA-256 of the object that follows


def objects_folder(database: Path) -> Path:
    """Returns the folder of the objects whose kernels were measured into this database."""
    return database.with_name(f"{database.name}.objects")


class ObjectFiles:
    """Objects by the names of their kernels; a name is a hash of all that the kernel was compiled from."""

    def __init__(self, folder: Path):
        """Takes the folder of all versions; it is created when the first object is stored."""
        self._parent = folder

    @property
    def _folder(self) -> Path:
        return self._parent / source_hash("halide")[:16]

    def read(self, name: str) -> bytes | None:
        """Returns the object of the kernel; None where there is none, or where its file is damaged."""
        path = self._folder / f"{name}.o"
        with suppress(OSError):
            content = path.read_bytes()
            code = content[DIGEST_BYTES:]
            if code and content[:DIGEST_BYTES] == sha256(code).digest():
                with suppress(OSError):
                    path.touch()  # the oldest are removed first
                return code
        return None

    def store(self, name: str, code: bytes) -> None:
        """Stores the object of the kernel, if the folder can be written."""
        with suppress(OSError, TensaurusError):
            if not self._folder.is_dir():
                self._remove_other_versions()
                self._folder.mkdir(parents=True)
            self._make_room(len(code))
            with replace_file(self._folder / f"{name}.o") as path:
                path.write_bytes(sha256(code).digest() + code)

    def _remove_other_versions(self) -> None:
        for folder in self._parent.glob("*"):
            shutil.rmtree(folder, ignore_errors=True)

    def _make_room(self, size: int) -> None:
        """Removes the files that were used longest ago where there would be more than `MAX_BYTES`."""
        files = {file: file.stat() for file in self._folder.glob("*.o")}
        total = sum(known.st_size for known in files.values()) + size
        for file in sorted(files, key=lambda file: files[file].st_mtime):
            if total <= MAX_BYTES:
                break
            file.unlink(missing_ok=True)
            total -= files[file].st_size
