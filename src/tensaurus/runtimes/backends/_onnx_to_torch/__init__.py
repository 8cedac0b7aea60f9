"""Translates an ONNX model to a torch.fx.GraphModule, operator by operator (`rendering`)."""

# Importing the first two modules registers their renderings.
from tensaurus.runtimes.backends._onnx_to_torch import arithmetic, layout
from tensaurus.runtimes.backends._onnx_to_torch.rendering import RENDERINGS
from tensaurus.runtimes.backends._onnx_to_torch.translate import (
    declared_inputs,
    to_channels_last,
    torch_type,
    translate,
)

__all__ = [
    "RENDERINGS",
    "arithmetic",
    "to_channels_last",
    "declared_inputs",
    "layout",
    "torch_type",
    "translate",
]
