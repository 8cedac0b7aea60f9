"""Iterator mapping tables: those the paper prints, of declared operators, and what they match."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from op_samples import named, scope_of

from tensaurus.algebra.expr import Scope, Tensor, compute, fold, look, total, where
from tensaurus.algebra.field import Rationals
from tensaurus.algebra.interpret import interpret
from tensaurus.algebra.iterator_table import IteratorTable, iterator_table, matches, mismatches
from tensaurus.algebra.simplify import canonical
from tensaurus.algebra.size import Symbol, polynomial
from tensaurus.ops import TensorType, registry
from tensaurus.ops.examples import examples_of

B, M, N, K = (polynomial(Symbol(name, 1)) for name in "BMNK")


def table_of(scope: Scope | str) -> IteratorTable:
    found = iterator_table(scope_of(scope) if isinstance(scope, str) else scope)
    assert found is not None
    return found


def counts(scope: Scope | str) -> dict[str, int]:
    """How many iterators there are of each pattern, written as in the paper's table 2."""
    table = table_of(scope)
    return {"/".join("NY"[y] for y in p): len(group) for p, group in table.groups.items()}


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        # table 2 of the paper, its Conv in our layout
        ("Add f32[3,4] f32[3,4]", {"Y/Y/Y": 2}),
        ("MatMul f32[2,3,4] f32[2,4,5]", {"Y/Y/Y": 1, "Y/N/Y": 1, "N/Y/Y": 1, "Y/Y/N": 1}),
        ("Conv f32[2,3,7,6] f32[4,3,3,3]", {"Y/N/Y": 3, "N/Y/Y": 1, "Y/Y/N": 3}),
        ("MatMulToBand f32[2,5,3] f32[2,5,3] width=1", {"Y/Y/Y": 2, "N/Y/Y": 1, "Y/Y/N": 1}),
        # and others
        ("MatMulFromBand f32[2,5,3] f32[2,5,4] width=1", {"Y/Y/Y": 2, "N/Y/Y": 1, "Y/Y/N": 1}),
        ("MatMul f32[3,4] f32[4,5]", {"Y/N/Y": 1, "N/Y/Y": 1, "Y/Y/N": 1}),
        ("MatMul f32[2,3,4] f32[4,5]", {"Y/N/Y": 2, "N/Y/Y": 1, "Y/Y/N": 1}),
        ("Conv f32[2,6,5,5] f32[4,3,3,3] group=2", {"Y/N/Y": 3, "Y/Y/Y": 1, "N/Y/Y": 1, "Y/Y/N": 3}),
        ("Conv f32[2,4,6,5] f32[4,1,3,3] group=4", {"Y/N/Y": 3, "Y/Y/Y": 1, "Y/Y/N": 2}),
        ("Conv f32[2,4,6,5] f32[8,1,3,3] group=4", {"Y/N/Y": 3, "Y/Y/Y": 1, "N/Y/Y": 1, "Y/Y/N": 2}),
        ("ConvTranspose f32[2,3,4,5] f32[3,2,3,3]", {"Y/N/Y": 3, "N/Y/Y": 1, "Y/Y/N": 3}),
        ("ConvTranspose f32[2,3,4,5] f32[3,2,3,3] strides=(2,2)", {"Y/N/Y": 3, "N/Y/Y": 1, "Y/Y/N": 3}),
        ("Einsum f32[2,3,4] f32[2,5,4] equation='bik,bjk->bij'",
         {"Y/Y/Y": 1, "Y/N/Y": 1, "N/Y/Y": 1, "Y/Y/N": 1}),
        ("Transpose f32[2,3,4]", {"Y/Y": 3}),
        ("MaxPool f32[2,3,6,6] kernel_shape=(2,2)", {"Y/Y": 4, "Y/N": 2}),
    ],
)  # fmt: skip
def test_tables_of_declared_operators(text: str, groups: dict[str, int]) -> None:
    assert counts(text) == groups


def test_a_table_keeps_strides_dilations_and_signs() -> None:
    table = table_of("Conv f32[1,3,12,12] f32[2,3,3,2] strides=(2,1) dilations=(3,1) pads=(1,0,0,2)")
    image, kernel, _ = table.operands
    rows, columns = image.dimensions[2:]
    assert sorted(rows.slopes.values()) == [2, 3] and rows.rest == -1  # type: ignore[type-var]
    assert sorted(columns.slopes.values()) == [1, 1]  # type: ignore[type-var]
    turned = table_of("ConvTranspose f32[2,3,4,5] f32[3,2,3,3]").operands[1]
    assert [list(d.slopes.values()) for d in turned.dimensions[2:]] == [[-1], [-1]]
    assert [d.rest for d in turned.dimensions[2:]] == [2, 2]


def test_symbolic_sizes_have_tables() -> None:
    op = registry["MatMul"]
    types = (TensorType("float32", (B, M, K)), TensorType("float32", (B, K, N)))
    assert counts(op.scopes(types, op.canonical(types, {}))[0]) == counts("MatMul f32[2,3,4] f32[2,4,5]")
    x = Tensor("x", (B, 2, 3, K))
    split = compute((B, 6), lambda b, i: total((K,), lambda k: x[b, i // 3, i % 3, k]))
    assert len(table_of(split).iterators) == 4


def test_what_is_not_affine_has_no_table() -> None:
    x, at = Tensor("x", (7,)), Tensor("at", (7,), "int64")
    assert iterator_table(compute((7,), lambda i: x[look(at[i], 0, 6)])) is None
    assert iterator_table(compute((7, 2), lambda i, j: x[i // 2 + j])) is None
    assert iterator_table(compute((6, 2), lambda i, j: x[i // 2 + j])) is not None


BATCHED = table_of("MatMul f32[2,3,4] f32[2,4,5]")
PLAIN = table_of("MatMul f32[3,4] f32[4,5]")


def product_of(x: Scope | Tensor, y: Scope | Tensor) -> Scope:
    return compute((x.shape[0], y.shape[1]), lambda i, j: total((x.shape[1],), lambda k: x[i, k] * y[k, j]))


def test_the_paper_s_example_is_a_batched_product_with_strides() -> None:
    # figure 8: Z[u, v, w] = sum over x of X[u, 0, v, x + 1] * Y[u - 1, u, x, w]
    x, y = Tensor("X", (6, 2, 7, 9)), Tensor("Y", (6, 6, 8, 5))
    scope = compute(
        (5, 7, 5), lambda u, v, w: total((8,), lambda k: x[u + 1, 0, v, k + 1] * y[u, u + 1, k, w])
    )
    found = matches(table_of(scope), BATCHED)
    assert [f.operands for f in found] == [(0, 1, 2), (1, 0, 2)]
    assert found[0].strides == ((126, 9, 1), (6 * 8 * 5 + 8 * 5, 5, 1), (35, 5, 1))


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 0, 1), (1, 2, 0)])
def test_a_permuted_product_is_a_product(order: tuple[int, ...]) -> None:
    shapes = {"a": (2, 3, 4), "b": (2, 4, 5)}
    a, b = (Tensor(n, tuple(s[d] for d in order)) for n, s in shapes.items())

    def at(*place: Any) -> tuple[Any, ...]:
        return tuple(place[d] for d in order)

    scope = compute(
        tuple((2, 3, 5)[d] for d in order),
        lambda *spot: total((4,), lambda k: (
            lambda i, m, n: a[at(i, m, k)] * b[at(i, k, n)]
        )(*(spot[order.index(d)] for d in range(3)))),
    )  # fmt: skip
    assert len(matches(table_of(scope), BATCHED)) == 2  # a times b, and its transpose
    assert matches(table_of(scope), PLAIN) == [] == matches(BATCHED, PLAIN)


def test_an_im2col_product_is_a_product_and_not_a_convolution() -> None:
    x, w = Tensor("x", (1, 3, 7, 6)), Tensor("w", (27, 4))
    patches = compute((5 * 4, 27), lambda p, q: x[0, q // 9, p // 4 + q // 3 % 3, p % 4 + q % 3])
    table = table_of(product_of(patches, w))
    assert len(matches(table, PLAIN)) == 2
    assert matches(table, table_of("Conv f32[1,3,7,6] f32[4,3,3,3]")) == []
    # read through, it is a convolution of one image, its weights and its result in another layout
    direct = compute(
        (5 * 4, 4),
        lambda p, f: total((27,), lambda q: (
            x[0, q // 9, p // 4 + q // 3 % 3, p % 4 + q % 3] * w[q, f]
        )),
    )  # fmt: skip
    found = matches(table_of(direct), table_of("Conv f32[1,3,7,6] f32[4,3,3,3]"))
    assert [f.strides for f in found] == [
        ((None, 42, 6, 1), (1, 36, 12, 4), (None, 1, 16, 4)),
        ((None, 42, 1, 6), (1, 36, 4, 12), (None, 1, 4, 16)),
    ]


def test_a_product_over_split_axes_is_a_product() -> None:
    x, w = Tensor("x", (3, 12)), Tensor("w", (12, 5))
    scope = compute(
        (3, 5), lambda i, j: total((3, 4), lambda h, d: x[i, 4 * h + d] * w[4 * h + d, j])
    )
    assert len(matches(table_of(scope), PLAIN)) == 2


def test_convolutions_match_where_strides_and_dilations_do() -> None:
    plain = table_of("Conv f32[2,3,9,9] f32[4,3,3,3] pads=(1,1,1,1)")
    strided = table_of("Conv f32[2,3,9,9] f32[4,3,3,3] strides=(2,2)")
    dilated = table_of("Conv f32[2,3,9,9] f32[4,3,3,3] dilations=(2,2)")
    both = table_of("Conv f32[2,3,9,9] f32[4,3,3,3] strides=(2,2) dilations=(2,2)")
    tables = [plain, strided, dilated, both]
    matched = [[bool(matches(a, b)) for b in tables] for a in tables]
    assert [row[k] for k, row in enumerate(matched)] == [True] * 4
    assert not any(matched[a][b] for a in range(4) for b in range(4) if a != b)
    # a square kernel: rows and columns may be exchanged together
    assert len(matches(plain, plain)) == 2
    wide = table_of("Conv f32[2,3,9,9] f32[4,3,3,3] strides=(2,1)")
    assert len(matches(wide, wide)) == 1


def test_a_true_convolution_is_a_correlation_by_the_reversed_kernel() -> None:
    correlation = table_of("Conv f32[2,3,9] f32[4,3,3] pads=(1,1)")
    x, w = Tensor("x", (2, 3, 9)), Tensor("w", (4, 3, 3))
    turned = compute((2, 4, 9), lambda n, f, i: total(
        (3, 3), lambda c, r: x.padded(0)[n, c, i - r + 1] * w[f, c, r]
    ))  # fmt: skip
    (found,) = matches(table_of(turned), correlation)
    assert len(found.reversed) == 1 and found.strides[1] == (9, 3, -1)
    transposed = table_of("ConvTranspose f32[2,3,9] f32[3,4,3]")
    (same_way,) = matches(transposed, correlation)
    assert not same_way.reversed and same_way.strides[1] == (3, 12, -1)


def test_padded_operands_match_dimension_by_dimension() -> None:
    x, w = Tensor("x", (6, 6)), Tensor("w", (3,))
    rows = compute((6, 6), lambda i, j: total((3,), lambda r: x.padded(0)[i, j + r - 1] * w[r]))
    flat = Tensor("flat", (36,))
    wrong = compute((36,), lambda p: total((3,), lambda r: flat.padded(0)[p + r - 1] * w[r]))
    right = compute((36,), lambda p: total((3,), lambda r: x.padded(0)[p // 6, p % 6 + r - 1] * w[r]))
    assert len(matches(table_of(rows), table_of(rows))) == 1
    assert len(matches(table_of(right), table_of(rows))) == 1
    assert matches(table_of(wrong), table_of(rows)) == []
    ones = compute((6, 6), lambda i, j: total((3,), lambda r: x.padded(1)[i, j + r - 1] * w[r]))
    inside = compute((6, 4), lambda i, j: total((3,), lambda r: x[i, j + r] * w[r]))
    assert matches(table_of(ones), table_of(rows)) == []
    assert len(matches(table_of(inside), table_of(rows))) == 1
    assert matches(table_of(rows), table_of(inside)) == []


def test_tables_tell_functions_apart() -> None:
    add, mul = table_of("Add f32[3,4] f32[3,4]"), table_of("Mul f32[3,4] f32[3,4]")
    assert matches(add, mul) == [] and len(matches(add, add)) == 4
    sub = table_of("Sub f32[3,4] f32[3,4]")
    assert [f.operands for f in matches(sub, sub)] == [(0, 1, 2)] * 2
    x = Tensor("x", (3, 4))
    sums = compute((3,), lambda i: fold("sum", (4,), lambda k: x[i, k]))
    most = compute((3,), lambda i: fold("max", (4,), lambda k: x[i, k]))
    assert matches(table_of(sums), table_of(most)) == []
    nested = compute((3,), lambda i: fold("max", (2,), lambda h: total((2,), lambda k: x[i, 2 * h + k])))
    assert len(table_of(nested).iterators) == 3
    assert matches(table_of(nested), table_of(sums)) == []
    square = compute((3, 4), lambda i, j: x[i, j] * x[i, j])
    assert matches(mul, table_of(square)) == [] and matches(table_of(square), mul) != []


def test_guards_are_part_of_the_function() -> None:
    x, y = Tensor("x", (4,)), Tensor("y", (4,))
    low = compute((4,), lambda i: where(i - 1, x[i], y[i]))
    high = compute((4,), lambda i: where(i - 2, x[i], y[i]))
    assert matches(table_of(low), table_of(low)) and matches(table_of(low), table_of(high)) == []


def test_the_distance_counts_iterators_that_are_missing() -> None:
    assert mismatches(BATCHED, BATCHED) == 0
    assert mismatches(BATCHED, PLAIN) == 1
    conv = table_of("Conv f32[2,3,7,6] f32[4,3,3,3]")
    assert mismatches(conv, PLAIN) == 4  # n, h, w for m and c, r, s for k
    assert mismatches(table_of("Relu f32[3]"), PLAIN) is None


CONTRACTIONS = ("MatMul", "Conv", "ConvTranspose", "Einsum", "Gemm", "MatMulToBand", "MatMulFromBand")


@pytest.mark.parametrize("name", CONTRACTIONS)
def test_every_example_and_its_canonical_form_match_themselves(name: str) -> None:
    op = named(name)
    for types, attrs in examples_of(op):
        scope = op.scopes(types, attrs)[0]
        table = table_of(scope)
        assert matches(table, table), attrs
        if name != "ConvTranspose":  # put in, its stuffed image is read where a remainder is 0
            form = iterator_table(canonical(scope))
            assert form is not None and matches(form, form), attrs


def test_strides_of_all_matches_reproduce_the_flattened_operands() -> None:
    tables = [
        table_of(op.scopes(types, attrs)[0])
        for op in map(named, (*CONTRACTIONS, "Add", "Sub", "Transpose", "MaxPool", "ReduceSum"))
        for types, attrs in examples_of(op)
    ]
    known = 0
    for table, operator in product(tables, repeat=2):
        for found in matches(table, operator):
            known += 1
            assert len(set(found.iterators.values())) == len(operator.iterators)
            for spot, theirs, strides in zip(found.operands, operator.operands, found.strides, strict=True):
                ours = table.operands[spot]
                for b, a in found.iterators.items():
                    pairs = [
                        (s, form.slopes[b])
                        for s, form in zip(strides, theirs.dimensions, strict=True)
                        if b in form.slopes
                    ]
                    if all(s is not None for s, _ in pairs):
                        slope = ours.flat.get(a, 0) * (-1 if b in found.reversed else 1)
                        assert sum(s * c for s, c in pairs) == slope  # type: ignore[operator, misc]
    assert known > len(tables)


def test_strides_lay_the_operands_out_for_the_operator() -> None:
    """What a correspondence claims, computed: the operator on strided views is the expression."""
    x, y = Tensor("X", (6, 2, 7, 9)), Tensor("Y", (6, 6, 8, 5))
    scope = compute(
        (5, 7, 5), lambda u, v, w: total((8,), lambda k: x[u + 1, 0, v, k + 1] * y[u, u + 1, k, w])
    )
    draw = np.random.default_rng(0)
    values = {t: draw.integers(-9, 9, t.shape) for t in (x, y)}  # type: ignore[arg-type]
    field = Rationals()
    expected = interpret(scope, {t: field.lift(v) for t, v in values.items()}, field)
    table = table_of(scope)
    for found in matches(table, BATCHED):
        (b, m, n, k) = BATCHED.iterators
        extents = {a: int(found.iterators[a].extent) for a in (b, m, n, k)}  # type: ignore[arg-type]
        views = []
        for spot, place, strides in zip(
            found.operands[:2], ((b, m, k), (b, k, n)), found.strides[:2], strict=True
        ):
            read = table.operands[spot]
            start = sum(int(np.prod(read.shape[d + 1 :])) * f.rest for d, f in enumerate(read.dimensions))  # type: ignore[arg-type, operator]
            data = np.ascontiguousarray(values[read.source]).ravel()  # type: ignore[index]
            steps = [int(s) * data.itemsize for s in strides]  # type: ignore[arg-type]
            views.append(np.lib.stride_tricks.as_strided(data[start:], [extents[a] for a in place], steps))
        result = np.zeros(expected.size, np.int64)
        view = np.lib.stride_tricks.as_strided(
            result, [extents[a] for a in (b, m, n)], [int(s) * 8 for s in found.strides[2]]  # type: ignore[arg-type]
        )
        view[...] = views[0] @ views[1]
        assert (result.reshape(expected.shape) == expected).all()
