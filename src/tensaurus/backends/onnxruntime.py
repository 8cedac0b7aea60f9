"""onnxruntime on the CPU with every graph optimization."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from tensaurus.backends import Array, BackendError, said

if TYPE_CHECKING:
    import onnx

__all__ = ["BACKEND"]

BLOCKED = "com.microsoft.nchwc"  # the domain of operators on blocked layouts


@dataclass(frozen=True)
class _Session:
    inner: Any

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
        try:
            return list(self.inner.run(None if output_names is None else list(output_names), dict(feeds)))
        except Exception as error:
            raise BackendError(f"onnxruntime: {said(error)}") from error

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
            for output in self.inner.get_outputs():
                binding.bind_output(output.name, "cpu")
        except Exception as error:
            raise BackendError(f"onnxruntime: {said(error)}") from error

        def call(keep: object = (arrays, values)) -> None:
            try:
                self.inner.run_with_iobinding(binding)
            except Exception as error:
                raise BackendError(f"onnxruntime: {said(error)}") from error

        return call


@dataclass(frozen=True)
class _OnnxRuntime:
    name: str = "onnxruntime"
    package: str = "onnxruntime"
    target: bool = True
    peer: bool = True
    exact: bool = True

    def version(self) -> str:
        return version("onnxruntime")

    def installed(self) -> bool:
        return find_spec("onnxruntime") is not None

    def compile(self, model: bytes | Path, *, threads: int) -> _Session:
        """A session on `threads` threads that runs one node after the other."""
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors only
        source = str(model) if isinstance(model, Path) else model
        try:
            return _Session(ort.InferenceSession(source, options, providers=["CPUExecutionProvider"]))
        except Exception as error:
            raise BackendError(f"onnxruntime: {said(error)}") from error

    def kernels(self, model: onnx.ModelProto) -> list[frozenset[str]]:
        """Of the graph that runs; it renames tensors in blocked layouts, which the graph before explains."""
        import onnxruntime as ort

        levels = ort.GraphOptimizationLevel
        before = {node.output[0]: node for node in _optimized(model, levels.ORT_ENABLE_EXTENDED)}
        running = _optimized(model, levels.ORT_ENABLE_ALL)
        plain: dict[str, str] = {}  # the names of renamed tensors
        for node in running:
            twin = before.get(node.name.removesuffix("_nchwc"))
            if node.domain == BLOCKED and node.op_type == "ReorderOutput":
                plain[node.input[0]] = node.output[0]
            elif node.domain == BLOCKED and twin is not None:
                plain.update(zip(node.input, twin.input, strict=False))
        makers = {name: node for node in model.graph.node for name in node.output}
        inputs = {value.name for value in model.graph.input}
        traced = (
            _traced([plain.get(n, n) for n in k.output], {plain.get(n, n) for n in k.input}, makers, inputs)
            for k in running
        )
        return [found for found in traced if found]


def _optimized(model: onnx.ModelProto, level: Any) -> Sequence[onnx.NodeProto]:
    """The nodes of the graph that onnxruntime makes of the model."""
    import onnx
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    with TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        try:
            ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
            optimized = onnx.load(options.optimized_model_filepath, load_external_data=False)
        except Exception as error:
            raise BackendError(f"onnxruntime: {said(error)}") from error
    return list(optimized.graph.node)


def _traced(
    outputs: Sequence[str],
    stops: AbstractSet[str],
    makers: Mapping[str, onnx.NodeProto],
    inputs: AbstractSet[str],
) -> frozenset[str]:
    """The tensors between a kernel's outputs and its inputs; none where that leads past its inputs."""
    found: set[str] = set()
    stack = [name for name in outputs if name]
    while stack:
        name = stack.pop()
        if name in found or name in stops or not name:
            continue
        if name in inputs:
            return frozenset()
        if name in makers:
            found.add(name)
            stack.extend(makers[name].input)
    return frozenset(found)


BACKEND = _OnnxRuntime()
