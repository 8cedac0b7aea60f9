"""Dense prediction: networks with an image as output (CSRNet, FSRCNN, GCN)."""

from __future__ import annotations

from tensaurus.app.zoo.builder import Builder, Value
from tensaurus.app.zoo.catalog import workload
from tensaurus.app.zoo.residual import resnet50_stages

__all__ = ["csr_net", "fsr_cnn", "gcn"]

SIDE = 224

# CSRNet (Li et al., 2018): VGG-16 up to its third pooling, then dilated convolutions; None is a pooling.
_FRONT = (64, 64, None, 128, 128, None, 256, 256, 256, None, 512, 512, 512)
_BACK = (512, 512, 512, 256, 128, 64)


def _convolutions(
    b: Builder, x: Value, name: str, widths: tuple[int | None, ...], dilation: int = 1
) -> Value:
    """Add 3x3 convolutions with ReLUs, and poolings for None, named as in a torch.nn.Sequential."""
    index = 0
    for width in widths:
        if width is None:
            x, index = b.max_pool(x, 2, 2), index + 1
        else:
            x = b.conv(x, f"{name}.{index}", width, 3, padding=dilation, dilation=dilation, bias=True)
            x, index = b.relu(x), index + 2
    return x


def csr_net(b: Builder, batch: int, side: int) -> Value:
    """Build CSRNet: a density map of an eighth of the image's size."""
    x = _convolutions(b, b.input("image", batch, 3, side, side), "frontend", _FRONT)
    return b.conv(_convolutions(b, x, "backend", _BACK, 2), "output_layer", 1, 1, bias=True, gain=1.0)


def fsr_cnn(b: Builder, batch: int, side: int, *, features: int, shrunk: int, mappings: int) -> Value:
    """Build FSRCNN (Dong et al., 2016), which doubles a gray image by a last transposed convolution."""

    def layer(x: Value, name: str, channels: int, kernel: int) -> Value:
        x = b.conv(x, name, channels, kernel, padding=kernel // 2, bias=True, gain=1.6)
        return b.node("PRelu", x, b.weight(f"{name}.slope", (channels, 1, 1), std=0.1, mean=0.25))

    x = layer(b.input("image", batch, 1, side, side), "extract", features, 5)
    x = layer(x, "shrink", shrunk, 1)
    for index in range(mappings):
        x = layer(x, f"map.{index}", shrunk, 3)
    x = layer(x, "expand", features, 1)
    return b.conv_transpose(x, "deconvolve", 1, 9, stride=2, padding=4, output_padding=1, bias=True, gain=1.0)


def gcn(b: Builder, batch: int, side: int, *, kernel: int, classes: int = 21) -> Value:
    """Build GCN (Peng et al., 2017): large separable convolutions over each stage of a ResNet-50.

    The deepest stage's scores are doubled and added to the next one's, then doubled twice more to the image's
    size; boundary refinement follows each step.
    """
    scores = []
    for stage, x in enumerate(resnet50_stages(b, batch, side), start=1):
        score = _global_convolution(b, x, f"gcn{stage}", classes, kernel)
        scores.append(_refine_boundary(b, score, f"gcn{stage}.refine"))
    y = scores.pop()
    for step in range(5):
        y = b.conv_transpose(y, f"up{step}", classes, 4, stride=2, padding=1, bias=True, gain=1.0)
        y = _refine_boundary(b, b.add(y, scores.pop()) if scores else y, f"up{step}.refine")
    return y


def _global_convolution(b: Builder, x: Value, name: str, channels: int, kernel: int) -> Value:
    """Add the sum of two separable convolutions of kernel x kernel: rows first, and columns first."""

    def along(x: Value, name: str, axis: int, gain: float) -> Value:
        window, padding = [1, 1], [0, 0]
        window[axis], padding[axis] = kernel, kernel // 2
        return b.conv(
            x, f"{name}.{axis}", channels, tuple(window), padding=tuple(padding), bias=True, gain=gain
        )

    left, right = (
        along(along(x, f"{name}.{part}", first, 1.0), f"{name}.{part}", 1 - first, 0.5)
        for part, first in (("left", 0), ("right", 1))
    )
    return b.add(left, right)


def _refine_boundary(b: Builder, x: Value, name: str) -> Value:
    """Add a residual branch of two convolutions."""
    y = b.relu(b.conv(x, f"{name}.conv1", x.channels, 3, padding=1, bias=True))
    return b.add(x, b.conv(y, f"{name}.conv2", x.channels, 3, padding=1, bias=True, gain=0.3))


@workload("csrnet", parameters=16.26, multiply_adds=20.72, papers=("pet", "einnet"), batches=(1, 16))
def csrnet(b: Builder, batch: int) -> Value:
    """CSRNet, 224x224."""
    return csr_net(b, batch, SIDE)


@workload("csrnet_backend", parameters=8.628, multiply_adds=1.691, papers=("pet",), batches=(1, 16))
def csrnet_backend(b: Builder, batch: int) -> Value:
    """CSRNet's six dilated convolutions, 512 channels of 14x14."""
    return _convolutions(b, b.input("features", batch, 512, 14, 14), "backend", _BACK, 2)


@workload("fsrcnn", parameters=0.01281, multiply_adds=0.6254, papers=("einnet",), batches=(1, 16))
def fsrcnn(b: Builder, batch: int) -> Value:
    """FSRCNN with 56 features, 12 shrunk, 4 mappings, 224x224 to 448x448."""
    return fsr_cnn(b, batch, SIDE, features=56, shrunk=12, mappings=4)


@workload("gcn_k7", parameters=24.77, multiply_adds=5.237, papers=("einnet",), batches=(1, 16))
def gcn_k7(b: Builder, batch: int) -> Value:
    """GCN with a ResNet-50, kernels of 7, 224x224."""
    return gcn(b, batch, SIDE, kernel=7)


@workload("gcn_k15", parameters=26.09, multiply_adds=5.772, papers=("einnet",), batches=(1, 16))
def gcn_k15(b: Builder, batch: int) -> Value:
    """GCN with a ResNet-50, kernels of 15, 224x224."""
    return gcn(b, batch, SIDE, kernel=15)
