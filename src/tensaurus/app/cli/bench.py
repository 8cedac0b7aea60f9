"""The command `bench`, which compares runtimes with each other and with the optimizer's results."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tensaurus.app.cli.app import Command, app
from tensaurus.app.cli.options import (
    DatabaseFile,
    Ranges,
    Seed,
    Shapes,
    Threads,
    make_console,
    parse_ranges,
    parse_shapes,
    print_renderable,
    require_distinct_files,
)
from tensaurus.system.errors import TensaurusError
from tensaurus.system.files import replace_file, require_writable

if TYPE_CHECKING:
    from tensaurus.app.report.bench_records import Record


@app.command(cls=Command)
def bench(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL...",
            help="ONNX files; names that `zoo list` prints, such as resnet50 or resnet50@16 (batch size 16); "
            "or groups of these: zoo, batches, cases, pretrained.",
            show_default=False,
        ),
    ] = None,
    peers: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="Backends that run the original; default: all installed ones."),
    ] = None,
    ours: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="Backends to optimize for, auto, or none; default: peers."),
    ] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Another model file, timed on every peer. Repeatable."),
    ] = None,
    shape: Shapes = None,
    range_: Ranges = None,
    threads: Threads = None,
    rounds: Annotated[
        int, typer.Option(metavar="N", min=1, help="Turns of a quarter of a second for each contender.")
    ] = 10,
    time_limit: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Time limit of each optimization.")
    ] = 60.0,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Add the figures to this file.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Skip models that are in the CSV file.")] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="PAGE", help="Write the CSV file as a Markdown page with plots.")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Keep the optimized models here, as MODEL.BACKEND.onnx."),
    ] = None,
    seed: Seed = 0,
    database: DatabaseFile = None,
) -> None:
    """Time each MODEL on the installed runtimes, and its optimized versions.

    Each contender runs in its own process; they compute in turns.  Without a MODEL, --report writes the page
    from the CSV file alone.
    """
    # refuse bad options before anything is measured
    words, files = list(models or ()), list(against or ())
    shapes, ranges = parse_shapes(shape or ()), parse_ranges(range_ or ())
    require_distinct_files({"--csv": csv, "--report": report, "--db": database})
    if not words and report is None:
        remedy = "Name a model, or write the page of a CSV file: --csv FILE --report PAGE."
        raise TensaurusError("no model to measure", remedy=remedy)
    for option, given in (("--resume", resume), ("--report", report is not None)):
        if given and csv is None:
            raise TensaurusError(f"{option} needs a CSV file", remedy="Name one: --csv FILE")
    for path in (csv, report, save / "MODEL.onnx" if save is not None else None):
        if path is not None:
            require_writable(path)
    from tensaurus.app.report.bench_records import append_records, read_records

    earlier = read_records(csv) if csv is not None and csv.exists() else []
    if words:
        from tensaurus.app.benchmark import Benchmark, measure_setting
        from tensaurus.app.zoo.selection import select_models
        from tensaurus.graph.onnx.model_file import load_model
        from tensaurus.optimizer.run.options import AUTO
        from tensaurus.runtimes import backends
        from tensaurus.system.progress import choose_progress

        subjects = select_models(words, shapes, ranges)
        for file in files:  # a damaged file is refused now
            load_model(file)
        # `names`: the backends that run the original; `goals`: those that models are optimized for
        names = _split_names(peers) if peers else backends.peers()
        goals = [n for n in names if backends.find(n).target] if ours is None else _split_names(ours)
        if not names:
            raise TensaurusError("--peers names no backend", remedy=f"Example: --peers {backends.peers()[0]}")
        fixed = [name for name in goals if name != AUTO]
        for name in (*names, *fixed):
            backends.require(name)
        if strange := [name for name in fixed if not backends.find(name).target]:
            remedy = f"Choose from {', '.join(backends.targets())}."
            raise TensaurusError(f"--ours {strange[0]}: models cannot be optimized for it", remedy=remedy)
        if resume:
            had = {record.model for record in earlier}
            subjects = [subject for subject in subjects if subject.name not in had]
        # measure model by model; a row is in the file as soon as its model is measured
        failed = 0
        with choose_progress(make_console(stderr=True), quiet=False) as progress:
            progress.phase("measuring the machine's peaks")
            setting = measure_setting(threads)
            # None: the time limit, not a number of steps, ends each optimization
            benchmark = Benchmark(
                setting, names, goals, files, rounds, time_limit, None, seed, database, save, progress
            )
            for subject in subjects:
                try:
                    records = benchmark.measure_model(subject)
                except TensaurusError as error:  # of several models the others are still measured
                    if len(subjects) == 1:
                        raise
                    failed += 1
                    typer.echo(f"error: {error}", err=True)
                    continue
                _print_records(records)
                if csv is not None:
                    append_records(csv, records)
        if failed:
            remedy = "The lines that begin with 'error' say why."
            raise TensaurusError(f"{failed} of {len(subjects)} models could not be measured", remedy=remedy)
    if report is not None and csv is not None:
        _write_page(read_records(csv), report)


def _split_names(words: str) -> list[str]:
    """Return the names between the commas, each once; an empty list for "none"."""
    names = [word.strip() for word in words.split(",") if word.strip()]
    return [] if names == ["none"] else list(dict.fromkeys(names))


def _print_records(records: list[Record]) -> None:
    from tensaurus.app.report.bench_table import bench_table

    print_renderable(bench_table(records))
    threads, rounds = records[0].threads, max(len(record.rounds_ms) for record in records)
    typer.echo(f"{threads} thread{'s' * (threads != 1)}, {rounds} round{'s' * (rounds != 1)}")


def _write_page(records: list[Record], path: Path) -> None:
    """Write the page, and its plots into a folder of the same name beside it."""
    from tensaurus.app.report.benchmark_page import render_page
    from tensaurus.app.report.plots import draw_plots

    if not records:
        raise TensaurusError("the CSV file has no rows", remedy="Name a model to measure.")
    folder = path.with_suffix("")
    folder.mkdir(exist_ok=True)
    drawn = draw_plots(records, folder)
    plots = {caption: os.path.relpath(file, path.parent) for caption, file in drawn.items()}
    with replace_file(path) as beside:
        beside.write_text(render_page(records, plots), encoding="utf-8")
