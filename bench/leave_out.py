"""Takes the schedules of a model's own operators out of those that ship: a model that nobody has seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tensaurus.kernels.tune.reduction_histories import ReductionHistories, ReductionHistory
from tensaurus.kernels.tune.schedule_reuse import ReductionForm


@contextmanager
def own_schedules_left_out() -> Iterator[None]:
    """While it lasts, no shipped schedule is found by the form of the operator that it was tuned for.

    Those of other sizes are found, as is what the run itself has tuned.
    """
    known = ReductionHistories.of

    def without_own(self: ReductionHistories, form: ReductionForm) -> ReductionHistory:
        first = form.text not in asked.setdefault(id(self), set())
        asked[id(self)].add(form.text)
        if first and form.text in self._read_shipped():
            self._all()[form.text] = ReductionHistory()
        return known(self, form)

    asked: dict[int, set[str]] = {}
    ReductionHistories.of = without_own  # type: ignore[method-assign]
    try:
        yield
    finally:
        ReductionHistories.of = known  # type: ignore[method-assign]
