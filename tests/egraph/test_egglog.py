"""Saturation without filters and limits gives the e-nodes and classes that egglog finds."""

from __future__ import annotations

import json
import random

import pytest
from egglog.bindings import EGraph as Egglog

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.match.saturate import Limits, Ruleset, saturate
from tensaurus.graph.ir.node import INPUT, Node, apply, source
from tensaurus.ops import Op, TensorType, registry
from tensaurus.rules.language.rule import Rule, parse_rule
from tensaurus.rules.language.term import Apply, Term, Variable

# Ours matches the arguments of commutative operators in every order: egglog needs the rule that says so.
COMMUTE = ("Add(x, y) => Add(y, x)", "Mul(x, y) => Mul(y, x)")
ASSOCIATE = ("Add(Add(x, y), z) <=> Add(x, Add(y, z))", "Mul(Mul(x, y), z) <=> Mul(x, Mul(y, z))")
DISTRIBUTE = ("Mul(x, Add(y, z)) <=> Add(Mul(x, y), Mul(x, z))",)
NEGATE = ("Neg(Neg(x)) => x", "Neg(Add(x, y)) <=> Add(Neg(x), Neg(y))", "Neg(Mul(x, y)) => Mul(Neg(x), y)")
MATRICES = (
    "MatMul(x, MatMul(y, z)) <=> MatMul(MatMul(x, y), z)",
    "MatMul(x, Add(y, z)) => Add(MatMul(x, y), MatMul(x, z))",
)
RELU = ("Relu(Relu(x)) => Relu(x)", "Max(x, y) => Max(y, x)", "Relu(Max(x, y)) <=> Max(Relu(x), Relu(y))")

SETS = {
    "sums": (COMMUTE[:1] + ASSOCIATE[:1], ("Add",), 4),
    "negated": (COMMUTE + NEGATE[:1] + NEGATE[2:], ("Neg", "Mul", "Add"), 6),
    "matrices": (COMMUTE[:1] + MATRICES, ("MatMul", "Add"), 5),
    "relu": (RELU, ("Relu", "Max"), 6),
    "products of sums": (COMMUTE + DISTRIBUTE, ("Mul", "Add"), 3),
}
INPUTS = [source(name, TensorType("float32", (4, 4))) for name in "xyz"]


def expression(names: tuple[str, ...], size: int, seed: int) -> Node:
    """A random tree of so many operators."""
    drawn = random.Random(seed)
    nodes: list[Node] = list(INPUTS)
    for _ in range(size):
        op = registry[drawn.choice(names)]
        nodes.append(
            apply(op, [drawn.choice(nodes[-3:]) for _ in range(1 if op.name in ("Relu", "Neg") else 2)])
        )
    return nodes[-1]


def written(node: Node) -> str:
    if node.op is INPUT:
        return f'(X "{node.attribute("name")}")'
    assert isinstance(node.op, Op)
    return f"({node.op.name} {' '.join(written(arg) for arg in node.args if arg is not None)})"


def pattern(term: Term | None) -> str:
    match term:
        case Variable(name, _):
            return name
        case Apply(op, args, _, _):
            return f"({op.name} {' '.join(map(pattern, args))})"
    raise TypeError(term)


def with_egglog(rules: list[Rule], root: Node) -> tuple[int, int]:
    """How many e-nodes and classes."""
    arities = {
        term.op.name: len(term.args)
        for rule in rules
        for side in (rule.lhs, rule.rhs)
        for term in parts(side[0])
    }
    arities |= {node.op.name: len(node.args) for node in below(root) if isinstance(node.op, Op)}
    sorts = " ".join(f"({name} {' '.join('E' * arity)})" for name, arity in arities.items())
    lines = [f"(datatype E (X String) {sorts})"]
    lines += [f"(rewrite {pattern(rule.lhs[0])} {pattern(rule.rhs[0])})" for rule in rules]
    lines += [f"(let $root {written(root)})", "(run 60)"]
    egraph = Egglog()
    egraph.run_program(*egraph.parse_program("\n".join(lines)))
    limits = {"max_functions": None, "max_calls_per_function": None, "include_temporary_functions": False}
    nodes = json.loads(egraph.serialize([], **limits).to_json())["nodes"]
    terms = [node for node in nodes.values() if node["eclass"].startswith("E-") and node["op"] != "$root"]
    return len(terms), len({node["eclass"] for node in terms})


def parts(term: Term | None) -> list[Apply]:
    return [term, *(part for arg in term.args for part in parts(arg))] if isinstance(term, Apply) else []


def below(node: Node) -> list[Node]:
    return [node, *(part for arg in node.args if arg is not None for part in below(arg))]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", SETS)
def test_the_same_e_nodes_and_classes(name: str, seed: int) -> None:
    lines, operators, size = SETS[name]
    rules = [rule for number, line in enumerate(lines) for rule in parse_rule(f"r{number}: {line}")]
    root = expression(operators, size, seed)
    graph = EGraph()
    graph.insert_term(root)
    graph.rebuild()
    found = saturate(graph, Ruleset(rules), Limits(rounds=60))
    assert found.ended_by == "saturated"
    assert (len(graph), len(graph.members)) == with_egglog(rules, root)
