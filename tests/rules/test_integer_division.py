"""No rule divides integers by elements that its left side does not divide by: runtimes end a run at a 0."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.match.saturate import Limits, Ruleset, saturate
from tensaurus.graph.ir.node import Node, apply, source
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.onnx_export import export_model
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.ops import TensorType, registry
from tensaurus.rules.language.integer_division import added_divisors, divisor_inputs
from tensaurus.rules.language.match import Matcher
from tensaurus.rules.language.rule import library, parse_rule

GUARDED = """<ir_version: 8, opset_import: ["": 17]>
net ({dtype}[2, 3] x, {dtype}[2, 3] z) => ({dtype}[2, 3] y) {{
    zero = Constant <value = {dtype} {{0}}> ()
    one = Constant <value = {dtype} {{1}}> ()
    c = Equal (z, zero)
    safe = Where (c, one, z)
    y = {operator} (x, safe)
}}"""


def op(name: str, *args: Node) -> Node:
    return apply(registry[name], args, {})


def test_which_inputs_divide() -> None:
    assert divisor_inputs(registry["Div"]) == divisor_inputs(registry["Mod"]) == {1}
    assert not divisor_inputs(registry["Mul"]) and not divisor_inputs(registry["ReduceMean"])


@pytest.mark.parametrize(
    ("law", "names"),
    [
        ("Div(z, Where(c, x, y)) => Where(c, Div(z, x), Div(z, y))", {"x", "y"}),
        ("Where(c, Div(z, x), Div(z, y)) => Div(z, Where(c, x, y))", set()),
        ("Slice(Div(x, y), **a) => Div(Slice(x, **a), Slice(y, **a))", set()),
        ("Mod(Slice(x, **a), Slice(y, **a)) => Slice(Mod(x, y), **a)", {"y"}),
        ("Pad(Div(x, y), **a) => Div(Pad(x, **a), Pad(y, **a))", {"y"}),
        ("Div(x, y) => Div(Neg(x), Neg(y))", {"y"}),
        ("Div(x, y) => Div(Mul(x, 2), Mul(y, 2))", {"y"}),
        ("Neg(Div(x, y)) => Div(Neg(x), y)", set()),
        ("x => Div(x, 1)", set()),
    ],
)
def test_divisors_that_only_the_right_side_has(law: str, names: set[str]) -> None:
    if law.startswith("x"):
        law = law.replace("x =>", "Identity(x) =>")
    (rule,) = parse_rule(f"law [any]: {law}")
    assert added_divisors(rule.lhs, rule.rhs) == names


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_a_guarded_division_of_integers_stays_guarded(dtype: str) -> None:
    (rule,) = (rule for rule in library() if rule.name == "where-of-number-and-each-div-back")
    x, y, z = (source(name, TensorType(dtype, (3,) * (name != "x"))) for name in "xyz")
    root = op("Div", x, op("Where", source("c", TensorType("bool", (3,))), y, z))
    applies = dtype == "float32"
    assert (Matcher(rule).rewrite(root) is not None) == applies
    graph = EGraph()
    number = graph.insert_term(root)
    saturate(graph, Ruleset([rule]), Limits())
    assert (len(graph.members[graph.find(number)]) == 2) == applies


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("operator", ["Div", "Mod"])
def test_no_rule_of_the_library_ends_a_run(operator: str, dtype: str) -> None:
    """Each rule is applied wherever it matches, to a model that replaces divisors of 0 by 1."""
    program = import_model(onnx.parser.parse_model(GUARDED.format(dtype=dtype, operator=operator)))
    feeds = {"x": np.arange(6).reshape(2, 3), "z": np.array([[0, 1, 2], [3, 0, 5]])}
    feeds = {name: value.astype(dtype) for name, value in feeds.items()}
    made: set[Program] = set()
    for matcher in matchers():
        for node in program.nodes:
            found = matcher.rewrite(node) if len(node.types) == 1 else None
            if found is not None:
                made.add(program.replace_nodes({node: found}))
    assert made
    (expected,) = run(program, feeds)
    for changed in made:
        np.testing.assert_array_equal(run(changed, feeds)[0], expected)


@cache
def matchers() -> list[Matcher]:
    found = [Matcher(rule) for rule in library() if "off" not in rule.tags]
    return [matcher for matcher in found if len(matcher.root_operators) == 1]


def run(program: Program, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    model = export_model(program)
    return ort.InferenceSession(model.SerializeToString()).run(None, feeds)
