"""An equality of concrete programs, with its leaves and its evidence.

Every finder reports its equalities as equations: instances of rules, merged nested calls, fused kernels.  An
equation can be checked over its leaves without the rule or the finder that made it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial

from tensaurus.graph.ir.node import Node, replace_args
from tensaurus.rules.language.evidence import Derived, Evidence, Tested
from tensaurus.rules.language.evidence_limits import Limits, prove_match
from tensaurus.rules.language.match import Binding, Matcher
from tensaurus.rules.language.rule import Rule

__all__ = ["Equation", "instantiate_rule"]

# Evidence of a match that nothing covers or proves: the check of a result replays its equation on numbers.
TESTED_AT_USE = Tested("float64", "where it is used")


@dataclass(frozen=True)
class Equation:
    """Programs that are equal pair by pair, for all values of the leaves.

    name             the rule's name, or the finder's name for the law
    law              the law as text, as in a rule's line
    left             the programs before
    right            the programs after, of the same types
    leaves           nodes that may have any value of their types; constants among them keep their value
    evidence_source  the evidence, or a function that finds it when it is first needed
    """

    name: str
    law: str
    left: tuple[Node, ...]
    right: tuple[Node, ...]
    leaves: tuple[Node, ...]
    evidence_source: Evidence | Callable[[], Evidence] = field(compare=False)

    @cached_property
    def evidence(self) -> Evidence:
        """Why the equation holds."""
        return self.evidence_source() if callable(self.evidence_source) else self.evidence_source

    def over(self, leaves: Mapping[Node, Node]) -> Equation:
        """Return the equation over other leaves; raises Untypable where their types do not fit."""
        new = dict(leaves)

        def visit(node: Node) -> Node:
            if node not in new:
                new[node] = replace_args(node, tuple(arg and visit(arg) for arg in node.args))
            return new[node]

        left, right = (tuple(map(visit, side)) for side in (self.left, self.right))

        def find_evidence() -> Evidence:
            return _replace_evidence_leaves(self.evidence, leaves)

        new_leaves = tuple(dict.fromkeys(map(visit, self.leaves)))
        return replace(self, left=left, right=right, leaves=new_leaves, evidence_source=find_evidence)


def _replace_evidence_leaves(evidence: Evidence, leaves: Mapping[Node, Node]) -> Evidence:
    """Return the evidence of an equation over other leaves, with the steps of a derivation over them, too."""
    if not isinstance(evidence, Derived):
        return evidence
    steps = (step.over(leaves) if isinstance(step, Equation) else step for step in evidence.steps)
    return Derived(tuple(steps))


def instantiate_rule(rule: Rule, binding: Binding, left: Sequence[Node], right: Sequence[Node]) -> Equation:
    """Return the equation that a rule gives for one match."""
    leaves = tuple(dict.fromkeys(binding.nodes.values()))
    sides = tuple(left), tuple(right)
    return Equation(rule.name, rule.law, *sides, leaves, partial(_find_evidence, rule, binding, *sides))


def _find_evidence(rule: Rule, binding: Binding, left: Sequence[Node], right: Sequence[Node]) -> Evidence:
    """Return the rule's evidence where it covers the match, else a proof that both sides are equal there."""
    facts = binding.facts()
    if Limits(rule).covers(facts, binding.values):
        return rule.evidence or TESTED_AT_USE
    return prove_match(left, right, binding.nodes, facts) or TESTED_AT_USE


def equation_of_rewrite(rule: Rule, left: Sequence[Node], right: Sequence[Node]) -> Equation:
    """Return the equation of a rewrite that the rule is known to make.  Raises ValueError if it does not."""
    matcher = _matcher(rule)
    for binding in matcher.match_roots(left):
        if matcher.apply(left, binding) == tuple(right):
            return instantiate_rule(rule, binding, left, right)
    raise ValueError(f"the rule {rule.name} does not rewrite {left} to {right}")


@lru_cache(256)
def _matcher(rule: Rule) -> Matcher:
    return Matcher(rule)
