"""The backtracking search: what it finds, what ends it, and what its chain says."""

from __future__ import annotations

import numpy as np
import pytest

from tensaurus.check.program.candidate import Candidate
from tensaurus.expr.evaluate.fields import PrimeField
from tensaurus.graph.ir.node import Node, apply, constant, source
from tensaurus.graph.ir.program import Program
from tensaurus.ops import TensorType, registry
from tensaurus.optimizer.search.backtrack import Backtrack
from tensaurus.optimizer.search.outcome import Outcome
from tensaurus.rules.language.match import Rewriter
from tensaurus.rules.language.rule import library, parse_rule
from tensaurus.rules.test.verify_rule import evaluate_roots

X = source("x", TensorType("float32", (1, 4, 6, 6)))
RNG = np.random.default_rng(3)


def op(name: str, *args: Node | None, **attrs: object) -> Node:
    return apply(registry[name], args, attrs)


def scalar(value: float) -> Node:
    return constant(np.float32(value))


def weights(*shape: int) -> Node:
    return constant(RNG.standard_normal(shape).astype(np.float32))


def affine_network(depth: int = 3) -> Program:
    """Convolutions with scalar affine maps around, and HardSwish spelled out: what exporters write."""
    node = X
    for _ in range(depth):
        node = op("Conv", node, weights(4, 4, 1, 1), weights(4))
        node = op("Add", op("Mul", node, scalar(1.5)), scalar(0.25))
        clipped = op("Clip", op("Add", node, scalar(3)), scalar(0), scalar(6))
        node = op("Div", op("Mul", node, clipped), scalar(6))
        node = op("Add", op("Mul", scalar(0.5), node), scalar(-0.125))
    return Program((X,), (("y", node),))


def count(node: Node) -> float:
    return 1.0


def search(program: Program, steps: int = 100, **options: object) -> Outcome:
    rewriter = Rewriter(rule for rule in library() if "expand" not in rule.tags)
    return Backtrack(rewriter, count, steps=steps, **options).run(program)  # type: ignore[arg-type]


def test_affine_maps_and_hardswish_fold_away() -> None:
    outcome = search(affine_network())
    names = sorted(str(node.op) for node in outcome.best.program.active)
    # the last affine map has no convolution behind it
    assert names == ["Add", *["Conv"] * 3, *["HardSwish"] * 3, "Mul"]


def test_the_result_has_the_same_value() -> None:
    program = affine_network(2)
    best = search(program).best.program
    field = PrimeField(1)
    # hardswish needs the order of the reals: its two forms are compared elsewhere, here by its expansion
    rewriter = Rewriter(parse_rule("h: Div(Mul(x, Clip(Add(x, 3), 0, 6)), 6) => HardSwish(x)"))
    named, _ = Backtrack(rewriter, count).rewrite_everywhere(program, rewriter.single_root[0].rule)
    values = {X: field.random((1, 4, 6, 6), np.random.default_rng(0))}
    left, right = evaluate_roots([named.outputs[0][1], best.outputs[0][1]], values, field)
    assert field.equal(left, right)


def test_the_chain_leads_from_the_original_to_the_best() -> None:
    program = affine_network()
    best = search(program).best
    chain = best.chain
    assert chain[0].program is program and chain[-1] is best
    for before, after in zip(chain, chain[1:], strict=False):
        assert after.step is not None and after.step.before is before and after.step.applied
        for old, new in ((made.left, made.right) for made in after.step.applied):
            assert [o.types for o in old] == [n.types for n in new]


def test_limits_end_the_search() -> None:
    assert search(affine_network(), steps=0).ended_by == "steps"
    assert search(affine_network(), steps=2).steps == 2
    assert search(affine_network(), deadline=0.0).ended_by == "time"
    assert search(Program((X,), (("y", op("Relu", X)),))).ended_by == "exhausted"


def test_an_interrupt_keeps_the_best_so_far() -> None:
    def watch(steps: int, best: float) -> None:
        if steps == 3:
            raise KeyboardInterrupt

    outcome = search(affine_network(), watch=watch)
    assert outcome.ended_by == "interrupt" and outcome.steps == 3
    assert outcome.best.cost < Candidate(affine_network(), 100.0).cost
    assert outcome.best.step is not None


def test_an_interrupt_while_the_original_is_measured_keeps_the_original() -> None:
    def cost(node: Node) -> float:
        raise KeyboardInterrupt

    program = affine_network()
    outcome = Backtrack(Rewriter(library()), cost).run(program)
    assert outcome.ended_by == "interrupt" and outcome.best.program is program


def test_two_runs_are_the_same() -> None:
    first, second = (search(affine_network(2)) for _ in range(2))
    assert first.best.program.outputs != () and first.steps == second.steps
    assert [c.cost for c in first.best.chain] == [c.cost for c in second.best.chain]


@pytest.mark.parametrize(("alpha", "found"), [(1.0, False), (1.5, True)])
def test_alpha_lets_the_search_go_through_worse_programs(alpha: float, found: bool) -> None:
    up, down = "up: Relu(x) => Neg(Neg(Relu(x)))", "down: Neg(Neg(Relu(x))) => Abs(x)"
    rules = [*parse_rule(up), *parse_rule(down)]
    prices = {"Relu": 1.0, "Neg": 0.1, "Abs": 0.5}
    program = Program((X,), (("y", op("Relu", X)),))
    outcome = Backtrack(Rewriter(rules), lambda n: prices[str(n.op)], alpha=alpha, steps=20).run(program)
    assert (str(outcome.best.program.outputs[0][1].op) == "Abs") is found


def test_a_merge_that_would_need_its_own_result_keeps_the_program_acyclic() -> None:
    """TASO Figure 6: A @ relu(A @ B): the two products share A, and one needs the other."""
    a = source("a", TensorType("float32", (3, 3)))
    inner = op("Relu", op("MatMul", a, weights(3, 3)))
    program = Program((a,), (("y", op("MatMul", a, inner)), ("z", op("MatMul", a, weights(3, 2)))))
    outcome = search(program, steps=10)
    for candidate in outcome.candidates:
        order = {node: place for place, node in enumerate(candidate.program.nodes)}
        assert all(order[arg] < order[node] for node in order for arg in node.args if arg is not None)
