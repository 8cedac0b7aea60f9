"""The command that extracts from an e-graph in a file."""

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
    """How to choose."""

    exact = "exact"
    greedy = "greedy"
    greedy_dag = "greedy-dag"


class CyclesName(StrEnum):
    """How cycles are kept out."""

    components = "components"
    order = "order"
    cuts = "cuts"
    none = "none"


@app.command(cls=Command)
def extract(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE.json", help="An e-graph as egglog serializes it.", show_default=False),
    ],
    method: Annotated[
        Method, typer.Option(help="exact: the cheapest program, each class paid for once.")
    ] = Method.exact,
    cycles: Annotated[
        CyclesName,
        typer.Option(
            help="How cycles are kept out: orders inside components, an order of all classes, rows for the "
            "cycles that come up; or not at all, then a choice with a cycle is repaired."
        ),
    ] = CyclesName.components,
    time_limit: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="The best extraction by then is printed.")
    ] = 60.0,
    threads: Annotated[int, typer.Option(metavar="N", min=1, help="Threads of the solver.")] = 2,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the choice goes: {class: node}, JSON.")
    ] = None,
) -> None:
    """Choose one node for each class that the roots of an e-graph need, without a cycle.

    The last line is the choice's cost, a lower bound of every choice's, the gap between them as a part of the
    cost, and seconds.
    """
    from tensaurus.egraph.extract.exact import Extraction, solve
    from tensaurus.egraph.extract.greedy import greedy, greedy_dag
    from tensaurus.egraph.extract.problem import dag_cost, needed
    from tensaurus.egraph.extract.problem_files import read_problem, write_choice

    if out is not None:
        require_writable(out)
    problem, nodes, classes = read_problem(file)
    try:
        if method is Method.exact:
            solved = solve(
                problem,
                cycles=cycles.value,
                time_limit=time_limit,
                workers=threads,
                seed=seed,
            )
        else:
            start = monotonic()
            chosen = greedy(problem) if method is Method.greedy else greedy_dag(problem, start + time_limit)
            choice = needed(problem, chosen)
            if not choice:
                raise ValueError("a root has no program: all its choices need a cycle")
            solved = Extraction(choice, dag_cost(problem, choice), 0.0, monotonic() - start, 0)
    except ValueError as error:
        raise TensaurusError(str(error), file=file, remedy="Give each root a program.") from error
    if out is not None:
        write_choice(out, problem, solved.choice, nodes, classes)
        typer.echo(f"wrote {out}")
    typer.echo(f"{solved.cost:.17g} {solved.bound:.17g} {solved.gap:.6g} {solved.seconds:.3f}")
