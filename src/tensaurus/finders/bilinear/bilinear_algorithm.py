"""Constructs algorithms for short convolutions with few multiplications, in exact rationals.

F(m, r) computes m outputs of a correlation with r weights, y[k] = sum_i w[i] d[k + i], by m + r - 1 products:

    y = AT ((G w) * (BT d))        * element by element; F(2, 3): 4 products where the direct sum takes 6

The product of two polynomials of degrees m - 1 and r - 1 is determined by its values at m + r - 1 points, one
of which may be infinity; F(m, r) is that interpolation, transposed (Winograd, Arithmetic Complexity of
Computations, 1980, chapter IV).

With a step s, y[k] = sum_i w[i] d[s k + i] is a sum of s correlations F(m, r'), each over the taps and the
elements with one remainder modulo s. For example, F(2, 3) in steps of 2 is F(2, 2) of the even taps plus F(2,
1) of the odd tap, which is two plain products: 5 products instead of 6.
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
    "BilinearAlgorithm",
    "Matrix",
    "cook_toom",
    "transform_effort",
    "error_growth",
    "interleave",
    "interpolation_matrices",
    "find_wrong_product",
]

Matrix: TypeAlias = tuple[tuple[Fraction, ...], ...]

MAX_FLOAT32_INTEGER = 1 << 24  # integers up to this are exact in float32
MAX_FLOAT64_INTEGER = 1 << 53  # integers up to this are exact in float64


@dataclass(frozen=True)
class BilinearAlgorithm:
    """F(outputs, taps) by interpolation at finite points, and at infinity if these are one too few.

    points   the finite points; () for plain products and for a sum of parts
    output   AT [outputs, products]
    weights  G [products, taps]
    data     BT [products, elements]
    step     elements from one output to the next
    parts    for a step above 1, the algorithms of which this one is the sum: part p has the taps k with
             k % step = p

    Raises ValueError where the matrices do not multiply out to the correlation.
    """

    outputs: int
    taps: int
    points: tuple[Fraction, ...]
    output: Matrix
    weights: Matrix
    data: Matrix
    step: int = 1
    parts: tuple[BilinearAlgorithm, ...] = ()

    def __post_init__(self) -> None:
        if reason := find_wrong_product(self.output, self.weights, self.data, self.step):
            raise ValueError(f"{self}: {reason}")

    @property
    def products(self) -> int:
        return len(self.weights)

    @property
    def elements(self) -> int:
        """The number of data elements that the outputs read."""
        return self.step * (self.outputs - 1) + self.taps

    @cached_property
    def error_growth(self) -> float:
        """The expected error of an output, as a multiple of that of a direct sum of `taps` products.

        That is sqrt(sum_p AT[k, p]^2 |G_p|^2 |BT_p|^2 / taps) for the worst output k, |.| the norm of a row,
        if all roundings are random and alike. Scaling product p in one matrix, and back in another, changes
        nothing; the growth of algorithms along several dimensions is the product of their growths.
        """
        return error_growth(self.output, self.weights, self.data)

    @cached_property
    def transform_effort(self) -> int:
        """The effort of transforming data and outputs (`transform_effort` gives the unit)."""
        return transform_effort(*self.data, *self.output)

    def __str__(self) -> str:
        name = f"F({self.outputs}, {self.taps})"
        if self.parts:
            return f"{name} in steps of {self.step}: {' + '.join(map(str, self.parts))}"
        if not self.points:
            return name
        points = ", ".join(map(str, self.points)) + (", inf" if len(self.points) < self.products else "")
        return f"{name} at {points}"


@lru_cache(1000)
def cook_toom(outputs: int, taps: int, points: tuple[Fraction, ...]) -> BilinearAlgorithm:
    """Returns F(outputs, taps) by interpolation at these points, and at infinity if they are one too few.

    Raises ValueError for other numbers of points, and for equal points.
    """
    return BilinearAlgorithm(outputs, taps, points, *interpolation_matrices(outputs, taps, points))


def interleave(parts: Sequence[BilinearAlgorithm], step: int) -> BilinearAlgorithm:
    """Returns the algorithm in steps of `step` that adds up the parts; part p has the taps p, p + step, ...

    Raises ValueError where the parts have different numbers of outputs, or numbers of taps that do not fit.
    """
    (outputs,) = {part.outputs for part in parts}
    taps = sum(part.taps for part in parts)
    elements = step * (outputs - 1) + taps
    output = [[a for part in parts for a in part.output[k]] for k in range(outputs)]
    weights = [_spread(row, p, step, taps) for p, part in enumerate(parts) for row in part.weights]
    data = [_spread(row, p, step, elements) for p, part in enumerate(parts) for row in part.data]
    a, g, b = map(_to_matrix, (output, weights, data))
    return BilinearAlgorithm(outputs, taps, (), a, g, b, step, tuple(parts))


def interpolation_matrices(
    outputs: int, taps: int, points: tuple[Fraction, ...]
) -> tuple[Matrix, Matrix, Matrix]:
    """Returns (AT, G, BT) of F(outputs, taps); one tap without points gives plain products."""
    products = outputs + taps - 1
    if taps == 1 <= outputs and not points:
        ones = tuple(tuple(Fraction(k == i) for i in range(outputs)) for k in range(outputs))
        return ones, ((Fraction(1),),) * outputs, ones
    if outputs < 1 or taps < 1 or len(set(points)) < len(points) or products - len(points) not in (0, 1):
        raise ValueError(f"F({outputs}, {taps}) at the points {', '.join(map(str, points))}")
    # Row p of each list belongs to product p. Lagrange: a polynomial with the values v[p] at the points is
    # sum_p v[p] * numerator_p(x) / denominator_p; BT has the numerators, and G takes the denominators.
    output, weights, data = [], [], []
    for place, point in enumerate(points):
        others = [q for k, q in enumerate(points) if k != place]
        numerator, denominator = _monic_polynomial(others, products), Fraction(1)
        for q in others:
            denominator *= point - q
        output.append([point**k for k in range(outputs)])
        weights.append([point**k / denominator for k in range(taps)])
        data.append(numerator)
    if len(points) < products:
        output.append(_last_unit_vector(outputs))
        weights.append(_last_unit_vector(taps))
        data.append(_monic_polynomial(points, products))
    # scale the rows of AT and BT to cheap numbers; G, whose effort does not count, takes both scales back
    for place in range(products):
        scales = _cheapest_scale(output[place]), _cheapest_scale(data[place])
        output[place] = [a * scales[0] for a in output[place]]
        data[place] = [b * scales[1] for b in data[place]]
        weights[place] = [g / (scales[0] * scales[1]) for g in weights[place]]
    columns = tuple(zip(*output, strict=True))
    return columns, _to_matrix(weights), _to_matrix(data)


def error_growth(output: Matrix, weights: Matrix, data: Matrix) -> float:
    """Returns the error growth of an algorithm with these matrices (`BilinearAlgorithm.error_growth`)."""
    sizes = [_square_norm(g) * _square_norm(b) for g, b in zip(weights, data, strict=True)]
    worst = max(sum(float(a * a * n) for a, n in zip(row, sizes, strict=True)) for row in output)
    return sqrt(worst / len(weights[0]))


def find_wrong_product(output: Matrix, weights: Matrix, data: Matrix, step: int = 1) -> str:
    """Returns why the matrices are no algorithm for the correlation, or "" if they are one.

    The condition is sum_p AT[k, p] G[p, i] BT[p, j] = 1 if j = step * k + i, else 0. Then the algorithm is
    right over every commutative ring that contains its numbers.
    """
    products, taps = len(weights), len(weights[0])
    elements = step * (len(output) - 1) + taps
    lengths = ("output", output, products), ("weight", weights, taps), ("data", data, elements)
    if len(data) != products:
        return f"{len(data)} rows of data for {products} products"
    for what, rows, length in lengths:
        if other := next((row for row in rows if len(row) != length), None):
            return f"{what}: a row of {len(other)} numbers, not {length}"
    # times their denominators the matrices are integers: computed in float64 where no sum can exceed what it
    # holds exactly, else in Python's integers
    (a, a_scale), (g, g_scale), (b, b_scale) = map(_clear_denominators, (output, weights, data))
    scale, identity = a_scale * g_scale * b_scale, np.eye(taps, dtype=object)
    largest = products * int(abs(a).max() * abs(g).max() * abs(b).max())
    kind = np.float64 if max(largest, scale) < MAX_FLOAT64_INTEGER else object
    a, g, b, identity = (matrix.astype(kind) for matrix in (a, g, b, scale * identity))
    # wrong[i, j] is the sum over p in the condition, minus the value that it should have
    for k, row in enumerate(a):
        wrong = (row[:, None] * g).T @ b
        wrong[:, step * k : step * k + taps] -= identity
        if wrong.any():
            i, j = np.argwhere(wrong)[0]
            return f"output {k} does not have weight {i} times element {j} as it should"
    return ""


def transform_effort(*rows: Sequence[Fraction]) -> int:
    """Returns the effort of linear combinations with these coefficients.

    An addition counts 2; a multiplication counts 1 by a power of two, 2 by another number that float32 holds
    exactly, and 4 by a number that float32 rounds.
    """
    return sum(2 * max(sum(map(bool, row)) - 1, 0) + sum(map(_multiplication_effort, row)) for row in rows)


def _clear_denominators(matrix: Matrix) -> tuple[NDArray[Any], int]:
    """Returns the matrix times its least common denominator, as Python's integers, and the denominator."""
    scale = lcm(*(number.denominator for row in matrix for number in row))
    return np.array([[int(number * scale) for number in row] for row in matrix], dtype=object), scale


def _multiplication_effort(number: Fraction) -> int:
    if number in (-1, 0, 1):
        return 0
    top, bottom = abs(number.numerator), number.denominator
    if bottom & (bottom - 1) or top >= MAX_FLOAT32_INTEGER:
        return 4
    return 2 if top & (top - 1) else 1


def _cheapest_scale(row: Sequence[Fraction]) -> Fraction:
    """Returns the factor that gives the row the least effort; of several factors, the one closest to 1."""
    denominator = Fraction(lcm(*(n.denominator for n in row)))
    scales = {Fraction(1), denominator, *(1 / abs(n) for n in row if n)}

    def rank(scale: Fraction) -> tuple[int, Fraction, Fraction]:
        return transform_effort([n * scale for n in row]), max(scale, 1 / scale), scale

    return min(scales, key=rank)


def _monic_polynomial(roots: Iterable[Fraction], length: int) -> list[Fraction]:
    """Returns the coefficients of prod(x - root), lowest first, padded with zeros to this length."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *coefficients]
        pairs = zip(shifted, [*coefficients, Fraction(0)], strict=True)
        coefficients = [high - root * low for high, low in pairs]
    return coefficients + [Fraction(0)] * (length - len(coefficients))


def _spread(row: Sequence[Fraction], first: int, step: int, length: int) -> list[Fraction]:
    """Returns a row of this length with the numbers at every `step`-th place from `first` on, else zeros."""
    spread = [Fraction(0)] * length
    spread[first : first + step * len(row) : step] = row
    return spread


def _last_unit_vector(length: int) -> list[Fraction]:
    return [Fraction(0)] * (length - 1) + [Fraction(1)]


def _to_matrix(rows: Sequence[Sequence[Fraction]]) -> Matrix:
    return tuple(map(tuple, rows))


def _square_norm(row: Sequence[Fraction]) -> Fraction:
    return sum((n * n for n in row), Fraction(0))
