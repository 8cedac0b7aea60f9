"""Pairs of models that differ in what they round, all as outputs of one model: a verdict on each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import compose, numpy_helper
from precision_pairs import DIFFERENT, EQUAL, QUANTIZED, STEP, TAILS, UINT8, WHOLE, WIDE, Pair, cast

from tensaurus.check import verify
from tensaurus.check.files.baseline import ComparisonOptions
from tensaurus.check.files.candidate_trial import CandidateTrial
from tensaurus.check.files.compared_model import ComparedModel
from tensaurus.check.files.judge import OriginalOutput
from tensaurus.check.files.rounded_meaning import adopt_unfused_results, far_from_exact
from tensaurus.check.files.run_original import run_original
from tensaurus.check.inputs.feed import KINDS
from tensaurus.check.inputs.perturbation import perturb_model
from tensaurus.system.scratch import temporary_folder


def joined(bodies: Sequence[str], kind: str) -> onnx.ModelProto:
    """One model of all bodies, with an output for each."""
    made = onnx.ModelProto()
    for place, body in enumerate(bodies):
        text = f"net ({kind}[16, 16] x) => ({kind}[16, 16] y) {{ {body} }}"
        part = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\n{text}')
        named = compose.add_prefix(part, f"p{place}_", rename_inputs=False)
        graph = named.graph
        for node in graph.node:
            for k, name in enumerate(node.input):
                weight = name.endswith(("_first", "_second"))
                node.input[k] = name.removeprefix(f"p{place}_") if weight else name
        if not place:
            made.CopyFrom(named)
            rng = np.random.default_rng(1)
            for name in ("first", "second"):
                weight = (rng.standard_normal((16, 16)) * 0.3).astype(np.float32)
                made.graph.initializer.append(numpy_helper.from_array(weight, name))
        else:
            made.graph.node.extend(graph.node)
            made.graph.output.extend(graph.output)
    return made


def verdicts(pairs: Sequence[Pair], kind: str) -> dict[str, bool]:
    """Whether the two of each pair are told to be equal."""
    with temporary_folder() as folder:
        models = [ComparedModel.read(joined([p[side] for p in pairs], kind), {}, folder) for side in (1, 2)]
        options = ComparisonOptions("onnxruntime", threads=1)
        with run_original(models[0], models[1], options, kinds=KINDS) as base:
            findings = CandidateTrial(base).judge()
    wrong = {sight.output for sight in findings if not sight.finding.passed}
    assert {sight.output for sight in findings} == {f"p{place}_y" for place in range(len(pairs))}
    return {pair.name: f"p{place}_y" not in wrong for place, pair in enumerate(pairs)}


@pytest.mark.parametrize("pairs, kind", [(DIFFERENT, "float"), (WIDE, "double"), (WHOLE, "int64")])
def test_models_that_round_otherwise_are_different(pairs: Sequence[Pair], kind: str) -> None:
    assert [name for name, equal in verdicts(pairs, kind).items() if equal] == []


def test_models_that_round_alike_are_equal() -> None:
    assert [name for name, equal in verdicts(EQUAL, "float").items() if not equal] == []


@pytest.mark.parametrize("pair", TAILS, ids=lambda pair: pair.name)
def test_what_few_inputs_tell_is_noted(pair: Pair) -> None:
    found = verify(*(joined([body], "float") for body in (pair.first, pair.second)), threads=1)
    assert not found.passed or any("tails" in note for note in found.notes)


def test_integers_of_what_is_rounded_are_those_of_the_original() -> None:
    heading = '<ir_version: 9, opset_import: ["" : 18]>\nnet (float[16, 16] x) => (uint8[16, 16] y)'
    rounded, plain = (
        onnx.parser.parse_model(f"{heading} {{ {STEP} {body} {cast(UINT8, of='k')} }}") for body in QUANTIZED
    )
    own = verify(rounded, rounded, threads=1, kinds=("random", "edges"))
    assert own.passed and any("is part of the model" in note for note in own.notes)
    assert not verify(rounded, plain, threads=1, kinds=("random", "edges")).passed
    assert not verify(plain, rounded, threads=1, kinds=("random", "edges")).passed
    assert verify(plain, plain, threads=1, kinds=("random", "edges")).passed


# ------------------------------------------------------------------------------------- rounding as a meaning


def test_one_large_number_is_no_weight() -> None:
    nodes = [onnx.helper.make_node("Add", ["x", "a"], ["y"])]
    for values in ([12582784.0], [12582784.0] * 4, [12582784.0, 5.1e6], [0.3]):
        given = numpy_helper.from_array(np.float32(values), "a")
        graph = onnx.helper.make_graph(nodes, "net", [], [], [given])
        copies = [perturb_model(onnx.helper.make_model(graph), seed) for seed in range(8)]
        moved = {numpy_helper.to_array(copy.graph.initializer[0]).tobytes() for copy in copies}
        assert (len(moved) > 1) == (len(set(values)) > 1 or values[0] < 1)


def judged(
    reference: list[float], own: list[float], rounded: list[float], moved: list[float]
) -> OriginalOutput:
    exact, mine = np.array(reference), np.array(own, np.float32)
    original = OriginalOutput(exact, mine)
    original.add_perturbed(np.array(moved, np.float32))
    adopt_unfused_results(original, mine, np.array(rounded), 24, True)
    return original


def test_what_all_computations_round_alike_is_compared_with() -> None:
    own = [0.0, 1.0, 2.0]
    original = judged([0.3, 1.4, 1.9], own, own, own)
    assert original.reference.tolist() == own
    assert original.judge(np.float32(own)).passed
    assert not original.judge(np.float32([0.3, 1.4, 1.9])).passed


def test_what_another_order_of_adding_changes_is_not() -> None:
    original = judged([1e-9, 2e-9, 1.0], [0.25, 0.5, 1.0], [-0.125, 0.0, 1.0], [0.5, 0.0, 1.0])
    assert original.reference.tolist() == [1e-9, 2e-9, 1.0]
    assert original.judge(np.float32([0.0, 0.0, 1.0])).passed


@pytest.mark.parametrize("moved, reference", [(2, 2), (1, 1)])
def test_integers_are_the_original_s_unless_copies_differ(moved: int, reference: int) -> None:
    exact, mine = np.array([1, 5], np.uint8), np.array([2, 5], np.uint8)
    original = OriginalOutput(exact, mine)
    original.add_perturbed(np.array([moved, 5], np.uint8))
    far = adopt_unfused_results(original, mine, mine, 24, True)
    assert original.reference.tolist() == [reference, 5] and (far > 0) == (moved == 2)
    assert original.judge(exact).passed == (moved == 1) and original.judge(mine).passed


def test_no_digit_is_right_though_copies_differ() -> None:
    own = [3e-8, -1e-8, 2e-8]
    original = judged([0.0, 0.0, 0.0], own, own, [1e-8, 2e-8, -3e-8])
    assert not original.judge(np.float32([0, 0, 0])).passed and original.judge(np.float32(own)).passed


def test_an_overflow_counts_on_plausible_inputs_alone() -> None:
    original = OriginalOutput(np.array([1.0, 2.0]), np.array([np.inf, 2.0], np.float32))
    assert far_from_exact(original, original.own, 24, True).tolist() == [True, False]
    assert not far_from_exact(original, original.own, 24, False).any()


def test_the_narrowest_type_that_is_computed_in_is_the_measure() -> None:
    original = OriginalOutput(np.array([1.0, 2.0]), np.array([1.01, 2.0], np.float32))
    assert far_from_exact(original, original.own, 24, True).any()
    assert not far_from_exact(original, original.own, 11, True).any()


def test_nodes_of_half_precision_round_by_themselves() -> None:
    body = "h = Cast<to = 10>(x) m = MatMul(h, w) t = Tanh(m) y = Cast<to = 1>(t)"
    text = f"net (float[4, 6] x) => (float[4, 5] y) {{ {body} }}"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\n{text}')
    weight = np.random.default_rng(2).standard_normal((6, 5)).astype(np.float16)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    assert verify(model, model, threads=1, kinds=("random", "blocks")).passed
    wrong = onnx.ModelProto()
    wrong.CopyFrom(model)
    weight[2, 2] += np.float16(0.25)
    wrong.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    assert not verify(model, wrong, threads=1, kinds=("random",)).passed


