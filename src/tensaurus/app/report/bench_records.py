"""What the bench writes down: one row of a CSV file for every contender on every model."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from math import isnan, nan
from pathlib import Path

from tensaurus.runtimes.measure.comparison import Comparison
from tensaurus.system.errors import TensaurusError
from tensaurus.system.files import replace_file

__all__ = ["Record", "Setting", "append_records", "compared", "read_records"]


@dataclass(frozen=True)
class Setting:
    """What was measured with: machine, versions, and the machine's measured peaks."""

    processor: str
    cores: int
    threads: int
    versions: str
    commit: str
    date: str
    instructions: str  # what the arithmetic peak was measured with
    peak_gflops: float
    peak_cache_gbs: float  # gigabytes a second copied, read and written bytes added
    peak_memory_gbs: float


@dataclass(frozen=True)
class Record(Setting):
    """One contender on one model; times are in milliseconds, nan where it does not run."""

    model: str
    contender: str
    backend: str
    ours: bool  # the optimizer's result, rather than the original
    exact: bool  # computes in the model's own precision
    rounds_ms: tuple[float, ...]  # median of each round; the rounds of all contenders on a model correspond
    median_ms: float
    minimum_ms: float
    spread: float  # interquartile range of all runs over their median
    disturbed: int  # rounds that other processes disturbed, repetitions too
    error: float  # largest difference from the first contender's outputs, over their largest element
    gflop: float  # of the original: two for each multiply-add
    compulsory_mb: float  # inputs, outputs and weights of the original
    traffic_mb: float  # what the original's operators read and write, each taken alone
    note: str  # "unchanged", or why it does not run

    @property
    def runs(self) -> bool:
        return not isnan(self.median_ms)

    @property
    def gflops(self) -> float:
        """Billions of the original's operations a second."""
        return self.gflop / self.median_ms * 1e3

    @property
    def arithmetic_share(self) -> float:
        """Of the machine's peak of multiply-adds; more than 1 where less is computed than in the original."""
        return self.gflops / self.peak_gflops

    @property
    def memory_share(self) -> float:
        """Of the bandwidth of memory, were the compulsory bytes all that moves."""
        return self.compulsory_mb / self.median_ms / self.peak_memory_gbs

    @property
    def cache_share(self) -> float:
        """Of the bandwidth of the caches, were every operator to read and write all of its tensors."""
        return self.traffic_mb / self.median_ms / self.peak_cache_gbs


def compared(first: Record, second: Record) -> Comparison:
    """Round by round, so that drift of the machine cancels out; both must come from one contest."""
    ratios = [a / b for a, b in zip(first.rounds_ms, second.rounds_ms, strict=True)]
    return Comparison.of(ratios, 2 * max(first.disturbed, second.disturbed) > len(ratios))


def append_records(path: Path, records: Iterable[Record]) -> None:
    """Add rows to the file, which is made where it is missing; older rows of the same model go.

    Raises TensaurusError.
    """
    new = list(records)
    measured = {record.model for record in new}
    old = [record for record in read_records(path) if record.model not in measured] if path.exists() else []
    with replace_file(path) as beside, beside.open("w", newline="", encoding="utf-8") as file:
        names = [part.name for part in fields(Record)]
        names = names[names.index("model") :] + names[: names.index("model")]
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(_row(record) for record in old + new)


def _row(record: Record) -> dict[str, object]:
    """The record in words: six digits of numbers, the rounds with blanks between them."""
    rounds = " ".join(f"{value:.6g}" for value in record.rounds_ms)
    words = {key: f"{v:.6g}" if isinstance(v, float) else v for key, v in asdict(record).items()}
    return words | {"rounds_ms": rounds, "ours": int(record.ours), "exact": int(record.exact)}


def read_records(path: Path) -> list[Record]:
    """The rows of the file, in order; raises TensaurusError where it is not one of the bench's."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True)
            if not {part.name for part in fields(Record)} <= set(reader.fieldnames or ()):
                raise ValueError("columns are missing")
            return [_record(row) for row in reader]
    except OSError as error:
        raise TensaurusError(f"cannot be read: {error.strerror}", file=path) from error
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        remedy = "Name a file that `tensaurus bench --csv` wrote."
        raise TensaurusError("it is not a table of the bench's", file=path, remedy=remedy) from error


def _record(row: dict[str, str]) -> Record:
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
