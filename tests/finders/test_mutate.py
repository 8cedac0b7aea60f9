"""Partially equivalent mutants: the paper's are found, their boxes are right, corrected they are equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tensaurus.check.program.field_check import check_field
from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.finder_protocol import find_all
from tensaurus.expr.analysis.box import Box, Progression
from tensaurus.expr.analysis.summation_regions import summation_regions
from tensaurus.finders.mutate import Mutate
from tensaurus.finders.mutate.cancel_inverses import cancel_inverses
from tensaurus.finders.mutate.compare_boxes import error_bits, restrict_scope
from tensaurus.finders.mutate.correct_mutant import (
    CorrectedMutant,
    MutantExpressions,
    correct_mutant,
    join_boxes,
)
from tensaurus.finders.mutate.mutant_search import Mutant, MutantSearch
from tensaurus.finders.mutate.mutant_text import draw_boxes, format_mutants, format_search
from tensaurus.finders.mutate.reindexing import Digit, Reindexing
from tensaurus.finders.mutate.subprogram import Subprogram, find_subprograms
from tensaurus.graph.ir.node import Node, apply, source
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.build_cache import BuildCache
from tensaurus.ops import TensorType, registry
from tensaurus.rules.language.evidence import Proved
from tensaurus.rules.language.match import make_expander
from tensaurus.rules.language.rule import library
from tensaurus.runtimes.price.standalone_model import standalone_model


def f32(*shape: int) -> TensorType:
    return TensorType("float32", shape)


def conv(x: Node, w: Node, **attrs: Any) -> Node:
    return apply(registry["Conv"], [x, w], attrs)


def subprogram_of(*nodes: Node) -> Subprogram:
    found = Subprogram.of(nodes)
    assert found is not None
    return found


def find(subprogram: Subprogram, wanted: Callable[[Mutant], bool]) -> CorrectedMutant:
    """Return the first mutant of the search that is wanted, corrected and compared in every element."""
    mutant = next(each for each in MutantSearch(subprogram).run() if wanted(each))
    corrected = correct_mutant(subprogram, mutant)
    assert_equal_everywhere(subprogram, corrected)
    return corrected


def program(subprogram: Subprogram, roots: Sequence[Node]) -> Program:
    return Program(subprogram.inputs, tuple((f"y{k}", root) for k, root in enumerate(roots)))


def assert_equal_everywhere(subprogram: Subprogram, corrected: CorrectedMutant) -> None:
    equation = corrected.equation
    check = check_field(program(subprogram, equation.left), program(subprogram, equation.right))
    assert check.passed and check.trials, check.detail


def arrangement(mutant: Mutant, operand: int = 0) -> str:
    return str(mutant.candidate.arrangements[operand])


def attribute(mutant: Mutant, name: str) -> Any:
    return dict(mutant.candidate.attrs)[name]


def test_two_images_side_by_side_are_one_convolution() -> None:
    """PET, Figures 1, 4 and 5."""
    x, w = source("x", f32(4, 3, 6, 6)), source("w", f32(5, 3, 3, 3))
    subprogram = subprogram_of(conv(x, w, pads=(1, 1, 1, 1)))
    corrected = find(
        subprogram,
        lambda m: arrangement(m) == "[n1, c, h, n0 w] (n by 2)" and attribute(m, "pads") == (1, 1, 1, 1),
    )
    expressions = MutantExpressions(subprogram, corrected.mutant)
    assert len(summation_regions(expressions.originals[0])) == 9
    # of the even images and of the odd ones: two ranges of columns by three of rows
    regions = summation_regions(expressions.mutants[0])
    assert [sum(parity in region.box.sides[0] for region in regions) for parity in (0, 1)] == [6, 6]
    assert sorted(map(str, corrected.corrections[0])) == ["[0:3:2, 0:5, 0:6, 5:6]", "[1:4:2, 0:5, 0:6, 0:1]"]
    assert corrected.mutant.share == pytest.approx(5 / 6)
    assert isinstance(corrected.equation.evidence, Proved)


def test_a_dilated_convolution_becomes_a_standard_one() -> None:
    """PET, Figure 3."""
    x, w = source("x", f32(1, 2, 8, 8)), source("w", f32(3, 2, 3, 3))
    subprogram = subprogram_of(conv(x, w, pads=(2, 2, 2, 2), dilations=(2, 2)))
    corrected = find(subprogram, lambda m: attribute(m, "dilations") == (1, 1) and m.share > 0.5)
    assert corrected.mutant.work <= 1.5
    standard = find(subprogram, lambda m: attribute(m, "dilations") == (1, 1) and m.share == 1)
    assert not standard.corrections[0] and standard.proved_share == 1


def test_a_strided_convolution_becomes_one_of_stride_one() -> None:
    """PET, section 8.3.1: the places and taps of each parity become channels."""
    x, w = source("x", f32(1, 2, 6, 6)), source("w", f32(3, 2, 3, 3))
    subprogram = subprogram_of(conv(x, w, pads=(1, 1, 1, 1), strides=(2, 2)))
    corrected = find(subprogram, lambda m: attribute(m, "strides") == (1, 1) and m.share == 1)
    assert "zeros: 1 before h, 1 before w" in arrangement(corrected.mutant, 1)
    assert corrected.mutant.work == pytest.approx(16 / 9)


def test_a_grouped_convolution_becomes_one_of_more_images() -> None:
    x, w = source("x", f32(1, 10, 5, 5)), source("w", f32(6, 5, 3, 3))
    subprogram = subprogram_of(conv(x, w, pads=(1, 1, 1, 1), group=2))
    corrected = find(subprogram, lambda m: attribute(m, "group") == 1)
    assert arrangement(corrected.mutant) == "[c1 n, c0, h, w] (c into 2)"
    assert corrected.mutant.work == 2
    assert corrected.corrections == ((),)


@pytest.mark.nightly
def test_one_large_image_becomes_sixteen_small_ones() -> None:
    """PET, section 8.3.1: 1x48x38x38 as 16x48x10x10, here with fewer channels."""
    x, w = source("x", f32(1, 2, 38, 38)), source("w", f32(1, 2, 5, 5))
    subprogram = subprogram_of(conv(x, w, pads=(2, 2, 2, 2)))

    def is_wanted(mutant: Mutant) -> bool:
        shape = mutant.candidate.operand_shapes([(1, 2, 38, 38), (1, 2, 5, 5)])[0]
        return shape == (16, 2, 10, 10) and attribute(mutant, "pads") == (2, 2, 2, 2)

    corrected = find(subprogram, is_wanted)
    # four rows and four columns where two small images meet, three times each, which may overlap
    assert len(corrected.corrections[0]) == 6
    assert corrected.mutant.share == pytest.approx((26 / 38) ** 2)


@pytest.mark.parametrize("shared", [True, False])
def test_parallel_convolutions_become_one_grouped_convolution(shared: bool) -> None:
    """PET, Figure 10 (a), with filters of zeros; and (b), where the data are duplicated."""
    x, y = source("x", f32(1, 4, 5, 5)), source("y", f32(1, 4, 5, 5))
    v, w = source("v", f32(3, 4, 3, 3)), source("w", f32(2, 4, 3, 3))
    pads = (1, 1, 1, 1)
    subprogram = subprogram_of(conv(x, v, pads=pads), conv(x if shared else y, w, pads=pads))
    corrected = find(subprogram, lambda m: attribute(m, "group") == 2)
    assert arrangement(corrected.mutant, 1) == "stacked along dimension 0"
    assert corrected.mutant.work == pytest.approx(6 / 5)


def test_products_of_different_shapes_become_one_batched_product() -> None:
    """PET, section 8.3.3."""
    matmul = registry["MatMul"]
    x, v, y, w = (source(f"x{k}", f32(*shape)) for k, shape in enumerate([(4, 6), (6, 5), (3, 6), (6, 4)]))
    corrected = find(subprogram_of(apply(matmul, [x, v]), apply(matmul, [y, w])), lambda m: True)
    assert corrected.mutant.candidate.op is matmul
    assert corrected.equation.right[0].tensor.shape == (4, 5)


def test_a_wrong_correction_is_found() -> None:
    x, w = source("x", f32(4, 1, 4, 4)), source("w", f32(1, 1, 3, 3))
    subprogram = subprogram_of(conv(x, w, pads=(1, 1, 1, 1)))
    corrected = find(subprogram, lambda m: arrangement(m) == "[n1, c, h, n0 w] (n by 2)")
    expressions = MutantExpressions(subprogram, corrected.mutant)
    for k, box in enumerate(corrected.corrections[0]):
        others = [b for b in corrected.corrections[0] if b is not box]
        shorter = Box((*box.sides[:2], Progression(1, 3), box.sides[3]))
        for wrong in ([*others], [*others, shorter]):
            root = expressions.correct_output(0, wrong)
            check = check_field(program(subprogram, subprogram.roots), program(subprogram, [root]))
            assert not check.passed, (k, wrong)


def test_thirty_drawn_mutants_are_what_brute_force_says() -> None:
    from mutants import check_mutant

    reports = [check_mutant(number, 0) for number in range(30)]
    assert [report for report in reports if report.verdict == "wrong"] == []
    assert sum(report.verdict == "corrected" for report in reports) > 15
    assert sum(report.planted for report in reports) > 5


def test_boxes_are_joined_where_that_wastes_little() -> None:
    rows = [Box((Progression(k, 1), Progression(0, 8))) for k in (0, 1, 5)]
    assert sorted(map(str, join_boxes(rows))) == ["[0:2, 0:8]", "[5:6, 0:8]"]
    # a row and a column that cross: the column's two parts are joined through the row
    parts = [
        Box((Progression(4, 1), Progression(0, 9))),
        Box((Progression(0, 4), Progression(4, 1))),
        Box((Progression(5, 4), Progression(4, 1))),
    ]
    assert sorted(map(str, join_boxes(parts))) == ["[0:9, 4:5]", "[4:5, 0:9]"]


def test_a_reindexing_says_its_digits() -> None:
    two = Reindexing(
        ((2,), (), (), ()),
        ((Digit(0, 0),), (Digit(1, 0),), (Digit(2, 0),), (Digit(0, 1), Digit(3, 0))),
        (0, 0, 0, 0),
        (0, 0, 0, 1),
    )
    assert two.shape([(4, 3, 5, 6)]) == (2, 3, 5, 14)
    assert str(two) == "[n1, c, h, n0 w] (n by 2; zeros: 1 behind w)"
    assert str(Reindexing.identity(4)) == "[n, c, h, w]"


def test_the_text_shows_the_boxes_and_the_corrections() -> None:
    x, w = source("x", f32(4, 1, 4, 4)), source("w", f32(1, 1, 3, 3))
    subprogram = subprogram_of(conv(x, w, pads=(1, 1, 1, 1)))
    search = MutantSearch(subprogram)
    mutant = next(m for m in search.run() if arrangement(m) == "[n1, c, h, n0 w] (n by 2)")
    corrected = correct_mutant(subprogram, mutant)
    lines = [*format_search(search, 1), *format_mutants([(1e-6, corrected)], 2e-6)]
    text = "\n".join(lines)
    assert "the search was stopped early" in text
    assert "data:    x0 [n1, c, h, n0 w] (n by 2)" in text
    assert "corrected: [0:3:2, 0:1, 0:4, 3:4]" in text
    assert [*draw_boxes((2, 4), [Box((Progression(0, 1), Progression(3, 1)))], ["h", "w"])] == [
        "     w  0  3",
        "h    0  .  #",
        "h    1  .  .",
    ]


def test_the_finder_proposes_corrected_mutants_in_the_time_it_is_granted() -> None:
    x, w = source("x", f32(1, 2, 16, 16)), source("w", f32(8, 2, 3, 3))
    node = conv(x, w, pads=(2, 2, 2, 2), dilations=(2, 2))
    model = Program((x, w), (("y", node),))
    graph = EGraph()
    graph.insert_term(node)
    graph.programs = [model]
    finder = Mutate(seconds=lambda node: 1.0, budget=0.0)
    assert find_all(graph, [finder], 100) == 0
    assert finder.grant_time(60.0)
    assert find_all(graph, [finder], 1000) > 0
    assert not finder.grant_time(1.0)


def test_a_corrected_mutant_runs_on_onnxruntime(tmp_path: Path) -> None:
    """Two images side by side, with both corrections, as ONNX's own operators."""
    shapes = {"x0": (4, 2, 6, 6), "x1": (3, 2, 3, 3)}
    x, w = source("x", f32(*shapes["x0"])), source("w", f32(*shapes["x1"]))
    subprogram = subprogram_of(conv(x, w, pads=(1, 1, 1, 1)))
    corrected = find(subprogram, lambda m: arrangement(m) == "[n1, c, h, n0 w] (n by 2)")
    assert len(corrected.corrections[0]) == 2
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    outputs = []
    for side in (corrected.equation.left, corrected.equation.right):
        piece = Piece(side[0], subprogram.inputs)
        build = BuildCache(tmp_path, make_expander(library()))(standalone_model(piece, 17)[0])
        session = onnxruntime.InferenceSession(build.model)
        outputs.append(session.run(None, feeds)[0])
    assert np.allclose(*outputs, atol=1e-5)


def test_inverse_reindexings_between_two_mutants_cancel() -> None:
    """PET, Figures 7 and 11: two dilated convolutions with an activation between them."""
    x, v, w = source("x", f32(1, 2, 8, 8)), source("v", f32(2, 2, 3, 3)), source("w", f32(2, 2, 3, 3))
    first = conv(x, v, pads=(2, 2, 2, 2), dilations=(2, 2))
    relu = apply(registry["Relu"], [first])
    second = conv(relu, w, pads=(2, 2, 2, 2), dilations=(2, 2))
    chosen = []
    for node in (first, second):
        subprogram = subprogram_of(node)
        corrected = find(
            subprogram,
            lambda m: m.share == 1 and m.work == 1 and attribute(m, "dilations") == (1, 1),
        )
        chosen.append((subprogram, corrected))
    (equation,) = cancel_inverses(chosen)
    (right,) = equation.right
    assert right.op is relu.op
    assert right.args == equation.leaves
    check = check_field(*(Program((x, v), (("y", side[0]),)) for side in (equation.left, equation.right)))
    assert check.passed


def test_what_is_no_product_is_no_subprogram() -> None:
    x = source("x", f32(2, 3, 4, 4))
    relu = apply(registry["Relu"], [x])
    assert Subprogram.of([relu]) is None
    assert [*find_subprograms(Program((x,), (("y", relu),)))] == []


def test_a_dilated_window_of_one_place_is_no_channel() -> None:
    """Three taps two apart read beyond three elements: with fewer taps there would be more places."""
    x, w = source("x", f32(2, 2, 3)), source("w", f32(1, 2, 3))
    subprogram = subprogram_of(conv(x, w, pads=(0, 2), dilations=(2,)))
    (product,) = subprogram.products
    assert product.windows[2] == (1, 2, 0, 2, 3)
    assert product.channels == ((1, 1, 2),)


def test_an_output_that_is_too_large_for_all_filters_ends_no_search() -> None:
    """Its mutants that a few filters decide are found; the others are counted."""
    x, w = source("x", f32(1, 4, 300, 300)), source("w", f32(128, 2, 1, 1))
    search = MutantSearch(subprogram_of(conv(x, w, group=2)))
    assert search.subprogram.roots[0].tensor.shape == (1, 128, 300, 300)
    [*search.run(monotonic() + 5.0)]
    assert search.tried > 0


def test_error_bits_count_every_box() -> None:
    assert error_bits(1) == 59
    assert error_bits(1024) == 49


def test_a_scope_restricted_to_a_box_has_its_elements() -> None:
    from tensaurus.expr.evaluate.fields import Reals
    from tensaurus.expr.evaluate.interpret import interpret
    from tensaurus.expr.ir.scope import Tensor, compute

    x = Tensor("x", (6, 5))
    scope = compute((6, 5), lambda i, j: x[i, j] * 2)
    values = np.arange(30.0).reshape(6, 5)
    part = restrict_scope(scope, Box((Progression(1, 2, 3), Progression(2, 3))))
    assert np.array_equal(interpret(part, {x: values}, Reals()), 2 * values[1::3, 2:])
