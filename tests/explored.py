"""What tests of choices and of searches share: small programs that were explored, and what is in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
from cycles import Acyclic, Efficient
from small_programs import PROGRAMS, graph_of, small

from tensaurus.app.zoo.builder import Builder, Value
from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.egraph_proof import Proof, prove
from tensaurus.egraph.match.saturate import Limits, Ruleset, Runner, saturate
from tensaurus.graph.ir.node import Node, constant
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.build import Build
from tensaurus.graph.onnx.onnx_export import export_with_tensors
from tensaurus.ops import Op
from tensaurus.rules.language.rule import Rule, library
from tensaurus.runtimes import backends
from tensaurus.runtimes.measure.runtime_kernels import fused_pieces

LIMITS = Limits(nodes=1200, rounds=4)


def fused_by(made: Program, name: str) -> list[Piece]:
    """What the backend of that name fuses."""
    backend = backends.find(name)
    proto, tensors = export_with_tensors(made)
    build = Build(proto.SerializeToString())
    return fused_pieces(
        tensors.written, backend.kernels(build) if isinstance(backend, backends.Fusing) else []
    )


def operators(whole: Program) -> Counter[str]:
    """How often each operator computes at run time."""
    return Counter(str(n.op) for n in whole.active if isinstance(n.op, Op))


def weights(*shape: int, seed: int = 0) -> Node:
    return constant(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


@cache
def exact_library() -> Ruleset:
    """The rules that hold over every field: GF(p), where choices are compared, has no order."""
    return Ruleset(rule for rule in library() if rule.evidence is not None and rule.evidence.is_exact)


@dataclass
class Explored:
    """A small program, explored by what holds over every field."""

    whole: Program
    graph: EGraph
    roots: list[int]
    own: int  # e-nodes before this one are the program's

    @classmethod
    def of(cls, make: Callable[[Builder], Value | list[Value]], filtered: bool = False) -> Explored:
        whole = small(make)
        graph, roots = graph_of(whole)
        own = len(graph.heads)
        exploration = graph, exact_library(), LIMITS
        (Acyclic(Efficient(), *exploration) if filtered else Runner(*exploration)).explore()
        return cls(whole, graph, roots, own)


@cache
def explored(name: str) -> Explored:
    return Explored.of(PROGRAMS[name])


def kept_bytes(whole: Program) -> int:
    """Bytes of the constants that what computes at run time reads, once folded."""
    frontier = {arg for n in whole.active for arg in n.args if arg is not None and arg.static}
    frontier |= {out for _, out in whole.outputs if out.static}
    return sum(4 * int(np.prod(n.tensor.shape)) for n in frontier)


def equal(left: Node, right: Node, rules: Iterable[Rule], limits: Limits | None = None) -> Proof | None:
    """Why two terms are equal, print it to see the steps; None where the rules do not show it within limits.

    The proof's equations, and congruence (what reads equal tensors is equal), lead from one to the other.
    """
    graph = EGraph()
    terms = [graph.insert_term(left), graph.insert_term(right)]
    graph.rebuild()
    saturate(graph, Ruleset(rules), limits or Limits())
    if graph.find(terms[0]) != graph.find(terms[1]):
        return None
    return prove(graph, [(terms[0], right)])
