"""Operators that refuse some element types and shapes, and rules about them."""

from __future__ import annotations

import pytest

from tensaurus.ops import TensorType, Untypable, registry
from tensaurus.rules.language.rule import parse_rule
from tensaurus.rules.test.verify_rule import Refuted, verify


@pytest.mark.parametrize("name", ["Neg", "Abs", "Exp", "Reciprocal", "Softplus"])
def test_booleans_are_no_numbers(name: str) -> None:
    op = registry[name]
    with pytest.raises(Untypable, match="no number"):
        op.scopes((TensorType("bool", (2,)),), ())


def test_booleans_are_copied() -> None:
    registry["Identity"].scopes((TensorType("bool", (2,)),), ())


@pytest.mark.parametrize("name, stored", [("DequantizeLinear", "uint8"), ("QuantizeLinear", "float32")])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 3, 3)])
@pytest.mark.parametrize("scale, zero", [((), (3,)), ((1,), (3,)), ((3,), ()), ((3,), (1,))])
def test_a_zero_point_has_the_shape_of_its_scale(
    name: str, stored: str, shape: tuple[int, ...], scale: tuple[int, ...], zero: tuple[int, ...]
) -> None:
    op = registry[name]
    kinds = TensorType(stored, shape), TensorType("float32", scale), TensorType("uint8", zero)
    with pytest.raises(Untypable):
        op.scopes(kinds, op.canonical(kinds, {}))


def test_a_rule_about_scales_is_verified_to_the_end() -> None:
    rule, *_ = parse_rule(
        "law [any]: Transpose(DequantizeLinear(x, s, z?, **b), perm=p)"
        " => DequantizeLinear(Transpose(x, perm=p), s, z?, **b) where rank(s) == 0"
    )
    assert not isinstance(verify(rule, 24), Refuted)
