"""Describes the kernels of a result for users: what each replaces, what it computes, and its schedule.

A kernel computes an eOperator, whose attributes hold its expression: equal attributes are one kernel, and the
equations that were applied tell which operators the eOperator replaced.
"""

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
from tensaurus.optimizer.result.summary import AppliedKernel, shorten
from tensaurus.optimizer.run.kernel_budget import KernelBudget
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.nested_calls import format_nodes

__all__ = ["describe_kernels", "make_titles"]


def describe_kernels(
    model: ModelProto, candidates: Sequence[Candidate], kernels: KernelBudget
) -> tuple[AppliedKernel, ...]:
    """Return the kernels of a model, the most frequent first, with the operators that each one replaces."""
    nodes = (node for graph in graphs_in(model.graph) for node in graph.node)
    counts = Counter(node.op_type for node in nodes if node.domain == KERNELS)
    if not counts:
        return ()
    equations = [equation for candidate in candidates for equation in candidate.applied]
    replaced: dict[Any, str] = {}  # the operators, as nested calls, by the eOperator's attributes
    for equation in equations:
        for left, right in zip(equation.left, equation.right, strict=True):
            if right.op is eop:
                replaced.setdefault(right.attrs, format_nodes(left))
    attributes: dict[str, Any] = {}  # of the eOperator, by the name of its kernel
    for candidate in candidates:
        for node in candidate.program.active:
            if node.op is eop and (kernel := kernels(node)) is not None:
                attributes.setdefault(kernel.name, node.attrs)
    title = make_titles(equations)
    # of a kernel that no candidate's program has (as one that the original came with) only the name is known
    return tuple(
        AppliedKernel(
            name,
            count,
            shorten(show(dict(attributes[name])["scope"])) if name in attributes else "",
            shorten(replaced.get(attributes[name], "")) if name in attributes else "",
            kernels.schedule(name),
            title(attributes[name]) if name in attributes else "",
        )
        for name, count in sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    )


def make_titles(equations: Iterable[Equation]) -> Callable[[Any], str]:
    """Return a function from an eOperator's attributes to a short title, for example F(4x4, 3x3) + Relu.

    In the example an equation named F(4x4, 3x3) replaced a Conv by an eOperator, and a fusion replaced that
    eOperator and the Relu after it by the one in question.  The title is "" where no equation made it.
    """
    # by an eOperator's attributes: the equations that made it, with the left side that each replaced
    makers: dict[Any, list[tuple[Equation, Node]]] = {}
    for equation in equations:
        for left, right in zip(equation.left, equation.right, strict=True):
            if right.op is eop:
                makers.setdefault(right.attrs, []).append((equation, left))

    def title(attrs: Any, enclosing: frozenset[Any] = frozenset()) -> str:
        """Return the title with the fewest steps; `enclosing` are eOperators whose titles are being made."""
        if attrs in enclosing:  # equations in a circle: this title would contain itself
            return ""
        found = [title_by(*maker, enclosing | {attrs}) for maker in makers.get(attrs, ())]
        return min(filter(None, found), key=lambda words: words.count(", "), default="")  # the fewest steps

    def title_by(equation: Equation, left: Node, enclosing: frozenset[Any]) -> str:
        """Return the title that one equation gives.

        A fusion gives the titles of all nodes on its left side: "Conv + Relu".  Any other equation gives its
        own name, after the titles of the eOperators on its left side: "Conv + Relu, NAME".  Returns "" where
        one of these has equations but no title, because it was made from an eOperator in `enclosing`.
        """
        inner = topological_order([left], equation.leaves)
        computed = [node for node in inner if node.op not in (CONSTANT, ITEM) and not node.static]
        words = [title(node.attrs, enclosing) if node.op is eop else str(node.op) for node in computed]
        if any(not word and node.attrs in makers for word, node in zip(words, computed, strict=True)):
            return ""
        if equation.name.startswith(FUSED_PREFIX):
            return " + ".join(word or str(node.op) for word, node in zip(words, computed, strict=True))
        kernels = [word for word, node in zip(words, computed, strict=True) if node.op is eop and word]
        return ", ".join([*kernels, equation.name])

    return title
