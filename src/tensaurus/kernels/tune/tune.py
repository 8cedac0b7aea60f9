"""Finds the fastest schedule of an expression on this machine, from the database or by trials.

Expressions of the same reduction form (`kernels/tune/schedule_reuse`) are tuned once: the fastest schedules
known of the form come first, and nothing else is tried if earlier tuning of the form took as much time as
there is now.

Otherwise half of the time goes to schedules in the order of their estimates, alternating with schedules that
were fastest at other sizes; the other half goes to neighbours of the best schedules so far, until many steps
bring no improvement. The fastest three, as far as they are close and time is left, are timed again, longer
and on all threads. The fastest of these that computes the right numbers is kept.
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
from tensaurus.kernels.halide.compile import halide_features, input_tensors, kernel_interface
from tensaurus.kernels.halide.pipeline import schedulable_stages
from tensaurus.kernels.stages.bilinear_chain import has_combinations
from tensaurus.kernels.stages.loop_nest import Nest, find_nests
from tensaurus.kernels.stages.sketch import (
    BlockSketch,
    NestChange,
    Schedule,
    Sketch,
    format_schedule,
    nest_changes,
    nest_sketches,
    parse_schedule,
)
from tensaurus.kernels.stages.stage import build_stages, extent
from tensaurus.kernels.tune.chain_schedules import rank_chain_schedules
from tensaurus.kernels.tune.compiled_objects import ObjectCompiler
from tensaurus.kernels.tune.register_blocks import MAX_POOL
from tensaurus.kernels.tune.schedule_pools import (
    SchedulePools,
    interleave,
    neighbour_schedules,
    ranked_schedules,
    similar_schedules,
    unique_schedules,
    vary_parallelism,
)
from tensaurus.kernels.tune.schedule_reuse import ReductionForm, reduction_form
from tensaurus.kernels.tune.schedule_space import candidate_bands, candidate_packs, rank_sketches
from tensaurus.kernels.tune.target_core import (
    ELEMENT_BYTES,
    NestShape,
    TargetCore,
    busiest_share,
    exchange_seconds,
)
from tensaurus.kernels.tune.timing_processes import TimingProcesses
from tensaurus.ops import TensorType
from tensaurus.runtimes.measure.database import Database, Measurement
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.price.operation_counts import number_of

__all__ = ["Tuner"]

TRIAL_SECONDS, FINAL_SECONDS = 0.03, 0.1  # duration of one timing on one thread, and of one on all threads
STALL_STEPS = 25  # steps without improvement after which tuning ends
MIN_IMPROVEMENT = 0.98  # fraction of the fastest time below which a time counts as an improvement
LEADER_COUNT, FINALIST_COUNT = 2, 3  # schedules whose neighbours are tried, and those that are timed again
KEPT_SCHEDULES = 3  # fastest schedules that are kept for each reduction form
MIN_TRIES = 12  # fewer trials count as none: the machine may have been slow during all of them
REDUCTION_ROWS = "loops of "  # prefix of the database's rows of reduction forms
FINAL_TIME_FACTOR = 1.25  # multiple of a kernel's tuning time after which no further schedule is timed again
FINALIST_FACTOR = 1.2  # schedules slower than this multiple of the fastest are not timed again
MAX_PATIENCE = 7.0  # additional seconds that compiling one schedule may take
REVISION = "r12"  # part of the database key: changed when new code makes schedules faster or slower
MIN_HOPELESS_POINTS = 1 << 24  # kernels of fewer multiplications are always tried, as one trial is short
MAX_INTENSITY = 16  # operations for each element moved from which on a nest needs register blocks


@dataclass(frozen=True)
class _TuningRequest:
    """An expression to tune, its constant inputs, and the seconds that it may take from `started_at` on."""

    scope: Scope
    types: tuple[TensorType, ...]
    output: TensorType
    is_constant: tuple[bool, ...]
    seconds: float
    started_at: float

    @property
    def is_late(self) -> bool:
        return monotonic() - self.started_at >= FINAL_TIME_FACTOR * self.seconds


@dataclass
class _ReductionHistory:
    """The tuning so far of one reduction form.

    fastest       texts of the fastest schedules, with roles for names
    seconds       the time spent
    tried_count   schedules tried in this run
    passed_count  how many of `ranked_schedules`, from the first on, were tried, and are not tried again
    """

    fastest: tuple[str, ...] = ()
    seconds: float = 0.0
    tried_count: int = 0
    passed_count: int = 0

    @property
    def has_enough_tries(self) -> bool:
        """Whether several schedules were tried in this run, or, if none was, in earlier runs."""
        return not 0 < self.tried_count < MIN_TRIES

    def has_spent(self, seconds: float) -> bool:
        """Whether this much time was spent already, so that no other schedule would be tried."""
        return self.has_enough_tries and self.seconds >= seconds


class Tuner:
    """Finds schedules of expressions for one processor, and stores them in the database."""

    def __init__(self, database: Database, machine: Machine, cpu: str):
        self.database, self.machine, self.cpu = database, machine, cpu
        words = halide_features(cpu)
        wide = any(word.startswith("avx512") for word in words)
        self.core = TargetCore(512 if wide else 256, 32 if wide else 16, machine.threads)
        self.backend = f"halide {version('halide')} {REVISION} {' '.join(words)}"
        self.timer = TimingProcesses(cpu, machine.threads)
        self.object_compiler = ObjectCompiler(cpu)
        self._histories: dict[str, _ReductionHistory] | None = None
        self.tried_count = 0

    def known_schedule(
        self, scope: Scope, types: Sequence[TensorType], is_constant: Sequence[bool] = ()
    ) -> Schedule | None:
        """Returns the fastest schedule that was measured before, or None."""
        for row in self.measured_schedules(scope, types, is_constant):
            with suppress(ValueError):
                return parse_schedule(row.schedule)
        return None

    def measured_schedules(
        self, scope: Scope, types: Sequence[TensorType], is_constant: Sequence[bool] = ()
    ) -> list[Measurement]:
        """Returns the database's rows of the expression's schedules, the fastest first."""
        text = self._workload(scope, types, is_constant)
        rows = [m for m in self.database.of(text, self.backend, self.machine.key) if m.seconds < inf]
        return sorted(rows, key=lambda m: (m.seconds, m.schedule))

    def best_schedule(
        self,
        scope: Scope,
        types: Sequence[TensorType],
        output: TensorType,
        seconds: float,
        is_constant: Sequence[bool] = (),
    ) -> Schedule | None:
        """Returns the known schedule, or the fastest found in `seconds`; None where none is right.

        `is_constant` says which inputs are constants, so that they may be packed.
        """
        known = self.known_schedule(scope, types, is_constant)
        if known is not None or seconds <= 0:
            return known
        return self._tune(scope, types, output, seconds, is_constant)

    def _workload(self, scope: Scope, types: Sequence[TensorType], is_constant: Sequence[bool]) -> str:
        constants = ", ".join(f"x{k}" for k, known in enumerate(is_constant) if known)
        return f"{show_scope(scope)} over {', '.join(map(str, types))}" + (
            f" where {constants} {'is' if sum(is_constant) == 1 else 'are'} constant" if constants else ""
        )

    def _schedule_pools(
        self, scope: Scope, types: Sequence[TensorType], is_constant: Sequence[bool]
    ) -> SchedulePools:
        """Returns sketches for each choice of nest changes: none, a packed input, a blocked band."""
        pools_found: list[tuple[tuple[NestChange, ...], list[list[Sketch]], list[NestShape]]] = [
            (changes_made, [pool[:MAX_POOL]], [shape])
            for changes_made, pool, shape in rank_chain_schedules(scope, types, is_constant, self.core)
        ]
        if pools_found or has_combinations(build_stages(scope)):  # other sketches of a chain are far too slow
            return pools_found
        changes: list[tuple[NestChange, ...]] = [()]
        changes += [(pack,) for pack in candidate_packs(scope, types, is_constant, self.core)]
        changes += [(band,) for band in candidate_bands(scope)]
        for changes_made in changes:
            packed_types, packed_scope, _ = kernel_interface(scope, types, changes_made)
            stages, _ = schedulable_stages(packed_scope, input_tensors(packed_types), changes_made)
            shapes = [_nest_shape(nest) for nest in find_nests(stages)]
            pools = [pool[:MAX_POOL] for pool in rank_sketches(stages, self.core)]
            if any(_is_hopeless(nest, pool) for nest, pool in zip(find_nests(stages), pools, strict=True)):
                continue
            pools_found.append((changes_made, pools, shapes))
        return pools_found

    def _tune(
        self,
        scope: Scope,
        types: Sequence[TensorType],
        output: TensorType,
        seconds: float,
        is_constant: Sequence[bool],
    ) -> Schedule | None:
        """Tries schedules, stores the times of the finalists, and returns the fastest that is right."""
        self.timer.set_expression(show_scope(scope), types, output)
        request = _TuningRequest(scope, tuple(types), output, tuple(is_constant), seconds, monotonic())
        # the history of the reduction form, and its fastest schedules with names in place of roles
        form = self._reduction_form(scope, types, is_constant)
        tuning = _ReductionHistory() if form is None else self._history_of(form)
        texts = () if form is None else tuning.fastest
        known = [s for text in texts if form and (s := form.from_role_text(text)) is not None]
        pools = self._schedule_pools(scope, types, is_constant)
        times: dict[Schedule, float] = {}  # of finalists on all threads, the fastest first
        if known and tuning.has_spent(seconds):
            self.tried_count += 1
            times = self._time_finalists(request, known[:1], pools)
            known = []  # if the known schedule fails here, tune as usual
        if not times:
            finalists = self._select_finalists(request, form, known, pools)
            times = self._time_finalists(request, finalists, pools)
        if not times:
            return None
        texts_times = {format_schedule(s): taken for s, taken in times.items()}
        self._store_times(self._workload(scope, types, is_constant), texts_times)
        if form is not None:
            alike = {text: taken for s, taken in times.items() if (text := form.to_role_text(s)) is not None}
            self._store_times(f"{REDUCTION_ROWS}{form.text}", {**alike, "": tuning.seconds})
            tuning.fastest = tuple(dict.fromkeys((*[*alike][:1], *tuning.fastest)))[:KEPT_SCHEDULES]
        return next(iter(times))

    def _store_times(self, workload: str, times: Mapping[str, float]) -> None:
        """Stores the seconds of schedules in the database."""
        self.database.put_many(
            Measurement(workload, self.backend, self.machine.key, schedule, seconds)
            for schedule, seconds in times.items()
        )

    def _time_finalists(
        self, request: _TuningRequest, ranked: Sequence[Schedule], pools: SchedulePools
    ) -> dict[Schedule, float]:
        """Times schedules on all threads, and returns their seconds, the fastest first, from the first on
        that computes the right numbers.

        The seconds include an estimate of how much longer threads may wait for each other at other times.
        """
        patience = min(request.seconds, MAX_PATIENCE)
        seconds_of: dict[Schedule, float] = {}
        for schedule in ranked:
            if not seconds_of:  # the first mostly wins, so its object is compiled now, not during a timing
                self.object_compiler.begin(request.scope, request.types, request.output, schedule)
                self.timer.compile(format_schedule(schedule), patience)
                self.object_compiler.wait_for_pending()
            elif min(seconds_of.values()) < inf and request.is_late:
                break
            measured = self.timer.time_on_all_threads(format_schedule(schedule), FINAL_SECONDS, patience)
            seconds_of[schedule] = measured + self._waiting_seconds(schedule, pools)
        # ordered as by `measured_schedules`: the next run must break a tie in the same way
        finite = [s for s in seconds_of if seconds_of[s] < inf]
        best = sorted(finite, key=lambda s: (seconds_of[s], format_schedule(s)))
        is_right = (not self.timer.find_error(format_schedule(s)) for s in best)  # asked up to the first
        first_right = next((place for place, right in enumerate(is_right) if right), len(best))
        return {s: seconds_of[s] for s in best[first_right:]}

    def _select_finalists(
        self,
        request: _TuningRequest,
        form: ReductionForm | None,
        known: Sequence[Schedule],
        pools: SchedulePools,
    ) -> list[Schedule]:
        """Tries schedules on one thread, the `known` ones first; returns the fastest, to time again."""
        changes = {packed for packed, _, _ in pools}
        tuning = _ReductionHistory() if form is None else self._history_of(form)
        similar = [] if form is None else self._similar_fastest(form)
        times: dict[Schedule, float] = {}  # by schedule tried: the estimated seconds on all threads
        self.timer.start_all()
        seconds, patience, begin = request.seconds, min(request.seconds, MAX_PATIENCE), monotonic()
        # the time of earlier tuning of the form counts, as its result, the known schedules, is tried first
        begin -= tuning.seconds if known and tuning.has_enough_tries else 0.0

        def attempt(schedules: Sequence[Schedule]) -> None:
            self.tried_count += len(schedules)
            texts = [format_schedule(schedule) for schedule in schedules]
            spent = self.timer.time_on_one_thread(texts, TRIAL_SECONDS, patience)
            for schedule, taken in zip(schedules, spent, strict=True):
                times[schedule] = self._estimate_on_all_threads(schedule, taken, pools)

        # first half of the time: known schedules, then the ranked and the similar ones in turn
        known_here = [schedule for schedule in known if nest_changes(schedule) in changes]
        ranked_rest = islice(ranked_schedules(pools), tuning.passed_count, None)
        others = interleave(ranked_rest, similar_schedules(similar, pools))
        ordered = unique_schedules(chain(known_here, others))
        while batch := list(islice((s for s in ordered if s not in times), self.machine.threads)):
            elapsed, has_result = monotonic() - begin, min(times.values(), default=inf) < inf
            # half of the time, if a schedule runs and a new one was tried; else up to four times all of it
            if elapsed > 4 * seconds or elapsed > seconds / 2 and has_result and len(times) > len(known_here):
                break
            attempt(batch)
        ranked_rest = islice(ranked_schedules(pools), tuning.passed_count, None)
        tuning.passed_count += sum(1 for _ in takewhile(times.__contains__, ranked_rest))
        fastest, stalled = inf, 0  # second half: neighbours of the fastest
        while monotonic() - begin < seconds and stalled < STALL_STEPS:
            leaders = sorted((s for s in times if times[s] < inf), key=lambda s: times[s])[:LEADER_COUNT]
            others = unique_schedules(neighbour_schedules(leaders, pools, times))
            if not (batch := list(islice(others, self.machine.threads))):
                break
            attempt(batch)
            least = min(times.values())
            stalled = 0 if least < MIN_IMPROVEMENT * fastest else stalled + 1
            fastest = least if stalled == 0 else fastest
        tuning.tried_count += len(times)
        # tuning that stalled counts as if it had taken all the time: more time would bring nothing
        tuning.seconds = max(tuning.seconds, seconds if stalled >= STALL_STEPS else monotonic() - begin)
        ranked = sorted((s for s in times if times[s] < inf), key=lambda s: (times[s], format_schedule(s)))
        close = [s for s in ranked if times[s] <= FINALIST_FACTOR * times[ranked[0]]]
        return vary_parallelism(close)[:FINALIST_COUNT]

    def _reduction_form(
        self, scope: Scope, types: Sequence[TensorType], is_constant: Sequence[bool]
    ) -> ReductionForm | None:
        stages, _ = schedulable_stages(scope, input_tensors(types))
        return reduction_form(stages, frozenset(f"x{k}" for k, known in enumerate(is_constant) if known))

    def _estimate_on_all_threads(self, schedule: Schedule, taken: float, pools: SchedulePools) -> float:
        """Estimates the seconds on all threads of a schedule that takes `taken` seconds on one."""
        threads = self.machine.threads
        pairs = _sketches_with_shapes(schedule, pools)
        # nests without a parallel loop run inside nests with one, of which the one of most points decides
        outer = [pair for pair in pairs if pair[0].parallel] or pairs[-1:]
        part = busiest_share(*max(outer, key=lambda pair: pair[1].points), threads)
        return taken * part + self._waiting_seconds(schedule, pools)

    def _waiting_seconds(self, schedule: Schedule, pools: SchedulePools) -> float:
        """Estimates the seconds in which threads wait for each other."""
        pairs = _sketches_with_shapes(schedule, pools)
        return sum(exchange_seconds(*pair, self.machine.threads) for pair in pairs)

    def _history_of(self, form: ReductionForm) -> _ReductionHistory:
        """Returns the tuning so far of a reduction form, from the database and from this run."""
        if self._histories is None:
            histories: dict[str, _ReductionHistory] = {}
            rows = self.database.beginning(REDUCTION_ROWS, self.backend, self.machine.key)
            for row in sorted(rows, key=lambda row: (row.seconds, row.schedule)):
                tuning = histories.setdefault(row.workload.removeprefix(REDUCTION_ROWS), _ReductionHistory())
                if not row.schedule:
                    tuning.seconds = row.seconds
                elif len(tuning.fastest) < KEPT_SCHEDULES:
                    tuning.fastest = (*tuning.fastest, row.schedule)
            self._histories = histories  # assigned last, as a deadline may interrupt the reading
        return self._histories.setdefault(form.text, _ReductionHistory())

    def _similar_fastest(self, form: ReductionForm) -> list[Schedule]:
        """Returns the fastest schedule of each form that differs only in its numbers, the latest last."""
        self._history_of(form)
        assert self._histories is not None
        alike = _without_numbers(form.text)
        histories = ((text, h) for text, h in self._histories.items() if text != form.text)
        texts = (t for text, h in histories if _without_numbers(text) == alike for t in h.fastest[:1])
        return [schedule for text in texts if (schedule := form.from_role_text(text)) is not None]

    def close(self) -> None:
        """Ends the processes that time and compile schedules."""
        self.timer.close()
        self.object_compiler.close()


def _nest_shape(nest: Nest) -> NestShape:
    main = nest.main or nest.output
    copied = {x.name: ELEMENT_BYTES * number_of(product(x.shape)) for x in main.sources}
    return NestShape(tuple(extent(a) for a in nest.output.axes), main.points, copied)


def _sketches_with_shapes(schedule: Schedule, pools: SchedulePools) -> list[tuple[Sketch, NestShape]]:
    """Returns the sketches with their nests' shapes; none if the pools lack the schedule's changes."""
    shapes = next((shapes for packed, _, shapes in pools if packed == nest_changes(schedule)), ())
    return list(zip(nest_sketches(schedule), shapes, strict=bool(shapes)))


def _is_hopeless(nest: Nest, pool: Sequence[Sketch]) -> bool:
    """Whether arithmetic bounds the nest and no register block fits, so that a trial takes seconds."""
    if nest.main is None or nest.main.points < MIN_HOPELESS_POINTS:
        return False
    if any(isinstance(sketch, BlockSketch) for sketch in pool):
        return False
    read = sum(number_of(product(x.shape)) for x in nest.main.sources)
    moved = read + prod(map(extent, nest.main.axes))
    return 2 * nest.main.points >= MAX_INTENSITY * moved


def _without_numbers(text: str) -> str:
    """Returns the text with each number replaced by #."""
    return re.sub(r"\d+", "#", text)
