"""Defines renderings, functions that translate one ONNX operator to torch, and the table of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

__all__ = ["RENDERINGS", "Refused", "Rendered", "renders"]


class Refused(Exception):
    """The rendering does not cover this use of the operator; the text says which, such as "dilations"."""


class Rendered(Protocol):
    """The ONNX node that is rendered, as a rendering sees it.  A `place` is a position among its inputs.

    outputs         number of outputs
    shapes, dtypes  of the inputs; () and float32 for an absent one
    """

    opset: int
    outputs: int
    shapes: list[tuple[int, ...]]
    dtypes: list[torch.dtype]

    def attribute(self, name: str) -> Any:
        """Return the attribute's value, else the default of the operator's schema, else None."""
        ...

    def known(self, place: int) -> torch.Tensor | None:
        """Return the constant input at a place, None if absent; raises Refused if it depends on data."""
        ...

    def ints(self, name: str, place: int) -> list[int] | None:
        """Return integers that are an attribute in old opsets and a constant input in new ones.

        `name` is "" where they are an input in all opsets.
        """
        ...

    def constant(self, value: torch.Tensor) -> Any:
        """Return a tensor that the rendering made as a constant of the module."""
        ...


# Called with the node and its inputs, None for an absent one; returns the output, or all outputs.  Inputs are
# tensors where all are constant, else first meta tensors (for the shapes) and then torch.fx proxies.
Rendering = Callable[..., Any]
RENDERINGS: dict[str, Rendering] = {}


def renders(*operators: str) -> Callable[[Rendering], Rendering]:
    """Register a function as the rendering of these operators."""

    def register(rendering: Rendering) -> Rendering:
        RENDERINGS.update(dict.fromkeys(operators, rendering))
        return rendering

    return register
