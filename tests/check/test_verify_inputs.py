"""What verify tries: models that differ only where few inputs are, and runtimes that are wrong themselves."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

from tensaurus.check import Verdict, check_field, verify
from tensaurus.check.files.candidate_trial import CandidateTrial
from tensaurus.check.files.implausible_errors import compare_with_unfused, find_implausible
from tensaurus.check.files.judge import OriginalOutput
from tensaurus.check.inputs.draw_inputs import draw_feed, draw_feeds
from tensaurus.check.inputs.feed import Feed, InputValues
from tensaurus.check.inputs.integer_uses import IntegerUses, find_integer_uses
from tensaurus.check.inputs.model_constants import collect_constants, numbers_beside, shared_numbers
from tensaurus.check.inputs.try_shapes import shape_assignments, small_shapes
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.system.errors import TensaurusError


def parsed(text: str, opset: int = 17, **weights: np.ndarray) -> ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')
    model.graph.initializer.extend(numpy_helper.from_array(w, name) for name, w in weights.items())
    return model


def line(body: str, kind: str = "float[4,9]", to: str | None = None, **weights: np.ndarray) -> ModelProto:
    return parsed(f"net ({kind} x) => ({to or kind} y) {{ {body} }}", **weights)


def compared(a: ModelProto, b: ModelProto, **options: Any) -> Verdict:
    verdict = verify(a, b, threads=1, **options)
    assert not [note for note in verdict.notes if "a fault" in note]  # of ours, in the reference's process
    return verdict


# ---------------------------------------------------------------------- models that differ where few look

ZERO = "z = Constant <value_float = 0.0> () "


def guards() -> Iterator[tuple[str, str, str]]:
    """Bodies that are one function but where no numbers come in."""
    plain = "y = Identity (x)"
    yield "NaN", f"{ZERO} n = IsNaN (x) y = Where (n, z, x)", plain
    yield "NaN by comparison", f"{ZERO} n = Equal (x, x) y = Where (n, x, z)", plain
    yield "relu", f"{ZERO} n = Greater (x, z) y = Where (n, x, z)", "y = Relu (x)"
    yield "an infinity", f"{ZERO} n = IsInf (x) y = Where (n, z, x)", plain
    yield "one infinity", f"{ZERO} n = IsInf <detect_negative = 0> (x) y = Where (n, z, x)", plain
    # a square root of the least and the largest numbers, so that neither model holds the threshold itself
    root = "r = Constant <value_float = {}> () c = Mul (r, r) a = Abs (x) n = {} (a, c) "
    yield "large numbers", f"{ZERO} {root.format('316.3', 'Greater')} y = Where (n, z, x)", plain
    yield "larger numbers", f"{ZERO} {root.format('900.0', 'Greater')} m = Neg (x) y = Where (n, m, x)", plain
    yield "small numbers", f"{ZERO} {root.format('0.004', 'Less')} y = Where (n, z, x)", plain


GUARDS = {name: pair for name, *pair in guards()}


@pytest.mark.nightly(every=3)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", GUARDS)
def test_what_differs_only_for_some_numbers_is_different(name: str, turned: bool) -> None:
    models = [line(text) for text in GUARDS[name]]
    verdict = compared(*(models[::-1] if turned else models))
    assert not verdict.passed


@pytest.mark.parametrize("number", [6.0, 0.1, -12345.678])
def test_what_differs_only_at_a_threshold_is_different(number: float) -> None:
    text = f"c = Constant <value_float = {number!r}> () n = {{}} (x, c) t = Neg (x) y = Where (n, x, t)"
    assert not compared(line(text.format("Greater")), line(text.format("GreaterOrEqual"))).passed
    one = line(f"a = Constant <value_float = {number!r}> () s = Sub (x, a) y = Sign (s)")
    body = "s = Cast <to = 1> (n) t = Add (s, s) o = Constant <value_float = 1.0> () y = Sub (o, t)"
    other = line(f"a = Constant <value_float = {number!r}> () n = Less (x, a) {body}")
    assert not compared(one, other).passed
    assert compared(one, one).passed


INTEGERS = {"int8": 2**7 - 1, "uint8": 2**8 - 1, "int32": 2**31 - 1, "int64": 2**63 - 1, "uint64": 2**64 - 1}


@pytest.mark.parametrize("kind", INTEGERS)
def test_what_differs_only_at_an_end_of_the_integers_is_different(kind: str) -> None:
    code = getattr(onnx.TensorProto, kind.upper())
    one = numpy_helper.from_array(np.array(1, kind), "one")
    text = "n = {} y = Cast <to = 1> (n)"
    models = []
    for body in ("s = Add (x, one) n = Less (s, x)", "n = Less (x, x)"):
        model = line(
            text.format("Identity (x)").replace("n = Identity (x)", body), f"{kind}[5,3]", "float[5,3]"
        )
        model.graph.initializer.append(one)
        models.append(model)
    assert models[0].graph.input[0].type.tensor_type.elem_type == code
    assert not compared(*models).passed
    assert compared(models[0], models[0]).passed


SIZED = """s = Shape <start = {0}, end = {1}> (x) k = Constant <value_ints = [{2}]> () {3}
           f = Cast <to = 1> (c) y = Sub (x, f)"""


@pytest.mark.nightly(every=3)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("number", "condition"),
    [*((n, "c = Equal (s, k)") for n in (1, 2, 3)), (2, "r = Mod (s, k) c = Cast <to = 9> (r)")],
)
def test_what_differs_only_at_a_size_is_different(axis: int, number: int, condition: str) -> None:
    text = SIZED.format(axis, axis + 1, number, condition)
    verdict = compared(line(text, "float[N,M]"), line("y = Identity (x)", "float[N,M]"))
    assert not verdict.passed


BRANCHES = """net (float[4,9] x) => (float[4,9] y) {{
    c = Constant <value_float = {0}> () m = ReduceMean <keepdims = 0> (x) n = Greater (m, c)
    y = If (n) <then_branch = one () => (float[4,9] a) {{ a = {1} (x) }},
                else_branch = two () => (float[4,9] b) {{ b = {2} (x) }}>
}}"""


@pytest.mark.parametrize("number", [-30.0, 777.0])
def test_what_differs_only_in_a_branch_is_different(number: float) -> None:
    both = parsed(BRANCHES.format(number, "Abs", "Neg"))
    verdict = compared(both, both)
    assert verdict.passed and not [note for note in verdict.notes if "no input took" in note]
    for wrong in (("Relu", "Neg"), ("Abs", "Relu")):
        assert not compared(both, parsed(BRANCHES.format(number, *wrong))).passed


def test_branches_that_no_input_reaches_are_named() -> None:
    text = BRANCHES.format(-1.0, "Abs", "Neg").replace("m = Reduce", "q = Mul (x, x) m = Reduce")
    model = parsed(text.replace("(x) n = Greater", "(q) n = Less"))
    verdict = compared(model, model)
    assert verdict.passed
    (note,) = (note for note in verdict.notes if "of the original that no input took" in note)
    assert note.endswith("were not compared: the then branch of y")


TABLE = np.random.default_rng(0).standard_normal((30522, 3)).astype(np.float32)


@pytest.mark.parametrize("row", [2, 30521])
def test_a_table_is_looked_up_in_every_part(row: int) -> None:
    text = "net (int32[1,S] x) => (float[1,S,3] y) { i = Cast <to = 7> (x) y = Gather (t, i) }"
    wrong = TABLE.copy()
    wrong[max(row - 15000, 0) : row + 1] += 1
    assert not compared(parsed(text, t=TABLE), parsed(text, t=wrong)).passed
    assert compared(parsed(text, t=TABLE), parsed(text, t=TABLE)).passed


def test_a_table_is_looked_up_everywhere_over_a_finite_field() -> None:
    text = "net (int64[50] x) => (float[50,3] y) { y = Gather (t, x) }"
    wrong = TABLE.copy()
    wrong[15000:] += 1
    programs = [import_model(parsed(text, t=t)) for t in (TABLE, wrong)]
    assert not check_field(*programs).passed and check_field(programs[0], programs[0]).passed
    assert check_field(*programs, ranges={"x": (0, 99)}).passed


def test_an_index_from_the_end_is_tried() -> None:
    text = "net (int64[6] x) => (float[6,3] y) {{ {} y = Gather (t, {}) }}"
    clipped = "z = Constant <value_int = 0> () m = Max (x, z)"
    assert not compared(
        parsed(text.format("", "x"), t=TABLE), parsed(text.format(clipped, "m"), t=TABLE)
    ).passed


def test_integers_that_may_be_anything_are_named() -> None:
    text = "net (int64[1] x) => (float[N] y) { o = Constant <value_float = 1.0> () y = Expand (o, x) }"
    (note,) = (n for n in compared(parsed(text), parsed(text)).notes if "integer" in n)
    assert "input x was only 0 and 1" in note and "--range x=" in note


# ------------------------------------------------------------------------------- a runtime that is wrong

PADS = np.int64([0, 0, 1, 1, 0, 0, 1, 1])
SIZES = {"kernel": "[2,2]", "strides": "[1,1]"}


def pooled(pad: str, pads: str = "[0,0,0,0]") -> ModelProto:
    """A pooling behind zeros: onnxruntime 1.31 fuses Pad into it, whose own padding is minus infinity."""
    body = f"{pad} y = MaxPool <kernel_shape = [2,2], pads = {pads}> (p)"
    held = {"pads": PADS, "zero": np.float32(0), "side": np.zeros((1, 2, 4, 1), np.float32)}
    return line(body, "float[1,2,4,4]", "float[1,2,5,5]", **held, top=np.zeros((1, 2, 1, 6), np.float32))


FUSED = "p = Pad (x, pads, zero)"
BY_HAND = "r = Concat <axis = 3> (side, x, side) p = Concat <axis = 2> (top, r, top)"


def test_this_runtime_is_wrong() -> None:
    """If not, the tests below say nothing: look for another fault."""
    import onnxruntime as ort

    x = -np.ones((1, 2, 4, 4), np.float32)
    session = ort.InferenceSession(pooled(FUSED).SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": x})[0].min() == -1  # a border pixel; its window has zeros
    session = ort.InferenceSession(pooled(BY_HAND).SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": x})[0][..., 0].max() == 0


@pytest.mark.parametrize("candidate", [FUSED, BY_HAND])
@pytest.mark.parametrize("kinds", [("random",), ("random", "negative", "magnitudes")])
def test_a_runtime_that_miscomputes_the_original_is_named(candidate: str, kinds: tuple[str, ...]) -> None:
    verdict = compared(pooled(FUSED), pooled(candidate), kinds=kinds)
    assert verdict.passed, verdict.detail
    note, *more = verdict.faults
    assert note.startswith("onnxruntime computes output y of the original wrong, by ")
    assert "without graph optimizations agrees with the float64 reference" in note
    assert len(more) == (candidate == FUSED) and all("the result wrong, but" in text for text in more)
    assert note in verdict.render().plain
    assert verdict.own_rel_error < 1e-6


@pytest.mark.parametrize("kind", ["random", "negative", "magnitudes"])
def test_what_is_wrong_as_the_runtime_is_is_different(kind: str) -> None:
    """The runtime computes both the same way; only one is what the original says."""
    wrong = pooled("p = Identity (x)", "[1,1,1,1]")
    verdict = compared(pooled(FUSED), wrong, kinds=(kind,))
    assert not verdict.passed


def test_what_the_runtime_miscomputes_alone_is_different() -> None:
    verdict = compared(pooled(BY_HAND), pooled(FUSED), kinds=("random", "negative"))
    assert not verdict.passed
    assert "without graph optimizations onnxruntime computes the result right" in verdict.detail
    assert not verdict.faults


@pytest.fixture
def torn() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The exact values, what a sound runtime has, and what it has where it is wrong at one element."""
    rng = np.random.default_rng(0)
    exact = rng.standard_normal(500)
    sound = (exact * (1 + rng.normal(0, 1e-7, 500))).astype(np.float32)
    faulty = sound.copy()
    faulty[17] += np.float32(0.11 * np.abs(exact).max())
    return exact, sound, faulty


def test_the_witness_decides_for_the_reference(torn: Any) -> None:
    exact, sound, faulty = torn
    original = OriginalOutput(exact, faulty)
    assert np.flatnonzero(find_implausible(original)).tolist() == [17]
    wrong, doubtful = compare_with_unfused(original, sound)
    assert wrong == pytest.approx(0.11, rel=0.01) and doubtful == 0
    assert original.judge(sound).passed and not original.judge(faulty).passed
    assert np.flatnonzero(original.miscomputed).tolist() == [17]


@pytest.mark.parametrize("witnessed", [True, False])
def test_what_nobody_decides_must_agree_with_the_runtime(torn: Any, witnessed: bool) -> None:
    exact, sound, faulty = torn
    original = OriginalOutput(exact, faulty)
    wrong, doubtful = compare_with_unfused(original, faulty.copy() if witnessed else None)
    assert wrong == 0 and doubtful == pytest.approx(0.11, rel=0.01)
    assert original.judge(faulty).passed and not original.judge(sound).passed
    assert original.miscomputed is None


def test_what_a_long_sum_may_lose_is_no_doubt(torn: Any) -> None:
    exact, sound, _ = torn
    lossy = sound.copy()
    lossy[17] += np.float32(0.01 * np.abs(exact).max())
    original = OriginalOutput(exact, lossy)
    assert compare_with_unfused(original, lossy.copy()) == (0, 0)
    assert original.judge(lossy).passed and original.judge(sound).passed
    original = OriginalOutput(exact, lossy)
    assert compare_with_unfused(original, sound)[0] == pytest.approx(0.01, rel=0.01)
    assert not original.judge(lossy).passed


def test_rounding_within_the_model_is_no_fault(torn: Any) -> None:
    exact, _, faulty = torn
    original = OriginalOutput(exact, faulty)
    shaken = exact.copy()
    shaken[17] -= 0.1
    original.add_rounded(shaken)
    assert not find_implausible(original).any()


def test_instability_is_no_fault(torn: Any) -> None:
    exact, _, faulty = torn
    original = OriginalOutput(exact, faulty)
    moved = faulty.copy()
    moved[17] -= np.float32(0.1)
    original.add_perturbed(moved)
    assert not find_implausible(original).any()


def test_integers_are_decided_as_well() -> None:
    reference, own = np.array([22, 7, 3]), np.array([150, 7, 3])
    original = OriginalOutput(reference, own)
    original.add_perturbed(own.copy())
    compare_with_unfused(original, reference.copy())
    assert original.judge(reference).passed and not original.judge(own).passed
    original = OriginalOutput(reference, own)
    original.add_perturbed(own.copy())
    compare_with_unfused(original, own.copy())
    assert original.judge(own).passed and not original.judge(reference).passed
    tie = OriginalOutput(reference, own)
    tie.add_perturbed(reference.copy())
    assert not find_implausible(tie).any()


def test_a_number_where_there_is_none_is_no_match() -> None:
    """The reference has NaN, and the runtime a number: any number would have passed."""
    original = OriginalOutput(np.array([np.nan, 1.0]), np.float32([5, 1]))
    original.add_perturbed(np.float32([5, 1]))
    compare_with_unfused(original, np.float32([5, 1]))
    assert original.judge(np.float32([5, 1])).passed
    assert not original.judge(np.float32([6, 1])).passed


# ------------------------------------------------------------------------------------------------ the parts


def test_where_the_original_overflows_a_third_of_the_digits_is_enough() -> None:
    """ZFNet's normalization has squares beyond float32, and then no number; a faster form is nearly right."""
    exact = np.array([0.5, 0.25])
    own = np.array([np.nan, 0.25], np.float32)
    original = OriginalOutput(exact, own)
    assert original.judge(np.array([0.501, 0.25], np.float32)).passed
    assert original.judge(own).passed
    for wrong in ([0.51, 0.25], [0.5, 0.2501], [0.5, np.nan], [np.inf, 0.2501]):
        assert not original.judge(np.array(wrong, np.float32)).passed


def test_every_constant_has_inputs_on_both_sides() -> None:
    model = line(
        "c = Constant <value_floats = [0.1, 6.0, 400.0]> () d = Neg (c) y = LeakyRelu <alpha = 0.3> (x)"
    )
    found = collect_constants([model, model])
    assert found.omitted_count == 0 and {np.float32(0.1), 6.0, 400.0, np.float32(0.3)} <= set(found.numbers)
    shapes = {"x": (4, 9)}
    kinds = draw_feeds(model, shapes, ("edges",), 0, InputValues(constants=found))
    drawn = np.concatenate([item.arrays["x"].ravel() for item in kinds])
    for number in np.float32(found.numbers):
        for near in (number, np.nextafter(number, np.float32(9e9)), np.nextafter(number, np.float32(-9e9))):
            assert near in drawn


def test_neighbours_of_a_number() -> None:
    assert numbers_beside(6.0, np.dtype("float16")) == [6.0, 6 - 2**-8, 6 + 2**-8, 6 - 6 / 64, 6 + 6 / 64]
    model = line("c = Constant <value_float = 0.1> () y = Add (x, c)")
    held = "c = Constant <value_float = 0.2> () d = Constant <value_float = 0.1> ()"
    other = line(f"{held} e = Add (c, d) y = Add (x, e)")
    assert shared_numbers(model, other) == {float(np.float32(0.1))}


@pytest.mark.parametrize("dtype", ["float", "float16", "bfloat16"])
def test_magnitudes_have_both_signs_and_every_order(dtype: str) -> None:
    model = line("y = Identity (x)", f"{dtype}[400]")
    found = draw_feed(model, {"x": (400,)}, "magnitudes", 0).arrays["x"].astype(np.float64)
    orders = np.floor(np.log10(np.abs(found)))
    assert set(range(-6, 4)) <= set(orders.astype(int)) and 100 < (found < 0).sum() < 300


def test_sizes_are_small_and_odd_too() -> None:
    model = parsed("net (float[N,3,H,W] x, float[N,K] z) => (float[N,3,H,W] y) { y = Neg (x) }")
    first, _ = next(shape_assignments(model, {}))
    found = [made for made, _ in small_shapes(model, {}, first)]
    assert all(made["x"][0] == made["z"][0] and made["x"][1] == 3 for made in found)
    for place in (0, 2, 3):
        sizes = {made["x"][place] for made in found}
        assert {1, 2, 3} <= sizes and (place == 0 or any(n % 2 and n > 3 for n in sizes))
    alone = [made["x"][2:] for made in found if 1 in made["x"][2:]]
    assert {(1, 32), (32, 1)} <= set(alone)
    assert not list(
        small_shapes(parsed("net (float[2,3] x) => (float[2,3] y) { y = Neg (x) }"), {}, {"x": (2, 3)})
    )


USES = {
    "y = Gather (t, x)": IntegerUses({"x": (-9, 8)}),
    "c = Cast <to = 6> (x) a = Concat <axis = 0> (c, c) y = Gather (t, a)": IntegerUses({"x": (-9, 8)}),
    "a = Gather <axis = 1> (t, x) y = Gather (a, x)": IntegerUses({"x": (-4, 3)}),
    "o = Constant <value_int = 2> () a = Mul (x, o) y = Gather (t, a)": IntegerUses(),
    "y = Expand (t, x)": IntegerUses(),
    "y = Cast <to = 1> (x)": IntegerUses(unrestricted=frozenset("x")),
    "z = Constant <value_int = 2> () n = Less (x, z) y = Cast <to = 1> (n)": IntegerUses({}, frozenset("x")),
}


@pytest.mark.parametrize("body", USES)
def test_what_integers_are_used_for(body: str) -> None:
    model = line(body, "int64[2]", "float[N,M]", t=np.zeros((9, 4), np.float32))
    assert find_integer_uses(import_model(model, {})) == USES[body]


@pytest.mark.parametrize(
    ("error", "scale", "compared", "passes"),
    [
        (1e-10, 1.0, True, True),
        (1e-10, 1.0, False, False),  # there is no reference: nobody compares in float64
        (1e-10, 1e-5, True, False),  # of an output that stays small everywhere
        (1e-10, 0.0, True, False),  # nobody knows how large it becomes
        (1e-6, 1.0, True, False),
        (float("inf"), 1.0, True, False),
    ],
)
def test_tails_of_a_function_are_compared_in_float64_alone(
    error: float, scale: float, compared: bool, passes: bool
) -> None:
    """A sigmoid of -32.5 is 7.6e-15, 0 in one kernel and 1.6e-13 in another, whichever the runtime fuses."""
    exact = np.full(100, 7.6e-15)
    exact[:50] = np.linspace(0.1, 0.9, 50)
    own = np.where(exact > 0.01, exact, 0).astype(np.float32)
    result = own.copy()
    result[70] = 7.6e-15 + error
    original, notes = OriginalOutput(exact, own, scale=scale), list[str]()
    row = SimpleNamespace(reference_outputs=[exact] if compared else None, feed=None)
    base = SimpleNamespace(names=["y"], candidate=None, note=notes.append, run_unfused=lambda *rest: None)
    first = original.judge(result)
    assert not first.passed
    trial = CandidateTrial(base)  # type: ignore[arg-type]
    found = trial._give_last_chances(row, 0, original, result, first)  # type: ignore[arg-type]
    assert found.passed is passes and bool(notes) is passes
    # where the candidate turns out to have no reference, they are judged as all others
    assert [sight.finding for _, sight in trial._passed_without_tails] == [first] * passes
    result[10] += np.float32(1e-4)  # what is wrong elsewhere stays wrong
    first = original.judge(result)
    assert not CandidateTrial(base)._give_last_chances(row, 0, original, result, first).passed  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "reach", "kind", "passes"),
    [
        (1e-10, 1.0, "edges 2", True),
        (1e-10, 1.0, "random", False),  # there, float64 has no floor
        (1e-10, 0.0, "edges 2", False),  # nobody knows how large it may become
        (1e-5, 1.0, "edges 2", False),
    ],
)
def test_tails_on_implausible_inputs(error: float, reach: float, kind: str, passes: bool) -> None:
    """1e8 at one pixel: a rounding of a weight moves what the sigmoid is of by tens."""
    exact = np.full(100, 7.6e-15)
    exact[:50] = np.linspace(0.1, 0.9, 50)
    result = exact.copy()
    result[70] += error
    feed = Feed(kind, {})
    own = OriginalOutput(exact, exact.astype(np.float32), possible_largest=reach)
    row = SimpleNamespace(reference_outputs=[exact], feed=feed, results=[own])
    base = SimpleNamespace(names=["y"], random_outputs=())
    trial = CandidateTrial(base)  # type: ignore[arg-type]
    for wrong in (0.0, 1e-4):  # what is wrong elsewhere stays wrong
        result[10] += wrong
        (sight,) = trial._judge_outputs(row, [OriginalOutput(exact, exact)], [result], in_float64=True)  # type: ignore[arg-type]
        assert sight.finding.passed is (passes and not wrong)


@pytest.mark.parametrize("sizes", ["9223372036854775807, 3, 0", "0, 4611686018427387904", "2, 99999999999"])
@pytest.mark.parametrize("kind", ["float", "int64", "bool"])
def test_sizes_that_no_array_has_are_refused_in_one_line(sizes: str, kind: str) -> None:
    """numpy counts the other sizes even where one of them is 0."""
    model = parsed(f"net ({kind}[{sizes}] x) => ({kind}[{sizes}] y) {{ y = Identity (x) }}")
    with pytest.raises(TensaurusError, match="input x of shape .*Give a smaller shape: --shape x="):
        verify(model, model, threads=1)
