"""Rules of any element type, and of operators that refuse some."""

from __future__ import annotations

import pytest

from tensaurus.rules.rule import parse_rule
from tensaurus.rules.verify import Refuted, verify


@pytest.mark.parametrize("text", ["Neg(Neg(x)) => x", "Abs(Abs(x)) => Abs(x)"])
def test_truths_are_no_numbers(text: str) -> None:
    """Of any element type, a rule about numbers is tried with none of truths."""
    (rule,) = parse_rule(f"law [any]: {text}")
    assert not isinstance(verify(rule, 60), Refuted)


def test_a_zero_point_of_channels_beside_one_scale_does_not_type() -> None:
    rule, *_ = parse_rule(
        "law [any]: Transpose(DequantizeLinear(x, s, z?, **b), perm=p)"
        " => DequantizeLinear(Transpose(x, perm=p), s, z?, **b) where rank(s) == 0"
    )
    assert not isinstance(verify(rule, 24), Refuted)
