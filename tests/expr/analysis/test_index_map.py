"""Index maps: every claim about one is checked point by point."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensaurus.expr.analysis import index_map
from tensaurus.expr.analysis.box import Box
from tensaurus.expr.analysis.index_map import (
    IndexMap,
    compose,
    identity,
    image,
    inverse,
    is_bijective,
    is_injective,
)
from tensaurus.expr.analysis.reshape_map import reshape_map
from tensaurus.expr.ir.scope import Tensor, axis, look
from tensaurus.expr.sizes.size import Size, Symbol, evaluate, is_same_size, polynomial
from tensaurus.ops import registry
from tensaurus.ops.examples import examples_of

N, K, M = (polynomial(Symbol(name, 1)) for name in "NKM")


def table(f: IndexMap) -> dict[tuple[int, ...], tuple[int, ...]]:
    """The values at all points, one by one."""
    return {
        place: tuple(evaluate(i, dict(zip(f.axes, place, strict=True)).__getitem__) for i in f.indices)  # type: ignore[arg-type]
        for place in product(*(range(n) for n in f.shape))  # type: ignore[arg-type]
    }


def places(box: Box) -> list[tuple[int, ...]]:
    return list(product(*([s[k] for k in range(s.count)] for s in box.sides)))  # type: ignore[arg-type, misc]


def by(element: Any, *shape: Size) -> IndexMap:
    axes = tuple(axis(n) for n in shape)
    return IndexMap(axes, element(*map(polynomial, axes)))


@st.composite
def indices(draw: Any, axes: tuple[Any, ...]) -> Size:
    """An affine form, possibly divided, possibly its remainder, of few axes."""
    form: Size = draw(st.integers(-3, 3))
    for a in draw(st.lists(st.sampled_from(axes), min_size=1, max_size=2)):
        form = form + draw(st.sampled_from([1, 1, 2, 3, 4, -1, -2])) * polynomial(a)
    divisor = draw(st.integers(1, 6))
    match draw(st.sampled_from(["whole", "whole", "quotient", "remainder", "both"])):
        case "quotient":
            return form // divisor
        case "remainder":
            return form % divisor
        case "both":
            return form % divisor + divisor * polynomial(draw(st.sampled_from(axes)))
    return form


@st.composite
def maps(draw: Any) -> IndexMap:
    axes = tuple(axis(n) for n in draw(st.lists(st.integers(0, 8), min_size=1, max_size=3)))
    return IndexMap(axes, tuple(draw(st.lists(indices(axes), max_size=3))))


@st.composite
def changes(draw: Any) -> IndexMap:
    """Permutations, offsets, negations, strides, splits and merges after each other."""
    f = identity(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12]), min_size=1, max_size=3)))
    for _ in range(draw(st.integers(0, 3))):
        shape = [polynomial(n) for n in _extents(f)]
        match draw(st.sampled_from(["permute", "negate", "reshape", "split"])):
            case "permute":
                order = draw(st.permutations(range(len(shape))))
                f = IndexMap(f.axes, tuple(f.indices[d] for d in order))
            case "negate":
                f = IndexMap(f.axes, tuple(n - 1 - i for n, i in zip(shape, f.indices, strict=True)))
            case "reshape":
                new = draw(st.permutations(shape))
                step = reshape_map(shape, new)
                assert step is not None
                back = inverse(step)
                f = compose(back if back is not None else identity(shape), f)
            case "split":
                step = reshape_map([prod(shape)], shape)
                assert step is not None
                f = compose(step, f)
    step = st.tuples(st.integers(-2, 2), st.sampled_from([1, 1, 2, 3]))
    steps = draw(st.lists(step, min_size=3, max_size=3))
    return IndexMap(f.axes, tuple(b + s * i for i, (b, s) in zip(f.indices, steps, strict=False)))


def _extents(f: IndexMap) -> list[int]:
    values = list(table(f).values())
    return [max(column) + 1 for column in zip(*values, strict=True)]


def holds(f: IndexMap) -> None:
    """Every claim about the map, against its table."""
    values = table(f)
    distinct = set(values.values())
    assert is_injective(f) in (None, len(distinct) == len(values))
    enclosed = image(f)
    if enclosed is not None:
        claimed = places(enclosed.box)
        assert distinct <= set(claimed)
        assert not enclosed.exact or distinct == set(claimed)
    back = inverse(f)
    if back is not None:
        assert enclosed is not None and enclosed.exact and len(distinct) == len(values)
        forth = table(back)
        assert len(forth) == len(values)
        for place, point in forth.items():
            assert values[point] == tuple(s[k] for s, k in zip(enclosed.box.sides, place, strict=True))
    size = [max((v[d] for v in distinct), default=0) + 1 for d in range(len(f.indices))]
    for codomain in (size, [n + 1 for n in size], f.shape):
        if len(codomain) == len(f.indices):
            every = set(product(*map(range, codomain)))  # type: ignore[arg-type]
            truth = len(distinct) == len(values) and distinct == every
            assert is_bijective(f, codomain) in (None, truth)


@given(maps())
@settings(max_examples=150, deadline=None)
def test_what_is_claimed_of_a_map_holds_point_by_point(f: IndexMap) -> None:
    holds(f)


@given(maps())
@settings(max_examples=120, deadline=None)
def test_the_claims_do_not_need_enumeration(f: IndexMap) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_map, "MAX_PROBED_POINTS", 1)
        holds(f)


@given(changes())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_changes_of_axes_have_inverses(f: IndexMap) -> None:
    holds(f)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_map, "MAX_PROBED_POINTS", 1)
        assert is_injective(f)
        found = image(f)
        assert found is not None
        assert found.exact == (set(places(found.box)) == set(table(f).values()))
        assert (inverse(f) is not None) == found.exact


@given(maps(), st.data())
@settings(max_examples=100, deadline=None)
def test_composition_is_that_of_the_tables(inner: IndexMap, data: Any) -> None:
    if not inner.indices:
        return
    shape = [data.draw(st.integers(1, 9)) for _ in inner.indices]
    axes = tuple(axis(n) for n in shape)
    outer = IndexMap(axes, (data.draw(indices(axes)), data.draw(indices(axes))))
    first = table(inner)
    fits = all(0 <= i < n for value in first.values() for i, n in zip(value, shape, strict=True))
    try:
        both = compose(outer, inner)
    except ValueError:
        assert not fits
        return
    assert fits
    second = table(outer)
    assert table(both) == {place: second[value] for place, value in first.items()}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((2, 3, 4), (4, 6)), ((6, 4), (2, 3, 4)), ((8, 3), (4, 6)), ((2, 1, 6), (1, 4, 3, 1)), ((1,), ()),
        ((), (1, 1)), ((5, 0), (0, 7)), ((7,), (7,)), ((4, 9), (6, 6)), ((3, 4, 5, 2), (6, 20)),
    ],
)  # fmt: skip
def test_reshapes_keep_the_row_major_order(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    f = reshape_map(old, new)
    assert f is not None and list(table(f).values()) == list(product(*map(range, old)))
    assert is_bijective(f, old)
    holds(f)
    assert reshape_map(old, (*new, 2)) is None or 0 in old


def test_symbolic_reshapes_are_bijective_where_factors_line_up() -> None:
    for old, new in [
        ((N, K, M), (N, K * M)), ((N * K, M), (N, K * M)), ((N, 12), (N, 3, 4)), ((4 * N, K), (2, 2 * N, K)),
        ((N, K, 6), (K * N, 2, 3)),
    ]:  # fmt: skip
        f = reshape_map(old, new)
        assert f is not None
        assert is_bijective(f, old) is True, (old, new)
        back = inverse(f)
        assert back is not None and all(map(is_same_size, back.shape, old))
        assert all(map(is_same_size, compose(f, back).indices, map(polynomial, back.axes)))
    assert reshape_map((N, K), (N, M)) is None
    assert reshape_map((N,), (0,)) is None


def test_symbolic_claims() -> None:
    flip = by(lambda i, j: (K - 1 - j, 2 * i + 1), N, K)
    found = image(flip)
    assert found is not None and found.exact and str(found.box) == "[0:K, 1:2*N:2]"
    back = inverse(flip)
    assert back is not None and str(back(*map(polynomial, flip.axes))) == str(
        (polynomial(flip.axes[1]), K - 1 - polynomial(flip.axes[0]))
    )
    assert is_injective(by(lambda i, j: (i + j, j), N, K)) is True  # a shear, whose image is no box
    assert inverse(by(lambda i, j: (i + j, j), N, K)) is None
    assert is_injective(by(lambda i, j: (i + j,), N, K)) is None
    assert is_injective(by(lambda i, j: (i + j,), N + 1, K + 1)) is False
    assert is_injective(by(lambda i, j: (K * i + j,), N, K)) is True
    assert is_injective(by(lambda i, j: ((K - 1) * i + j,), N, K)) is not True
    assert is_bijective(by(lambda i: (i + 1,), N), (N,)) is not True
    assert is_bijective(by(lambda i: (i,), N), (N + 1,)) is False
    assert is_injective(by(lambda i: (i // 3, i % 3), N)) is True
    assert is_injective(by(lambda i: ((i + 1) // 3, (i + 1) % 3), N)) is True


def test_large_boxes_are_decided_without_looking_at_their_points() -> None:
    n = 10**9
    assert is_bijective(by(lambda i, j: (j, n - 1 - i), n, n), (n, n)) is True
    assert is_injective(by(lambda i, j: (i // 4 + j,), n, 2)) is False
    assert is_injective(by(lambda i: (i * i,), n)) is None
    strided = image(by(lambda i: (6 * i + 4,), n))
    assert strided is not None and strided.exact and strided.box.sides[0].step == 6


def test_what_is_read_from_a_tensor_is_not_known() -> None:
    at = Tensor("at", (N,), "int64")
    f = by(lambda i: (look(at[i], 0, K - 1),), N)
    assert is_injective(f) is None and inverse(f) is None
    found = image(f)
    assert found is not None and not found.exact and str(found.box) == "[0:K]"
    assert is_injective(by(lambda i: (look(at[i], 0, K - 1), i), N)) is True


def test_the_inverse_of_every_transposition_is_a_transposition() -> None:
    for name in ("Transpose", "DepthToSpace", "SpaceToDepth", "Reshape", "Flatten", "Squeeze", "Unsqueeze"):
        op = registry[name]
        for types, attrs in examples_of(op):
            (scope,) = op.scopes(types, attrs)
            f = IndexMap(scope.axes, scope.body.indices)  # type: ignore[attr-defined]
            assert types[0] is not None
            assert is_bijective(f, types[0].shape), (name, types, attrs)
            holds(f)


def test_axes_of_maps_are_distinct_and_fit() -> None:
    a = axis(3)
    with pytest.raises(ValueError, match="twice"):
        IndexMap((a, a), (a,))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="axes"):
        compose(identity((2,)), identity((2, 2)))
    with pytest.raises(ValueError, match="leave"):
        compose(identity((2,)), identity((3,)))
    with pytest.raises(ValueError, match="leave"):
        compose(identity((N,)), identity((N + 1,)))
    f = identity((N, 3))
    assert compose(f, f) == f
