"""Takes the schedules of a model's own operators out of those that ship: a model that nobody has seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from tensaurus.kernels.tune.reduction_histories import ReductionHistories, ReductionHistory
from tensaurus.kernels.tune.schedule_reuse import ReductionForm


@contextmanager
def own_schedules_left_out() -> Iterator[None]:
    """While it lasts, no shipped schedule is found by the form of the operator that it was tuned for.

    Those of other sizes are found, as is what the run itself has tuned.
    """
    known = ReductionHistories.of

    def without_own(self: ReductionHistories, form: ReductionForm) -> ReductionHistory:
        texts = asked.setdefault(self, set())
        if form.text not in texts and form.text in self._read_shipped():
            self._all()[form.text] = ReductionHistory()
            self.speeds.forget(form.text)
        texts.add(form.text)
        return known(self, form)

    asked: WeakKeyDictionary[ReductionHistories, set[str]] = WeakKeyDictionary()
    ReductionHistories.of = without_own  # type: ignore[method-assign]
    try:
        yield
    finally:
        ReductionHistories.of = known  # type: ignore[method-assign]
