"""Operators that only move elements: reshaping, reordering and repeating."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensaurus.expr.analysis.reshape_map import reshape_map
from tensaurus.expr.ir.element_types import Untypable
from tensaurus.expr.ir.scope import Body, Scope, Tensor, compute
from tensaurus.expr.sizes.size import Size, is_nonnegative, is_same_size, product
from tensaurus.ops.axes import distinct_axes
from tensaurus.ops.declare import op
from tensaurus.ops.elementwise import broadcast_read, broadcast_shape


def _read_shape(x: Tensor, asked: Sequence[Size], allowzero: int) -> tuple[Size, ...]:
    """Return the sizes that a Reshape asks for: 0 copies the input's size, -1 is the rest."""
    sizes = list(asked)
    for d, size in enumerate(sizes):
        if is_same_size(size, 0) and not allowzero:
            if d >= x.rank:
                raise Untypable(f"0 at place {d} of a shape copies nothing from rank {x.rank}")
            sizes[d] = x.shape[d]
    element_count = product(x.shape)
    unknown_dims = [d for d, size in enumerate(sizes) if is_same_size(size, -1)]
    if len(unknown_dims) > 1:
        raise Untypable(f"shape {tuple(asked)} has two unknowns")
    if unknown_dims:
        # sizes that are copied cancel on both sides, zero or not
        own_sizes, new_sizes = list(x.shape), [n for d, n in enumerate(sizes) if d != unknown_dims[0]]
        for size in list(new_sizes):
            match = next((n for n in own_sizes if is_same_size(n, size)), None)
            if match is not None:
                own_sizes.remove(match)
                new_sizes.remove(size)
        dividend, divisor = product(own_sizes), product(new_sizes)
        if is_same_size(divisor, 0) or not (isinstance(divisor, int) or is_nonnegative(divisor)):
            raise Untypable(f"shape {tuple(asked)} of {x.shape}")
        sizes[unknown_dims[0]] = dividend // divisor
    if not is_same_size(product(sizes), element_count):
        raise Untypable(f"{x.shape} reshaped to {tuple(sizes)}")
    return tuple(sizes)


def _reshape_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return sizes as numbers; a symbolic size as 0 where x has it there, else as -1 if it is the only one.

    Beside a size of 0 the meaning of -1 is undefined: where other sizes may be 0, the symbolic one is written
    out, unless -1 was given.
    """
    x = tensors[0]
    sizes = list(_read_shape(x, attrs["shape"], attrs["allowzero"]))
    if all(isinstance(n, int) for n in sizes):
        # without allowzero, a 0 copies a size of x: that must be 0, too
        can_copy = all(n != 0 or p < x.rank and x.shape[p] == 0 for p, n in enumerate(sizes))
        return {"shape": tuple(sizes), "allowzero": 0 if can_copy else 1}
    if 0 in sizes:
        return {"shape": tuple(sizes), "allowzero": 1}
    copies = [p < x.rank and is_same_size(n, x.shape[p]) for p, n in enumerate(sizes)]
    shape = [0 if copy and not isinstance(n, int) else n for n, copy in zip(sizes, copies, strict=True)]
    symbolic_dims = [p for p, n in enumerate(shape) if not isinstance(n, int)]  # still symbolic: not copied
    has_minus_one = any(is_same_size(n, -1) for n in attrs["shape"])
    others = [n for p, n in enumerate(sizes) if len(symbolic_dims) > 1 or p not in symbolic_dims]
    # no -1 was given, and a size beside the symbolic one (of several, any size) may be 0: write all sizes
    if (
        symbolic_dims
        and not has_minus_one
        and not all(n > 0 if isinstance(n, int) else is_nonnegative(n - 1) for n in others)
    ):
        return {"shape": tuple(sizes), "allowzero": attrs["allowzero"]}
    if len(symbolic_dims) == 1:
        shape[symbolic_dims[0]] = -1
    return {"shape": tuple(shape), "allowzero": 0}


def reshape_scope(x: Tensor, sizes: Sequence[Size]) -> Scope:
    """Return x in row-major order with this shape, mixing as few dimensions as possible."""
    index_map = reshape_map(x.shape, sizes)
    if index_map is None:
        raise Untypable(f"whether {x.shape} lines up with {tuple(sizes)} is not known")
    return Scope(index_map.axes, x[index_map.indices])


@op("Reshape", moved={"shape": 5}, canonicalize=_reshape_form, examples=[
    "f32[2,3,4] shape=(6,4)", "f32[6,4] shape=(2,3,4)", "f32[2,3,4] shape=(0,-1)", "f32[2,3,4] shape=(4,6)",
    "f32[8,3] shape=(4,6)", "f32[2,1,6] shape=(1,4,3,1)", "f32[1] shape=()", "f32[] shape=(1,1)",
    "f32[2,6,5,3] shape=(2,2,3,-1,3)", "f32[0,3] shape=(3,0) allowzero=1", "f32[2,0] shape=(5,0)",
])  # fmt: skip
def reshape(x: Tensor, *, shape: tuple[Size, ...], allowzero: int = 0) -> Scope:
    """The same elements in row-major order; 0 copies a size, -1 is what remains."""
    return reshape_scope(x, _read_shape(x, shape, allowzero))


def _flatten_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    axis, rank = attrs["axis"], tensors[0].rank
    if not -rank <= axis <= rank:
        raise Untypable(f"axis {axis} of rank {rank}")
    return {"axis": axis + rank if axis < 0 else axis}


@op("Flatten", canonicalize=_flatten_form, examples=[
    "f32[2,3,4]", "f32[2,3,4] axis=2", "f32[2,3,4] axis=0", "f32[2,3] axis=2", "f32[3,4] axis=-1",
])  # fmt: skip
def flatten(x: Tensor, *, axis: int = 1) -> Scope:
    """A matrix: the dimensions before the axis by those from it on."""
    return reshape_scope(x, (product(x.shape[:axis]), product(x.shape[axis:])))


def _squeeze_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, axes = tensors[0], attrs["axes"]
    if axes is None:
        for n in x.shape:
            if not isinstance(n, int):
                raise Untypable(f"a squeeze of every 1 needs the value of {n}")
        axes = [d for d, n in enumerate(x.shape) if n == 1]
    elif not axes and not all(isinstance(n, int) and n != 1 for n in x.shape):
        raise Untypable("a squeeze of no dimension, which for some runtimes is one of every 1")
    return {"axes": tuple(sorted(distinct_axes(axes, x.rank)))}


@op("Squeeze", moved={"axes": 13}, canonicalize=_squeeze_form, examples=[
    "f32[1,3,1,2]", "f32[1,3,1,2] axes=(2,)", "f32[1,3,1,1] axes=(-1,0)", "f32[2,3]",
])  # fmt: skip
def squeeze(x: Tensor, *, axes: tuple[int, ...] | None = None) -> Scope:
    """Dimensions of size 1 removed, all of them where none is named."""
    assert axes is not None
    if not all(is_same_size(x.shape[d], 1) for d in axes):
        raise Untypable(f"axes {axes} of {x.shape} are not 1")
    kept = [d for d in range(x.rank) if d not in axes]

    def element(*indices: Size) -> Body:
        at = dict(zip(kept, indices, strict=True))
        return x[tuple(at.get(d, 0) for d in range(x.rank))]

    return compute([x.shape[d] for d in kept], element)


def _unsqueeze_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {"axes": tuple(sorted(distinct_axes(attrs["axes"], tensors[0].rank + len(attrs["axes"]))))}


@op("Unsqueeze", moved={"axes": 13}, canonicalize=_unsqueeze_form, examples=[
    "f32[3,2] axes=(0,)", "f32[3,2] axes=(3,1)", "f32[3,2] axes=(-1,-4)", "f32[] axes=(0,)",
])  # fmt: skip
def unsqueeze(x: Tensor, *, axes: tuple[int, ...]) -> Scope:
    """Dimensions of size 1 inserted, so that they are these dimensions of the output."""
    rest = iter(x.shape)
    shape = [1 if d in axes else next(rest) for d in range(x.rank + len(axes))]
    return compute(shape, lambda *indices: x[tuple(i for d, i in enumerate(indices) if d not in axes)])


def _transpose_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    rank, perm = tensors[0].rank, attrs["perm"]
    permutation = tuple(reversed(range(rank))) if perm is None else tuple(perm)
    if sorted(permutation) != list(range(rank)):
        raise Untypable(f"{permutation} is no permutation of {rank} dimensions")
    return {"perm": permutation}


@op("Transpose", canonicalize=_transpose_form, examples=[
    "f32[2,3,4]", "f32[2,3,4] perm=(0,2,1)", "f32[2,3,4,5] perm=(2,0,3,1)", "f32[3] perm=(0,)",
])  # fmt: skip
def transpose(x: Tensor, *, perm: tuple[int, ...] | None = None) -> Scope:
    """Dimension d of the output is dimension perm[d] of x; without `perm`, the dimensions are reversed."""
    assert perm is not None
    output_dims = [perm.index(d) for d in range(x.rank)]
    return compute([x.shape[d] for d in perm], lambda *indices: x[tuple(indices[d] for d in output_dims)])


def _expand_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the whole output shape, with 1 in place of a symbolic size of x."""
    x = tensors[0]
    shape = list(broadcast_shape(x.shape, attrs["shape"]))
    for d, size in enumerate(x.shape, len(shape) - x.rank):
        if not isinstance(size, int):
            shape[d] = 1
    return {"shape": tuple(shape)}


@op("Expand", since=8, moved={"shape": 8}, canonicalize=_expand_form, examples=[
    "f32[3,1] shape=(2,3,4)", "f32[2,3] shape=(1,)", "f32[2,1,3] shape=(4,1)", "f32[] shape=(2,2)",
])  # fmt: skip
def expand(x: Tensor, *, shape: tuple[Size, ...]) -> Scope:
    """x broadcast together with a shape."""
    return compute(broadcast_shape(x.shape, shape), lambda *indices: broadcast_read(x, indices))


@op("Tile", since=6, moved={"repeats": 6}, examples=[
    "f32[2,3] repeats=(2,1)", "f32[2,1,3] repeats=(1,4,2)", "f32[3] repeats=(3,)",
])  # fmt: skip
def tile(x: Tensor, *, repeats: tuple[Size, ...]) -> Scope:
    """Copies of x side by side."""
    if len(repeats) != x.rank:
        raise Untypable(f"{len(repeats)} repeats of rank {x.rank}")
    shape = [n * r for n, r in zip(x.shape, repeats, strict=True)]

    def element(*indices: Size) -> Body:
        return x[tuple(0 if is_same_size(n, 1) else i % n for i, n in zip(indices, x.shape, strict=True))]

    return compute(shape, element)


def _blocks(x: Tensor, blocksize: int) -> tuple[Size, Size, Size, Size]:
    """Return the shape of x.  Raises Untypable unless it is [N, C, H, W] and the block size is positive."""
    if x.rank != 4 or blocksize < 1:
        raise Untypable(f"blocks of {blocksize} in rank {x.rank}")
    n, c, h, w = x.shape
    return n, c, h, w


def _exactly(size: Size, parts: int) -> Size:
    """Return size / parts.  Raises Untypable unless it is exact."""
    if not is_same_size(size % parts, 0):
        raise Untypable(f"{size} is no multiple of {parts}")
    return size // parts


@op(
    "DepthToSpace",
    examples=["f32[2,8,2,3] blocksize=2", "f32[1,18,2,1] blocksize=3 mode='CRD'", "f32[1,4,2,3] blocksize=2"],
)
def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Scope:
    """Blocks of channels laid out as blocks of pixels; DCR: the block is the slower part of the channel."""
    n, c, h, w = _blocks(x, blocksize)
    b, depth = blocksize, _exactly(c, blocksize * blocksize)
    channel: Callable[[Size, Size], Size]
    match mode:
        case "DCR":
            channel = lambda k, block: block * depth + k  # noqa: E731
        case "CRD":
            channel = lambda k, block: k * (b * b) + block  # noqa: E731
        case _:
            raise Untypable(f"the mode {mode}")
    return compute(
        (n, depth, h * b, w * b),
        lambda m, k, i, j: x[m, channel(k, i % b * b + j % b), i // b, j // b],
    )


@op(
    "SpaceToDepth",
    examples=["f32[2,2,4,6] blocksize=2", "f32[1,3,3,6] blocksize=3", "f32[1,2,4,2] blocksize=2 mode=CRD"],
)
def space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Scope:
    """Blocks of pixels as channels: the inverse of DepthToSpace in the same mode."""
    n, c, h, w = _blocks(x, blocksize)
    b, block = blocksize, blocksize * blocksize
    if mode not in ("DCR", "CRD"):
        raise Untypable(f"the mode {mode}")

    def element(m: Size, k: Size, i: Size, j: Size) -> Body:
        if mode == "DCR":
            return x[m, k % c, i * b + k // (c * b), j * b + k // c % b]
        return x[m, k // block, i * b + k // b % b, j * b + k % b]

    return compute((n, c * block, _exactly(h, b), _exactly(w, b)), element)
