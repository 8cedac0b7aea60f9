"""Models by what a user calls them: a file, a workload, a pretrained model, or a group of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import onnx

from tensaurus.app.zoo.catalog import find, workloads
from tensaurus.app.zoo.pretrained import PRETRAINED, fetch
from tensaurus.graph.onnx.model_file import load_model
from tensaurus.system.errors import TensaurusError

__all__ = ["GROUPS", "Subject", "select"]

GROUPS = {
    "zoo": "the papers' models, each at its first batch size",
    "batches": "the same at the other batch sizes that the papers use",
    "cases": "the papers' single operators and small groups of them",
    "pretrained": "real models that public packages ship",
}


@dataclass(frozen=True)
class Subject:
    """A model to measure: its name in tables, how to get it, and what fixes its inputs."""

    name: str
    load: Callable[[], onnx.ModelProto]
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    file: Path | None = None  # where it was read from, libraries of kernels beside it


def select(
    words: Iterable[str],
    shapes: Mapping[str, Sequence[int]] | None = None,
    ranges: Mapping[str, tuple[int, int]] | None = None,
) -> list[Subject]:
    """What the words name, each model once: a group, NAME, NAME@BATCH, or the path of a file.

    `shapes` and `ranges` are for the files. Raises TensaurusError for a word that names nothing.
    """
    subjects: dict[str, Subject] = {}
    for word in words:
        for subject in _named(word, shapes or {}, ranges or {}):
            subjects.setdefault(subject.name, subject)
    return list(subjects.values())


def _named(
    word: str, shapes: Mapping[str, Sequence[int]], ranges: Mapping[str, tuple[int, int]]
) -> list[Subject]:
    known = workloads().values()
    match word:
        case "zoo":
            return [_workload(entry.name) for entry in known if not entry.case]
        case "batches":
            return [_workload(f"{e.name}@{batch}") for e in known if not e.case for batch in e.batches[1:]]
        case "cases":
            return [_workload(entry.name) for entry in known if entry.case]
        case "pretrained":
            return [_pretrained(name) for name in PRETRAINED]
    path = Path(word)
    if path.suffix == ".onnx" or path.exists():
        return [Subject(word, partial(load_model, path), shapes, ranges, path)]
    return [_pretrained(word) if word in PRETRAINED else _workload(word)]


def _workload(word: str) -> Subject:
    name, at, digits = word.partition("@")
    if at and not (digits.isascii() and digits.isdigit() and int(digits)):
        raise TensaurusError(f"{word} is not of the form NAME@BATCH", remedy="For example: resnet50@16")
    return Subject(word, partial(find(name).model, int(digits) if at else None))


def _pretrained(name: str) -> Subject:
    entry = PRETRAINED[name]
    return Subject(name, lambda: load_model(fetch(name)), entry.shapes, entry.ranges)
