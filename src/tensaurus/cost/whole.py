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
    """Seconds of one run of each model; the others are compared with the first.

    All are measured in one comparison, round by round, so that drift of the machine cancels out; with every
    one of them in the database for this purpose, none is measured and the times are those.  A turn takes
    about so many seconds; the `deadline` is as for `measure.in_turns`.  A model that the runtime refuses
    takes forever (inf); raises WorkerError where it refuses the first.
    """
    sizes = " ".join(f"{name}:{list(array.shape)}" for name, array in feeds.items())
    names = [build.digest for build in builds]
    texts = [f"model {name} beside {names[0]}{purpose} on {sizes}" for name in names]
    key = machine.backend_key(backend)
    stored = [database.get(text, key, machine.key) for text in texts]
    if all(entry is not None for entry in stored):
        return [entry.seconds for entry in stored if entry is not None]
    entries = [Contender(f"model {k}" if k else "the model", backend, b) for k, b in enumerate(builds)]
    running = list(range(len(entries)))
    compared = partial(compare, feeds=feeds, threads=machine.threads, seconds=seconds, deadline=deadline)
    try:
        timings = compared(entries)
    except WorkerError:  # with sizes fixed, a runtime's own inference may refuse a dead branch
        running = [k for k in running if not k or not refusal(entries[k], feeds, machine.threads)]
        timings = compared([entries[k] for k in running])
    base = timings[0].median
    taken = [base] + [inf] * (len(builds) - 1)
    for place, timing in zip(running[1:], timings[1:], strict=True):
        taken[place] = base / ratio(timings[0], timing).median
    database.put_many([Measurement(t, key, machine.key, "", s) for t, s in zip(texts, taken, strict=True)])
    return taken
