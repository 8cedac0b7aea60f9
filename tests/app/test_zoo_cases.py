"""The zoo's case studies against plain torch, with the weights of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch", reason="the `bench` extra is not installed")

import torch.nn.functional as nn  # noqa: E402
from onnx import numpy_helper  # noqa: E402
from small_programs import session_of  # noqa: E402

from tensaurus.app.zoo import cases  # noqa: E402
from tensaurus.app.zoo.builder import Builder  # noqa: E402
from tensaurus.app.zoo.catalog import workloads  # noqa: E402

Tensors = dict[str, Any]

CASES = {name: entry for name, entry in workloads().items() if entry.build.__module__ == cases.__name__}
every_case = pytest.mark.parametrize("name", sorted(CASES))


def gates(w: Tensors, x: Tensors) -> Any:
    first, second = (
        x["x"] @ w[f"gate.{place}.x.weight"] + x["state"] @ w[f"gate.{place}.state.weight"]
        for place in range(2)
    )
    return torch.sigmoid(first) * torch.tanh(second)


def band(query: Any, key: Any, width: int, dilation: int) -> Any:
    """Element by element: that of each query for each place of its window."""
    length = query.shape[1]
    steps = dilation * torch.arange(-width, width + 1)
    places = torch.arange(length)[:, None] + steps
    inside = (places >= 0) & (places < length)
    scores = [
        torch.where(inside[:, i], (query * key[:, places[:, i].clamp(0, length - 1)]).sum(-1), -10000.0)
        for i in range(len(steps))
    ]
    return torch.stack(scores, -1)


def compared(scores: Any, length: int, width: int, dilation: int) -> Any:
    """Where the window's keys exist: what the chunked form says of others depends on its padding."""
    places = np.arange(length)[:, None] + dilation * np.arange(-width, width + 1)
    return np.where((places >= 0) & (places < length), scores, 0)


def conv(**options: Any) -> Callable[[Tensors, Tensors], Any]:
    function = {3: nn.conv1d, 4: nn.conv2d, 5: nn.conv3d}
    return lambda w, x: function[x["x"].ndim](x["x"], w["conv.weight"], **options)


def transposed(w: Tensors, x: Tensors) -> Any:
    return nn.conv_transpose2d(x["x"], w["conv.weight"], stride=2, padding=1)


def all_convs(w: Tensors, x: Tensors) -> Any:
    return tuple(
        nn.conv2d(x["x"], w[f"conv.{n}.weight"])
        for n in sorted((int(key.split(".")[1]) for key in w), reverse=True)
    )


def all_matmuls(w: Tensors, x: Tensors) -> Any:
    return tuple(x["x"] @ weight for _, weight in sorted(w.items()))


def chains(w: Tensors, x: Tensors) -> Any:
    return sum(
        nn.conv2d(nn.conv2d(x["x"], w[f"chain.{n}.0.weight"], padding=1), w[f"chain.{n}.1.weight"])
        for n in range(2)
    )


def apart(w: Tensors, x: Tensors) -> Any:
    weight = torch.cat([w[f"conv.{place}.weight"] for place in range(32)])
    return nn.conv2d(x["x"], weight, padding=1, groups=32)


PLAIN: dict[str, Callable[[Tensors, Tensors], Any]] = {
    "conv3x3": conv(padding=1),
    "convtranspose": transposed,
    "conv5x5": conv(padding=2),
    "conv5x5_38x38": conv(padding=2),
    "conv3x3_dilated": conv(padding=2, dilation=2),
    "conv_1d": conv(padding=3),
    "conv_3d": conv(padding=(0, 1, 1)),
    "conv_depthwise": conv(padding=1, groups=144),
    "conv_grouped": conv(padding=1, groups=2),
    "convtranspose_dcgan": transposed,
    "batch_matmul": lambda w, x: torch.einsum("bhqd,bhkd->bhqk", x["query"], x["key"]),
    "conv_32_groups": conv(padding=1, groups=32),
    "conv_32_apart": apart,
    "matmuls_3_512x768": all_matmuls,
    "matmuls_2_64x1024": all_matmuls,
    "convs_2_768x18x18": all_convs,
    "convs_2_192x35x35": all_convs,
    "convs_added_44x28x28": chains,
    "matmuls_gates_512": gates,
    "g2bmm": lambda w, x: band(x["query"], x["key"], 64, 4),
}


def shape_of(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)


def feeds_of(model: onnx.ModelProto, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {i.name: rng.standard_normal(shape_of(i), np.float32) for i in model.graph.input}


def ours(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return list(session_of(model, threads=2).run(None, feeds))


def weights_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if t.name.endswith(".weight")}


@every_case
def test_output(name: str) -> None:
    model = CASES[name].build_model()
    feeds = feeds_of(model, 1)
    weights = {key: torch.tensor(value) for key, value in weights_of(model).items()}
    torch.set_num_threads(2)
    theirs = PLAIN[name](weights, {key: torch.tensor(value) for key, value in feeds.items()})
    theirs = theirs if isinstance(theirs, tuple) else (theirs,)
    for found, expected in zip(ours(model, feeds), theirs, strict=True):
        wanted = expected.numpy()
        assert found.shape == wanted.shape
        if name == "g2bmm":
            found, wanted = (compared(array, 10000, 64, 4) for array in (found, wanted))
        assert 0.05 < wanted.std() < 50
        assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()


@every_case
def test_size(name: str) -> None:
    """The stated millions of parameters are those of the weights; the billions are those of one image."""
    model = onnx.shape_inference.infer_shapes(CASES[name].build_model())
    weights = weights_of(model)
    assert sum(w.size for w in weights.values()) / 1e6 == pytest.approx(CASES[name].parameters, rel=1e-3)
    kinds = {v.name: shape_of(v) for v in (*model.graph.input, *model.graph.output, *model.graph.value_info)}
    kinds |= {key: value.shape for key, value in weights.items()}
    count = 0
    for node in model.graph.node:
        if node.op_type == "MatMul":
            count += int(np.prod(kinds[node.output[0]])) * kinds[node.input[0]][-1]
        elif node.op_type in ("Conv", "ConvTranspose"):
            place = node.output[0] if node.op_type == "Conv" else node.input[0]
            count += int(np.prod(kinds[place])) * int(np.prod(kinds[node.input[1]][1:]))
    assert count / CASES[name].batches[0] / 1e9 == pytest.approx(CASES[name].multiply_adds, rel=2e-3)


def test_separate_convolutions_equal_the_grouped_one() -> None:
    """The two forms of TASO's figure compute the same from the same weights."""
    apart_model, at_once = CASES["conv_32_apart"].build_model(), CASES["conv_32_groups"].build_model()
    parts = weights_of(apart_model)
    weight = np.concatenate([parts[f"conv.{place}.weight"] for place in range(32)])
    (held,) = (t for t in at_once.graph.initializer if t.name == "conv.weight")
    held.CopyFrom(numpy_helper.from_array(weight, "conv.weight"))
    feeds = feeds_of(at_once, 2)
    np.testing.assert_allclose(ours(apart_model, feeds)[0], ours(at_once, feeds)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dilation", [1, 2])
def test_band_of_other_sizes(dilation: int) -> None:
    """A length that fills its chunks: every element, with -10000 where a window reaches over the border."""
    build = Builder("small")
    model = build.model(cases.g2bmm(build, 2, heads=3, length=32, width=4, dilation=dilation))
    feeds = feeds_of(model, 3)
    wanted = band(torch.tensor(feeds["query"]), torch.tensor(feeds["key"]), 4, dilation).numpy()
    np.testing.assert_allclose(ours(model, feeds)[0], wanted, rtol=1e-4, atol=1e-4)
    assert (wanted == -10000).any()
