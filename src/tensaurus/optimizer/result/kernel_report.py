"""The kernels of a result, told for people: where each comes from, what it computes and how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from onnx import ModelProto

from tensaurus.check.program.candidate import Candidate
from tensaurus.expr.ir.expression_text import show
from tensaurus.finders.fuse.composition import FUSED_PREFIX
from tensaurus.graph.ir.node import CONSTANT, ITEM, Node
from tensaurus.graph.ir.program import topological_order
from tensaurus.graph.onnx.onnx_frame import graphs_in
from tensaurus.ops.eop import eop
from tensaurus.ops.kernel_form import KERNELS
from tensaurus.optimizer.result.summary import AppliedKernel, shortened
from tensaurus.optimizer.run.kernel_budget import KernelBudget
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.nested_calls import format_nodes

__all__ = ["applied_kernels", "titles"]


def applied_kernels(
    model: ModelProto, candidates: Sequence[Candidate], kernels: KernelBudget
) -> tuple[AppliedKernel, ...]:
    """Those of the result, the most frequent first, each with the operators that its equation replaces."""
    nodes = (node for graph in graphs_in(model.graph) for node in graph.node)
    counts = Counter(node.op_type for node in nodes if node.domain == KERNELS)
    if not counts:
        return ()
    equations = [equation for candidate in candidates for equation in candidate.applied]
    replaced: dict[Any, str] = {}
    for equation in equations:
        for left, right in zip(equation.left, equation.right, strict=True):
            if right.op is eop:
                replaced.setdefault(right.attrs, format_nodes(left))
    used: dict[str, Any] = {}  # attributes of the eOperator, by the name of its kernel
    for candidate in candidates:
        for node in candidate.program.active:
            if node.op is eop and (kernel := kernels(node)) is not None:
                used.setdefault(kernel.name, node.attrs)
    title = titles(equations)
    return tuple(
        AppliedKernel(
            name,
            count,
            shortened(show(dict(used[name])["scope"])) if name in used else "",
            shortened(replaced.get(used[name], "")) if name in used else "",
            kernels.schedule(name),
            title(used[name]) if name in used else "",
        )
        for name, count in sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    )


def titles(equations: Iterable[Equation]) -> Callable[[Any], str]:
    """What an eOperator of these attributes is in short, as F(4x4, 3x3) + Relu, by the equations that made
    it; "" of one that none of them made."""
    made: dict[Any, list[tuple[Equation, Node]]] = {}
    for equation in equations:
        for left, right in zip(equation.left, equation.right, strict=True):
            if right.op is eop:
                made.setdefault(right.attrs, []).append((equation, left))

    def title(attrs: Any, around: frozenset[Any] = frozenset()) -> str:
        if attrs in around:
            return ""
        found = [of(*maker, around | {attrs}) for maker in made.get(attrs, ())]
        return min(filter(None, found), key=lambda words: words.count(", "), default="")  # fewest detours

    def of(equation: Equation, left: Node, around: frozenset[Any]) -> str:
        """By one of its equations; "" where that leads back to what it is to be told of."""
        inner = topological_order([left], equation.leaves)
        computed = [node for node in inner if node.op not in (CONSTANT, ITEM) and not node.static]
        words = [title(node.attrs, around) if node.op is eop else str(node.op) for node in computed]
        if any(not word and node.attrs in made for word, node in zip(words, computed, strict=True)):
            return ""
        if equation.name.startswith(FUSED_PREFIX):
            return " + ".join(word or str(node.op) for word, node in zip(words, computed, strict=True))
        kernels = [word for word, node in zip(words, computed, strict=True) if node.op is eop and word]
        return ", ".join([*kernels, equation.name])

    return title
