"""A model ready to run, with the libraries of its kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensaurus.graph.onnx.build import Build
from tensaurus.runtimes import backends
from tensaurus.runtimes.measure.machine import usable_threads

__all__ = ["opened", "session"]


def session(
    model: str | Path,
    backend: str = "onnxruntime",
    threads: int | None = None,
    options: Any = None,
    providers: Any = None,
) -> backends.Session:
    """A model's file, with the libraries beside it that it names: .run(output_names, {name: array}).

    `threads` are by default, and at most, the cores that this process may use; `options` and `providers` are
    the backend's own.  Raises TensaurusError where a library is missing or another one, and BackendError for
    what the backend does not take.
    """
    backends.require(backend)
    return opened(Build.from_file(model), backend, usable_threads(threads), options, providers)


def opened(build: Build, backend: str, threads: int, options: Any, providers: Any) -> backends.Session:
    """A session on the backend, with its own options and execution providers where some are given."""
    runtime = backends.find(backend)
    if options is None and providers is None:
        return runtime.compile(build, threads=threads)
    if not isinstance(runtime, backends.Configurable):
        raise backends.BackendError(f"{runtime.name} accepts no session options")
    return runtime.configured(build, threads=threads, options=options, providers=providers)
