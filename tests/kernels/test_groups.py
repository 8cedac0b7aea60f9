"""Sums of many terms as sums of groups (`kernels.stages.group_long_sums`)."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensaurus.expr.evaluate.fields import Reals
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.ir.scope import Reduce, Scope, Tensor, axis, compute, total
from tensaurus.expr.sizes.size import polynomial
from tensaurus.kernels.stages.group_long_sums import group_long_sum
from tensaurus.kernels.stages.sketch import BlockSketch
from tensaurus.kernels.stages.stage import Stage, extent
from tensaurus.ops import TensorType

jit = pytest.importorskip("tensaurus.kernels.halide.compile").jit
from tensaurus.kernels.halide.compile import input_tensors  # noqa: E402
from tensaurus.kernels.halide.pipeline import schedulable_stages  # noqa: E402
from tensaurus.kernels.tune.schedule_space import rank_sketches  # noqa: E402
from tensaurus.kernels.tune.target_core import TargetCore  # noqa: E402

CORE = TargetCore(512, 32, 2)

SIZES = st.lists(st.integers(1, 24), min_size=1, max_size=3)


@given(SIZES, st.data())
def test_sums_of_groups_are_the_sum(sizes: list[int], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(sizes))))
    whole = data.draw(st.integers(0, len(sizes)))
    most = data.draw(st.integers(1, 40))
    x = Tensor("x", (3, *sizes))
    own, reduced = axis(3), tuple(axis(n, "r") for n in sizes)
    stage = Stage(Tensor("s", (3,)), (own,), x[tuple(map(polynomial, (own, *reduced)))], reduced, "sum")
    values = np.arange(3 * prod(sizes), dtype=np.float64).reshape(3, *sizes)
    found = group_long_sum(stage, order, most, whole)
    if found is None:
        return
    groups, whole_sum = found
    least = prod(sizes[k] for k in order[:whole])
    assert prod(map(extent, groups.reduced)) <= max(most, least)
    known = {x: values}
    for each in found:
        body = Scope(each.axes, Reduce(each.monoid, each.reduced, each.body))
        known[each.tensor] = interpret(body, known, Reals())
    assert whole_sum.tensor == stage.tensor
    assert np.array_equal(known[stage.tensor], values.reshape(3, -1).sum(1))


def _product(terms: int) -> tuple[Scope, list[TensorType]]:
    a, b = Tensor("x0", (6, terms)), Tensor("x1", (terms, 40))
    scope = compute((6, 40), lambda i, j: total((terms,), lambda k: a[i, k] * b[k, j]))
    return scope, [TensorType(x.dtype, x.shape) for x in (a, b)]  # type: ignore[arg-type]


def _window(channels: int) -> tuple[Scope, list[TensorType]]:
    a, b = Tensor("x0", (channels, 7, 40)), Tensor("x1", (8, channels, 3, 3))
    scope = compute(
        (8, 5, 38),
        lambda f, i, j: total((channels, 3, 3), lambda c, r, s: a[c, i + r, j + s] * b[f, c, r, s]),
    )
    return scope, [TensorType(x.dtype, x.shape) for x in (a, b)]  # type: ignore[arg-type]


def _band(reach: int) -> tuple[Scope, list[TensorType]]:
    a, b = Tensor("x0", (16, reach)), Tensor("x1", (16 + reach, 32))
    scope = compute((16, 32), lambda i, d: total((reach,), lambda j: a[i, j] * b[i + j, d]))
    return scope, [TensorType(x.dtype, x.shape) for x in (a, b)]  # type: ignore[arg-type]


CASES = {
    "1,025 terms": _product(1025),
    "a prime": _product(1031),
    "a power of two": _product(4096),
    "512, one group": _product(512),
    "taps": _window(128),
    "a band": _band(1025),
}


@pytest.mark.parametrize("name", CASES)
def test_equal_terms_are_added_up_as_they_should(name: str) -> None:
    """One accumulator rounds each of 4,096 equal terms the same way: 5e-5 of the sum."""
    scope, types = CASES[name]
    stages, _ = schedulable_stages(scope, input_tensors(types))
    arrays = [np.full(kind.shape, 0.1 + k, np.float32) for k, kind in enumerate(types)]
    lifted = {x: a.astype(np.float64) for x, a in zip(input_tensors(types), arrays, strict=True)}
    wanted = interpret(scope, lifted, Reals())
    (pool,) = rank_sketches(stages, CORE)
    blocks = [sketch for sketch in pool if isinstance(sketch, BlockSketch)]
    for sketch in blocks[:: max(len(blocks) // 3, 1)]:
        got = np.full(wanted.shape, np.nan, np.float32)
        jit(scope, types, (sketch,), checks=True)(arrays, got)()
        limit = 4e-5 if name in ("a prime", "512, one group") else 3e-6
        assert np.max(np.abs(got / wanted - 1)) < limit, sketch.text


@pytest.mark.parametrize("name", CASES)
def test_random_terms(name: str) -> None:
    scope, types = CASES[name]
    stages, _ = schedulable_stages(scope, input_tensors(types))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(kind.shape).astype(np.float32) for kind in types]
    lifted = {x: a.astype(np.float64) for x, a in zip(input_tensors(types), arrays, strict=True)}
    wanted = interpret(scope, lifted, Reals())
    (pool,) = rank_sketches(stages, CORE)
    for sketch in pool[:: max(len(pool) // 4, 1)]:
        got = np.full(wanted.shape, np.nan, np.float32)
        jit(scope, types, (sketch,), checks=True)(arrays, got)()
        assert np.max(np.abs(got - wanted)) < 1e-5 * np.max(np.abs(wanted)), sketch.text
