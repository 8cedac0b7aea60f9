"""What runs an ONNX model: one file per backend, found by its module name.

A backend module defines one `BACKEND` and imports its runtime only when it compiles a model; a module whose
name begins with an underscore is a part of others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from numpy.typing import NDArray

from tensaurus.graph.onnx.build import Build
from tensaurus.runtimes.backends._kernels import Kernel
from tensaurus.system.errors import TensaurusError

if TYPE_CHECKING:
    from tensaurus.graph.ir.node import Node

__all__ = [
    "Array",
    "Backend",
    "BackendError",
    "Bindable",
    "Configurable",
    "Fusing",
    "Kernel",
    "Plain",
    "Port",
    "Profiling",
    "Session",
    "find",
    "installed",
    "peers",
    "require",
    "said",
    "targets",
]

Array = NDArray[Any]


class BackendError(TensaurusError, ValueError):
    """An unknown backend, or a model or feed that a backend refuses; one line."""


class Port(Protocol):
    """An input or an output, as onnxruntime's NodeArg shows it."""

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> str:
        """Such as tensor(float)."""
        ...

    @property
    def shape(self) -> Sequence[int | str | None]:
        """Sizes; of one that is open its name, or None."""
        ...


class Session(Protocol):
    """A compiled model."""

    def get_inputs(self) -> Sequence[Port]:
        """What must be fed, in the model's order."""
        ...

    def get_outputs(self) -> Sequence[Port]:
        """In the model's order."""
        ...

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
        """The named outputs, or all of them in the model's order; the caller owns the arrays.

        Raises BackendError for unknown names, missing inputs, and wrong types or shapes.
        """
        ...


@runtime_checkable
class Bindable(Session, Protocol):
    """A session that can run without the cost of passing arrays through Python; timing uses it."""

    def bind(self, feeds: Mapping[str, Array]) -> Callable[[], object]:
        """A call that computes all outputs from `feeds` and leaves them in the runtime's memory.

        Raises BackendError, as the call does.
        """
        ...


class Backend(Protocol):
    """A runtime for ONNX models on the CPU."""

    @property
    def name(self) -> str: ...

    @property
    def package(self) -> str:
        """What to install for it."""
        ...

    @property
    def target(self) -> bool:
        """Whether models may be optimized for it; others are there to check or to measure against."""
        ...

    @property
    def peer(self) -> bool:
        """Whether people serve models with it, so that it is worth measuring."""
        ...

    @property
    def libraries(self) -> bool:
        """Whether it loads onnxruntime's libraries of custom operators."""
        return False

    @property
    def exact(self) -> bool:
        """Whether it computes in the model's own precision, or in a higher one."""
        ...

    def version(self) -> str:
        """The runtime's version, without importing it."""
        ...

    def installed(self) -> bool:
        """Whether the runtime can be imported, without importing it."""
        ...

    def compile(self, build: Build, *, threads: int) -> Session:
        """A session on `threads` threads.

        Raises BackendError if the runtime refuses the model or a library, or can load no libraries.
        """
        ...

    def supports(self, node: Node) -> bool:
        """False where the runtime cannot run such a node at all; what is measured knows more."""
        return True


@runtime_checkable
class Configurable(Protocol):
    """A backend whose sessions take settings of the runtime's own."""

    def configured(self, build: Build, *, threads: int, options: Any, providers: Any) -> Session:
        """What `compile` gives, with the runtime's own options and execution providers; None: ours.

        Raises BackendError for what is none of the runtime's.
        """
        ...


@runtime_checkable
class Fusing(Protocol):
    """A backend that can tell which nodes of a model it runs as one."""

    def kernels(self, build: Build) -> list[frozenset[str]]:
        """Of each of the runtime's own kernels, the tensors of the model that it computes, inner ones too.

        Read from the graph that the runtime has optimized; kernels that cannot be traced are left out.
        Raises BackendError if the runtime refuses the model.
        """
        ...


@runtime_checkable
class Plain(Protocol):
    """A backend that can run a model node by node, as it is written."""

    def plain(self, build: Build, *, threads: int) -> Session:
        """What `compile` gives, without the runtime's own rewriting of the graph."""
        ...


@runtime_checkable
class Profiling(Protocol):
    """A backend that can tell where the time of a model goes."""

    def profile(
        self, build: Build, feeds: Mapping[str, Array], *, threads: int, seconds: float
    ) -> list[tuple[Kernel, float]]:
        """The runtime's own kernels with the seconds of each.

        By the runtime's own clock, of one run, over runs that take about `seconds`.  Raises BackendError if
        the runtime refuses the model.
        """
        ...


def find(name: str) -> Backend:
    """The backend of that module name; raises BackendError if there is none."""
    if name not in _names():
        raise BackendError(f"no backend {name!r}; installed: {', '.join(installed()) or 'none'}")
    return cast(Backend, import_module(f"{__name__}.{name}").BACKEND)


def require(name: str) -> Backend:
    """The backend of that name; raises BackendError if there is none or its runtime is not installed."""
    backend = find(name)
    if not backend.installed():
        raise BackendError(f"{name} is not installed", remedy=f"pip install {backend.package}")
    return backend


def said(error: Exception, most: int = 300) -> str:
    """A runtime's complaint in one line: without status codes and places in its source, cut at `most`."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = _NOISE.sub("", text)
    return text if len(text) <= most else f"{text[:most]}..."


# "[ONNXRuntimeError] : 1 : FAIL : ", and FILE.cc:LINE with the signature of the function there
_NOISE = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : \w+ : "
    r"|/\S+\.(?:cc|h|cpp):\d+ (?:[^()]*\((?:[^()]|\([^()]*\))*\)(?: const)?(?: \[[^\]]*\])? )?"
)


def installed() -> list[str]:
    """Names of the backends whose runtime is installed, sorted."""
    return [name for name in _names() if find(name).installed()]


def targets() -> list[str]:
    """Names of the installed backends that models may be optimized for, sorted."""
    return [name for name in installed() if find(name).target]


def peers() -> list[str]:
    """Names of the installed backends that people serve models with: targets first, then sorted."""
    found = [name for name in installed() if find(name).peer]
    return sorted(found, key=lambda name: (not find(name).target, name))


def _names() -> list[str]:
    return sorted(module.name for module in iter_modules(__path__) if not module.name.startswith("_"))
