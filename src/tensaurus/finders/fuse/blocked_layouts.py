"""Kernels in blocked layouts: the channels of a tensor in blocks, each block's elements side by side.

    y = K(x)   ->   block(y) = K'(block(x)),   y = K''(block(x)),   block(y) = K'''(x)
    unblock(block(y))   ->   y

    block(x)[n:1, a:6, i:7, j:7, b:16] = x[n, 16*a + b, i, j]           nChw16c of x [1, 96, 7, 7]

Conversions are eOperators as any other, so that the extraction decides where they stand; between two kernels
that both have the layout there is none.  K' reads and writes other places, its axes and reductions in the
digits of these.
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
from tensaurus.graph.ir.node import Node, again, apply
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.ops import TensorType, Untypable
from tensaurus.ops.eop import eop
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.evidence import Tested
from tensaurus.rules.language.nested_calls import said
from tensaurus.runtimes.price.roofline import ONE_CORE, Roofline, estimate

__all__ = ["Blocked", "block", "blockable", "in_blocks", "inverse", "relaid", "unblock"]

CHANNELS = 1  # the dimension of channels, in ONNX
ROUNDS = 6  # stages within stages
SLOW = 3.0  # times its estimate, beyond which a kernel may owe its time to the layout
WORTH = 0.02  # of a program's time, that its slow kernels take beyond their estimates, at least
USED = Tested("gf", "where it is used")


@dataclass
class Blocked:
    """The eOperators of the e-graph's programs in blocked layouts, as a `Finder`.

    width    elements of a block
    seconds  what an operator takes; None where it is not known
    """

    width: int
    seconds: Callable[[Node], float | None] = lambda node: None
    roofline: Roofline = ONE_CORE
    _known: dict[tuple[Node, frozenset[int], bool], Equation | None] = field(default_factory=dict, repr=False)

    def __call__(self, graph: EGraph, room: int) -> Iterator[Proposal]:
        """What kernels are in blocks, in about so many e-nodes."""
        found = (each for program in graph.programs for each in self.of(program))
        for equation in islice(found, max(room // 8, 0)):
            yield Proposal(equation, tuple(map(graph.adopt, equation.leaves)))

    def of(self, program: Program) -> Iterator[Equation]:
        """Of a program's kernels that are slow, and of those between which no conversion would stand."""
        kernels = [node for node in program.active if node.op is eop and not _transforms(node)]
        excess = {node: self._excess(node) for node in kernels}
        whole = sum(filter(None, map(self.seconds, program.active)))
        if sum(excess.values()) < WORTH * whole or not whole:
            return
        pairs = [
            (arg, node)
            for node in kernels
            for arg in node.args
            if arg in excess and (excess[arg] or excess[node]) and blockable(arg.types[0], self.width)
        ]
        for node in kernels:
            places = frozenset(k for k, arg in enumerate(node.args) if (arg, node) in pairs)
            written = any(arg is node for arg, _ in pairs)
            ways = dict.fromkeys(((places, written), (places, False), (frozenset[int](), written)))
            made = [e for inputs, output in ways if (e := self._in_blocks(node, inputs, output)) is not None]
            yield from made
            if any(e.left[0] is not node for e in made):
                yield inverse(node, self.width)

    def _excess(self, node: Node) -> float:
        """Seconds that a kernel takes beyond its estimate, where it is slow."""
        least, now = estimate(Piece.of(node), self.roofline), self.seconds(node)
        return now - least if now is not None and now > SLOW * least else 0.0

    def _in_blocks(self, node: Node, inputs: frozenset[int], output: bool) -> Equation | None:
        key = node, inputs, output
        if key not in self._known:
            self._known[key] = in_blocks(node, inputs, output, self.width)
        return self._known[key]


def _transforms(node: Node) -> bool:
    """Whether it is a fast algorithm, whose kernel turns what it reads and writes within registers."""
    return any(isinstance(r.source, Table) for r in reads(node.attribute("scope"), nested=True))


def blockable(kind: object, width: int) -> bool:
    """Whether a tensor has channels that blocks divide, and something behind them."""
    if not isinstance(kind, TensorType) or len(kind.shape) < 3:
        return False
    sizes_of = [n for n in kind.shape[CHANNELS:] if isinstance(n, int)]
    if len(sizes_of) < len(kind.shape) - CHANNELS or not kind.static:
        return False
    channels, *others = sizes_of
    return channels > 0 and channels % width == 0 and any(n != 1 for n in others)


def block(node: Node, width: int) -> Node:
    """The tensor in blocks."""
    return apply(eop, [node], {"scope": _block(node.tensor.shape, node.tensor.dtype, width)})


def unblock(node: Node) -> Node:
    """The tensor that stands in blocks in another."""
    return apply(eop, [node], {"scope": _unblock(node.tensor.shape, node.tensor.dtype)})


@lru_cache(1000)
def _block(shape: tuple[Size, ...], dtype: str, width: int) -> Scope:
    own = [axis(n) for n in shape]
    places: list[Size] = [polynomial(a) for a in own]
    own[CHANNELS], inner, places[CHANNELS] = digit_axes(own[CHANNELS], width)
    return intern_scope(Scope((*own, inner), Read(Tensor("x0", shape, dtype), tuple(places))))


@lru_cache(1000)
def _unblock(shape: tuple[Size, ...], dtype: str) -> Scope:
    *plain, width = shape
    assert isinstance(width, int)
    own = [axis(n * width if k == CHANNELS else n) for k, n in enumerate(plain)]
    return intern_scope(
        Scope(tuple(own), Read(Tensor("x0", shape, dtype), _place(map(polynomial, own), width)))
    )


def _place(indices: Iterable[Size], width: int) -> tuple[Size, ...]:
    """The place in blocks of a place."""
    found = list(indices)
    channel = found[CHANNELS]
    found[CHANNELS] = floordiv(channel, width)
    return (*found, mod(channel, width))


def inverse(node: Node, width: int) -> Equation:
    """unblock(block(x)) = x, of any x of that type."""
    left = unblock(block(node, width))
    return Equation("unblocked", f"{said(left)} => {said(node)}", (left,), (node,), (node,), USED)


def in_blocks(node: Node, inputs: Collection[int], output: bool, width: int) -> Equation | None:
    """The eOperator with these of its arguments, and its output, in blocks.

    None where nothing is in blocks, or where something would be read across them.
    """
    if not inputs and not output:
        return None
    scope = relaid(node.attribute("scope"), {f"x{k}" for k in inputs}, output, width)
    if scope is None:
        return None
    args = [block(arg, width) if arg and k in inputs else arg for k, arg in enumerate(node.args)]
    made, left = apply(eop, args, {"scope": scope}), block(node, width) if output else node
    if made.types != left.types:
        return None
    law = f"{said(left)} => {said(made)}"
    how = node, frozenset(inputs), output, width
    return _Blocks("in-blocks", law, (left,), (made,), _distinct(node), USED, *how)


def relaid(scope: Scope, inputs: Collection[str], output: bool, width: int) -> Scope | None:
    """The scope over tensors of which these are in blocks, with its result in blocks; all sizes are numbers.

    None where something would be read across blocks.
    """
    laid = {x: _laid(x, width) for x in tensors(scope) if x.name in inputs}
    scope = _Laid(laid, width).scope(scope)
    if output:
        scope = _written(scope, width)
    for _ in range(ROUNDS):
        before, scope = scope, intern_scope(_Digits(scope, width).whole())
        if scope is before:
            break
    blocks = [r.indices[CHANNELS] for r in reads(scope, nested=True) if r.source in laid.values()]
    blocks += [i for r in reads(scope) if isinstance(r.source, Scope) for i in r.indices]
    if any(isinstance(atom, Floor) for index in blocks for atom in atoms(index)):
        return None
    return scope


def _laid(x: Tensor, width: int) -> Tensor:
    shape = list(x.shape)
    shape[CHANNELS] = floordiv(shape[CHANNELS], width)
    return Tensor(x.name, (*shape, width), x.dtype)


def _written(scope: Scope, width: int) -> Scope:
    """The scope with its result in blocks."""
    axes = list(scope.axes)
    channel = axes[CHANNELS]
    axes[CHANNELS], inner, place = digit_axes(channel, width)
    return Scope((*axes, inner), replace_axes(scope.body, {channel: place}))


def _distinct(node: Node) -> tuple[Node, ...]:
    return tuple(dict.fromkeys(arg for arg in node.args if arg is not None))


@dataclass(frozen=True)
class _Blocks(Equation):
    """It holds for all sizes that blocks divide: over leaves of others it is made again."""

    node: Node
    inputs: frozenset[int]
    output: bool
    width: int

    def over(self, leaves: Mapping[Node, Node]) -> Equation:
        node = again(self.node, tuple(arg and leaves.get(arg, arg) for arg in self.node.args))
        wanted = [node.args[k] for k in self.inputs] + ([node] if self.output else [])
        fits = all(x is not None and blockable(x.types[0], self.width) for x in wanted)
        made = in_blocks(node, self.inputs, self.output, self.width) if fits else None
        if made is not None:
            return made
        raise Untypable(f"{said(node)} is not in blocks of {self.width} at these sizes")


class _Laid(Rewriting):
    """Reads of tensors that are in blocks.  A place is beyond the edges of both layouts or of none."""

    def __init__(self, tensors_: Mapping[Tensor, Tensor], width: int):
        super().__init__()
        self.tensors, self.width = tensors_, width

    def read(self, read: Read) -> Read:
        made = super().read(read)
        if isinstance(made.source, Tensor) and made.source in self.tensors:
            return Read(self.tensors[made.source], _place(made.indices, self.width), made.outside)
        return made


class _Digits(Rewriting):
    """Iterators that are read by quotient and remainder of the width, as the two digits that these are."""

    def __init__(self, outermost: Scope, width: int):
        super().__init__()
        self.outermost, self.width = outermost, width
        self._stages: dict[int, tuple[Scope, Scope, list[int]]] = {}
        # (stage, place of an axis) that is read by both digits
        self._read_so = {
            (id(read.source), k)
            for read in reads(outermost, nested=True)
            for k, index in enumerate(read.indices)
            if self._of_digits(index)
        }

    def whole(self) -> Scope:
        """The scope, whose own axes stay as they are."""
        return Scope(self.outermost.axes, self.body(self.outermost.body))

    def _of_digits(self, index: Size) -> bool:
        """Whether it is a block and a place in it."""
        low = atoms(mod(index, self.width))
        inside = next(iter(low), None)
        if len(low) != 1 or not isinstance(inside, Axis) or inside.extent != self.width:
            return False
        rest = index - polynomial(inside)
        return bool(rest != 0 and floordiv(rest, self.width) * self.width == rest)

    def stage(self, scope: Scope) -> tuple[Scope, list[int]]:
        """A scope that is read, and its axes of which the low digits are behind all others now."""
        if id(scope) not in self._stages:
            body = self.body(scope.body)
            split = [
                k
                for k, a in enumerate(scope.axes)
                if self._divided(body, a) or (id(scope), k) in self._read_so and self._divisible(a)
            ]
            axes, lows = list(scope.axes), list[Axis]()
            values: dict[Atom, Size] = {}
            for k in split:
                high, low, values[scope.axes[k]] = digit_axes(scope.axes[k], self.width)
                axes[k] = high
                lows.append(low)
            made = Scope((*axes, *lows), replace_axes(body, values))
            self._stages[id(scope)] = scope, made, split
        _, made, split = self._stages[id(scope)]
        return made, split

    def read(self, read: Read) -> Read:
        made = super().read(read)
        if not isinstance(read.source, Scope):
            return made
        stage, split = self.stage(read.source)
        indices = list(made.indices)
        lows = [mod(indices[k], self.width) for k in split]
        for k in split:
            indices[k] = floordiv(indices[k], self.width)
        return Read(stage, (*indices, *lows), made.outside)

    def source(self, source: Source) -> Source:
        return source  # scopes are made where they are read

    def body(self, body: Body) -> Body:
        if not isinstance(body, Reduce):
            return super().body(body)
        inner = self.body(body.body)
        axes, values = list[Axis](), dict[Atom, Size]()
        for a in body.axes:
            if self._divided(inner, a):
                high, low, values[a] = digit_axes(a, self.width)
                axes += [high, low]
            else:
                axes.append(a)
        return Reduce(body.monoid, tuple(axes), replace_axes(inner, values))

    def _divisible(self, a: Axis) -> bool:
        return isinstance(a.extent, int) and a.extent % self.width == 0 and a.extent > self.width

    def _divided(self, body: Body, a: Axis) -> bool:
        if not self._divisible(a):
            return False
        read = (index for each in reads(body) for index in each.indices)
        tops = (atom.top for index in read for atom in atoms(index) if isinstance(atom, Floor))
        return any(a in atoms(top) for top in tops)
