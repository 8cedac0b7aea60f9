"""Measures end-to-end times of whole models in turns, and keeps them in the database.

`time_models` ranks many models, `time_model_pairs` confirms that one of two is faster.  A model is given with
the backend that runs it: ("onnxruntime", build).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from typing import TypeAlias

from tensaurus.graph.onnx.build import Build
from tensaurus.runtimes.backends import Array
from tensaurus.runtimes.measure.database import Database, Measurement
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.measure.measure import (
    Contender,
    Pairs,
    compare_timings,
    explain_refusal,
    time_contender_pairs,
    time_contenders,
)
from tensaurus.runtimes.measure.worker import WorkerError

__all__ = ["ROUND_SECONDS", "time_model_pairs", "time_models"]

# By default each model runs for ROUNDS * ROUND_SECONDS, in turns of TURN_SECONDS.
ROUND_SECONDS, ROUNDS = 0.25, 8
TURN_SECONDS = 0.05  # time of one turn of a model: shorter than the spells in which a host keeps its speed
PAIRS_PURPOSE = ", in pairs"  # part of the database key of comparisons by pairs, which confirm a choice
CALM_LABEL, DISTURBED_LABEL = "calm", "disturbed"  # the label of a pair in the database, after its number

ModelOnBackend: TypeAlias = tuple[str, Build]


def time_models(
    entries: Sequence[ModelOnBackend],
    feeds: Mapping[str, Array],
    machine: Machine,
    database: Database,
    *,
    seconds: float = ROUND_SECONDS,
    deadline: float = inf,
) -> list[float]:
    """Return the seconds of one run of each entry, the original first.

    All are measured in one comparison, round by round, so that drift of the machine cancels out; the times of
    the others are relative to the first.  If all are in the database, none is measured.  Each model runs for
    about ROUNDS * `seconds` in short turns; for the `deadline` see `measure.time_in_turns`.  A model that the
    runtime refuses takes infinity; raises WorkerError where the runtime refuses the first.
    """
    keys = [_workload_and_backend(entries[0], entry, feeds, machine) for entry in entries]
    stored = [database.get(*key, machine.key) for key in keys]
    if all(entry is not None for entry in stored):
        return [entry.seconds for entry in stored if entry is not None]
    contenders = [
        Contender(f"model {number}" if number else "the model", backend, build)
        for number, (backend, build) in enumerate(entries)
    ]
    turn = min(seconds, TURN_SECONDS)
    time_all = partial(
        time_contenders,
        feeds=feeds,
        threads=machine.threads,
        rounds=round(ROUNDS * seconds / turn),
        seconds=turn,
        deadline=deadline,
    )
    running = list(range(len(contenders)))
    try:
        timings = time_all(contenders)
    except WorkerError:  # with its sizes fixed, a model may have a branch that never runs and does not type
        running = [k for k in running if not k or not explain_refusal(contenders[k], feeds, machine.threads)]
        timings = time_all([contenders[k] for k in running])
    taken = [timings[0].median] + [inf] * (len(contenders) - 1)
    for number, timing in zip(running[1:], timings[1:], strict=True):
        taken[number] = taken[0] / compare_timings(timings[0], timing).median
    database.put_many(Measurement(*key, machine.key, "", s) for key, s in zip(keys, taken, strict=True))
    return taken


def time_model_pairs(
    first: ModelOnBackend,
    second: ModelOnBackend,
    feeds: Mapping[str, Array],
    machine: Machine,
    database: Database,
    *,
    gain: float,
    deadline: float = inf,
) -> Pairs:
    """Time two models in pairs of runs until they show whether the second gains the share `gain`.

    A gain of 0.02 is a speedup of 1.02x.

    Pairs in the database that decide this are not measured again.  Pairs that do not decide, because of the
    deadline (see `measure.time_in_pairs`) or of other processes, are not stored: the next run may be luckier.
    Raises WorkerError where one of the models does not run.
    """
    key = *_workload_and_backend(first, second, feeds, machine, PAIRS_PURPOSE), machine.key
    rows = database.of(*key)
    if rows and (stored := _read_pairs(rows)).are_worth_storing(gain, deadline):
        return stored
    contenders = Contender("the model", *first), Contender("the result", *second)
    pairs = time_contender_pairs(*contenders, feeds, threads=machine.threads, gain=gain, deadline=deadline)
    if not rows and pairs.are_worth_storing(gain, deadline):  # rows of two comparisons would mix
        database.put_many(Measurement(*key, label, seconds) for label, seconds in _label_pairs(pairs))
    return pairs


def _label_pairs(pairs: Pairs) -> Iterator[tuple[str, float]]:
    """Yield label and seconds of each run: "0000 calm 0" and "0000 calm 1" for the first pair."""
    for number, (pair, calm) in enumerate(zip(pairs.seconds, pairs.calm, strict=True)):
        for side, seconds in enumerate(pair):
            yield f"{number:04} {CALM_LABEL if calm else DISTURBED_LABEL} {side}", seconds


def _read_pairs(rows: Iterable[Measurement]) -> Pairs:
    """Return the pairs that database rows hold; rows come in the order of labels, two for each pair."""
    runs = [(row.schedule.split()[1] == CALM_LABEL, row.seconds) for row in rows]
    pairs = list(zip(runs[::2], runs[1::2], strict=True))
    return Pairs(tuple((a, b) for (_, a), (_, b) in pairs), tuple(calm for (calm, _), _ in pairs))


def _workload_and_backend(
    first: ModelOnBackend,
    entry: ModelOnBackend,
    feeds: Mapping[str, Array],
    machine: Machine,
    purpose: str = "",
) -> tuple[str, str]:
    """Return the database's workload and backend of an entry that was timed in turns with `first`.

    The workload is "model DIGEST beside DIGEST on x:[1, 3, 224, 224]"; `purpose` tells kinds of times apart.
    """
    sizes = " ".join(f"{name}:{list(array.shape)}" for name, array in feeds.items())
    (first_backend, original), (backend, build) = first, entry
    where = "" if backend == first_backend else f" by {first_backend}"
    text = f"model {build.digest} beside {original.digest}{where}{purpose} on {sizes}"
    return text, machine.backend_key(backend)
