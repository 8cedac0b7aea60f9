"""Tables with a row for each model: each measured in a process of its own, kept as soon as it is finished."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, fields
from multiprocessing import get_context
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from tensaurus.errors import TensaurusError
from tensaurus.optimize import Result, optimize
from tensaurus.report.progress import NoProgress
from tensaurus.zoo.selection import Subject

Row = TypeVar("Row")


def grown(path: Path, found: list[Row], names: Iterable[str], measured: Callable[[str], Row]) -> list[Row]:
    """`found` and a row for every other model; the file has all that are finished."""
    known = {row.model for row in found}  # type: ignore[attr-defined]
    for name in names:
        if name in known:
            continue
        print(name, file=sys.stderr, flush=True)
        try:  # each in a process of its own, which leaves nothing behind
            with ProcessPoolExecutor(1, get_context("spawn")) as child:
                row = child.submit(measured, name).result()
        except (TensaurusError, BrokenProcessPool) as error:
            print(f"  {error}", file=sys.stderr)
            continue
        found.append(row)
        write(path, found)
    return found


def write(path: Path, found: Iterable[Any]) -> None:
    rows = [asdict(row) for row in found]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read(path: Path, kind: type[Row]) -> list[Row]:
    """The rows of a file; `kind` is a dataclass of texts, floats and ints."""
    if not path.exists():
        raise TensaurusError("there is nothing to go on from", file=path)
    kinds = {field.name: {"float": float, "int": int}.get(str(field.type), str) for field in fields(kind)}  # type: ignore[arg-type]
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return [kind(**{name: kinds[name](text) for name, text in row.items()}) for row in rows]


def optimized(subject: Subject, backend: str, limit: float) -> Result:
    """The model as the command line optimizes it, with nothing measured before; notes go to stderr."""
    said: list[str] = []

    class Notes(NoProgress):
        def note(self, text: str) -> None:
            said.append(text)

    with TemporaryDirectory() as folder:
        result = optimize(
            subject.load(),
            shapes=dict(subject.shapes),
            ranges=dict(subject.ranges),
            backend=backend,
            time_limit=limit,
            database=Path(folder) / "db.sqlite",
            progress=Notes(),
        )
    peak = getrusage(RUSAGE_SELF).ru_maxrss / 2**20
    for text in (f"{peak:.1f} GiB at most", *said):
        print(f"  {text}", file=sys.stderr, flush=True)
    return result
