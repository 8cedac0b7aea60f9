"""Measurements go to other machines of one kind, and come back as they were."""

from __future__ import annotations

import gzip
import json
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensaurus.runtimes.measure.database import Database, DatabaseError, Measurement, read_database
from tensaurus.runtimes.measure.measurement_file import FORMAT, read_measurements, write_measurements
from tensaurus.system.errors import TensaurusError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)  # surrogates are no text
SECONDS = st.floats(min_value=0.0, allow_nan=False)  # infinity is one: the workload cannot run
ROWS = st.lists(st.builds(Measurement, TEXTS, TEXTS, TEXTS, TEXTS, SECONDS), max_size=6)
ROW = Measurement("Relu(f32[2])\nand more", "onnxruntime 1", "a machine, 2 cores, 2 threads", "", 0.0015)


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
@given(rows=ROWS)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, name: str, rows: list[Measurement]
) -> None:
    file = tmp_path_factory.mktemp("export") / name
    write_measurements(file, rows)
    assert read_measurements(file) == rows
    assert (file.read_bytes()[:2] == b"\x1f\x8b") is name.endswith(".gz")


HEADER = json.dumps(FORMAT)
GOOD = json.dumps(["a", "b", "c", "d", 1.0])
BROKEN = {
    "nothing": ("", "is not an export"),
    "another format": ('{"tensaurus measurements": 2}\n', "is not an export"),
    "text": ("hello\n", "is not an export"),
    "no list": (f"{HEADER}\n{GOOD}\n{{}}\n", "line 3 is not"),
    "a number": (f"{HEADER}\n7\n", "line 2 is not"),
    "too few fields": (f'{HEADER}\n["a", "b", 1.0]\n', "line 2 is not"),
    "a number in the key": (f'{HEADER}\n["a", "b", "c", 4, 1.0]\n', "line 2 is not"),
    "seconds in words": (f'{HEADER}\n["a", "b", "c", "d", "1.0"]\n', "line 2 is not"),
    "negative seconds": (f'{HEADER}\n["a", "b", "c", "d", -1.0]\n', "line 2 is not"),
    "no seconds": (f'{HEADER}\n["a", "b", "c", "d", NaN]\n', "line 2 is not"),
    "a truth": (f'{HEADER}\n["a", "b", "c", "d", true]\n', "line 2 is not"),
    "cut off": (f"{HEADER}\n{GOOD}\n{GOOD[:9]}", "line 3 is not"),
    "nested without end": (f"{HEADER}\n{'[' * 100_000}\n", "line 2 is not"),
}


@pytest.mark.parametrize("text, reason", BROKEN.values(), ids=BROKEN)
def test_a_damaged_file_is_one_line_that_names_the_place(text: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "export.jsonl"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(TensaurusError, match=reason) as caught:
        read_measurements(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value) and caught.value.remedy


BYTES = {
    "nothing": b"",
    "a header": b"\x1f\x8b",
    "no gzip": b"no gzip",
    "cut off": gzip.compress(b"x" * 500, mtime=0)[:-9],
    "no text": b"\xff\xfe",
}


@pytest.mark.parametrize("content", BYTES.values(), ids=BYTES)
@pytest.mark.parametrize("name", ["export.jsonl", "export.jsonl.gz"])
def test_bytes_that_are_no_text_are_one_line(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TensaurusError, match=name) as caught:
        read_measurements(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", [".", "absent.jsonl", "absent.jsonl.gz"])
def test_what_is_no_file_is_one_line(path: str, tmp_path: Path) -> None:
    with pytest.raises(TensaurusError, match="cannot be read"):
        read_measurements(tmp_path / path)


def test_what_was_measured_here_stays(tmp_path: Path) -> None:
    other = Measurement("Exp", "b", "c", "d", inf)
    with Database(tmp_path / "here.sqlite") as database:
        database.put(ROW)
        slower = Measurement(ROW.workload, ROW.backend, ROW.device, ROW.schedule, 9.0)
        assert database.add_missing([slower, other, other]) == 1
        assert database.add_missing([]) == 0
        assert database.all() == [other, ROW]


def test_a_database_of_another_run_is_read_and_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "there.sqlite"
    with Database(file) as database:
        database.put(ROW)
    before = file.read_bytes()
    assert read_database(file) == [ROW] and file.read_bytes() == before
    for name, content in (("damaged", before[:700]), ("text", b"hello" * 100), ("empty", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DatabaseError, match=name) as caught:
            read_database(tmp_path / name)
        assert (tmp_path / name).read_bytes() == content and "\n" not in str(caught.value)
    with pytest.raises(DatabaseError, match="absent"):
        read_database(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
