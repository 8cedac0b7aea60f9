"""Verdicts on disk as they come: what was killed goes on where it was, and worlds share what they prove.

A verdict follows from its question and from this package's code: those of other code are never taken.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TypeVar

from tensaurus.system.errors import TensaurusError

__all__ = ["Journal"]

T = TypeVar("T", bool, str, list[str])


class Journal:
    """Answers by their questions, those in a folder among them; new ones go to its file `name`.jsonl.

    What others write there meanwhile is known, too.
    Raises TensaurusError where the folder cannot be used, or is of other code.
    """

    def __init__(self, folder: Path | None = None, name: str = ""):
        self._known: dict[str, bool | str | list[str]] = {}
        self._folder, self._file = folder, None if folder is None else folder / f"{name}.jsonl"
        self._ends: dict[Path, int] = {}  # of what was read of a file, in bytes
        if folder is None:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._read()
            if name:
                self._begin_line()
        except OSError as error:
            reason = f"cannot be used as a journal: {error.strerror}"
            raise TensaurusError(reason, file=folder, remedy="Name another folder.") from error

    def answer(self, question: str, find: Callable[[], T]) -> T:
        """What is known, or what `find` says, which is known from then on."""
        if question not in self._known:
            self._read()
        if question not in self._known:
            found = self._known[question] = find()
            if self._file is not None:
                self._write([question, found])
        return self._known[question]  # type: ignore[return-value]  # a question has answers of one type

    def _read(self) -> None:
        """What is new in the folder's files; who was killed, or writes now, may have left half a line."""
        for file in sorted(self._folder.glob("*.jsonl")) if self._folder is not None else ():
            begin = self._ends.get(file, 0)
            if begin and file == self._file or file.stat().st_size <= begin:
                continue
            with file.open("rb") as opened:
                opened.seek(begin)
                data = opened.read()
            end = data.rfind(b"\n") + 1
            lines = data[:end].splitlines()
            if not begin and lines and lines.pop(0) != json.dumps(_code()).encode():
                remedy = "Remove it, or name another folder."
                raise TensaurusError("was written by another version of tensaurus", file=file, remedy=remedy)
            self._known.update(map(json.loads, lines))
            self._ends[file] = begin + end

    def _begin_line(self) -> None:
        """Of a file that has its first line, and no half of another one."""
        assert self._file is not None
        data = self._file.read_bytes() if self._file.exists() else b""
        if (whole := data[: data.rfind(b"\n") + 1]) != data:
            self._file.write_bytes(whole)
        if not whole:
            self._write(_code())
        self._ends[self._file] = self._file.stat().st_size

    def _write(self, value: object) -> None:
        assert self._file is not None
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(value) + "\n")


@cache
def _code() -> str:
    """What tells this code from any other."""
    found = sha256(version("z3-solver").encode())
    for name, text in _sources(files("tensaurus"), ""):
        found.update(f"{name}\0{text}\0".encode())
    return found.hexdigest()


def _sources(folder: Traversable, place: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        if entry.is_dir():
            found += _sources(entry, f"{place}{entry.name}/")
        elif entry.name.endswith((".py", ".toml")):
            found.append((place + entry.name, entry.read_text("utf-8")))
    return found
