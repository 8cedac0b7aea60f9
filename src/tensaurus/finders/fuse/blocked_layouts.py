"""Proposes kernels in blocked layouts: channels in blocks, the elements of a block side by side.

    y = K(x)   ->   y = K'(block(x)),   block(y) = K''(x),   block(y) = K'''(block(x))
    unblock(block(y))   ->   y

    block(x)[n:1, a:6, i:7, j:7, b:16] = x[n, 16*a + b, i, j]           nChw16c of x [1, 96, 7, 7]

K is a kernel, and K', K'' and K''' are its forms with blocked input, output or both. Conversions are
eOperators like any other, so extraction decides where they stand; two kernels that both have the layout need
none between them. A form has K's expression with rewritten indices: axes that are read by block and by
position in the block (lane) are split in two, a:96 into a high digit a1:6 and a low digit b:16.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.finder_protocol import Proposal
from tensaurus.expr.ir.scope import Table
from tensaurus.expr.ir.walk import reads
from tensaurus.finders.fuse.blocked_expression import (
    CHANNEL_AXIS,
    block_kernel,
    conversion_from_blocks,
    conversion_to_blocks,
)
from tensaurus.graph.ir.node import Node, apply, replace_args
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.ops import TensorType, Untypable
from tensaurus.ops.eop import eop
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.evidence import Tested
from tensaurus.rules.language.node_text import format_nodes
from tensaurus.runtimes.price.roofline import ONE_CORE, Roofline, estimate

__all__ = [
    "Blocked", "block_tensor", "blocked_equation", "inverse_equation", "is_blockable", "unblock_tensor"
]  # fmt: skip

SLOW_FACTOR = 3.0  # a kernel slower than this multiple of its estimate may be slow because of the layout
MIN_EXCESS = 0.02  # fraction of a program's time that slow kernels must lose before blocked ones are proposed
TESTED_WHERE_USED = Tested("gf", "where it is used")


@dataclass
class Blocked:
    """Finds kernels of the e-graph's programs in blocked layouts, as a `Finder`.

    width    elements of a block
    seconds  returns the time of an operator, or None where it is not known
    _known   the equation of each (kernel, numbers of its inputs in blocks, whether its output is)
    """

    width: int
    seconds: Callable[[Node], float | None] = lambda node: None
    roofline: Roofline = ONE_CORE
    _known: dict[tuple[Node, frozenset[int], bool], Equation | None] = field(default_factory=dict, repr=False)

    def __call__(self, graph: EGraph, max_new_enodes: int) -> Iterator[Proposal]:
        """Yields proposals for about `max_new_enodes` e-nodes."""
        equations = (each for program in graph.programs for each in self.find_equations(program))
        for equation in islice(equations, max(max_new_enodes // 8, 0)):  # an equation adds about 8 e-nodes
            yield Proposal(equation, tuple(map(graph.insert_term, equation.leaves)))

    def find_equations(self, program: Program) -> Iterator[Equation]:
        """Yields equations for a program's slow kernels, and their neighbours, which saves conversions."""
        kernels = [node for node in program.active if node.op is eop and not _is_fast_algorithm(node)]
        excess = {node: self._excess_seconds(node) for node in kernels}
        total = sum(filter(None, map(self.seconds, program.active)))
        if sum(excess.values()) < MIN_EXCESS * total or not total:
            return
        # (kernel, its reader), one of them slow: between them a tensor can stay in blocks
        pairs = [
            (arg, node)
            for node in kernels
            for arg in node.args
            if arg in excess and (excess[arg] or excess[node]) and is_blockable(arg.types[0], self.width)
        ]
        for node in kernels:
            blocked_inputs = frozenset(k for k, arg in enumerate(node.args) if (arg, node) in pairs)
            is_read_blocked = any(arg is node for arg, _ in pairs)
            both, only_inputs = (blocked_inputs, is_read_blocked), (blocked_inputs, False)
            only_output = frozenset[int](), is_read_blocked
            choices = dict.fromkeys((both, only_inputs, only_output))
            found = (self._cached_equation(node, inputs, output) for inputs, output in choices)
            equations = [equation for equation in found if equation is not None]
            yield from equations
            if any(e.left[0] is not node for e in equations):  # block(node): other readers need it plain
                yield inverse_equation(node, self.width)

    def _excess_seconds(self, node: Node) -> float:
        """Returns the seconds that a slow kernel takes beyond its estimate; 0 for other kernels."""
        estimated, measured = estimate(Piece.of(node), self.roofline), self.seconds(node)
        return measured - estimated if measured is not None and measured > SLOW_FACTOR * estimated else 0.0

    def _cached_equation(self, node: Node, inputs: frozenset[int], output: bool) -> Equation | None:
        key = node, inputs, output
        if key not in self._known:
            self._known[key] = blocked_equation(node, inputs, output, self.width)
        return self._known[key]


def _is_fast_algorithm(node: Node) -> bool:
    """Whether the kernel is a fast algorithm, which transposes its data within registers itself."""
    return any(isinstance(r.source, Table) for r in reads(node.attribute("scope"), nested=True))


def is_blockable(kind: object, width: int) -> bool:
    """Whether a tensor has channels that blocks divide, and other dimensions after them."""
    if not isinstance(kind, TensorType) or len(kind.shape) < 3:
        return False
    sizes = [n for n in kind.shape[CHANNEL_AXIS:] if isinstance(n, int)]
    if len(sizes) < len(kind.shape) - CHANNEL_AXIS or not kind.static:
        return False
    channels, *others = sizes
    return channels > 0 and channels % width == 0 and any(n != 1 for n in others)


def block_tensor(node: Node, width: int) -> Node:
    """Returns the conversion of a tensor to the blocked layout."""
    return apply(eop, [node], {"scope": conversion_to_blocks(node.tensor.shape, node.tensor.dtype, width)})


def unblock_tensor(node: Node) -> Node:
    """Returns the conversion of a tensor in blocked layout to the plain one."""
    return apply(eop, [node], {"scope": conversion_from_blocks(node.tensor.shape, node.tensor.dtype)})


def inverse_equation(node: Node, width: int) -> Equation:
    """Returns the equation unblock(block(x)) = x for the node's type."""
    left = unblock_tensor(block_tensor(node, width))
    law = f"{format_nodes(left)} => {format_nodes(node)}"
    return Equation("unblocked", law, (left,), (node,), (node,), TESTED_WHERE_USED)


def blocked_equation(node: Node, inputs: Collection[int], output: bool, width: int) -> Equation | None:
    """Returns the equation of an eOperator and its form with these inputs, and perhaps the output, in blocks.

    Returns None where no tensor is in blocks, or where a read would cross blocks.
    """
    if not inputs and not output:
        return None
    scope = block_kernel(node.attribute("scope"), {f"x{k}" for k in inputs}, output, width)
    if scope is None:
        return None
    args = [block_tensor(arg, width) if arg and k in inputs else arg for k, arg in enumerate(node.args)]
    right, left = apply(eop, args, {"scope": scope}), block_tensor(node, width) if output else node
    if right.types != left.types:
        return None
    law = f"{format_nodes(left)} => {format_nodes(right)}"
    origin = node, frozenset(inputs), output, width
    return _BlockedEquation(
        "in-blocks", law, (left,), (right,), Piece.of(node).leaves, TESTED_WHERE_USED, *origin
    )


@dataclass(frozen=True)
class _BlockedEquation(Equation):
    """A kernel in blocks, for all sizes that blocks divide: over other leaves it is rewritten again."""

    node: Node
    inputs: frozenset[int]
    output: bool
    width: int

    def over(self, leaves: Mapping[Node, Node]) -> Equation:
        node = replace_args(self.node, tuple(arg and leaves.get(arg, arg) for arg in self.node.args))
        tensors = [node.args[k] for k in self.inputs] + ([node] if self.output else [])
        fits = all(x is not None and is_blockable(x.types[0], self.width) for x in tensors)
        equation = blocked_equation(node, self.inputs, self.output, self.width) if fits else None
        if equation is not None:
            return equation
        raise Untypable(f"{format_nodes(node)} is not in blocks of {self.width} at these sizes")
