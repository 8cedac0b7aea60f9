"""The builds of the programs of one model, each exported once."""

from __future__ import annotations

from pathlib import Path

from tensaurus.graph.build import Build
from tensaurus.graph.lowering import Expand
from tensaurus.graph.node import Node
from tensaurus.graph.onnx_export import export
from tensaurus.graph.program import Program

__all__ = ["Builds"]

MOST = 1 << 30  # bytes of models that are kept; beyond, the oldest are exported again when asked for


class Builds:
    """Builds of programs that share one frame; callable with a program."""

    def __init__(self, folder: Path, expand: Expand | None = None):
        """Models too large for a message are written to the folder."""
        self._folder, self._expand = folder, expand
        self._known: dict[tuple[Node, ...], Build] = {}
        self._bytes = 0

    def __call__(self, program: Program) -> Build:
        """The program as a runtime takes it.  Raises TensaurusError for a node that its opset cannot say."""
        found = self._known.get(program.roots)
        if found is None:
            model, tensors = export(program, expand=self._expand)
            found = self._known[program.roots] = Build.of(model, self._folder, tensors=tensors)
            self._bytes += found.size
            while self._bytes > MOST and len(self._known) > 1:
                self._bytes -= self._known.pop(next(iter(self._known))).size
        return found
