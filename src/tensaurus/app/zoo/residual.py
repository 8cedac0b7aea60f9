"""Residual networks: ResNet, ResNeXt, ResNeSt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tensaurus.app.zoo.builder import Builder, Value
from tensaurus.app.zoo.catalog import workload

__all__ = ["resnest50", "resnet18", "resnet50", "resnet50_stages", "resnext50"]

_BRANCH_GAIN = 0.2  # mean square of a residual branch over that of its input; keeps activations bounded

Block = Callable[[Builder, Value, str, int, int], Value]  # (builder, x, name, width, stride) -> output

_LAYERS = (3, 4, 6, 3)


@workload("resnet18", parameters=11.69, multiply_adds=1.81, papers=("pet", "einnet"), batches=(1, 16))
def resnet18(b: Builder, batch: int, size: int = 224) -> Value:
    """ResNet-18 (He et al., 2016)."""
    return _network(b, _stem(b, batch, size), _basic_block, (2, 2, 2, 2))


@workload("resnet50", parameters=25.56, multiply_adds=4.09, papers=("taso", "eto"), batches=(1, 16))
def resnet50(b: Builder, batch: int, size: int = 224) -> Value:
    """ResNet-50 (He et al., 2016), with the stride in the 3x3 convolutions."""
    return _network(b, _stem(b, batch, size), _bottleneck, _LAYERS)


@workload("resnext50", parameters=25.03, multiply_adds=4.23, papers=("taso", "tensat"))
def resnext50(b: Builder, batch: int, size: int = 224) -> Value:
    """ResNeXt-50 32x4d (Xie et al., 2017)."""
    return _network(b, _stem(b, batch, size), _grouped_bottleneck, _LAYERS)


@workload("resnest50", parameters=27.48, multiply_adds=5.39, papers=("eto",))
def resnest50(b: Builder, batch: int, size: int = 224) -> Value:
    """ResNeSt-50 (Zhang et al., 2020): radix 2, one group, deep stem, average pooling for strides."""
    x = b.input("image", batch, 3, size, size)
    x = b.relu(b.conv_norm(x, "conv1.0", "conv1.1", 32, 3, stride=2, padding=1))
    x = b.relu(b.conv_norm(x, "conv1.3", "conv1.4", 32, 3, padding=1))
    x = b.relu(b.conv_norm(x, "conv1.6", "bn1", 64, 3, padding=1))
    return _network(b, x, _split_bottleneck, _LAYERS)


def _stem(b: Builder, batch: int, size: int) -> Value:
    x = b.input("image", batch, 3, size, size)
    return b.relu(b.conv_norm(x, "conv1", "bn1", 64, 7, stride=2, padding=3))


def resnet50_stages(b: Builder, batch: int, size: int) -> Iterator[Value]:
    """Yield the output of each stage of a ResNet-50: 256 to 2048 channels, a 4th to a 32nd of the size."""
    return _stages(b, _stem(b, batch, size), _bottleneck, _LAYERS)


def _stages(b: Builder, x: Value, block: Block, layers: Sequence[int]) -> Iterator[Value]:
    """Yield the output of each stage of blocks behind a stem."""
    x = b.max_pool(x, 3, 2, 1)
    for stage, depth in enumerate(layers):
        for index in range(depth):
            stride = 2 if stage and not index else 1
            x = block(b, x, f"layer{stage + 1}.{index}", 64 << stage, stride)
        yield x


def _network(b: Builder, x: Value, block: Block, layers: Sequence[int]) -> Value:
    """Add the stages of blocks and the classifier behind a stem."""
    *_, x = _stages(b, x, block, layers)
    return b.linear(b.global_pool(x), "fc", 1000)


def _basic_block(b: Builder, x: Value, name: str, width: int, stride: int) -> Value:
    y = b.relu(b.conv_norm(x, f"{name}.conv1", f"{name}.bn1", width, 3, stride=stride, padding=1))
    y = b.conv_norm(y, f"{name}.conv2", f"{name}.bn2", width, 3, padding=1, gain=_BRANCH_GAIN)
    return b.relu(b.add(y, _shortcut(b, x, name, width, stride)))


def _bottleneck(b: Builder, x: Value, name: str, width: int, stride: int) -> Value:
    return _add_bottleneck(b, x, name, width, width, stride, groups=1)


def _grouped_bottleneck(b: Builder, x: Value, name: str, width: int, stride: int) -> Value:
    return _add_bottleneck(b, x, name, width, 2 * width, stride, groups=32)


def _add_bottleneck(
    b: Builder, x: Value, name: str, width: int, inner: int, stride: int, groups: int
) -> Value:
    """Add a bottleneck: 1x1 to `inner` channels, 3x3 in groups, 1x1 to four times the width."""
    y = b.relu(b.conv_norm(x, f"{name}.conv1", f"{name}.bn1", inner, 1))
    y = b.conv_norm(y, f"{name}.conv2", f"{name}.bn2", inner, 3, stride=stride, padding=1, groups=groups)
    return _finish_bottleneck(b, b.relu(y), name, width, _shortcut(b, x, name, 4 * width, stride))


def _split_bottleneck(b: Builder, x: Value, name: str, width: int, stride: int) -> Value:
    y = b.relu(b.conv_norm(x, f"{name}.conv1", f"{name}.bn1", width, 1))
    y = _split_attention(b, y, f"{name}.conv2")
    shortcut = x
    if stride > 1:
        y = b.average_pool(y, 3, stride, 1)
        shortcut = b.average_pool(x, 2, stride, count_padding=False, ceil=True)
    if x.channels != 4 * width:
        shortcut = b.conv_norm(shortcut, f"{name}.downsample.1", f"{name}.downsample.2", 4 * width, 1)
    return _finish_bottleneck(b, y, name, width, shortcut)


def _finish_bottleneck(b: Builder, y: Value, name: str, width: int, shortcut: Value) -> Value:
    """Add the end of a bottleneck: 1x1 to four times the width, and the shortcut."""
    y = b.conv_norm(y, f"{name}.conv3", f"{name}.bn3", 4 * width, 1, gain=_BRANCH_GAIN)
    return b.relu(b.add(y, shortcut))


def _shortcut(b: Builder, x: Value, name: str, channels: int, stride: int) -> Value:
    if stride == 1 and x.channels == channels:
        return x
    return b.conv_norm(
        x, f"{name}.downsample.0", f"{name}.downsample.1", channels, 1, stride=stride, gain=1.0
    )


def _split_attention(b: Builder, x: Value, name: str, radix: int = 2) -> Value:
    """Add a 3x3 convolution in `radix` groups, and the weighted sum of the groups' outputs (splits).

    The weights of each channel are a softmax over the splits, computed from the image's mean of their sum.
    """
    batch, width, *image = x.shape
    x = b.relu(b.conv_norm(x, f"{name}.conv", f"{name}.bn0", radix * width, 3, padding=1, groups=radix))
    splits = b.reshape(x, batch, radix, width, *image)
    over_splits = b.constant([1])
    pooled = b.node("ReduceSum", splits, over_splits, keepdims=0)
    pooled = b.node("ReduceMean", pooled, b.constant([2, 3]), keepdims=1)
    inner = max(32, radix * width // 4)
    hidden = b.batch_norm(b.conv(pooled, f"{name}.fc1", inner, 1, bias=True), f"{name}.bn1")
    scores = b.conv(b.relu(hidden), f"{name}.fc2", radix * width, 1, bias=True, gain=0.1)
    scores = b.transpose(b.reshape(scores, batch, 1, radix, width), 0, 2, 1, 3)
    shares = b.reshape(b.node("Softmax", scores, axis=1), batch, radix, width, 1, 1)
    return b.node("ReduceSum", b.mul(splits, shares), over_splits, keepdims=0)
