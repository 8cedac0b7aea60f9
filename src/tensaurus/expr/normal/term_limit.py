"""How many terms may arise on the way to one normal form."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class TooLarge(Exception):
    """The steps that `limited` allows are used up."""


_steps: ContextVar[list[int] | None] = ContextVar("steps", default=None)


@contextmanager
def limited(steps: int | None) -> Iterator[None]:
    """Raise TooLarge after so many terms; None: no limit."""
    token = _steps.set(None if steps is None else [steps])
    try:
        yield
    finally:
        _steps.reset(token)


def step() -> None:
    """One more term.  Raises TooLarge."""
    allowed = _steps.get()
    if allowed is not None:
        allowed[0] -= 1
        if allowed[0] < 0:
            raise TooLarge
