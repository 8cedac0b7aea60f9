"""Output files and the cache folder.

An output that cannot be written is refused before the long work; one that can is written beside and then
renamed, so that the old file stays whole.  Where the system has files without names it is written into one,
and what is killed leaves nothing.
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

from tensaurus.system.errors import TensaurusError
from tensaurus.system.signals import at_end, not_at_end


def cache_folder() -> Path:
    """The folder for what can be fetched or measured again: $XDG_CACHE_HOME/tensaurus."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tensaurus"


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a path to write to; when the block succeeds the file becomes path, when it fails it is gone.

    Raises TensaurusError where the file cannot be written.
    """
    target = _target(path)
    try:
        _remove_stale(target)
        unnamed = _unnamed(target.parent)
        if unnamed is None:
            with _named(target) as beside:
                yield beside
                os.replace(beside, target)
            return
        try:
            written = Path(f"/proc/{os.getpid()}/fd/{unnamed}")
            yield written
            _name(written, unnamed, target)
        finally:
            os.close(unnamed)
    except OSError as error:
        raise _refusal(path, error) from error


def file_hash(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits.  Raises OSError."""
    found = sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            found.update(block)
    return found.hexdigest()


def require_writable(path: str | Path) -> None:
    """Raise TensaurusError unless a file can be written at path; leaves nothing behind."""
    target = _target(path)
    try:
        unnamed = _unnamed(target.parent)
        if unnamed is not None:
            os.close(unnamed)
            return
        with _named(target):
            pass
    except OSError as error:
        raise _refusal(path, error) from error


def _unnamed(folder: Path) -> int | None:
    """The descriptor of a new file without a name in the folder, locked; None where there are none."""
    try:
        made = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o666)
    except (AttributeError, OSError):  # not this system, or not this file system
        return None
    if not Path(f"/proc/self/fd/{made}").exists():
        os.close(made)
        return None
    _lock(made)
    return made


def _name(written: Path, descriptor: int, target: Path) -> None:
    """Give the file its name: one beside it for a moment where it takes another's place."""
    try:
        os.link(written, target, src_dir_fd=descriptor)  # with a descriptor, links are followed
    except FileExistsError:
        beside = _free(target)
        tidy = partial(beside.unlink, missing_ok=True)
        at_end(tidy)
        try:
            os.link(written, beside, src_dir_fd=descriptor)
            os.replace(beside, target)
        finally:
            tidy()
            not_at_end(tidy)


@contextmanager
def _named(target: Path) -> Iterator[Path]:
    """A new file beside the target, locked, removed at the end of the block."""
    while True:
        beside = _free(target)
        tidy = partial(beside.unlink, missing_ok=True)
        at_end(tidy)
        try:
            made = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
            try:
                _lock(made)
                # it may have been taken for stale before it was locked: then there will be another
                if beside.exists():
                    yield beside
                    return
            finally:
                os.close(made)
        finally:
            tidy()
            not_at_end(tidy)


def _free(target: Path) -> Path:
    return target.with_name(f".{target.name[:100]}.{os.getpid()}.{secrets.token_hex(4)}")


def _remove_stale(target: Path) -> None:
    """Remove what killed processes have left beside the target: of such a name, and locked by nobody."""
    ours = re.compile(rf"\.{re.escape(target.name[:100])}\.\d+\.[0-9a-f]{{8}}")
    for name in filter(ours.fullmatch, os.listdir(target.parent)):
        stale = target.with_name(name)
        with suppress(OSError):
            held = os.open(stale, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                found = os.fstat(held)
                if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid():
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    stale.unlink()
            finally:
                os.close(held)


def _lock(descriptor: int) -> None:
    """Until it is closed; where the file system has no locks nothing is taken for stale."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _target(path: str | Path) -> Path:
    """The regular file that path names, links followed: renaming onto a device or a folder is refused."""
    target = Path(os.path.realpath(path))
    try:
        if not Path(path).name or target.is_dir():
            raise TensaurusError("cannot be written: it is a folder", file=path, remedy="Name a file.")
        if not target.parent.is_dir():
            raise TensaurusError(f"cannot be written: there is no folder {target.parent}", file=path)
        if target.exists() and not target.is_file():
            raise TensaurusError("cannot be written: it is not a regular file", file=path)
    except OSError as error:  # a name that is too long
        raise _refusal(path, error) from error
    return target


def _refusal(path: str | Path, error: OSError) -> TensaurusError:
    return TensaurusError(f"cannot be written: {error.strerror or error}", file=path)
