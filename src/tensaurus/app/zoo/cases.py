"""Case studies of the papers: single operators, and patterns of a few operators.

Parameters are in millions, multiply-adds in billions at batch 1 (`catalog.Workload`).
"""

from __future__ import annotations

from functools import reduce

from tensaurus.app.zoo.builder import Builder, Value
from tensaurus.app.zoo.catalog import workload
from tensaurus.app.zoo.longformer import multiply_to_band


def _matmul(b: Builder, x: Value, name: str, features: int) -> Value:
    """Add x W with the weight NAME.weight [in, features]."""
    weight = b.weight(f"{name}.weight", (x.shape[-1], features), std=x.shape[-1] ** -0.5)
    return b.node("MatMul", x, weight, name=name)


# Single convolutions. Papers that give no padding keep the size.


@workload("conv3x3", parameters=2.359, multiply_adds=0.1156, papers=("einnet",), case=True)
def conv3x3(b: Builder, batch: int) -> Value:
    """ResNet-18's last 3x3 convolution, on 512 channels of 7x7 (EINNET, table 3)."""
    return b.conv(b.input("x", batch, 512, 7, 7), "conv", 512, 3, padding=1)


@workload(
    "convtranspose", parameters=1.835, multiply_adds=0.00734, papers=("einnet",), batches=(16,), case=True
)
def convtranspose(b: Builder, batch: int) -> Value:
    """InfoGAN's first strided transposed convolution, 448 to 256 channels of 2x2 (EINNET, table 3)."""
    x = b.input("x", batch, 448, 2, 2)
    return b.conv_transpose(x, "conv", 256, 4, stride=2, padding=1)


@workload("conv5x5", parameters=0.0008, multiply_adds=0.04014, papers=("einnet",), batches=(16,), case=True)
def conv5x5(b: Builder, batch: int) -> Value:
    """A 5x5 convolution of 32 channels of 224x224 (EINNET, table 3).

    The paper does not state the number of output channels; its time on an A100 allows only a few. We take
    one, as in the last layer of SRCNN (Dong et al., 2014).
    """
    return b.conv(b.input("x", batch, 32, 224, 224), "conv", 1, 5, padding=2)


@workload("conv5x5_38x38", parameters=0.0768, multiply_adds=0.1109, papers=("pet",), case=True)
def conv5x5_38x38(b: Builder, batch: int) -> Value:
    """Inception-v3's 5x5 convolution, 48 to 64 channels of 38x38 (PET, table 3)."""
    return b.conv(b.input("x", batch, 48, 38, 38), "conv", 64, 5, padding=2)


@workload("conv3x3_dilated", parameters=1.180, multiply_adds=0.2312, papers=("pet",), case=True)
def conv3x3_dilated(b: Builder, batch: int) -> Value:
    """CSRNet's 3x3 convolution of dilation 2, 512 to 256 channels of 14x14 (PET, table 3)."""
    x = b.input("x", batch, 512, 14, 14)
    return b.conv(x, "conv", 256, 3, padding=2, dilation=2)


# ETO samples operators of several types from models; here is one operator of each type.


@workload("conv_1d", parameters=0.1434, multiply_adds=0.0043, papers=("eto",), batches=(1, 16), case=True)
def conv_1d(b: Builder, batch: int) -> Value:
    """A 1-D Inception-ResNet-V2's convolution with a window of 7, 128 to 160 channels of length 30."""
    return b.conv(b.input("x", batch, 128, 30), "conv", 160, 7, padding=3)


@workload("conv_3d", parameters=0.08294, multiply_adds=4.162, papers=("eto",), batches=(1, 16), case=True)
def conv_3d(b: Builder, batch: int) -> Value:
    """R(2+1)D-18's spatial convolution, 64 to 144 channels of 16x56x56."""
    x = b.input("x", batch, 64, 16, 56, 56)
    return b.conv(x, "conv", 144, (1, 3, 3), padding=(0, 1, 1))


@workload(
    "conv_depthwise", parameters=0.001296, multiply_adds=0.004064, papers=("eto",), batches=(1, 16), case=True
)
def conv_depthwise(b: Builder, batch: int) -> Value:
    """MobileNetV2's 3x3 convolution of each of 144 channels of 56x56."""
    x = b.input("x", batch, 144, 56, 56)
    return b.conv(x, "conv", 144, 3, padding=1, groups=144)


@workload(
    "conv_grouped", parameters=0.03686, multiply_adds=0.1156, papers=("eto",), batches=(1, 16), case=True
)
def conv_grouped(b: Builder, batch: int) -> Value:
    """ResNeSt-50's 3x3 convolution in two groups, 64 to 128 channels of 56x56."""
    return b.conv(b.input("x", batch, 64, 56, 56), "conv", 128, 3, padding=1, groups=2)


@workload(
    "convtranspose_dcgan", parameters=2.097, multiply_adds=0.1342, papers=("eto",), batches=(1, 16), case=True
)
def convtranspose_dcgan(b: Builder, batch: int) -> Value:
    """DCGAN's transposed convolution, 512 to 256 channels of 8x8."""
    x = b.input("x", batch, 512, 8, 8)
    return b.conv_transpose(x, "conv", 256, 4, stride=2, padding=1)


@workload("batch_matmul", parameters=0.0, multiply_adds=0.01258, papers=("eto",), batches=(1, 16), case=True)
def batch_matmul(b: Builder, batch: int) -> Value:
    """BERT-base's scores at length 128: queries times transposed keys in 12 heads of 64."""
    query, key = (b.input(name, batch, 12, 128, 64) for name in ("query", "key"))
    return b.node("MatMul", query, b.transpose(key, 0, 1, 3, 2))


# A convolution in 32 groups: as one node, and as 32 nodes.


@workload("conv_32_groups", parameters=0.004608, multiply_adds=0.01445, papers=("taso",), case=True)
def conv_32_groups(b: Builder, batch: int) -> Value:
    """ResNeXt-50's 3x3 convolution in 32 groups, 128 channels of 56x56, at once (TASO, figure 9b)."""
    return b.conv(b.input("x", batch, 128, 56, 56), "conv", 128, 3, padding=1, groups=32)


@workload("conv_32_apart", parameters=0.004608, multiply_adds=0.01445, papers=("taso",), case=True)
def conv_32_apart(b: Builder, batch: int) -> Value:
    """The same as 32 convolutions of 4 channels each (TASO, figure 9a)."""
    x = b.input("x", batch, 128, 56, 56)
    parts = b.nodes("Split", 32, x, axis=1, num_outputs=32)
    return b.concat(*(b.conv(part, f"conv.{index}", 4, 3, padding=1) for index, part in enumerate(parts)))


# Patterns that merge: operators that share an input, or whose results are added.


@workload("matmuls_3_512x768", parameters=1.769, multiply_adds=0.9060, papers=("pet",), case=True)
def matmuls_3_512x768(b: Builder, batch: int) -> tuple[Value, ...]:
    """BERT's three products of one input, [512, 768] by [768, 768] (PET, table 3)."""
    x = b.input("x", 512 * batch, 768)
    return tuple(_matmul(b, x, f"matmul.{index}", 768) for index in range(3))


@workload("matmuls_2_64x1024", parameters=2.097, multiply_adds=0.1342, papers=("tensat",), case=True)
def matmuls_2_64x1024(b: Builder, batch: int) -> tuple[Value, ...]:
    """BERT's two products of one input, [64, 1024] by [1024, 1024] (TENSAT, figure 7)."""
    x = b.input("x", 64 * batch, 1024)
    return tuple(_matmul(b, x, f"matmul.{index}", 1024) for index in range(2))


@workload("convs_2_768x18x18", parameters=0.2703, multiply_adds=0.08759, papers=("pet",), case=True)
def convs_2_768x18x18(b: Builder, batch: int) -> tuple[Value, ...]:
    """Inception-v3's two 1x1 convolutions of one input, 768 to 192 and to 160 channels (PET, table 3)."""
    x = b.input("x", batch, 768, 18, 18)
    return tuple(b.conv(x, f"conv.{channels}", channels, 1) for channels in (192, 160))


@workload("convs_2_192x35x35", parameters=0.0215, multiply_adds=0.02634, papers=("tensat",), case=True)
def convs_2_192x35x35(b: Builder, batch: int) -> tuple[Value, ...]:
    """Inception-v3's two 1x1 convolutions of one input, 192 to 64 and to 48 channels (TENSAT, figure 8)."""
    x = b.input("x", batch, 192, 35, 35)
    return tuple(b.conv(x, f"conv.{channels}", channels, 1) for channels in (64, 48))


@workload("convs_added_44x28x28", parameters=0.03872, multiply_adds=0.03036, papers=("tensat",), case=True)
def convs_added_44x28x28(b: Builder, batch: int) -> Value:
    """Two chains of a 3x3 and a 1x1 convolution of one input, added, 44 channels (TENSAT, figure 9).

    The figure gives no sizes: these are of NasNet-A's first cells.
    """
    x = b.input("x", batch, 44, 28, 28)
    return reduce(
        b.add,
        (
            b.conv(b.conv(x, f"chain.{index}.0", 44, 3, padding=1, gain=1.0), f"chain.{index}.1", 44, 1)
            for index in range(2)
        ),
    )


@workload("matmuls_gates_512", parameters=1.049, multiply_adds=0.001049, papers=("tensat",), case=True)
def matmuls_gates_512(b: Builder, batch: int) -> Value:
    """Two of NasRNN's gates, each of products of the input and of the state, added (TENSAT, figure 10)."""
    read = [b.input(name, batch, 512) for name in ("x", "state")]
    gates = [
        reduce(b.add, (_matmul(b, value, f"gate.{index}.{value.name}", 512) for value in read))
        for index in range(2)
    ]
    return b.mul(b.node("Sigmoid", gates[0]), b.node("Tanh", gates[1]))


@workload("g2bmm", parameters=0.0, multiply_adds=1.309, papers=("einnet",), case=True)
def g2bmm(
    b: Builder, batch: int, heads: int = 8, length: int = 10000, width: int = 64, dilation: int = 4
) -> Value:
    """Products of each query with the keys of its dilated window, 8 heads of 10000 x 64 (EINNET, table 3).

    Written in Longformer's chunked form: the length is padded to whole chunks, and positions that are equal
    modulo `dilation` become a sequence of their own. Each query is multiplied with the keys from `width`
    before to `width` after it, `dilation` apart; a missing key gives -10000. The paper's table has neither
    width nor dilation; ours are a choice.
    """
    whole = -(-length // (width * dilation)) * width * dilation
    rows, sequence = batch * heads, whole // dilation
    pads = b.constant([0, 0, 0, 0, whole - length, 0])

    def chunked(name: str) -> Value:
        padded = b.node("Pad", b.input(name, rows, length, 64), pads)
        apart = b.transpose(b.reshape(padded, rows, sequence, dilation, 64), 0, 2, 1, 3)
        return b.reshape(apart, rows * dilation, sequence // width, width, 64)

    band = multiply_to_band(b, chunked("query"), chunked("key"))
    rows_of_scores = b.transpose(b.reshape(band, rows, dilation, sequence, 2 * width + 1), 0, 2, 1, 3)
    cut = [b.constant([value]) for value in (0, length, 1)]
    return b.node("Slice", b.reshape(rows_of_scores, rows, whole, 2 * width + 1), *cut)
