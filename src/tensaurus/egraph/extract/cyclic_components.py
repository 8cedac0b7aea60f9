"""Finds the strongly connected components of an extraction problem's e-classes.

Every cycle lies within one component, so that cycles need to be excluded only there.  An e-class on no cycle
is a component of its own, and is returned, too.  If classes 0 and 1 read each other, and 2 reads 0:

    [[1, 0], [2]]
"""

from __future__ import annotations

from collections.abc import Iterable

from tensaurus.egraph.extract.problem import Problem

__all__ = ["strong_components"]


def strong_components(problem: Problem, among: Iterable[int] | None = None) -> list[list[int]]:
    """Return the strongly connected components, children before parents (Tarjan).

    `among` are the e-classes to look at, by default all; it must contain the children of each of its members.
    """
    index: dict[int, int] = {}  # the place of each visited class in the order of first visits
    low: dict[int, int] = {}  # the least index on `stack` that is known to be reached from the class
    on: set[int] = set()  # the classes on `stack`
    stack: list[int] = []
    parts: list[list[int]] = []
    starts = list(range(len(problem.members)) if among is None else among)
    below = {  # the children of each class, by any of its choices
        g: list(dict.fromkeys(c for n in problem.members[g] for c in problem.children[n])) for g in starts
    }
    for start in starts:
        if start in index:
            continue
        work = [(start, 0)]  # in place of recursion: (class, number of its children that were visited)
        while work:
            eclass, place = work.pop()
            if not place:  # the first visit
                index[eclass] = low[eclass] = len(index)
                stack.append(eclass)
                on.add(eclass)
            for position in range(place, len(below[eclass])):
                child = below[eclass][position]
                if child not in index:  # visit the child, then go on with the next
                    work += [(eclass, position + 1), (child, 0)]
                    break
                if child in on:
                    low[eclass] = min(low[eclass], index[child])
            else:  # all children were visited
                if low[eclass] == index[eclass]:  # it reaches no older class: its component is complete
                    part: list[int] = []
                    while not part or part[-1] != eclass:
                        part.append(stack.pop())
                        on.discard(part[-1])
                    parts.append(part)
                if work:
                    above = work[-1][0]
                    low[above] = min(low[above], low[eclass])
    return parts
