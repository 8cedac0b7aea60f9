"""Rewrites the expression of a kernel for tensors in blocked layouts, without divisions in its indices.

    L[n, a:96, i](x[n, a, i] + b[a])   ->   L[n, a1:6, i, a2:16](x'[n, a1, i, a2] + b[16*a1 + a2])

The layout of x' has blocks of 16 channels side by side: x'[n, k // 16, i, k % 16] = x[n, k, i]. An axis that
is read by block and by position in the block (lane) is split in two, here a:96 into its high digit a1:6 and
its low digit a2:16. Axes of nested scopes and of reductions are split in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from tensaurus.expr.ir.scope import Body, Read, Reduce, Scope, Source, Tensor, axis, digit_axes
from tensaurus.expr.ir.walk import Rewriting, reads, replace_axes, tensors
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.expr.sizes.size import Atom, Axis, Floor, Size, atoms, floordiv, mod, polynomial

__all__ = ["CHANNEL_AXIS", "block_kernel", "conversion_from_blocks", "conversion_to_blocks"]

CHANNEL_AXIS = 1  # the dimension of channels, in ONNX
MAX_ROUNDS = 6  # passes that split axes: splitting axes of a scope may split those of a nested one


@lru_cache(1000)
def conversion_to_blocks(shape: tuple[Size, ...], dtype: str, width: int) -> Scope:
    """Returns the expression that lays out a tensor x0 of this shape in blocks."""
    axes = [axis(n) for n in shape]
    indices: list[Size] = [polynomial(a) for a in axes]
    axes[CHANNEL_AXIS], inner, indices[CHANNEL_AXIS] = digit_axes(axes[CHANNEL_AXIS], width)
    return intern_scope(Scope((*axes, inner), Read(Tensor("x0", shape, dtype), tuple(indices))))


@lru_cache(1000)
def conversion_from_blocks(shape: tuple[Size, ...], dtype: str) -> Scope:
    """Returns the expression that lays out a tensor x0, in blocks of this shape, plainly."""
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


def block_kernel(scope: Scope, inputs: Collection[str], output: bool, width: int) -> Scope | None:
    """Rewrites a scope for these inputs, and perhaps the output, in blocks; all sizes must be numbers.

    Returns None where a read would cross blocks.
    """
    blocked = {x: _blocked_tensor(x, width) for x in tensors(scope) if x.name in inputs}
    scope = _ReadBlockedTensors(blocked, width).scope(scope)
    if output:
        scope = _block_result(scope, width)
    for _ in range(MAX_ROUNDS):
        before, scope = scope, intern_scope(_AxisSplitter(scope, width).split_all())
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


class _SplitStage(NamedTuple):
    """An inner scope, its form with split axes, whose low digits are its last axes, and which were split."""

    original: Scope
    result: Scope
    split_axes: list[int]


class _AxisSplitter(Rewriting):
    """Splits axes that are read by quotient and remainder of the block width into these two digits."""

    def __init__(self, outermost: Scope, width: int):
        super().__init__()
        self.outermost, self.width = outermost, width
        self._stages: dict[int, _SplitStage] = {}  # by the identity of the original
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

    def _split_stage(self, scope: Scope) -> _SplitStage:
        """Splits axes of an inner scope, each scope once.

        An axis is split where the scope reads by its quotient, or where readers give the scope both digits.
        """
        if id(scope) not in self._stages:
            body = self.body(scope.body)
            split = [
                k
                for k, a in enumerate(scope.axes)
                if self._is_divisible(a)
                and ((id(scope), k) in self._read_by_digits or self._is_read_by_quotient(body, a))
            ]
            axes, lows = list(scope.axes), list[Axis]()
            values: dict[Atom, Size] = {}
            for k in split:
                high, low, values[scope.axes[k]] = digit_axes(scope.axes[k], self.width)
                axes[k] = high
                lows.append(low)
            result = Scope((*axes, *lows), replace_axes(body, values))
            self._stages[id(scope)] = _SplitStage(scope, result, split)
        return self._stages[id(scope)]

    def read(self, read: Read) -> Read:
        rewritten = super().read(read)
        if not isinstance(read.source, Scope):
            return rewritten
        # read the split scope by quotients in place of the split axes, and by remainders behind all axes
        _, stage, split = self._split_stage(read.source)
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
