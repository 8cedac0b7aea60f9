"""What goes wrong, in one line: FILE: node NAME: reason. remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def naming(file: str | Path) -> Iterator[None]:
    """Errors from within that name no file name this one."""
    try:
        yield
    except TensaurusError as error:
        error.file = file if error.file is None else error.file
        raise
