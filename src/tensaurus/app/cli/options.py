"""Options that several commands share, the parsers of their values, and printing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tensaurus.system.errors import TensaurusError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

MAX_SIZE = 2**31 - 1  # of a dimension: the largest signed 32-bit integer

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.", show_default=False)]
Models = Annotated[
    list[Path], typer.Argument(metavar="MODEL...", help="ONNX files.", show_default=False)
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape", metavar="INPUT=N,N,...", help="Fix an input's shape, e.g. x=1,3,48,320. Repeatable."
    ),
]
Ranges = Annotated[
    list[str] | None,
    typer.Option(
        "--range",
        metavar="INPUT=LOW,HIGH",
        help="Range of an integer input's values; default: 0 and 1. Repeatable.",
    ),
]
InputsFile = Annotated[
    Path | None,
    typer.Option("--inputs", metavar="FILE", help="Your own inputs: an .npz file, an array for each input."),
]
Threads = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        max=1024,
        help="Threads of one run; default and maximum: the processors that this process may use.",
    ),
]
RunLimit = Annotated[
    float, typer.Option(metavar="SECONDS", min=0.001, help="Longest time for one run of the model.")
]
Cpu = Annotated[
    str,
    typer.Option(
        metavar="LEVEL",
        help="Processor to compile for: native (this one), x86-64-v3 (AVX2), x86-64-v4 (AVX-512).",
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Seed of every random choice.")]
DatabaseFile = Annotated[
    Path | None, typer.Option("--db", metavar="FILE", help="File of measured times and tuned kernels.")
]


def parse_shapes(flags: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Parse flags such as 'x=1,3,48,320'; 'x=' is a scalar. Raises TensaurusError for a bad flag."""
    shapes: dict[str, tuple[int, ...]] = {}
    for flag in flags:
        name, equals, sizes = flag.rpartition("=")
        words = [word.strip() for word in sizes.split(",")] if sizes.strip() else []
        if not equals or not name or not all(word.isascii() and word.isdigit() for word in words):
            remedy = "For example: --shape x=1,3,48,320"
            raise TensaurusError(f"--shape {flag} is not of the form INPUT=SIZES", remedy=remedy)
        shape = tuple(map(int, words))
        if 0 in shape:
            raise TensaurusError(f"--shape {flag} has a size of 0", remedy="Give sizes from 1 on.")
        if max(shape, default=0) > MAX_SIZE:
            raise TensaurusError(f"--shape {flag} has a size above {MAX_SIZE}", remedy="Give smaller sizes.")
        if shapes.setdefault(name, shape) != shape:
            remedy = "Give one --shape for each input."
            raise TensaurusError(f"--shape gives input {name} two different shapes", remedy=remedy)
    return shapes


def parse_ranges(flags: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Parse flags such as 'sr=0,16000' into {input: (low, high)}; one number is both bounds."""
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
            reason = f"--range {flag} is not of the form INPUT=LOW,HIGH, with integers LOW <= HIGH"
            raise TensaurusError(reason, remedy=remedy)
        ranges[name] = (low, high)
    return ranges


def make_console(*, stderr: bool = False) -> Console:
    """Return a console of the terminal's width, or of 120 columns if the output is piped."""
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = 120
    return console


def print_renderable(text: RenderableType, *, soft_wrap: bool = False) -> None:
    """Print to standard output; without the blanks that fill a line if the output is piped."""
    console = make_console()
    if console.is_terminal:
        console.print(text, soft_wrap=soft_wrap)
        return
    with console.capture() as captured:
        console.print(text, soft_wrap=soft_wrap)
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def require_distinct_files(files: Mapping[str, Path | None]) -> None:
    """Raise TensaurusError if two of the options, {option: its file}, name the same file."""
    seen: dict[str, str] = {}
    for option, path in files.items():
        if path is not None and seen.setdefault(real := os.path.realpath(path), option) != option:
            reason = f"{seen[real]} and {option} name the same file"
            raise TensaurusError(reason, file=path, remedy="Name another file.")
