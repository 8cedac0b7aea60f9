"""Enumerates all terms of a world up to a size, in classes of equal values (TASO, section 2).

    size 1: Add(x, y), Transpose(x)      size 2: Transpose(Transpose(x)), a candidate, as it has x's values

A term of size n is an operator on representatives of classes of smaller sizes.  A term with the values of a
known class becomes a candidate for a law, any other a new class.  Terms of constants alone, and terms whose
values depend on no variable, are constants: runtimes fold these, so that no larger terms are built of them.

The variables of a class have types, its signature, and are numbered; a family holds all classes of one type
and signature.  As an argument of a larger term, a class has its variables renamed (`Reference`).

Terms are compared at points, called slots.  In slot 0 all variables of a type have one tensor as their value,
in slot k + 1 variable k alone has another.  Renaming variables permutes the slots, so that the sorted hashes
of slots are the same for all names: a term of n variables takes n + 1 evaluations in place of n!.
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

__all__ = [
    "Candidate", "Family", "Pair", "Reference", "Term", "Terms", "evaluate_term", "possible_laws", "subterms",
]  # fmt: skip

BATCH_VALUES = 200_000  # terms times slots that are evaluated at once, which bounds memory
Signature: TypeAlias = tuple[int, ...]  # the type of each variable, as its number in the world, ascending
Term: TypeAlias = tuple[Any, ...]  # ("x", type, number), or (use, argument term, ...)
Pair: TypeAlias = tuple[Term, Term]


@dataclass(frozen=True)
class Reference:
    """A class as an argument: variable k of the class is variable `names[k]` of the larger term."""

    family: Family
    number: int
    names: tuple[int, ...]


@dataclass(frozen=True)
class Candidate:
    """A term with the values of a known class, or a new representative that may be symmetric in variables.

    hashes       of its slots: the common one, then one for each variable of the signature
    equal_class  family and number of the class
    """

    use: Use
    args: tuple[Reference, ...]
    signature: Signature
    hashes: tuple[int, ...]
    size: int
    equal_class: tuple[Family, int]

    @property
    def term(self) -> Term:
        return (self.use, *(a.family.term(a.number, a.names) for a in self.args))


@dataclass(eq=False)
class Family:
    """Classes of one type whose variables have the same types.

    values   by size the values of each class at each slot: [classes, slots, *shape]
    slots    for each class the hashes of its slots
    origins  for each class its use and arguments, None for a variable
    """

    type: int
    signature: Signature
    values: list[Array] = field(default_factory=list)
    slots: list[tuple[int, ...]] = field(default_factory=list)
    origins: list[tuple[Use, tuple[Reference, ...]] | None] = field(default_factory=list)

    def of_size(self, size: int) -> tuple[int, Array]:
        """Return the number of the first class of a size, and the values of all classes of the size."""
        first = sum(len(block) for block in self.values[:size])
        return first, self.values[size] if size < len(self.values) else np.empty((0,), np.uint64)

    def term(self, number: int, names: Sequence[int] | None = None) -> Term:
        """Return a class's representative, with variables numbered by `names`."""
        names = tuple(range(len(self.signature))) if names is None else tuple(names)
        origin = self.origins[number]
        if origin is None:
            return ("x", self.signature[0], names[0])
        use, args = origin
        return (use, *(a.family.term(a.number, [names[n] for n in a.names]) for a in args))


def subterms(term: Term) -> Iterator[Term]:
    """Yield the term and all subterms, each as often as it occurs."""
    yield term
    for part in term[1:] if term[0] != "x" else ():
        yield from subterms(part)


def evaluate_term(term: Term, leaves: Mapping[Term, Array], field: Field, count: int) -> Array:
    """Return the term's values for `count` values of each variable, along an axis in front."""
    if term[0] == "x":
        return leaves[term]
    use: Use = term[0]
    values = use.evaluate([evaluate_term(part, leaves, field, count) for part in term[1:]], field)
    return values if len(term) > 1 else np.repeat(values, count, axis=0)


def possible_laws(candidate: Candidate) -> Iterator[Pair]:
    """Yield the candidate and its class's representative, with each naming of variables that hashes allow."""
    family, number = candidate.equal_class
    left = candidate.term
    slots, hashes = family.slots[number], candidate.hashes
    kinds = candidate.signature
    # a variable of the class may be called v where types and the hashes of the two variables' slots agree
    choices = [
        [v for v in range(len(kinds)) if kinds[v] == kind and hashes[v + 1] == slots[place + 1]]
        for place, kind in enumerate(family.signature)
    ]
    for names in _distinct_choices(choices):
        right = family.term(number, names)
        if right != left:
            yield left, right


def _distinct_choices(choices: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """Yield one element of each choice such that all differ."""
    if not choices:
        yield ()
        return
    for first in choices[0]:
        others = [[v for v in choice if v != first] for choice in choices[1:]]
        for names in _distinct_choices(others):
            yield (first, *names)


def _split_size(size: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yield all tuples of `count` sizes with this sum."""
    if count == 1:
        yield (size,)
        return
    for first in range(size + 1):
        yield from ((first, *others) for others in _split_size(size - first, count - 1))


class Terms:
    """The classes of a world's terms, grown size by size; `count` terms were evaluated.

    families  by type and signature
    size      of the largest terms so far
    known     the family and number of each class, by the key of its values (`_keys`)
    """

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
        for number, count in enumerate(world.variables):
            if count:
                shape = world.shapes[number]
                common, other = self.field.random(shape, rng), self.field.random(shape, rng)
                family = self._family(number, (number,))
                values = np.stack([common, other])[None]
                family.values.append(values)
                hashes = self._hash_slots(number, values)
                family.slots.append(tuple(map(int, hashes[0])))
                family.origins.append(None)
                self.known[self._keys(family, hashes)[0]] = family, 0

    def separate(self, candidate: Candidate) -> None:
        """Make a class of a candidate that differs at further points from the class whose values it has.

        No term is looked up in the new class, as its key is that of the other class.
        """
        family = self._family(self.world.kinds.index(candidate.use.result), candidate.signature)
        slots = range(len(candidate.signature) + 1)
        args = []
        for arg in candidate.args:
            values = np.concatenate(arg.family.values)[arg.number]
            # for each slot of the term the argument's, as in `_apply_batches`
            at = [0, *(arg.names.index(v - 1) + 1 if v - 1 in arg.names else 0 for v in slots[1:])]
            args.append(values[at])
        values = candidate.use.evaluate(args, self.field)[None]
        family.values[-1] = np.concatenate([family.values[-1], values])
        family.slots.append(candidate.hashes)
        family.origins.append((candidate.use, candidate.args))

    def _family(self, kind: int, signature: Signature) -> Family:
        key = kind, signature
        if key not in self.families:
            self.families[key] = Family(kind, signature)
        return self.families[key]

    def grow(self, last: bool = False) -> Iterator[Candidate]:
        """Enumerate the terms of the next size and yield the candidates; the `last` size stores no values."""
        self.size += 1
        new_values: dict[Family, list[Array]] = {}
        for use in self.world.uses:
            yield from self._apply_use(use, new_values, last)
        for family in self.families.values():
            shape = (0, len(family.signature) + 1, *self.world.shapes[family.type])
            while len(family.values) < self.size:  # a new family
                family.values.append(np.empty(shape, np.uint64))
            family.values.append(np.concatenate(new_values.get(family, [np.empty(shape, np.uint64)])))

    def _apply_use(self, use: Use, new_values: Any, last: bool) -> Iterator[Candidate]:
        """Apply the use to all arguments whose sizes add up to the present size."""
        kinds = [self.world.kinds.index(kind) for kind in use.types]
        result = self.world.kinds.index(use.result)
        if not kinds:
            if self.size == 1:
                family, values = self._family(result, ()), use.evaluate((), self.field)[:, None]
                yield from self._classify(use, (), (), (), (), (), family, values, new_values, last)
            return
        families = list(self.families.values())
        pools = [[f for f in families if f.type == kind] for kind in kinds]
        choices = list(self._choose_families(pools, (), (), ()))
        for sizes in _split_size(self.size - 1, len(kinds)):
            for chosen, names, signature in choices:
                yield from self._apply_batches(use, result, chosen, sizes, names, signature, new_values, last)

    def _choose_families(
        self, pools: Sequence[Sequence[Family]], chosen: tuple[Family, ...],
        names: tuple[tuple[int, ...], ...], signature: Signature
    ) -> Iterator[tuple[tuple[Family, ...], tuple[tuple[int, ...], ...], Signature]]:
        """Yield (families, names, signature): a family for each argument, all ways to share variables.

        Names are the term's variables for each argument's: of Add(f(a, b), f(b, c)) these are (0, 1), (1, 2).
        """
        if not pools:
            yield chosen, names, signature
            return
        for family in pools[0]:
            for own, extended in self._share_variables(signature, family.signature):
                yield from self._choose_families(pools[1:], (*chosen, family), (*names, own), extended)

    def _share_variables(
        self, first: Signature, second: Signature
    ) -> Iterator[tuple[tuple[int, ...], Signature]]:
        """Yield (numbers for the second's variables, common signature): each is one of the first's or new."""
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

    def _apply_batches(
        self, use: Use, result: int, families: tuple[Family, ...], sizes: tuple[int, ...],
        names: tuple[tuple[int, ...], ...], signature: Signature, new_values: Any, last: bool,
    ) -> Iterator[Candidate]:  # fmt: skip
        """Apply the use to all classes of these families and sizes, in batches.

        `families`, `sizes` and `names` have an entry for each argument; `result` is the number of its type.
        """
        parts = [family.of_size(size) for family, size in zip(families, sizes, strict=True)]
        counts = [len(values) for _, values in parts]
        if not (all(counts) and signature):  # without variables the term is a constant
            return
        slots = len(signature) + 1
        # for each slot of the term the argument's: slot 0 where the argument lacks the variable
        maps = [[0, *(own.index(v) + 1 if v in own else 0 for v in range(len(signature)))] for own in names]
        order = sorted(range(len(signature)), key=lambda v: signature[v])  # signatures are ascending
        family = self._family(result, tuple(signature[v] for v in order))
        step = max(1, BATCH_VALUES // (slots * max(1, prod(counts[1:]))))
        for start in range(0, counts[0], step):
            stop = min(counts[0], start + step)
            picks = np.meshgrid(np.arange(start, stop), *map(np.arange, counts[1:]), indexing="ij")
            chosen = [pick.ravel() for pick in picks]
            args = [
                values[pick][:, at].reshape(-1, *values.shape[2:])
                for (_, values), pick, at in zip(parts, chosen, maps, strict=True)
            ]
            results = use.evaluate(args, self.field)
            values = results.reshape(len(chosen[0]), slots, *results.shape[1:])
            values = values[:, [0, *(v + 1 for v in order)]]
            yield from self._classify(
                use, families, parts, chosen, names, order, family, values, new_values, last
            )

    def _classify(
        self, use: Use, families: Any, parts: Any, chosen: Any, names: Any, order: Any, family: Family,
        values: Array, new_values: Any, last: bool,
    ) -> Iterator[Candidate]:  # fmt: skip
        """Yield the terms of a batch that have the values of known classes; make classes of the others.

        For each argument, `parts` has (number of the first class, values) of its family and size, and
        `chosen` the place of each term's class among these; `order` sorts the variables by type.
        """
        hashes = self._hash_slots(family.type, values)
        keys = self._keys(family, hashes)
        self.count += len(keys)
        rank = {v: place for place, v in enumerate(order)}
        new_rows: list[int] = []
        for row, key in enumerate(keys):
            equal_class = self.known.get(key)
            args = tuple(
                Reference(f, first + int(pick[row]), tuple(rank[v] for v in own))
                for f, (first, _), pick, own in zip(families, parts, chosen, names, strict=True)
            )
            term_hashes = tuple(map(int, hashes[row]))
            if family.signature and len(set(term_hashes)) == 1:
                continue  # the term depends on no variable
            if equal_class is None:
                equal_class = self._class_of_fewer_variables(family, term_hashes)
            if equal_class is None:
                equal_class = self.known[key] = family, len(family.origins)
                family.origins.append((use, args))
                family.slots.append(term_hashes)
                new_rows.append(row)
                if len(set(term_hashes)) == len(term_hashes):
                    continue  # equal hashes may mean a symmetry in variables, which is a law, too
            yield Candidate(use, args, family.signature, term_hashes, self.size, equal_class)
        if new_rows and not last:
            new_values.setdefault(family, []).append(values[new_rows])

    def _class_of_fewer_variables(self, family: Family, hashes: tuple[int, ...]) -> tuple[Family, int] | None:
        """Return the known class over the variables on which the value depends, if these are fewer."""
        used = [place for place in range(len(family.signature)) if hashes[place + 1] != hashes[0]]
        fewer = self.families.get((family.type, tuple(family.signature[place] for place in used)))
        if fewer is None or len(used) == len(family.signature):
            return None
        used_hashes = np.array([[hashes[0], *(hashes[place + 1] for place in used)]], np.uint64)
        return self.known.get(self._keys(fewer, used_hashes)[0])

    def _hash_slots(self, kind: int, values: Array) -> Array:
        """Return 62 bits for each term and slot: two linear functions of the value's elements."""
        flat = values.reshape(-1, self._weights[kind].shape[0])
        pairs = self.field.matmul(flat, self._weights[kind])
        return (pairs[:, 0] << np.uint64(32) | pairs[:, 1]).reshape(values.shape[:2])

    def _keys(self, family: Family, hashes: Array) -> list[int]:
        """Return a key for each term; terms that are equal up to the names of variables have equal keys."""
        signature = np.array(family.signature)
        columns = [hashes[:, 0]]
        for kind in sorted(set(family.signature)):
            own = hashes[:, 1 + np.flatnonzero(signature == kind)]
            columns += list(np.sort(own, axis=1).T)
        state = np.full(len(hashes), self._seeds[family.type], np.uint64)
        with np.errstate(over="ignore"):  # the factor is 2^64 divided by the golden ratio: it mixes all bits
            for column in columns:
                state = scramble_words(state * np.uint64(0x9E3779B97F4A7C15) + column)
        return [int(key) for key in state]
