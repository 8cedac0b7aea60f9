"""Record which comparisons of sizes could not be decided, so that a prover can split cases on them.

A comparison such as n >= 3 that can be neither proved nor refuted counts as false.  Under `record_questions`
it is also recorded as a `Question`; the caller (`rules.prove.case_split`) may run the same code again with an
answer assumed:

    with record_questions({}) as record: infer_type(node)     ->   record.asked is {n >= 3}
    with record_questions({n >= 3: True}): infer_type(node)   and again with False: both cases cover all n
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
    """A comparison of unknown numbers, or another predicate of something unknown.

    kind       "zero", "nonnegative": of a size; "lt", "le", "eq": of two real numbers; or a predicate's name
    subject    the size, the two numbers, or the argument of the named predicate
    """

    kind: str
    subject: Any


@dataclass
class QuestionRecord:
    """Holds the assumed answers and the questions that were asked while it was active.

    asked            questions without an assumed answer, the one asked last at the end
    answers          what each question was answered, None where no answer is assumed
    open_was_tested  whether `has_open_questions` returned True: code then took another way, so that a run
                     with all these questions assumed to be false may give another result
    """

    assumed: Mapping[Question, bool]
    asked: dict[Question, None] = field(default_factory=dict)
    answers: dict[Question, bool | None] = field(default_factory=dict)
    open_was_tested: bool = False

    def add_questions(
        self,
        answers: Mapping[Question, bool | None],
        asked: Iterable[Question],
        open_was_tested: bool = False,
    ) -> None:
        """Add questions with their answers, and move those without an answer to the end of `asked`."""
        self.open_was_tested |= open_was_tested
        self.answers.update(answers)
        for question in asked:
            self.asked.pop(question, None)
            self.asked[question] = None


_active_record: ContextVar[QuestionRecord | None] = ContextVar("active_record", default=None)


@contextmanager
def record_questions(assumed: Mapping[Question, bool]) -> Iterator[QuestionRecord]:
    """Record the questions that are asked in this context, and answer those that are in `assumed`."""
    record = QuestionRecord(assumed)
    token = _active_record.set(record)
    try:
        yield record
    finally:
        _active_record.reset(token)


def is_recording_questions() -> bool:
    """Return whether a `record_questions` context is active."""
    return _active_record.get() is not None


def ask(kind: str, subject: Any) -> bool:
    """Return the assumed answer of a question, False where there is none, and record the question."""
    record = _active_record.get()
    if record is None:
        return False
    question = Question(kind, subject)
    assumed_answer = record.assumed.get(question)
    record.add_questions({question: assumed_answer}, [question] if assumed_answer is None else [])
    return assumed_answer or False


def has_open_questions() -> bool:
    """Return whether a question without an assumed answer was asked; if so, set `open_was_tested`."""
    record = _active_record.get()
    if record is None or not record.asked:
        return False
    record.open_was_tested = True
    return True


def forget_open_questions() -> None:
    """Forget the open questions that were asked so far.

    Correct where the code that asked them needed no answer, and no later code depends on them.  They stay in
    `answers`, which caches need.
    """
    record = _active_record.get()
    if record is not None:
        record.asked.clear()


@dataclass(frozen=True)
class _CachedResult(Generic[T]):
    """A result with the answers that it depends on and the questions that it left open."""

    value: T
    answers: Mapping[Question, bool | None]
    asked: tuple[Question, ...]
    open_was_tested: bool


class CacheByAnswers(Generic[T]):
    """Caches results by key and by the answers of the questions that computing them asked.

    A result is reused where those answers are the same; answers of other questions do not matter.  Each use
    adds the result's questions to the active record, as computing it would.  Holds at most `capacity` keys.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        self._unconditional: dict[Hashable, T] = {}  # without an active record: every answer is False
        self._conditional: dict[Hashable, list[_CachedResult[T]]] = {}

    def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the cached result, else compute and cache it.  Exceptions are not cached."""
        active = _active_record.get()
        if active is None:
            if key not in self._unconditional:
                value = compute()
                _make_room(self._unconditional, self.capacity)
                self._unconditional[key] = value
            return self._unconditional[key]
        assumed = active.assumed
        # reuse a result if all its questions have the same answers now, or None as then
        for cached in self._conditional.get(key, ()):
            if all(assumed.get(question) is answer for question, answer in cached.answers.items()):
                break
        else:
            inner_record = QuestionRecord(assumed)  # finds out which questions this computation asks
            token = _active_record.set(inner_record)
            try:
                cached = _CachedResult(
                    compute(), inner_record.answers, tuple(inner_record.asked), inner_record.open_was_tested
                )
            finally:
                _active_record.reset(token)
                # also where `compute` raised: the exception depends on these questions, too
                active.add_questions(inner_record.answers, inner_record.asked, inner_record.open_was_tested)
            _make_room(self._conditional, self.capacity)
            self._conditional.setdefault(key, []).append(cached)
            return cached.value
        active.add_questions(cached.answers, cached.asked, cached.open_was_tested)
        return cached.value


def _make_room(entries: dict[Any, Any], capacity: int) -> None:
    """Empty a full cache."""
    if len(entries) >= capacity:
        entries.clear()
