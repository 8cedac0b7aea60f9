"""Nested calls of one operator become one call; merges create such calls."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_programs import X, graph_of, node, program, rules, whole_library

from tensaurus.check.program.field_check import check_field
from tensaurus.check.program.replay import refute_equation
from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.egraph_proof import prove
from tensaurus.egraph.core.enode_head import operator_head
from tensaurus.egraph.core.finder_protocol import find_all
from tensaurus.egraph.extract.extraction_choices import Choices
from tensaurus.egraph.extract.local_search import quick_extraction
from tensaurus.egraph.match.flatten_nested_calls import MAX_ARGUMENTS, flatten
from tensaurus.egraph.match.ruleset import Ruleset
from tensaurus.egraph.match.saturate import Limits, saturate
from tensaurus.graph.ir.node import Node, apply, constant, item, source
from tensaurus.graph.ir.program import Program
from tensaurus.ops import Op, TensorType, registry
from tensaurus.ops.examples import parse_example
from tensaurus.rules.language.nested_calls import can_join_nested, merge_split_attributes, nested_equation
from tensaurus.rules.language.node_text import MAX_SHOWN_CALLS, format_nodes
from tensaurus.runtimes.price.constant_limits import packing_key

JOINED = [name for name, op in registry.items() if can_join_nested(op)]
PARTED = [name for name, op in registry.items() if op.merge_nested is not None]


def matrix(name: str, rows: int = 2) -> Node:
    return source(name, TensorType("float32", (rows, 8)))


def weight(seed: int) -> Node:
    return constant(np.random.default_rng(seed).standard_normal((8, 8)).astype(np.float32))


def assert_replays(graph: EGraph) -> None:
    """Check that every union's equation holds, and that its evidence is a proof."""
    for made in graph.sources:
        for equation in made.evidence(graph)[0]:
            assert refute_equation(equation) is None
            assert equation.evidence.kind == "proved"


@pytest.mark.parametrize("name", ["Concat", "Max", "Min", "Sum"])
def test_variadic_operators_that_nest_are_found(name: str) -> None:
    assert name in JOINED


@pytest.mark.parametrize("name", ["Mean", "Einsum", "Add", "MatMul"])
def test_calls_that_do_not_nest_are_left_alone(name: str) -> None:
    assert not can_join_nested(registry[name])


def test_a_mean_of_means_stays() -> None:
    x, y, z = (matrix(n) for n in "xyz")
    graph, _ = graph_of(program(node("Mean", node("Mean", x, y), z)))
    before = len(graph)
    assert find_all(graph, [flatten], 100) == 0 and len(graph) == before


@pytest.mark.nightly(every=2)
@pytest.mark.parametrize("name", JOINED)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_tree_of_calls_is_one_call(name: str, data: st.DataObject) -> None:
    op = registry[name]
    example = next(e for e in map(parse_example, op.examples) if len(e.types) > 1)
    count = data.draw(st.integers(3, 6))
    leaves = [source(f"x{k}", example.types[k % len(example.types)]) for k in range(count)]
    line = list(leaves)
    while len(line) > 1:
        start = data.draw(st.integers(0, len(line) - 2))
        end = data.draw(st.integers(start + 2, len(line)))
        line[start:end] = [apply(op, line[start:end], example.attrs)]
    whole = program(line[0])
    graph, (root,) = graph_of(whole)
    find_all(graph, [flatten], 1000)
    flat = apply(op, leaves, example.attrs)
    assert graph.find(graph.insert_term(flat)) == graph.find(root)
    assert prove(graph, [(root, flat)]).holds()
    assert_replays(graph)


def splits(draw: st.DrawFn, x: Node, depth: int) -> list[Node]:
    """Draw parts of x, of which some are split again."""
    size = x.tensor.shape[0]
    if depth == 0 or not isinstance(size, int) or size < 2 or not draw(st.booleans()) and depth < 3:
        return [x]
    cut = draw(st.integers(1, size - 1))
    call = apply(registry["Split"], [x], {"axis": 0, "split": (cut, size - cut)}, 0)
    return [part for k in range(2) for part in splits(draw, item(call, k), depth - 1)]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_tree_of_splits_is_one_split(data: st.DataObject) -> None:
    x = matrix("x", 7)
    parts = splits(data.draw, x, 3)
    whole = program(*parts)
    graph, roots = graph_of(whole)
    find_all(graph, [flatten], 1000)
    sizes = tuple(part.tensor.shape[0] for part in parts)
    flat = apply(registry["Split"], [x], {"axis": 0, "split": sizes}, 0)
    for place, root in enumerate(roots):
        assert graph.find(graph.insert_term(item(flat, place))) == graph.find(root)
        assert prove(graph, [(root, item(flat, place))]).holds()
    assert_replays(graph)
    choices = Choices(graph, roots)
    made = choices.program(
        whole, quick_extraction(choices.problem(choices.price_choices([1.0] * len(choices.pieces))))
    )
    assert sum(n.op is registry["Split"] for n in made.active) == 1
    assert check_field(whole, made).passed


@pytest.mark.parametrize("name", PARTED)
def test_declared_attributes_of_one_call_are_those_of_its_parts(name: str) -> None:
    """Every example that can be nested in another: types agree, and the canonical forms of every part."""
    op = registry[name]
    examples = [(e.types[0], op.canonical(e.types[:1], e.attrs)) for e in map(parse_example, op.examples)]
    shown = 0
    for kind, outer in examples:
        assert kind is not None
        for index, part in enumerate(op.types((kind,), outer)):
            for count in (1, 2):
                size = part.shape[dict(outer)["axis"]]
                cut = (size,) if count == 1 else (size - size // 2, size // 2)
                inner = op.canonical((part,), {"axis": dict(outer)["axis"], "split": cut})
                attrs = merge_split_attributes(op, kind, outer, index, inner)
                assert attrs is not None
                x = source("x", kind)
                first = apply(op, [x], dict(outer), 0)
                below = apply(op, [item(first, index)], dict(inner), 0)
                whole = program(*(item(below, k) for k in range(len(below.types))))
                flat = apply(op, [x], dict(attrs), 0)
                other = program(*(item(flat, index + k) for k in range(len(below.types))))
                assert check_field(whole, other).passed
                shown += 1
        elsewhere = tuple((k, 9 if k == "axis" else v) for k, v in outer)
        assert merge_split_attributes(op, kind, outer, 0, elsewhere) is None
    assert shown


def test_a_nested_call_that_is_not_proved_is_replayed() -> None:
    """A call on one argument, one element long: the canonical forms differ, and the rule says so."""
    x, y = (source(name, TensorType("float32", (rows, 3, 4))) for name, rows in (("x", 2), ("y", 1)))
    whole = program(node("Concat", x, node("Concat", y, axis=0), axis=0))
    graph, (root,) = graph_of(whole)
    find_all(graph, [flatten], 100)
    assert graph.find(graph.insert_term(node("Concat", x, y, axis=0))) == graph.find(root)
    (made,) = graph.sources
    (equation,), _ = made.evidence(graph)
    assert equation.evidence.kind == "tested" and refute_equation(equation) is None


def test_hundreds_of_calls_are_one() -> None:
    leaves = [matrix(f"x{k}") for k in range(180)]
    tall = leaves[0]
    for leaf in leaves[1:]:
        tall = node("Concat", tall, leaf, axis=0)
    graph, (root,) = graph_of(program(tall))
    find_all(graph, [flatten], 10_000)
    assert graph.find(graph.insert_term(node("Concat", *leaves, axis=0))) == graph.find(root)


def test_nothing_is_inserted_past_the_limit() -> None:
    x, y, z = (matrix(n) for n in "xyz")
    whole = program(node("Concat", node("Concat", x, y, axis=0), z, axis=0))
    graph, _ = graph_of(whole)
    before = len(graph)
    find_all(graph, [flatten], before)
    assert len(graph) == before
    find_all(graph, [flatten], before + 1)
    assert len(graph) == before + 1


# Merges of several


def merged(whole: Program) -> tuple[EGraph, list[int]]:
    graph, roots = graph_of(whole)
    saturate(graph, whole_library(), Limits(nodes=4000, rounds=8, multi=3), finders=(flatten,))
    return graph, roots


def test_products_of_one_weight_become_one_product() -> None:
    """In any order of merging: one Concat, one product, one Split."""
    w = weight(0)
    whole = program(*(node("MatMul", matrix(f"x{k}"), w) for k in range(4)))
    graph, roots = merged(whole)
    choices = Choices(graph, roots)
    made = choices.program(
        whole, quick_extraction(choices.problem(choices.price_choices([1.0] * len(choices.pieces))))
    )
    assert Counter(str(n.op) for n in made.active if isinstance(n.op, Op)) == {
        "Concat": 1,
        "MatMul": 1,
        "Split": 1,
    }
    assert check_field(whole, made).passed
    for root, new in zip(roots, made.roots, strict=True):
        assert prove(graph, [(root, new)]).holds()


def test_steps_that_need_each_other_are_not_merged() -> None:
    w = weight(1)
    first = node("MatMul", matrix("x"), w)
    chain = program(node("MatMul", node("Tanh", first), w))
    graph, _ = graph_of(chain)
    applied = saturate(graph, whole_library(), Limits(nodes=4000, multi=3)).applied
    assert not any("matmul-split-concat" in name for name in applied)
    graph, _ = graph_of(program(first, node("MatMul", matrix("y"), w)))
    applied = saturate(graph, whole_library(), Limits(nodes=4000, multi=3)).applied
    assert any("matmul-split-concat" in name for name in applied)


# What a constant takes in the cache


def test_a_constant_has_a_copy_for_each_kind_of_kernel() -> None:
    """A product and a sum that read one weight; two products share what they read."""
    w = constant(np.ones((128, 128), np.float32))
    x = source("x", TensorType("float32", (2, 128)))
    y = source("y", TensorType("float32", (2, 128)))
    z = source("z", TensorType("float32", (128, 128)))
    size = 128 * 128 * 4
    for roots, copies in (
        ([node("MatMul", x, w), node("MatMul", y, w)], 1),
        ([node("MatMul", x, w), node("Add", z, w)], 2),
    ):
        whole = program(*roots)
        graph, numbers = graph_of(whole)
        choices = Choices(graph, numbers, packing=packing_key)
        problem = choices.problem(choices.price_choices([1.0] * len(choices.pieces), seconds_per_byte=1.0))
        choice = quick_extraction(problem)
        assert choices.stored_bytes(choice) == size
        assert choices.packed_bytes(choice) == copies * size
        assert sum(problem.costs[n] for n in choice.values()) == 2 + copies * size
        assert choices.program(whole, choice) == whole


def test_constants_at_known_indices_are_the_same_choice() -> None:
    whole = program(node("Add", node("Add", matrix("x"), matrix("y")), matrix("z")))
    graph, roots = graph_of(whole)
    saturate(graph, whole_library(), Limits(nodes=400, rounds=3))
    choices = Choices(graph, roots)
    choice = quick_extraction(choices.problem(choices.price_choices([1.0] * len(choices.pieces))))
    places = [choices.place(number) for number in choice.values()]
    assert choices.selection_at(places) == choice
    assert choices.selection_at([]) == {}


def test_doubling_again_and_again_is_nested_only_so_far() -> None:
    """A tensor joined to itself k times over would be one call of 2 ** k arguments."""
    made = X
    for _ in range(60):
        made = node("Max", made, made)
    graph, (root,) = graph_of(program(made))
    assert find_all(graph, [flatten], 50_000) > 0
    calls = [n for n in graph.live_members(graph.find(root)) if graph.is_live[n]]
    assert 2 < max(len(graph.args[n]) for n in calls) <= MAX_ARGUMENTS


def test_the_law_of_a_program_that_shares_results_is_short() -> None:
    """Written as a tree, sixty sums that each read the one before twice would be 2 ** 60 calls."""
    made = X
    for _ in range(60):
        made = node("Add", made, made)
    law = nested_equation("doubled", made, made, [X]).law
    assert law.count("Add(") <= 2 * MAX_SHOWN_CALLS


def test_a_law_is_written_over_its_leaves() -> None:
    """What computes the leaves is no part of the law, and in a whole model it is long."""
    below = X
    for _ in range(60):
        below = node("Add", below, below)
    nested = node("Max", node("Max", below, X), X)
    law = nested_equation("nested-max", nested, node("Max", below, X, X), [below, X]).law
    assert law == "Max(Max(x0, x), x) => Max(x0, x, x)"
    assert format_nodes(nested, depth=2).startswith("Max(Max(float32[")


def test_an_argument_that_contains_its_own_class_is_not_merged() -> None:
    """Max(y, b) is y, once y is a Max(x, b): taken in again and again it would grow without end."""
    x, b, z = (matrix(name) for name in "xbz")
    once = node("Max", x, b)
    graph, (root,) = graph_of(program(node("Max", node("Max", once, b), z)))
    saturate(graph, Ruleset(rules("Max(Max(x, y), y) => Max(x, y)")), Limits(), finders=[flatten])
    find_all(graph, [flatten], 50_000)
    assert (
        graph.peek(operator_head(registry["Max"], (), 1), tuple(map(graph.insert_term, (x, b, z))))
        is not None
    )
    assert max(len(graph.args[n]) for n in graph.live_members(graph.find(root))) == 3
    assert len(graph) == 7  # three inputs, the three calls, and the one of three arguments
