"""Short convolutions by few multiplications, in exact rationals.

F(m, r) computes m outputs of a correlation with r weights, y[k] = sum_i w[i] d[k + i], by m + r - 1 products:

    y = AT ((G w) * (BT d))

The product of two polynomials of degrees m - 1 and r - 1 is known from its values at m + r - 1 points, one
of which may be infinity; this is that interpolation, transposed (Winograd, Arithmetic Complexity of
Computations, 1980, chapter IV).

In steps of s, y[k] = sum_i w[i] d[s k + i], it is the sum of one for every s-th tap and element: of F(m, r')
with their r' taps.  F(2, 3) in steps of 2 are F(2, 2) of the even ones and F(2, 1), which is no more than two
products, of the odd ones: 5 products for 6.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from math import lcm, sqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Algorithm",
    "Matrix",
    "cook_toom",
    "effort",
    "growth",
    "interleaved",
    "interpolation",
    "refutation",
]

Matrix: TypeAlias = tuple[tuple[Fraction, ...], ...]

DIGITS = 1 << 24  # numerators below it are exact in float32
EXACT = 1 << 53  # integers up to it are exact in float64


@dataclass(frozen=True)
class Algorithm:
    """F(outputs, taps) at finite points, and at infinity where these are one less than the products.

    output   AT [outputs, products]
    weights  G [products, taps]
    data     BT [products, elements]
    step     elements from one output to the next
    parts    of those in steps, what they are sums of

    Raises ValueError where the matrices do not multiply out to the correlation.
    """

    outputs: int
    taps: int
    points: tuple[Fraction, ...]
    output: Matrix
    weights: Matrix
    data: Matrix
    step: int = 1
    parts: tuple[Algorithm, ...] = ()

    def __post_init__(self) -> None:
        if reason := refutation(self.output, self.weights, self.data, self.step):
            raise ValueError(f"{self}: {reason}")

    @property
    def products(self) -> int:
        return len(self.weights)

    @property
    def elements(self) -> int:
        """That it reads for its outputs."""
        return self.step * (self.outputs - 1) + self.taps

    @cached_property
    def growth(self) -> float:
        """The error of one output beside that of a sum of as many products, both from sums of random numbers
        rounded alike: sqrt(sum_p AT[k, p]^2 |G_p|^2 |BT_p|^2 / taps), of the worst output k.

        Scaling one matrix and another back changes nothing; of products of algorithms it is the product.
        """
        return growth(self.output, self.weights, self.data)

    @cached_property
    def effort(self) -> int:
        """Of its transforms of data and outputs, as `effort` says."""
        return effort(*self.data, *self.output)

    def __str__(self) -> str:
        name = f"F({self.outputs}, {self.taps})"
        if self.parts:
            return f"{name} in steps of {self.step}: {' + '.join(map(str, self.parts))}"
        if not self.points:
            return name
        points = ", ".join(map(str, self.points)) + (", inf" if len(self.points) < self.products else "")
        return f"{name} at {points}"


@lru_cache(1000)
def cook_toom(outputs: int, taps: int, points: tuple[Fraction, ...]) -> Algorithm:
    """F(outputs, taps) by interpolation at these points, and at infinity where they are one too few.

    Raises ValueError for other numbers of points, and for equal ones.
    """
    return Algorithm(outputs, taps, points, *interpolation(outputs, taps, points))


def interleaved(parts: Sequence[Algorithm], step: int) -> Algorithm:
    """In steps: the sum of one for each of the first taps, of every `step`-th tap and element from there on.

    Raises ValueError where these are not of as many outputs, or of other numbers of taps.
    """
    (outputs,) = {part.outputs for part in parts}
    taps = sum(part.taps for part in parts)
    elements = step * (outputs - 1) + taps
    output = [[a for part in parts for a in part.output[k]] for k in range(outputs)]
    weights = [_spread(row, p, step, taps) for p, part in enumerate(parts) for row in part.weights]
    data = [_spread(row, p, step, elements) for p, part in enumerate(parts) for row in part.data]
    return Algorithm(outputs, taps, (), _matrix(output), _matrix(weights), _matrix(data), step, tuple(parts))


def interpolation(outputs: int, taps: int, points: tuple[Fraction, ...]) -> tuple[Matrix, Matrix, Matrix]:
    """Its matrices: of the output, the weights and the data; of one tap without points nothing is
    interpolated."""
    products = outputs + taps - 1
    if taps == 1 <= outputs and not points:  # a product for each output, of one element
        ones = tuple(tuple(Fraction(k == i) for i in range(outputs)) for k in range(outputs))
        return ones, ((Fraction(1),),) * outputs, ones
    if outputs < 1 or taps < 1 or len(set(points)) < len(points) or products - len(points) not in (0, 1):
        raise ValueError(f"F({outputs}, {taps}) at the points {', '.join(map(str, points))}")
    output, weights, data = [], [], []
    for place, point in enumerate(points):
        others = [q for k, q in enumerate(points) if k != place]
        numerator, denominator = _monic(others, products), Fraction(1)
        for q in others:
            denominator *= point - q
        output.append([point**k for k in range(outputs)])
        weights.append([point**k / denominator for k in range(taps)])
        data.append(numerator)
    if len(points) < products:
        output.append(_last(outputs))
        weights.append(_last(taps))
        data.append(_monic(points, products))
    for place in range(products):
        scales = _cheapest(output[place]), _cheapest(data[place])
        output[place] = [a * scales[0] for a in output[place]]
        data[place] = [b * scales[1] for b in data[place]]
        weights[place] = [g / (scales[0] * scales[1]) for g in weights[place]]
    columns = tuple(zip(*output, strict=True))
    return columns, _matrix(weights), _matrix(data)


def growth(output: Matrix, weights: Matrix, data: Matrix) -> float:
    """Of errors, by an algorithm of these matrices: `Algorithm.growth`."""
    sizes = [_square(g) * _square(b) for g, b in zip(weights, data, strict=True)]
    worst = max(sum(float(a * a * n) for a, n in zip(row, sizes, strict=True)) for row in output)
    return sqrt(worst / len(weights[0]))


def refutation(output: Matrix, weights: Matrix, data: Matrix, step: int = 1) -> str:
    """Why the matrices do not multiply out to sum_p AT[k, p] G[p, i] BT[p, j] = 1 where j = step * k + i,
    else 0; empty where they do: the algorithm is right over every commutative ring that has its numbers.

    Multiplied out are whole numbers, each matrix times its denominators: as floats where these hold every sum
    that may occur, else of any size.
    """
    products, taps = len(weights), len(weights[0])
    elements = step * (len(output) - 1) + taps
    lengths = ("output", output, products), ("weight", weights, taps), ("data", data, elements)
    if len(data) != products:
        return f"{len(data)} rows of data for {products} products"
    for what, rows, length in lengths:
        if other := next((row for row in rows if len(row) != length), None):
            return f"{what}: a row of {len(other)} numbers, not {length}"
    (a, top), (g, middle), (b, bottom) = map(_whole, (output, weights, data))
    scale, identity = top * middle * bottom, np.eye(taps, dtype=object)
    largest = products * int(abs(a).max() * abs(g).max() * abs(b).max())
    kind = np.float64 if max(largest, scale) < EXACT else object
    a, g, b, identity = (matrix.astype(kind) for matrix in (a, g, b, scale * identity))
    for k, row in enumerate(a):
        wrong = (row[:, None] * g).T @ b
        wrong[:, step * k : step * k + taps] -= identity
        if wrong.any():
            i, j = np.argwhere(wrong)[0]
            return f"output {k} does not have weight {i} times element {j} as it should"
    return ""


def effort(*rows: Sequence[Fraction]) -> int:
    """Of sums of so many multiples: 2 for each addition, and for each multiplication 1 by a power of two, 2
    by what float32 holds, 4 by what it rounds.
    """
    return sum(2 * max(sum(map(bool, row)) - 1, 0) + sum(map(_times, row)) for row in rows)


def _whole(matrix: Matrix) -> tuple[NDArray[Any], int]:
    """The matrix times its least common denominator, as Python's integers, and that."""
    scale = lcm(*(number.denominator for row in matrix for number in row))
    return np.array([[int(number * scale) for number in row] for row in matrix], dtype=object), scale


def _times(number: Fraction) -> int:
    if number in (-1, 0, 1):
        return 0
    top, bottom = abs(number.numerator), number.denominator
    if bottom & (bottom - 1) or top >= DIGITS:
        return 4
    return 2 if top & (top - 1) else 1


def _cheapest(row: Sequence[Fraction]) -> Fraction:
    """The scale by which the row takes least effort; of several that which is closest to one."""
    whole = Fraction(lcm(*(n.denominator for n in row)))
    scales = {Fraction(1), whole, *(1 / abs(n) for n in row if n)}

    def rank(scale: Fraction) -> tuple[int, Fraction, Fraction]:
        return effort([n * scale for n in row]), max(scale, 1 / scale), scale

    return min(scales, key=rank)


def _monic(roots: Iterable[Fraction], length: int) -> list[Fraction]:
    """The coefficients of prod(x - root), lowest first, and zeros up to this length."""
    found = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *found]
        found = [high - root * low for high, low in zip(shifted, [*found, Fraction(0)], strict=True)]
    return found + [Fraction(0)] * (length - len(found))


def _spread(row: Sequence[Fraction], first: int, step: int, length: int) -> list[Fraction]:
    """The numbers at every `step`-th place from the first, and zeros up to this length."""
    found = [Fraction(0)] * length
    found[first : first + step * len(row) : step] = row
    return found


def _last(length: int) -> list[Fraction]:
    return [Fraction(0)] * (length - 1) + [Fraction(1)]


def _matrix(rows: Sequence[Sequence[Fraction]]) -> Matrix:
    return tuple(map(tuple, rows))


def _square(row: Sequence[Fraction]) -> Fraction:
    return sum((n * n for n in row), Fraction(0))
