"""Bounds of values: no element of any operator's example lies beyond them."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tensaurus.check.files.output_bounds import largest_magnitude
from tensaurus.expr.analysis.interval_bounds import bounds
from tensaurus.expr.evaluate.fields import Reals
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.ops import Op, TensorType, registry
from tensaurus.ops.examples import examples_of

SPECIAL = np.array([-100.0, -4.0, -1.0, -0.5, 0.0, 0.25, 1.0, 3.0, 7.0, 100.0])


def drawn(kind: TensorType, rng: np.random.Generator) -> Any:
    shape = [int(n) for n in kind.shape]  # type: ignore[arg-type]
    if kind.dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if kind.dtype.startswith("float"):
        return rng.choice(SPECIAL, shape)
    return rng.integers(0, 2, shape)


@pytest.mark.parametrize("name", sorted(registry))
def test_no_example_leaves_its_bounds(name: str) -> None:
    op, rng = registry[name], np.random.default_rng(0)
    if not isinstance(op, Op):
        return
    for kinds, attrs in examples_of(op):
        tensors = [x for x in op.tensors(kinds) if x is not None]
        types = [kind for kind in kinds if kind is not None]
        for scope, result in zip(op.scopes(kinds, attrs), op.types(kinds, attrs), strict=True):
            if not isinstance(result, TensorType) or not result.dtype.startswith("float"):
                continue
            low, high = bounds(scope)
            if (low, high) == (-inf, inf):
                continue
            for _ in range(3):
                values = {x: drawn(kind, rng) for x, kind in zip(tensors, types, strict=True)}
                with np.errstate(all="ignore"):
                    found = np.asarray(interpret(scope, values, Reals()), np.float64)
                found = found[np.isfinite(found)]
                assert not found.size or low - 1e-9 <= found.min() and found.max() <= high + 1e-9


@pytest.mark.parametrize(
    ("names", "most"),
    [
        (["Sigmoid"], 1.0),
        (["Tanh"], 1.0),
        (["HardSigmoid"], 1.0),
        (["Relu", "Tanh", "Identity"], 1.0),
        (["Relu"], 0.0),
        (["Sigmoid", "Relu"], 1.0),
        (["Sigmoid", "Exp"], float(np.e)),
        (["Softplus"], 0.0),
        ([], 0.0),
    ],
)
def test_how_large_an_output_may_be(names: list[str], most: float) -> None:
    nodes = [helper.make_node(name, [f"t{k}"], [f"t{k + 1}"]) for k, name in enumerate(names)]
    ends = [helper.make_tensor_value_info(f"t{k}", TensorProto.FLOAT, [4]) for k in (0, len(names))]
    graph: onnx.GraphProto = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    assert largest_magnitude(graph, f"t{len(names)}") == pytest.approx(most)


def test_other_attributes_have_other_bounds() -> None:
    node = helper.make_node("Elu", ["x"], ["y"], alpha=3.0)
    op, kinds = registry["Elu"], (TensorType("float32", (4,)),)
    low, _ = bounds(op.scopes(kinds, op.canonical(kinds, {"alpha": 3}))[0])
    assert low == pytest.approx(-3.0)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    assert largest_magnitude(helper.make_graph([node], "g", ends[:1], ends[1:]), "y") == 0.0
