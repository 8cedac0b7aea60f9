"""Errors that a user can act on, each printed as one line: `FILE: node NAME: reason. Remedy.`

Every room raises `TensaurusError` for bad input or usage, and the command line prints no traceback for it.
Any other exception is a fault of Tensaurus; the report of a fault says which file and phase it came from.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar


class TensaurusError(Exception):
    """Bad usage or input: the command line prints the error as one line and exits with `exit_code`."""

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


class InvalidModel(TensaurusError):
    """A model contradicts ONNX."""

    def __init__(self, reason: str, *, file: str | Path | None = None, node: str | None = None) -> None:
        super().__init__(reason, file=file, node=node, remedy="Export the model again.")


class NotEqualError(TensaurusError):
    """Two models that should compute the same function do not, or a check failed."""

    exit_code: ClassVar[int] = 1


def attach_circumstances(error: BaseException, *, file: object = None, phase: str | None = None) -> None:
    """Attach the file and the phase in which an error came up; values that are attached already stay."""
    with suppress(AttributeError):  # some exceptions take no attributes
        for name, value in (("_tensaurus_file", file), ("_tensaurus_phase", phase)):
            if value and not hasattr(error, name):
                setattr(error, name, str(value))


def get_circumstances(error: BaseException) -> tuple[str | None, str | None]:
    """Return the file and the phase that were attached to an error, None where none was."""
    return getattr(error, "_tensaurus_file", None), getattr(error, "_tensaurus_phase", None)


@contextmanager
def name_file_in_errors(file: str | Path) -> Iterator[None]:
    """Let errors raised in this block name `file`, unless they name a file already.

    A `TensaurusError` gets the file into its text; to any other exception it is attached as circumstance.
    """
    try:
        yield
    except TensaurusError as error:
        error.file = file if error.file is None else error.file
        raise
    except Exception as error:
        attach_circumstances(error, file=file)
        raise
