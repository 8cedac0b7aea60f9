"""Runs models on onnxruntime on the CPU with every graph optimization."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from tensaurus.graph.onnx.build import Build
from tensaurus.runtimes.backends import WARM_UP_RUNS, Array, Backend, BackendError, Port, describe_error
from tensaurus.runtimes.backends._kernels import Kernel, mean_of_middle_half
from tensaurus.runtimes.backends._onnxruntime_graph import trace_kernels
from tensaurus.system.errors import TensaurusError
from tensaurus.system.scratch import temporary_folder

if TYPE_CHECKING:
    import onnx

__all__ = ["BACKEND"]

KERNEL_TIME = "_kernel_time"  # the suffix of the names of events
MIN_RUNS = 6  # least number of runs that count
ENOUGH_SECONDS = 2.0  # seconds after which one run that counts is enough


@dataclass(frozen=True)
class _Session:
    inner: Any

    def get_inputs(self) -> list[Port]:
        return list(self.inner.get_inputs())

    def get_outputs(self) -> list[Port]:
        return list(self.inner.get_outputs())

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
        try:
            return list(self.inner.run(None if output_names is None else list(output_names), dict(feeds)))
        except Exception as error:
            raise BackendError(f"onnxruntime: {describe_error(error)}") from error

    def bind(self, feeds: Mapping[str, Array]) -> Callable[[], object]:
        import onnxruntime as ort

        if any(array.dtype.kind in "OSU" for array in feeds.values()):  # text cannot be bound
            return lambda: self.run(None, feeds)
        # An OrtValue on the CPU shares the array's memory, and does not keep it alive.
        arrays = {name: np.asarray(array, order="C") for name, array in feeds.items()}
        try:
            values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
            binding = self.inner.io_binding()
            for name, value in values.items():
                binding.bind_ortvalue_input(name, value)
            outputs = [output.name for output in self.inner.get_outputs()]
        except Exception as error:
            raise BackendError(f"onnxruntime: {describe_error(error)}") from error
        reuses_outputs = True  # whether each run writes over the outputs of the last

        def bind_new_outputs() -> None:
            binding.clear_binding_outputs()
            for name in outputs:
                binding.bind_output(name, "cpu")

        def call(keep_alive: object = (arrays, values)) -> None:
            nonlocal reuses_outputs
            try:
                if reuses_outputs:
                    try:
                        self.inner.run_with_iobinding(binding)
                        return
                    except Exception:
                        # an output in memory that exists must have the rank that the model declares; one that
                        # the runtime allocates need not
                        reuses_outputs = False
                bind_new_outputs()
                self.inner.run_with_iobinding(binding)
            except Exception as error:
                raise BackendError(f"onnxruntime: {describe_error(error)}") from error

        try:
            bind_new_outputs()
        except Exception as error:
            raise BackendError(f"onnxruntime: {describe_error(error)}") from error
        return call


@dataclass(frozen=True)
class _OnnxRuntime(Backend):
    name: str = "onnxruntime"
    package: str = "onnxruntime"
    target: bool = True
    peer: bool = True
    libraries: bool = True
    exact: bool = True

    def version(self) -> str:
        return version("onnxruntime")

    def installed(self) -> bool:
        return find_spec("onnxruntime") is not None

    def compile(self, build: Build, *, threads: int) -> _Session:
        """Return a session on `threads` threads that runs one node after the other."""
        return _Session(_open_session(build, _options(threads)))

    def configured(self, build: Build, *, threads: int, options: Any, providers: Any) -> _Session:
        """Compile with a SessionOptions, to which libraries are added, and names of execution providers."""
        import onnxruntime as ort

        if options is not None and not isinstance(options, ort.SessionOptions):
            raise BackendError(f"onnxruntime: options are a SessionOptions, not {type(options).__name__}")
        return _Session(_open_session(build, _options(threads) if options is None else options, providers))

    def plain(self, build: Build, *, threads: int) -> _Session:
        """Compile with every graph optimization off."""
        import onnxruntime as ort

        options = _options(threads)
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        return _Session(_open_session(build, options))

    def kernels(self, build: Build) -> list[frozenset[str]]:
        """Return the tensors of each kernel in the graph that runs.

        Tensors in blocked layouts have new names there; the graph before the choice of layouts tells the old.
        """
        return [kernel.tensors for kernel in _kernels(build) if kernel.tensors]

    def profile(
        self, build: Build, feeds: Mapping[str, Array], *, threads: int, seconds: float
    ) -> list[tuple[Kernel, float]]:
        """Time the kernels by onnxruntime's events; the time of an If or Loop includes the nodes inside."""
        options = _options(threads)
        options.enable_profiling = True
        with temporary_folder() as folder:
            options.profile_file_prefix = str(folder / "profile")
            # each session gives other names to the conversions that it inserts, so its own graph is read
            session, running = _open_saving_graph(build, options, folder)
            call = _Session(session).bind(feeds)
            runs, start = 0, perf_counter()
            # one run that counts at least; then for `seconds`, and MIN_RUNS runs that count if they are quick
            while (
                runs <= WARM_UP_RUNS
                or (spent := perf_counter() - start) < seconds
                or (runs < MIN_RUNS + WARM_UP_RUNS and spent < ENOUGH_SECONDS)
            ):
                call()
                runs += 1
            events = json.loads(Path(session.end_profiling()).read_text())
        kernels = _trace_graph(build, running)
        return list(zip(kernels, _kernel_seconds(kernels, events, runs), strict=True))


def _options(threads: int) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors only
    return options


def _open_session(build: Build, options: Any, providers: Any = None) -> Any:
    import onnxruntime as ort

    for library in build.libraries:
        try:
            options.register_custom_ops_library(str(library))
        except Exception as error:
            raise BackendError(f"onnxruntime: {library} cannot be loaded: {describe_error(error)}") from error
    source = build.model if isinstance(build.model, bytes) else str(build.model)
    try:
        return ort.InferenceSession(source, options, providers=providers or ["CPUExecutionProvider"])
    except Exception as error:
        raise BackendError(f"onnxruntime: {describe_error(error)}") from error


# Graphs by the digests of models: for a large model each takes seconds.
_known_kernels: dict[str, list[Kernel]] = {}
_known_graphs_before_layouts: dict[str, list[onnx.NodeProto]] = {}


def _kernels(build: Build) -> list[Kernel]:
    """Return the kernels of the graph that runs, computed once for each model."""
    try:
        digest = build.digest
    except TensaurusError:  # the runtime's own error says more
        return _trace_graph(build, _optimized_nodes(build, _options(1)))
    if digest not in _known_kernels:
        _known_kernels[digest] = _trace_graph(build, _optimized_nodes(build, _options(1)))
    return _known_kernels[digest]


def _trace_graph(build: Build, running: Sequence[onnx.NodeProto]) -> list[Kernel]:
    """Return the nodes of the graph that runs as kernels, with the model's tensors that they compute."""
    return trace_kernels(build.proto(weights=False), running, lambda: _nodes_before_layouts(build))


def _kernel_seconds(kernels: Sequence[Kernel], events: Sequence[Mapping[str, Any]], runs: int) -> list[float]:
    """Return the seconds of each kernel: events belong to it by name, or by operator if nodes have no names.

    Events of nodes without names are matched in the order of the graph, in which nodes run where it has no
    branches.
    """
    alike: dict[tuple[str, str], list[int]] = {}
    for place, kernel in enumerate(kernels):
        alike.setdefault((kernel.name, kernel.operator), []).append(place)
    spent: dict[tuple[str, str], list[float]] = {key: [] for key in alike}
    for event in events:
        if event["cat"] == "Node" and event["name"].endswith(KERNEL_TIME):
            name, operator = event["name"].removesuffix(KERNEL_TIME), event["args"]["op_name"]
            for key in ((name, operator), ("", operator)):
                if key in spent:
                    spent[key].append(event["dur"] * 1e-6)
                    break
    seconds = [0.0] * len(kernels)
    for key, places in alike.items():
        count = len(places)
        if len(spent[key]) == runs * count:  # otherwise some events are of nodes inside bodies
            for number, place in enumerate(places):
                seconds[place] = mean_of_middle_half(spent[key][number + WARM_UP_RUNS * count :: count])
    return seconds


def _nodes_before_layouts(build: Build) -> list[onnx.NodeProto]:
    """Return the nodes of the graph before layouts are chosen, computed once for each model."""
    import onnxruntime as ort

    if build.digest not in _known_graphs_before_layouts:
        options = _options(1)
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        _known_graphs_before_layouts[build.digest] = _optimized_nodes(build, options)
    return _known_graphs_before_layouts[build.digest]


def _optimized_nodes(build: Build, options: Any) -> list[onnx.NodeProto]:
    """Return the nodes of the graph into which onnxruntime turns the model."""
    with temporary_folder() as folder:
        return _open_saving_graph(build, options, folder)[1]


def _open_saving_graph(build: Build, options: Any, folder: Path) -> tuple[Any, list[onnx.NodeProto]]:
    """Return a session, and the nodes of the graph that it runs."""
    import onnx

    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    session = _open_session(build, options)
    optimized = onnx.load(options.optimized_model_filepath, load_external_data=False)
    return session, list(optimized.graph.node)


BACKEND = _OnnxRuntime()
