"""Evaluate at two points of GF(p) at once, so that unknown functions see both.

At one point, two different arguments coincide with probability 1/p, and among the ten million activations of
a real network some do.  An unknown function of both points takes two arguments for the same only if they
coincide at both, with probability 1/p^2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import inf
from typing import Any
from zlib import crc32

import numpy as np

from tensaurus.expr.evaluate.field_protocol import Array
from tensaurus.expr.evaluate.prime_field import P, PrimeField, scramble_words
from tensaurus.expr.ir.scalar_functions import FUNCTIONS

_HALF = np.uint64(32)  # bits: the first point's element is in the upper half of a word
_BOTH = np.uint64((1 << 32) + 1)  # times this, a number below 2^32 stands in both halves of a word
_LOW = np.uint64(2**32 - 1)
_P = np.uint64(P)  # 2^31 - 1: also the mask of 31 bits
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # of splitmix64


@dataclass(frozen=True)
class Laws:
    """Which laws hold beyond those of a ring; a function without a law is an unknown function.

    order    max, min and comparisons follow a (random) total order
    inverse  1/x is the inverse of x
    """

    order: bool = False
    inverse: bool = False


# Laws with their texts, tried in this order: programs that are equal without a law are equal with it, too,
# but with a larger error bound.
LAW_LADDER = (
    (Laws(), ""),
    (Laws(inverse=True), "with 1/x the inverse of x"),
    (Laws(inverse=True, order=True), "with max and min of a random order, for which there is no bound"),
)


def pack_halves(first: Array, second: Array) -> Array:
    return np.asarray(first << _HALF | second)


def unpack_halves(a: Array) -> tuple[Array, Array]:
    return np.asarray(a >> _HALF), np.asarray(a & _LOW)


class PrimeFieldPairs(PrimeField):
    """GF(p) x GF(p), in the halves of a uint64.  Weights and integers are the same in both halves."""

    name = "gf(2^31-1)^2"

    def __init__(self, seed: int = 0, laws: Laws | None = None):
        super().__init__(seed)
        self.laws = Laws() if laws is None else laws
        self.drawn = 0  # random values so far: of inputs and of unknown functions

    def error(self, degree: float) -> float:
        """Return a bound of the probability that different polynomials of this degree have equal results.

        Either two results are equal by chance, or two arguments of an unknown function are (see
        `check.program.field_check`: (1 + m d) (d / p)^2, where m is at most `drawn`).  The bound is 1 where
        an order is followed: how many values a comparison depends on is not known.
        """
        if self.laws.order or degree == inf:
            return 1.0
        ratio = degree / P
        return min(1.0, (1 + self.drawn * degree) * ratio * ratio)

    def constant(self, value: Any) -> Array:
        half = super().constant(value)
        return pack_halves(half, half)

    def lift(self, data: Array) -> Array:
        half = super().lift(data)
        return np.asarray(half * _BOTH) if half.dtype.kind == "u" else half

    def from_int(self, data: Array) -> Array:
        half = super().from_int(data)
        return pack_halves(half, half)

    def random(self, shape: Sequence[int], rng: np.random.Generator) -> Array:
        pairs = pack_halves(super().random(shape, rng), super().random(shape, rng))
        self.drawn += pairs.size
        return pairs

    def call(self, fn: str, args: Sequence[Array], dtype: str = "int64") -> Array:
        if fn == "where" and self.has_elements(args[0]):  # a truth value without an order, see `apply`
            return self.unknown(fn, [a if self.has_elements(a) else self.from_int(a) for a in args])
        return super().call(fn, args, dtype)

    def apply(self, fn: str, args: Sequence[Array]) -> Array:
        match fn:
            case "add" | "sub" | "neg" | "mul":
                first, second = zip(*map(unpack_halves, args), strict=True)
                return pack_halves(super().apply(fn, first), super().apply(fn, second))
            case "div":
                # a divisor of one element is inverted even without the law; the degree that bounds the
                # error counts such a quotient as one of polynomials (`expr/analysis/polynomial_degree`)
                is_invertible = self.laws.inverse or args[1].size == 1
                reciprocal = self.inverse(args[1]) if is_invertible else self.unknown("inverse", args[1:])
                return self.apply("mul", [args[0], reciprocal])
            case "max" | "min" if not self.laws.order:
                a, b = np.broadcast_arrays(*args)
                return np.asarray(np.where(a == b, a, self._unordered(fn, [a, b])))
            case "max" | "min":
                return super().apply(fn, args)
            case "pow" if args[1].size == 1:
                exponents = [int(half.flat[0]) for half in unpack_halves(args[1])]
                if exponents[0] == exponents[1] <= 64:
                    result = self.product([args[0]] * exponents[0])
                    return np.broadcast_to(result, np.broadcast_shapes(*(a.shape for a in args)))
        # truth values are bools with an order; without one they are unknown elements
        if FUNCTIONS[fn].result == "bool" and self.laws.order:
            if fn == "eq":
                return np.asarray(args[0] == args[1])
            if fn == "le":
                return np.asarray(~self.apply("lt", [args[1], args[0]]))
            return np.asarray(self.unknown(fn, args) % np.uint64(2) == 0)
        if FUNCTIONS[fn].commutative:
            return self._unordered(fn, args)
        return self.unknown(fn, args)

    def unknown(self, fn: str, args: Sequence[Array]) -> Array:
        """Return a random function of the pairs, as pairs."""
        state = self._function_seed(fn)
        with np.errstate(over="ignore"):
            for arg in args:
                state = scramble_words(state * _MULTIPLIER + arg)
        return self._random_pairs(state)

    def _unordered(self, fn: str, args: Sequence[Array]) -> Array:
        """Return an unknown function whose arguments have no order."""
        state = self._function_seed(fn)
        with np.errstate(over="ignore"):
            total = reduce(np.add, (scramble_words(arg ^ state) for arg in args))
            return self._random_pairs(scramble_words(np.asarray(total * _MULTIPLIER + state)))

    def _function_seed(self, fn: str) -> Array:
        return scramble_words(np.asarray(self.seed ^ np.uint64(crc32(fn.encode()))))

    def _random_pairs(self, state: Array) -> Array:
        """Return the upper and the lower 31 bits of random words as pairs; p counts as 0."""
        first, second = state >> np.uint64(33), state & _P
        self.drawn += state.size
        return pack_halves(first - (first == _P) * _P, second - (second == _P) * _P)

    def inverse(self, a: Array) -> Array:
        first, second = unpack_halves(a)
        return pack_halves(super().inverse(first), super().inverse(second))

    def _rank(self, a: Array) -> Array:
        """Return the places of pairs in a random order, which max and min of `PrimeField` follow."""
        low, high = (self.constant(float(sign)) for sign in ("-inf", "inf"))
        rank = scramble_words(a ^ self.seed) >> np.uint64(1)
        rank = np.where(a == low, np.uint64(0), rank)
        return np.asarray(np.where(a == high, np.uint64(2**64 - 1), rank))

    def reduce(self, monoid: str, data: Array, axes: tuple[int, ...]) -> Array:
        if monoid == "sum":
            first, second = unpack_halves(data)
            return pack_halves(super().reduce("sum", first, axes), super().reduce("sum", second, axes))
        if monoid == "prod" or self.laws.order:
            return super().reduce(monoid, data, axes)
        # max or min without an order: an unknown function of the elements in any order; one alone stays
        count = int(np.prod([data.shape[i] for i in axes]))
        if count == 1:
            return data.reshape([n for i, n in enumerate(data.shape) if i not in axes])
        state = self._function_seed(monoid)
        with np.errstate(over="ignore"):
            total = np.add.reduce(scramble_words(data ^ state), axis=axes)
            return self._random_pairs(scramble_words(np.asarray(total * _MULTIPLIER + state)))

    def _multiply(self, a: Array, b: Array) -> Array:
        (a1, a2), (b1, b2) = unpack_halves(a), unpack_halves(b)
        # weights are the same at both points: one product by the other operand's halves side by side
        if np.array_equal(a1, a2):
            both = super()._multiply(a1, np.concatenate([b1, b2], axis=-1))
            return pack_halves(both[..., : b.shape[-1]], both[..., b.shape[-1] :])
        if np.array_equal(b1, b2):
            both = super()._multiply(np.concatenate([a1, a2], axis=-2), b1)
            return pack_halves(both[..., : a.shape[-2], :], both[..., a.shape[-2] :, :])
        return pack_halves(super()._multiply(a1, b1), super()._multiply(a2, b2))

    def _cast(self, target: str, data: Array, dtype: str) -> Array:
        if target == "bool" and self.has_elements(data) and not self.laws.order:
            return self.unknown("to_bool", [data])
        return super()._cast(target, data, dtype)
