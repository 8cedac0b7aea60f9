"""How long does exact extraction take, by solver and by the way in which cycles are kept out?

Prints a Markdown table for each file (egglog's serialized e-graphs), or for each MODEL:NODES, a model of the
zoo explored to so many e-nodes without a filter of cycles; --write FOLDER keeps those as files.  --paper adds
TENSAT's program (section 5.1; its Table 4): an order of all classes, also of the e-graph as it is, and none.

    python bench/extraction.py [--paper] [--limit 60] [--write FOLDER] bert_base:5000 nasrnn:20000 some.json
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from prices import Prices

from tensaurus.egraph.egraph import EGraph
from tensaurus.egraph.exact import Cycles, Solver, solve
from tensaurus.egraph.extract import Problem, dag_cost, greedy, greedy_dag
from tensaurus.egraph.saturate import Limits, Ruleset, saturate
from tensaurus.egraph.serialized import read_problem, write_problem
from tensaurus.egraph.shrink import components, shrink
from tensaurus.graph.onnx_import import import_model
from tensaurus.rules.rule import library
from tensaurus.zoo.catalog import find

WAYS: tuple[tuple[Solver, Cycles, bool], ...] = (
    ("cp-sat", "components", True),
    ("cp-sat", "cuts", True),
    ("highs", "components", True),
    ("highs", "cuts", True),
    ("both", "components", True),
)
PAPER: tuple[tuple[Solver, Cycles, bool], ...] = (
    ("cp-sat", "order", True),
    ("highs", "order", True),
    ("cp-sat", "components", False),
    ("cp-sat", "order", False),
    ("highs", "order", False),
    ("cp-sat", "none", False),
    ("highs", "none", False),
)


def explored(model: str, nodes: int, file: Path) -> None:
    """Write what the library makes of a model of the zoo."""
    program = import_model(find(model).model(1, 0), {}, model)
    graph = EGraph()
    roots = [graph.adopt(out) for _, out in program.outputs]
    graph.rebuild()
    saturate(graph, Ruleset(library()), Limits(nodes=nodes, multi=2))
    write_problem(file, graph, roots, Prices())


def table(problem: Problem, paper: bool, limit: float, workers: int) -> Iterator[str]:
    """What the problem is, and a row for each way to solve it."""
    loops = sorted((len(part) for part in components(problem) if len(part) > 1), reverse=True)
    start = monotonic()
    smaller = shrink(problem)
    took = monotonic() - start
    left = smaller.problem
    inner = sorted((len(part) for part in components(left) if len(part) > 1), reverse=True)
    yield f"- {len(problem.costs)} e-nodes in {len(problem.members)} classes; {said(loops)}"
    yield f"- shrunk in {took:.2f} s: {len(left.costs)} e-nodes in {len(left.members)} classes; {said(inner)}"
    yield ""
    yield "| way | cost | bound | gap | seconds |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for name, choose in (("greedy, trees", greedy), ("greedy, programs", greedy_dag)):
        start = monotonic()
        cost = dag_cost(problem, choose(problem))
        yield f"| {name} | {cost:.9g} | | | {monotonic() - start:.2f} |"
    for solver, cycles, shrunk in (*WAYS, *(PAPER if paper else ())):
        found = solve(
            problem, solver=solver, cycles=cycles, shrunk=shrunk, time_limit=limit, workers=workers
        )
        name = f"{solver}, {cycles}{'' if shrunk else ', as it is'}"
        yield f"| {name} | {found.cost:.9g} | {found.bound:.9g} | {found.gap:.2%} | {found.seconds:.2f} |"


def said(sizes: list[int]) -> str:
    """Sizes of components, in words."""
    more = f" and {len(sizes) - 8} more" if len(sizes) > 8 else ""
    return f"components of {', '.join(map(str, sizes[:8]))}{more} classes" if sizes else "no cycles"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE or MODEL:NODES")
    parser.add_argument("--paper", action="store_true", help="also in the paper's ways")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of each extraction")
    parser.add_argument("--workers", type=int, default=2, help="threads of CP-SAT")
    parser.add_argument("--write", type=Path, help="a folder for the e-graphs")
    options = parser.parse_args()
    with TemporaryDirectory() as scratch:
        for name in options.files:
            model, colon, nodes = name.rpartition(":")
            file = Path(name)
            if colon:
                file = (options.write or Path(scratch)) / f"{model}-{nodes}.json"
                explored(model, int(nodes), file)
            print(f"\n### {file.name}\n", flush=True)
            for line in table(read_problem(file)[0], options.paper, options.limit, options.workers):
                print(line, flush=True)


if __name__ == "__main__":
    main()
