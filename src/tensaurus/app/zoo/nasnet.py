"""NasNet-A, the mobile one."""

from __future__ import annotations

from tensaurus.app.zoo.builder import Builder, Value
from tensaurus.app.zoo.catalog import workload

__all__ = ["nasnet_a"]

_EPSILON = 1e-3


@workload("nasnet_a", parameters=5.3, multiply_adds=0.564, papers=("taso", "tensat"))
def nasnet_a(b: Builder, batch: int, size: int = 224, cells: int = 4, features: int = 1056) -> Value:
    """NasNet-A (Zoph et al., 2018), by default the mobile one, 4 @ 1056."""
    width = features // 24  # the last cells concatenate 6 branches of 4 * width channels
    image = b.input("image", batch, 3, size, size)
    stem = b.conv_norm(image, "conv0.conv", "conv0.bn", 32, 3, stride=2, epsilon=_EPSILON)
    before = _reduction(b, _fitted(b, stem, "cell_stem_0.conv_1x1", width // 4), stem, "cell_stem_0")
    x = _reduction(
        b,
        _fitted(b, before, "cell_stem_1.conv_1x1", width // 2),
        _halved(b, stem, "cell_stem_1", width // 2),
        "cell_stem_1",
    )
    # a cell reads the outputs of the last cell, `x`, and of the one before, `before`
    index = 0
    for stage in range(3):
        channels = width << stage
        if stage:
            name = f"reduction_cell_{stage - 1}"
            reduced = _fitted(b, x, f"{name}.conv_1x1", channels)
            x = _reduction(b, reduced, _fitted(b, before, f"{name}.conv_prev_1x1", channels), name)
        for cell in range(cells):
            name = f"cell_{index}"
            index += 1
            if cell:
                previous = _fitted(b, before, f"{name}.conv_prev_1x1", channels)
            else:
                previous = _halved(b, before, name, channels)
            before, x = x, _normal(b, _fitted(b, x, f"{name}.conv_1x1", channels), previous, name)
    return b.linear(b.global_pool(b.relu(x)), "last_linear", 1000)


def _normal(b: Builder, x: Value, previous: Value, name: str) -> Value:
    """Add a normal cell, which reads the fitted outputs of the last two cells."""
    inner = f"{name}.comb_iter"
    return b.concat(
        previous,
        b.add(_separable(b, x, f"{inner}_0_left", 5), _separable(b, previous, f"{inner}_0_right", 3)),
        b.add(_separable(b, previous, f"{inner}_1_left", 5), _separable(b, previous, f"{inner}_1_right", 3)),
        b.add(_average(b, x), previous),
        b.add(_average(b, previous), _average(b, previous)),
        b.add(_separable(b, x, f"{inner}_4_left", 3), x),
    )


def _reduction(b: Builder, x: Value, previous: Value, name: str) -> Value:
    """Add a reduction cell; all its branches have the channels of x."""
    inner, channels = f"{name}.comb_iter", x.channels
    seven = [_separable(b, previous, f"{inner}_{index}_right", 7, 2, channels) for index in (0, 1)]
    five = _separable(b, previous, f"{inner}_2_right", 5, 2, channels)
    hidden = b.add(_separable(b, x, f"{inner}_0_left", 5, 2), seven[0])
    largest = b.add(b.max_pool(x, 3, 2, _same(x, 3, 2)), seven[1])
    return b.concat(
        largest,
        b.add(_average(b, x, 2), five),
        b.add(_average(b, hidden), largest),
        b.add(_separable(b, hidden, f"{inner}_4_left", 3), b.max_pool(x, 3, 2, _same(x, 3, 2))),
    )


def _fitted(b: Builder, x: Value, name: str, channels: int) -> Value:
    """Fit the input of a cell to the cell's number of channels."""
    return b.conv_norm(b.relu(x), f"{name}.conv", f"{name}.bn", channels, 1, gain=1.0, epsilon=_EPSILON)


def _halved(b: Builder, x: Value, name: str, channels: int) -> Value:
    """Fit an input of twice the size: every second pixel, and the pixels diagonally between."""
    x = b.relu(x)
    shifted = b.node("Pad", x, b.constant([0, 0, -1, -1, 0, 0, 1, 1]))  # by one row and one column
    paths = [
        b.conv(b.average_pool(part, 1, 2), f"{name}.path_{index}.conv", channels // 2, 1, gain=1.0)
        for index, part in enumerate((x, shifted), 1)
    ]
    return b.batch_norm(b.concat(*paths), f"{name}.final_path_bn", epsilon=_EPSILON)


def _separable(
    b: Builder, x: Value, name: str, kernel: int, stride: int = 1, channels: int | None = None
) -> Value:
    """Add twice ReLU, depthwise and pointwise convolution, normalization; the first time with the stride."""
    for index, step in ((1, stride), (2, 1)):
        layer = f"{name}.separable_{index}"
        x = b.relu(x)
        x = b.conv(
            x, f"{layer}.depthwise_conv2d", x.channels, kernel, stride=step, padding=_same(x, kernel, step),
            groups=x.channels,
        )
        x = b.conv_norm(
            x, f"{layer}.pointwise_conv2d", f"{name}.bn_sep_{index}", channels or x.channels, 1, gain=1.0,
            epsilon=_EPSILON,
        )
    return x


def _average(b: Builder, x: Value, stride: int = 1) -> Value:
    # timm pads before a pooling with a stride, so that only these means count the zeros
    return b.average_pool(x, 3, stride, _same(x, 3, stride), count_padding=stride > 1)


def _same(x: Value, kernel: int, stride: int) -> tuple[int, ...]:
    """Return TensorFlow's SAME padding: an odd pixel goes after the image."""
    short = [max(0, (-(-size // stride) - 1) * stride + kernel - size) for size in x.shape[2:]]
    return (*(missing // 2 for missing in short), *(missing - missing // 2 for missing in short))
