"""Temporary files of this process, in one folder that does not outlive it.

The folder is locked as long as the process lives.  One whose lock is free was left by a process that was
killed, and the next that needs a folder removes it.
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

from tensaurus.system.signals import at_end

__all__ = ["environment", "folder", "spool", "temporary"]

PREFIX = "tensaurus-scratch-"

_lock = threading.RLock()
_folders: dict[int, tuple[Path, int]] = {}  # of a process (a fork has its own) the folder and its lock


def folder() -> Path:
    """This process's, made when it is first asked for.  Raises OSError."""
    with _lock:
        found = _folders.get(os.getpid())
        if found is None or not found[0].is_dir():
            place = Path(tempfile.gettempdir())
            _remove_stale(place)
            found = _folders[os.getpid()] = _locked(place)
            tidy = partial(_remove_own, os.getpid(), found[0])
            atexit.register(tidy)
            at_end(tidy)
        return found[0]


@contextmanager
def temporary() -> Iterator[Path]:
    """A new folder, removed at the end of the block."""
    made = Path(tempfile.mkdtemp(dir=folder()))
    try:
        yield made
    finally:
        remove(made)


def spool() -> IO[bytes]:
    """A file without a name."""
    return tempfile.TemporaryFile(dir=folder())


def environment() -> dict[str, str]:
    """This process's, for a child: what a child leaves behind goes with this process's folder."""
    return {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder()))}


def remove(path: Path) -> None:
    """Remove a folder with all that is in it, as far as that is possible; folders that are read-only, too."""
    for _ in range(5):
        shutil.rmtree(path, onerror=_unprotect)
        if not path.exists():
            return
        sleep(0.01)  # a child that is being killed may still have written


def _remove_own(owner: int, path: Path) -> None:
    if owner == os.getpid():  # not in a fork
        remove(path)


def _unprotect(action: Callable[..., Any], path: str, error: Any) -> None:
    """Of a folder that may not be read or written: now it may, when it is tried again."""
    for locked in (Path(path).parent, Path(path)):
        with suppress(OSError):
            if stat.S_ISDIR(locked.lstat().st_mode):
                locked.chmod(stat.S_IRWXU)
    with suppress(OSError):
        if action in (os.unlink, os.rmdir):
            action(path)


def _locked(place: Path) -> tuple[Path, int]:
    """A new folder in the place, and the descriptor that locks it.

    Another process may take it for stale before it is locked, and remove it: then there will be another.
    """
    while True:
        made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        try:
            held = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            continue
        except OSError:  # a file system without locks, where nothing is taken for stale either
            return made, held
        if _same(made, held):
            return made, held
        os.close(held)


def _remove_stale(place: Path) -> None:
    """Remove this user's folders in the place whose processes are dead."""
    with suppress(OSError), os.scandir(place) as entries:
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
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _same(path, held):
            remove(path)
    finally:
        os.close(held)


def _same(path: Path, descriptor: int) -> bool:
    """Whether the path still names what was opened."""
    with suppress(FileNotFoundError):
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    return False
