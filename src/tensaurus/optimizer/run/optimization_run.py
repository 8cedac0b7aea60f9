"""Holds what one run works with: the model on its runtime, kernels, costs, measurements, the time limit.

`optimize` opens an `OptimizationRun`.  The search sees only its `runtime` and `effort`; what measures and
checks the search's candidates uses the rest.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from math import inf
from time import monotonic
from typing import Self

from tensaurus.check.files.reference import Reference
from tensaurus.check.files.reference_answers import ReferenceAnswers
from tensaurus.check.inputs.timing_inputs import symbol_sizes
from tensaurus.check.program.replay import refute_equation
from tensaurus.egraph.core.finder_protocol import Finder, timed_finders
from tensaurus.finders.derive import DerivationCache, Derive
from tensaurus.finders.mutate import Mutate
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.build import Build
from tensaurus.graph.onnx.build_cache import BuildCache
from tensaurus.graph.onnx.size_guard import guard_sizes
from tensaurus.optimizer.run.accuracy_probe import AccuracyProbe
from tensaurus.optimizer.run.available_finders import exclude_finders
from tensaurus.optimizer.run.fast_algorithm_accuracy import Accuracy
from tensaurus.optimizer.run.first_run import FirstRun, TooSlow
from tensaurus.optimizer.run.kernel_budget import KernelBudget
from tensaurus.optimizer.run.options import Options
from tensaurus.optimizer.run.original import Original
from tensaurus.optimizer.run.time_limit import TimeLimit
from tensaurus.optimizer.search.strategies import Effort, Runtime
from tensaurus.rules.language.match import make_expander
from tensaurus.rules.language.rule import Rule
from tensaurus.runtimes import backends
from tensaurus.runtimes.backends import Array
from tensaurus.runtimes.measure.database import Database
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.measure.measure import Stopwatch
from tensaurus.runtimes.measure.observe import Observation, Observer
from tensaurus.runtimes.price.operator_times import OperatorCosts
from tensaurus.runtimes.price.roofline import Roofline
from tensaurus.system.deadline import DeadlineBlock
from tensaurus.system.errors import TensaurusError
from tensaurus.system.progress import Progress
from tensaurus.system.scratch import temporary_folder

__all__ = ["OptimizationRun"]

MAX_PIECE_BYTES = 1 << 26  # of models of single pieces that are kept in memory
MIN_EXTENSION_SHARE = 0.05  # of the time limit; a search is not extended by less
PROBE_TIME_SHARE = 0.3  # of the search's time, for all programs that probe the accuracy of fast algorithms
PROBE_LOADS = 3  # of the original, of its scores (`near_ties`), and of the candidate
PROBE_RUNS = 15  # times a run of the original that one such probe takes, beside loading
DERIVATION_SHARE = 0.06  # of the search's time, for derivations
SMALL_CONSTANT_BYTES = 1 << 14  # axes, sizes and scales that a result may store beyond its memory limit
FIRST_REFERENCE_SHARE, SECOND_REFERENCE_SHARE = 0.2, 0.1  # of the time limit, for two runs of the reference


class OptimizationRun:
    """One model and the runtime that it is optimized for.  Use it in a `with`.

    Raises TensaurusError where the model does not run, and TooSlow where no result could be measured in time.

    backend          name of the runtime
    machine          with the number of threads
    feeds            the inputs that are timed; `user_inputs` is the part of them that the user gave
    source           the original's build
    builds           makes the build of a candidate, with its generated kernels
    standard_builds  the same of standard operators alone, to probe the accuracy of fast algorithms
    database         of measurements
    kernels          the kernels of eOperators that there is time to tune
    costs            of operators and pieces, measured when they are asked for
    answers          of the float64 reference, kept for all candidates
    rules            that the search applies
    time_limit       None where a number of steps limits the search
    """

    def __init__(
        self, original: Original, options: Options, rules: Sequence[Rule], progress: Progress, start: float
    ):
        self.options, self.original, self.progress, self.rules = options, original, progress, rules
        self.machine, self.backend = Machine.here(options.threads), options.backend
        self.time_limit = TimeLimit(options.time_limit, start) if options.steps is None else None
        with ExitStack() as stack:
            self.database = stack.enter_context(Database(options.database))
            self._folder = stack.enter_context(temporary_folder())
            self.source = Build.from_model(original.model, self._folder, original.libraries)
            self.answers = ReferenceAnswers(self.source)
            self._roofline = Roofline.here(self.database, self.machine)
            self._open_kernels(stack)
            self._run_original()
            self._open_costs(stack)
            self._stack = stack.pop_all()

    def _open_kernels(self, stack: ExitStack) -> None:
        """Prepare generating kernels, and writing candidates as ONNX with and without them."""
        budget = KernelBudget.of_run(self.options, self.backend, self.machine, self.database)
        self.kernels = stack.enter_context(budget)
        if self.kernels.reason_absent:
            self.progress.note(f"no kernels are generated: {self.kernels.reason_absent}")
        self._expand, max_bytes = make_expander(self.rules), self.max_constant_bytes
        self.builds = BuildCache(
            self._folder, self._expand, self.kernels, self.kernels.link,
            libraries=self.original.libraries, max_constant_bytes=max_bytes,
        )
        self.standard_builds = BuildCache(
            self._folder, self._expand, max_cached_bytes=0, max_constant_bytes=max_bytes
        )

    def _open_costs(self, stack: ExitStack) -> None:
        """Prepare measuring single pieces alone, and observing operators within whole programs."""
        program, limit = self.original.program, self.time_limit
        self._stopwatch = stack.enter_context(Stopwatch(self.backend, threads=self.machine.threads))
        piece_builds = BuildCache(
            self._folder, self._expand, self.kernels, self.kernels.link,
            folded=False, max_cached_bytes=MAX_PIECE_BYTES, shares_weights=False,
        )
        self.costs = OperatorCosts(
            self.database, self._stopwatch, self.backend, self.machine,
            program.frame.opset, piece_builds, self._expand,
            weight_bytes=self.original.constant_bytes,
            original=program,
            supports=backends.find(self.backend).supports,
            sizes=symbol_sizes(program, self.feeds),
            roofline=self._roofline,
            kernel_cpu=self.kernels.compiler,
            tuned_seconds=self.kernels.tuned_seconds,
            expected_seconds=self.kernels.expected_seconds,
        )
        deadline = inf if limit is None else limit.search_deadline
        self._observer = stack.enter_context(
            Observer(self.feeds, self.backend, self.machine, self.database, self.builds, deadline)
        )

    def _run_original(self) -> None:
        """Find inputs that the model runs on, and how long the model and the float64 reference take."""
        options, limit = self.options, self.time_limit
        self.progress.phase("running the original", 2)
        threads = self.machine.threads
        first = FirstRun.of(self.original, options, self.source, threads)
        if self.kernels.wait_for_start() and limit is not None:
            first = first.time_again(options, self.source, threads)
        self.feeds, self.user_inputs = first.feeds, first.user_inputs
        if limit is not None:
            limit.run_seconds, limit.load_seconds = first.run_seconds, first.load_seconds
            if limit.why_hopeless:
                raise TooSlow(limit.why_hopeless)
        if first.assumed_sizes:
            sizes = f"not all input sizes were given; optimized for {first.assumed_sizes}"
            self.progress.note(f"{sizes}. For other sizes, use --shape")
        # kernels need sizes; what holds only at these is chosen at run time (`graph/onnx/size_guard`)
        self.original = self.original.at_sizes({name: array.shape for name, array in self.feeds.items()})
        if limit is not None:
            limit.reference_seconds, limit.parallel_runs = self._time_reference()
            if limit.why_too_short:
                self.progress.note(limit.why_too_short)

    def _time_reference(self) -> tuple[float, int]:
        """Return the seconds of one run of the float64 reference, and how many can run at the same time.

        The first run also learns how to compute the model, so the second one counts; its answer is kept for
        the check.  A run that is ended for want of time counts with the seconds that it had.
        """
        shapes, seconds = self.options.shapes or {}, 0.0
        try:
            with Reference(self.machine.threads, self.options.run_limit) as reference:
                runs = (None, FIRST_REFERENCE_SHARE), (self.answers, SECOND_REFERENCE_SHARE)
                for answers, time_share in runs:
                    reference.answers = answers  # None at first: kept outputs would not be computed again
                    start = monotonic()
                    with DeadlineBlock(start + time_share * self.options.time_limit) as running:
                        reference.run(self.source, self.feeds, shapes)
                    seconds = monotonic() - start
                    if running.ended:
                        break
        except TensaurusError:  # the check does without a reference then
            return 0.0, 1
        return seconds, reference.parallel_runs(self.source, seconds)

    @cached_property
    def effort(self) -> Effort:
        """How far the search may go."""
        options = self.options
        return Effort(
            steps=options.steps,
            deadline=None if self.time_limit is None else self.time_limit.search_deadline,
            alpha=options.alpha,
            nodes=options.nodes,
            multi=options.multi,
            max_constant_bytes=self.max_constant_bytes,
        )

    @cached_property
    def max_constant_bytes(self) -> float:
        """The bytes of constants that a result may store: never less than the original's file does."""
        most, stored = self.options.max_memory, self.source.constant_bytes
        return max(stored, self._memory_factor * stored if most is None else most) + SMALL_CONSTANT_BYTES

    @property
    def _memory_factor(self) -> int:
        """Default memory over the original's: transformed convolution weights are 2 to 8 times larger."""
        return 6 if self.kernels.compiler else 2

    @cached_property
    def accuracy(self) -> Accuracy:
        """Decides which fast algorithms the search may use."""
        program, note = self.original.program, self.progress.note
        return Accuracy(self.options.accuracy, program, self.costs.roofline, self._measure_error, note)

    def _measure_error(self, program: Program) -> float | None:
        """Return the error of an equal program as a fraction of the allowed error.

        Infinite where there is no time to measure it, None where standard operators of the model's opset
        cannot express the program.
        """
        with DeadlineBlock(self._probe_deadline):
            return self._probe_error(program)
        return inf  # reached only where the block was ended

    def _probe_error(self, program: Program) -> float | None:
        limit, options = self.time_limit, self.options
        try:
            build = self.standard_builds(program)
        except TensaurusError:
            return None
        probe = AccuracyProbe(
            self.original.model, self.source, self.feeds, options.shapes or {},
            self.backend, self.machine.threads, options.run_limit, self.answers, self._folder,
        )
        inputs: list[Mapping[str, Array]] = [self.feeds]
        if limit is not None:
            more = probe.draw_uneven_inputs(options.ranges or {}, options.seed)
            loading = PROBE_LOADS * limit.load_seconds
            remaining = min(limit.search_deadline, self._probe_deadline) - monotonic() - loading
            each = PROBE_RUNS * limit.run_seconds
            if each > remaining:
                return inf
            # the reference's answer on the timed inputs is kept, those on further inputs take time
            inputs += more if each + len(more) * (each + limit.reference_seconds) <= remaining else []
        return probe.measure_error(build, inputs)

    @cached_property
    def _probe_deadline(self) -> float:
        """When the last probe of fast algorithms must end; counted from the first probe."""
        now = monotonic()
        if self.time_limit is None:
            return inf
        return now + PROBE_TIME_SHARE * max(0.0, self.time_limit.search_deadline - now)

    @cached_property
    def runtime(self) -> Runtime:
        """What a search can ask of the runtime."""
        # CHECK=1, for developers: refute every union of the e-graph, if possible
        refutation = refute_equation if os.environ.get("CHECK") == "1" else None
        excluded = self.options.without
        generating = self.kernels.make_finders(self.costs, self.accuracy, excluded)
        deriving = exclude_finders([self._derive_finder, self._mutate_finder], excluded)
        finders: Sequence[Finder] = (*self.options.finders, *generating, *deriving)
        if self.effort.deadline is not None:
            finders = timed_finders(finders, self.effort.deadline)
            self._set_search_deadline(self.effort.deadline)
        return Runtime(
            costs=self.costs,
            find_fused=self._find_fused,
            observe=self._observe,
            refutation=refutation,
            finders=finders,
            may_tune=self.kernels.may_measure,
            plan_measuring=self.kernels.plan_tuning,
            extend_deadline=self._extend_search,
        )

    def _set_search_deadline(self, deadline: float) -> None:
        """Tell the search's deadline to all that works for the search: tuning, measuring, and observing."""
        self.kernels.set_search_deadline(deadline)
        self.costs.deadline = self._observer.deadline = deadline

    def _extend_search(self, program: Program, found: bool) -> float | None:
        """Return a later deadline for a search whose time is over, or None.

        A search that has found nothing gets the time that was reserved for a check; another one gets what is
        left since checks turned out to be faster than estimated.
        """
        limit = self.time_limit
        if limit is None or not self._is_whole_model(program):
            return None
        # `search_deadline` follows this estimate of the check
        limit.reference_seconds = min(limit.reference_seconds, self.answers.least_seconds)
        latest = limit.search_deadline if found else limit.latest_search_deadline
        if latest - monotonic() < MIN_EXTENSION_SHARE * limit.seconds:
            return None
        self._set_search_deadline(latest)
        return latest

    @property
    def _derive_finder(self) -> Derive:
        """Derives other forms of operators that take longer than their arithmetic should."""
        deadline = self.effort.deadline
        budget = inf if deadline is None else DERIVATION_SHARE * (deadline - monotonic())
        cache = DerivationCache(self.database, bool(self.kernels.compiler))
        return Derive(self.costs.measured_or_observed, self.costs.roofline, budget=budget, cache=cache)

    @property
    def _mutate_finder(self) -> Mutate:
        """Corrects partially equivalent mutants, in the time that nothing else needs."""
        return Mutate(self.costs.measured_or_observed, self.costs.roofline, budget=0.0)

    def _is_whole_model(self, program: Program) -> bool:
        """Return whether the program is the model, not a body of an If, Loop or Scan in it."""
        return program.frame is self.original.program.frame

    # Only the whole model is observed: there are no inputs on which a body could run.

    def _find_fused(self, program: Program) -> list[Piece]:
        return self._observer.find_fused(program) if self._is_whole_model(program) else []

    def _observe(self, program: Program) -> Observation | None:
        return self._observer(program) if self._is_whole_model(program) else None

    def guard_sizes(self, fixed: Build, general: Build) -> Build:
        """Return a build that runs `fixed` at the program's sizes, and `general` at others.

        Raises TensaurusError where there is none.
        """
        shapes = self.original.fixed_shapes
        if self.original.fixed_sizes and not shapes:
            raise TensaurusError("some sizes of the inputs are open in the program, too")
        joined = guard_sizes(fixed.proto(weights=False), general.proto(weights=False), shapes)
        libraries = dict.fromkeys((*fixed.libraries, *general.libraries))
        return Build.from_model(joined, self._folder, tuple(libraries))

    def stop_search(self) -> None:
        """End the search's processes, which would disturb the measurements after it, and free its memory."""
        self._stopwatch.close()
        self._observer.close()
        self.kernels.stop()
        gc.collect()  # e-graphs and proofs refer to themselves, and hold weights

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
