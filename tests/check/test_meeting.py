"""Integers that a program's inputs meet, and what is claimed of programs of integers."""

from __future__ import annotations

import numpy as np
import pytest

from tensaurus.check.inputs import integer_uses
from tensaurus.check.inputs.integer_uses import IntegerUses
from tensaurus.check.program.field_check import check_field
from tensaurus.check.program.meeting_numbers import find_meeting_numbers
from tensaurus.check.program.real_check import check_reals
from tensaurus.expr.analysis.breaking_values import draw_integers_near
from tensaurus.graph.ir.node import Node, apply, constant, source
from tensaurus.graph.ir.program import Program
from tensaurus.ops import TensorType, registry


def op(name: str, *args: Node, **attrs: object) -> Node:
    return apply(registry[name], args, attrs)


def number(value: int) -> Node:
    return constant(np.asarray(value, np.int64))


X = source("x", TensorType("int64", (4, 5)))
F = source("f", TensorType("float32", (4, 5)))


def program(root: Node, *inputs: Node) -> Program:
    return Program(inputs, (("y", root),))


def test_what_is_computed_with_is_followed_back_to_the_input() -> None:
    shifted = op("Add", op("Mul", X, number(3)), number(5))
    found = find_meeting_numbers([program(op("Less", shifted, number(100)), X)], ["x"])
    assert {31, 32} <= set(found["x"])


def test_programs_that_differ_for_few_integers_are_told_apart() -> None:
    inside = op("And", op("Less", number(70), op("Abs", X)), op("Less", op("Abs", X), number(100)))
    other = op("Where", inside, number(0), X)
    assert not check_field(program(other, X), program(X, X)).passed


def test_no_bound_is_claimed_of_integers_alone() -> None:
    one, other = op("Max", X, number(7)), op("Max", number(7), X)
    found = check_field(program(one, X), program(op("Add", other, number(0)), X))
    assert found.passed and found.error_bound == 1


def test_a_bound_beside_integers_is_one_for_those_drawn() -> None:
    asked = op("Where", op("Less", X, number(3)), F, op("Neg", F))
    again = op("Neg", op("Where", op("Less", X, number(3)), op("Neg", F), F))
    found = check_field(program(asked, X, F), program(again, X, F))
    assert found.passed and found.sampled == (found.error_bound <= 1)
    plain = check_field(program(op("Neg", op("Neg", F)), F), program(F, F))
    assert plain.passed and plain.error_bound < 1e-9 and not plain.sampled


def beside(y: Node, z: Node) -> Program:
    return Program((X, W, F), (("y", y), ("z", z)))


W = source("w", TensorType("int64", (4, 5)))


def test_what_nothing_specifies_hides_no_other_output() -> None:
    nowhere = op("Div", W, op("Sub", X, X))
    twice, thrice = (op("Mul", F, constant(np.float32(n))) for n in (2, 3))
    found = check_field(beside(nowhere, twice), beside(nowhere, thrice))
    assert not found.passed and "output z" in found.detail


def test_what_nothing_specifies_anywhere_is_not_checked() -> None:
    nowhere = op("Div", W, op("Sub", X, X))
    found = check_field(beside(nowhere, F), beside(op("Add", nowhere, number(1)), F))
    assert found.passed and not found.trials and found.error_bound == 1 and "output y" in found.detail


def test_one_quotient_by_zero_hides_no_other_element() -> None:
    asked = op("Div", W, X)
    # another result for large quotients alone, which no small integers have
    other = op("Where", op("Less", asked, number(-1000)), number(7), asked)
    assert not check_field(beside(asked, F), beside(other, F)).passed
    guarded = op("Where", op("Equal", X, number(0)), op("Sub", X, X), asked)
    found = check_field(beside(asked, F), beside(guarded, F))
    assert found.passed and found.trials and found.error_bound < 1


def test_what_is_specified_behind_a_condition_is_compared() -> None:
    safe = op("Where", op("Equal", X, X), W, op("Div", W, op("Sub", X, X)))
    assert check_field(beside(safe, F), beside(W, F)).error_bound < 1
    assert not check_field(beside(safe, F), beside(op("Neg", W), F)).passed


@pytest.mark.parametrize("factor", [1 - 1e-6, 0.0])
def test_small_results_differ_in_float64_too(factor: float) -> None:
    small = op("Mul", F, constant(np.float32(1e-12)))
    other = op("Mul", small, constant(np.asarray(factor, np.float32)))
    assert check_reals(program(small, F), program(small, F), 0).passed
    assert not check_reals(program(small, F), program(other, F), 0).passed


def test_places_in_a_short_tensor_are_places_in_float64_too() -> None:
    short, place = source("t", TensorType("float32", (2,))), source("i", TensorType("int64", (3,)))
    read = op("Gather", short, place, axis=0)
    sides = [
        Program((short, place), (("y", side),))
        for side in (read, op("Neg", op("Neg", read)), op("Neg", read))
    ]
    assert check_reals(sides[0], sides[1], 0).passed
    assert not check_reals(sides[0], sides[2], 0).passed


def test_results_of_other_shapes_differ_in_float64() -> None:
    zeros = op("Sub", F, F)
    assert not check_reals(program(zeros, F), program(op("ReduceMax", zeros, axes=(0,)), F), 0).passed


def test_numbers_that_are_none_of_the_type_are_drawn_around_nowhere() -> None:
    drawn = draw_integers_near("int8", (3,), np.random.default_rng(0), [1000])
    assert drawn.shape == (3,) and drawn.dtype == np.int8


def test_places_that_are_none_in_both_are_those_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    place, table = source("i", TensorType("int64", (2,))), source("t", TensorType("float32", (3,)))
    a = Program((table, place), (("y", op("Gather", table, place, axis=0)),))
    b = Program((table, place), (("y", op("Neg", op("Gather", table, place, axis=0))),))
    limits = {a: IntegerUses({"i": (0, 2)}), b: IntegerUses({"i": (5, 7)})}
    monkeypatch.setattr(integer_uses, "find_integer_uses", limits.get)
    assert check_field(a, a).passed and not check_field(a, b).passed
