"""Turns any exception into the one line that the user reads (what, where, remedy) and an exit status."""

from __future__ import annotations

import errno
import sys
import tempfile
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tensaurus._version import __version__
from tensaurus.system.errors import TensaurusError, get_circumstances
from tensaurus.system.files import cache_folder

__all__ = ["FAULT_STATUS", "Failure", "describe_failure"]

RESOURCE_STATUS = 2  # exit status if the machine lacks memory, disk space or the like
FAULT_STATUS = 70  # exit status for a fault of Tensaurus: EX_SOFTWARE of sysexits.h

NO_SPACE_REMEDY = "Free disk space, or set TMPDIR to another folder for temporary files."
REMEDIES = {
    errno.ENOSPC: NO_SPACE_REMEDY,
    errno.EDQUOT: NO_SPACE_REMEDY,
    errno.EMFILE: "Allow more open files: ulimit -n.",
    errno.ENFILE: "Allow more open files.",
    errno.EAGAIN: "Allow more processes: ulimit -u.",
    errno.ENOMEM: "Free memory, or use smaller sizes or a smaller model.",
}


@dataclass(frozen=True)
class Failure:
    """The line that is printed, and the exit status."""

    line: str
    status: int


def describe_failure(error: Exception) -> Failure:
    """Return the line and exit status for an error; for a fault the line names a file with the traceback."""
    if isinstance(error, TensaurusError):
        return Failure(str(error), error.exit_code)
    file, phase = get_circumstances(error)
    during = f" while {phase}" if phase else ""
    if isinstance(error, MemoryError):
        detail = f": {error}" if str(error) else ""
        reason, remedy = f"there is not enough memory{during}{detail}", REMEDIES[errno.ENOMEM]
    elif isinstance(error, OSError):
        about = f": {error.filename}" if error.filename is not None else ""
        reason = f"{error.strerror or str(error) or type(error).__name__}{about}{during}"
        remedy = REMEDIES.get(error.errno or 0, "")
    else:
        kept = _write_traceback(error, file, phase)
        detail = "".join(traceback.format_exception_only(error)).strip()[:400]
        where = f"with the traceback in {kept}" if kept else "(the traceback could not be written)"
        reason, remedy = f"a fault of Tensaurus{during}: {detail}", f"Please report it {where}."
        return Failure(str(TensaurusError(reason, file=file, remedy=remedy)), FAULT_STATUS)
    return Failure(str(TensaurusError(reason, file=file, remedy=remedy)), RESOURCE_STATUS)


def _write_traceback(error: Exception, file: str | None, phase: str | None) -> Path | None:
    """Write the traceback into a new file of the cache folder, else of TMPDIR; None if both fail."""
    text = f"tensaurus {__version__}, Python {sys.version}\n"
    text += f"arguments: {sys.argv[1:]}\nmodel: {file}\nphase: {phase}\n\n"
    with suppress(Exception):
        text += "".join(traceback.format_exception(error))
    for place in (lambda: cache_folder() / "faults", lambda: None):
        with suppress(OSError, RuntimeError):  # there may be no home folder
            folder = place()
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", prefix="tensaurus-fault-", suffix=".txt", dir=folder, delete=False, encoding="utf-8",
                errors="replace",
            ) as kept:
                kept.write(text)
            return Path(kept.name)
    return None
