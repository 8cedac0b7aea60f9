"""All terms of a world up to a size, in classes of equal values (TASO, section 2).

A term of size n is a use of an operator on representatives of classes of smaller sizes; what has the values
of a class that there is becomes a candidate for a law, anything else a class of its own.  Terms of constants
alone, and those whose values depend on no variable, are constants: these fold, and no term is made of them.

    slots   the values at which terms are compared: in slot 0 every variable of a type is one tensor, in slot
            k variable k is another one.  A renaming of variables permutes the slots, so that their hashes in
            order are the same for all names: n + 1 evaluations in the place of n! (a term of n variables)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations
from math import prod
from typing import Any, TypeAlias

import numpy as np

from tensaurus.expr.evaluate.field_protocol import Array, Field
from tensaurus.expr.evaluate.prime_field import Prime, scramble_words
from tensaurus.finders.synthesis.operator_use import Use
from tensaurus.finders.synthesis.world import World

__all__ = ["Candidate", "Family", "Pair", "Reference", "Term", "Terms", "equations", "subterms", "value"]

BATCH = 200_000  # values of one evaluation
Signature: TypeAlias = tuple[int, ...]  # the types of variables, by their place in the world, in order
Term: TypeAlias = tuple[Any, ...]  # ("x", type, number), or a use and its arguments' terms
Pair: TypeAlias = tuple[Term, Term]


@dataclass(frozen=True)
class Reference:
    """A class with its variables as those of a larger term: `names` are their places there."""

    family: Family
    number: int
    names: tuple[int, ...]


@dataclass(frozen=True)
class Candidate:
    """A term with the values of a class's representative, or such a representative that may be symmetric."""

    use: Use
    args: tuple[Reference, ...]
    signature: Signature
    hashes: tuple[int, ...]  # of its slots
    size: int
    equal: tuple[Family, int]

    @property
    def term(self) -> Term:
        """The term."""
        return (self.use, *(a.family.term(a.number, a.names) for a in self.args))


@dataclass(eq=False)
class Family:
    """Classes of one type whose variables have the same types.

    values   by size, of each class, each slot: [classes, slots, *shape]
    slots    of each class the hashes of its slots
    origins  of each class its use and arguments; None of a variable
    """

    type: int
    signature: Signature
    values: list[Array] = field(default_factory=list)
    slots: list[tuple[int, ...]] = field(default_factory=list)
    origins: list[tuple[Use, tuple[Reference, ...]] | None] = field(default_factory=list)

    def of_size(self, size: int) -> tuple[int, Array]:
        """The first class of the size, and the values of all of it; they are kept for sizes that are read."""
        first = sum(len(block) for block in self.values[:size])
        return first, self.values[size] if size < len(self.values) else np.empty((0,), np.uint64)

    def term(self, number: int, names: Sequence[int] | None = None) -> Term:
        """The representative, its variables called by these numbers."""
        names = tuple(range(len(self.signature))) if names is None else tuple(names)
        origin = self.origins[number]
        if origin is None:
            return ("x", self.signature[0], names[0])
        use, args = origin
        return (use, *(a.family.term(a.number, [names[n] for n in a.names]) for a in args))


def subterms(term: Term) -> Iterator[Term]:
    """The term and what is inside, each as often as it stands there."""
    yield term
    for part in term[1:] if term[0] != "x" else ():
        yield from subterms(part)


def value(term: Term, leaves: Mapping[Term, Array], field: Field, count: int) -> Array:
    """Its values for so many values of each variable, each with an axis of them in front."""
    if term[0] == "x":
        return leaves[term]
    use: Use = term[0]
    made = use.values([value(part, leaves, field, count) for part in term[1:]], field)
    return made if len(term) > 1 else np.repeat(made, count, axis=0)


def equations(candidate: Candidate) -> Iterator[Pair]:
    """The laws that the candidate may stand for: by hashes, some variables may be any of several."""
    family, number = candidate.equal
    left = candidate.term
    slots, own = family.slots[number], candidate.hashes
    kinds = candidate.signature
    choices = [
        [v for v in range(len(kinds)) if kinds[v] == kind and own[v + 1] == slots[place + 1]]
        for place, kind in enumerate(family.signature)
    ]
    for names in _distinct(choices):
        right = family.term(number, names)
        if right != left:
            yield left, right


def _distinct(choices: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    if not choices:
        yield ()
        return
    for first in choices[0]:
        rest = [[v for v in others if v != first] for others in choices[1:]]
        for names in _distinct(rest):
            yield (first, *names)


def _shared_out(whole: int, parts: int) -> Iterator[tuple[int, ...]]:
    """The ways in which parts may add up to the whole."""
    if parts == 1:
        yield (whole,)
        return
    for first in range(whole + 1):
        yield from ((first, *rest) for rest in _shared_out(whole - first, parts - 1))


class Terms:
    """The classes of a world, grown size by size; `count` terms were looked at."""

    def __init__(self, world: World, seed: int = 0):
        self.world = world
        self.field = Prime(seed)
        rng = np.random.default_rng(seed)
        self.families: dict[tuple[int, Signature], Family] = {}
        self.known: dict[int, tuple[Family, int]] = {}
        self.size = 0
        self.count = 0
        self._weights = [self.field.random((prod(shape), 2), rng) for shape in world.shapes]
        self._seeds = rng.integers(0, 2**63, len(world.kinds) + 1, dtype=np.uint64)
        for number, most in enumerate(world.variables):
            if most:
                shape = world.shapes[number]
                every, one = self.field.random(shape, rng), self.field.random(shape, rng)
                family = self._family(number, (number,))
                values = np.stack([every, one])[None]
                family.values.append(values)
                hashes = self._hashed(number, values)
                family.slots.append(tuple(map(int, hashes[0])))
                family.origins.append(None)
                self.known[self._keys(family, hashes)[0]] = family, 0

    def part(self, candidate: Candidate) -> None:
        """Make a class of the candidate, which differs from what it was found equal to.

        Nobody meets it by its key: what is equal to it, too, becomes a class once more.
        """
        family = self._family(self.world.kinds.index(candidate.use.result), candidate.signature)
        slots = range(len(candidate.signature) + 1)
        args = []
        for each in candidate.args:
            known = np.concatenate(each.family.values)[each.number]
            at = [0, *(each.names.index(v - 1) + 1 if v - 1 in each.names else 0 for v in slots[1:])]
            args.append(known[at])
        values = candidate.use.values(args, self.field)[None]
        family.values[-1] = np.concatenate([family.values[-1], values])
        family.slots.append(candidate.hashes)
        family.origins.append((candidate.use, candidate.args))

    def _family(self, kind: int, signature: Signature) -> Family:
        key = kind, signature
        if key not in self.families:
            self.families[key] = Family(kind, signature)
        return self.families[key]

    def grow(self, last: bool = False) -> Iterator[Candidate]:
        """The candidates of the next size; of the `last` no values are kept."""
        self.size += 1
        fresh: dict[Family, list[Array]] = {}
        for use in self.world.uses:
            yield from self._used(use, fresh, last)
        for family in self.families.values():
            shape = (0, len(family.signature) + 1, *self.world.shapes[family.type])
            while len(family.values) < self.size:  # it is new
                family.values.append(np.empty(shape, np.uint64))
            family.values.append(np.concatenate(fresh.get(family, [np.empty(shape, np.uint64)])))

    def _used(self, use: Use, fresh: Any, last: bool) -> Iterator[Candidate]:
        kinds = [self.world.kinds.index(kind) for kind in use.types]
        result = self.world.kinds.index(use.result)
        if not kinds:
            if self.size == 1:
                family, values = self._family(result, ()), use.values((), self.field)[:, None]
                yield from self._sorted_out(use, (), (), (), (), (), family, values, fresh, last)
            return
        families = list(self.families.values())
        pools = [[f for f in families if f.type == kind] for kind in kinds]
        placed = list(self._placed(pools, (), (), ()))
        for split in _shared_out(self.size - 1, len(kinds)):
            for chosen, names, signature in placed:
                yield from self._batch(use, result, chosen, split, names, signature, fresh, last)

    def _placed(
        self,
        pools: Sequence[Sequence[Family]],
        chosen: tuple[Family, ...],
        names: tuple[tuple[int, ...], ...],
        signature: Signature,
    ) -> Iterator[tuple[tuple[Family, ...], tuple[tuple[int, ...], ...], Signature]]:
        """A family for each argument, and which variables of a term of these its own are."""
        if not pools:
            yield chosen, names, signature
            return
        for family in pools[0]:
            for own, extended in self._overlaps(signature, family.signature):
                yield from self._placed(pools[1:], (*chosen, family), (*names, own), extended)

    def _overlaps(self, first: Signature, second: Signature) -> Iterator[tuple[tuple[int, ...], Signature]]:
        """How a term's variables may be those of terms before it, or others: their places there."""
        for count in range(min(len(first), len(second)) + 1):
            for shared in combinations(range(len(second)), count):
                for places in permutations(range(len(first)), count):
                    if any(second[a] != first[b] for a, b in zip(shared, places, strict=True)):
                        continue
                    names, signature = list[int](), list(first)
                    at = dict(zip(shared, places, strict=True))
                    for place, kind in enumerate(second):
                        if place in at:
                            names.append(at[place])
                        else:
                            names.append(len(signature))
                            signature.append(kind)
                    if all(signature.count(k) <= most for k, most in enumerate(self.world.variables)):
                        yield tuple(names), tuple(signature)

    def _batch(
        self,
        use: Use,
        result: int,
        families: tuple[Family, ...],
        split: tuple[int, ...],
        names: tuple[tuple[int, ...], ...],
        signature: Signature,
        fresh: Any,
        last: bool,
    ) -> Iterator[Candidate]:
        parts = [family.of_size(size) for family, size in zip(families, split, strict=True)]
        counts = [len(values) for _, values in parts]
        if not (all(counts) and signature):
            return
        slots = len(signature) + 1
        maps = [
            [0, *(own.index(v) + 1 if v in own else 0 for v in range(len(signature)))] for own in names
        ]
        order = sorted(range(len(signature)), key=lambda v: signature[v])
        family = self._family(result, tuple(signature[v] for v in order))
        step = max(1, BATCH // (slots * max(1, prod(counts[1:]))))
        for start in range(0, counts[0], step):
            stop = min(counts[0], start + step)
            picks = np.meshgrid(np.arange(start, stop), *map(np.arange, counts[1:]), indexing="ij")
            chosen = [pick.ravel() for pick in picks]
            args = [
                values[pick][:, at].reshape(-1, *values.shape[2:])
                for (_, values), pick, at in zip(parts, chosen, maps, strict=True)
            ]
            made = use.values(args, self.field)
            values = made.reshape(len(chosen[0]), slots, *made.shape[1:])
            values = values[:, [0, *(v + 1 for v in order)]]
            yield from self._sorted_out(
                use, families, parts, chosen, names, order, family, values, fresh, last
            )

    def _sorted_out(
        self, use: Use, families: Any, parts: Any, chosen: Any, names: Any, order: Any, family: Family,
        values: Array, fresh: Any, last: bool,
    ) -> Iterator[Candidate]:  # fmt: skip
        hashes = self._hashed(family.type, values)
        keys = self._keys(family, hashes)
        self.count += len(keys)
        rank = {v: place for place, v in enumerate(order)}
        kept: list[int] = []
        for row, key in enumerate(keys):
            found = self.known.get(key)
            args = tuple(
                Reference(f, first + int(pick[row]), tuple(rank[v] for v in own))
                for f, (first, _), pick, own in zip(families, parts, chosen, names, strict=True)
            )
            own_hashes = tuple(map(int, hashes[row]))
            if family.signature and len(set(own_hashes)) == 1:
                continue
            if found is None:
                found = self._of_fewer(family, own_hashes)
            if found is None:
                found = self.known[key] = family, len(family.origins)
                family.origins.append((use, args))
                family.slots.append(own_hashes)
                kept.append(row)
                if len(set(own_hashes)) == len(own_hashes):
                    continue  # else it may be symmetric in variables: a law of its own
            yield Candidate(use, args, family.signature, own_hashes, self.size, found)
        if kept and not last:
            fresh.setdefault(family, []).append(values[kept])

    def _of_fewer(self, family: Family, hashes: tuple[int, ...]) -> tuple[Family, int] | None:
        """The class of fewer variables that such a term is of: of the others its value does not depend."""
        kept = [place for place in range(len(family.signature)) if hashes[place + 1] != hashes[0]]
        fewer = self.families.get((family.type, tuple(family.signature[place] for place in kept)))
        if fewer is None or len(kept) == len(family.signature):
            return None
        left = np.array([[hashes[0], *(hashes[place + 1] for place in kept)]], np.uint64)
        return self.known.get(self._keys(fewer, left)[0])

    def _hashed(self, kind: int, values: Array) -> Array:
        """Of each term, each slot, 62 bits: two linear functions of its elements."""
        flat = values.reshape(-1, self._weights[kind].shape[0])
        pairs = self.field.matmul(flat, self._weights[kind])
        return (pairs[:, 0] << np.uint64(32) | pairs[:, 1]).reshape(values.shape[:2])

    def _keys(self, family: Family, hashes: Array) -> list[int]:
        """The same of terms that are equal up to the names of variables."""
        signature = np.array(family.signature)
        columns = [hashes[:, 0]]
        for kind in sorted(set(family.signature)):
            own = hashes[:, 1 + np.flatnonzero(signature == kind)]
            columns += list(np.sort(own, axis=1).T)
        state = np.full(len(hashes), self._seeds[family.type], np.uint64)
        with np.errstate(over="ignore"):
            for column in columns:
                state = scramble_words(state * np.uint64(0x9E3779B97F4A7C15) + column)
        return [int(key) for key in state]
