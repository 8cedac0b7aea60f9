"""How large does an e-graph become, and how long does that take?

Prints a Markdown table, TENSAT's Figure 6 and the times of its Table 1 (MLSys'21): for each model of the zoo
and each number of rounds with multi-patterns, the e-graph after exploration, its seconds and its memory, and
the seconds of a quick extraction by estimated costs.  Each row is a process of its own, so that the peak of
its memory is the exploration's.

    e-nodes, classes, rounds, ended by   the e-graph, and what ended it: `saturated`, or a limit
    cold     seconds of the first exploration in a process, in which the rules are compiled
    warm     seconds of a second one, on an e-graph of its own
    quick    seconds until a program is extracted from that, its process warm too
    MB       the peak of the process's memory less what it held when the exploration began
    TENSAT   seconds of its search, extraction by an integer program included, as its Table 1 has them

--filters prints its Table 5 instead: warm seconds of the exploration with vanilla and with efficient
filtering of cycles (cold ones where the limit ended it), and how many matches and e-nodes they filtered.

    python bench/exploration.py [MODEL ...] [--multi 0 1 2 3] [--nodes 50000] [--rounds 15] [--filters]
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

from cycles import Acyclic, Efficient, Filter, Vanilla

from tensaurus.app.zoo.catalog import find_workload
from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.extract.extraction_choices import Choices
from tensaurus.egraph.extract.local_search import quick_extraction
from tensaurus.egraph.match.commuting_calls import commute
from tensaurus.egraph.match.flatten_nested_calls import flatten
from tensaurus.egraph.match.saturate import Exploration, Limits, Ruleset, Runner
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.rules.language.rule import library
from tensaurus.runtimes.price.roofline import estimate

TENSAT = {  # seconds, Table 1
    "bert_base": 1.4,
    "resnext50": 0.7,
    "nasnet_a": 10.6,
    "nasrnn": 0.5,
    "inception_v3": 5.1,
    "squeezenet": 0.3,
    "vgg19": 0.4,
}
TABLE_5 = {  # seconds of its exploration, vanilla and efficient, by model and k_multi
    ("bert_base", 1): ("0.18", "0.17"),
    ("bert_base", 2): ("32.9", "0.89"),
    ("nasrnn", 1): ("1.30", "0.08"),
    ("nasrnn", 2): ("2932", "1.47"),
    ("nasnet_a", 1): ("3.76", "1.27"),
    ("nasnet_a", 2): (">3600", "8.62"),
}
OURS = "nested"  # no filter, and nested calls as one: as the optimizer explores
FILTERS: dict[str, Callable[[], Filter] | None] = {"none": None, "vanilla": Vanilla, "efficient": Efficient}


def explored(
    program: Program, ruleset: Ruleset, limits: Limits, kind: str
) -> tuple[Runner, list[int], Exploration]:
    """The exploration of the program, the e-graph's roots, and how it went."""
    graph = EGraph()
    roots = [graph.insert_term(out) for _, out in program.outputs]
    graph.rebuild()
    make = FILTERS.get(kind)
    finders = (flatten, commute) if kind == OURS else ()
    runner = Acyclic(make(), graph, ruleset, limits) if make else Runner(graph, ruleset, limits, finders)
    return runner, roots, runner.explore()


def memory_now() -> float:
    """MB of this process; its peak is counted from now on."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # what reading the model took must not hide the rest
    return _memory("VmRSS")


def memory_peak() -> float:
    """MB of this process at most since then."""
    return _memory("VmHWM")


def _memory(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def row(model: str, multi: int, nodes: int, rounds: int, kind: str, limit: float) -> dict[str, Any]:
    """What one process finds out."""
    program = import_model(find_workload(model).build_model(1, 0), {}, model)
    start = monotonic()
    ruleset = Ruleset(library(long=False))
    limits = Limits(nodes, rounds, multi, start + limit)
    before = memory_now()
    runner, roots, report = explored(program, ruleset, limits, kind)
    graph = runner.graph
    cold = monotonic() - start
    peak = memory_peak()
    figures: dict[str, Any] = {
        "nodes": len(graph),
        "classes": len(graph.members),
        "rounds": report.rounds,
        "ended_by": report.ended_by,
        "cold": cold,
        "mb": peak - before,
        "refused": runner.refused_matches if isinstance(runner, Acyclic) else 0,
        "filtered": runner.removed if isinstance(runner, Acyclic) else 0,
    }
    if kind == OURS:
        figures["quick"] = extraction(graph, roots)
    if report.ended_by != "time":
        del graph, runner
        start = monotonic()
        runner, roots, _ = explored(program, ruleset, Limits(nodes, rounds, multi, start + limit), kind)
        figures["warm"] = monotonic() - start
        if kind == OURS:
            figures["quick"] = extraction(runner.graph, roots)
    return figures


def extraction(graph: EGraph, roots: list[int]) -> float:
    """Seconds until a program is found."""
    start = monotonic()
    choices = Choices(graph, roots)
    quick_extraction(choices.problem(choices.price_choices([estimate(piece) for piece in choices.pieces])))
    return monotonic() - start


def apart(*values: object) -> dict[str, Any]:
    """The row, from a process of its own."""
    words = [sys.executable, __file__, "--row", *map(str, values)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words[2:])}: {done.stderr.strip().splitlines()[-1]}")
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def seconds(figures: dict[str, Any], key: str) -> str:
    return f"{figures[key]:.2f}" if key in figures else ""


def line(*cells: object) -> None:
    print("|", " | ".join(map(str, cells)), "|", flush=True)


def head(*names: str) -> None:
    """The table's first lines: words to the left, numbers to the right."""
    line(*names)
    line(*("---" if name in ("model", "filter", "ended by") else "---:" for name in names))


def explorations(options: argparse.Namespace) -> None:
    """TENSAT's Figure 6."""
    columns = ["cold, s", "warm, s", "quick, s", "MB", "TENSAT, s"]
    head("model", "k_multi", "e-nodes", "classes", "rounds", "ended by", *columns)
    for model in options.models:
        for multi in options.multi:
            figures = apart(model, multi, options.nodes, options.rounds, OURS, options.limit)
            theirs = TENSAT.get(model, "") if multi == 1 else ""
            times = [seconds(figures, key) for key in ("cold", "warm", "quick")]
            size = [figures[key] for key in ("nodes", "classes", "rounds", "ended_by")]
            line(model, multi, *size, *times, f"{figures['mb']:.0f}", theirs)


def filters(options: argparse.Namespace) -> None:
    """TENSAT's Table 5."""
    columns = ["seconds", "matches refused", "e-nodes filtered", "TENSAT, s"]
    head("model", "k_multi", "filter", "e-nodes", "ended by", *columns)
    for model in options.models:
        for multi in options.multi:
            theirs = dict(zip(("vanilla", "efficient"), TABLE_5.get((model, multi), ("", "")), strict=True))
            for kind in FILTERS:
                figures = apart(model, multi, options.nodes, options.rounds, kind, options.limit)
                took = seconds(figures, "warm") or seconds(figures, "cold")
                size = [figures[key] for key in ("nodes", "ended_by")]
                kept_out = [figures[key] for key in ("refused", "filtered")]
                line(model, multi, kind, *size, took, *kept_out, theirs.get(kind, ""))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="the paper's where none is named")
    parser.add_argument("--multi", type=int, nargs="+", help="0 1 2 3; with --filters 1 2")
    parser.add_argument("--nodes", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of one exploration")
    parser.add_argument("--filters", action="store_true", help="compare the filters of cycles")
    parser.add_argument("--row", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        model, multi, nodes, rounds, kind, limit = options.row
        print(json.dumps(row(model, int(multi), int(nodes), int(rounds), kind, float(limit))))
        return
    options.models = options.models or list(TENSAT)
    options.multi = options.multi or ([1, 2] if options.filters else [0, 1, 2, 3])
    try:
        filters(options) if options.filters else explorations(options)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
