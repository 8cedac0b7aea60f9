"""Writes measurements as text, which another machine of the same kind reads: one JSON value in each line.

    {"tensaurus measurements": 1}
    ["Relu(float32[2])", "onnxruntime 1.27.0", "AMD EPYC, ..., 2 cores, 2 threads", "", 1.5e-06]

The first line has the version of the format.  Every other line has the fields of a `Measurement` in order;
null stands for infinite seconds: the workload cannot run there.  A file whose name ends in .gz is compressed.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable
from dataclasses import astuple
from math import inf
from pathlib import Path
from typing import IO

from tensaurus.runtimes.measure.database import Measurement
from tensaurus.system.errors import TensaurusError
from tensaurus.system.files import replace_file

__all__ = ["read_measurements", "write_measurements"]

FORMAT = {"tensaurus measurements": 1}
REMEDY = "Name a file that `tensaurus db export` wrote."


def write_measurements(path: Path, measurements: Iterable[Measurement]) -> None:
    """Write the measurements; the file appears when it is complete.  Raises TensaurusError."""
    with replace_file(path) as beside, _open(beside, "wt", path.suffix) as file:
        file.write(f"{json.dumps(FORMAT)}\n")
        for one in measurements:
            *key, seconds = astuple(one)
            file.write(f"{json.dumps([*key, None if seconds == inf else seconds], ensure_ascii=False)}\n")


def read_measurements(path: Path) -> list[Measurement]:
    """Return the measurements in a file, in order.

    Raises TensaurusError, which names the line, for a file that is no export or that is damaged.
    """
    number = 1
    try:
        with _open(path, "rt", path.suffix) as file:
            if json.loads(next(file)) != FORMAT:
                raise ValueError("of another format")
            found = list[Measurement]()
            for line in file:
                number += 1
                found.append(_parse(line))
            return found
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TensaurusError(f"cannot be read: {reason}", file=path, remedy=REMEDY) from error
    except (ValueError, TypeError, StopIteration, RecursionError) as error:
        what = "is not an export of measurements" if number == 1 else f"line {number} is not a measurement"
        raise TensaurusError(what, file=path, remedy=REMEDY) from error


def _parse(line: str) -> Measurement:
    """Return the measurement in a line.  Raises ValueError or TypeError."""
    workload, backend, device, schedule, seconds = json.loads(line)
    key = workload, backend, device, schedule
    if not all(isinstance(text, str) for text in key) or isinstance(seconds, bool | str):
        raise TypeError("four texts and a number are a measurement")
    return Measurement(*key, inf if seconds is None else float(seconds))


def _open(path: Path, mode: str, suffix: str) -> IO[str]:
    """Open a text file, compressed where the name that it will have ends in .gz."""
    if suffix == ".gz":
        return gzip.open(path, mode, encoding="utf-8")  # type: ignore[return-value]
    return path.open(mode, encoding="utf-8")
