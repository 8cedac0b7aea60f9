"""Output files and the cache folder.

An output that cannot be written is refused before the long work; one that can is written beside and then
renamed, so that the old file stays whole.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tensaurus.errors import TensaurusError


def cache_folder() -> Path:
    """The folder for what can be fetched or measured again: $XDG_CACHE_HOME/tensaurus."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tensaurus"


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a free path beside path; when the block succeeds it becomes path, when it fails it is removed.

    Raises TensaurusError where the file cannot be written.
    """
    target = _target(path)
    beside = target.with_name(f".{target.name[:100]}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        yield beside
        os.replace(beside, target)
    except OSError as error:
        raise _refusal(path, error) from error
    finally:
        beside.unlink(missing_ok=True)


def require_writable(path: str | Path) -> None:
    """Raise TensaurusError unless a file can be written at path; leaves nothing behind."""
    target = _target(path)
    probe = target.with_name(f".{target.name[:100]}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise _refusal(path, error) from error


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
