"""Questions about symbols that have no answer for all their values, for those who want to know which.

A comparison of sizes that is not provable counts as false; whoever runs it under `watched` is told of it, may
assume an answer, and runs it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Question:
    """Whether a size is zero or at least zero, or what else is asked of something unknown.

    kind       "zero", "nonnegative": of a size; "lt", "le", "eq": of two real numbers; or a name
    subject    the size, the two numbers, or what the name is asked of
    """

    kind: str
    subject: Any


@dataclass
class Watch:
    """The answers that are assumed, and the questions that were asked without one, each once, in order."""

    assumed: Mapping[Question, bool]
    asked: dict[Question, None] = field(default_factory=dict)

    @cached_property
    def answers(self) -> frozenset[tuple[Question, bool]]:
        """What is assumed, as a key."""
        return frozenset(self.assumed.items())


_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watched(assumed: Mapping[Question, bool]) -> Iterator[Watch]:
    """Note the questions that are asked inside."""
    watch = Watch(assumed)
    token = _watch.set(watch)
    try:
        yield watch
    finally:
        _watch.reset(token)


def watching() -> bool:
    return _watch.get() is not None


def assumptions() -> frozenset[tuple[Question, bool]] | None:
    """What answers are assumed: a part of the key of whatever may depend on them."""
    watch = _watch.get()
    return None if watch is None else watch.answers


def answer(kind: str, subject: Any) -> bool:
    """The answer that is assumed, False where none is."""
    watch = _watch.get()
    if watch is None:
        return False
    question = Question(kind, subject)
    known = watch.assumed.get(question)
    if known is None:
        # asked again, it is the latest
        watch.asked.pop(question, None)
        watch.asked[question] = None
        return False
    return known


def open_questions() -> bool:
    """Whether something was asked that has no assumed answer."""
    watch = _watch.get()
    return watch is not None and bool(watch.asked)


def settled_so_far() -> None:
    """Forget the questions: what asked them needed no answer, and nothing that comes asks about them."""
    watch = _watch.get()
    if watch is not None:
        watch.asked.clear()
