"""The measurements of all runs, in one SQLite file that several processes may use at once."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, fields
from math import isnan
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from tensaurus.errors import TensaurusError

__all__ = ["Database", "DatabaseError", "Measurement", "default_path"]

SCHEMA = 1  # in the file as PRAGMA user_version
PATIENCE = 30.0  # seconds to wait for another process that is writing
REMEDY = "Name another file with --db or TENSAURUS_DB."

T = TypeVar("T")


class DatabaseError(TensaurusError):
    """The database cannot be opened, read or written; one line with its path."""


@dataclass(frozen=True)
class Measurement:
    """Seconds that a workload takes; the four texts are the key, in full, so that keys cannot collide."""

    workload: str  # the program's text
    backend: str  # name and version
    device: str  # the machine's key
    schedule: str  # the kernel's schedule, or ""
    seconds: float  # infinity: it cannot run there

    def __post_init__(self) -> None:
        if isnan(self.seconds) or self.seconds < 0:
            raise ValueError(f"a measurement of {self.seconds} s")


def default_path() -> Path:
    """$TENSAURUS_DB, or tensaurus/measurements.sqlite in the user's cache folder."""
    if named := os.environ.get("TENSAURUS_DB"):
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "tensaurus" / "measurements.sqlite"


class Database:
    """Measurements by their key, the newest of each. Used by the thread that opened it.

    A damaged file is renamed aside, with a warning, and a new one is started. Every method raises
    DatabaseError where the file cannot be read or written.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        """Open or create the file, its folder too."""
        self.path = Path(path) if path is not None else default_path()
        with self._complaints():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = self._open()

    def get(self, workload: str, backend: str, device: str, schedule: str = "") -> Measurement | None:
        """The measurement with that key."""
        rows = self._read(
            "SELECT * FROM measurements WHERE workload = ? AND backend = ? AND device = ? AND schedule = ?",
            (workload, backend, device, schedule),
        )
        return rows[0] if rows else None

    def beginning(self, prefix: str, backend: str, device: str) -> list[Measurement]:
        """The measurements of workloads that begin with the prefix, sorted by their keys."""
        return self._read(
            "SELECT * FROM measurements WHERE substr(workload, 1, ?) = ? AND backend = ? AND device = ?"
            " AND workload >= ? ORDER BY workload, schedule",
            (len(prefix), prefix, backend, device, prefix),
        )

    def put(self, measurement: Measurement) -> None:
        """Store it in the place of an older one with that key."""
        self.put_many([measurement])

    def put_many(self, measurements: Iterable[Measurement]) -> None:
        """Store all of them or, where one fails, none."""
        rows = [astuple(measurement) for measurement in measurements]

        def write() -> None:
            with self._transaction():
                self._connection.executemany("REPLACE INTO measurements VALUES (?, ?, ?, ?, ?)", rows)

        self._attempt(write)

    def all(self) -> list[Measurement]:
        """Every measurement, sorted by its key."""
        return self._read("SELECT * FROM measurements ORDER BY workload, backend, device, schedule")

    def count(self) -> int:
        """How many measurements there are."""
        return self._attempt(
            lambda: int(self._connection.execute("SELECT count(*) FROM measurements").fetchone()[0])
        )

    def clear(self) -> None:
        """Forget every measurement."""

        def write() -> None:
            with self._transaction():
                self._connection.execute("DELETE FROM measurements")

        self._attempt(write)

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, query: str, arguments: tuple[str | int, ...] = ()) -> list[Measurement]:
        return self._attempt(
            lambda: [Measurement(*row) for row in self._connection.execute(query, arguments).fetchall()]
        )

    def _attempt(self, action: Callable[[], T]) -> T:
        """The action, once more on a new file where the present one turns out to be damaged."""
        with self._complaints():
            try:
                return action()
            except sqlite3.DatabaseError as error:
                if not _damaged(error):
                    raise
                self._connection.close()
                self._connection = self._open(error)
                return action()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise

    @contextmanager
    def _complaints(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            raise DatabaseError(
                f"the measurement database cannot be used: {reason}",
                file=self.path,
                remedy=REMEDY,
            ) from error

    def _open(self, damage: sqlite3.DatabaseError | None = None) -> sqlite3.Connection:
        """A connection to the file, or to a new one where it is damaged; one process at a time does this.

        `damage` was met in the file that was open so far; another process may have replaced that since.
        """
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(folder, fcntl.LOCK_EX)
            if damage is None or self._identity != _identity(self.path):
                try:
                    return self._connect()
                except sqlite3.DatabaseError as error:
                    if not _damaged(error):
                        raise
                    damage = error
            aside = self._set_aside()
            warnings.warn(
                f"{self.path} is damaged ({damage}): renamed to {aside.name}, and a new file started",
                stacklevel=3,
            )
            return self._connect()
        finally:
            os.close(folder)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)
        try:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            columns = connection.execute("SELECT name FROM pragma_table_info('measurements')").fetchall()
            ours = [(item.name,) for item in fields(Measurement)]
            if version > SCHEMA or (columns != ours if version else tables):
                owner = "a newer tensaurus" if version > SCHEMA else "another program"
                raise DatabaseError(f"the file belongs to {owner}", file=self.path, remedy=REMEDY)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS measurements (workload TEXT NOT NULL, backend TEXT NOT NULL,"
                " device TEXT NOT NULL, schedule TEXT NOT NULL, seconds REAL NOT NULL,"
                " PRIMARY KEY (workload, backend, device, schedule)) WITHOUT ROWID"
            )
            if version == 0:
                connection.execute(f"PRAGMA user_version = {SCHEMA}")
        except BaseException:
            connection.close()
            raise
        self._identity = _identity(self.path)
        return connection

    def _set_aside(self) -> Path:
        """Rename the file, and its journal with it, to the first free name."""
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.damaged-{number}")).exists():
            number += 1
        self.path.rename(aside)
        for suffix in ("-wal", "-shm"):
            with suppress(FileNotFoundError):
                Path(f"{self.path}{suffix}").rename(f"{aside}{suffix}")
        return aside


def _damaged(error: sqlite3.DatabaseError) -> bool:
    """Whether the file itself is broken, rather than locked, absent or not writable."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
