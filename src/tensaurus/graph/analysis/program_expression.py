"""Write a node or a program as one expression over its leaves.

    MatMul(Relu(x), w)   ->   sum[k](max(0, x[i, k]) * w[k, j])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from tensaurus.expr.ir.scope import Scope, Source, Tensor, compute
from tensaurus.expr.ir.walk import replace_tensors
from tensaurus.expr.normal.canonicalize import canonicalize
from tensaurus.graph.ir.node import INPUT, Node
from tensaurus.graph.ir.program import Program

Leaves: TypeAlias = Mapping[Node, Source] | Callable[[Node], Source | None]


def _input_tensor(node: Node) -> Tensor | None:
    """Return the tensor of the name and type of a program's input, None for any other node."""
    if node.op is not INPUT:
        return None
    return Tensor(node.attribute("name"), node.tensor.shape, node.tensor.dtype)


def build_expression(root: Node | Program, leaves: Leaves = _input_tensor, nested: bool = True) -> Scope:
    """Return what a node, or the only output of a program, computes from its leaves.

    A leaf is a node for which `leaves` gives a source; by default inputs are tensors of their names.  Every
    other node becomes one scope that all its readers share.  `nested=False` returns the canonical form, where
    most scopes are substituted into their readers.

    Raises ValueError for a node that is no leaf and has no expression, and for a program of several outputs.
    """
    if isinstance(root, Program):
        if len(root.roots) != 1:
            raise ValueError(f"the program has {len(root.roots)} outputs")
        root = root.roots[0]
    (scope,) = build_expressions([root], leaves)
    return scope if nested else canonicalize(scope)


def build_expressions(roots: Iterable[Node], leaves: Leaves = _input_tensor) -> tuple[Scope, ...]:
    """Return the expressions of several nodes, as `build_expression` does; shared nodes are shared scopes."""
    source_of = leaves.get if isinstance(leaves, Mapping) else leaves
    roots = tuple(roots)
    known: dict[Node, Source] = {}
    waiting = list(roots)
    while waiting:
        node = waiting[-1]
        source = known.get(node) or source_of(node)
        if source is None:
            # an output of a node with several outputs is computed from the arguments of that node
            owner, index = node.owner
            if not owner.is_declared:
                raise ValueError(f"the node {node!r} must be one of the leaves: it has no expression")
            missing = [arg for arg in owner.args if arg is not None and arg not in known]
            if missing:
                waiting += missing
                continue
            sources = {tensor: known[arg] for tensor, arg in owner.tensor_args().items()}
            source = replace_tensors(owner.scopes()[index], sources)
        known[node] = source
        waiting.pop()
    return tuple(_as_scope(known[root]) for root in roots)


def _as_scope(source: Source) -> Scope:
    return source if isinstance(source, Scope) else compute(source.shape, lambda *i: source[i])
