"""Reports progress to the user: a live line on a terminal, plain lines when piped, nothing when quiet.

Long-running code takes a `Progress` or a `Stage` and calls it; only the command line chooses a display.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self, TypeAlias

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from tensaurus.system.errors import attach_circumstances
from tensaurus.system.timeline import record

Stage: TypeAlias = Callable[[str, int, int], None]
"""Called when work on an item begins: with the item's kind, its number, and the number of items."""


def report_nothing(name: str, done: int, total: int) -> None:
    """A `Stage` that reports nothing."""


PHASES = 6
"""Numbered phases of an optimization: reading, running, searching, measuring, confirming, checking."""


class Progress(Protocol):
    """A display that the optimizer reports to."""

    def phase(self, name: str, number: int | None = None) -> None:
        """Begin a phase, number `number` of `PHASES`; steps, best time and time left start anew."""

    def stage(self, name: str, done: int, total: int) -> None:
        """Report that an item of the phase has begun, for example ("the rewrite", 3, 12)."""

    def step(self, done: int, total: int | None, best_ms: float | None, seconds_left: float | None) -> None:
        """Report the phase's steps so far; best_ms is the expected time of the best program so far."""

    def note(self, text: str) -> None:
        """Print one line that stays visible."""


class NoProgress:
    """Displays nothing; attaches the phase to an error that leaves its `with` block."""

    _phase = ""

    def phase(self, name: str, number: int | None = None) -> None:
        self._phase = name

    def stage(self, name: str, done: int, total: int) -> None:
        pass

    def step(self, done: int, total: int | None, best_ms: float | None, seconds_left: float | None) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._phase:
            attach_circumstances(error, phase=self._phase)


class RecordedProgress(NoProgress):
    """Passes everything on to another display, and records phases and notes in the run's timeline."""

    def __init__(self, display: Progress) -> None:
        self._display = display

    def phase(self, name: str, number: int | None = None) -> None:
        record("phase", name=name)
        self._display.phase(name, number)

    def stage(self, name: str, done: int, total: int) -> None:
        self._display.stage(name, done, total)

    def step(self, done: int, total: int | None, best_ms: float | None, seconds_left: float | None) -> None:
        self._display.step(done, total, best_ms, seconds_left)

    def note(self, text: str) -> None:
        record("note", text=text)
        self._display.note(text)


class PlainProgress(NoProgress):
    """Prints one line for each phase and note, and for a step when the best time improves by 1 % or when
    `every_seconds` have passed since the last line."""

    def __init__(self, console: Console, every_seconds: float = 10.0) -> None:
        self._console = console
        self._every = every_seconds
        self._best: float | None = None
        self._printed = time.monotonic()

    def phase(self, name: str, number: int | None = None) -> None:
        self._phase, self._best = name, None
        self._print(format_phase(name, number))

    def stage(self, name: str, done: int, total: int) -> None:
        if time.monotonic() - self._printed >= self._every:
            self._print(f"{self._phase}: {name} {done} of {total}")

    def step(self, done: int, total: int | None, best_ms: float | None, seconds_left: float | None) -> None:
        better = best_ms is not None and (self._best is None or best_ms < 0.99 * self._best)
        if better or time.monotonic() - self._printed >= self._every:
            self._best = best_ms
            self._print(f"{self._phase}: {format_step(done, total, best_ms, seconds_left)}")

    def note(self, text: str) -> None:
        self._print(text)

    def _print(self, text: str) -> None:
        self._printed = time.monotonic()
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class TerminalProgress(NoProgress):
    """Shows one live line with a spinner: phase, steps, best time, time left.  Notes scroll by above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._phase = self._title = "starting"
        self._status = ""
        self._outcome = ""
        self._since = time.monotonic()
        self._live = Live(console=console, get_renderable=self._line, refresh_per_second=8, transient=True)

    def phase(self, name: str, number: int | None = None) -> None:
        self._finish_phase()
        self._phase, self._title = name, format_phase(name, number)
        self._status, self._outcome, self._since = "", "", time.monotonic()

    def step(self, done: int, total: int | None, best_ms: float | None, seconds_left: float | None) -> None:
        self._status = format_step(done, total, best_ms, seconds_left)
        self._outcome = format_step(done, total, best_ms, None)

    def stage(self, name: str, done: int, total: int) -> None:
        self._status = f"{name} {done} of {total}"

    def note(self, text: str) -> None:
        self._console.print(f"  {escape(text)}", highlight=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if kind is None:
            self._finish_phase()
        self._live.stop()

    def _finish_phase(self) -> None:
        if self._phase != "starting":
            duration = f"{time.monotonic() - self._since:.1f} s"
            summary = f"{self._outcome}, {duration}" if self._outcome else duration
            self._console.print(f"[green]✓[/] {escape(self._title)}  [dim]{summary}[/]", highlight=False)

    def _line(self) -> Text:
        frames = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
        now = time.monotonic()
        line = Text(f"{frames[int(now * 8) % len(frames)]} ", style="cyan", no_wrap=True, overflow="ellipsis")
        line.append(self._title, style="bold")
        line.append(f"  {self._status}" if self._status else f"  {now - self._since:.0f} s", style="default")
        return line


def format_phase(name: str, number: int | None) -> str:
    """Return the phase as a user reads it: '[3/6] searching'."""
    return name if number is None else f"[{number}/{PHASES}] {name}"


def format_step(done: int, total: int | None, best_ms: float | None, seconds_left: float | None) -> str:
    """Return a step as a user reads it: '12/40, best 8.213 ms, 31 s left'."""
    parts = [f"{done}/{total}" if total is not None else str(done)]
    if best_ms is not None:
        parts.append(f"best {best_ms:.3f} ms")
    if seconds_left is not None:
        parts.append(f"{max(0.0, seconds_left):.0f} s left")
    return ", ".join(parts)


def choose_progress(console: Console, *, quiet: bool) -> NoProgress:
    """Return the display that suits the console; use it in a `with`."""
    if quiet:
        return NoProgress()
    return TerminalProgress(console) if console.is_terminal else PlainProgress(console)
