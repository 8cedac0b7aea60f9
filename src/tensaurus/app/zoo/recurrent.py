"""NasRNN: the recurrent cell that neural architecture search found (Zoph and Le, 2017, figure 8)."""

from __future__ import annotations

from tensaurus.app.zoo.builder import Builder, Value
from tensaurus.app.zoo.catalog import workload

__all__ = ["nas_cell", "nas_rnn"]

HIDDEN = 512
STEPS = 5

# The lower two levels of the cell's tree: each node is a binary operator and the activation of its result.
# `nas_cell` writes the levels above, where the cell state c enters.
_LEAVES = (
    ("Add", "Sigmoid"),
    ("Add", "Relu"),
    ("Add", "Sigmoid"),
    ("Mul", "Relu"),
    ("Add", "Tanh"),
    ("Add", "Sigmoid"),
    ("Add", "Tanh"),
    ("Add", "Sigmoid"),
)
_INNER = (("Mul", "Tanh"), ("Add", "Tanh"), ("Mul", "Tanh"), ("Add", "Sigmoid"))


def nas_cell(b: Builder, x: Value, h: Value, c: Value, weights: str) -> tuple[Value, Value]:
    """Add one step; return the new (h, c).  Leaf n reads x and h times the weights NAME.x.n and NAME.h.n."""

    def combine(how: tuple[str, str], first: Value, second: Value) -> Value:
        operator, activation = how
        return b.node(activation, b.node(operator, first, second))

    def product(source: Value, key: str) -> Value:
        inner, hidden = source.shape[1], h.shape[1]
        return b.node("MatMul", source, b.weight(f"{weights}.{key}", (inner, hidden), std=inner**-0.5))

    leaves = [combine(how, product(x, f"x.{n}"), product(h, f"h.{n}")) for n, how in enumerate(_LEAVES)]
    pairs = zip(_INNER, leaves[::2], leaves[1::2], strict=True)
    first, second, third, fourth = (combine(*pair) for pair in pairs)
    cell = b.mul(combine(("Add", "Tanh"), first, c), second)
    return combine(("Mul", "Tanh"), cell, combine(("Add", "Tanh"), third, fourth)), cell


def nas_rnn(b: Builder, batch: int, hidden: int, steps: int, *, shared: bool) -> tuple[Value, Value]:
    """Apply the cell to the inputs x0, x1, ... from the states h and c, and return the last states."""
    inputs = [b.input(f"x{step}", batch, hidden) for step in range(steps)]
    h, c = b.input("h", batch, hidden), b.input("c", batch, hidden)
    for step, x in enumerate(inputs):
        h, c = nas_cell(b, x, h, c, "cell" if shared else f"cell{step}")
    return h, c


@workload("nasrnn", parameters=4.194, multiply_adds=0.02097, papers=("taso", "tensat"))
def nasrnn(b: Builder, batch: int) -> tuple[Value, Value]:
    """NasRNN, hidden size 512, 5 steps that share their weights."""
    return nas_rnn(b, batch, HIDDEN, STEPS, shared=True)


@workload("nasrnn_unshared", parameters=20.97, multiply_adds=0.02097, papers=("taso", "tensat"))
def nasrnn_unshared(b: Builder, batch: int) -> tuple[Value, Value]:
    """NasRNN, hidden size 512, 5 steps with weights of their own."""
    return nas_rnn(b, batch, HIDDEN, STEPS, shared=False)
