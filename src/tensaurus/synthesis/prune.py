"""Rules without those that the others derive (TASO, section 4; Ruler: what is derivable is redundant).

From the last to the first, so that special rules go before those that they follow from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensaurus.egraph.ruleset import Ruleset
from tensaurus.egraph.saturate import Limits
from tensaurus.rules.rule import Rule
from tensaurus.synthesis.derivable import derived
from tensaurus.synthesis.generate import Found

__all__ = ["pruned"]

LIMITS = Limits(nodes=4000, rounds=8, multi=0)


def pruned(found: Sequence[Found], watch: Callable[[int], None] = lambda left: None) -> list[Found]:
    """The rules that the others do not derive, from the left side alone; in their order."""
    kept = list(found)
    for one in reversed(found):
        others: list[Rule] = [rule for other in kept if other is not one for rule in other.rules]
        ruleset = Ruleset(others)
        if all(derived(left, right, ruleset, LIMITS) for left, right in one.ways):
            kept.remove(one)
        watch(len(kept))
    return kept
