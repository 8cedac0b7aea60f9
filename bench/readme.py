"""The README's sentence about gains, made of the rows of tables/optimized.csv.

    python bench/readme.py      # writes it between the two marks
"""

from __future__ import annotations

import csv
from math import exp, log
from pathlib import Path

from tensaurus.system.files import replacing

README = Path(__file__).parent.parent / "README.md"
ROWS = Path(__file__).parent / "tables" / "optimized.csv"
BEGIN, END = "<!-- gains -->\n", "<!-- /gains -->"
WIDTH = 116
LEAST = 1.05  # a gain that is named


def sentence(rows: Path = ROWS) -> str:
    """The gains on onnxruntime, the largest first, and the geometric mean of all."""
    with rows.open() as file:
        rows_read = list(csv.DictReader(file))
    pairs = [(row["model"], float(row["original"]) / float(row["result"])) for row in rows_read]
    large = sorted((pair for pair in pairs if pair[1] >= LEAST), key=lambda pair: -pair[1])
    mean = exp(sum(log(gain) for _, gain in pairs) / len(pairs))
    listed = ", ".join(f"{name} {gain:.2f}x" for name, gain in large)
    words = f"Measured on onnxruntime: {listed}; over all {len(pairs)} models {mean:.3f}x (geometric mean)."
    lines = [""]
    for word in words.split():
        if len(lines[-1]) + len(word) >= WIDTH:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines) + "\n"


def with_sentence(text: str, words: str) -> str:
    """The README with the sentence between the marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{words}{END}{after}"


def write() -> None:
    """Make the README quote the table."""
    made = with_sentence(README.read_text(encoding="utf-8"), sentence())
    with replacing(README) as beside:
        beside.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    write()
