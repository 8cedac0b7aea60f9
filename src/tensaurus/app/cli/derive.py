"""The command `derive`, which shows by which other operators an operator can be computed.

It searches each region of a model (a product such as one Conv, with the moves of elements around it; see
`finders/derive/linear_regions`) and prints the fastest programs found, each with the rules that led to it.
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
    from tensaurus.finders.derive.derivation_search import DerivedProgram
    from tensaurus.finders.derive.linear_regions import LinearRegion
    from tensaurus.graph.ir.node import Node


@app.command(cls=Command)
def derive(
    subject: Subject,
    shape: Shapes = None,
    top: Annotated[int, typer.Option(metavar="N", min=1, help="Derivations to show of each region.")] = 3,
    depth: Annotated[int, typer.Option(metavar="N", min=0, help="Longest chain of rules.")] = 7,
    states: Annotated[int, typer.Option(metavar="N", min=1, help="Most expressions to explore.")] = 500,
    seconds: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Longest time for each region.")
    ] = 120.0,
) -> None:
    """Show other ways to compute an OPERATOR, or the sums of products of a MODEL.

    A region is one operator that adds up products (such as Conv or MatMul), or several that share an input.
    """
    from time import monotonic

    from tensaurus.finders.derive.derivation_search import Search
    from tensaurus.finders.derive.derivation_text import format_derivations
    from tensaurus.finders.derive.joint_search import search_region
    from tensaurus.rules.language.node_text import format_nodes

    if is_file(subject):
        regions = _regions_of_model(Path(subject[0]), parse_shapes(shape or ()))
    else:
        regions = [_region_of_operator(subject)]
    if not regions:
        remedy = "Fix input sizes with --shape."
        reason = "no operator with known sizes adds up products"
        raise TensaurusError(reason, file=Path(subject[0]), remedy=remedy)
    # the programs found for each region, by its forms (its operators over inputs x0, x1, ...); a joint region
    # comes after the regions of its single operators, and its search starts from the programs of these
    known: dict[tuple[Node, ...], list[DerivedProgram]] = {}
    for region in regions:
        # the forms as expressions, and the tensor of each input: two arguments of `search_region`
        if (expressions := region.expressions()) is None:
            product = format_nodes(*region.forms)
            typer.echo(f"{product}\n  not searched: what surrounds the product does more than move elements")
            continue
        search = Search(
            max_depth=depth, max_states=states, deadline=monotonic() + seconds, weights=region.weights
        )
        single_programs = [known.get(single.forms, []) for single in region.single_regions]
        derived = search_region(region, *expressions, search, single_programs)
        known[region.forms] = derived
        if derived or len(region.forms) == 1:  # of a joint region, finding nothing is no news
            for line in format_derivations(region.forms, derived[:top], search):
                typer.echo(line)


def _regions_of_model(path: Path, shapes: dict[str, tuple[int, ...]]) -> list[LinearRegion]:
    """Return the regions of a model; of those that compute the same of other inputs, the first one."""
    from tensaurus.finders.derive.linear_regions import find_linear_regions

    regions: dict[tuple[Node, ...], LinearRegion] = {}
    for region in find_linear_regions(read_program(path, shapes)):
        regions.setdefault(region.forms, region)
    return list(regions.values())


def _region_of_operator(words: list[str]) -> LinearRegion:
    """Return the region of one operator with inputs x0, x1, ..."""
    from tensaurus.finders.derive.linear_regions import LinearRegion
    from tensaurus.graph.ir.piece import Piece

    node = parse_operator(words, "derive")
    return LinearRegion((Piece.of(node),), (node,))
