"""verify and check_field: every wrong edit of a small network fails, every right one passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tensaurus.check import Verdict, check_field, interface_differences, verify
from tensaurus.check.files.judge import OriginalOutput
from tensaurus.check.files.typical_errors import MIN_GROUP_SIZE, typical_errors
from tensaurus.check.inputs.draw_inputs import draw_feed
from tensaurus.check.inputs.feed import KINDS, InputValues
from tensaurus.check.inputs.perturbation import perturb_array, perturb_model
from tensaurus.check.inputs.try_shapes import shape_assignments
from tensaurus.expr.evaluate.two_point_field import Laws, PrimeFieldPairs, unpack_halves
from tensaurus.graph.analysis.program_degree import bound_degree
from tensaurus.graph.onnx.onnx_export import export_model
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.graph.onnx.weight_files import WeightFiles
from tensaurus.system.errors import TensaurusError

FEW = ("random", "blocks", "zeros")


def parsed(text: str, opset: int = 17, **weights: np.ndarray) -> ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')
    model.graph.initializer.extend(numpy_helper.from_array(w, name) for name, w in weights.items())
    return model


def check(a: str, b: str, **options: Any) -> Any:
    shapes = options.pop("weights", {})
    programs = [import_model(parsed(text, **shapes)) for text in (a, b)]
    return check_field(*programs, **options)


# ------------------------------------------------------------------------------ a network and its edits


def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    made = {
        "w1": rng.standard_normal((8, 3, 3, 3)) * 0.3,
        "b1": rng.standard_normal(8) * 0.2,
        "gamma": rng.uniform(0.5, 1.5, 8),
        "beta": rng.standard_normal(8) * 0.2,
        "mean": rng.standard_normal(8) * 0.2,
        "var": rng.uniform(0.5, 1.5, 8),
        "w2": rng.standard_normal((8, 8, 3, 3)) * 0.15,
        "b2": rng.standard_normal(8) * 0.2,
        "wd": rng.standard_normal((8, 1, 3, 3)) * 0.4,
        "fc": rng.standard_normal((8, 5)) * 0.4,
    }
    return {name: value.astype(np.float32) for name, value in made.items()}


BODY = {
    "pad": "p = Pad (x, pads, zero)",
    "conv1": "c1 = Conv (p, w1, b1)",
    "norm": "n1 = BatchNormalization (c1, gamma, beta, mean, var)",
    "relu1": "r1 = Relu (n1)",
    "conv2": "c2 = Conv <pads = [1,1,1,1]> (r1, w2, b2)",
    "relu2": "r2 = Relu (c2)",
    "sum": "s = Add (r2, r1)",
    "depth": "d = Conv <pads = [1,1,1,1], group = 8> (s, wd)",
    "pool": "g = GlobalAveragePool (d)",
    "flat": "f = Flatten (g)",
    "head": "h = MatMul (f, fc)",
    "soft": "y = Softmax (h)",
    "map": "z = Sigmoid (d)",
}


def net(changed: dict[str, np.ndarray] | None = None, **lines: str) -> ModelProto:
    """The network with lines and weights replaced."""
    held = weights() | {"pads": np.int64([0, 0, 1, 1, 0, 0, 1, 1]), "zero": np.float32(0)} | (changed or {})
    body = "\n".join((BODY | lines).values())
    return parsed(f"net (float[1,3,12,12] x) => (float[1,5] y, float[1,8,12,12] z) {{\n{body}\n}}", **held)


def altered(name: str, change: Callable[[np.ndarray], Any]) -> dict[str, np.ndarray]:
    array = weights()[name].copy()
    return {name: np.asarray(change(array), np.float32)}


def swapped(array: np.ndarray) -> np.ndarray:
    return array[[1, 0, *range(2, len(array))]]


def one_more(array: np.ndarray) -> np.ndarray:
    array.flat[5] += 1e-3
    return array


def border() -> np.ndarray:
    pixel = np.zeros((1, 8, 12, 12), np.float32)
    pixel[0, 2, 0, 11] = 1e-3
    return pixel


WRONG: dict[str, Callable[[], ModelProto]] = {
    "a bias is missing": lambda: net(altered("b1", np.zeros_like)),
    "a bias of one channel is off by 1e-3": lambda: net(altered("b2", one_more)),
    "the bias moved past the padding": lambda: net(
        altered("b1", np.zeros_like) | {"shift": np.float32([0.1, 0.2, -0.1]).reshape(1, 3, 1, 1)},
        pad="x1 = Add (x, shift) p = Pad (x1, pads, zero)",
    ),
    "weights are scaled by 1.001": lambda: net(altered("w2", lambda w: w * 1.001)),
    "one weight is off by 1e-3": lambda: net(altered("wd", one_more)),
    "the border is padded with 1e-3": lambda: net({"zero": np.float32(1e-3)}),
    "one border pixel is off by 1e-3": lambda: net({"e": border()}, sum="s0 = Add (r2, r1) s = Add (s0, e)"),
    "two channels are swapped": lambda: net(altered("w1", swapped)),
    "two classes are swapped": lambda: net(altered("fc", lambda w: w[:, [1, 0, 2, 3, 4]])),
    "a relu is missing": lambda: net(relu1="r1 = Identity (n1)"),
    "a relu moved past the sum": lambda: net(
        relu2="r2 = Identity (c2)", sum="s0 = Add (r2, r1) s = Relu (s0)"
    ),
    "the kernel is mirrored": lambda: net(altered("w2", lambda w: w[:, :, :, ::-1])),
    "epsilon is 1e-3": lambda: net(
        norm="n1 = BatchNormalization <epsilon = 0.001> (c1, gamma, beta, mean, var)"
    ),
    "a normalization is left out": lambda: net(norm="n1 = Identity (c1)"),
    "the residual is missing": lambda: net(sum="s = Identity (r2)"),
    "the sigmoid is steeper": lambda: net(
        map="d2 = Mul (d, k) z = Sigmoid (d2)", changed={"k": np.float32(1.0001)}
    ),
    "an output is not a number": lambda: net(
        map="q = Div (d, nought) q0 = Mul (q, nought) z0 = Sigmoid (d) z = Add (z0, q0)",
        changed={"nought": np.float32(0)},
    ),
}


def folded() -> ModelProto:
    """Batch normalization folded into the convolution before it, in float64, rounded once."""
    held = {name: value.astype(np.float64) for name, value in weights().items()}
    scale = held["gamma"] / np.sqrt(held["var"] + 1e-5)
    changed = {
        "w1": held["w1"] * scale[:, None, None, None],
        "b1": (held["b1"] - held["mean"]) * scale + held["beta"],
    }
    return net({k: v.astype(np.float32) for k, v in changed.items()}, norm="n1 = Identity (c1)")


def halved() -> ModelProto:
    """The second convolution as two, of half the channels each."""
    held = weights()
    parts = {"w2a": held["w2"][:4], "w2b": held["w2"][4:], "b2a": held["b2"][:4], "b2b": held["b2"][4:]}
    return net(
        parts,
        conv2="""ca = Conv <pads = [1,1,1,1]> (r1, w2a, b2a)
                 cb = Conv <pads = [1,1,1,1]> (r1, w2b, b2b)
                 c2 = Concat <axis = 1> (ca, cb)""",
    )


RIGHT: dict[str, Callable[[], ModelProto]] = {
    "itself": net,
    "folded": folded,
    "two convolutions": halved,
    "the sum the other way round": lambda: net(sum="s = Add (r1, r2)"),
    "padding in the convolution": lambda: net(
        pad="p = Identity (x)", conv1="c1 = Conv <pads = [1,1,1,1]> (p, w1, b1)"
    ),
    "scaled by 3 and by a third": lambda: net(
        {"three": np.float32(3), "third": np.float32(1 / 3)},
        sum="s0 = Add (r2, r1) s1 = Mul (s0, three) s = Mul (s1, third)",
    ),
    "exported again": lambda: export_model(import_model(net())),
}


@pytest.mark.nightly(every=3)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_edit_fails(name: str) -> None:
    verdict = verify(net(), WRONG[name](), kinds=FEW, threads=1)
    assert not verdict.passed
    assert verdict.render().plain.startswith("NOT EQUAL")
    assert "output" in verdict.detail
    assert not verdict.equality.passed


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_edit_passes(name: str) -> None:
    verdict = verify(net(), RIGHT[name](), threads=1)
    assert verdict.passed, verdict.detail
    assert tuple(dict.fromkeys(kind.split()[0] for kind in verdict.inputs)) == KINDS
    assert verdict.max_abs_error < 1e-5 and verdict.own_abs_error < 1e-5
    assert verdict.render().plain.startswith("equal")
    assert verdict.notes == ()


def test_the_stages_of_a_check_are_told() -> None:
    said: list[tuple[str, int, int]] = []
    assert not verify(
        net(),
        WRONG["one weight is off by 1e-3"](),
        kinds=FEW,
        threads=1,
        stage=lambda *what: said.append(what),
    ).passed
    kinds = list(dict.fromkeys(name for name, _, _ in said))
    assert [name.split(",")[0] for name in kinds] == [
        "original and its float64 reference",
        "result",
        "perturbed copy",
        "result in float64",
        "first perturbed copy in float64",
        "second perturbed copy in float64",
        "third perturbed copy in float64",
        "fourth perturbed copy in float64",
    ]
    for kind in kinds:
        counts = [(done, total) for name, done, total in said if name == kind]
        assert counts == [(k, len(counts)) for k in range(1, len(counts) + 1)]


def test_perturbed_copies_in_float64_run_only_where_they_may_decide() -> None:
    said: list[tuple[str, int, int]] = []
    assert verify(net(), net(), kinds=FEW, threads=1, stage=lambda *what: said.append(what)).passed
    assert not any("in float64" in name and "perturbed" in name for name, _, _ in said)


def test_no_further_copies_run_where_one_is_enough() -> None:
    """Each copy of a large model takes seconds: its weights are moved and written, and it is compiled."""
    moved, rng = net(), np.random.default_rng(1)
    for tensor in moved.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.size > 1:
            array = (array * (1 + 4e-7 * rng.standard_normal(array.shape))).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    said: list[tuple[str, int, int]] = []
    assert verify(net(), moved, kinds=FEW, threads=1, stage=lambda *what: said.append(what)).passed
    copies = [(name.split(",")[0], done) for name, done, _ in said if "perturbed" in name]
    assert copies[0] == ("perturbed copy", 1)
    assert {name for name, _ in copies[1:]} == {"first perturbed copy in float64"}


def test_other_kernels_pass() -> None:
    pytest.importorskip("openvino")
    assert verify(net(), folded(), backend="openvino", threads=1).passed


def test_the_same_seed_gives_the_same_verdict() -> None:
    verdicts = [verify(net(), folded(), seed=4, kinds=FEW, threads=1) for _ in range(2)]
    assert verdicts[0] == verdicts[1]


# ------------------------------------------------------------------------------------------- interface


def signature(inputs: list[Any], outputs: list[Any]) -> ModelProto:
    def values(entries: list[Any]) -> list[Any]:
        return [helper.make_tensor_value_info(n, kind, shape) for n, kind, shape in entries]

    return helper.make_model(helper.make_graph([], "net", values(inputs), values(outputs)), ir_version=8)


F = TensorProto.FLOAT
X, Y = ("x", F, [1, 3]), ("y", F, [1, 2])


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        ([X], [Y, ("z", F, [2])], "the outputs are y, z, not y"),
        ([("a", F, [1, 3])], [Y], "the inputs are a, not x"),
        ([X], [("y", TensorProto.INT64, [1, 2])], "output y is int64[1, 2], not float32[1, 2]"),
        ([("x", F, [1, 4])], [Y], "input x is float32[1, 4], not float32[1, 3]"),
        ([("x", F, ["n", 3])], [Y], "input x is float32[?, 3], not float32[1, 3]"),
        ([("x", F, [1, 3, 1])], [Y], "input x is float32[1, 3, 1]"),
        ([("x", F, None)], [Y], "input x is float32, not"),
    ],
)
def test_interfaces_that_differ(inputs: list[Any], outputs: list[Any], words: str) -> None:
    (difference,) = interface_differences(signature([X], [Y]), signature(inputs, outputs))
    assert words in difference


def test_order_counts() -> None:
    z = ("z", F, [2])
    (difference,) = interface_differences(signature([X, z], [Y]), signature([z, X], [Y]))
    assert "order z, x" in difference


def test_interfaces_that_agree() -> None:
    assert interface_differences(signature([X], [Y]), signature([X], [("y", F, None)])) == []
    assert (
        interface_differences(signature([("x", F, ["n"])], [Y]), signature([("x", F, ["batch"])], [Y])) == []
    )


def test_weights_that_old_models_list_as_inputs_are_no_interface() -> None:
    old = signature([X, ("w", F, [2])], [Y])
    old.ir_version = 3
    old.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    assert interface_differences(old, signature([X], [Y])) == []


def test_an_interface_that_differs_is_a_verdict() -> None:
    verdict = verify(net(), parsed("net (float[1,3,12,12] x) => (float[1,3,12,12] y) { y = Neg (x) }"))
    assert not verdict.passed and "the outputs are" in verdict.detail


# ------------------------------------------------------------------------------- awkward models, numerically


def test_a_candidate_that_does_not_run() -> None:
    good = parsed("net (float[4] x) => (float[4] y) { y = Neg (x) }")
    bad = parsed("net (float[4] x) => (float[4] y) { k = Constant <value_ints = [3]> () y = Reshape (x, k) }")
    verdict = verify(good, bad, threads=1)
    assert not verdict.passed and "does not run" in verdict.detail


def test_an_original_that_does_not_run() -> None:
    bad = parsed("net (float[4] x) => (float[N] y) { s = Constant <value_ints = [3]> () y = Reshape (x, s) }")
    with pytest.raises(TensaurusError, match="does not run"):
        verify(bad, bad, threads=1)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    file = tmp_path / "a.onnx"
    file.write_bytes(b"nothing")
    with pytest.raises(TensaurusError, match="a.onnx"):
        verify(file, file)


def test_files(small_model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.onnx"
    model = onnx.load_model(small_model)
    onnx.save_model(model, other)
    verdict = verify(small_model, other, threads=1)
    assert verdict.passed
    sizes = "x=1,3, then x=2,3, then x=3,3"
    assert verdict.notes == (f"sizes that were not given were chosen: {sizes}",)
    assert verify(small_model, other, shapes={"x": (4, 3)}, threads=1).notes == ()
    weight = model.graph.initializer[0]
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(1.001), weight.name))
    onnx.save_model(model, other)
    assert not verify(small_model, other, threads=1).passed


def test_sizes_are_guessed_until_the_model_runs() -> None:
    text = """net (float[N,3,H,W] x) => (float[N,3,A,B] y) {
        s = Constant <value_ints = [0,3,6,-1]> () r = Reshape (x, s) y = Relu (r)
    }"""
    verdict = verify(parsed(text), parsed(text), threads=1)
    assert verdict.passed
    assert "x=1,3,48,48" in verdict.notes[0]
    assert verdict.notes[1].startswith("the original does not run on x=1,3,1,1, nor on ")


def test_random_outputs_are_not_compared() -> None:
    text = (
        "net (float[4] x) => (float[4] y, float[4] z) { r = RandomNormalLike (x) y = Add (x, r) z = Neg (x) }"
    )
    verdict = verify(parsed(text), parsed(text), threads=1)
    assert verdict.passed
    assert verdict.notes == ("output y is random: only its type, shape and distribution were compared",)
    wrong = parsed(text.replace("z = Neg", "z = Abs"))
    assert not verify(parsed(text), wrong, threads=1).passed


def test_outputs_that_never_change_are_noted() -> None:
    text = "net (float[4] x) => (float[4] y) { z = Sub (x, x) y = Exp (z) }"
    assert any("shows little" in note for note in verify(parsed(text), parsed(text), threads=1).notes)


def test_integers_must_be_equal() -> None:
    text = "net (float[4,9] x) => (int64[4] y) {{ y = ArgMax <axis = 1, keepdims = 0> ({}) }}"
    assert verify(parsed(text.format("x")), parsed(text.format("x")), threads=1).passed
    other = parsed(text.format("n").replace("{ y", "{ n = Neg (x) y"))
    assert not verify(parsed(text.format("x")), other, threads=1).passed


def test_an_integer_that_rounding_decides_may_be_either() -> None:
    own, reference = np.array([1, 2, 3]), np.array([1, 5, 3])
    original = OriginalOutput(reference, own)
    original.add_perturbed(np.array([1, 2, 4]))
    assert original.judge(np.array([1, 5, 4])).passed
    assert not original.judge(np.array([2, 2, 3])).passed


def test_text_outputs() -> None:
    text = "net (string[3] x) => (string[3] y) {{ y = {} (x) }}"
    one = parsed(text.format("Identity"))
    assert verify(one, one, threads=1).passed


def test_half_precision() -> None:
    text = "net (float16[4,6] x) => (float16[4,5] y) { h = MatMul (x, w) y = Tanh (h) }"
    w = np.random.default_rng(2).standard_normal((6, 5)).astype(np.float16)
    assert verify(parsed(text, w=w), parsed(text, w=w), threads=1).passed
    wrong = w.copy()
    wrong[2, 2] += np.float16(0.25)
    assert not verify(parsed(text, w=w), parsed(text, w=wrong), threads=1).passed


def test_sequences_of_tensors() -> None:
    text = "net (float[4] x) => (seq(float[4]) y) { n = Neg (x) y = SequenceConstruct (x, n) }"
    assert verify(parsed(text), parsed(text), threads=1).passed
    wrong = parsed(text.replace("(x, n)", "(n, x)"))
    assert not verify(parsed(text), wrong, threads=1).passed


# ------------------------------------------------------------------------------------------- the judgement


def test_not_a_number_and_infinity() -> None:
    reference = np.array([1.0, np.inf, np.nan, 3e38])
    original = OriginalOutput(reference, reference.astype(np.float32))
    assert original.judge(np.float32([1, np.inf, np.nan, 3e38])).passed
    for wrong in (
        [np.nan, np.inf, np.nan, 3e38],
        [1, 5, np.nan, 3e38],
        [1, -np.inf, np.nan, 3e38],
        [1, np.inf, 0, 3e38],
    ):
        assert not original.judge(np.float32(wrong)).passed


def test_an_overflow_of_the_original_may_be_repaired() -> None:
    original = OriginalOutput(np.array([1e20]), np.float32([np.inf]))
    assert original.judge(np.float32([1e20])).passed
    assert original.judge(np.float32([np.inf])).passed
    assert not original.judge(np.float32([1e21])).passed


def test_a_wrong_element_is_judged_by_its_like() -> None:
    """The original is bad at large elements; a small one must be as good as small ones are."""
    rng = np.random.default_rng(0)
    reference = np.concatenate([rng.uniform(1, 2, 500), rng.uniform(1e4, 2e4, 500)])
    own = reference + np.concatenate([rng.normal(0, 1e-6, 500), rng.normal(0, 1, 500)])
    original = OriginalOutput(reference, own.astype(np.float32))
    candidate = own.astype(np.float32)
    candidate[17] += 1e-4
    finding = original.judge(candidate)
    assert not finding.passed and "[17]" in finding.reason
    candidate[17] -= 1e-4
    candidate[700] += 1e-1
    assert original.judge(candidate).passed


def test_zeros_are_like_the_smallest() -> None:
    rng = np.random.default_rng(0)
    exact = rng.standard_normal(2000)
    reference = np.maximum(exact, 0)
    own = np.maximum(exact + rng.normal(0, 1e-6, 2000), 0).astype(np.float32)
    candidate = own.copy()
    candidate[np.flatnonzero(exact < 0)[0]] = 1e-6
    assert OriginalOutput(reference, own).judge(candidate).passed
    candidate[np.flatnonzero(exact < 0)[0]] = 1e-4
    assert not OriginalOutput(reference, own).judge(candidate).passed


def test_softmax_of_tiny_probabilities() -> None:
    """An absolute floor would pass anything here: probabilities of 1e-9 are judged relatively."""
    rng = np.random.default_rng(0)
    logits = rng.normal(-20, 3, (4, 300))
    reference = np.exp(logits)
    own = (reference * (1 + rng.normal(0, 1e-6, logits.shape))).astype(np.float32)
    candidate = own.copy()
    candidate[:, [7, 8]] = candidate[:, [8, 7]]
    assert not OriginalOutput(reference, own).judge(candidate).passed


@given(st.integers(0, 3 * MIN_GROUP_SIZE), st.integers(0, 2**31))
def test_like_elements_share_their_errors(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = np.abs(rng.standard_normal(count)) * 10.0 ** rng.integers(-3, 4, count) * (rng.random(count) > 0.2)
    found = typical_errors(size, np.full(count, 0.5))
    assert found.shape == size.shape
    assert np.all(found == (0.5 if np.any(size > 0) else 0))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_perturbed_copies_are_one_rounding_away(dtype: Any) -> None:
    array = np.random.default_rng(1).standard_normal(1000).astype(dtype)
    array[:6] = [0, 1, -0.5, 6, np.inf, np.nan]
    other = perturb_array(array, np.random.default_rng(2))
    assert other.dtype == dtype
    np.testing.assert_array_equal(other[:6], array[:6])
    steps = np.abs(other[6:] - array[6:]) / np.spacing(np.abs(array[6:]))
    assert steps.max() <= 1 and 0.5 < np.mean(steps > 0) < 0.8


def test_perturbed_models() -> None:
    model = net()
    other = perturb_model(model, 0)
    assert other != model and len(other.graph.initializer) == len(model.graph.initializer)
    assert perturb_model(model, 0) == other != perturb_model(model, 1)


def test_large_weights_of_perturbed_models_are_written_to_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    shapes = {"large": (1024, 300), "middle": (100, 100), "one": (1,)}  # bytes: above 2^20, below, one number
    own = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    text = "net (float[2,1024] x) => (float[2,300] y) { y = MatMul (x, large) }"
    folder = tmp_path / "files"
    folder.mkdir()
    made = perturb_model(parsed(text, **own), 0, [float(own["one"].item())], WeightFiles(folder))
    assert len(list(folder.iterdir())) == 1 and made.graph.initializer[0].data_location
    onnx.load_external_data_for_model(made, str(folder))
    for tensor in made.graph.initializer:
        before, after = own[tensor.name], numpy_helper.to_array(tensor)
        steps = np.abs(after - before) / np.spacing(np.abs(before))
        assert steps.max() <= 1 and np.array_equal(before, after) == (tensor.name == "one")


def test_inputs_are_seeded_and_plausible() -> None:
    model = parsed("net (float[2,3,32,32] x, int64[5] i, bool[5] b) => (float[2] y) { y = Neg (x) }")
    (shapes, words) = next(iter(shape_assignments(model, {})))
    assert words == "" and shapes == {"x": (2, 3, 32, 32), "i": (5,), "b": (5,)}
    for kind in KINDS:
        one, same = (draw_feed(model, shapes, kind, 7, InputValues({"i": (3, 9)})).arrays for _ in range(2))
        assert all(one[name].tobytes() == same[name].tobytes() for name in shapes)
        assert one["x"].dtype == np.float32 and one["b"].dtype == np.bool_
        assert 3 <= one["i"].min() <= one["i"].max() <= 9
    assert 0 < np.abs(draw_feed(model, shapes, "tiny", 0).arrays["x"]).max() < 1e-38


# ------------------------------------------------------------------------------------------ finite fields

LINE = "net (float[4,4] x, float[4,4] z) => (float[4,4] y) {{ {} }}"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("y = Relu (x)", "y = Identity (x)"),
        ("y = Relu (x)", "n = Neg (x) m = Relu (n) y = Neg (m)"),
        ("y = Relu (x)", "c = Constant <value_float = 0.001> () a = Add (x, c) y = Relu (a)"),
        ("y = Identity (x)", "c = Constant <value_float = 0.001> () y = Add (x, c)"),
        ("y = Exp (x)", "y = Erf (x)"),
        ("y = Sub (x, z)", "y = Sub (z, x)"),
        ("y = MatMul (x, z)", "y = MatMul (z, x)"),
        ("y = Max (x, z)", "y = Min (x, z)"),
        ("y = Det0 (x)", "y = Det0 (z)"),
        ("y = CumSum0 (x)", "t = Transpose (x) y = CumSum0 (t)"),
    ],
)
def test_a_finite_field_tells_apart(one: str, other: str) -> None:
    def opaque(text: str) -> str:
        text = text.replace("Det0 (", "Shrink <lambd = 1.5> (")
        return text.replace("CumSum0 (x", "CumSum (x, k").replace("CumSum0 (t", "CumSum (t, k")

    prefix = "k = Constant <value_int = 1> () "
    found = check(*(LINE.format(prefix + opaque(t)) for t in (one, other)))
    assert not found.passed and "differs" in found.detail and found.error_bound == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a = Add (x, z) y = Mul (a, x)", "p = Mul (x, x) q = Mul (z, x) y = Add (p, q)"),
        (
            "a = MatMul (x, z) y = Relu (a)",
            "s = Transpose (x) t = Transpose (z) b = MatMul (t, s) c = Transpose (b) y = Relu (c)",
        ),
        ("y = Max (x, z)", "y = Max (z, x)"),
        ("a = Exp (x) y = Div (a, z)", "a = Exp (x) r = Reciprocal (z) y = Mul (a, r)"),
        ("y = Softmax (x)", "y = Softmax (x)"),
    ],
)
def test_a_finite_field_knows_the_ring(one: str, other: str) -> None:
    found = check(LINE.format(one), LINE.format(other))
    assert found.passed and found.trials == 1
    assert 0 < found.error_bound < 1e-10
    assert found.degree <= 3


def test_what_needs_more_than_the_ring_is_said() -> None:
    inverse = check(LINE.format("y = Reciprocal (x)"), LINE.format("d = Mul (x, z) y = Div (z, d)"))
    assert inverse.passed and "inverse" in inverse.detail and inverse.error_bound < 1e-10
    order = check(LINE.format("y = Relu (x)"), LINE.format("r = Relu (x) y = Relu (r)"))
    assert order.passed and "order" in order.detail and order.error_bound == 1
    assert order.trials == 8


def test_more_trials_say_more() -> None:
    text = LINE.format("y = MatMul (x, z)")
    once, thrice = check(text, text), check(text, text, trials=3)
    assert thrice.trials == 3 and thrice.error_bound == pytest.approx(once.error_bound**3)


def test_what_cannot_be_compared_is_no_evidence() -> None:
    text = "net (float[4] x) => (float[1,N] y) { i = NonZero (x) y = Cast <to = 1> (i) }"
    found = check(text, text)
    assert found.passed and found.trials == 0 and found.error_bound == 1
    assert "not compared" in found.detail


def test_folding_is_equal_before_it_is_rounded() -> None:
    """The expression over the weights is equal exactly; the folded file, rounded once, is not."""
    text = """net (float[1,2,6,6] x) => (float[1,3,4,4] y) {{
        {}
    }}"""
    rng = np.random.default_rng(1)
    held = {
        "w": rng.standard_normal((3, 2, 3, 3)),
        "s": rng.uniform(1, 2, (3, 1, 1)),
        "q": np.float32([[[[3.0]]]]),
    }
    held = {k: v.astype(np.float32) for k, v in held.items()}
    late = text.format("c = Conv (x, w) y = Mul (c, s)")
    early = text.format(
        "k = Constant <value_ints = [3,1,1,1]> () t = Reshape (s, k) v = Mul (w, t) y = Conv (x, v)"
    )
    programs = [import_model(parsed(t, **held)) for t in (late, early)]
    found = check_field(*programs)
    assert found.passed and found.error_bound < 1e-10
    rounded = import_model(export_model(programs[1]))
    assert not check_field(programs[0], rounded).passed


def test_degrees_are_cut_by_unknown_functions() -> None:
    deep = " ".join(f"a{k + 1} = Mul (a{k}, a{k})" for k in range(6))
    text = "net (float[3] a0) => (float[3] y) {{ {} y = Identity (a6) }}"
    assert bound_degree(import_model(parsed(text.format(deep))).roots, Laws()) == 64
    cut = " ".join(f"b{k} = Mul (a{k}, a{k}) a{k + 1} = Tanh (b{k})" for k in range(6))
    assert bound_degree(import_model(parsed(text.format(cut))).roots, Laws()) == 2


@pytest.mark.parametrize("fn", ["add", "sub", "mul", "div"])
def test_pairs_are_two_points(fn: str) -> None:
    from tensaurus.expr.evaluate.fields import PrimeField

    field, rng = PrimeFieldPairs(1), np.random.default_rng(2)
    a, b = field.random((50, 1), rng), field.random((50, 1), rng)
    pairs = unpack_halves(PrimeFieldPairs(1, Laws(inverse=True)).apply(fn, [a, b]))
    for mine, left, right in zip(pairs, unpack_halves(a), unpack_halves(b), strict=True):
        assert np.array_equal(mine, PrimeField(1).apply(fn, [left, right]))
    for mine, left, right in zip(
        unpack_halves(field.matmul(a.T, b)), unpack_halves(a.T), unpack_halves(b), strict=True
    ):
        assert np.array_equal(mine, PrimeField(1).matmul(left, right))


# -------------------------------------------------------------------------------------------- real models


def test_a_real_model_exported_again(pretrained: Callable[[str], Path]) -> None:
    file, shapes = pretrained("ppocr_rec"), {"x": (1, 3, 48, 320)}
    again = export_model(import_model(onnx.load_model(file), shapes))
    verdict: Verdict = verify(file, again, shapes=shapes, kinds=("random",))
    assert verdict.passed, verdict.detail
    assert verdict.max_abs_error < 2e-5


def test_a_real_model_with_one_wrong_weight(pretrained: Callable[[str], Path]) -> None:
    file, shapes = pretrained("ppocr_cls"), {"x": (1, 3, 48, 192)}
    again = export_model(import_model(onnx.load_model(file), shapes))
    tensor = next(t for t in again.graph.initializer if len(t.dims) == 4 and t.dims[0] > 16)
    array = numpy_helper.to_array(tensor).copy()
    array[3, 2] *= np.float32(1.01)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    assert not verify(file, again, shapes=shapes, kinds=("random", "blocks")).passed


def test_scalars_stay_scalars() -> None:
    """A float input of rank 0 is compared like any other."""
    assert perturb_array(np.float32(0.3).reshape(()), np.random.default_rng(0)).shape == ()
    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        scalar (float s, float[3] x) => (float[3] y) { y = Mul (s, x) }
        """
    )
    assert verify(model, model).passed


# Inputs that cannot be made up


def with_input(elem_type: int, *sizes: int) -> ModelProto:
    value = helper.make_tensor_value_info("x", elem_type, sizes)
    return helper.make_model(helper.make_graph([], "g", [value], []))


@pytest.mark.parametrize(
    ("sizes", "size"), [((2**62,), 2**64), ((2**40, 3), 3 * 2**42), ((2**31, 2**31), 2**64)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_an_input_that_no_machine_can_hold(kind: str, sizes: tuple[int, ...], size: int) -> None:
    """Said with its name and its bytes before anything is allocated."""
    with pytest.raises(TensaurusError, match=rf"input x .*{size:,} bytes.*--shape x="):
        draw_feed(with_input(TensorProto.FLOAT, *sizes), {"x": sizes}, kind, 0)


def test_an_input_of_too_many_dimensions() -> None:
    sizes = (1,) * 70
    with pytest.raises(TensaurusError, match="input x has 70 dimensions"):
        draw_feed(with_input(TensorProto.FLOAT, *sizes), {"x": sizes}, "random", 0)


def test_an_input_of_unknown_elements() -> None:
    with pytest.raises(TensaurusError, match="element type of input x"):
        draw_feed(with_input(0, 2), {"x": (2,)}, "random", 0)


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_without_elements(kind: str) -> None:
    made = draw_feed(with_input(TensorProto.FLOAT, 0, 4), {"x": (0, 4)}, kind, 0)
    assert made.arrays["x"].shape == (0, 4)
