"""The kernels of one run: what proposes them, what tunes and compiles them, and how many there may be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tensaurus import backends
from tensaurus.codegen.library import compiler
from tensaurus.cost.database import Database
from tensaurus.cost.machine import Machine
from tensaurus.cost.roofline import Roofline
from tensaurus.driver.options import Options
from tensaurus.driver.time_limit import TimeLimit
from tensaurus.egraph.finder import Finder
from tensaurus.fuse import Fuse
from tensaurus.graph.lowering import Kernels, no_kernels
from tensaurus.report.progress import Progress

if TYPE_CHECKING:
    from tensaurus.tuning.kernels import Kernels as Tuned

__all__ = ["Generated"]

SHARE = 0.7  # of the search's time, for tuning
SPENT = 2.0  # seconds that compiling, linking and measuring a kernel take beside its tuning
EACH = 15  # kernels that the time should be enough for, at least
COUNT = 60  # kernels where no time limits them


@dataclass
class Generated:
    """Use it in a `with`.

    of   an eOperator's kernel; None where there is none
    cpu  what processor they are for, "" where there are none
    """

    of: Kernels = no_kernels
    cpu: str = ""
    seconds: float = 0.0
    limit: TimeLimit | None = None
    _tuned: Tuned | None = None

    @classmethod
    def here(
        cls,
        options: Options,
        backend: str,
        machine: Machine,
        database: Database,
        limit: TimeLimit | None,
        progress: Progress,
    ) -> Generated:
        """Of this run; none where the backend loads no libraries, or where what makes them is not installed."""
        if not options.custom_ops or not backends.find(backend).libraries:
            return cls()
        if find_spec("halide") is None:
            progress.note("no kernels are generated: halide is not there (pip install 'tensaurus[kernels]')")
            return cls()
        if compiler() is None:
            progress.note("no kernels are generated: there is no C compiler (pip install 'tensaurus[compiler]')")
            return cls()
        from tensaurus.tuning.kernels import Kernels as Tuned
        from tensaurus.tuning.tune import Tuner

        found = cls(seconds=options.tuning, limit=limit)
        found._tuned = Tuned(Tuner(database, machine, options.cpu), found._each)
        found.of, found.cpu = found._tuned, f"{options.cpu}"
        return found

    def finders(self, roofline: Roofline) -> tuple[Finder, ...]:
        """What proposes eOperators."""
        return (Fuse(roofline=roofline),) if self._tuned is not None else ()

    @property
    def count(self) -> int:
        """How many may be tuned."""
        if self._tuned is None:
            return 0
        if self.limit is None:
            return COUNT
        return max(1, int(SHARE * (self.limit.deadline - monotonic()) / (self._each() + SPENT)))

    def _each(self) -> float:
        """Seconds to tune one."""
        if self.limit is None:
            return self.seconds
        left = self.limit.deadline - monotonic()
        return min(self.seconds, max(1.0, SHARE * left / EACH - SPENT))

    @property
    def dropped(self) -> tuple[str, ...]:
        """Why some eOperators have no kernel."""
        return () if self._tuned is None else tuple(self._tuned.dropped)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tuned is not None:
            self._tuned.tuner.close()
