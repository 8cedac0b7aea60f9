"""Keeps what is known of the tuning of each reduction form: as shipped, of earlier runs, and of this run.

`tune` asks whether a form needs more trials, which schedules to begin with, and which were fast for forms
that differ in their sizes only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from tensaurus.kernels.stages.sketch import Schedule
from tensaurus.kernels.tune.kernel_speeds import KernelSpeeds, form_distance
from tensaurus.kernels.tune.schedule_reuse import ReductionForm
from tensaurus.kernels.tune.shipped_schedules import TunedForm
from tensaurus.runtimes.measure.database import Database

__all__ = [
    "KEPT_SCHEDULES",
    "MIN_TUNING_SECONDS",
    "REDUCTION_ROWS",
    "RETUNING_FACTOR",
    "ReductionHistories",
    "ReductionHistory",
]

KEPT_SCHEDULES = 3  # fastest schedules that are kept for each reduction form
MIN_TRIES = 12  # fewer trials count as none: the machine may have been slow during all of them
# Least time to tune a form, and to tune one of which other sizes were tuned: about five trials. These found
# schedules as fast as the shipped ones for 35 forms that were taken out of them (1.002 in the mean), and 0.84
# as fast for five forms without others of their kind.
MIN_TUNING_SECONDS, REUSE_SECONDS = 0.6, 0.15
# A form is tuned on only in this many times the seconds that its tuning took.  Three kernels of Res2Net-50
# read a part of one tensor each: of one form, each was tuned for two seconds, to gain 1 to 3 %.
RETUNING_FACTOR = 8.0
REDUCTION_ROWS = "loops of "  # prefix of the database's rows of reduction forms


@dataclass
class ReductionHistory:
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

    @property
    def is_tuned(self) -> bool:
        """Whether a schedule is known that some tuning has found, here or on a machine of this kind."""
        return bool(self.fastest) and self.seconds > 0

    def has_spent(self, seconds: float) -> bool:
        """Whether this much time was spent already, so that no other schedule would be tried."""
        return self.has_enough_tries and self.seconds >= seconds


class ReductionHistories:
    """The histories of all reduction forms on one machine (`device`) with one compiler (`backend`).

    `read_shipped` returns the forms that were tuned on another machine of this kind, by their texts; `speeds`
    gets the speeds of all kernels that were tuned.
    """

    def __init__(
        self,
        database: Database,
        backend: str,
        device: str,
        read_shipped: Callable[[], Mapping[str, TunedForm]],
        speeds: KernelSpeeds,
    ):
        self._database, self._backend, self._device, self.speeds = database, backend, device, speeds
        self._read_shipped = read_shipped
        self._by_text: dict[str, ReductionHistory] | None = None

    def of(self, form: ReductionForm) -> ReductionHistory:
        """Returns the tuning so far of a reduction form."""
        return self._all().setdefault(form.text, ReductionHistory())

    def least_seconds(self, form: ReductionForm) -> float:
        """Returns how long a form must be tuned at least; 0 where a good schedule of it is known."""
        if self.of(form).is_tuned:
            return 0.0
        return REUSE_SECONDS if self.similar_fastest(form) else MIN_TUNING_SECONDS

    def similar_fastest(self, form: ReductionForm) -> list[Schedule]:
        """Returns the fastest schedule of each form that differs in numbers only, the nearest form first."""
        histories = [
            (distance, text, history.fastest[0])
            for text, history in self._all().items()
            if history.fastest and 0 < (distance := form_distance(form.text, text)) < inf
        ]
        found = (form.from_role_text(fastest) for _, _, fastest in sorted(histories))
        return [schedule for schedule in found if schedule is not None]

    def expected_seconds(self, form: ReductionForm) -> float:
        """Returns the seconds that a kernel of this form takes at least."""
        self.of(form)  # reads what is known
        return self.speeds.least_seconds(form.text)

    def timed_seconds(self, form: ReductionForm) -> float:
        """Returns the seconds of a form's fastest kernel that was timed here; infinite where none was."""
        self.of(form)  # reads what is known
        return self.speeds.timed_seconds(form.text)

    def tuned_forms(self) -> list[TunedForm]:
        """Returns the reduction forms that the database has schedules of."""
        fastest: dict[str, list[str]] = {}
        seconds: dict[str, float] = {}
        rows = self._database.beginning(REDUCTION_ROWS, self._backend, self._device)
        for row in sorted(rows, key=lambda row: (row.seconds, row.schedule)):
            text = row.workload.removeprefix(REDUCTION_ROWS)
            if row.schedule:
                if text not in fastest:
                    self.speeds.learn(text, row.seconds)
                fastest.setdefault(text, []).append(row.schedule)
            else:
                seconds[text] = row.seconds
        return [
            TunedForm(
                text, seconds.get(text, 0.0), self.speeds.multiple(text), tuple(schedules[:KEPT_SCHEDULES])
            )
            for text, schedules in fastest.items()
        ]

    def _all(self) -> dict[str, ReductionHistory]:
        """Returns the histories by the forms' texts, read at the first call."""
        if self._by_text is None:
            shipped = self._read_shipped()
            histories = {text: ReductionHistory(form.fastest, form.seconds) for text, form in shipped.items()}
            for text, form in shipped.items():
                if form.peak_multiple > 0:
                    self.speeds.learn_multiple(text, form.peak_multiple)
            for form in self.tuned_forms():
                before = histories.get(form.text, ReductionHistory())
                fastest = tuple(dict.fromkeys((*form.fastest, *before.fastest)))[:KEPT_SCHEDULES]
                histories[form.text] = ReductionHistory(fastest, max(form.seconds, before.seconds))
            self._by_text = histories  # assigned last, as a deadline may interrupt the reading
        return self._by_text
