"""What all programs of a class have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["needs_of"]


def needs_of(
    children: Sequence[Iterable[int]], members: Sequence[Sequence[int]], reached: Sequence[int]
) -> dict[int, int]:
    """Of each class, those that all of its programs use: itself, and what every choice needs.

    Any solution of these equations is right, by induction on a program's height; this is the largest.
    """
    every = 0
    for group in reached:
        every |= 1 << group
    needs = dict.fromkeys(reached, every)
    readers: dict[int, set[int]] = {group: set() for group in reached}
    for group in reached:
        for number in members[group]:
            for child in children[number]:
                readers[child].add(group)
    queue = list(reversed(reached))
    waiting = set(queue)
    while queue:
        later: list[int] = []
        for group in queue:
            waiting.discard(group)
            common = every
            for number in members[group]:
                below = 0
                for child in children[number]:
                    below |= needs[child]
                common &= below
            common |= 1 << group
            if common != needs[group]:
                needs[group] = common
                fresh = readers[group] - waiting
                waiting |= fresh
                later += sorted(fresh)
        queue = later
    return needs
