"""How long does exact extraction take, and how good is it where time runs out?

Writes bench/tables/extraction.md.  E-graphs are of zoo models, explored without a filter of cycles; costs are
estimates.  Their files, as `tensaurus extract` reads them, are in bench/egraphs.

    proofs      those files, about 5,000 and 20,000 e-nodes, k_multi 2, by CP-SAT
    greedy      TENSAT's Table 3 (MLSys'21): what greedy extraction misses, by estimated costs
    cycles      its Table 4: seconds by the way in which cycles are kept out.  Its program has an order of all
                classes, or none and a filtered e-graph.  Ours:
                rows for the cycles that come up, and by default the problem is shrunk beforehand

Rows that were measured are kept in extraction.json beside the table; --resume takes them from there.

    python bench/extraction.py [--resume] [--models bert_base ...] [--limit 15]
    python bench/extraction.py --write       # explore, and write the files in bench/egraphs again
    python bench/extraction.py FILE.json ... # a table of the solvers on files
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from cycles import Acyclic, Efficient
from prices import Prices
from serialize import write_problem

from tensaurus.app.zoo.catalog import find_workload
from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.extract.cyclic_components import strong_components
from tensaurus.egraph.extract.exact import Cycles, solve
from tensaurus.egraph.extract.greedy import greedy, greedy_dag
from tensaurus.egraph.extract.local_search import quick_extraction
from tensaurus.egraph.extract.problem import Problem, Selection, dag_cost
from tensaurus.egraph.extract.problem_files import read_problem
from tensaurus.egraph.extract.shrink_problem import shrink
from tensaurus.egraph.match.saturate import Limits, Ruleset, Runner
from tensaurus.graph.ir.node import Node
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.rules.language.rule import library
from tensaurus.system.files import replace_file

Row = dict[str, Any]

HERE = Path(__file__).parent
EGRAPHS = HERE / "egraphs"
TABLE = HERE / "tables" / "extraction.md"
MODELS = ("bert_base", "nasrnn", "nasnet_a", "resnext50")
SIZES = {5_000: 30.0, 20_000: 60.0}  # e-nodes, and seconds that a proof may take
WAYS: dict[str, tuple[Cycles, bool, bool]] = {  # ...whether shrunk, whether filtered
    "order": ("order", False, False),
    "filtered": ("none", False, True),
    "rows as broken": ("cuts", False, False),
    "default": ("components", True, False),
}
TABLE_3 = {  # milliseconds: original, greedy, ILP
    "bert_base": ("1.88", "1.88", "1.73"),
    "nasrnn": ("1.85", "1.15", "1.10"),
    "nasnet_a": ("17.8", "22.5", "16.6"),
}
TABLE_4 = {  # seconds: order of real numbers, of integers, none
    ("bert_base", 1): ("0.96", "0.98", "0.16"),
    ("bert_base", 2): (">3600", ">3600", "510.3"),
    ("nasrnn", 1): ("1116", "1137", "0.32"),
    ("nasrnn", 2): (">3600", ">3600", "356.7"),
    ("nasnet_a", 1): ("424", "438", "1.81"),
    ("nasnet_a", 2): (">3600", ">3600", "75.1"),
}


class Rounded:
    """Estimated seconds in six digits, so that files are short."""

    def __init__(self) -> None:
        self._prices = Prices()

    def __call__(self, node: Node) -> float:
        return float(f"{self._prices(node):.6g}")


def explored(model: str, nodes: int, multi: int, file: Path, filtered: bool = False) -> float:
    """Write what the library makes of a model of the zoo; the cost of the model as it is."""
    program, cost = import_model(find_workload(model).build_model(1, 0), {}, model), Rounded()
    graph = EGraph()
    roots = [graph.insert_term(out) for _, out in program.outputs]
    graph.rebuild()
    exploration = graph, Ruleset(library()), Limits(nodes=nodes, multi=multi)
    (Acyclic(Efficient(), *exploration) if filtered else Runner(*exploration)).explore()
    file.parent.mkdir(exist_ok=True)
    write_problem(file, graph, roots, cost)
    return sum(map(cost, program.active))


def cpu() -> float:
    """Seconds of computing."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def solved(problem: Problem, cycles: Cycles, shrunk: bool, limit: float, workers: int = 2) -> Row:
    """One exact extraction."""
    before = cpu()
    found = solve(problem, cycles=cycles, shrink_first=shrunk, time_limit=limit, workers=workers)
    return {
        "cost": found.cost,
        "bound": found.bound,
        "seconds": found.seconds,
        "cpu": cpu() - before,
        "proved": found.is_optimal,
    }


def timed(problem: Problem, choose: Callable[[Problem], Selection]) -> Row:
    """One extraction without a proof."""
    start, before = monotonic(), cpu()
    cost = dag_cost(problem, choose(problem))
    return {"cost": cost, "seconds": monotonic() - start, "cpu": cpu() - before}


class Records:
    """Rows by name, on disk after each."""

    def __init__(self, file: Path, resume: bool):
        self._file = file
        self._rows: dict[str, Row] = json.loads(file.read_text()) if resume and file.exists() else {}

    def get(self, name: str, measure: Callable[[], Row]) -> Row:
        """The row of that name, measured if need be."""
        if name not in self._rows:
            self._rows[name] = measure()
            with replace_file(self._file) as beside:
                beside.write_text(json.dumps(self._rows, indent=1) + "\n")
            print(name, self._rows[name], file=sys.stderr, flush=True)
        return self._rows[name]


def head(*names: str) -> Iterator[str]:
    """A table's first lines: words to the left, numbers to the right."""
    yield line(*names)
    yield line(*("---" if name in ("e-graph", "model", "way") else "---:" for name in names))


def line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def gap(row: Row) -> str:
    """By what part of its cost a result may be too dear, at most."""
    share = 0.0 if row["proved"] or not row["cost"] else (row["cost"] - row["bound"]) / row["cost"]
    return "0" if row["proved"] else f"{share:.2%}"


def proofs(file: Path, limit: float, records: Records) -> Iterator[str]:
    """The row of one file."""
    problem, _, _ = read_problem(file)
    size = records.get(f"{file.stem}: size", partial(sizes, problem))
    start = records.get(f"{file.stem}: quick", partial(timed, problem, quick_extraction))
    row = records.get(f"{file.stem}: exact", partial(solved, problem, "components", True, limit))
    share = (start["cost"] - row["bound"]) / start["cost"]
    yield line(
        file.stem,
        size["nodes"],
        size["largest"],
        size["left"],
        f"{start['cpu']:.2f}",
        f"{share:.2%}",
        gap(row),
        f"{row['seconds']:.1f}",
        f"{row['cpu']:.1f}",
    )


def sizes(problem: Problem) -> Row:
    """E-nodes before and after shrinking, and classes of the largest component."""
    return {
        "nodes": len(problem.costs),
        "largest": max(map(len, strong_components(problem))),
        "left": len(shrink(problem).problem.costs),
    }


PROOFS = (
    "e-graph",
    "e-nodes",
    "largest cycle",
    "shrunk",
    "quick, CPU s",
    "its gap",
    "gap",
    "s",
    "CPU s",
)


def greedies(model: str, limit: float, records: Records, scratch: Path) -> Iterator[str]:
    """What each extraction finds at k_multi 1."""
    file = scratch / f"{model}.json"

    def measured() -> Row:
        original = explored(model, 20_000, 1, file)
        problem, _, _ = read_problem(file)
        return {
            "nodes": len(problem.costs),
            "original": original,
            "trees": timed(problem, greedy)["cost"],
            "programs": timed(problem, greedy_dag)["cost"],
            "quick": timed(problem, quick_extraction)["cost"],
            "exact": solved(problem, "components", True, limit),
        }

    row = records.get(f"{model}: greedy", measured)
    costs = [row["original"], row["trees"], row["programs"], row["quick"], row["exact"]["cost"]]
    cells = [f"{1000 * cost:.4g}" for cost in costs]
    yield line(model, row["nodes"], *cells, gap(row["exact"]), *TABLE_3[model])


GREEDY = ("model", "e-nodes", "original", "trees", "programs", "quick", "exact", "its gap")


def orders(model: str, multi: int, limit: float, records: Records, scratch: Path) -> Iterator[str]:
    """Seconds of each way, or the gap where time ran out."""
    nodes = {1: 5_000, 2: 20_000}[multi]
    cells: list[str] = []
    problems: dict[bool, Problem] = {}

    def measured(cycles: Cycles, shrunk: bool, filtered: bool) -> Row:
        if filtered not in problems:
            file = scratch / f"{model}-{multi}-{filtered}.json"
            explored(model, nodes, multi, file, filtered)
            problems[filtered], _, _ = read_problem(file)
        problem = problems[filtered]
        return {"nodes": len(problem.costs)} | solved(problem, cycles, shrunk, limit)

    for way, settings in WAYS.items():
        row = records.get(f"{model}, {multi}: {way}", partial(measured, *settings))
        cells.append(f"{row['seconds']:.2f}" if row["proved"] else f">{limit:.0f} ({gap(row)})")
    count = records.get(f"{model}, {multi}: default", dict)["nodes"]
    yield line(model, multi, count, *cells, *TABLE_4[model, multi])


def page(options: argparse.Namespace, records: Records, scratch: Path) -> Iterator[str]:
    """The whole page."""
    theirs = [model for model in options.models if model in TABLE_3]
    yield "# Exact extraction"
    yield ""
    yield "Generated by `python bench/extraction.py`, 2 cores. Costs are estimates; e-graphs have cycles."
    yield "A gap of 0 is a proof that no program is cheaper. Seconds are of the clock, and of computing."
    yield ""
    yield "## Proofs"
    yield ""
    limits = ", ".join(f"{limit:.0f} s for {nodes}" for nodes, limit in SIZES.items())
    yield f"E-graphs of bench/egraphs (k_multi 2); at most {limits} e-nodes. `quick` is the extraction"
    yield "without proof that every search begins with; `largest cycle` is the largest strongly connected"
    yield "component, in classes; `shrunk` the e-nodes that are left before a solver begins."
    yield ""
    yield from head(*PROOFS)
    for nodes, limit in SIZES.items():
        for model in options.models:
            yield from proofs(EGRAPHS / f"{model}-{nodes}.json", limit, records)
    yield ""
    yield "## Greedy and exact extraction"
    yield ""
    yield "TENSAT's Table 3: k_multi 1, at most 20,000 e-nodes, estimated milliseconds. Its own, of its"
    yield "operators on a GPU, in the last columns. `programs` counts once what a class's program shares."
    yield ""
    yield from head(*GREEDY, "TENSAT: original", "greedy", "ILP")
    for model in theirs:
        yield from greedies(model, options.limit, records, scratch)
    yield ""
    yield "## Ways to keep cycles out"
    yield ""
    yield f"TENSAT's Table 4: seconds to the proof, at most {options.limit:.0f}, else the gap that was left."
    yield "Its program is `order`; `filtered` are e-graphs whose cycles were filtered during exploration,"
    yield "which may lose the cheapest program. All but `default` take the e-graph as it is. Its own figures"
    yield "are last."
    yield ""
    yield from head("model", "k_multi", "e-nodes", *WAYS, "TENSAT: real", "integer", "filtered")
    for model in theirs:
        for multi in (1, 2):
            yield from orders(model, multi, options.limit, records, scratch)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="print a table of these instead")
    parser.add_argument("--models", nargs="+", metavar="MODEL", default=MODELS)
    parser.add_argument("--limit", type=float, default=15.0, help="seconds of each extraction but the proofs")
    parser.add_argument("--resume", action="store_true", help="keep rows that were measured")
    parser.add_argument("--write", action="store_true", help="write the files in bench/egraphs")
    options = parser.parse_args()
    if options.write:
        for model in options.models:
            for nodes in SIZES:
                explored(model, nodes, 2, EGRAPHS / f"{model}-{nodes}.json")
        return
    try:
        with TemporaryDirectory() as scratch:
            if options.files:
                records = Records(Path(scratch) / "rows.json", False)
                print("\n".join(head(*PROOFS)))
                for file in options.files:
                    for row in proofs(file, options.limit, records):
                        print(row, flush=True)
                return
            records = Records(TABLE.with_suffix(".json"), options.resume)
            lines = list(page(options, records, Path(scratch)))
        with replace_file(TABLE) as beside:
            beside.write_text("\n".join(lines) + "\n")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
