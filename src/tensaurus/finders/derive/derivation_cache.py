"""Derivations that were found before, in the database: what differs in sizes alone follows them.

What is kept of one are the likenesses of its states (`State.likeness`): the rules are applied again, so that
a derivation is as right, and as well explained, as one that was searched for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from itertools import zip_longest
from math import inf

from tensaurus.expr.ir.scope import Scope
from tensaurus.finders.derive.derivation_search import CONVERGING, DEPTH, EXPLORATIVE, JOINT, Derived
from tensaurus.finders.derive.derivation_state import INTENSE, shown, sizeless
from tensaurus.finders.derive.joint_search import BEST, WAYS
from tensaurus.finders.derive.operator_matching import operators
from tensaurus.finders.derive.reorder_operands import reordered
from tensaurus.runtimes.measure.database import Database, Measurement

__all__ = ["Memory"]

TEXT = "derivations of "  # begins the workloads of their rows
FOLLOWED = 8  # trails of expressions of other sizes, at most

Trail = tuple[str, ...]


@dataclass
class Memory:
    """Trails by the expressions that they begin at; without a database, those of this run.

    kernels  whether they may lead to what only kernels compute (`Search.kernels`)
    """

    database: Database | None = None
    kernels: bool = True
    _trails: dict[str, dict[str, _Kept]] | None = field(default=None, repr=False)

    def at(self, roots: Sequence[Scope]) -> list[Trail] | None:
        """Those of these very expressions, the most promising first; None where they are not known."""
        text = shown(roots)
        kept = self._known().get(sizeless(text), {}).get(text)
        return None if kept is None else kept.trails

    def alike(self, roots: Sequence[Scope]) -> list[Trail]:
        """Those of expressions that differ from them in sizes alone, each once: the first of all come first.
        """
        others = self._known().get(sizeless(shown(roots)), {}).values()
        rounds = zip_longest(*(kept.trails for kept in others))
        each = dict.fromkeys(trail for one in rounds for trail in one if trail is not None)
        return list(each)[:FOLLOWED]

    def keep(self, roots: Sequence[Scope], found: Sequence[Derived]) -> None:
        """What a search found, the most promising first, or that there is nothing; in the place of what was
        known."""
        text = shown(roots)
        alike = self._known().setdefault(sizeless(text), {})
        times = alike[text].times + 1 if text in alike else 0
        kept = alike[text] = _Kept(times, list(dict.fromkeys(one.trail for one in found)))
        if self.database is not None:
            seconds = min((one.seconds for one in found), default=inf)
            row = json.dumps([kept.times, kept.trails])
            self.database.put(Measurement(f"{TEXT}{text}", rules(self.kernels), "", row, seconds))

    def _known(self) -> dict[str, dict[str, _Kept]]:
        if self._trails is None:
            found: dict[str, dict[str, _Kept]] = {}
            database, own = self.database, rules(self.kernels)
            for row in [] if database is None else database.beginning(TEXT, own, ""):
                text = row.workload.removeprefix(TEXT)
                times, trails = json.loads(row.schedule)
                alike = found.setdefault(sizeless(text), {})
                if text not in alike or alike[text].times < times:
                    alike[text] = _Kept(times, list(map(tuple, trails)))
            self._trails = found  # last, as a deadline may end the reading
        return self._trails


@dataclass(frozen=True)
class _Kept:
    """Trails of one expression, and how often others were kept before."""

    times: int
    trails: list[Trail]


@cache
def rules(kernels: bool) -> str:
    """What the trails depend on: rows of other rules, operators and limits are not read."""
    names = [f"{rule.__module__}.{rule.__name__}" for rule in (*EXPLORATIVE, *JOINT, *CONVERGING)]
    names += sorted({str(operator.op) for operator in operators()})
    names.append(f"{reordered.__module__}.{reordered.__name__}")
    text = " ".join([*names, str(DEPTH), str(INTENSE), str(WAYS), str(BEST)])
    text += "" if kernels else " operators alone"
    return f"derivation {sha256(text.encode()).hexdigest()[:16]}"
