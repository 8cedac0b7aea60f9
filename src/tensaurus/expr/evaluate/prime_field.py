"""The field GF(p), p = 2^31 - 1, in which arithmetic is exact and random points tell polynomials apart."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import reduce
from math import inf, isfinite, nan
from typing import Any
from zlib import crc32

import numpy as np

from tensaurus.expr.evaluate.field_protocol import Array, Field
from tensaurus.expr.ir.integer_types import wrap_to_dtype
from tensaurus.expr.ir.scalar_functions import FUNCTIONS

P = 2**31 - 1
MAX_SUMMED = 1 << 20  # products of limbs that are added up in float64
PART_ELEMENTS = 1 << 18  # of an operand, about, whose product is computed at once: 2 MB
CHUNK_NUMBERS = 1 << 14  # numbers that are lifted at a time: their intermediate results stay in the cache


def scramble_words(x: Array) -> Array:
    """Return a bijective scrambling of 64-bit words (splitmix64)."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(x ^ (x >> np.uint64(31)))


def _reduce_sum(x: Array) -> Array:
    """Return x modulo p for x in [0, 2p]; below zero unsigned numbers wrap around to the largest."""
    with np.errstate(over="ignore"):
        return np.asarray(np.minimum(x, x - np.uint64(P)))


def _reduce_product(x: Array) -> Array:
    """Return x modulo p for x in [0, p^2] without division: 2^31 is 1, so high bits are added to low ones."""
    return _reduce_sum((x & np.uint64(P)) + (x >> np.uint64(31)))


class PrimeField(Field):
    """GF(p), p = 2^31 - 1, as uint64 in [0, p).

    Infinities and NaN, which it lacks, are seeded random elements: a window that is padded with -inf differs
    from one that is padded with zeros.

    Unknown functions are seeded random functions.  max and min follow a seeded random total order: they keep
    the laws of a lattice and have none with + and *, so that max(x, 0) = x, which the order of the
    representatives 0..p-1 would satisfy, fails here as it must.
    """

    name = "gf(2^31-1)"
    kind = "u"

    def __init__(self, seed: int = 0):
        self.seed = np.uint64(scramble_words(np.asarray(seed + 0x9E3779B97F4A7C15, np.uint64)))
        words = (crc32(name.encode()) for name in ("infinity", "nan"))
        seeds = (np.asarray(self.seed ^ np.uint64(word)) for word in words)
        self.infinity, self.nan = (scramble_words(seed) % np.uint64(P) for seed in seeds)

    def constant(self, value: Any) -> Array:
        if isinstance(value, float) and not isfinite(value):
            return PrimeField.lift(self, np.asarray(value))
        value = Fraction(value)
        return np.asarray(value.numerator * pow(value.denominator, -1, P) % P, np.uint64)

    def lift(self, data: Array) -> Array:
        if data.dtype.kind == "b":
            return data
        if data.dtype.kind in "iu":
            return data.astype(np.int64)
        wide = np.asarray(data, np.float64)
        result = np.empty(wide.size, np.uint64)
        flat = wide.reshape(-1)
        for start in range(0, wide.size, CHUNK_NUMBERS):
            result[start : start + CHUNK_NUMBERS] = self._lift_floats(flat[start : start + CHUNK_NUMBERS])
        return result.reshape(wide.shape)

    def _lift_floats(self, numbers: Array) -> Array:
        """Return float64 numbers as elements, exactly.

        A float64 is an integer m of 53 bits times 2^e; 2^31 is 1, so that e counts modulo 31.
        """
        bits = numbers.view(np.uint64)
        exponent = (bits >> np.uint64(52)) & np.uint64(0x7FF)
        significand = (bits & np.uint64((1 << 52) - 1)) | (np.minimum(exponent, 1) << np.uint64(52))
        # e is the stored exponent - 1075, and 1085 is a multiple of 31
        scale = (np.maximum(exponent, np.uint64(1)) + np.uint64(1085 - 1075)) % np.uint64(31)
        result = _reduce_product(
            _reduce_sum((significand & np.uint64(P)) + (significand >> np.uint64(31))) << scale
        )
        result = np.where(bits >> np.uint64(63) != 0, _reduce_sum(np.uint64(P) - result), result)
        if (exponent == 0x7FF).any():
            low = np.uint64(P) - self.infinity
            specials = np.where(np.isnan(numbers), self.nan, np.where(numbers > 0, self.infinity, low))
            result = np.where(exponent == 0x7FF, specials, result)
        return np.asarray(result)

    def random(self, shape: Sequence[int], rng: np.random.Generator) -> Array:
        return rng.integers(0, P, tuple(shape), dtype=np.uint64)

    def apply(self, fn: str, args: Sequence[Array]) -> Array:
        p = np.uint64(P)
        match fn:
            case "add":
                return _reduce_sum(args[0] + args[1])
            case "sub":
                return _reduce_sum(args[0] + (p - args[1]))
            case "neg":
                return _reduce_sum(p - args[0])
            case "mul":
                return _reduce_product(args[0] * args[1])
            case "div":
                return self.apply("mul", [args[0], self.inverse(args[1])])
            case "max" | "min":
                a, b = np.broadcast_arrays(*args)
                first = self._rank(a) >= self._rank(b)
                return np.asarray(np.where(first == (fn == "max"), a, b))
            case "eq":
                return np.asarray(args[0] == args[1])
            case "le":
                return np.asarray(~self.apply("lt", [args[1], args[0]]))
            # multiplied out up to a limit that `polynomial_degree` relies on
            case "pow" if args[1].size == 1 and int(args[1].flat[0]) <= 64:
                result = self.product([args[0]] * int(args[1].flat[0]))
                return np.broadcast_to(result, np.broadcast_shapes(*(a.shape for a in args)))
        result = self.unknown(fn, args)
        return np.asarray(result % np.uint64(2) == 0) if FUNCTIONS[fn].result == "bool" else result

    def unknown(self, fn: str, args: Sequence[Array]) -> Array:
        """Return a random function of the arguments, fixed by the seed and the name."""
        state = np.asarray(self.seed ^ np.uint64(crc32(fn.encode())))
        with np.errstate(over="ignore"):
            for arg in args:
                state = scramble_words(state * np.uint64(0x9E3779B97F4A7C15) + arg)
        return np.asarray(state % np.uint64(P))

    def product(self, factors: Sequence[Array]) -> Array:
        return reduce(lambda a, b: self.apply("mul", [a, b]), factors, self.constant(1))

    def inverse(self, a: Array) -> Array:
        """Return a^(p-2), the inverse of a; 0 for 0."""
        result = np.ones_like(a)
        square, exponent = a % np.uint64(P), P - 2
        while exponent:
            if exponent & 1:
                result = _reduce_product(result * square)
            square = _reduce_product(square * square)
            exponent >>= 1
        return result

    def _rank(self, a: Array) -> Array:
        """Return the elements' positions in the order that max and min follow; infinities are its ends."""
        rank = scramble_words(a ^ self.seed) >> np.uint64(1)  # below 2^63, and so below the rank of infinity
        rank = np.where(a == np.uint64(P) - self.infinity, np.uint64(0), rank)
        return np.asarray(np.where(a == self.infinity, np.uint64(2**64 - 1), rank))

    def reduce(self, monoid: str, data: Array, axes: tuple[int, ...]) -> Array:
        if monoid == "sum":
            return np.asarray(np.add.reduce(data, axis=axes) % np.uint64(P))
        kept = [i for i in range(data.ndim) if i not in axes]
        flat = data.transpose(*kept, *axes).reshape(*(data.shape[i] for i in kept), -1)
        if monoid == "prod":
            return self.product([flat[..., i] for i in range(flat.shape[-1])])
        rank = self._rank(flat)
        best = (rank.argmax if monoid == "max" else rank.argmin)(axis=-1)
        return np.asarray(np.take_along_axis(flat, best[..., None], -1)[..., 0])

    def matmul(self, a: Array, b: Array) -> Array:
        """Return the product, computed in parts where an operand is large, so that the parts stay cached.

        Fresh memory for all limbs at once took most of the time of a layer of 4096 x 25088 weights.
        """
        if a.shape[-1] > MAX_SUMMED:
            starts = range(0, a.shape[-1], MAX_SUMMED)
            parts = [self.matmul(a[..., i : i + MAX_SUMMED], b[..., i : i + MAX_SUMMED, :]) for i in starts]
            return reduce(lambda x, y: self.apply("add", [x, y]), parts)
        # the smaller operand is split again for each part of the larger one, which has at least its size
        by_rows = a.size >= b.size
        smaller, larger = sorted((a.size, b.size))
        count, length = larger // max(PART_ELEMENTS, smaller), a.shape[-2] if by_rows else b.shape[-1]
        if count < 2 or length < 2:
            return self._multiply(a, b)
        step = -(-length // min(count, length))
        outer = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        result = np.empty((*outer, a.shape[-2], b.shape[-1]), np.uint64)
        for start in range(0, length, step):
            part = slice(start, start + step)
            if by_rows:
                result[..., part, :] = self._multiply(a[..., part, :], b)
            else:
                result[..., part] = self._multiply(a, b[..., part])
        return result

    def _multiply(self, a: Array, b: Array) -> Array:
        # a = a1 * 2^16 + a0: products of limbs are below 2^32, so sums of up to 2^21 of them are exact in
        # float64, and BLAS does the work
        low = np.uint64(0xFFFF)
        a1, a0 = (a >> np.uint64(16)).astype(np.float64), (a & low).astype(np.float64)
        b1, b0 = (b >> np.uint64(16)).astype(np.float64), (b & low).astype(np.float64)
        high = _reduce_product(np.matmul(a1, b1).astype(np.uint64))
        mid = _reduce_product((np.matmul(a1, b0) + np.matmul(a0, b1)).astype(np.uint64))
        bottom = _reduce_product(np.matmul(a0, b0).astype(np.uint64))
        # 2^32 = 2 modulo p
        return _reduce_product(high * np.uint64(2) + mid * np.uint64(2**16) + bottom)

    def from_int(self, data: Array) -> Array:
        return np.asarray((data % P).astype(np.uint64))

    def _to_int(self, data: Array, target: str) -> Array:
        # another function for each type: a number that does not fit wraps differently in each
        return wrap_to_dtype(self.unknown(f"to_{target}", [data]).astype(np.int64), target)

    def _round_to(self, data: Array, target: str) -> Array:
        kept = np.isin(data, [self.constant(value) for value in (0, inf, -inf, nan)])
        return np.where(kept, data, self.unknown(f"to_{target}", [data]))
