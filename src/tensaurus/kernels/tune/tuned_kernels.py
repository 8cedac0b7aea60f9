"""Makes the kernels of eOperators (expressions as operators), tuned at the first request.

`optimizer/run/kernel_budget` has one `TunedKernels` for a run, and calls it with nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

from tensaurus.expr.ir.scope import Call, Scope
from tensaurus.expr.ir.walk import bodies
from tensaurus.graph.ir.kernel import Kernel
from tensaurus.graph.ir.node import Node
from tensaurus.kernels.halide.compile import uncompiled_kernel
from tensaurus.kernels.library.shared_library import linked_library
from tensaurus.kernels.stages.loop_nest import CHEAP_FUNCTIONS
from tensaurus.kernels.stages.sketch import format_schedule
from tensaurus.kernels.tune.compiled_objects import KernelSource
from tensaurus.kernels.tune.schedule_reuse import ReductionForm
from tensaurus.kernels.tune.tune import MAX_PATIENCE, Tuner
from tensaurus.ops import TensorType
from tensaurus.ops.eop import eop
from tensaurus.system.errors import TensaurusError
from tensaurus.system.timeline import record

__all__ = ["TunedKernels"]

# A kernel takes at most this multiple of the time of its form's fastest: kernels of one form differ in cheap
# elementwise functions before and after the reduction.
FORM_TOLERANCE = 1.05


@dataclass
class TunedKernels:
    """Returns, when called with a node, the node's kernel, or None where there is none.

    seconds    returns how many seconds tuning the next kernel may take that needs some seconds at least
               (`least_seconds`); 0 if there is only time to compile what is known, below 0 if there is none
    dropped    the reasons why eOperators have no kernel, each once
    schedules  the texts of the schedules of compiled kernels, by kernel name
    planned    the nodes of kernels that are asked for next, in this order
    """

    tuner: Tuner
    seconds: Callable[[float], float]
    dropped: dict[str, None] = field(default_factory=dict)
    schedules: dict[str, str] = field(default_factory=dict)
    planned: Sequence[Node] = ()
    _known: dict[Any, Kernel | None] = field(default_factory=dict)
    _sources: dict[str, KernelSource] = field(default_factory=dict)  # by kernel name
    _least_seconds: dict[Node, float] = field(default_factory=dict)
    _forms: dict[Node, ReductionForm | None] = field(default_factory=dict)

    def seconds_of(self, node: Node) -> float:
        """Returns the seconds of an eOperator's fastest known schedule; infinite where none was measured.

        Kernels of one reduction form take about the same time, if all functions in them are cheap. But one
        timing may be a fifth longer than another, in a slower moment of the machine: the shortest counts.
        """
        rows = self.tuner.measured_schedules(*_tuned_expression(node))
        form = self._form_of(node)
        if not rows or form is None or _has_dear_function(node.attribute("scope")):
            return rows[0].seconds if rows else inf
        return min(rows[0].seconds, FORM_TOLERANCE * self.tuner.histories.timed_seconds(form))

    def least_seconds(self, node: Node) -> float:
        """Returns how long an eOperator must be tuned at least; 0 where a schedule of its form is known."""
        if node not in self._least_seconds:
            self._least_seconds[node] = self.tuner.least_seconds(*_tuned_expression(node))
        return self._least_seconds[node]

    def expected_seconds(self, node: Node) -> float:
        """Returns the seconds that an eOperator's kernel takes at least; 0 where it has none."""
        form = self._form_of(node)
        return 0.0 if form is None else self.tuner.histories.expected_seconds(form)

    def _form_of(self, node: Node) -> ReductionForm | None:
        """Returns the reduction form of an eOperator."""
        if node not in self._forms:
            self._forms[node] = self.tuner.reduction_form(*_tuned_expression(node))
        return self._forms[node]

    def __call__(self, node: Node) -> Kernel | None:
        """Returns the kernel for the node's types; None for symbolic sizes and other operators."""
        if node.op is not eop:
            return None
        scope, types, is_constant = _tuned_expression(node)
        if not all(kind.static for kind in (*types, node.tensor)):
            return None
        key = scope, types
        if (key, is_constant) not in self._known:
            kernel = self._known[key, is_constant] = self._make_kernel(node)
            if kernel is not None and kernel.scope is not None:
                # the exported node reads packed inputs, and has this kernel, too
                packed_kernel = replace(kernel, scope=None, packing=())
                self._known[(kernel.scope, kernel.inputs), is_constant] = packed_kernel
        return self._known[key, is_constant]

    def link(self, kernels: Collection[Kernel]) -> Path:
        """Returns the library of kernels that this object returned.

        Raises TensaurusError as `shared_library.link_library`, and where a kernel cannot be compiled, which
        then counts as none.
        """
        objects = self.tuner.object_compiler.compile([self._sources[kernel.name] for kernel in kernels])
        compiled = []
        for kernel, found in zip(kernels, objects, strict=True):
            if isinstance(found, str):
                self._drop(kernel.name, found)
                raise TensaurusError(f"a kernel cannot be compiled: {found}")
            compiled.append(replace(kernel, code=found))
        return linked_library(compiled)

    def _drop(self, name: str, reason: str) -> None:
        """Forgets a kernel, for a reason of one line."""
        self.dropped[reason] = None
        self._known.update({key: None for key, known in self._known.items() if known and known.name == name})

    def _compile_ahead(self, asked: Node, seconds: float) -> None:
        """Compiles the object of a node's kernel, and beside it, on other threads, those of planned kernels.

        Only where their schedules are known: a kernel that must be tuned takes all threads itself.
        """
        compiler, sources = self.tuner.object_compiler, dict[KernelSource, None]()
        for node in (asked, *self.planned):
            source = self._source_to_time(node, seconds)
            if source is not None and not compiler.has(source):
                sources[source] = None
            elif node is asked:
                return
            if len(sources) == compiler.threads:
                break
        compiler.compile([*sources], min(seconds, MAX_PATIENCE))

    def _source_to_time(self, node: Node, seconds: float) -> KernelSource | None:
        """Returns the kernel of a node that alone will be timed; None where others are, or it was timed."""
        scope, types, is_constant = _tuned_expression(node)
        has_sizes = all(kind.static for kind in (*types, node.tensor))
        if seconds < 0 or not has_sizes or self.tuner.known_schedule(scope, types, is_constant) is not None:
            return None
        return self.tuner.known_source(scope, types, node.tensor, is_constant, seconds)

    def _make_kernel(self, node: Node) -> Kernel | None:
        scope, types, is_constant = _tuned_expression(node)
        output = node.tensor
        try:
            seconds = self.seconds(self.tuner.least_seconds(scope, types, is_constant))
            began = monotonic()
            self._compile_ahead(node, seconds)
            schedule = self.tuner.best_schedule(scope, types, output, seconds, is_constant)
            if schedule is None:
                reason = "no schedule of it computes the expression" if seconds > 0 else "no time to tune it"
                self.dropped[reason] = None
                return None
            kernel = uncompiled_kernel(scope, types, output, schedule, self.tuner.cpu)
            self.schedules[kernel.name] = format_schedule(schedule)
            self._sources[kernel.name] = KernelSource(scope, types, output, schedule)
            record("kernel", name=kernel.name, tuning_seconds=monotonic() - began)
            return kernel
        except (ValueError, TensaurusError) as error:
            self.dropped[str(error).splitlines()[0]] = None
            return None


def _has_dear_function(scope: Scope) -> bool:
    """Whether the expression computes a function that takes longer than a read (`loop_nest`)."""
    return any(isinstance(body, Call) and body.fn not in CHEAP_FUNCTIONS for body in bodies(scope))


def _tuned_expression(node: Node) -> tuple[Scope, tuple[TensorType, ...], tuple[bool, ...]]:
    """Returns what a tuner is asked of an eOperator: its scope, the inputs' types, and which are constant."""
    types = tuple(kind for kind in node.arg_types() if kind is not None)
    return node.attribute("scope"), types, tuple(arg is not None and arg.static for arg in node.args)
