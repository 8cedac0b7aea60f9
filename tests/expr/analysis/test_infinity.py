"""Infinite values: an expression that may be infinite is known to be, and refuses a factor that becomes 0."""

from __future__ import annotations

from itertools import product
from math import inf
from typing import Any

import numpy as np
import pytest

from tensaurus.expr.analysis.infinite_values import Infinities
from tensaurus.expr.analysis.perturbation_bounds import Perturbation, Sensitive, bound_perturbation
from tensaurus.expr.evaluate.fields import Reals
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.ir.scalar_functions import FUNCTIONS
from tensaurus.expr.ir.scope import Const, Read, Reduce, Scope, Select, Tensor, axis, call

ROW, ALONE = axis(12, "i"), axis(1, "k")
X, W = Tensor("X", (12,)), Tensor("W", (12,))
VALUES = np.array([inf, -inf, 0, -0.0, 1, -1, 0.5, -0.5, 3e4, -3e4, 1e5, 5])
TINY = 2.0**-130  # subnormal in float32

UNARY = [name for name, function in FUNCTIONS.items() if function.arity == 1 and function.result != "bool"]
CHAINS = {
    **{name: lambda x, name=name: call(name, x) for name in UNARY},
    "relu": lambda x: call("max", x, Const(0)),
    "at most 6": lambda x: call("min", x, Const(6)),
    "clip": lambda x: call("min", call("max", x, Const(0)), Const(6)),
    "inverse": lambda x: Const(1) / x,
    "half": lambda x: x / Const(2),
    "moved": lambda x: x + Const(1),
    "squared": lambda x: x * x,
    "sigmoid": lambda x: Const(1) / (Const(1) + call("exp", -x)),
    "float16": lambda x: call("to_float16", x),
    "sum of one": lambda x: Reduce("sum", (ALONE,), x),
    "largest of one": lambda x: Reduce("max", (ALONE,), x),
    "sum of squares": lambda x: Reduce("sum", (axis(2),), x * x),
    "read": lambda x: Read(Scope((ROW,), x), (ROW,)),
    "padded": lambda x: Read(Scope((ROW,), x), (ROW,), Const(-inf)),
    "chosen": lambda x: call("where", call("lt", x, Const(2)), x, Const(inf)),
    "at first": lambda x: Select((ROW - 5,), x, Const(inf)),
}
CHAINED = [*((name,) for name in CHAINS), *list(product(CHAINS, CHAINS))[::5]]
X_READ, W_READ = Read(X, (ROW,)), Read(W, (ROW,))
FACTORS = {
    "w": W_READ,
    "-w": -W_READ,
    "|w|": call("abs", W_READ),
    "root of w": call("sqrt", W_READ),
    "tanh(w)": call("tanh", W_READ),
    "w read": Read(Scope((ROW,), W_READ), (ROW,)),
    "w * 2": W_READ * Const(2),
    "max(w, 0)": call("max", W_READ, Const(0)),
}


def chained(names: tuple[str, ...], x: Any) -> Any:
    for name in names:
        x = CHAINS[name](x)
    return x


def computed(body: Any, w: float = 1.0) -> Any:
    given = {X: VALUES, W: np.full(12, w)}
    with np.errstate(all="ignore"):
        found = np.asarray(interpret(Scope((ROW,), body), given, Reals()))
        return np.broadcast_to(found, (12,))


def infinities() -> Infinities:
    return Infinities({X: (-inf, inf), W: (TINY, TINY)}, lambda tensor: tensor == X)


@pytest.mark.parametrize("names", CHAINED, ids=" of ".join)
def test_what_is_infinite_is_known_to_be(names: tuple[str, ...]) -> None:
    body = chained(names, X_READ)
    value = computed(body)
    if "float16" in names:  # as it is rounded
        value = np.where(np.abs(value) > 65504, inf, value)
    assert infinities().arise_in(body) or not np.isinf(value).any()


@pytest.mark.parametrize("names", [(), *CHAINED], ids=" of ".join)
def test_a_factor_of_what_may_be_infinite_is_kept(names: tuple[str, ...]) -> None:
    """Whatever is computed of either, and on whichever side they stand."""
    other = chained(names, X_READ)
    sources = {
        X: Perturbation.within(-(2.0**64), 2.0**64, 1),
        W: Perturbation.known(np.full(12, TINY), np.zeros(12)),
    }
    for factor in list(FACTORS.values())[: 2 if len(names) == 2 else None]:
        for body in (other * factor, factor * other, factor / other):
            before, after = (np.isnan(computed(body, w)) for w in (TINY, 0.0))
            if not (after & ~before).any():
                continue
            with pytest.raises(Sensitive):
                bound_perturbation(Scope((ROW,), body), sources, 2.0**-32, 0.0, {W}, infinities())


@pytest.mark.parametrize("name", ["tanh", "erf", "clip", "sigmoid", "sin"])
def test_a_factor_of_what_is_bounded_may_become_zero(name: str) -> None:
    sources = {
        X: Perturbation.within(-(2.0**64), 2.0**64, 1),
        W: Perturbation.known(np.full(12, TINY), np.zeros(12)),
    }
    body = chained((name,), X_READ) * W_READ + Const(1)
    assert not bound_perturbation(Scope((ROW,), body), sources, 2.0**-32, 0.0, {W}, infinities()).is_moved


def test_sums_of_several_terms_and_edges_that_a_maximum_drops_are_none() -> None:
    several = axis(3, "j")
    assert not infinities().arise_in(Reduce("sum", (several,), X_READ))
    assert infinities().arise_in(Reduce("sum", (several,), call("abs", X_READ)))  # never NaN
    inside = call("tanh", X_READ)
    padded = Read(Scope((ROW,), inside), (ROW + several - 1,), Const(-inf))
    assert not infinities().arise_in(Reduce("max", (several,), padded))
    assert infinities().arise_in(padded)
