"""Inception-v3, and the 1-D Inception-ResNet-V2."""

from __future__ import annotations

from tensaurus.app.zoo.builder import Builder, Sizes, Value
from tensaurus.app.zoo.catalog import workload

__all__ = ["inception_resnet_1d", "inception_v3"]

# Channels and kernel of each convolution of a branch, in order.
Layers = tuple[tuple[int, Sizes], ...]

_EPSILON = 1e-3


@workload("inception_v3", parameters=23.83, multiply_adds=5.71, papers=("tensat", "pet"), batches=(1, 16))
def inception_v3(b: Builder, batch: int, size: int = 299) -> Value:
    """Inception-v3 (Szegedy et al., 2016) without its auxiliary classifier."""
    x = b.input("image", batch, 3, size, size)
    x = _unit(b, x, "Conv2d_1a_3x3", 32, 3, stride=2)
    x = _unit(b, x, "Conv2d_2a_3x3", 32, 3, same=False)
    x = _unit(b, x, "Conv2d_2b_3x3", 64, 3)
    x = b.max_pool(x, 3, 2)
    x = _unit(b, x, "Conv2d_3b_1x1", 80, 1)
    x = _unit(b, x, "Conv2d_4a_3x3", 192, 3, same=False)
    x = b.max_pool(x, 3, 2)
    for block, pooled in (("5b", 32), ("5c", 64), ("5d", 64)):
        x = _block_a(b, x, f"Mixed_{block}", pooled)
    x = _block_b(b, x, "Mixed_6a")
    for block, inner in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
        x = _block_c(b, x, f"Mixed_{block}", inner)
    x = _block_d(b, x, "Mixed_7a")
    for block in ("7b", "7c"):
        x = _block_e(b, x, f"Mixed_{block}")
    return b.linear(b.global_pool(x), "fc", 1000)


def _unit(
    b: Builder, x: Value, name: str, channels: int, kernel: Sizes, *, stride: int = 1, same: bool = True
) -> Value:
    """Add convolution, normalization and ReLU; `same` pads to keep the size if the stride is 1."""
    window = kernel if isinstance(kernel, tuple) else (kernel,) * (len(x.shape) - 2)
    padding = tuple(size // 2 for size in window) if same and stride == 1 else 0
    x = b.conv_norm(
        x, f"{name}.conv", f"{name}.bn", channels, window, stride=stride, padding=padding, epsilon=_EPSILON
    )
    return b.relu(x)


def _branch(b: Builder, x: Value, name: str, layers: Layers, *, stride: int = 1, first: int = 1) -> Value:
    """Add a chain of units called NAME1, NAME2, ... (from `first` on); the last one has the stride."""
    for index, (channels, kernel) in enumerate(layers):
        last = index == len(layers) - 1
        x = _unit(b, x, f"{name}{first + index}", channels, kernel, stride=stride if last else 1)
    return x


def _pooled(b: Builder, x: Value, name: str, channels: int) -> Value:
    return _unit(b, b.average_pool(x, 3, 1, 1), f"{name}.branch_pool", channels, 1)


# The blocks of Inception-v3, which torchvision calls InceptionA to InceptionE: B and D halve the image.


def _block_a(b: Builder, x: Value, name: str, pooled: int) -> Value:
    return b.concat(
        _unit(b, x, f"{name}.branch1x1", 64, 1),
        _branch(b, x, f"{name}.branch5x5_", ((48, 1), (64, 5))),
        _branch(b, x, f"{name}.branch3x3dbl_", ((64, 1), (96, 3), (96, 3))),
        _pooled(b, x, name, pooled),
    )


def _block_b(b: Builder, x: Value, name: str) -> Value:
    return b.concat(
        _unit(b, x, f"{name}.branch3x3", 384, 3, stride=2),
        _branch(b, x, f"{name}.branch3x3dbl_", ((64, 1), (96, 3), (96, 3)), stride=2),
        b.max_pool(x, 3, 2),
    )


def _block_c(b: Builder, x: Value, name: str, inner: int) -> Value:
    wide, high = (1, 7), (7, 1)
    double: Layers = ((inner, 1), (inner, high), (inner, wide), (inner, high), (192, wide))
    return b.concat(
        _unit(b, x, f"{name}.branch1x1", 192, 1),
        _branch(b, x, f"{name}.branch7x7_", ((inner, 1), (inner, wide), (192, high))),
        _branch(b, x, f"{name}.branch7x7dbl_", double),
        _pooled(b, x, name, 192),
    )


def _block_d(b: Builder, x: Value, name: str) -> Value:
    factored: Layers = ((192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3))
    return b.concat(
        _branch(b, x, f"{name}.branch3x3_", ((192, 1), (320, 3)), stride=2),
        _branch(b, x, f"{name}.branch7x7x3_", factored, stride=2),
        b.max_pool(x, 3, 2),
    )


def _block_e(b: Builder, x: Value, name: str) -> Value:
    single = _unit(b, x, f"{name}.branch3x3_1", 384, 1)
    double = _branch(b, x, f"{name}.branch3x3dbl_", ((448, 1), (384, 3)))
    return b.concat(
        _unit(b, x, f"{name}.branch1x1", 320, 1),
        _forked(b, single, f"{name}.branch3x3_2"),
        _forked(b, double, f"{name}.branch3x3dbl_3"),
        _pooled(b, x, name, 192),
    )


def _forked(b: Builder, x: Value, name: str) -> Value:
    return b.concat(_unit(b, x, f"{name}a", 384, (1, 3)), _unit(b, x, f"{name}b", 384, (3, 1)))


@workload("inception_resnet_1d", parameters=46.66, multiply_adds=1.028, papers=("eto",))
def inception_resnet_1d(
    b: Builder, batch: int, length: int = 512, blocks: tuple[int, int, int] = (10, 20, 9)
) -> Value:
    """Inception-ResNet-V2 (Szegedy et al., 2017) over a signal of one channel.

    Its kernels are those of the image model on an image one pixel high: 1x7 becomes 7, 7x1 becomes 1. It has
    35 different convolutions, as ETO counts.
    """
    x = b.input("signal", batch, 1, length)
    x = _unit(b, x, "conv2d_1a", 32, 3, stride=2)
    x = _unit(b, x, "conv2d_2a", 32, 3, same=False)
    x = _unit(b, x, "conv2d_2b", 64, 3)
    x = b.max_pool(x, 3, 2)
    x = _unit(b, x, "conv2d_3b", 80, 1)
    x = _unit(b, x, "conv2d_4a", 192, 3, same=False)
    x = b.max_pool(x, 3, 2)
    x = b.concat(
        _unit(b, x, "mixed_5b.branch0", 96, 1),
        _branch(b, x, "mixed_5b.branch1.", ((48, 1), (64, 5)), first=0),
        _branch(b, x, "mixed_5b.branch2.", ((64, 1), (96, 3), (96, 3)), first=0),
        _unit(b, b.average_pool(x, 3, 1, 1, count_padding=False), "mixed_5b.branch3.1", 64, 1),
    )
    for index in range(blocks[0]):
        x = _residual(b, x, f"repeat.{index}", 32, (((32, 1), (32, 3)), ((32, 1), (48, 3), (64, 3))), 0.17)
    x = b.concat(
        _unit(b, x, "mixed_6a.branch0", 384, 3, stride=2),
        _branch(b, x, "mixed_6a.branch1.", ((256, 1), (256, 3), (384, 3)), stride=2, first=0),
        b.max_pool(x, 3, 2),
    )
    for index in range(blocks[1]):
        x = _residual(b, x, f"repeat_1.{index}", 192, (((128, 1), (160, 7), (192, 1)),), 0.1)
    x = b.concat(
        _branch(b, x, "mixed_7a.branch0.", ((256, 1), (384, 3)), stride=2, first=0),
        _branch(b, x, "mixed_7a.branch1.", ((256, 1), (288, 3)), stride=2, first=0),
        _branch(b, x, "mixed_7a.branch2.", ((256, 1), (288, 3), (320, 3)), stride=2, first=0),
        b.max_pool(x, 3, 2),
    )
    deep: Layers = ((192, 1), (224, 3), (256, 1))
    for index in range(blocks[2]):
        x = _residual(b, x, f"repeat_2.{index}", 192, (deep,), 0.2)
    x = _residual(b, x, "block8", 192, (deep,), 1.0, relu=False)
    x = _unit(b, x, "conv2d_7b", 1536, 1)
    return b.linear(b.global_pool(x), "classif", 1000)


def _residual(
    b: Builder, x: Value, name: str, narrow: int, deep: tuple[Layers, ...], scale: float, relu: bool = True
) -> Value:
    """Add the input and its branches, which are concatenated, widened to the input's channels and scaled.

    The first branch is a 1x1 convolution to `narrow` channels, the others have the layers of `deep`.
    """
    branches = [_unit(b, x, f"{name}.branch0", narrow, 1)]
    for index, layers in enumerate(deep, 1):
        branches.append(_branch(b, x, f"{name}.branch{index}.", layers, first=0))
    y = b.conv(b.concat(*branches), f"{name}.conv2d", x.channels, 1, bias=True, gain=1.0)
    if scale != 1:
        y = b.mul(y, b.constant(scale, f"constant.{scale}"))
    y = b.add(y, x)
    return b.relu(y) if relu else y
