"""Finds for each class the classes that all of its programs use.

What every program of the roots uses is paid for in any case (`shrink_problem`), and a choice that needs its
own class is never taken: that gives rows against cycles (`formulation`).  If class 0 has two choices, one
that reads 1 and 2 and one that reads 2 and 3, every program of 0 uses 0 and 2: the result has 0: 0b101.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["required_classes"]


def required_classes(
    children: Sequence[Iterable[int]], members: Sequence[Sequence[int]], reached: Sequence[int]
) -> dict[int, int]:
    """Return for each reached class the classes that all of its programs use, as bits of an integer.

    required(c) = {c} + intersection over choices of c of (union over children of required(child))

    For any solution of these equations required(c) is in every program of c, by induction on its height.  The
    largest solution is found from above: each class begins with all of `reached`.
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
    waiting = set(queue)  # classes that are in the queue still
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
