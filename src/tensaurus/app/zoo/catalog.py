"""The registry of workloads: each is a function that builds the ONNX model of a published network.

    @workload("squeezenet", parameters=1.24, multiply_adds=0.35, papers=("taso", "tensat"), batches=(1, 16))
    def squeezenet(b: Builder, batch: int) -> Value: ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from inspect import getdoc

import onnx

from tensaurus.app.zoo.builder import Builder, Value
from tensaurus.system.errors import TensaurusError

__all__ = ["Workload", "find_workload", "workload", "workloads"]

Build = Callable[[Builder, int], tuple[Value, ...] | Value]

# The modules that declare workloads, in the order of `zoo list`.
_MODULES = (
    "feed_forward", "residual", "inception", "nasnet", "recurrent", "transformer", "longformer", "dense",
    "video", "generators", "cases",
)

_REGISTERED: dict[str, Workload] = {}


@dataclass(frozen=True)
class Workload:
    """A model of one of the papers' evaluations."""

    name: str
    build: Build
    parameters: float
    """Trained parameters in millions, as published; of a case study, its weights."""
    multiply_adds: float
    """Multiply-adds in billions at batch 1, as published."""
    papers: tuple[str, ...]
    """The papers that evaluate the model: taso, tensat, pet, einnet, eto."""
    batches: tuple[int, ...]
    """The batch sizes that the papers use; the first is the default."""
    case: bool
    """Whether it is a case study: one operator, or a few."""

    @property
    def summary(self) -> str:
        """The first line of the docstring of `build`, which `zoo list` prints."""
        return (getdoc(self.build) or "").split("\n")[0].rstrip(".")

    def build_model(self, batch: int | None = None, seed: int = 0) -> onnx.ModelProto:
        """Return the ONNX model with seeded weights; `batch` is the leading size of its inputs."""
        builder = Builder(self.name, seed)
        outputs = self.build(builder, batch or self.batches[0])
        return builder.model(*(outputs if isinstance(outputs, tuple) else (outputs,)))


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
        if name in _REGISTERED:
            raise ValueError(f"two workloads have the name {name}")
        _REGISTERED[name] = Workload(name, build, parameters, multiply_adds, papers, batches, case)
        return build

    return register


def workloads() -> Mapping[str, Workload]:
    """Return every workload by its name, models before case studies."""
    for file in _MODULES:
        import_module(f"tensaurus.app.zoo.{file}")
    return dict(sorted(_REGISTERED.items(), key=lambda item: item[1].case))


def find_workload(name: str) -> Workload:
    """Return the workload of that name. Raises TensaurusError if there is none."""
    known = workloads()
    if name not in known:
        near = get_close_matches(name, known, 1)
        hint = f"Did you mean {near[0]}?" if near else "`tensaurus zoo list` prints all names."
        raise TensaurusError(f"no model of the zoo is called {name}", remedy=hint)
    return known[name]
