"""Profiles a model for `tensaurus profile`: the time of each kernel beside its roofline.

A runtime's profiler tells the time and the tensors of each kernel. The operations and bytes of a kernel are
counted here from the expressions of the operators that compute these tensors:

    kernel FusedConv, 0.8 ms, tensors c, r  ->  computes Conv + Relu, 2e8 operations, 3e6 bytes, least 0.5 ms
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from statistics import median

from onnx import ModelProto, NodeProto

from tensaurus.app.report.explain import read_summary
from tensaurus.app.report.profile_table import CONVERSION, UNKNOWN_KERNEL, UNTRACED, Profile, ProfiledKernel
from tensaurus.check.inputs.timing_inputs import draw_timing_inputs
from tensaurus.check.inputs.user_inputs import load_user_inputs, require_ranges
from tensaurus.graph.ir.node import CONSTANT, Node
from tensaurus.graph.ir.subnormal import find_subnormals, is_float
from tensaurus.graph.onnx.build import Build
from tensaurus.graph.onnx.inlining import inline_functions
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.ops.kernel_nodes import KERNEL_DOMAIN
from tensaurus.optimizer.run.options import Options
from tensaurus.optimizer.run.original import Original
from tensaurus.runtimes import backends
from tensaurus.runtimes.backends import Array, Kernel
from tensaurus.runtimes.measure.database import Database
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.measure.measure import warm_up
from tensaurus.runtimes.measure.runtime_kernels import nodes_of
from tensaurus.runtimes.measure.worker import RUN_LIMIT_REMEDY, Worker
from tensaurus.runtimes.price.operation_counts import bytes_of, operations
from tensaurus.runtimes.price.roofline import Roofline
from tensaurus.system.errors import TensaurusError, name_file_in_errors
from tensaurus.system.progress import NoProgress, Progress

__all__ = ["profile_model"]

RUNS_PER_ANSWER = 16  # the worker must answer within the time limit of this number of runs
TIMED_SECONDS = 1.0  # for which runs are timed, and for which runs are profiled


def profile_model(model: str | Path, options: Options, progress: Progress | None = None) -> Profile:
    """Profile a model's file on the backend, inputs, shapes and threads of `options`.

    Raises TensaurusError if the model does not run, or if the backend has no profiler.
    """
    progress = progress or NoProgress()
    progress.phase("reading the model")
    original, machine = Original.read(model, options), Machine.here(options.threads)
    name, threads = options.first_backend, machine.threads
    runtime = backends.require(name)
    if not isinstance(runtime, backends.Profiling):
        names = [n for n in backends.installed() if isinstance(backends.find(n), backends.Profiling)]
        raise TensaurusError(f"--backend {name} has no profiler", remedy=f"Choose from {', '.join(names)}.")
    with name_file_in_errors(original.name), Database(options.database) as records:
        # find inputs on which the model runs
        roofline = Roofline.here(records, machine)
        build, shapes, ranges = Build.from_file(model), options.shapes or {}, options.ranges
        require_ranges(original.model, ranges or {})
        given = load_user_inputs(options.inputs, original.model, shapes)
        progress.phase("running the model")
        limit = options.run_limit
        feeds, assumed_sizes, _ = draw_timing_inputs(
            original.model, shapes, options.seed, build, name, threads, ranges, limit, given
        )
        if assumed_sizes:
            sizes = f"not all input sizes were given; timed with {assumed_sizes}"
            progress.note(f"{sizes}. To time other sizes, use --shape")
        # time whole runs without the profiler, then each kernel with the profiler
        patience = RUNS_PER_ANSWER * limit
        with Worker(name, threads=threads, timeout=patience, remedy=RUN_LIMIT_REMEDY) as worker:
            warm_up(worker, build, feeds, TIMED_SECONDS)
            whole = median(worker.time(TIMED_SECONDS).samples)
            taken = worker.profile(build, feeds, TIMED_SECONDS) or []
        kernels = tuple(_WorkCounter(original, feeds, roofline).count_kernels(taken))
        if not kernels:
            remedy = "The model may be too fast for the profiler's clock: try larger sizes with --shape."
            raise TensaurusError(f"{name} {runtime.version()} reported no kernel times", remedy=remedy)
        untold = len(taken) - len(kernels)  # kernels to which the runtime's clock gave 0 s
    return Profile(original.name, name, runtime.version(), threads, whole, kernels, untold)


class _WorkCounter:
    """Counts the operations and bytes of each kernel, at the sizes of the inputs.

    nodes      {tensor: the node that computes it}
    operators  {tensor: name of the ONNX operator that computes it, or the title of a generated kernel}
    order      {tensor: its place in the model's order}
    """

    def __init__(self, original: Original, feeds: Mapping[str, Array], roofline: Roofline):
        self.roofline = roofline
        sizes = {name: array.shape for name, array in feeds.items()}
        model = inline_functions(original.model, original.name)
        program = import_model(model, sizes, original.name)
        self.nodes = {name: node for node, name in program.names.items()}
        self.operators = dict(_name_operators(model, _kernel_titles(original.model)))
        self.order = {name: index for index, name in enumerate(self.operators)}

    def count_kernels(self, taken: Sequence[tuple[Kernel, float]]) -> Iterable[ProfiledKernel]:
        """Yield the kernels that take time, in the order of the runtime's graph."""
        return (self._count(kernel, seconds) for kernel, seconds in taken if seconds > 0)

    def _count(self, kernel: Kernel, seconds: float) -> ProfiledKernel:
        """Return the kernel with its work; 0 operations and bytes where it computes no known tensor."""
        names = sorted(kernel.tensors, key=lambda name: (self.order.get(name, len(self.order)), name))
        inner = nodes_of(names, self.nodes)
        read = {arg for node in inner for arg in node.args if arg is not None}
        ends = (read - inner) | (inner - read)  # tensors that enter the kernel, and that leave it
        work = sum(map(operations, inner))
        moved = sum(bytes_of(kind) for node in ends for kind in node.types)
        least = self.roofline.seconds(work, moved) if inner else 0.0
        computes = " + ".join(self.operators.get(name, "?") for name in names)
        computes = computes or (CONVERSION if kernel.conversion else UNTRACED)
        share = _subnormal_share(read)
        return ProfiledKernel(kernel.operator, computes, tuple(names), seconds, work, moved, least, share)


def _subnormal_share(read: Iterable[Node]) -> float:
    """Return the share of subnormal numbers among the elements of the float constants that are read."""
    weights = [node.attribute("data") for node in read if node.op is CONSTANT and is_float(node.types[0])]
    elements = sum(prod(data.shape) for data in weights)
    count = sum(int(find_subnormals(data.array, data.dtype).sum()) for data in weights)
    return count / elements if elements else 0.0


def _kernel_titles(model: ModelProto) -> dict[str, str]:
    """Return the titles of the kernels of an optimized model, such as F(4x4, 3x3) + Relu, by their names."""
    try:
        return {kernel.name: kernel.title for kernel in read_summary(model, "").kernels}
    except TensaurusError:
        return {}


def _name_operators(model: ModelProto, kernels: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Yield each tensor of the model, in the order of its nodes, with the operator that computes it."""
    for node in model.graph.node:
        operator = _operator_name(node, kernels)
        yield from ((name, operator) for name in node.output if name)


def _operator_name(node: NodeProto, kernels: Mapping[str, str]) -> str:
    return kernels.get(node.op_type) or UNKNOWN_KERNEL if node.domain == KERNEL_DOMAIN else node.op_type
