"""Worlds grown side by side, each in a process of its own; what comes back crosses the border as text."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any, TypeAlias

from tensaurus.finders.synthesis.generate import Found, Generation, Roots, shown
from tensaurus.finders.synthesis.journal import Journal
from tensaurus.finders.synthesis.world import World
from tensaurus.graph.ir.program_text import parse_program
from tensaurus.rules.language.rule import parse_rule
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.system.child import die_with_parent

__all__ = ["Grown", "Job", "side_by_side"]

_Sides: TypeAlias = tuple[str, str]
_Row: TypeAlias = tuple[str, int, str, str, _Sides, tuple[str, ...]]  # as `Found` has it, but for its rules


@dataclass(frozen=True)
class Job:
    """A world and how far it is grown; the rest as `Generation` has it.

    journal  a folder of verdicts, where each world has its own file
    """

    world: World
    size: int
    seed: int = 0
    sample: int = 0
    shard: tuple[int, int] = (0, 1)
    journal: Path | None = None


@dataclass(frozen=True)
class Grown:
    """What came of a world: its rules, counts of each size as `Generation` has them, what is unproved, with
    the last reason, a sample of the equations that are dropped, and how long it took."""

    world: str
    found: tuple[Found, ...]
    counts: Mapping[int, Counter[str]]
    unproved: tuple[tuple[str, str], ...]
    dropped: tuple[Roots, ...] = ()
    seconds: float = 0.0


def side_by_side(jobs: Sequence[Job], note: Callable[[str], None]) -> Iterator[Grown]:
    """What comes of each, in their order; as many at a time as there are cores."""
    workers = min(len(jobs), Machine.here().threads)
    if workers < 2:
        for job in jobs:
            yield _read(*_grown(note, job))
        return
    # nothing that was imported or compiled here is shared: what a world's rules are does not depend on it
    context = get_context("spawn")
    notes: SimpleQueue[str] = context.SimpleQueue()
    listener = Thread(target=_listening, args=(notes, note), daemon=True)
    listener.start()
    pool = ProcessPoolExecutor(workers, context, initializer=_telling, initargs=(os.getpid(), notes))
    try:
        for waiting in [pool.submit(_told, job) for job in jobs]:
            yield _read(*waiting.result())
    except BaseException:
        for process in active_children():  # nobody waits for what they would find
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        notes.put("")
        listener.join()
        notes.close()


def _listening(notes: SimpleQueue[str], note: Callable[[str], None]) -> None:
    while text := notes.get():
        note(text)


_notes: SimpleQueue[str] | None = None  # of a process of the pool


def _telling(parent: int, notes: SimpleQueue[str]) -> None:
    global _notes
    if not die_with_parent(parent):
        os._exit(1)
    _notes = notes


def _told(job: Job) -> tuple[Any, ...]:
    assert _notes is not None
    return _grown(_notes.put, job)


def _grown(note: Callable[[str], None], job: Job) -> tuple[Any, ...]:
    """The world's rules as rows of text."""
    name, (place, shards), began = job.world.name, job.shard, monotonic()
    note(f"world {name}")
    journal = Journal(job.journal, f"{name}-{place + 1}-of-{shards}")
    generation = Generation(
        job.world, job.size, job.seed, lambda text: note(f"{name}: {text}"), job.sample, journal, job.shard
    )
    rows: list[_Row] = [
        (one.world, one.size, one.text, one.evidence, (shown(one.sides[0]), shown(one.sides[1])), one.tags)
        for one in generation.run()
    ]
    unproved = tuple((one.text, one.reasons[-1]) for one in generation.unproved)
    dropped = tuple((shown(left), shown(right)) for left, right in generation.dropped)
    return name, rows, generation.counts, unproved, dropped, monotonic() - began


def _read(
    name: str,
    rows: Sequence[_Row],
    counts: Mapping[int, Counter[str]],
    unproved: tuple[tuple[str, str], ...],
    dropped: Sequence[_Sides],
    seconds: float,
) -> Grown:
    found = (
        Found(
            world,
            size,
            text,
            tuple(parse_rule(f"law: {text}")),
            evidence,
            _roots(sides),
            tags,
        )
        for world, size, text, evidence, sides, tags in rows
    )
    return Grown(name, tuple(found), counts, unproved, tuple(map(_roots, dropped)), seconds)


def _roots(sides: _Sides) -> Roots:
    return parse_program(sides[0]).roots, parse_program(sides[1]).roots
