"""The builds of the programs of one model, each exported once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

from onnx import ModelProto

from tensaurus.graph.analysis.flush_to_zero import find_flushing_nodes
from tensaurus.graph.ir.kernel import Kernel
from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.program import Program
from tensaurus.graph.lower.lowering import Expand, Kernels, no_kernels
from tensaurus.graph.onnx.build import Build
from tensaurus.graph.onnx.onnx_export import export_with_tensors
from tensaurus.graph.onnx.onnx_frame import graphs_in
from tensaurus.graph.onnx.weight_files import WeightFiles
from tensaurus.ops.eop import eop
from tensaurus.ops.kernel_form import KERNELS

__all__ = ["Builds", "LinkKernels"]

LinkKernels = Callable[[Sequence[Kernel]], Path]
"""Makes one shared library of kernels, and returns its path."""

MAX_CACHED_BYTES = 1 << 30  # of all cached builds; beyond, the oldest are dropped and exported again


class Builds:
    """Builds of programs that share one frame; callable with a program."""

    def __init__(
        self,
        folder: Path,
        expand: Expand | None = None,
        kernels: Kernels = no_kernels,
        link: LinkKernels | None = None,
        libraries: Sequence[Path] = (),
        folded: bool = True,
        most: int = MAX_CACHED_BYTES,
        shared: bool = True,
        stored: float = inf,
    ):
        """Large weights are written to the folder, `shared` by all that are asked for.

        `link` makes one library of the kernels of each build.  `libraries` are those that the model itself
        came with: a session takes them or ours.  `folded` computes what is constant; `most` are the bytes of
        the models that are kept.  Constants are folded into at most `stored` bytes of a model.
        """
        self._folder, self._expand, self._kernels, self._link = folder, expand, kernels, link
        self._libraries = tuple(libraries)
        self._folded, self._most, self._stored = folded, most, stored
        self._weights = WeightFiles(folder) if shared else None
        self._known: dict[tuple[Node, ...], Build] = {}
        self._bytes = 0

    def __call__(self, program: Program) -> Build:
        """The program as a runtime takes it.

        Raises TensaurusError for a node that its opset cannot say, and where kernels cannot be linked.
        """
        found = self._known.get(program.roots)
        if found is None:
            used: dict[str, Kernel] = {}
            written: list[Program] = []

            def kernel_of(node: Node) -> Kernel | None:
                kernel = self._kernels(node)
                return kernel and used.setdefault(kernel.name, kernel)

            model, tensors = export_with_tensors(
                program,
                folded=self._folded,
                expand=self._expand,
                kernels=kernel_of,
                weights=self._weights,
                most=self._stored,
                watch=written.append,
            )
            libraries: tuple[Path, ...] = ()
            if used:
                flushing = self._flushing(written[0], model) if self._folded else frozenset()
                assert self._link is not None, "who has kernels can link them"
                libraries = (self._link([replace(k, flushing=k.name in flushing) for k in used.values()]),)
            elif self._libraries and _has_kernels(model):
                libraries = self._libraries
            found = Build.from_model(model, self._folder, libraries, tensors, self._weights is not None)
            self._known[program.roots] = found
            self._bytes += found.size
            while self._bytes > self._most and len(self._known) > 1:
                self._bytes -= self._known.pop(next(iter(self._known))).size
        return found


    def _flushing(self, program: Program, model: ModelProto) -> frozenset[str]:
        """The names of the kernels that may flush subnormal numbers wherever they stand."""
        called = Counter(n.op_type for g in graphs_in(model.graph) for n in g.node if n.domain == KERNELS)
        expressions = (node for node in program.active if node.op is eop)
        nodes = {node: kernel.name for node in expressions if (kernel := self._kernels(node))}
        may = Counter(nodes[node] for node in find_flushing_nodes(program, nodes))
        return frozenset(name for name, count in called.items() if may[name] == count)


def _has_kernels(model: ModelProto) -> bool:
    return any(node.domain == KERNELS for graph in graphs_in(model.graph) for node in graph.node)
