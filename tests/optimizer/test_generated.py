"""Kernels from end to end: tuned in the search, chosen, compared, saved, and run by a plain onnxruntime."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import suppress
from functools import cache
from math import inf, isclose
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from pretended_times import pretend_times
from small_kernels import instructions
from small_programs import graph_of
from typer.testing import CliRunner

import tensaurus as ts
from tensaurus.app.cli.app import app
from tensaurus.expr.ir.expression_text import parse
from tensaurus.expr.ir.scope import Tensor
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.finders.bilinear import Bilinear
from tensaurus.finders.derive import Derive
from tensaurus.finders.fuse import Blocked
from tensaurus.graph.ir.node import Node, apply, constant, source
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.kernel_libraries import find_libraries
from tensaurus.kernels.halide import cpu_features
from tensaurus.ops import TensorType, registry
from tensaurus.ops.eop import eop
from tensaurus.optimizer.optimize import Options, Result
from tensaurus.optimizer.result.summary import Summary
from tensaurus.optimizer.run import kernel_budget
from tensaurus.optimizer.run.available_finders import FINDERS, exclude_finders
from tensaurus.optimizer.run.fast_algorithm_accuracy import Accuracy
from tensaurus.optimizer.run.kernel_budget import MAX_UNTIMED_KERNELS, KernelBudget
from tensaurus.runtimes.measure.database import Database
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.measure.observe import Observer
from tensaurus.runtimes.price.kernel_quota import KernelQuota
from tensaurus.runtimes.price.operator_times import CACHED_BYTES, LEAST_KERNEL_MULTIPLE, OperatorCosts
from tensaurus.runtimes.price.roofline import ONE_CORE, estimate
from tensaurus.runtimes.price.standalone_model import standalone_model
from tensaurus.system.errors import TensaurusError
from tensaurus.system.progress import NoProgress

pytest.importorskip("halide")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

RNG = np.random.default_rng(5)


def model_of(
    nodes: Sequence[onnx.NodeProto], x: Sequence[int], y: Sequence[int], **weights: np.ndarray
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def weight(*shape: int) -> np.ndarray:
    """The same whenever the model is built."""
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


def convolution() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("HardSwish", ["c"], ["y"]),
    ]
    w, b = weight(6, 3, 3, 3), np.ones(6, np.float32)
    return model_of(nodes, (1, 3, 9, 11), (1, 6, 9, 11), w=w, b=b)


def softmax() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Mul", ["x", "s"], ["a"]),
        helper.make_node("Softmax", ["a"], ["y"], axis=-1),
    ]
    return model_of(nodes, (5, 37), (5, 37), s=np.float32(0.5))


def transposed() -> onnx.ModelProto:
    nodes = [helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], pads=[1, 1, 1, 1])]
    w = weight(4, 2, 3, 3)
    return model_of(nodes, (1, 4, 6, 7), (1, 2, 11, 13), w=w)


MODELS = [convolution, softmax, transposed]


def let_kernels_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has a kernel takes half of the time, however busy the machine is; everything is still built."""

    def seconds(costs: OperatorCosts, piece: Piece, text: str) -> float:
        if not any(node.op is eop for node in piece.inner):
            return 2.0
        try:
            return 0.5 if costs.builds(standalone_model(piece, costs.opset)[0]).libraries else inf
        except TensaurusError:
            return inf

    monkeypatch.setattr(OperatorCosts, "_measure", seconds)
    monkeypatch.setattr(Observer, "__call__", lambda self, program: None)
    pretend_times(monkeypatch, 2.0, 1.0)


kernels_win = pytest.fixture(let_kernels_win)


def run(model: onnx.ModelProto | Path, database: Path, **options: object) -> Result:
    given = {"steps": 6, "threads": 2, "tuning": 1.0, "database": database, **options}
    return ts.optimize(model, **given)  # type: ignore[arg-type]


def shape_of(value: onnx.ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


def outputs(path: Path, x: np.ndarray) -> np.ndarray:
    """Of a plain onnxruntime."""
    options = ort.SessionOptions()
    for library in find_libraries(path):
        options.register_custom_ops_library(str(library))
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


Tuned = Callable[[Callable[[], onnx.ModelProto]], tuple[Result, Path]]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tuned]:
    """The first result of a model, and a copy of the database that it left."""
    folder = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patch:

        @cache
        def result(make: Callable[[], onnx.ModelProto]) -> Result:
            let_kernels_win(patch)
            found = run(make(), folder / f"{make.__name__}.sqlite")
            patch.undo()
            return found

        def both(make: Callable[[], onnx.ModelProto]) -> tuple[Result, Path]:
            found, place = result(make), tmp_path_factory.mktemp("copy") / "db.sqlite"
            shutil.copy(folder / f"{make.__name__}.sqlite", place)
            return found, place

        yield both


@pytest.mark.nightly(every=3)
@pytest.mark.kernels
@pytest.mark.usefixtures("kernels_win")
@pytest.mark.parametrize("make", MODELS)
def test_a_kernel_is_tuned_chosen_saved_and_loaded(
    make: Callable[[], onnx.ModelProto], tuned: Tuned, tmp_path: Path
) -> None:
    """And the next run, from the database, writes the same bytes: model and library."""
    model = make()
    result, database = tuned(make)
    summary = result.summary
    assert summary.equivalence.passed and result.speedup == 2 and summary.tuned >= 1
    (kernel,) = summary.kernels
    assert kernel.count == 1 and kernel.schedule and kernel.scope.startswith("L[")
    assert all(node.op_type in kernel.operators for node in model.graph.node)
    assert not summary.no_kernels and summary.compiler.startswith("halide")
    before, fast = tmp_path / "before.onnx", tmp_path / "fast.onnx"
    onnx.save(model, before)
    result.save(fast)
    x = RNG.standard_normal(shape_of(model.graph.input[0])).astype(np.float32)
    np.testing.assert_allclose(outputs(fast, x), outputs(before, x), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(result.session().run(None, {"x": x})[0], outputs(fast, x))
    again = run(model, database)
    assert again.summary.tuned == 0
    path = tmp_path / "again" / "fast.onnx"
    path.parent.mkdir()
    again.save(path)
    assert bytes_of(path) == bytes_of(fast)


def bytes_of(path: Path) -> list[bytes]:
    """Of the model and of what lies beside it."""
    return [path.read_bytes(), *(library.read_bytes() for library in find_libraries(path))]


class Notes(NoProgress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.nightly
@pytest.mark.kernels
@pytest.mark.usefixtures("kernels_win")
def test_a_result_with_kernels_is_optimized_again(tuned: Tuned, tmp_path: Path) -> None:
    """Its kernels are expressions as any others; a model that changed has kernels of one library."""
    fast = tmp_path / "fast.onnx"
    first, database = tuned(softmax)
    first.save(fast)
    carrying = onnx.load(fast)
    x, y = carrying.graph.input[0], carrying.graph.output[0]
    carrying.graph.node[-1].output[0] = "inner"
    carrying.graph.node.append(helper.make_node("Sigmoid", ["inner"], ["y"]))
    del carrying.graph.value_info[:]
    grown = tmp_path / "grown.onnx"
    onnx.save(carrying, grown)
    result = run(grown, database)
    assert result.speedup == 2 and len(result.libraries) == 1 and len(result.summary.kernels) == 1
    assert [node.domain for node in result.model.graph.node] == ["tensaurus.kernels"]
    result.save(tmp_path / "again.onnx")
    given = RNG.standard_normal((5, 37)).astype(np.float32)
    found, expected = (outputs(path, given) for path in (tmp_path / "again.onnx", grown))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert (x.name, y.name) == ("x", "y")
    plain = run(grown, database, custom_ops=False)
    assert plain.summary.equivalence.passed and not plain.summary.compiler
    np.testing.assert_allclose(plain.session().run(None, {"x": given})[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.kernels
def test_fast_algorithms_that_an_opset_cannot_say(kernels_win: None, tmp_path: Path) -> None:
    """Their tiles are slices in steps, which opset 9 lacks, so that they cannot be tried before there are
    kernels: that is no error of the model's."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])]
    model = model_of(nodes, (1, 64, 112, 112), (1, 64, 112, 112), w=weight(64, 64, 3, 3))
    model.opset_import[0].version = 9
    assert run(model, tmp_path / "db.sqlite", steps=1, tuning=0.1).summary.equivalence.passed


@pytest.mark.nightly
@pytest.mark.kernels
def test_tune_fills_the_database(tmp_path: Path) -> None:
    model, database = tmp_path / "m.onnx", tmp_path / "db.sqlite"
    onnx.save(convolution(), model)
    command = ["tune", str(model), "--seconds", "0.5", "--db", str(database), "-q"]
    first, second = (CliRunner().invoke(app, command) for _ in range(2))
    assert first.exit_code == 0, first.output
    rows = [line.split("\t") for line in first.stdout.splitlines()]
    assert {row[3] for row in rows} >= {"fused-conv-hardswish", "fused-hardswish"}
    assert all(float(row[0]) > 0 and row[4] != "none" and row[5].startswith("L[") for row in rows)
    assert second.stdout == first.stdout  # from the database
    assert run(model, database, steps=1).summary.tuned == 0
    open_sizes = convolution()
    open_sizes.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    open_sizes.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "N"
    onnx.save(open_sizes, model)
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2 and "--shape" in done.output and done.output.count("\n") == 1
    done = CliRunner().invoke(app, [*command, "--shape", "x=1,3,9,11"])
    assert done.exit_code == 0 and done.stdout == first.stdout


@pytest.mark.kernels
def test_explain_tells_of_kernels(tuned: Tuned, tmp_path: Path) -> None:
    fast = tmp_path / "fast.onnx"
    result, database = tuned(convolution)
    result.save(fast)
    assert Summary.from_json(result.summary.to_json()) == result.summary
    said = CliRunner().invoke(app, ["explain", str(fast)]).output
    (kernel,) = result.summary.kernels
    for word in (kernel.name, "fast.kernels.so", "HardSwish(Conv(", kernel.schedule[:20], "1 at 1 place"):
        assert word in said, word
    with_time = CliRunner().invoke(app, ["db", "list", "--db", str(database)]).output
    assert kernel.schedule in with_time


@pytest.mark.nightly
@pytest.mark.kernels
@pytest.mark.usefixtures("kernels_win")
@pytest.mark.skipif(bool(cpu_features.missing_features("x86-64-v3")), reason="not of this processor")
def test_kernels_for_another_processor(tmp_path: Path) -> None:
    """They are tuned, run and saved as those of this one, and have none of its further instructions."""
    model, fast = softmax(), tmp_path / "fast.onnx"
    result = run(model, tmp_path / "db.sqlite", cpu="x86-64-v3")
    assert result.speedup == 2 and result.summary.equivalence.passed and result.summary.kernels
    assert "avx2" in result.summary.compiler and "avx512" not in result.summary.compiler
    result.save(fast)
    x = np.random.default_rng(1).standard_normal(shape_of(model.graph.input[0])).astype(np.float32)
    before = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(outputs(fast, x), before.run(None, {"x": x})[0], rtol=1e-4, atol=1e-5)
    assert instructions(find_libraries(fast)[0]) == {"AVX2"}


@pytest.mark.nightly(every=2)
@pytest.mark.kernels
@pytest.mark.usefixtures("kernels_win")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"custom_ops": False}, "--no-custom-ops"),
        ({"halide": None}, "halide is not installed"),
        ({"compiler": None}, "no C compiler"),
        ({"backend": "openvino"}, "openvino cannot load kernel libraries"),
    ],
)
def test_why_there_are_no_kernels_is_said(
    change: dict[str, object], reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if "halide" in change:
        monkeypatch.setattr(kernel_budget, "find_spec", lambda name: None)
    elif "compiler" in change:
        monkeypatch.setattr(kernel_budget, "find_compiler", lambda: None)
    elif "backend" in change:
        pytest.importorskip("openvino")
    options = {name: value for name, value in change.items() if name in ("custom_ops", "backend")}
    notes = Notes()
    result = run(softmax(), tmp_path / "db.sqlite", progress=notes, **options)
    said = f"no kernels are generated: {result.summary.no_kernels}"
    assert [note for note in notes.notes if "kernels" in note] == [said]
    assert reason in result.summary.no_kernels and not result.libraries and not result.summary.kernels
    assert {node.domain for node in result.model.graph.node} == {""}


@pytest.mark.nightly
@pytest.mark.kernels
@pytest.mark.usefixtures("kernels_win")
def test_what_cannot_be_compiled_is_dropped_and_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refused(compiler: object, sources: Sized) -> list[bytes | str]:
        return ["a loop of another expression"] * len(sources)

    monkeypatch.setattr("tensaurus.kernels.tune.compiled_objects.ObjectCompiler.compile", refused)
    result = run(softmax(), tmp_path / "db.sqlite")
    assert not result.libraries and not result.summary.kernels
    assert result.summary.dropped == ("a loop of another expression",)


@pytest.mark.parametrize(
    ("scope", "label"),
    [
        ("L[i:3,j:4](exp(x0[i,j]))", "eop map"),
        ("L[i:3](max[j:4](x0[i,j]))", "eop reductions"),
        ("L[i:3](sum[j:4](mul(x0[i,j],x1[j])))", "eop products"),
    ],
)
def test_a_lucky_kernel_flatters_its_own_kind_alone(scope: str, label: str) -> None:
    args = [source("a", TensorType("float32", (3, 4))), source("b", TensorType("float32", (4,)))]
    piece = Piece.of(apply(eop, args, {"scope": scope}))
    assert piece.label == label
    assert Piece.of(apply(registry["Exp"], args[:1])).label == "Exp"


def test_processors() -> None:
    from tensaurus.kernels.halide import compile as compiling

    assert set(cpu_features.CPUS) == {cpu_features.NATIVE, *compiling.FEATURES_OF_LEVEL}
    for cpu in cpu_features.CPUS:
        features = cpu_features.required_features(" ".join(compiling.halide_features(cpu)))
        assert cpu == cpu_features.NATIVE or set(cpu_features.required_features(cpu)) <= set(features)
    assert cpu_features.missing_features("") == ()


def test_a_processor_that_this_is_not_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(TensaurusError, match="unknown --cpu 'x86-64-v9'"):
        Options(cpu="x86-64-v9")
    monkeypatch.setattr(cpu_features, "_linux_flags", lambda: frozenset({"avx", "pni"}))
    assert cpu_features.missing_features("sse3 avx fma") == ("fma",)
    with pytest.raises(TensaurusError, match="--cpu x86-64-v3: it lacks ssse3, ") as caught:
        Options(cpu="x86-64-v3")
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(cpu_features, "_linux_flags", frozenset)  # a system that does not tell
    assert cpu_features.missing_features("fma") == ()
    model = tmp_path / "m.onnx"
    onnx.save(softmax(), model)
    done = CliRunner().invoke(app, ["optimize", str(model), "-o", str(tmp_path / "o.onnx"), "--cpu", "arm"])
    assert done.exit_code == 2 and "unknown --cpu 'arm'" in done.output and done.output.count("\n") == 1
    with pytest.raises(TensaurusError, match="--tuning 0 is not a positive number"):
        Options(tuning=0)


def test_what_proposes_equalities_can_be_left_out(tmp_path: Path) -> None:
    derive, blocked = Derive(), Blocked(16)
    assert exclude_finders((derive, blocked), ()) == (derive, blocked)
    assert exclude_finders((derive, blocked), ("derive", "fuse")) == (blocked,)
    with pytest.raises(TensaurusError, match="unknown --without 'winograd'"):
        Options(without=("derive", "winograd"))
    model = tmp_path / "m.onnx"
    onnx.save(softmax(), model)
    command = ["optimize", str(model), "-o", str(tmp_path / "o.onnx"), "--without", "fuse, winograd"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2 and ", ".join(FINDERS) in done.output and done.output.count("\n") == 1
    shown = CliRunner().invoke(app, ["optimize", "--help"], env={"COLUMNS": "200"}).output
    assert ", ".join(FINDERS) in " ".join(shown.split())


@pytest.mark.kernels
@pytest.mark.parametrize("without", [(), ("bilinear",), ("fuse",), ("bilinear", "fuse")])
def test_what_is_left_out_is_asked_by_nobody(
    without: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fusion looks at programs of fast algorithms, which it asks for."""
    asked: list[Node] = []
    monkeypatch.setattr(Bilinear, "_gain_and_equations", lambda self, node: asked.append(node) or (0.0, ()))
    x, w = (source(n, TensorType("float32", shape)) for n, shape in (("x", (1, 4, 9)), ("w", (4, 4, 3))))
    program = Program((x, w), (("y", apply(registry["Conv"], [x, w], {})),))
    graph, _ = graph_of(program)
    graph.programs.append(program)
    costs: Any = SimpleNamespace(roofline=ONE_CORE, measured_or_observed=lambda node: None)
    accuracy = Accuracy("like", program, ONE_CORE, lambda program: 0.0)
    with (
        Database(tmp_path / "db.sqlite") as records,
        KernelBudget.of_run(Options(), "onnxruntime", Machine.here(), records) as kernels,
    ):
        for finder in kernels.make_finders(costs, accuracy, without):
            list(finder(graph, 1000))
    assert bool(asked) == ("bilinear" not in without)


# Time


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(kernel_budget, "monotonic", made)
    return made


def generating(seconds: float, deadline: float = inf) -> KernelBudget:
    made = KernelBudget("halide", seconds=seconds, deadline=deadline)
    made._kernels = type("Kernels", (), {"tuner": type("Tuner", (), {"close": lambda self: None})()})()
    return made


@pytest.mark.parametrize("left", [1e4, 300.0, 60.0, 10.0, 3.5, 3.0, 1.0, 0.0, -5.0])
def test_tuning_keeps_the_deadline(clock: Clock, left: float) -> None:
    """Kernel after kernel, until no other one fits."""
    made, tuned = generating(20.0, clock.now + left), 0
    while made.may_tune_another():
        each = made.seconds_for_next()
        assert kernel_budget.MIN_TUNING_SECONDS <= each <= 20.0
        clock.now += each + kernel_budget.OVERHEAD_SECONDS
        tuned += 1
    assert clock.now <= 1000 + max(left, 0.0)
    least = kernel_budget.MIN_TUNING_SECONDS + kernel_budget.OVERHEAD_SECONDS
    assert tuned >= min(kernel_budget.MIN_KERNELS, int(left / least) - 1)
    assert made.seconds_for_next() == 0


def test_known_schedules_are_compiled_when_the_time_for_tuning_is_over(clock: Clock) -> None:
    """Until there is no time to run a program of them; and only if each eOperator of the piece has one."""
    x = source("x", TensorType("float32", (4, 4)))
    scopes = [parse(f"L[i:4, j:4]({fn}(x0[i, j]))", {"x0": Tensor("x0", (4, 4))}) for fn in ("exp", "tanh")]
    known, other = (apply(eop, [x], {"scope": intern_scope(scope)}) for scope in scopes)
    both = apply(eop, [known], {"scope": other.attribute("scope")})
    made = generating(20.0)
    made._kernels.least_seconds = lambda node: 0.0 if node is known else 0.6  # type: ignore[union-attr, method-assign]
    made.set_search_deadline(clock.now + 100)
    pieces = [Piece.of(known), Piece.of(other), Piece(both, (x,))]
    assert [made.may_measure(piece) for piece in pieces] == [True, True, True]
    clock.now += 65
    assert made.seconds_for_next() == 0
    assert [made.may_measure(piece) for piece in pieces] == [True, False, False]
    clock.now += 15
    assert made.seconds_for_next() < 0
    assert not any(made.may_measure(piece) for piece in pieces)
    assert KernelBudget().may_measure(pieces[1])


def test_kernels_have_their_share_of_the_time_from_the_first_question_on(clock: Clock) -> None:
    """Where running and exploring a large model took 80 of 100 s, 12 of the other 20 are for tuning."""
    made = generating(20.0)
    made.set_search_deadline(clock.now + 100)
    clock.now += 80
    assert made.may_tune_another()
    clock.now += kernel_budget.TUNING_SHARE * 20 - 0.1
    assert made.seconds_for_next() == 0 and not made.may_tune_another()
    clock.now += 0.2 + (kernel_budget.COMPILING_SHARE - kernel_budget.TUNING_SHARE) * 20
    assert made.seconds_for_next() < 0
    made.set_search_deadline(clock.now + 100)  # it turns out that there is more time
    assert made.may_tune_another()
    made.stop()
    assert not made.may_tune_another()


def test_kernels_like_known_ones_need_less_time(clock: Clock) -> None:
    """Where 1 s is left, a kernel of a new form has no time, one that is known at other sizes has."""
    x = source("x", TensorType("float32", (4, 4)))
    scope = parse("L[i:4, j:4](exp(x0[i, j]))", {"x0": Tensor("x0", (4, 4))})
    piece = Piece.of(apply(eop, [x], {"scope": intern_scope(scope)}))
    made = generating(20.0, clock.now + 1.0)
    for least, may in ((0.6, False), (0.15, True)):
        made._kernels.least_seconds = lambda node, least=least: least  # type: ignore[union-attr, method-assign, misc]
        assert made.may_measure(piece) is may
        assert (made.seconds_for_next(least) >= least) is may


@pytest.mark.parametrize("width, model_bytes", [(4, 0), (4, 2 * CACHED_BYTES), (1 << 20, 0)])
def test_a_kernel_is_not_measured_again_unless_its_weights_are_large(
    tmp_path: Path, width: int, model_bytes: int
) -> None:
    """While it is tuned, its tensors are in the nearest cache; within a model they are not."""
    x, w = source("x", TensorType("float32", (width,))), constant(np.ones(width, np.float32))
    leaves = {name: Tensor(name, (width,)) for name in ("x0", "x1")}
    scope = intern_scope(parse(f"L[i:{width}](mul(x0[i], x1[i]))", leaves))
    piece, asked = Piece.of(apply(eop, [x, w], {"scope": scope})), list[Node]()

    class Stopped:
        ended = False

        def measure(self, build: object, feeds: object) -> float:
            return 2e-4

    def tuned_seconds(node: Node) -> float:
        asked.append(node)
        return 1e-4

    with Database(tmp_path / "costs.sqlite") as records:
        costs = OperatorCosts(
            records, Stopped(), "onnxruntime", Machine.here(1), 18,  # type: ignore[arg-type]
            lambda program: program, kernel_cpu="x", tuned_seconds=tuned_seconds,  # type: ignore[arg-type, return-value]
            weight_bytes=model_bytes,
        )  # fmt: skip
        activations = 2 * 4 * width * costs.roofline.cached
        weights = 4 * width * costs.roofline.streamed if model_bytes else 0.0
        assert isclose(costs.measure(piece), 1e-4 + activations + weights if width == 4 else 2e-4)
        assert costs.known(piece) == costs.measure(piece) and len(asked) == 1


@pytest.mark.parametrize("model_bytes", [0, 1 << 30])
def test_kernels_like_it_tell_what_a_kernel_takes(tmp_path: Path, model_bytes: int) -> None:
    """They were timed with their weights in the caches; a large model fetches them from memory."""
    x, w = source("x", TensorType("float32", (8,))), constant(np.ones(8, np.float32))
    leaves = {name: Tensor(name, (8,)) for name in ("x0", "x1")}
    scope = intern_scope(parse("L[i:8](mul(x0[i], x1[i]))", leaves))
    kernel, plain = Piece.of(apply(eop, [x, w], {"scope": scope})), Piece.of(apply(registry["Exp"], [x]))
    with Database(tmp_path / "costs.sqlite") as records:

        def costs(cpu: str, expected: float) -> OperatorCosts:
            return OperatorCosts(
                records, None, "onnxruntime", Machine.here(1), 18,  # type: ignore[arg-type]
                lambda program: program, kernel_cpu=cpu, expected_seconds=lambda node: expected,  # type: ignore[arg-type, return-value]
                weight_bytes=model_bytes,
            )  # fmt: skip

        roofline = costs("x", 0.0).roofline
        weights = 4 * 8 * roofline.streamed if model_bytes else 0.0
        least = LEAST_KERNEL_MULTIPLE * estimate(kernel, roofline)  # where nothing like it was tuned
        for seconds in (1e-4, 0.0):  # fetching may take longer than computing, which goes on meanwhile
            assert isclose(costs("x", seconds).kernel_seconds(kernel), max(seconds, least, weights))
        assert costs("x", 1e-4).kernel_seconds(plain) == 0.0
        assert costs("", 1e-4).kernel_seconds(kernel) == 0.0  # no kernels are generated


def test_kernels_are_counted_where_no_time_limits_them(clock: Clock) -> None:
    made = generating(20.0)
    assert made.may_tune_another() and made.seconds_for_next() == 20.0
    made.tuned = MAX_UNTIMED_KERNELS
    assert not made.may_tune_another()
    made.tuned = 0
    made.stop()
    assert not made.may_tune_another() and made.seconds_for_next() < 0
    assert KernelBudget().may_tune_another()  # expressions that are expanded take no time


def test_what_is_not_tuned_is_no_choice_and_leaves_no_trace() -> None:
    class Alone:
        measured = 0

        def known(self, piece: Piece) -> float | None:
            return None

        def measure(self, piece: Piece) -> float:
            self.measured += 1
            return 1.0

        def estimate(self, piece: Piece) -> float:
            return 0.5

        def product_seconds(self, piece: Piece) -> float:
            return 0.0

        def kernel_seconds(self, piece: Piece) -> float:
            return 0.0

    x = source("x", TensorType("float32", (3,)))
    made, plain = apply(eop, [x], {"scope": "L[i:3](x0[i])"}), apply(registry["Exp"], [x])
    for more in (True, False):
        costs, alone_ = KernelQuota(Alone(), lambda piece, more=more: more), None
        assert alone_ is None
        for node, limited in ((made, not more), (plain, False)):
            piece = Piece.of(node)
            assert costs.known(piece) == (inf if limited else None)
            assert costs.measure(piece) == (inf if limited else 1.0) and costs.estimate(piece) == 0.5
        assert costs.standalone.measured == 1 + more  # type: ignore[attr-defined]


@pytest.mark.nightly
@pytest.mark.kernels
def test_an_interrupt_while_kernels_are_tuned_keeps_the_best(tmp_path: Path) -> None:
    """The result is written, no process is left, and no measurement is lost that was complete."""
    model, fast, database = tmp_path / "m.onnx", tmp_path / "fast.onnx", tmp_path / "db.sqlite"
    onnx.save(convolution(), model)
    command = [sys.executable, "-m", "tensaurus", "optimize", model, "-o", fast, "--tuning", "600"]
    command += ["--time-limit", "60", "--db", database]
    folder = tmp_path / "tmp"
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(folder)}
    with subprocess.Popen(
        list(map(str, command)), env=environment, stderr=subprocess.PIPE, text=True, process_group=0
    ) as process:
        assert process.stderr is not None
        while "searching" not in process.stderr.readline():
            assert process.poll() is None
        time.sleep(1)
        children = _children(process.pid)
        assert any("trial_process" in words for words in children.values())
        process.send_signal(signal.SIGINT)
        _, words = process.communicate(timeout=120)
    assert process.returncode == 0, words
    assert fast.exists() and not list(folder.iterdir())
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    assert CliRunner().invoke(app, ["db", "count", "--db", str(database)]).exit_code == 0


def _children(pid: int) -> dict[str, str]:
    """The command lines of a process's children; of all its threads."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            for child in (task / "children").read_text().split():
                found[child] = Path(f"/proc/{child}/cmdline").read_text()
    return found
