"""States that a convolution equals its fast algorithm, as an equation (example: `finders/bilinear`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tensaurus.finders.bilinear.fast_convolution import fast_scope, transform_weights
from tensaurus.finders.bilinear.recognize_convolution import recognize_convolution
from tensaurus.finders.bilinear.tiling import Algorithms
from tensaurus.graph.ir.node import Node, apply, replace_args
from tensaurus.graph.ir.piece import Piece
from tensaurus.ops import Untypable
from tensaurus.ops.eop import eop
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.evidence import Tested
from tensaurus.rules.language.node_text import format_nodes

__all__ = ["fast_convolution_equation", "format_algorithms"]


def format_algorithms(algorithms: Algorithms) -> str:
    """Formats outputs and taps of each dimension, 1 without an algorithm: F(4x4, 3x3) in steps of 2x2."""
    sizes_of = [(a.outputs, a.taps, a.step) if a else (1, 1, 1) for a in algorithms]
    outputs, taps, steps = ("x".join(map(str, sizes)) for sizes in zip(*sizes_of, strict=True))
    stepping = any(a.step > 1 for a in algorithms if a)
    return f"F({outputs}, {taps})" + (f" in steps of {steps}" if stepping else "")


def fast_convolution_equation(node: Node, algorithms: Algorithms) -> Equation | None:
    """Returns the equation of a convolution node and an eOperator of its data and its transformed weights.

    `algorithms` has one entry for each spatial dimension, None for no algorithm. Returns None where the node
    is no convolution, or the eOperator would have another type. Raises ValueError for an algorithm of other
    taps or steps than its dimension has.
    """
    recognized = recognize_convolution(node)
    if recognized is None:
        return None
    convolution = recognized.convolution
    weights = apply(eop, [recognized.weights], {"scope": transform_weights(convolution, algorithms)})
    args = [recognized.data, weights, *filter(None, (recognized.bias,))]
    # a scope over symbols: the eOperator can then be bound to data of other sizes (`ops/eop`)
    right = apply(eop, args, {"scope": fast_scope(convolution.over_any_sizes, algorithms)})
    if right.types != node.types:
        return None
    points = "; ".join(dict.fromkeys(str(a) for a in algorithms if a))
    evidence = Tested("gf", f"{points}: multiplied out; and where it is used")
    law = f"{format_nodes(node)} => {format_nodes(right)}"
    name = format_algorithms(algorithms)
    return _ConvolutionEquation(name, law, (node,), (right,), Piece.of(node).leaves, evidence, algorithms)


@dataclass(frozen=True)
class _ConvolutionEquation(Equation):
    """A fast convolution, which holds for all sizes: at other sizes the tiles' expression is built again."""

    algorithms: Algorithms = ()

    def over(self, leaves: Mapping[Node, Node]) -> Equation:
        if all(old.types == new.types for old, new in leaves.items()):
            return super().over(leaves)
        (node,) = self.left
        left = replace_args(node, tuple(arg and leaves.get(arg, arg) for arg in node.args))
        if (equation := fast_convolution_equation(left, self.algorithms)) is None:
            raise Untypable(f"{format_nodes(left)} is no convolution at these sizes")
        return equation
