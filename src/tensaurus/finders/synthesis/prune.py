"""Rules without those that the others derive (TASO, section 4; Ruler: what is derivable is redundant).

From the last to the first, so that special rules go before those that they follow from.  A rule that makes a
term smaller has to follow from such as make none larger: x + 0 is min(x, 0) + max(x, 0), too, and x in the
end, and no search should need to come that way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensaurus.egraph.match.ruleset import Ruleset
from tensaurus.egraph.match.saturate import Limits
from tensaurus.finders.synthesis.derivable import derived
from tensaurus.finders.synthesis.generate import Found
from tensaurus.rules.language.occurrences import outer_first
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.language.term import Term

__all__ = ["pruned"]

LIMITS = Limits(nodes=4000, rounds=8, multi=0)


def pruned(found: Sequence[Found], watch: Callable[[int], None] = lambda left: None) -> list[Found]:
    """The rules that the others do not derive, from the left side alone; in their order."""
    kept = list(found)
    for one in reversed(found):
        others: list[Rule] = [rule for other in kept if other is not one for rule in other.rules]
        rulesets = {True: Ruleset([rule for rule in others if _growth(rule) <= 0]), False: Ruleset(others)}
        if all(
            derived(left, right, rulesets[_growth(rule) < 0], LIMITS)
            for rule, (left, right) in zip(one.rules, one.ways, strict=True)
        ):
            kept.remove(one)
        watch(len(kept))
    return kept


def _growth(rule: Rule) -> int:
    """How many more operators the right side has."""
    return _size(rule.rhs) - _size(rule.lhs)


def _size(roots: Sequence[Term]) -> int:
    return sum(1 for root in roots for _ in outer_first(root))
