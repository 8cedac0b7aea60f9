"""A state of a derivation: expressions over their inputs and over operators that parts of them became."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np

from tensaurus.expr.analysis.index_map import is_reshape
from tensaurus.expr.analysis.work_counts import flops
from tensaurus.expr.evaluate.fields import Reals
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.ir.expression_text import show
from tensaurus.expr.ir.identity_cache import IdentityCache
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Scope, Source, Tensor
from tensaurus.expr.ir.walk import Rewriting, innermost_first, reads, replace_tensors, tensors
from tensaurus.expr.normal.intern import fingerprint, intern_scope
from tensaurus.expr.sizes.size import Size, polynomial, product
from tensaurus.finders.derive.flatten_digits import flattened
from tensaurus.finders.derive.instantiate_operator import Matched
from tensaurus.finders.derive.merge_traversals import read_through
from tensaurus.finders.derive.operator_matching import scaled
from tensaurus.finders.derive.reorder_operands import reordered
from tensaurus.finders.derive.rewrite_step import JointStep, Step, replaced
from tensaurus.graph.ir.node import Node, apply, constant
from tensaurus.graph.lower.labelled_nodes import reshape_node
from tensaurus.ops import Untypable
from tensaurus.ops.eop import eop
from tensaurus.runtimes.price.operation_counts import number_of, scopes_of

__all__ = ["INTENSE", "Move", "State", "intensity", "node_of", "shown", "sizeless"]

DIGITS = 16  # of a likeness
INTENSE = 4.0  # operations for each element that is moved: less is bound by memory (EINNET, section 5)


@dataclass(frozen=True)
class Move:
    """How a state came about: by which rule, where in the expression."""

    rule: str
    where: str

    @property
    def text(self) -> str:
        return f"{self.rule} ({self.where})"


@dataclass(frozen=True)
class State:
    """`roots` read tensors, which are the nodes that `nodes` has for them; `moves` led to it."""

    roots: tuple[Scope, ...]
    nodes: tuple[tuple[Tensor, Node], ...]
    moves: tuple[Move, ...] = ()
    before: State | None = None

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """The same of states that are equal in form."""
        return tuple(map(fingerprint, self.roots)), tuple(node for _, node in self.nodes)

    @cached_property
    def likeness(self) -> str:
        """The same of states that one rule led to and whose expressions are alike but for sizes."""
        rule = self.moves[-1].rule if self.moves else ""
        return sha256(f"{rule} {sizeless(self.text)}".encode()).hexdigest()[:DIGITS]

    @cached_property
    def text(self) -> str:
        """Its expressions."""
        return shown(self.roots)

    @cached_property
    def stages(self) -> tuple[Scope, ...]:
        """The roots and what is nested in them, each once, readers first."""
        known, found = IdentityCache[bool](), list[Scope]()
        for root in self.roots:
            for scope in innermost_first(root, known):
                known[scope] = True
                found.append(scope)
        return tuple(reversed(found))

    def intense(self, least: float = INTENSE) -> tuple[Scope, ...]:
        """Those that arithmetic bounds, the innermost first."""
        return tuple(s for s in reversed(self.stages) if intensity(s) >= least)

    @cached_property
    def results(self) -> tuple[Node, ...]:
        """It as programs.  Raises Untypable."""
        nodes = dict(self.nodes)
        return tuple(node_of(root, nodes) for root in self.roots)

    def stepped(self, stage: Scope, step: Step) -> State:
        """The state in which a stage became something else."""
        return self.joined(JointStep(step.rule, step.where, ((stage, step.scope),)))

    def joined(self, step: JointStep) -> State:
        """The state in which several stages became something else."""
        roots = tuple(map(read_through, replaced(self.roots, step.scopes)))
        return State(roots, self.nodes, (*self.moves, Move(step.rule, step.where)), self)

    def generated(self, stage: Scope) -> State | None:
        """The state in which a stage is an eOperator of its own; None where that cannot be typed."""
        return self._as_eop(stage, stage, {})

    def reordered(self, stage: Scope) -> State | None:
        """The same over operands in another order; None, too, where there is none that helps."""
        found = reordered(stage)
        return None if found is None else self._as_eop(stage, found.scope, found.operands)

    def _as_eop(self, stage: Scope, scope: Scope, operands: Mapping[Tensor, Scope]) -> State | None:
        """The state in which a stage is read from an eOperator, a scope with the same axes in any order, over
        expressions of its operands."""
        nodes = dict(self.nodes)
        try:
            nodes |= {x: node_of(layout, nodes) for x, layout in operands.items()}
            node = node_of(scope, nodes)
        except Untypable:
            return None
        return self._read(stage, node, "eOperator generation", tuple(map(polynomial, scope.axes)))

    def _read(
        self, stage: Scope, node: Node, rule: str, indices: tuple[Size, ...], factor: Fraction = Fraction(1)
    ) -> State:
        """The state in which a stage is read from the output of a node, and multiplied."""
        made = next((x for x, old in self.nodes if old is node), None)
        made = made or Tensor(f"y{len(self.nodes)}", node.tensor.shape, node.tensor.dtype)
        read: Body = Read(made, indices)
        body = read if factor == 1 else Call("mul", (read, Const(factor)))
        state = self.stepped(stage, Step(rule, str(node.op), Scope(stage.axes, body)))
        return State(state.roots, tuple({**dict(self.nodes), made: node}.items()), state.moves, self)

    def matched(self, stage: Scope, found: Matched) -> State | None:
        """The state in which a stage is read from an operator's output; None where that cannot be typed."""
        nodes = dict(self.nodes)
        try:
            args = [node_of(read_through(operand), nodes) for operand in found.operands]
            node = apply(found.operator.op, args, found.attrs)
        except Untypable:
            return None
        factor = Fraction(1)
        if found.operator.single:
            if (own := scaled(scopes_of(node)[0])) is None:
                return None
            factor = found.number / own[1]
        shape = node.tensor.shape
        if len(shape) != len(found.shape) or not all(
            isinstance(n, int) and n >= wanted for n, wanted in zip(shape, found.shape, strict=True)
        ):
            return None
        return self._read(stage, node, "operator matching", found.indices, factor)


def node_of(scope: Scope, nodes: dict[Tensor, Node]) -> Node:
    """An expression over nodes as one: the node itself, where its elements keep their order, or an eOperator.

    Raises Untypable.
    """
    body = scope.body
    shape = [number_of(n) for n in scope.shape]
    if isinstance(body, Read) and isinstance(body.source, Tensor) and 0 not in shape and is_reshape(scope):
        return reshape_node(nodes[body.source], shape)
    used = tensors(scope)
    if not used:
        return constant(interpret(scope, {}, Reals()).astype(np.float32))
    plain, merged = flattened(scope)
    args = [reshape_node(nodes[x], [number_of(n) for n in merged.get(x, x).shape]) for x in used]
    names: dict[Tensor, Source] = {
        merged.get(x, x): Tensor(f"x{k}", arg.tensor.shape, x.dtype)
        for k, (x, arg) in enumerate(zip(used, args, strict=True))
    }
    return apply(eop, args, {"scope": intern_scope(replace_tensors(plain, names))})


def shown(roots: Sequence[Scope]) -> str:
    """Expressions, in one line."""
    return "; ".join(map(show, roots))


def sizeless(text: str) -> str:
    """What is left of an expression's text without numbers and axes, sorted: sums have their axes in an order
    that depends on sizes."""
    return "".join(sorted(re.sub(r"\d+|\b[a-z]\b|\s", "", text)))


def intensity(scope: Scope) -> float:
    """Operations for each element that is read or written, those of nested scopes not counted."""
    if scope not in _intensities:
        _intensities[scope] = _intensity(scope)
    return _intensities[scope]


_intensities: IdentityCache[float] = IdentityCache()


def _intensity(scope: Scope) -> float:
    sources = {id(read.source): read.source for read in reads(scope)}.values()
    moved = number_of(product(scope.shape)) + sum(number_of(product(s.shape)) for s in sources)
    return number_of(flops(_Apart().scope(scope))) / max(1, moved)


class _Apart(Rewriting):
    """Nested scopes as tensors."""

    def source(self, source: Source) -> Source:
        return Tensor("nested", source.shape) if isinstance(source, Scope) else source
