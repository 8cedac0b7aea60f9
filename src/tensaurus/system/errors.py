"""What goes wrong, in one line: FILE: node NAME: reason. remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar


class TensaurusError(Exception):
    """Bad usage or input: the command line prints it as one line and exits with exit_code."""

    exit_code: ClassVar[int] = 2

    def __init__(
        self,
        reason: str,
        *,
        file: str | Path | None = None,
        node: str | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.file = file
        self.node = node
        self.remedy = remedy

    def __str__(self) -> str:
        file = f"{self.file}: " if self.file is not None else ""
        node = f"node {self.node}: " if self.node else ""
        text = " ".join(f"{file}{node}{self.reason}".split())
        return f"{text.removesuffix('.')}. {' '.join(self.remedy.split())}" if self.remedy else text


class NotEqualError(TensaurusError):
    """Two models that should compute the same function do not, or a check failed."""

    exit_code: ClassVar[int] = 1


def note(error: BaseException, *, file: object = None, phase: str | None = None) -> None:
    """The error came up while this file was worked on, in this phase; what was noted before it stays."""
    with suppress(AttributeError):  # an exception that takes no attributes
        for name, value in (("_tensaurus_file", file), ("_tensaurus_phase", phase)):
            if value and not hasattr(error, name):
                setattr(error, name, str(value))


def circumstances(error: BaseException) -> tuple[str | None, str | None]:
    """The file and the phase that were noted."""
    return getattr(error, "_tensaurus_file", None), getattr(error, "_tensaurus_phase", None)


@contextmanager
def naming(file: str | Path) -> Iterator[None]:
    """Errors from within that name no file name this one; of those that are not ours it is noted."""
    try:
        yield
    except TensaurusError as error:
        error.file = file if error.file is None else error.file
        raise
    except Exception as error:
        note(error, file=file)
        raise
