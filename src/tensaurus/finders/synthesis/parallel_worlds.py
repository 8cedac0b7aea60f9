"""Generates the rules of several worlds in parallel, a process for each; results are passed back as text."""

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
from typing import NamedTuple, TypeAlias

from tensaurus.finders.synthesis.generate import GeneratedRule, Generation, Sides, format_roots
from tensaurus.finders.synthesis.journal import Journal
from tensaurus.finders.synthesis.world import World
from tensaurus.graph.ir.program_text import parse_program
from tensaurus.rules.language.rule import parse_rule
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.system.child import die_with_parent

__all__ = ["WorldJob", "WorldResult", "grow_worlds"]

_SideTexts: TypeAlias = tuple[str, str]


class _RuleText(NamedTuple):
    """A `GeneratedRule` as text, which can be pickled."""

    world: str
    size: int
    text: str
    evidence: str
    sides: _SideTexts
    tags: tuple[str, ...]

    @classmethod
    def of(cls, rule: GeneratedRule) -> _RuleText:
        return cls(rule.world, rule.size, rule.text, rule.evidence, _format_sides(rule.sides), rule.tags)

    def parse(self) -> GeneratedRule:
        rules = tuple(parse_rule(f"law: {self.text}"))
        sides = _parse_sides(self.sides)
        return GeneratedRule(self.world, self.size, self.text, rules, self.evidence, sides, self.tags)


@dataclass(frozen=True)
class WorldJob:
    """The arguments of a world's `Generation`, with the journal's folder, in which each world has a file."""

    world: World
    size: int
    seed: int = 0
    sample: int = 0
    shard: tuple[int, int] = (0, 1)
    journal: Path | None = None


@dataclass(frozen=True)
class WorldResult:
    """The result of a world's `Generation`, unproved laws with the last reason, and its seconds."""

    world: str
    found: tuple[GeneratedRule, ...]
    counts: Mapping[int, Counter[str]]
    unproved: tuple[tuple[str, str], ...]
    dropped: tuple[Sides, ...] = ()
    seconds: float = 0.0


class _ResultText(NamedTuple):
    """A `WorldResult` as text, which can be pickled."""

    world: str
    rules: tuple[_RuleText, ...]
    counts: Mapping[int, Counter[str]]
    unproved: tuple[tuple[str, str], ...]
    dropped: tuple[_SideTexts, ...]
    seconds: float

    def parse(self) -> WorldResult:
        rules = tuple(rule.parse() for rule in self.rules)
        dropped = tuple(map(_parse_sides, self.dropped))
        return WorldResult(self.world, rules, self.counts, self.unproved, dropped, self.seconds)


def grow_worlds(jobs: Sequence[WorldJob], note: Callable[[str], None]) -> Iterator[WorldResult]:
    """Yield the result of each job in order, running as many at a time as there are cores."""
    workers = min(len(jobs), Machine.here().threads)
    if workers < 2:
        for job in jobs:
            yield _run_job(note, job).parse()
        return
    # spawned, not forked: the result must not depend on what this process has imported or cached
    context = get_context("spawn")
    notes: SimpleQueue[str] = context.SimpleQueue()
    listener = Thread(target=_forward_notes, args=(notes, note), daemon=True)
    listener.start()
    pool = ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(os.getpid(), notes))
    try:
        for waiting in [pool.submit(_run_in_worker, job) for job in jobs]:
            yield waiting.result().parse()
    except BaseException:
        for process in active_children():  # else the pool would wait for their results
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        notes.put("")
        listener.join()
        notes.close()


def _forward_notes(notes: SimpleQueue[str], note: Callable[[str], None]) -> None:
    while text := notes.get():
        note(text)


_notes: SimpleQueue[str] | None = None  # the queue to the parent, in a worker


def _start_worker(parent: int, notes: SimpleQueue[str]) -> None:
    global _notes
    if not die_with_parent(parent):
        os._exit(1)
    _notes = notes


def _run_in_worker(job: WorldJob) -> _ResultText:
    assert _notes is not None
    return _run_job(_notes.put, job)


def _run_job(note: Callable[[str], None], job: WorldJob) -> _ResultText:
    """Generate the world's rules."""
    name, (place, shards), began = job.world.name, job.shard, monotonic()
    note(f"world {name}")
    journal = Journal(job.journal, f"{name}-{place + 1}-of-{shards}")
    generation = Generation(
        job.world, job.size, job.seed, lambda text: note(f"{name}: {text}"), job.sample, journal, job.shard
    )
    rules = tuple(map(_RuleText.of, generation.run()))
    unproved = tuple((law.text, law.reasons[-1]) for law in generation.unproved)
    dropped = tuple(map(_format_sides, generation.dropped))
    return _ResultText(name, rules, generation.counts, unproved, dropped, monotonic() - began)


def _format_sides(sides: Sides) -> _SideTexts:
    return format_roots(sides[0]), format_roots(sides[1])


def _parse_sides(texts: _SideTexts) -> Sides:
    return parse_program(texts[0]).roots, parse_program(texts[1]).roots
