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

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache, partial
from importlib.metadata import version
from itertools import islice, takewhile
from math import inf
from time import monotonic

from tensaurus.expr.ir.expression_text import show as show_scope
from tensaurus.expr.ir.scope import Scope
from tensaurus.kernels.halide.compile import halide_features, input_tensors
from tensaurus.kernels.halide.lowering_errors import LoweringError
from tensaurus.kernels.halide.pipeline import schedulable_stages
from tensaurus.kernels.stages.sketch import (
    Schedule,
    Sketch,
    format_schedule,
    nest_changes,
    nest_sketches,
    parse_schedule,
)
from tensaurus.kernels.tune.compiled_objects import KernelSource, ObjectCompiler
from tensaurus.kernels.tune.kernel_speeds import KernelSpeeds
from tensaurus.kernels.tune.object_files import ObjectFiles, objects_folder
from tensaurus.kernels.tune.reduction_histories import (
    KEPT_SCHEDULES,
    MIN_TUNING_SECONDS,
    REDUCTION_ROWS,
    RETUNING_FACTOR,
    ReductionHistories,
    ReductionHistory,
)
from tensaurus.kernels.tune.schedule_pools import (
    SchedulePool,
    find_pools,
    interleave,
    ranked_schedules,
    similar_schedules,
)
from tensaurus.kernels.tune.schedule_reuse import ReductionForm, reduction_form
from tensaurus.kernels.tune.schedule_search import ScheduleSearch
from tensaurus.kernels.tune.shipped_schedules import processor_class, read_shipped_schedules
from tensaurus.kernels.tune.target_core import (
    NestShape,
    TargetCore,
    busiest_share,
    exchange_seconds,
)
from tensaurus.kernels.tune.timing_processes import TimingProcesses
from tensaurus.ops import TensorType
from tensaurus.runtimes.measure.database import Database, Measurement
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.price.roofline import Roofline

__all__ = ["MAX_PATIENCE", "Tuner"]

TRIAL_SECONDS, FINAL_SECONDS = 0.03, 0.1  # duration of one timing on one thread, and of one on all threads
FINAL_TIME_FACTOR = 1.25  # multiple of a kernel's tuning time after which no further schedule is timed again
_ONE_FLOAT = TensorType("float32", (1,))
SMALL_EXPRESSION = "L[i:1](x0[i])", (_ONE_FLOAT,), _ONE_FLOAT  # compiles at once
KEPT_POOLS = 8  # expressions whose pools of schedules are kept, as several questions are asked of one
MAX_PATIENCE = 7.0  # additional seconds that compiling one schedule may take
REVISION = "r13"  # part of the database key: changed when new code makes schedules faster or slower


@dataclass(frozen=True)
class _TuningRequest:
    """An expression to tune, and the seconds that it may take from `started_at` on."""

    scope: Scope
    types: tuple[TensorType, ...]
    output: TensorType
    seconds: float
    started_at: float

    def source(self, schedule: Schedule) -> KernelSource:
        """What the expression's kernel with this schedule is compiled from."""
        return KernelSource(self.scope, self.types, self.output, schedule)

    @property
    def is_late(self) -> bool:
        return monotonic() - self.started_at >= FINAL_TIME_FACTOR * self.seconds


class Tuner:
    """Finds schedules of expressions for one processor, and stores them in the database.

    An expression is a scope with the types of its inputs, and with which of them are constant. `tried_count`
    is how many schedules were tried on one thread, or known ones at once on all threads.
    """

    def __init__(self, database: Database, machine: Machine, cpu: str, ships: bool = True):
        """Prepares to tune for `cpu`; `ships` says whether the schedules that ship count as known."""
        self.database, self.machine, self.cpu = database, machine, cpu
        words = halide_features(cpu)
        wide = any(word.startswith("avx512") for word in words)
        self.processor_class = processor_class(machine.processor, 512 if wide else 256)
        self._has_wide_vectors = wide
        self.backend = f"halide {version('halide')} {REVISION} {' '.join(words)}"
        self.timer = TimingProcesses(cpu, machine.threads)
        files = ObjectFiles(objects_folder(database.path))
        self.object_compiler = ObjectCompiler(cpu, machine.threads, files)
        read_shipped = partial(read_shipped_schedules, self.processor_class, REVISION) if ships else dict
        self._read_roofline = cache(partial(Roofline.here, database, machine))
        speeds = KernelSpeeds(self._read_roofline)
        self.histories = ReductionHistories(database, self.backend, machine.key, read_shipped, speeds)
        self._find_pools = lru_cache(KEPT_POOLS)(
            lambda scope, types, is_constant, changes=None: find_pools(
                scope, types, is_constant, self.core, changes
            )
        )
        self.tried_count = 0
        self._is_starting = False

    @cached_property
    def core(self) -> TargetCore:
        """The processor that schedules are ranked for."""
        return TargetCore.here(self._has_wide_vectors, self.machine.threads, self._read_roofline().exchange)

    def begin_start(self) -> None:
        """Starts the processes that time and compile schedules, and returns at once.

        They load the compiler and compile something small, which takes seconds.
        """
        self._is_starting = True
        self.timer.begin_start()
        self.object_compiler.begin_start()

    def wait_for_start(self) -> bool:
        """Waits until processes that were begun are idle, so that they do not disturb what is timed next.

        Returns whether any were begun.
        """
        if not self._is_starting:
            return False
        self._is_starting = False
        self.timer.set_expression(*SMALL_EXPRESSION)
        self.timer.start_all()
        self.object_compiler.wait_for_start()
        return True

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

        In 0 seconds only the fastest schedule of the expression's reduction form is compiled and checked; so,
        too, where the form was tuned for at least an eighth of the seconds.  Below 0 not even that is done.
        `is_constant` says which inputs are constants, so that they may be packed.
        """
        known = self.known_schedule(scope, types, is_constant)
        if known is not None or seconds < 0:
            return known
        if seconds == 0 and self.least_seconds(scope, types, is_constant) > 0:
            return None
        return self.tune_on(scope, types, output, seconds, is_constant, RETUNING_FACTOR)

    def least_seconds(self, scope: Scope, types: Sequence[TensorType], is_constant: Sequence[bool]) -> float:
        """Returns how long an expression must be tuned at least to get a good schedule."""
        has_sizes = all(isinstance(n, int) for kind in types for n in kind.shape)
        form = self.reduction_form(scope, types, is_constant) if has_sizes else None
        return MIN_TUNING_SECONDS if form is None else self.histories.least_seconds(form)

    def _workload(self, scope: Scope, types: Sequence[TensorType], is_constant: Sequence[bool]) -> str:
        constants = ", ".join(f"x{k}" for k, known in enumerate(is_constant) if known)
        return f"{show_scope(scope)} over {', '.join(map(str, types))}" + (
            f" where {constants} {'is' if sum(is_constant) == 1 else 'are'} constant" if constants else ""
        )

    def tune_on(
        self,
        scope: Scope,
        types: Sequence[TensorType],
        output: TensorType,
        seconds: float,
        is_constant: Sequence[bool],
        retuning_factor: float = 1.0,
    ) -> Schedule | None:
        """Tries schedules, stores the times of the finalists, and returns the fastest that is right.

        What earlier tuning found comes first.  Other schedules are tried only if `retuning_factor` times the
        seconds that it took are less than `seconds`.
        """
        self.timer.set_expression(show_scope(scope), types, output)
        form = self.reduction_form(scope, types, is_constant)
        history = ReductionHistory() if form is None else self.histories.of(form)
        request = _TuningRequest(scope, tuple(types), output, seconds, monotonic())
        times: dict[Schedule, float] = {}  # of finalists on all threads, the fastest first
        first = self.known_source(scope, types, output, is_constant, seconds, retuning_factor)
        if first is not None:
            self.tried_count += 1
            pools = self._find_pools(scope, tuple(types), tuple(is_constant), nest_changes(first.schedule))
            times = self._time_finalists(request, [first.schedule], pools)
        if not times:  # also where the known schedule fails here
            pools = self._find_pools(scope, tuple(types), tuple(is_constant))
            known = [] if first or not form else self._schedules_for(form, history)
            if known and not (known := [s for s in known if _has_sketch_for_each_nest(s, pools)]):
                # nothing known fits: it is tuned like an unknown form
                request = replace(request, seconds=max(seconds, MIN_TUNING_SECONDS))
            similar = [] if form is None else self.histories.similar_fastest(form)
            finalists = self._select_finalists(request, history, known, similar, pools)
            times = self._time_finalists(request, finalists, pools)
        if not times:
            return None
        texts_times = {format_schedule(s): taken for s, taken in times.items()}
        self._store_times(self._workload(scope, types, is_constant), texts_times)
        if form is not None:
            alike = {text: taken for s, taken in times.items() if (text := form.to_role_text(s)) is not None}
            self._store_times(f"{REDUCTION_ROWS}{form.text}", {**alike, "": history.seconds})
            history.fastest = tuple(dict.fromkeys((*[*alike][:1], *history.fastest)))[:KEPT_SCHEDULES]
            self.histories.speeds.learn(form.text, min(times.values()))
        return next(iter(times))

    def known_source(
        self,
        scope: Scope,
        types: Sequence[TensorType],
        output: TensorType,
        is_constant: Sequence[bool],
        seconds: float,
        retuning_factor: float = RETUNING_FACTOR,
    ) -> KernelSource | None:
        """Returns the kernel that alone is tried where an expression's reduction form was tuned before.

        None where other schedules are tried, too, as `tune_on` says.
        """
        form = self.reduction_form(scope, types, is_constant)
        history = ReductionHistory() if form is None else self.histories.of(form)
        if form is not None and (seconds == 0 or history.has_spent(seconds / retuning_factor)):
            for schedule in self._schedules_for(form, history):
                changes = nest_changes(schedule)
                pools = self._find_pools(scope, tuple(types), tuple(is_constant), changes)
                if _has_sketch_for_each_nest(schedule, pools):
                    return KernelSource(scope, tuple(types), output, schedule)
        return None

    def _schedules_for(self, form: ReductionForm, history: ReductionHistory) -> list[Schedule]:
        """Returns the fastest schedules known of a reduction form, with names in place of roles."""
        return [s for text in history.fastest if (s := form.from_role_text(text)) is not None]

    def _store_times(self, workload: str, times: Mapping[str, float]) -> None:
        """Stores the seconds of schedules in the database."""
        self.database.put_many(
            Measurement(workload, self.backend, self.machine.key, schedule, seconds)
            for schedule, seconds in times.items()
        )

    def _time_finalists(
        self, request: _TuningRequest, ranked: Sequence[Schedule], pools: Sequence[SchedulePool]
    ) -> dict[Schedule, float]:
        """Times schedules on all threads, and returns their seconds, the fastest first, from the first on
        that computes the right numbers.

        The seconds include an estimate of how much longer threads may wait for each other at other times.
        """
        patience = min(request.seconds, MAX_PATIENCE)
        seconds_of: dict[Schedule, float] = {}
        for begin in range(0, len(ranked), self.machine.threads):
            batch = ranked[begin : begin + self.machine.threads]
            if min(seconds_of.values(), default=inf) < inf and request.is_late:
                break
            objects = self.object_compiler.compile([request.source(s) for s in batch], patience)
            for schedule, code in zip(batch, objects, strict=True):
                if isinstance(code, bytes):
                    text = format_schedule(schedule)
                    measured = self.timer.time_on_all_threads(text, FINAL_SECONDS, patience, code)
                    seconds_of[schedule] = measured + self._waiting_seconds(schedule, pools)
        # ordered as by `measured_schedules`: the next run must break a tie in the same way
        finite = [s for s in seconds_of if seconds_of[s] < inf]
        fastest_first = sorted(finite, key=lambda s: (seconds_of[s], format_schedule(s)))
        for place, schedule in enumerate(fastest_first):
            if not self.timer.find_error(format_schedule(schedule)):
                return {s: seconds_of[s] for s in fastest_first[place:]}
        return {}

    def _select_finalists(
        self,
        request: _TuningRequest,
        history: ReductionHistory,
        known: Sequence[Schedule],
        similar: Sequence[Schedule],
        pools: Sequence[SchedulePool],
    ) -> list[Schedule]:
        """Tries schedules on one thread, and returns the fastest, to time again.

        First come the `known` ones, then others by their estimates, in turn with those like `similar` ones,
        and at last neighbours of the fastest.
        """
        patience = min(request.seconds, MAX_PATIENCE)

        def time_batch(schedules: Sequence[Schedule]) -> list[float]:
            self.tried_count += len(schedules)
            texts = [format_schedule(schedule) for schedule in schedules]
            spent = self.timer.time_on_one_thread(texts, TRIAL_SECONDS, patience)
            pairs = zip(schedules, spent, strict=True)
            return [self._estimate_on_all_threads(schedule, taken, pools) for schedule, taken in pairs]

        def untried_ranked() -> Iterator[Schedule]:
            return islice(ranked_schedules(pools), history.passed_count, None)

        self.timer.start_all()
        # the time of earlier tuning of the form counts, as its result, the known schedules, is tried first
        began = monotonic() - (history.seconds if known and history.has_enough_tries else 0.0)
        search = ScheduleSearch(time_batch, self.machine.threads, request.seconds, began)
        changes = {pool.changes for pool in pools}
        known_here = [schedule for schedule in known if nest_changes(schedule) in changes]
        # Two schedules that imitate similar kernels are tried for each one that the estimates rank. The best
        # of the first four was 2 % slower than the best of twenty (85 operators of mobile networks).
        imitations = similar_schedules(similar, pools)
        search.try_in_order(known_here, interleave(imitations, imitations, untried_ranked()))
        history.passed_count += sum(1 for _ in takewhile(search.times.__contains__, untried_ranked()))
        has_stalled = search.try_neighbours(pools)
        history.tried_count += len(search.times)
        # tuning that stalled counts as if it had taken all the time: more time would bring nothing
        history.seconds = max(history.seconds, request.seconds if has_stalled else search.elapsed)
        return search.finalists()

    def reduction_form(
        self, scope: Scope, types: Sequence[TensorType], is_constant: Sequence[bool]
    ) -> ReductionForm | None:
        """Returns the form of an expression; None where it reduces nothing, or no kernel computes it."""
        try:
            stages, _ = schedulable_stages(scope, input_tensors(types))
        except LoweringError:  # such as elements of float16
            return None
        return reduction_form(stages, frozenset(f"x{k}" for k, known in enumerate(is_constant) if known))

    def _estimate_on_all_threads(
        self, schedule: Schedule, taken: float, pools: Sequence[SchedulePool]
    ) -> float:
        """Estimates the seconds on all threads of a schedule that takes `taken` seconds on one."""
        threads = self.machine.threads
        pairs = _sketches_with_shapes(schedule, pools)
        # nests without a parallel loop run inside nests with one, of which the one of most points decides
        outer = [pair for pair in pairs if pair[0].parallel] or pairs[-1:]
        part = busiest_share(*max(outer, key=lambda pair: pair[1].points), threads)
        return taken * part + self._waiting_seconds(schedule, pools)

    def _waiting_seconds(self, schedule: Schedule, pools: Sequence[SchedulePool]) -> float:
        """Estimates the seconds in which threads wait for each other."""
        return sum(exchange_seconds(*pair, self.core) for pair in _sketches_with_shapes(schedule, pools))

    def close(self) -> None:
        """Ends the processes that time and compile schedules."""
        self.timer.close()
        self.object_compiler.close()


def _sketches_with_shapes(
    schedule: Schedule, pools: Sequence[SchedulePool]
) -> list[tuple[Sketch, NestShape]]:
    """Returns the sketches with their nests' shapes; none if the pools lack the schedule's changes."""
    shapes = next((pool.shapes for pool in pools if pool.changes == nest_changes(schedule)), ())
    return list(zip(nest_sketches(schedule), shapes, strict=bool(shapes)))


def _has_sketch_for_each_nest(schedule: Schedule, pools: Sequence[SchedulePool]) -> bool:
    """Whether the schedule has a sketch for each nest; expressions of one form may differ in their nests."""
    shapes = [pool.shapes for pool in pools if pool.changes == nest_changes(schedule)]
    return not shapes or len(nest_sketches(schedule)) == len(shapes[0])
