"""Boxes of one summation interval and regions of constants: every operator's examples, point by point."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from op_samples import named, samples, scope_of, with_symbol

from tensaurus.expr.analysis.box import Box, Progression, full_box, intersection, is_partition
from tensaurus.expr.analysis.constant_regions import constant_boxes
from tensaurus.expr.analysis.summation_regions import Region, summation_regions
from tensaurus.expr.evaluate.fields import Reals
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.ir.scalar_functions import NEUTRAL_ELEMENTS, cast_target
from tensaurus.expr.ir.scope import (
    Body,
    Call,
    Const,
    Lookup,
    Read,
    Reduce,
    Scope,
    Select,
    Tensor,
    axis,
    compute,
    fold,
    lift,
    look,
    total,
    where,
)
from tensaurus.expr.ir.walk import children, tensors
from tensaurus.expr.normal.canonicalize import canonicalize
from tensaurus.expr.normal.flatten import flatten
from tensaurus.expr.sizes.size import Axis, Poly, Size, Symbol, atoms, evaluate, polynomial, substitute
from tensaurus.ops import Op, TensorType, Untypable, registry
from tensaurus.ops.examples import examples_of

OPS = [op for _, op in sorted(registry.items())]
LARGE = 2_000_000  # points that are not looked at one by one


def scopes_of(op: Op) -> list[Scope]:
    return [scope for types, attrs in examples_of(op) for scope in op.scopes(types, attrs)]


class Points:
    """All places of an output and all points of its reductions, as arrays of booleans."""

    def __init__(self, scope: Scope):
        self.scope, self.body = scope, flatten(scope)
        self.rank = scope.rank
        self.grid: dict[Any, Any] = dict(zip(scope.axes, np.indices(scope.shape, sparse=True), strict=True))  # type: ignore[arg-type]

    def inside(self, axes: tuple[Axis, ...], points: Any) -> Any:
        """The points with as many dimensions more as there are axes."""
        ranks = [getattr(v, "ndim", 0) for v in points.values()]
        depth = max([self.rank, *ranks])
        wider = {a: v.reshape(*v.shape, *[1] * (depth + len(axes) - v.ndim)) for a, v in points.items()}
        for place, a in enumerate(axes):
            shape = [1] * (depth + len(axes))
            shape[depth + place] = a.extent  # type: ignore[call-overload]
            wider[a] = np.arange(a.extent).reshape(shape)  # type: ignore[arg-type]
        return wider

    def value(self, size: Size, points: Any) -> Any:
        return evaluate(size, points.__getitem__)

    def is_value(self, body: Body, value: Any, points: Any) -> Any:
        """Where the body is surely this value."""
        match body:
            case Const(literal):
                return np.asarray(not isinstance(literal, (Poly, bool)) and literal == value)
            case Select(guard, then, other):
                held = np.asarray(True)
                for size in guard:
                    held = held & (self.value(size, points) >= 0)
                return np.where(held, self.is_value(then, value, points), self.is_value(other, value, points))
            case Call("mul", args) if value == 0:
                return self.is_value(args[0], 0, points) | self.is_value(args[1], 0, points)
            case Call("neg", (arg,)):
                return self.is_value(arg, -value, points)
            case Call(fn, (arg,)) if (cast_target(fn) or "").startswith("float"):
                return self.is_value(arg, value, points)
            case Reduce(monoid, axes, inner) if NEUTRAL_ELEMENTS[monoid] == value:
                wider = self.inside(axes, points)
                shape = np.broadcast_shapes(*(v.shape for v in wider.values()))
                found = np.broadcast_to(self.is_value(inner, value, wider), shape)
                return found.all(axis=tuple(range(-len(axes), 0)))
        return np.asarray(False)

    def contributions(self) -> list[Any]:
        """Of each reduction, which points of it and of those around it contribute, at each place."""
        found = []

        def visit(body: Body, around: tuple[Axis, ...], points: Any) -> None:
            if isinstance(body, Reduce):
                around, points = (*around, *body.axes), self.inside(body.axes, points)
                shape = (*self.scope.shape, *(a.extent for a in around))
                neutral = self.is_value(body.body, NEUTRAL_ELEMENTS[body.monoid], points)
                found.append(~np.broadcast_to(neutral, shape))  # type: ignore[arg-type]
            for child in children(body):
                visit(child, around, points)

        visit(self.body, (), self.grid)
        return found

    def indices(self) -> list[tuple[Size, Any]]:
        """Every index with the points at which it is read."""
        found = []

        def visit(body: Body, points: Any) -> None:
            if isinstance(body, Reduce):
                points = self.inside(body.axes, points)
            if isinstance(body, Read):
                found.extend((index, points) for index in body.indices)
            for child in children(body):
                visit(child, points)

        visit(self.body, self.grid)
        return found


def members(side: Progression) -> np.ndarray[Any, Any]:
    return np.array([side[k] for k in range(side.count)], dtype=int)  # type: ignore[arg-type]


def holds(scope: Scope, regions: tuple[Region, ...], *, exactly: bool = False) -> None:
    """Every claim about the regions, at every point."""
    shape: tuple[int, ...] = scope.shape  # type: ignore[assignment]
    seen = np.zeros(shape, int)
    for region in regions:
        seen[np.ix_(*map(members, region.box.sides))] += 1
    assert (seen == 1).all()
    assert len(regions) > 300 or is_partition([region.box for region in regions], full_box(shape))
    if any(region.summations is None for region in regions):
        assert len(regions) == 1
        return
    points = Points(scope)
    masks = points.contributions()
    for region in regions:
        place = np.ix_(*map(members, region.box.sides))
        assert region.summations is not None and len(region.summations) == len(masks)
        for summation, mask in zip(region.summations, masks, strict=True):
            here = mask[place].reshape(region.box.points, *mask.shape[len(shape) :])
            assert (here == here[:1]).all()
            claimed = np.zeros(mask.shape[len(shape) :], bool)
            if summation.points is not None:
                claimed[np.ix_(*map(members, summation.points.sides))] = True
                assert not (here[0] & ~claimed).any()
                assert not exactly or (here[0] == claimed).all()
        if region.affine:
            for index, at in points.indices():
                if any(isinstance(atom, Lookup) for atom in atoms(index)):
                    sides = dict(zip(scope.axes, region.box.sides, strict=True))
                    assert all(sides[a].count == 1 for a in sides if a in atoms(index))
                    continue
                values = np.broadcast_to(
                    points.value(index, at),
                    np.broadcast_shapes(shape, *(v.shape[: len(shape)] for v in at.values()))
                    + np.broadcast_shapes(*(v.shape[len(shape) :] for v in at.values())),
                )[place]
                for d in range(len(shape)):
                    steps = np.diff(values, axis=d)
                    first = steps[tuple(slice(0, 1) for _ in shape)]
                    assert (steps == first).all()


def drawn(scope: Scope, draw: np.random.Generator) -> dict[Tensor, Any]:
    """Values of every tensor: any reals, small integers, both bools."""
    values: dict[Tensor, Any] = {}
    for tensor in tensors(scope):
        shape: tuple[int, ...] = tensor.shape  # type: ignore[assignment]
        if tensor.dtype.startswith(("float", "bfloat")):
            values[tensor] = Reals().lift(draw.standard_normal(shape))
        else:
            values[tensor] = draw.integers(0, 2, shape).astype(bool if tensor.dtype == "bool" else np.int64)
    return values


def known_in(scope: Scope, *, exactly: bool = False) -> None:
    """Every constant that is claimed, in two evaluations; exactly where both agree."""
    draw, results = np.random.default_rng(7), []
    for _ in range(2):
        with np.errstate(all="ignore"):
            results.append(np.asarray(interpret(scope, drawn(scope, draw), Reals())))
    claimed = np.zeros(results[0].shape, bool)
    for box, value in constant_boxes(scope):
        place = np.ix_(*map(members, box.sides))
        for result in results:
            assert np.all(np.asarray(result[place], dtype=float) == float(value)), (str(box), value)
        claimed[place] = True
    if exactly:
        assert (claimed == (results[0] == results[1])).all()


def points_of(scope: Scope) -> int:
    """Places times points of reductions."""

    def reduced(body: Body) -> int:
        own = prod(a.extent for a in body.axes) if isinstance(body, Reduce) else 1  # type: ignore[misc]
        return own * max([1, *map(reduced, children(body))])

    return prod(scope.shape) * reduced(flatten(scope))  # type: ignore[arg-type, no-any-return]


@pytest.mark.parametrize("op", OPS, ids=repr)
def test_boxes_of_every_operator_hold_point_by_point(op: Op) -> None:
    for scope in scopes_of(op):
        if points_of(scope) > LARGE:
            continue
        for affine in (False, True):
            regions = summation_regions(scope, affine=affine)
            holds(scope, regions)


@pytest.mark.parametrize("op", OPS, ids=repr)
def test_constants_of_every_operator_are_constant(op: Op) -> None:
    for scope in scopes_of(op):
        if points_of(scope) <= LARGE:
            known_in(scope)


WINDOWED = ("Conv", "ConvTranspose", "MaxPool", "MatMul", "MatMulToBand", "MatMulFromBand", "ReduceSum")


@pytest.mark.parametrize("name", WINDOWED)
def test_points_of_windows_are_exact(name: str) -> None:
    for scope in scopes_of(named(name)):
        regions = summation_regions(scope)
        assert all(s.points is not None for r in regions for s in r.summations or ())
        holds(scope, regions, exactly=True)
        assert all(region.affine for region in summation_regions(scope, affine=True))


PADDED = ("Pad f32[3,4] pads=(1,0,2,1)", "Pad f32[3,4] pads=(0,-1,2,1)", "CenterCropPad f32[2,5] shape=(4,3)")


@pytest.mark.parametrize("text", [
    *PADDED, "Concat f32[2,3] f32[4,3] axis=0", "Conv f32[1,2,5,5] f32[3,2,1,1] pads=(1,1,1,1)",
    "ConvTranspose f32[1,2,3,3] f32[2,2,1,1] strides=(2,3)",
    "ConvTranspose f32[1,2,3,4] f32[2,2,2,3] strides=(3,5)",
    "MatMulToBand f32[2,5,3] f32[2,5,3] width=2 dilation=2", "Trilu f32[4,5] upper=0",
])  # fmt: skip
def test_all_constants_are_found_where_tensors_are_only_read_or_not(text: str) -> None:
    known_in(scope_of(text), exactly=True)


def test_the_nine_boxes_of_a_padded_convolution() -> None:
    # figure 4 of the paper
    regions = summation_regions(scope_of("Conv f32[1,3,9,9] f32[4,3,3,3] pads=(1,1,1,1)"))
    ranges = ["0:1", "1:8", "8:9"]
    assert [str(r.box) for r in regions] == [f"[0:1, 0:4, {h}, {w}]" for h in ranges for w in ranges]
    inner = next(r for r in regions if str(r.box) == "[0:1, 0:4, 1:8, 1:8]")
    assert inner.summations is not None and str(inner.summations[0].points) == "[0:3, 0:3, 0:3]"
    corner = regions[0].summations
    assert corner is not None and str(corner[0].points) == "[0:3, 1:3, 1:3]"


def test_boxes_are_propagated_through_scopes() -> None:
    x, w = Tensor("x", (12,)), Tensor("w", (3,))
    first = compute((12,), lambda i: total((3,), lambda r: x.padded(0)[i + r - 1] * w[r]))
    second = compute((12,), lambda i: total((3,), lambda r: first.padded(0)[i + r - 1] * w[r]))
    regions = summation_regions(second)
    assert [str(r.box) for r in regions] == ["[0:1]", "[1:2]", "[2:10]", "[10:11]", "[11:12]"]
    holds(second, regions, exactly=True)


def test_a_transposed_convolution_has_lattices() -> None:
    scope = scope_of("ConvTranspose f32[1,1,9] f32[1,1,2] strides=(3,)")
    assert [str(r.box.sides[2]) for r in summation_regions(scope)] == ["0:25:3", "1:26:3", "2:24:3"]
    assert [(str(box.sides[2]), value) for box, value in constant_boxes(scope)] == [("2:24:3", 0)]


def test_theorem_1_on_a_reshaped_convolution() -> None:
    """A mutant with rows put side by side: at the edges between them it is wrong, and only there."""
    x, w = Tensor("x", (4, 6)), Tensor("w", (3,))
    right = compute((4, 6), lambda i, j: total((3,), lambda r: x.padded(0)[i, j + r - 1] * w[r]))
    row = compute((24,), lambda p: x[p // 6, p % 6])
    long = compute((24,), lambda p: total((3,), lambda r: row.padded(0)[p + r - 1] * w[r]))
    mutant = compute((4, 6), lambda i, j: long[6 * i + j])
    field, draw = Reals(), np.random.default_rng(3)
    values = {t: field.lift(draw.standard_normal(t.shape)) for t in (x, w)}  # type: ignore[arg-type]
    equal = np.isclose(*(np.asarray(interpret(s, values, field), float) for s in (right, mutant)))
    assert not equal.all() and equal[:, 1:5].all()
    one, other = summation_regions(right, affine=True), summation_regions(mutant, affine=True)
    holds(mutant, other)
    assert [str(r.box) for r in one] == ["[0:4, 0:1]", "[0:4, 1:5]", "[0:4, 5:6]"]
    assert all(region.affine for region in (*one, *other))
    wrong = np.zeros((4, 6), bool)
    for common in (intersection(a.box, b.box) for a in one for b in other):
        assert common is not None
        if common.points:
            corner = [members(side)[:2] for side in common.sides]
            near = [[c[0], *c[1:]] for c in corner]
            alike = equal[near[0][0], near[1][0]] and equal[near[0], near[1][0]].all()
            wrong[np.ix_(*map(members, common.sides))] = not (alike and equal[near[0][0], near[1]].all())
    assert (wrong == ~equal).all()


def test_numbers_that_depend_on_the_place_are_not_affine() -> None:
    x = Tensor("x", (5,))
    assert [r.affine for r in summation_regions(compute((5,), lambda i: x[i] * 2))] == [True]
    assert [r.affine for r in summation_regions(compute((5,), lambda i: x[i] * lift(i * i)))] == [False]


H, N = polynomial(Symbol("H", 4)), polynomial(Symbol("N", 1))


@pytest.mark.parametrize("attrs", [
    {"pads": (1, 1, 1, 1)}, {"pads": (1, 0, 0, 2)}, {"pads": (2, 1, 2, 1), "dilations": (2, 1)},
    {"strides": (2, 1), "pads": (1, 1, 1, 1)}, {},
])  # fmt: skip
def test_symbolic_boxes_hold_for_all_sizes(attrs: dict[str, Any]) -> None:
    op = registry["Conv"]
    types = (TensorType("float32", (N, 2, H, 7)), TensorType("float32", (3, 2, 3, 3)))
    (scope,) = op.scopes(types, op.canonical(types, attrs))
    regions = summation_regions(scope)
    if attrs.get("strides"):
        assert regions[0].summations is None  # where H / 2 ends is not a size less a number
        return
    assert regions[0].summations is not None and len(regions) >= (9 if attrs.get("pads") == (1,) * 4 else 1)
    for height in range(4, 9):
        sizes: dict[Any, Any] = {Symbol("H", 4): height, Symbol("N", 1): 2}
        known = tuple(_concrete(region, sizes) for region in regions)
        fixed = (TensorType("float32", (2, 2, height, 7)), types[1])
        (one,) = op.scopes(fixed, op.canonical(fixed, attrs))
        holds(one, tuple(r for r in known if r.box.points), exactly=True)


def _concrete(region: Region, sizes: dict[Any, Any]) -> Region:
    def fixed(box: Box) -> Box:
        return Box(
            tuple(Progression(*(substitute(n, sizes) for n in (s.start, s.count)), s.step) for s in box.sides)
        )

    summations = tuple(
        replace(s, points=None if s.points is None else fixed(s.points)) for s in region.summations or ()
    )
    return replace(region, box=fixed(region.box), summations=summations)


@pytest.mark.nightly(every=4)
@pytest.mark.parametrize("op", OPS, ids=repr)
def test_symbolic_boxes_of_every_operator_hold_for_all_sizes(op: Op) -> None:
    symbol = Symbol("N", 1)
    for sample in (s for s in samples() if s.op is op):
        for types in with_symbol(sample):
            try:
                attrs = op.canonical(types, sample.example.attrs)
                symbolic = [summation_regions(scope) for scope in op.scopes(types, attrs)]
            except Untypable:
                continue
            for count in (1, 2, 3):
                fixed = tuple(
                    t and replace(t, shape=tuple(substitute(n, {symbol: count}) for n in t.shape))
                    for t in types
                )
                scopes = op.scopes(fixed, op.canonical(fixed, sample.example.attrs))
                for scope, regions in zip(scopes, symbolic, strict=True):
                    if all(r.summations is not None for r in regions) and points_of(scope) <= LARGE:
                        known = (_concrete(region, {symbol: count}) for region in regions)
                        holds(scope, tuple(r for r in known if r.box.points))


@pytest.mark.nightly
def test_what_cannot_be_told_is_one_region_of_which_nothing_is_known() -> None:
    x, at = Tensor("x", (5,)), Tensor("at", (7,), "int64")
    guarded = compute((7,), lambda i: x.padded(0)[look(at[i], 0, 9)])
    (region,) = summation_regions(guarded)
    assert region.summations is None and not region.affine and constant_boxes(guarded) == ()
    gathered = compute((7,), lambda i: x[look(at[i], 0, 4)])
    (region,) = summation_regions(gathered)
    assert region.summations == () and not region.affine
    open_ = Symbol("M", 0)
    y = Tensor("y", (N,))
    both = compute((polynomial(open_),), lambda i: y.padded(0)[i] + x.padded(0)[i])
    assert summation_regions(both)[0].summations is None
    first, rest = summation_regions(compute((polynomial(open_),), lambda i: y.padded(0)[i]))
    assert first.summations == () == rest.summations  # up to min(M, N), and from there on
    many = compute((9000,), lambda i: total((9000,), lambda r: where(i - r, Tensor("z", (9000,))[r], 0)))
    assert summation_regions(many)[0].summations is None


def test_empty_and_scalar_outputs() -> None:
    x = Tensor("x", (5,))
    assert summation_regions(compute((0, 3), lambda i, j: x.padded(0)[i + j])) == ()
    (region,) = summation_regions(compute((), lambda: total((7,), lambda r: x.padded(0)[r])))
    assert region.summations is not None and str(region.summations[0].points) == "[0:5]"
    assert [(str(b), v) for b, v in constant_boxes(compute((2, 3), lambda i, j: 5))] == [("[0:2, 0:3]", 5)]
    assert constant_boxes(compute((3,), lambda i: i)) == () == constant_boxes(compute((2,), lambda i: x[i]))
    empty = compute((2,), lambda i: fold("max", (0,), lambda r: x[r]))
    assert constant_boxes(empty) == ((full_box((2,)), -np.inf),)


def test_constants_are_computed_where_they_do_not_wrap() -> None:
    x, small = Tensor("x", (5,)), Tensor("u", (5,), "uint8")
    ones = compute((7,), lambda i: total((3,), lambda r: where([i - 5], 1, x.padded(0)[i - 1])) * 2)
    assert [(str(b), v) for b, v in constant_boxes(ones)] == [
        ("[0:1]", 0), ("[5:6]", 6), ("[6:7]", 6)
    ]  # fmt: skip
    wrapped = compute((7,), lambda i: small.padded(200)[i] + 100)
    assert constant_boxes(wrapped) == ()
    known_in(ones, exactly=True)


@st.composite
def expressions(draw: Any) -> Scope:
    """Sums of products of padded reads at affine and divided indices, choices and inner scopes."""
    x = Tensor("x", (draw(st.integers(1, 6)),))
    axes = [axis(draw(st.integers(1, 7))) for _ in range(draw(st.integers(1, 2)))]
    reduced = [axis(draw(st.integers(1, 3)), "r") for _ in range(draw(st.integers(0, 2)))]

    def index(among: Any) -> Size:
        form: Size = draw(st.integers(-3, 3))
        for a in draw(st.lists(st.sampled_from(among), min_size=1, max_size=3)):
            form = form + draw(st.sampled_from([1, 1, -1, 2])) * polynomial(a)
        divisor = draw(st.sampled_from([1, 1, 1, 2, 3]))
        return draw(st.sampled_from([form // divisor, form % divisor if divisor > 1 else form]))

    def part(among: Any, depth: int) -> Body:
        kinds = ["read", "read", "where", "mul", "scope", "number"] if depth else ["read"]
        match draw(st.sampled_from(kinds)):
            case "where":
                return where([index(among)], part(among, depth - 1), draw(st.sampled_from([0, 1])))
            case "mul":
                return part(among, depth - 1) * part(among, depth - 1)
            case "number":
                return lift(draw(st.integers(0, 2)))
            case "scope":
                inner = axis(draw(st.integers(1, 5)))
                nested = axis(draw(st.integers(1, 3)), "r")
                body = Reduce("sum", (nested,), part([inner, nested], depth - 1))
                return Scope((inner,), body).padded(draw(st.sampled_from([0, 0, 1])))[index(among)]
        return x.padded(draw(st.sampled_from([0, 0, 0, 1])))[index(among)]

    body = part([*axes, *reduced], 2)
    monoid = draw(st.sampled_from(["sum", "sum", "max", "prod"]))
    return Scope(tuple(axes), Reduce(monoid, tuple(reduced), body) if reduced else body)


@given(expressions())
@settings(max_examples=100, deadline=None)
def test_random_expressions(scope: Scope) -> None:
    holds(scope, summation_regions(scope))
    holds(scope, summation_regions(scope, affine=True))
    known_in(scope)
    field = Reals()
    values = {t: field.lift(np.random.default_rng(1).standard_normal(t.shape)) for t in tensors(scope)}  # type: ignore[arg-type]
    straight = interpret(Scope(scope.axes, flatten(scope)), values, field)
    assert np.allclose(np.asarray(straight, float), np.asarray(interpret(scope, values, field), float))


def test_scopes_that_share_axes_are_read_through() -> None:
    """Canonical forms name their axes alike; put into each other, they must not capture."""
    x, w = Tensor("x", (9,)), Tensor("w", (3,))
    first = canonicalize(compute((9,), lambda i: total((3,), lambda r: x.padded(0)[i + r - 1] * w[r])))
    assert isinstance(first.body, Reduce)
    (inner,) = first.body.axes
    one = polynomial(first.axes[0])
    twice = Reduce("sum", (inner,), first.padded(0)[one + polynomial(inner) - 1])
    second = Scope(first.axes, twice)
    holds(second, summation_regions(second), exactly=True)
    field, draw = Reals(), np.random.default_rng(5)
    values = {t: field.lift(draw.standard_normal(t.shape)) for t in (x, w)}  # type: ignore[arg-type]
    straight = interpret(Scope(second.axes, flatten(second)), values, field)
    assert np.allclose(np.asarray(straight, float), np.asarray(interpret(second, values, field), float))


@pytest.mark.parametrize("op", OPS, ids=repr)
def test_flat_bodies_are_the_same_function(op: Op) -> None:
    for scope in scopes_of(op):
        values = drawn(scope, np.random.default_rng(2))
        with np.errstate(all="ignore"):
            results = [interpret(s, values, Reals()) for s in (scope, Scope(scope.axes, flatten(scope)))]
        assert np.allclose(*(np.asarray(r, float) for r in results), equal_nan=True)
