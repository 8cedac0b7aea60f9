"""A piece: a part of a program that a runtime computes at once, such as one operator or a fused chain.

Pieces are the units whose run times are measured, and added up to the cost of a program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from tensaurus.expr.analysis.work_counts import multiply_adds
from tensaurus.expr.ir.scope import Reduce, Scope
from tensaurus.expr.ir.walk import bodies
from tensaurus.expr.sizes.size import Arithmetic, evaluate
from tensaurus.graph.ir.node import Node, apply, replace_args, source
from tensaurus.graph.ir.program import Program
from tensaurus.graph.ir.program_text import format_program, format_subnormals, workload
from tensaurus.ops import Op, TensorType, Untypable
from tensaurus.ops.eop import eop


@dataclass(frozen=True)
class Piece:
    """All nodes between `leaves`, which the piece reads, and `root`, which it computes."""

    root: Node
    leaves: tuple[Node, ...]

    @classmethod
    def of(cls, node: Node) -> Piece:
        """Return the piece of one node, whose leaves are its arguments."""
        return cls(node, tuple(dict.fromkeys(arg for arg in node.args if arg is not None)))

    @cached_property
    def inner(self) -> tuple[Node, ...]:
        """Return the nodes of the piece, arguments first."""
        return tuple(_inner_nodes(self.root, self.leaves))

    @cached_property
    def has_eoperators(self) -> bool:
        """Return whether operators with generated kernels are in the piece: tuning those takes seconds."""
        return any(node.op is eop for node in self.inner)

    @cached_property
    def label(self) -> str:
        """Return the sorted operator names, with the kind of work of each eOperator."""
        return " ".join(sorted({_operator_label(node) for node in self.inner if not node.static} - {""}))

    @cached_property
    def text(self) -> str:
        """Return the key of the piece's measured times: its operators, and the types of its leaves."""
        if self.inner == (self.root,):
            return workload(self.root)
        names = {
            leaf: source(f"{format_subnormals(leaf)}{'w' if leaf.static else 'x'}{k}", leaf.types[0])
            for k, leaf in enumerate(self.leaves)
        }
        return format_program(Program(tuple(names.values()), (("y", self.with_leaves(names)),)))

    def with_sizes(self, size_of: Callable[[Any], int]) -> Piece:
        """Return the piece with numbers for its symbols; the piece itself where it cannot be typed then."""
        leaves = {leaf: _substitute_leaf(leaf, f"leaf {k}", size_of) for k, leaf in enumerate(self.leaves)}
        built: dict[Node, Node] = dict(leaves)
        try:
            for node in self.inner:
                args = tuple(None if arg is None else built.get(arg, arg) for arg in node.args)
                attrs = {name: _substitute(value, size_of) for name, value in node.attrs}
                is_same = args == node.args and all(attrs[name] is value for name, value in node.attrs)
                if is_same or not isinstance(node.op, Op):
                    built[node] = replace_args(node, args)
                else:
                    built[node] = apply(node.op, args, attrs, len(node.types))
        except Untypable:
            return self
        if built[self.root] is self.root:
            return self
        return Piece(built[self.root], tuple(dict.fromkeys(leaves.values())))

    def with_leaves(self, new: dict[Node, Node]) -> Node:
        """Return the root over other leaves of the same types."""
        built = dict(new)
        for node in self.inner:
            args = tuple(None if arg is None else built.get(arg, arg) for arg in node.args)
            built[node] = replace_args(node, args)
        return built[self.root]


def _operator_label(node: Node) -> str:
    """Return the operator's name, of an eOperator with the kind of its work; "" for any `Leaf` operator."""
    if not isinstance(node.op, Op):
        return ""
    return node.op.name if node.op is not eop else f"{node.op} {_work_label(node.attribute('scope'))}"


@lru_cache(10_000)
def _work_label(scope: Scope) -> str:
    """Return the kind of work of an expression: sums of products, other reductions, or elementwise."""
    if multiply_adds(scope) != 0:
        return "products"
    return "reductions" if any(isinstance(body, Reduce) for body in bodies(scope)) else "map"


def _inner_nodes(root: Node, leaves: tuple[Node, ...]) -> Iterator[Node]:
    """Yield the nodes above the leaves up to the root, arguments first."""
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


def _substitute_leaf(leaf: Node, name: str, of: Callable[[Any], int]) -> Node:
    """Return an input of the leaf's type with numbers for symbols; constants stay."""
    kind = leaf.types[0]
    if leaf.static or not isinstance(kind, TensorType) or kind.static:
        return leaf
    return source(name, TensorType(kind.dtype, tuple(_substitute(n, of) for n in kind.shape)))


def _substitute(value: Any, of: Callable[[Any], int]) -> Any:
    if isinstance(value, Arithmetic):
        return int(evaluate(value, of))
    if isinstance(value, tuple) and not all(isinstance(part, int) for part in value):
        return tuple(_substitute(part, of) for part in value)
    return value
