"""The zoo's other models against transformers', torchvision's and plain torch ones, given our weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from small_programs import session_of

from tensaurus.app.zoo import catalog, dense, recurrent, transformer, video
from tensaurus.app.zoo.builder import Builder, Value
from tensaurus.app.zoo.longformer import sliding_window_attention

torch = pytest.importorskip("published").torch
vision = pytest.importorskip("torchvision").models
transformers = pytest.importorskip("transformers")

nn = torch.nn
functional = nn.functional

Feed = Mapping[str, np.ndarray]


def _model(make: Callable[[Builder], tuple[Value, ...] | Value]) -> onnx.ModelProto:
    b = Builder("small")
    made = make(b)
    model = b.model(*(made if isinstance(made, tuple) else (made,)))
    onnx.checker.check_model(model, full_check=True)
    return model


def _feed(model: onnx.ModelProto, seed: int) -> Feed:
    random = np.random.default_rng(seed)
    return {
        value.name: random.standard_normal(
            [dim.dim_value for dim in value.type.tensor_type.shape.dim], np.float32
        )
        for value in model.graph.input
    }


def _ours(model: onnx.ModelProto, *feeds: Feed) -> list[list[np.ndarray]]:
    session = session_of(model, threads=2)
    return [session.run(None, feed) for feed in feeds]


def _theirs(reference: Any, feed: Feed) -> list[np.ndarray]:
    torch.set_num_threads(2)
    with torch.no_grad():
        made = reference.eval()(*map(torch.tensor, feed.values()))
    return [part.numpy() for part in (made if isinstance(made, tuple) else (made,))]


def _carry(model: onnx.ModelProto, reference: Any) -> None:
    """Give the reference our weights: all that it has, and all that we have."""
    ours = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    ours = {name: array for name, array in ours.items() if array.dtype == np.float32 and array.ndim}
    state = {}
    for name in reference.state_dict():
        if name.endswith("num_batches_tracked"):
            state[name] = torch.tensor(0)
            continue
        array = ours.pop(name) if name in ours else ours.pop(f"{name}.T").T
        state[name] = torch.tensor(array[..., 0, 0] if name.endswith(".slope") else array)
    assert not ours
    reference.load_state_dict(state, assign=True)


def _assert_equal(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.shape == other.shape
        assert np.abs(mine - other).max() <= 1e-4 * np.abs(other).max()


class NasRnn(nn.Module):
    """Zoph and Le's cell as TensorFlow's NASCell has it: one product each of the input and the state."""

    def __init__(self, hidden: int, steps: int, shared: bool) -> None:
        super().__init__()
        self.names = ["cell" if shared else f"cell{step}" for step in range(steps)]
        for name in self.names:
            matrices = [nn.ParameterList(torch.empty(hidden, hidden) for _ in range(8)) for _ in range(2)]
            setattr(self, name, nn.ModuleDict(dict(zip("xh", matrices, strict=True))))

    def forward(self, *values: Any) -> Any:
        *inputs, h, c = values
        for name, x in zip(self.names, inputs, strict=True):
            weights = getattr(self, name)
            x = (x @ torch.cat(list(weights["x"]), 1)).chunk(8, 1)
            h = (h @ torch.cat(list(weights["h"]), 1)).chunk(8, 1)
            l0 = torch.tanh(torch.sigmoid(x[0] + h[0]) * torch.relu(x[1] + h[1]))
            l1 = torch.tanh(torch.sigmoid(x[2] + h[2]) + torch.relu(x[3] * h[3]))
            l2 = torch.tanh(torch.tanh(x[4] + h[4]) * torch.sigmoid(x[5] + h[5]))
            l3 = torch.sigmoid(torch.tanh(x[6] + h[6]) + torch.sigmoid(x[7] + h[7]))
            c = torch.tanh(l0 + c) * l1
            h = torch.tanh(c * torch.tanh(l2 + l3))
        return h, c


class Bert(nn.Module):
    def __init__(self, layers: int, hidden: int, heads: int) -> None:
        super().__init__()
        config = transformers.BertConfig(
            num_hidden_layers=layers,
            hidden_size=hidden,
            num_attention_heads=heads,
            intermediate_size=4 * hidden,
            vocab_size=2,
            attn_implementation="eager",
        )
        self.encoder = transformers.BertModel(config).encoder

    def forward(self, x: Any) -> Any:
        return self.encoder(x).last_hidden_state


def _back_end() -> Any:
    widths = (512, 512, 512, 512, 256, 128, 64)
    layers = []
    for inner, outer in zip(widths, widths[1:], strict=False):
        layers += [nn.Conv2d(inner, outer, 3, padding=2, dilation=2), nn.ReLU()]
    return nn.Sequential(*layers)


class BackEnd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backend = _back_end()

    def forward(self, x: Any) -> Any:
        return self.backend(x)


class CsrNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frontend = vision.vgg16(init_weights=False).features[:23]
        self.backend = _back_end()
        self.output_layer = nn.Conv2d(64, 1, 1)

    def forward(self, x: Any) -> Any:
        return self.output_layer(self.backend(self.frontend(x)))


class Prelu(nn.Conv2d):
    def __init__(self, inner: int, outer: int, kernel: int) -> None:
        super().__init__(inner, outer, kernel, padding="same")
        self.slope = nn.Parameter(torch.empty(outer))

    def forward(self, x: Any) -> Any:
        return functional.prelu(super().forward(x), self.slope)


class FsrCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.extract, self.shrink = Prelu(1, 56, 5), Prelu(56, 12, 1)
        self.map = nn.Sequential(*(Prelu(12, 12, 3) for _ in range(4)))
        self.expand = Prelu(12, 56, 1)
        self.deconvolve = nn.ConvTranspose2d(56, 1, 9, 2, 4, 1)

    def forward(self, x: Any) -> Any:
        return self.deconvolve(self.expand(self.map(self.shrink(self.extract(x)))))


class Refine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(21, 21, 3, padding=1) for _ in range(2))

    def forward(self, x: Any) -> Any:
        return x + self.conv2(self.conv1(x).relu())


class GlobalConvolution(nn.Module):
    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        down, across = ((kernel, 1), (1, kernel))
        for part, first, second in (("left", down, across), ("right", across, down)):
            layers = {
                str(int(window == across)): nn.Conv2d(inner, 21, window, padding="same")
                for inner, window in ((channels, first), (21, second))
            }
            setattr(self, part, nn.ModuleDict(layers))
        self.refine = Refine()

    def forward(self, x: Any) -> Any:
        left, right = self.left["1"](self.left["0"](x)), self.right["0"](self.right["1"](x))
        return self.refine(left + right)


class Gcn(nn.Module):
    """Figure 2 of Peng et al., on torchvision's ResNet-50."""

    def __init__(self, kernel: int) -> None:
        super().__init__()
        body = vision.resnet50()
        for part in ("conv1", "bn1", "layer1", "layer2", "layer3", "layer4"):
            setattr(self, part, getattr(body, part))
        for stage in range(4):
            setattr(self, f"gcn{stage + 1}", GlobalConvolution(256 << stage, kernel))
        for step in range(5):
            up = nn.ConvTranspose2d(21, 21, 4, 2, 1)
            up.refine = Refine()
            setattr(self, f"up{step}", up)

    def forward(self, x: Any) -> Any:
        x = functional.max_pool2d(self.bn1(self.conv1(x)).relu(), 3, 2, 1)
        res2 = self.layer1(x)
        res3 = self.layer2(res2)
        res4 = self.layer3(res3)
        y = self.up0.refine(self.up0(self.gcn4(self.layer4(res4))) + self.gcn3(res4))
        y = self.up1.refine(self.up1(y) + self.gcn2(res3))
        y = self.up2.refine(self.up2(y) + self.gcn1(res2))
        y = self.up3.refine(self.up3(y))
        return self.up4.refine(self.up4(y))


class Generator(nn.Module):
    def __init__(self, *layers: Any) -> None:
        super().__init__()
        self.main = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return self.main(x)


def _up(inner: int, outer: int, kernel: int = 4, stride: int = 2, padding: int = 1) -> Any:
    return nn.ConvTranspose2d(inner, outer, kernel, stride, padding, bias=False)


def _dcgan() -> Any:
    return Generator(
        *(_up(100, 512, 4, 1, 0), nn.BatchNorm2d(512), nn.ReLU()),
        *(_up(512, 256), nn.BatchNorm2d(256), nn.ReLU()),
        *(_up(256, 128), nn.BatchNorm2d(128), nn.ReLU()),
        *(_up(128, 64), nn.BatchNorm2d(64), nn.ReLU()),
        *(_up(64, 3), nn.Tanh()),
    )


def _infogan() -> Any:
    """The generator for CelebA in the appendix of Chen et al."""
    return Generator(
        *(_up(228, 448, 2, 1, 0), nn.BatchNorm2d(448), nn.ReLU()),
        *(_up(448, 256), nn.BatchNorm2d(256), nn.ReLU()),
        *(_up(256, 128), nn.ReLU(), _up(128, 64), nn.ReLU()),
        *(_up(64, 3), nn.Tanh()),
    )


SMALL: dict[str, tuple[Callable[[Builder], Any], Callable[[], Any]]] = {
    "nasrnn": (lambda b: recurrent.nas_rnn(b, 2, 64, 3, shared=True), lambda: NasRnn(64, 3, True)),
    "nasrnn_unshared": (
        lambda b: recurrent.nas_rnn(b, 2, 64, 3, shared=False),
        lambda: NasRnn(64, 3, False),
    ),
    "bert": (
        lambda b: transformer.encoder(b, 2, 24, layers=3, hidden=96, heads=6),
        lambda: Bert(3, 96, 6),
    ),
    "csrnet": (lambda b: dense.csr_net(b, 2, 64), CsrNet),
    "csrnet_backend": (lambda b: dense.csrnet_backend(b, 1), BackEnd),
    "fsrcnn": (lambda b: dense.fsr_cnn(b, 2, 48, features=56, shrunk=12, mappings=4), FsrCnn),
    "gcn_k7": (lambda b: dense.gcn(b, 2, 64, kernel=7), lambda: Gcn(7)),
    "gcn_k15": (lambda b: dense.gcn(b, 1, 64, kernel=15), lambda: Gcn(15)),
    "resnet3d18": (lambda b: video.r3d_18(b, 1, 4, 32), vision.video.r3d_18),
    "r2plus1d18": (lambda b: video.r2plus1d_18(b, 1, 4, 32), vision.video.r2plus1d_18),
    "infogan": (lambda b: catalog.workloads()["infogan"].build(b, 2), _infogan),
    "dcgan": (lambda b: catalog.workloads()["dcgan"].build(b, 2), _dcgan),
}

FULL: dict[str, tuple[Callable[[], Any], tuple[tuple[int, ...], ...]]] = {
    "nasrnn": (lambda: NasRnn(512, 5, True), ((1, 512),) * 7),
    "nasrnn_unshared": (lambda: NasRnn(512, 5, False), ((1, 512),) * 7),
    "bert_base": (lambda: Bert(12, 768, 12), ((1, 64, 768),)),
    "bert_base_128": (lambda: Bert(12, 768, 12), ((1, 128, 768),)),
    "bert_large": (lambda: Bert(8, 1024, 16), ((1, 64, 1024),)),
    "csrnet": (CsrNet, ((1, 3, 224, 224),)),
    "csrnet_backend": (BackEnd, ((1, 512, 14, 14),)),
    "fsrcnn": (FsrCnn, ((1, 1, 224, 224),)),
    "gcn_k7": (lambda: Gcn(7), ((1, 3, 224, 224),)),
    "gcn_k15": (lambda: Gcn(15), ((1, 3, 224, 224),)),
    "resnet3d18": (vision.video.r3d_18, ((1, 3, 16, 112, 112),)),
    "r2plus1d18": (vision.video.r2plus1d_18, ((1, 3, 16, 112, 112),)),
    "infogan": (_infogan, ((1, 228, 1, 1),)),
    "dcgan": (_dcgan, ((1, 100, 1, 1),)),
}


@pytest.mark.nightly(every=3)
@pytest.mark.parametrize("name", SMALL)
def test_workload_computes_what_the_reference_computes(name: str) -> None:
    build, other = SMALL[name]
    model = _model(build)
    with torch.device("meta"):  # its own weights need no drawing
        reference = other()
    _carry(model, reference)
    feeds = [_feed(model, seed) for seed in (1, 2)]
    first, second = _ours(model, *feeds)
    _assert_equal(first, _theirs(reference, feeds[0]))
    for one, another in zip(first, second, strict=True):
        assert np.abs(one - another).max() > 0.05 * np.abs(one).max()


@pytest.mark.parametrize("name", FULL)
def test_the_workload_has_the_size_of_the_reference(name: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    make, shapes = FULL[name]
    declared = catalog.workloads()[name]
    with torch.device("meta"), torch.no_grad():
        reference = make().eval()
        with FlopCounterMode(display=False) as counter:
            reference(*map(torch.empty, shapes))
    parameters = sum(weight.numel() for weight in reference.parameters())
    assert declared.parameters == pytest.approx(parameters / 1e6, rel=2e-3)
    assert declared.multiply_adds == pytest.approx(counter.get_total_flops() / 2e9, rel=2e-3)


def _attention(width: int, dilation: int, length: int) -> onnx.ModelProto:
    return _model(
        lambda b: sliding_window_attention(
            b, 2, width=width, dilation=dilation, heads=3, length=length, size=16
        )
    )


@pytest.mark.parametrize(("width", "length"), [(2, 4), (4, 32), (8, 96)])
def test_undilated_attention_is_that_of_longformer(width: int, length: int) -> None:
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = transformers.LongformerConfig(
        hidden_size=48, num_attention_heads=3, attention_window=[2 * width], vocab_size=2
    )
    torch.manual_seed(0)
    reference = LongformerSelfAttention(config, 0).eval()
    hidden = 3 * torch.randn(2, length, 48)
    nowhere = torch.zeros(2, length, dtype=torch.bool)

    def heads(part: Any) -> np.ndarray:
        return part.view(2, length, 3, 16).transpose(1, 2).numpy()

    with torch.no_grad():
        feed = {part: heads(getattr(reference, part)(hidden)) for part in ("query", "key", "value")}
        (theirs,) = reference(hidden, torch.zeros(2, length), nowhere, nowhere, is_global_attn=False)
    (ours,) = _ours(_attention(width, 1, length), feed)
    _assert_equal(ours, [heads(theirs)])


@pytest.mark.parametrize(("width", "dilation", "length"), [(3, 1, 12), (4, 2, 48), (4, 4, 32), (2, 3, 30)])
def test_attention_is_dense_attention_under_a_mask(width: int, dilation: int, length: int) -> None:
    def masked(query: Any, key: Any, value: Any) -> Any:
        apart = torch.arange(length)[:, None] - torch.arange(length)
        seen = (apart % dilation == 0) & (apart.abs() <= width * dilation)
        scores = (query @ key.mT / 16**0.5).masked_fill(~seen, -torch.inf)
        return scores.softmax(-1) @ value

    model = _attention(width, dilation, length)
    feeds = [_feed(model, seed) for seed in (1, 2)]
    first, second = _ours(model, *feeds)
    with torch.no_grad():
        theirs = masked(*map(torch.tensor, feeds[0].values())).numpy()
    _assert_equal(first, [theirs])
    assert np.abs(first[0] - second[0]).max() > 0.5


@pytest.mark.parametrize(
    ("name", "width", "dilation"),
    [
        ("longformer", 64, 1),
        ("longformer_d4", 64, 4),
        ("longformer_w512", 512, 1),
        ("longformer_w512_d4", 512, 4),
    ],
)
def test_longformer_multiplies_chunks_of_two_and_three_blocks(name: str, width: int, dilation: int) -> None:
    blocks = 4096 // dilation // width
    scores, mixed = (blocks - 1) * (2 * width) ** 2, blocks * width * 3 * width
    declared = catalog.workloads()[name]
    assert declared.multiply_adds == pytest.approx(8 * dilation * (scores + mixed) * 64 / 1e9, rel=1e-3)
    (output,) = declared.build_model(16).graph.output
    assert [dim.dim_value for dim in output.type.tensor_type.shape.dim] == [16, 8, 4096, 64]


def test_attention_refuses_a_window_that_does_not_divide_the_sequence() -> None:
    with pytest.raises(ValueError, match="a window of 5 does not divide 32 positions"):
        _attention(5, 1, 32)
