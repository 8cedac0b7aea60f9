"""Packs weights in blocks, so that the weights that a vector of results needs lie side by side.

    w[r, i, s]   ->   p[i // 16, r, s, i % 16]

Zeros fill the last block where the block size does not divide the dimension. The kernel reads the packed
tensors in place of the original ones. Packing is an expression itself, which is computed once, at export.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensaurus.expr.ir.scope import Scope, Source, Tensor, compute
from tensaurus.expr.ir.walk import replace_tensors
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.expr.sizes.size import Size, floordiv, mod
from tensaurus.kernels.stages.sketch import PackedInput
from tensaurus.ops import TensorType

__all__ = ["pack_scope_inputs", "packing_scope", "packed_type"]


def packed_type(kind: TensorType, pack: PackedInput) -> TensorType:
    """Returns the type of the packed tensor."""
    return TensorType(kind.dtype, _packed_shape(kind.shape, pack))


def _in_block_order(items: Sequence[Any], pack: PackedInput, block: Any, lane: Any) -> tuple[Any, ...]:
    """Reorders items, one for each dimension of a tensor, for the packed tensor: (block, others, lane)."""
    return (block, *(item for d, item in enumerate(items) if d != pack.dimension), lane)


def _packed_shape(shape: Sequence[Size], pack: PackedInput) -> tuple[Size, ...]:
    blocks = floordiv(shape[pack.dimension] + (pack.width - 1), pack.width)
    return _in_block_order(shape, pack, blocks, pack.width)


def packing_scope(kind: TensorType, pack: PackedInput) -> Scope:
    """Returns the expression that packs a tensor x0 of this type."""
    x: Any = Tensor("x0", kind.shape, kind.dtype)
    if mod(kind.shape[pack.dimension], pack.width) != 0:
        x = x.padded()
    rank = len(kind.shape)
    # what each index of the packed tensor is: a dimension of x, the block (`rank`) or the lane (`rank` + 1)
    order = _in_block_order(range(rank), pack, rank, rank + 1)

    def element(*place: Any) -> Any:
        at = dict(zip(order, place, strict=True))
        at[pack.dimension] = at[rank] * pack.width + at[rank + 1]
        return x[tuple(at[d] for d in range(rank))]

    return intern_scope(compute(packed_type(kind, pack).shape, element))


def pack_scope_inputs(scope: Scope, inputs: Mapping[str, Tensor], packs: Sequence[PackedInput]) -> Scope:
    """Rewrites the scope to read packed tensors in place of the inputs that `packs` names.

    Raises ValueError where a pack names no input, or no dimension of an input.
    """
    sources: dict[Tensor, Source] = {}
    for pack in packs:
        x = inputs.get(pack.tensor)
        if x is None or pack.dimension >= x.rank:
            raise ValueError(f"{pack.text} of {x}")
        packed = Tensor(x.name, _packed_shape(x.shape, pack), x.dtype)
        sources[x] = _unpacked_view(x, packed, pack)
    return intern_scope(replace_tensors(scope, sources)) if sources else scope


def _unpacked_view(x: Tensor, packed: Tensor, pack: PackedInput) -> Scope:
    """Returns the tensor x as an expression that reads the packed one."""

    def element(*place: Any) -> Any:
        index = place[pack.dimension]
        return packed[_in_block_order(place, pack, floordiv(index, pack.width), mod(index, pack.width))]

    return compute(x.shape, element)
