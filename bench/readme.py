"""The README's table of gains, made of the rows of docs/contest_zoo.csv.

    python bench/readme.py      # writes it between the two marks
"""

from __future__ import annotations

from math import exp, log
from pathlib import Path

from tensaurus.app.report.bench_records import read_records
from tensaurus.app.report.benchmark_page import compare_best, find_fastest, group_by_model
from tensaurus.system.files import replace_file

README = Path(__file__).parent.parent / "README.md"
ROWS = README.parent / "docs" / "contest_zoo.csv"
BEGIN, END = "<!-- gains -->\n", "<!-- /gains -->"
SMALLEST_LISTED = 1.1  # a gain that has a row of its own


def table(rows: Path = ROWS) -> str:
    """Return the models with their gains over the faster peer, the largest first, and the mean of all."""
    lines = ["| model | faster runtime, ms | Tensaurus, ms | gain |", "|---|---:|---:|---:|"]
    gains: list[tuple[float, str]] = []
    for model, records in group_by_model(read_records(rows)).items():
        peer, ours = find_fastest(records, ours=False), find_fastest(records, ours=True)
        ratio = compare_best(records)
        if peer is None or ours is None or ratio is None or ratio.is_void:
            continue
        times = f"{peer.median_ms:.3g} ({peer.backend}) | {ours.median_ms:.3g} ({ours.backend})"
        gains.append((ratio.median, f"| {model} | {times} |"))
    gains.sort(reverse=True)
    lines += [f"{row} {ratio:.2f}x |" for ratio, row in gains if ratio >= SMALLEST_LISTED]
    mean = exp(sum(log(ratio) for ratio, _ in gains) / len(gains))
    lines.append(f"| all {len(gains)}, geometric mean | | | **{mean:.2f}x** |")
    return "\n".join(lines) + "\n"


def with_table(text: str, rows: str) -> str:
    """The README with the table between the marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{rows}{END}{after}"


def write() -> None:
    """Make the README quote the table."""
    made = with_table(README.read_text(encoding="utf-8"), table())
    with replace_file(README) as beside:
        beside.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    write()
