"""What a rendering of an ONNX operator in torch is, and the table of them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

__all__ = ["RENDERINGS", "Refused", "Rendered", "renders"]


class Refused(Exception):
    """The rendering does not cover what the node asks for; the text completes "no rendering of ..."."""


class Rendered(Protocol):
    """The node that is rendered."""

    opset: int
    outputs: int
    shapes: list[tuple[int, ...]]
    dtypes: list[torch.dtype]

    def attribute(self, name: str) -> Any:
        """Its value, else the default of the operator's schema, else None."""
        ...

    def known(self, place: int) -> torch.Tensor | None:
        """The constant input there, None where it is absent; raises Refused where it depends on data."""
        ...

    def ints(self, name: str, place: int) -> list[int] | None:
        """Integers that are an attribute in old versions and a constant input in new ones."""
        ...

    def constant(self, value: torch.Tensor) -> Any:
        """A tensor that the rendering made."""
        ...


Rendering = Callable[..., Any]
RENDERINGS: dict[str, Rendering] = {}


def renders(*operators: str) -> Callable[[Rendering], Rendering]:
    def register(rendering: Rendering) -> Rendering:
        RENDERINGS.update(dict.fromkeys(operators, rendering))
        return rendering

    return register
