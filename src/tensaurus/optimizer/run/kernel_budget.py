"""The kernels of one run: what proposes them, what tunes and compiles them, and how many there may be."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate
from math import inf
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tensaurus.egraph.core.finder_protocol import Finder
from tensaurus.finders.bilinear import Bilinear
from tensaurus.finders.fuse import Blocked, Fuse
from tensaurus.graph.ir.kernel import Kernel
from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.piece import Piece
from tensaurus.kernels.library.shared_library import find_compiler
from tensaurus.optimizer.run.available_finders import left
from tensaurus.optimizer.run.fast_algorithm_accuracy import Accuracy
from tensaurus.optimizer.run.options import Options
from tensaurus.runtimes import backends
from tensaurus.runtimes.measure.database import Database
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.price.operator_times import OperatorCosts

if TYPE_CHECKING:
    from tensaurus.kernels.tune.tuned_kernels import TunedKernels

__all__ = ["Generated", "absent"]

TUNED = 0.7  # of the search's time, until which kernels are tuned: then programs of them are run as a whole
SHARE = 0.5  # of the time for tuning, for the kernels that are waiting: finders make others of the slow ones
SPENT = 0.7  # seconds that deciding, linking and measuring a kernel take beside its tuning
LEAST = 0.6  # seconds that a kernel is tuned for, where it is
FEWEST = 4  # kernels that the time should be enough for, however few are waiting
MOST = 0.8  # of what all kernels that are waiting may save: it should be enough for those that save this
COUNT = 60  # kernels where no time limits them


def absent(options: Options, backend: str) -> str:
    """Why no kernels are generated for a backend, for people to read; "" where some are."""
    if not options.custom_ops:
        return "--no-custom-ops"
    if not backends.find(backend).libraries:
        return f"{backend} loads no libraries"
    if find_spec("halide") is None:
        return "halide is not installed (pip install 'tensaurus[kernels]')"
    if find_compiler() is None:
        return "there is no C compiler (pip install 'tensaurus[compiler]')"
    return ""


@dataclass
class Generated:
    """Callable with a node: its kernel, or None.  Use it in a `with`; nothing is tuned after `rest`.

    compiler  what compiles them, and what it may use of the processor; "" where there are none
    without   why there are none, for people to read
    seconds   to tune one, at most
    deadline  of tuning; infinite where the kernels are counted
    tuned     how many were tuned; those of the database were known
    waiting   how many will be tuned next that may save most of what all may, as far as the search knows
    share     the part of their time beyond the least that the next one has: that of what it may save
    """

    compiler: str = ""
    without: str = ""
    seconds: float = 0.0
    deadline: float = inf
    tuned: int = 0
    waiting: int = 0
    share: float = 1 / FEWEST
    _kernels: TunedKernels | None = None

    @classmethod
    def here(cls, options: Options, backend: str, machine: Machine, database: Database) -> Generated:
        """Of this run; none where the backend loads no libraries, or what makes them is not installed."""
        if reason := absent(options, backend):
            return cls(without=reason)
        from tensaurus.kernels.tune.tune import Tuner
        from tensaurus.kernels.tune.tuned_kernels import TunedKernels

        tuner = Tuner(database, machine, options.cpu)
        made = cls(tuner.backend, seconds=options.tuning)
        made._kernels = TunedKernels(tuner, made._each)
        return made

    def __call__(self, node: Node) -> Kernel | None:
        if self._kernels is None:
            return None
        tried = self._kernels.tuner.tried_count
        kernel = self._kernels(node)
        self.tuned += self._kernels.tuner.tried_count > tried
        return kernel

    def seconds_of(self, node: Node) -> float:
        """What its kernel took when it was tuned; infinite where there is none."""
        return inf if self._kernels is None else self._kernels.seconds_of(node)

    def finders(
        self, costs: OperatorCosts, accuracy: Accuracy, without: Collection[str] = ()
    ) -> tuple[Finder, ...]:
        """What proposes eOperators, those first that promise most by what is known of the operators; of fast
        algorithms those that the accuracy admits.  What is left out is not asked by the others either."""
        if self._kernels is None:
            return ()
        bilinear = Bilinear(costs.roofline, accuracy.allows)
        fuse = Fuse(costs.alone, costs.roofline)
        if left([bilinear], without):
            fuse.variants = bilinear.variants
        width = self._kernels.tuner.core.lanes("float32")
        return left((bilinear, fuse, Blocked(width, costs.alone, costs.roofline)), without)

    def more(self) -> bool:
        """Whether one more eOperator may be measured: where it has a kernel, that is tuned before."""
        if self._kernels is None:
            return True
        return self._each() > 0 and (self.deadline < inf or self.tuned < COUNT)

    def until(self, deadline: float) -> None:
        """Tuning ends when there is time left before this, the search's deadline, to choose among kernels."""
        self.deadline = (1 - TUNED) * monotonic() + TUNED * deadline

    def expect(self, pieces: Mapping[Piece, float]) -> None:
        """These will be measured next, in this order, and may save so much."""
        made = [gain if piece.generated else 0.0 for piece, gain in pieces.items()]
        worth = sorted((gain for gain in made if gain > 0), reverse=True)
        whole = sum(worth)
        self.waiting = sum(before < MOST * whole for before in accumulate([0.0, *worth[:-1]]))
        self.share = min(1 / FEWEST, max(0.0, made[0]) / whole) if worth else 0.0

    def _each(self) -> float:
        """Seconds to tune one; 0 where the time is over."""
        left = self.deadline - monotonic()
        if left == inf:
            return self.seconds
        if left < LEAST + SPENT:
            return 0.0
        spare = SHARE * left - max(self.waiting, FEWEST) * (LEAST + SPENT)
        return min(self.seconds, LEAST + self.share * max(0.0, spare))

    def rest(self) -> None:
        """Nothing is tuned from now on, and no process waits for it."""
        self.deadline = monotonic()
        if self._kernels is not None:
            self._kernels.tuner.close()

    def schedule(self, kernel: str) -> str:
        """Of a kernel that it gave, by its name."""
        return "" if self._kernels is None else self._kernels.schedules.get(kernel, "")

    @property
    def dropped(self) -> tuple[str, ...]:
        """Why some eOperators have no kernel."""
        return () if self._kernels is None else tuple(self._kernels.dropped)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.rest()
