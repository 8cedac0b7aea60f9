"""The table that compares contenders on one model."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from tensaurus.app.report.bench_records import Record, compared
from tensaurus.runtimes.measure.comparison import Comparison

__all__ = ["bench_table", "remark"]

LARGE = 1e-3  # a difference of outputs, over the largest output, that float32 does not explain


def bench_table(records: Sequence[Record]) -> Table:
    """Of one model: milliseconds, rates, and speedups over the first row that ran; the fastest in bold."""
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column(records[0].model, overflow="fold")
    for heading in ("ms", "least", "spread", "GFLOP/s", "of peak", "speedup"):
        table.add_column(heading, justify="right")
    table.add_column("")
    first = next(record for record in records if record.runs)
    fastest = min(record.median_ms for record in records if record.runs and record.exact)
    for record in records:
        if not record.runs:
            table.add_row(Text(record.contender), *["-"] * 6, Text(remark(record)))
            continue
        comparison = compared(first, record)
        rate = (f"{record.gflops:.1f}", f"{record.arithmetic_share:.0%}") if record.gflop else ("-", "-")
        table.add_row(
            Text(record.contender),
            f"{record.median_ms:.3f}",
            f"{record.minimum_ms:.3f}",
            f"{record.spread:.0%}",
            *rate,
            f"{comparison.median:.2f}x",
            Text(remark(record, comparison)),
            style="bold" if record.exact and record.median_ms == fastest else "",
        )
    return table


def remark(record: Record, comparison: Comparison | None = None) -> str:
    """What a reader must know before using the figure; "" where nothing is."""
    words = [record.note] if record.note else []
    if not record.exact:
        words.append("lower precision, not comparable")
    if record.runs and record.exact and record.error > LARGE:
        words.append(f"outputs differ by {record.error:.1e}")
    if comparison is not None and comparison.void:
        words.append(f"comparison void: {comparison.doubt}")
    return "; ".join(words)
