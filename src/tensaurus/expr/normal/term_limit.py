"""Limit the number of terms that may arise on the way to one normal form."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class TooManyTerms(Exception):
    """Raised where more terms arise than `limit_terms` allows."""


# the number of terms that may still arise, in a list so that it can be changed
_terms_left: ContextVar[list[int] | None] = ContextVar("terms_left", default=None)


@contextmanager
def limit_terms(count: int | None) -> Iterator[None]:
    """Raise TooManyTerms once more than `count` terms arise inside the context; None: no limit."""
    token = _terms_left.set(None if count is None else [count])
    try:
        yield
    finally:
        _terms_left.reset(token)


def count_term() -> None:
    """Count one more term.  Raises TooManyTerms."""
    terms_left = _terms_left.get()
    if terms_left is not None:
        terms_left[0] -= 1
        if terms_left[0] < 0:
            raise TooManyTerms
