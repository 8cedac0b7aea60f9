"""An ONNX model as a torch.fx.GraphModule; `rendering` says what it takes to render an operator."""

# The first two are imported for the renderings that they put into the table.
from tensaurus.runtimes.backends._onnx_to_torch import arithmetic, layout
from tensaurus.runtimes.backends._onnx_to_torch.rendering import RENDERINGS
from tensaurus.runtimes.backends._onnx_to_torch.translate import arrange, declared, torch_type, translate

__all__ = ["RENDERINGS", "arithmetic", "arrange", "declared", "layout", "torch_type", "translate"]
