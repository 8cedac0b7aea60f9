"""Reductions of which some results are computed after others, and guards that are factors of sums."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from op_samples import Sample, declared_samples
from random_scopes import Everything

from tensaurus.expr.evaluate import chunked_reductions
from tensaurus.expr.evaluate.field_protocol import Array
from tensaurus.expr.evaluate.fields import PrimeField, Reals
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.ir.expression_text import parse
from tensaurus.expr.ir.scope import Reduce, Tensor, compute, look, total, where
from tensaurus.expr.ir.walk import bodies, tensors


def reducing() -> Iterator[Sample]:
    for sample in declared_samples():
        scopes = sample.op.scopes(sample.types, sample.attrs)
        if any(isinstance(body, Reduce) for scope in scopes for body in bodies(scope)):
            yield sample


@pytest.mark.parametrize("sample", list(reducing()), ids=str)
def test_every_operator_in_pieces(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sample.real()
    monkeypatch.setattr(chunked_reductions, "MAX_COMPUTED_ELEMENTS", 5)
    for left, right in zip(whole, sample.real(), strict=True):
        assert left.dtype == right.dtype and left.shape == right.shape
        np.testing.assert_allclose(left, right, rtol=1e-12, atol=1e-12)


@pytest.mark.nightly
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**40))
def test_random_expressions_in_pieces(seed: int) -> None:
    field = PrimeField(seed)
    scope = Everything(seed, order=False).scope(4)
    rng = np.random.default_rng(seed)
    values: dict[Tensor, Any] = {}
    for tensor in tensors(scope):
        shape = [n for n in tensor.shape if isinstance(n, int)]
        drawn = rng.integers(0, 4, shape)
        values[tensor] = drawn if tensor.dtype == "int64" else field.random(shape, rng)
    whole = interpret(scope, values, field)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked_reductions, "MAX_COMPUTED_ELEMENTS", 5)
        assert np.array_equal(whole, interpret(scope, values, field))


TENSORS = {"x": Tensor("x", (3, 6, 9)), "w": Tensor("w", (5, 4)), "y": Tensor("y", (4, 256, 256))}
# the guard ties two axes of the sum, another one an axis of the result with one of the sum
GUARDED = (
    "L[c:3, i:6](sum[r:3, s:4](mul(x[c, i + r - 1, i + s], w[r + 2*s, s])"
    " if 4 - r - 2*s >= 0 and i + r - 1 >= 0 and 6 - i - r >= 0 else 0))"
)


def guarded(x: Array, w: Array) -> Array:
    """The same by hand."""
    result = np.zeros((3, 6))
    for c, i, r, s in product(range(3), range(6), range(3), range(4)):
        if r + 2 * s <= 4 and 0 <= i + r - 1 < 6:
            result[c, i] += x[c, i + r - 1, i + s] * w[r + 2 * s, s]
    return result


@pytest.mark.parametrize("special", [None, np.inf, np.nan])
def test_what_a_guard_leaves_out_is_not_multiplied(special: float | None) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 6, 9)), rng.standard_normal((5, 4))
    if special is not None:
        x[1, 2, 3] = special
        w[4, 0] = special  # which is never read: of s = 0 it wants r = 4
    scope = parse(GUARDED, TENSORS)
    found = interpret(scope, {TENSORS["x"]: x, TENSORS["w"]: w}, Reals())
    np.testing.assert_allclose(found, guarded(x, w), rtol=1e-12, atol=1e-12)


def test_an_index_is_not_read_where_its_guard_does_not_hold() -> None:
    x, w, at = Tensor("x", (5,)), Tensor("w", (4,)), Tensor("at", (3,), "int64")
    scope = compute(
        (2,), lambda i: total((4,), lambda k: where(k - 1, x[look(at[k - 1], 0, 4)] * w[k], 0) * x[i])
    )
    values = {x: np.arange(1.0, 6), w: np.arange(4.0), at: np.array([0, 2, 4])}
    assert interpret(scope, values, Reals()).tolist() == [22, 44]  # (1 * 1 + 3 * 2 + 5 * 3) * x[i]


@pytest.mark.parametrize(
    "text",
    [
        "L[c:4, i:256, j:249](sum[r:8, s:8](mul(y[c, i, j + s], w[r // 2, s // 2]) if s - r >= 0 else 0))",
        "L[c:4, i:256, j:249](max[r:8, s:8](mul(y[c, i, j + s], w[r // 2, s // 2])))",
        "L[c:4, i:256, j:249](sum[r:8, s:8](mul(exp(y[c, i, j]), max(w[r // 2, s // 2], y[c, i, j + s]))))",
    ],
)
def test_terms_that_no_memory_holds(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 million terms of 8 bytes in less than a quarter of their memory."""
    scope, rng = parse(text, TENSORS), np.random.default_rng(0)
    values = {tensor: rng.standard_normal(tensor.shape) for tensor in tensors(scope)}  # type: ignore[arg-type]
    whole = interpret(scope, values, Reals())
    monkeypatch.setattr(chunked_reductions, "MAX_COMPUTED_ELEMENTS", 1 << 18)
    tracemalloc.start()
    try:
        found = interpret(scope, values, Reals())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_allclose(found, whole, rtol=1e-9)
    assert peak < (8 << 24) / 4
