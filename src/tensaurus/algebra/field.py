"""The fields an expression can be evaluated in.

Elements of a field are what float tensors hold; integer and bool tensors hold int64 and bool in every
field, integers as `integers` says.  In every field but the reals 1/0 is 0, so that a quotient is a product.

`Reals` is float64.  `Prime` is GF(2^31-1): an identity of polynomials of total degree d that holds at a
random point is false with probability at most d/p (Schwartz-Zippel).  `Rationals` are exact fractions, with
their order.  `Symbols` are exact polynomials, `Terms` are Z3 terms.  What a field lacks is a function of its
arguments there and nothing more (`unknown`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from math import isfinite
from typing import Any
from zlib import crc32

import numpy as np

from tensaurus.algebra.arithmetic import Array, Field, Reals
from tensaurus.algebra.functions import FUNCTIONS
from tensaurus.algebra.integers import wrapped
from tensaurus.algebra.size import Atom, Poly, polynomial

__all__ = ["Applied", "Array", "Exact", "Field", "P", "Prime", "Rationals", "Reals", "Symbols", "Terms"]

P = 2**31 - 1


def _mix(x: Array) -> Array:
    """A bijective scrambling of 64-bit words (splitmix64)."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(x ^ (x >> np.uint64(31)))


def _below(x: Array) -> Array:
    """x modulo p for x in [0, 2p]: below zero, unsigned numbers wrap around to the largest."""
    with np.errstate(over="ignore"):
        return np.asarray(np.minimum(x, x - np.uint64(P)))


def _folded(x: Array) -> Array:
    """x modulo p for x in [0, p^2]: 2^31 is 1, so the high bits are added to the low; no division is run."""
    return _below((x & np.uint64(P)) + (x >> np.uint64(31)))


class Prime(Field):
    """GF(p), p = 2^31 - 1, as uint64 in [0, p).

    Infinities and NaN, which it lacks, are seeded random elements: a window that is padded with -inf is not
    one that is padded with zeros.

    Unknown functions are seeded random functions.  max and min follow a seeded random total order: they
    keep the laws of a lattice and have none with + and *, so that max(x, 0) = x, which the order of the
    representatives 0..p-1 would satisfy, fails here as it must.
    """

    name = "gf(2^31-1)"
    kind = "u"

    def __init__(self, seed: int = 0):
        self.seed = np.uint64(_mix(np.asarray(seed + 0x9E3779B97F4A7C15, np.uint64)))
        words = (crc32(name.encode()) for name in ("infinity", "nan"))
        self.infinity, self.nan = (_mix(np.asarray(self.seed ^ np.uint64(w))) % np.uint64(P) for w in words)

    def constant(self, value: Any) -> Array:
        if isinstance(value, float) and not isfinite(value):
            return Prime.lift(self, np.asarray(value))
        value = Fraction(value)
        return np.asarray(value.numerator * pow(value.denominator, -1, P) % P, np.uint64)

    def lift(self, data: Array) -> Array:
        if data.dtype.kind == "b":
            return data
        if data.dtype.kind in "iu":
            return data.astype(np.int64)
        # a float is m * 2^e with m of 53 bits, exactly; 2^e is looked up modulo p
        wide = np.asarray(data, np.float64)
        finite = np.isfinite(wide)
        mantissa, exponent = np.frexp(np.where(finite, wide, 0.0))
        whole = np.ldexp(mantissa, 53).astype(np.int64) % P
        # 2^31 = 1 modulo p, so the exponent counts modulo 31
        scale = (np.int64(1) << ((exponent - 53) % 31).astype(np.int64)).astype(np.uint64)
        result = whole.astype(np.uint64) * scale % np.uint64(P)
        if finite.all():
            return result
        low = np.uint64(P) - self.infinity
        endless = np.where(np.isnan(wide), self.nan, np.where(wide > 0, self.infinity, low))
        return np.asarray(np.where(finite, result, endless))

    def random(self, shape: Sequence[int], rng: np.random.Generator) -> Array:
        return rng.integers(0, P, tuple(shape), dtype=np.uint64)

    def apply(self, fn: str, args: Sequence[Array]) -> Array:
        p = np.uint64(P)
        match fn:
            case "add":
                return _below(args[0] + args[1])
            case "sub":
                return _below(args[0] + (p - args[1]))
            case "neg":
                return _below(p - args[0])
            case "mul":
                return _folded(args[0] * args[1])
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
            case "pow" if args[1].size == 1 and int(args[1].flat[0]) <= 64:
                result = self.product([args[0]] * int(args[1].flat[0]))
                return np.broadcast_to(result, np.broadcast_shapes(*(a.shape for a in args)))
        result = self.unknown(fn, args)
        return np.asarray(result % np.uint64(2) == 0) if FUNCTIONS[fn].result == "bool" else result

    def unknown(self, fn: str, args: Sequence[Array]) -> Array:
        """A random function of the arguments, fixed by the seed and the name."""
        state = np.asarray(self.seed ^ np.uint64(crc32(fn.encode())))
        with np.errstate(over="ignore"):
            for arg in args:
                state = _mix(state * np.uint64(0x9E3779B97F4A7C15) + arg)
        return np.asarray(state % np.uint64(P))

    def product(self, factors: Sequence[Array]) -> Array:
        return reduce(lambda a, b: self.apply("mul", [a, b]), factors, self.constant(1))

    def inverse(self, a: Array) -> Array:
        """a^(p-2); 0 for 0."""
        result = np.ones_like(a)
        square, exponent = a % np.uint64(P), P - 2
        while exponent:
            if exponent & 1:
                result = _folded(result * square)
            square = _folded(square * square)
            exponent >>= 1
        return result

    def _rank(self, a: Array) -> Array:
        rank = _mix(a ^ self.seed) >> np.uint64(1)
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
        # a = a1 * 2^16 + a0: products of limbs are below 2^32, so sums of up to 2^21 of them are exact in
        # float64, and BLAS does the work
        block = 2**20
        if a.shape[-1] > block:
            starts = range(0, a.shape[-1], block)
            cut = [self.matmul(a[..., i : i + block], b[..., i : i + block, :]) for i in starts]
            return reduce(lambda x, y: self.apply("add", [x, y]), cut)
        low = np.uint64(0xFFFF)
        a1, a0 = (a >> np.uint64(16)).astype(np.float64), (a & low).astype(np.float64)
        b1, b0 = (b >> np.uint64(16)).astype(np.float64), (b & low).astype(np.float64)
        high = _folded(np.matmul(a1, b1).astype(np.uint64))
        mid = _folded((np.matmul(a1, b0) + np.matmul(a0, b1)).astype(np.uint64))
        bottom = _folded(np.matmul(a0, b0).astype(np.uint64))
        # 2^32 = 2 modulo p
        return _folded(high * np.uint64(2) + mid * np.uint64(2**16) + bottom)

    def from_int(self, data: Array) -> Array:
        return np.asarray((data % P).astype(np.uint64))

    def _to_int(self, data: Array, target: str) -> Array:
        # of each type another function: what does not fit is another number in each
        return wrapped(self.unknown(f"to_{target}", [data]).astype(np.int64), target)


class Exact(Field):
    """Fields whose elements are Python objects with + and *; for small tensors."""

    kind = "O"
    quotient: Callable[..., Any]
    greater: Callable[..., Any]
    lesser: Callable[..., Any]
    unknown: Callable[..., Any]
    unknown_bool: Callable[..., bool]

    def _each(self, run: Any, *args: Array) -> Array:
        return np.asarray(np.frompyfunc(run, len(args), 1)(*args), dtype=object)

    def _number(self, value: Any) -> Any:
        if isinstance(value, float) and abs(value) == float("inf"):
            return value
        return Fraction(value)

    def constant(self, value: Any) -> Array:
        box = np.empty((), object)
        box[()] = self._number(value)
        return box

    def lift(self, data: Array) -> Array:
        if data.dtype.kind == "b":
            return data
        if data.dtype.kind in "iu":
            return data.astype(np.int64)
        return self._each(lambda x: self._number(float(x)), data)

    def from_int(self, data: Array) -> Array:
        return self._each(lambda x: self._number(int(x)), data)

    def apply(self, fn: str, args: Sequence[Array]) -> Array:
        plain = {
            "add": operator.add,
            "sub": operator.sub,
            "neg": operator.neg,
            "mul": operator.mul,
            "div": self.quotient,
            "max": self.greater,
            "min": self.lesser,
        }
        if fn in plain:
            return self._each(plain[fn], *args)
        if FUNCTIONS[fn].result == "bool":
            return self._each(lambda *xs: self.unknown_bool(fn, *xs), *args).astype(bool)
        return self._each(lambda *xs: self.unknown(fn, *xs), *args)

    def reduce(self, monoid: str, data: Array, axes: tuple[int, ...]) -> Array:
        kept = [i for i in range(data.ndim) if i not in axes]
        flat = data.transpose(*kept, *axes).reshape(*(data.shape[i] for i in kept), -1)
        step = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}[monoid]
        parts = [flat[..., i] for i in range(flat.shape[-1])]
        return reduce(lambda a, b: self.apply(step, [np.asarray(a), np.asarray(b)]), parts)

    def matmul(self, a: Array, b: Array) -> Array:
        return self.reduce("sum", self.apply("mul", [a[..., :, :, None], b[..., None, :, :]]), (a.ndim - 1,))

    def equal(self, a: Array, b: Array) -> bool:
        return a.shape == b.shape and all(self.same(x, y) for x, y in zip(a.flat, b.flat, strict=True))

    def same(self, a: Any, b: Any) -> bool:
        return bool(a == b)

    def _to_int(self, data: Array, target: str) -> Array:
        return wrapped(np.asarray(np.frompyfunc(lambda x: int(x), 1, 1)(data)).astype(np.int64), target)


class Rationals(Exact):
    """Exact fractions, with the true max and min; unknown functions are seeded random functions."""

    name = "rationals"

    def __init__(self, seed: int = 0):
        self.prime = Prime(seed)

    def random(self, shape: Sequence[int], rng: np.random.Generator) -> Array:
        """Small integers of both signs: maxima and clips meet ties and both of their sides."""
        return self.from_int(rng.integers(-9, 10, tuple(shape)))

    def quotient(self, a: Any, b: Any) -> Any:
        return a / b if b != 0 else Fraction(0)

    def greater(self, a: Any, b: Any) -> Any:
        return max(a, b)

    def lesser(self, a: Any, b: Any) -> Any:
        return min(a, b)

    def unknown(self, fn: str, *args: Any) -> Any:
        if fn == "abs":
            return abs(args[0])
        if fn == "pow" and args[1] in (0, 1, 2, 3, 4):
            return args[0] ** int(args[1])
        word = crc32(" ".join((fn, *map(str, args))).encode())
        mixed = int(self.prime.unknown(fn, [np.asarray(word, np.uint64)]))
        return Fraction(mixed % 4001 - 2000, 7)

    def unknown_bool(self, fn: str, *args: Any) -> bool:
        match fn:
            case "eq":
                return bool(args[0] == args[1])
            case "lt":
                return bool(args[0] < args[1])
            case "le":
                return bool(args[0] <= args[1])
        return False


@dataclass(frozen=True, repr=False)
class Applied(Atom):
    """An unknown function of exact polynomials, as an atom of polynomials."""

    fn: str
    args: tuple[Any, ...]

    @property
    def key(self) -> str:  # type: ignore[override]
        return f"{self.fn}({', '.join(map(str, self.args))})"


class Symbols(Exact):
    """Exact polynomials: equal forms prove an identity for all values, at this shape."""

    name = "symbols"

    def random(self, shape: Sequence[int], rng: np.random.Generator) -> Array:
        from tensaurus.algebra.size import Symbol

        tag = f"x{int(rng.integers(0, 2**40))}"
        cells = np.empty(tuple(shape), object)
        for place in np.ndindex(*cells.shape):
            cells[place] = polynomial(Symbol("_".join((tag, *map(str, place)))))
        return cells

    def quotient(self, a: Any, b: Any) -> Any:
        if isinstance(b, Poly):
            return a * polynomial(Applied("recip", (b,)))
        return a * (1 / Fraction(b)) if b != 0 else Fraction(0)

    def greater(self, a: Any, b: Any) -> Any:
        return self._extreme("max", a, b)

    def lesser(self, a: Any, b: Any) -> Any:
        return self._extreme("min", a, b)

    def _extreme(self, fn: str, a: Any, b: Any) -> Any:
        if a == b:
            return a
        for x, y in ((a, b), (b, a)):
            if isinstance(x, float):
                return y if (x < 0) == (fn == "max") else x
        if not isinstance(a, Poly) and not isinstance(b, Poly):
            return max(a, b) if fn == "max" else min(a, b)
        return self.unknown(fn, *sorted((a, b), key=str))

    def unknown(self, fn: str, *args: Any) -> Any:
        if fn == "pow" and args[1] in (1, 2, 3, 4):
            return reduce(operator.mul, [args[0]] * int(args[1]))
        return polynomial(Applied(fn, args))

    def unknown_bool(self, fn: str, *args: Any) -> bool:
        if fn == "eq":
            return bool(args[0] == args[1])
        raise ValueError(f"polynomials have no {fn}")


class Terms(Exact):
    """Z3 terms over the reals: max, min, abs and comparisons keep their meaning."""

    name = "z3"

    def __init__(self) -> None:
        import z3

        self.z3 = z3
        self.count = 0

    def _number(self, value: Any) -> Any:
        if isinstance(value, float) and abs(value) == float("inf"):
            return value
        exact = Fraction(value)
        return self.z3.Q(exact.numerator, exact.denominator)

    def random(self, shape: Sequence[int], rng: np.random.Generator) -> Array:
        self.count += 1
        cells = np.empty(tuple(shape), object)
        for place in np.ndindex(*cells.shape):
            cells[place] = self.z3.Real("_".join((f"x{self.count}", *map(str, place))))
        return cells

    def quotient(self, a: Any, b: Any) -> Any:
        return a / b if self.z3.is_rational_value(b) else self.z3.If(b == 0, 0, a / b)

    def greater(self, a: Any, b: Any) -> Any:
        return self._extreme(a, b, largest=True)

    def lesser(self, a: Any, b: Any) -> Any:
        return self._extreme(a, b, largest=False)

    def _extreme(self, a: Any, b: Any, largest: bool) -> Any:
        for x, y in ((a, b), (b, a)):
            if isinstance(x, float):
                return y if (x < 0) == largest else x
        return self.z3.If(a >= b, a, b) if largest else self.z3.If(a <= b, a, b)

    def unknown(self, fn: str, *args: Any) -> Any:
        if fn == "abs":
            return self.z3.If(args[0] >= 0, args[0], -args[0])
        if fn == "pow" and self.z3.is_rational_value(args[1]) and args[1].as_fraction() in (1, 2, 3, 4):
            return reduce(operator.mul, [args[0]] * int(args[1].as_fraction()))
        real = self.z3.RealSort()
        return self.z3.Function(fn, *([real] * (len(args) + 1)))(*args)

    def apply(self, fn: str, args: Sequence[Array]) -> Array:
        if FUNCTIONS[fn].result == "bool":
            raise NotImplementedError(f"{fn} of terms")
        lattice = fn in ("max", "min")  # which know what an infinity is; a real it is none
        if not lattice and any(isinstance(x, float) for a in args for x in a.flat):
            raise ValueError(f"{fn} of an infinity")
        return super().apply(fn, args)

    def answer(self, a: Array, b: Array) -> Any:
        """True where they are proved to be equal, a model in which they differ, None after ten seconds."""
        if a.shape != b.shape:
            raise ValueError(f"the shapes are {a.shape} and {b.shape}")
        pairs = [x != y for x, y in zip(a.flat, b.flat, strict=True)]
        solver = self.z3.Solver()
        solver.set("timeout", 10_000)
        solver.add(self.z3.Or(*pairs))
        found = solver.check()
        return True if found == self.z3.unsat else solver.model() if found == self.z3.sat else None

    def equal(self, a: Array, b: Array) -> bool:
        """Whether they are proved to be equal."""
        return a.shape == b.shape and self.answer(a, b) is True

    def numbers(self, data: Array, model: Any) -> Array:
        """The fractions that a model gives the terms; irrational numbers are approximated."""

        def number(term: Any) -> Any:
            if not isinstance(term, self.z3.ExprRef):
                return term
            value = model.eval(term, model_completion=True)
            if self.z3.is_algebraic_value(value):
                value = value.approx(20)
            return value.as_fraction() if self.z3.is_rational_value(value) else term

        return self._each(number, data) if self.elements(data) else data
