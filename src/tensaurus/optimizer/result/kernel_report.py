"""Describes the kernels of a result for users: what each replaces, what it computes, and its schedule.

A kernel computes an eOperator, whose attributes hold its expression: equal attributes are one kernel, and the
equations that were applied tell which operators the eOperator replaced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from onnx import ModelProto

from tensaurus.check.program.candidate import Candidate
from tensaurus.expr.ir.expression_text import show
from tensaurus.finders.fuse.composition import FUSED_PREFIX
from tensaurus.graph.ir.node import CONSTANT, ITEM, Node
from tensaurus.graph.ir.program import topological_order
from tensaurus.graph.onnx.onnx_frame import graphs_in
from tensaurus.ops.eop import eop
from tensaurus.ops.kernel_nodes import KERNEL_DOMAIN
from tensaurus.optimizer.result.summary import AppliedKernel, shorten
from tensaurus.optimizer.run.kernel_budget import KernelBudget
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.node_text import format_nodes

__all__ = ["describe_kernels", "make_titles"]


def describe_kernels(
    model: ModelProto, candidates: Sequence[Candidate], kernels: KernelBudget
) -> tuple[AppliedKernel, ...]:
    """Return the kernels of a model, the most frequent first, with the operators that each one replaces."""
    nodes = (node for graph in graphs_in(model.graph) for node in graph.node)
    counts = Counter(node.op_type for node in nodes if node.domain == KERNEL_DOMAIN)
    if not counts:
        return ()
    equations = [equation for candidate in candidates for equation in candidate.applied]
    replacements = _find_replacements(equations)
    attributes: dict[str, Any] = {}  # of the eOperator, by the name of its kernel
    for candidate in candidates:
        for node in candidate.program.active:
            if node.op is eop and (kernel := kernels(node)) is not None:
                attributes.setdefault(kernel.name, node.attrs)
    title = make_titles(equations)

    def describe(name: str, count: int) -> AppliedKernel:
        if (attrs := attributes.get(name)) is None:  # in no candidate's program: the original came with it
            return AppliedKernel(name, count, "", schedule=kernels.schedule(name))
        scope = shorten(show(dict(attrs)["scope"]))
        operators = shorten(format_nodes(replacements[attrs][0].replaced)) if attrs in replacements else ""
        return AppliedKernel(name, count, scope, operators, kernels.schedule(name), title(attrs))

    by_frequency = sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    return tuple(describe(name, count) for name, count in by_frequency)


class _Replacement(NamedTuple):
    """An equation whose right side is an eOperator, and the node on its left side that this replaced."""

    equation: Equation
    replaced: Node


def _find_replacements(equations: Iterable[Equation]) -> dict[Any, list[_Replacement]]:
    """Return by an eOperator's attributes the replacements that made it."""
    found: dict[Any, list[_Replacement]] = {}
    for equation in equations:
        for left, right in zip(equation.left, equation.right, strict=True):
            if right.op is eop:
                found.setdefault(right.attrs, []).append(_Replacement(equation, left))
    return found


def make_titles(equations: Iterable[Equation]) -> Callable[[Any], str]:
    """Return a function from an eOperator's attributes to a short title, for example F(4x4, 3x3) + Relu.

    In the example an equation named F(4x4, 3x3) replaced a Conv by an eOperator, and a fusion replaced that
    eOperator and the Relu after it by the one in question.  The title is "" where no equation made it.
    """
    replacements = _find_replacements(equations)

    def title(attrs: Any, enclosing: frozenset[Any] = frozenset()) -> str:
        """Return the title with the fewest steps; `enclosing` are eOperators whose titles are being made."""
        if attrs in enclosing:  # equations in a circle: this title would contain itself
            return ""
        found = [title_by(*one, enclosing | {attrs}) for one in replacements.get(attrs, ())]
        return min(filter(None, found), key=lambda text: text.count(", "), default="")

    def title_by(equation: Equation, replaced: Node, enclosing: frozenset[Any]) -> str:
        """Return the title that one equation gives.

        A fusion gives the titles of all nodes on its left side: "Conv + Relu".  Any other equation gives its
        own name, after the titles of the eOperators on its left side: "Conv + Relu, NAME".  Returns "" where
        one of these has equations but no title, because it was made from an eOperator in `enclosing`.
        """
        inner = topological_order([replaced], equation.leaves)
        computed = [node for node in inner if node.op not in (CONSTANT, ITEM) and not node.static]
        titles = [title(node.attrs, enclosing) if node.op is eop else str(node.op) for node in computed]
        titled = list(zip(computed, titles, strict=True))
        if any(not text and node.attrs in replacements for node, text in titled):
            return ""
        if equation.name.startswith(FUSED_PREFIX):
            return " + ".join(text or str(node.op) for node, text in titled)
        kernels = [text for node, text in titled if node.op is eop and text]
        return ", ".join([*kernels, equation.name])

    return title
