"""Runs models on torch on the CPU in eager mode, to compare times; no model is optimized for torch.

The backends of other ways to run torch (`inductor`, `torch_channels_last`) configure the class here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np

from tensaurus.graph.onnx.build import Build
from tensaurus.runtimes.backends import Array, Backend, BackendError, Port, describe_error
from tensaurus.runtimes.backends._ports import ports_of

__all__ = ["BACKEND", "Torch"]


class _Session:
    """A model, translated to torch once more for each new set of input shapes."""

    def __init__(self, backend: Torch, model: Any) -> None:
        import torch

        from tensaurus.runtimes.backends._onnx_to_torch import declared_inputs

        self._backend, self._model, self._name = backend, model, backend.name
        self._inputs = declared_inputs(model)
        self._outputs = [output.name for output in model.graph.output]
        self._shapes: list[tuple[int, ...]] | None = None
        self._module: Callable[..., Any] = lambda: None
        # puts the input at a place into the memory format of the convolution that reads it
        self._arrange_input: Callable[[int, Any], Any] = lambda place, tensor: tensor
        if all(None not in sizes for sizes, _ in self._inputs.values()):
            zeros: Any = torch.zeros
            self._make_call([zeros(sizes, dtype=dtype) for sizes, dtype in self._inputs.values()])

    def get_inputs(self) -> Sequence[Port]:
        return ports_of(self._model)[0]

    def get_outputs(self) -> Sequence[Port]:
        return ports_of(self._model)[1]

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
        if strange := [name for name in output_names or () if name not in self._outputs]:
            known = ", ".join(self._outputs)
            raise BackendError(f"{self._name}: no output {strange[0]!r}; the model has {known}")
        made = dict(zip(self._outputs, self._make_call(self._tensors(feeds))(), strict=True))
        wanted = self._outputs if output_names is None else output_names
        return [np.array(made[name].numpy(), order="C") for name in wanted]

    def bind(self, feeds: Mapping[str, Array]) -> Callable[[], object]:
        return self._make_call(self._tensors(feeds))

    def _make_call(self, tensors: Sequence[Any]) -> Callable[[], Any]:
        """Return a function that computes the outputs, after translating and compiling for these shapes."""
        import torch

        shapes = [tuple(tensor.shape) for tensor in tensors]
        fresh = shapes != self._shapes
        if fresh:
            types = dict(zip(self._inputs, zip(shapes, (t.dtype for t in tensors), strict=True), strict=True))
            self._translate(types)
            self._shapes = shapes
        module, inference, name = self._module, torch.inference_mode, self._name
        given = [self._arrange_input(place, tensor) for place, tensor in enumerate(tensors)]

        def call() -> Any:
            try:
                with inference():
                    return module(*given)
            except Exception as error:
                raise BackendError(f"{name}: {describe_error(error)}") from error

        if fresh and self._backend.inductor:  # torch.compile compiles in the first call
            from torch._inductor import config

            with config.patch(dict(self._backend.inductor)):
                call()
        return call

    def _translate(self, types: Mapping[str, Any]) -> None:
        import torch

        from tensaurus.runtimes.backends._onnx_to_torch import to_channels_last, translate

        module = translate(self._model, types).eval()
        if self._backend.channels_last:
            self._arrange_input = to_channels_last(module)
        self._module = module
        if self._backend.inductor:
            self._module = torch.compile(module, fullgraph=True, dynamic=False)

    def _tensors(self, feeds: Mapping[str, Array]) -> list[Any]:
        """Return the feeds as tensors in the order of the inputs; they may share the arrays' memory."""
        import torch

        from tensaurus.runtimes.backends._onnx_to_torch import torch_type

        if strange := [name for name in feeds if name not in self._inputs]:
            known = ", ".join(self._inputs)
            raise BackendError(f"{self._name}: no input {strange[0]!r}; the model has {known}")
        tensors = []
        for name, (sizes, dtype) in self._inputs.items():
            if name not in feeds:
                raise BackendError(f"{self._name}: input {name!r} is missing")
            array = np.ascontiguousarray(feeds[name]).reshape(np.shape(feeds[name]))
            fits = len(sizes) == array.ndim and all(
                size in (None, array.shape[axis]) for axis, size in enumerate(sizes)
            )
            if not fits or torch_type(array.dtype) != dtype:
                wanted = f"{dtype}[{', '.join('?' if size is None else str(size) for size in sizes)}]"
                got = f"{array.dtype}{list(array.shape)}"
                raise BackendError(f"{self._name}: input {name!r} is {got}, the model expects {wanted[6:]}")
            tensors.append(torch.from_numpy(array if array.flags.writeable else array.copy()))
        return tensors


@dataclass(frozen=True)
class Torch(Backend):
    """A way to run torch."""

    name: str = "torch"
    package: str = "torch"
    target: bool = False
    peer: bool = True
    exact: bool = True
    channels_last: bool = False  # whether the inputs of convolutions have this memory format
    inductor: Mapping[str, Any] = field(default_factory=dict)  # settings of Inductor; empty: eager mode

    def version(self) -> str:
        return version("torch")

    def installed(self) -> bool:
        return find_spec("torch") is not None

    def compile(self, build: Build, *, threads: int) -> _Session:
        """Return a session on `threads` threads; torch has one number for all sessions of a process."""
        import torch

        if build.libraries:
            raise BackendError(f"{self.name}: it cannot load operator libraries such as {build.libraries[0]}")
        torch.set_num_threads(threads)
        try:
            proto = _read(build)
        except Exception as error:
            raise BackendError(f"{self.name}: {describe_error(error)}") from error
        return _Session(self, proto)


def _read(build: Build) -> Any:
    from tensaurus.graph.onnx.model_file import load_model

    return build.proto() if isinstance(build.model, bytes) else load_model(build.model)


BACKEND = Torch()
