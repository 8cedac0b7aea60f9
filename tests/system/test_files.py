"""Output files are replaced whole or not at all; errors are one line."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tensaurus.system import files
from tensaurus.system.errors import NotEqualError, TensaurusError, name_file_in_errors
from tensaurus.system.files import cache_folder, replace_file, require_writable


def test_replacing_renames_on_success(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with replace_file(path) as beside:
        beside.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_replacing_leaves_the_old_file_on_failure(error: type[BaseException], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(error), replace_file(path) as beside:
        beside.write_text("half of the n")
        raise error
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_replacing_follows_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    with replace_file(link) as beside:
        beside.write_text("new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_replacing_names_the_file_in_errors_of_the_disk(tmp_path: Path) -> None:
    with (
        pytest.raises(TensaurusError, match="file: cannot be written: No space left"),
        replace_file(tmp_path / "file"),
    ):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "no/folder", "file/x", "/dev/null", "folder", "x" * 300])
def test_what_cannot_be_written_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(TensaurusError, match="cannot be written"):
        require_writable(tmp_path / name)
    with pytest.raises(TensaurusError, match="cannot be written"), replace_file(tmp_path / name):
        pytest.fail("nothing should have been yielded")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_what_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    for name in ("old", "new", "x" * 255):
        require_writable(tmp_path / name)
    assert (tmp_path / "old").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_a_relative_name_is_in_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with replace_file("file") as beside:
        beside.write_text("new")
    assert (tmp_path / "file").read_text() == "new"


def test_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "tensaurus"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "tensaurus"


def test_errors_are_one_line() -> None:
    error = TensaurusError("bad\n  news.", file=Path("m.onnx"), node="conv1", remedy="Do\nthis.")
    assert str(error) == "m.onnx: node conv1: bad news. Do this."
    assert str(TensaurusError("bad")) == "bad"
    assert (TensaurusError.exit_code, NotEqualError.exit_code) == (2, 1)


def test_errors_can_be_given_their_file() -> None:
    with pytest.raises(TensaurusError, match=r"^outer: bad$"), name_file_in_errors("outer"):
        raise TensaurusError("bad")
    with pytest.raises(TensaurusError, match=r"^inner: bad$"), name_file_in_errors("outer"):
        raise TensaurusError("bad", file="inner")


def test_errors_cross_process_borders() -> None:
    error = NotEqualError("differs", file="m.onnx", node="n", remedy="None.")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is NotEqualError
    assert str(copy) == str(error)


KILLED = """
import os, signal, sys
from pathlib import Path
from tensaurus.system import files
if sys.argv[2] == "named":
    files._open_unnamed_file = lambda folder: None
with files.replace_file(sys.argv[1]) as beside:
    beside.write_text("half of the n")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(path: Path, way: str) -> None:
    """A process that is killed while it writes."""
    source = Path(files.__file__).parents[2]
    command = [sys.executable, "-c", KILLED, str(path), way]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(source)})
    assert done.returncode == -signal.SIGKILL


def test_what_is_killed_while_it_writes_leaves_nothing(tmp_path: Path) -> None:
    made = files._open_unnamed_file(tmp_path)
    if made is None:
        pytest.skip("files without names are not here")
    os.close(made)
    path = tmp_path / "file"
    path.write_text("old")
    killed(path, "unnamed")
    assert [(p, p.read_text()) for p in tmp_path.iterdir()] == [(path, "old")]


def test_what_a_killed_process_left_is_removed_by_the_next_that_writes(tmp_path: Path) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    killed(path, "named")
    (left,) = tmp_path.iterdir()
    assert left.read_text() == "half of the n"
    with replace_file(other) as beside:
        beside.write_text("new")
    assert left.exists(), "it lies beside another file"
    with replace_file(path) as beside:
        beside.write_text("new")
    assert sorted(tmp_path.iterdir()) == [path, other]


@pytest.mark.parametrize("named", [False, True])
def test_two_write_one_file_at_once(named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if named:
        monkeypatch.setattr(files, "_open_unnamed_file", lambda folder: None)
    path = tmp_path / "file"
    with replace_file(path) as first:
        first.write_text("first")
        with replace_file(path) as second:
            second.write_text("second")
        assert path.read_text() == "second"
    assert [(p, p.read_text()) for p in tmp_path.iterdir()] == [(path, "first")]


def test_a_named_file_that_is_taken_for_stale_before_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = files._try_lock, []

    def lock(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            files._remove_stale(tmp_path / "file")
        real(descriptor)

    monkeypatch.setattr(files, "_open_unnamed_file", lambda folder: None)
    monkeypatch.setattr(files, "_try_lock", lock)
    with replace_file(tmp_path / "file") as beside:
        beside.write_text("new")
    assert len(calls) == 2 and (tmp_path / "file").read_text() == "new"


def test_an_outputs_mode_is_that_of_a_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with replace_file(tmp_path / "file") as beside:
        beside.write_text("new")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode
