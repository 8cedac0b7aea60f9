"""An equality of programs that stands on its own: what it says, over what, and why it is right.

Whoever finds an equality gives it out as one of these: an instance of a rule, nested calls that are one, and
whatever comes later.  It is checked over its leaves, and no rule is needed for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial

from tensaurus.graph.ir.node import Node, again
from tensaurus.rules.language.evidence import Derived, Evidence, Tested
from tensaurus.rules.language.evidence_limits import Limits, shown
from tensaurus.rules.language.match import Binding, Matcher
from tensaurus.rules.language.rule import Rule

__all__ = ["Equation", "instance"]

UNPROVED = Tested("float64", "where it is used")


@dataclass(frozen=True)
class Equation:
    """Programs that are equal pair by pair, whatever their leaves are.

    name      of the law, as a rule's
    law       in words, as a rule's line
    left      the programs before
    right     those after, of the same types
    leaves    the nodes that may be anything of their types; constants among them stay what they are
    ground    its evidence, or what finds it when it is asked for
    """

    name: str
    law: str
    left: tuple[Node, ...]
    right: tuple[Node, ...]
    leaves: tuple[Node, ...]
    ground: Evidence | Callable[[], Evidence] = field(compare=False)

    @cached_property
    def evidence(self) -> Evidence:
        """Why it holds."""
        return self.ground() if callable(self.ground) else self.ground

    def over(self, leaves: Mapping[Node, Node]) -> Equation:
        """The same of other leaves; raises Untypable where their types are others and do not fit."""
        new = dict(leaves)

        def visit(node: Node) -> Node:
            if node not in new:
                new[node] = again(node, tuple(arg and visit(arg) for arg in node.args))
            return new[node]

        left, right = (tuple(map(visit, side)) for side in (self.left, self.right))
        kept = dict.fromkeys(map(visit, self.leaves))
        return replace(
            self, left=left, right=right, leaves=tuple(kept), ground=lambda: _over(self.evidence, leaves)
        )


def _over(evidence: Evidence, leaves: Mapping[Node, Node]) -> Evidence:
    """The evidence of the same over other leaves: its steps are over those, too."""
    if not isinstance(evidence, Derived):
        return evidence
    steps = (step.over(leaves) if isinstance(step, Equation) else step for step in evidence.steps)
    return Derived(tuple(steps))


def instance(rule: Rule, binding: Binding, left: Sequence[Node], right: Sequence[Node]) -> Equation:
    """A rule at one place."""
    leaves = tuple(dict.fromkeys(binding.nodes.values()))
    sides = tuple(left), tuple(right)
    return Equation(rule.name, rule.law, *sides, leaves, partial(_ground, rule, binding, *sides))


def _ground(rule: Rule, binding: Binding, left: Sequence[Node], right: Sequence[Node]) -> Evidence:
    """The rule's evidence where it covers the place, else what shows that both sides are equal there."""
    facts = binding.facts()
    if Limits(rule).within(facts, binding.values):
        return rule.evidence or UNPROVED
    return shown(left, right, binding.nodes, facts) or UNPROVED


def matched(rule: Rule, left: Sequence[Node], right: Sequence[Node]) -> Equation:
    """The same, of programs that the rule is known to rewrite; raises ValueError where it does not."""
    matcher = _matcher(rule)
    for binding in matcher.bindings(left):
        if matcher.apply(left, binding) == tuple(right):
            return instance(rule, binding, left, right)
    raise ValueError(f"the rule {rule.name} does not rewrite {left} to {right}")


@lru_cache(256)
def _matcher(rule: Rule) -> Matcher:
    return Matcher(rule)
