"""Opens an optimized model for running, with the libraries of its kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensaurus.graph.onnx.build import Build
from tensaurus.runtimes import backends
from tensaurus.runtimes.measure.machine import usable_threads

__all__ = ["open_session", "session"]


def session(
    model: str | Path,
    backend: str = "onnxruntime",
    threads: int | None = None,
    options: Any = None,
    providers: Any = None,
) -> backends.Session:
    """Return a session of a model's file and the libraries beside it: .run(output_names, {name: array}).

    `threads` are by default, and at most, the cores that this process may use; `options` and `providers` are
    the backend's own.  Raises TensaurusError where a library is missing or of another model, and BackendError
    for options that the backend does not accept.
    """
    backends.require(backend)
    return open_session(Build.from_file(model), backend, usable_threads(threads), options, providers)


def open_session(build: Build, backend: str, threads: int, options: Any, providers: Any) -> backends.Session:
    """Return a session of a build, with the backend's own options and execution providers, if any."""
    runtime = backends.find(backend)
    if options is None and providers is None:
        return runtime.compile(build, threads=threads)
    if not isinstance(runtime, backends.Configurable):
        raise backends.BackendError(f"{runtime.name} accepts no session options")
    return runtime.configured(build, threads=threads, options=options, providers=providers)
