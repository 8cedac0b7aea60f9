"""The kernels of the graph that a runtime makes of a model, and what each is charged with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

__all__ = ["Kernel", "charged", "per_run", "traced"]


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


def charged(kernels: Sequence[Kernel], seconds: Sequence[float]) -> list[tuple[frozenset[str], float]]:
    """Tensors and seconds of the kernels; `seconds` are each one's own.

    A conversion is on the bill of the kernels that read it, as they ask for the layout; where none does, of
    the kernel that it reads.  What could not be traced is on nobody's.
    """
    taken = list(seconds)
    makers = {name: place for place, kernel in enumerate(kernels) for name in kernel.outputs if name}
    readers: list[set[int]] = [set() for _ in kernels]
    for place, kernel in enumerate(kernels):
        for name in kernel.inputs:
            if name in makers:
                readers[makers[name]].add(place)
    for place, kernel in enumerate(kernels):
        if kernel.conversion and readers[place]:
            for reader in readers[place]:
                taken[reader] += taken[place] / len(readers[place])
            taken[place] = 0.0
    for place, kernel in reversed(list(enumerate(kernels))):
        made = {makers[name] for name in kernel.inputs if name in makers}
        if kernel.conversion and made:
            for maker in made:
                taken[maker] += taken[place] / len(made)
            taken[place] = 0.0
    return [(kernel.tensors, cost) for kernel, cost in zip(kernels, taken, strict=True) if cost > 0.0]


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
