"""The fastest schedule of an expression on this machine, from the database or by trying.

Half of the time goes to the analysis's own order, half to schedules that differ in one sketch or parameter from the
best so far; the fastest three are timed again, longer, and the fastest that computes the right numbers is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from importlib.metadata import version
from itertools import chain
from math import inf
from time import monotonic
from typing import TypeAlias

from tensaurus.algebra.expr import Scope
from tensaurus.algebra.text import show as show_scope
from tensaurus.child import Child, ChildError
from tensaurus.codegen.compile import features, operands, tensors
from tensaurus.codegen.pipeline import prepared
from tensaurus.codegen.sketch import Pack, Schedule, Sketch, loops, packs, parse, show
from tensaurus.cost.database import Database, Measurement
from tensaurus.cost.machine import Machine
from tensaurus.errors import TensaurusError
from tensaurus.ops import TensorType
from tensaurus.tuning.space import Core, packs_of, sketches

__all__ = ["Tuner"]

LONG = 10.0  # seconds that compiling and timing one schedule may take
SHORT, LONGER = 0.03, 0.2  # seconds of one timing, and of one that decides
LAST = 3  # schedules that are timed again
SIMILAR, NEAREST = 3, 3  # expressions of other sizes that are looked at, and schedules like theirs
POOL = 600  # schedules of one nest that are looked at


class Tuner:
    """Schedules of expressions for one processor."""

    def __init__(self, database: Database, machine: Machine, cpu: str):
        self.database, self.machine, self.cpu = database, machine, cpu
        words = features(cpu)
        wide = any(word.startswith("avx512") for word in words)
        self.core = Core(512 if wide else 256, 32 if wide else 16, machine.threads)
        self.backend = f"halide {version('halide')} {' '.join(words)}"
        self._child: Child | None = None
        self._winners: dict[str, list[Schedule]] | None = None
        self.tried = 0

    def known(self, scope: Scope, types: Sequence[TensorType], fixed: Sequence[bool] = ()) -> Schedule | None:
        """The fastest schedule that was measured before."""
        text = self._workload(scope, types, fixed)
        rows = [m for m in self.database.of(text, self.backend, self.machine.key) if m.seconds < inf]
        for row in sorted(rows, key=lambda m: (m.seconds, m.schedule)):
            with suppress(ValueError):
                return parse(row.schedule)
        return None

    def best(
        self,
        scope: Scope,
        types: Sequence[TensorType],
        output: TensorType,
        seconds: float,
        fixed: Sequence[bool] = (),
    ) -> Schedule | None:
        """The fastest schedule, found in so many seconds where it is not known; None where none computes it.

        `fixed` says which inputs are constants, so that they may be packed.
        """
        found = self.known(scope, types, fixed)
        if found is not None or seconds <= 0:
            return found
        return self._tuned(scope, types, output, seconds, fixed)

    def _workload(self, scope: Scope, types: Sequence[TensorType], fixed: Sequence[bool]) -> str:
        constants = ", ".join(f"x{k}" for k, known in enumerate(fixed) if known)
        return f"{show_scope(scope)} over {', '.join(map(str, types))}" + (
            f" where {constants} {'is' if sum(fixed) == 1 else 'are'} constant" if constants else ""
        )

    def _pools(
        self, scope: Scope, types: Sequence[TensorType], fixed: Sequence[bool]
    ) -> list[tuple[tuple[Pack, ...], list[list[Sketch]]]]:
        """The sketches of each nest, with nothing packed and with weights packed."""
        plain = prepared(scope, tensors(types))[0]
        found = [((), [pool[:POOL] for pool in sketches(plain, self.core)])]
        for pack in packs_of(scope, types, fixed, self.core):
            packed_types, own, _ = operands(scope, types, (pack,))
            stages, _ = prepared(own, tensors(packed_types))
            found.append(((pack,), [pool[:POOL] for pool in sketches(stages, self.core)]))
        return found

    def _tuned(
        self,
        scope: Scope,
        types: Sequence[TensorType],
        output: TensorType,
        seconds: float,
        fixed: Sequence[bool],
    ) -> Schedule | None:
        begin = monotonic()
        workload = self._workload(scope, types, fixed)
        pools = self._pools(scope, types, fixed)
        times: dict[Schedule, float] = {}
        self._ask("take", show_scope(scope), tuple(types), output)

        def attempt(schedule: Schedule, timing: float = SHORT) -> float:
            if schedule not in times or timing > SHORT:
                self.tried += 1
                try:
                    times[schedule] = float(self._ask("time", show(schedule), timing))  # type: ignore[arg-type]
                except ChildError as error:
                    times[schedule] = inf
                    if self._child is None:
                        self._ask("take", show_scope(scope), tuple(types), output)
                    del error
            return times[schedule]

        ordered = chain(_alike(self._similar(workload), pools), _in_order(pools))
        for count, schedule in enumerate(ordered):
            if count and monotonic() - begin > seconds / 2 and min(times.values()) < inf:
                break
            if monotonic() - begin > 4 * seconds:
                break
            attempt(schedule)
        while monotonic() - begin < seconds and times:
            leaders = sorted(times, key=lambda s: times[s])[:2]
            if not any(attempt(near) is not None for near in _near(leaders, pools, times)):
                break
        ranked = [s for s in sorted(times, key=lambda s: (times[s], show(s))) if times[s] < inf][:LAST]
        for schedule in ranked:
            attempt(schedule, LONGER)
        rows = []
        winner = None
        for schedule in sorted(ranked, key=lambda s: times[s]):
            if winner is None:
                try:
                    wrong = self._ask("right", show(schedule))
                except ChildError as error:
                    wrong = str(error)
                    if self._child is None:
                        self._ask("take", show_scope(scope), tuple(types), output)
                if wrong:
                    continue
                winner = schedule
            rows.append(Measurement(workload, self.backend, self.machine.key, show(schedule), times[schedule]))
        if rows:
            self.database.put_many(rows)
        if winner is not None:
            self._similar(workload).append(winner)
        return winner

    def _similar(self, workload: str) -> list[Schedule]:
        """The fastest schedules of expressions that differ in sizes alone, the latest last."""
        if self._winners is None:
            self._winners = {}
            fastest: dict[str, Measurement] = {}
            for row in self.database.made_for(self.backend, self.machine.key):
                if row.workload not in fastest or row.seconds < fastest[row.workload].seconds:
                    fastest[row.workload] = row
            for row in fastest.values():
                with suppress(ValueError):
                    self._winners.setdefault(_form(row.workload), []).append(parse(row.schedule))
        return self._winners.setdefault(_form(workload), [])

    def _ask(self, verb: str, *arguments: object) -> object:
        if self._child is None:
            self._child = Child(
                "the compiler of kernels",
                "tensaurus.tuning.trial:Trials",
                self.cpu,
                timeout=LONG,
                environment={"HL_NUM_THREADS": str(self.machine.threads)},
            )
        try:
            return self._child.ask(verb, *arguments)
        finally:
            if not self._child.alive:  # after an interrupt, too
                self.close()

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None


Pools: TypeAlias = Sequence[tuple[tuple[Pack, ...], Sequence[Sequence[Sketch]]]]


def _form(workload: str) -> str:
    """The text without its numbers."""
    return re.sub(r"\d+", "#", workload)


def _alike(known: Sequence[Schedule], pools: Pools) -> Iterator[Schedule]:
    """The schedules here that are most like those: an expression of other sizes wants the same loops."""
    by_kind = {tuple(pack.dimension for pack in packed): (packed, nests) for packed, nests in pools}
    for schedule in reversed(known[-SIMILAR:]):
        packed, nests = by_kind.get(tuple(p.dimension for p in packs(schedule)), ((), ()))
        sketches_ = loops(schedule)
        if len(sketches_) != len(nests):
            continue
        nearest = [
            sorted((s for s in pool if type(s) is type(own)), key=lambda s: _distance(s, own))[:NEAREST]
            for own, pool in zip(sketches_, nests, strict=True)
        ]
        for place in range(NEAREST):
            if all(len(pool) > place for pool in nearest):
                yield (*packed, *(pool[place] for pool in nearest))


def _in_order(pools: Pools) -> Iterator[Schedule]:
    """One sketch of each nest, the most promising first; nests' own orders go side by side, packed or not."""
    longest = max((len(pool) for _, nests in pools for pool in nests), default=0)
    done = set()
    for place in range(longest):
        for packed, nests in pools:
            schedule = (*packed, *(pool[min(place, len(pool) - 1)] for pool in nests))
            if schedule not in done:
                done.add(schedule)
                yield schedule


def _near(leaders: Sequence[Schedule], pools: Pools, times: dict[Schedule, float]) -> list[Schedule]:
    """The next untried schedule that differs from a leader in one sketch, by one parameter where there is one."""
    for leader in leaders:
        nests = dict(pools)[packs(leader)]
        for place, pool in enumerate(nests, len(packs(leader))):
            own = leader[place]
            near = sorted(
                (s for s in pool if s != own and type(s) is type(own)), key=lambda s: _distance(s, own)
            )
            for sketch in near:
                schedule = (*leader[:place], sketch, *leader[place + 1 :])
                if schedule not in times and _distance(sketch, own) <= 2:
                    return [schedule]
    return []


def _distance(a: object, b: object) -> int:
    """In how many parameters two sketches of one kind differ."""
    return sum(getattr(a, f.name) != getattr(b, f.name) for f in fields(a))  # type: ignore[arg-type]
