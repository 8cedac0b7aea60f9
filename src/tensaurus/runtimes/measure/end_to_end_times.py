"""Measures end-to-end times of whole models in turns, and keeps them in the database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import inf

from tensaurus.graph.onnx.build import Build
from tensaurus.runtimes.backends import Array
from tensaurus.runtimes.measure.database import Database, Measurement
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.measure.measure import (
    Contender,
    Pairs,
    compare,
    compare_pairs,
    compare_timings,
    explain_refusal,
)
from tensaurus.runtimes.measure.worker import WorkerError

__all__ = ["SECONDS", "contest_pairs", "contest_times"]

SECONDS, ROUNDS = 0.25, 8  # by default each model runs for ROUNDS * SECONDS, in turns of TURN_SECONDS
TURN_SECONDS = 0.05  # time of one turn of a model: shorter than the spells in which a host keeps its speed
PAIRS_PURPOSE = ", in pairs"  # part of the database key of comparisons by pairs, which confirm a choice
CALM_LABEL, DISTURBED_LABEL = "calm", "disturbed"  # the label of a pair in the database, after its number


def contest_times(
    entries: Sequence[tuple[str, Build]],
    feeds: Mapping[str, Array],
    machine: Machine,
    database: Database,
    *,
    seconds: float = SECONDS,
    deadline: float = inf,
) -> list[float]:
    """Return the seconds of one run of each entry: (backend, model), the original first.

    All are measured in one comparison, round by round, so that drift of the machine cancels out; the times of
    the others are relative to the first.  If all are in the database, none is measured.  Each model runs for
    about ROUNDS * `seconds` in short turns; for the `deadline` see `measure.time_in_turns`.  A model that the
    runtime refuses takes infinity; raises WorkerError where the runtime refuses the first.
    """
    keys = [_workload_key(entries[0], entry, feeds, machine) for entry in entries]
    stored = [database.get(text, key, machine.key) for text, key in keys]
    if all(entry is not None for entry in stored):
        return [entry.seconds for entry in stored if entry is not None]
    contenders = [
        Contender(f"model {number}" if number else "the model", other, build)
        for number, (other, build) in enumerate(entries)
    ]
    running = list(range(len(contenders)))
    turn = min(seconds, TURN_SECONDS)
    time_contenders = partial(
        compare,
        feeds=feeds,
        threads=machine.threads,
        rounds=round(ROUNDS * seconds / turn),
        seconds=turn,
        deadline=deadline,
    )
    # time all of them, or without those that the runtime refuses
    try:
        timings = time_contenders(contenders)
    except WorkerError:  # with its sizes fixed, a model may have a branch that never runs and does not type
        running = [k for k in running if not k or not explain_refusal(contenders[k], feeds, machine.threads)]
        timings = time_contenders([contenders[k] for k in running])
    taken = [timings[0].median] + [inf] * (len(contenders) - 1)
    for place, timing in zip(running[1:], timings[1:], strict=True):
        taken[place] = taken[0] / compare_timings(timings[0], timing).median
    rows = [Measurement(*key, machine.key, "", s) for key, s in zip(keys, taken, strict=True)]
    database.put_many(rows)
    return taken


def contest_pairs(
    first: tuple[str, Build],
    second: tuple[str, Build],
    feeds: Mapping[str, Array],
    machine: Machine,
    database: Database,
    *,
    gain: float,
    deadline: float = inf,
) -> Pairs:
    """Time two models in pairs of runs until they show whether the second gains the share `gain`.

    A gain of 0.02 is a speedup of 1.02x.

    Each runs on the backend named with it.  Pairs in the database that decide this are not measured again.
    Pairs that do not decide, because of the deadline (see `measure.time_in_pairs`) or of other processes, are
    not stored: the next run may be luckier.  Raises WorkerError where one of the models does not run.
    """
    key = _workload_key(first, second, feeds, machine, PAIRS_PURPOSE)
    rows = database.of(*key, machine.key)
    if rows and (stored := _read_pairs(rows)).are_worth_storing(gain, deadline):
        return stored
    contenders = Contender("the model", *first), Contender("the result", *second)
    pairs = compare_pairs(*contenders, feeds, threads=machine.threads, gain=gain, deadline=deadline)
    if rows or not pairs.are_worth_storing(gain, deadline):  # rows of two comparisons would mix
        return pairs
    labels = (CALM_LABEL if calm else DISTURBED_LABEL for calm in pairs.calm)
    database.put_many(
        Measurement(*key, machine.key, f"{number:04} {label} {side}", seconds)
        for number, (pair, label) in enumerate(zip(pairs.seconds, labels, strict=True))
        for side, seconds in enumerate(pair)
    )
    return pairs


def _read_pairs(rows: Iterable[Measurement]) -> Pairs:
    """Return the pairs that database rows hold; rows come in the order of labels, two for each pair."""
    numbers = [(row.schedule.split()[1] == CALM_LABEL, row.seconds) for row in rows]
    sides = numbers[::2], numbers[1::2]
    return Pairs(
        tuple((a, b) for (_, a), (_, b) in zip(*sides, strict=True)), tuple(calm for calm, _ in sides[0])
    )


def _workload_key(
    first: tuple[str, Build],
    entry: tuple[str, Build],
    feeds: Mapping[str, Array],
    machine: Machine,
    purpose: str = "",
) -> tuple[str, str]:
    """Return the database key of an entry that was timed in turns with `first`: (workload, backend).

    The workload is "model DIGEST beside DIGEST on x:[1, 3, 224, 224]"; `purpose` tells kinds of times apart.
    """
    sizes = " ".join(f"{name}:{list(array.shape)}" for name, array in feeds.items())
    (backend, base), (other, build) = first, entry
    where = "" if other == backend else f" by {backend}"
    text = f"model {build.digest} beside {base.digest}{where}{purpose} on {sizes}"
    return text, machine.backend_key(other)
