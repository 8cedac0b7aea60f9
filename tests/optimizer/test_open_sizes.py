"""Sizes that --shape fixes stay open in the result wherever its rewrites hold at all of them."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession
from pretended_times import pretend_times
from rich.console import Console

from tensaurus.check.inputs.timing_inputs import symbol_sizes
from tensaurus.check.program.candidate import Candidate, Rewritten
from tensaurus.graph.ir.node import CONSTANT, OPAQUE, Node, apply
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.graph.onnx.size_guard import given_branch
from tensaurus.ops.eop import eop
from tensaurus.optimizer.optimize import Result, optimize
from tensaurus.optimizer.result import candidate_models
from tensaurus.optimizer.result.candidate_models import FIXED_SIZES_GAIN, MIN_GAIN
from tensaurus.optimizer.result.summary import METADATA_KEY, Summary
from tensaurus.optimizer.result.winner import propose_other_sizes
from tensaurus.optimizer.run.open_sizes import NeedsFixedSizes, _pair_nodes, open_all_sizes
from tensaurus.optimizer.run.original import format_fixed_sizes
from tensaurus.optimizer.search.prepare_program import flush_program
from tensaurus.rules.language.equation import Equation, instantiate_rule
from tensaurus.rules.language.evidence import Axiom
from tensaurus.rules.language.match import Matcher
from tensaurus.rules.language.rule import Rule, parse_rule
from tensaurus.runtimes.measure.observe import Observer
from tensaurus.runtimes.price.operator_times import OperatorCosts
from tensaurus.runtimes.price.roofline import estimate
from tensaurus.system.errors import TensaurusError
from tensaurus.system.progress import NoProgress


class Notes(NoProgress):
    """Keeps what is noted."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(autouse=True)
def times(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a busy machine measures decides no test."""
    monkeypatch.setattr(OperatorCosts, "_measure", lambda self, piece, text: estimate(piece))
    monkeypatch.setattr(Observer, "__call__", lambda self, program: None)
    pretend_times(monkeypatch, 1.0, 0.5)


def weights(*shape: int) -> np.ndarray:
    return (np.random.default_rng(sum(shape)).standard_normal(shape) * 0.2).astype(np.float32)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Sequence[int | str]],
    outputs: dict[str, Sequence[int | str]],
    **constants: object,
) -> onnx.ModelProto:
    values = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in several.items()]
        for several in (inputs, outputs)
    ]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "open", *values, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def detector() -> onnx.ModelProto:
    """What exporters write: a layer, an affine map, and a reshape by sizes that the graph computes."""
    make = helper.make_node
    nodes = [
        make("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        make("Mul", ["scale", "a"], ["b"]),
        make("Identity", ["b"], ["c"]),
        make("Relu", ["c"], ["d"]),
        make("Shape", ["d"], ["s"]),
        make("Gather", ["s", "first"], ["batch"]),
        make("Concat", ["batch", "tail"], ["to"], axis=0),
        make("Reshape", ["d", "to"], ["e"]),
        make("Transpose", ["e"], ["f"], perm=[0, 2, 1]),
        make("Transpose", ["f"], ["g"], perm=[0, 2, 1]),
        make("Reshape", ["g", "flat"], ["h"]),
        make("Add", ["h", "shift"], ["y"]),
    ]
    return model_of(
        nodes,
        {"x": ["N", 3, "H", "W"], "shift": ["N", 1]},
        {"y": ["N", "M"]},
        w=weights(8, 3, 3, 3),
        scale=np.float32(1.5),
        first=np.array([0]),
        tail=np.array([8, -1]),
        flat=np.array([0, -1]),
    )


def run(model: onnx.ModelProto, tmp_path: Path, **options: object) -> Result:
    given = {"steps": 6, "nodes": 200, "threads": 1, "database": tmp_path / "db.sqlite", **options}
    return optimize(model, **given)  # type: ignore[arg-type]


def dims(value: onnx.ValueInfoProto) -> list[int | str]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


SIZES = {"x": (1, 3, 8, 12), "shift": (1, 1)}


def test_sizes_stay_open_where_nothing_needs_them_fixed(tmp_path: Path) -> None:
    model = detector()
    result = run(model, tmp_path, shapes=SIZES)
    assert result.rewrites and len(result.model.graph.node) < len(model.graph.node)
    assert result.model.graph.input == model.graph.input and result.model.graph.output == model.graph.output
    assert result.summary.runs_only == "" and "equal, too, at x=" in result.summary.equivalence.detail
    rng = np.random.default_rng(1)
    ours, theirs = (InferenceSession(m.SerializeToString()) for m in (result.model, model))
    for n, h, w in ((1, 8, 12), (2, 5, 7), (3, 1, 1), (1, 640, 2)):
        feeds = {"x": rng.standard_normal((n, 3, h, w), np.float32), "shift": np.ones((n, 1), np.float32)}
        np.testing.assert_allclose(ours.run(None, feeds)[0], theirs.run(None, feeds)[0], atol=1e-5)


def test_sizes_of_other_inputs_stay_open_too(tmp_path: Path) -> None:
    """Only one input's sizes are given; the names that it shares with another are fixed with it."""
    program = import_model(detector(), {"x": (1, 3, 8, 12)})
    assert format_fixed_sizes(detector(), program) == "x=1,3,8,12 shift=1,1"
    make = helper.make_node
    nodes = [make("Identity", ["x"], ["i"]), make("Relu", ["i"], ["y"]), make("Neg", ["u"], ["v"])]
    two = model_of(nodes, {"x": ["A", 4], "u": ["B", "C"]}, {"y": ["A", 4], "v": ["B", "C"]})
    assert format_fixed_sizes(two, import_model(two, {"x": (2, 4)})) == "x=2,4"
    result = run(two, tmp_path, shapes={"x": (2, 4)})
    assert [dims(value) for value in result.model.graph.input] == [["A", 4], ["B", "C"]]
    assert result.rewrites and not result.summary.runs_only


def rewritten(line: str, fixed: Program, at: Node) -> tuple[Candidate, Rule]:
    """The program after one rule at one node."""
    (rule,) = parse_rule(line)
    matcher = Matcher(rule)
    (binding,) = matcher.match_roots((at,))
    made = matcher.apply((at,), binding)
    assert made is not None
    equation = instantiate_rule(rule, binding, (at,), made)
    step = Rewritten(lambda: (equation,), Candidate(fixed, 1.0))
    return Candidate(fixed.replace_nodes({at: made[0]}), 1.0, step), rule


def layer(shape: Sequence[int | str], op: str, **attrs: object) -> onnx.ModelProto:
    return model_of([helper.make_node(op, ["x"], ["y"], **attrs)], {"x": shape}, {"y": [None] * len(shape)})


@pytest.mark.parametrize(
    ("line", "open_to_all"),
    [
        ("plain: Relu(x) => Max(x, 0)", True),
        ("of-its-rank: Relu(x) => Max(x, 0) where rank(x) == 2", True),
        ("of-its-columns: Relu(x) => Max(x, 0) where dim(x, 1) == 4", True),
        ("by-size: Relu(x) => Max(x, 0) where dim(x, 0) <= 8", False),
        ("by-one-size: Relu(x) => Max(x, 0) where dim(x, 0) == 6", False),
        ("in-numbers: Relu(x) => Max(x, 0) where numel(x) == 24", False),
    ],
)
def test_a_rule_is_asked_again_at_sizes_that_are_open(line: str, open_to_all: bool) -> None:
    model = layer(["N", 4], "Relu")
    fixed, general = import_model(model, {"x": (6, 4)}), import_model(model)
    candidate, rule = rewritten(line, fixed, fixed.roots[0])
    if open_to_all:
        assert open_all_sizes(candidate, general, [rule]).roots[0].types == general.roots[0].types
    else:
        with pytest.raises(NeedsFixedSizes, match="only for the given sizes"):
            open_all_sizes(candidate, general, [rule])


def test_what_is_equal_at_these_sizes_alone_is_not_opened() -> None:
    """A mean over a window of the whole image, and a slice that takes all of it."""
    pool = layer(["N", 2, "H", "W"], "AveragePool", kernel_shape=[5, 5])
    fixed, general = import_model(pool, {"x": (1, 2, 5, 5)}), import_model(pool)
    line = "whole: AveragePool(x, kernel_shape=(5, 5)) => GlobalAveragePool(x)"
    candidate, rule = rewritten(line, fixed, fixed.roots[0])
    with pytest.raises(NeedsFixedSizes):
        open_all_sizes(candidate, general, [rule])


def test_a_kernel_is_named_as_what_needs_the_sizes() -> None:
    """The rewrites that read its output fail as well, and may come first."""
    model = layer(["N", 4], "Relu")
    fixed, general = import_model(model, {"x": (6, 4)}), import_model(model)
    (relu,) = fixed.roots
    kernel = apply(eop, relu.args, {"scope": "L[i:6, j:4](max(x0[i, j], 0))"})
    above = Equation("above", "law", (apply(relu.op, [kernel]),), (kernel,), fixed.inputs, Axiom())
    fused = Equation("fused", "law", (relu,), (kernel,), fixed.inputs, Axiom())
    start = Candidate(fixed, 1.0)
    step = Rewritten(lambda: (above, fused), start)
    candidate = Candidate(fixed.with_outputs([kernel]), 1.0, step)
    with pytest.raises(NeedsFixedSizes, match="generated kernels compute only the given sizes"):
        open_all_sizes(candidate, general, [])


def test_a_program_that_does_not_follow_is_not_opened() -> None:
    model = layer(["N", 4], "Relu")
    fixed, general = import_model(model, {"x": (6, 4)}), import_model(model)
    candidate, rule = rewritten("plain: Relu(x) => Max(x, 0)", fixed, fixed.roots[0])
    other = import_model(layer(["N", 4], "Abs"), {"x": (6, 4)})
    with pytest.raises(NeedsFixedSizes, match="do not prove it for all sizes"):
        open_all_sizes(Candidate(other, 1.0, candidate.step), general, [rule])


def test_an_unknown_rewrite_is_not_opened() -> None:
    model = layer(["N", 4], "Relu")
    fixed, general = import_model(model, {"x": (6, 4)}), import_model(model)
    candidate, _ = rewritten("wrong: Relu(x) => Max(x, 1)", fixed, fixed.roots[0])
    with pytest.raises(NeedsFixedSizes, match="wrong is proved only for the given sizes"):
        open_all_sizes(candidate, general, [])


def closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> Program:
        raise NeedsFixedSizes("a kernel is for known sizes")

    monkeypatch.setattr("tensaurus.optimizer.result.candidate_models.open_all_sizes", refused)


def unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no model choose between sizes when it runs."""

    def refused(*_: object) -> onnx.ModelProto:
        raise TensaurusError("needs opset 9, the model has 8")

    monkeypatch.setattr("tensaurus.optimizer.run.optimization_run.guard_sizes", refused)


def test_a_result_for_given_sizes_runs_the_original_at_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    closed(monkeypatch)
    model, said = detector(), Notes()
    result = run(model, tmp_path, shapes=SIZES, progress=said)
    assert result.rewrites and result.summary.fast_at == "x=1,3,8,12 shift=1,1"
    assert not result.summary.runs_only and result.model.graph.input == model.graph.input
    assert "equal, too, at x=" in result.summary.equivalence.detail  # other sizes were compared
    console = Console(record=True, width=200, file=StringIO())
    console.print(result.summary.render())
    assert "made for x=1,3,8,12 shift=1,1; other sizes run" in console.export_text()
    assert not any("would accept only" in text for text in said.notes)
    (choice,) = (node for node in result.model.graph.node if node.op_type == "If")
    branches = {attribute.name: attribute.g for attribute in choice.attribute}
    assert given_branch(result.model) == branches["then_branch"] and given_branch(model) is None
    operators = [node.op_type for node in model.graph.node]
    assert [node.op_type for node in branches["else_branch"].node] == operators
    assert [node.op_type for node in branches["then_branch"].node] != operators
    for shape in (SIZES["x"], (2, 3, 4, 6)):
        feeds = {"x": np.ones(shape, np.float32), "shift": np.ones((shape[0], 1), np.float32)}
        (found,), (wanted,) = (
            InferenceSession(m.SerializeToString()).run(None, feeds) for m in (result.model, model)
        )
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_what_holds_at_all_sizes_runs_at_other_sizes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The fastest program needs the given sizes; another one does not, and is fast, too."""
    opened: list[Candidate] = []

    def open_all_but_the_first(candidate: Candidate, model: Program, rules: Sequence[Rule]) -> Program:
        opened.append(candidate)
        if len(opened) == 1:
            raise NeedsFixedSizes("a kernel is for known sizes")
        return open_all_sizes(candidate, model, rules)

    monkeypatch.setattr(
        "tensaurus.optimizer.result.candidate_models.open_all_sizes", open_all_but_the_first
    )
    times = [1.0, 0.5, 0.6, *[0.9] * 9]
    monkeypatch.setattr(candidate_models, "time_models", lambda entries, *_, **__: times[: len(entries)])
    model = detector()
    result = run(model, tmp_path, shapes=SIZES)
    assert len(opened) > 1 and result.summary.fast_at == "x=1,3,8,12 shift=1,1"
    (choice,) = (node for node in result.model.graph.node if node.op_type == "If")
    branches = {attribute.name: attribute.g for attribute in choice.attribute}
    operators = [node.op_type for node in model.graph.node]
    assert [node.op_type for node in branches["else_branch"].node] != operators
    assert set(result.evidence) >= {equation.name for equation in opened[1].applied}


def test_sizes_that_are_not_given_are_assumed(tmp_path: Path) -> None:
    """So that kernels can be made for them; rewrites that hold at all sizes leave all sizes open."""
    said, model = Notes(), detector()
    result = run(model, tmp_path, progress=said)
    assert result.rewrites and not result.summary.runs_only
    assert result.model.graph.input == model.graph.input
    (note,) = (text for text in said.notes if "not all input sizes were given" in text)
    assert "optimized for x=1,3,32,32" in note and "use --shape" in note


def test_sizes_of_given_inputs_are_those_to_optimize_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    closed(monkeypatch)
    feeds = {name: np.ones(shape, np.float32) for name, shape in SIZES.items()}
    said, model = Notes(), detector()
    result = run(model, tmp_path, inputs=feeds, progress=said)
    assert result.summary.fast_at == "x=1,3,8,12 shift=1,1"
    assert not any("use --shape" in text for text in said.notes)


def test_a_result_that_loses_sizes_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    closed(monkeypatch)
    unguarded(monkeypatch)
    said = Notes()
    result = run(detector(), tmp_path, shapes=SIZES, progress=said)
    assert result.rewrites and result.summary.runs_only == "x=1,3,8,12 shift=1,1"
    assert dims(result.model.graph.input[0]) == [1, 3, 8, 12]
    (entry,) = (e for e in result.model.metadata_props if e.key == METADATA_KEY)
    assert Summary.from_json(entry.value).runs_only == "x=1,3,8,12 shift=1,1"
    words = "only the sizes x=1,3,8,12 shift=1,1 (a kernel is for known sizes)"
    assert sum(words in text for text in said.notes) == 1  # however many programs there are


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("stated", [[1, "Q"], [7, 4, "Q"], [-1, 4, "Q"]], ids=["rank", "size", "open"])
def test_what_a_model_states_wrongly_of_an_output_stays(
    stated: list[int | str], guarded: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Runtimes ignore it, so that a result with the true shape would not have the interface of the model."""
    closed(monkeypatch)
    if not guarded:
        unguarded(monkeypatch)
    nodes = [helper.make_node("Mul", ["x", "one"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    model = model_of(nodes, {"x": ["N", 4, "W"]}, {"y": stated}, one=np.float32(1))
    result = run(model, tmp_path, shapes={"x": (2, 4, 3)})
    assert result.rewrites and result.summary.fast_at + result.summary.runs_only == "x=2,4,3"
    assert bool(result.summary.fast_at) is guarded
    kept = [2, 4, 3] if stated[0] == -1 else [7, 4, 3] if len(stated) == 3 else stated
    assert dims(result.model.graph.output[0]) == (dims(model.graph.output[0]) if guarded else kept)


@pytest.mark.parametrize("gain", [(MIN_GAIN + FIXED_SIZES_GAIN) / 2, 2 * FIXED_SIZES_GAIN])
def test_the_gain_pays_for_lost_sizes(gain: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where it does not, the model stays as it is, with its sizes open."""
    pretend_times(monkeypatch, 1.0 + gain, 1.0)
    closed(monkeypatch)
    unguarded(monkeypatch)
    result = run(detector(), tmp_path, shapes=SIZES)
    assert bool(result.rewrites) is (gain > FIXED_SIZES_GAIN)
    if not result.rewrites:
        assert dims(result.model.graph.input[0]) == ["N", 3, "H", "W"] and not result.summary.runs_only


def test_other_sizes_are_those_of_all_inputs() -> None:
    model = detector()
    general = import_model(model)
    feeds = {name: np.zeros(shape, np.float32) for name, shape in SIZES.items()}
    shapes = list(propose_other_sizes(general, symbol_sizes(general, feeds)))
    assert shapes[0] == {"x": (2, 3, 4, 6), "shift": (2, 1)} and len(shapes) == 4
    assert all(made["x"][0] == made["shift"][0] and made != SIZES for made in shapes)
    batch = import_model(layer(["N", 4], "Relu"))
    found = list(propose_other_sizes(batch, symbol_sizes(batch, {"x": np.zeros((1, 4), np.float32)})))
    assert found == [{"x": (2, 4)}, {"x": (3, 4)}]  # each once


def test_a_model_without_open_sizes_loses_none(tmp_path: Path) -> None:
    make = helper.make_node
    nodes = [make("Identity", ["x"], ["i"]), make("Relu", ["i"], ["y"])]
    model = model_of(nodes, {"x": [2, 3]}, {"y": [2, 3]})
    result = run(model, tmp_path, shapes={"x": (2, 3)})
    assert result.rewrites and not result.summary.runs_only


def test_a_result_that_differs_at_other_sizes_is_thrown_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make = helper.make_node
    nodes = [make("Identity", ["x"], ["i"]), make("Relu", ["i"], ["y"])]
    model = model_of(nodes, {"x": ["N", 4]}, {"y": ["N", 4]})
    nodes = [
        make("Relu", ["x"], ["r"]),
        make("Shape", ["x"], ["s"], end=1),
        make("Equal", ["s", "six"], ["is"]),
        make("Where", ["is", "one", "two"], ["by"]),
        make("Mul", ["r", "by"], ["y"]),
    ]
    numbers = {"six": np.array([6]), "one": np.float32([1]), "two": np.float32([2])}
    wrong = import_model(model_of(nodes, {"x": ["N", 4]}, {"y": ["N", 4]}, **numbers))
    monkeypatch.setattr("tensaurus.optimizer.result.candidate_models.open_all_sizes", lambda *_: wrong)
    said = Notes()
    result = run(model, tmp_path, shapes={"x": (6, 4)}, progress=said)
    assert not result.rewrites and dims(result.model.graph.input[0]) == ["N", 4]
    assert any("dropped a faster program: at x=3,4" in text for text in said.notes)


def test_flushed_constants_are_flushed_at_all_sizes(tmp_path: Path) -> None:
    """The bound of what subnormal weights move does not need the sizes."""
    make = helper.make_node
    w = weights(8, 3, 3, 3)
    w[0] = 1e-40
    nodes = [make("Conv", ["x", "w", "b"], ["a"], pads=[1] * 4), make("Relu", ["a"], ["y"])]
    model = model_of(
        nodes, {"x": ["N", 3, "H", "W"]}, {"y": ["N", 8, "H", "W"]}, w=w, b=np.ones(8, np.float32)
    )
    result = run(model, tmp_path, shapes={"x": (1, 3, 8, 8)})
    assert "subnormal-constants" in result.evidence and not result.summary.runs_only
    assert result.model.graph.input == model.graph.input


def test_constants_are_flushed_beside_what_is_typed_at_known_sizes_alone() -> None:
    """Halved and doubled again, rows are as many as before only where they are even: the sum is opaque."""
    make = helper.make_node
    w = weights(3, 3, 3, 3)
    w[0] = 1e-40
    nodes = [
        make("Conv", ["x", "w", "b"], ["a"], pads=[1] * 4, strides=[2, 2]),
        make("Resize", ["a", "", "scales"], ["c"], mode="nearest"),
        make("Add", ["x", "c"], ["y"]),
    ]
    scales, b = np.float32([1, 1, 2, 2]), np.ones(3, np.float32)
    model = model_of(nodes, {"x": ["N", 3, "H", "W"]}, {"y": ["N", 3, "H", "W"]}, w=w, b=b, scales=scales)
    fixed, general = import_model(model, {"x": (1, 3, 8, 8)}), import_model(model)
    assert general.roots[0].op is OPAQUE and fixed.roots[0].op is not OPAQUE
    candidate = flush_program(fixed)
    assert [equation.name for equation in candidate.applied] == ["subnormal-constants"]
    made = open_all_sizes(candidate, general, [])
    constants = [node.attribute("data").array for node in made.nodes if node.op is CONSTANT]
    assert made.inputs == general.inputs and made.roots != general.roots
    assert not any(((array != 0) & (abs(array) < 1e-37)).any() for array in constants)


def test_a_thousand_nodes_in_a_row_are_opened() -> None:
    names = ["x", *(f"v{k}" for k in range(1500)), "y"]
    nodes = [
        helper.make_node("Relu" if a == "x" else "Sigmoid", [a], [b])
        for a, b in zip(names, names[1:], strict=False)
    ]
    model = model_of(nodes, {"x": ["N", 4]}, {"y": ["N", 4]})
    fixed, general = import_model(model, {"x": (6, 4)}), import_model(model)
    first = next(node for node in fixed.nodes if str(node.op) == "Relu")
    candidate, rule = rewritten("plain: Relu(x) => Max(x, 0)", fixed, first)
    assert open_all_sizes(candidate, general, [rule]).roots[0].types == general.roots[0].types
    known = dict(zip(fixed.inputs, general.inputs, strict=True))
    assert _pair_nodes(fixed.roots[0], general.roots[0], known) and known[fixed.roots[0]] is general.roots[0]
