"""Weights in blocks: what a vector of results needs of them lies side by side.

    w[r, i, s]   ->   p[i // 16, r, s, i % 16]

Where blocks do not divide them, zeros fill the last one.  A packed scope reads such tensors in the place of
its own; packing is a scope, too, and is computed once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensaurus.expr.ir.scope import Scope, Source, Tensor, compute
from tensaurus.expr.ir.walk import replace_tensors
from tensaurus.expr.normal.intern import interned
from tensaurus.expr.sizes.size import Size, floordiv, mod
from tensaurus.kernels.stages.sketch import Pack
from tensaurus.ops import TensorType

__all__ = ["packed", "packing", "packed_type"]


def packed_type(kind: TensorType, pack: Pack) -> TensorType:
    """The type of a packed tensor."""
    return TensorType(kind.dtype, _shape(kind.shape, pack))


def _blocked(items: Sequence[Any], pack: Pack, block: Any, lane: Any) -> tuple[Any, ...]:
    """What stands for each dimension of a packed tensor, by that of the tensor: a block lies in one piece."""
    return (block, *(item for d, item in enumerate(items) if d != pack.dimension), lane)


def _shape(shape: Sequence[Size], pack: Pack) -> tuple[Size, ...]:
    blocks = floordiv(shape[pack.dimension] + (pack.width - 1), pack.width)
    return _blocked(shape, pack, blocks, pack.width)


def packing(kind: TensorType, pack: Pack) -> Scope:
    """The packed tensor of x0."""
    x: Any = Tensor("x0", kind.shape, kind.dtype)
    if mod(kind.shape[pack.dimension], pack.width) != 0:
        x = x.padded()
    rank = len(kind.shape)
    order = _blocked(range(rank), pack, rank, rank + 1)

    def element(*place: Any) -> Any:
        at = dict(zip(order, place, strict=True))
        at[pack.dimension] = at[rank] * pack.width + at[rank + 1]
        return x[tuple(at[d] for d in range(rank))]

    return interned(compute(packed_type(kind, pack).shape, element))


def packed(scope: Scope, inputs: Mapping[str, Tensor], packs: Sequence[Pack]) -> Scope:
    """The scope over packed tensors.

    Raises ValueError where a pack is of no input, or of no dimension of one.
    """
    sources: dict[Tensor, Source] = {}
    for pack in packs:
        x = inputs.get(pack.tensor)
        if x is None or pack.dimension >= x.rank:
            raise ValueError(f"{pack.text} of {x}")
        whole = Tensor(x.name, _shape(x.shape, pack), x.dtype)
        sources[x] = _unpacked(x, whole, pack)
    return interned(replace_tensors(scope, sources)) if sources else scope


def _unpacked(x: Tensor, whole: Tensor, pack: Pack) -> Scope:
    def element(*place: Any) -> Any:
        index = place[pack.dimension]
        return whole[_blocked(place, pack, floordiv(index, pack.width), mod(index, pack.width))]

    return compute(x.shape, element)
