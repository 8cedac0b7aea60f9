"""Of several runtimes the one with the fastest result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from time import monotonic
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from pretended_times import alike

from tensaurus.graph.onnx.build import Build
from tensaurus.optimizer import choose_runtime
from tensaurus.optimizer.choose_runtime import compare_other_runtimes, optimize_on_fastest_runtime
from tensaurus.optimizer.optimize import optimize
from tensaurus.optimizer.result.result import Result
from tensaurus.optimizer.result.summary import METADATA_KEY, AppliedRule, Summary
from tensaurus.optimizer.run.options import Options
from tensaurus.optimizer.run.original import Original
from tensaurus.optimizer.run.time_limit import TimeLimit
from tensaurus.runtimes import backends
from tensaurus.runtimes.measure.database import Database
from tensaurus.runtimes.measure.end_to_end_times import time_model_pairs, time_models
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.measure.measure import Pairs
from tensaurus.runtimes.measure.worker import WorkerError
from tensaurus.system.progress import NoProgress

A, B, C = "onnxruntime", "openvino", "reference"  # stand for three runtimes
MACHINE = Machine.here(1)


class Notes(NoProgress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def model(operators: Sequence[str] = ("Relu",)) -> onnx.ModelProto:
    names = ["x", *(f"t{k}" for k in range(len(operators) - 1)), "y"]
    nodes = [helper.make_node(op, [a], [b]) for op, a, b in zip(operators, names, names[1:], strict=False)]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 8]) for name in "xy")
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opset, ir_version=8)


class Bench:
    """Runtimes whose times are given, and an optimizer whose results are."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        before: dict[str, float],
        after: dict[str, float],
        again: dict[str, float] | None = None,
        refused: dict[str, str] | None = None,
        ended_by: str = "saturated",
    ):
        self.before, self.after, self.again, self.ended_by = before, after, again or {}, ended_by
        self.asked: list[Options] = []
        self.said = Notes()
        refusals = refused or {}
        monkeypatch.setattr(backends, "targets", lambda: sorted({*before, *refusals}))
        monkeypatch.setattr(
            choose_runtime, "explain_refusal", lambda entry, feeds, threads: refusals.get(entry.backend)
        )
        monkeypatch.setattr(choose_runtime, "time_models", self.times)
        monkeypatch.setattr(choose_runtime, "time_model_pairs", self.pairs)
        self.original = Original.read(model(), Options())

    def times(self, entries: list[tuple[str, Build]], *rest: object, **turn: object) -> list[float]:
        source = entries[0][1]
        return [(self.before if build is source else self.after)[name] for name, build in entries]

    def pairs(
        self, first: tuple[str, Build], second: tuple[str, Build], *rest: object, **more: object
    ) -> Pairs:
        return alike(self.before[first[0]], (self.after | self.again)[second[0]])

    def optimized(self, options: Options, start: float) -> Result:
        self.asked.append(options)
        result = Result.unchanged(self.original, options.backend, MACHINE, "")
        rewrites = (AppliedRule("a", "proof", 1),) if options.backend in self.after else ()
        summary = replace(result.summary, rewrites=rewrites, ended_by=self.ended_by)
        changed = model(["Relu", "Relu"]) if rewrites else result.model
        return replace(result, model=changed, summary=summary)

    def run(self, tmp_path: Path, **options: object) -> Result:
        given = Options(backend="auto", threads=1, database=tmp_path / "db.sqlite", **options)  # type: ignore[arg-type]
        return optimize_on_fastest_runtime(self.original, given, self.said, monotonic(), self.optimized)


def test_the_fastest_result_is_taken_not_that_of_the_fastest_original(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench = Bench(monkeypatch, {A: 3.0, B: 2.0}, {A: 1.0, B: 1.5})
    result = bench.run(tmp_path)
    summary = result.summary
    assert summary.backend == A and result.rewrites
    assert (summary.original_ms, summary.optimized_ms, summary.speedup) == (2000.0, 1000.0, 2.0)
    assert summary.runtimes_ms == {
        A: 3000.0, B: 2000.0, f"tensaurus on {A}": 1000.0, f"tensaurus on {B}": 1500.0
    }  # fmt: skip
    assert [options.backend for options in bench.asked] == [B, A]
    (entry,) = (e for e in result.model.metadata_props if e.key == METADATA_KEY)
    assert Summary.from_json(entry.value).runtimes_ms == summary.runtimes_ms


@pytest.mark.parametrize(
    ("after", "again"),
    [({}, {}), ({A: 2.5}, {}), ({A: 1.0}, {A: 2.1}), ({A: 2.0}, {})],
    ids=["nothing found", "slower than another runtime", "slower when measured again", "as fast"],
)
def test_what_is_not_faster_than_the_original_anywhere_is_not_returned(
    after: dict[str, float], again: dict[str, float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench = Bench(monkeypatch, {A: 3.0, B: 2.0}, after, again)
    result = bench.run(tmp_path)
    assert result.summary.backend == B and not result.rewrites and result.speedup == 1
    assert [node.op_type for node in result.model.graph.node] == ["Relu"]
    assert result.summary.original_ms == 2000


def test_a_result_that_fails_in_the_comparison_is_thrown_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench = Bench(monkeypatch, {A: 3.0, B: 2.0}, {A: 1.0})

    def crash(*_: object, **__: object) -> Pairs:
        raise WorkerError("the result: the worker was killed by SIGSEGV")

    monkeypatch.setattr(choose_runtime, "time_model_pairs", crash)
    result = bench.run(tmp_path)
    assert result.summary.backend == B and not result.rewrites
    assert bench.said.notes[-1] == "no result is kept: the result: the worker was killed by SIGSEGV"


def test_a_runtime_that_refuses_the_model_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench = Bench(monkeypatch, {A: 3.0, B: 2.0}, {A: 1.0}, refused={C: "no such operator"})
    assert bench.run(tmp_path).summary.backend == A
    words = "reference is left out of the comparison", "no such operator"
    assert any(all(word in note for word in words) for note in bench.said.notes)
    alone = Bench(monkeypatch, {A: 3.0}, {A: 1.0}, refused={B: "no such operator"})
    assert alone.run(tmp_path).rewrites and [options.backend for options in alone.asked] == [A]
    nobody = Bench(monkeypatch, {}, {}, refused={A: "no", B: "never"})
    with pytest.raises(backends.BackendError, match="runs the model: onnxruntime: no; openvino: never"):
        nobody.run(tmp_path)


def test_a_runtime_far_behind_is_not_optimized_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bench = Bench(monkeypatch, {A: 3.0, B: 2.0, C: 9.0}, {A: 1.0, C: 0.5})
    assert bench.run(tmp_path).summary.backend == A
    assert C not in [options.backend for options in bench.asked]


def test_an_interrupt_ends_the_search_for_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bench = Bench(monkeypatch, {A: 3.0, B: 2.0}, {A: 1.0, B: 1.5}, ended_by="interrupt")
    assert bench.run(tmp_path).summary.backend == B and len(bench.asked) == 1


@pytest.mark.parametrize("custom_ops", [False, True])
def test_the_time_is_shared(custom_ops: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known = {A: ""} if custom_ops else {}
    reason = "reason_without_kernels"
    monkeypatch.setattr(choose_runtime, reason, lambda options, name: known.get(name, "none"))
    bench = Bench(monkeypatch, {A: 3.0, B: 2.0}, {})
    bench.run(tmp_path, time_limit=100.0)
    shares = {options.backend: options.time_limit for options in bench.asked}
    # results come at once here, so the last search has all the time
    searched = 100 * (1 - choose_runtime.COMPARING_SHARE)
    parts = 1 + choose_runtime.KERNEL_TIME_WEIGHT if custom_ops else 2
    assert shares[B] == pytest.approx(searched / parts, rel=0.05)
    assert shares[A] == pytest.approx(searched, rel=0.05)


def test_comparisons_across_runtimes_are_kept_apart_from_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    builds = [Build(model(ops).SerializeToString()) for ops in (["Relu"], ["Relu", "Relu"])]
    feeds = {"x": np.zeros((4, 8), np.float32)}
    with Database(tmp_path / "db.sqlite") as database:
        def ask(*entries: tuple[str, Build]) -> list[float]:
            return time_models(entries, feeds, MACHINE, database, seconds=0.01, deadline=monotonic())

        def pair(*entries: tuple[str, Build]) -> Pairs:
            return time_model_pairs(*entries, feeds, MACHINE, database, gain=0.02)

        other = next((name for name in backends.targets() if name != A), None)
        first = ask((A, builds[0]), (A, builds[1]))
        again = pair((A, builds[0]), (A, builds[1]))
        assert len(again.seconds) == len(again.calm) >= 7
        across = ask((other, builds[0]), (A, builds[1])) if other else []
        # all of it is known now
        monkeypatch.setattr("tensaurus.runtimes.measure.end_to_end_times.time_contenders", None)
        monkeypatch.setattr("tensaurus.runtimes.measure.end_to_end_times.time_contender_pairs", None)
        assert ask((A, builds[0]), (A, builds[1])) == first
        assert pair((A, builds[0]), (A, builds[1])) == again
        if other:
            assert ask((other, builds[0]), (A, builds[1])) == across
            with pytest.raises(TypeError):
                ask((A, builds[1]), (other, builds[0]))


def test_pairs_that_decide_nothing_are_measured_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A deadline had cut the pairs short, and 'no difference seen' was read from the database ever after."""
    builds = [Build(model(ops).SerializeToString()) for ops in (["Relu"], ["Relu", "Relu"])]
    undecided, disturbed = Pairs(((1.0, 0.8),) * 4, (True,) * 4), Pairs(((1.0, 0.8),) * 7, (False,) * 7)
    decided = Pairs(((1.0, 0.8),) * 7, (True,) * 7)
    found = [undecided, disturbed, decided]
    compare_pairs = "tensaurus.runtimes.measure.end_to_end_times.time_contender_pairs"
    monkeypatch.setattr(compare_pairs, lambda *rest, **more: found.pop(0))
    with Database(tmp_path / "db.sqlite") as database:

        def pair(deadline: float) -> Pairs:
            entries = ((A, build) for build in builds)
            return time_model_pairs(*entries, {}, MACHINE, database, gain=0.02, deadline=deadline)

        assert [pair(monotonic() + 9) for _ in range(4)] == [undecided, disturbed, decided, decided]
    with Database(tmp_path / "steps.sqlite") as database:  # without a deadline two runs are to be alike
        found[:] = [undecided]
        assert [pair(inf) for _ in range(2)] == [undecided] * 2


@pytest.mark.parametrize(
    ("seconds", "limit", "ended_by", "times"),
    [
        pytest.param([4.0, 1.0], 60.0, "saturated", {A: 2.0, B: 0.5}, id="a faster one"),
        pytest.param([2.0, 4.0], 60.0, "saturated", {A: 2.0, B: 4.0}, id="a slower one"),
        pytest.param([2.0, inf], 60.0, "saturated", {}, id="one that refuses the model"),
        pytest.param([4.0, 1.0], 5.0, "saturated", {}, id="no time for it"),
        pytest.param([4.0, 1.0], 60.0, "interrupt", {}, id="the user waits"),
    ],
)
def test_the_user_is_told_of_a_faster_runtime(
    seconds: list[float],
    limit: float,
    ended_by: str,
    times: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The original takes 2 ms where it was optimized; the machine may be at another speed by now."""
    bench = Bench(monkeypatch, dict(zip([A, B], seconds, strict=True)), {})
    run = SimpleNamespace(
        backend=A, source=Build(b""), feeds={}, machine=MACHINE, database=None, progress=bench.said,
        time_limit=TimeLimit(limit, monotonic(), load_seconds=0.5, run_seconds=0.002),
    )  # fmt: skip
    unchanged = Result.unchanged(bench.original, A, MACHINE, "")
    summary = replace(unchanged.summary, original_ms=2.0, optimized_ms=2.0, ended_by=ended_by)
    found = compare_other_runtimes(run, replace(unchanged, summary=summary))  # type: ignore[arg-type]
    assert found.summary.runtimes_ms == times
    said = [f"{B} runs the original in 0.5 ms, faster than the result"] if times.get(B) == 0.5 else []
    assert [line.partition(":")[0] for line in bench.said.notes] == said


@pytest.mark.nightly
def test_auto_as_a_whole(tmp_path: Path) -> None:
    """A batch norm after a convolution folds on every runtime; what is returned is right on its own."""
    rng = np.random.default_rng(0)
    shapes = {"w": (8, 8, 3, 3), "s": (8,), "b": (8,), "m": (8,), "v": (8,)}
    weights = {name: np.abs(rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8, 24, 24]) for name in "xy")
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    opset = [helper.make_opsetid("", 17)]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    proto = helper.make_model(graph, opset_imports=opset, ir_version=8)
    options = Options(
        backend="auto", steps=4, nodes=200, threads=1, custom_ops=False, database=tmp_path / "db.sqlite"
    )
    result = optimize(proto, options)
    assert set(result.summary.runtimes_ms) >= set(backends.targets())
    assert result.summary.backend in backends.targets() and result.speedup >= 1
    feeds = {"x": rng.standard_normal((1, 8, 24, 24)).astype(np.float32)}
    (expected,) = backends.find(A).compile(Build(proto.SerializeToString()), threads=1).run(None, feeds)
    np.testing.assert_allclose(result.session().run(None, feeds)[0], expected, rtol=1e-4, atol=1e-4)
