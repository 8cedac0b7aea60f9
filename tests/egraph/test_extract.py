"""Exact extraction against brute force, in every way that it can be solved, and files of e-graphs."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from math import inf, isclose
from pathlib import Path
from time import monotonic, sleep
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serialize import problem_of, write_problem
from typer.testing import CliRunner

from tensaurus.app.cli import app
from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.extract import exact
from tensaurus.egraph.extract.cpsat import CpSat
from tensaurus.egraph.extract.cyclic_components import strong_components
from tensaurus.egraph.extract.exact import Extraction, solve
from tensaurus.egraph.extract.formulation import (
    Cycles,
    exclusion_rows,
    formulate,
    order_values,
    violated_supports,
)
from tensaurus.egraph.extract.greedy import greedy, greedy_dag, tree_costs
from tensaurus.egraph.extract.independent_blocks import split_into_blocks
from tensaurus.egraph.extract.linear_relaxation import relax
from tensaurus.egraph.extract.measurement_gains import measurement_gains
from tensaurus.egraph.extract.problem import Problem, dag_cost, keep_needed
from tensaurus.egraph.extract.problem_files import read_problem
from tensaurus.egraph.extract.shrink_problem import drop_unusable_choices, shrink
from tensaurus.egraph.match.saturate import Limits, Ruleset, saturate
from tensaurus.graph.ir.node import Node, apply, source
from tensaurus.ops import TensorType, registry
from tensaurus.rules.language.rule import library

CYCLES: tuple[Cycles, ...] = get_args(Cycles)
NEVER = 1e9  # a deadline or a limit that is not met


def made(rows: list[list[tuple[float, set[int]]]], roots: tuple[int, ...] = (0,)) -> Problem:
    """The problem of classes whose choices are (cost, classes that it reads)."""
    return Problem(
        [cost for row in rows for cost, _ in row],
        [tuple(sorted(reads)) for row in rows for _, reads in row],
        [group for group, row in enumerate(rows) for _ in row],
        [
            list(range(start, start + len(row)))
            for start, row in zip([sum(map(len, rows[:k])) for k in range(len(rows))], rows, strict=True)
        ],
        roots,
    )


@st.composite
def problems(draw: st.DrawFn, most: int = 7) -> Problem:
    """Random e-graphs: cycles, several roots, costs of 0, endless loops, classes without choices."""
    classes = draw(st.integers(1, most))
    reads = st.sets(st.integers(0, classes - 1), max_size=3)
    costs = st.sampled_from([0.0, 0.0, 1.0, 2.0, 3.0, 5.0, 0.1, 1e-7])
    fewest = draw(st.sampled_from([0, 1, 1, 2]))
    rows = [draw(st.lists(st.tuples(costs, reads), min_size=fewest, max_size=3)) for _ in range(classes)]
    if fewest:  # else most of them have no program
        rows = [[*row, (draw(costs), set())] if draw(st.booleans()) else row for row in rows]
    roots = draw(st.lists(st.integers(0, classes - 1), min_size=1, max_size=2, unique=True))
    return made(rows, tuple(roots))


@st.composite
def merges(draw: st.DrawFn) -> Problem:
    """Products that are computed alone, or split from larger ones, which are merged of products, too."""
    products = draw(st.integers(3, 5))
    sets = st.sets(st.integers(1, products), min_size=2, max_size=4)
    merged = draw(st.lists(sets, min_size=2, max_size=4, unique_by=frozenset))
    costs = st.sampled_from([3.0, 4.0, 4.0, 4.0, 5.0])
    rows: list[list[tuple[float, set[int]]]] = [[(0.0, set(range(1, products + 1)))]]
    rows += [[(draw(costs), set())] for _ in range(products)]
    for inside in merged:
        split, made_of = len(rows), len(rows) + 1
        for group in inside:
            rows[group].append((0.0, {split}))
        rows.append([(draw(st.sampled_from([0.0, 0.5])), {made_of})])
        rows.append([(draw(costs), set())])
        if draw(st.booleans()):
            rows[made_of].append((0.5, set(sorted(inside)[:2])))
    above = draw(st.integers(products + 2, len(rows) - 1))
    rows[products + 2].append((0.0, {above}))  # which may be a merged one, its split, or itself
    return made(rows)


def drawn(seed: int, classes: int) -> Problem:
    """A larger random e-graph that has a program, with components."""
    rng = random.Random(seed)
    rows: list[list[tuple[float, set[int]]]] = []
    for group in range(classes):
        below = range(group + 1, min(classes, group + 6))
        row = [(float(rng.randint(4, 9)), set(rng.sample(below, min(len(below), 2))))]
        for _ in range(rng.randint(0, 3)):
            near = range(max(0, group - 5), min(classes, group + 6))
            row.append((float(rng.randint(0, 6)), set(rng.sample(near, rng.randint(1, 2)))))
        rows.append(row)
    return made(rows)


def programs(problem: Problem) -> Iterator[dict[int, int]]:
    """All choices, with what they need; empty where they are cyclic or incomplete."""
    for choice in product(*(members or [-1] for members in problem.members)):
        yield keep_needed(problem, {group: number for group, number in enumerate(choice) if number >= 0})


def least(problem: Problem) -> float:
    """The cost of the cheapest program, by looking at all."""
    return min(dag_cost(problem, program) for program in programs(problem))


def check(problem: Problem, found: Extraction, best: float | None = None) -> None:
    """The choice is complete, without a cycle and of that cost; the bound holds, and it is the best."""
    assert keep_needed(problem, found.selection) == found.selection
    assert dag_cost(problem, found.selection) == found.cost
    assert 0 <= found.bound <= found.cost and 0 <= found.gap <= 1
    if best is not None:
        assert isclose(found.cost, best, rel_tol=1e-6, abs_tol=1e-15) and found.is_optimal
        assert found.bound <= best * (1 + 1e-12)


@pytest.mark.parametrize("cycles", CYCLES)
def test_loading_the_solver_may_take_all_of_the_time(cycles: Cycles, monkeypatch: pytest.MonkeyPatch) -> None:
    """To CP-SAT a negative time limit is an invalid program."""

    class SlowToLoad(CpSat):
        def __init__(self, workers: int, seed: int) -> None:
            super().__init__(workers, seed)
            sleep(0.3)

    monkeypatch.setattr(exact, "CpSat", SlowToLoad)
    monkeypatch.setattr(exact._Part, "is_solved", False)  # nor is it solved without CP-SAT
    problem = made([[(3.0, {1}), (2.0, {2})], [(1.0, set())], [(2.0, {1}), (4.0, set())]])
    found = solve(problem, cycles=cycles, shrink_first=False, time_limit=0.2)
    assert found.bound <= found.cost == dag_cost(problem, found.selection)


@settings(max_examples=120, deadline=None)
@given(problems())
def test_the_cheapest_program_is_found(problem: Problem) -> None:
    best = least(problem)
    if best == inf:
        with pytest.raises(ValueError, match="has no program"):
            solve(problem)
        assert not keep_needed(problem, greedy(problem)) and not keep_needed(problem, greedy_dag(problem))
        return
    check(problem, solve(problem, workers=1), best)


@settings(max_examples=200, deadline=None)
@given(problems())
def test_shrinking_keeps_a_cheapest_program(problem: Problem) -> None:
    best = least(problem)
    if best == inf:
        for way in (shrink, drop_unusable_choices):
            with pytest.raises(ValueError, match="has no program"):
                way(problem)
        return
    same = drop_unusable_choices(problem)
    assert isclose(least(same.problem), best, abs_tol=1e-12) and same.paid_cost == 0
    smaller = shrink(problem)
    assert isclose(smaller.paid_cost + least(smaller.problem), best, abs_tol=1e-12)
    trees = greedy(smaller.problem)
    cost = dag_cost(problem, smaller.to_whole(trees))
    # it may not need what was paid
    assert cost <= smaller.paid_cost + dag_cost(smaller.problem, trees) + 1e-12
    blocks = split_into_blocks(smaller.problem)
    total = smaller.paid_cost + sum(least(block.problem) * len(block.occurrences) for block in blocks)
    assert isclose(total, best, abs_tol=1e-12)


@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from(CYCLES), st.booleans())
def test_every_way_with_cycles(problem: Problem, cycles: Cycles, shrunk: bool) -> None:
    best = least(problem)
    if best == inf:
        return
    found = solve(problem, cycles=cycles, shrink_first=shrunk, workers=1)
    check(problem, found, None if cycles == "none" else best)
    assert found.bound <= best * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_solvers_agree_on_larger_problems(seed: int) -> None:
    problem = drawn(seed, 40)
    best = solve(problem, workers=1)
    check(problem, best, best.cost)
    for cycles in CYCLES:
        found = solve(problem, cycles=cycles, shrink_first=seed % 2 == 0)
        check(problem, found, None if cycles == "none" else best.cost)


@settings(max_examples=60, deadline=None)
@given(problems(9))
def test_the_relaxation_is_a_bound(problem: Problem) -> None:
    """Whatever its rows, no program breaks them; a program's orders suit it."""
    best = least(problem)
    if best in (0, inf):
        return
    form = formulate(drop_unusable_choices(problem).problem, "components")
    start = keep_needed(form.problem, greedy(form.problem))
    found = relax(form, start, dag_cost(form.problem, start), NEVER)
    assert found.bound <= best * (1 + 1e-12) and best * (1 - 1e-12) <= found.cost
    for choice in (start, found.selection):
        order = order_values(form, choice)
        assert all(
            order[upper] > order[lower] for number, upper, lower in form.orders if choice.get(upper) == number
        )
        for group, numbers in found.supports:
            assert group not in choice or set(numbers) & set(choice.values())
    form.supports += found.supports
    answer = CpSat(1, 0).solve(form, start, dag_cost(form.problem, start), monotonic() + 60)
    assert answer.selection is not None and answer.is_optimal
    assert isclose(dag_cost(form.problem, answer.selection), best, rel_tol=1e-9)


@pytest.mark.nightly
@settings(max_examples=150, deadline=None)
@given(merges())
def test_rows_hold_for_all_programs(problem: Problem) -> None:
    """Rows for cycles and covers, and what is said to be too dear; the problem is not shrunk before."""
    form = formulate(drop_unusable_choices(problem).problem, "components")
    start = keep_needed(form.problem, greedy(form.problem))
    found = relax(form, start, dag_cost(form.problem, start), NEVER)
    for program in programs(form.problem):
        if program:
            taken, cost = set(program.values()), dag_cost(form.problem, program)
            assert found.bound <= cost * (1 + 1e-12)
            assert cost >= found.cost or taken.isdisjoint(found.too_expensive)
            for group, numbers in found.supports:
                assert group not in program or taken.intersection(numbers)
            for factors, groups, at_least in [*found.covers, *exclusion_rows(form.problem)]:
                total = sum(factor for number, factor in factors.items() if number in taken)
                assert total + sum(group not in program for group in groups) >= at_least
    best = least(problem)
    check(problem, solve(problem, workers=1), best)
    form.supports += found.supports
    form.covers += found.covers
    answer = CpSat(1, 0).solve(form, start, dag_cost(form.problem, start), monotonic() + 60)
    assert answer.selection is not None and isclose(dag_cost(form.problem, answer.selection), best)


def test_a_tenth_of_each_does_not_pay_for_all() -> None:
    """Each of ten classes needs 11, by ten ways of which the linear program takes a tenth at a time."""
    rows: list[list[tuple[float, set[int]]]] = [[(0.0, {1})], [(0.0, {g}) for g in range(2, 11)]]
    rows += [[(0.0, {11}), (1.0, set())] for _ in range(2, 11)] + [[(1.0, set())]]
    problem = made(rows)
    form = formulate(problem, "components")
    start = keep_needed(problem, greedy(problem))
    found = relax(form, start, dag_cost(problem, start), NEVER)
    assert isclose(found.bound, 1.0, rel_tol=1e-9) and found.supports


def test_a_cover_rounds_up() -> None:
    """Five products of which any four can be merged, for as much as one costs, take two products."""
    fours = [set(range(1, 6)) - {left} for left in range(1, 6)]
    rows: list[list[tuple[float, set[int]]]] = [[(0.0, set(range(1, 6)))]]
    rows += [
        [(4.0, set()), *((0.0, {6 + k}) for k, four in enumerate(fours) if g in four)] for g in range(1, 6)
    ]
    problem = made([*rows, *([(4.0, set())] for _ in fours)])
    form = formulate(problem, "components")
    start = keep_needed(problem, greedy(problem))
    found = relax(form, start, dag_cost(problem, start), NEVER)
    assert isclose(found.bound, 8.0, rel_tol=1e-9) and found.covers and found.rounds > 1
    form.covers += found.covers
    answer = CpSat(1, 0).solve(form, start, found.cost, monotonic() + 60)
    assert answer.selection is not None and dag_cost(problem, answer.selection) == 8.0 and answer.is_optimal


def test_a_cycle_that_looks_free() -> None:
    """0 and 1 read each other for nothing; the way out of the cycle costs 5 or 7."""
    problem = made([[(0, {1}), (7, set())], [(0, {0}), (5, set())]])
    for cycles in CYCLES:
        found = solve(problem, cycles=cycles, shrink_first=False)
        check(problem, found, None if cycles == "none" else 5)
        assert found.selection == {0: 0, 1: 3}
    rows = list(violated_supports(problem, {0: 0, 1: 2}))
    assert {row.eclass for row in rows} == {0, 1} and all(row.choices == [1, 3] for row in rows)


def test_nothing_costs_anything() -> None:
    problem = made([[(0, {1}), (0, {2})], [(0, {0})], [(0, set())]])
    found = solve(problem)
    check(problem, found, 0)
    assert found.gap == 0 and found.selection == {0: 1, 2: 3}
    check(problem, solve(problem, shrink_first=False), 0)


@pytest.mark.parametrize(
    "rows",
    [
        [[(1.0, {1})], [(1.0, {0})]],  # an endless loop
        [[(1.0, {0})]],
        [[(1.0, {1})], []],
        [[]],
    ],
)
def test_what_has_no_program(rows: list[list[tuple[float, set[int]]]]) -> None:
    for shrunk in (True, False):
        with pytest.raises(ValueError, match="has no program"):
            solve(made(rows), shrink_first=shrunk)


def test_no_time() -> None:
    """At once, the greedy choice and a bound; never nothing."""
    problem = drawn(1, 60)
    found = solve(problem, time_limit=0)
    check(problem, found)
    assert found.cost <= dag_cost(problem, greedy(problem)) and found.rounds == 0
    best = solve(problem)
    assert found.bound <= best.cost <= found.cost
    assert solve(problem, time_limit=inf).cost == best.cost
    begun = solve(problem, time_limit=0, start=best.selection)
    assert begun.cost == best.cost and not begun.is_optimal


def test_equal_calls_give_equal_answers() -> None:
    problem = drawn(2, 60)
    for cycles in ("components", "order"):
        first, second = (solve(problem, cycles=cycles, workers=1, seed=3) for _ in range(2))
        assert (first.selection, first.bound, first.rounds) == (second.selection, second.bound, second.rounds)


def test_equal_parts_are_solved_once() -> None:
    """Two layers that are alike but for the order of their choices."""
    layer = [[(3.0, {1}), (2.0, {2})], [(1.0, {2}), (4.0, set())], [(1.0, {1}), (5.0, set())]]
    twice = [[(cost, {c + at for c in reads}) for cost, reads in row] for at in (0, 3) for row in layer]
    twice[3].reverse()
    (block,) = split_into_blocks(made(twice, (0, 3)))
    assert len(block.occurrences) == 2
    check(made(twice, (0, 3)), solve(made(twice, (0, 3)), shrink_first=True), 2 * least(made(layer)))


def test_a_merge_is_not_made_of_what_it_makes() -> None:
    """0 needs 1 and 2, which cost 4 each, or are split from 3, which is merged for 5, or of 1 and 2 for 1."""
    top, split = [(0.0, {1, 2})], [(1.0, {4})]
    problem = made(
        [top, [(4.0, set()), (0.0, {3})], [(4.0, set()), (0.0, {3})], split, [(5.0, set()), (1.0, {1, 2})]]
    )
    assert 7 not in shrink(problem).choices
    check(problem, solve(problem), 6)
    # what another class reads may be made of them
    other = made(
        [
            [(0.0, {1, 2, 4})],
            [(4.0, set()), (0.0, {3})],
            [(4.0, set()), (0.0, {3})],
            split,
            [(9.0, set()), (1.0, {1, 2})],
        ]
    )
    check(other, solve(other), 9)


def test_a_dropped_choice_is_no_tree() -> None:
    """Shrinking drops choices from their classes' members, and asks for trees again."""
    problem = made([[(0.1, {1})], [(5.0, set()), (0.0, set())]])
    dropped = replace(problem, members=[[0], [1]])
    assert greedy(dropped) == {1: 1, 0: 0} and tree_costs(dropped) == [5.1, 5.0]


def test_components() -> None:
    problem = made([[(1, {1})], [(1, {2}), (1, {0})], [(1, set())], [(1, {3})]], (0, 3))
    assert sorted(map(sorted, strong_components(problem))) == [[0, 1], [2], [3]]
    assert tree_costs(problem) == [3, 2, 1, inf]


# Files


X, Y, Z = (source(name, TensorType("float32", (4, 4))) for name in "xyz")


def node(name: str, *args: Node) -> Node:
    return apply(registry[name], args, {})


def price(of: Node) -> float:
    return float(len(of.args))


def test_an_egraph_is_written_and_read(tmp_path: Path) -> None:
    graph = EGraph()
    top = node("Relu", node("MatMul", node("Add", node("Add", X, Y), X), Z))
    root = graph.insert_term(node("Add", top, node("MatMul", X, Z)))
    graph.rebuild()
    saturate(graph, Ruleset(library()), Limits(nodes=200, rounds=4))
    file = tmp_path / "g.json"
    write_problem(file, graph, [root], price)
    problem, nodes, classes = read_problem(file)
    own, _, _ = problem_of(graph, [root], price)
    assert dag_cost(problem, greedy(problem)) == dag_cost(own, greedy(own))
    assert solve(problem).cost == solve(own).cost
    assert len(nodes) == len(problem.costs) and len(classes) == len(problem.members)


GOOD: dict[str, Any] = {
    "nodes": {
        "top": {"op": "Add", "children": ["left", "right"], "eclass": "T", "cost": 1.5},
        "left": {"op": "Mul", "children": ["top"], "eclass": "L", "cost": 0},
        "left2": {"op": "x", "children": [], "eclass": "L", "cost": 2},
        "right": {"op": "y", "eclass": "R"},
    },
    "root_eclasses": ["T"],
    "class_data": {"T": {"type": "Math"}},
}


def changed(change: Callable[[dict[str, Any]], object]) -> str:
    copy = json.loads(json.dumps(GOOD))
    change(copy)
    return json.dumps(copy)


@pytest.mark.parametrize("method", ["exact", "greedy", "greedy-dag"])
def test_the_command(tmp_path: Path, method: str) -> None:
    file, out = tmp_path / "g.json", tmp_path / "choice.json"
    file.write_text(json.dumps(GOOD))
    run = CliRunner().invoke(app, ["extract", str(file), "--method", method, "--out", str(out)])
    assert run.exit_code == 0, run.output
    cost, bound, gap, seconds = map(float, run.stdout.splitlines()[-1].split(" "))
    assert cost == 4.5 and seconds < 60
    assert (bound, gap) == ((4.5, 0) if method == "exact" else (0, 1))
    assert json.loads(out.read_text()) == {"T": "top", "L": "left2", "R": "right"}


BAD = {
    "not JSON": ("{", "not JSON"),
    "a list": ("[]", "not a JSON object"),
    "no nodes": (changed(lambda g: g.pop("nodes")), 'has no "nodes"'),
    "nodes in a list": (changed(lambda g: g.update(nodes=[])), '"nodes" is not'),
    "no roots": (changed(lambda g: g.pop("root_eclasses")), 'has no "root_eclasses"'),
    "an empty list of roots": (changed(lambda g: g.update(root_eclasses=[])), "the e-graph has no root"),
    "a root that is not there": (changed(lambda g: g.update(root_eclasses=["Q"])), 'root "Q"'),
    "a child that is not there": (changed(lambda g: g["nodes"]["top"].update(children=["q"])), "node top: "),
    "children that are no list": (changed(lambda g: g["nodes"]["top"].update(children=3)), "node top: "),
    "a node that is no object": (changed(lambda g: g["nodes"].update(top=3)), "node top: "),
    "no class": (changed(lambda g: g["nodes"]["left"].pop("eclass")), "node left: "),
    "a negative cost": (changed(lambda g: g["nodes"]["left"].update(cost=-1)), "node left: "),
    "not a number": (changed(lambda g: g["nodes"]["left"].update(cost=float("nan"))), "node left: "),
    "an endless cost": (changed(lambda g: g["nodes"]["left"].update(cost=10**400)), "node left: "),
    "a cost in words": (changed(lambda g: g["nodes"]["left"].update(cost="dear")), "node left: "),
    "no program": (changed(lambda g: g["nodes"].pop("left2")), "has no program"),
    "not text": (b"\xff\xfe", "not UTF-8"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_one_line(tmp_path: Path, name: str) -> None:
    text, said = BAD[name]
    file, out = tmp_path / "g.json", tmp_path / "choice.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    for method in ("exact", "greedy"):
        run = CliRunner().invoke(app, ["extract", str(file), "--out", str(out), "--method", method])
        assert run.exit_code == 2 and not run.stdout
        assert len(run.stderr.splitlines()) == 1 and str(file) in run.stderr and said in run.stderr
        assert list(tmp_path.iterdir()) == [file]


def test_places_that_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "g.json"
    run = CliRunner().invoke(app, ["extract", str(file)])
    assert run.exit_code == 2 and "cannot be read" in run.stderr
    file.write_text(json.dumps(GOOD))
    run = CliRunner().invoke(app, ["extract", str(file), "--out", str(tmp_path / "no" / "c.json")])
    assert run.exit_code == 2 and "there is no folder" in run.stderr


def test_solvers_are_loaded_when_they_are_needed() -> None:
    program = (
        "import sys, tensaurus, tensaurus.app.cli, tensaurus.egraph.extract.exact\n"
        "assert not {'ortools'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# ------------------------------------------------------------------------------------------ gains


def test_gains_are_beside_what_is_sure() -> None:
    # classes: 0 a leaf, 1 of it, 2 of 1; 3 fuses both; the roots are 2 and 1
    costs = [0.0, 5.0, 7.0, 4.0, 3.0]
    children = [(), (0,), (1,), (0,), (0,)]
    problem = Problem(costs, children, [0, 1, 2, 2, 1], [[0], [1, 4], [2, 3]], (2,))
    sure = [True, True, True, False, False]
    assert measurement_gains(problem, {0: 0, 2: 3}, sure) == {3: 5 + 7 - 4}
    assert measurement_gains(problem, {0: 0, 1: 4, 2: 2}, sure) == {4: 5 - 3}
    assert measurement_gains(problem, {0: 0, 1: 1, 2: 2}, sure) == {}
    # what nobody is sure of otherwise saves all that it costs
    assert measurement_gains(problem, {0: 0, 2: 3}, [True, False, False, False, True]) == {3: 4}


@pytest.mark.parametrize("layers", [3, 200])
def test_gains_do_not_drown_in_what_is_shared_below(layers: int) -> None:
    """A residual network: each layer reads the one before twice, so that trees double from layer to layer."""
    costs, children, groups, members = [1.0], [()], [0], [[0]]
    for layer in range(1, layers + 1):
        inner, outer = 2 * layer - 1, 2 * layer
        below = outer - 2
        plain = (inner, 1.0, (below,)), (outer, 0.1, (inner, below))
        for group, cost, read in (*plain, (outer, 0.6, (below,))):
            members += [[] for _ in range(group + 1 - len(members))]
            members[group].append(len(costs))
            costs.append(cost)
            children.append(read)
            groups.append(group)
    problem = Problem(costs, children, groups, members, (2 * layers,))
    fused = {0: 0} | {2 * layer: members[2 * layer][1] for layer in range(1, layers + 1)}
    sure = [number not in fused.values() or number == 0 for number in range(len(costs))]
    found = measurement_gains(problem, fused, sure)
    assert set(found) == set(fused.values()) - {0}
    assert all(isclose(gain, 1.1 - 0.6, abs_tol=1e-6) for gain in found.values())
