"""torch as a peer: each rendering of an operator against onnxruntime, and what each way to run it does."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the `bench` extra is not installed")

from onnx import ModelProto, helper  # noqa: E402
from op_samples import Sample, differences, newest_of_onnxruntime, samples  # noqa: E402  # noqa: E402

from tensaurus.app.zoo.builder import Builder  # noqa: E402
from tensaurus.graph.onnx.build import Build  # noqa: E402
from tensaurus.runtimes import backends  # noqa: E402
from tensaurus.runtimes.backends import Bindable  # noqa: E402
from tensaurus.runtimes.backends._onnx_to_torch import RENDERINGS  # noqa: E402

WAYS = ["torch", "torch_channels_last", "inductor"]
OLDEST = 7  # older operators broadcast in other ways
RANDOM = np.random.default_rng(3)

# The examples of rendered operators that no rendering covers, by a part of their text.
REFUSED = {
    "AveragePool": {"dilations": "torch's has none"},
    "Resize": {
        "coordinate_transformation_mode=asymmetric mode=linear": "torch's has no such coordinates",
        "sizes=(1,1,3,1) mode=linear": "of one element, pytorch_half_pixel is another",
        "half_pixel_symmetric": "torch's has no such coordinates",
    },
}


def reason(sample: Sample) -> str | None:
    """Why the example has no rendering."""
    text = str(sample)
    for parts, why in REFUSED.get(sample.op.name, {}).items():
        if all(part in text for part in parts.split()):
            return why
    return None


@cache
def rendered() -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for sample in samples():
        if sample.op.name in RENDERINGS:
            found.setdefault(sample.op.name, []).append(sample)
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("operator", sorted(RENDERINGS))
def test_rendering(operator: str) -> None:
    """At every example of the operator's declaration and every version that onnxruntime runs."""
    if operator == "Range":
        pytest.skip("not declared; see test_sizes_are_computed_beforehand")
    compared = 0
    for sample in rendered()[operator]:
        for opset, newest in sample.models():
            if opset < OLDEST:
                continue
            known = min(opset, newest_of_onnxruntime())
            model = newest if known == opset else sample.model(known, len(newest.graph.output))
            proto, feeds = Build(model.SerializeToString()), sample.feeds(model)
            try:
                theirs = backends.find("onnxruntime").compile(proto, threads=1).run(None, feeds)
            except backends.BackendError:
                continue
            if reason(sample):
                with pytest.raises(backends.BackendError, match=f"no support for {operator} "):
                    backends.find("torch").compile(proto, threads=1)
                continue
            ours = backends.find("torch").compile(proto, threads=1).run(None, feeds)
            assert [a.dtype for a in ours] == [np.asarray(a).dtype for a in theirs], f"{sample} at {opset}"
            assert not (wrong := differences(ours, theirs)), f"{sample} at {opset}: {wrong}"
            compared += 1
    assert compared


def test_every_stated_refusal_is_of_an_example() -> None:
    used = {(s.op.name, reason(s)) for found in rendered().values() for s in found if reason(s)}
    assert used == {(name, why) for name, parts in REFUSED.items() for why in parts.values()}


def network() -> ModelProto:
    """Convolutions, one after the other and in a residual branch, and matrices."""
    build = Builder("network")
    x = build.input("x", 2, 3, 16, 16)
    y = build.relu(build.batch_norm(build.conv(x, "a", 8, 3, padding=1), "an"))
    z = build.batch_norm(build.conv(y, "b", 8, 3, padding=1), "bn", gain=0.4)
    pooled = build.global_pool(build.max_pool(build.relu(build.add(y, z)), 3, 2, 1))
    return build.model(build.linear(pooled, "c", 10), y)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WAYS)
def test_network(name: str, tmp_path: Path) -> None:
    """Each way computes what onnxruntime does, at both inputs, run and bound, from a file or bytes."""
    model = Build(network().SerializeToString())
    path = tmp_path / "model.onnx"
    path.write_bytes(network().SerializeToString())
    session = backends.find(name).compile(Build(path) if name == "torch" else model, threads=2)
    reference = backends.find("onnxruntime").compile(model, threads=2)
    assert isinstance(session, Bindable)
    for _ in range(2):
        feeds = {"x": RANDOM.standard_normal((2, 3, 16, 16)).astype(np.float32)}
        ours, theirs = session.run(None, feeds), reference.run(None, feeds)
        bound = session.bind(feeds)()
        for a, b, c in zip(ours, theirs, bound, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(c.numpy(), b, rtol=1e-4, atol=1e-4)
            assert a.flags.c_contiguous
    assert torch.get_num_threads() == 2


def test_inductor_reads_frozen_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module is compiled when the model is, with freezing on, and not again for the same shapes."""
    seen = []

    def compiled(module: object, **options: object) -> object:
        assert options == {"fullgraph": True, "dynamic": False}

        def call(*inputs: object) -> object:
            seen.append((torch._inductor.config.freezing, torch.is_inference_mode_enabled()))
            return module(*inputs)  # type: ignore[operator]

        return call

    monkeypatch.setattr(torch, "compile", compiled)
    session = backends.find("inductor").compile(Build(network().SerializeToString()), threads=1)
    assert seen == [(True, True)]
    feeds = {"x": np.ones((2, 3, 16, 16), np.float32)}
    session.run(None, feeds)
    assert seen == [(True, True), (False, True)]
    assert not torch._inductor.config.freezing


def test_convolutions_are_channels_last() -> None:
    session = backends.find("torch_channels_last").compile(Build(network().SerializeToString()), threads=1)
    weights = [w for w in session._module.buffers() if w.ndim == 4]  # type: ignore[attr-defined]
    assert len(weights) == 2
    assert all(w.is_contiguous(memory_format=torch.channels_last) for w in weights)
    given = session._arrange_input(0, torch.zeros(2, 3, 4, 4))  # type: ignore[attr-defined]
    assert given.is_contiguous(memory_format=torch.channels_last)
    _, y = session.bind({"x": np.ones((2, 3, 16, 16), np.float32)})()
    assert y.is_contiguous(memory_format=torch.channels_last)


def one_node(operator: str, shape: list[int | str], **more: object) -> Build:
    node = helper.make_node(operator, ["x"], ["y"], name="here", **more)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info("y", 1, None)],
    )
    return Build(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString())


def test_what_has_no_rendering_is_named() -> None:
    for name in WAYS:
        with pytest.raises(backends.BackendError) as caught:
            backends.find(name).compile(one_node("Det", [2, 2]), threads=1)
        assert str(caught.value) == "torch does not run the model: no support for Det (node here)"


def test_feeds_are_checked() -> None:
    session = backends.find("torch").compile(one_node("Relu", ["n", 2]), threads=1)
    x = np.ones((3, 2), np.float32)
    for feeds in ({}, {"x": x, "z": x}, {"x": x.astype(np.float64)}, {"x": x[:, :1]}, {"x": x[0]}):
        with pytest.raises(backends.BackendError, match="^torch: .*'[xz]'"):
            session.run(None, feeds)
    with pytest.raises(backends.BackendError, match="no output 'no'; the model has y"):
        session.run(["no"], {"x": x})
    for count in (3, 5, 3):  # each number of rows is translated when it is met
        assert session.run(["y"], {"x": np.ones((count, 2), np.float32)})[0].shape == (count, 2)
    fixed = x.copy()
    fixed.flags.writeable = False
    for given in (fixed, np.asfortranarray(x), x.T.copy().T):
        np.testing.assert_array_equal(session.run(None, {"x": given})[0], x)
    with pytest.raises(backends.BackendError, match="^torch: "):
        backends.find("torch").compile(Build(b"no model"), threads=1)
    with pytest.raises(backends.BackendError, match="^torch: "):
        backends.find("torch").compile(Build(Path("/nowhere/model.onnx")), threads=1)


def test_outputs_belong_to_the_caller() -> None:
    session = backends.find("torch").compile(one_node("Identity", [2]), threads=1)
    x = np.array([1.0, 2.0], np.float32)
    session.run(None, {"x": x})[0][:] = 7
    np.testing.assert_array_equal(x, [1, 2])


def test_sizes_are_computed_beforehand() -> None:
    """Shape, arithmetic on it, Range and ConstantOfShape leave no trace in the module."""
    nodes = [
        helper.make_node("Constant", [], ["zero"], value_int=0),
        helper.make_node("Constant", [], ["one"], value_int=1),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["columns"]),
        helper.make_node("Range", ["zero", "columns", "one"], ["places"]),
        helper.make_node("Gather", ["x", "places"], ["gathered"], axis=1),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("Constant", [], ["minus"], value_ints=[-1]),
        helper.make_node("Add", ["gathered", "zeros"], ["sum"]),
        helper.make_node("Reshape", ["sum", "minus"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "sizes",
        [helper.make_tensor_value_info("x", 1, ["n", 3])],
        [helper.make_tensor_value_info("y", 1, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    session = backends.find("torch").compile(Build(model.SerializeToString()), threads=1)
    x = RANDOM.standard_normal((2, 3)).astype(np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x.reshape(-1))
    calls = [n for n in session._module.graph.nodes if n.op.startswith("call")]  # type: ignore[attr-defined]
    assert len(calls) == 3


@pytest.mark.skipif("openvino" not in backends.installed(), reason="needs openvino")
def test_openvino_at_its_default_precision() -> None:
    """Beside float32: the same model, within bfloat16's rounding."""
    model = Build(network().SerializeToString())
    feeds = {"x": RANDOM.standard_normal((2, 3, 16, 16)).astype(np.float32)}
    ours, theirs = (
        backends.find(name).compile(model, threads=1).run(None, feeds)[0]
        for name in ("openvino_bf16", "openvino")
    )
    assert np.abs(ours - theirs).max() < 0.05 * np.abs(theirs).max()


def test_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(backends.find("inductor")), "installed", lambda self: False)
    with pytest.raises(backends.BackendError, match="inductor is not installed. pip install torch$"):
        backends.require("inductor")


def test_what_each_is_for() -> None:
    assert set(backends.targets()).isdisjoint({*WAYS, "openvino_bf16", "reference"})
    for name in WAYS:
        backend = backends.find(name)
        assert (backend.name, backend.target, backend.peer, backend.exact) == (name, False, True, True)
        assert backend.version() == torch.__version__
    assert not backends.find("openvino_bf16").exact
    assert not backends.find("reference").peer
