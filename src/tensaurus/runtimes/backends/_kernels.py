"""The kernels of the graph that a runtime makes of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

__all__ = ["Kernel", "per_run", "traced"]


@dataclass(frozen=True)
class Kernel:
    """One node of the runtime's graph.

    inputs, outputs  names in that graph
    tensors          of the model, those that it computes, inner ones too; none of a conversion, and of what
                     could not be traced
    conversion       whether it only lays out anew what others have computed
    """

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: frozenset[str]
    conversion: bool = False


def per_run(samples: Sequence[float]) -> float:
    """The mean of the middle half: of whole microseconds, a median would lose what lies between them."""
    if not samples:  # it never ran
        return 0.0
    ordered = sorted(samples)
    quarter = len(ordered) // 4
    middle = ordered[quarter : len(ordered) - quarter]
    return sum(middle) / len(middle)


def traced(
    outputs: Iterable[str],
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
