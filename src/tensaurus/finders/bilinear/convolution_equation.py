"""A convolution and its fast algorithm, as an equation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tensaurus.finders.bilinear.fast_convolution import fast, transformed
from tensaurus.finders.bilinear.recognize_convolution import recognised
from tensaurus.finders.bilinear.tiling import Algorithms
from tensaurus.graph.ir.node import Node, again, apply
from tensaurus.ops import Untypable
from tensaurus.ops.eop import eop
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.evidence import Tested
from tensaurus.rules.language.nested_calls import said

__all__ = ["convolution", "named"]

def named(algorithms: Algorithms) -> str:
    """F(4x4, 3x3) in steps of 2x2: outputs and taps along each dimension; 1 where it is direct."""
    found = [(a.outputs, a.taps, a.step) if a else (1, 1, 1) for a in algorithms]
    outputs, taps, steps = ("x".join(map(str, sizes)) for sizes in zip(*found, strict=True))
    stepping = any(a.step > 1 for a in algorithms if a)
    return f"F({outputs}, {taps})" + (f" in steps of {steps}" if stepping else "")


def convolution(node: Node, algorithms: Algorithms) -> Equation | None:
    """The convolution that a node is equals an eOperator of its data and its weights, transformed.

    An algorithm for each spatial dimension, None where it is direct.  None where the node is no convolution.
    Raises ValueError for an algorithm of other taps or steps than a dimension has.
    """
    found = recognised(node)
    if found is None:
        return None
    leaves = tuple(dict.fromkeys(arg for arg in node.args if arg is not None))
    weights = apply(eop, [found.w], {"scope": transformed(found.convolution, algorithms)})
    args = [found.x, weights, *([found.b] if found.b is not None else [])]
    right = apply(eop, args, {"scope": fast(found.convolution.over_all, algorithms)})
    if right.types != node.types:
        return None
    points = "; ".join(dict.fromkeys(str(a) for a in algorithms if a))
    evidence = Tested("gf", f"{points}: multiplied out; and where it is used")
    law = f"{said(node)} => {said(right)}"
    return _Tiled(named(algorithms), law, (node,), (right,), leaves, evidence, algorithms)


@dataclass(frozen=True)
class _Tiled(Equation):
    """It holds for all sizes: over leaves of others the tiles are laid out again."""

    algorithms: Algorithms = ()

    def over(self, leaves: Mapping[Node, Node]) -> Equation:
        if all(old.types == new.types for old, new in leaves.items()):
            return super().over(leaves)
        (node,) = self.left
        left = again(node, tuple(arg and leaves.get(arg, arg) for arg in node.args))
        if (made := convolution(left, self.algorithms)) is None:
            raise Untypable(f"{said(left)} is no convolution at these sizes")
        return made
