"""The records of `tensaurus bench`: one row of a CSV file for each contender on each model.

A record keeps the median of every round, so that two contenders can be compared round by round later.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from math import isnan, nan
from pathlib import Path

from tensaurus.runtimes.measure.comparison import Comparison
from tensaurus.system.errors import TensaurusError
from tensaurus.system.files import replace_file

__all__ = ["Record", "Setting", "append_records", "compare_rounds", "read_records"]


@dataclass(frozen=True)
class Setting:
    """The machine, its measured peaks, and the versions with which a record was made."""

    processor: str
    cores: int
    threads: int
    versions: str
    commit: str
    date: str
    instructions: str  # instructions with which the arithmetic peak was measured
    peak_gflops: float
    peak_cache_gbs: float  # gigabytes a second copied, read and written bytes added
    peak_memory_gbs: float


@dataclass(frozen=True)
class Record(Setting):
    """One contender on one model; times are nan if it does not run. The fields are the CSV's columns."""

    model: str
    contender: str
    backend: str
    ours: bool  # whether it is the optimizer's result, not the original
    exact: bool  # whether the backend computes in the model's own precision
    rounds_ms: tuple[float, ...]  # median of each round; the rounds of all contenders on a model correspond
    median_ms: float
    minimum_ms: float
    spread: float  # interquartile range of all runs over their median
    disturbed: int  # rounds that other processes disturbed even when repeated
    error: float  # largest difference from the first contender's outputs, over their largest element
    gflop: float  # of the original: two for each multiply-add
    compulsory_mb: float  # inputs, outputs and weights of the original
    traffic_mb: float  # what the original's operators read and write, each taken alone
    note: str  # "unchanged", or why it does not run

    @property
    def has_run(self) -> bool:
        return not isnan(self.median_ms)

    @property
    def gflops(self) -> float:
        """The original's operations in billions a second."""
        return self.gflop / self.median_ms * 1e3

    @property
    def arithmetic_share(self) -> float:
        """The share of the arithmetic peak; above 1 if the contender computes less than the original."""
        return self.gflops / self.peak_gflops

    @property
    def memory_share(self) -> float:
        """The share of memory bandwidth, if only inputs, outputs and weights moved."""
        return self.compulsory_mb / self.median_ms / self.peak_memory_gbs  # megabytes a ms are GB/s

    @property
    def cache_share(self) -> float:
        """The share of cache bandwidth, if every operator read and wrote all of its tensors."""
        return self.traffic_mb / self.median_ms / self.peak_cache_gbs


def compare_rounds(first: Record, second: Record) -> Comparison:
    """Compare two contenders of one measurement round by round, so that the machine's drift cancels out."""
    # void where other processes disturbed most rounds of one of them
    ratios = [a / b for a, b in zip(first.rounds_ms, second.rounds_ms, strict=True)]
    return Comparison.of(ratios, 2 * max(first.disturbed, second.disturbed) > len(ratios))


def append_records(path: Path, records: Iterable[Record]) -> None:
    """Add rows to the file in place of older rows of the same models; create the file if it is missing.

    Raises TensaurusError if the file is no such table, or cannot be written.
    """
    new = list(records)
    measured = {record.model for record in new}
    old = [record for record in read_records(path) if record.model not in measured] if path.exists() else []
    with replace_file(path) as beside, beside.open("w", newline="", encoding="utf-8") as file:
        names = [part.name for part in fields(Record)]
        # the columns of `Setting`, the base class, go last
        names = names[names.index("model") :] + names[: names.index("model")]
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(_format_row(record) for record in old + new)


def _format_row(record: Record) -> dict[str, object]:
    """Return the values of a CSV row: floats with six digits, the rounds separated by blanks."""
    rounds = " ".join(f"{value:.6g}" for value in record.rounds_ms)
    words = {key: f"{v:.6g}" if isinstance(v, float) else v for key, v in asdict(record).items()}
    return words | {"rounds_ms": rounds, "ours": int(record.ours), "exact": int(record.exact)}


def read_records(path: Path) -> list[Record]:
    """Return the records of the file, in order. Raises TensaurusError if it is not such a table."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True)
            if not {part.name for part in fields(Record)} <= set(reader.fieldnames or ()):
                raise ValueError("columns are missing")
            return [_parse_row(row) for row in reader]
    except OSError as error:
        raise TensaurusError(f"cannot be read: {error.strerror}", file=path) from error
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        reason = f"is not a table that `tensaurus bench --csv` wrote ({error})"
        remedy = "Give --csv a new file, or one that this version wrote."
        raise TensaurusError(reason, file=path, remedy=remedy) from error


def _parse_row(row: dict[str, str]) -> Record:
    kinds = {part.name: str(part.type) for part in fields(Record)}
    values: dict[str, object] = {}
    for name, kind in kinds.items():
        word = row[name]
        match kind:
            case "str":
                values[name] = word
            case "float":
                values[name] = float(word) if word else nan
            case "tuple[float, ...]":
                values[name] = tuple(map(float, word.split()))
            case "bool":
                values[name] = bool(int(word))
            case _:
                values[name] = int(word)
    return Record(**values)  # type: ignore[arg-type]
