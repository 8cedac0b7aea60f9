"""What can still be read of a damaged measurement database."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from tensaurus.system.scratch import temporary

Row = tuple[Any, ...]

KEY = ("workload", "backend", "device", "schedule")


def text(raw: bytes) -> str | None:
    """What SQLite stores as a text; None where it is no UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def readable_rows(path: Path) -> list[Row]:
    """The rows before the first damage and behind the last; the file stays as it is."""
    found: dict[Row, Row] = {}
    with suppress(sqlite3.Error, UnicodeDecodeError, OSError), temporary() as folder:
        copy = folder / "copy.sqlite"
        for suffix in ("", "-wal"):
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
        _whole_pages(copy)
        with closing(sqlite3.connect(copy)) as connection:
            connection.text_factory = text
            connection.execute("PRAGMA writable_schema = ON")  # else a file that was cut is refused whole
            for order in ("", " DESC"):
                _read(connection, order, found)
    return list(found.values())


def _whole_pages(file: Path) -> None:
    """Cut what is left of a page: SQLite would read zeros where the rest of it was."""
    with file.open("r+b") as stored:
        size = int.from_bytes(stored.read(18)[16:], "big")
        page = size if size >= 512 and size & (size - 1) == 0 else 65536 if size == 1 else 4096
        stored.truncate(stored.seek(0, 2) // page * page)


def _read(connection: sqlite3.Connection, order: str, rows: dict[Row, Row]) -> None:
    """Add what comes in that order, as long as it does: a damaged tree may lead in circles.

    Zeros are what is left of a block that was lost, and no measurement.
    """
    last: Row | None = None
    columns = ", ".join(f"{name}{order}" for name in KEY)
    with suppress(sqlite3.Error, UnicodeDecodeError, MemoryError):  # sizes may be garbled, too
        for row in connection.execute(f"SELECT * FROM measurements ORDER BY {columns}"):
            *key, seconds = row
            if not seconds or not all(isinstance(part, str) and "\0" not in part for part in key):
                continue
            if last is not None and (tuple(key) >= last if order else tuple(key) <= last):
                return
            last = tuple(key)
            rows.setdefault(last, row)
