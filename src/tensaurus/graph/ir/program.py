"""A whole model as a graph of nodes, with named inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tensaurus.graph.ir.node import CONSTANT, INPUT, ITEM, OPAQUE, Node, replace_args


def topological_order(roots: Iterable[Node], leaves: Iterable[Node] = ()) -> list[Node]:
    """Return every node that the roots need, arguments first, without `leaves` and what only these need.

    The order is the same in every process.
    """
    order: list[Node] = []
    seen: set[Node] = set(leaves)
    stack: list[tuple[Node, int]] = [(root, 0) for root in reversed(list(roots))]
    while stack:
        node, visited = stack.pop()  # a node, and how many of its arguments were visited
        if visited == 0:
            if node in seen:
                continue
            seen.add(node)
        args = node.args
        while visited < len(args):
            arg = args[visited]
            visited += 1
            if arg is not None and arg not in seen:
                stack.append((node, visited))
                stack.append((arg, 0))
                break
        else:
            order.append(node)
    return order


@dataclass(frozen=True)
class Program:
    """A model, or a body of If, Loop or Scan.

    inputs    INPUT nodes, in order
    outputs   (name, node), in order
    captured  of a body: the inputs that stand for values of the enclosing program
    names     names of nodes in the model, for reports and export; they do not distinguish programs
    frame     everything that ONNX stores beside the nodes (`onnx_frame.Frame`)
    """

    inputs: tuple[Node, ...]
    outputs: tuple[tuple[str, Node], ...]
    captured: tuple[Node, ...] = ()
    names: Mapping[Node, str] = field(default_factory=dict, compare=False, hash=False)
    frame: Any = field(default=None, compare=False, hash=False)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Return all nodes that the outputs need, arguments first."""
        return tuple(topological_order(node for _, node in self.outputs))

    @property
    def roots(self) -> tuple[Node, ...]:
        """Return the nodes of the outputs, in order."""
        return tuple(node for _, node in self.outputs)

    @cached_property
    def static(self) -> frozenset[Node]:
        """Return the nodes that depend on constants alone."""
        return frozenset(node for node in self.nodes if node.static)

    @property
    def active(self) -> Iterator[Node]:
        """Yield the nodes that compute at run time: no leaves, items or constant expressions."""
        for node in self.nodes:
            if node.op not in (INPUT, CONSTANT, ITEM) and not node.static:
                yield node

    @property
    def opaque(self) -> list[Node]:
        """Return the opaque nodes, those in bodies not included."""
        return [node for node in self.nodes if node.op is OPAQUE]

    @property
    def bodies(self) -> list[Program]:
        """Return the bodies of the opaque nodes."""
        return [body for node in self.opaque for _, body in node.attribute("form").bodies]

    def replace_nodes(self, changes: Mapping[Node, Node]) -> Program:
        """Return the program with nodes replaced; a replacement must not read the node that it replaces."""
        return self.rebuild(lambda node, args: changes.get(node) or replace_args(node, args))

    def rebuild(
        self, build: Callable[[Node, tuple[Node | None, ...]], Node], became: dict[Node, Node] | None = None
    ) -> Program:
        """Return the program with every node replaced by build(node, new arguments), arguments first.

        `became` is filled with the new node for each old one.
        """
        new: dict[Node, Node] = {} if became is None else became
        names = dict(self.names)
        for node in self.nodes:
            args = tuple(None if a is None else new[a] for a in node.args)
            new[node] = built = build(node, args)
            if built is not node and node in names:
                names.setdefault(built, names[node])
        outputs = tuple((name, new[node]) for name, node in self.outputs)
        return replace(self, outputs=outputs, names=names)

    def with_outputs(self, nodes: Sequence[Node]) -> Program:
        """Return the program with the same interface and other nodes as outputs."""
        pairs = tuple((name, node) for (name, _), node in zip(self.outputs, nodes, strict=True))
        return replace(self, outputs=pairs)
