"""Derivations that were found before, in the database: what differs in sizes alone follows them.

What is kept of one are the likenesses of its states (`State.likeness`): the rules are applied again, so that
a derivation is as right, and as well explained, as one that was searched for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from tensaurus.algebra.expr import Scope
from tensaurus.algebra.text import show
from tensaurus.cost.database import Database, Measurement
from tensaurus.derive.search import Derived
from tensaurus.derive.state import sizeless

__all__ = ["Memory"]

TEXT = "derivations of "  # begins the workloads of their rows
RULES = "derivation 1"  # those that the trails are of; others are not followed

Trail = tuple[str, ...]


@dataclass
class Memory:
    """Trails by the expressions that they begin at; without a database, those of this run."""

    database: Database | None = None
    _trails: dict[str, dict[str, list[Trail]]] | None = field(default=None, repr=False)

    def at(self, scope: Scope) -> list[Trail] | None:
        """Those of this very expression, the most promising first; None where it is not known."""
        text = show(scope)
        return self._known().get(sizeless(text), {}).get(text)

    def alike(self, scope: Scope) -> list[Trail]:
        """Those of expressions that differ from it in sizes alone, each once."""
        others = self._known().get(sizeless(show(scope)), {})
        return list(dict.fromkeys(trail for trails in others.values() for trail in trails))

    def keep(self, scope: Scope, found: Sequence[Derived]) -> None:
        """These, the most promising first, or that there is nothing."""
        text = show(scope)
        trails = list(dict.fromkeys(one.trail for one in found))
        self._known().setdefault(sizeless(text), {})[text] = trails
        if self.database is not None:
            rows = [(json.dumps(one.trail), one.seconds) for one in reversed(found)] or [("", inf)]
            self.database.put_many(
                Measurement(f"{TEXT}{text}", RULES, "", trail, seconds) for trail, seconds in rows
            )

    def _known(self) -> dict[str, dict[str, list[Trail]]]:
        if self._trails is None:
            self._trails = {}
            rows = [] if self.database is None else self.database.beginning(TEXT, RULES, "")
            for row in sorted(rows, key=lambda row: (row.seconds, row.schedule)):
                text = row.workload.removeprefix(TEXT)
                trails = self._trails.setdefault(sizeless(text), {}).setdefault(text, [])
                if row.schedule:
                    trails.append(tuple(json.loads(row.schedule)))
        return self._trails
