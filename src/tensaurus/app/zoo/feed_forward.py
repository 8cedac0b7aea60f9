"""Image classifiers that are mostly one chain of layers: VGG, SqueezeNet, MobileNetV2.

`index` numbers the layers in the names of weights, as a torch.nn.Sequential does: a ReLU or a pooling has a
number, but no weights.
"""

from __future__ import annotations

from tensaurus.app.zoo.builder import Builder, Value
from tensaurus.app.zoo.catalog import workload

__all__ = ["mobilenetv2", "squeezenet", "vgg19"]


@workload("vgg19", parameters=143.67, multiply_adds=19.6, papers=("tensat",))
def vgg19(b: Builder, batch: int, size: int = 224) -> Value:
    """VGG-19 (Simonyan and Zisserman, 2015), configuration E, without batch normalization."""
    x = b.input("image", batch, 3, size, size)
    index = 0
    for channels, depth in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(depth):
            x = b.relu(b.conv(x, f"features.{index}", channels, 3, padding=1, bias=True))
            index += 2
        x = b.max_pool(x, 2, 2)
        index += 1
    x = b.node("Flatten", x, axis=1)
    for layer in (0, 3):
        x = b.relu(b.linear(x, f"classifier.{layer}", 4096, gain=2.0))
    return b.linear(x, "classifier.6", 1000)


@workload("squeezenet", parameters=1.24, multiply_adds=0.35, papers=("tensat",))
def squeezenet(b: Builder, batch: int, size: int = 224) -> Value:
    """SqueezeNet 1.1 (Iandola et al., 2016)."""
    x = b.input("image", batch, 3, size, size)
    x = b.relu(b.conv(x, "features.0", 64, 3, stride=2, bias=True))
    index = 1
    for fires in (((16, 64),) * 2, ((32, 128),) * 2, ((48, 192),) * 2 + ((64, 256),) * 2):
        x = b.max_pool(x, 3, 2, ceil=True)
        index += 1
        for squeezed, expanded in fires:
            index += 1
            x = _fire(b, x, f"features.{index}", squeezed, expanded)
    x = b.relu(b.conv(x, "classifier.1", 1000, 1, bias=True))
    return b.global_pool(x)


def _fire(b: Builder, x: Value, name: str, squeezed: int, expanded: int) -> Value:
    """Add a fire module: 1x1 to `squeezed` channels, then 1x1 and 3x3 to `expanded` channels each."""
    x = b.relu(b.conv(x, f"{name}.squeeze", squeezed, 1, bias=True))
    narrow = b.relu(b.conv(x, f"{name}.expand1x1", expanded, 1, bias=True))
    wide = b.relu(b.conv(x, f"{name}.expand3x3", expanded, 3, padding=1, bias=True))
    return b.concat(narrow, wide)


# Expansion, channels, blocks and first stride of each stage (table 2 of the paper).
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


@workload("mobilenetv2", parameters=3.50, multiply_adds=0.30, papers=("eto",))
def mobilenetv2(b: Builder, batch: int, size: int = 224) -> Value:
    """MobileNetV2 (Sandler et al., 2018)."""
    x = b.input("image", batch, 3, size, size)
    x = _conv_relu6(b, x, "features.0", 32, 3, stride=2)
    index = 0
    for expansion, channels, blocks, first in _STAGES:
        for block in range(blocks):
            index += 1
            x = _inverted(b, x, f"features.{index}.conv", expansion, channels, 1 if block else first)
    x = _conv_relu6(b, x, f"features.{index + 1}", 1280, 1)
    return b.linear(b.global_pool(x), "classifier.1", 1000)


def _inverted(b: Builder, x: Value, name: str, expansion: int, channels: int, stride: int) -> Value:
    """Add an inverted residual block: expand, depthwise convolution, project."""
    inner, index, y = x.channels * expansion, 0, x
    if expansion > 1:
        y = _conv_relu6(b, y, f"{name}.0", inner, 1)
        index = 1
    y = _conv_relu6(b, y, f"{name}.{index}", inner, 3, stride=stride, groups=inner)
    is_residual = x.channels == channels and stride == 1
    gain = 0.4 if is_residual else 1.0
    y = b.conv_norm(y, f"{name}.{index + 1}", f"{name}.{index + 2}", channels, 1, gain=gain)
    return b.add(x, y) if is_residual else y


def _conv_relu6(
    b: Builder, x: Value, name: str, channels: int, kernel: int, stride: int = 1, groups: int = 1
) -> Value:
    x = b.conv_norm(
        x, f"{name}.0", f"{name}.1", channels, kernel, stride=stride, padding=kernel // 2, groups=groups
    )
    return b.node("Clip", x, b.constant(0.0, "constant.0"), b.constant(6.0, "constant.6"))
