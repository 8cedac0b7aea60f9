"""Describes the kernels of a runtime: the nodes of the graph into which it turns a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

__all__ = ["Kernel", "mean_of_middle_half", "trace_tensors"]


@dataclass(frozen=True)
class Kernel:
    """One node of the runtime's graph.

    inputs, outputs  names of tensors in that graph
    tensors          tensors of the model that the kernel computes, inner ones too; none for a conversion, and
                     where they could not be traced
    conversion       whether the kernel only changes the layout of a tensor
    domain           of the operator
    """

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: frozenset[str]
    conversion: bool = False
    domain: str = ""


def mean_of_middle_half(samples: Sequence[float]) -> float:
    """Return the mean of the middle half of the samples; 0 where there are none.

    Clocks count whole microseconds: a median could not tell times between two of them.
    """
    if not samples:
        return 0.0
    ordered = sorted(samples)
    quarter = len(ordered) // 4
    middle = ordered[quarter : len(ordered) - quarter]
    return sum(middle) / len(middle)


def trace_tensors(
    outputs: Iterable[str],
    stops: AbstractSet[str],
    makers: Mapping[str, onnx.NodeProto],
    inputs: AbstractSet[str],
) -> frozenset[str]:
    """Return the tensors of the model that a kernel computes: those from its outputs back to `stops`.

    outputs  the tensors that the kernel makes
    stops    the tensors that it reads, or that other kernels make
    makers   the model's nodes by the tensors that they compute
    inputs   the model's inputs: a walk that reaches one has passed a stop whose name the model lacks, and the
             kernel counts as not traced (no tensors)

    A kernel that reads x and makes z, in a model y = Conv(x, w), z = Relu(y), computes {y, z}.
    """
    computed: set[str] = set()
    stack = [name for name in outputs if name]
    while stack:
        name = stack.pop()
        if name in computed or name in stops or not name:
            continue
        if name in inputs:
            return frozenset()
        if name in makers:
            computed.add(name)
            stack.extend(makers[name].input)
    return frozenset(computed)
