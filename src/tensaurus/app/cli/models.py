"""The commands on models: optimize, tune, verify, explain.

    tensaurus optimize model.onnx -o fast.onnx    and then    tensaurus explain fast.onnx

Most imports are inside the commands, so that --help and errors in options do not wait for onnx and numpy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tensaurus.app.cli.app import Command, app
from tensaurus.app.cli.many_models import format_options, optimize_each, plan_outputs
from tensaurus.app.cli.options import (
    Cpu,
    DatabaseFile,
    InputsFile,
    Model,
    Models,
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
from tensaurus.system.errors import NotEqualError, TensaurusError, name_file_in_errors
from tensaurus.system.files import replace_file, require_writable
from tensaurus.system.signals import ignore_interrupts, keep_best_on_interrupt


@app.command(cls=Command)
def optimize(
    context: typer.Context,
    models: Models,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The optimized model; of several models, a folder."
        ),
    ],
    shape: Shapes = None,
    range_: Ranges = None,
    inputs: InputsFile = None,
    backend: Annotated[
        str,
        typer.Option(metavar="NAME", help="Runtime: onnxruntime, openvino, or auto: the fastest."),
    ] = "onnxruntime",
    threads: Threads = None,
    time_limit: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Time for the whole run, unless --steps is given.")
    ] = 60.0,
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, help="Search steps instead of a time limit, for reproducible results."
        ),
    ] = None,
    search: Annotated[
        str,
        typer.Option(metavar="NAME", help="saturation (all rewrites in one e-graph), backtracking, or both."),
    ] = "both",
    alpha: Annotated[
        float,
        typer.Option(
            metavar="FACTOR", min=1, help="Backtracking: keep candidates up to this many times the best cost."
        ),
    ] = 1.05,
    nodes: Annotated[
        int, typer.Option(metavar="N", min=1, help="Saturation: largest e-graph, in e-nodes.")
    ] = 50_000,
    k_multi: Annotated[
        int, typer.Option(metavar="N", min=0, help="Saturation: rounds in which multi-pattern rules apply.")
    ] = 3,
    max_memory: Annotated[
        float | None,
        typer.Option(
            metavar="MB",
            min=0,
            help="Most constants in the result; default: six times the model's, twice without kernels.",
        ),
    ] = None,
    run_limit: RunLimit = 60.0,
    rules: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="File of additional rules; each is verified first. Repeatable."
        ),
    ] = None,
    allow_unproved: Annotated[
        bool, typer.Option("--allow-unproved", help="Use --rules that are neither proved nor refuted.")
    ] = False,
    no_custom_ops: Annotated[
        bool,
        typer.Option(
            "--no-custom-ops",
            help="Use ONNX operators only: no generated kernels, no library beside the model.",
        ),
    ] = False,
    without: Annotated[
        str,
        typer.Option(
            metavar="NAME,...",
            help="Disable these optimizations: "
            "bilinear, blocked, derive, fuse, mutate, subnormals, widening.",
        ),
    ] = "",
    cpu: Cpu = "native",
    tuning: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="Longest time to tune one kernel.")
    ] = 20.0,
    accuracy: Annotated[
        str,
        typer.Option(
            metavar="LEVEL",
            help="Allowed errors: like (as large as the original's), or fast (four times as large).",
        ),
    ] = "like",
    seed: Seed = 0,
    database: DatabaseFile = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Optimize on the machines of a Ray cluster: host:port, auto (here), local.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the summary as JSON.")
    ] = None,
) -> None:
    """Make each MODEL faster, check that the result computes the same function, and write it.

    Ctrl-C ends the search: the best result so far is checked and written. A second Ctrl-C quits.
    """
    if ray is not None:
        from tensaurus.app.cli.cluster_models import optimize_on_cluster

        outputs = plan_outputs(models, output) if len(models) > 1 or output.is_dir() else {models[0]: output}
        if len(models) == 1:
            given_files = {"MODEL": models[0], "--output": outputs[models[0]], "--json": json}
            require_distinct_files({**given_files, "--db": database, "--inputs": inputs})
        given = format_options(context, excluded=("database",))
        files = [*([] if inputs is None else [inputs]), *(rules or ())]
        raise typer.Exit(optimize_on_cluster(outputs, given, files, database, json, ray))
    if len(models) > 1:
        raise typer.Exit(optimize_each(context, plan_outputs(models, output), output, json))
    (model,) = models
    if output.is_dir():
        output = plan_outputs(models, output)[model]
    shapes, ranges = parse_shapes(shape or ()), parse_ranges(range_ or ())
    require_distinct_files(
        {"MODEL": model, "--output": output, "--json": json, "--db": database, "--inputs": inputs}
    )
    for path in (output, json):
        if path is not None:
            require_writable(path)
    # until a search begins, an interrupt ends the process; from then on the best result is kept
    with keep_best_on_interrupt(armed=False, words="interrupted: nothing was written"):
        from tensaurus.graph.onnx.kernel_libraries import library_path, require_library_path
        from tensaurus.optimizer.optimize import Options
        from tensaurus.optimizer.optimize import optimize as optimize_model
        from tensaurus.system.progress import choose_progress

        require_library_path(output)
        with choose_progress(make_console(stderr=True), quiet=quiet) as progress:
            options = Options(
                shapes=shapes, ranges=ranges, inputs=inputs, seed=seed,
                backend=backend, threads=threads, run_limit=run_limit, time_limit=time_limit, steps=steps,
                search=search, alpha=alpha, nodes=nodes, multi=k_multi,
                max_memory=None if max_memory is None else max_memory * 1e6,
                rules=rules or (), allow_unproved=allow_unproved,
                without=[name.strip() for name in without.split(",") if name.strip()],
                custom_ops=not no_custom_ops, cpu=cpu, tuning=tuning,
                accuracy=accuracy, database=database,
            )
            result = optimize_model(model, options, progress=progress)
        if not result.summary.equivalence.passed:
            verdict = result.summary.equivalence.render().plain
            raise NotEqualError(f"no result was written, as the check failed: {verdict}", file=model)
        ignore_interrupts()
        result.save(output)
    if json is not None:
        with replace_file(json) as beside:
            beside.write_text(result.summary.to_json() + "\n", encoding="utf-8")
    if not quiet:
        print_renderable(result.summary.render())
        libraries = (library_path(output, number) for number in range(len(result.libraries)))
        typer.echo(f"\nwrote {', '.join(map(str, [output, *libraries]))}")


@app.command(cls=Command)
def tune(
    model: Model,
    shape: Shapes = None,
    seconds: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="Longest time to tune one kernel.")
    ] = 20.0,
    threads: Threads = None,
    cpu: Cpu = "native",
    database: DatabaseFile = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the table only.")] = False,
) -> None:
    """Tune the kernels that may make MODEL faster, the most promising first.

    Prints a line for each kernel, separated by tabs: milliseconds, share of the machine's peaks, places in
    the model, fused operators, schedule, expression.  The schedules are stored for `optimize`; Ctrl-C stops
    and keeps what was tuned.
    """
    from tensaurus.optimizer.result.summary import shorten
    from tensaurus.optimizer.run.options import Options
    from tensaurus.optimizer.run.tune_ahead import tune_kernels
    from tensaurus.system.progress import choose_progress

    options = Options(
        shapes=parse_shapes(shape or ()), threads=threads, cpu=cpu, tuning=seconds, database=database
    )
    count = 0
    with choose_progress(make_console(stderr=True), quiet=quiet) as progress:
        for kernel in tune_kernels(model, options, progress):
            figures = f"{kernel.seconds * 1e3:.4g}\t{kernel.peak_share:.0%}\t{kernel.places}"
            typer.echo(f"{figures}\t{kernel.name}\t{kernel.schedule or 'none'}\t{shorten(kernel.scope)}")
            count += 1
    if not count:
        remedy = "Kernels need known sizes: fix them with --shape."
        raise TensaurusError("no kernel is expected to make the model faster", file=model, remedy=remedy)


@app.command(cls=Command)
def verify(
    a: Annotated[Path, typer.Argument(metavar="A", help="An ONNX file.", show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another ONNX file.", show_default=False)],
    shape: Shapes = None,
    range_: Ranges = None,
    inputs: InputsFile = None,
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="Backend that runs both: onnxruntime or openvino.")
    ] = "onnxruntime",
    threads: Threads = None,
    run_limit: RunLimit = 60.0,
    seed: Seed = 0,
) -> None:
    """Check whether two models compute the same function.

    Exit status 0 if they do, 1 if not.
    """
    shapes, ranges = parse_shapes(shape or ()), parse_ranges(range_ or ())
    from tensaurus.check import verify as compare_models
    from tensaurus.check.inputs.user_inputs import require_ranges
    from tensaurus.graph.onnx.model_file import load_model
    from tensaurus.runtimes import backends
    from tensaurus.system.progress import choose_progress

    backends.require(backend)
    if ranges:
        with name_file_in_errors(a):
            require_ranges(load_model(a), ranges)
    with choose_progress(make_console(stderr=True), quiet=False) as progress:
        progress.phase("comparing the models")
        equality = compare_models(
            a, b, shapes=shapes, ranges=ranges, inputs=inputs, seed=seed,
            backend=backend, threads=threads, limit=run_limit, stage=progress.stage,
        )
    print_renderable(equality.render(), soft_wrap=True)
    if not equality.passed:
        raise typer.Exit(NotEqualError.exit_code)


@app.command(cls=Command)
def explain(file: Model) -> None:
    """Show what was changed in an optimized model, why that is right, and what it gained."""
    from tensaurus.app.report.explain import format_explanation

    print_renderable(format_explanation(file))
