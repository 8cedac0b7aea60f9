"""Choices among e-nodes as programs, and moves of several classes at once."""

from __future__ import annotations

from math import inf, isclose
from time import monotonic

import pytest
from explored import Explored, explored, fused_by, kept_bytes, operators
from hypothesis import given, settings
from small_programs import (
    PROGRAMS,
    TWO_READERS,
    X,
    Y,
    Z,
    brute_force,
    graph_of,
    node,
    problems,
    program,
    small,
)

from tensaurus.check.program.field_check import check_field
from tensaurus.egraph.extract.extraction_choices import Choices
from tensaurus.egraph.extract.greedy import greedy, greedy_dag
from tensaurus.egraph.extract.local_search import improve_selection, quick_extraction
from tensaurus.egraph.extract.problem import Problem, Selection, dag_cost, keep_needed
from tensaurus.egraph.match.fusion_patterns import fusion_patterns
from tensaurus.graph.ir.piece import Piece
from tensaurus.ops import Op
from tensaurus.runtimes.price.roofline import estimate


def used(choices: Choices, choice: Selection) -> list[int]:
    """The keys of a choice, each as often as it is used."""
    return [choices.keys[number] for number in choice.values() if choices.keys[number] >= 0]


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_choice_is_a_program(name: str, filtered: bool) -> None:
    """It computes the same, costs what was said, and keeps as many constants."""
    found = Explored.of(PROGRAMS[name], filtered=True) if filtered else explored(name)
    choices = Choices(found.graph, found.roots)
    for price in (estimate, lambda piece: 1.0, lambda piece: float(len(piece.leaves) % 2)):
        costs = [price(piece) for piece in choices.pieces]
        problem = choices.problem(choices.price_choices(costs))
        for choice in (keep_needed(problem, greedy(problem)), quick_extraction(problem)):
            made = choices.program(found.whole, choice)
            assert made.inputs == found.whole.inputs
            assert [k for k, _ in made.outputs] == [k for k, _ in found.whole.outputs]
            assert check_field(found.whole, made).passed
            cost = dag_cost(problem, choice)
            assert isclose(cost, sum(costs[key] for key in used(choices, choice)))
            assert isclose(cost, sum(price(Piece.of(n)) for n in made.active if isinstance(n.op, Op)))
            assert choices.stored_bytes(choice) == kept_bytes(made)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_choice_with_fusions_is_a_program(name: str) -> None:
    found = explored(name)
    pieces = fused_by(small(PROGRAMS[name]), "onnxruntime")
    assert pieces
    choices = Choices(found.graph, found.roots, fusion_patterns(pieces))
    assert {piece.text for piece in pieces} <= {piece.text for piece in choices.pieces}
    # one operator may be what two that fuse are, too
    inside = [sum(isinstance(n.op, Op) for n in piece.inner) for piece in choices.pieces]
    problem = choices.problem(choices.price_choices([1.0 if count == 1 else 0.75 for count in inside]))
    choice = quick_extraction(problem)
    made = choices.program(found.whole, choice)
    assert check_field(found.whole, made).passed
    assert max(inside[key] for key in used(choices, choice)) > 1
    singles = Choices(found.graph, found.roots)
    alone_costs = singles.problem(singles.price_choices([1.0 for _ in singles.pieces]))
    assert dag_cost(problem, choice) < dag_cost(alone_costs, quick_extraction(alone_costs))


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_depends_on_constants_is_kept_once_and_free(name: str) -> None:
    found = explored(name)
    choices = Choices(found.graph, found.roots)
    free = choices.problem(choices.price_choices([1.0 for _ in choices.pieces]))
    dear = choices.problem(choices.price_choices([1.0 for _ in choices.pieces], seconds_per_byte=2.0))
    kept = [number for number, size in enumerate(choices.constant_bytes) if size]
    for number in kept:
        assert choices.keys[number] < 0
        assert free.members[free.class_of_choice[number]] == [number] and not free.children[number]
        assert free.costs[number] == 0.0
        assert dear.costs[number] == 2.0 * choices.bytes_in_kernel[number]
    assert kept and len(kept) == len({free.class_of_choice[number] for number in kept})


@pytest.mark.parametrize("name", PROGRAMS)
def test_only_the_programs_own_choices(name: str) -> None:
    found = explored(name)
    own, every = (Choices(found.graph, found.roots, enode_limit=limit) for limit in (found.own, inf))
    assert 0 < len(own.keys) < len(every.keys)
    problem = own.problem(own.price_choices([1.0 for _ in own.pieces]))
    made = own.program(found.whole, quick_extraction(problem))
    assert operators(made) <= operators(found.whole)
    untouched = {Piece.of(n).text for n in found.whole.active if isinstance(n.op, Op)}
    assert {piece.text for piece in own.pieces} <= untouched


def test_without_rules_a_program_is_itself() -> None:
    for make in PROGRAMS.values():
        whole = small(make)
        graph, roots = graph_of(whole)
        choices = Choices(graph, roots)
        problem = choices.problem(choices.price_choices([1.0] * len(choices.pieces)))
        assert choices.program(whole, quick_extraction(problem)) == whole


def test_an_incomplete_choice_is_refused() -> None:
    choices = Choices(*graph_of(program(node("Relu", X))))
    with pytest.raises(ValueError, match="incomplete"):
        choices.program(program(node("Relu", X)), {})


def test_operators_on_one_tensor_twice_are_another_piece() -> None:
    """x * x moves half the bytes of x * y."""
    graph, roots = graph_of(program(node("Mul", X, X), node("Mul", X, Y), node("Mul", Y, Z)))
    choices = Choices(graph, roots)
    assert len(choices.pieces) == 2 and len({piece.text for piece in choices.pieces}) == 2


@settings(max_examples=200)
@given(problems())
def test_moves_never_make_it_dearer(problem: Problem) -> None:
    choice = greedy_dag(problem)
    if dag_cost(problem, choice) == inf:
        return
    for begun in (choice, keep_needed(problem, greedy(problem))):
        better = improve_selection(problem, begun)
        assert set(problem.order(better) or ()) == set(better)  # complete, acyclic, and nothing else
        assert brute_force(problem) <= dag_cost(problem, better) <= dag_cost(problem, begun)
    assert dag_cost(problem, quick_extraction(problem, choice)) <= dag_cost(problem, choice)
    assert improve_selection(problem, choice, monotonic() - 1) == keep_needed(problem, choice)


def test_two_readers_turn_together() -> None:
    """Each alone would pay 7 instead of its own 6, so no greedy choice turns either."""
    problem = TWO_READERS
    begun = greedy_dag(problem)
    assert dag_cost(problem, begun) == 12
    assert improve_selection(problem, begun) == {0: 0, 1: 1, 2: 3, 3: 5}
    assert dag_cost(problem, quick_extraction(problem)) == 7


def test_the_move_that_gains_most_goes_first() -> None:
    """Two sums could be one class for 19; then nobody needs the products that two classes of 7 serve."""
    #        0 root; 1, 2 sums; 3 both sums at once; 4, 5 and 6, 7 products; 8 and 9 what serves two products
    rows = [
        [(0.0, (1, 2))],
        [(0.0, (4, 6)), (0.0, (3,))],
        [(0.0, (5, 7)), (0.0, (3,))],
        [(19.0, ())],
        *([(5.0, ()), (0.0, (serves,))] for serves in (8, 8, 9, 9)),
        [(7.0, ())],
        [(7.0, ())],
    ]
    owners = [group for group, row in enumerate(rows) for _ in row]
    problem = Problem(
        [cost for row in rows for cost, _ in row],
        [reads for row in rows for _, reads in row],
        owners,
        [[number for number, owner in enumerate(owners) if owner == group] for group in range(len(rows))],
        (0,),
    )
    begun = keep_needed(problem, greedy(problem))
    assert dag_cost(problem, begun) == 20
    assert dag_cost(problem, improve_selection(problem, begun)) == brute_force(problem) == 14


def test_readers_do_not_turn_to_what_has_no_program() -> None:
    problem = Problem(
        [0.0, 0.0, 6.0, 0.0, 6.0, 0.0],
        [(1, 2), (3,), (), (3,), (), (4,)],
        [0, 1, 1, 2, 2, 3],
        [[0], [1, 2], [3, 4], [5], []],
        (0,),
    )
    assert improve_selection(problem, greedy_dag(problem)) == {0: 0, 1: 2, 2: 4}
