"""Chains: products between combinations by tables, as one kernel (`kernels.stages.bilinear_chain`)."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensaurus.expr.evaluate.fields import Reals
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.ir.scope import Body, Scope, Tensor, axis, call, compute, total, where
from tensaurus.expr.ir.walk import replace_tensors
from tensaurus.expr.ir.walk import tensors as tensors_of
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.expr.sizes.size import Size, polynomial
from tensaurus.finders.bilinear import best_algorithm
from tensaurus.finders.bilinear.fast_convolution import Convolution, fast_scope
from tensaurus.finders.bilinear.tiling import ConvolutionAxis
from tensaurus.finders.fuse.inline_stages import inline_stages
from tensaurus.kernels.halide.compile import compile_kernel, input_tensors, kernel_interface
from tensaurus.kernels.halide.pipeline import schedulable_stages
from tensaurus.kernels.stages.bilinear_chain import has_combinations, recognize_chain
from tensaurus.kernels.stages.linear_combinations import Sum, share_partial_sums
from tensaurus.kernels.stages.pack_weights import packed_type, packing_scope
from tensaurus.kernels.stages.pad_to_blocks import widen_to_blocks
from tensaurus.kernels.stages.register_transpose import is_transposable, shuffle_radix, transpose_rows
from tensaurus.kernels.stages.sketch import (
    ChainSketch,
    PackedInput,
    format_schedule,
    nest_sketches,
    parse_schedule,
    select_packs,
)
from tensaurus.kernels.stages.stage import Stage, build_stages, extent
from tensaurus.kernels.tune.chain_schedules import rank_chain_schedules
from tensaurus.kernels.tune.guard_pages import guarded_array
from tensaurus.kernels.tune.target_core import TargetCore, busiest_share
from tensaurus.ops import TensorType

jit = pytest.importorskip("tensaurus.kernels.halide.compile").jit

CORES = (TargetCore(512, 32, 1), TargetCore(512, 32, 2), TargetCore(256, 16, 2))

# batch, channels, filters, windows, outputs of tiles (None: direct), groups
CASES = {
    "3x3": (1, 16, 32, [(9, 3, 1, 1, 1), (13, 3, 1, 1, 1)], (4, 4)),
    "batch": (3, 8, 16, [(6, 3, 1, 1, 1), (5, 3, 1, 0, 2)], (2, 4)),
    "one tile": (1, 8, 8, [(3, 3, 1, 1, 1), (3, 3, 1, 1, 1)], (4, 4)),
    "odd tiles": (1, 8, 24, [(11, 3, 1, 1, 1), (17, 3, 1, 1, 1)], (3, 5)),
    "filled blocks": (2, 8, 40, [(9, 3, 1, 1, 1), (14, 3, 1, 1, 1)], (4, 4)),
    "filled blocks of many": (1, 8, 100, [(6, 3, 1, 1, 1), (8, 3, 1, 1, 1)], (2, 2)),
    "fewer than a vector": (1, 8, 12, [(9, 3, 1, 1, 1), (14, 3, 1, 1, 1)], (4, 2)),
    "filled blocks of phases": (1, 8, 20, [(11, 3, 2, 1, 1), (14, 3, 2, 1, 0)], (2, 2)),
    "three channels": (1, 3, 24, [(9, 3, 1, 1, 1), (13, 3, 1, 0, 1)], (2, 4)),
    "three channels of phases": (2, 3, 16, [(17, 7, 2, 3, 3), (18, 7, 2, 3, 3)], (3, 2)),
    "three channels, direct rows": (1, 3, 16, [(15, 7, 2, 3, 3), (14, 7, 2, 3, 3)], (None, 3)),
    "channels in vectors that are not full": (2, 21, 16, [(9, 3, 1, 1, 1), (13, 3, 1, 1, 1)], (4, 4)),
    "as many filters": (1, 21, 21, [(9, 3, 1, 1, 1), (14, 3, 1, 1, 1)], (None, 3)),
    "two blocks of eleven": (1, 22, 32, [(9, 3, 1, 1, 1), (13, 3, 2, 1, 1)], (2, 4)),
    "eleven channels": (1, 11, 16, [(9, 3, 1, 1, 1), (13, 3, 1, 1, 1)], (4, 4)),
    "stride": (1, 8, 16, [(11, 3, 2, 1, 1), (14, 3, 2, 1, 0)], (2, 2)),
    "unlike strides": (2, 8, 16, [(7, 3, 1, 1, 1), (14, 5, 2, 2, 2)], (2, 4)),
    "direct rows": (1, 16, 16, [(7, 3, 1, 1, 1), (9, 3, 1, 1, 1)], (None, 4)),
    "1-D": (2, 16, 48, [(37, 5, 1, 2, 2)], (4,)),
    "3-D": (1, 8, 8, [(4, 3, 1, 1, 1), (5, 3, 1, 1, 1), (6, 3, 1, 1, 1)], (2, 2, 4)),
    "dilated columns": (1, 8, 16, [(12, 3, 1, 2, 2, 2), (13, 3, 1, 1, 1)], (2, 4)),
    "dilated along rows": (1, 8, 16, [(12, 3, 1, 1, 1), (37, 3, 1, 2, 2, 2)], (2, 4)),
    "dilated": (2, 16, 16, [(28, 3, 1, 2, 2, 2), (28, 3, 1, 2, 2, 2)], (4, 4)),
    "wide": (1, 8, 16, [(5, 3, 1, 1, 1), (70, 3, 1, 1, 1)], (2, 4)),
    "no pads": (1, 8, 16, [(8, 3, 1, 0, 0), (8, 3, 1, 0, 0)], (2, 4)),
    "groups": (2, 32, 48, [(9, 3, 1, 1, 1), (13, 3, 1, 1, 1)], (4, 4), 2),
    "groups of few": (1, 32, 64, [(6, 3, 1, 1, 1), (13, 3, 1, 1, 1)], (2, 4), 8),
    "groups of phases": (1, 16, 32, [(11, 3, 2, 1, 1), (14, 3, 2, 1, 0)], (2, 2), 2),
}


def _kernel(name: str) -> tuple[Scope, list[TensorType]]:
    """Its scope over x0 and transformed weights, which is x1, and a bias."""
    batch, channels, filters, windows, tiles, *groups = CASES[name]
    made = tuple(_window(*window) for window in windows)
    of = Convolution(batch, channels, filters, *(groups or [1]), made, has_bias=True)
    scope = fast_scope(
        of, [n and best_algorithm(n, w.taps, w.step) for n, w in zip(tiles, made, strict=True)]
    )
    read = sorted(tensors_of(scope), key=lambda x: x.name)
    return scope, [TensorType(x.dtype, x.shape) for x in read]


def _window(size: int, taps: int, stride: int, before: int, after: int, dilation: int = 1) -> ConvolutionAxis:
    outputs = (size + before + after - dilation * (taps - 1) - 1) // stride + 1
    return ConvolutionAxis(size, taps, outputs, stride, dilation, before)


def _spread(pool: list, count: int) -> list:
    """Some of a pool: its first, and others throughout."""
    return pool[:: max(len(pool) // count, 1)][:count]


@pytest.mark.nightly(every=14)
@pytest.mark.parametrize("name", CASES)
def test_schedules_of_a_chain_compute_it(name: str) -> None:
    scope, types = _kernel(name)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(kind.shape).astype(np.float32) for kind in types]
    lifted = {x: a.astype(np.float64) for x, a in zip(input_tensors(types), arrays, strict=True)}
    wanted = interpret(scope, lifted, Reals())
    schedules = [
        (*packed, sketch)
        for core in CORES
        for packed, pool, _ in rank_chain_schedules(scope, types, [False, True, True], core)
        for by_points in (False, True)
        for sketch in _spread([sketch for sketch in pool if sketch.by_points == by_points], 1)
    ]
    assert schedules
    for schedule in schedules[:: max(len(schedules) // 5, 1)]:
        assert parse_schedule(format_schedule(schedule)) == schedule
        got = np.full(wanted.shape, np.nan, np.float32)
        jit(scope, types, schedule, checks=True)(arrays, got)()
        error = np.max(np.abs(got - wanted)) / np.max(np.abs(wanted))
        assert error < 1e-4, (format_schedule(schedule), error)


@pytest.mark.parametrize("name", ["3x3", "odd tiles", "wide", "batch"])
def test_what_follows_reads_nothing_beyond_its_arrays(name: str) -> None:
    """The last vector of a row reaches beyond it: what it would read there is behind a page's end."""
    inner, types = _kernel(name)
    more = Tensor("x3", inner.shape)
    scope = inline_stages(compute(inner.shape, lambda *i: call("max", inner[i] + more[i], 0)))
    # the scope names what it reads; so are the arrays in that order
    types = [*types, TensorType("float32", inner.shape)]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(kind.shape).astype(np.float32) for kind in types]
    lifted = {x: a.astype(np.float64) for x, a in zip(input_tensors(types), arrays, strict=True)}
    wanted = interpret(scope, lifted, Reals())
    for packed, pool, _ in rank_chain_schedules(scope, types, [False, True, True, False], CORES[0]):
        bound = jit(scope, types, (*packed, pool[0]))
        for last in (False, True):
            given = [guarded_array(a.shape, a.dtype, last) for a in arrays]
            for place, array in zip(given, arrays, strict=True):
                place[...] = array
            got = guarded_array(wanted.shape, np.dtype(np.float32), last)
            bound(given, got)()
            assert np.max(np.abs(got - wanted)) < 1e-4 * np.max(np.abs(wanted))


@pytest.mark.nightly(every=4)
@pytest.mark.parametrize("windows", [CASES["3x3"][3], CASES["1-D"][3], CASES["stride"][3]])
@pytest.mark.parametrize("after", ["nothing", "max", "add", "swish", "swish twice"])
@pytest.mark.parametrize("bias", [False, True])
def test_with_or_without_a_bias_and_with_what_follows_it_stays_a_chain(
    windows: list[tuple[int, ...]], after: str, bias: bool
) -> None:
    """The last combination goes over tiles: over the output's own places it is no combination by a table.
    What follows may read it more than once."""
    made = tuple(_window(*window) for window in windows)
    of = Convolution(1, 8, 16, 1, made, has_bias=bias)
    inner = fast_scope(of, [best_algorithm(2, window.taps, window.step) for window in made])
    more = Tensor(f"x{2 + bias}", inner.shape)

    def swish(of: Scope) -> Scope:
        return compute(of.shape, lambda *i: of[i] * call("tanh", of[i]))

    def element(*i: Size) -> Body:
        if "swish" in after:
            return (swish(swish(inner)) if "twice" in after else swish(inner))[i]
        value = inner[i] + more[i] if after == "add" else inner[i]
        return value if after == "nothing" else call("max", value, 0)

    scope = inline_stages(compute(inner.shape, element))
    read = sorted(tensors_of(scope), key=lambda x: x.name)
    types = [TensorType(x.dtype, x.shape) for x in read]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(kind.shape).astype(np.float32) for kind in types]
    lifted = {x: a.astype(np.float64) for x, a in zip(input_tensors(types), arrays, strict=True)}
    wanted = interpret(scope, lifted, Reals())
    fixed = [False, True, *[bias] * bias, *[False] * (len(types) - 2 - bias)]
    pools = [(packed, pool) for packed, pool, _ in rank_chain_schedules(scope, types, fixed, CORES[0])]
    assert pools
    for packed, pool in pools[:1]:
        got = np.full(wanted.shape, np.nan, np.float32)
        jit(scope, types, (*packed, pool[0]), checks=True)(arrays, got)()
        assert np.max(np.abs(got - wanted)) < 1e-4 * np.max(np.abs(wanted))


@pytest.mark.nightly(every=3)
@pytest.mark.parametrize("name", ["3x3", "odd tiles", "stride", "1-D", "groups"])
@pytest.mark.parametrize("before", ["a product and a sum", "twice as large", "side by side"])
def test_what_is_computed_of_its_input_is_computed_where_that_is_copied(name: str, before: str) -> None:
    inner, types = _kernel(name)
    x, *others = sorted(tensors_of(inner), key=lambda x: x.name)
    other = Tensor("x3", x.shape)
    half = int(x.shape[1]) // 2  # type: ignore[call-overload]

    def element(n: Size, c: Size, *place: Size) -> Body:
        value = x[n, c, *place]
        if before == "a product and a sum":
            return call("max", value * other[n, c, *place] + value, 0)
        if before == "twice as large":
            return value + other[n, c, *(i // 2 for i in place)]
        return where(half - 1 - c, value, other[n, half - 1, *place])

    scope = intern_scope(replace_tensors(inner, {x: compute(x.shape, element)}))
    types = [*types, TensorType("float32", x.shape)]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(kind.shape).astype(np.float32) for kind in types]
    lifted = {x: a.astype(np.float64) for x, a in zip(input_tensors(types), arrays, strict=True)}
    wanted = interpret(scope, lifted, Reals())
    pools = list(rank_chain_schedules(scope, types, [False, True, True, False], CORES[0]))
    assert pools
    for packed, pool, _ in pools[:2]:
        got = np.full(wanted.shape, np.nan, np.float32)
        jit(scope, types, (*packed, pool[0]), checks=True)(arrays, got)()
        assert np.max(np.abs(got - wanted)) < 1e-4 * np.max(np.abs(wanted))


def test_a_kernel_of_another_chain_is_refused() -> None:
    scope, types = _kernel("3x3")
    output = TensorType("float32", tuple(a.extent for a in scope.axes))
    pack = PackedInput("x1", 2, 16)
    for sketch in (
        ChainSketch(16, 1, (1,), (1,), 16),  # other tiles
        ChainSketch(16, 2, (1, 1), (1, 1), 16),  # weights that are packed in another way
        ChainSketch(16, 1, (1, 1), (1, 1), 5),  # channels that it does not divide
    ):
        with pytest.raises(ValueError, match=r"sketch|channels"):
            compile_kernel(scope, types, output, (pack, sketch))


def test_what_is_no_chain() -> None:
    x = Tensor("x0", (8, 8))
    product = compute((8, 8), lambda i, j: total((8,), lambda k: x[i, k] * x[k, j]))
    assert recognize_chain(build_stages(product)) is None and not has_combinations(build_stages(product))
    scope, types = _kernel("3x3")
    assert has_combinations(build_stages(scope))
    stages, _ = schedulable_stages(scope, input_tensors(types))
    assert recognize_chain(stages) is None  # nothing is packed: no vector of weights lies side by side
    types, own, _ = kernel_interface(scope, types, (PackedInput("x1", 2, 16),))
    assert (
        recognize_chain(schedulable_stages(own, input_tensors(types), (PackedInput("x1", 2, 16),))[0])
        is not None
    )


def test_no_schedules_where_weights_are_no_constants() -> None:
    scope, types = _kernel("3x3")
    assert not [*rank_chain_schedules(scope, types, [False, False, False], CORES[0])]


@pytest.mark.parametrize("core", CORES)
def test_a_thread_has_its_share(core: TargetCore) -> None:
    scope, types = _kernel("wide")
    for _, pool, shape in rank_chain_schedules(scope, types, [False, True, True], core):
        for sketch in pool:
            assert 1 / core.threads <= busiest_share(sketch, shape, core.threads) <= 1
            held = int(np.prod(sketch.block)) * sketch.vectors
            assert held < core.registers


@pytest.mark.parametrize("core", CORES)
def test_the_data_of_a_block_of_tiles_of_a_large_image_stays_in_the_cache(core: TargetCore) -> None:
    """All transformed data of 64 channels of 900x161 pixels are 85 MB: ten times too slow."""
    windows = tuple(_window(size, 3, 1, 1, 1) for size in (900, 161))
    algorithms = [best_algorithm(4, w.taps, w.step) for w in windows]
    scope = fast_scope(Convolution(1, 64, 64, 1, windows), algorithms)
    types = [TensorType(x.dtype, x.shape) for x in sorted(tensors_of(scope), key=lambda x: x.name)]
    ranked = list(rank_chain_schedules(scope, types, [False, True], core))
    assert ranked
    for _, pool, shape in ranked:
        tiles = int(np.prod(shape.extents[:-1]))
        for sketch in pool[:5]:
            assert isinstance(sketch, ChainSketch)
            assert shape.copied[""] * int(np.prod(sketch.tile)) / tiles < 16 << 20


@pytest.mark.parametrize("name", CASES)
def test_blocks_of_tiles_are_whole_rows(name: str) -> None:
    """What is less than the output's last axis and no whole rows would be computed as if it were."""
    scope, types = _kernel(name)
    for (pack,), pool, shape in rank_chain_schedules(scope, types, [False, True, True], CORES[1]):
        kinds, own, _ = kernel_interface(scope, types, (pack,))
        found = recognize_chain(schedulable_stages(own, input_tensors(kinds), (pack,))[0])
        assert found is not None
        for place, tile in enumerate(found.tiles):
            if tile.axis is found.output.axes[-1]:
                counts = {sketch.tile[place] for sketch in pool if isinstance(sketch, ChainSketch)}
                assert shape.extents[place] in counts
                assert all(n * tile.size % found.row_elements == 0 for n in counts - {shape.extents[place]})


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("length", [1, 3, 8, 16])
def test_shuffles_turn_rows(rows: int, length: int) -> None:
    values = np.arange(2 * rows * length, dtype=np.float64).reshape(2, -1)
    source = Tensor("x0", values.shape)
    outer, place = axis(2), axis(rows * length)
    first = Stage(
        Tensor("s", values.shape), (outer, place), source[polynomial(outer), polynomial(place)]
    )
    stages = transpose_rows(first, rows)
    known = {source: values}
    for stage in stages:
        known[stage.tensor] = interpret(Scope(stage.axes, stage.body), known, Reals())
    turned = values.reshape(2, rows, length).swapaxes(1, 2).reshape(2, -1)
    assert np.array_equal(known[stages[-1].tensor], turned)
    assert np.prod([shuffle_radix(stage) for stage in stages[1:]]) == rows
    assert all(a.tensor != b.tensor for a, b in pairwise(stages))


def test_rows_that_cannot_be_turned() -> None:
    assert not is_transposable(0) and not is_transposable(6)
    place = axis(12)
    stage = Stage(Tensor("s", (12,)), (place,), Tensor("x0", (12,))[polynomial(place)])
    with pytest.raises(ValueError, match="no power of two"):
        transpose_rows(stage, 6)


def test_packs_and_loops_of_a_transform() -> None:
    text = "pack(x1=2/32); transform(v=16x2, u=1:7, t=7:14, c=16, k=4, p=1)"
    schedule = parse_schedule(text)
    assert format_schedule(schedule) == text
    assert select_packs(schedule) == (PackedInput("x1", 2, 32),)
    assert nest_sketches(schedule) == (ChainSketch(16, 2, (1, 7), (7, 14), 16, 4, 1),)
    assert parse_schedule("transform(v=8x1, u=, t=, c=8, k=4, p=0)") == (ChainSketch(8, 1, (), (), 8),)
    by_points = replace(nest_sketches(schedule)[0], by_points=True)
    assert parse_schedule(format_schedule((by_points,))) == (by_points,)


def _value(item: int | Sum, columns: list[Fraction]) -> Fraction:
    return columns[item] if isinstance(item, int) else sum(c * _value(x, columns) for c, x in item.terms)


def _operations(sums: list[Sum]) -> int:
    """Multiply-adds, of what occurs several times once."""
    found: set[Sum] = set()
    waiting: list[int | Sum] = [*sums]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Sum) and item not in found:
            found.add(item)
            waiting += [x for _, x in item.terms]
    return sum(len(item.terms) - 1 for item in found if item.terms)


NUMBERS = st.sampled_from([0, 0, 1, -1, 2, -2, Fraction(2, 3), Fraction(-2, 3)])


TABLES = st.integers(1, 5).flatmap(
    lambda n: st.lists(st.lists(NUMBERS, min_size=n, max_size=n), min_size=1, max_size=6)
)


@given(TABLES)
def test_shared_sums_are_the_rows(table: list[list[Fraction | int]]) -> None:
    columns = [Fraction(7**k + 1, 3 + k) for k in range(len(table[0]))]
    sums = share_partial_sums(len(table), [v for row in table for v in row])
    wanted = [sum(v * x for v, x in zip(row, columns, strict=True)) for row in table]
    assert [_value(each, columns) for each in sums] == wanted
    plain = {tuple(row) for row in table}
    assert _operations(sums) <= sum(max(sum(v != 0 for v in row) - 1, 0) for row in plain) + len(plain)


@pytest.mark.parametrize(("outputs", "taps"), [(2, 3), (4, 3), (6, 3), (4, 5), (2, 7)])
def test_pairs_of_points_are_shared(outputs: int, taps: int) -> None:
    """Fewer operations than rows without zeros have, before and after."""
    algorithm = best_algorithm(outputs, taps)
    for matrix in (algorithm.data, algorithm.output):
        values = [v for row in matrix for v in row]
        plain = sum(max(sum(v != 0 for v in row) - 1, 0) for row in matrix)
        assert _operations(share_partial_sums(len(matrix), values)) <= plain
        if len(matrix) > 2 and outputs + taps > 5:
            assert _operations(share_partial_sums(len(matrix), values)) < plain


def test_axes_reach_to_the_end_of_blocks_where_nothing_else_is_read() -> None:
    x, w, b = Tensor("x0", (4, 8)), Tensor("x1", (20, 8)), Tensor("x2", (20,))
    pack = PackedInput("x1", 0, 16)

    def widths(scope: Scope) -> list[int]:
        types = [TensorType(t.dtype, t.shape) for t in (x, w, b)]
        _, own, _ = kernel_interface(scope, types, (pack,))
        stages = widen_to_blocks(build_stages(own), (pack,))
        return [extent(a) for stage in stages for a in stage.axes if extent(a) > 8]

    product = compute((4, 20), lambda i, f: total((8,), lambda c: x[i, c] * w[f, c]))
    assert widths(compute((4, 20), lambda i, f: product[i, f] + b[f])) == [32, 20]
    biased = compute((4, 20), lambda i, f: total((8,), lambda c: x[i, c] * w[f, c] * b[f]))
    assert widths(compute((4, 20), lambda i, f: call("exp", biased[i, f]))) == [20, 20]
    assert widths(product) == [20]  # the output itself has no more
    ends = compute((4, 20), lambda i, f: total((8,), lambda c: x[i, c] * w[f, c] * b.padded()[f + 1]))
    assert widths(compute((4, 20), lambda i, f: call("exp", ends[i, f]))) == [32, 20]


def test_a_pack_that_does_not_divide_is_filled_with_zeros() -> None:
    kind = TensorType("float32", (5, 3))
    values = np.arange(15, dtype=np.float32).reshape(5, 3)
    assert packed_type(kind, PackedInput("x0", 0, 4)).shape == (2, 3, 4)
    scope = packing_scope(kind, PackedInput("x0", 0, 4))
    got = interpret(scope, dict.fromkeys(tensors_of(scope), values), Reals())
    padded = np.concatenate([values, np.zeros((3, 3))]).reshape(2, 4, 3).swapaxes(1, 2)
    assert np.array_equal(got, padded)
