"""A smaller extraction problem with the same cheapest programs.

Sets of classes are Python integers, one bit for each class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tensaurus.egraph.extract import Choice, Problem, greedy

__all__ = ["Shrunk", "components", "shrink"]


@dataclass(frozen=True)
class Shrunk:
    """The smaller problem, its choices and classes numbered anew."""

    problem: Problem
    choices: Sequence[int]  # of the smaller problem's choices, those of the larger one
    classes: Sequence[int]
    forced: frozenset[int]  # classes of the smaller problem that every program needs

    def restored(self, choice: Choice) -> dict[int, int]:
        """A choice of the larger problem."""
        return {self.classes[group]: self.choices[number] for group, number in choice.items()}


def shrink(problem: Problem) -> Shrunk:
    """Without what no cheapest program uses.

    - choices that no program without a cycle can use: a child has none, or cannot do without the class itself
    - choices that another one of their class beats: it costs no more, and whatever it needs is needed by the
      other as well, or by every program and cannot need the class
    - classes that are not reached then
    """
    alive = _usable(problem)
    while True:
        members = [[n for n in group if n in alive] for group in problem.members]
        reached = _reached(problem, members)
        needs = _needs(problem, members, reached)
        forced = 0
        for root in problem.roots:
            forced |= needs[root]
        parts = {
            group: place for place, part in enumerate(components(problem, members, reached)) for group in part
        }
        gone = set(_self_dependent(problem, members, reached, needs))
        gone |= set(_beaten(problem, members, reached, needs, forced, parts, gone))
        if not gone:
            break
        alive -= gone
    return _numbered(problem, members, reached, forced)


def _usable(problem: Problem) -> set[int]:
    """Choices all of whose children have a program, and that do not read their own class."""
    trees = greedy(problem)
    return {
        number
        for number, children in enumerate(problem.children)
        if all(child in trees for child in children) and problem.groups[number] not in children
    }


def _reached(problem: Problem, members: Sequence[Sequence[int]]) -> list[int]:
    """Classes below the roots, in the order of a walk from them."""
    order = dict.fromkeys(problem.roots)
    stack = list(order)
    while stack:
        for number in members[stack.pop()]:
            for child in problem.children[number]:
                if child not in order:
                    order[child] = None
                    stack.append(child)
    return list(order)


def _needs(problem: Problem, members: Sequence[Sequence[int]], reached: Sequence[int]) -> dict[int, int]:
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
            for child in problem.children[number]:
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
                for child in problem.children[number]:
                    below |= needs[child]
                common &= below
            found = common | 1 << group
            if found != needs[group]:
                needs[group] = found
                fresh = readers[group] - waiting
                waiting |= fresh
                later += sorted(fresh)
        queue = later
    return needs


def _self_dependent(
    problem: Problem, members: Sequence[Sequence[int]], reached: Sequence[int], needs: dict[int, int]
) -> Iterator[int]:
    """Choices a child of which always needs the choice's own class."""
    for group in reached:
        for number in members[group]:
            if any(needs[child] >> group & 1 for child in problem.children[number]):
                yield number


def _beaten(
    problem: Problem,
    members: Sequence[Sequence[int]],
    reached: Sequence[int],
    needs: dict[int, int],
    forced: int,
    parts: dict[int, int],
    gone: Iterable[int],
) -> Iterator[int]:
    """Choices that another one of their class can always replace; of two that are alike the first stays.

    What a choice's child always needs lies below the class in any program that uses the choice, and what lies
    in another component cannot reach the class: neither closes a cycle.
    """
    gone = set(gone)
    outside: dict[int, int] = {}
    for group in reached:
        if forced >> group & 1:
            outside[parts[group]] = outside.get(parts[group], 0) | 1 << group
    for group in reached:
        free = forced & ~outside.get(parts[group], 0)
        rows = []
        for number in members[group]:
            if number not in gone:
                own = below = 0
                for child in problem.children[number]:
                    own |= 1 << child
                    below |= needs[child]
                rows.append((problem.costs[number], number, own & ~free, below))
        rows.sort(key=lambda row: (row[0], row[2].bit_count(), row[1]))
        kept: list[int] = []
        for _, number, own, below in rows:
            if any(not better & ~below for better in kept):
                yield number
            else:
                kept.append(own)


def components(problem: Problem, members: Sequence[Sequence[int]], reached: Sequence[int]) -> list[list[int]]:
    """Strongly connected components of the classes, what is read first (Tarjan)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on: set[int] = set()
    stack: list[int] = []
    found: list[list[int]] = []
    below = {g: list(dict.fromkeys(c for n in members[g] for c in problem.children[n])) for g in reached}
    for start in reached:
        if start in index:
            continue
        work = [(start, 0)]
        while work:
            group, place = work.pop()
            if not place:
                index[group] = low[group] = len(index)
                stack.append(group)
                on.add(group)
            for position in range(place, len(below[group])):
                child = below[group][position]
                if child not in index:
                    work += [(group, position + 1), (child, 0)]
                    break
                if child in on:
                    low[group] = min(low[group], index[child])
            else:
                if low[group] == index[group]:
                    part: list[int] = []
                    while not part or part[-1] != group:
                        part.append(stack.pop())
                        on.discard(part[-1])
                    found.append(part)
                if work:
                    above = work[-1][0]
                    low[above] = min(low[above], low[group])
    return found


def _numbered(
    problem: Problem, members: Sequence[Sequence[int]], reached: Sequence[int], forced: int
) -> Shrunk:
    place = {group: k for k, group in enumerate(reached)}
    choices = [number for group in reached for number in members[group]]
    rows: list[list[int]] = [[] for _ in reached]
    for k, number in enumerate(choices):
        rows[place[problem.groups[number]]].append(k)
    smaller = Problem(
        costs=[problem.costs[number] for number in choices],
        children=[tuple(place[child] for child in problem.children[number]) for number in choices],
        groups=[place[problem.groups[number]] for number in choices],
        members=rows,
        roots=[place[root] for root in problem.roots],
    )
    return Shrunk(smaller, choices, list(reached), frozenset(place[g] for g in reached if forced >> g & 1))
