"""The command group `db`: measured times and tuned kernels, which make later runs quicker."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tensaurus.app.cli.app import Command, app
from tensaurus.app.cli.options import Cpu, DatabaseFile, Threads
from tensaurus.kernels.tune.object_files import objects_folder
from tensaurus.system.errors import TensaurusError
from tensaurus.system.files import require_writable

if TYPE_CHECKING:
    from tensaurus.runtimes.measure.database import Database, Measurement

db = typer.Typer(
    help="Measured times and tuned kernels, kept to make later runs quicker.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(db, name="db")

AnyMachine = Annotated[
    bool, typer.Option("--any-machine", help="Take what other kinds of machines have measured, too.")
]


@db.command("path", cls=Command)
def db_path(database: DatabaseFile = None) -> None:
    """Print the database's file."""
    from tensaurus.runtimes.measure.database import default_path

    typer.echo(database or default_path())


@db.command("count", cls=Command)
def db_count(database: DatabaseFile = None) -> None:
    """Print the number of measurements."""
    with _open_database(database) as measurements:
        typer.echo(measurements.count())


@db.command("list", cls=Command)
def db_list(database: DatabaseFile = None) -> None:
    """Print every measurement.

    Milliseconds, backend, device, schedule and workload, separated by tabs.
    """
    with _open_database(database) as measurements:
        for row in measurements.all():
            words = (row.backend, row.device, row.schedule, row.workload)
            typer.echo("\t".join([f"{row.seconds * 1e3:.6g}", *(" ".join(word.split()) for word in words)]))


@db.command("clear", cls=Command)
def db_clear(
    database: DatabaseFile = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete all measurements, and the compiled kernels beside them."""
    with _open_database(database) as measurements:
        count = measurements.count()
        if not yes:
            typer.confirm(f"Delete {count} measurements in {measurements.path}?", abort=True)
        measurements.clear()
        shutil.rmtree(objects_folder(measurements.path), ignore_errors=True)
        typer.echo(f"deleted {count} measurements")


@db.command("export", cls=Command)
def db_export(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Where to write; .gz compresses.", show_default=False),
    ],
    database: DatabaseFile = None,
) -> None:
    """Write all measurements as text, for `db import` on another machine of the same kind."""
    from tensaurus.runtimes.measure.measurement_file import write_measurements

    require_writable(file)
    with _open_database(database) as measurements:
        rows = measurements.all()
    write_measurements(file, rows)
    typer.echo(f"wrote {len(rows)} measurements to {file}")


@db.command("schedules", cls=Command)
def db_schedules(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Where to write, such as 512-amd.jsonl.", show_default=False),
    ],
    threads: Threads = None,
    cpu: Cpu = "native",
    database: DatabaseFile = None,
) -> None:
    """Write the kernels' schedules that were tuned on this machine as a file that ships with Tensaurus.

    In `kernels/tune/schedules/`, where the name says the class of processors, the file spares every machine
    of this class the tuning.
    """
    if find_spec("halide") is None:
        raise TensaurusError("halide is not installed", remedy="Run pip install 'tensaurus[kernels]'.")
    from tensaurus.kernels.tune.shipped_schedules import write_schedules
    from tensaurus.kernels.tune.tune import Tuner
    from tensaurus.runtimes.measure.machine import Machine

    require_writable(file)
    with _open_database(database) as measurements:
        tuner = Tuner(measurements, Machine.here(threads), cpu)
        forms = tuner.histories.tuned_forms()
    if not forms:
        remedy = "Run `tensaurus tune` or `tensaurus optimize` first, on this machine."
        raise TensaurusError("no kernel was tuned on this machine", file=measurements.path, remedy=remedy)
    write_schedules(file, tuner.machine.key, tuner.backend, forms)
    typer.echo(f"wrote schedules for {tuner.processor_class} to {file} (reduction forms: {len(forms)})")


@db.command("import", cls=Command)
def db_import(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="What `db export` wrote.", show_default=False)
    ],
    any_machine: AnyMachine = False,
    database: DatabaseFile = None,
) -> None:
    """Add the measurements in files that are not here yet; what was measured here stays.

    Measurements of another kind of machine are left out, as its times say little about this one.
    """
    from tensaurus.runtimes.measure.measurement_file import read_measurements

    _add_measurements([row for file in files for row in read_measurements(file)], any_machine, database)


@db.command("merge", cls=Command)
def db_merge(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Databases of other runs.", show_default=False)
    ],
    any_machine: AnyMachine = False,
    database: DatabaseFile = None,
) -> None:
    """Add the measurements of other databases that are not here yet; what was measured here stays.

    Measurements of another kind of machine are left out, as its times say little about this one.
    """
    from tensaurus.runtimes.measure.database import read_database

    _add_measurements([row for file in files for row in read_database(file)], any_machine, database)


def _add_measurements(rows: Iterable[Measurement], any_machine: bool, database: Path | None) -> None:
    """Add measurements to the database, and print how many were new and how many were left out."""
    from tensaurus.runtimes.measure.machine import Machine

    hardware, foreign = Machine.here().hardware, Counter[str]()
    wanted: list[Measurement] = []
    for row in rows:
        if any_machine or row.device.startswith(f"{hardware}, "):
            wanted.append(row)
        else:
            foreign[row.device] += 1
    with _open_database(database) as measurements:
        added = measurements.add_missing(wanted)
        typer.echo(f"added {added} of {len(wanted)} measurements to {measurements.path}")
    for device, count in foreign.items():
        typer.echo(f"left out {count} measurements of another kind of machine: {device}")
    if foreign:
        typer.echo("--any-machine adds them, too")


def _open_database(path: Path | None) -> Database:
    from tensaurus.runtimes.measure.database import Database

    return Database(path)
