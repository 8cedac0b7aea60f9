"""The zoo's image classifiers against torchvision's and timm's, which are given our weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from small_programs import session_of

from tensaurus.app.zoo import catalog, feed_forward, inception, nasnet, residual
from tensaurus.app.zoo.builder import Builder

torch = pytest.importorskip("published").torch
timm = pytest.importorskip("timm")
vision = pytest.importorskip("torchvision").models


@dataclass
class Pair:
    """One model twice: ours in onnxruntime, the published implementation in torch."""

    model: onnx.ModelProto
    reference: Any

    def input(self, seed: int) -> np.ndarray:
        shape = [dim.dim_value for dim in self.model.graph.input[0].type.tensor_type.shape.dim]
        return np.random.default_rng(seed).standard_normal(shape, np.float32)

    def ours(self, *seeds: int) -> list[np.ndarray]:
        session = session_of(self.model, threads=1)
        name = self.model.graph.input[0].name
        return [session.run(None, {name: self.input(seed)})[0] for seed in seeds]


def _inception_v3() -> Any:
    return vision.inception_v3(aux_logits=False, transform_input=False, init_weights=False)


def _nasnet() -> Any:
    from timm.models.nasnet import NASNetALarge

    return NASNetALarge(stem_size=32, num_features=1056)


class _NormRelu(torch.nn.BatchNorm1d):
    def forward(self, x: Any) -> Any:
        return super().forward(x).relu()


def _flat(layer: Any) -> Any:
    """What a layer does to an image one pixel high, in one dimension; None where that is the same."""
    if isinstance(layer, torch.nn.Conv2d):
        (_, kernel), (_, stride), (_, padding) = layer.kernel_size, layer.stride, layer.padding
        channels, bias = (layer.in_channels, layer.out_channels), layer.bias is not None
        return torch.nn.Conv1d(*channels, kernel, stride, padding, bias=bias)
    if isinstance(layer, torch.nn.BatchNorm2d):  # timm's, with the ReLU inside
        return _NormRelu(layer.num_features, layer.eps)
    if isinstance(layer, torch.nn.MaxPool2d):
        return torch.nn.MaxPool1d(layer.kernel_size, layer.stride, layer.padding)
    if isinstance(layer, torch.nn.AvgPool2d):
        pool = torch.nn.AvgPool1d
        return pool(layer.kernel_size, layer.stride, layer.padding, count_include_pad=layer.count_include_pad)
    if isinstance(layer, timm.layers.SelectAdaptivePool2d):
        return torch.nn.Sequential(torch.nn.AdaptiveAvgPool1d(1), torch.nn.Flatten())
    return None


def _inception_resnet_1d() -> Any:
    model = timm.create_model("inception_resnet_v2", in_chans=1)
    for name, layer in list(model.named_modules()):
        if (flat := _flat(layer)) is not None:
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, flat)
    return model


MODELS: dict[str, tuple[Callable[..., Any], dict[str, int], Callable[[], Any]]] = {
    "vgg19": (feed_forward.vgg19, {}, lambda: vision.vgg19(init_weights=False)),
    "squeezenet": (feed_forward.squeezenet, {"size": 66}, vision.squeezenet1_1),
    "mobilenetv2": (feed_forward.mobilenetv2, {"size": 72}, vision.mobilenet_v2),
    "resnet18": (residual.resnet18, {"size": 72}, vision.resnet18),
    "resnet50": (residual.resnet50, {"size": 72}, vision.resnet50),
    "resnext50": (residual.resnext50, {"size": 72}, vision.resnext50_32x4d),
    "resnest50": (residual.resnest50, {"size": 72}, lambda: timm.create_model("resnest50d")),
    "inception_v3": (inception.inception_v3, {"size": 107}, _inception_v3),
    "inception_resnet_1d": (inception.inception_resnet_1d, {}, _inception_resnet_1d),
    "nasnet_a": (nasnet.nasnet_a, {"size": 96, "cells": 6}, _nasnet),
}


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    build, sizes, make = MODELS[request.param]
    builder = Builder(request.param)
    model = builder.model(build(builder, 1, **sizes))
    with torch.device("meta"):  # draws no weights of its own
        reference = make().eval()
    carried = {
        tensor.name: torch.from_numpy(onnx.numpy_helper.to_array(tensor).copy())
        for tensor in model.graph.initializer
        if not tensor.name.startswith("constant")
    }
    missing, unexpected = reference.load_state_dict(carried, strict=False, assign=True)
    assert not unexpected
    assert all(name.endswith("num_batches_tracked") for name in missing)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Pair(model, reference)
    torch.set_num_threads(threads)


@pytest.mark.nightly(every=9, first=1)
def test_output_is_that_of_the_published_implementation(pair: Pair) -> None:
    made, other = pair.ours(1, 2)
    with torch.no_grad():
        wanted = pair.reference(torch.from_numpy(pair.input(1))).numpy()
    scale = np.abs(wanted).max()
    assert np.abs(made - wanted).max() <= 1e-4 * scale
    assert np.abs(made - other).max() >= 0.01 * scale, "the output hardly depends on the input"
    assert wanted.std() >= 0.05


@pytest.mark.nightly(every=4)
def test_output_depends_on_every_weight(pair: Pair) -> None:
    """To first order, doubling a weight's tensor moves the output by a visible share of its own size."""
    weights = {name: weight.requires_grad_() for name, weight in pair.reference.named_parameters()}
    output = pair.reference(torch.from_numpy(pair.input(1)))
    mix = torch.randn(output.shape, generator=torch.Generator().manual_seed(0))
    gradients = torch.autograd.grad((output * mix).sum(), list(weights.values()))
    size = output.norm().item()
    moved = {
        name: (gradient.norm() * weight.norm()).item() / size
        for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
    }
    assert not {name: share for name, share in moved.items() if not share > 1e-3}


def test_inception_resnet_1d_has_as_many_convolutions_as_eto_counts() -> None:
    model = onnx.shape_inference.infer_shapes(catalog.find_workload("inception_resnet_1d").build_model())
    shapes = {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in (*model.graph.input, *model.graph.value_info)
    } | {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    met = {
        (shapes[node.input[0]][1], shapes[node.input[1]], shapes[node.output[0]])
        for node in model.graph.node
        if node.op_type == "Conv"
    }
    assert len(met) == 35
