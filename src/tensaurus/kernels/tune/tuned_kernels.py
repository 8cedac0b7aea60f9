"""Kernels of eOperators, tuned when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from tensaurus.expr.ir.scope import Scope
from tensaurus.graph.ir.kernel import Kernel
from tensaurus.graph.ir.node import Node
from tensaurus.kernels.halide.compile import kernel_of
from tensaurus.kernels.stages.sketch import show
from tensaurus.kernels.tune.tune import Tuner
from tensaurus.ops import TensorType
from tensaurus.ops.eop import eop
from tensaurus.system.errors import TensaurusError

__all__ = ["Kernels"]


@dataclass
class Kernels:
    """Callable with a node: its kernel, or None where there is none.

    seconds    what tuning one kernel may take, when it is asked for; 0 where there is no time for it
    dropped    why eOperators have none, each reason once
    schedules  of those that were compiled, by their names
    """

    tuner: Tuner
    seconds: Callable[[], float]
    dropped: dict[str, None] = field(default_factory=dict)
    schedules: dict[str, str] = field(default_factory=dict)
    _known: dict[Any, Kernel | None] = field(default_factory=dict)

    def seconds_of(self, node: Node) -> float:
        """Of the fastest schedule that was measured of an eOperator; infinite where none was."""
        types = tuple(kind for kind in node.kinds() if kind is not None)
        fixed = tuple(arg is not None and arg.static for arg in node.args)
        rows = self.tuner.measured(node.attribute("scope"), types, fixed)
        return rows[0].seconds if rows else inf

    def __call__(self, node: Node) -> Kernel | None:
        """Compiled for the types of its arguments, which must have numbers for sizes."""
        if node.op is not eop:
            return None
        types = tuple(kind for kind in node.kinds() if kind is not None)
        if not all(isinstance(n, int) for kind in (*types, node.tensor) for n in kind.shape):
            return None
        scope = node.attribute("scope")
        key = scope, types
        fixed = tuple(arg is not None and arg.static for arg in node.args)
        if (key, fixed) not in self._known:
            found = self._known[key, fixed] = self._made(scope, types, fixed, node.tensor)
            if found is not None and found.scope is not None:
                # the node that it is written as has it, too
                own = replace(found, scope=None, packing=())
                self._known[(found.scope, found.inputs), fixed] = own
        return self._known[key, fixed]

    def _made(
        self, scope: Scope, types: tuple[TensorType, ...], fixed: tuple[bool, ...], output: TensorType
    ) -> Kernel | None:
        try:
            seconds = self.seconds()
            schedule = self.tuner.best(scope, types, output, seconds, fixed)
            if schedule is None:
                reason = "no schedule of it computes the expression" if seconds > 0 else "no time to tune it"
                self.dropped[reason] = None
                return None
            code = self.tuner.objects.code(scope, types, output, schedule)
            kernel = kernel_of(scope, types, output, schedule, code, self.tuner.cpu)
            self.schedules[kernel.name] = show(schedule)
            return kernel
        except (ValueError, TensaurusError) as error:
            self.dropped[str(error).splitlines()[0]] = None
            return None
