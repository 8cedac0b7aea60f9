"""Re-indexes tensors: any reshapes and transposes, with padding, as one step (PET, section 4.2).

Each dimension of the source is split into mixed-radix digits, and the digits are dealt out to dimensions of
the result.  Two images side by side, where n1 and n0 are the digits n // 2 and n % 2:

    x[n, c, h, w]   ->   [n1, c, h, n0 w]           float32[4, 8, 9, 9] -> float32[2, 8, 9, 18]

Positions beyond the source are 0: where a radix does not divide a size, and where zeros are asked for.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import prod
from typing import NamedTuple

from tensaurus.expr.ir.scope import Const, Read, Scope, Tensor, axis
from tensaurus.expr.sizes.mixed_radix import unravel_index
from tensaurus.expr.sizes.size import Size, polynomial

__all__ = ["Digit", "Reindexing", "dimension_names", "enumerate_reindexings", "possible_radices"]

LETTERS = "nchwd"  # names of dimensions in texts, as of images; tensors of higher rank have a0, a1, ...
FACTORS = (2, 3, 4)  # into how many parts a dimension is split, and how many elements a part may have


class Digit(NamedTuple):
    """One digit of a dimension's index; `place` 0 is the slowest."""

    dimension: int
    place: int


@dataclass(frozen=True)
class Reindexing:
    """A tensor read at re-arranged digits of its indices.

    radices  for each dimension of the source the extents of its digits but the slowest, slowest first; -3 for
             the extent that makes three parts, whatever the dimension's size
    groups   for each dimension of the result its digits, slowest first
    begins   zeros before the first element of each dimension
    gaps     zeros behind the last element of each dimension, in units of its slowest digit
    """

    radices: tuple[tuple[int, ...], ...]
    groups: tuple[tuple[Digit, ...], ...]
    begins: tuple[int, ...]
    gaps: tuple[int, ...]

    @classmethod
    def identity(cls, rank: int) -> Reindexing:
        """Return the re-indexing that changes nothing."""
        groups = tuple((Digit(d, 0),) for d in range(rank))
        return cls(((),) * rank, groups, (0,) * rank, (0,) * rank)

    @property
    def is_identity(self) -> bool:
        return self == Reindexing.identity(len(self.radices))

    def is_touched(self, d: int) -> bool:
        """Return whether dimension d of the result is another one than dimension d of the source."""
        kept = self.groups[d] == (Digit(d, 0),) and not self.radices[d]
        return not kept or bool(self.begins[d] or self.gaps[d])

    def extents(self, shape: Sequence[int]) -> dict[Digit, int]:
        """Return the extent of each digit for a source of this shape."""
        found = dict[Digit, int]()
        for d, size in enumerate(shape):
            radices = [radix if radix > 0 else -(size // radix) for radix in self.radices[d]]
            inner = prod(radices)
            found[Digit(d, 0)] = -(-(size + self.begins[d]) // inner) + self.gaps[d]
            found |= {Digit(d, k): radix for k, radix in enumerate(radices, 1)}
        return found

    def shape(self, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Return the shape of the result for one source of this shape."""
        extents = self.extents(shapes[0])
        return tuple(prod(extents[digit] for digit in group) for group in self.groups)

    def scope(self, sources: Sequence[Tensor]) -> Scope:
        """Return the result as an expression of the one source, whose sizes are numbers."""
        (source,) = sources
        shape = [n for n in source.shape if isinstance(n, int)]
        extents = self.extents(shape)
        axes = tuple(axis(n) for n in self.shape([shape]))
        values = dict[Digit, Size]()
        for a, group in zip(axes, self.groups, strict=True):
            digits = unravel_index(polynomial(a), [extents[digit] for digit in group])
            values |= dict(zip(group, digits, strict=True))
        indices = list[Size]()
        for d, begin in enumerate(self.begins):
            index: Size = 0
            for k in range(len(self.radices[d]) + 1):
                index = index * extents[Digit(d, k)] + values[Digit(d, k)]
            indices.append(polynomial(index - begin))
        covered = all(
            prod(extents[Digit(d, k)] for k in range(len(self.radices[d]) + 1)) == size
            for d, size in enumerate(shape)
        )
        return Scope(axes, Read(source, tuple(indices), None if covered else Const(0)))

    def __str__(self) -> str:
        """Return the digits of each dimension of the result: [n1, c, h, n0 w]."""
        names = dimension_names(len(self.radices))

        def name(digit: Digit) -> str:
            count = len(self.radices[digit.dimension])
            number = str(count - digit.place) if count else ""
            return names[digit.dimension] + number

        text = f"[{', '.join(' '.join(map(name, group)) or '1' for group in self.groups)}]"
        splits = [
            f"{names[d]} {'by' if r[0] > 0 else 'into'} {' '.join(str(abs(radix)) for radix in r)}"
            for d, r in enumerate(self.radices)
            if r
        ]
        zeros = [f"{n} before {names[d]}" for d, n in enumerate(self.begins) if n]
        zeros += [f"{n} behind {names[d]}" for d, n in enumerate(self.gaps) if n]
        words = [*splits, *([f"zeros: {', '.join(zeros)}"] if zeros else [])]
        return f"{text} ({'; '.join(words)})" if words else text


def dimension_names(rank: int) -> list[str]:
    """Return a short name for each dimension in texts."""
    return list(LETTERS[:rank]) if rank <= len(LETTERS) else [f"a{d}" for d in range(rank)]


class _Move(NamedTuple):
    """A split of a dimension by an inner radix, and where one of the two digits goes.

    digit  the place of the digit that moves: 0, the slow one, or 1
    to     the dimension of the result that takes the digit
    front  whether the digit becomes the slowest there, else the fastest
    """

    dimension: int
    radix: int
    digit: int
    to: int
    front: bool

    def parts(self, shape: Sequence[int]) -> int:
        """Return the extent of the slow digit."""
        return -self.radix if self.radix < 0 else -(-shape[self.dimension] // self.radix)


def enumerate_reindexings(
    shape: Sequence[int], splits: Mapping[int, Sequence[int]], windows: Container[int], gaps: Sequence[int]
) -> Iterator[Reindexing]:
    """Yield re-indexings of a tensor that split one dimension, then those that split two alike.

    splits   by dimension the radices by which it may be split
    windows  the dimensions that are read by windows: elsewhere an exchange of digits changes nothing
    gaps     numbers of zeros that may be put behind a dimension whose digits others repeat

    Two dimensions are split alike: by the same radix or into the same number of parts, and the same of the
    two digits moves.  So does a convolution whose window treats height and width alike.
    """
    moves = [move for d in splits for move in _single_moves(d, splits[d], shape, d in windows)]
    for move in moves:
        yield from _with_gaps(_apply_moves(len(shape), (move,)), gaps)
    for first, second in combinations(moves, 2):
        if first.dimension == second.dimension or first.digit != second.digit:
            continue
        if first.radix == second.radix or first.parts(shape) == second.parts(shape):
            yield from _with_gaps(_apply_moves(len(shape), (first, second)), gaps)


def possible_radices(size: int, *others: int) -> tuple[int, ...]:
    """Return the radices by which a dimension of this size may be split: into few parts, or parts of few.

    `others` are further numbers to try: strides and dilations.
    """
    factors = [f for f in dict.fromkeys((*FACTORS, *others)) if 1 < f < size]
    parts = [-(-size // f) for f in factors]
    whole = [size] if size <= max(FACTORS) else []
    return tuple(dict.fromkeys(r for r in (*factors, *parts, *whole) if r > 1))


def _single_moves(
    d: int, radices: Sequence[int], shape: Sequence[int], is_window: bool
) -> Iterator[_Move]:
    for radix, digit, to, front in product(radices, (0, 1), range(len(shape)), (True, False)):
        if digit == 0 and radix >= shape[d]:
            continue  # the slow digit is always 0
        # within its own dimension one exchange of the two digits is enough
        if to != d or (is_window and digit == 1 and front):
            yield _Move(d, radix, digit, to, front)


def _apply_moves(rank: int, moves: Sequence[_Move]) -> Reindexing:
    """Return the re-indexing of splits of different dimensions, whose digits move in this order."""
    radices: list[tuple[int, ...]] = [()] * rank
    groups = [[Digit(d, 0)] for d in range(rank)]
    for move in moves:
        radices[move.dimension] = (move.radix,)
        groups[move.dimension].append(Digit(move.dimension, 1))
    for move in moves:
        digit = Digit(move.dimension, move.digit)
        groups[move.dimension].remove(digit)
        groups[move.to].insert(0 if move.front else len(groups[move.to]), digit)
    return replace(
        Reindexing.identity(rank), radices=tuple(radices), groups=tuple(tuple(group) for group in groups)
    )


def _with_gaps(plain: Reindexing, gaps: Sequence[int]) -> Iterator[Reindexing]:
    """Yield the re-indexing, then with zeros behind each dimension whose slowest digit is not the slowest."""
    yield plain
    inside = [group[-1].dimension for group in plain.groups if len(group) > 1 and group[-1].place == 0]
    for gap in gaps:
        if gap and inside:
            counts = tuple(gap if d in inside else 0 for d in range(len(plain.gaps)))
            yield replace(plain, gaps=counts)
