"""Shares the time for tuning among the generated kernels of one run.

A kernel is tuned when the search first asks for its time. Half of the time left for tuning goes to the
kernels that the search wants next, in proportion to what each may save; the other half is kept for kernels
that finders propose later. For example: 60 s are left, and two new kernels wait that may save 3 ms and 1 ms.
Half of it is 30 s. At least four kernels are promised 1.3 s each (0.6 tuning + 0.7 overhead), so
30 - 5.2 = 24.8 s are spare. The first kernel saves 3/4 of the total but gets 1/4 of the spare time at most:
0.6 s of tuning + 24.8 / 4 = 6.8 s.

The budget also lists the finders that propose such kernels, because without a compiler there are none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Self

from tensaurus.egraph.core.finder_protocol import Finder
from tensaurus.finders.bilinear import Bilinear
from tensaurus.finders.fuse import Blocked, Fuse
from tensaurus.graph.ir.kernel import Kernel
from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.piece import Piece
from tensaurus.kernels.library.shared_library import find_compiler
from tensaurus.kernels.tune.reduction_histories import MIN_TUNING_SECONDS
from tensaurus.ops.eop import eop
from tensaurus.optimizer.run.available_finders import exclude_finders
from tensaurus.optimizer.run.fast_algorithm_accuracy import Accuracy
from tensaurus.optimizer.run.options import Options
from tensaurus.runtimes import backends
from tensaurus.runtimes.measure.database import Database
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.price.operator_times import OperatorCosts

if TYPE_CHECKING:
    from tensaurus.kernels.tune.tuned_kernels import TunedKernels

__all__ = ["KernelBudget", "reason_without_kernels"]

TUNING_SHARE = 0.6  # of the time for kernels: later, programs of the tuned kernels are run as a whole
COMPILING_SHARE = 0.72  # of the time for kernels, in which kernels whose schedules are known are compiled
# Seconds of a time limit from which on the processes that tune start with the run, while the original is run:
# they take two seconds, which a shorter run has only if it tunes a kernel.
EARLY_START_LIMIT = 20.0
WAITING_SHARE = 0.5  # of the time left for tuning, for the kernels that wait; the rest is for later kernels
OVERHEAD_SECONDS = 0.7  # to decide on a kernel, to link and to measure it, beside its tuning
MIN_KERNELS = 4  # time is set aside for at least this number of kernels, however few wait
SAVED_SHARE = 0.8  # time is set aside for the best waiting kernels that make up this share of the savings
MAX_UNTIMED_KERNELS = 60  # kernels that are tuned at most where a number of steps limits the run


def reason_without_kernels(options: Options, backend: str) -> str:
    """Return why no kernels are generated for a backend, for people; "" where they are."""
    if not options.custom_ops:
        return "--no-custom-ops was given"
    if not backends.find(backend).libraries:
        return f"{backend} cannot load kernel libraries"
    if find_spec("halide") is None:
        return "halide is not installed (pip install 'tensaurus[kernels]')"
    if find_compiler() is None:
        return "no C compiler was found (pip install 'tensaurus[compiler]')"
    return ""


@dataclass
class KernelBudget:
    """The kernels that a run has time for.  Use it in a `with`; nothing is tuned after `stop`.

    Called with the node of an eOperator (an operator that a generated kernel computes), it returns the node's
    kernel, tuned if the time allows it, or None.

    compiler          the compiler and the instruction set it compiles for; "" where there are no kernels
    reason_absent     why there are no kernels, for people
    seconds           longest time to tune one kernel
    deadline          monotonic time at which tuning ends; infinite where kernels are counted instead
    last_compilation  monotonic time after which no kernel is begun, not even one with a known schedule
    tuned             number of kernels that were tuned in this run; those of the database were known
    worthwhile_count  number of the best waiting kernels that together save SAVED_SHARE of what all may save
    next_share        share of the spare time for the next kernel: its share of what all may save
    """

    compiler: str = ""
    reason_absent: str = ""
    seconds: float = 0.0
    deadline: float = inf
    last_compilation: float = inf
    tuned: int = 0
    worthwhile_count: int = 0
    next_share: float = 1 / MIN_KERNELS
    _kernels: TunedKernels | None = None
    _search_deadline: float | None = None  # until `_share_time` has taken it over

    @classmethod
    def of_run(cls, options: Options, backend: str, machine: Machine, database: Database) -> KernelBudget:
        """Return the budget of a run: empty where the backend or this machine has no generated kernels."""
        if reason := reason_without_kernels(options, backend):
            return cls(reason_absent=reason)
        from tensaurus.kernels.tune.tune import Tuner
        from tensaurus.kernels.tune.tuned_kernels import TunedKernels

        tuner = Tuner(database, machine, options.cpu)
        if options.steps is None and options.time_limit >= EARLY_START_LIMIT:
            tuner.begin_start()
        budget = cls(tuner.backend, seconds=options.tuning)
        budget._kernels = TunedKernels(tuner, budget.seconds_for_next)
        return budget

    def wait_for_start(self) -> bool:
        """Wait until the processes that tune kernels are idle, if they started when this budget was made.

        Return whether they did.
        """
        return self._kernels is not None and self._kernels.tuner.wait_for_start()

    def __call__(self, node: Node) -> Kernel | None:
        if self._kernels is None:
            return None
        # more schedules tried: the kernel was tuned now, not found in the database
        tried = self._kernels.tuner.tried_count
        kernel = self._kernels(node)
        self.tuned += self._kernels.tuner.tried_count > tried
        return kernel

    def link(self, kernels: Collection[Kernel]) -> Path:
        """Return the library of kernels that this budget returned.  Raises TensaurusError."""
        assert self._kernels is not None, "there are kernels to link only where kernels are generated"
        return self._kernels.link(kernels)

    def seconds_of(self, node: Node) -> float:
        """Seconds that the node's kernel took when it was tuned; infinite where it has none."""
        return inf if self._kernels is None else self._kernels.seconds_of(node)

    def expected_seconds(self, node: Node) -> float:
        """Seconds that the node's kernel takes at least; 0 where it has none."""
        return 0.0 if self._kernels is None else self._kernels.expected_seconds(node)

    def tuned_seconds(self, node: Node) -> float | None:
        """Tune the node's kernel if the time allows it, and return its seconds; None where it has none."""
        seconds = inf if self(node) is None else self.seconds_of(node)
        return seconds if seconds < inf else None

    def make_finders(
        self, costs: OperatorCosts, accuracy: Accuracy, without: Collection[str] = ()
    ) -> tuple[Finder, ...]:
        """Return the finders that propose eOperators, except for those whose names are in `without`.

        Fast algorithms are those that the accuracy admits.  Fusion asks the bilinear finder for other forms
        of a convolution, unless that finder is excluded.
        """
        if self._kernels is None:
            return ()
        bilinear = Bilinear(costs.roofline, accuracy.allows)
        fuse = Fuse(costs.measured_or_observed, costs.roofline)
        if exclude_finders([bilinear], without):
            fuse.variants = bilinear.variants
        width = self._kernels.tuner.core.lanes("float32")
        blocked = Blocked(width, costs.measured_or_observed, costs.roofline)
        return exclude_finders((bilinear, fuse, blocked), without)

    def may_tune_another(self) -> bool:
        """Whether one more eOperator may be measured, which means that its kernel is tuned first.

        Always true where no kernels are generated, because then nothing is tuned.
        """
        if self._kernels is None:
            return True
        # by the time that is left, or, where a number of steps limits the run, by the number of kernels
        return self._may_tune(MIN_TUNING_SECONDS)

    def _may_tune(self, least: float) -> bool:
        """Whether there is time for a kernel that must be tuned for `least` seconds."""
        return self.seconds_for_next(least) > 0 and (self.deadline < inf or self.tuned < MAX_UNTIMED_KERNELS)

    def may_measure(self, piece: Piece) -> bool:
        """Whether a piece may be measured: its eOperators can be tuned in time, or have known schedules."""
        if self._kernels is None or self.may_tune_another():
            return True
        least = max((self._kernels.least_seconds(n) for n in piece.inner if n.op is eop), default=0.0)
        if least > 0:
            return self._may_tune(least)
        return monotonic() < self.last_compilation and self.deadline < inf

    def set_search_deadline(self, deadline: float) -> None:
        """End tuning early enough before the search's deadline to choose among the kernels.

        The shares are of the time that is left when the search first asks for a kernel: to run and to explore
        a large model may take more than the first half of the search.
        """
        self._search_deadline = deadline

    def _share_time(self) -> None:
        """Set the times at which tuning ends, at the first question after a new deadline of the search."""
        if self._search_deadline is not None:
            now, end = monotonic(), self._search_deadline
            self.deadline = (1 - TUNING_SHARE) * now + TUNING_SHARE * end
            self.last_compilation = (1 - COMPILING_SHARE) * now + COMPILING_SHARE * end
            self._search_deadline = None

    def plan_tuning(self, pieces: Mapping[Piece, float]) -> None:
        """Take the pieces that will be measured next, in this order, each with the seconds it may save.

        This sets `worthwhile_count` and `next_share`, and the kernels that may be compiled beside the first;
        pieces without eOperators need no tuning.
        """
        if self._kernels is not None:
            self._kernels.planned = [n for piece in pieces for n in piece.inner if n.op is eop]
        # of savings 5, 3, 1, 1 two are worthwhile (8 of 10), and the first kernel's share is 0.5, cut to 1/4
        savings = [saving if piece.has_eoperators else 0.0 for piece, saving in pieces.items()]
        ranked = sorted((saving for saving in savings if saving > 0), reverse=True)
        total = sum(ranked)
        saved_before = accumulate([0.0, *ranked[:-1]])
        self.worthwhile_count = sum(before < SAVED_SHARE * total for before in saved_before)
        self.next_share = min(1 / MIN_KERNELS, max(0.0, savings[0]) / total) if ranked else 0.0

    def seconds_for_next(self, least_tuning: float = MIN_TUNING_SECONDS) -> float:
        """Seconds to tune the next kernel, as this module's docstring computes them.

        `least_tuning` are the seconds that it must be tuned at least (`Tuner.least_seconds`).
        The result is 0 where kernels are compiled only if their schedules are known, below 0 where none is.
        """
        self._share_time()
        now = monotonic()
        remaining = self.deadline - now
        if remaining == inf:
            return self.seconds
        least = least_tuning + OVERHEAD_SECONDS
        if remaining < least:
            return 0.0 if now < self.last_compilation else -1.0
        spare = WAITING_SHARE * remaining - max(self.worthwhile_count, MIN_KERNELS) * least
        return min(self.seconds, least_tuning + self.next_share * max(0.0, spare))

    def stop(self) -> None:
        """Tune nothing from now on, and end the processes that would."""
        self.deadline, self.last_compilation, self._search_deadline = monotonic(), monotonic(), None
        if self._kernels is not None:
            self._kernels.tuner.close()

    def schedule(self, kernel: str) -> str:
        """The schedule of a kernel that this budget returned, by the kernel's name."""
        return "" if self._kernels is None else self._kernels.schedules.get(kernel, "")

    @property
    def dropped(self) -> tuple[str, ...]:
        """The reasons why some eOperators have no kernel, for people."""
        return () if self._kernels is None else tuple(self._kernels.dropped)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
