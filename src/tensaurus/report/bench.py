"""The table that compares running times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class BenchRow:
    """One contender; seconds is the median of a run, spread its interquartile range over it."""

    model: str
    backend: str
    seconds: float
    spread: float
    speedup: float
    """How many times as fast as the first row."""
    disturbed: bool
    """Whether other processes kept disturbing it."""


def bench_table(rows: Sequence[BenchRow]) -> Table:
    """Milliseconds and speedups over the first row, the fastest in bold."""
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for heading in ("model", "backend"):
        table.add_column(heading, overflow="fold")
    for heading in ("ms", "spread", "speedup"):
        table.add_column(heading, justify="right")
    table.add_column("")
    fastest = min(row.seconds for row in rows)
    for row in rows:
        table.add_row(
            Text(row.model),
            row.backend,
            f"{row.seconds * 1e3:.3f}",
            f"{row.spread:.0%}",
            f"{row.speedup:.2f}x",
            "disturbed by other processes" if row.disturbed else "",
            style="bold" if row.seconds == fastest else "",
        )
    return table
