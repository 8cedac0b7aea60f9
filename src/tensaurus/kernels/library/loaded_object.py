"""Loads a kernel's object into this process, so that the object that ships is the one that is timed.

An object needs a runtime (threads, scratch memory). In a model's library that is shim.c, over onnxruntime;
here it is Halide's own, linked once to a library that all loaded objects share.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tensaurus.expr.ir.scope import Scope
from tensaurus.kernels.halide.compile import compile_runtime, pack_array, uncompiled_kernel
from tensaurus.kernels.halide.lowering_errors import LoweringError
from tensaurus.kernels.library.shared_library import find_compiler, halide_type, run_compiler
from tensaurus.kernels.stages.sketch import Schedule
from tensaurus.ops import TensorType
from tensaurus.system.scratch import temporary_folder

__all__ = ["ObjectLoader"]


class _Dimension(ctypes.Structure):
    """`halide_dimension_t`."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("least_index", "extent", "stride")),
        ("flags", ctypes.c_uint32),
    ]


class _Buffer(ctypes.Structure):
    """`halide_buffer_t`."""

    _fields_ = [
        *(("device", ctypes.c_uint64), ("device_interface", ctypes.c_void_p), ("host", ctypes.c_void_p)),
        ("flags", ctypes.c_uint64),
        *(("type_code", ctypes.c_uint8), ("type_bits", ctypes.c_uint8), ("type_lanes", ctypes.c_uint16)),
        *(("rank", ctypes.c_int32), ("dimensions", ctypes.POINTER(_Dimension)), ("padding", ctypes.c_void_p)),
    ]


@dataclass
class ObjectLoader:
    """Loads objects that were compiled for a processor.  The runtime is compiled when this is made."""

    cpu: str

    def __post_init__(self) -> None:
        with temporary_folder() as folder:
            compile_runtime(folder / "runtime.o", self.cpu)
            _load(folder, "runtime", ctypes.RTLD_GLOBAL)

    def load(
        self, code: bytes, scope: Scope, inputs: Sequence[TensorType], output: TensorType, schedule: Schedule
    ) -> Callable[[Sequence[np.ndarray[Any, Any]], np.ndarray[Any, Any]], Callable[[], None]]:
        """Returns a function that binds the kernel to arrays, as `halide/compile.jit` does.

        Raises TensaurusError where the object cannot be linked, and LoweringError where it cannot be loaded.
        """
        kernel = uncompiled_kernel(scope, inputs, output, schedule, self.cpu)
        with temporary_folder() as folder:
            (folder / "kernel.o").write_bytes(code)
            function = _load(folder, "kernel", ctypes.RTLD_LOCAL)[kernel.name]
        packings = kernel.packing or (None,) * len(kernel.inputs)

        def bind(
            arrays: Sequence[np.ndarray[Any, Any]], result: np.ndarray[Any, Any]
        ) -> Callable[[], None]:
            packed = [pack_array(array, packing) for array, packing in zip(arrays, packings, strict=True)]
            kinds = (*kernel.inputs, kernel.output)
            buffers = [_buffer(*pair) for pair in zip((*packed, result), kinds, strict=True)]
            addresses = [ctypes.byref(buffer) for buffer in buffers]

            def run(keep: object = (packed, result, buffers)) -> None:  # the default keeps the arrays alive
                if function(None, *addresses):
                    raise LoweringError("the kernel reports a failure")

            return run

        return bind


def _load(folder: Path, name: str, mode: int) -> ctypes.CDLL:
    """Links the object `name`.o of the folder, and loads it."""
    command = find_compiler()
    assert command is not None, "kernels are tuned only where there is a C compiler"
    run_compiler([*command, "-shared", "-o", f"{name}.so", f"{name}.o", "-lpthread", "-ldl", "-lm"], folder)
    try:
        return ctypes.CDLL(str(folder / f"{name}.so"), mode)
    except OSError as error:
        raise LoweringError(f"the kernel's object cannot be loaded: {error}") from error


def _buffer(array: np.ndarray[Any, Any], kind: TensorType) -> _Buffer:
    """Returns Halide's view of a dense array, whose dimension 0 is the array's last axis."""
    steps = [stride // array.itemsize for stride in array.strides]
    dimensions = [_Dimension(0, extent, step, 0) for extent, step in zip(array.shape, steps, strict=True)]
    made = (_Dimension * len(dimensions))(*dimensions[::-1])
    code, bits = halide_type(kind.dtype)
    return _Buffer(0, None, array.ctypes.data, 0, code, bits, 1, len(dimensions), made, None)
