"""The operators that ONNX lacks, against their formulas written with numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensaurus.expr.evaluate.fields import Field, PrimeField, Rationals, Reals
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.ops import TensorType, Untypable, registry
from tensaurus.ops.examples import parse_example

Array = np.ndarray[Any, Any]
COMPOSITE = [op for _, op in sorted(registry.items()) if op.domain == "tensaurus"]


def run(name: str, *arrays: Array, field: Field | None = None, **attrs: Any) -> Array:
    """One operator on arrays of elements of the field (the reals unless said otherwise)."""
    op = registry[name]
    types = tuple(TensorType("float32", a.shape) for a in arrays)
    canonical = op.canonical(types, attrs)
    (scope,) = op.scopes(types, canonical)
    return interpret(scope, dict(zip(op.tensors(types), arrays, strict=True)), field or Reals())  # type: ignore[arg-type]


def enlarge(w: Array, kernel_shape: tuple[int, ...]) -> Array:
    gaps = [n - k for n, k in zip(kernel_shape, w.shape[2:], strict=True)]
    return np.pad(w, [(0, 0), (0, 0), *((g // 2, g - g // 2) for g in gaps)])


def merge_groups(w: Array, group: int, count: int) -> Array:
    filters, depth = w.shape[0] // group, w.shape[1]
    out = np.zeros((w.shape[0], depth * count, *w.shape[2:]), w.dtype)
    for f in range(w.shape[0]):
        block = f // filters % count
        out[f, block * depth : (block + 1) * depth] = w[f]
    return out


def dense_band(a: Array, width: int, dilation: int) -> Array:
    """The square matrix with this band."""
    rows = a.shape[-2]
    out = np.zeros((*a.shape[:-1], rows), a.dtype)
    for i in range(rows):
        for w in range(2 * width + 1):
            j = i + dilation * (w - width)
            if 0 <= j < rows:
                out[..., i, j] = a[..., i, w]
    return out


def matmul_to_band(a: Array, b: Array, width: int, dilation: int = 1) -> Array:
    full = a @ np.swapaxes(b, -1, -2)
    rows = a.shape[-2]
    out = np.zeros((*a.shape[:-1], 2 * width + 1), a.dtype)
    for i in range(rows):
        for w in range(2 * width + 1):
            j = i + dilation * (w - width)
            if 0 <= j < rows:
                out[..., i, w] = full[..., i, j]
    return out


def matmul_from_band(a: Array, b: Array, width: int, dilation: int = 1) -> Array:
    return np.asarray(dense_band(a, width, dilation) @ b)


def identity_kernel(channels: int, kernel_shape: tuple[int, ...]) -> Array:
    out = np.zeros((channels, channels, *kernel_shape))
    for c in range(channels):
        out[(c, c, *(k // 2 for k in kernel_shape))] = 1
    return out


def mean_kernel(channels: int, kernel_shape: tuple[int, ...]) -> Array:
    return np.full((channels, 1, *kernel_shape), 1 / np.prod(kernel_shape))


# of an expression that is an operator, the same in numpy's words
WRITTEN: dict[str, Callable[..., Array]] = {
    "L[i:4, j:3](x0[j, i])": lambda x: x.T,
    "L[i:2](sum[r:5](mul(x0[i, r], x1[r])))": lambda x, y: x @ y,
    "L[i:6](max[r:2](x0[i + r - 1] | -inf))": lambda x: np.maximum(np.append(-np.inf, x[:-1]), x),
    "L[i:4](x0[i] if i - 2 >= 0 else 7)": lambda x: np.append([7, 7], x[2:]),
    "L[i:2](exp(L[j:2](max[r:3](x0[j, r]))[i]))": lambda x: np.exp(x.max(axis=1)),
}


def eop(*arrays: Array, scope: str) -> Array:
    return WRITTEN[scope](*arrays)


FORMULAS: dict[str, Callable[..., Array]] = {
    "Enlarge": enlarge,
    "MergeGroups": merge_groups,
    "MatMulToBand": matmul_to_band,
    "MatMulFromBand": matmul_from_band,
    "IdentityKernel": identity_kernel,
    "MeanKernel": mean_kernel,
    "eop": eop,
}


@pytest.mark.parametrize(("name", "text"), [(op.name, text) for op in COMPOSITE for text in op.examples])
def test_formula(name: str, text: str) -> None:
    example = parse_example(text)
    values = [v.astype(np.float64) for v in example.values(np.random.default_rng(0)) if v is not None]
    np.testing.assert_allclose(run(name, *values, **example.attrs), FORMULAS[name](*values, **example.attrs))


@pytest.mark.parametrize("field", [PrimeField(3), Rationals(3)], ids=lambda f: f.name)
def test_enlarged_and_merged_convolutions_are_the_same(field: Field) -> None:
    rng = np.random.default_rng(1)
    x, w = field.random((2, 4, 6, 5), rng), field.random((6, 2, 1, 2), rng)
    plain = run("Conv", x, w, field=field, group=2, pads=(0, 1, 0, 0))
    larger = run("Enlarge", w, field=field, kernel_shape=(3, 4))
    assert field.equal(run("Conv", x, larger, field=field, group=2, pads=(1, 2, 1, 1)), plain)
    merged = run("MergeGroups", w, field=field, group=2, count=2)
    assert field.equal(run("Conv", x, merged, field=field, group=1, pads=(0, 1, 0, 0)), plain)


def test_kernels_that_copy_and_average() -> None:
    x = np.random.default_rng(2).standard_normal((1, 3, 5, 4))
    identity = run("IdentityKernel", channels=3, kernel_shape=(3, 3))
    np.testing.assert_allclose(run("Conv", x, identity, pads=(1, 1, 1, 1)), x)
    mean = run("MeanKernel", channels=3, kernel_shape=(2, 2))
    windows = np.lib.stride_tricks.sliding_window_view(x, (2, 2), (2, 3))
    np.testing.assert_allclose(run("Conv", x, mean, group=3), windows.mean((4, 5)))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Enlarge", "f32[2,3,3,3] kernel_shape=(1,3)"),
        ("Enlarge", "f32[2,3,3,3] kernel_shape=(5,)"),
        ("MergeGroups", "f32[4,2,1,1] group=2 count=3"),
        ("MergeGroups", "f32[5,2,1,1] group=2 count=2"),
        ("MatMulToBand", "f32[2,3] f32[3,2] width=1"),
        ("MatMulFromBand", "f32[2,4] f32[2,3] width=1"),
        ("IdentityKernel", "channels=2 kernel_shape=(2,)"),
    ],
)
def test_what_has_no_meaning_is_refused(name: str, text: str) -> None:
    example, op = parse_example(text), registry[name]
    with pytest.raises(Untypable):
        op.types(example.types, op.canonical(example.types, example.attrs))
