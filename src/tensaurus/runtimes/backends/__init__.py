"""Defines the protocols of backends, the runtimes that run ONNX models, and finds backends by name.

Each backend is a module here that defines one `BACKEND` and imports its runtime only when it compiles a
model. Modules whose names begin with an underscore are no backends.
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
    "WARM_UP_RUNS",
    "find",
    "installed",
    "peers",
    "require",
    "describe_error",
    "targets",
]

Array = NDArray[Any]

# First runs of a compiled model that do not count.  onnxruntime fetches memory in the first run, plans it,
# and fetches it anew in the second: a Longformer of large tensors takes 0.27, 0.24, 0.12, 0.12 s.
WARM_UP_RUNS = 2


class BackendError(TensaurusError, ValueError):
    """The backend is unknown, or refuses a model or an input; the message is one line."""


class Port(Protocol):
    """An input or an output, as onnxruntime's NodeArg shows it."""

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> str:
        """The type as text, such as tensor(float)."""
        ...

    @property
    def shape(self) -> Sequence[int | str | None]:
        """The sizes; for an open one its name, or None."""
        ...


class Session(Protocol):
    """A compiled model."""

    def get_inputs(self) -> Sequence[Port]:
        """Return the inputs without a default, in the model's order."""
        ...

    def get_outputs(self) -> Sequence[Port]:
        """Return the outputs, in the model's order."""
        ...

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
        """Return the named outputs, or all of them in the model's order; the caller owns the arrays.

        Raises BackendError for unknown names, missing inputs, and wrong types or shapes.
        """
        ...


@runtime_checkable
class Bindable(Session, Protocol):
    """A session that can run without the cost of passing arrays through Python; timing uses it."""

    def bind(self, feeds: Mapping[str, Array]) -> Callable[[], object]:
        """Return a function that computes all outputs from `feeds` and leaves them in the runtime's memory.

        Raises BackendError; so does the function.
        """
        ...


class Backend(Protocol):
    """A runtime for ONNX models on the CPU."""

    @property
    def name(self) -> str: ...

    @property
    def package(self) -> str:
        """The pip package of the runtime."""
        ...

    @property
    def target(self) -> bool:
        """Whether models may be optimized for this backend; others serve to check or to compare times."""
        ...

    @property
    def peer(self) -> bool:
        """Whether people serve models with this backend, so that a comparison with its times is of use."""
        ...

    @property
    def libraries(self) -> bool:
        """Whether the backend loads libraries of custom operators, which are made for onnxruntime."""
        return False

    @property
    def exact(self) -> bool:
        """Whether the backend computes in the model's own precision, or in a higher one."""
        ...

    def version(self) -> str:
        """Return the runtime's version, without importing the runtime."""
        ...

    def installed(self) -> bool:
        """Return whether the runtime can be imported, without doing so."""
        ...

    def compile(self, build: Build, *, threads: int) -> Session:
        """Return a session on `threads` threads.

        Raises BackendError if the runtime refuses the model or a library, or can load no libraries.
        """
        ...

    def supports(self, node: Node) -> bool:
        """Return False where the runtime cannot run such a node at all; measuring may find more refusals."""
        return True


@runtime_checkable
class Configurable(Protocol):
    """A backend whose sessions take settings of the runtime's own."""

    def configured(self, build: Build, *, threads: int, options: Any, providers: Any) -> Session:
        """Compile with the runtime's own options and execution providers; None stands for our defaults.

        Raises BackendError for options of another kind.
        """
        ...


@runtime_checkable
class Fusing(Protocol):
    """A backend that can tell which nodes of a model it runs as one kernel."""

    def kernels(self, build: Build) -> list[frozenset[str]]:
        """Return for each of the runtime's kernels the tensors of the model that it computes, inner ones too.

        They are read from the graph that the runtime optimized; kernels that cannot be traced are left out.
        Raises BackendError if the runtime refuses the model.
        """
        ...


@runtime_checkable
class Plain(Protocol):
    """A backend that can run a model node by node, as it is written."""

    def plain(self, build: Build, *, threads: int) -> Session:
        """Compile without the runtime's own optimizations of the graph."""
        ...


@runtime_checkable
class Profiling(Protocol):
    """A backend that can tell the time of each kernel of a model."""

    def profile(
        self, build: Build, feeds: Mapping[str, Array], *, threads: int, seconds: float
    ) -> list[tuple[Kernel, float]]:
        """Return the runtime's kernels with the seconds of each in one run, by the runtime's own clock.

        The seconds are means over runs that take about `seconds` together.  Raises BackendError if the
        runtime refuses the model.
        """
        ...


def find(name: str) -> Backend:
    """Return the backend of that module name.  Raises BackendError if there is none."""
    if name not in _names():
        raise BackendError(f"unknown backend {name!r}; installed: {', '.join(installed()) or 'none'}")
    return cast(Backend, import_module(f"{__name__}.{name}").BACKEND)


def require(name: str) -> Backend:
    """Return the backend of that name.  Raises BackendError if there is none or its runtime is missing."""
    backend = find(name)
    if not backend.installed():
        raise BackendError(f"{name} is not installed", remedy=f"pip install {backend.package}")
    return backend


def describe_error(error: Exception, most: int = 300) -> str:
    """Return a runtime's message in one line, without status codes and source positions, cut at `most`."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = _NOISE.sub("", text)
    return text if len(text) <= most else f"{text[:most]}..."


# "[ONNXRuntimeError] : 1 : FAIL : ", and FILE.cc:LINE with the signature of the function there
_NOISE = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : \w+ : "
    r"|/\S+\.(?:cc|h|cpp):\d+ (?:[^()]*\((?:[^()]|\([^()]*\))*\)(?: const)?(?: \[[^\]]*\])? )?"
)


def installed() -> list[str]:
    """Return the names of the backends whose runtime is installed, sorted."""
    return [name for name in _names() if find(name).installed()]


def targets() -> list[str]:
    """Return the names of the installed backends for which models may be optimized, sorted."""
    return [name for name in installed() if find(name).target]


def peers() -> list[str]:
    """Return the names of the installed backends with which people serve models, targets first, sorted."""
    names = [name for name in installed() if find(name).peer]
    return sorted(names, key=lambda name: (not find(name).target, name))


def _names() -> list[str]:
    return sorted(module.name for module in iter_modules(__path__) if not module.name.startswith("_"))
