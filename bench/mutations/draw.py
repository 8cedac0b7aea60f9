"""The register of mutations, and what they draw from a model."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any, TypeAlias

import numpy as np
from fuzz_models import Seedling, seedlings
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tensaurus.graph.onnx.onnx_frame import bodies_of, graphs_in

KINDS: dict[str, list[Mutation]] = {}
SIZES = (0, 1, -1, 2, 3, 7, 2**15, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
NUMBERS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e38, 1e-7, float("inf"), float("-inf"), float("nan"))


class Inapplicable(Exception):
    """The model has nothing that could be mutated so."""


def read_array(tensor: TensorProto) -> np.ndarray[Any, Any]:
    """Return a copy of a tensor's elements.  Raises Inapplicable where a mutation broke the tensor before."""
    try:
        return numpy_helper.to_array(tensor).copy()
    except Exception as error:  # of many types: the checker's, NumPy's, the file system's
        raise Inapplicable from error


@dataclass
class Draft:
    """A model on the way to a mutant; `wire` replaces its bytes where it is set."""

    random: Random
    seedling: Seedling
    wire: bytes | None = None
    steps: list[str] = field(default_factory=list)

    @property
    def model(self) -> ModelProto:
        return self.seedling.model

    @property
    def bytes(self) -> bytes:
        return self.model.SerializeToString() if self.wire is None else self.wire

    def one(self, choices: Any) -> Any:
        """One of the choices.  Raises Inapplicable where there is none."""
        found = list(choices)
        if not found:
            raise Inapplicable
        return self.random.choice(found)

    def node_lists(self) -> list[Any]:
        """The nodes of each graph, body and function."""
        graphs = list(graphs_in(self.model.graph))
        functions = list(self.model.functions)
        inner = [body for f in functions for n in f.node for b in bodies_of(n) for body in graphs_in(b)]
        return [part.node for part in (*graphs, *functions, *inner) if len(part.node)]

    def nodes(self) -> Any:
        """The nodes of one graph: of the model's own half of the time."""
        return self.model.graph.node if self.random.random() < 0.5 else self.one(self.node_lists())

    def node(self) -> NodeProto:
        found: NodeProto = self.one(self.nodes())
        return found

    def graph(self) -> GraphProto:
        found: GraphProto = self.one(graphs_in(self.model.graph))
        return found

    def names(self) -> list[str]:
        """Every name of a value in the model."""
        found: dict[str, None] = {}
        for nodes in self.node_lists():
            for node in nodes:
                found.update(dict.fromkeys([*node.input, *node.output]))
        for graph in graphs_in(self.model.graph):
            for named in (*graph.input, *graph.output, *graph.initializer):
                found[named.name] = None
        return [name for name in found if name]

    def edge(self) -> tuple[int, int]:
        """Place of a node of the main graph, and of one of its inputs that is not empty."""
        nodes = self.model.graph.node
        found: tuple[int, int] = self.one(
            (p, k) for p, node in enumerate(nodes) for k, name in enumerate(node.input) if name
        )
        return found

    def fresh(self, hint: str) -> str:
        known, count = set(self.names()), 0
        while (name := f"{hint}{count or ''}") in known:
            count += 1
        return name

    def constant(self, value: Any) -> str:
        """The name of a new initializer."""
        name = self.fresh("fuzzed")
        self.model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def insert(self, place: int, *nodes: NodeProto) -> None:
        """Put nodes into the main graph before the one at `place`."""
        kept = list(self.model.graph.node)
        kept[place:place] = nodes
        copies = [copied(node) for node in kept]
        del self.model.graph.node[:]
        self.model.graph.node.extend(copies)

    def tensor(self) -> TensorProto:
        """An initializer, or a tensor in an attribute."""
        found: TensorProto = self.one(
            [
                *(t for graph in graphs_in(self.model.graph) for t in graph.initializer),
                *(a.t for nodes in self.node_lists() for n in nodes for a in n.attribute if a.HasField("t")),
            ]
        )
        return found


Mutation: TypeAlias = Callable[[Draft], str]  # says what it did


def mutation(kind: str) -> Callable[[Mutation], Mutation]:
    """Register a mutation of a draft in place."""

    def register(function: Mutation) -> Mutation:
        KINDS.setdefault(kind, []).append(function)
        return function

    return register


def copied(node: NodeProto) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    return copy


def call(
    operator: str, inputs: list[str], outputs: list[str], domain: str = "", **attributes: Any
) -> NodeProto:
    return helper.make_node(operator, inputs, outputs, domain=domain, **attributes)


@dataclass(frozen=True)
class Mutant:
    """A mutant's bytes, and what lies beside them.

    model   the model that it was made of
    kind    of its mutations
    recipe  what was done
    """

    number: int
    model: str
    kind: str
    recipe: str
    content: bytes
    files: dict[str, bytes]


_seedlings = cache(seedlings)


def mutant(seed: int, number: int) -> Mutant:
    """Mutant `number` of a seed; the kinds take turns."""
    kinds = list(KINDS)
    kind = kinds[number % len(kinds)]
    random = Random(f"{seed}:{number}")
    while True:
        name, seedling = random.choice(list(_seedlings().items()))
        seedling = deepcopy(seedling)
        draft = Draft(random, seedling)
        try:
            for _ in range(random.choice((1, 1, 1, 2, 3))):
                chosen = random.choice(KINDS[kind])
                draft.steps.append(f"{chosen.__name__} {chosen(draft)}".strip())
            return Mutant(number, name, kind, "; ".join(draft.steps), draft.bytes, seedling.files)
        except (Inapplicable, DecodeError, ValueError):
            continue  # protobuf holds a hundred messages within each other; what is broken is no array
