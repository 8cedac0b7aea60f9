"""Convolution and its transpose, in any number of spatial dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensaurus.expr.ir.element_types import Untypable
from tensaurus.expr.ir.scope import Body, Scope, Tensor, compute, total, where
from tensaurus.expr.sizes.open_questions import is_recording_questions
from tensaurus.expr.sizes.size import Size, is_negative, is_nonnegative, is_same_size
from tensaurus.ops.declare import op
from tensaurus.ops.windows import (
    dilated_extent,
    output_sizes,
    per_dimension,
    window_attributes,
    window_indices,
)


def _spatial(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[tuple[Size, ...], tuple[Size, ...]]:
    """Return the spatial sizes of the input and of the kernel, which must agree with `kernel_shape`."""
    x, w = tensors[0], tensors[1]
    if x.rank < 3 or w.rank != x.rank:
        raise Untypable(f"a convolution of ranks {x.rank} and {w.rank}")
    kernel = w.shape[2:]
    stated_kernel = attrs["kernel_shape"]
    if stated_kernel and not (
        len(stated_kernel) == len(kernel) and all(map(is_same_size, stated_kernel, kernel))
    ):
        raise Untypable(f"kernel_shape {stated_kernel} beside a kernel of {kernel}")
    return x.shape[2:], kernel


def conv_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return strides, dilations and pads written out; kernel_shape, which the weights have, is left out."""
    return {**window_attributes(*_spatial(tensors, attrs), attrs), "kernel_shape": None}


def per_group(size: Size, group: Size) -> Size:
    """Return the number of channels in each group.

    Raises Untypable for a remainder and, outside of proofs, for a number of groups that is a symbol.
    """
    if not isinstance(group, int) and not is_recording_questions():
        raise Untypable(f"groups as many as {group}")
    if not is_nonnegative(group - 1) or not is_same_size(size % group, 0):
        raise Untypable(f"{size} channels in {group} groups")
    return size // group


@op("Conv", canonicalize=conv_form, examples=[
    "f32[2,3,7,6] f32[4,3,3,3] f32[4] pads=(1,1,1,1)",
    "f32[1,3,7,6] f32[4,3,3,2] strides=(2,1) pads=(1,0,0,2)",
    "f32[1,3,9,8] f32[2,3,3,2] dilations=(2,3)", "f32[2,6,5,5] f32[4,3,1,1] f32[4] group=2",
    "f32[1,4,6,5] f32[8,1,3,3] group=4 pads=(1,1,1,1) kernel_shape=(3,3)",
    "f32[2,3,9] f32[4,3,4] f32[4] strides=(3,) pads=(2,1)",
    "f32[1,2,4,5,6] f32[3,2,2,3,2] strides=(1,2,1) pads=(0,1,1,1,0,0)",
    "f32[1,2,7,8] f32[3,2,3,4] auto_pad='SAME_UPPER' strides=(2,2)",
    "f32[1,2,7,8] f32[3,2,3,4] auto_pad='SAME_LOWER' strides=(2,3)",
    "f32[1,2,7,8] f32[3,2,3,4] auto_pad='VALID' strides=(2,3)",
])  # fmt: skip
def conv(
    x: Tensor, w: Tensor, b: Tensor | None = None,
    *, auto_pad: str = "NOTSET", dilations: tuple[int, ...] | None = None, group: int = 1,
    kernel_shape: tuple[int, ...] | None = None, pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Scope:  # fmt: skip
    """Cross-correlation of x [N, C, spatial...] with w [F, C/group, kernel...], zero beyond the edges."""
    assert strides is not None and dilations is not None and pads is not None
    return correlation(x, w, b, strides, dilations, pads, group)


def correlation(
    x: Tensor | Scope,
    w: Tensor | Scope,
    b: Tensor | None,
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    group: int,
) -> Scope:
    """Return the convolution of x with w, zero beyond the edges, plus the bias b [F]."""
    kernel = w.shape[2:]
    count, depth = per_group(w.shape[0], group), w.shape[1]  # output and input channels of a group
    if is_same_size(count, 0):
        raise Untypable("a convolution without output channels")
    if not is_same_size(depth * group, x.shape[1]):
        raise Untypable(f"{x.shape[1]} channels meet weights of {group} times {depth}")
    if b is not None and not (b.rank == 1 and is_same_size(b.shape[0], w.shape[0])):
        raise Untypable(f"a bias of shape {b.shape} for {w.shape[0]} channels")

    def element(n: Size, f: Size, *indices: Size) -> Body:
        def term(c: Size, *r: Size) -> Body:
            source = window_indices(indices, r, strides, dilations, pads)
            return x.padded(0)[(n, f // count * depth + c, *source)] * w[(f, c, *r)]

        product = total((depth, *kernel), term)
        return product if b is None else product + b[f]

    return compute(
        (x.shape[0], w.shape[0], *output_sizes(x.shape[2:], kernel, strides, dilations, pads)), element
    )


def _conv_transpose_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes with `output_shape` and auto_pad resolved to pads and output_padding."""
    sizes, kernel = _spatial(tensors, attrs)
    rank = len(sizes)
    # a named auto_pad leaves no explicit pads: VALID means none, SAME is resolved by the output's size below
    explicit_pads = attrs["pads"] if attrs["auto_pad"] in ("NOTSET", "") else None
    result = window_attributes(sizes, kernel, {**attrs, "auto_pad": "NOTSET", "pads": explicit_pads})
    output_padding = per_dimension(attrs["output_padding"], rank, 0, "output_padding")
    wanted_sizes: Sequence[Size] = attrs["output_shape"] or ()  # of the output's spatial dimensions
    if attrs["auto_pad"].startswith("SAME") and not wanted_sizes:
        wanted_sizes = [n * s for n, s in zip(sizes, result["strides"], strict=True)]
    if wanted_sizes:
        begins, ends, paddings = [], [], []
        steps = zip(
            sizes,
            kernel,
            result["strides"],
            result["dilations"],
            output_padding,
            wanted_sizes[-rank:],
            strict=True,
        )
        for n, k, stride, dilation, padding, size in steps:
            # pads cut off what the output would have beyond `size`; where it would be shorter, its end grows
            excess = stride * (n - 1) + padding + dilated_extent(k, dilation) - size
            if not isinstance(excess, int):
                raise Untypable(f"an output of {size} needs the value of {n}")
            if excess < 0 and attrs["auto_pad"].startswith("SAME"):
                raise Untypable("windows far apart, of the same size, on which runtimes disagree")
            total_pad, half = max(excess, 0), max(excess, 0) // 2
            begin = half if attrs["auto_pad"] == "SAME_UPPER" else total_pad - half
            begins.append(begin)
            ends.append(total_pad - begin)
            paddings.append(padding + max(-excess, 0))
        result["pads"], output_padding = (*begins, *ends), tuple(paddings)
    return {**result, "output_padding": output_padding, "output_shape": None, "kernel_shape": None}


@op("ConvTranspose", canonicalize=_conv_transpose_form, examples=[
    "f32[1,3,4,5] f32[3,2,3,3] f32[2]", "f32[2,3,4,3] f32[3,2,2,2] strides=(2,2)",
    "f32[1,3,4,5] f32[3,2,3,3] strides=(2,3) pads=(1,0,0,2) output_padding=(1,1)",
    "f32[1,4,3,4] f32[4,3,3,2] group=2 strides=(2,1)",
    "f32[1,2,5,4] f32[2,3,3,2] dilations=(2,2) strides=(1,2)",
    "f32[1,2,5] f32[2,3,4] f32[3] strides=(3,) pads=(1,2)",
    "f32[1,2,2,3,2] f32[2,2,2,3,2] strides=(2,1,2) pads=(0,1,0,1,1,0)",
    "f32[1,1,3,3] f32[1,2,3,3] strides=(3,2) output_shape=(10,8)",
    "f32[1,1,3,3] f32[1,2,3,3] auto_pad='SAME_UPPER' strides=(2,2)",
    "f32[1,1,3,3] f32[1,2,3,3] auto_pad='SAME_LOWER' strides=(2,2)",
    "f32[1,1,3,3] f32[1,2,4,3] auto_pad='VALID' strides=(2,2)",
])  # fmt: skip
def conv_transpose(
    x: Tensor, w: Tensor, b: Tensor | None = None,
    *, auto_pad: str = "NOTSET", dilations: tuple[int, ...] | None = None, group: int = 1,
    kernel_shape: tuple[int, ...] | None = None, output_padding: tuple[int, ...] | None = None,
    output_shape: tuple[int, ...] | None = None, pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Scope:  # fmt: skip
    """The transpose of a convolution, x [N, C, spatial...], w [C, F/group, kernel...].

    A convolution of stride 1 by the reversed kernel over x with stride - 1 zeros put after each of its
    elements, padded by dilated extent - 1 - pad.
    """
    assert strides is not None and dilations is not None and pads is not None and output_padding is not None
    kernel = w.shape[2:]
    depth, count = per_group(x.shape[1], group), w.shape[1]  # input and output channels of a group
    if is_same_size(count, 0):
        raise Untypable("a convolution without output channels")
    if not is_same_size(w.shape[0], x.shape[1]):
        raise Untypable(f"{x.shape[1]} channels meet weights of {w.shape[0]}")
    if b is not None and not (b.rank == 1 and is_same_size(b.shape[0], count * group)):
        raise Untypable(f"a bias of shape {b.shape} for {count * group} channels")
    rank = len(kernel)
    spread_input = _insert_zeros(x, strides)
    sizes = []
    for n, k, stride, dilation, begin, end, more in zip(
        x.shape[2:], kernel, strides, dilations, pads[:rank], pads[rank:], output_padding, strict=True
    ):
        size = stride * (n - 1) + more + dilated_extent(k, dilation) - begin - end
        if is_negative(size):
            raise Untypable(f"an output of {size} elements")
        sizes.append(size)
    begins = tuple(  # pads in front of spread_input
        dilated_extent(k, d) - 1 - p for k, d, p in zip(kernel, dilations, pads[:rank], strict=True)
    )

    def element(n: Size, f: Size, *indices: Size) -> Body:
        def term(c: Size, *r: Size) -> Body:
            channel = f // count * depth + c
            source = window_indices(indices, r, (1,) * rank, dilations, begins)
            from_end = (k - 1 - i for k, i in zip(kernel, r, strict=True))
            return spread_input.padded(0)[(n, channel, *source)] * w[(channel, f % count, *from_end)]

        product = total((depth, *kernel), term)
        return product if b is None else product + b[f]

    return compute((x.shape[0], count * group, *sizes), element)


def _insert_zeros(x: Tensor, strides: Sequence[int]) -> Tensor | Scope:
    """Return x with each spatial element followed by stride - 1 zeros."""
    if all(is_same_size(s, 1) for s in strides):
        return x

    def element(n: Size, c: Size, *indices: Size) -> Body:
        steps = list(zip(indices, strides, strict=True))
        # an element of x where every u is a multiple of s
        return where([0 - u % s for u, s in steps], x[(n, c, *(u // s for u, s in steps))], 0)

    shape = tuple(n * s for n, s in zip(x.shape[2:], strides, strict=True))
    return compute((*x.shape[:2], *shape), element)
