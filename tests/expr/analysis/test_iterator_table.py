"""Iterator mapping tables: those the paper prints, of declared operators."""

from __future__ import annotations

import pytest
from op_samples import scope_of

from tensaurus.expr.analysis.iterator_table import IteratorTable, iterator_table
from tensaurus.expr.ir.scope import Scope, Tensor, compute, look, total
from tensaurus.expr.sizes.size import Symbol, polynomial
from tensaurus.ops import TensorType, registry

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
