"""Operators from papers that ONNX lacks; they are exported as several operators that ONNX has."""

from __future__ import annotations

from fractions import Fraction

from tensaurus.expr.ir.element_types import Untypable
from tensaurus.expr.ir.scope import Body, Scope, Tensor, call, compute, total, where
from tensaurus.expr.sizes.size import Size, is_nonnegative, is_same_size, product
from tensaurus.ops.convolution import per_group
from tensaurus.ops.declare import op

OUR_DOMAIN = "tensaurus"  # the domain of operators that ONNX lacks


@op("Enlarge", domain=OUR_DOMAIN, examples=[
    "f32[2,3,1,1] kernel_shape=(3,3)", "f32[2,3,3,1] kernel_shape=(5,4)", "f32[2,3,3] kernel_shape=(3,)",
    "f32[1,2,1,2,3] kernel_shape=(3,2,5)",
])  # fmt: skip
def enlarge(w: Tensor, *, kernel_shape: tuple[Size, ...]) -> Scope:
    """A convolution's kernel in the centre of a larger one of zeros; of an odd difference the end gets more.

    The kernel [0, a, 0] with a pad of 1 computes the same as the kernel [a] without (TASO section 2).
    """
    kernel = w.shape[2:]
    if len(kernel) != len(kernel_shape) or not kernel:
        raise Untypable(f"a kernel of {kernel} made {kernel_shape}")
    if not all(is_nonnegative(n - k) for n, k in zip(kernel_shape, kernel, strict=True)):
        raise Untypable(f"a kernel of {kernel} made {kernel_shape}")
    begins = [(n - k) // 2 for n, k in zip(kernel_shape, kernel, strict=True)]

    def element(f: Size, c: Size, *indices: Size) -> Body:
        return w.padded(0)[(f, c, *(i - b for i, b in zip(indices, begins, strict=True)))]

    return compute((*w.shape[:2], *kernel_shape), element)


@op("MergeGroups", domain=OUR_DOMAIN, examples=[
    "f32[4,2,3,3] group=2 count=2", "f32[8,1,3,2] group=4 count=2", "f32[12,3,1] group=6 count=3",
    "f32[4,2,1,1] group=2 count=1",
])  # fmt: skip
def merge_groups(w: Tensor, *, group: int, count: int) -> Scope:
    """Weights of a convolution in `group` groups as those of one in group / count groups.

    w [F, C/group, kernel...]   ->   [F, C/group * count, kernel...], zero off the blocks of each new group
    """
    if w.rank < 3 or not is_nonnegative(count - 1) or not is_same_size(group % count, 0):
        raise Untypable(f"{group} groups of weights {w.shape} merged by {count}")
    channels_per_group, depth = per_group(w.shape[0], group), w.shape[1]

    def element(f: Size, c: Size, *indices: Size) -> Body:
        # the old group of c minus that of f, within the new group: f has weights for its own old group alone
        distance = c // depth - f // channels_per_group % count
        return where((distance, 0 - distance), w[(f, c % depth, *indices)], 0)  # where distance == 0

    return compute((w.shape[0], depth * count, *w.shape[2:]), element)


def _band(width: Size, dilation: Size) -> Size:
    """Return the number of elements that a band has in each row.  Raises Untypable."""
    if not is_nonnegative(width) or not is_nonnegative(dilation - 1):
        raise Untypable(f"a band of width {width} and dilation {dilation}")
    return 2 * width + 1


@op("MatMulToBand", domain=OUR_DOMAIN, examples=[
    "f32[2,5,3] f32[2,5,3] width=1", "f32[1,7,4] f32[1,7,4] width=2 dilation=2", "f32[3,4] f32[3,4] width=4",
    "f32[2,2,6,3] f32[2,2,6,3] width=0",
])  # fmt: skip
def matmul_to_band(a: Tensor, b: Tensor, *, width: Size, dilation: Size = 1) -> Scope:
    """The band |i - j| <= width * dilation of a times b transposed (G2BMM: EINNET table 2, PET).

    out[.., i, w] = sum over k of a[.., i, k] * b[.., i + dilation * (w - width), k], b zero beyond its rows
    """
    if a.rank < 2 or a.rank != b.rank or not all(map(is_same_size, a.shape, b.shape)):
        raise Untypable(f"a band of {a.shape} times {b.shape}")

    def element(*indices: Size) -> Body:
        *batch, i, w = indices
        row = i + dilation * (w - width)
        return total((a.shape[-1],), lambda k: a[(*batch, i, k)] * b.padded(0)[(*batch, row, k)])

    return compute((*a.shape[:-1], _band(width, dilation)), element)


@op("MatMulFromBand", domain=OUR_DOMAIN, examples=[
    "f32[2,5,3] f32[2,5,4] width=1", "f32[1,7,5] f32[1,7,4] width=2 dilation=2", "f32[3,9] f32[3,2] width=4",
    "f32[2,2,6,1] f32[2,2,6,3] width=0",
])  # fmt: skip
def matmul_from_band(a: Tensor, b: Tensor, *, width: Size, dilation: Size = 1) -> Scope:
    """A matrix given by its band times b (GBMM: PET).

    out[.., i, k] = sum over w of a[.., i, w] * b[.., i + dilation * (w - width), k], b zero beyond its rows
    """
    band = _band(width, dilation)
    if a.rank < 2 or a.rank != b.rank or not all(map(is_same_size, a.shape[:-1], b.shape[:-1])):
        raise Untypable(f"a band {a.shape} times {b.shape}")
    if not is_same_size(a.shape[-1], band):
        raise Untypable(f"a band of {a.shape[-1]} is not {band}")

    def element(*indices: Size) -> Body:
        *batch, i, k = indices

        def term(w: Size) -> Body:
            return a[(*batch, i, w)] * b.padded(0)[(*batch, i + dilation * (w - width), k)]

        return total((band,), term)

    return compute((*a.shape[:-1], b.shape[-1]), element)


def _check_kernel(channels: Size, kernel_shape: tuple[Size, ...]) -> None:
    if not all(is_nonnegative(n - 1) for n in (channels, *kernel_shape)):
        raise Untypable(f"a kernel of {kernel_shape} for {channels} channels")


@op("IdentityKernel", domain=OUR_DOMAIN, examples=[
    "channels=3 kernel_shape=(3,3)", "channels=2 kernel_shape=(1,)",
])  # fmt: skip
def identity_kernel(*, channels: Size, kernel_shape: tuple[Size, ...]) -> Scope:
    """The weights of a convolution that copies its input, if it is padded to the same size (TASO's Iconv)."""
    _check_kernel(channels, kernel_shape)
    if not all(is_same_size(k % 2, 1) for k in kernel_shape):
        raise Untypable(f"a kernel of {kernel_shape} has no centre")

    def element(f: Size, c: Size, *indices: Size) -> Body:
        # one where all distances are 0: on the diagonal of the channels, in the centre of the kernel
        distances = [f - c, *(i - k // 2 for i, k in zip(indices, kernel_shape, strict=True))]
        one, zero = (call("to_float32", value) for value in (1, 0))
        return where([side for n in distances for side in (n, 0 - n)], one, zero)

    return compute((channels, channels, *kernel_shape), element)


@op("MeanKernel", domain=OUR_DOMAIN, examples=[
    "channels=3 kernel_shape=(3,2)", "channels=1 kernel_shape=(4,)",
])  # fmt: skip
def mean_kernel(*, channels: Size, kernel_shape: tuple[Size, ...]) -> Scope:
    """The weights, one channel in each group, that make a convolution an average pool (TASO's Cpool)."""
    _check_kernel(channels, kernel_shape)
    size = product(kernel_shape)
    weight = Fraction(1, size) if isinstance(size, int) else call("div", 1, size)
    return compute((channels, 1, *kernel_shape), lambda *indices: call("to_float32", weight))
