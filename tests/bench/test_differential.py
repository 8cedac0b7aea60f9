"""Random small models, every rule wherever it matches: nothing else comes out than the runtime computes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from sketches import Undrawn

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.finder_protocol import Proposal
from tensaurus.expr.ir.scope import call
from tensaurus.expr.sizes.open_questions import CacheByAnswers
from tensaurus.graph.ir.node import source
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.onnx_export import export_model
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.ops import TensorType, registry
from tensaurus.ops.elementwise import broadcast
from tensaurus.rules.language import evidence
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.rule import parse_rule

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="limits of memory and time are read from /proc"
)


def test_forty_models() -> None:
    from differential import differential, table

    reports = list(differential(3, range(40)))
    wrong = [(r.number, f.of, f.detail) for r in reports for f in r.findings if f.verdict == "wrong"]
    assert wrong == []
    assert sum(r.programs for r in reports) >= 60
    assert sum(r.verdict == "right" for r in reports) >= 20
    assert "| all | 40 |" in table(reports, 3)
    beside = differential(3, range(8), lanes=2)
    assert [(r.number, r.origin, r.programs) for r in beside] == [
        (r.number, r.origin, r.programs) for r in reports[:8]
    ]


@pytest.mark.parametrize("kind", ["precision", "integers", "branches"])
def test_models_of_one_kind(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import differential

    drawer = differential.SHARES[kind][1]
    monkeypatch.setattr(differential, "SHARES", {kind: (1.0, drawer)})
    reports = list(differential.differential(5, range(12)))
    assert {r.origin for r in reports} == {kind}
    assert [(r.number, f.of, f.detail) for r in reports for f in r.findings if f.verdict == "wrong"] == []
    assert sum(r.programs for r in reports) >= 12
    counted = differential.table(reports, 5).split(f"| {differential.TITLES[kind]}, ")[1:]
    assert sum(int(cells.split(" | ")[1]) for cells in counted) == 12


def test_an_allowed_error_is_no_smaller_behind_a_relu() -> None:
    from differential_way import Answer, moved
    from small_programs import node

    from tensaurus.graph.ir.node import constant

    x = source("x", TensorType("float32", (4096,)))
    large = constant(np.array(8388608.0, np.float32))
    lost = node("Sub", x, node("Sub", node("Add", x, large), large))
    program = Program((x,), (("y", node("Relu", lost)),))
    feeds = {"x": np.linspace(-1, 1, 4096, dtype=np.float32)}
    exact = moved(program, feeds, np.random.default_rng(), 0.0)
    allowed = Answer(exact, program, feeds, 0.0, 1.0, True).allowed("y", 2.0**-23)
    assert (allowed > 0.5).all()


@pytest.mark.parametrize("seed", range(4))
def test_what_float32_makes_of_an_unstable_model_is_right(seed: int) -> None:
    """The largest of many x - round(x), and an index that float32 rounds to 1."""
    import onnxruntime as ort
    from differential_verdict import _Expected
    from differential_way import answer

    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 15]>
        net (float[2,3000] x, float[2] i, float[2] v) => (float[2,3000] y, float[2,4] z)
        <float large = {12582912}, float depth = {4}>
        { a = Add (x, large) b = Sub (a, large) c = Sub (x, b) d = Tanh (c) y = Hardmax (d)
          s = Sigmoid (i) z = OneHot (s, depth, v) }"""
    )
    rng = np.random.default_rng(seed)
    feeds = {"x": rng.standard_normal((2, 3000)), "i": np.array([0.1, 24 + seed]), "v": np.array([1, 5])}
    feeds = {name: value.astype(np.float32) for name, value in feeds.items()}
    program = import_model(model)
    found = ort.InferenceSession(model.SerializeToString()).run(None, feeds)
    case: Any = SimpleNamespace(program=program, strange=False, rounding=2.0**-23, holds=lambda _: True)
    outputs = [(name, node.tensor) for name, node in program.outputs]
    expected = _Expected(case, outputs, answer(model, program, feeds), found)
    assert expected.answer and not np.allclose(expected.answer.outputs["y"], found[0])
    assert expected.error(found) == ""
    assert expected.error([1 - found[0], found[1]]) != ""
    assert expected.error([found[0], found[1] + 1]) != ""


def test_a_model_is_made_of_its_seed_and_number_alone(tmp_path: Path) -> None:
    from differential import Lane

    def models(seed: int) -> list[bytes]:
        lane = Lane(tmp_path, seed)
        return [case.model for number in range(6) for case in lane.drawn(number)]

    assert models(0) == models(0)
    assert models(0) != models(1)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A library of one wrong rule."""
    import differential_way

    def plant(line: str) -> None:
        monkeypatch.setattr(differential_way, "library", lambda: parse_rule(line))
        for cached in (differential_way.matchers, differential_way.by_head, differential_way.expand):
            cached.cache_clear()

    yield plant
    monkeypatch.undo()
    for cached in (differential_way.matchers, differential_way.by_head, differential_way.expand):
        cached.cache_clear()


@pytest.mark.parametrize(
    "line",
    [
        "bad: LeakyRelu(LeakyRelu(x, alpha=a), alpha=b) => LeakyRelu(x, alpha=a*b)",
        "bad: Transpose(x, perm=p) => Transpose(x, perm=tuple(index(p, d) for d in range(len(p))))",
        "bad: AveragePool(Add(x, t), **a) => Add(AveragePool(x, **a), t) where const(t), numel(t) == 1",
        "bad: Div(x, y) => x",
    ],
)
def test_a_wrong_rule_is_found(planted: Any, line: str) -> None:
    from differential import differential

    planted(line)
    reports = differential(0, range(1, 120, 2))
    assert any(f.verdict == "wrong" and f.of == ("bad",) for r in reports for f in r.findings)


def test_a_wrong_operator_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    import differential
    from differential import Lane

    op = registry["Floor"]
    monkeypatch.setattr(op, "declare", lambda x: broadcast(lambda v: call("ceil", v), x))
    monkeypatch.setattr(op, "_scopes", CacheByAnswers(64))
    monkeypatch.setattr(differential, "declared", lambda opset: (op,))
    reports = differential.differential(0, range(0, 20, 2))
    assert any(f.verdict == "wrong" and not f.of for r in reports for f in r.findings)
    assert Lane is differential.Lane


def test_functions_of_narrow_types_have_a_second_reference() -> None:
    """A variance of one element is 0, or NaN where a runtime rounds E[x * x] - E[x] * E[x]."""
    from differential_verdict import _third

    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 15]>
        norm (float16[1,2,1] x) => (float16[1,2,1] y) { y = MeanVarianceNormalization <axes = [0, 2]> (x) }"""
    )
    feeds = {"x": np.array([[[1.782], [0.772]]], np.float16)}
    found = _third(model.SerializeToString(), feeds, "y")
    assert found is not None and found.dtype == np.float16 and not found.any()


@pytest.mark.parametrize(("strange", "told"), [(True, True), (False, False)])
def test_sums_that_slide_over_infinity_are_told(strange: bool, told: bool) -> None:
    """onnxruntime's LRN subtracts what left its window: behind an infinity everything is NaN."""
    import onnxruntime as ort
    from differential_verdict import _Expected

    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 15]>
        net (float[1,3,1,1] x) => (float[1,3,1,1] y) { y = LRN <size = 1> (x) }"""
    )
    x = np.array([np.inf, 2, 3], np.float32).reshape(1, 3, 1, 1)
    (found,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    assert np.isnan(found).all()
    right = np.array([np.nan, 2, 3]).reshape(x.shape)
    case: Any = SimpleNamespace(program=import_model(model), strange=strange)
    answer: Any = SimpleNamespace(outputs={"y": right})
    expected = _Expected(case, [("y", TensorType("float32", x.shape))], answer, [found])
    assert expected.hides_subtraction([[found]]) == told
    assert not expected.hides_subtraction([[np.where(np.isnan(found), np.float32(7), found)]])


@pytest.mark.parametrize(("answer", "verdict"), [(None, "runtime"), ("known", "wrong")])
def test_a_rewrite_that_fails_where_the_model_has_no_meaning(answer: Any, verdict: str) -> None:
    """onnxruntime broadcasts PRelu's input to a longer slope, against ONNX, unless memory is shared."""
    from differential_verdict import _Expected, _variant
    from differential_way import Variant

    case: Any = SimpleNamespace(feeds=[{}, {"x": np.zeros((1, 2), np.float32)}])
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 15]>
        net (float[N, M] x) => (float[N, M] y) { y = Abs (x) }"""
    )
    variant = Variant(("law",), import_model(model), content=model.SerializeToString())
    expected = _Expected(case, [], answer, [])
    (found,) = _variant(case, variant, ["fails", "fails"], expected, None, 1)
    assert found.verdict == verdict


def test_a_fault_of_the_runtime_is_its_fault_at_other_sizes_too() -> None:
    from differential_verdict import Finding, _agreed

    runtime = Finding("runtime", (), "y is 0, not 1")
    same = Finding("wrong", (), "at x[2], z[3, 1]: y is 0, not 1")
    others = [replace(same, detail="at x[2]: y is 2, not 1"), replace(same, of=("law",))]
    assert [f.verdict for f in _agreed([runtime, same, *others])] == ["runtime", "runtime", "wrong", "wrong"]


def test_what_ends_the_runtime_is_told(tmp_path: Path) -> None:
    from differential import Lane

    def model(text: str) -> bytes:
        return bytes(
            onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>{text}').SerializeToString()
        )

    good = model("net (int32[1] x) => (int32[1] y) { y = Neg (x) }")
    bad = model("net (int32[1] x) => (int32[1] y) <int32 least = {-2147483648}> { y = Div (least, x) }")
    lane = Lane(tmp_path, 0)
    try:
        feeds = [{"x": np.array([n], np.int32)} for n in (-1, 2)]
        found, ended = lane.results([good, bad], feeds)
        assert found[0][0][0] == 1 and found[1][1][0] == -2
        assert ended[0][0].startswith("crash") and ended[0][1][0] == -(2**30)
    finally:
        lane.close()


def test_long_windows_far_apart_are_drawn() -> None:
    from sketches.operators import _window

    drawn = [_window(np.random.default_rng(n), transposed=bool(n % 2)) for n in range(800)]
    long = [w for w in drawn if w.kernel[-1] > 16]
    assert 0.05 < len(long) / len(drawn) < 0.2
    for least in (256, 64):
        assert any(w.kernel[-1] > least for w in long)
    given = [(w.attributes["strides"], w.attributes["dilations"]) for w in long]
    assert any(s and s[-1] >= 64 for s, _ in given) and any(d and d[-1] > 1 for _, d in given)
    assert all(s and s[-1] <= 128 for s, _ in given)


def test_sizes_beyond_400_are_drawn(tmp_path: Path) -> None:
    from differential import Lane

    lane = Lane(tmp_path, 0)
    found = [next(lane.drawn(number)) for number in range(90)]
    large = [case for case in found if case.large]
    assert 0.05 < len(large) / len(found) < 0.4
    assert {case.sketch.dynamic for case in large} == {False, True}
    assert any(case.sketch.origin == "operators" for case in large)
    assert max(v.size for case in found for feed in case.feeds for v in feed.values()) <= 100_000


@pytest.mark.nightly(every=2)
@pytest.mark.parametrize("even", [False, True])
def test_a_rule_that_is_wrong_from_401_on_is_found(planted: Any, even: bool) -> None:
    from differential import differential

    planted("bad: Relu(x) => LeakyRelu(x, alpha=0 if numel(x) <= 400 else 1)")
    reports = list(differential(0, range(int(not even), 160, 2)))
    wrong = [r for r in reports if any(f.verdict == "wrong" and f.of == ("bad",) for f in r.findings)]
    assert bool(wrong) == (not even) and all(r.large for r in wrong)


def test_integers_are_drawn_around_constants_and_everywhere() -> None:
    from sketches import of_integers

    around = between = far = 0
    types = set[str]()
    for number in range(200):
        try:
            sketch = of_integers(18, np.random.default_rng(number))
        except Undrawn:
            continue
        (value, *_), held = sketch.inputs.values(), [c for c in sketch.constants.values() if c.dtype != bool]
        types.add(str(value.dtype))
        constants = {int(n) for c in held for n in c.reshape(-1)}
        given = {int(n) for n in value.reshape(-1)}
        around += any(abs(n - c) <= 2 for n in given for c in constants)
        between += any(min(constants) + 2 < n < max(constants) - 2 for n in given if len(constants) > 1)
        far += any(abs(n) > np.iinfo(value.dtype).max // 2 for n in given)
    assert len(types) == 8 and min(around, between, far) > 40


def test_models_branch_on_both_sides_of_thresholds_of_every_magnitude(tmp_path: Path) -> None:
    from differential_way import case
    from sketches import of_branches

    digits, operators, sides = set[int](), set[str](), set[int]()
    for number in range(60):
        rng = np.random.default_rng(number)
        sketch = of_branches(18, rng)
        (threshold,) = sketch.near
        digits.add(len(str(threshold)))
        operators |= {node.op_type for node in sketch.nodes}
        feeds = case(sketch, rng).feeds
        sizes = {n for feed in feeds for n in next(iter(feed.values())).shape}
        sides |= {n - threshold for n in sizes}
    assert digits == {1, 2, 3, 4}
    assert {"Shape", "If", "Where", "Slice", "Less", "Greater"} <= operators
    assert {-1, 0, 1} <= sides


def test_a_finder_that_is_wrong_or_silent_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    import differential_finders
    from differential_finders import proposed
    from small_programs import node

    x = source("x", TensorType("float32", (2, 3)))
    program = Program((x,), (("y", node("Neg", x)),))

    def knows(graph: EGraph, max_new_enodes: int) -> Iterator[Proposal]:
        left, right = ((node(name, x),) for name in ("Neg", "Abs"))
        wrong = Equation("planted", "law", left, right, (x,), evidence.Tested("gf", ""))
        yield Proposal(wrong, (graph.insert_term(x),))

    def hangs(graph: EGraph, max_new_enodes: int) -> Iterator[Proposal]:
        while True:
            pass

    assert all(not proposed(program, turn) for turn in range(len(differential_finders.FINDERS)))
    monkeypatch.setattr(differential_finders, "SECONDS", 0.2)
    monkeypatch.setattr(differential_finders, "FINDERS", (lambda: knows, lambda: hangs))
    (wrong,), (silent,) = proposed(program, 0), proposed(program, 1)
    assert wrong.verdict == silent.verdict == "wrong"
    assert "planted" in wrong.of and "hang" in silent.detail


@pytest.mark.parametrize(
    ("rule", "operator"),
    [
        ("depth-as-reshapes", "SpaceToDepth <blocksize = 1> (x)"),
        ("space-as-reshapes", "DepthToSpace <blocksize = 2> (x)"),
        ("columns-as-reshapes", 'DepthToSpace <blocksize = 2, mode = "CRD"> (x)'),
    ],
)
def test_an_open_size_of_0_is_not_read_as_a_copied_one(rule: str, operator: str) -> None:
    """A Reshape with allowzero=0 copies the size of its input where a size that it computes is 0."""
    import onnxruntime as ort
    from differential_way import expand, rewritten

    header = 'ir_version: 8, opset_import: ["": 20]'
    graph = f"net (float[N, 4, H, W] x) => (float[a, b, c, d] y) {{ y = {operator} }}"
    model = onnx.parser.parse_model(f"<{header}> {graph}")
    program = import_model(model)
    (made,) = [v for v in rewritten(program, rule, np.random.default_rng(0)) if rule in v.rules]
    written = export_model(made.program, expand=expand())
    assert any(node.op_type == "Reshape" for node in written.graph.node)
    for shape in ((2, 4, 4, 6), (0, 4, 4, 6), (2, 4, 0, 6), (2, 4, 4, 0)):
        feeds = {"x": np.ones(shape, np.float32)}
        sessions = [ort.InferenceSession(m.SerializeToString()) for m in (model, written)]
        expected, found = (session.run(None, feeds)[0].shape for session in sessions)
        assert found == expected, shape
