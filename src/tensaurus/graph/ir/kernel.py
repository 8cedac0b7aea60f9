"""A kernel: an expression that is compiled to machine code."""

from __future__ import annotations

from dataclasses import dataclass

from tensaurus.expr.ir.scope import Scope
from tensaurus.ops import TensorType


@dataclass(frozen=True)
class Kernel:
    """The code of an eOperator (an expression used as an operator, for which no runtime has a kernel).

    name      "eop_" + 16 hex digits of a hash of scope, types, schedule and target
    inputs    types of x0, x1, ...; their sizes are numbers
    code      a relocatable object that defines the C function
              `int name(void* user_context, halide_buffer_t* x0, ..., halide_buffer_t* out)`.  Halide compiled
              it with the features no_runtime, user_context, no_asserts and no_bounds_query.  All buffers are
              dense, and dimension 0 of a buffer is the last axis of the tensor.  None until a model that
              calls the kernel is linked, which looks the object up, or compiles it
    cpu       the processor features that the code needs, as `cpu_features.required_features` reads them
    packing   for each input that is read in another layout, the expression over x0 that packs it; such an
              input must be constant, so that it is packed once
    scope     the expression of the output over the packed inputs; None where it is the eOperator's own
    flushing  whether the code reads subnormal numbers as 0, and writes 0 instead of them
    """

    name: str
    inputs: tuple[TensorType, ...]
    output: TensorType
    code: bytes | None
    cpu: str
    scope: Scope | None = None
    packing: tuple[Scope | None, ...] = ()
    flushing: bool = False
