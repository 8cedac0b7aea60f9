"""Derivations for people: each expression under the rule that made it, as the paper's figure 5 shows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensaurus.finders.derive.derivation_search import Derived, Search
from tensaurus.graph.ir.node import INPUT, Node
from tensaurus.rules.language.nested_calls import format_nodes

__all__ = ["derivation"]


def derivation(nodes: Sequence[Node], found: Sequence[Derived], search: Search) -> Iterator[str]:
    """The lines about one part: what the search saw, and the derivations found, each step with its rule."""
    yield format_nodes(*nodes)
    cut = ", which was cut" if search.cut else ""
    yield (
        f"  {search.explored} expressions explored, {search.met} met of which {search.pruned} were known;"
        f" {search.found} programs found{cut}"
    )
    for place, one in enumerate(found, 1):
        yield f"  {place}. about {one.seconds * 1e6:.3g} us"
        for state in one.path:
            yield f"     {state.moves[-1].text if state.moves else 'its expression'}"
            yield f"       {state.text}"
        for tensor, node in one.state.nodes:
            if node.op is not INPUT:
                yield f"     {tensor.name} = {_said(node)}"


def _said(node: Node) -> str:
    return f"{format_nodes(node)}   {node.types[0]}"
