"""Generators of adversarial networks: DCGAN (Radford et al., 2016), InfoGAN (Chen et al., 2016)."""

from __future__ import annotations

from tensaurus.app.zoo.builder import Builder, Value
from tensaurus.app.zoo.catalog import workload

__all__ = ["generator"]


def generator(
    b: Builder, batch: int, *, code: int, channels: tuple[int, ...], side: int, normalized: int
) -> Value:
    """Build a generator: transposed convolutions turn a code into side x side, then double the size to RGB.

    Batch normalization follows the first `normalized` convolutions, ReLU all but the last one. Weights are
    named as in a torch.nn.Sequential.
    """
    x, index = b.input("code", batch, code, 1, 1), 0
    for layer, width in enumerate(channels):
        # The code is one pixel, so each output sums one product per channel; the gain makes up for that.
        x = (
            b.conv_transpose(x, f"main.{index}", width, 4, stride=2, padding=1)
            if layer
            else b.conv_transpose(x, f"main.{index}", width, side, gain=2.0 * side * side)
        )
        if layer < normalized:
            index += 1
            x = b.batch_norm(x, f"main.{index}")
        x, index = b.relu(x), index + 2
    return b.node("Tanh", b.conv_transpose(x, f"main.{index}", 3, 4, stride=2, padding=1, gain=0.5))


@workload("infogan", parameters=2.903, multiply_adds=0.02531, papers=("einnet",), batches=(1, 16))
def infogan(b: Builder, batch: int) -> Value:
    """InfoGAN's generator for faces, 32x32 from a code of 228."""
    return generator(b, batch, code=228, channels=(448, 256, 128, 64), side=2, normalized=2)


@workload("dcgan", parameters=3.577, multiply_adds=0.1046, papers=("einnet", "eto"), batches=(1, 16))
def dcgan(b: Builder, batch: int) -> Value:
    """DCGAN's generator, 64x64 from a code of 100."""
    return generator(b, batch, code=100, channels=(512, 256, 128, 64), side=4, normalized=4)
