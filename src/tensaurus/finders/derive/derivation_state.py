"""States of a derivation: the expressions that remain, and the operators that parts of them became.

    roots  L[h, f](y2[h, f] + y2[h + 1, f])      nodes  x0: input, w1: input, y2: MatMul(x0, w1)

The search (`derivation_search`) makes a new state by replacing a stage: by what a rule yields (`after_step`),
by an operator (`with_operator`) or by an eOperator (`with_eop`).  `results` turns a state into nodes again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np

from tensaurus.expr.analysis.reshape_map import is_reshape
from tensaurus.expr.analysis.work_counts import flops
from tensaurus.expr.evaluate.fields import Reals
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.ir.expression_text import show
from tensaurus.expr.ir.identity_cache import IdentityCache
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Scope, Source, Tensor
from tensaurus.expr.ir.walk import Rewriting, innermost_first, reads, replace_tensors, tensors
from tensaurus.expr.normal.intern import fingerprint, intern_scope
from tensaurus.expr.sizes.size import Size, polynomial, product
from tensaurus.finders.derive.flatten_digits import flatten_dimensions
from tensaurus.finders.derive.match_operators import OperatorMatch
from tensaurus.finders.derive.merge_traversals import read_through
from tensaurus.finders.derive.reorder_operands import reordered
from tensaurus.finders.derive.rewrite_step import JointStep, Step, replace_scopes
from tensaurus.graph.analysis.operator_product import split_scale
from tensaurus.graph.ir.node import Node, apply, constant
from tensaurus.graph.lower.labelled_nodes import reshape_node
from tensaurus.ops import Untypable
from tensaurus.ops.eop import eop
from tensaurus.runtimes.price.operation_counts import number_of, scopes_of

__all__ = [
    "MIN_INTENSITY", "AppliedRule", "State", "format_scopes", "intensity", "make_node", "remove_sizes",
]  # fmt: skip

HASH_DIGITS = 16  # digits of a state's similarity: few, as trails of them are stored in the database
MIN_INTENSITY = 4.0  # operations for each element moved; with fewer, memory is the bound (EINNET, section 5)


@dataclass(frozen=True)
class AppliedRule:
    """The rule that led to a state, and where it was applied."""

    rule: str
    where: str

    @property
    def text(self) -> str:
        return f"{self.rule} ({self.where})"


@dataclass(frozen=True)
class State:
    """Expressions over tensors, and the node that each tensor stands for: an input or an operator.

    applied   the rules that led here from the first state, the last one last
    previous  the state to which the last rule was applied
    """

    roots: tuple[Scope, ...]
    nodes: tuple[tuple[Tensor, Node], ...]
    applied: tuple[AppliedRule, ...] = ()
    previous: State | None = None

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Equal for states of equal expressions."""
        return tuple(map(fingerprint, self.roots)), tuple(node for _, node in self.nodes)

    @cached_property
    def similarity(self) -> str:
        """A hash that is equal for states after the same rule whose expressions differ in sizes alone."""
        rule = self.applied[-1].rule if self.applied else ""
        return sha256(f"{rule} {remove_sizes(self.text)}".encode()).hexdigest()[:HASH_DIGITS]

    @cached_property
    def text(self) -> str:
        """The expressions in one line."""
        return format_scopes(self.roots)

    @cached_property
    def stages(self) -> tuple[Scope, ...]:
        """The roots and all scopes nested in them, each once, readers first."""
        known, found = IdentityCache[bool](), list[Scope]()
        for root in self.roots:
            for scope in innermost_first(root, known):
                known[scope] = True
                found.append(scope)
        return tuple(reversed(found))

    def compute_bound_stages(self, min_intensity: float = MIN_INTENSITY) -> tuple[Scope, ...]:
        """Return the stages that are bound by arithmetic, not by memory, the innermost first."""
        return tuple(s for s in reversed(self.stages) if intensity(s) >= min_intensity)

    @cached_property
    def results(self) -> tuple[Node, ...]:
        """A node for each root.  Raises Untypable."""
        nodes = dict(self.nodes)
        return tuple(make_node(root, nodes) for root in self.roots)

    def after_step(self, stage: Scope, step: Step) -> State:
        """Return the state with one stage replaced."""
        return self.after_joint_step(JointStep(step.rule, step.where, ((stage, step.scope),)))

    def after_joint_step(self, step: JointStep) -> State:
        """Return the state with several stages replaced."""
        roots = tuple(map(read_through, replace_scopes(self.roots, step.scopes)))
        return State(roots, self.nodes, (*self.applied, AppliedRule(step.rule, step.where)), self)

    def with_eop(self, stage: Scope) -> State | None:
        """Return the state with the stage as an eOperator, None where that cannot be typed."""
        return self._with_eop(stage, stage, {})

    def with_reordered_eop(self, stage: Scope) -> State | None:
        """Return the state with the stage as an eOperator over rearranged operands, None where none helps."""
        found = reordered(stage)
        return None if found is None else self._with_eop(stage, found.scope, found.operands)

    def _with_eop(self, stage: Scope, scope: Scope, operands: Mapping[Tensor, Scope]) -> State | None:
        """Return the state with the stage read from an eOperator of `scope`, whose axes may be reordered.

        `operands` are the expressions of those tensors of the scope that are not in `nodes`.
        """
        nodes = dict(self.nodes)
        try:
            nodes |= {x: make_node(layout, nodes) for x, layout in operands.items()}
            node = make_node(scope, nodes)
        except Untypable:
            return None
        return self._with_node(stage, node, "eOperator generation", tuple(map(polynomial, scope.axes)))

    def _with_node(
        self, stage: Scope, node: Node, rule: str, indices: tuple[Size, ...], factor: Fraction = Fraction(1)
    ) -> State:
        """Return the state with the stage as a read of the node's output at `indices`, times the factor."""
        known = next((x for x, old in self.nodes if old is node), None)
        output = known or Tensor(f"y{len(self.nodes)}", node.tensor.shape, node.tensor.dtype)
        read: Body = Read(output, indices)
        body = read if factor == 1 else Call("mul", (read, Const(factor)))
        state = self.after_step(stage, Step(rule, str(node.op), Scope(stage.axes, body)))
        return State(state.roots, tuple({**dict(self.nodes), output: node}.items()), state.applied, self)

    def with_operator(self, stage: Scope, match: OperatorMatch) -> State | None:
        """Return the state with the stage as the matched operator, None where that cannot be typed."""
        nodes = dict(self.nodes)
        try:
            args = [make_node(read_through(operand), nodes) for operand in match.operands]
            node = apply(match.operator.op, args, match.attrs)
        except Untypable:
            return None
        factor = Fraction(1)
        if match.operator.is_unary:
            if (split := split_scale(scopes_of(node)[0])) is None:
                return None
            _, own_factor = split  # 1/9 of a 3x3 AveragePool
            factor = match.factor / own_factor
        # the operator must compute at least the elements that are read: one with windows may compute more
        shape = node.tensor.shape
        if len(shape) != len(match.min_shape) or not all(
            isinstance(n, int) and n >= needed for n, needed in zip(shape, match.min_shape, strict=True)
        ):
            return None
        return self._with_node(stage, node, "operator matching", match.indices, factor)


def make_node(scope: Scope, nodes: dict[Tensor, Node]) -> Node:
    """Return the scope as a reshaped node, a constant, or an eOperator.  Raises Untypable."""
    body = scope.body
    shape = [number_of(n) for n in scope.shape]
    if isinstance(body, Read) and isinstance(body.source, Tensor) and 0 not in shape and is_reshape(scope):
        return reshape_node(nodes[body.source], shape)
    used = tensors(scope)
    if not used:
        return constant(interpret(scope, {}, Reals()).astype(np.float32))
    # an eOperator over reshaped arguments, whose tensors are named x0, x1, ... as an eOperator's inputs are
    flat, flat_tensors = flatten_dimensions(scope)
    args = [reshape_node(nodes[x], [number_of(n) for n in flat_tensors.get(x, x).shape]) for x in used]
    names: dict[Tensor, Source] = {
        flat_tensors.get(x, x): Tensor(f"x{k}", arg.tensor.shape, x.dtype)
        for k, (x, arg) in enumerate(zip(used, args, strict=True))
    }
    return apply(eop, args, {"scope": intern_scope(replace_tensors(flat, names))})


def format_scopes(scopes: Sequence[Scope]) -> str:
    """Return the expressions in one line."""
    return "; ".join(map(show, scopes))


def remove_sizes(text: str) -> str:
    """Return the text's sorted characters, without numbers and axes: sizes decide a sum's order of axes."""
    return "".join(sorted(re.sub(r"\d+|\b[a-z]\b|\s", "", text)))


def intensity(scope: Scope) -> float:
    """Return the operations for each element read or written; those of nested scopes are not counted."""
    if scope not in _intensities:
        _intensities[scope] = _intensity(scope)
    return _intensities[scope]


_intensities: IdentityCache[float] = IdentityCache()


def _intensity(scope: Scope) -> float:
    sources = {id(read.source): read.source for read in reads(scope)}.values()
    moved = number_of(product(scope.shape)) + sum(number_of(product(s.shape)) for s in sources)
    return number_of(flops(_WithoutNested().scope(scope))) / max(1, moved)


class _WithoutNested(Rewriting):
    """Replaces nested scopes by tensors."""

    def source(self, source: Source) -> Source:
        return Tensor("nested", source.shape) if isinstance(source, Scope) else source
