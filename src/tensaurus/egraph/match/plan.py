"""Defines plans: the e-nodes that a rule inserts for all matches of equal types, see `rewrite`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.match.insertion import Insert, Ref, Step, resolve
from tensaurus.graph.analysis.needed_rounding import (
    is_large_constant,
    must_keep_operand,
    removes_needed_rounding,
)
from tensaurus.graph.ir.node import Node

__all__ = ["Plan", "RegroupedConstant"]


class RegroupedConstant(NamedTuple):
    """A constant that meets other operands on the right side, as a in (x * a) * b => (x * b) * a."""

    variable: int
    calls: frozenset[str]  # where: "sum", "product"


@dataclass(frozen=True)
class Plan:
    """The right-hand sides of a rule, for all matches with the same heads and types.

    steps   the e-nodes to insert, arguments first
    roots   for each root of the rule what equals it
    values  the attribute values that the match binds
    dtype   the type of numbers that the rule writes
    insert  the compiled steps

    For `loses_rounding`:

    constant_steps       the steps that compute from constants only
    dropped_constants    the variables that are constants and that the right-hand side does not read
    regrouped_constants  the variables that are constants and meet other operands there
    """

    steps: tuple[Step, ...]
    roots: tuple[Ref, ...]
    values: dict[str, Any] = field(compare=False)
    dtype: str
    insert: Insert = field(compare=False)
    constant_steps: tuple[int, ...] = ()
    dropped_constants: tuple[int, ...] = ()
    regrouped_constants: tuple[RegroupedConstant, ...] = ()

    @cached_property
    def may_lose_rounding(self) -> bool:
        """Whether `loses_rounding` may be true for some matches."""
        return bool(self.constant_steps or self.dropped_constants or self.regrouped_constants)

    def count_new_enodes(self, graph: EGraph, terms: Sequence[int]) -> int:
        """Return how many e-nodes the plan would insert, at most."""
        enodes: list[int | None] = []  # of each step, None where it is new
        for step in self.steps:
            if step.node is not None:
                enodes.append(graph.enode_of(step.node))
                continue
            args = [resolve(ref, terms, enodes) for ref in step.args]
            enodes.append(None if None in args else graph.peek(step.head, args))
        return enodes.count(None)

    def loses_rounding(self, graph: EGraph, terms: Sequence[int]) -> bool:
        """Return whether the plan combines constants whose rounding has a meaning (`needed_rounding`).

        Its e-nodes are then not even inserted, as another rule could merge them with the original.
        """

        def constant(variable: int) -> Node:
            return graph.term(graph.constant_of(terms[variable]))

        if any(is_large_constant(constant(variable)) for variable in self.dropped_constants):
            return True
        if any(must_keep_operand(constant(variable), calls) for variable, calls in self.regrouped_constants):
            return True
        nodes: dict[int, Node] = {}  # of each constant step; the term of its e-node if that exists already
        enodes: dict[int, int | None] = {}  # of each constant step, None where it is new
        for number in self.constant_steps:
            head, args, _, node = self.steps[number]
            if node is None:
                known = [resolve(ref, terms, enodes) for ref in args]
                enode = None if None in known else graph.peek(head, known)
                if enode is None:
                    node = head.build(
                        [
                            None if ref is None else nodes[~ref] if ref < 0 else graph.term(terms[ref])
                            for ref in args
                        ]
                    )
                else:
                    node = graph.term(enode)
            else:
                enode = graph.enode_of(node)
            if removes_needed_rounding(node):
                return True
            nodes[number], enodes[number] = node, enode
        return False

    def needs(self, graph: EGraph, terms: Sequence[int], made: Sequence[int]) -> list[tuple[int, int]]:
        """Return the pairs of equal arguments where an existing e-node has taken the place of a step."""
        needs: list[tuple[int, int]] = []
        for step, enode in zip(self.steps, made, strict=True):
            if step.node is None:
                args = (resolve(ref, terms, made) for ref in step.args)
                needs += [(a, b) for a, b in zip(graph.original_args[enode], args, strict=True) if a != b]
        return needs
