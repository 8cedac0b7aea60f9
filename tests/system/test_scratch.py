"""Temporary files go with the process that made them, however it ends."""

from __future__ import annotations

import ast
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tensaurus
from tensaurus.system import scratch

PACKAGE = Path(tensaurus.__file__).parent
CODE = """
import sys
from tensaurus.system.scratch import child_environment, process_folder, temporary_folder
with temporary_folder() as inner:
    (inner / "file").write_text("x")
    print(process_folder(), flush=True)
    sys.stdin.read()
"""


def start(place: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has a scratch folder in the place, and the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", CODE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(place), "PYTHONPATH": str(PACKAGE.parent)},
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str]) -> None:
    process.communicate(timeout=20)


def test_a_folder_goes_with_its_process(tmp_path: Path) -> None:
    process, folder = start(tmp_path)
    assert folder.parent == tmp_path and list(tmp_path.iterdir()) == [folder]
    end(process)
    assert list(tmp_path.iterdir()) == []


def test_the_next_process_removes_what_a_killed_one_left_and_nothing_else(tmp_path: Path) -> None:
    living, kept = start(tmp_path)
    killed, stale = start(tmp_path)
    killed.send_signal(signal.SIGKILL)
    end(killed)
    assert stale.is_dir()
    sealed = stale / "sealed"
    sealed.mkdir()
    (sealed / "file").touch()
    sealed.chmod(0o500)
    stale.chmod(0o500)
    (tmp_path / "another").mkdir()
    (tmp_path / f"{scratch.PREFIX}file").touch()
    (tmp_path / f"{scratch.PREFIX}link").symlink_to(kept)
    process, folder = start(tmp_path)
    left = {kept.name, folder.name, "another", f"{scratch.PREFIX}file", f"{scratch.PREFIX}link"}
    assert {path.name for path in tmp_path.iterdir()} == left
    assert list(kept.glob("*/file"))
    end(process)
    end(living)


def test_a_folder_of_another_user_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = tmp_path / f"{scratch.PREFIX}foreign"
    foreign.mkdir(mode=0o700)
    own = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: own + 1)
    scratch._remove_stale(tmp_path)
    assert foreign.is_dir()
    monkeypatch.setattr(os, "getuid", lambda: own)
    scratch._remove_stale(tmp_path)
    assert not foreign.exists()


def test_a_folder_that_is_taken_for_stale_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between mkdir and the lock another process may hold the lock, or have removed the folder."""
    real, calls = fcntl.flock, []

    def flock(descriptor: int, operation: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            raise BlockingIOError
        if len(calls) == 2:
            for path in tmp_path.iterdir():
                path.rmdir()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    made, held = scratch._create_locked_folder(tmp_path)
    assert len(calls) == 3 and made.is_dir() and scratch._is_same_file(made, held)
    os.close(held)


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", flock)
    made, held = scratch._create_locked_folder(tmp_path)
    scratch._remove_stale(tmp_path)
    assert made.is_dir()
    os.close(held)


def test_children_leave_their_files_in_the_folder() -> None:
    command = [sys.executable, "-c", "import tempfile; print(tempfile.mkdtemp())"]
    inherited = scratch.child_environment()
    done = subprocess.run(command, env=inherited, capture_output=True, text=True, check=True)
    left = Path(done.stdout.strip())
    assert left.parent == scratch.process_folder()
    scratch.remove_folder(left)
    assert not left.exists()


def test_temporary_files_have_one_place() -> None:
    """No other module makes any; what a fault leaves is to stay."""
    found = [
        f"{path.relative_to(PACKAGE)}: {ast.unparse(node)}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom) and "tempfile" in ast.unparse(node)
    ]
    assert sorted(found) == ["app/report/failure.py: import tempfile", "system/scratch.py: import tempfile"]
