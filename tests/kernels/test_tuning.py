"""Schedules as text, their parts on several threads, and the tuner: what it keeps and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf, prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensaurus.expr.ir.expression_text import parse as parse_scope
from tensaurus.expr.ir.scope import Scope, Tensor
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.kernels.halide.compile import kernel_interface
from tensaurus.kernels.stages.sketch import (
    BlockedBand,
    BlockSketch,
    ChainSketch,
    FlatSketch,
    NestChange,
    PackedInput,
    RowSketch,
    Schedule,
    format_schedule,
    nest_changes,
    nest_sketches,
    parse_schedule,
    select_bands,
    select_packs,
)
from tensaurus.kernels.stages.stage import build_stages, extent
from tensaurus.kernels.tune import reduction_histories
from tensaurus.kernels.tune.operand_access import condition_axes
from tensaurus.kernels.tune.reduction_histories import REDUCTION_ROWS
from tensaurus.kernels.tune.register_blocks import rank_blocks as register_blocks
from tensaurus.kernels.tune.schedule_pools import (
    SchedulePool,
    find_pools,
    interleave,
    ranked_schedules,
    similar_schedules,
    unique_schedules,
)
from tensaurus.kernels.tune.target_core import (
    L2_BYTES,
    NestShape,
    TargetCore,
    busiest_share,
    exchange_seconds,
)
from tensaurus.kernels.tune.timing_processes import TimingProcesses
from tensaurus.kernels.tune.tune import Tuner
from tensaurus.ops import TensorType
from tensaurus.runtimes.measure.database import Database
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.system.deadline import Overdue

small = st.integers(0, 9)
pairs = st.lists(st.tuples(small, st.integers(1, 99)), max_size=3).map(tuple)
blocks = st.builds(
    BlockSketch,
    small,
    st.integers(1, 16),
    st.integers(1, 6),
    pairs,
    pairs,
    st.lists(st.integers(0, 12), max_size=4, unique=True).map(tuple),
    st.just(0),
    st.lists(st.tuples(st.sampled_from(["x0", "x11", "s3"]), small), max_size=2).map(tuple),
    st.integers(0, 3),
)
sketches = st.one_of(
    blocks,
    st.builds(RowSketch, st.integers(1, 16), st.integers(1, 128), st.integers(0, 3)),
    st.builds(FlatSketch, st.integers(1, 16), st.integers(1, 8), st.integers(0, 3), st.integers(0, 3), pairs),
)
packings = st.builds(PackedInput, st.sampled_from(["x1", "x10"]), small, st.integers(2, 16))
blockings = st.builds(BlockedBand, st.sampled_from(["s0", "s10"]), small, st.integers(2, 16))


@given(st.lists(packings | blockings, max_size=2), st.lists(sketches, min_size=1, max_size=3))
def test_schedules_are_read_back_from_their_text(
    packed: list[NestChange], sides: list[BlockSketch | RowSketch | FlatSketch]
) -> None:
    schedule: Schedule = (*packed, *sides)
    assert parse_schedule(format_schedule(schedule)) == schedule
    assert (*nest_changes(schedule), *nest_sketches(schedule)) == schedule
    assert sorted((*select_packs(schedule), *select_bands(schedule)), key=packed.index) == packed


@pytest.mark.parametrize("text", ["block", "block(v=1)", "flat(u=x, p=1)", "roll(p=1)", "flat(u=4*16, p=1)x"])
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no schedule"):
        parse_schedule(text)


@pytest.mark.parametrize(
    "sketch, threads, wanted",
    [
        (FlatSketch(16, 1, 0), 2, 1.0),
        (FlatSketch(16, 1, 1), 2, 4 / 7),
        (FlatSketch(16, 1, 2), 3, 12 / 35),
        (FlatSketch(16, 1, 1, beside=((0, 2),)), 2, 0.5),
        (FlatSketch(16, 1, 1, beside=((1, 2),)), 2, 4 / 7),
        (BlockSketch(1, 16, tile=((0, 4),), parallel=1), 2, 0.5),
        (BlockSketch(1, 16, tile=((0, 7),), parallel=1), 2, 1.0),
        (RowSketch(16, 64, 1), 8, 1 / 7),
    ],
)
def test_the_busiest_thread_has_its_tasks_of_all(
    sketch: BlockSketch | RowSketch | FlatSketch, threads: int, wanted: float
) -> None:
    assert busiest_share(sketch, NestShape((7, 5), 35), threads) == pytest.approx(wanted)


SHAPE = NestShape((4, 4, 2), 1 << 20, {"": 1 << 20, "x0": 1 << 18}, 1 << 22, 1 << 21)
LARGER = replace(SHAPE, copied={"": 1 << 22, "x0": 1 << 20}, weights=1 << 24, products=1 << 23)


def test_threads_lose_time_by_what_they_share() -> None:
    """Data that they make together, or weights that all of them read; one thread shares with nobody."""
    chained = ChainSketch(16, 2, (1, 4), (2, 4), 16, 4, 2)
    copied = BlockSketch(1, 16, tile=((0, 2),), copies=(("x0", 0), ("x1", 1)), parallel=1)
    apart, by_points = replace(chained, parallel=1), replace(chained, by_points=True)
    alone, two = TargetCore(512, 32, 1), TargetCore(512, 32, 2)
    for sketch in (chained, copied, apart, by_points):
        assert exchange_seconds(sketch, SHAPE, alone) == 0.0
        assert 0.0 < exchange_seconds(sketch, SHAPE, two) < exchange_seconds(sketch, LARGER, two)
        assert exchange_seconds(replace(sketch, parallel=0), SHAPE, two) == 0.0
    assert exchange_seconds(chained, SHAPE, two) > exchange_seconds(
        replace(chained, tile=(4, 4)), SHAPE, two
    )  # fewer rounds
    assert exchange_seconds(by_points, SHAPE, two) > exchange_seconds(chained, SHAPE, two)  # products, too
    assert (
        exchange_seconds(apart, replace(SHAPE, weights=L2_BYTES), two) == 0.0
    )  # which lie in each core's cache
    assert (
        exchange_seconds(replace(copied, copies=(("x1", 1),)), SHAPE, two) == 0.0
    )  # each thread has its own
    assert exchange_seconds(FlatSketch(16, 1, 1), SHAPE, two) == 0.0
    near = replace(two, exchange=two.exchange / 5)  # cores that share a cache lose less
    assert exchange_seconds(by_points, SHAPE, near) < exchange_seconds(by_points, SHAPE, two)


# ------------------------------------------------------------------------------------- orders of schedules


def of_width(vectors: int, block: int = 4) -> tuple[PackedInput, ChainSketch]:
    return PackedInput("x1", 0, 16 * vectors), ChainSketch(16, vectors, (1, block), (2, 4), 16, 4, 1)


WIDTHS = [
    SchedulePool((of_width(v)[0],), [[of_width(v, block)[1] for block in (4, 2)]], [SHAPE]) for v in (2, 4, 1)
]


def test_the_first_of_each_pool_come_first() -> None:
    first = list(ranked_schedules(WIDTHS))
    assert first == [of_width(v, block) for block in (4, 2) for v in (2, 4, 1)]


def test_schedules_of_other_sizes_are_sought_where_as_much_is_packed() -> None:
    known = of_width(4, 3)
    assert next(similar_schedules([known], WIDTHS)) == of_width(4)
    assert next(similar_schedules([of_width(6, 3)], WIDTHS)) == of_width(
        2
    )  # nothing is: in the most promising
    assert not [
        *similar_schedules([(PackedInput("x1", 1, 32), known[1])], WIDTHS)
    ]  # another dimension is another form


def test_what_is_most_like_each_known_schedule_comes_first() -> None:
    found = list(similar_schedules([of_width(4, 3), of_width(2, 3)], WIDTHS))
    assert found == [of_width(4), of_width(2), of_width(4, 2), of_width(2, 2)]


def test_orders_take_turns() -> None:
    one, other = [of_width(2), of_width(4)], [of_width(1), of_width(2), of_width(2, 2)]
    assert list(unique_schedules(interleave(one, other))) == [
        of_width(2),
        of_width(1),
        of_width(4),
        of_width(2, 2),
    ]


# ----------------------------------------------------------------------------------------- the tuner


def scope_of(text: str, *types: TensorType) -> Scope:
    named = {f"x{k}": Tensor(f"x{k}", kind.shape, kind.dtype) for k, kind in enumerate(types)}
    return intern_scope(parse_scope(text, named))


WIDE = TensorType("float32", (32, 24))
WEIGHTS = TensorType("float32", (32, 32))
OUT = TensorType("float32", (32, 24))
PRODUCT = "L[i:32, j:24](max(0, sum[r:32](mul(x1[i, r], x0[r, j]))))"


@pytest.fixture
def tuner(tmp_path: Path) -> Iterator[Tuner]:
    with Database(tmp_path / "times.db") as records:
        made = Tuner(records, Machine.here(1), "native", ships=False)
        yield made
        made.close()


@pytest.mark.parametrize(
    "text",
    [
        "L[i:1, j:64, k:14, l:14](sum[r:32, s:3, t:3](mul(x[i, r, k + s, l + t] | 0, w[j, r, s, t])))",
        "L[i:1, j:64, k:14, l:14](sum[s:3, t:3](mul(x[0, j, k + s - 1, l + t - 1] | 0, w[j, 0, s, t])))",
        "L[j:64, k:14](sum[r:3](mul(w[j, 0, r, 0], x[0, k, r, 0]) if j + r - 1 >= 0 else 0))",
    ],
)
def test_the_most_promising_blocks_of_registers(text: str) -> None:
    """Fewer are the first of more; vectors lie along the axes that are asked for, and registers hold all."""
    known = {"x": Tensor("x", (1, 64, 14, 14)), "w": Tensor("w", (64, 32, 3, 3))}
    (stage,) = build_stages(parse_scope(text, known))
    core = TargetCore(512, 32, 2)
    found = register_blocks(stage, core, 16)
    assert found and len(set(found)) == len(found)
    assert register_blocks(stage, core, 16, limit=7) == found[:7]
    last = len(stage.axes) - 1
    assert all(block.vector == last for block in register_blocks(stage, core, 16, min_vector=last))
    sizes = [extent(a) for a in stage.axes]
    for block in found:
        assert block.vectors * prod(n for _, n in block.block) <= core.registers
        assert sorted(block.order) == list(range(len(stage.reduced)))
        assert all(0 < n <= sizes[k] for k, n in (*block.block, *block.tile))
        assert block.parallel <= sum(n < sizes[k] for k, n in block.tile)
        # stores apart, of several rows, in one straight line with all sums would compile for seconds
        rows = any(block.vector < k < last for k, _ in block.block)
        assert not rows or condition_axes(stage) or block.unrolled < len(stage.reduced)


def test_vectors_along_rows_that_waste_lanes_are_ranked_with_their_copies() -> None:
    """Rows of 19 waste 13 lanes of 32, but vectors along channels need copies that are rearranged."""
    text = "L[j:728, k:19, l:19](sum[s:3, t:3](mul(x[j, k + s - 1, l + t - 1] | 0, w[j, s, t])))"
    known = {"x": Tensor("x", (728, 19, 19)), "w": Tensor("w", (728, 3, 3))}
    (stage,) = build_stages(parse_scope(text, known))
    assert register_blocks(stage, TargetCore(512, 32, 2), 16)[0].vector == 2


@pytest.mark.parametrize(
    ("text", "tile"),
    [
        (  # channels in blocks: each is another one's neighbour in no tap
            "L[j:60, v:16, k:7, l:7](sum[s:3, t:3](mul(x[16*j + v, k + s, l + t], w[16*j + v, s, t])))",
            (0, 1),
        ),
        (  # and as one axis
            "L[j:960, k:7, l:7](sum[s:3, t:3](mul(x[j, k + s - 1, l + t - 1] | 0, w[j, s, t])))",
            (0, 16),
        ),
    ],
)
def test_what_a_vector_needs_of_a_copy_may_be_all_of_it(text: str, tile: tuple[int, int]) -> None:
    known = {"x": Tensor("x", (960, 9, 9)), "w": Tensor("w", (960, 3, 3))}
    (stage,) = build_stages(parse_scope(text, known))
    across = [block for block in register_blocks(stage, TargetCore(512, 32, 2), 16) if block.vector < 2]
    assert any(tile in block.tile and block.copies[0][1] > 0 for block in across)


def test_a_schedule_is_found_once(tuner: Tuner) -> None:
    scope, types = scope_of(PRODUCT, WIDE, WEIGHTS), (WIDE, WEIGHTS)
    assert tuner.best_schedule(scope, types, OUT, 0.0) is None and tuner.tried_count == 0
    first = tuner.best_schedule(scope, types, OUT, 0.5)
    assert first is not None and tuner.tried_count > 0
    tried = tuner.tried_count
    assert tuner.best_schedule(scope, types, OUT, 0.5) == first and tuner.tried_count == tried
    rows = tuner.measured_schedules(scope, types)
    assert rows[0].schedule == format_schedule(first) and all(0 < row.seconds < inf for row in rows)


def test_constants_are_packed_and_others_never(tuner: Tuner) -> None:
    scope, types = scope_of(PRODUCT, WIDE, WEIGHTS), (WIDE, WEIGHTS)
    pools = find_pools(scope, types, (False, True), tuner.core)
    assert [packed for packed, _, _ in pools] == [(), (PackedInput("x1", 0, tuner.core.lanes("float32")),)]
    assert [packed for packed, _, _ in find_pools(scope, types, (False, False), tuner.core)] == [()]
    packed = pools[1][0]
    kinds, own, packing = kernel_interface(scope, types, packed)
    lanes = tuner.core.lanes("float32")
    assert kinds == (WIDE, TensorType("float32", (32 // lanes, 32, lanes)))
    assert own is not scope and [p is not None for p in packing] == [False, True]


def test_digits_of_one_number_are_summed_up_in_blocks_of_registers(tuner: Tuner) -> None:
    """As a product of attention's heads side by side, which no copy puts there."""
    types = TensorType("float32", (4, 32, 8)), TensorType("float32", (32, 24))
    text = "L[i:32, j:24](sum[r:32](mul(x0[r // 8, i, -8*(r // 8) + r], x1[r, j])))"
    found = tuner.best_schedule(scope_of(text, *types), types, OUT, 0.5, (False, True))
    assert found is not None and isinstance(nest_sketches(found)[0], BlockSketch)
    assert len(nest_sketches(found)[0].order) == 2


def test_what_computes_other_numbers_is_no_schedule(tuner: Tuner, monkeypatch: pytest.MonkeyPatch) -> None:
    scope, types = scope_of(PRODUCT, WIDE, WEIGHTS), (WIDE, WEIGHTS)
    monkeypatch.setattr(TimingProcesses, "find_error", lambda self, schedule: "other numbers")
    assert tuner.best_schedule(scope, types, OUT, 0.3) is None
    assert tuner.measured_schedules(scope, types) == []


def test_a_process_that_dies_is_replaced(tuner: Tuner) -> None:
    scope, runner = scope_of(PRODUCT, WIDE, WEIGHTS), tuner.timer
    good = format_schedule(next(ranked_schedules(find_pools(scope, (WIDE, WEIGHTS), (), tuner.core))))
    runner.set_expression(PRODUCT, (WIDE, WEIGHTS), OUT)
    assert runner.time_on_one_thread([good], 0.01)[0] < inf
    child = runner._children[0]
    assert child is not None
    child._process.kill()
    child._process.wait()
    runner.set_expression(PRODUCT, (WIDE, WEIGHTS), OUT)
    assert runner.time_on_one_thread([good], 0.01)[0] < inf
    assert runner.time_on_one_thread(["flat(u=1*16, p=0); flat(u=1*16, p=0)"], 0.01) == [
        inf
    ]  # of another expression
    assert runner.find_error(good) == ""
    assert "sketches for" in runner.find_error("flat(u=1*16, p=0); flat(u=1*16, p=0)")


def test_a_table_whose_reading_was_ended_is_read_again(tuner: Tuner, monkeypatch: pytest.MonkeyPatch) -> None:
    form = tuner.reduction_form(scope_of(PRODUCT, WIDE, WEIGHTS), (WIDE, WEIGHTS), ())
    assert form is not None
    tuner._store_times(f"{REDUCTION_ROWS}{form.text}", {"a schedule": 1.0, "": 3.0})

    def late(*_: str) -> None:
        raise Overdue

    with monkeypatch.context() as patched, pytest.raises(Overdue):
        patched.setattr(tuner.database, "beginning", late)
        tuner.histories.of(form)
    assert tuner.histories.of(form).seconds == 3.0


def test_expressions_of_other_sizes_are_alike(tuner: Tuner) -> None:
    scope, types = scope_of(PRODUCT, WIDE, WEIGHTS), (WIDE, WEIGHTS)
    winner = tuner.best_schedule(scope, types, OUT, 0.3)
    assert winner is not None
    more = TensorType("float32", (32, 48))
    text = PRODUCT.replace("j:24", "j:48")
    other = tuner.reduction_form(scope_of(text, more, WEIGHTS), (more, WEIGHTS), ())
    assert other is not None and tuner.histories.similar_fastest(other) == [winner]
    softmax = tuner.reduction_form(scope_of("L[i:32](max[r:24](x0[i, r]))", WIDE), (WIDE,), ())
    assert softmax is not None and tuner.histories.similar_fastest(softmax) == []


ADDED = "L[i:32, j:24](add(sum[r:32](mul(max(0, x0[i, r]), x2[r, j])), x1[i, j]))"
UNLIKE = {
    "another size": "L[i:32, j:24](sum[r:16](mul(x1[i, r], x0[r, j])))",
    "another order": "L[i:32, j:24](sum[r:32](mul(x1[r, i], x0[r, j])))",
    "another step": "L[i:32, j:12](sum[r:32](mul(x1[i, r], x0[r, 2*j])))",
    "an edge": "L[i:32, j:24](sum[r:32](mul(x1[i, r], x0[r, j - 1] | 0)))",
    "another reduction": "L[i:32, j:24](max[r:32](mul(x1[i, r], x0[r, j])))",
    "a dear function": "L[i:32, j:24](sum[r:32](mul(exp(x1[i, r]), x0[r, j])))",
}


@pytest.mark.nightly
def test_what_reduces_alike_is_tuned_once(tuner: Tuner, monkeypatch: pytest.MonkeyPatch) -> None:
    """With other names, with something before and behind it; and in another run from the database."""
    monkeypatch.setattr(reduction_histories, "MIN_TRIES", 1)
    types = WIDE, WEIGHTS
    first = tuner.best_schedule(scope_of(PRODUCT, *types), types, OUT, 0.5)
    assert first is not None
    form = tuner.reduction_form(scope_of(PRODUCT, *types), types, ())
    assert form is not None and form.from_role_text(form.to_role_text(first)) == first
    again = Tuner(tuner.database, tuner.machine, "native")
    kinds = WEIGHTS, OUT, WIDE
    try:
        for each in (tuner, again):
            tried = each.tried_count
            scope = scope_of(ADDED, *kinds)
            found = each.tune_on(scope, kinds, OUT, 0.2, ())
            assert each.tried_count == tried + 1  # it is timed, and checked
            other = each.reduction_form(scope, kinds, ())
            assert found is not None and other is not None
            assert other.text == form.text and other.to_role_text(found) == form.to_role_text(first)
    finally:
        again.close()
    seconds = tuner.histories.of(form).seconds + 1.0
    assert tuner.tune_on(scope_of(PRODUCT, *types), types, OUT, seconds, ()) is not None
    assert tuner.tried_count > tried + 1  # there is more time than went into it


@pytest.mark.parametrize("what", UNLIKE)
def test_what_reduces_otherwise_is_tuned_for_itself(tuner: Tuner, what: str) -> None:
    types = WIDE, WEIGHTS
    one, other = (tuner.reduction_form(scope_of(text, *types), types, ()) for text in (PRODUCT, UNLIKE[what]))
    assert one is not None and other is not None and one.text != other.text
    fixed = tuner.reduction_form(scope_of(PRODUCT, *types), types, (False, True))
    assert fixed is not None and fixed.text != one.text  # it may be packed
    assert tuner.reduction_form(scope_of("L[i:32](x0[i, 0])", WIDE), (WIDE,), ()) is None


def test_what_was_tuned_for_a_moment_is_tuned_on(tuner: Tuner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few tries may all have fallen into a slow moment of the machine."""
    monkeypatch.setattr(reduction_histories, "MIN_TRIES", 1000)
    types, kinds = (WIDE, WEIGHTS), (WEIGHTS, OUT, WIDE)
    assert tuner.tune_on(scope_of(PRODUCT, *types), types, OUT, 0.5, ()) is not None
    form = tuner.reduction_form(scope_of(PRODUCT, *types), types, ())
    assert form is not None
    before = tuner.histories.of(form).passed_count
    assert tuner.histories.of(form).tried_count > 0
    assert tuner.tune_on(scope_of(ADDED, *kinds), kinds, OUT, 0.5, ()) is not None
    assert tuner.histories.of(form).passed_count > before


@pytest.mark.nightly(every=2)
@pytest.mark.parametrize("verb, verdict", [("time_on_all_threads", inf), ("find_error", "other numbers")])
def test_a_reused_schedule_that_fails_is_no_schedule(
    tuner: Tuner, monkeypatch: pytest.MonkeyPatch, verb: str, verdict: object
) -> None:
    """Then the expression is tuned as if nothing were known."""
    monkeypatch.setattr(reduction_histories, "MIN_TRIES", 1)
    types = WIDE, WEIGHTS
    assert tuner.best_schedule(scope_of(PRODUCT, *types), types, OUT, 0.5) is not None
    plain, asked = getattr(TimingProcesses, verb), []

    def refusing(self: TimingProcesses, *given: object, **named: object) -> object:
        asked.append(given)
        return verdict if len(asked) == 1 else plain(self, *given, **named)

    monkeypatch.setattr(TimingProcesses, verb, refusing)
    kinds = WEIGHTS, OUT, WIDE
    tried = tuner.tried_count
    assert tuner.best_schedule(scope_of(ADDED, *kinds), kinds, OUT, 0.3) is not None
    assert tuner.tried_count > tried + 1
