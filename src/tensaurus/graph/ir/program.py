"""A whole program: named inputs, named outputs, and what ONNX says around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tensaurus.graph.ir.node import CONSTANT, INPUT, ITEM, OPAQUE, Node, replace_args


def topological_order(roots: Iterable[Node], given: Iterable[Node] = ()) -> list[Node]:
    """Every node that the roots need besides those given, each once, arguments first; deterministic."""
    order: list[Node] = []
    seen: set[Node] = set(given)
    stack: list[tuple[Node, int]] = [(root, 0) for root in reversed(list(roots))]
    while stack:
        node, place = stack.pop()
        if place == 0:
            if node in seen:
                continue
            seen.add(node)
        args = node.args
        while place < len(args):
            arg = args[place]
            place += 1
            if arg is not None and arg not in seen:
                stack.append((node, place))
                stack.append((arg, 0))
                break
        else:
            order.append(node)
    return order


@dataclass(frozen=True)
class Program:
    """inputs are INPUT nodes in order; outputs are (name, node) in order.

    `captured` are inputs of a control-flow body that it reads from the enclosing program.
    `names` are the names that nodes had in the model: hints for reports and export, no part of the meaning.
    `frame` is what ONNX keeps around a graph (`onnx_io.Frame`).
    """

    inputs: tuple[Node, ...]
    outputs: tuple[tuple[str, Node], ...]
    captured: tuple[Node, ...] = ()
    names: Mapping[Node, str] = field(default_factory=dict, compare=False, hash=False)
    frame: Any = field(default=None, compare=False, hash=False)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes that the outputs need, arguments first."""
        return tuple(topological_order(node for _, node in self.outputs))

    @property
    def roots(self) -> tuple[Node, ...]:
        """The nodes of the outputs, in order."""
        return tuple(node for _, node in self.outputs)

    @cached_property
    def uses(self) -> Counter[Node]:
        """How many arguments and outputs read each node."""
        count: Counter[Node] = Counter(arg for node in self.nodes for arg in node.args if arg is not None)
        count.update(node for _, node in self.outputs)
        return count

    @cached_property
    def static(self) -> frozenset[Node]:
        """Nodes that depend on constants alone."""
        return frozenset(node for node in self.nodes if node.static)

    @property
    def active(self) -> Iterator[Node]:
        """Nodes that compute at run time: neither leaves, nor projections, nor static."""
        for node in self.nodes:
            if node.op not in (INPUT, CONSTANT, ITEM) and not node.static:
                yield node

    @property
    def opaque(self) -> list[Node]:
        return [node for node in self.nodes if node.op is OPAQUE]

    def replace_nodes(self, changes: Mapping[Node, Node]) -> Program:
        """The program with nodes replaced; replacements must not read what they replace."""
        return self.rebuild(lambda node, args: changes.get(node) or replace_args(node, args))

    def rebuild(
        self,
        build: Callable[[Node, tuple[Node | None, ...]], Node],
        became: dict[Node, Node] | None = None,
    ) -> Program:
        """Every node rebuilt, arguments first, by build(node, new arguments).

        `became` is filled with what each node became.
        """
        new: dict[Node, Node] = {} if became is None else became
        names = dict(self.names)
        for node in self.nodes:
            args = tuple(None if a is None else new[a] for a in node.args)
            new[node] = made = build(node, args)
            if made is not node and node in names:
                names.setdefault(made, names[node])
        outputs = tuple((name, new[node]) for name, node in self.outputs)
        return replace(self, outputs=outputs, names=names)

    def with_outputs(self, nodes: Sequence[Node]) -> Program:
        """The same interface computed by other nodes."""
        pairs = tuple((name, node) for (name, _), node in zip(self.outputs, nodes, strict=True))
        return replace(self, outputs=pairs)
