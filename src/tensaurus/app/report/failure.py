"""What the user reads where something was not foreseen: one line that says what, where, and what to do."""

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

__all__ = ["FAULT", "Failure", "failure"]

RESOURCE = 2  # exit status where the machine lacks something
FAULT = 70  # and for a fault of ours: EX_SOFTWARE of sysexits.h

ROOM = "Free some space; TMPDIR names the folder of temporary files."
REMEDIES = {
    errno.ENOSPC: ROOM,
    errno.EDQUOT: ROOM,
    errno.EMFILE: "Allow more open files: ulimit -n.",
    errno.ENFILE: "Allow more open files.",
    errno.EAGAIN: "Allow more processes: ulimit -u.",
    errno.ENOMEM: "Free memory, or take smaller sizes or a smaller model.",
}


@dataclass(frozen=True)
class Failure:
    """One line, and the exit status."""

    line: str
    status: int


def failure(error: Exception) -> Failure:
    """What is to be said of the error.  Of a fault the traceback is kept in a file that the line names."""
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
        kept = _keep(error, file, phase)
        detail = "".join(traceback.format_exception_only(error)).strip()[:400]
        where = f"with the traceback in {kept}" if kept else "(the traceback could not be written)"
        reason, remedy = f"a fault of Tensaurus{during}: {detail}", f"Please report it {where}."
        return Failure(str(TensaurusError(reason, file=file, remedy=remedy)), FAULT)
    return Failure(str(TensaurusError(reason, file=file, remedy=remedy)), RESOURCE)


def _keep(error: Exception, file: str | None, phase: str | None) -> Path | None:
    """A new file with the traceback, in the cache folder or where temporary files lie; None if in neither."""
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
                "w",
                prefix="tensaurus-fault-",
                suffix=".txt",
                dir=folder,
                delete=False,
                encoding="utf-8",
                errors="replace",
            ) as kept:
                kept.write(text)
            return Path(kept.name)
    return None
