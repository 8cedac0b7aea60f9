"""A part of a program that a runtime computes at once: one operator, or several that it fuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tensaurus.graph.node import Node, again, source
from tensaurus.graph.program import Program
from tensaurus.graph.text import show, workload
from tensaurus.ops import Op

__all__ = ["Piece"]


@dataclass(frozen=True)
class Piece:
    """What lies between a root and the leaves that it reads; of a piece of one operator, its arguments."""

    root: Node
    leaves: tuple[Node, ...]

    @classmethod
    def of(cls, node: Node) -> Piece:
        """The node alone."""
        return cls(node, tuple(dict.fromkeys(arg for arg in node.args if arg is not None)))

    @cached_property
    def inner(self) -> tuple[Node, ...]:
        """The nodes of the piece, arguments first."""
        return tuple(node for node in _between(self.root, self.leaves))

    @cached_property
    def label(self) -> str:
        """The names of its operators."""
        operators = (node.op for node in self.inner if not node.static)
        return " ".join(sorted({op.name for op in operators if isinstance(op, Op)}))

    @cached_property
    def text(self) -> str:
        """The key of its measured times: its operators, and the types of what it reads."""
        if self.inner == (self.root,):
            return workload(self.root)
        names = {
            leaf: source(f"{'w' if leaf.static else 'x'}{place}", leaf.types[0])
            for place, leaf in enumerate(self.leaves)
        }
        return show(Program(tuple(names.values()), (("y", self.over(names)),)))

    def over(self, new: dict[Node, Node]) -> Node:
        """The root over other leaves of the same types."""
        built = dict(new)
        for node in self.inner:
            args = tuple(None if arg is None else built.get(arg, arg) for arg in node.args)
            built[node] = again(node, args)
        return built[self.root]


def _between(root: Node, leaves: tuple[Node, ...]) -> Iterator[Node]:
    done = set(leaves)
    stack = [root]
    while stack:
        node = stack[-1]
        missing = [arg for arg in node.args if arg is not None and arg not in done]
        if node in done or missing:
            stack.extend(missing) if node not in done else stack.pop()
            continue
        done.add(node)
        stack.pop()
        yield node
