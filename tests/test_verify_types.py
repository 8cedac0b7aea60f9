"""Operators that refuse some element types and shapes, and rules about them."""

from __future__ import annotations

import pytest

from tensaurus.ops import TensorType, Untypable, registry
from tensaurus.rules.rule import parse_rule
from tensaurus.rules.verify import Refuted, verify


@pytest.mark.parametrize("name", ["Neg", "Abs", "Exp", "Reciprocal", "Softplus"])
def test_truths_are_no_numbers(name: str) -> None:
    op = registry[name]
    with pytest.raises(Untypable, match="no number"):
        op.scopes((TensorType("bool", (2,)),), ())


def test_truths_are_copied() -> None:
    registry["Identity"].scopes((TensorType("bool", (2,)),), ())


def test_a_zero_point_of_channels_beside_one_scale_does_not_type() -> None:
    op = registry["DequantizeLinear"]
    kinds = TensorType("uint8", (3,)), TensorType("float32", ()), TensorType("uint8", (3,))
    with pytest.raises(Untypable):
        op.scopes(kinds, op.canonical(kinds, {}))


def test_a_rule_about_it_is_tried_to_its_end() -> None:
    rule, *_ = parse_rule(
        "law [any]: Transpose(DequantizeLinear(x, s, z?, **b), perm=p)"
        " => DequantizeLinear(Transpose(x, perm=p), s, z?, **b) where rank(s) == 0"
    )
    assert not isinstance(verify(rule, 24), Refuted)
