"""Rewrites do not combine constants whose rounding a model needs, and folding rounds as float32 does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.finder_protocol import Proposal, find_all
from tensaurus.egraph.match.saturate import Limits, Ruleset, saturate
from tensaurus.graph.analysis import constant_magnitudes, needed_rounding
from tensaurus.graph.analysis.constant_folding import fold_constants
from tensaurus.graph.analysis.evaluate_node import evaluate_node
from tensaurus.graph.analysis.needed_rounding import is_large_constant, removes_needed_rounding
from tensaurus.graph.ir.node import CONSTANT, Node, apply, constant, source
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.ops import TensorType, registry
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.evidence import Axiom
from tensaurus.rules.language.match import Rewriter
from tensaurus.rules.language.rule import library, parse_rule


def number(value: float) -> Node:
    return constant(np.float32(value))


def made(name: str, *args: Node) -> Node:
    return apply(registry[name], args, {})


X = source("x", TensorType("float32", (4,)))


LAWS = ("add-df58ce", "mul-c32f81", "add-sub-e83b4a", "sub-constant", "div-constants", "softmax-of-shifted")


def can_become(root: Node, other: Node) -> bool:
    """Whether the library's laws about constants make one of the other."""
    graph = EGraph()
    first = graph.insert_term(root)
    parts = [graph.insert_term(arg) for arg in other.args if arg is not None]
    saturate(graph, Ruleset(rule for rule in library() if rule.name in LAWS), Limits(nodes=200, rounds=5))
    second = graph.peek(graph.head_of(other), parts)
    return second is not None and graph.find(first) == graph.find(second)


def nearby(first: str, a: float, second: str, b: float) -> Node:
    return made(second, made(first, X, number(a)), number(b))


def together(name: str, inner: str, a: float, b: float) -> Node:
    return made(name, X, made(inner, number(a), number(b)))


def around(value: float) -> Node:
    return made("Add", number(value), made("Sub", X, number(value)))


@pytest.mark.parametrize(
    "root, other",
    [
        (nearby("Add", 12582912, "Add", -12582912), together("Add", "Add", 12582912, -12582912)),
        (around(12582912), X),
        (nearby("Mul", 1e30, "Mul", 1e-30), together("Mul", "Mul", 1e30, 1e-30)),
        (nearby("Mul", 1e30, "Div", 1e30), together("Mul", "Div", 1e30, 1e30)),
        (made("Softmax", made("Add", X, number(1e10))), made("Softmax", X)),
    ],
)
def test_rewrites_do_not_combine_large_constants(root: Node, other: Node) -> None:
    assert not can_become(root, other)


@pytest.mark.parametrize(
    "root, other",
    [
        (nearby("Add", 3, "Add", -3), together("Add", "Add", 3, -3)),
        (around(3), X),
        (nearby("Mul", 4, "Mul", 0.25), together("Mul", "Mul", 4, 0.25)),
        (nearby("Mul", 8, "Div", 8), together("Mul", "Div", 8, 8)),
        (made("Softmax", made("Add", X, number(10))), made("Softmax", X)),
    ],
)
def test_rewrites_combine_small_constants(root: Node, other: Node) -> None:
    assert can_become(root, other)


@pytest.mark.parametrize(
    "name, values, refused",
    [
        ("Add", (12582912, -12582912), True), ("Add", (12582912, 12582912), False), ("Add", (5, -5), False),
        ("Sub", (1e6, 999999), True), ("Sub", (1e6, 9e5), True), ("Mul", (1e30, 1e-30), True),
        ("Mul", (1e10, 1e-10), True), ("Mul", (0, 1e10), False), ("Div", (1, 1e-30), True),
        ("Div", (1, 8), False), ("Add", (float("inf"), 1), False),
        # each of these forgets a part of what the first constant rounds
        ("Sub", (12582912, 12579840), True), ("Sub", (12582912, 12579000), True),
        ("Sub", (12582912, 6291456), True), ("Mul", (12582912, 1 / 4096), True),
        ("Div", (12582912, 4096), True), ("Sum", (12582912, -12579840, 1), True),
        # and these nothing
        ("Add", (12582912, 3072), False), ("Sub", (12582912, 3), False), ("Mul", (12582912, 0.5), False),
        ("Div", (1, 65535), False), ("Mul", (123.675, 1 / 58.395), False), ("Sub", (0.485, 255), False),
        ("Sub", (4000, 3999), False), ("Add", (-3.4e38, 3), False), ("Add", (-1e9, -1e4), False),
        ("Sum", (3, -3, 1), False),
    ],
)  # fmt: skip
def test_removes_needed_rounding(name: str, values: Sequence[float], refused: bool) -> None:
    assert removes_needed_rounding(made(name, *map(number, values))) == refused


def test_narrow_types_have_a_smaller_limit() -> None:
    for value, refused in ((1536, True), (123.675, False)):
        half = constant(np.float16(value))
        assert removes_needed_rounding(made("Sub", half, half)) == refused == is_large_constant(half)
        assert removes_needed_rounding(made("Mul", half, constant(np.float16(1 / 58)))) == refused


def test_sums_of_products_have_no_large_terms() -> None:
    weight = constant(np.float32([[1e6, 1.0], [2 - 1e6, 1.0]]))
    shift = constant(np.full((1, 2), 12582912, np.float32))
    assert removes_needed_rounding(made("MatMul", shift, weight))
    assert removes_needed_rounding(made("Gemm", shift, weight, number(1.0)))
    small = constant(np.float32([[0.3, -0.3], [2.0, 1.0]]))
    assert not removes_needed_rounding(made("MatMul", small, small))
    assert not removes_needed_rounding(made("Gemm", small, small, number(1e3)))


@pytest.mark.nightly(every=3)
@pytest.mark.parametrize(
    "steps",
    [
        [("Sub", 12579840), ("Sub", 3072)],
        [("Mul", 1 / 4096), ("Sub", 3072)],
        [("Div", 4096), ("Add", -3072)],
    ],
)
def test_several_rewrites_do_not_combine_large_constants(steps: Sequence[tuple[str, float]]) -> None:
    """Each step looks harmless: 12582912 - 12579840, then 3072 - 3072."""
    root = made("Add", X, number(12582912))
    for name, value in steps:
        root = made(name, root, number(value))
    graph = EGraph()
    first = graph.insert_term(root)
    names = (*LAWS, "div-constant", "add-df58ce-back", "add-mul-f42ed1-back")
    saturate(graph, Ruleset(rule for rule in library() if rule.name in names), Limits(nodes=200, rounds=5))
    equal = (graph.term(n) for n in range(len(graph.original_args)) if graph.find(n) == graph.find(first))
    added = [arg for node in equal if node.op is registry["Add"] for arg in node.args if arg and arg.static]
    folded = [fold_constants(Program((X,), (("y", arg),))).outputs[0][1] for arg in added]
    values = [node.attribute("data").array for node in folded]
    assert values and 0.0 not in values


def test_a_sum_with_one_large_element_is_allowed() -> None:
    rng = np.random.default_rng(0)
    bias = rng.standard_normal(100).astype(np.float32) * 1e5
    other = rng.standard_normal(100).astype(np.float32) * 1e5
    other[3] = -bias[3]
    assert not removes_needed_rounding(made("Add", constant(bias), constant(other)))
    assert removes_needed_rounding(made("Add", constant(bias), constant(-bias)))


def test_inputs_and_large_tensors_are_not_computed() -> None:
    assert not removes_needed_rounding(made("Add", X, number(1e10))) and not is_large_constant(X)
    wide = constant(np.full(1 << 17, 1e10, np.float32))
    assert not removes_needed_rounding(made("Sub", wide, wide)) and not is_large_constant(wide)
    assert removes_needed_rounding(made("Sub", wide, number(1e10)))
    assert not removes_needed_rounding(made("Sub", wide, number(3)))
    assert is_large_constant(number(1e10)) and not is_large_constant(number(100))


def test_equations_of_finders_do_not_remove_rounding() -> None:
    def finder(graph: EGraph, max_new_enodes: int) -> list[Proposal]:
        leaf = source("c", TensorType("float32", ()))
        left = made("Sub", made("Add", X, leaf), leaf)
        return [
            Proposal(
                Equation("back", "x + c - c => x", (left,), (X,), (X, leaf), Axiom("real numbers")),
                (graph.insert_term(X), graph.insert_term(number(value))),
            )
        ]

    for value, merged in ((3.0, 1), (12582912.0, 0)):
        graph = EGraph()
        graph.insert_term(nearby("Add", value, "Sub", value))
        assert find_all(graph, [finder], 100) == merged


def test_folding_rounds_every_step_where_constants_cancel() -> None:
    def folded(text: str) -> float:
        body = f"net (float[4] x) => (float[4] y) {{ {text} y = Mul(x, r) }}"
        program: Program = import_model(
            onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\n{body}')
        )
        (found,) = [n.attribute("data").array for n in fold_constants(program).nodes if n.op is CONSTANT]
        return float(found)

    k = "{} = Constant<value = float {{{}}}>() "
    large = k.format("c", 12582912.0) + k.format("v", 2.3)
    assert folded(large + "a = Add(v, c) r = Sub(a, c)") == 2.0
    apart = large + k.format("d", 12579840.0) + "a = Add(v, c) "
    assert folded(apart + "r = Sub(a, d)") == 3074.0
    tiny = k.format("c", 1e-30) + k.format("v", 2.3)
    assert folded(tiny + "a = Mul(v, c) b = Mul(a, c) e = Div(b, c) r = Div(e, c)") == 0.0
    scaled = k.format("c", 12345.678) + k.format("s", 1e-4) + k.format("o", 1.23456)
    exact = float(np.float32(12345.678)) * float(np.float32(1e-4)) - float(np.float32(1.23456))
    assert folded(scaled + "a = Mul(c, s) r = Sub(a, o)") == float(np.float32(exact))
    small = k.format("c", 0.1) + k.format("v", 0.7)
    assert folded(small + "a = Add(v, c) r = Sub(a, c)") == float(np.float32(0.7))


def test_the_rewriter_does_not_remove_rounding() -> None:
    rewriter = Rewriter(rule for rule in library() if rule.name in (*LAWS, "shift-of-scaled"))
    shifted = made("Add", made("Mul", X, number(1e-30)), number(4.0))
    for root in (around(12582912), shifted):
        assert [rule.name for rule, _ in rewriter.rewrites_at(root) if rule.name != "sub-constant"] == []
    assert X in [node for _, node in rewriter.rewrites_at(around(3))]


def test_an_index_that_is_out_of_range_is_left_to_the_runtime() -> None:
    """Folding it, or asking how large it is, says nothing."""
    rows = constant(np.ones((3, 8), np.float32))
    beyond = apply(registry["Gather"], (rows, constant(np.int64(7))), {})
    assert not removes_needed_rounding(made("Add", beyond, beyond)) and not is_large_constant(beyond)
    program = Program((), (("y", made("Add", beyond, beyond)),))
    assert fold_constants(program).roots == program.roots


def test_constants_are_computed_once_and_only_without_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a minute's search for a network of audio, 85 % computed the same constants again and again."""
    computed: list[Node] = []

    def counting(node: Node, *given: Any) -> Any:
        computed.append(node)
        return evaluate_node(node, *given)

    monkeypatch.setattr(constant_magnitudes, "evaluate_node", counting)
    scale = number(1.5)
    for step in range(30):
        scale = made("Mul", scale, number(1 + step / 64))
        assert not removes_needed_rounding(scale)
    assert not removes_needed_rounding(made("Add", number(3.25), number(4.75)))  # small, as their sum is
    for step in range(100):
        assert not removes_needed_rounding(made("Mul", scale, number(step / 32 + 7)))
    assert not computed  # bounds of what is read show as much
    large = made("Mul", number(4097.0), number(3.0))
    assert removes_needed_rounding(made("Sub", large, number(12290.0)))
    assert not removes_needed_rounding(made("Add", large, number(12290.0)))
    assert computed.count(large) == 1


def drawn_constant(rng: np.random.Generator, depth: int) -> Node:
    """A random expression of constants of shape [3], some of which cancel, overflow or are 0."""
    if depth == 0 or rng.random() < 0.2:
        scale = rng.choice([1.0, 0.1, 1e-12, 1e12, 4097.0, 12582912.0, 2.0**-140, 0.0])
        return constant((scale * rng.choice([1, -1, 0.5, 3], 3)).astype(np.float32))
    name = str(rng.choice(["Add", "Sub", "Mul", "Div", "Neg", "Reciprocal", "ReduceSum"]))
    if name == "ReduceSum":
        inner = drawn_constant(rng, depth - 1)
        return apply(registry["Expand"], [apply(registry[name], [inner], {"axes": (0,)})], {"shape": (3,)})
    count = 1 if name in ("Neg", "Reciprocal") else 2
    return made(name, *(drawn_constant(rng, depth - 1) for _ in range(count)))


def test_bounds_hold_and_give_the_answers_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    drawn = [drawn_constant(rng, 4) for _ in range(400)]
    bounded = [
        (constant_magnitudes.bound_magnitudes(node), removes_needed_rounding(node), is_large_constant(node))
        for node in drawn
    ]
    assert sum(bounds is not None for bounds, _, _ in bounded) > 300
    for node, (bounds, _, _) in zip(drawn, bounded, strict=True):
        constant_magnitudes.largest_magnitude(node)
        found = np.abs(constant_magnitudes._values[node])
        kept = found[np.isfinite(found) & (found > 0)]
        if bounds is not None and kept.size:
            assert bounds.low <= kept.min() and kept.max() <= bounds.high * (1 + 1e-12)
    monkeypatch.setattr(needed_rounding, "bound_magnitudes", lambda node: None)
    needed_rounding._removes_rounding.clear()
    told = [(removes, large) for _, removes, large in bounded]
    assert [(removes_needed_rounding(node), is_large_constant(node)) for node in drawn] == told
    assert {told for _, told, _ in bounded} == {True, False}


SWAPS = {
    "Mul": "swap-factors: Mul(Mul(x, a), b) => Mul(Mul(x, b), a) | axiom()",
    "Add": "swap-terms: Add(Add(x, a), b) => Add(Add(x, b), a) | axiom()",
}


@pytest.mark.parametrize(
    ("name", "a", "b", "kept"),
    [
        ("Mul", 1e30, 1e-30, True),  # x * 1e-30 may be 0, where x * 1e30 * 1e-30 is x
        ("Mul", 3.0, 1e30, True),
        ("Mul", 12582912.0, 3.0, False),
        ("Add", 12582912.0, -12582912.0, True),
        ("Add", 3.0, 4097.0, True),
        ("Add", 3.0, 1e-30, False),
    ],
)
def test_rounding_constants_keep_their_operands(name: str, a: float, b: float, kept: bool) -> None:
    """Over the reals the order is none, in float32 it decides what overflows and what is rounded."""
    (rule,) = parse_rule(SWAPS[name])
    root = made(name, made(name, X, number(a)), number(b))
    assert (Rewriter([rule]).rewrite_node(rule, root) is None) == kept
    graph = EGraph()
    graph.insert_term(root)
    graph.rebuild()
    before = len(graph)
    saturate(graph, Ruleset([rule]), Limits(nodes=100, rounds=1))
    assert (len(graph) == before) == kept


def test_a_rounding_constant_rounds_no_other_operand() -> None:
    (rule,) = parse_rule("outwards: Add(Add(x, a), y) => Add(Add(x, y), a) | axiom()")
    y = source("y", TensorType("float32", (4,)))
    for value, kept in ((12582912.0, True), (2.0, False)):
        root = made("Add", made("Add", X, number(value)), y)
        assert (Rewriter([rule]).rewrite_node(rule, root) is None) == kept
