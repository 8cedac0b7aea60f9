"""Worlds grown side by side, each in a process of its own; what comes back crosses the border as text."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from multiprocessing.queues import SimpleQueue
from threading import Thread
from typing import Any, TypeAlias

from tensaurus.child import tied
from tensaurus.cost.machine import Machine
from tensaurus.graph.node import INPUT, Node
from tensaurus.graph.program import Program, topological
from tensaurus.graph.text import parse_program, show
from tensaurus.rules.rule import parse_rule
from tensaurus.synthesis.generate import Found, Generation
from tensaurus.synthesis.world import World

__all__ = ["Grown", "side_by_side"]

Job: TypeAlias = tuple[World, int, int]  # a size up to which it is grown, and a seed
_Sides: TypeAlias = tuple[str, str]
_Row: TypeAlias = tuple[str, int, str, str, _Sides, tuple[str, ...]]  # as `Found` has it, but for its rules


@dataclass(frozen=True)
class Grown:
    """What came of a world: its rules, counts of each size as `Generation` has them, and what is unproved,
    with the last reason."""

    world: str
    found: tuple[Found, ...]
    counts: Mapping[int, Counter[str]]
    unproved: tuple[tuple[str, str], ...]


def side_by_side(jobs: Sequence[Job], note: Callable[[str], None]) -> Iterator[Grown]:
    """What comes of each, in their order; as many at a time as there are cores."""
    workers = min(len(jobs), Machine.here().threads)
    if workers < 2:
        for job in jobs:
            yield _read(*_grown(note, *_plain(job)))
        return
    # nothing that was imported or compiled here is shared: what a world's rules are does not depend on it
    context = get_context("spawn")
    notes: SimpleQueue[str] = context.SimpleQueue()
    listener = Thread(target=_listening, args=(notes, note), daemon=True)
    listener.start()
    pool = ProcessPoolExecutor(workers, context, initializer=_telling, initargs=(os.getpid(), notes))
    try:
        for waiting in [pool.submit(_told, *_plain(job)) for job in jobs]:
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
    if not tied(parent):
        os._exit(1)
    _notes = notes


def _told(*plain: Any) -> tuple[Any, ...]:
    assert _notes is not None
    return _grown(_notes.put, *plain)


def _plain(job: Job) -> tuple[Any, ...]:
    """The job in what every process knows."""
    world, size, seed = job
    return world.name, world.types, world.variables, world.operators, size, seed


def _grown(
    note: Callable[[str], None],
    name: str,
    types: tuple[str, ...],
    variables: tuple[int, ...],
    operators: tuple[str, ...],
    size: int,
    seed: int,
) -> tuple[Any, ...]:
    """The world's rules as rows of text."""
    note(f"world {name}")
    generation = Generation(
        World(name, types, variables, operators), size, seed, lambda text: note(f"{name}: {text}")
    )
    rows: list[_Row] = [
        (one.world, one.size, one.text, one.evidence, (_shown(one.sides[0]), _shown(one.sides[1])), one.tags)
        for one in generation.run()
    ]
    unproved = tuple((one.text, one.reasons[-1]) for one in generation.unproved)
    return name, rows, generation.counts, unproved


def _read(
    name: str, rows: Sequence[_Row], counts: Mapping[int, Counter[str]], unproved: tuple[tuple[str, str], ...]
) -> Grown:
    found = (
        Found(
            world,
            size,
            text,
            tuple(parse_rule(f"law: {text}")),
            evidence,
            (parse_program(sides[0]).roots, parse_program(sides[1]).roots),
            tags,
        )
        for world, size, text, evidence, sides, tags in rows
    )
    return Grown(name, tuple(found), counts, unproved)


def _shown(roots: tuple[Node, ...]) -> str:
    inputs = tuple(node for node in topological(roots) if node.op is INPUT)
    return show(Program(inputs, tuple((f"y{k}", root) for k, root in enumerate(roots))))
