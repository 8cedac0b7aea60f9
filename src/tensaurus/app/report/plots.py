"""Draws the pictures of the benchmark page: a roofline, and our speedups."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tensaurus.app.report.bench_records import Record
from tensaurus.app.report.benchmark_page import compare_best, find_fastest, group_by_model
from tensaurus.system.errors import TensaurusError
from tensaurus.system.files import replace_file

__all__ = ["PLOTS", "draw_plots"]

PEER, OURS = "#4c72b0", "#dd8452"  # colors of the best peer (runtime on the original) and of our result


def draw_plots(records: Sequence[Record], folder: Path) -> dict[str, Path]:
    """Write the plots as PNG and SVG into the folder and return {caption: PNG file}.

    Raises TensaurusError if matplotlib is missing or a file cannot be written.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise TensaurusError("plots need matplotlib", remedy="pip install 'tensaurus[bench]'") from error
    matplotlib.rcParams["svg.hashsalt"] = "tensaurus"  # the same records give the same file
    paths: dict[str, Path] = {}
    for name, caption, paint in PLOTS:
        figure = Figure(figsize=(9, 5.5), layout="constrained")
        paint(figure.add_subplot(), records)
        for ending, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            path = folder / f"{name}.{ending}"
            with replace_file(path) as beside:
                figure.savefig(beside, format=ending, dpi=110, metadata=metadata)
        paths[caption] = folder / f"{name}.png"
    return paths


def _draw_roofline(axes: Any, records: Sequence[Record]) -> None:
    """Draw GFLOP/s over the original's operations per compulsory byte, below the machine's roofs."""
    setting = records[-1]  # the roofs are the peaks of the last measurement
    models = [rows for rows in group_by_model(records).values() if rows[0].gflop]
    intensities = [rows[0].gflop * 1e3 / rows[0].compulsory_mb for rows in models] or [1.0]
    # GFLOP/s that `rate` GB/s allow at an intensity of `span` operations per byte
    span = np.geomspace(min(intensities) / 2, max(intensities) * 2, 200)
    for rate, name in ((setting.peak_memory_gbs, "memory"), (setting.peak_cache_gbs, "cache")):
        roof = np.minimum(setting.peak_gflops, span * rate)
        axes.plot(span, roof, color="gray", linewidth=1, linestyle="-" if name == "memory" else "--")
        axes.annotate(f"{name}, {rate:.0f} GB/s", (span[0], roof[0]), fontsize=8, color="gray")
    peak = f"{setting.instructions}, {setting.peak_gflops:.0f} GFLOP/s"
    axes.annotate(peak, (span[-1], setting.peak_gflops), fontsize=8, color="gray", ha="right", va="bottom")
    for ours, color, label in ((False, PEER, "best peer"), (True, OURS, "tensaurus")):
        fastest = ((x, find_fastest(m, ours=ours)) for x, m in zip(intensities, models, strict=False))
        rows = [(x, r) for x, r in fastest if r and r.note != "unchanged"]
        axes.scatter([x for x, _ in rows], [r.gflops for _, r in rows], s=18, color=color, label=label)
        if not ours:
            for x, record in rows:
                axes.annotate(
                    record.model, (x, record.gflops), fontsize=6, xytext=(3, -6), textcoords="offset points"
                )
    axes.set(
        xscale="log", yscale="log", xlabel="operations of the original per compulsory byte", ylabel="GFLOP/s"
    )
    axes.legend(fontsize=8)


def _draw_speedups(axes: Any, records: Sequence[Record]) -> None:
    """Draw one bar for each model, with the quartiles of its rounds."""
    compared = {model: compare_best(rows) for model, rows in group_by_model(records).items()}
    gains = {model: value for model, value in compared.items() if value is not None}
    positions = np.arange(len(gains))
    medians = np.array([value.median for value in gains.values()])
    low = medians - [value.low for value in gains.values()]
    high = np.array([value.high for value in gains.values()]) - medians
    colors = ["lightgray" if value.is_void else OURS for value in gains.values()]
    axes.bar(positions, medians, color=colors, yerr=[low, high], ecolor="black", error_kw={"linewidth": 0.7})
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(positions, list(gains), rotation=90, fontsize=7)
    axes.set_ylabel("best peer's time over ours (gray: void)")


PLOTS = (
    ("roofline", "Roofline of the best peer and of ours", _draw_roofline),
    ("speedups", "Best peer's time over ours", _draw_speedups),
)
