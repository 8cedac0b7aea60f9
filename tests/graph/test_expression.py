"""Programs written as one expression: nested or flat, with shared scopes, over chosen leaves."""

from __future__ import annotations

import numpy as np
import pytest
from small_programs import X, Y, node, program, residual, small

from tensaurus.expr.evaluate.fields import Rationals, Reals
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.ir.scope import Read, Scope, Tensor
from tensaurus.expr.ir.walk import reads, scopes, tensors
from tensaurus.expr.normal.canonicalize import are_equal_expressions, canonicalize
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.graph.analysis.program_expression import build_expression, build_expressions
from tensaurus.graph.ir.node import CONSTANT, INPUT, Node, apply, constant, item, source
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.ops import Op, TensorType, registry
from tensaurus.runtimes.backends.reference import evaluate


def named(node: Node) -> Tensor | None:
    if node.op not in (INPUT, CONSTANT):
        return None
    return Tensor(f"t{node.serial}", node.tensor.shape, node.tensor.dtype)


def test_an_expression_computes_the_values_of_its_nodes() -> None:
    whole = small(residual)
    field, rng = Rationals(), np.random.default_rng(0)
    values = {n: field.random(n.tensor.shape, rng) for n in whole.nodes if named(n)}  # type: ignore[arg-type]
    leaves = {named(n): value for n, value in values.items()}
    for n in topological_order(whole.roots):
        if n not in values:
            assert isinstance(n.op, Op)
            pairs = zip(n.op.tensors(n.arg_types()), n.args, strict=False)
            given = {t: values[arg] for t, arg in pairs if t is not None and arg is not None}
            values[n] = interpret(n.op.scopes(n.arg_types(), n.attrs)[0], given, field)
    for nested in (True, False):
        scope = build_expression(whole, named, nested)
        found = interpret(scope, {t: leaves[t] for t in tensors(scope)}, field)
        assert field.equal(found, values[whole.roots[0]])


def test_every_inner_node_is_one_scope() -> None:
    shared = node("Relu", X)
    scope = build_expression(program(node("Add", node("Exp", shared), node("MatMul", shared, Y))))
    assert len(scopes(scope)) == 4 and {t.name for t in tensors(scope)} == {"x", "y"}
    assert len(scopes(intern_scope(scope))) == 4
    root = node("Add", node("Exp", shared), node("MatMul", shared, Y))
    flat = build_expression(program(root), nested=False)
    assert scopes(flat) == (flat,) and are_equal_expressions(flat, scope)
    first, second = build_expressions([node("Exp", shared), node("MatMul", shared, Y)])
    assert {id(r.source) for r in reads(first)} <= {id(r.source) for r in reads(second)}


def test_leaves_may_be_any_nodes_and_sources() -> None:
    inner = node("MatMul", X, Y)
    cut = Tensor("cut", (4, 4))
    scope = build_expression(node("Exp", inner), {inner: cut})
    assert tensors(scope) == (cut,) and scopes(scope) == (scope,)
    (alone,) = build_expressions([inner], {inner: cut})
    assert alone.shape == (4, 4) and isinstance(alone.body, Read) and alone.body.source is cut


def test_outputs_of_one_node() -> None:
    halves = apply(registry["Split"], [X], {"axis": 0, "split": (2, 2)}, 2)
    low = build_expression(item(halves, 1))
    assert low.shape == (2, 4)
    assert are_equal_expressions(
        build_expression(node("Concat", item(halves, 0), item(halves, 1), axis=0)), build_expression(X)
    )


def test_a_long_program_is_no_deep_recursion() -> None:
    last = X
    for _ in range(400):
        last = node("Relu", node("Neg", last))
    assert isinstance(intern_scope(build_expression(last)), Scope)


def test_nodes_without_expression_are_refused() -> None:
    number = constant(np.zeros((4, 4), np.float32))
    with pytest.raises(ValueError, match="one of the leaves"):
        build_expression(node("Add", X, number))
    with pytest.raises(ValueError, match="2 outputs"):
        build_expression(program(node("Relu", X), node("Exp", X)))
    assert canonicalize(build_expression(Program((X,), (("x", X),)))).shape == (4, 4)


@pytest.mark.parametrize("count", [1, 2, 16, 17, 33, 600])
def test_a_long_concatenation_is_not_nested_deeply(count: int) -> None:
    """Choices one after the other were as deep as it has inputs: three hundred could not be evaluated."""
    rng = np.random.default_rng(0)
    lengths = [int(n) for n in rng.integers(0, 4, count - 1)] + [2]
    xs = [source(f"x{k}", TensorType("float32", (2, n))) for k, n in enumerate(lengths)]
    made = apply(registry["Concat"], xs, {"axis": 1})
    feeds = {f"x{k}": rng.standard_normal((2, n)) for k, n in enumerate(lengths)}
    found = evaluate(Program(tuple(xs), (("y", made),)), feeds, Reals())["y"]
    assert np.array_equal(found, np.concatenate(list(feeds.values()), axis=1))
