"""End-to-end times of whole models, measured in turns once and then remembered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import inf

from tensaurus.graph.onnx.build import Build
from tensaurus.runtimes.backends import Array
from tensaurus.runtimes.measure.database import Database, Measurement
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.measure.measure import Contender, Pairs, compare, compare_pairs, ratio, refusal
from tensaurus.runtimes.measure.worker import WorkerError

__all__ = ["SECONDS", "contest_pairs", "contest_times"]

SECONDS = 0.25  # an eighth of what each model is run for
ROUNDS = 8
TURN = 0.05  # seconds that a model is run at a time: less than a host keeps its speed for
PAIRS = ", in pairs"  # the purpose of a comparison by pairs, which did not choose what it compares
CALM, DISTURBED = "calm", "disturbed"  # how a pair is labelled in the database, after its number


def contest_times(
    entries: Sequence[tuple[str, Build]],
    feeds: Mapping[str, Array],
    machine: Machine,
    database: Database,
    *,
    seconds: float = SECONDS,
    deadline: float = inf,
) -> list[float]:
    """Seconds of one run of each model, on the backend named with it; the others are compared with the first.

    All are measured in one comparison, round by round, so that drift of the machine cancels out; with every
    one of them in the database, none is measured and the times are those.  Each is run for about ROUNDS times
    so many seconds, in short turns; the `deadline` is as for `measure.in_turns`.  A model that the runtime
    refuses takes forever (inf); raises WorkerError where it refuses the first.
    """
    keys = [_key(entries[0], entry, feeds, machine) for entry in entries]
    stored = [database.get(text, key, machine.key) for text, key in keys]
    if all(entry is not None for entry in stored):
        return [entry.seconds for entry in stored if entry is not None]
    contenders = [
        Contender(f"model {number}" if number else "the model", other, build)
        for number, (other, build) in enumerate(entries)
    ]
    running = list(range(len(contenders)))
    turn = min(seconds, TURN)
    compared = partial(
        compare,
        feeds=feeds,
        threads=machine.threads,
        rounds=round(ROUNDS * seconds / turn),
        seconds=turn,
        deadline=deadline,
    )
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
    """Two models side by side, each on the backend named with it, until it is known whether the second gains
    so much (0.02 for 1.02x).

    Pairs that are in the database and decide this are not measured again.  What a deadline (as for
    `measure.in_pairs`) or other processes kept from deciding is not stored: the next run may know better.
    Raises WorkerError where one of them does not run.
    """
    key = _key(first, second, feeds, machine, PAIRS)
    rows = database.of(*key, machine.key)
    if rows and (stored := _read_pairs(rows)).decide(gain, deadline):
        return stored
    contenders = Contender("the model", *first), Contender("the result", *second)
    pairs = compare_pairs(*contenders, feeds, threads=machine.threads, gain=gain, deadline=deadline)
    if rows or not pairs.decide(gain, deadline):  # rows of two comparisons would mix
        return pairs
    labels = (CALM if calm else DISTURBED for calm in pairs.calm)
    database.put_many(
        Measurement(*key, machine.key, f"{number:04} {label} {side}", seconds)
        for number, (pair, label) in enumerate(zip(pairs.seconds, labels, strict=True))
        for side, seconds in enumerate(pair)
    )
    return pairs


def _read_pairs(rows: Iterable[Measurement]) -> Pairs:
    """The pairs of rows in the order of their labels, both sides of one after the other."""
    numbers = [(row.schedule.split()[1] == CALM, row.seconds) for row in rows]
    sides = numbers[::2], numbers[1::2]
    return Pairs(
        tuple((a, b) for (_, a), (_, b) in zip(*sides, strict=True)), tuple(calm for calm, _ in sides[0])
    )


def _key(
    first: tuple[str, Build],
    entry: tuple[str, Build],
    feeds: Mapping[str, Array],
    machine: Machine,
    purpose: str = "",
) -> tuple[str, str]:
    """What is measured, and the backend's key: a model beside the first one, whose backend may be another."""
    sizes = " ".join(f"{name}:{list(array.shape)}" for name, array in feeds.items())
    (backend, base), (other, build) = first, entry
    where = "" if other == backend else f" by {backend}"
    text = f"model {build.digest} beside {base.digest}{where}{purpose} on {sizes}"
    return text, machine.backend_key(other)
