"""Networks over video: ResNet3D-18 and R(2+1)D-18 (Tran et al., 2018)."""

from __future__ import annotations

from collections.abc import Callable

from tensaurus.app.zoo.builder import Builder, Value
from tensaurus.app.zoo.catalog import workload

__all__ = ["r2plus1d_18", "r3d_18"]

FRAMES, SIDE, CLASSES = 16, 112, 400

# (builder, x, name, channels, inner channels, stride)
Convolution = Callable[[Builder, Value, str, int, int, int], Value]


def r3d_18(b: Builder, batch: int, frames: int, side: int) -> Value:
    """Build a residual network of full 3-D convolutions."""
    x = b.input("clip", batch, 3, frames, side, side)
    stem = b.conv_norm(x, "stem.0", "stem.1", 64, (3, 7, 7), stride=(1, 2, 2), padding=(1, 3, 3))
    return _body(b, b.relu(stem), _full)


def r2plus1d_18(b: Builder, batch: int, frames: int, side: int) -> Value:
    """Build a residual network with each convolution factored into one over space and one over time."""
    x = b.input("clip", batch, 3, frames, side, side)
    stem = b.conv_norm(x, "stem.0", "stem.1", 45, (1, 7, 7), stride=(1, 2, 2), padding=(0, 3, 3))
    stem = b.conv_norm(b.relu(stem), "stem.3", "stem.4", 64, (3, 1, 1), padding=(1, 0, 0))
    return _body(b, b.relu(stem), _factored)


def _body(b: Builder, x: Value, convolve: Convolution) -> Value:
    """Add four stages of two blocks, which halve the resolution after the first, and the classifier."""
    for stage, channels in enumerate((64, 128, 256, 512), start=1):
        x = _block(b, x, f"layer{stage}.0", channels, 1 if stage == 1 else 2, convolve)
        x = _block(b, x, f"layer{stage}.1", channels, 1, convolve)
    return b.linear(b.global_pool(x), "fc", CLASSES)


def _block(b: Builder, x: Value, name: str, channels: int, stride: int, convolve: Convolution) -> Value:
    """Add two convolutions and the identity, or a 1x1x1 convolution if sizes change."""
    # the two convolutions of `_factored` then have as many weights as one of 3x3x3
    inner_channels = x.channels * channels * 27 // (x.channels * 9 + channels * 3)
    y = convolve(b, x, f"{name}.conv1.0", channels, inner_channels, stride)
    y = b.relu(b.batch_norm(y, f"{name}.conv1.1"))
    y = convolve(b, y, f"{name}.conv2.0", channels, inner_channels, 1)
    y = b.batch_norm(y, f"{name}.conv2.1", gain=0.4)
    if stride > 1 or x.channels != channels:
        wide = f"{name}.downsample"
        x = b.conv_norm(x, f"{wide}.0", f"{wide}.1", channels, 1, stride=stride, gain=1.0)
    return b.relu(b.add(y, x))


def _full(b: Builder, x: Value, name: str, channels: int, inner_channels: int, stride: int) -> Value:
    return b.conv(x, name, channels, 3, stride=stride, padding=1)


def _factored(b: Builder, x: Value, name: str, channels: int, inner_channels: int, stride: int) -> Value:
    """Add a convolution over space, then one over time, with as many parameters as a full convolution."""
    inner, steps = f"{name}.0", (1, stride, stride)
    y = b.conv_norm(x, inner, f"{name}.1", inner_channels, (1, 3, 3), stride=steps, padding=(0, 1, 1))
    return b.conv(b.relu(y), f"{name}.3", channels, (3, 1, 1), stride=(stride, 1, 1), padding=(1, 0, 0))


@workload("resnet3d18", parameters=33.37, multiply_adds=40.7, papers=("pet",), batches=(1, 16))
def resnet3d18(b: Builder, batch: int) -> Value:
    """ResNet3D-18, 16 frames of 112x112."""
    return r3d_18(b, batch, FRAMES, SIDE)


@workload("r2plus1d18", parameters=31.51, multiply_adds=40.5, papers=("eto",))
def r2plus1d18(b: Builder, batch: int) -> Value:
    """R(2+1)D-18, 16 frames of 112x112."""
    return r2plus1d_18(b, batch, FRAMES, SIDE)
