"""Finds for each class the classes that all of its programs use.

What every program of the roots uses is paid for in any case (`shrink_problem`), and a choice that needs its
own class is never taken: that gives rows against cycles (`formulation`).  If class 0 has two choices, one
that reads 1 and 2 and one that reads 2 and 3, every program of 0 uses 0 and 2: the result has 0: 0b101.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

__all__ = ["required_classes", "set_bits"]


def set_bits(mask: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set, the lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def required_classes(
    children: Sequence[Iterable[int]], members: Sequence[Sequence[int]], reached: Sequence[int]
) -> dict[int, int]:
    """Return for each reached class the classes that all of its programs use, as bits of an integer.

    required(c) = {c} + intersection over choices of c of (union over children of required(child))

    For any solution of these equations required(c) is in every program of c, by induction on its height.  The
    largest solution is found from above: each class begins with all of `reached`.
    """
    every = 0
    for eclass in reached:
        every |= 1 << eclass
    needs = dict.fromkeys(reached, every)
    readers: dict[int, set[int]] = {eclass: set() for eclass in reached}
    for eclass in reached:
        for choice in members[eclass]:
            for child in children[choice]:
                readers[child].add(eclass)
    queue = list(reversed(reached))
    waiting = set(queue)  # classes that are in the queue still
    while queue:
        later: list[int] = []
        for eclass in queue:
            waiting.discard(eclass)
            common = every
            for choice in members[eclass]:
                below = 0
                for child in children[choice]:
                    below |= needs[child]
                common &= below
            common |= 1 << eclass
            if common != needs[eclass]:
                needs[eclass] = common
                fresh = readers[eclass] - waiting
                waiting |= fresh
                later += sorted(fresh)
        queue = later
    return needs
