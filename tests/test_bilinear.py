"""Fast bilinear algorithms: matrices, points, scopes of every kind of convolution, and the way into a model."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from op_samples import declared_samples
from small_programs import graph_of, node

from tensaurus.algebra.expr import Tensor
from tensaurus.algebra.field import Prime, Reals
from tensaurus.algebra.interpret import interpret
from tensaurus.backends.reference import evaluate
from tensaurus.bilinear import Bilinear, best, convolution
from tensaurus.bilinear.algorithm import Algorithm, cook_toom, refutation
from tensaurus.bilinear.candidates import candidates, growth, seconds
from tensaurus.bilinear.points import MOST
from tensaurus.bilinear.recognition import recognised
from tensaurus.bilinear.tiling import Algorithms
from tensaurus.codegen.stage import staged
from tensaurus.cost.demand import operations
from tensaurus.cost.roofline import ONE_CORE, Roofline
from tensaurus.egraph.choices import Choices
from tensaurus.egraph.finder import find_all
from tensaurus.egraph.proof import prove
from tensaurus.equivalence.chain import check_rewrites
from tensaurus.equivalence.chain import refutation as refuted
from tensaurus.extraction.improve import quick
from tensaurus.fuse import Fuse
from tensaurus.graph.fold import fold
from tensaurus.graph.node import CONSTANT, Node, apply, constant, source
from tensaurus.graph.program import Program
from tensaurus.graph.text import parse_program, show, table
from tensaurus.ops import TensorType, registry
from tensaurus.search.candidate import Candidate, Rewritten

CONV, EOP = registry["Conv"], registry["eop"]
SHORT = [(m, r) for m in range(1, MOST + 1) for r in range(1, MOST + 1) if m + r - 1 <= MOST]
small_numbers = st.fractions(min_value=-4, max_value=4, max_denominator=8)


# ----------------------------------------------------------------------------------------------- algorithms


@pytest.mark.parametrize(("outputs", "taps"), SHORT)
def test_the_best_points_make_an_exact_algorithm(outputs: int, taps: int) -> None:
    found = best(outputs, taps)
    assert (found.outputs, found.taps, found.products) == (outputs, taps, outputs + taps - 1)
    rng = np.random.default_rng(0)
    w = [Fraction(int(n)) for n in rng.integers(-9, 9, taps)]
    d = [Fraction(int(n)) for n in rng.integers(-9, 9, found.products)]
    values = [dot(g, w) * dot(b, d) for g, b in zip(found.weights, found.data, strict=True)]
    assert [dot(a, values) for a in found.output] == [dot(w, d[k : k + taps]) for k in range(outputs)]
    assert found is best(outputs, taps)
    again = cook_toom(outputs, taps, found.points)
    assert (again.output, again.weights, again.data) == (found.output, found.weights, found.data)


def dot(a: Any, b: Any) -> Fraction:
    return sum((m * n for m, n in zip(a, b, strict=True)), Fraction(0))


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(SHORT), st.lists(small_numbers, min_size=MOST, max_size=MOST, unique=True), st.booleans())
def test_any_distinct_points_make_one(sizes: tuple[int, int], numbers: list[Fraction], infinity: bool) -> None:
    points = tuple(numbers[: sum(sizes) - 1 - infinity])
    found = cook_toom(*sizes, points)
    assert refutation(found.output, found.weights, found.data) == ""
    assert found.growth > 0 and found.effort >= 0


@pytest.mark.parametrize("points", [(0, 1, 1), (0, 1), (0, 1, -1, 2, 3)])
def test_points_that_are_none_are_refused(points: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"F\(2, 3\) at the points"):
        cook_toom(2, 3, tuple(map(Fraction, points)))


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([(2, 3), (4, 3), (3, 2), (2, 5)]), st.integers(0, 2), st.randoms(), st.integers(1, 5))
def test_one_wrong_number_is_refuted(sizes: tuple[int, int], which: int, random: Any, off: int) -> None:
    found = best(*sizes)
    matrices = [[list(row) for row in m] for m in (found.output, found.weights, found.data)]
    row = random.choice(matrices[which])
    row[random.randrange(len(row))] += Fraction(off, 3)
    changed = [tuple(map(tuple, m)) for m in matrices]
    assert refutation(*changed) != ""
    with pytest.raises(ValueError, match=r"F\(\d, \d\) at .*: output \d"):
        Algorithm(*sizes, found.points, *changed)


def test_matrices_of_other_sizes_are_refuted() -> None:
    found, other = best(2, 3), best(3, 3)
    with pytest.raises(ValueError, match="an output of 5 products, not 4"):
        replace(found, output=other.output)
    with pytest.raises(ValueError, match="rows"):
        replace(found, data=found.data[:-1])


def test_scaling_rows_changes_no_error() -> None:
    found = best(4, 3)
    scaled = replace(
        found,
        weights=tuple(tuple(n * 7 for n in row) for row in found.weights),
        data=tuple(tuple(n / 7 for n in row) for row in found.data),
    )
    assert scaled.growth == pytest.approx(found.growth) and scaled.effort > found.effort


def test_searched_points_are_better_than_whole_ones() -> None:
    """The textbook's points for F(4, 3) have more than twice the error (Lavin and Gray)."""
    plain = cook_toom(4, 3, tuple(map(Fraction, (0, 1, -1, 2, -2))))
    assert best(4, 3).growth < plain.growth / 2
    assert best(2, 3).points == (0, 1, -1) and best(2, 3).growth < best(4, 3).growth < best(6, 3).growth


def test_too_many_products_are_refused() -> None:
    with pytest.raises(ValueError, match="more than"):
        best(MOST, 2)


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
    attrs = {"strides": strides, "dilations": dilations, "pads": pads, "group": groups}
    made = node("Conv", x, w, *b, **{name: value if name == "group" else tuple(value) for name, value in attrs.items()})
    found = recognised(made)
    assert found is not None
    algorithms = []
    for window in found.convolution.windows:
        sizes_of_tile = range(1, MOST + 2 - window.reach)
        outputs = draw(st.sampled_from((0, *sizes_of_tile)))
        algorithms.append(best(outputs, window.reach) if outputs else None)
    return made, tuple(algorithms)


def exact(root: Node) -> Any:
    """At a random point of GF(p)."""
    field, rng = Prime(0), np.random.default_rng(1)
    leaves = dict.fromkeys(arg for n in Program((), (("y", root),)).nodes for arg in n.args if arg and not arg.args)
    inputs = sorted(leaves, key=lambda leaf: leaf.attribute("name"))
    feeds = {leaf.attribute("name"): field.random(leaf.tensor.shape, rng) for leaf in inputs}
    return evaluate(Program(tuple(inputs), (("y", root),)), feeds, field)["y"]


@settings(deadline=None, max_examples=150)
@given(convolutions())
def test_convolutions_of_every_kind(case: tuple[Node, Algorithms]) -> None:
    made, algorithms = case
    equation = convolution(made, algorithms)
    assert equation is not None
    (right,) = equation.right
    assert right.types == made.types
    assert np.array_equal(exact(right), exact(made))


@pytest.mark.parametrize("sample", [s for s in declared_samples() if s.op is CONV], ids=str)
def test_every_declared_convolution(sample: Any) -> None:
    made = sample.node
    assert recognised(made) is not None
