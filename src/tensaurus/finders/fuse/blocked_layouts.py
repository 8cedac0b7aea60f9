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

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.finder_protocol import Proposal
from tensaurus.expr.ir.scope import Body, Read, Reduce, Scope, Source, Table, Tensor, axis, digit_axes
from tensaurus.expr.ir.walk import Rewriting, reads, replace_axes, tensors
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.expr.sizes.size import Atom, Axis, Floor, Size, atoms, floordiv, mod, polynomial
from tensaurus.graph.ir.node import Node, apply, replace_args
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.ops import TensorType, Untypable
from tensaurus.ops.eop import eop
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.evidence import Tested
from tensaurus.rules.language.nested_calls import format_nodes
from tensaurus.runtimes.price.roofline import ONE_CORE, Roofline, estimate

__all__ = [
    "Blocked",
    "block_tensor",
    "is_blockable",
    "blocked_equation",
    "inverse_equation",
    "block_scope",
    "unblock_tensor",
]

CHANNEL_AXIS = 1  # the dimension of channels, in ONNX
MAX_ROUNDS = 6  # passes that split axes: splitting axes of a scope may split those of a nested one
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

    def __call__(self, graph: EGraph, room: int) -> Iterator[Proposal]:
        """Yields proposals for about `room` e-nodes."""
        equations = (each for program in graph.programs for each in self.find_equations(program))
        for equation in islice(equations, max(room // 8, 0)):  # an equation adds about 8 e-nodes
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
            # inputs and output in blocks, only inputs, or only the output
            choices = dict.fromkeys(
                (
                    (blocked_inputs, is_read_blocked),
                    (blocked_inputs, False),
                    (frozenset[int](), is_read_blocked),
                )
            )
            equations = [
                e
                for inputs, output in choices
                if (e := self._cached_equation(node, inputs, output)) is not None
            ]
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
    return apply(eop, [node], {"scope": _block_scope(node.tensor.shape, node.tensor.dtype, width)})


def unblock_tensor(node: Node) -> Node:
    """Returns the conversion of a tensor in blocked layout to the plain one."""
    return apply(eop, [node], {"scope": _unblock_scope(node.tensor.shape, node.tensor.dtype)})


@lru_cache(1000)
def _block_scope(shape: tuple[Size, ...], dtype: str, width: int) -> Scope:
    axes = [axis(n) for n in shape]
    indices: list[Size] = [polynomial(a) for a in axes]
    axes[CHANNEL_AXIS], inner, indices[CHANNEL_AXIS] = digit_axes(axes[CHANNEL_AXIS], width)
    return intern_scope(Scope((*axes, inner), Read(Tensor("x0", shape, dtype), tuple(indices))))


@lru_cache(1000)
def _unblock_scope(shape: tuple[Size, ...], dtype: str) -> Scope:
    *plain, width = shape
    assert isinstance(width, int)
    axes = [axis(n * width if k == CHANNEL_AXIS else n) for k, n in enumerate(plain)]
    return intern_scope(
        Scope(tuple(axes), Read(Tensor("x0", shape, dtype), _block_indices(map(polynomial, axes), width)))
    )


def _block_indices(indices: Iterable[Size], width: int) -> tuple[Size, ...]:
    """Returns the indices in the blocked layout for indices in the plain one."""
    blocked = list(indices)
    channel = blocked[CHANNEL_AXIS]
    blocked[CHANNEL_AXIS] = floordiv(channel, width)
    return (*blocked, mod(channel, width))


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
    scope = block_scope(node.attribute("scope"), {f"x{k}" for k in inputs}, output, width)
    if scope is None:
        return None
    args = [block_tensor(arg, width) if arg and k in inputs else arg for k, arg in enumerate(node.args)]
    right, left = apply(eop, args, {"scope": scope}), block_tensor(node, width) if output else node
    if right.types != left.types:
        return None
    law = f"{format_nodes(left)} => {format_nodes(right)}"
    origin = node, frozenset(inputs), output, width
    return _BlockedEquation(
        "in-blocks", law, (left,), (right,), _distinct_args(node), TESTED_WHERE_USED, *origin
    )


def block_scope(scope: Scope, inputs: Collection[str], output: bool, width: int) -> Scope | None:
    """Rewrites a scope for these inputs, and perhaps the output, in blocks; all sizes must be numbers.

    Returns None where a read would cross blocks.
    """
    # read and write blocks, then split the axes that are read by block and lane
    blocked = {x: _blocked_tensor(x, width) for x in tensors(scope) if x.name in inputs}
    scope = _ReadBlockedTensors(blocked, width).scope(scope)
    if output:
        scope = _block_result(scope, width)
    for _ in range(MAX_ROUNDS):
        before, scope = scope, intern_scope(_SplitAxes(scope, width).split_all())
        if scope is before:
            break
    blocks = [r.indices[CHANNEL_AXIS] for r in reads(scope, nested=True) if r.source in blocked.values()]
    blocks += [i for r in reads(scope) if isinstance(r.source, Scope) for i in r.indices]
    if any(isinstance(atom, Floor) for index in blocks for atom in atoms(index)):
        return None  # an axis that could not be split runs across blocks
    return scope


def _blocked_tensor(x: Tensor, width: int) -> Tensor:
    shape = list(x.shape)
    shape[CHANNEL_AXIS] = floordiv(shape[CHANNEL_AXIS], width)
    return Tensor(x.name, (*shape, width), x.dtype)


def _block_result(scope: Scope, width: int) -> Scope:
    """Returns the scope with its result in blocks."""
    axes = list(scope.axes)
    channel = axes[CHANNEL_AXIS]
    axes[CHANNEL_AXIS], inner, place = digit_axes(channel, width)
    return Scope((*axes, inner), replace_axes(scope.body, {channel: place}))


def _distinct_args(node: Node) -> tuple[Node, ...]:
    return tuple(dict.fromkeys(arg for arg in node.args if arg is not None))


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


class _ReadBlockedTensors(Rewriting):
    """Reads tensors in their blocked layouts, out of range wherever the plain layout is read so."""

    def __init__(self, tensors_: Mapping[Tensor, Tensor], width: int):
        super().__init__()
        self.tensors, self.width = tensors_, width

    def read(self, read: Read) -> Read:
        rewritten = super().read(read)
        if isinstance(rewritten.source, Tensor) and rewritten.source in self.tensors:
            return Read(
                self.tensors[rewritten.source],
                _block_indices(rewritten.indices, self.width),
                rewritten.outside,
            )
        return rewritten


class _SplitAxes(Rewriting):
    """Splits axes that are read by quotient and remainder of the block width into these two digits."""

    def __init__(self, outermost: Scope, width: int):
        super().__init__()
        self.outermost, self.width = outermost, width
        # {identity of an inner scope: (this scope, its form with split axes, the numbers of these)}
        self._stages: dict[int, tuple[Scope, Scope, list[int]]] = {}
        # (identity of a scope, number of its axis) for axes that are read by both digits
        self._read_by_digits = {
            (id(read.source), k)
            for read in reads(outermost, nested=True)
            for k, index in enumerate(read.indices)
            if self._is_block_and_lane(index)
        }

    def split_all(self) -> Scope:
        """Returns the scope with axes of inner scopes and reductions split; its own axes stay."""
        return Scope(self.outermost.axes, self.body(self.outermost.body))

    def _is_block_and_lane(self, index: Size) -> bool:
        """Whether the index is width * block + lane, with 0 <= lane < width."""
        low = atoms(mod(index, self.width))
        inside = next(iter(low), None)
        if len(low) != 1 or not isinstance(inside, Axis) or inside.extent != self.width:
            return False
        rest = index - polynomial(inside)
        return bool(rest != 0 and floordiv(rest, self.width) * self.width == rest)

    def split_stage(self, scope: Scope) -> tuple[Scope, list[int]]:
        """Returns an inner scope with split axes, and their numbers; the low digits become the last axes.

        An axis is split where the scope reads by its quotient, or where readers give the scope both digits.
        """
        if id(scope) not in self._stages:
            body = self.body(scope.body)
            split = [
                k
                for k, a in enumerate(scope.axes)
                if self._is_read_by_quotient(body, a)
                or (id(scope), k) in self._read_by_digits
                and self._is_divisible(a)
            ]
            axes, lows = list(scope.axes), list[Axis]()
            values: dict[Atom, Size] = {}
            for k in split:
                high, low, values[scope.axes[k]] = digit_axes(scope.axes[k], self.width)
                axes[k] = high
                lows.append(low)
            result = Scope((*axes, *lows), replace_axes(body, values))
            self._stages[id(scope)] = scope, result, split
        _, result, split = self._stages[id(scope)]
        return result, split

    def read(self, read: Read) -> Read:
        rewritten = super().read(read)
        if not isinstance(read.source, Scope):
            return rewritten
        # read the split scope by quotients in place of the split axes, and by remainders behind all axes
        stage, split = self.split_stage(read.source)
        indices = list(rewritten.indices)
        lows = [mod(indices[k], self.width) for k in split]
        for k in split:
            indices[k] = floordiv(indices[k], self.width)
        return Read(stage, (*indices, *lows), rewritten.outside)

    def source(self, source: Source) -> Source:
        return source  # `read` rewrites scopes

    def body(self, body: Body) -> Body:
        if not isinstance(body, Reduce):
            return super().body(body)
        inner = self.body(body.body)
        axes, values = list[Axis](), dict[Atom, Size]()
        for a in body.axes:
            if self._is_read_by_quotient(inner, a):
                high, low, values[a] = digit_axes(a, self.width)
                axes += [high, low]
            else:
                axes.append(a)
        return Reduce(body.monoid, tuple(axes), replace_axes(inner, values))

    def _is_divisible(self, a: Axis) -> bool:
        return isinstance(a.extent, int) and a.extent % self.width == 0 and a.extent > self.width

    def _is_read_by_quotient(self, body: Body, a: Axis) -> bool:
        if not self._is_divisible(a):
            return False
        read = (index for each in reads(body) for index in each.indices)
        tops = (atom.top for index in read for atom in atoms(index) if isinstance(atom, Floor))
        return any(a in atoms(top) for top in tops)
