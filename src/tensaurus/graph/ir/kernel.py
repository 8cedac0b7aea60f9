"""What compiling an expression gives."""

from __future__ import annotations

from dataclasses import dataclass

from tensaurus.expr.ir.scope import Scope
from tensaurus.ops import TensorType

__all__ = ["Kernel"]


@dataclass(frozen=True)
class Kernel:
    """One compiled eOperator: `code` is a relocatable object that defines the C function `name`.

    `int name(void* user_context, halide_buffer_t* x0, ..., halide_buffer_t* out)`, compiled by Halide with
    the features no_runtime, user_context, no_asserts and no_bounds_query.  Dimension 0 of a buffer is the
    last axis of the tensor; all are dense.

    An input that is packed has, in `packing`, the scope over x0 that packs it, and must be constant; `scope`
    is what the kernel computes of the packed inputs, and None where it is the eOperator's own.

    One that is `flushing` takes subnormal numbers for 0, and makes 0 of them, where a processor does so.
    """

    name: str  # "eop_" + 16 hex digits of a hash of scope, types, schedule and target
    inputs: tuple[TensorType, ...]  # of x0, x1, ...; sizes are numbers
    output: TensorType
    code: bytes
    cpu: str  # what it needs of a processor, as `cpu_features.required_features` reads it
    scope: Scope | None = None
    packing: tuple[Scope | None, ...] = ()
    flushing: bool = False
