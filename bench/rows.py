"""Tables with a row for each model: each measured in a process of its own, kept as soon as it is finished."""

from __future__ import annotations

import csv
import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, fields
from math import inf
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

from tensaurus.system.child import die_with_parent
from tensaurus.system.errors import TensaurusError

if TYPE_CHECKING:
    from tensaurus.app.zoo.selection import Subject
    from tensaurus.optimizer.optimize import Result

Row = TypeVar("Row")

STACK, END = 2.0, 30.0  # seconds that a process may take to write its stack, and to end once it has answered


class Lost(Exception):
    """A process that gave no answer: killed as it was late, or dead by itself; one line."""


def grown(
    path: Path,
    found: list[Row],
    names: Iterable[str],
    measured: Callable[[str], Row],
    seconds: float = inf,
    lost: Callable[[str, str], Row] | None = None,
) -> list[Row]:
    """`found` and a row for every other model; the file has all that are finished.

    Each is measured in a process of its own, which leaves nothing behind and is killed after so many seconds;
    `lost` makes the row of a model whose process gave none, by the reason: without it there is no row.
    """
    known = {row.model for row in found}  # type: ignore[attr-defined]
    for name in names:
        if name in known:
            continue
        print(name, file=sys.stderr, flush=True)
        try:
            row = answered(measured, name, seconds)
        except (TensaurusError, Lost) as error:
            print(f"  {error}", file=sys.stderr)
            if lost is None or isinstance(error, TensaurusError):
                continue
            row = lost(name, str(error))
        found.append(row)
        write(path, found)
    return found


def answered(work: Callable[[str], Row], name: str, seconds: float = inf) -> Row:
    """What `work` makes of the name in a process of its own.

    Raises its TensaurusError, and Lost where it dies or takes longer: then its stack is on stderr.
    """
    context = get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(there, work, name))
    process.start()
    there.close()
    try:
        here.recv()  # it has begun
        if not here.poll(None if seconds == inf else seconds):
            assert process.pid is not None
            os.kill(process.pid, signal.SIGUSR1)
            process.join(STACK)
            raise Lost(f"hung: no answer in {seconds:.0f} s")
        error, row = here.recv()
        process.join(END)
    except EOFError:
        process.join(END)
        raise Lost(f"ended with status {process.exitcode}") from None
    finally:
        process.kill()  # those that it has started end with it
        process.join()
        here.close()
    if error is not None:
        raise error
    return row  # type: ignore[no-any-return]


def _answer(there: Connection, work: Callable[[str], Any], name: str) -> None:
    """The other side: nothing as it begins, then an error or a row; it ends with a bench that is killed."""
    if not die_with_parent(os.getppid()):
        return
    faulthandler.register(signal.SIGUSR1)
    there.send(None)
    try:
        made: tuple[TensaurusError | None, Any] = None, work(name)
    except TensaurusError as error:
        made = error, None
    there.send(made)


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
    from tensaurus.optimizer.optimize import optimize
    from tensaurus.system.progress import NoProgress

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
