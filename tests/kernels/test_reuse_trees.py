"""Trees of least search cost: which operators reuse another one's schedule (ETO section 6)."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Mapping

import networkx as nx
import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from tensaurus.kernels.tune.reuse_trees import (
    ROOT,
    cheapest_reuse_tree,
    greedy_steiner_tree,
    steiner_tree,
    tuning_order,
)

Costs = Mapping[tuple[Hashable, Hashable], float]


def random_costs(seed: int, operators: int, bridges: int, density: float) -> tuple[dict, list[int]]:
    """Edges from ROOT to all operators, dearer than those among operators; bridges are cheap to reach."""
    rng = np.random.default_rng(seed)
    nodes = range(operators + bridges)
    costs = {(ROOT, a): float(rng.integers(20, 60)) for a in nodes}
    for a, b in itertools.permutations(nodes, 2):
        if rng.random() < density:
            costs[a, b] = float(rng.integers(1, 30))
    return costs, list(range(operators))


def optimum(costs: Costs, terminals: Collection[Hashable]) -> float:
    """The least cost by integer programming: an edge is paid for if some terminal's flow passes it."""
    edges, k = list(costs), len(terminals)
    nodes = {node for edge in edges for node in edge} - {ROOT}
    weights = np.array([*costs.values(), *[0.0] * len(edges)])  # an edge is chosen, then the flow through it
    rows, least = [], []
    for node in nodes:  # what flows in flows out, but for the unit that stays with a terminal
        flow = [(b == node) - (a == node) for a, b in edges]
        rows.append([0] * len(edges) + flow)
        least.append(float(node in terminals))
    keep = LinearConstraint(np.array(rows), least, least)
    paid = LinearConstraint(np.hstack([k * np.eye(len(edges)), -np.eye(len(edges))]), 0, np.inf)
    kinds = np.array([1] * len(edges) + [0] * len(edges))
    top = np.array([1] * len(edges) + [k] * len(edges))
    found = milp(weights, constraints=[keep, paid], integrality=kinds, bounds=Bounds(0, top))
    return float(found.fun)


def check_tree(tree: nx.DiGraph, costs: Costs, terminals: Collection[Hashable]) -> float:
    """The cost of a tree from ROOT, made of the graph's edges, whose leaves are terminals."""
    assert nx.is_arborescence(tree) and tree.in_degree(ROOT) == 0 and set(terminals) <= set(tree)
    assert all(costs[a, b] == weight for a, b, weight in tree.edges(data="weight"))
    assert {v for v in tree if not tree.out_degree(v)} <= set(terminals) | {ROOT}
    return sum(costs[edge] for edge in tree.edges)


@pytest.mark.nightly(every=5)
@pytest.mark.parametrize("seed", range(200))
def test_trees_cost_the_optimum(seed: int) -> None:
    operators, bridges = 2 + seed % 6, seed // 7 % 6
    costs, terminals = random_costs(seed, operators, bridges, (0.15, 0.4, 0.9)[seed % 3])
    least = optimum(costs, terminals)
    assert check_tree(cheapest_reuse_tree(costs, terminals), costs, terminals) == pytest.approx(least)
    graph = nx.DiGraph()
    graph.add_weighted_edges_from((a, b, cost) for (a, b), cost in costs.items())
    assert check_tree(steiner_tree(graph, terminals), costs, terminals) == pytest.approx(least)
    greedy = check_tree(greedy_steiner_tree(graph, terminals), costs, terminals)
    assert least - 1e-9 <= greedy <= len(terminals) * least


@pytest.mark.parametrize("seed", range(4))
def test_large_sets_keep_the_bound(seed: int) -> None:
    """And cost no more than each operator from nothing, or the best tree without bridges."""
    costs, terminals = random_costs(seed, 30, 20, 0.1)
    cost = check_tree(cheapest_reuse_tree(costs, terminals), costs, terminals)
    least = optimum(costs, terminals)
    assert least - 1e-9 <= cost <= 1.3 * least
    own = {(a, b): c for (a, b), c in costs.items() if b in terminals and (a == ROOT or a in terminals)}
    without = check_tree(cheapest_reuse_tree(own, terminals), own, terminals)
    assert cost <= without and without <= sum(costs[ROOT, each] for each in terminals)
    assert without == pytest.approx(optimum(own, terminals))


def test_a_bridge_pays() -> None:
    """Figure 6: two operators that cannot reuse each other share one that is tuned for both."""
    costs = {(ROOT, "a"): 1000.0, (ROOT, "b"): 1000.0, (ROOT, "bridge"): 1000.0}
    assert sorted(cheapest_reuse_tree(costs, ["a", "b"])) == sorted([ROOT, "a", "b"])
    costs |= {("bridge", "a"): 60.0, ("bridge", "b"): 70.0}
    order = tuning_order(cheapest_reuse_tree(costs, ["a", "b"]))
    assert order[0] == ("bridge", ROOT) and set(order[1:]) == {("a", "bridge"), ("b", "bridge")}


def test_what_reuses_comes_after_what_it_reuses() -> None:
    costs, terminals = random_costs(3, 12, 0, 0.5)
    seen = {ROOT}
    for operator, reused in tuning_order(cheapest_reuse_tree(costs, terminals)):
        assert reused in seen
        seen.add(operator)
    assert seen == {ROOT, *terminals}


def test_small_and_impossible_sets() -> None:
    assert tuning_order(cheapest_reuse_tree({}, [])) == []
    assert tuning_order(cheapest_reuse_tree({(ROOT, 1): 3.0}, [1])) == [(1, ROOT)]
    assert tuning_order(cheapest_reuse_tree({(ROOT, 1): 3.0, (1, 2): 1.0}, [])) == []
    with pytest.raises(ValueError, match="nothing leads to 2"):
        cheapest_reuse_tree({(ROOT, 1): 3.0, (2, 1): 1.0}, [1, 2])
    for cost in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="positive"):
            cheapest_reuse_tree({(ROOT, 1): cost}, [1])
