"""Renders the terminal table of `tensaurus bench`, which compares the contenders on one model."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from tensaurus.app.report.bench_records import Record, compare_rounds
from tensaurus.runtimes.measure.comparison import Comparison

__all__ = ["LARGE_ERROR", "bench_table", "format_remark"]

LARGE_ERROR = 1e-3  # largest error over the largest output that rounding in float32 can explain


def bench_table(records: Sequence[Record]) -> Table:
    """Return a table with times, rates and speedups over the first that runs; the fastest is bold."""
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column(records[0].model, overflow="fold")
    for heading in ("ms", "minimum", "spread", "GFLOP/s", "of peak", "speedup"):
        table.add_column(heading, justify="right")
    table.add_column("")
    first = next(record for record in records if record.has_run)
    fastest = min(record.median_ms for record in records if record.has_run and record.exact)
    for record in records:
        if not record.has_run:
            table.add_row(Text(record.contender), *["-"] * 6, Text(format_remark(record)))
            continue
        comparison = compare_rounds(first, record)
        rate = (f"{record.gflops:.1f}", f"{record.arithmetic_share:.0%}") if record.gflop else ("-", "-")
        table.add_row(
            Text(record.contender),
            f"{record.median_ms:.3f}",
            f"{record.minimum_ms:.3f}",
            f"{record.spread:.0%}",
            *rate,
            f"{comparison.median:.2f}x",
            Text(format_remark(record, comparison)),
            style="bold" if record.exact and record.median_ms == fastest else "",
        )
    return table


def format_remark(record: Record, comparison: Comparison | None = None) -> str:
    """Return the reservations about a record's figures, "" without any."""
    words = [record.note] if record.note else []
    if not record.exact:
        words.append("lower precision, not comparable")
    if record.has_run and record.exact and record.error > LARGE_ERROR:
        words.append(f"outputs differ by {record.error:.1e}")
    if comparison is not None and comparison.is_void:
        words.append(f"comparison void: {comparison.doubt}")
    return "; ".join(words)
