"""Integers that a program's inputs meet, and what is claimed of programs of integers."""

from __future__ import annotations

import numpy as np

from tensaurus.equivalence.field_check import check_field
from tensaurus.equivalence.meeting import met
from tensaurus.graph.node import Node, apply, constant, source
from tensaurus.graph.program import Program
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
    found = met([program(op("Less", shifted, number(100)), X)], ["x"])
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
