"""Runs the parts of a search by equality saturation (`saturating_search`); an interrupt keeps what it found.

In: a program.  Out: an `Outcome`, its candidates proved equal to the program, the best first.
"""

from __future__ import annotations

from math import inf

from tensaurus.check.program.candidate import Candidate
from tensaurus.graph.ir.program import Program
from tensaurus.optimizer.search.outcome import Outcome
from tensaurus.optimizer.search.saturating_search import SaturatingSearch
from tensaurus.optimizer.search.saturation_config import SaturationConfig
from tensaurus.system.signals import Interruptible

__all__ = ["Saturation"]

OBSERVING_SHARE = 0.5  # of the search's time, in which the original must have been run whole


class Saturation(SaturationConfig):
    """A configured search; see `SaturationConfig` for its fields."""

    def run(self, program: Program) -> Outcome:
        """Return the best programs, the best first; an interrupt ends the search and keeps them."""
        search: SaturatingSearch | None = None
        try:
            try:
                with Interruptible():
                    search = SaturatingSearch(self, program)
                    _run_parts(search)
            except KeyboardInterrupt:  # what the parts have found is ranked all the same
                if search is not None:
                    search.ended_by = "interrupt"
            if search is not None:
                return search.outcome()
        except KeyboardInterrupt:  # while programs are ranked and proved: the original alone is left
            pass
        return Outcome([Candidate(program, inf)], "interrupt")


def _run_parts(search: SaturatingSearch) -> None:
    """Run the parts of a search, and the later ones again as long as there is more time."""
    search.run_part(search.observe_original, OBSERVING_SHARE)
    for part in (search.explore, search.extract_by_estimates, search.extract_by_measurements):
        search.run_part(part)
    while search.extend_deadline():
        for part in (search.explore, search.extract_by_measurements):
            search.run_part(part)
