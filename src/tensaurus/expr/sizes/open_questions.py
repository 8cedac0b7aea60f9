"""Questions about symbols that have no answer for all their values, for those who want to know which.

A comparison of sizes that is not provable counts as false; whoever runs it under `watched` is told of it, may
assume an answer, and runs it again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")


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
    """The answers that are assumed, and the questions that were asked without one, each once, in order.

    answers  what every question got, None where nothing is assumed
    minded   whether somebody did otherwise because questions were open: what is assumed to be no then gives
             another result than what is open, which counts as no for everybody else
    """

    assumed: Mapping[Question, bool]
    asked: dict[Question, None] = field(default_factory=dict)
    answers: dict[Question, bool | None] = field(default_factory=dict)
    minded: bool = False

    def hear(
        self, answers: Mapping[Question, bool | None], asked: Iterable[Question], minded: bool = False
    ) -> None:
        """Questions with their answers, and those that are open; asked again, one is the latest."""
        self.minded |= minded
        self.answers.update(answers)
        for question in asked:
            self.asked.pop(question, None)
            self.asked[question] = None


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


def answer(kind: str, subject: Any) -> bool:
    """The answer that is assumed, False where none is."""
    watch = _watch.get()
    if watch is None:
        return False
    question = Question(kind, subject)
    known = watch.assumed.get(question)
    watch.hear({question: known}, [question] if known is None else [])
    return known or False


def open_questions() -> bool:
    """Whether something was asked that has no assumed answer."""
    watch = _watch.get()
    if watch is None or not watch.asked:
        return False
    watch.minded = True
    return True


def settled_so_far() -> None:
    """Forget the questions: what asked them needed no answer, and nothing that comes asks about them."""
    watch = _watch.get()
    if watch is not None:
        watch.asked.clear()


@dataclass(frozen=True)
class _Record(Generic[T]):
    """A result, the answers it depends on, the questions that it left open, and whether it minded these."""

    value: T
    answers: Mapping[Question, bool | None]
    asked: tuple[Question, ...]
    minded: bool


class Recalled(Generic[T]):
    """Results by key, each for the answers that it asked for: others may change, and it is still the same.

    Whoever watches is told of its questions each time.  At most so many keys are kept.
    """

    def __init__(self, most: int):
        self.most = most
        self._plain: dict[Hashable, T] = {}
        self._records: dict[Hashable, list[_Record[T]]] = {}

    def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        """The result that is known, else what is computed.  What raises is not kept."""
        watch = _watch.get()
        if watch is None:
            if key not in self._plain:
                value = compute()
                _fit(self._plain, self.most)
                self._plain[key] = value
            return self._plain[key]
        known = watch.assumed
        for record in self._records.get(key, ()):
            if all(known.get(question) is answer for question, answer in record.answers.items()):
                break
        else:
            own = Watch(known)
            token = _watch.set(own)
            try:
                record = _Record(compute(), own.answers, tuple(own.asked), own.minded)
            finally:
                _watch.reset(token)
                watch.hear(own.answers, own.asked, own.minded)
            _fit(self._records, self.most)
            self._records.setdefault(key, []).append(record)
            return record.value
        watch.hear(record.answers, record.asked, record.minded)
        return record.value


def _fit(kept: dict[Any, Any], most: int) -> None:
    """Room for one more."""
    if len(kept) >= most:
        kept.clear()
