"""Compiles an expression with a schedule to machine code: an object file, or a function in this process.

Objects (`compile_object`) are linked into a model's library (`library/shared_library`); functions (`jit`) are
timed by the tuner. For both the scope is rewritten to read packed inputs, then split in stages, lowered and
scheduled by `halide/pipeline`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import halide as hl
import numpy as np

from tensaurus.expr.evaluate.fields import Reals
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.ir.expression_text import show
from tensaurus.expr.ir.scope import Scope, Tensor
from tensaurus.expr.ir.walk import tensors as tensors_of
from tensaurus.graph.ir.kernel import Kernel
from tensaurus.kernels.halide.cpu_features import NATIVE
from tensaurus.kernels.halide.lower import LoweredStages
from tensaurus.kernels.halide.lowering_errors import LoweringError
from tensaurus.kernels.halide.pipeline import build_pipeline, schedulable_stages
from tensaurus.kernels.stages.pack_weights import pack_scope_inputs, packed_type, packing_scope
from tensaurus.kernels.stages.sketch import (
    Schedule,
    format_schedule,
    nest_changes,
    nest_sketches,
    select_packs,
)
from tensaurus.ops import TensorType
from tensaurus.system.scratch import temporary_folder

__all__ = [
    "NATIVE", "compile_kernel", "compile_object", "compile_runtime", "halide_features", "jit",
    "kernel_name", "pack_array", "uncompiled_kernel",
]  # fmt: skip

FEATURES_OF_LEVEL = {
    "x86-64-v3": ("avx", "avx2", "f16c", "fma", "sse41"),
    "x86-64-v4": ("avx", "avx2", "avx512", "avx512_skylake", "f16c", "fma", "sse41"),
}
# Halide's target features. The shim that calls kernels checks shapes, and every buffer is dense, so kernels
# need no checks; a kernel that is linked gets its runtime from the shim.
UNCHECKED = ("no_asserts", "no_bounds_query")
FOR_LINKING = ("no_runtime", "user_context")


def halide_features(cpu: str) -> tuple[str, ...]:
    """Returns the features of a processor that Halide may use: this one, or an x86-64 level.

    Raises KeyError for another name.
    """
    if cpu != NATIVE:
        return FEATURES_OF_LEVEL[cpu]
    known = {word for level in FEATURES_OF_LEVEL.values() for word in level}
    parts = hl.get_host_target().to_string().split("-")
    return tuple(sorted(w for w in parts if w in known or w.startswith("avx512_")))


def _target(cpu: str, more: Sequence[str]) -> Any:
    return hl.Target("-".join(("x86", "64", "linux", *halide_features(cpu), *more)))


def input_tensors(types: Sequence[TensorType]) -> list[Tensor]:
    """Returns the tensors x0, x1, ... of these types, over which a kernel's scope is written."""
    return [Tensor(f"x{place}", kind.shape, kind.dtype) for place, kind in enumerate(types)]


def compile_kernel(
    scope: Scope, inputs: Sequence[TensorType], output: TensorType, schedule: Schedule, cpu: str = NATIVE
) -> Kernel:
    """Compiles the kernel of a scope over x0, x1, ... of these types, whose sizes are numbers.

    Raises LoweringError, also where the schedule belongs to another expression or Halide rejects it.
    """
    code = compile_object(scope, inputs, output, schedule, cpu)
    return replace(uncompiled_kernel(scope, inputs, output, schedule, cpu), code=code)


def compile_object(
    scope: Scope, inputs: Sequence[TensorType], output: TensorType, schedule: Schedule, cpu: str = NATIVE
) -> bytes:
    """Compiles the kernel to an object file, and returns its bytes.

    The bytes depend on what this process compiled before, as Halide numbers names (so that
    `tune/compiled_objects` compiles each object in a fork of its own). Raises as `compile_kernel`.
    """
    name = kernel_name(scope, inputs, output, schedule, cpu)
    with temporary_folder() as folder, raising_lowering_errors():
        built = _build_kernel(kernel_interface(scope, inputs, schedule), schedule)
        path = folder / "kernel.o"
        # metadata are left out, as Halide writes names into them that depend on what was compiled before
        module = hl.Pipeline(built.func).compile_to_module(
            built.parameters, name, _target(cpu, (*UNCHECKED, *FOR_LINKING)), hl.LinkageType.External
        )
        module.compile({hl.OutputFileType.object: str(path)})
        return path.read_bytes()


def compile_runtime(path: Path, cpu: str = NATIVE) -> None:
    """Writes the object of Halide's own runtime, which loaded objects need, to the path."""
    hl.compile_standalone_runtime(str(path), _target(cpu, ()))


def uncompiled_kernel(
    scope: Scope, inputs: Sequence[TensorType], output: TensorType, schedule: Schedule, cpu: str = NATIVE
) -> Kernel:
    """Returns the kernel without its object, which is compiled or looked up where it is needed.

    Raises LoweringError where the schedule belongs to another expression.
    """
    name = kernel_name(scope, inputs, output, schedule, cpu)
    types, rewritten, packing = kernel_interface(scope, inputs, schedule)
    packed_scope = rewritten if any(packing) else None
    return Kernel(name, types, output, None, " ".join(halide_features(cpu)), packed_scope, packing)


def kernel_name(
    scope: Scope, inputs: Sequence[TensorType], output: TensorType, schedule: Schedule, cpu: str
) -> str:
    """Returns the name of a kernel, a hash of all that it is compiled from."""
    words = " ".join(halide_features(cpu))
    text = "\n".join([show(scope), *map(str, inputs), str(output), format_schedule(schedule), words])
    return f"eop_{sha256(text.encode()).hexdigest()[:16]}"


class KernelInterface(NamedTuple):
    """What a kernel reads and computes where the schedule packs inputs (`stages/pack_weights`).

    types    of the inputs that the kernel reads: packed ones in their packed shapes
    scope    what the kernel computes, over the packed inputs
    packing  for each input the scope that packs it, None for one that stays as it is
    """

    types: tuple[TensorType, ...]
    scope: Scope
    packing: tuple[Scope | None, ...]


def kernel_interface(scope: Scope, inputs: Sequence[TensorType], schedule: Schedule) -> KernelInterface:
    """Returns the interface of the scope's kernel if the inputs that the schedule names are packed."""
    packs = select_packs(schedule)
    inputs_by_name = {x.name: x for x in input_tensors(inputs)}
    pack_of = {pack.tensor: pack for pack in packs}
    pairs = [(kind, pack_of.get(name)) for name, kind in zip(inputs_by_name, inputs, strict=True)]
    return KernelInterface(
        types=tuple(kind if pack is None else packed_type(kind, pack) for kind, pack in pairs),
        scope=pack_scope_inputs(scope, inputs_by_name, packs),
        packing=tuple(None if pack is None else packing_scope(kind, pack) for kind, pack in pairs),
    )


class _BuiltKernel(NamedTuple):
    """The scheduled Halide function of a kernel, what it is made of, and the shapes of inputs and output.

    Halide reads the memory of `lowered`'s tables when it compiles the function, and does not keep them alive.
    """

    func: Any
    lowered: LoweredStages
    shapes: list[Sequence[Any]]

    @property
    def parameters(self) -> list[hl.ImageParam]:
        return self.lowered.inputs


def _build_kernel(interface: KernelInterface, schedule: Schedule) -> _BuiltKernel:
    inputs = input_tensors(interface.types)
    stages, read_inputs = schedulable_stages(interface.scope, inputs, nest_changes(schedule))
    lowered, func = build_pipeline(stages, read_inputs, nest_sketches(schedule))
    return _BuiltKernel(func, lowered, [x.shape for x in (*read_inputs, stages[-1].tensor)])


def jit(
    scope: Scope, inputs: Sequence[TensorType], schedule: Schedule, cpu: str = NATIVE, checks: bool = False
) -> Callable[[Sequence[np.ndarray[Any, Any]], np.ndarray[Any, Any]], Callable[[], None]]:
    """Compiles the kernel into this process, and returns a function that binds it to arrays.

    The function takes the input arrays, not packed yet, and the output array; it packs what the schedule
    packs, and returns a function without arguments that runs the kernel on these arrays.

    Raises as `compile_kernel`. With Halide's own `checks`, a run raises halide.HalideError where one fails.
    """
    with raising_lowering_errors():
        interface = kernel_interface(scope, inputs, schedule)
        built = _build_kernel(interface, schedule)
        call = built.func.compile_to_callable(built.parameters, _target(cpu, () if checks else UNCHECKED))

    def bind(arrays: Sequence[np.ndarray[Any, Any]], result: np.ndarray[Any, Any]) -> Callable[[], None]:
        packing = zip(arrays, interface.packing, strict=True)
        packed_arrays = [pack_array(array, scope) for array, scope in packing]
        *input_shapes, output_shape = built.shapes
        views = [_buffer(array, shape) for array, shape in zip(packed_arrays, input_shapes, strict=True)]
        views.append(_buffer(result, output_shape))

        def run(keep: object = (packed_arrays, result)) -> None:  # the default keeps the arrays alive
            call(*views)

        return run

    return bind


def pack_array(array: np.ndarray[Any, Any], packing: Scope | None) -> np.ndarray[Any, Any]:
    """Returns the array packed as a scope over x0 says; the array itself where it says nothing."""
    if packing is None:
        return array
    (x,) = tensors_of(packing)
    return interpret(packing, {x: array}, Reals()).astype(array.dtype)


@contextmanager
def raising_lowering_errors() -> Iterator[None]:
    """Raises LoweringError in place of the errors of Halide and of stages that a schedule does not fit."""
    try:
        yield
    except LoweringError:
        raise
    except (hl.HalideError, ValueError) as error:
        raise LoweringError(str(error).strip().splitlines()[0]) from error


def _buffer(array: np.ndarray[Any, Any], shape: Sequence[Any]) -> Any:
    """Returns Halide's view of a dense array."""
    return hl.Buffer(array.reshape([int(n) for n in shape]))
