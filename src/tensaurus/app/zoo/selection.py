"""Finds models by the words of a user: a file, a workload, a pretrained model, or a group of models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import onnx

from tensaurus.app.zoo.catalog import find_workload, workloads
from tensaurus.app.zoo.pretrained import PRETRAINED, fetch_model
from tensaurus.graph.onnx.model_file import load_model
from tensaurus.system.errors import TensaurusError

__all__ = ["GROUPS", "Subject", "select_models"]

GROUPS = {
    "zoo": "the papers' models, each at its first batch size",
    "batches": "the same at the other batch sizes that the papers use",
    "cases": "the papers' single operators and small groups of them",
    "pretrained": "real models that public packages ship",
}


@dataclass(frozen=True)
class Subject:
    """A model to measure: its name in tables, how to load it, and the shapes and ranges of its inputs."""

    name: str
    load: Callable[[], onnx.ModelProto]
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    file: Path | None = None  # the model's file, with its kernel libraries beside it; None if it is built


def select_models(
    words: Iterable[str],
    shapes: Mapping[str, Sequence[int]] | None = None,
    ranges: Mapping[str, tuple[int, int]] | None = None,
) -> list[Subject]:
    """Return the models that the words name, each once: a group, NAME, NAME@BATCH, or the path of a file.

    `shapes` and `ranges` apply to files only. Raises TensaurusError for an unknown word.
    """
    subjects: dict[str, Subject] = {}
    for word in words:
        for subject in _models_named(word, shapes or {}, ranges or {}):
            subjects.setdefault(subject.name, subject)
    return list(subjects.values())


def _models_named(
    word: str, shapes: Mapping[str, Sequence[int]], ranges: Mapping[str, tuple[int, int]]
) -> list[Subject]:
    known = workloads().values()
    match word:
        case "zoo":
            return [_workload_subject(entry.name) for entry in known if not entry.case]
        case "batches":
            names = [f"{e.name}@{batch}" for e in known if not e.case for batch in e.batches[1:]]
            return [_workload_subject(name) for name in names]
        case "cases":
            return [_workload_subject(entry.name) for entry in known if entry.case]
        case "pretrained":
            return [_pretrained_subject(name) for name in PRETRAINED]
    path = Path(word)
    if path.suffix == ".onnx" or path.exists():
        return [Subject(word, partial(load_model, path), shapes, ranges, path)]
    return [_pretrained_subject(word) if word in PRETRAINED else _workload_subject(word)]


def _workload_subject(word: str) -> Subject:
    name, at, digits = word.partition("@")
    if at and not (digits.isascii() and digits.isdigit() and int(digits)):
        raise TensaurusError(f"{word} is not of the form NAME@BATCH", remedy="For example: resnet50@16")
    return Subject(word, partial(find_workload(name).build_model, int(digits) if at else None))


def _pretrained_subject(name: str) -> Subject:
    entry = PRETRAINED[name]
    return Subject(name, lambda: load_model(fetch_model(name)), entry.shapes, entry.ranges)
