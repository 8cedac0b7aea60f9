"""OpenVINO on the CPU, in float32 unless it is told otherwise, for one request at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tensaurus.backends import Array, BackendError, said

__all__ = ["BACKEND", "OpenVino"]


@cache
def _runtime() -> Any:
    """The openvino module, imported with its telemetry absent (it then falls back to a stub)."""
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
def _core() -> Any:
    return _runtime().Core()


class _Session:
    def __init__(self, compiled: Any) -> None:
        self._request = compiled.create_infer_request()
        self._ports = tuple(compiled.inputs)
        self._inputs = {name for port in self._ports for name in port.get_names()}
        self._outputs = {
            name: position for position, port in enumerate(compiled.outputs) for name in port.get_names()
        }
        self._count = len(compiled.outputs)

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
            raise BackendError(f"openvino: {said(error)}") from error
        del held
        return results

    def bind(self, feeds: Mapping[str, Array]) -> Callable[[], object]:
        held = self._feed(feeds)

        def call(keep: object = held) -> None:
            try:
                self._request.infer(share_outputs=True)
            except Exception as error:
                raise BackendError(f"openvino: {said(error)}") from error

        return call

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
                raise BackendError(f"openvino: input {names[0]!r} is {array.dtype}, the model wants {wanted}")
            try:
                tensor = _runtime().Tensor(array, shared_memory=array.flags.writeable)
                self._request.set_tensor(port, tensor)
            except Exception as error:
                raise BackendError(f"openvino: input {names[0]!r}: {said(error)}") from error
            held.append((array, tensor))
        return held


@dataclass(frozen=True)
class OpenVino:
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

    def compile(self, model: bytes | Path, *, threads: int) -> _Session:
        """A session of one stream on `threads` threads."""
        settings: dict[str, Any] = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
        }
        if self.exact:
            settings["INFERENCE_PRECISION_HINT"] = "f32"
        try:
            source = _core().read_model(str(model) if isinstance(model, Path) else model)
            return _Session(_core().compile_model(source, "CPU", settings))
        except Exception as error:
            raise BackendError(f"openvino: {said(error)}") from error


BACKEND = OpenVino()
