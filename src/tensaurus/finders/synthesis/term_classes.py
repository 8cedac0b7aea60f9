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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np

from tensaurus.expr.evaluate.field_protocol import Array
from tensaurus.expr.evaluate.prime_field import PrimeField, scramble_words
from tensaurus.finders.synthesis.operator_use import Use
from tensaurus.finders.synthesis.terms import Application, Pair, Term, Variable
from tensaurus.finders.synthesis.world import World

__all__ = ["Candidate", "Family", "Reference", "TermClasses", "possible_laws"]

BATCH_VALUES = 200_000  # terms times slots that are evaluated at once, which bounds memory
Signature: TypeAlias = tuple[int, ...]  # the type of each variable, as its number in the world, ascending


class TermClass(NamedTuple):
    """A class of terms of equal values, by its number in its family."""

    family: Family
    number: int


@dataclass(frozen=True)
class Reference:
    """A class as an argument: variable k of the class is variable `names[k]` of the larger term."""

    family: Family
    number: int
    names: tuple[int, ...]


class Origin(NamedTuple):
    """How the representative of a class is built."""

    use: Use
    args: tuple[Reference, ...]

    def term(self, names: Sequence[int]) -> Application:
        """Return the term, with its variables numbered by `names`."""
        parts = (arg.family.term(arg.number, [names[n] for n in arg.names]) for arg in self.args)
        return Application(self.use, tuple(parts))


@dataclass(frozen=True)
class Candidate:
    """A term with the values of a known class, or a new representative that may be symmetric in variables.

    signature  the types of its variables
    hashes     of its slots: the common one, then one for each variable
    """

    origin: Origin
    signature: Signature
    hashes: tuple[int, ...]
    equal_class: TermClass

    @property
    def term(self) -> Application:
        return self.origin.term(range(len(self.signature)))

    @property
    def is_representative(self) -> bool:
        """Whether the candidate is its class's own representative: a candidate for a symmetry alone."""
        family, number = self.equal_class
        return family.origins[number] == self.origin


class Block(NamedTuple):
    """The classes of one size in a family: the number of the first, and the values of each at each slot."""

    first: int
    values: Array


@dataclass(eq=False)
class Family:
    """Classes of one type whose variables have the same types.

    values   by size the values of each class at each slot: [classes, slots, *shape]
    slots    for each class the hashes of its slots
    origins  for each class how its representative is built, None for a variable
    """

    type: int
    signature: Signature
    values: list[Array] = field(default_factory=list)
    slots: list[tuple[int, ...]] = field(default_factory=list)
    origins: list[Origin | None] = field(default_factory=list)

    def of_size(self, size: int) -> Block:
        """Return the classes whose representatives have this size."""
        first = sum(len(block) for block in self.values[:size])
        return Block(first, self.values[size] if size < len(self.values) else np.empty((0,), np.uint64))

    def term(self, number: int, names: Sequence[int] | None = None) -> Term:
        """Return a class's representative, with variables numbered by `names`."""
        names = range(len(self.signature)) if names is None else names
        origin = self.origins[number]
        return Variable(self.signature[0], names[0]) if origin is None else origin.term(names)


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


def _argument_slots(names: Sequence[int], variable_count: int) -> list[int]:
    """Return for each slot of a term that of an argument: slot 0 where the argument lacks the variable.

    Variable k of the argument is variable `names[k]` of the term.
    """
    return [0, *(names.index(v) + 1 if v in names else 0 for v in range(variable_count))]


class _Argument(NamedTuple):
    """A family for an argument of a term: variable k of its classes is variable `names[k]` of the term."""

    family: Family
    names: tuple[int, ...]

    def references(self, numbers: Iterable[int], rank: Mapping[int, int]) -> Iterator[Reference]:
        """Yield the classes of these numbers as arguments, with variable v of the term numbered rank[v]."""
        names = tuple(rank[v] for v in self.names)
        return (Reference(self.family, int(number), names) for number in numbers)


class TermClasses:
    """The classes of a world's terms, grown size by size; `count` terms were evaluated.

    families  by type and signature
    size      of the largest terms so far
    known     each class by the key of its values (`_keys`)
    """

    def __init__(self, world: World, seed: int = 0):
        self.world = world
        self.field = PrimeField(seed)
        rng = np.random.default_rng(seed)
        self.families: dict[tuple[int, Signature], Family] = {}
        self.known: dict[int, TermClass] = {}
        self.size = 0
        self.count = 0
        self._new_values: dict[Family, list[Array]] = {}  # of the size that is grown
        self._is_last_size = False
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
                self.known[self._keys(family, hashes)[0]] = TermClass(family, 0)

    def separate(self, candidate: Candidate) -> None:
        """Make a class of a candidate that differs at further points from the class whose values it has.

        No term is looked up in the new class, as its key is that of the other class.  May be called only when
        `grow` has yielded all of a size and stored its values, as a class's number is its row in them.
        """
        use, references = candidate.origin
        family = self._family(self.world.kinds.index(use.result), candidate.signature)
        args = []
        for arg in references:
            values = np.concatenate(arg.family.values)[arg.number]
            args.append(values[_argument_slots(arg.names, len(candidate.signature))])
        family.values[-1] = np.concatenate([family.values[-1], use.evaluate(args, self.field)[None]])
        family.slots.append(candidate.hashes)
        family.origins.append(candidate.origin)

    def _family(self, kind: int, signature: Signature) -> Family:
        key = kind, signature
        if key not in self.families:
            self.families[key] = Family(kind, signature)
        return self.families[key]

    def grow(self, last: bool = False) -> Iterator[Candidate]:
        """Enumerate the terms of the next size and yield the candidates; the `last` size stores no values."""
        self.size += 1
        self._new_values, self._is_last_size = {}, last
        for use in self.world.uses:
            yield from self._apply_use(use)
        for family in self.families.values():
            empty = np.empty((0, len(family.signature) + 1, *self.world.shapes[family.type]), np.uint64)
            while len(family.values) < self.size:  # a new family
                family.values.append(empty)
            family.values.append(np.concatenate(self._new_values.get(family, [empty])))

    def _apply_use(self, use: Use) -> Iterator[Candidate]:
        """Apply the use to all arguments whose sizes add up to the present size."""
        if not use.types:
            if self.size == 1:
                family = self._family(self.world.kinds.index(use.result), ())
                yield from self._classify(use, [()], family, use.evaluate((), self.field)[:, None])
            return
        families = list(self.families.values())
        kinds = [self.world.kinds.index(kind) for kind in use.types]
        choices = list(self._choose_arguments([[f for f in families if f.type == kind] for kind in kinds]))
        for sizes in _split_size(self.size - 1, len(kinds)):
            for arguments, signature in choices:
                yield from self._apply_in_batches(use, arguments, sizes, signature)

    def _choose_arguments(
        self, pools: Sequence[Sequence[Family]], chosen: tuple[_Argument, ...] = (), signature: Signature = ()
    ) -> Iterator[tuple[tuple[_Argument, ...], Signature]]:
        """Yield the arguments and the term's signature: a family of each pool, all ways to share variables.

        In Add(f(a, b), f(b, c)), the arguments' variables are numbered (0, 1) and (1, 2).
        """
        if not pools:
            yield chosen, signature
            return
        for family in pools[0]:
            for names, extended in self._share_variables(signature, family.signature):
                yield from self._choose_arguments(pools[1:], (*chosen, _Argument(family, names)), extended)

    def _share_variables(
        self, first: Signature, second: Signature
    ) -> Iterator[tuple[tuple[int, ...], Signature]]:
        """Yield (numbers for the second's variables, common signature): each is one of the first's or new."""
        for count in range(min(len(first), len(second)) + 1):
            for shared in combinations(range(len(second)), count):
                for places in permutations(range(len(first)), count):
                    if any(second[a] != first[b] for a, b in zip(shared, places, strict=True)):
                        continue
                    at = dict(zip(shared, places, strict=True))
                    new = [place for place in range(len(second)) if place not in at]
                    at |= {place: len(first) + k for k, place in enumerate(new)}
                    signature = (*first, *(second[place] for place in new))
                    if all(signature.count(k) <= most for k, most in enumerate(self.world.variables)):
                        yield tuple(at[place] for place in range(len(second))), signature

    def _apply_in_batches(
        self, use: Use, arguments: Sequence[_Argument], sizes: Sequence[int], signature: Signature
    ) -> Iterator[Candidate]:
        """Apply the use to all classes that have the size of their argument, in batches."""
        blocks = [argument.family.of_size(size) for argument, size in zip(arguments, sizes, strict=True)]
        counts = [len(block.values) for block in blocks]
        if not (all(counts) and signature):  # without variables the term is a constant
            return
        slots = len(signature) + 1
        slot_maps = [_argument_slots(argument.names, len(signature)) for argument in arguments]
        order = sorted(range(len(signature)), key=lambda v: signature[v])  # signatures are ascending
        rank = {v: place for place, v in enumerate(order)}
        family = self._family(self.world.kinds.index(use.result), tuple(signature[v] for v in order))
        step = max(1, BATCH_VALUES // (slots * max(1, prod(counts[1:]))))
        for start in range(0, counts[0], step):
            stop = min(counts[0], start + step)
            picks = np.meshgrid(np.arange(start, stop), *map(np.arange, counts[1:]), indexing="ij")
            # for each argument, the place of each term's class in its block
            chosen = [pick.ravel() for pick in picks]
            args = [
                block.values[pick][:, at].reshape(-1, *block.values.shape[2:])
                for block, pick, at in zip(blocks, chosen, slot_maps, strict=True)
            ]
            results = use.evaluate(args, self.field)
            values = results.reshape(len(chosen[0]), slots, *results.shape[1:])
            # [terms, slots, elements...]: slots in the order of the ascending signature
            values = values[:, [0, *(v + 1 for v in order)]]
            references = (
                argument.references(block.first + pick, rank)
                for argument, block, pick in zip(arguments, blocks, chosen, strict=True)
            )
            yield from self._classify(use, zip(*references, strict=True), family, values)

    def _classify(
        self, use: Use, arguments: Iterable[tuple[Reference, ...]], family: Family, values: Array
    ) -> Iterator[Candidate]:
        """Yield the terms of a batch that have the values of known classes; make classes of the others."""
        hashes = self._hash_slots(family.type, values)
        keys = self._keys(family, hashes)
        self.count += len(keys)
        new_rows: list[int] = []
        for row, (key, references) in enumerate(zip(keys, arguments, strict=True)):
            equal_class = self.known.get(key)
            term_hashes = tuple(map(int, hashes[row]))
            if family.signature and len(set(term_hashes)) == 1:
                continue  # the term depends on no variable
            if equal_class is None:
                equal_class = self._class_of_fewer_variables(family, term_hashes)
            origin = Origin(use, references)
            if equal_class is None:
                equal_class = self.known[key] = TermClass(family, len(family.origins))
                family.origins.append(origin)
                family.slots.append(term_hashes)
                new_rows.append(row)
                if len(set(term_hashes)) == len(term_hashes):
                    continue  # equal hashes may mean a symmetry in variables, which is a law, too
            yield Candidate(origin, family.signature, term_hashes, equal_class)
        if new_rows and not self._is_last_size:
            self._new_values.setdefault(family, []).append(values[new_rows])

    def _class_of_fewer_variables(self, family: Family, hashes: tuple[int, ...]) -> TermClass | None:
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
