"""Programs of interned nodes, their text, and their way from and to ONNX."""

from tensaurus.graph.node import Node, apply, constant, item, source
from tensaurus.graph.program import Program

__all__ = ["Node", "Program", "apply", "constant", "item", "source"]
