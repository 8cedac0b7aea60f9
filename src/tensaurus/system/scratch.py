"""Temporary files: each process has one folder, which is removed even if the process is killed.

A process locks its folder as long as it lives.  A folder whose lock is free was left by a process that was
killed; the next process that needs a folder removes it.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from time import sleep
from typing import IO, Any

from tensaurus.system.cleanups import call_at_end

__all__ = ["child_environment", "open_unnamed_file", "process_folder", "temporary_folder"]

PREFIX = "tensaurus-scratch-"  # begins the names of all processes' folders

_lock = threading.RLock()
# process id (a fork has its own folder) -> folder, descriptor that locks it
_folders: dict[int, tuple[Path, int]] = {}


def process_folder() -> Path:
    """Return this process's folder, created on the first call.  Raises OSError."""
    with _lock:
        found = _folders.get(os.getpid())
        if found is None or not found[0].is_dir():
            parent = Path(tempfile.gettempdir())
            _remove_stale(parent)
            found = _folders[os.getpid()] = _create_locked_folder(parent)
            tidy = partial(_remove_own, os.getpid(), found[0])
            atexit.register(tidy)
            call_at_end(tidy)
        return found[0]


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a new folder that is removed at the end of the block."""
    folder = Path(tempfile.mkdtemp(dir=process_folder()))
    try:
        yield folder
    finally:
        remove_folder(folder)


def open_unnamed_file() -> IO[bytes]:
    """Return an open file without a name."""
    return tempfile.TemporaryFile(dir=process_folder())


def child_environment() -> dict[str, str]:
    """Return this process's environment for a child, with temporary files inside this process's folder.

    Files that a child leaves behind are then removed with the folder.
    """
    return {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(process_folder()))}


def remove_folder(path: Path) -> None:
    """Remove a folder and its contents as far as possible, read-only folders too.  Raises nothing."""
    for _ in range(5):
        shutil.rmtree(path, onerror=_unprotect)
        if not path.exists():
            return
        sleep(0.01)  # a child that is being killed may still have written


def _remove_own(owner: int, path: Path) -> None:
    if owner == os.getpid():  # not in a fork
        remove_folder(path)


def _unprotect(action: Callable[..., Any], path: str, error: Any) -> None:
    """Make the path and its parent folder writable and repeat the failed action (an `onerror` of rmtree)."""
    for locked in (Path(path).parent, Path(path)):
        with suppress(OSError):
            if stat.S_ISDIR(locked.lstat().st_mode):
                locked.chmod(stat.S_IRWXU)
    with suppress(OSError):
        if action in (os.unlink, os.rmdir):
            action(path)


def _create_locked_folder(parent: Path) -> tuple[Path, int]:
    """Return a new folder inside `parent`, and the descriptor that locks the folder.

    Another process may take the new folder for stale and remove it before it is locked; then try again.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        except OSError:  # a file system without locks, where no folder is taken for stale either
            return folder, descriptor
        if _is_same_file(folder, descriptor):
            return folder, descriptor
        os.close(descriptor)


def _remove_stale(parent: Path) -> None:
    """Remove this user's folders inside `parent` whose processes are dead."""
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX):
                with suppress(OSError):
                    _remove_if_stale(Path(entry.path))


def _remove_if_stale(path: Path) -> None:
    found = path.lstat()
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
        return
    if stat.S_IMODE(found.st_mode) != stat.S_IRWXU:  # a folder in use is never read-only
        path.chmod(stat.S_IRWXU)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_same_file(path, descriptor):
            remove_folder(path)
    finally:
        os.close(descriptor)


def _is_same_file(path: Path, descriptor: int) -> bool:
    """Return whether the path still names the file that was opened as this descriptor."""
    with suppress(FileNotFoundError):
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    return False
