"""Drops rules that the others derive (TASO, section 4; in Ruler's words, derivable rules are redundant).

Rules are tried from the last to the first, so that special ones go before the general ones that derive them.
A rule that makes a term smaller must be derivable by rules that make none larger.  x + 0 = x is derivable
through x + 0 = min(x, 0) + max(x, 0), but no search should have to take that way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensaurus.egraph.match.ruleset import Ruleset
from tensaurus.egraph.match.saturate import Limits
from tensaurus.finders.synthesis.derivable import is_derivable
from tensaurus.finders.synthesis.generate import GeneratedRule
from tensaurus.rules.language.occurrences import outer_first
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.language.term import Term

__all__ = ["prune_rules"]

PRUNING_LIMITS = Limits(nodes=4000, rounds=8, multi=0)  # each rule is tried once: more than while generating


def prune_rules(
    rules: Sequence[GeneratedRule], watch: Callable[[int], None] = lambda count: None
) -> list[GeneratedRule]:
    """Return the rules that the others do not derive from the left side alone; `watch` gets their number."""
    remaining = list(rules)
    for one in reversed(rules):
        others: list[Rule] = [rule for other in remaining if other is not one for rule in other.rules]
        rulesets = {True: Ruleset([rule for rule in others if _growth(rule) <= 0]), False: Ruleset(others)}
        if all(
            is_derivable(left, right, rulesets[_growth(rule) < 0], PRUNING_LIMITS)
            for rule, (left, right) in zip(one.rules, one.directions, strict=True)
        ):
            remaining.remove(one)
        watch(len(remaining))
    return remaining


def _growth(rule: Rule) -> int:
    """Return how many more operators the right side has than the left side."""
    return _count_operators(rule.rhs) - _count_operators(rule.lhs)


def _count_operators(roots: Sequence[Term]) -> int:
    return sum(1 for root in roots for _ in outer_first(root))
