"""Remembers found derivations in the measurement database, so that they are not searched for again.

A stored derivation is a trail: for each of its states a hash, `State.similarity`.  A trail is followed by
applying the rules again and keeping the states with these hashes, so that the result is checked and explained
like one that was searched for.  The hash ignores sizes: trails are tried at other sizes, too.
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
from tensaurus.finders.derive.derivation_search import (
    CONVERGING,
    EXPLORATIVE,
    JOINT,
    MAX_DEPTH,
    DerivedProgram,
)
from tensaurus.finders.derive.derivation_state import MIN_INTENSITY, format_scopes, remove_sizes
from tensaurus.finders.derive.joint_search import MAX_MERGED_STATES, PATHS_PER_RULES
from tensaurus.finders.derive.reorder_operands import reordered
from tensaurus.graph.analysis.matchable_operators import matchable_operators
from tensaurus.runtimes.measure.database import Database, Measurement

__all__ = ["DerivationCache"]

WORKLOAD_PREFIX = "derivations of "  # of the database's rows; the expressions' text follows
MAX_SIMILAR_TRAILS = 8  # trails of other sizes that are tried: following one takes less time than a search

Trail = tuple[str, ...]


@dataclass
class DerivationCache:
    """Trails by the expressions at which they begin; without a database, only those of this run.

    allows_kernels  whether trails may lead to expressions that only generated kernels compute
                    (`Search.allows_kernels`); the two kinds of trails are stored apart
    _by_shape       {expressions' text without sizes: {text: trails}}, None until `_load` has read it
    """

    database: Database | None = None
    allows_kernels: bool = True
    _by_shape: dict[str, dict[str, _StoredTrails]] | None = field(default=None, repr=False)

    def trails_at(self, roots: Sequence[Scope]) -> list[Trail] | None:
        """Return the stored trails of these expressions, the most promising first.

        None where they were never searched; an empty list where a search found nothing.
        """
        text = format_scopes(roots)
        stored = self._load().get(remove_sizes(text), {}).get(text)
        return None if stored is None else stored.trails

    def similar_trails(self, roots: Sequence[Scope]) -> list[Trail]:
        """Return trails of expressions that differ in sizes alone: the first of each, then the second, ..."""
        similar = self._load().get(remove_sizes(format_scopes(roots)), {}).values()
        rounds = zip_longest(*(stored.trails for stored in similar))
        distinct = dict.fromkeys(trail for one in rounds for trail in one if trail is not None)
        return list(distinct)[:MAX_SIMILAR_TRAILS]

    def store(self, roots: Sequence[Scope], programs: Sequence[DerivedProgram]) -> None:
        """Store the trails of the found programs, the most promising first, in place of earlier ones."""
        text = format_scopes(roots)
        similar = self._load().setdefault(remove_sizes(text), {})
        times = similar[text].times + 1 if text in similar else 0
        stored = similar[text] = _StoredTrails(times, list(dict.fromkeys(one.trail for one in programs)))
        if self.database is not None:
            seconds = min((one.seconds for one in programs), default=inf)
            row = json.dumps([stored.times, stored.trails])
            version = cache_version(self.allows_kernels)
            # the row has the version in place of a backend, no device, and the trails in place of a schedule
            self.database.put(Measurement(f"{WORKLOAD_PREFIX}{text}", version, "", row, seconds))

    def _load(self) -> dict[str, dict[str, _StoredTrails]]:
        """Return {text without sizes: {text: trails}}, read from the database at the first call."""
        if self._by_shape is None:
            loaded: dict[str, dict[str, _StoredTrails]] = {}
            database, version = self.database, cache_version(self.allows_kernels)
            for row in [] if database is None else database.beginning(WORKLOAD_PREFIX, version, ""):
                text = row.workload.removeprefix(WORKLOAD_PREFIX)
                times, trails = json.loads(row.schedule)
                similar = loaded.setdefault(remove_sizes(text), {})
                if text not in similar or similar[text].times < times:
                    similar[text] = _StoredTrails(times, list(map(tuple, trails)))
            self._by_shape = loaded  # assigned last: a deadline may interrupt the loop
        return self._by_shape


@dataclass(frozen=True)
class _StoredTrails:
    """The trails of one expression, and how many times they replaced earlier ones.

    The database may hold several rows of one expression: the one with the highest count is the newest.
    """

    times: int
    trails: list[Trail]


@cache
def cache_version(allows_kernels: bool) -> str:
    """Return a hash of the rules, operators and limits that trails depend on; other versions are not read.

    The names of the rules' modules and functions are hashed: renaming one of them discards stored trails.
    """
    names = [f"{rule.__module__}.{rule.__name__}" for rule in (*EXPLORATIVE, *JOINT, *CONVERGING)]
    names += sorted({str(operator.op) for operator in matchable_operators()})
    names.append(f"{reordered.__module__}.{reordered.__name__}")
    limits = MAX_DEPTH, MIN_INTENSITY, PATHS_PER_RULES, MAX_MERGED_STATES
    text = " ".join([*names, *map(str, limits)])
    text += "" if allows_kernels else " operators alone"
    return f"derivation {sha256(text.encode()).hexdigest()[:16]}"
