"""Stores verdicts on disk: an interrupted run resumes where it was, and worlds share what they prove.

A verdict is the answer to a question, such as whether a law is proved.  It depends on the question and on
this package's code alone; verdicts of other code are never used.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tensaurus.system.errors import TensaurusError
from tensaurus.system.source_hash import source_hash

__all__ = ["Journal"]

T = TypeVar("T", bool, str, list[str])


class Journal:
    """Answers by question, from all files of a folder; new answers are written to its file `name`.jsonl.

    Answers that other processes write meanwhile are found, too.  Without a folder, answers are in memory.
    Raises TensaurusError where the folder cannot be used, or holds verdicts of other code.
    """

    def __init__(self, folder: Path | None = None, name: str = ""):
        self._answers: dict[str, bool | str | list[str]] = {}
        self._folder, self._file = folder, None if folder is None else folder / f"{name}.jsonl"
        self._read_bytes: dict[Path, int] = {}  # for each file how much of it was read
        if folder is None:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._read_new_lines()
            if name:
                self._begin_line()
        except OSError as error:
            reason = f"cannot be used as a journal: {error.strerror}"
            raise TensaurusError(reason, file=folder, remedy="Name another folder.") from error

    def answer(self, question: str, find: Callable[[], T]) -> T:
        """Return the stored answer, else compute it with `find` and store it."""
        if question not in self._answers:
            self._read_new_lines()
        if question not in self._answers:
            found = self._answers[question] = find()
            if self._file is not None:
                self._write([question, found])
        return self._answers[question]  # type: ignore[return-value]  # a question has answers of one type

    def _read_new_lines(self) -> None:
        """Read the new complete lines of all files; a killed or writing process may leave half a line."""
        for file in sorted(self._folder.glob("*.jsonl")) if self._folder is not None else ():
            begin = self._read_bytes.get(file, 0)
            if begin and file == self._file or file.stat().st_size <= begin:
                continue  # nothing new; the own file is read only before it is written
            with file.open("rb") as opened:
                opened.seek(begin)
                data = opened.read()
            end = data.rfind(b"\n") + 1
            lines = data[:end].splitlines()
            if not begin and lines and lines.pop(0) != json.dumps(source_hash("z3-solver")).encode():
                remedy = "Remove it, or name another folder."
                raise TensaurusError("was written by another version of tensaurus", file=file, remedy=remedy)
            self._answers.update(map(json.loads, lines))
            self._read_bytes[file] = begin + end

    def _begin_line(self) -> None:
        """Prepare the own file for appending: cut half a line at its end, and write its first line."""
        assert self._file is not None
        data = self._file.read_bytes() if self._file.exists() else b""
        if (complete := data[: data.rfind(b"\n") + 1]) != data:
            self._file.write_bytes(complete)
        if not complete:
            self._write(source_hash("z3-solver"))
        self._read_bytes[self._file] = self._file.stat().st_size

    def _write(self, value: object) -> None:
        assert self._file is not None
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(value) + "\n")
