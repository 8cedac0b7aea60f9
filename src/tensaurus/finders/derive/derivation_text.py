"""Formats derivations for people: each expression under the rule that produced it (EINNET, figure 5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensaurus.finders.derive.derivation_search import DerivedProgram, Search
from tensaurus.graph.ir.node import INPUT, Node
from tensaurus.rules.language.node_text import format_nodes

__all__ = ["format_derivations"]


def format_derivations(
    nodes: Sequence[Node], programs: Sequence[DerivedProgram], search: Search
) -> Iterator[str]:
    """Yield lines about one region: its nodes, the search's counts, and the steps to each derived program."""
    yield format_nodes(*nodes)
    stopped = "; the search was stopped early" if search.is_cut else ""
    yield (
        f"  {search.explored} expressions explored, {search.produced} produced by rules, {search.pruned} of"
        f" them known before; {search.found} programs found{stopped}"
    )
    for number, program in enumerate(programs, 1):
        yield f"  {number}. about {program.seconds * 1e6:.3g} us"
        for state in program.path:
            yield f"     {state.applied[-1].text if state.applied else 'its expression'}"
            yield f"       {state.text}"
        for tensor, node in program.state.nodes:
            if node.op is not INPUT:
                yield f"     {tensor.name} = {format_nodes(node)}   {node.types[0]}"
