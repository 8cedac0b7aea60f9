"""The command `extract`, which finds the cheapest program of an e-graph in a file."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from tensaurus.app.cli.app import Command, app
from tensaurus.app.cli.options import Seed
from tensaurus.system.errors import TensaurusError
from tensaurus.system.files import require_writable


class Method(StrEnum):
    """The algorithm of extraction."""

    exact = "exact"
    greedy = "greedy"
    greedy_dag = "greedy-dag"


class CyclesName(StrEnum):
    """How the integer program excludes cycles."""

    components = "components"
    order = "order"
    cuts = "cuts"
    none = "none"


@app.command(cls=Command)
def extract(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE.json", help="An e-graph in egglog's JSON format.", show_default=False),
    ],
    method: Annotated[
        Method, typer.Option(help="exact: the cheapest, by integer programming; greedy: fast.")
    ] = Method.exact,
    cycles: Annotated[
        CyclesName,
        typer.Option(
            help="How --method exact excludes cycles. components: an order within each strongly connected "
            "component; order: one order of all classes; cuts: a constraint for each cycle that occurs; "
            "none: a choice with a cycle is repaired, and may not be the cheapest."
        ),
    ] = CyclesName.components,
    time_limit: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Longest time of the search.")
    ] = 60.0,
    threads: Annotated[int, typer.Option(metavar="N", min=1, help="Threads of the solver.")] = 2,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write {class: node} as JSON.")] = None,
) -> None:
    """Choose a node for each e-class that the roots need, at least cost and without a cycle.

    The last line has the cost of the choice, a lower bound of all costs, the gap between both as a fraction
    of the cost, and seconds.
    """
    from tensaurus.egraph.extract.exact import Extraction, solve
    from tensaurus.egraph.extract.greedy import greedy, greedy_dag
    from tensaurus.egraph.extract.problem import NO_PROGRAM, dag_cost, keep_needed
    from tensaurus.egraph.extract.problem_files import read_problem, write_selection

    if out is not None:
        require_writable(out)
    problem, nodes, classes = read_problem(file)  # `nodes`, `classes`: their names in the file, by number
    try:
        if method is Method.exact:
            solved = solve(
                problem, cycles=cycles.value, time_limit=time_limit, workers=threads, seed=seed,
            )
        else:
            start = monotonic()
            chosen = greedy(problem) if method is Method.greedy else greedy_dag(problem, start + time_limit)
            choice = keep_needed(problem, chosen)
            if not choice:
                raise ValueError(NO_PROGRAM)
            # greedy methods prove no bound but 0 (costs are not negative); they solve 0 integer programs
            solved = Extraction(choice, dag_cost(problem, choice), 0.0, monotonic() - start, 0)
    except ValueError as error:
        remedy = "Give one class on each such cycle a node without children."
        raise TensaurusError(str(error), file=file, remedy=remedy) from error
    if out is not None:
        write_selection(out, problem, solved.selection, nodes, classes)
        typer.echo(f"wrote {out}")
    typer.echo(f"{solved.cost:.17g} {solved.bound:.17g} {solved.gap:.6g} {solved.seconds:.3f}")
