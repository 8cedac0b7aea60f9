"""The measurement database: exact keys, two writers at once, and files that are not what they should be."""

from __future__ import annotations

import math
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensaurus.cost.database import Database, DatabaseError, Measurement, default_path

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
from tensaurus.cost.database import Database, Measurement
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


def test_damage_inside_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "m.sqlite"
    with Database(path) as database:
        database.put_many(Measurement(f"{i} " + "x" * 100, "b", "d", "", i) for i in range(500))
    content = bytearray(path.read_bytes())
    for page in range(1, len(content) // 4096):
        content[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(content)
    with Database(path) as database, Database(path) as other:
        with pytest.warns(UserWarning, match="damaged-1"):
            assert database.all() == []
        database.put(A)
        assert other.all() == [A]  # finds the new file, and does not rename that too
    assert (tmp_path / "m.sqlite.damaged-1").exists() and not (tmp_path / "m.sqlite.damaged-2").exists()


def test_truncated_file_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "m.sqlite"
    with Database(path) as database:
        database.put_many(Measurement(f"{i} " + "x" * 100, "b", "d", "", i) for i in range(500))
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.warns(UserWarning, match="damaged-1"), Database(path) as database:
        database.put(A)
        assert database.all() == [A]


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
    for path in (tmp_path / "file" / "m.sqlite", tmp_path / "folder", Path("/proc/m.sqlite")):
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
