"""The profile of a model: what each kernel computes, and its operations and bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from typer.testing import CliRunner

from tensaurus.app.cli import app
from tensaurus.app.report.profile import profile_model
from tensaurus.app.report.profile_table import CONVERSION, UNTRACED, Profile, ProfiledKernel
from tensaurus.finders.bilinear import best_algorithm, fast_convolution_equation
from tensaurus.finders.fuse.blocked_layouts import blocked_equation
from tensaurus.finders.fuse.composition import compose_region
from tensaurus.graph.ir.node import Node, apply, source
from tensaurus.graph.ir.piece import Piece
from tensaurus.ops import TensorType, registry
from tensaurus.optimizer.result.kernel_report import make_titles
from tensaurus.optimizer.run.options import Options
from tensaurus.runtimes import backends
from tensaurus.runtimes.backends import Kernel
from tensaurus.runtimes.measure.worker import Worker
from tensaurus.system.errors import TensaurusError

RUNTIMES = [name for name in backends.targets() if isinstance(backends.find(name), backends.Profiling)]


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """conv and relu, a product, and a sum of both, of batches of any size."""
    rng = np.random.default_rng(3)
    weights = {"w": (24, 16, 3, 3), "v": (8, 8)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in weights.items()],
    )
    path = tmp_path / "network.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.nightly
def test_the_table_reports_subnormal_weights(network: Path) -> None:
    model = onnx.load(network)
    (w,) = [tensor for tensor in model.graph.initializer if tensor.name == "w"]
    array = numpy_helper.to_array(w).copy()
    array[:6] *= np.float32(1e-40)
    w.CopyFrom(numpy_helper.from_array(array, "w"))
    onnx.save(model, network)
    profile = profile_model(network, Options(threads=1))
    assert sorted(kernel.subnormal for kernel in profile.kernels)[-2:] == [0, 0.25]
    console = Console(file=StringIO(), width=200)
    console.print(profile.render())
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "0.25 of the weights are subnormal numbers" in text
    assert "`tensaurus optimize` makes them 0" in text


@pytest.mark.nightly(every=4)
@pytest.mark.parametrize("backend", RUNTIMES)
@pytest.mark.parametrize("batch", [1, 3])
def test_operations_and_bytes_are_counted_at_the_given_sizes(
    backend: str, batch: int, network: Path, tmp_path: Path
) -> None:
    shapes = {"x": (batch, 16, 8, 8)}
    told = profile_model(network, Options(shapes=shapes, backend=backend, database=tmp_path / "db.sqlite"))
    assert told.seconds > 0 and all(kernel.seconds > 0 for kernel in told.kernels)
    by_tensors = {kernel.tensors: kernel for kernel in told.kernels if kernel.tensors}
    assert set(by_tensors) == {("c", "r"), ("y",)}
    conv, product = by_tensors["c", "r"], by_tensors[("y",)]
    assert (conv.computes, product.computes) == ("Conv + Relu", "MatMul")
    outputs = batch * 24 * 8 * 8
    # a product and a sum of each multiplication, of sums of n terms n - 1, and a maximum of each output
    assert 0 <= outputs * (2 * 16 * 9 + 1) - conv.operations <= outputs
    assert 0 <= 2 * outputs * 8 - product.operations <= outputs
    assert conv.moved == 4 * (batch * 16 * 8 * 8 + 24 * 16 * 9 + outputs)
    assert product.moved == 4 * (2 * outputs + 8 * 8)
    others = [kernel for kernel in told.kernels if not kernel.tensors]
    assert all(k.computes in (CONVERSION, UNTRACED) and not k.operations for k in others)


@pytest.mark.nightly
def test_profile_command_prints_a_table_and_writes_json(network: Path, tmp_path: Path) -> None:
    out = tmp_path / "profile.json"
    arguments = [str(network), "--shape", "x=2,16,8,8", "--db", str(tmp_path / "db.sqlite")]
    done = CliRunner().invoke(app, ["profile", *arguments, "--json", str(out)])
    assert done.exit_code == 0, done.output
    assert "Conv + Relu" in done.stdout and "MatMul" in done.stdout and "of peak" in done.stdout
    record = json.loads(out.read_text())
    assert {row["computes"] for row in record["kernels"]} >= {"Conv + Relu", "MatMul"}
    assert sum(row["seconds"] for row in record["kernels"]) > 0
    each = CliRunner().invoke(app, ["profile", *arguments, "--each", "--quiet"])
    assert each.exit_code == 0 and "Conv + Relu: c, r" in each.stdout and each.stderr == ""


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["absent.onnx"], ("absent.onnx", "cannot be read")),
        (["NETWORK", "--shape", "z=1"], ("z",)),
        (["NETWORK", "--backend", "tpu"], ("tpu",)),
        (["NETWORK", "--shape", "x=1,5,8,8"], ("network.onnx", "x")),
        (["NETWORK", "--json", "no/such/folder.json"], ("folder",)),
    ],
)
def test_bad_arguments_are_refused_in_one_line(
    arguments: list[str], words: tuple[str, ...], network: Path
) -> None:
    given = [str(network) if word == "NETWORK" else word for word in arguments]
    done = CliRunner().invoke(app, ["profile", *given])
    assert done.exit_code == 2 and done.stdout == ""
    error = done.stderr.splitlines()[-1]
    assert error.startswith("error: ") and all(word in error for word in words), error


def test_a_backend_without_profiler_is_refused(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(database=network.with_name("db.sqlite"))
    monkeypatch.setattr(backends, "require", lambda name: object())
    with pytest.raises(TensaurusError, match="--backend onnxruntime has no profiler"):
        profile_model(network, options)


@pytest.mark.nightly
def test_kernels_without_time_are_counted(
    network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is shown where nothing could be told, and no table without a word on what is missing."""
    told = list[tuple[Kernel, float]]()
    monkeypatch.setattr(Worker, "profile", lambda *arguments: told)
    options = Options(shapes={"x": (1, 16, 8, 8)}, database=tmp_path / "db.sqlite")
    kernel = Kernel("conv", "Conv", ("x",), ("c",), frozenset({"c"}))
    for told in ([], [(kernel, 0.0)]):  # noqa: B007
        with pytest.raises(TensaurusError, match="reported no kernel times"):
            profile_model(network, options)
    told = [(kernel, 0.0), (kernel, 1e-6)]
    found = profile_model(network, options)
    assert (len(found.kernels), found.untold) == (1, 1)


def test_names_are_printed_without_markup() -> None:
    kernel = ProfiledKernel("Op", "Conv[/b]", ("a[/b]", "c[0]"), 1.0, 1, 1, 0.5)
    told = Profile("m", "onnxruntime", "1", 1, 1.0, (kernel,), 2)
    for each in (False, True):
        out = StringIO()
        Console(width=200, file=out).print(told.render(each=each))
        text = out.getvalue()
        assert ("Conv[/b]: a[/b], c[0]" if each else "Conv[/b]") in text and "2 more" in text


# What kernels are called


def _node(name: str, *args: Node, **attrs: Any) -> Node:
    return apply(registry[name], args, attrs)


def _fused(*inner: Node, leaves: tuple[Node, ...]) -> Any:
    equation = compose_region(Piece(inner[-1], leaves))
    assert equation is not None
    return equation


def test_kernel_titles_name_what_they_compute() -> None:
    """In whatever order the equations come."""
    x = source("x", TensorType("float32", (1, 16, 8, 8)))
    w = source("w", TensorType("float32", (16, 16, 3, 3)))
    conv = _node("Conv", x, w, pads=(1, 1, 1, 1))
    fast = fast_convolution_equation(conv, (best_algorithm(4, 3), best_algorithm(2, 3)))
    assert fast is not None
    kernel = fast.right[0]
    fused = _fused(_node("Relu", kernel), leaves=tuple(arg for arg in kernel.args if arg))
    plain = _fused(_node("Relu", _node("Add", conv, x)), leaves=(x, w))
    laid = blocked_equation(plain.right[0], {0}, True, 8)
    assert laid is not None
    back = replace(plain, name="unblocked", left=laid.right, right=plain.right)  # leads where it came from
    for order in ([fast, fused, plain, laid], [laid, plain, fused, fast], [back, laid, plain, fused, fast]):
        title = make_titles(order)
        assert title(kernel.attrs) == "F(4x2, 3x3)"
        assert title(fused.right[0].attrs) == "F(4x2, 3x3) + Relu"
        assert title(plain.right[0].attrs) == "Conv + Add + Relu"
        assert title(laid.right[0].attrs) == "Conv + Add + Relu, in-blocks"
    assert make_titles([])(kernel.attrs) == ""
    assert make_titles([fused])(fused.right[0].attrs) == "eop + Relu"
