"""Parallel branches of convolutions become one convolution, with the rules that every search applies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache, reduce

import numpy as np
import pytest
from explored import operators, weights
from searches import Made, search
from small_programs import node, program

from tensaurus.egraph.match.saturate import Limits, Ruleset
from tensaurus.expr.evaluate.fields import Reals
from tensaurus.graph.ir.node import Node, constant, source
from tensaurus.ops import TensorType
from tensaurus.optimizer.search.strategies import Rulesets
from tensaurus.rules.language.rule import library, parse_rule
from tensaurus.runtimes.backends.reference import evaluate

CHANNELS, SIZE = 4, 6
IMAGE = source("image", TensorType("float32", (2, CHANNELS, SIZE, SIZE)))


@cache
def rulesets() -> Rulesets:
    return Rulesets.compile(library(long=False))


def conv(
    size: int, seed: int, *, group: int = 1, stride: int = 1, dilation: int = 1, bias: bool = True
) -> Node:
    """A convolution of the image that keeps its size, divided by the stride."""
    kernel = weights(CHANNELS, CHANNELS // group, size, size, seed=seed)
    arguments = [IMAGE, kernel, *([weights(CHANNELS, seed=seed + 100)] if bias else [])]
    pads = (dilation * (size // 2),) * 4
    attributes = {"group": group, "strides": (stride,) * 2, "pads": pads, "dilations": (dilation,) * 2}
    return node("Conv", *arguments, **attributes)


def batch_norm(seed: int) -> Node:
    variance = np.random.default_rng(seed).uniform(0.5, 2, CHANNELS).astype(np.float32)
    numbers = [weights(CHANNELS, seed=seed + k) for k in range(3)]
    return node("BatchNormalization", IMAGE, *numbers, constant(variance))


def add_all(*terms: Node) -> Node:
    return reduce(lambda left, right: node("Add", left, right), terms)


BRANCHES: dict[str, Callable[[], Node]] = {
    "two of one size": lambda: add_all(conv(3, 1), conv(3, 2)),
    "two sizes": lambda: add_all(conv(1, 1), conv(3, 2)),
    "two sizes, the larger first": lambda: add_all(conv(5, 1), conv(3, 2)),
    "a stride": lambda: add_all(conv(1, 1, stride=2), conv(3, 2, stride=2)),
    "dilated": lambda: add_all(conv(3, 1, dilation=2), conv(5, 2, dilation=2)),
    "RepVGG": lambda: add_all(conv(1, 1), conv(3, 2), batch_norm(3)),
    "MobileOne": lambda: add_all(batch_norm(9), conv(1, 1), *(conv(3, k) for k in range(2, 6))),
    "MobileOne, depthwise": lambda: add_all(
        batch_norm(9), conv(1, 1, group=CHANNELS), *(conv(3, k, group=CHANNELS) for k in range(2, 6))
    ),
    "two groups and the image": lambda: add_all(conv(3, 1, group=2), IMAGE),
    "the image without a bias": lambda: add_all(IMAGE, conv(3, 1, bias=False)),
    "dilated and the image": lambda: add_all(conv(3, 1, dilation=2), IMAGE),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_parallel_branches_become_one_convolution(name: str) -> None:
    whole = program(BRANCHES[name]())
    limits, simplifying = Limits(nodes=4000, rounds=10), rulesets().simplifying
    outcome = search(
        whole, Made({}), rulesets().usual, simplifying=simplifying, exploration_limits=limits
    )
    best = outcome.best.program
    assert operators(best) == Counter(Conv=1)
    drawn = np.random.default_rng(0)
    values = {n.attribute("name"): drawn.standard_normal([*n.tensor.shape]) for n in whole.inputs}
    before, after = (evaluate(one, values, Reals())["o0"] for one in (whole, best))
    np.testing.assert_allclose(after, before, rtol=1e-9, atol=1e-9)


def test_simplifying_rules_come_before_those_that_fill_the_egraph() -> None:
    """Sums in every order leave no room for merging, unless merging comes first."""
    whole = program(BRANCHES["MobileOne"]())
    usual, simplifying = rulesets().usual, rulesets().simplifying

    def is_one_convolution(simplifying: Ruleset | None, nodes: int) -> bool:
        limits = Limits(nodes=nodes, rounds=10)
        found = search(whole, Made({}), usual, simplifying=simplifying, exploration_limits=limits)
        return operators(found.best.program) == Counter(Conv=1)

    sizes = range(100, 2000, 100)
    least = next(nodes for nodes in sizes if is_one_convolution(simplifying, nodes))
    assert not is_one_convolution(None, least)


@pytest.mark.parametrize(
    ("law", "simplifies", "shrinks"),
    [
        ("Add(Add(x, y), z) => Add(x, Add(y, z))", False, False),
        ("Mul(Add(x, y), z) => Add(Mul(x, z), Mul(y, z))", True, False),
        ("Mul(Mul(x, c), d) => Mul(x, Mul(c, d)) where const(c), const(d)", True, True),
        ("Mul(Mul(x, c), d) => Mul(x, Mul(c, d)) where const(c)", False, False),
        ("Relu(Relu(x)) => Relu(x)", True, True),
        ("Neg(x) => Sub(0, x)", True, False),
    ],
)
def test_rules_say_whether_they_simplify_and_shrink(law: str, simplifies: bool, shrinks: bool) -> None:
    (rule,) = parse_rule(f"law: {law}")
    assert (rule.simplifies, rule.shrinks) == (simplifies, shrinks)
    (exploring,) = parse_rule(f"law [explore]: {law}")
    assert (exploring.simplifies, exploring.shrinks) == (False, shrinks)


def test_no_rule_that_shrinks_programs_waits_for_long_searches() -> None:
    short = {rule.name for rule in library(long=False)}
    left_out = [rule for rule in library(ops=()) if rule.name not in short]
    assert left_out and not any(rule.shrinks for rule in left_out)
