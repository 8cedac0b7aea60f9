"""The command that shows where the time goes."""

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
    console_on,
    parse_ranges,
    parse_shapes,
    require_distinct,
    show,
)
from tensaurus.system.files import replace_file, require_writable


@app.command(cls=Command)
def profile(
    model: Model,
    shape: Shapes = None,
    range_: Ranges = None,
    inputs: InputsFile = None,
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="What runs it: onnxruntime or openvino.")
    ] = "onnxruntime",
    threads: Threads = None,
    each: Annotated[
        bool,
        typer.Option("--each", help="Every kernel, in the order of the runtime's graph, with its tensors."),
    ] = False,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write it as JSON.")] = None,
    run_limit: RunLimit = 60.0,
    seed: Seed = 0,
    database: DatabaseFile = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the table only.")] = False,
) -> None:
    """Where the time of a MODEL goes, kernel by kernel, beside what the machine's peaks would take."""
    shapes, ranges = parse_shapes(shape or ()), parse_ranges(range_ or ())
    require_distinct({"MODEL": model, "--json": json, "--db": database, "--inputs": inputs})
    if json is not None:
        require_writable(json)
    from tensaurus.app.report.profile import profiled
    from tensaurus.optimizer.run.options import Options
    from tensaurus.system.progress import choose_progress

    options = Options(
        shapes=shapes,
        ranges=ranges,
        inputs=inputs,
        backend=backend,
        threads=threads,
        run_limit=run_limit,
        seed=seed,
        database=database,
    )
    with choose_progress(console_on(stderr=True), quiet=quiet) as progress:
        told = profiled(model, options, progress)
    if json is not None:
        with replace_file(json) as beside:
            beside.write_text(told.to_json() + "\n", encoding="utf-8")
    show(told.render(each=each))
