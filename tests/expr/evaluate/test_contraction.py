"""Sums, products and extrema over windows are what is written, in every way they are computed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensaurus.expr.evaluate import contract, interpret, strided_sums
from tensaurus.expr.evaluate.field_protocol import REDUCTION_UFUNCS, reduce_floats
from tensaurus.expr.evaluate.fields import Array, Field, PrimeField, Rationals, Reals
from tensaurus.expr.evaluate.two_point_field import PrimeFieldPairs
from tensaurus.expr.ir.scope import (
    Body,
    Call,
    Const,
    Read,
    Reduce,
    Scope,
    Select,
    Tensor,
    axis,
    compute,
    fold,
    total,
    where,
)
from tensaurus.expr.ir.walk import reads, replace_axes
from tensaurus.expr.sizes.size import Axis, evaluate, polynomial

STEPS = {"add": sum, "mul": prod, "sum": sum, "prod": prod, "max": max, "min": min}
NEUTRAL = {"sum": 0, "prod": 1, "max": float("-inf"), "min": float("inf")}


def slowly(scope: Scope, data: Mapping[Tensor, Array]) -> Array:
    """Every element of it, one after another, in Python's numbers."""
    values: dict[Any, Array] = {}

    def whole(source: Any) -> Array:
        if isinstance(source, Tensor):
            return data[source]
        if id(source) not in values:
            values[id(source)] = slowly(source, data)
        return values[id(source)]

    def value(body: Body, at: Mapping[Any, int]) -> Any:
        match body:
            case Const(number):
                return number
            case Read(source, indices, outside):
                array = whole(source)
                spot = tuple(evaluate(index, at.__getitem__) for index in indices)
                if all(0 <= i < n for i, n in zip(spot, array.shape, strict=True)):
                    return array[spot]
                assert outside is not None
                return outside.value
            case Call(fn, args):
                return STEPS[fn]([value(arg, at) for arg in args])
            case Select(guard, then, other):
                held = all(evaluate(size, at.__getitem__) >= 0 for size in guard)
                return value(then if held else other, at)
            case Reduce(monoid, axes, inner):
                found = [value(inner, {**at, **spot}) for spot in _spots(axes)]
                return STEPS[monoid](found) if found else NEUTRAL[monoid]
        raise TypeError(type(body))

    flat = [value(scope.body, at) for at in _spots(scope.axes)]
    made = np.empty(len(flat), object)
    made[:] = flat
    return made.reshape([a.extent for a in scope.axes])  # type: ignore[arg-type]


def _spots(axes: tuple[Axis, ...]) -> list[dict[Axis, int]]:
    ranges = [range(a.extent) for a in axes]  # type: ignore[arg-type]
    return [dict(zip(axes, spot, strict=True)) for spot in itertools.product(*ranges)]


@dataclass(frozen=True)
class Along:
    """One dimension that windows go along; `spread` - 1 zeros follow each element of what they read."""

    size: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    spread: int
    turned: bool  # the kernel
    reversed: bool  # the windows' places

    @property
    def wide(self) -> int:
        return self.size * self.spread

    @property
    def out(self) -> int:
        reach = self.dilation * (self.kernel - 1) + 1
        return (self.wide + self.before + self.after - reach) // self.stride + 1


@st.composite
def along(draw: Any) -> Along:
    small = st.integers(1, 3)
    size, kernel, stride = draw(st.integers(1, 6)), draw(st.integers(1, 4)), draw(small)
    dilation, spread = draw(small), draw(st.sampled_from([1, 1, 2, 3, 4]))
    before, after = draw(st.integers(-1, 3)), draw(st.integers(0, 3))
    reach = dilation * (kernel - 1) + 1
    after += max(0, reach - (size * spread + before + after))
    turned, backwards = draw(st.booleans()), draw(st.booleans())
    return Along(size, kernel, stride, dilation, before, after, spread, turned, backwards)


@dataclass(frozen=True)
class Windows:
    """A reduction over windows along some dimensions, of x alone or of its product with w."""

    dims: tuple[Along, ...]
    batch: int
    groups: int
    depth: int
    count: int
    weighted: bool
    monoid: str
    laid: int  # which order of x's axes
    kept: int  # which order of the result's

    def scope(self, dtype: str = "float32") -> Scope:
        shape = (self.batch, self.groups * self.depth, *(d.size for d in self.dims))
        order = list(itertools.permutations(range(len(shape))))[self.laid % 24 % len(list(shape))]
        x = Tensor("x", tuple(shape[k] for k in order), dtype)
        w = Tensor("w", (self.groups * self.count, self.depth, *(d.kernel for d in self.dims)), dtype)
        edge = 0 if self.monoid == "sum" else NEUTRAL[self.monoid] if dtype == "float32" else 1

        def element(*spot: Any) -> Body:
            return x[tuple(spot[k] for k in order)]

        wide = (*shape[:2], *(d.wide for d in self.dims))
        spread = compute(wide, lambda n, c, *u: where(
            [0 - p % d.spread for p, d in zip(u, self.dims, strict=True)],
            element(n, c, *(p // d.spread for p, d in zip(u, self.dims, strict=True))),
            edge,
        ))  # fmt: skip

        def body(n: Any, f: Any, *place: Any) -> Body:
            def term(c: Any, *r: Any) -> Body:
                spots, taps = [], []
                for p, q, d in zip(place, r, self.dims, strict=True):
                    at = d.out - 1 - p if d.reversed else p
                    spots.append(at * d.stride + q * d.dilation - d.before)
                    taps.append(d.kernel - 1 - q if d.turned else q)
                read = spread.padded(edge)[n, f // self.count * self.depth + c, *spots]
                return read * w[f, c, *taps] if self.weighted else read

            inner = (self.depth, *(d.kernel for d in self.dims))
            return total(inner, term) if self.monoid == "sum" else fold(self.monoid, inner, term)

        made = compute((self.batch, self.groups * self.count, *(d.out for d in self.dims)), body)
        orders = list(itertools.permutations(made.axes))
        return Scope(orders[self.kept % len(orders)], made.body)


@st.composite
def windows(draw: Any) -> Windows:
    dims = tuple(draw(st.lists(along(), min_size=1, max_size=2)))
    few = st.integers(1, 3)
    weighted = draw(st.booleans())
    monoid = "sum" if weighted else draw(st.sampled_from(["sum", "max", "min", "prod"]))
    sizes = [draw(few) for _ in range(4)]
    return Windows(dims, *sizes, weighted, monoid, draw(st.integers(0, 23)), draw(st.integers(0, 23)))


def drawn(scope: Scope, seed: int, low: int = -4, high: int = 5) -> dict[Tensor, Array]:
    rng = np.random.default_rng(seed)
    leaves = dict.fromkeys(r.source for r in reads(scope, nested=True) if isinstance(r.source, Tensor))
    return {leaf: rng.integers(low, high, leaf.shape) for leaf in leaves}  # type: ignore[arg-type]


def prefer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract by this way wherever it is one."""
    ways = contract._Contraction._strategies

    def chosen(self: Any, *args: Any) -> Any:
        found = ways(self, *args)
        return [way for way in found if way.name == name] or found

    monkeypatch.setattr(contract._Contraction, "_strategies", chosen)


@pytest.mark.nightly(every=3)
@pytest.mark.parametrize("piece", [1 << 20, 20])
@pytest.mark.parametrize(
    "way", ["cheapest", "matrix_product", "kn2row", "swapped_kn2row", "tap_products", "elementwise"]
)
@settings(max_examples=25)
@given(drawing=windows(), seed=st.integers(0, 99))
def test_windows_are_what_is_written(way: str, piece: int, drawing: Windows, seed: int) -> None:
    scope = drawing.scope()
    data = drawn(scope, seed)
    expected = slowly(scope, data)
    with pytest.MonkeyPatch.context() as patch:
        prefer(way, patch)
        patch.setattr(contract, "CHUNK_ELEMENTS", piece)
        patch.setattr(contract, "CACHED_ELEMENTS", piece)
        patch.setattr(interpret, "MIN_SPARSE_TERMS", 1)
        found = interpret.interpret(scope, {t: a.astype(float) for t, a in data.items()}, Reals())
    np.testing.assert_array_equal(found, expected.astype(float))  # small integers: nothing is rounded


@pytest.mark.parametrize("way", ["cheapest", "matrix_product", "kn2row", "elementwise"])
@pytest.mark.parametrize("field", [PrimeField(2), Rationals(2)], ids=["prime", "rationals"])
@settings(max_examples=15)
@given(drawing=windows().filter(lambda w: w.monoid in ("sum", "prod")), seed=st.integers(0, 99))
def test_windows_are_exact_in_every_field(field: Field, way: str, drawing: Windows, seed: int) -> None:
    scope = drawing.scope()
    data = drawn(scope, seed)
    with pytest.MonkeyPatch.context() as patch:
        prefer(way, patch)
        patch.setattr(contract, "CHUNK_ELEMENTS", 20)
        patch.setattr(interpret, "MIN_SPARSE_TERMS", 1)
        found = interpret.interpret(scope, {t: field.from_int(a) for t, a in data.items()}, field)
    assert field.equal(found, field.from_int(slowly(scope, data).astype(np.int64)))


@pytest.mark.parametrize("way", ["matrix_product", "kn2row", "elementwise"])
@settings(max_examples=15)
@given(drawing=windows().filter(lambda w: w.monoid == "sum"), seed=st.integers(0, 99))
def test_windows_of_integers_are_exact(way: str, drawing: Windows, seed: int) -> None:
    scope = drawing.scope("int64")
    data = drawn(scope, seed, -(2**31), 2**31)  # products beyond what float64 holds
    with pytest.MonkeyPatch.context() as patch:
        prefer(way, patch)
        patch.setattr(contract, "CHUNK_ELEMENTS", 20)
        patch.setattr(interpret, "MIN_SPARSE_TERMS", 1)
        found = interpret.interpret(scope, data, Reals())
    wide = slowly(scope, {t: a.astype(object) for t, a in data.items()})
    expected = np.vectorize(lambda v: (int(v) + 2**63) % 2**64 - 2**63, otypes=[np.int64])(wide)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("monoid", REDUCTION_UFUNCS)
@settings(max_examples=30)
@given(
    shape=st.lists(st.sampled_from([1, 2, 3, 5, 40]), min_size=1, max_size=4),
    data=st.data(),
    seed=st.integers(0, 99),
)
def test_few_points_are_reduced_one_after_another(
    monoid: str, shape: list[int], data: st.DataObject, seed: int
) -> None:
    """As NumPy reduces them, over any axes of any view, infinities and NaN among the numbers."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(-1, 2, [*shape, 64]).astype(float)  # in no order rounded
    numbers[rng.random(numbers.shape) < 0.02] = rng.choice([np.inf, -np.inf, np.nan])
    view = numbers[..., ::-1] if seed % 2 else np.moveaxis(numbers, -1, 0)
    axes = data.draw(st.lists(st.sampled_from(range(view.ndim)), min_size=1, unique=True).map(tuple))
    ufunc = REDUCTION_UFUNCS[monoid]
    with np.errstate(all="ignore"):
        found, expected = reduce_floats(ufunc, view, axes), ufunc.reduce(view, axis=axes)
    np.testing.assert_array_equal(found, expected)
    assert np.shape(found) == np.shape(expected)


def deconvolution(size: int, kernel: int, stride: int, depth: int = 3) -> Scope:
    drawing = Along(size, kernel, 1, 1, kernel - 1, kernel - stride, stride, True, False)
    return Windows((drawing, drawing), 1, 1, depth, 2, True, "sum", 0, 0).scope()


def test_the_zeros_of_a_transposed_convolution_are_skipped() -> None:
    scope = deconvolution(5, 4, 2)
    (body,) = [part for part in [scope.body] if isinstance(part, Reduce)]
    factors = [strided_sums.inline_guarded_read(part) for part in body.body.args]  # type: ignore[attr-defined]
    found = list(strided_sums.split_phases(factors, body.axes))
    assert len(found) == 4
    assert all(not isinstance(part, Select) for phase in found for part in phase.factors)
    terms = sum(prod(a.extent for a in phase.axes) for phase in found)  # type: ignore[misc]
    assert terms == prod(a.extent for a in body.axes)  # type: ignore[misc]  # of all phases, not of each


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_zero_times_what_is_no_number_is_none(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    scope = deconvolution(4, 3, 2)
    data = {t: a.astype(float) for t, a in drawn(scope, 1).items()}
    weights = next(t for t in data if t.name == "w")
    data[weights][0, 1, 1, 1] = value
    expected = interpret.interpret(scope, data, Reals())
    monkeypatch.setattr(interpret, "MIN_SPARSE_TERMS", 1)
    found = interpret.interpret(scope, data, Reals())
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    assert np.isnan(found[0, 0]).any()


def test_a_source_that_is_read_beyond_what_it_divides_stays_a_scope() -> None:
    x, n = Tensor("x", (4,)), polynomial
    shifted = compute((9,), lambda u: where([0 - u % 2, 7 - u], x[u // 2], 0))
    i, r = axis(9), axis(3, "r")
    outside = shifted.padded(0)[n(i) + n(r) - 1]
    assert strided_sums.inline_guarded_read(outside) is outside
    other = compute((8,), lambda u: where(0 - u % 2, x[u // 2], 0)).padded(5)[n(i) + n(r) - 1]
    assert strided_sums.inline_guarded_read(other) is other
    assert replace_axes(outside, {}) is outside


def banded(length: int, depth: int, band: int) -> Scope:
    x, y = Tensor("x", (length, depth)), Tensor("y", (length, depth)).padded(0)
    return compute((length, band), lambda i, j: total((depth,), lambda k: x[i, k] * y[i + j - 2, k]))


@pytest.mark.parametrize("way", ["cheapest", "matrix_product", "elementwise"])
def test_a_band_of_a_product(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prefer(way, monkeypatch)
    scope = banded(9, 4, 5)
    data = drawn(scope, 0)
    found = interpret.interpret(scope, {t: a.astype(float) for t, a in data.items()}, Reals())
    np.testing.assert_array_equal(found, slowly(scope, data).astype(float))


@pytest.mark.parametrize("field", [Reals(), PrimeField(1)], ids=["reals", "prime"])
@pytest.mark.parametrize(
    "drawing",
    [
        Windows((Along(96, 5, 1, 1, 2, 2, 1, False, False),) * 2, 2, 1, 16, 1, True, "sum", 0, 0),
        Windows((Along(96, 3, 1, 1, 1, 1, 1, False, False),) * 2, 2, 1, 16, 16, True, "sum", 0, 0),
        Windows((Along(96, 3, 1, 1, 1, 1, 1, False, False),) * 2, 2, 24, 1, 1, True, "sum", 0, 0),
        Windows((Along(48, 9, 1, 1, 4, 3, 2, True, False),) * 2, 1, 1, 16, 1, True, "sum", 0, 0),
    ],
    ids=["few-channels", "many-channels", "depthwise", "transposed"],
)
def test_memory_is_a_few_times_that_of_operands_result_and_pieces(
    drawing: Windows, field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tracemalloc

    monkeypatch.setattr(contract, "CHUNK_ELEMENTS", 1 << 14)
    scope = drawing.scope()
    data = {t: field.from_int(a) for t, a in drawn(scope, 0).items()}
    tracemalloc.start()
    found = interpret.interpret(scope, data, field)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    held = sum(a.nbytes for a in data.values()) + found.nbytes + 4 * contract.CHUNK_ELEMENTS * 8
    assert peak <= 4 * held, f"{peak / held:.1f} times"  # the windows of these are 9 to 300 times as large


@pytest.mark.parametrize(
    "field", [Reals(), PrimeField(1), PrimeFieldPairs(1)], ids=["reals", "prime", "pairs"]
)
def test_the_windows_of_a_band_are_never_all_in_memory(field: Field, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product over GF(p) copies its operands: of a band that is every place's whole window."""
    import tracemalloc

    monkeypatch.setattr(contract, "CHUNK_ELEMENTS", 1 << 14)
    scope = banded(600, 40, 65)
    data = {t: field.from_int(a) for t, a in drawn(scope, 0).items()}
    tracemalloc.start()
    found = interpret.interpret(scope, data, field)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    windows = 600 * 40 * 65 * 8
    assert peak < windows and peak <= 4 * (sum(a.nbytes for a in data.values()) + found.nbytes) + windows / 4
