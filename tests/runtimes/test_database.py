"""The measurement database: exact keys, two writers at once, and files that are not what they should be."""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import astuple, fields
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensaurus.runtimes.measure.database import Database, DatabaseError, Measurement, default_path

A = Measurement("Conv f32[1,3,8,8]", "onnxruntime 1.23", "cpu, 2 threads", "", 1e-3)
B = Measurement("Conv f32[1,3,8,8]", "onnxruntime 1.23", "cpu, 1 threads", "", 2e-3)


def key(m: Measurement) -> tuple[str, str, str, str]:
    return m.workload, m.backend, m.device, m.schedule


def test_put_get_replace_clear(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "m.sqlite"
    with Database(path) as database:
        assert database.count() == 0 and database.all() == [] and database.get(*key(A)) is None
        database.put(A)
        database.put_many([B, Measurement(*key(A), seconds=math.inf)])
        assert database.get(*key(A)) == Measurement(*key(A), seconds=math.inf)
        assert database.get(*key(B)[:3]) == B
    with Database(path) as database:
        assert [m.device for m in database.all()] == ["cpu, 1 threads", "cpu, 2 threads"]
        assert database.count() == 2
        database.clear()
        assert database.count() == 0
    assert [p.name for p in path.parent.iterdir()] == ["m.sqlite"]


texts = st.text(max_size=8)
keys = st.tuples(texts, texts, texts, texts)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(keys, st.floats(min_value=0, allow_nan=False), max_size=12))
def test_keys_are_the_texts_themselves(content: dict[tuple[str, str, str, str], float]) -> None:
    with Database(":memory:") as database:
        database.put_many(Measurement(*k, seconds=s) for k, s in content.items())
        assert {key(m): m.seconds for m in database.all()} == content
        for k, seconds in content.items():
            assert database.get(*k) == Measurement(*k, seconds=seconds)


def test_impossible_seconds() -> None:
    for seconds in (math.nan, -1.0):
        with pytest.raises(ValueError, match="measurement of"):
            Measurement("w", "b", "d", "", seconds)


def test_put_many_is_all_or_nothing(tmp_path: Path) -> None:
    with Database(tmp_path / "m.sqlite") as database:

        def half() -> Iterator[Measurement]:
            yield A
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            database.put_many(half())
        with pytest.raises(DatabaseError):
            database.put_many([B, Measurement("w", "b", "d", None, 1.0)])  # type: ignore[arg-type]
        assert database.count() == 0
        database.put(A)
        assert database.count() == 1


def test_an_interrupt_at_the_beginning_of_a_transaction(tmp_path: Path) -> None:
    """No transaction stays open, in which the next one could not begin."""
    with Database(tmp_path / "m.sqlite") as database:
        real = database._connection

        class Interrupted:
            def execute(self, statement: str) -> object:
                made = real.execute(statement)
                if statement.startswith("BEGIN"):
                    raise KeyboardInterrupt
                return made

        database._connection = Interrupted()  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            database.put(A)
        database._connection = real
        database.put(A)
        assert database.count() == 1


def test_two_processes_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "m.sqlite"
    code = """
import sys
from tensaurus.runtimes.measure.database import Database, Measurement
with Database(sys.argv[1]) as database:
    print("ready", flush=True)
    sys.stdin.readline()
    for i in range(200):
        database.put(Measurement(f"mine {sys.argv[2]} {i}", "b", "d", "", i))
        database.put(Measurement(f"shared {i}", "b", "d", "", i))
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    writers = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code, str(path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for name in ("first", "second")
    ]
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    with Database(path) as database:
        assert database.count() == 600


def test_not_a_database_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "m.sqlite"
    for number in (1, 2):
        path.write_text("this is not SQLite " * 100)
        with (
            pytest.warns(UserWarning, match=rf"damaged.*m.sqlite.damaged-{number}"),
            Database(path) as database,
        ):
            database.put(A)
            assert database.all() == [A]
        assert (tmp_path / f"m.sqlite.damaged-{number}").read_text().startswith("this is not")


def many(count: int = 500) -> list[Measurement]:
    return [Measurement(f"{i} " + "x" * 100, "b", "d", "", i + 1.0) for i in range(count)]


def stored(path: Path, count: int = 500) -> Path:
    """A new file with many measurements."""
    with Database(path) as database:
        database.put_many(many(count))
    return path


def overwrite(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def test_damage_inside_is_set_aside_when_the_file_is_opened(tmp_path: Path) -> None:
    path = stored(tmp_path / "m.sqlite")
    for page in range(1, path.stat().st_size // 4096):
        overwrite(path, page * 4096, b"\xff" * 64)
    with pytest.warns(UserWarning, match="damaged-1") as warned, Database(path) as database:
        assert database.all() == []
    assert len(warned) == 1


def test_damage_while_open_is_set_aside_once(tmp_path: Path) -> None:
    path = stored(tmp_path / "m.sqlite", 40_000)  # more than SQLite keeps in memory
    with Database(path) as database, Database(path) as other:
        for page in range(1, path.stat().st_size // 4096):
            overwrite(path, page * 4096, b"\xff" * 64)
        with pytest.warns(UserWarning, match="damaged-1"):
            assert database.all() == []
        database.put(A)
        assert other.all() == [A]  # finds the new file, and does not rename that too
    assert (tmp_path / "m.sqlite.damaged-1").exists() and not (tmp_path / "m.sqlite.damaged-2").exists()


@pytest.mark.parametrize("page", range(12))
@pytest.mark.parametrize("inside", (0, 808))
def test_a_file_cut_anywhere_is_begun_anew(tmp_path: Path, page: int, inside: int) -> None:
    path = stored(tmp_path / "m.sqlite")
    path.write_bytes(path.read_bytes()[: max(100, page * 4096 + inside)])
    with pytest.warns(UserWarning, match="damaged-1.*measured again") as warned, Database(path) as database:
        assert database.all() == []
        database.put(A)
        assert database.get(*key(A)) == A
    assert len(warned) == 1


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_garbled_files_are_one_line_or_work(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "m.sqlite"
        connection = sqlite3.connect(path)
        with Database(path) as writer:
            writer.put_many(many(150))
            connection.execute("SELECT * FROM measurements").fetchone()  # keeps the journal beside it
        files = {suffix: Path(f"{path}{suffix}").read_bytes() for suffix in ("", "-wal", "-shm")}
        connection.close()
        garbled = data.draw(st.sampled_from(sorted(files)))
        for _ in range(data.draw(st.integers(1, 4))):
            size = len(files[garbled])
            at = data.draw(st.integers(0, min(size, 120)) | st.integers(0, size))
            noise = data.draw(st.binary(min_size=1, max_size=64))
            files[garbled] = (files[garbled][:at] + noise + files[garbled][at + len(noise) :])[:size]
        for suffix, content in files.items():
            Path(f"{path}{suffix}").write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with Database(path) as database:
                    database.all()
                    database.put(A)
                    assert database.get(*key(A)) == A
            except DatabaseError as error:
                assert "\n" not in str(error)


BAD_ROWS: list[tuple[object, ...]] = [
    ("w", "b", "d", "", -1.0),
    ("w", "b", "d", "1", None),
    ("w", "b", "d", "2", "soon"),
    (b"w", "b", "d", "3", 1.0),
    ("w", None, "d", "4", 1.0),
]


def test_rows_that_cannot_be_measurements_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "m.sqlite"
    connection = sqlite3.connect(path, isolation_level=None)
    names = ", ".join(field.name for field in fields(Measurement))
    connection.execute(f"CREATE TABLE measurements ({names})")  # as a version without constraints might
    connection.execute("PRAGMA user_version = 1")
    connection.executemany("INSERT INTO measurements VALUES (?, ?, ?, ?, ?)", [*BAD_ROWS, astuple(A)])
    with pytest.warns(UserWarning, match="removed 5 rows") as warned, Database(path) as database:
        assert database.all() == [A]
        assert len(warned) == 1
        connection.executemany("INSERT INTO measurements VALUES (?, ?, ?, ?, ?)", BAD_ROWS)
        connection.execute("INSERT INTO measurements VALUES (CAST(x'ff' AS TEXT), 'b', 'd', '', 1.0)")
        with pytest.warns(UserWarning, match="6 rows .* ignored"):
            assert database.all() == [A]
        assert database.get("w", "b", "d") is None and database.beginning("w", "b", "d") == []
    connection.close()
    assert [p.name for p in tmp_path.iterdir()] == ["m.sqlite"]


@pytest.mark.parametrize("row", BAD_ROWS)
def test_a_new_file_refuses_what_is_no_measurement(tmp_path: Path, row: tuple[object, ...]) -> None:
    Database(tmp_path / "m.sqlite").close()
    connection = sqlite3.connect(tmp_path / "m.sqlite")
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute("INSERT INTO measurements VALUES (?, ?, ?, ?, ?)", row)
    connection.close()


@pytest.mark.parametrize("replaced", (False, True))
def test_a_file_deleted_or_replaced_while_it_is_open(tmp_path: Path, replaced: bool) -> None:
    path = tmp_path / "new" / "m.sqlite"
    with Database(path) as database:
        database.put(A)
        shutil.rmtree(path.parent)
        if replaced:
            with Database(path) as other:
                other.put(B)
        database.put(A)
        assert set(database.all()) == ({A, B} if replaced else {A})
        with Database(path) as other:
            assert other.get(*key(A)) == A


def test_a_garbled_declaration_is_damage(tmp_path: Path) -> None:
    path = stored(tmp_path / "m.sqlite")
    overwrite(path, path.read_bytes().index(b"NOT NULL"), b"'\x98\n\xf0")  # SQLite quotes it
    with pytest.warns(UserWarning, match="damaged-1") as warned, Database(path) as database:
        database.put(A)
    assert "\n" not in str(warned[0].message)


def test_a_file_whose_making_was_interrupted(tmp_path: Path) -> None:
    path = stored(tmp_path / "m.sqlite")
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 0")
    connection.close()
    with Database(path) as database:
        assert database.count() == 500


def test_empty_file_is_a_new_database(tmp_path: Path) -> None:
    path = tmp_path / "m.sqlite"
    path.touch()
    with Database(path) as database:
        database.put(A)
        assert database.all() == [A]


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "m.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE letters (text TEXT)")
    for version in (0, 1):  # 1 is ours, too
        connection.execute(f"PRAGMA user_version = {version}")
        before = path.read_bytes()
        with pytest.raises(DatabaseError, match="belongs to another program"):
            Database(path)
        assert path.read_bytes() == before
    connection.close()
    newer = tmp_path / "newer.sqlite"
    connection = sqlite3.connect(newer)
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    with pytest.raises(DatabaseError, match="belongs to a newer tensaurus"):
        Database(newer)


def test_unusable_places_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    places = ("file/m.sqlite", "folder", "pipe")
    for path in (*(tmp_path / place for place in places), Path("/proc/m.sqlite")):
        with pytest.raises(DatabaseError, match="cannot be used: ") as caught:
            Database(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(DatabaseError, match="cannot be used: "):
        Database(tmp_path / "m.sqlite")


def test_default_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TENSAURUS_DB", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_path() == tmp_path / ".cache/tensaurus/measurements.sqlite"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert default_path() == tmp_path / "cache/tensaurus/measurements.sqlite"
    monkeypatch.setenv("TENSAURUS_DB", "~/mine.sqlite")
    with Database() as database:
        assert database.path == tmp_path / "mine.sqlite"
