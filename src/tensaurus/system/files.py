"""Writes output files so that a crash leaves the old file whole, and names the cache folder.

A path that cannot be written is refused before the long work (`require_writable`).  Afterwards `replace_file`
writes into a file without a name where the system has such files, else into a file beside the target, and
renames at the end.  A file without a name vanishes with its process, so a killed process leaves nothing.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path

from tensaurus.system.cleanups import call_at_end, cancel_call_at_end
from tensaurus.system.errors import TensaurusError


def cache_folder() -> Path:
    """Return the folder of files that can be fetched or measured again: $XDG_CACHE_HOME/tensaurus."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tensaurus"


@contextmanager
def replace_file(path: str | Path) -> Iterator[Path]:
    """Yield a path to write to; the written file replaces `path` if the block succeeds, else it is removed.

    Raises TensaurusError where the file cannot be written.
    """
    target = _resolve_target(path)
    try:
        _remove_stale(target)
        unnamed = _open_unnamed_file(target.parent)
        if unnamed is None:
            with _create_file_beside(target) as beside:
                yield beside
                os.replace(beside, target)
            return
        try:
            written = Path(f"/proc/{os.getpid()}/fd/{unnamed}")
            yield written
            _link_to_target(written, unnamed, target)
        finally:
            os.close(unnamed)
    except OSError as error:
        raise _explain_refusal(path, error) from error


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits.  Raises OSError."""
    state = sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            state.update(block)
    return state.hexdigest()


def require_writable(path: str | Path) -> None:
    """Raise TensaurusError unless a file can be written at `path`; create nothing."""
    target = _resolve_target(path)
    try:
        unnamed = _open_unnamed_file(target.parent)
        if unnamed is not None:
            os.close(unnamed)
            return
        with _create_file_beside(target):
            pass
    except OSError as error:
        raise _explain_refusal(path, error) from error


def _open_unnamed_file(folder: Path) -> int | None:
    """Return the locked descriptor of a new file without a name; None where the system has no such files."""
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o666)
    except (AttributeError, OSError):  # not on this system, or not on this file system
        return None
    if not Path(f"/proc/self/fd/{descriptor}").exists():
        os.close(descriptor)
        return None
    _try_lock(descriptor)
    return descriptor


def _link_to_target(written: Path, descriptor: int, target: Path) -> None:
    """Name an unnamed file `target`; where that file exists, link a name beside it first and rename.

    A link cannot replace a file, a renaming can.
    """
    try:
        os.link(written, target, src_dir_fd=descriptor)  # with a descriptor, links are followed
    except FileExistsError:
        beside = _choose_name_beside(target)
        tidy = partial(beside.unlink, missing_ok=True)
        call_at_end(tidy)
        try:
            os.link(written, beside, src_dir_fd=descriptor)
            os.replace(beside, target)
        finally:
            tidy()
            cancel_call_at_end(tidy)


@contextmanager
def _create_file_beside(target: Path) -> Iterator[Path]:
    """Yield a new locked file beside the target; remove the file at the end of the block."""
    while True:
        beside = _choose_name_beside(target)
        tidy = partial(beside.unlink, missing_ok=True)
        call_at_end(tidy)
        try:
            descriptor = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
            try:
                _try_lock(descriptor)
                # another process may have taken the file for stale before it was locked: then try again
                if beside.exists():
                    yield beside
                    return
            finally:
                os.close(descriptor)
        finally:
            tidy()
            cancel_call_at_end(tidy)


def _choose_name_beside(target: Path) -> Path:
    return target.with_name(f".{target.name[:100]}.{os.getpid()}.{secrets.token_hex(4)}")


def _remove_stale(target: Path) -> None:
    """Remove files that killed processes left beside the target: named by our pattern, locked by nobody."""
    ours = re.compile(rf"\.{re.escape(target.name[:100])}\.\d+\.[0-9a-f]{{8}}")
    for name in filter(ours.fullmatch, os.listdir(target.parent)):
        stale = target.with_name(name)
        with suppress(OSError):
            descriptor = os.open(stale, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                status = os.fstat(descriptor)
                if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    stale.unlink()
            finally:
                os.close(descriptor)


def _try_lock(descriptor: int) -> None:
    """Lock a file until it is closed; do nothing where the file system has no locks."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _resolve_target(path: str | Path) -> Path:
    """Return the regular file that `path` names, with links followed.

    Raises TensaurusError for a folder or a device, which a renaming would replace, and for a missing folder.
    """
    target = Path(os.path.realpath(path))
    try:
        if not Path(path).name or target.is_dir():
            raise TensaurusError("cannot be written: it is a folder", file=path, remedy="Name a file.")
        if not target.parent.is_dir():
            reason = f"cannot be written: there is no folder {target.parent}"
            raise TensaurusError(reason, file=path, remedy="Create the folder first.")
        if target.exists() and not target.is_file():
            reason = "cannot be written: it is not a regular file"
            raise TensaurusError(reason, file=path, remedy="Name another file.")
    except OSError as error:  # a name that is too long
        raise _explain_refusal(path, error) from error
    return target


def _explain_refusal(path: str | Path, error: OSError) -> TensaurusError:
    return TensaurusError(f"cannot be written: {error.strerror or error}", file=path)
