"""The command `mutate`, which shows partially equivalent mutants of operators and how they are corrected.

Of each product of a model, and of pairs of independent products of one kind, it prints the mutants with the
least estimated time: how their operands are arranged, in which boxes they equal the original, and what is
corrected.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tensaurus.app.cli.app import Command, app
from tensaurus.app.cli.options import Shapes, parse_shapes
from tensaurus.app.cli.subject import Subject, is_file, parse_operator, read_program
from tensaurus.system.errors import TensaurusError

if TYPE_CHECKING:
    from tensaurus.finders.mutate.subprogram import Subprogram
    from tensaurus.graph.ir.node import Node


@app.command(cls=Command)
def mutate(
    subject: Subject,
    shape: Shapes = None,
    top: Annotated[int, typer.Option(metavar="N", min=1, help="Mutants to show of each subprogram.")] = 3,
    seconds: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Longest time for each subprogram.")
    ] = 120.0,
) -> None:
    """Show programs that compute most of an OPERATOR, or of the products of a MODEL, and their corrections.

    A product is an operator that adds up products (such as Conv or MatMul).
    """
    from time import monotonic

    from tensaurus.finders.mutate.mutant_search import MutantSearch
    from tensaurus.finders.mutate.mutant_text import format_mutants, format_search
    from tensaurus.finders.mutate.mutation_finder import estimate_program_seconds, rank_mutants
    from tensaurus.runtimes.price.roofline import ONE_CORE

    for subprogram in _subprograms(subject, parse_shapes(shape or ())):
        search = MutantSearch(subprogram)
        mutants = list(search.run(monotonic() + seconds))
        for line in format_search(search, len(mutants)):
            typer.echo(line)
        ranked = rank_mutants(subprogram, mutants, ONE_CORE, monotonic() + seconds)
        original_seconds = estimate_program_seconds(subprogram, subprogram.roots, ONE_CORE)
        for line in format_mutants(ranked[:top], original_seconds):
            typer.echo(line)


def _subprograms(subject: list[str], shapes: dict[str, tuple[int, ...]]) -> list[Subprogram]:
    """Return the subprograms; of those that compute the same of other inputs, the first one."""
    from tensaurus.finders.mutate.subprogram import Subprogram, find_subprograms

    if not is_file(subject):
        single = Subprogram.of([parse_operator(subject, "mutate")])
        if single is None:
            raise TensaurusError(
                f"{subject[0]} is no sum of products of two float32 tensors of known sizes",
                remedy="Mutants are of operators such as Conv and MatMul.",
            )
        return [single]
    found: dict[tuple[Node, ...], Subprogram] = {}
    for subprogram in find_subprograms(read_program(Path(subject[0]), shapes)):
        found.setdefault(subprogram.roots, subprogram)
    if not found:
        reason = "no operator with known sizes adds up products"
        raise TensaurusError(reason, file=Path(subject[0]), remedy="Fix input sizes with --shape.")
    return list(found.values())
