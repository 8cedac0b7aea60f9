"""End-to-end times of whole models, measured in turns once and then remembered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import inf

from tensaurus.backends import Array
from tensaurus.cost.database import Database, Measurement
from tensaurus.cost.machine import Machine
from tensaurus.cost.measure import Contender, compare, ratio, refusal
from tensaurus.cost.worker import WorkerError
from tensaurus.graph.build import Build

SECONDS = 0.25  # of a turn
AGAIN = ", again"  # the purpose of a second measurement, which did not choose what it measures


def model_times(
    builds: Sequence[Build],
    feeds: Mapping[str, Array],
    backend: str,
    machine: Machine,
    database: Database,
    *,
    purpose: str = "",
    seconds: float = SECONDS,
    deadline: float = inf,
) -> list[float]:
    """Seconds of one run of each model on one backend, as `contest_times` measures them."""
    entries = [(backend, build) for build in builds]
    return contest_times(
        entries, feeds, machine, database, purpose=purpose, seconds=seconds, deadline=deadline
    )


def contest_times(
    entries: Sequence[tuple[str, Build]],
    feeds: Mapping[str, Array],
    machine: Machine,
    database: Database,
    *,
    purpose: str = "",
    seconds: float = SECONDS,
    deadline: float = inf,
) -> list[float]:
    """Seconds of one run of each model, on the backend named with it; the others are compared with the first.

    All are measured in one comparison, round by round, so that drift of the machine cancels out; with every
    one of them in the database for this purpose, none is measured and the times are those.  A turn takes
    about so many seconds; the `deadline` is as for `measure.in_turns`.  A model that the runtime refuses
    takes forever (inf); raises WorkerError where it refuses the first.
    """
    sizes = " ".join(f"{name}:{list(array.shape)}" for name, array in feeds.items())
    backend, base = entries[0]
    keys = list[tuple[str, str]]()
    for other, build in entries:
        where = "" if other == backend else f" by {backend}"
        text = f"model {build.digest} beside {base.digest}{where}{purpose} on {sizes}"
        keys.append((text, machine.backend_key(other)))
    stored = [database.get(text, key, machine.key) for text, key in keys]
    if all(entry is not None for entry in stored):
        return [entry.seconds for entry in stored if entry is not None]
    contenders = [
        Contender(f"model {number}" if number else "the model", other, build)
        for number, (other, build) in enumerate(entries)
    ]
    running = list(range(len(contenders)))
    compared = partial(compare, feeds=feeds, threads=machine.threads, seconds=seconds, deadline=deadline)
    try:
        timings = compared(contenders)
    except WorkerError:  # with sizes fixed, a runtime's own inference may refuse a dead branch
        running = [k for k in running if not k or not refusal(contenders[k], feeds, machine.threads)]
        timings = compared([contenders[k] for k in running])
    taken = [timings[0].median] + [inf] * (len(contenders) - 1)
    for place, timing in zip(running[1:], timings[1:], strict=True):
        taken[place] = taken[0] / ratio(timings[0], timing).median
    rows = [Measurement(*key, machine.key, "", s) for key, s in zip(keys, taken, strict=True)]
    database.put_many(rows)
    return taken
