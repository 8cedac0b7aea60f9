"""The fastest schedule of an expression on this machine, from the database or by trying.

What reduces alike (`kernels/tune/schedule_reuse`) is tuned once: the schedules that were fastest come first,
and where as much time went into them as there is, nothing else is tried.  Half of the time goes to the
analysis's own order, in turns with schedules of what differs in sizes alone, half to schedules that differ
from the best so far in one sketch, by one or two parameters, until many of them bring nothing.  The fastest
three, where they are close and there is time, are timed again, longer and on all threads, and the fastest of
these that computes the right numbers is kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain, islice, takewhile
from math import inf, prod
from time import monotonic

from tensaurus.expr.ir.expression_text import show as show_scope
from tensaurus.expr.ir.scope import Scope
from tensaurus.expr.sizes.size import product
from tensaurus.kernels.halide.compile import features, operands, tensors
from tensaurus.kernels.halide.pipeline import prepared
from tensaurus.kernels.stages.bilinear_chain import combined
from tensaurus.kernels.stages.loop_nest import Nest, nests
from tensaurus.kernels.stages.sketch import Block, Prefix, Schedule, Sketch, loops, parse, prefix, show
from tensaurus.kernels.stages.stage import extent, staged
from tensaurus.kernels.tune.chain_schedules import transforms
from tensaurus.kernels.tune.compiled_objects import Compiler
from tensaurus.kernels.tune.register_blocks import POOL
from tensaurus.kernels.tune.schedule_pools import Pools, alike, in_order, in_turns, near, unique, varied
from tensaurus.kernels.tune.schedule_reuse import Reduced, reduced
from tensaurus.kernels.tune.schedule_space import bands_of, packs_of, sketches
from tensaurus.kernels.tune.target_core import BYTES, Core, Shape, exchanged, share
from tensaurus.kernels.tune.timing_processes import Runner
from tensaurus.ops import TensorType
from tensaurus.runtimes.measure.database import Database, Measurement
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.price.operation_counts import number_of

__all__ = ["Tuner"]

SHORT, LONGER = 0.03, 0.1  # seconds of one timing, and of one that decides
IDLE, GAIN = 25, 0.98  # steps after which tuning ends where none of them came to less than this part
LEADERS, LAST = 2, 3  # schedules that others are like, and that are timed again
KEPT = 3  # schedules of what reduces alike
ENOUGH = 12  # tries, until which what reduces alike is tuned on as if there were no time in it
LOOPS = "loops of "  # begins the rows of those
DECIDED = 1.25  # of the time for one kernel, until which another schedule of it is timed again
CLOSE = 1.2  # times the fastest: what is slower on one thread is not timed again
LONG = 7.0  # seconds at most that one schedule may compile for, beyond what each has
REVISION = "r12"  # of what schedules become: times of another one are not these
LARGE = 1 << 24  # multiplications of a kernel, at least, of which it is asked whether it is worth trying
HOPELESS = 16  # operations for each element moved, from which on a product wants blocks of registers


@dataclass(frozen=True)
class _Wanted:
    """An expression of inputs, some of which are `fixed`, and the seconds for its schedule, from when on."""

    scope: Scope
    types: tuple[TensorType, ...]
    output: TensorType
    fixed: tuple[bool, ...]
    seconds: float
    begin: float

    @property
    def spent(self) -> float:
        return monotonic() - self.begin


@dataclass
class Tuning:
    """What is known of expressions that reduce alike.

    fastest  texts of schedules, with roles for names
    seconds  that went into them
    tried    how many were, in this run
    passed   how many of those in the analysis's order
    """

    fastest: tuple[str, ...] = ()
    seconds: float = 0.0
    tried: int = 0
    passed: int = 0

    @property
    def enough(self) -> bool:
        """Whether several were tried, in this run or, where none was, in one before."""
        return not 0 < self.tried < ENOUGH

    def lasts(self, seconds: float) -> bool:
        """Whether nothing else would be tried in so many seconds."""
        return self.enough and self.seconds >= seconds


class Tuner:
    """Schedules of expressions for one processor."""

    def __init__(self, database: Database, machine: Machine, cpu: str):
        self.database, self.machine, self.cpu = database, machine, cpu
        words = features(cpu)
        wide = any(word.startswith("avx512") for word in words)
        self.core = Core(512 if wide else 256, 32 if wide else 16, machine.threads)
        self.backend = f"halide {version('halide')} {REVISION} {' '.join(words)}"
        self.runner = Runner(cpu, machine.threads)
        self.objects = Compiler(cpu)
        self._tunings: dict[str, Tuning] | None = None
        self.tried = 0

    def known(self, scope: Scope, types: Sequence[TensorType], fixed: Sequence[bool] = ()) -> Schedule | None:
        """The fastest schedule that was measured before."""
        for row in self.measured(scope, types, fixed):
            with suppress(ValueError):
                return parse(row.schedule)
        return None

    def measured(
        self, scope: Scope, types: Sequence[TensorType], fixed: Sequence[bool] = ()
    ) -> list[Measurement]:
        """The schedules that were measured before, the fastest first."""
        text = self._workload(scope, types, fixed)
        rows = [m for m in self.database.of(text, self.backend, self.machine.key) if m.seconds < inf]
        return sorted(rows, key=lambda m: (m.seconds, m.schedule))

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

    def _pools(self, scope: Scope, types: Sequence[TensorType], fixed: Sequence[bool]) -> Pools:
        """The sketches of each nest, with nothing packed and with weights packed."""
        found: list[tuple[tuple[Prefix, ...], list[list[Sketch]], list[Shape]]] = [
            (packed, [pool[:POOL]], [shape])
            for packed, pool, shape in transforms(scope, types, fixed, self.core)
        ]
        if found or combined(staged(scope)):  # which no other sketch computes in any sensible time
            return found
        changes: list[tuple[Prefix, ...]] = [(), *((p,) for p in packs_of(scope, types, fixed, self.core))]
        changes += [(band,) for band in bands_of(scope)]
        for packed in changes:
            packed_types, own, _ = operands(scope, types, packed)
            stages, _ = prepared(own, tensors(packed_types), packed)
            shapes = [_shape(nest) for nest in nests(stages)]
            pools = [pool[:POOL] for pool in sketches(stages, self.core)]
            if any(_hopeless(nest, pool) for nest, pool in zip(nests(stages), pools, strict=True)):
                continue
            found.append((packed, pools, shapes))
        return found

    def _tuned(
        self,
        scope: Scope,
        types: Sequence[TensorType],
        output: TensorType,
        seconds: float,
        fixed: Sequence[bool],
    ) -> Schedule | None:
        self.runner.take(show_scope(scope), types, output)
        wanted = _Wanted(scope, tuple(types), output, tuple(fixed), seconds, monotonic())
        form = self._reduced(scope, types, fixed)
        tuning = Tuning() if form is None else self._tuning(form)
        known = [] if form is None else [s for text in tuning.fastest if (s := form.own(text)) is not None]
        pools = self._pools(scope, types, fixed)
        found: dict[Schedule, float] = {}
        if known and tuning.lasts(seconds):
            self.tried += 1
            found = self._decided(wanted, known[:1], pools)
            known = []  # where it does not fit, all is tried
        if not found:
            found = self._decided(wanted, self._ranked(wanted, form, known, pools), pools)
        if not found:
            return None
        self._keep(self._workload(scope, types, fixed), {show(s): taken for s, taken in found.items()})
        if form is not None:
            alike = {text: taken for s, taken in found.items() if (text := form.general(s)) is not None}
            self._keep(f"{LOOPS}{form.text}", {**alike, "": tuning.seconds})
            tuning.fastest = tuple(dict.fromkeys((*[*alike][:1], *tuning.fastest)))[:KEPT]
        return next(iter(found))

    def _keep(self, workload: str, times: Mapping[str, float]) -> None:
        """Schedules' times into the database."""
        self.database.put_many(
            Measurement(workload, self.backend, self.machine.key, schedule, seconds)
            for schedule, seconds in times.items()
        )

    def _decided(
        self, wanted: _Wanted, ranked: Sequence[Schedule], pools: Pools
    ) -> dict[Schedule, float]:
        """Seconds on all threads, the fastest that computes the right numbers first; none where none does.

        To what is measured those are added in which threads may have to wait longer.
        """
        patience = min(wanted.seconds, LONG)
        decided: dict[Schedule, float] = {}
        for schedule in ranked:
            if not decided:  # most often it is the one; nothing else runs while it is timed
                self.objects.begin(wanted.scope, wanted.types, wanted.output, schedule)
                self.runner.bind(show(schedule), patience)
                self.objects.wait()
            elif min(decided.values()) < inf and wanted.spent >= DECIDED * wanted.seconds:
                break
            measured = self.runner.decided(show(schedule), LONGER, patience)
            decided[schedule] = measured + self._exchanged(schedule, pools)
        # the order of `measured`: a tie must not be another schedule in the next run
        best = sorted((s for s in decided if decided[s] < inf), key=lambda s: (decided[s], show(s)))
        right = next((place for place, s in enumerate(best) if not self.runner.wrong(show(s))), len(best))
        return {s: decided[s] for s in best[right:]}

    def _ranked(
        self, wanted: _Wanted, form: Reduced | None, known: Sequence[Schedule], pools: Pools
    ) -> list[Schedule]:
        """What is fastest on one thread, and worth a second look; those that are `known` come first."""
        changes = {packed for packed, _, _ in pools}
        tuning, similar = (Tuning(), ()) if form is None else (self._tuning(form), self._similar(form))
        times: dict[Schedule, float] = {}
        self.runner.prepare()
        seconds, patience, begin = wanted.seconds, min(wanted.seconds, LONG), monotonic()
        begin -= tuning.seconds if known and tuning.enough else 0.0

        def attempt(schedules: Sequence[Schedule]) -> None:
            self.tried += len(schedules)
            spent = self.runner.times([show(schedule) for schedule in schedules], SHORT, patience)
            for schedule, taken in zip(schedules, spent, strict=True):
                times[schedule] = self._on_all(schedule, taken, pools)

        first = [schedule for schedule in known if prefix(schedule) in changes]
        own = islice(in_order(pools), tuning.passed, None)
        ordered = unique(chain(first, in_turns(own, alike(similar, pools))))
        while batch := list(islice((s for s in ordered if s not in times), self.machine.threads)):
            late, computing = monotonic() - begin, min(times.values(), default=inf) < inf
            if late > 4 * seconds or late > seconds / 2 and computing and len(times) > len(first):
                break
            attempt(batch)
        own = islice(in_order(pools), tuning.passed, None)
        tuning.passed += sum(1 for _ in takewhile(times.__contains__, own))
        fastest, idle = inf, 0
        while monotonic() - begin < seconds and idle < IDLE:
            leaders = sorted((s for s in times if times[s] < inf), key=lambda s: times[s])[:LEADERS]
            others = unique(near(leaders, pools, times))
            if not (batch := list(islice(others, self.machine.threads))):
                break
            attempt(batch)
            least = min(times.values())
            idle = 0 if least < GAIN * fastest else idle + 1
            fastest = least if idle == 0 else fastest
        tuning.tried += len(times)
        tuning.seconds = max(tuning.seconds, seconds if idle >= IDLE else monotonic() - begin)
        ranked = sorted((s for s in times if times[s] < inf), key=lambda s: (times[s], show(s)))
        return varied([s for s in ranked if times[s] <= CLOSE * times[ranked[0]]])[:LAST]

    def _reduced(self, scope: Scope, types: Sequence[TensorType], fixed: Sequence[bool]) -> Reduced | None:
        stages, _ = prepared(scope, tensors(types))
        return reduced(stages, frozenset(f"x{k}" for k, known in enumerate(fixed) if known))

    def _on_all(self, schedule: Schedule, taken: float, pools: Pools) -> float:
        """Seconds on all threads of what takes so many on one, about."""
        threads = self.machine.threads
        pairs = _pairs(schedule, pools)
        # what has no loop in parallel is in one of the last; the nest of most points has most of the work
        outer = [pair for pair in pairs if pair[0].parallel] or pairs[-1:]
        part = share(*max(outer, key=lambda pair: pair[1].points), threads)
        return taken * part + self._exchanged(schedule, pools)

    def _exchanged(self, schedule: Schedule, pools: Pools) -> float:
        """Seconds in which threads wait for one another, about."""
        return sum(exchanged(*pair, self.machine.threads) for pair in _pairs(schedule, pools))

    def _tuning(self, form: Reduced) -> Tuning:
        """What is known of expressions that reduce alike."""
        if self._tunings is None:
            found: dict[str, Tuning] = {}
            rows = self.database.beginning(LOOPS, self.backend, self.machine.key)
            for row in sorted(rows, key=lambda row: (row.seconds, row.schedule)):
                tuning = found.setdefault(row.workload.removeprefix(LOOPS), Tuning())
                if not row.schedule:
                    tuning.seconds = row.seconds
                elif len(tuning.fastest) < KEPT:
                    tuning.fastest = (*tuning.fastest, row.schedule)
            self._tunings = found  # last, as a deadline may end the reading
        return self._tunings.setdefault(form.text, Tuning())

    def _similar(self, form: Reduced) -> list[Schedule]:
        """The fastest schedules of expressions that reduce alike at other sizes, the latest last."""
        self._tuning(form)
        assert self._tunings is not None
        alike = _sizeless(form.text)
        others = (t for text, t in self._tunings.items() if text != form.text and _sizeless(text) == alike)
        texts = (text for tuning in others for text in tuning.fastest[:1])
        return [schedule for text in texts if (schedule := form.own(text)) is not None]

    def close(self) -> None:
        """End the processes that it started."""
        self.runner.close()
        self.objects.close()


def _shape(nest: Nest) -> Shape:
    main = nest.main or nest.output
    copied = {x.name: BYTES * number_of(product(x.shape)) for x in main.sources}
    return Shape(tuple(extent(a) for a in nest.output.axes), main.points, copied)


def _pairs(schedule: Schedule, pools: Pools) -> list[tuple[Sketch, Shape]]:
    """Its sketches, each with the shape of its nest; none where nothing like it is in the pools."""
    shapes = next((shapes for packed, _, shapes in pools if packed == prefix(schedule)), ())
    return list(zip(loops(schedule), shapes, strict=bool(shapes)))


def _hopeless(nest: Nest, pool: Sequence[Sketch]) -> bool:
    """Whether arithmetic bounds it and no block of registers computes it: trying takes seconds a time."""
    if nest.main is None or nest.main.points < LARGE or any(isinstance(sketch, Block) for sketch in pool):
        return False
    read = sum(number_of(product(x.shape)) for x in nest.main.sources)
    moved = read + prod(map(extent, nest.main.axes))
    return 2 * nest.main.points >= HOPELESS * moved


def _sizeless(text: str) -> str:
    """The text without its numbers."""
    return re.sub(r"\d+", "#", text)
