"""Export the programs of one model as builds, each of them once.

    BuildCache(folder, expand, kernels, link)(program)   ->   Build(model, (library of its kernels,), tensors)

One run of the optimizer has three of these (`optimizer/run/optimization_run`): for
candidates, for candidates without generated kernels, and for single pieces that are measured.
"""

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
from tensaurus.graph.lower.program_lowering import Expand, Kernels, no_kernels
from tensaurus.graph.onnx.build import Build
from tensaurus.graph.onnx.onnx_export import export_with_tensors
from tensaurus.graph.onnx.onnx_frame import graphs_in
from tensaurus.graph.onnx.weight_files import WeightFiles
from tensaurus.ops.eop import eop
from tensaurus.ops.kernel_nodes import KERNEL_DOMAIN

LinkKernels = Callable[[Sequence[Kernel]], Path]
"""Links kernels to one shared library, and returns its path."""

MAX_CACHED_BYTES = 1 << 30  # of all cached builds; beyond, the oldest are dropped: to be exported again


class BuildCache:
    """Exports and caches builds of programs that share one frame; callable with a program."""

    def __init__(
        self,
        folder: Path,
        expand: Expand | None = None,
        kernels: Kernels = no_kernels,
        link: LinkKernels | None = None,
        libraries: Sequence[Path] = (),
        folded: bool = True,
        max_cached_bytes: int = MAX_CACHED_BYTES,
        shares_weights: bool = True,
        max_constant_bytes: float = inf,
    ):
        """Set how programs are exported.

        folder              for models and weights that are too large for a message
        expand, kernels     expansions of operators, and generated kernels of eOperators (`ops/eop`)
        link                links the kernels of one build to a library
        libraries           of kernels that the imported model itself came with
        folded              whether constant expressions are folded
        max_cached_bytes    of all cached builds; the oldest are dropped
        shares_weights      whether large weights are written to the folder once, for all builds; where not,
                            only those that other builds have written there are read from it
        max_constant_bytes  of the constants of one build; beyond, expressions over constants are not folded
        """
        self._folder, self._expand, self._kernels, self._link = folder, expand, kernels, link
        self._libraries = tuple(libraries)
        self._folded = folded
        self._max_cached_bytes, self._max_constant_bytes = max_cached_bytes, max_constant_bytes
        self._weights, self._shares_weights = WeightFiles(folder, writes=shares_weights), shares_weights
        self._known: dict[tuple[Node, ...], Build] = {}
        self._bytes = 0

    def __call__(self, program: Program) -> Build:
        """Return the program's build.

        Raises TensaurusError for a node that the opset lacks, and where kernels cannot be linked.
        """
        found = self._known.get(program.roots)
        if found is None:
            used: dict[str, Kernel] = {}  # by name: the kernels that the exported model calls
            written: list[Program] = []  # the one program that was written, folded and expanded

            def kernel_of(node: Node) -> Kernel | None:
                kernel = self._kernels(node)
                return kernel and used.setdefault(kernel.name, kernel)

            model, tensors = export_with_tensors(
                program, folded=self._folded, expand=self._expand, kernels=kernel_of, weights=self._weights,
                max_constant_bytes=self._max_constant_bytes, watch=written.append,
            )  # fmt: skip
            libraries: tuple[Path, ...] = ()
            if used:
                flushing = self._find_flushing_kernels(written[0], model) if self._folded else frozenset()
                assert self._link is not None, "kernels need a linker"
                libraries = (self._link([replace(k, flushing=k.name in flushing) for k in used.values()]),)
            elif self._libraries and _has_kernels(model):
                libraries = self._libraries
            found = Build.from_model(model, self._folder, libraries, tensors, self._shares_weights)
            self._known[program.roots] = found
            self._bytes += found.size
            while self._bytes > self._max_cached_bytes and len(self._known) > 1:
                self._bytes -= self._known.pop(next(iter(self._known))).size
        return found

    def _find_flushing_kernels(self, program: Program, model: ModelProto) -> frozenset[str]:
        """Return the names of the kernels that may flush subnormal numbers in every node that calls them.

        A kernel that a body calls, too, is none of them: `called` counts that call, `flushing` does not.
        """
        calls = (node for graph in graphs_in(model.graph) for node in graph.node)
        called = Counter(node.op_type for node in calls if node.domain == KERNEL_DOMAIN)
        expressions = (node for node in program.active if node.op is eop)
        nodes = {node: kernel.name for node in expressions if (kernel := self._kernels(node))}
        flushing = Counter(nodes[node] for node in find_flushing_nodes(program, nodes))
        return frozenset(name for name, count in called.items() if flushing[name] == count)


def _has_kernels(model: ModelProto) -> bool:
    return any(node.domain == KERNEL_DOMAIN for graph in graphs_in(model.graph) for node in graph.node)
