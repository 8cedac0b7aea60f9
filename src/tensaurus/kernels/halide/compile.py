"""An expression with a schedule as machine code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import halide as hl
import numpy as np

from tensaurus.expr.evaluate.fields import Reals
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.ir.expression_text import show
from tensaurus.expr.ir.scope import Scope, Tensor
from tensaurus.expr.ir.walk import tensors as tensors_of
from tensaurus.graph.ir.kernel import Kernel
from tensaurus.kernels.halide.cpu_features import NATIVE
from tensaurus.kernels.halide.lowering_errors import Unlowered
from tensaurus.kernels.halide.pipeline import prepared, scheduled
from tensaurus.kernels.stages.pack_weights import packed, packed_type
from tensaurus.kernels.stages.pack_weights import packing as packing_scope
from tensaurus.kernels.stages.sketch import Schedule, loops, packs, prefix
from tensaurus.kernels.stages.sketch import show as show_schedule
from tensaurus.ops import TensorType
from tensaurus.system.scratch import temporary

__all__ = ["NATIVE", "code_of", "compiled", "features", "jit", "kernel_of"]

LEVELS = {
    "x86-64-v3": ("avx", "avx2", "f16c", "fma", "sse41"),
    "x86-64-v4": ("avx", "avx2", "avx512", "avx512_skylake", "f16c", "fma", "sse41"),
}
# shapes are checked by whoever calls a kernel, and every buffer is dense
PLAIN = ("no_asserts", "no_bounds_query")
LINKED = ("no_runtime", "user_context")


def features(cpu: str) -> tuple[str, ...]:
    """What Halide may use of a processor: of this one, or of one of the levels.  Raises KeyError."""
    if cpu != NATIVE:
        return LEVELS[cpu]
    known = {word for level in LEVELS.values() for word in level}
    parts = hl.get_host_target().to_string().split("-")
    return tuple(sorted(w for w in parts if w in known or w.startswith("avx512_")))


def _target(cpu: str, more: Sequence[str]) -> Any:
    return hl.Target("-".join(("x86", "64", "linux", *features(cpu), *more)))


def tensors(types: Sequence[TensorType]) -> list[Tensor]:
    return [Tensor(f"x{place}", kind.shape, kind.dtype) for place, kind in enumerate(types)]


def compiled(
    scope: Scope, inputs: Sequence[TensorType], output: TensorType, schedule: Schedule, cpu: str = NATIVE
) -> Kernel:
    """The kernel of a scope over x0, x1, ... of these types, whose sizes are numbers.

    Raises Unlowered, also where the schedule is one of another expression, or one that Halide refuses.
    """
    return kernel_of(scope, inputs, output, schedule, code_of(scope, inputs, output, schedule, cpu), cpu)


def code_of(
    scope: Scope, inputs: Sequence[TensorType], output: TensorType, schedule: Schedule, cpu: str = NATIVE
) -> bytes:
    """The kernel's object.  What was compiled before in this process shows in it, as Halide numbers names.

    Raises as `compiled`.
    """
    name = _name(scope, inputs, output, schedule, cpu)
    with temporary() as folder, refusals():
        types, own, _ = operands(scope, inputs, schedule)
        stages, plain = prepared(own, tensors(types), prefix(schedule))
        lowered, func = scheduled(stages, plain, loops(schedule))
        path = folder / "kernel.o"
        # without metadata, where Halide writes names that depend on what was compiled before
        module = hl.Pipeline(func).compile_to_module(
            lowered.inputs, name, _target(cpu, (*PLAIN, *LINKED)), hl.LinkageType.External
        )
        module.compile({hl.OutputFileType.object: str(path)})
        return path.read_bytes()


def kernel_of(
    scope: Scope,
    inputs: Sequence[TensorType],
    output: TensorType,
    schedule: Schedule,
    code: bytes,
    cpu: str = NATIVE,
) -> Kernel:
    """The kernel whose object was compiled already."""
    name = _name(scope, inputs, output, schedule, cpu)
    types, own, packing = operands(scope, inputs, schedule)
    packed_scope = own if any(packing) else None
    return Kernel(name, types, output, code, " ".join(features(cpu)), packed_scope, packing)


def _name(
    scope: Scope, inputs: Sequence[TensorType], output: TensorType, schedule: Schedule, cpu: str
) -> str:
    words = " ".join(features(cpu))
    text = "\n".join([show(scope), *map(str, inputs), str(output), show_schedule(schedule), words])
    return f"eop_{sha256(text.encode()).hexdigest()[:16]}"


def operands(
    scope: Scope, inputs: Sequence[TensorType], schedule: Schedule
) -> tuple[tuple[TensorType, ...], Scope, tuple[Scope | None, ...]]:
    """The types of a kernel's inputs, what it computes of them, and how each is packed."""
    wanted = {pack.tensor: pack for pack in packs(schedule)}
    named = {x.name: x for x in tensors(inputs)}
    types, packing = [], []
    for name, kind in zip(named, inputs, strict=True):
        pack = wanted.get(name)
        types.append(kind if pack is None else packed_type(kind, pack))
        packing.append(None if pack is None else packing_scope(kind, pack))
    return tuple(types), packed(scope, named, packs(schedule)), tuple(packing)


def jit(
    scope: Scope, inputs: Sequence[TensorType], schedule: Schedule, cpu: str = NATIVE, checks: bool = False
) -> Callable[[Sequence[np.ndarray[Any, Any]], np.ndarray[Any, Any]], Callable[[], None]]:
    """The kernel in this process: given arrays for inputs and output, a call that computes it.

    Raises as `compiled`.  With Halide's own `checks` the call raises halide.HalideError where one fails.
    """
    with refusals():
        types, own, packing = operands(scope, inputs, schedule)
        stages, plain = prepared(own, tensors(types), prefix(schedule))
        lowered, func = scheduled(stages, plain, loops(schedule))
        call = func.compile_to_callable(lowered.inputs, _target(cpu, () if checks else PLAIN))
    shape = stages[-1].tensor.shape

    def bound(arrays: Sequence[np.ndarray[Any, Any]], result: np.ndarray[Any, Any]) -> Callable[[], None]:
        kept = [_packed(array, pack) for array, pack in zip(arrays, packing, strict=True)]
        views = [_buffer(array, x.shape) for array, x in zip(kept, plain, strict=True)]
        views.append(_buffer(result, shape))

        def run(keep: object = (kept, result)) -> None:
            call(*views)

        return run

    return bound


def _packed(array: np.ndarray[Any, Any], packing: Scope | None) -> np.ndarray[Any, Any]:
    if packing is None:
        return array
    (x,) = tensors_of(packing)
    return interpret(packing, {x: array}, Reals()).astype(array.dtype)


@contextmanager
def refusals() -> Iterator[None]:
    """What Halide refuses is Unlowered, and what there is no expression or no schedule of."""
    try:
        yield
    except Unlowered:
        raise
    except (hl.HalideError, ValueError) as error:
        raise Unlowered(str(error).strip().splitlines()[0]) from error


def _buffer(array: np.ndarray[Any, Any], shape: Sequence[Any]) -> Any:
    """Halide's view of a dense array."""
    return hl.Buffer(array.reshape([int(n) for n in shape]))
