"""Does saturation find better programs than backtracking, and sooner?  (TENSAT, MLSys'21: Table 1, Figure 5.)

Both searches have the same rules, those that make no program larger for its own sake, and the same costs: the
estimates of single operators, nothing measured, nothing fused.  Backtracking is TASO's (SOSP'19, Algorithm 2,
alpha 1.05); saturation is an exploration and a quick extraction.  Both compute on one core, and seconds are
of that core's time; the rules are compiled, and each search has run before, backtracking for a step.
Prints a Markdown table, means over runs:

    backtracking, s   until it ends, and what ended it; to best: until it had found its best program
    graphs/s          different programs that it looked at
    saturation, s     exploration and extraction
    times             backtracking's seconds, and those to its best, over saturation's
    cost              of backtracking's best over saturation's best: above 1, saturation found the better one
    gain              cost of the original over saturation's best
    paper             TASO's seconds over TENSAT's, from its Table 1

    python bench/search.py [MODEL ...] [--runs 5] [--limit 120] [--steps 100]

Ctrl-C ends it after the rows that are complete, with their means.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log
from statistics import fmean
from time import monotonic, process_time

from prices import Prices

from tensaurus.app.zoo.catalog import find_workload
from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.extract.extraction_choices import Choices
from tensaurus.egraph.extract.local_search import quick_extraction
from tensaurus.egraph.extract.problem import dag_cost
from tensaurus.egraph.match.commuting_calls import commute
from tensaurus.egraph.match.flatten_nested_calls import flatten
from tensaurus.egraph.match.saturate import Limits, Ruleset, saturate
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.optimizer.search.backtrack import Backtrack
from tensaurus.rules.language.match import Rewriter
from tensaurus.rules.language.rule import Rule, library

PAPER = {  # seconds of TASO and of TENSAT, Table 1
    "bert_base": (13.6, 1.4),
    "resnext50": (25.3, 0.7),
    "nasnet_a": (1226, 10.6),
    "nasrnn": (177.3, 0.5),
    "inception_v3": (68.6, 5.1),
    "squeezenet": (16.4, 0.3),
    "vgg19": (8.9, 0.4),
}


@dataclass
class Run:
    """One run of a search; `best` is when it had found its best program."""

    seconds: float
    cost: float
    best: float
    graphs: int = 0
    ended_by: str = ""


def backtracking(program: Program, rules: Sequence[Rule], steps: int, limit: float) -> Run:
    """TASO's search; raises KeyboardInterrupt."""
    start = process_time()
    found = [inf]
    when = [0.0]

    def watch(done: int, cost: float) -> None:
        if cost < found[-1]:
            found.append(cost)
            when.append(process_time() - start)

    search = Backtrack(Rewriter(rules), Prices(), 1.05, steps, monotonic() + limit, watch=watch)
    search.stall_steps = steps
    outcome = search.run(program)
    if outcome.ended_by == "interrupt":
        raise KeyboardInterrupt
    return Run(process_time() - start, outcome.best.cost, when[-1], outcome.programs, outcome.ended_by)


def saturation(program: Program, ruleset: Ruleset, limits: Limits) -> Run:
    """An exploration and a quick extraction."""
    start = process_time()
    prices = Prices()
    graph = EGraph()
    roots = [graph.insert_term(out) for _, out in program.outputs]
    graph.rebuild()
    explored = saturate(graph, ruleset, limits, finders=(flatten, commute))
    choices = Choices(graph, roots)
    problem = choices.problem(choices.price_choices([prices(piece.root) for piece in choices.pieces]))
    cost = dag_cost(problem, quick_extraction(problem))
    seconds = process_time() - start
    return Run(seconds, cost, seconds, len(graph), explored.ended_by)


def line(*cells: object) -> None:
    print("|", " | ".join(map(str, cells)), "|", flush=True)


@dataclass
class Row:
    """A model's runs, in pairs: backtracking, saturation."""

    model: str
    original: float  # cost
    pairs: list[tuple[Run, Run]]

    @property
    def ratios(self) -> tuple[float, float, float, float]:
        """Backtracking's seconds, seconds to best and cost over saturation's, and the original's cost."""
        theirs, ours = zip(*self.pairs, strict=True)
        seconds = fmean(run.seconds for run in ours)
        cost = fmean(run.cost for run in ours)
        return (
            fmean(run.seconds for run in theirs) / seconds,
            fmean(run.best for run in theirs) / seconds,
            fmean(run.cost for run in theirs) / cost,
            self.original / cost,
        )

    def show(self) -> None:
        theirs, ours = zip(*self.pairs, strict=True)
        seconds = fmean(run.seconds for run in theirs)
        taso, tensat = PAPER.get(self.model, (inf, inf))
        total, best, cost, gain = self.ratios
        line(
            self.model,
            f"{seconds:.2f}",
            " ".join(dict.fromkeys(run.ended_by for run in theirs)),
            f"{fmean(run.best for run in theirs):.2f}",
            f"{sum(run.graphs for run in theirs) / sum(run.seconds for run in theirs):.0f}",
            f"{fmean(run.seconds for run in ours):.2f}",
            f"{ours[0].graphs}",
            f"{total:.1f}",
            f"{best:.1f}",
            f"{cost:.4f}",
            f"{gain:.4f}",
            f"{taso / tensat:.1f}" if self.model in PAPER else "",
        )


def mean(rows: Sequence[Row]) -> None:
    """Arithmetic and geometric means of the ratios."""
    if rows:
        columns = list(zip(*(row.ratios for row in rows), strict=True))
        for name, value in (
            ("mean", fmean),
            ("geometric mean", lambda column: exp(fmean(log(max(r, 1e-9)) for r in column))),
        ):
            total, best, cost, gain = map(value, columns)
            numbers = (f"{total:.1f}", f"{best:.1f}", f"{cost:.4f}", f"{gain:.4f}")
            line(f"{name} of {len(rows)}", *[""] * 6, *numbers, "")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="the paper's where none is named")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of one backtracking search")
    parser.add_argument("--steps", type=int, default=100, help="steps of backtracking (the papers': 100)")
    parser.add_argument("--multi", type=int, default=1, help="rounds of multi-patterns")
    parser.add_argument("--nodes", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    rules = [rule for rule in library(long=False) if not rule.tags & {"explore", "off", "expand"}]
    limits, ruleset = Limits(options.nodes, options.rounds, options.multi), Ruleset(rules)
    names = ["model", "backtracking, s", "ended by", "to best, s", "graphs/s", "saturation, s", "e-nodes"]
    names += ["times", "times, to best", "cost", "gain", "paper"]
    line(*names)
    line(*("---" if name in ("model", "ended by") else "---:" for name in names))
    rows: list[Row] = []
    try:
        for model in options.models or PAPER:
            program = import_model(find_workload(model).build_model(1, 0), {}, model)
            original = sum(map(Prices(), program.active))
            row = Row(model, original, [])
            saturation(program, ruleset, limits)
            backtracking(program, rules, 1, options.limit)
            for _ in range(options.runs):
                ours = saturation(program, ruleset, limits)
                row.pairs.append((backtracking(program, rules, options.steps, options.limit), ours))
            row.show()
            rows.append(row)
    except KeyboardInterrupt:
        pass
    mean(rows)


if __name__ == "__main__":
    main()
