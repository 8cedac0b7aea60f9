"""How well is the time of a whole model predicted from its operators?

Of each model: the sum of its operators measured alone, one call each (TASO's cost, section 5; TENSAT's), what
the search predicts (operators among as many weights as the model has, and chains that the runtime fuses as
one), and the time of the model itself.  Prints a Markdown table, and with --plot draws it.

    python bench/prediction.py [--backend onnxruntime] [--plot FILE] [MODELS...]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from math import exp, log
from pathlib import Path
from tempfile import TemporaryDirectory

from tensaurus.cost import operators
from tensaurus.cost.database import Database
from tensaurus.cost.kernels import fused_pieces
from tensaurus.cost.machine import Machine
from tensaurus.cost.measure import Contender, Stopwatch, compare
from tensaurus.cost.operators import OperatorCosts
from tensaurus.egraph.improve import quick
from tensaurus.egraph.saturate import Ruleset
from tensaurus.equivalence.sample import sample_feeds
from tensaurus.graph.census import constant_bytes
from tensaurus.graph.model_file import packed
from tensaurus.graph.onnx_export import export_model
from tensaurus.graph.onnx_import import import_model
from tensaurus.rules.match import expander
from tensaurus.rules.rule import library
from tensaurus.search.saturation import Saturation
from tensaurus.zoo.selection import select


def main() -> None:
    told = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    told.add_argument("models", nargs="*", default=["zoo"])
    told.add_argument("--backend", default="onnxruntime")
    told.add_argument("--plot", type=Path)
    wanted = told.parse_args()
    print("| model | measured, ms | operators alone, ms | | predicted, ms | |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    found = []
    for name, measured, alone, predicted in rows(wanted.models, wanted.backend):
        found.append((name, measured, alone, predicted))
        figures = (f"{measured:.3g}", f"{alone:.3g}", share(alone, measured), f"{predicted:.3g}")
        print(f"| {name} | {' | '.join(figures)} | {share(predicted, measured)} |", flush=True)
    for place, words in ((2, "operators alone"), (3, "predicted")):
        off = [abs(log(row[place] / row[1])) for row in found]
        print(f"\nGeometric mean of the error, {words}: {exp(sum(off) / len(off)) - 1:.0%}")
    if wanted.plot is not None:
        draw(found, wanted.plot)


def share(value: float, measured: float) -> str:
    return f"{value / measured - 1:+.0%}"


def rows(names: list[str], backend: str) -> Iterator[tuple[str, float, float, float]]:
    """Of each model, milliseconds: measured, the sum of its operators, what the search predicts."""
    machine, expand = Machine.here(), expander(library())
    copies = operators.COPIES
    with TemporaryDirectory() as folder, Stopwatch(backend, threads=machine.threads) as stopwatch:
        for subject in select(names):
            print(f"{subject.name}", file=sys.stderr, flush=True)
            model = subject.load()
            program = import_model(model, dict(subject.shapes), subject.name)
            opset, weights = program.frame.opset, constant_bytes(program)
            with Database(Path(folder) / "alone.sqlite") as database:
                operators.COPIES = 1
                costs = OperatorCosts(database, stopwatch, backend, machine, opset, expand)
                alone = sum(map(costs, program.active))
                operators.COPIES = copies
            with Database(Path(folder) / "among.sqlite") as database:
                costs = OperatorCosts(database, stopwatch, backend, machine, opset, expand, weights=weights)
                pieces = fused_pieces(export_model(program, expand=expand), backend)
                extractors = [lambda problem, seconds, start: quick(problem, start)]
                search = Saturation(Ruleset([]), costs, extractors, lambda _, pieces=pieces: pieces)
                predicted = search.run(program).original.cost
            stopwatch.close()
            source = packed(model, Path(folder))
            feeds, _ = sample_feeds(model, dict(subject.shapes), 0, source, backend, machine.threads, None)
            (timing,) = compare([Contender(subject.name, backend, source)], feeds, threads=machine.threads)
            yield subject.name, timing.median * 1e3, alone * 1e3, predicted * 1e3


def draw(found: list[tuple[str, float, float, float]], path: Path) -> None:
    """Predicted over measured, before and after."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.add_subplot()
    names = [row[0] for row in found]
    axes.scatter(names, [row[2] / row[1] for row in found], color="#4c72b0", label="operators alone")
    axes.scatter(names, [row[3] / row[1] for row in found], color="#dd8452", label="what the search goes by")
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_yscale("log")
    axes.set_ylabel("predicted over measured time")
    axes.tick_params("x", rotation=90, labelsize=7)
    axes.legend()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
