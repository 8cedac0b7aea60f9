"""The evaluator against numpy and onnxruntime, and against itself in other fields."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from tensaurus.expr.analysis.reshape_map import reshape_map
from tensaurus.expr.evaluate import contract as module
from tensaurus.expr.evaluate.fields import Array, Field, Polynomials, PrimeField, Rationals, Reals
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.ir.scope import Scope, Tensor, call, compute, fold, look, total, where, within
from tensaurus.expr.ir.walk import tensors
from tensaurus.expr.sizes.size import Symbol, polynomial

REALS = Reals()
N = Symbol("N")


def run(scope: Scope, **arrays: Array) -> Array:
    return interpret(scope, {t: arrays[t.name] for t in tensors(scope)}, REALS)


def onnx_run(op: str, inputs: dict[str, Array], **attributes: Any) -> Array:
    """The operator's result in onnxruntime."""
    node = helper.make_node(op, list(inputs), ["out"], **attributes)
    values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, a.shape) for n, a in inputs.items()]
    result = helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "one", values, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {n: a.astype(np.float32) for n, a in inputs.items()})[0])


def conv(x: Tensor, w: Tensor, stride: Any, pads: Any, dilation: Any, group: int) -> Scope:
    (n, _, h, v), (f, k, r, s) = x.shape, w.shape
    top, left, bottom, right = pads
    out = (
        (h + top + bottom - dilation[0] * (r - 1) - 1) // stride[0] + 1,
        (v + left + right - dilation[1] * (s - 1) - 1) // stride[1] + 1,
    )
    return compute(
        (n, f, *out),
        lambda b, m, i, j: total(
            (k, r, s),
            lambda q, a, d: x.padded()[
                b,
                m // (f // group) * k + q,
                i * stride[0] + a * dilation[0] - top,
                j * stride[1] + d * dilation[1] - left,
            ]
            * w[m, q, a, d],
        ),
    )


CONVOLUTIONS = [
    ((1, 1), (1, 1, 1, 1), (1, 1), 1),
    ((2, 3), (0, 0, 0, 0), (1, 1), 1),
    ((1, 1), (2, 0, 1, 3), (1, 1), 2),
    ((1, 2), (2, 2, 2, 2), (2, 1), 4),
]


@pytest.mark.parametrize("piece", [None, 50])
@pytest.mark.parametrize(("stride", "pads", "dilation", "group"), CONVOLUTIONS)
def test_conv(
    stride: Any, pads: Any, dilation: Any, group: int, piece: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if piece is not None:
        monkeypatch.setattr(module, "CHUNK_ELEMENTS", piece)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 4, 9, 8)), rng.standard_normal((8, 4 // group, 3, 3))
    scope = conv(Tensor("x", x.shape), Tensor("w", w.shape), stride, pads, dilation, group)
    found = run(scope, x=x, w=w)
    expected = onnx_run(
        "Conv", {"x": x, "w": w}, strides=stride, pads=pads, dilations=dilation, group=group
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("field", [PrimeField(1), Rationals(1)], ids=lambda f: f.name)
@pytest.mark.parametrize(("stride", "pads", "dilation", "group"), CONVOLUTIONS)
def test_fields_agree_on_small_integers(
    field: Field, stride: Any, pads: Any, dilation: Any, group: int
) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.integers(-9, 9, (1, 4, 6, 5)), rng.integers(-9, 9, (4, 4 // group, 3, 3))
    tx, tw = Tensor("x", x.shape), Tensor("w", w.shape)
    scope = conv(tx, tw, stride, pads, dilation, group)
    plain = interpret(scope, {tx: x.astype(float), tw: w.astype(float)}, REALS)
    found = interpret(scope, {tx: field.from_int(x), tw: field.from_int(w)}, field)
    assert field.equal(found, field.from_int(plain.astype(np.int64)))


def test_pieceed_contraction_over_the_prime_field(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = Tensor("a", (12, 30)), Tensor("b", (30, 9))
    scope = compute((12, 9), lambda i, j: total((30,), lambda k: a[i, k] * b[k, j]))
    field = PrimeField(5)
    data = {t: field.random(t.shape, np.random.default_rng(1)) for t in (a, b)}  # type: ignore[arg-type]
    whole = interpret(scope, data, field)
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 40)
    assert field.equal(interpret(scope, data, field), whole)
    exact = np.matmul(data[a].astype(object), data[b].astype(object)) % (2**31 - 1)
    assert (whole.astype(object) == exact).all()


def test_transposed_conv_reads_a_spread_inner_scope() -> None:
    rng = np.random.default_rng(2)
    data, weight = rng.standard_normal((1, 3, 4)), rng.standard_normal((3, 2, 3))
    x, w = Tensor("x", data.shape), Tensor("w", weight.shape)
    spread = compute((1, 3, 7), lambda n, c, i: where(0 - i % 2, x[n, c, i // 2], 0))
    scope = compute(
        (1, 2, 9),
        lambda n, f, i: total((3, 3), lambda c, r: spread.padded()[n, c, i - r] * w[c, f, r]),
    )
    expected = onnx_run("ConvTranspose", {"x": data, "w": weight}, strides=[2])
    np.testing.assert_allclose(run(scope, x=data, w=weight), expected, rtol=1e-4, atol=1e-5)


def test_concat_of_three() -> None:
    parts = [Tensor(name, (2, n)) for name, n in zip("abc", (3, 1, 4), strict=True)]
    a, b, c = parts
    scope = compute((2, 8), lambda i, j: where(2 - j, a[i, j], where(3 - j, b[i, j - 3], c[i, j - 4])))
    rng = np.random.default_rng(0)
    data = {t.name: rng.standard_normal(t.shape) for t in parts}  # type: ignore[arg-type]
    np.testing.assert_array_equal(run(scope, **data), np.concatenate(list(data.values()), axis=1))


@pytest.mark.parametrize(
    ("before", "after"), [((4, 6), (3, 8)), ((2, 3, 4), (6, 4)), ((24,), (2, 3, 4)), ((4, 9), (6, 6))]
)
def test_reshape_by_mixed_radix(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    x = Tensor("x", before)

    def element(*index: Any) -> Any:
        flat: Any = 0
        for i, n in zip(index, after, strict=True):
            flat = flat * n + i
        spots = []
        for n in reversed(before):
            spots.append(flat % n)
            flat = flat // n
        return x[tuple(reversed(spots))]

    data = np.arange(np.prod(before)).reshape(before).astype(float)
    np.testing.assert_array_equal(run(compute(after, element), x=data), data.reshape(after))


def test_gather_with_negative_indices() -> None:
    x, at = Tensor("x", (5, 3)), Tensor("at", (4,), "int64")
    wrapped = compute((4,), lambda i: call("where", call("lt", at[i], 0), at[i] + 5, at[i]))
    scope = compute((4, 3), lambda i, j: x[look(wrapped[i], 0, 4), j])
    data, where_ = np.arange(15.0).reshape(5, 3), np.array([0, -1, 3, -5])
    np.testing.assert_array_equal(run(scope, x=data, at=where_), data[where_])
    with pytest.raises(IndexError, match="outside 0..4"):
        run(scope, x=data, at=np.array([0, 9, 0, 0]))


def test_maximum_over_padded_windows() -> None:
    x = Tensor("x", (1, 1, 5, 6))
    edged = x.padded(float("-inf"))
    scope = compute(
        (1, 1, 3, 3),
        lambda n, c, i, j: fold("max", (3, 3), lambda r, s: edged[n, c, 2 * i + r - 1, 2 * j + s - 1]),
    )
    data = -1 - np.random.default_rng(0).random((1, 1, 5, 6))
    expected = onnx_run("MaxPool", {"x": data}, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    np.testing.assert_allclose(run(scope, x=data), expected, rtol=1e-6)


def test_nothing_beyond_the_edge_is_read() -> None:
    x = Tensor("x", (4,))
    with pytest.raises(IndexError, match="leaves 0..3"):
        run(compute((4,), lambda i: x[i + 1]), x=np.zeros(4))
    guarded = compute((6,), lambda i: where(within(i, 1, 5), 1 / x[i - 1], 7))
    assert run(guarded, x=np.array([1.0, 2, 4, 8])).tolist() == [7, 1, 0.5, 0.25, 0.125, 7]


def test_empty_extents() -> None:
    x, y = Tensor("x", (0, 3)), Tensor("y", (2, 3))
    assert run(compute((0, 3), lambda i, j: x[i, j] * 2), x=np.zeros((0, 3))).shape == (0, 3)
    column = compute((3,), lambda j: total((0,), lambda i: x[i, j]))
    assert run(column, x=np.zeros((0, 3))).tolist() == [0, 0, 0]
    top = compute((3,), lambda j: fold("max", (0,), lambda i: x[i, j]))
    assert run(top, x=np.zeros((0, 3))).tolist() == [-np.inf] * 3
    joined = compute((2, 3), lambda i, j: where(0 - 1 - i, x[i, j], y[i, j]))
    np.testing.assert_array_equal(run(joined, x=np.zeros((0, 3)), y=np.ones((2, 3))), np.ones((2, 3)))


def test_symbolic_extents_are_bound_at_evaluation() -> None:
    n = polynomial(N)
    x = Tensor("x", (n, 3))
    mean = compute((n,), lambda i: total((3,), lambda j: x[i, j]) / 3)
    scope = compute((3,), lambda j: total((n,), lambda i: x[i, j] - mean[i]) / n)
    data = np.random.default_rng(0).standard_normal((5, 3))
    found = interpret(scope, {x: data}, REALS, {N: 5})
    np.testing.assert_allclose(found, (data - data.mean(1, keepdims=True)).mean(0), atol=1e-12)


def test_axes_are_numbers_and_their_quotients_rationals() -> None:
    assert run(compute((4,), lambda i: call("div", i, 2))).tolist() == [0, 0.5, 1, 1.5]
    counts = Tensor("n", (4,), "int64")
    assert run(compute((4,), lambda i: counts[i] / 2), n=np.array([-3, -2, 3, 5])).tolist() == [-1, -1, 1, 2]


def test_literals_take_the_dtype_of_what_they_stand_beside() -> None:
    x = Tensor("x", (2,))
    scope = compute((2,), lambda i: where(i - 2, x[i], -1))
    field = PrimeField(0)
    assert interpret(scope, {x: field.random((2,), np.random.default_rng(0))}, field).dtype == np.uint64


def test_products_repeat_what_does_not_vary() -> None:
    x = Tensor("x", ())
    cube = compute((), lambda: fold("prod", (3,), lambda _: x[()]))
    for field in (REALS, PrimeField(1), Rationals(1), Polynomials()):
        value = field.random((), np.random.default_rng(0))
        times = partial(field.apply, "mul")
        assert field.equal(interpret(cube, {x: value}, field), times([value, times([value, value])]))


def test_contraction_of_three_factors_with_a_shared_batch() -> None:
    rng = np.random.default_rng(3)
    a, b, c = (rng.standard_normal(s) for s in ((4, 5, 6), (4, 6, 7), (7,)))
    ta, tb, tc = (Tensor(n, v.shape) for n, v in zip("abc", (a, b, c), strict=True))
    scope = compute(
        (4, 5), lambda n, i: total((6, 7), lambda k, l: ta[n, i, k] * tb[n, k, l] * tc[l])  # noqa: E741
    )
    np.testing.assert_allclose(run(scope, a=a, b=b, c=c), np.einsum("nik,nkl,l->ni", a, b, c), atol=1e-12)


@pytest.mark.parametrize("field", [REALS, PrimeField()], ids=["reals", "prime"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((1025, 16), (16, 1025)),  # sizes without a common divisor: no index is affine
        ((2, 7, 9), (2, 9, 7)),
        ((3, 5, 7), (7, 15)),
        ((1, 6), (6, 1)),
        ((4, 0), (0, 5)),
        ((5,), (5,)),
    ],
)
def test_a_reshape_is_read_in_place(old: tuple[int, ...], new: tuple[int, ...], field: Field) -> None:
    x = Tensor("x", old)
    assert (places := reshape_map(old, new)) is not None
    scope = Scope(places.axes, x[places.indices])
    data = np.arange(np.prod(old, dtype=int)).reshape(old).astype(np.uint64 if field is not REALS else float)
    # as stored, transposed in memory, and a part of more
    wide = np.repeat(data, 2, axis=0)[::2]
    for held in (data, np.asfortranarray(data), wide):
        np.testing.assert_array_equal(interpret(scope, {x: held}, field), data.reshape(new))
    if data.size and old != new:
        assert np.shares_memory(interpret(scope, {x: data}, field), data)
