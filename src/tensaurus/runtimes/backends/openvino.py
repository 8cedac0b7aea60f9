"""Runs models on OpenVINO on the CPU, in float32 by default, one request at a time."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from tensaurus.graph.onnx.build import Build
from tensaurus.runtimes.backends import WARM_UP_RUNS, Array, Backend, BackendError, Port, describe_error
from tensaurus.runtimes.backends._kernels import Kernel, mean_of_middle_half, trace_tensors
from tensaurus.runtimes.backends._ports import ports_of

if TYPE_CHECKING:
    import onnx

__all__ = ["BACKEND", "OpenVino"]


@cache
def _runtime() -> Any:
    """Import the openvino module without its telemetry, for which it then takes a stub."""
    name = "openvino_telemetry"
    if name in sys.modules:
        import openvino
    else:
        sys.modules[name] = None  # type: ignore[assignment]
        try:
            import openvino
        finally:
            del sys.modules[name]
    return openvino


@cache
def _core(libraries: tuple[Path, ...] = ()) -> Any:
    """Return the core of a set of libraries; each set has its own, as a core keeps what was added."""
    core = _runtime().Core()
    for library in libraries:
        core.add_extension(str(library))
    return core


class _Session:
    def __init__(self, compiled: Any, ports: tuple[Sequence[Port], Sequence[Port]]) -> None:
        self._shown = ports
        self._request = compiled.create_infer_request()
        self._ports = tuple(compiled.inputs)
        self._inputs = {name for port in self._ports for name in port.get_names()}
        self._outputs = {
            name: position for position, port in enumerate(compiled.outputs) for name in port.get_names()
        }
        self._count = len(compiled.outputs)

    def get_inputs(self) -> Sequence[Port]:
        return self._shown[0]

    def get_outputs(self) -> Sequence[Port]:
        return self._shown[1]

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
        try:
            places = range(self._count) if output_names is None else [self._outputs[n] for n in output_names]
        except KeyError as error:
            known = ", ".join(sorted(self._outputs))
            raise BackendError(f"openvino: no output {error}; the model has {known}") from None
        held = self._feed(feeds)
        try:
            self._request.infer(share_outputs=True)
            results = [np.array(self._request.get_output_tensor(place).data) for place in places]
        except Exception as error:
            raise BackendError(f"openvino: {describe_error(error)}") from error
        del held
        return results

    def bind(self, feeds: Mapping[str, Array]) -> Callable[[], object]:
        held = self._feed(feeds)

        def call(keep: object = held) -> None:
            try:
                self._request.infer(share_outputs=True)
            except Exception as error:
                raise BackendError(f"openvino: {describe_error(error)}") from error

        return call

    def counters(self) -> list[tuple[str, float]]:
        """Return the name and the seconds of each kernel in the last run."""
        return [
            (entry.node_name, entry.real_time.total_seconds())
            for entry in self._request.get_profiling_info()
            if entry.status.name == "EXECUTED"
        ]

    def _feed(self, feeds: Mapping[str, Array]) -> list[Any]:
        """Set every input; the tensors may share the arrays' memory and must be kept until the run."""
        if strange := [name for name in feeds if name not in self._inputs]:
            known = ", ".join(sorted(self._inputs))
            raise BackendError(f"openvino: no input {strange[0]!r}; the model has {known}")
        held = []
        for port in self._ports:
            names = [name for name in port.get_names() if name in feeds]
            if not names:
                raise BackendError(f"openvino: input {port.get_any_name()!r} is missing")
            array = np.asarray(feeds[names[0]], order="C")
            wanted = port.get_element_type().to_dtype()
            if array.dtype != wanted:
                found = f"input {names[0]!r} is {array.dtype}"
                raise BackendError(f"openvino: {found}, the model expects {wanted}")
            try:
                tensor = _runtime().Tensor(array, shared_memory=array.flags.writeable)
                self._request.set_tensor(port, tensor)
            except Exception as error:
                raise BackendError(f"openvino: input {names[0]!r}: {describe_error(error)}") from error
            held.append((array, tensor))
        return held


@dataclass(frozen=True)
class OpenVino(Backend):
    """OpenVINO, exact or not."""

    name: str = "openvino"
    package: str = "openvino"
    target: bool = True
    peer: bool = True
    exact: bool = True
    """In float32; else at the default precision, which is bfloat16 where the processor computes in it."""

    def version(self) -> str:
        return version("openvino")

    def installed(self) -> bool:
        return find_spec("openvino") is not None

    def compile(self, build: Build, *, threads: int) -> _Session:
        """Return a session of one stream on `threads` threads."""
        return self._session(build, threads)

    def configured(self, build: Build, *, threads: int, options: Any, providers: Any) -> _Session:
        """Compile with openvino's properties, by name."""
        if providers is not None:
            raise BackendError("openvino has no execution providers", remedy="Leave out `providers`.")
        if not isinstance(options, Mapping):
            raise BackendError(f"openvino: options are a dict of properties, not {type(options).__name__}")
        return self._session(build, threads, **options)

    def _session(self, build: Build, threads: int, **more: Any) -> _Session:
        compiled = self._compiled(build, threads, **more)
        return _Session(compiled, ports_of(build.proto(weights=False)))

    def kernels(self, build: Build) -> list[frozenset[str]]:
        """Return the tensors of each kernel, by the layers of the model of which openvino made it."""
        found = _kernels(self._compiled(build, 1), build.proto(weights=False))
        return [kernel.tensors for kernel in found if kernel.tensors]

    def profile(
        self, build: Build, feeds: Mapping[str, Array], *, threads: int, seconds: float
    ) -> list[tuple[Kernel, float]]:
        """Time the kernels by openvino's own counters, read after every run."""
        compiled, proto = self._compiled(build, threads, PERF_COUNT=True), build.proto(weights=False)
        session = _Session(compiled, ports_of(proto))
        call = session.bind(feeds)
        taken: dict[str, list[float]] = defaultdict(list)
        runs, start = 0, perf_counter()
        while runs < MIN_RUNS + WARM_UP_RUNS or perf_counter() - start < seconds:
            call()
            runs += 1
            if runs > WARM_UP_RUNS:
                for name, spent in session.counters():
                    taken[name].append(spent)
        kernels = _kernels(compiled, proto)
        return [(kernel, mean_of_middle_half(taken[kernel.name])) for kernel in kernels]

    def _compiled(self, build: Build, threads: int, **more: Any) -> Any:
        settings: dict[str, Any] = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
        }
        if self.exact:
            settings["INFERENCE_PRECISION_HINT"] = "f32"
        try:
            core = _core(build.libraries)
        except Exception as error:
            names = ", ".join(map(str, build.libraries))
            raise BackendError(f"openvino: {names} cannot be loaded: {describe_error(error)}") from error
        try:
            source = core.read_model(build.model if isinstance(build.model, bytes) else str(build.model))
            return core.compile_model(source, "CPU", settings | more)
        except Exception as error:
            raise BackendError(f"openvino: {describe_error(error)}") from error


MIN_RUNS = 6  # least number of runs that count


def _kernels(compiled: Any, model: onnx.ModelProto) -> list[Kernel]:
    """Return the nodes of the graph that runs, in order; each names the model's layers that it computes."""
    makers = {name: node for node in model.graph.node for name in node.output if name}
    # a layer has the name of its node, or of its node's output
    named = {node.name: [name for name in node.output if name] for node in model.graph.node}
    named.update((name, [name]) for name in makers)
    stops = {value.name for value in model.graph.input}
    running = compiled.get_runtime_model().get_ordered_ops()
    ends = [[name for layer in _layers(node) for name in named.get(layer, ())] for node in running]
    all_ends = stops.union(*ends)
    found = []
    for node, own in zip(running, ends, strict=True):
        name, kind = node.get_friendly_name(), node.get_rt_info()["layerType"].astype(str)
        inputs = tuple(port.get_node().get_friendly_name() for port in node.input_values())
        # layers that were folded into another have lost their names
        tensors = trace_tensors(own, all_ends.difference(own), makers, frozenset())
        found.append(Kernel(name, kind, inputs, (name,), tensors, conversion=not own))
    return found


def _layers(node: Any) -> list[str]:
    info = node.get_rt_info()
    layers = info["originalLayersNames"].astype(str) if "originalLayersNames" in info else ""
    return [layer for layer in layers.split(",") if layer]


BACKEND = OpenVino()
