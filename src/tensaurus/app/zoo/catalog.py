"""The workloads by name: each is one function that builds its ONNX model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from inspect import getdoc

import onnx

from tensaurus.app.zoo.builder import Builder, Value
from tensaurus.system.errors import TensaurusError

__all__ = ["Workload", "find", "workload", "workloads"]

Build = Callable[[Builder, int], tuple[Value, ...] | Value]

# Every file that declares workloads, in the order in which they are listed.
_FILES = (
    "plain",
    "residual",
    "inception",
    "nasnet",
    "recurrent",
    "transformer",
    "longformer",
    "dense",
    "video",
    "generators",
    "cases",
)

_FOUND: dict[str, Workload] = {}


@dataclass(frozen=True)
class Workload:
    """A model of one of the papers' evaluations."""

    name: str
    build: Build
    parameters: float
    """Millions of trained parameters, as published; of operators alone, those of their weights."""
    multiply_adds: float
    """Billions at batch 1, as published."""
    papers: tuple[str, ...]
    """Where it is evaluated: taso, tensat, pet, einnet, eto."""
    batches: tuple[int, ...]
    """The batch sizes that the papers use; the first is the default."""
    case: bool
    """Whether it is one operator or a few of them: a case study."""

    @property
    def summary(self) -> str:
        """The first line of the builder's docstring."""
        return (getdoc(self.build) or "").split("\n")[0].rstrip(".")

    def model(self, batch: int | None = None, seed: int = 0) -> onnx.ModelProto:
        """The ONNX model with seeded weights; `batch` is the leading size of its inputs."""
        builder = Builder(self.name, seed)
        made = self.build(builder, batch or self.batches[0])
        return builder.model(*(made if isinstance(made, tuple) else (made,)))


def workload(
    name: str,
    *,
    parameters: float,
    multiply_adds: float,
    papers: tuple[str, ...] = (),
    batches: tuple[int, ...] = (1,),
    case: bool = False,
) -> Callable[[Build], Build]:
    """Register the function that builds a workload from a Builder and a batch size; see `Workload`."""

    def register(build: Build) -> Build:
        if name in _FOUND:
            raise ValueError(f"two workloads are called {name}")
        _FOUND[name] = Workload(name, build, parameters, multiply_adds, papers, batches, case)
        return build

    return register


def workloads() -> Mapping[str, Workload]:
    """Every workload by its name, models before case studies."""
    for file in _FILES:
        import_module(f"tensaurus.app.zoo.{file}")
    return dict(sorted(_FOUND.items(), key=lambda item: item[1].case))


def find(name: str) -> Workload:
    """The workload of that name; raises TensaurusError where there is none."""
    known = workloads()
    if name not in known:
        near = get_close_matches(name, known, 1)
        hint = f"Did you mean {near[0]}?" if near else "`tensaurus zoo list` names them."
        raise TensaurusError(f"no workload is called {name}", remedy=hint)
    return known[name]
