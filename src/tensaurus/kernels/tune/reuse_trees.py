"""Selects which operators are tuned from nothing, and which reuse another one's schedule (ETO section 6).

In the *optimization choice graph* an edge a -> b says that b can reuse the schedule of a, an edge from ROOT
to a that a can be tuned from nothing; each has a search cost.  The cheapest way to tune all is a tree:

    edges     ROOT -> a: 50,  ROOT -> b: 50,  a -> b: 5,  b -> a: 7
    tree      ROOT -> a, a -> b, which cost 55

It is a minimum-cost arborescence.  Where *bridge* operators may be tuned, too, only to be reused, it is a
directed Steiner tree, which must reach the operators (its *terminals*) and may pass through bridges.  Up to
MAX_EXACT_TERMINALS it is found exactly, by dynamic programming over sets of terminals (Dreyfus and Wagner);
beyond, by the greedy algorithm of Watel and Weisser (GreedyFLAC), whose tree costs at most k times the
optimum for k terminals, and mostly a few percent more.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

import networkx as nx
import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

__all__ = ["ROOT", "cheapest_reuse_tree", "greedy_steiner_tree", "steiner_tree", "tuning_order"]

ROOT = "tuned from nothing"
MAX_EXACT_TERMINALS = 12  # 2^12 sets of terminals times the operators


def cheapest_reuse_tree(
    costs: Mapping[tuple[Hashable, Hashable], float], terminals: Collection[Hashable]
) -> nx.DiGraph:
    """Returns the cheapest tree from ROOT to all terminals, each edge with its `weight`.

    costs  the positive search cost of each edge (a, b): b reuses a, or is tuned from nothing where a is ROOT

    Exact, except with bridges beside more than MAX_EXACT_TERMINALS terminals.  Raises ValueError where a
    terminal cannot be reached, or a cost is not positive.
    """
    if any(not 0 < cost < inf for cost in costs.values()):
        raise ValueError("a search cost must be positive and finite")
    graph = nx.DiGraph()
    graph.add_node(ROOT)
    graph.add_weighted_edges_from((a, b, cost) for (a, b), cost in costs.items() if b != ROOT and a != b)
    reachable = {ROOT, *nx.descendants(graph, ROOT)}
    if missing := [each for each in terminals if each not in reachable]:
        raise ValueError(f"nothing leads to {missing[0]}")
    graph = nx.DiGraph(graph.subgraph(reachable))
    if set(terminals) == reachable - {ROOT}:  # no bridges
        return _arborescence(graph)
    if len(terminals) <= MAX_EXACT_TERMINALS:
        return steiner_tree(graph, terminals)
    trees = [greedy_steiner_tree(graph, terminals)]
    own = nx.DiGraph(graph.subgraph({ROOT, *terminals}))
    if len(nx.descendants(own, ROOT)) == len(own) - 1:
        trees.append(_arborescence(own))  # bridges may not pay at all
    return min(trees, key=lambda tree: tree.size(weight="weight"))


def tuning_order(tree: nx.DiGraph) -> list[tuple[Hashable, Hashable]]:
    """Returns (operator, what it reuses) for each operator of a tree, after what it reuses."""
    return [(b, a) for a, b in nx.bfs_edges(tree, ROOT)]


def _arborescence(graph: nx.DiGraph) -> nx.DiGraph:
    """Returns the cheapest tree from ROOT to all nodes of a graph that it reaches."""
    if len(graph) == 1:
        return nx.DiGraph(graph)
    return nx.minimum_spanning_arborescence(graph)


def steiner_tree(graph: nx.DiGraph, terminals: Collection[Hashable]) -> nx.DiGraph:
    """Returns the cheapest tree from ROOT to the terminals.

    cost[S][v] is that of the cheapest tree from v to a set S of terminals: a path to a node where two trees
    part, to the two parts of S.  2^k sets of k terminals take 3^k steps on vectors of all nodes.
    """
    nodes = list(graph)
    number = {node: k for k, node in enumerate(nodes)}
    matrix = csr_matrix(
        (
            [weight for _, _, weight in graph.edges(data="weight")],
            ([number[a] for a, _ in graph.edges], [number[b] for _, b in graph.edges]),
        ),
        shape=(len(nodes), len(nodes)),
    )
    distances, before = dijkstra(matrix, return_predecessors=True)
    ends = [number[each] for each in dict.fromkeys(terminals)]
    count = 1 << len(ends)
    cost = np.full((count, len(nodes)), inf)
    meeting = np.zeros((count, len(nodes)), int)  # the node to which a path leads, where the trees part
    parting = np.zeros((count, len(nodes)), int)  # the part of S that the first of the two trees reaches
    for chosen in range(1, count):
        if chosen & (chosen - 1) == 0:
            end = ends[chosen.bit_length() - 1]
            cost[chosen], meeting[chosen] = distances[:, end], end
            continue
        part = (chosen - 1) & chosen
        merged = np.full(len(nodes), inf)
        while part > chosen ^ part:  # each pair of parts once
            both = cost[part] + cost[chosen ^ part]
            parting[chosen] = np.where(both < merged, part, parting[chosen])
            merged = np.minimum(merged, both)
            part = (part - 1) & chosen
        through = distances + merged  # of a path from the row's node to the column's, where the trees part
        meeting[chosen] = np.argmin(through, axis=1)
        cost[chosen] = through[np.arange(len(nodes)), meeting[chosen]]
    used = set()
    waiting = [(count - 1, number[ROOT])] if ends else []
    while waiting:
        chosen, node = waiting.pop()
        meet = int(meeting[chosen][node])
        at = meet
        while at != node:
            used.add((nodes[before[node, at]], nodes[at]))
            at = int(before[node, at])
        if chosen & (chosen - 1):
            part = int(parting[chosen][meet])
            waiting += [(part, meet), (chosen ^ part, meet)]
    return _pruned(graph, used, terminals)


def _pruned(
    graph: nx.DiGraph, edges: Iterable[tuple[Hashable, Hashable]], terminals: Collection[Hashable]
) -> nx.DiGraph:
    """Returns a cheapest tree of the nodes that edges touch, without leaves that are no terminals."""
    nodes = {ROOT, *(node for edge in edges for node in edge)}
    tree = nx.DiGraph(_arborescence(nx.DiGraph(graph.subgraph(nodes))))
    while leaves := [v for v in tree if v != ROOT and not tree.out_degree(v) and v not in set(terminals)]:
        tree.remove_nodes_from(leaves)
    return tree


def greedy_steiner_tree(graph: nx.DiGraph, terminals: Collection[Hashable]) -> nx.DiGraph:
    """Returns a cheap tree from ROOT to the terminals: at each step the tree that reaches some of them at the
    least cost for each, as `_Flow` finds it."""
    edges, missing = set[tuple[Hashable, Hashable]](), set(terminals)
    reached: set[Hashable] = {ROOT}
    while missing:
        found = _Flow(graph, reached, missing).saturate()
        edges |= found
        reached |= {b for _, b in found}
        missing -= reached
    return _pruned(graph, edges, terminals)


@dataclass
class _Flow:
    """Terminals from which water flows, one unit a second from each, against the edges, until the tree that
    was begun (`reached`) is met (Watel and Weisser, section 3).

    A node fills its cheapest edge that is not full, as fast as terminals flow into the node.  A full edge
    lets the water on to the node where it starts.  An edge that would bring a terminal's water to a node a
    second time is left out, so that full edges below a node are a tree.
    """

    graph: nx.DiGraph
    reached: Collection[Hashable]
    terminals: Collection[Hashable]
    sources: dict[Hashable, set[Hashable]] = field(init=False)  # terminals whose water is at a node
    # the edges into a node that are not full, (cost, start), the cheapest last; how full that one is
    waiting: dict[Hashable, list[tuple[float, Hashable]]] = field(default_factory=dict, init=False)
    filled: dict[Hashable, float] = field(default_factory=dict, init=False)
    full: nx.DiGraph = field(default_factory=nx.DiGraph, init=False)

    def __post_init__(self) -> None:
        self.sources = {terminal: {terminal} for terminal in self.terminals}
        for node in self.graph:
            entering = [(weight, a) for a, _, weight in self.graph.in_edges(node, data="weight")]
            self.waiting[node] = sorted(entering, key=lambda pair: (pair[0], str(pair[1])), reverse=True)
            self.filled[node] = 0.0
        self.full.add_nodes_from(self.graph)

    def saturate(self) -> set[tuple[Hashable, Hashable]]:
        """Returns the edges of the first tree that meets `reached`."""
        while True:
            seconds = {
                node: (self.waiting[node][-1][0] - self.filled[node]) / len(sources)
                for node, sources in self.sources.items()
                if self.waiting[node]
            }
            node = min(seconds, key=lambda node: (seconds[node], str(node)))
            for other in seconds:
                self.filled[other] += seconds[node] * len(self.sources[other])
            _, start = self.waiting[node].pop()
            self.filled[node] = 0.0
            if start in self.reached:
                below = nx.descendants(self.full, node) | {node}
                return {(start, node), *self.full.subgraph(below).edges}
            above = nx.ancestors(self.full, start) | {start}
            if all(self.sources[node].isdisjoint(self.sources.get(each, ())) for each in above):
                self.full.add_edge(start, node)
                for each in above:
                    self.sources.setdefault(each, set()).update(self.sources[node])
