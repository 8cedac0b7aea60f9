"""Records the events of a run: for its summary, and for people who look inside while the run goes on.

Code at any depth calls `record`; the events belong to the innermost `Timeline` block around the call, and are
lost where there is none.  The environment variable TENSAURUS_DEBUG prints them on standard error:

    TENSAURUS_DEBUG=1   phases, notes, runs of whole programs
    TENSAURUS_DEBUG=2   also explorations, runs of finders, trials of accuracy, extractions and tuned kernels
    TENSAURUS_DEBUG=3   also every operator that is measured

    with Timeline() as timeline:
        record("extraction", program=1, expected_ms=3.2)
    timeline.events == [Event(seconds=0.0, kind="extraction", facts={"program": 1, "expected_ms": 3.2})]
"""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from time import monotonic
from types import TracebackType
from typing import Self, TypeAlias

__all__ = ["DEBUG_LEVELS", "Event", "Timeline", "record"]

Fact: TypeAlias = str | int | float | bool

DEBUG_LEVELS = {
    **{"phase": 1, "note": 1, "run": 1},
    **{"exploration": 2, "finders": 2, "accuracy": 2, "extraction": 2, "kernel": 2},
    "operator": 3,
}
"""By kind of event: the least TENSAURUS_DEBUG that prints it."""


@dataclass(frozen=True)
class Event:
    """Something that happened `seconds` after the run began.  Names of facts say units, as expected_ms."""

    seconds: float
    kind: str
    facts: dict[str, Fact]

    def __str__(self) -> str:
        """The event as one line: '  12.34 s  extraction  step=3, expected_ms=8.213'."""
        listed = ", ".join(f"{name}={_format(value)}" for name, value in self.facts.items())
        return f"{self.seconds:7.2f} s  {self.kind:<11} {listed}"


@dataclass
class Timeline:
    """The events of one run in the order in which they happened; a `with` block collects them."""

    start: float = field(default_factory=monotonic)
    events: list[Event] = field(default_factory=list)
    _token: Token[Timeline | None] | None = None

    def __enter__(self) -> Self:
        self._token = _current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            _current.reset(self._token)


_current: ContextVar[Timeline | None] = ContextVar("timeline", default=None)


def record(kind: str, **facts: Fact) -> None:
    """Add an event of a kind that DEBUG_LEVELS lists to the run's timeline."""
    timeline, level = _current.get(), DEBUG_LEVELS[kind]
    if timeline is None:
        return
    event = Event(round(monotonic() - timeline.start, 3), kind, facts)
    timeline.events.append(event)
    if level <= _debug_level():
        print(event, file=sys.stderr, flush=True)


def _debug_level() -> int:
    """Return the level that TENSAURUS_DEBUG asks for; 0 where it is no number."""
    text = os.environ.get("TENSAURUS_DEBUG", "")
    return int(text) if text.isdecimal() else 0


def _format(value: Fact) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
