"""The command that compares runtimes."""

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
    console_on,
    parse_ranges,
    parse_shapes,
    require_distinct,
    show,
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
            help="ONNX files; names that `zoo list` prints, as resnet50 or resnet50@16; or groups: zoo, "
            "batches, cases, pretrained.",
            show_default=False,
        ),
    ] = None,
    peers: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="What runs the original; default: all that is installed."),
    ] = None,
    ours: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="To optimize for, or auto; default: every peer that can be."),
    ] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Another model, to run on every peer. Repeatable."),
    ] = None,
    shape: Shapes = None,
    range_: Ranges = None,
    threads: Threads = None,
    rounds: Annotated[
        int, typer.Option(metavar="N", min=1, help="Turns of a quarter of a second that each has.")
    ] = 10,
    time_limit: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Time to search, as for `optimize`.")
    ] = 60.0,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Add every figure to this table.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Leave out models that the table has.")] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="PAGE", help="Write the table as a page with plots beside it.")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Keep here what is made of each MODEL: MODEL.BACKEND.onnx."),
    ] = None,
    seed: Seed = 0,
    database: DatabaseFile = None,
) -> None:
    """Compare how fast the runtimes run each MODEL, and what the optimizer makes of it.

    Each contender runs alone in its own process, in turns.  Without a MODEL, --report makes the page from the
    table as it is.
    """
    words, files = list(models or ()), list(against or ())
    shapes, ranges = parse_shapes(shape or ()), parse_ranges(range_ or ())
    require_distinct({"--csv": csv, "--report": report, "--db": database})
    if not words and report is None:
        remedy = "Name a model, or a table with --csv and a page with --report."
        raise TensaurusError("there is nothing to measure", remedy=remedy)
    for option, given in (("--resume", resume), ("--report", report is not None)):
        if given and csv is None:
            raise TensaurusError(f"{option} needs a table", remedy="Name one: --csv FILE")
    for path in (csv, report, save / "MODEL.onnx" if save is not None else None):
        if path is not None:
            require_writable(path)
    from tensaurus.app.report.bench_records import append_records, read_records

    earlier = read_records(csv) if csv is not None and csv.exists() else []
    if words:
        from tensaurus.app.contest import Contest, setting_here
        from tensaurus.app.zoo.selection import select
        from tensaurus.graph.onnx.model_file import load_model
        from tensaurus.optimizer.run.options import AUTO
        from tensaurus.runtimes import backends
        from tensaurus.system.progress import choose_progress

        subjects = select(words, shapes, ranges)
        for file in files:
            load_model(file)
        names = _listed(peers) if peers else backends.peers()
        goals = [n for n in names if backends.find(n).target] if ours is None else _listed(ours)
        if not names:
            raise TensaurusError("--peers names nobody", remedy=f"For example: --peers {backends.peers()[0]}")
        fixed = [name for name in goals if name != AUTO]
        for name in (*names, *fixed):
            backends.require(name)
        if strange := [name for name in fixed if not backends.find(name).target]:
            raise TensaurusError(f"--ours {strange[0]}: nothing can be optimized for it")
        if resume:
            had = {record.model for record in earlier}
            subjects = [subject for subject in subjects if subject.name not in had]
        failed = 0
        with choose_progress(console_on(stderr=True), quiet=False) as progress:
            progress.phase("measuring the machine's peaks")
            setting = setting_here(threads)
            contest = Contest(
                setting, names, goals, files, rounds, time_limit, None, seed, database, save, progress
            )
            for subject in subjects:
                try:
                    records = contest.records(subject)
                except TensaurusError as error:
                    if len(subjects) == 1:
                        raise
                    failed += 1
                    typer.echo(f"error: {error}", err=True)
                    continue
                _show_records(records)
                if csv is not None:
                    append_records(csv, records)
        if failed:
            raise TensaurusError(f"{failed} of {len(subjects)} models could not be measured")
    if report is not None and csv is not None:
        _write_page(read_records(csv), report)


def _listed(words: str) -> list[str]:
    """The names between the commas, each once; none for "none"."""
    names = [word.strip() for word in words.split(",") if word.strip()]
    return [] if names == ["none"] else list(dict.fromkeys(names))


def _show_records(records: list[Record]) -> None:
    from tensaurus.app.report.bench_table import bench_table

    show(bench_table(records))
    threads, rounds = records[0].threads, max(len(record.rounds_ms) for record in records)
    typer.echo(f"{threads} thread{'s' * (threads != 1)}, {rounds} round{'s' * (rounds != 1)}")


def _write_page(records: list[Record], path: Path) -> None:
    """The page, and its plots in a folder of its name beside it."""
    from tensaurus.app.report.benchmark_page import page
    from tensaurus.app.report.plots import draw

    if not records:
        raise TensaurusError("the table is empty")
    folder = path.with_suffix("")
    folder.mkdir(exist_ok=True)
    plots = {caption: os.path.relpath(file, path.parent) for caption, file in draw(records, folder).items()}
    with replace_file(path) as beside:
        beside.write_text(page(records, plots), encoding="utf-8")
