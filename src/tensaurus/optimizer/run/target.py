"""A backend of this machine with a model on it: what is measured there, and what time is left for it."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from math import inf
from time import monotonic
from types import TracebackType
from typing import Self

from tensaurus.check.files.baseline import PERTURBED_COPIES
from tensaurus.check.files.reference import Reference
from tensaurus.check.files.reference_answers import ReferenceAnswers
from tensaurus.check.inputs.timing_inputs import symbol_sizes
from tensaurus.check.program.replay import refute_equation
from tensaurus.egraph.core.finder_protocol import Finder, timed_finders
from tensaurus.finders.derive import Derive, Memory
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.build import Build
from tensaurus.graph.onnx.builds import Builds
from tensaurus.kernels.library.shared_library import linked_library
from tensaurus.optimizer.run.accuracy_probe import Trial
from tensaurus.optimizer.run.available_finders import left
from tensaurus.optimizer.run.fast_algorithm_accuracy import Accuracy
from tensaurus.optimizer.run.first_run import FirstRun, TooSlow
from tensaurus.optimizer.run.kernel_budget import KernelBudget
from tensaurus.optimizer.run.options import Options
from tensaurus.optimizer.run.original import Original as Given
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

__all__ = ["Target"]

PIECES = 1 << 26  # bytes of models of pieces that are kept
EXTRA = 0.05  # of the time limit, for which a search that has had its time goes on at least
TRIALS = 0.3  # of the search's time, for all trials of fast algorithms
TRYING = 40  # times a run of the original, that trying an equal program takes, about, beside loading
DERIVED = 0.1  # of the search's time, for derivations
SMALL = 1 << 14  # bytes of axes, sizes and scales that a result may store beside
LEARNING, RUNNING = 0.2, 0.1  # of the time limit, which the first two runs of the reference may take


class Target:
    """Where candidates are measured.  Use it in a `with`; raises TensaurusError where the model does not run,
    and TooSlow where none of its results could be measured.

    backend   its name
    machine   with the number of threads
    feeds     the inputs that are timed
    given     those of them that the caller gave
    source    the original's build
    builds    of candidates
    standard  of programs without kernels
    records   the database
    kernels   of eOperators
    costs     of operators
    answers   of the float64 reference, kept for all candidates
    rules     that the search applies
    limit     of time; None where steps limit the search
    """

    def __init__(
        self, original: Given, options: Options, rules: Sequence[Rule], progress: Progress, start: float
    ):
        self.options, self.original, self.progress, self.rules = options, original, progress, rules
        self.machine = Machine.here(options.threads)
        self.limit = TimeLimit(options.time_limit, start) if options.steps is None else None
        with ExitStack() as stack:
            self.records = stack.enter_context(Database(options.database))
            self._folder = stack.enter_context(temporary_folder())
            self.source = Build.from_model(original.model, self._folder, original.libraries)
            self.answers = ReferenceAnswers(self.source)
            self._feed()
            generated = KernelBudget.of_run(options, self.backend, self.machine, self.records)
            self.kernels, expand = stack.enter_context(generated), make_expander(rules)
            if generated.reason_absent:
                progress.note(f"no kernels are generated: {generated.reason_absent}")
            most, libraries = self.memory, original.libraries
            self.builds = Builds(
                self._folder, expand, generated, linked_library, libraries=libraries, stored=most
            )
            self.standard = Builds(self._folder, expand, most=0, stored=most)
            pieces = Builds(
                self._folder, expand, generated, linked_library, folded=False, most=PIECES, shared=False
            )
            threads, program = self.machine.threads, original.program
            stopwatch = stack.enter_context(Stopwatch(self.backend, threads=threads))
            self.costs = OperatorCosts(
                self.records,
                stopwatch,
                self.backend,
                self.machine,
                program.frame.opset,
                pieces,
                expand,
                weights=original.weights,
                original=program,
                supports=backends.find(self.backend).supports,
                sizes=symbol_sizes(program, self.feeds),
                roofline=Roofline.here(self.records, self.machine),
                generated=generated.compiler,
            )
            self._observer = stack.enter_context(
                Observer(
                    self.feeds,
                    self.backend,
                    self.machine,
                    self.records,
                    self.builds,
                    inf if self.limit is None else self.limit.deadline,
                )
            )
            self._stopwatch = stopwatch
            self._stack = stack.pop_all()

    def _feed(self) -> None:
        """Find inputs that the model runs on, the backend, and how long the reference takes."""
        options, limit = self.options, self.limit
        self.progress.phase("running the original", 2)
        first = FirstRun.of(self.original, options, self.source, self.machine.threads)
        self.feeds, self.given = first.feeds, first.given
        if limit is not None:
            limit.run, limit.load = first.run, first.load
            if limit.hopeless:
                raise TooSlow(limit.hopeless)
        if first.words:
            self.progress.note(f"no sizes were given for every input; timed with {first.words}")
        self.backend = options.backend
        if limit is not None:
            limit.reference, limit.lanes = self._reference()
            if limit.short:
                self.progress.note(limit.short)

    def _reference(self) -> tuple[float, int]:
        """Seconds of one run of the float64 reference, whose answer is kept for the check, and how many run
        side by side.

        The first run after loading learns how to compute the model: the second one counts.  Of what is ended
        for want of time nobody knows more than that it takes as long as it did.
        """
        shapes, seconds = self.options.shapes or {}, 0.0
        try:
            with Reference(self.machine.threads, self.options.run_limit) as reference:
                for reference.answers, part in ((None, LEARNING), (self.answers, RUNNING)):
                    start = monotonic()
                    with DeadlineBlock(start + part * self.options.time_limit) as running:
                        reference.run(self.source, self.feeds, shapes)
                    seconds = monotonic() - start
                    if running.ended:
                        break
        except TensaurusError:  # then the check will go without
            return 0.0, 1
        return seconds, reference.parallel_runs(self.source, seconds)

    @cached_property
    def effort(self) -> Effort:
        """How far the search may go."""
        options = self.options
        return Effort(
            steps=options.steps,
            deadline=None if self.limit is None else self.limit.deadline,
            alpha=options.alpha,
            nodes=options.nodes,
            multi=options.multi,
            memory=self.memory,
        )

    @cached_property
    def memory(self) -> float:
        """Return the bytes of constants that a result may store: never less than the original's file does."""
        most, own = self.options.max_memory, self.source.constant_bytes
        return max(own, self._times_weights * own if most is None else most) + SMALL

    @cached_property
    def accuracy(self) -> Accuracy:
        """What may be computed otherwise than directly."""
        program, note = self.original.program, self.progress.note
        return Accuracy(self.options.accuracy, program, self.costs.roofline, self._error, note)

    def _error(self, program: Program) -> float | None:
        """The largest error of an equal program, infinite where there is no time to tell; None where the
        model's opset has no standard operators for it."""
        with DeadlineBlock(self._trials_end):
            return self._tried(program)
        return inf

    def _tried(self, program: Program) -> float | None:
        time, options = self.limit, self.options
        try:
            build = self.standard(program)
        except TensaurusError:
            return None
        trial = Trial(
            self.original.model,
            self.source,
            self.feeds,
            options.shapes or {},
            self.backend,
            self.machine.threads,
            options.run_limit,
            self.answers,
            self._folder,
        )
        feeds: list[Mapping[str, Array]] = [self.feeds]
        if time is not None:
            more = trial.uneven(options.ranges or {}, options.seed)
            left, each = time.deadline - monotonic() - (3 + PERTURBED_COPIES) * time.load, TRYING * time.run
            if each > left:
                return inf
            feeds += more if each + len(more) * (each + time.reference) <= left else []
        return trial.error(build, feeds)

    @cached_property
    def _trials_end(self) -> float:
        """Until when fast algorithms are tried, from the first trial on."""
        now = monotonic()
        return inf if self.limit is None else now + TRIALS * max(0.0, self.limit.deadline - now)

    @property
    def _times_weights(self) -> int:
        """Transformed weights of a convolution are two to eight times as large."""
        return 6 if self.kernels.compiler else 2

    @cached_property
    def runtime(self) -> Runtime:
        """What a search can ask."""
        checked = refute_equation if os.environ.get("CHECK") == "1" else None
        without = self.options.without
        own = self.kernels.finders(self.costs, self.accuracy, without)
        finders: Sequence[Finder] = (*self.options.finders, *own, *left([self._derive], without))
        if self.effort.deadline is not None:
            finders = timed_finders(finders, self.effort.deadline)
            self._end_search_at(self.effort.deadline)
        more, expect = self.kernels.may_tune_another, self.kernels.plan
        asked = self._fused, self._observed, checked, finders, more, expect, self._extended
        return Runtime(self.costs, *asked)

    def _end_search_at(self, deadline: float) -> None:
        self.kernels.set_search_deadline(deadline)
        self.costs.deadline = self._observer.deadline = deadline

    def _extended(self, program: Program, found: bool) -> float | None:
        """Until when a search goes on that has had its time: where it has found nothing, what was kept for a
        check is not needed; else that may have turned out to be quicker."""
        if self.limit is None or not self._whole(program):
            return None
        self.limit.reference = min(self.limit.reference, self.answers.least_seconds)
        latest = self.limit.deadline if found else self.limit.latest
        if latest - monotonic() < EXTRA * self.limit.seconds:
            return None
        self._end_search_at(latest)
        return latest

    @property
    def _derive(self) -> Derive:
        """What derives the operators that take longer than their arithmetic should."""
        time = self.effort.deadline
        budget = inf if time is None else DERIVED * (time - monotonic())
        memory = Memory(self.records, bool(self.kernels.compiler))
        return Derive(self.costs.alone, self.costs.roofline, budget=budget, memory=memory)

    def _whole(self, program: Program) -> bool:
        """Whether it is a model: the body of an If is none of its own."""
        return program.frame is self.original.program.frame

    def _fused(self, program: Program) -> list[Piece]:
        return self._observer.fused(program) if self._whole(program) else []

    def _observed(self, program: Program) -> Observation | None:
        return self._observer(program) if self._whole(program) else None

    def rest(self) -> None:
        """The search is over: nothing of it runs beside what is measured now."""
        self._stopwatch.close()
        self._observer.close()
        self.kernels.stop()
        gc.collect()  # e-graphs and proofs refer to themselves, and hold weights

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
