"""Fast bilinear algorithms: matrices, points, convolutions of every kind, and the way into a model."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import inf, prod
from time import monotonic
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from op_samples import declared_samples
from small_programs import graph_of, node

from tensaurus.check.files.allowed_error import ERROR_FACTORS
from tensaurus.check.files.judge import OriginalOutput
from tensaurus.check.program.candidate import Candidate, Rewritten
from tensaurus.check.program.replay import check_rewrites
from tensaurus.check.program.replay import refute_equation as refuted
from tensaurus.check.program.replay_sides import sides_to_replay
from tensaurus.egraph.core.egraph_proof import prove
from tensaurus.egraph.core.finder_protocol import find_all
from tensaurus.egraph.extract.extraction_choices import Choices
from tensaurus.egraph.extract.local_search import quick_extraction
from tensaurus.expr.evaluate.fields import PrimeField, Reals
from tensaurus.expr.ir.printer import show as show_scope
from tensaurus.expr.ir.walk import scopes
from tensaurus.expr.sizes.size import Symbol, polynomial
from tensaurus.finders.bilinear import Bilinear, best_algorithm, fast_convolution_equation
from tensaurus.finders.bilinear.algorithm_candidates import (
    MAX_TILE_PRODUCTS,
    candidate_algorithms,
    error_growth,
    estimate_seconds,
)
from tensaurus.finders.bilinear.bilinear_algorithm import (
    BilinearAlgorithm,
    cook_toom,
    find_wrong_product,
    interleave,
)
from tensaurus.finders.bilinear.float32_error import draw_sample
from tensaurus.finders.bilinear.interpolation_points import MAX_PRODUCTS, MAX_ROWS, is_short
from tensaurus.finders.bilinear.recognize_convolution import recognize_convolution
from tensaurus.finders.bilinear.tiling import Algorithms, ConvolutionAxis, Tiling
from tensaurus.finders.fuse import Fuse
from tensaurus.finders.fuse.composition import compose_region
from tensaurus.graph.analysis.constant_folding import fold_constants
from tensaurus.graph.ir.node import INPUT, Node, apply, constant, source
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.graph.ir.program_text import digest_table, format_program, parse_program
from tensaurus.kernels.stages.stage import build_stages
from tensaurus.ops import TensorType, Untypable, registry
from tensaurus.optimizer.run.fast_algorithm_accuracy import (
    CAREFUL_LIMIT,
    FIRST_LIMIT,
    PROBE_LIMIT,
    UNTRIED_LIMIT,
    Accuracy,
    sample_error,
)
from tensaurus.optimizer.run.options import Options
from tensaurus.runtimes.backends.reference import evaluate
from tensaurus.runtimes.price.operation_counts import operations
from tensaurus.runtimes.price.roofline import Roofline
from tensaurus.system.errors import TensaurusError

CONV, EOP = registry["Conv"], registry["eop"]
SHORT = [
    (m, r)
    for m in range(1, MAX_PRODUCTS + 1)
    for r in range(1, MAX_PRODUCTS + 1)
    if m + r - 1 <= MAX_PRODUCTS
]
small_numbers = st.fractions(min_value=-4, max_value=4, max_denominator=8)
some_points = st.lists(small_numbers, min_size=MAX_PRODUCTS, max_size=MAX_PRODUCTS, unique=True)


# ----------------------------------------------------------------------------------------------- algorithms


@pytest.mark.parametrize(("outputs", "taps"), SHORT)
def test_the_best_points_make_an_exact_algorithm(outputs: int, taps: int) -> None:
    found = best_algorithm(outputs, taps)
    assert (found.outputs, found.taps, found.products) == (outputs, taps, outputs + taps - 1)
    rng = np.random.default_rng(0)
    w = [Fraction(int(n)) for n in rng.integers(-9, 9, taps)]
    d = [Fraction(int(n)) for n in rng.integers(-9, 9, found.products)]
    values = [dot(g, w) * dot(b, d) for g, b in zip(found.weights, found.data, strict=True)]
    assert [dot(a, values) for a in found.output] == [dot(w, d[k : k + taps]) for k in range(outputs)]
    assert found is best_algorithm(outputs, taps)
    again = cook_toom(outputs, taps, found.points)
    assert (again.output, again.weights, again.data) == (found.output, found.weights, found.data)


@pytest.mark.parametrize("step", [2, 3, 4])
@pytest.mark.parametrize(("outputs", "taps"), [(m, r) for m in (1, 2, 4) for r in (1, 2, 3, 5, 7)])
def test_an_algorithm_in_steps_is_one_for_each_phase_of_the_taps(outputs: int, taps: int, step: int) -> None:
    found = best_algorithm(outputs, taps, step)
    own = [len(range(p, taps, step)) for p in range(min(step, taps))]
    assert found.products == sum(outputs + r - 1 for r in own) <= outputs * taps
    assert [(part.outputs, part.taps) for part in found.parts] == [(outputs, r) for r in own]
    rng = np.random.default_rng(0)
    w = [Fraction(int(n)) for n in rng.integers(-9, 9, taps)]
    d = [Fraction(int(n)) for n in rng.integers(-9, 9, found.elements)]
    values = [dot(g, w) * dot(b, d) for g, b in zip(found.weights, found.data, strict=True)]
    wanted = [dot(w, d[step * k : step * k + taps]) for k in range(outputs)]
    assert [dot(a, values) for a in found.output] == wanted
    assert str(found).startswith(f"F({outputs}, {taps}) in steps of {step}: F({outputs}, {own[0]})")
    if outputs > 1:
        with pytest.raises(ValueError, match="as it should|data: a row of"):
            replace(found, step=step - 1 or 2)


def test_parts_of_other_outputs_are_no_algorithm() -> None:
    with pytest.raises(ValueError, match="unpack"):
        interleave([best_algorithm(2, 2), best_algorithm(3, 1)], 2)
    with pytest.raises(ValueError, match=r"F\(2, 3\) at .* for 3 taps in steps of 2"):
        Tiling(ConvolutionAxis(9, 3, 4, 2), best_algorithm(2, 3))


def dot(a: Any, b: Any) -> Fraction:
    return sum((m * n for m, n in zip(a, b, strict=True)), Fraction(0))


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(SHORT), some_points, st.booleans())
def test_distinct_points_make_one(sizes: tuple[int, int], numbers: list[Fraction], infinity: bool) -> None:
    points = tuple(numbers[: sum(sizes) - 1 - infinity])
    found = cook_toom(*sizes, points)
    assert find_wrong_product(found.output, found.weights, found.data) == ""
    assert found.error_growth > 0 and found.transform_effort >= 0


@pytest.mark.parametrize("points", [(0, 1, 1), (0, 1), (0, 1, -1, 2, 3)])
def test_points_that_are_none_are_refused(points: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"F\(2, 3\) at the points"):
        cook_toom(2, 3, tuple(map(Fraction, points)))


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([(2, 3), (4, 3), (3, 2), (2, 5)]), st.integers(0, 2), st.randoms(), st.integers(1, 5))
def test_one_wrong_number_is_refuted(sizes: tuple[int, int], which: int, random: Any, off: int) -> None:
    found = best_algorithm(*sizes)
    matrices = [[list(row) for row in m] for m in (found.output, found.weights, found.data)]
    row = random.choice(matrices[which])
    row[random.randrange(len(row))] += Fraction(off, 3)
    changed = [tuple(map(tuple, m)) for m in matrices]
    assert find_wrong_product(*changed) != ""
    with pytest.raises(ValueError, match=r"F\(\d, \d\) at .*: output \d"):
        BilinearAlgorithm(*sizes, found.points, *changed)


def test_matrices_of_other_sizes_are_refuted() -> None:
    found, other = best_algorithm(2, 3), best_algorithm(3, 3)
    with pytest.raises(ValueError, match="output: a row of 5 numbers, not 4"):
        replace(found, output=other.output)
    with pytest.raises(ValueError, match="3 rows of data for 4 products"):
        replace(found, data=found.data[:-1])
    for data in (tuple(row[:-1] for row in found.data), tuple((*row, Fraction(0)) for row in found.data)):
        with pytest.raises(ValueError, match="data: a row of"):
            replace(found, data=data)
    with pytest.raises(ValueError, match="weight: a row of 4 numbers, not 3"):
        replace(found, weights=(*found.weights[:-1], (*found.weights[-1], Fraction(0))))


def test_numbers_that_no_float_holds_are_multiplied_out() -> None:
    found = best_algorithm(4, 3)
    for scale in (Fraction(3**60), Fraction(1, 3**60)):
        weights = tuple(tuple(n * scale for n in row) for row in found.weights)
        data = tuple(tuple(n / scale for n in row) for row in found.data)
        assert find_wrong_product(found.output, weights, data) == ""
        data = ((*data[0][:-1], data[0][-1] + Fraction(1, 3**120)), *data[1:])
        assert "does not have weight" in find_wrong_product(found.output, weights, data)


def test_long_algorithms_are_checked_in_no_time() -> None:
    """A term for each output, product, weight and element: so many sums of fractions would take hours."""
    start, taps = monotonic(), 256
    found = interleave([best_algorithm(3, 1)] * taps, taps)
    assert (found.products, found.elements) == (3 * taps, 3 * taps)
    data = [list(row) for row in found.data]
    data[400][7] += 1
    assert "does not have weight" in find_wrong_product(
        found.output, found.weights, tuple(map(tuple, data)), taps
    )
    assert monotonic() - start < 20


def test_scaling_rows_changes_no_error() -> None:
    found = best_algorithm(4, 3)
    scaled = replace(
        found,
        weights=tuple(tuple(n * 7 for n in row) for row in found.weights),
        data=tuple(tuple(n / 7 for n in row) for row in found.data),
    )
    assert (
        scaled.error_growth == pytest.approx(found.error_growth)
        and scaled.transform_effort > found.transform_effort
    )


def test_searched_points_are_better_than_whole_ones() -> None:
    """The textbook's points for F(4, 3) have more than twice the error (Lavin and Gray)."""
    plain = cook_toom(4, 3, tuple(map(Fraction, (0, 1, -1, 2, -2))))
    assert best_algorithm(4, 3).error_growth < plain.error_growth / 2
    assert (
        best_algorithm(2, 3).points == (0, 1, -1)
        and best_algorithm(2, 3).error_growth
        < best_algorithm(4, 3).error_growth
        < best_algorithm(6, 3).error_growth
    )


@pytest.mark.parametrize(
    "kind", [(MAX_PRODUCTS, 2, 1), (2, 256, 128), (1, 9, 1), (MAX_PRODUCTS + 1, 1, 1), (2, 500, 250)]
)
def test_too_many_products_are_refused_before_they_are_made(kind: tuple[int, int, int]) -> None:
    assert not is_short(*kind)
    start = monotonic()
    with pytest.raises(ValueError, match="more than"):
        best_algorithm(*kind)
    assert monotonic() - start < 1


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 12))
def test_products_are_foreseen(outputs: int, taps: int, step: int) -> None:
    assume(is_short(outputs, taps, step))
    found = best_algorithm(outputs, taps, step)
    assert found.products == min(step, taps) * (outputs - 1) + taps <= MAX_ROWS


# ---------------------------------------------------------------------------------------------- convolutions


def tensor(name: str, *shape: Any, dtype: str = "float32") -> Node:
    return source(name, TensorType(dtype, shape))


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Node, Algorithms]:
    """A convolution of any rank, stride, dilation, groups and padding, and algorithms for it."""
    rank = draw(st.integers(1, 3))
    most = (40, 12, 6)[rank - 1]
    sizes, kernel = (
        draw(st.lists(st.integers(1, n), min_size=rank, max_size=rank)) for n in (most, (7, 7, 3)[rank - 1])
    )
    strides, dilations = (draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank)) for _ in range(2))
    pads = draw(st.lists(st.integers(0, 4), min_size=2 * rank, max_size=2 * rank))
    groups, depth, each = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    spans = [n + a + b - d * (k - 1) for n, a, b, d, k in zip(
        sizes, pads[:rank], pads[rank:], dilations, kernel, strict=True)]  # fmt: skip
    assume(min(spans) > 0)
    x = tensor("image", draw(st.integers(1, 16 if prod(sizes) < 50 else 2)), groups * depth, *sizes)
    w = tensor("weights", groups * each, depth, *kernel)
    b = [tensor("bias", groups * each)] if draw(st.booleans()) else []
    named = {"strides": strides, "dilations": dilations, "pads": pads}
    made = node("Conv", x, w, *b, group=groups, **{name: tuple(value) for name, value in named.items()})
    found = recognize_convolution(made)
    assert found is not None
    algorithms = []
    for window in found.convolution.spatial_axes:
        short = [
            outputs for outputs in range(1, MAX_PRODUCTS + 1) if is_short(outputs, window.taps, window.step)
        ]
        outputs = draw(st.sampled_from((0, *short)))
        algorithms.append(best_algorithm(outputs, window.taps, window.step) if outputs else None)
    return made, tuple(algorithms)


def exact(root: Node) -> Any:
    """At a random point of GF(p)."""
    field, rng = PrimeField(0), np.random.default_rng(1)
    inputs = [node for node in topological_order([root]) if node.op is INPUT]
    inputs.sort(key=lambda node: str(node.attribute("name")))
    feeds = {leaf.attribute("name"): field.random(leaf.tensor.shape, rng) for leaf in inputs}
    return evaluate(Program(tuple(inputs), (("y", root),)), feeds, field)["y"]


@settings(deadline=None, max_examples=100)
@given(convolutions())
def test_convolutions_of_every_kind(case: tuple[Node, Algorithms]) -> None:
    made, algorithms = case
    equation = fast_convolution_equation(made, algorithms)
    assert equation is not None
    (right,) = equation.right
    assert right.types == made.types
    assert np.array_equal(exact(right), exact(made))


@pytest.mark.parametrize("sample", declared_samples(), ids=str)
def test_what_is_recognised_is_equal(sample: Any) -> None:
    """Among the examples of all operators there is no other than convolutions that is one."""
    inputs = [kind and source(f"x{k}", kind) for k, kind in enumerate(sample.types)]
    try:
        made = apply(sample.op, inputs, sample.example.attrs)
    except Untypable:
        return
    found = recognize_convolution(made)
    assert (found is not None) == (sample.op is CONV)
    if found is not None:
        algorithms = tuple(
            best_algorithm(2, window.taps, window.step) for window in found.convolution.spatial_axes
        )
        equation = fast_convolution_equation(made, algorithms)
        assert equation is not None and refuted(equation) is None


def test_other_products_are_none() -> None:
    x, w = tensor("x", 1, 4, 9, 9), tensor("w", 4, 4, 3, 3)
    y = node("Conv", x, w, pads=(1, 1, 1, 1))
    scope = show_scope(CONV.scopes(y.arg_types(), y.attrs)[0]).replace("w[", "x1[").replace("x[", "x0[")
    assert recognize_convolution(apply(EOP, [x, w], {"scope": scope})) is not None
    for old, new in ((" | 0", " | 1"), ("sum[", "max["), ("mul(", "add(")):
        assert old in scope
        assert recognize_convolution(apply(EOP, [x, w], {"scope": scope.replace(old, new)})) is None


def test_symbolic_and_empty_sizes_are_left_alone() -> None:
    for x in (tensor("x", polynomial(Symbol("N", 1)), 4, 9, 9), tensor("x", 0, 4, 9, 9)):
        assert recognize_convolution(node("Conv", x, tensor("w", 4, 4, 3, 3))) is None
    halves = (tensor(name, 4, 4, 3, 3, dtype="float16") for name in "xw")
    assert recognize_convolution(node("Conv", *halves)) is None


def test_an_expression_is_a_convolution_too() -> None:
    """Its operator's name does not matter."""
    x, w, b = tensor("x", 2, 6, 9, 8), tensor("w", 4, 3, 3, 3), tensor("b", 4)
    y = node("Conv", x, w, b, group=2, strides=(2, 1), pads=(1, 0, 1, 2))
    equation = compose_region(Piece.of(y))
    assert equation is not None
    (made,) = equation.right
    first, second = recognize_convolution(y), recognize_convolution(made)
    assert made.op is EOP and first is not None and second is not None
    assert first.convolution == second.convolution


# ----------------------------------------------------------------------------------------------- into a model

PEAKS = Roofline(1 / 1.2e11, 1 / 1e11, 1 / 2e10, 1 << 20)


def layers(*shapes: tuple[int, int, int], size: int = 16) -> Program:
    """Convolutions of (channels, filters, taps) with relus between, an addition at the end."""
    rng = np.random.default_rng(0)
    x = tensor("x", 1, shapes[0][0], size, size)
    y = x
    for channels, filters, taps in shapes:
        w = rng.standard_normal((filters, channels, taps, taps)) / np.sqrt(channels * taps**2)
        b = rng.standard_normal(filters)
        weights = [constant(n.astype(np.float32)) for n in (w, b)]
        before, y = y, node("Relu", node("Conv", y, *weights, pads=(taps // 2,) * 4))
    y = node("Relu", node("Add", y, before)) if y.types == before.types else y
    return Program((x,), (("y", y),))


def test_a_finder_proposes_what_should_pay() -> None:
    whole = layers((64, 64, 3), (64, 64, 3), (64, 64, 3), (64, 64, 1), size=28)
    finder = Bilinear(PEAKS)
    first, *others = (node for node in whole.active if node.op is CONV)
    equations = finder.find_equations(first)
    assert 2 <= len(equations) <= 3 and all(refuted(equation) is None for equation in equations)
    assert equations is finder.find_equations(others[0]) and not finder.find_equations(others[-1])
    grown = [error_growth(e.algorithms) for e in equations]  # type: ignore[attr-defined]
    assert grown == sorted(grown, reverse=True)
    graph, _ = graph_of(whole)
    assert not list(finder(graph, 1000))
    graph.programs.append(whole)
    found = list(finder(graph, 1000))
    assert len(found) == 3 * len(equations)
    kernels = {proposal.equation.right for proposal in found}
    assert len(kernels) == len(equations)  # of equal layers
    assert not list(Bilinear(PEAKS, lambda of, algorithms: False)(graph, 1000)) and not list(finder(graph, 0))


@pytest.mark.parametrize("shape", [(64, 64, 1, 56), (3, 3, 3, 56), (512, 512, 3, 1)])
def test_nothing_is_proposed_where_nothing_pays(shape: tuple[int, int, int, int]) -> None:
    """Single taps, few channels, and layers that read more weights than they multiply."""
    whole = layers(shape[:3], size=shape[3])
    assert not any(Bilinear(PEAKS).find_equations(node) for node in whole.active)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    ("taps", "stride", "dilation"), [(256, 128, 1), (400, 160, 3), (500, 499, 1), (999, 7, 2)]
)
def test_long_kernels_are_left_alone_at_once(rank: int, taps: int, stride: int, dilation: int) -> None:
    x, w = tensor("x", 1, 4, *[2 * dilation * taps] * rank), tensor("w", 258, 4, *[taps] * rank)
    made = node("Conv", x, w, strides=(stride,) * rank, dilations=(dilation,) * rank)
    start = monotonic()
    assert not Bilinear(PEAKS).find_equations(made)
    assert monotonic() - start < 2


def test_what_a_kernel_could_not_hold_is_not_proposed() -> None:
    """Of three dimensions 15 products each there would be code for 3375."""
    x, w = tensor("x", 1, 64, 28, 28, 28), tensor("w", 64, 64, 7, 7, 7)
    found = recognize_convolution(node("Conv", x, w, strides=(2, 2, 2), pads=(3,) * 6))
    assert found is not None
    chosen = candidate_algorithms(found.convolution, PEAKS)
    assert chosen and all(prod(a.products for a in each if a) <= MAX_TILE_PRODUCTS for each in chosen)


def test_estimates_are_those_of_the_expressions() -> None:
    whole = layers((64, 64, 3), size=28)
    (layer,) = (node for node in whole.active if node.op is CONV)
    found = recognize_convolution(layer)
    assert found is not None
    plain = Roofline(1.0, 0.0, 0.0)
    for algorithms in candidate_algorithms(found.convolution, PEAKS):
        equation = fast_convolution_equation(layer, algorithms)
        assert equation is not None
        before, after = (
            estimate_seconds(found.convolution, each, plain) for each in ((None, None), algorithms)
        )
        assert 1.2 < before / after < operations(layer) / operations(equation.right[0]) < 4


def test_it_goes_all_the_way() -> None:
    """From the finders through the extraction to a program that is proved, with what follows fused."""
    whole = layers((32, 32, 3), (32, 32, 3))
    graph, roots = graph_of(whole)
    graph.programs.append(whole)
    bilinear = Bilinear(PEAKS)
    assert find_all(graph, [bilinear, Fuse(variants=bilinear.variants)], 5000) > 5
    choices = Choices(graph, roots)
    fast = {e.right[0].attribute("scope") for n in whole.active for e in bilinear.find_equations(n)}

    def price(piece: Piece) -> float:
        kernel = piece.root.op is EOP
        deep = kernel and len(list(scopes(piece.root.attribute("scope")))) > 3
        assert not kernel or deep or piece.root.attribute("scope") not in fast
        return (0.1 if deep else 1.0) * len(piece.inner)

    made = choices.program(
        whole, quick_extraction(choices.problem(choices.price_choices([price(p) for p in choices.pieces])))
    )
    assert [n.op for n in made.active] == [EOP, EOP]  # relus and the addition are inside
    assert all(n.args[1] is not None and n.args[1].static for n in made.active)
    assert parse_program(format_program(made), digest_table(made)) == made
    proof = prove(graph, list(zip(roots, made.roots, strict=True)))
    assert proof.holds() and any(e.name.startswith("F(") for e in proof.equations)
    replay = check_rewrites([Candidate(made, 1.0, Rewritten(lambda: proof.equations, Candidate(whole, 2.0)))])
    assert replay.passed and replay.trials and replay.error_bound < 1e-3, replay.detail

    folded = fold_constants(made)
    assert not any(n.static for n in folded.nodes if n.op is EOP)
    x = np.random.default_rng(1).standard_normal(whole.inputs[0].tensor.shape)
    expected = evaluate(whole, {"x": x}, Reals())["y"]
    np.testing.assert_allclose(evaluate(made, {"x": x}, Reals())["y"], expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(evaluate(folded, {"x": x}, Reals())["y"], expected, rtol=1e-4, atol=1e-4)


def test_stages_are_the_transforms_and_one_product() -> None:
    for taps, rank in (((3, 3), 2), ((3,), 1), ((3, 3, 3), 3), ((1, 3), 1)):
        x, w = tensor("x", 1, 8, *(9 for _ in taps)), tensor("w", 8, 8, *taps)
        algorithms = tuple(best_algorithm(2, 3) if n == 3 else None for n in taps)
        equation = fast_convolution_equation(node("Conv", x, w), algorithms)
        assert equation is not None
        made = build_stages(equation.right[0].attribute("scope"))
        assert len(made) == 2 * rank + 2
        assert [len(stage.sources) for stage in made] == [1] * rank + [2] + [1] * rank + [1]


def test_a_wrong_equation_is_refuted() -> None:
    x, w = tensor("x", 1, 4, 9, 9), tensor("w", 4, 4, 3, 3)
    y, z = (node("Conv", x, w, pads=(p, 1, 2 - p, 1)) for p in (1, 0))
    right, wrong = (
        fast_convolution_equation(n, (best_algorithm(2, 3), best_algorithm(4, 3))) for n in (y, z)
    )
    assert right is not None and wrong is not None and refuted(right) is None
    assert "differ" in str(refuted(replace(right, right=wrong.right)))


# ---------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("outputs", "taps", "step", "rank"),
    [
        *((2, 3, 1, 2), (4, 3, 1, 2), (2, 5, 1, 2), (4, 3, 1, 1), (2, 3, 1, 3)),
        *((4, 3, 2, 2), (4, 7, 2, 2), (2, 5, 3, 1)),
    ],
)
def test_errors_are_as_predicted(outputs: int, taps: int, step: int, rank: int) -> None:
    """Between what is predicted beside a sum in blocks, and beside one term after the other."""
    algorithms = (best_algorithm(outputs, taps, step),) * rank
    sample = draw_sample(algorithms, 64)
    np.testing.assert_allclose(sample.fast, sample.exact, rtol=1e-3, atol=1e-4)
    predicted = error_growth(algorithms)
    assert predicted / taps**rank < sample.error_growth < 2 * predicted


def test_larger_tiles_have_larger_errors() -> None:
    grown = [sample_error((best_algorithm(m, 3),) * 2, 64) for m in (2, 4, 6)]
    assert grown == sorted(grown) and grown[0] < 0.75 and grown[2] > 2 * grown[1] > 0
    assert sample_error((best_algorithm(4, 3),) * 2, 64) == grown[1]


@pytest.mark.parametrize("level", ERROR_FACTORS)
def test_a_model_is_held_back_where_it_must(level: str) -> None:
    whole = layers((64, 64, 3), size=28)
    (layer,) = (node for node in whole.active if node.op is CONV)
    found = recognize_convolution(layer)
    assert found is not None
    notes: list[str] = []
    tried: list[Program] = []

    def judged(error: float | None) -> Any:
        return lambda program: tried.append(program) or error

    free = Accuracy(level, whole, PEAKS, judged(0.4))
    assert free.allows(found.convolution, (best_algorithm(4, 3),) * 2) and len(tried) == 1
    held = Accuracy(level, whole, PEAKS, judged(inf), notes.append)
    assert held.allows(found.convolution, (best_algorithm(2, 3),) * 2) and notes
    margin = ERROR_FACTORS[level]
    assert held.layer_limit == CAREFUL_LIMIT * margin < free.layer_limit == FIRST_LIMIT * margin
    assert not held.allows(found.convolution, (best_algorithm(6, 3),) * 2)
    beyond = Accuracy(level, whole, PEAKS, judged(20 * margin), notes.append)
    assert not beyond.layer_limit and not beyond.allows(found.convolution, (best_algorithm(2, 3),) * 2)
    assert f"would use {20 * margin:.2g} of the" in notes[-1]
    unsaid = Accuracy(level, whole, PEAKS, judged(None))  # by standard operators of its opset
    assert unsaid.layer_limit == UNTRIED_LIMIT * margin


@pytest.mark.parametrize("level", ERROR_FACTORS)
@pytest.mark.parametrize("growth", [2.0, 3.0, 4.0])
def test_a_model_that_adds_errors_up_gets_algorithms_of_smaller_ones(level: str, growth: float) -> None:
    """Deep networks make several times of a layer's error; then tiles are smaller, not excluded."""
    whole, margin = layers((64, 64, 3), size=28), ERROR_FACTORS[level]
    (layer,) = (node for node in whole.active if node.op is CONV)
    convolution = recognize_convolution(layer).convolution  # type: ignore[union-attr]
    tried: list[float] = []

    def measured(program: Program) -> float:
        """The error of the layer's algorithm, of which the model makes several times as much."""
        found = [a for a in sizes if Bilinear(PEAKS, lambda _, asked, a=a: asked == a).find_equations(layer)]
        (made,) = (a for a in found if program_with(a).roots == program.roots)
        tried.append(growth * error(made))
        return tried[-1]

    def error(algorithms: Algorithms) -> float:
        return sample_error(algorithms, 1 << (convolution.depth(algorithms) - 1).bit_length())

    def program_with(algorithms: Algorithms) -> Program:
        finder = Bilinear(PEAKS, lambda _, asked: asked == algorithms)
        return next(finder.variants(whole), whole)

    sizes = [(best_algorithm(m, 3), best_algorithm(n, 3)) for m in range(2, 7) for n in range(2, 7)]
    sizes += [(None, best_algorithm(m, 3)) for m in range(2, 7)]
    sizes += [(best_algorithm(m, 3), None) for m in range(2, 7)]
    accuracy = Accuracy(level, whole, PEAKS, measured)
    limit = accuracy.layer_limit
    admitted = [a for a in sizes if accuracy.allows(convolution, a)]
    assert limit > 0 and admitted and tried[-1] <= PROBE_LIMIT * margin
    assert all(each > PROBE_LIMIT * margin for each in tried[:-1])
    assert all(error(a) <= limit for a in admitted)


@pytest.mark.parametrize("rest", [dict[str, Any](), {"strides": (2, 2)}, {"dilations": (2, 2)}], ids=str)
def test_large_layers_are_replayed_on_small_ones(rest: dict[str, Any]) -> None:
    """With what was fused to them, too: their tensors would have more elements than can be replayed."""
    x, w, b = tensor("x", 16, 64, 224, 224), tensor("w", 64, 64, 3, 3), tensor("b", 64)
    layer = node("Conv", x, w, b, pads=(1, 1, 1, 1), **rest)
    found = recognize_convolution(layer)
    assert found is not None
    equation = fast_convolution_equation(
        layer, tuple(best_algorithm(2, w.taps, w.step) for w in found.convolution.spatial_axes)
    )
    assert equation is not None
    weights, beside = equation.right[0].args[1], tensor("r", *layer.tensor.shape)
    assert weights is not None
    after = node("Relu", equation.right[0] if rest else node("Add", equation.right[0], beside))
    fused = compose_region(Piece(after, (x, weights, b, *([] if rest else [beside]))))
    assert fused is not None
    for each in (equation, fused):
        for side in sides_to_replay(each):
            assert max(prod(n.tensor.shape) for n in side.nodes) < 1 << 18  # type: ignore[type-var]


def test_a_level_is_a_multiple_of_what_is_allowed() -> None:
    with pytest.raises(TensaurusError, match="unknown --accuracy 'exact'"):
        Options(accuracy="exact")
    sample = draw_sample((cook_toom(4, 3, tuple(map(Fraction, (0, 1, -1, 2, -2)))),) * 2, 16)
    direct = OriginalOutput(sample.exact, sample.direct(sample.data, sample.weights))
    once, more = (direct.judge(sample.fast, margin) for margin in (1.0, 100.0))
    assert not once.passed and more.passed and once.worst == pytest.approx(100 * more.worst)
