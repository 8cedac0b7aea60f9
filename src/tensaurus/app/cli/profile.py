"""The command `profile`, which shows the time of each kernel of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tensaurus.app.cli.app import Command, app
from tensaurus.app.cli.options import (
    DatabaseFile,
    InputsFile,
    Model,
    Ranges,
    RunLimit,
    Seed,
    Shapes,
    Threads,
    make_console,
    parse_ranges,
    parse_shapes,
    print_renderable,
    require_distinct_files,
)
from tensaurus.system.files import replace_file, require_writable


@app.command(cls=Command)
def profile(
    model: Model,
    shape: Shapes = None,
    range_: Ranges = None,
    inputs: InputsFile = None,
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="Backend that runs the model: onnxruntime or openvino.")
    ] = "onnxruntime",
    threads: Threads = None,
    each: Annotated[
        bool,
        typer.Option("--each", help="Show each kernel with its tensors, in the runtime's order."),
    ] = False,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the profile as JSON.")
    ] = None,
    run_limit: RunLimit = 60.0,
    seed: Seed = 0,
    database: DatabaseFile = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the table only.")] = False,
) -> None:
    """Show the time of each kernel of a MODEL, and what share of the machine's peaks it reaches."""
    shapes, ranges = parse_shapes(shape or ()), parse_ranges(range_ or ())
    require_distinct_files({"MODEL": model, "--json": json, "--db": database, "--inputs": inputs})
    if json is not None:
        require_writable(json)
    from tensaurus.app.report.profile import profile_model
    from tensaurus.optimizer.run.options import Options
    from tensaurus.system.progress import choose_progress

    options = Options(
        shapes=shapes, ranges=ranges, inputs=inputs, backend=backend, threads=threads, run_limit=run_limit,
        seed=seed, database=database,
    )
    with choose_progress(make_console(stderr=True), quiet=quiet) as progress:
        profiled = profile_model(model, options, progress)
    if json is not None:
        with replace_file(json) as beside:
            beside.write_text(profiled.to_json() + "\n", encoding="utf-8")
    print_renderable(profiled.render(each=each))
