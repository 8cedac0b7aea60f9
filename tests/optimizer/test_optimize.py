"""The main loop on small models: faster or unchanged, never different, the same twice."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from pretended_times import pretend_times
from small_programs import affine_model

from tensaurus.check.files.verdict import Verdict
from tensaurus.check.program.candidate import Candidate
from tensaurus.check.program.field_check import FieldCheck
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.optimizer.optimize import Result, optimize
from tensaurus.optimizer.result import candidate_models, winner
from tensaurus.optimizer.result.summary import METADATA_KEY, Summary
from tensaurus.optimizer.run.time_limit import TimeLimit
from tensaurus.optimizer.search.model_search import ModelSearch
from tensaurus.optimizer.search.outcome import Outcome
from tensaurus.optimizer.search.strategies import Effort, Runtime
from tensaurus.rules.language import evidence
from tensaurus.rules.language import rule as rule_module
from tensaurus.rules.language.rule import parse_rule
from tensaurus.runtimes.measure.database import Database
from tensaurus.runtimes.measure.observe import PROFILE, Observer
from tensaurus.runtimes.measure.worker import WorkerError
from tensaurus.runtimes.price.operator_times import OperatorCosts
from tensaurus.runtimes.price.roofline import estimate
from tensaurus.system.errors import TensaurusError
from tensaurus.system.progress import NoProgress

RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def times(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators cost what the roofline says and candidates count as twice as fast: what a busy machine
    measures must not decide a test."""
    if "measured" not in request.keywords:
        monkeypatch.setattr(OperatorCosts, "_measure", lambda self, piece, text: estimate(piece))
        pretend_times(monkeypatch, 1.0, 0.5)


class Notes(NoProgress):
    """Keeps what is noted."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)








def run(model: onnx.ModelProto, **options: object) -> Result:
    return optimize(model, **{"steps": 30, "nodes": 800, "threads": 2, **options})  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def by_operators_alone(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """What is found must not depend on how busy the machine was when a small model was run as a whole."""
    if "whole" not in request.keywords:
        monkeypatch.setattr(Observer, "__call__", lambda self, program: None)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("measured") / "db.sqlite"


def test_affine_maps_fold_and_hardswish_is_named(database: Path) -> None:
    model = affine_model()
    result = run(model, database=database)
    operators = sorted(node.op_type for node in result.model.graph.node)
    assert operators == ["Conv", "Conv", "HardSigmoid", "Mul"]  # opset 12 has no HardSwish
    summary = result.summary
    assert summary.equivalence.passed and summary.speedup > 1 and summary.opaque == 0 and summary.typed == 10
    used = {r.rule for r in result.rewrites}
    assert "scale-after-conv-without-b" in used and any("hard" in name for name in used)
    assert all(r.evidence.startswith(("tested(", "proved(")) and r.law for r in result.rewrites)
    assert "over GF(2^31-1)" in summary.replay
    assert any(found.startswith("proved(z3") for found in result.evidence.values())


def test_the_interface_stays(database: Path) -> None:
    model = affine_model()
    result = run(model, database=database)
    assert result.model.graph.input == model.graph.input and result.model.graph.output == model.graph.output
    assert result.model.opset_import == model.opset_import
    metadata = {entry.key: entry.value for entry in result.model.metadata_props}
    assert metadata["author"] == "somebody"
    assert Summary.from_json(metadata[METADATA_KEY]).rewrites == result.rewrites


def test_the_timeline_tells_what_happened_when(
    database: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TENSAURUS_DEBUG", "2")
    result = run(affine_model(), database=database)
    events = result.summary.timeline
    assert [event.seconds for event in events] == sorted(event.seconds for event in events)
    phases = [event.facts["name"] for event in events if event.kind == "phase"]
    assert phases[:3] == ["reading the model", "running the original", "searching"]
    assert {"phase", "exploration", "finders", "extraction", "run"} == {event.kind for event in events}
    explored = next(event.facts for event in events if event.kind == "exploration")
    assert int(explored["e_nodes"]) >= int(explored["classes"]) > 5
    printed = capsys.readouterr().err
    assert all(str(event) in printed for event in events)
    metadata = {entry.key: entry.value for entry in result.model.metadata_props}
    assert Summary.from_json(metadata[METADATA_KEY]).timeline == ()


def test_the_session_runs_the_result(database: Path) -> None:
    model = affine_model()
    result = run(model, database=database)
    x = RNG.standard_normal((1, 8, 40, 40)).astype(np.float32)
    from onnxruntime import InferenceSession

    (expected,) = InferenceSession(model.SerializeToString()).run(["y"], {"x": x})
    (found,) = result.session().run(["y"], {"x": x})
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.measured
def test_what_cannot_be_improved_is_returned_as_it_was(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    result = run(model, database=tmp_path / "db.sqlite")
    assert result.speedup == 1 and result.rewrites == () and result.model.graph == model.graph


def test_a_slower_program_is_not_returned(monkeypatch: pytest.MonkeyPatch, database: Path) -> None:
    pretend_times(monkeypatch, 1.0, 1.2)
    model = affine_model()
    assert run(model, database=database).model.graph == model.graph


@pytest.mark.nightly
def test_what_is_not_faster_when_measured_again_is_not_returned(
    monkeypatch: pytest.MonkeyPatch, database: Path
) -> None:
    model, said = affine_model(), Notes()
    for again, kept in ((1.0, False), (1.1, False), (0.8, True)):
        pretend_times(monkeypatch, 1.0, 0.5, again)
        result = run(model, database=database, progress=said)
        assert (result.model.graph != model.graph) is kept
        assert result.speedup == (1 / again if kept else 1.0)  # the second figure is the one that is told
    assert sum("no difference seen" in text for text in said.notes) >= 1
    assert sum("it is slower" in text for text in said.notes) >= 1


def test_a_program_that_fails_in_the_comparison_is_thrown_away(
    monkeypatch: pytest.MonkeyPatch, database: Path
) -> None:
    def crash(*_: object, **__: object) -> None:
        raise WorkerError("the result: there is not enough memory")

    monkeypatch.setattr(winner, "time_model_pairs", crash)
    model, said = affine_model(), Notes()
    assert run(model, database=database, progress=said).model.graph == model.graph
    assert any("compared with the original: the result: there is not enough memory" in n for n in said.notes)


@pytest.mark.nightly
def test_only_the_best_is_checked_where_there_is_no_time_for_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A check that fails is never cut short; only a second one may end late."""
    checks: list[int] = []

    def refused(
        target: object, measured: candidate_models.MeasuredModels, model: object
    ) -> tuple[FieldCheck, Verdict]:
        checks.append(len(measured.models))
        return FieldCheck(True, 0, 0, 1.0), Verdict(False, detail="it was refused")

    monkeypatch.setattr(winner, "_check_model", refused)
    model = affine_model()
    for another, second in ((True, True), (False, True), (False, False)):
        monkeypatch.setattr(TimeLimit, "has_time_for_another", another)
        monkeypatch.setattr(TimeLimit, "has_time_for_second_check", second)
        said, checks[:] = Notes(), []
        result = run(model, database=tmp_path / "db.sqlite", progress=said, steps=None, time_limit=60.0)
        assert result.model.graph == model.graph and result.rewrites == ()
        assert len(checks) == (checks[0] if another else 1 + second) and checks[0] > 2
        assert any("checked, for lack of time" in text for text in said.notes) is not another


@pytest.mark.nightly
def test_of_slow_models_only_the_best_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    counts: list[int] = []

    def times(entries: list[object], *rest: object, **turn: object) -> list[float]:
        counts.append(len(entries))
        return [1.0] * len(entries)

    monkeypatch.setattr(candidate_models, "time_models", times)
    for load in (0.0, 1000.0):
        monkeypatch.setattr(TimeLimit, "measuring_seconds", lambda self, models, load=load: models * load)
        run(affine_model(), database=tmp_path / "db.sqlite", steps=None, time_limit=30.0)
    assert counts[0] > 2 and counts[1] == 2  # the original and the best


@pytest.mark.nightly(every=2)
@pytest.mark.parametrize(
    ("search", "line"),
    [
        ("backtracking", "wrong: Clip(x, 0, 6) => Clip(x, 0, 5)"),
        ("saturation", "wrong: Clip(x, 0, 6) => Relu(x)"),
        ("backtracking", "wrong: Add(x, y) => x where const(y), numel(y) == 1, value(y) < 0"),
        ("saturation", "wrong: Add(x, y) => x where const(y), numel(y) == 1, value(y) < 0"),
        # differs at the border alone
        (
            "backtracking",
            "wrong: Conv(x, w, pads=(1, 1, 1, 1), **a) => Conv(Add(x, 1), w, pads=(1, 1, 1, 1), **a)",
        ),
        (
            "saturation",
            "wrong: Conv(x, w, pads=(1, 1, 1, 1), **a) => Conv(Relu(x), w, pads=(2, 1, 0, 1), **a)",
        ),
    ],
)
def test_a_wrong_rule_never_reaches_a_result(
    search: str, line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Even a rule that claims evidence: its rewrites do not replay, and the outputs differ."""
    (rule,) = parse_rule(f"{line} | tested(gf, none of it is true)")
    assert rule.evidence == evidence.Tested("gf", "none of it is true")
    monkeypatch.setattr(import_module("tensaurus.optimizer.optimize"), "library", lambda **asked: [rule])
    monkeypatch.setattr(OperatorCosts, "__call__", lambda self, node: 1.0 if node in KNOWN else 0.0)
    monkeypatch.setattr(OperatorCosts, "known", lambda self, piece: float(piece.root in KNOWN))
    monkeypatch.setattr(Observer, "find_fused", lambda self, found: [])
    monkeypatch.setattr(
        "tensaurus.finders.derive.linear_regions.product_piece", lambda node: None
    )  # right forms are not of interest
    model = affine_model()
    KNOWN.clear()
    KNOWN.update(import_model(model).nodes)
    said = Notes()
    result = run(model, database=tmp_path / "db.sqlite", progress=said, steps=9, search=search)
    assert result.model.graph == model.graph and result.rewrites == ()
    assert any("dropped a faster" in text for text in said.notes), "the wrong rule was not even tried"


KNOWN: set[object] = set()


@pytest.mark.nightly
@pytest.mark.whole
def test_programs_are_run_as_a_whole(tmp_path: Path) -> None:
    """Twice the same from one database, in which the second finds what the first has seen."""
    path = tmp_path / "db.sqlite"
    results: list[Result] = []
    known, more = -1, 0
    while known != more:  # until there is nothing new to measure
        known = more
        results.append(run(affine_model(), database=path, steps=12))
        with Database(path) as records:
            rows = records.all()
            more = len(rows)
    assert any(row.workload.startswith(PROFILE) for row in rows)
    summary = results[-1].summary
    assert summary.equivalence.passed and summary.original_predicted_ms > 0 and summary.predicted_ms > 0
    again = run(affine_model(), database=path, steps=12)
    assert results[-1].model.SerializeToString() == again.model.SerializeToString()


def test_an_interrupt_keeps_the_best(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Interrupting(NoProgress):
        def step(self, done: int, total: int | None, best_ms: float | None, left: float | None) -> None:
            if done == 3:
                raise KeyboardInterrupt

    result = run(affine_model(), database=tmp_path / "db.sqlite", progress=Interrupting())
    assert result.summary.ended_by == "interrupt" and result.speedup > 1 and result.summary.equivalence.passed


def test_an_interrupt_in_a_body_ends_every_search(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[object] = []
    said = Notes()

    def search(program: object, *rest: object) -> object:
        searched.append(program)
        return Outcome([Candidate(program, 1.0)], "interrupt")

    runtime = Runtime(SimpleNamespace())  # type: ignore[arg-type]
    whole = ModelSearch(SimpleNamespace(search=search), runtime, Effort(), said)
    body, outer = (import_model(affine_model()) for _ in range(2))
    assert [whole.search(program).ended_by for program in (body, outer)] == ["interrupt"] * 2
    assert searched == [body] and len(said.notes) == 1 and "Ctrl-C again" in said.notes[0]


def test_what_holds_of_many_bodies_is_noted_once() -> None:
    said = Notes()

    def search(program: object, effort: Effort, watch: object) -> Outcome:
        return Outcome([Candidate(program, 1.0)], "time", notes=["there was no time", "there was no time"])

    runtime = Runtime(SimpleNamespace())  # type: ignore[arg-type]
    whole = ModelSearch(SimpleNamespace(search=search), runtime, Effort(), said)
    for _ in range(3):
        whole.search(import_model(affine_model()))
    assert said.notes == ["there was no time"]


def test_bodies_are_optimized(tmp_path: Path) -> None:
    """The branches of an If hold the network."""
    inner = affine_model().graph
    branches = []
    for branch in ("then", "else"):
        body = helper.make_graph(
            [helper.make_node("Identity", ["x"], [f"x_{branch}"])],
            branch,
            [],
            [inner.output[0]],
            inner.initializer,
        )
        for node in inner.node:
            added = body.node.add()
            added.CopyFrom(node)
            added.input[:] = [f"x_{branch}" if n == "x" else n for n in node.input]
        for node in body.node:
            names = {n: n if n in {"x"} else f"{n}_{branch}" for n in [*node.input, *node.output]}
            node.input[:] = [n if n == f"x_{branch}" else names[n] for n in node.input]
            node.output[:] = [n if n == f"x_{branch}" else names[n] for n in node.output]
        for value in [*body.initializer, *body.output]:
            value.name = f"{value.name}_{branch}"
        branches.append(body)
    graph = helper.make_graph(
        [helper.make_node("If", ["cond"], ["y"], then_branch=branches[0], else_branch=branches[1])],
        "choice",
        [helper.make_tensor_value_info("cond", TensorProto.BOOL, []), inner.input[0]],
        [inner.output[0]],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=7)
    onnx.checker.check_model(model)
    result = run(model, database=tmp_path / "db.sqlite")
    assert result.summary.opaque_operators == {"If": 1} and result.summary.typed == 22
    for attribute in result.model.graph.node[0].attribute:
        assert sorted(n.op_type for n in attribute.g.node) == ["Conv", "Conv", "HardSigmoid", "Mul"]
    assert result.summary.equivalence.passed and result.speedup > 1


def test_dynamic_sizes_stay_dynamic(tmp_path: Path) -> None:
    model = affine_model()
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
        for place in (2, 3):
            value.type.tensor_type.shape.dim[place].dim_param = f"side{place}"
    result = run(model, database=tmp_path / "db.sqlite")
    assert result.summary.opaque == 0 and result.speedup > 1
    assert result.model.graph.input == model.graph.input
    for shape in ((1, 8, 5, 7), (3, 8, 16, 4)):
        x = RNG.standard_normal(shape).astype(np.float32)
        from onnxruntime import InferenceSession

        (expected,) = InferenceSession(model.SerializeToString()).run(None, {"x": x})
        np.testing.assert_allclose(result.session().run(None, {"x": x})[0], expected, atol=2e-5)


def test_a_backend_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TensaurusError, match="nonesuch"):
        run(affine_model(), backend="nonesuch", database=tmp_path / "db.sqlite")


def test_library_is_what_the_loop_uses() -> None:
    assert rule_module.library()
