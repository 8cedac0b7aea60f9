"""Backends: found by name, imported late, equal to each other, float32, and clear about refusals."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from tensaurus.graph.onnx.build import Build
from tensaurus.ops.kernel_nodes import KERNEL_DOMAIN
from tensaurus.runtimes import backends
from tensaurus.runtimes.backends import Bindable, Fusing, Profiling
from tensaurus.runtimes.backends._kernels import Kernel, mean_of_middle_half
from tensaurus.runtimes.measure.runtime_kernels import charge_kernels
from tensaurus.system.errors import TensaurusError

RUNTIMES = backends.targets()
RANDOM = np.random.default_rng(7)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def info(name: str, shape: list[Any] | None = None, kind: int = TensorProto.FLOAT) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: list[NodeProto],
    inputs: list[ValueInfoProto],
    outputs: list[ValueInfoProto],
    weights: dict[str, np.ndarray] | None = None,
) -> Build:
    tensors = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, tensors)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return Build(proto.SerializeToString())


CONVOLUTION = model(
    [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ],
    [info("x", ["n", 3, 16, 16])],
    [info("y"), info("r")],
    {"w": floats(8, 3, 3, 3), "b": floats(8)},
)

MANY_NAMES = model(  # one tensor under several output names, a passed-through input, an integer output
    [
        helper.make_node("Add", ["x", "c"], ["y"]),
        helper.make_node("Identity", ["y"], ["z"]),
        helper.make_node("Relu", ["y"], ["r"]),
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Shape", ["x"], ["s"]),
    ],
    [info("x", ["n", 4]), info("c", [])],
    [info("r"), info("y"), info("z"), info("same"), info("s", kind=TensorProto.INT64)],
)


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_profile_charges_every_tensor(name: str) -> None:
    """What is fused is charge_kernels once; the profile tells of the same kernels as the graph."""
    backend = backends.find(name)
    assert isinstance(backend, Profiling) and isinstance(backend, Fusing)
    found = backend.profile(CONVOLUTION, {"x": floats(2, 3, 16, 16)}, threads=1, seconds=0.01)
    assert all(seconds > 0 for kernel, seconds in found if kernel.tensors)
    traced = [kernel.tensors for kernel, _ in found if kernel.tensors]
    assert sorted(map(sorted, traced)) == [["c", "r"], ["y"]]
    assert sorted(map(sorted, backend.kernels(CONVOLUTION))) == [["c", "r"], ["y"]]


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("others", [(), ("Sigmoid",), ("Sigmoid", "Tanh")])
@pytest.mark.parametrize("bias", [True, False])
def test_convolutions_that_are_added_up_are_traced(name: str, others: tuple[str, ...], bias: bool) -> None:
    """A runtime adds one to the other where it computes that, in a layout of its own, and may apply what is
    read of the sum alone."""
    size = 32  # channels, so that layouts are blocked
    shapes = {"w": (size, size, 3, 3), "b": (size,)}
    weights = {f"{n}{k}": floats(*shape) for k in "01" for n, shape in shapes.items()}
    inputs = [["x", f"w{k}", f"b{k}"][: 2 + bias] for k in "01"]
    nodes = [helper.make_node("Conv", i, [f"c{k}"], pads=[1, 1, 1, 1]) for k, i in enumerate(inputs)]
    after = [helper.make_node(op, ["sum"], [f"y{k}"]) for k, op in enumerate(("Relu", *others))]
    nodes += [helper.make_node("Add", ["c0", "c1"], ["sum"]), *after]
    outputs = [info(node.output[0]) for node in after]
    raw = model(nodes, [info("x", [1, size, 8, 8])], outputs, weights)
    backend = backends.find(name)
    assert isinstance(backend, Profiling)
    found = backend.profile(raw, {"x": floats(1, size, 8, 8)}, threads=1, seconds=0.01)
    own = {"c0", "c1", "sum", *(node.output[0] for node in after)}
    assert sorted(t for kernel, _ in found for t in kernel.tensors) == sorted(own)  # each once
    assert not any(kernel.tensors >= {"c0", "c1"} for kernel, _ in found)


@pytest.mark.parametrize("name", RUNTIMES)
def test_what_runs_as_several_kernels_is_traced(name: str) -> None:
    """A product of three dimensions and a sum: onnxruntime computes a Gemm between two Reshapes."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["s"]),
        helper.make_node("Softmax", ["s"], ["y"], axis=-1),
    ]
    raw = model(nodes, [info("x", [2, 5, 32])], [info("y")], {"w": floats(32, 64), "b": floats(64)})
    backend = backends.find(name)
    assert isinstance(backend, Profiling)
    found = backend.profile(raw, {"x": floats(2, 5, 32)}, threads=1, seconds=0.01)
    assert {t for kernel, _ in found for t in kernel.tensors} == {"r", "p", "s", "y"}
    assert all(k.tensors in ({"r"}, {"p", "s"}, {"p"}, {"s"}, {"y"}, set()) for k, _ in found)


@pytest.mark.skipif("onnxruntime" not in RUNTIMES, reason="onnxruntime is absent")
@pytest.mark.parametrize("inside", [0, 1])
def test_kernels_that_run_in_another_order_have_their_own_times(inside: int) -> None:
    """Two have no name, but their operator says which they are, unless one more runs `inside` of a node."""
    from tensaurus.runtimes.backends import onnxruntime

    def kernel(name: str, operator: str) -> Any:
        return onnxruntime.Kernel(name, operator, (), (name,), frozenset({name}))

    kernels = [kernel("a", "Conv"), kernel("b", "Conv"), kernel("", "Relu"), kernel("", "Relu")]
    order = [("b", "Conv", 2), ("Relu_7", "Relu", 3), ("a", "Conv", 1), ("Relu_9", "Relu", 4)]
    order += [("within", "Relu", 5)] * inside
    runs = onnxruntime.WARM_UP_RUNS + 3
    events = [
        {"cat": "Node", "name": f"{name}_kernel_time", "dur": 1e6 * spent, "args": {"op_name": operator}}
        for _ in range(runs)
        for name, operator, spent in order
    ]
    assert onnxruntime._kernel_seconds(kernels, events, runs) == [1, 2, *([0, 0] if inside else [3, 4])]


@pytest.mark.skipif("onnxruntime" not in RUNTIMES, reason="onnxruntime is absent")
def test_what_renames_nothing_is_optimized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensaurus.runtimes.backends import onnxruntime

    levels = []
    optimized = onnxruntime._optimized_nodes

    def counted(build: Build, level: Any) -> Any:
        levels.append(level)
        return optimized(build, level)

    monkeypatch.setattr(onnxruntime, "_optimized_nodes", counted)
    monkeypatch.setattr(onnxruntime, "_known_kernels", {})
    monkeypatch.setattr(onnxruntime, "_known_graphs_before_layouts", {})
    product = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    raw = model(product, [info("x", [2, 3])], [info("y", [2, 4])], {"w": floats(3, 4)})
    found = onnxruntime.BACKEND.kernels(raw)
    assert sorted(map(sorted, found)) == [["p"], ["y"]] and len(levels) == 1
    onnxruntime.BACKEND.kernels(CONVOLUTION)
    assert len(levels) == 3  # blocked layouts are explained by the graph before
    assert onnxruntime.BACKEND.kernels(raw) == found and len(levels) == 3  # it is known now


def test_conversions_are_charged_to_those_who_ask_for_them() -> None:
    one, two, none = frozenset({"a"}), frozenset({"b", "c"}), frozenset[str]()
    kernels = [
        Kernel("first", "Op", ("x",), ("p",), one),
        Kernel("blocked", "Op", ("p",), ("q",), none, True),  # read by a conversion and by another kernel
        Kernel("again", "Op", ("q",), ("r",), none, True),
        Kernel("second", "Op", ("q", "r"), ("s",), two),
        Kernel("plain", "Op", ("s",), ("y",), none, True),  # read by nobody
    ]
    profile = list(zip(kernels, [1.0, 4.0, 8.0, 16.0, 32.0], strict=True))
    assert charge_kernels(profile) == [(one, 1.0), (two, 4.0 + 8.0 + 16.0 + 32.0)]
    untraced = [kernels[0], Kernel("unknown", "Op", ("p",), ("q",), none), *kernels[3:]]
    profile = list(zip(untraced, [1.0, 4.0, 16.0, 32.0], strict=True))
    assert charge_kernels(profile) == [(one, 1.0), (none, 4.0), (two, 16.0 + 32.0)]
    alone = [Kernel("only", "Op", ("x",), ("y",), none, True)]
    assert charge_kernels([(alone[0], 1.0)]) == [(none, 1.0)]


def test_a_generated_kernel_pays_for_the_conversions_that_the_original_lacks() -> None:
    """It is joined to one plain tensor of two; the blocked kernels before and after it pay the usual ones."""
    made = [frozenset({name}) for name in "abcd"]
    none = frozenset[str]()
    kernels = [
        Kernel("blocked", "Conv", ("x",), ("p",), made[0]),
        Kernel("to plain", "ReorderOutput", ("p",), ("q",), none, True),
        Kernel("generated", "eop", ("y",), ("r",), made[1], domain=KERNEL_DOMAIN),
        Kernel("joined", "Concat", ("q", "r"), ("s",), made[2]),
        Kernel("to blocked", "ReorderInput", ("s",), ("t",), none, True),
        Kernel("blocked again", "Conv", ("t",), ("u",), made[3]),
    ]
    profile = list(zip(kernels, [1.0, 8.0, 2.0, 3.0, 8.0, 4.0], strict=True))
    assert charge_kernels(profile) == [*zip(made, [1.0, 2.0, 3.0 + 8.0, 4.0 + 8.0], strict=True)]
    assert charge_kernels(profile, 16.0) == charge_kernels(profile)
    halved = [*zip(made, [1.0, 2.0 + 4.0 + 4.0, 3.0 + 4.0, 4.0 + 4.0], strict=True)]
    assert charge_kernels(profile, 8.0) == halved
    kernels[3] = Kernel("joined to another", "Concat", ("q", "z"), ("s",), made[2])
    apart = [(kernel, seconds) for kernel, (_, seconds) in zip(kernels, profile, strict=True)]
    assert charge_kernels(apart, 8.0) == charge_kernels(apart)


def test_the_middle_half_counts_in_a_mean() -> None:
    assert (
        mean_of_middle_half([9.0, 1.0, 2.0, 3.0]) == 2.5
        and mean_of_middle_half([5.0]) == 5.0
        and mean_of_middle_half([]) == 0.0
    )


def test_listing_imports_no_runtime() -> None:
    code = (
        "import sys; from tensaurus.runtimes import backends; names = backends.installed();"
        "versions = [backends.find(name).version() for name in names];"
        "print(sorted({'onnxruntime', 'openvino', 'torch'} & set(sys.modules)))"
    )
    source = Path(backends.__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(source)}, capture_output=True, text=True
    )
    assert done.stdout == "[]\n", done.stderr


def test_unknown_name_lists_the_installed() -> None:
    with pytest.raises(backends.BackendError, match=r"unknown backend 'tpu'; installed: .*onnxruntime"):
        backends.find("tpu")
    with pytest.raises(backends.BackendError):
        backends.find("__init__")
    assert issubclass(backends.BackendError, TensaurusError)
    assert issubclass(backends.BackendError, ValueError)


def test_what_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(backends.BackendError, match="openvino is not installed. pip install openvino"):
        backends.require("openvino")
    assert backends.require("onnxruntime").name == "onnxruntime"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("[ONNXRuntimeError] : 1 : FAIL : Node (mm) Op (MatMul): no", "Node (mm) Op (MatMul): no"),
        ("/src/core/a.h:46 void ns::f(const std::map<K (*)(), int>&, bool) Opset 99", "Opset 99"),
        (
            "/src/a.cc:235 onnxruntime::Norm::Norm(const Info &) the locale is\n missing",
            "the locale is missing",
        ),
        ("x" * 1000, "x" * 300 + "..."),
        ("", "ValueError"),
    ],
)
def test_a_runtimes_complaint_is_one_line(error: str, words: str) -> None:
    assert backends.describe_error(ValueError(error)) == words


@pytest.mark.parametrize("name", RUNTIMES)
def test_described(name: str) -> None:
    backend = backends.find(name)
    assert backend.name == name
    assert backend.installed()
    assert backend.version()[0].isdigit()


@pytest.mark.skipif(len(RUNTIMES) < 2, reason="needs two runtimes")
@pytest.mark.parametrize("batch", [1, 3])
def test_runtimes_agree(batch: int, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    assert isinstance(CONVOLUTION.model, bytes)
    path.write_bytes(CONVOLUTION.model)
    x = floats(batch, 3, 16, 16)
    sessions = [backends.find(name).compile(Build(path), threads=1) for name in RUNTIMES]
    first, *others = (session.run(None, {"x": x}) for session in sessions)
    assert [array.shape for array in first] == [(batch, 8, 8, 8), (batch, 8, 16, 16)]
    for other in others:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", RUNTIMES)
def test_names_and_order(name: str) -> None:
    session = backends.find(name).compile(MANY_NAMES, threads=1)
    x, c = floats(3, 4), np.array(2.0, np.float32)
    expected = {"r": np.maximum(x + c, 0), "y": x + c, "z": x + c, "same": x, "s": np.array([3, 4])}
    for names in (None, ["z", "s", "r"], ["same"]):
        outputs = session.run(names, {"c": c, "x": x})
        for output, wanted in zip(outputs, names or list(expected), strict=True):
            np.testing.assert_array_equal(output, expected[wanted])


@pytest.mark.parametrize("name", RUNTIMES)
def test_outputs_belong_to_the_caller(name: str) -> None:
    session = backends.find(name).compile(MANY_NAMES, threads=1)
    x, c = floats(3, 4), np.array(0.0, np.float32)
    first = session.run(["y", "same"], {"x": x, "c": c})
    session.run(None, {"x": -x, "c": c})
    for array in first:
        np.testing.assert_array_equal(array, x)
        array += 1
    np.testing.assert_array_equal(session.run(["y"], {"x": x, "c": c})[0], x)


@pytest.mark.parametrize("name", RUNTIMES)
def test_any_memory_layout(name: str) -> None:
    session = backends.find(name).compile(MANY_NAMES, threads=1)
    x, c = floats(4, 3).T, np.array(1.0, np.float32)
    fixed = x.copy()
    fixed.flags.writeable = False
    for given in (x, fixed, np.asfortranarray(x)):
        np.testing.assert_array_equal(session.run(["y"], {"x": given, "c": c})[0], x + c)
        assert isinstance(session, Bindable)
        session.bind({"x": given, "c": c})()
    assert session.run(["y"], {"x": floats(0, 4), "c": c})[0].shape == (0, 4)


@pytest.mark.parametrize("name", RUNTIMES)
def test_refusals_are_one_line(name: str) -> None:
    backend = backends.find(name)
    session = backend.compile(MANY_NAMES, threads=1)
    x, c = floats(3, 4), np.array(1.0, np.float32)
    attempts: list[Callable[[], object]] = [
        lambda: backend.compile(Build(b"no model"), threads=1),
        lambda: backend.compile(Build(Path("/nowhere/model.onnx")), threads=1),
        lambda: session.run(["nothing"], {"x": x, "c": c}),
        lambda: session.run(None, {"x": x}),
        lambda: session.run(None, {"x": x, "c": c, "extra": x}),
        lambda: session.run(None, {"x": x.astype(np.float64), "c": c}),
        lambda: session.run(None, {"x": x[:, :3], "c": c}),
    ]
    for attempt in attempts:
        with pytest.raises(backends.BackendError, match=f"^{name}: ") as caught:
            attempt()
        assert "\n" not in str(caught.value)
    np.testing.assert_array_equal(session.run(["y"], {"x": x, "c": c})[0], x + c)  # still usable


@pytest.mark.parametrize("name", RUNTIMES)
def test_computes_in_float32(name: str) -> None:
    """1 + 2**-12 is 1 in bfloat16, so its product with -1/+1 columns vanishes there."""
    size = 256
    a = np.full((size, size), 1 + 2**-12, np.float32)
    a[:, ::2] = 1
    w = np.where(np.arange(size)[:, None] % 2 == 0, -1, 1) * np.ones((size, size))
    matmul = model(
        [helper.make_node("MatMul", ["a", "w"], ["y"])],
        [info("a", [size, size])],
        [info("y")],
        {"w": w.astype(np.float32)},
    )
    (output,) = backends.find(name).compile(matmul, threads=2).run(None, {"a": a})
    np.testing.assert_allclose(output, size / 2 * 2**-12, rtol=1e-2)


@pytest.mark.skipif("openvino" not in RUNTIMES, reason="needs openvino")
def test_openvino_sends_no_telemetry(tmp_path: Path) -> None:
    code = (
        "import sys; from tensaurus.runtimes.backends.openvino import _runtime; _runtime();"
        "print([name for name in sys.modules if name.startswith('openvino_telemetry')])"
    )
    source = Path(backends.__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(source), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "[]\n", done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_declares_another_rank_than_it_computes_runs_as_often_as_one_likes() -> None:
    """Runtimes allow it once for an output of a given rank; they allow it always for a fresh one."""
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3]),
            helper.make_tensor_value_info("shape", TensorProto.INT64, ["n"]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a", "b"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = {"x": np.ones((2, 3), np.float32), "shape": np.array([1, 2, 3])}
    session = backends.find("onnxruntime").compile(Build(model.SerializeToString()), threads=1)
    (once,) = session.run(None, feeds)
    call = session.bind(feeds)  # type: ignore[attr-defined]
    for _ in range(3):
        call()
    assert once.shape == (1, 2, 3)
    feeds["shape"] = np.array([7])
    with pytest.raises(backends.BackendError):
        session.bind(feeds)()  # type: ignore[attr-defined]
