"""Keeps the measurements of all runs in one SQLite file, which several processes may use at once."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple, dataclass, fields
from math import isnan
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tensaurus.system.errors import TensaurusError

__all__ = ["Database", "DatabaseError", "Measurement", "default_path", "read_database"]

KEY = ("workload", "backend", "device", "schedule")
SCHEMA = 1  # version of the table, PRAGMA user_version in the file
LOCK_SECONDS = 30.0  # time to wait for another process that is writing
MAX_CHECKED_BYTES = 2**27  # larger files are not checked when they are opened; checking 12 MB takes 0.03 s
REMEDY = "Name another file with --db or TENSAURUS_DB."
VALID_ROW = " AND ".join(  # SQL condition of a measurement; NaN is excluded, as SQLite stores NULL for it
    [*(f"typeof({name}) = 'text'" for name in KEY), "typeof(seconds) IN ('real', 'integer')", "seconds >= 0"]
)

TABLE = (
    "CREATE TABLE IF NOT EXISTS measurements (workload TEXT NOT NULL, backend TEXT NOT NULL,"
    " device TEXT NOT NULL, schedule TEXT NOT NULL, seconds REAL NOT NULL,"
    f" PRIMARY KEY ({', '.join(KEY)}), CHECK ({VALID_ROW})) WITHOUT ROWID"
)
INSERT = "REPLACE INTO measurements VALUES (?, ?, ?, ?, ?)"
INSERT_MISSING = "INSERT OR IGNORE INTO measurements VALUES (?, ?, ?, ?, ?)"

# Errors that a damaged file causes; UnicodeDecodeError where an error text quotes damaged bytes.
UNREADABLE = (sqlite3.DatabaseError, UnicodeDecodeError)

T = TypeVar("T")


class DatabaseError(TensaurusError):
    """The database cannot be opened, read or written; the message is one line with its path."""


@dataclass(frozen=True)
class Measurement:
    """The seconds that a workload takes; the other four fields are the key, whole texts without hashes."""

    workload: str  # the program's text
    backend: str  # name and version
    device: str  # the machine's key
    schedule: str  # the kernel's schedule, or ""
    seconds: float  # infinity: the workload cannot run there

    def __post_init__(self) -> None:
        if isnan(self.seconds) or self.seconds < 0:
            raise ValueError(f"a measurement of {self.seconds} s")


def default_path() -> Path:
    """Return $TENSAURUS_DB, or tensaurus/measurements.sqlite in the user's cache folder."""
    if named := os.environ.get("TENSAURUS_DB"):
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "tensaurus" / "measurements.sqlite"


class Database:
    """Holds the newest measurement of each key.  Used by the thread that opened it.

    A damaged file is renamed aside, with a warning, and a new one is started: the file is a cache.
    A file that was deleted or replaced is opened anew. Rows that cannot be measurements are dropped, with
    a warning. Every method raises DatabaseError where the file cannot be read or written.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        """Open the file, or create it with its folder."""
        self.path = Path(path) if path is not None else default_path()
        self._has_warned = False  # about rows that were ignored
        with self._wrap_errors():
            self._connection = self._open()

    def get(self, workload: str, backend: str, device: str, schedule: str = "") -> Measurement | None:
        """Return the measurement with that key, None where there is none."""
        rows = self._read(
            "SELECT * FROM measurements WHERE workload = ? AND backend = ? AND device = ? AND schedule = ?",
            (workload, backend, device, schedule),
        )
        return rows[0] if rows else None

    def of(self, workload: str, backend: str, device: str) -> list[Measurement]:
        """Return the measurements of a workload, sorted by their schedules."""
        return self._read(
            "SELECT * FROM measurements WHERE workload = ? AND backend = ? AND device = ? ORDER BY schedule",
            (workload, backend, device),
        )

    def beginning(self, prefix: str, backend: str, device: str) -> list[Measurement]:
        """Return the measurements of workloads that begin with the prefix, sorted by their keys."""
        return self._read(
            "SELECT * FROM measurements WHERE substr(workload, 1, ?) = ? AND backend = ? AND device = ?"
            " AND workload >= ? ORDER BY workload, schedule",
            (len(prefix), prefix, backend, device, prefix),
        )

    def put(self, measurement: Measurement) -> None:
        """Store a measurement in the place of an older one with its key."""
        self.put_many([measurement])

    def put_many(self, measurements: Iterable[Measurement]) -> None:
        """Store all of them or, where one fails, none."""
        rows = [astuple(measurement) for measurement in measurements]

        def write() -> None:
            with _transaction(self._connection):
                self._connection.executemany(INSERT, rows)

        self._retry_on_damage(write)

    def add_missing(self, measurements: Iterable[Measurement]) -> int:
        """Store those whose key has no measurement yet, all or none; return how many these were."""
        rows = [astuple(measurement) for measurement in measurements]

        def write() -> int:
            with _transaction(self._connection):
                before = self._connection.total_changes
                self._connection.executemany(INSERT_MISSING, rows)
                return self._connection.total_changes - before

        return self._retry_on_damage(write)

    def all(self) -> list[Measurement]:
        """Return every measurement, sorted by key."""
        return self._read("SELECT * FROM measurements ORDER BY workload, backend, device, schedule")

    def count(self) -> int:
        """Return how many measurements there are."""
        return self._retry_on_damage(
            lambda: int(self._connection.execute("SELECT count(*) FROM measurements").fetchone()[0])
        )

    def clear(self) -> None:
        """Forget every measurement."""

        def write() -> None:
            with _transaction(self._connection):
                self._connection.execute("DELETE FROM measurements")

        self._retry_on_damage(write)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, query: str, arguments: tuple[str | int, ...] = ()) -> list[Measurement]:
        rows = self._retry_on_damage(lambda: self._connection.execute(query, arguments).fetchall())
        found = [measurement for measurement in map(_to_measurement, rows) if measurement is not None]
        if len(found) < len(rows) and not self._has_warned:
            self._has_warned = True
            self._warn(
                f"{_count_rows(len(rows) - len(found))} of {self.path} cannot be a measurement: ignored"
            )
        return found

    def _retry_on_damage(self, action: Callable[[], T]) -> T:
        """Perform an action, once more on a new file if the present one turns out to be damaged."""
        with self._wrap_errors():
            if self._file_identity != _file_identity(self.path):
                self._connection.close()
                self._connection = self._open()
            try:
                return action()
            except UNREADABLE as error:
                if not _is_damage(error):
                    raise
                self._connection.close()
                self._connection = self._open(error)
                return action()

    @contextmanager
    def _wrap_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
            reason = isinstance(error, OSError) and error.strerror or _one_line(error)
            raise DatabaseError(
                f"the measurement database cannot be used: {reason}",
                file=self.path,
                remedy=REMEDY,
            ) from error

    def _open(self, damage: Exception | None = None) -> sqlite3.Connection:
        """Connect to the file, or to a new one where it is damaged; one process at a time does this.

        `damage` is an error from the file that was open so far; another process may have replaced it since.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(folder, fcntl.LOCK_EX)
            if damage is None or self._file_identity != _file_identity(self.path):
                try:
                    return self._connect()
                except UNREADABLE as error:
                    if not _is_damage(error):
                        raise
                    damage = error
            return self._replace_damaged(damage)
        finally:
            os.close(folder)

    def _replace_damaged(self, damage: Exception) -> sqlite3.Connection:
        """Rename the damaged file, and return a connection to a new, empty one."""
        aside = self._rename_damaged()
        connection = self._connect()
        self._warn(
            f"{self.path} is damaged ({_one_line(damage)}): renamed to {aside.name}, and a new file started;"
            " what was measured is measured again"
        )
        return connection

    def _connect(self) -> sqlite3.Connection:
        if self.path.exists() and not self.path.is_file():
            raise DatabaseError(
                "the measurement database cannot be used: it is not a regular file",
                file=self.path,
                remedy=REMEDY,
            )
        connection = sqlite3.connect(self.path, timeout=LOCK_SECONDS, isolation_level=None)
        connection.text_factory = _text
        try:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            columns = connection.execute("SELECT name FROM pragma_table_info('measurements')").fetchall()
            ours = [(item.name,) for item in fields(Measurement)]
            if version > SCHEMA or (version or tables) and columns != ours:
                owner = "a newer tensaurus" if version > SCHEMA else "another program"
                raise DatabaseError(f"the file belongs to {owner}", file=self.path, remedy=REMEDY)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            if not columns:
                with _transaction(connection):
                    connection.execute(TABLE)
                    connection.execute(f"PRAGMA user_version = {SCHEMA}")
            elif self.path.stat().st_size <= MAX_CHECKED_BYTES:
                self._check(connection)
        except BaseException:
            connection.close()
            raise
        self._file_identity = _file_identity(self.path)
        return connection

    def _check(self, connection: sqlite3.Connection) -> None:
        """Raise where the file is damaged; drop the rows that cannot be measurements."""
        connection.execute("PRAGMA ignore_check_constraints = ON")
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        connection.execute("PRAGMA ignore_check_constraints = OFF")
        if found != "ok":
            error = sqlite3.DatabaseError(found)
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error
        if connection.execute(f"SELECT 1 FROM measurements WHERE NOT ({VALID_ROW}) LIMIT 1").fetchone():
            with _transaction(connection):
                removed = connection.execute(f"DELETE FROM measurements WHERE NOT ({VALID_ROW})").rowcount
            self._warn(f"removed {_count_rows(removed)} from {self.path} that were not measurements")

    def _warn(self, text: str) -> None:
        warnings.warn(text, stacklevel=2)

    def _rename_damaged(self) -> Path:
        """Rename the file, and its journal with it, to the first free name."""
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.damaged-{number}")).exists():
            number += 1
        self.path.rename(aside)
        for suffix in ("-wal", "-shm"):
            with suppress(FileNotFoundError):
                Path(f"{self.path}{suffix}").rename(f"{aside}{suffix}")
        return aside


def read_database(path: Path) -> list[Measurement]:
    """Return the measurements in a database of another run, which is not changed, sorted by key.

    Raises DatabaseError for a file that is none, or that is damaged.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            connection.text_factory = _text
            rows = connection.execute(f"SELECT * FROM measurements ORDER BY {', '.join(KEY)}").fetchall()
    except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
        remedy = "Name a database: `tensaurus db path` prints the present one."
        raise DatabaseError(f"cannot be read: {_one_line(error)}", file=path, remedy=remedy) from error
    return [measurement for measurement in map(_to_measurement, rows) if measurement is not None]


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    try:  # an interrupt of BEGIN itself may leave a transaction open
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _text(raw: bytes) -> str | None:
    """Decode what SQLite stores as a text; None where it is no UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _to_measurement(row: Sequence[Any]) -> Measurement | None:
    """Return the measurement in a row; None where the row cannot be one."""
    if not all(isinstance(text, str) for text in row[:-1]):
        return None
    try:
        return Measurement(*row)
    except (TypeError, ValueError):
        return None


def _count_rows(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows} rows"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _is_damage(error: Exception) -> bool:
    """Return whether the file itself is broken, rather than locked, absent or not writable."""
    if isinstance(error, UnicodeDecodeError):
        return True
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _file_identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
