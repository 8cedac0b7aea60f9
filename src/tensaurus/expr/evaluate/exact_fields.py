"""Fields whose elements are Python objects: fractions, polynomials, Z3 terms.  They are for small tensors.

    max(x, 2) / 4      Rationals: 3/4 at x = 3      Symbols: (1/4)*max(2, x)      Terms: If(x >= 2, x, 2) / 4

A function that a field lacks is an unknown function there: `unknown`, or `unknown_bool` for truth values.
`rules/test/verify_rule` compares the two sides of a rule in Rationals and Terms.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial, reduce
from typing import Any
from zlib import crc32

import numpy as np

from tensaurus.expr.evaluate.field_protocol import Array, Field
from tensaurus.expr.evaluate.prime_field import PrimeField
from tensaurus.expr.ir.integer_types import wrap_to_dtype
from tensaurus.expr.ir.scalar_functions import FUNCTIONS, MONOID_FUNCTIONS
from tensaurus.expr.sizes.polynomial import Atom, Poly, polynomial
from tensaurus.expr.sizes.symbol import Symbol
from tensaurus.system.deadline import cancel_at_deadline


class ExactField(Field):
    """Base of fields whose elements are Python objects with + and *."""

    kind = "O"
    # functions of elements, or of `fn` and elements, that each field defines
    quotient: Callable[..., Any]
    max_or_min: Callable[..., Any]
    unknown: Callable[..., Any]
    unknown_bool: Callable[..., bool]

    def _each(self, run: Any, *args: Array) -> Array:
        """Apply a function of Python objects to the elements of arrays, which broadcast."""
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
        known_functions = {
            "add": operator.add,
            "sub": operator.sub,
            "neg": operator.neg,
            "mul": operator.mul,
            "div": self.quotient,
            "max": partial(self.max_or_min, "max"),
            "min": partial(self.max_or_min, "min"),
        }
        if fn in known_functions:
            return self._each(known_functions[fn], *args)
        if FUNCTIONS[fn].result == "bool":
            return self._each(lambda *xs: self.unknown_bool(fn, *xs), *args).astype(bool)
        return self._each(lambda *xs: self.unknown(fn, *xs), *args)

    def reduce(self, monoid: str, data: Array, axes: tuple[int, ...]) -> Array:
        kept = [i for i in range(data.ndim) if i not in axes]
        flat = data.transpose(*kept, *axes).reshape(*(data.shape[i] for i in kept), -1)
        parts = [flat[..., i] for i in range(flat.shape[-1])]
        return reduce(
            lambda a, b: self.apply(MONOID_FUNCTIONS[monoid], [np.asarray(a), np.asarray(b)]), parts
        )

    def matmul(self, a: Array, b: Array) -> Array:
        return self.reduce("sum", self.apply("mul", [a[..., :, :, None], b[..., None, :, :]]), (a.ndim - 1,))

    def equal(self, a: Array, b: Array) -> bool:
        return a.shape == b.shape and all(self.same(x, y) for x, y in zip(a.flat, b.flat, strict=True))

    def same(self, a: Any, b: Any) -> bool:
        return bool(a == b)

    def _to_int(self, data: Array, target: str) -> Array:
        return wrap_to_dtype(np.asarray(np.frompyfunc(lambda x: int(x), 1, 1)(data)).astype(np.int64), target)

    def _round_to(self, data: Array, target: str) -> Array:
        def one(x: Any) -> Any:
            return x if isinstance(x, float) or self.same(x, 0) else self.unknown(f"to_{target}", x)

        return self._each(one, data)


class Rationals(ExactField):
    """Exact fractions with the true max and min; unknown functions are seeded random functions."""

    name = "rationals"

    def __init__(self, seed: int = 0):
        self.prime = PrimeField(seed)

    def random(self, shape: Sequence[int], rng: np.random.Generator) -> Array:
        """Return small integers of both signs, so that max and clip meet ties and both of their sides."""
        return self.from_int(rng.integers(-9, 10, tuple(shape)))

    def quotient(self, a: Any, b: Any) -> Any:
        return a / b if b != 0 else Fraction(0)

    def max_or_min(self, fn: str, a: Any, b: Any) -> Any:
        return max(a, b) if fn == "max" else min(a, b)

    def unknown(self, fn: str, *args: Any) -> Any:
        if fn == "abs":
            return abs(args[0])
        if fn == "sign":
            return Fraction((args[0] > 0) - (args[0] < 0))
        if fn == "pow" and args[1] in (0, 1, 2, 3, 4):
            return args[0] ** int(args[1])
        # a random fraction, fixed by the seed, the function and its arguments
        word = crc32(" ".join((fn, *map(str, args))).encode())
        mixed = int(self.prime.unknown(fn, [np.asarray(word, np.uint64)]))
        return Fraction(mixed % 4001 - 2000, 7)  # of either sign, rarely whole

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
class UnknownCall(Atom):
    """An unknown function of exact polynomials, as an atom of polynomials."""

    fn: str
    args: tuple[Any, ...]

    @property
    def key(self) -> str:  # type: ignore[override]
        return f"{self.fn}({', '.join(map(str, self.args))})"


class Polynomials(ExactField):
    """Exact polynomials: equal results prove an identity for all values, at this shape."""

    name = "symbols"

    def random(self, shape: Sequence[int], rng: np.random.Generator) -> Array:
        tag = f"x{int(rng.integers(0, 2**40))}"
        cells = np.empty(tuple(shape), object)
        for index in np.ndindex(*cells.shape):
            cells[index] = polynomial(Symbol("_".join((tag, *map(str, index)))))
        return cells

    def quotient(self, a: Any, b: Any) -> Any:
        if isinstance(b, Poly):  # no polynomial has an inverse: an unknown function stands for 1/b
            return a * polynomial(UnknownCall("recip", (b,)))
        return a * (1 / Fraction(b)) if b != 0 else Fraction(0)

    def max_or_min(self, fn: str, a: Any, b: Any) -> Any:
        if a == b:
            return a
        for x, y in ((a, b), (b, a)):
            if isinstance(x, float):  # an infinity: all other elements are exact
                return y if (x < 0) == (fn == "max") else x
        if not isinstance(a, Poly) and not isinstance(b, Poly):
            return max(a, b) if fn == "max" else min(a, b)
        return self.unknown(fn, *sorted((a, b), key=str))  # sorted: max(a, b) is max(b, a)

    def unknown(self, fn: str, *args: Any) -> Any:
        if fn == "pow" and args[1] in (1, 2, 3, 4):
            return reduce(operator.mul, [args[0]] * int(args[1]))
        return polynomial(UnknownCall(fn, args))

    def unknown_bool(self, fn: str, *args: Any) -> bool:
        if fn == "eq":
            return bool(args[0] == args[1])
        raise ValueError(f"polynomials have no {fn}")


class Z3Terms(ExactField):
    """Z3 terms over the reals: max, min, abs and sign keep their meaning; there are no comparisons."""

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
        for index in np.ndindex(*cells.shape):
            cells[index] = self.z3.Real("_".join((f"x{self.count}", *map(str, index))))
        return cells

    def quotient(self, a: Any, b: Any) -> Any:
        return a / b if self.z3.is_rational_value(b) else self.z3.If(b == 0, 0, a / b)

    def max_or_min(self, fn: str, a: Any, b: Any) -> Any:
        for x, y in ((a, b), (b, a)):
            if isinstance(x, float):  # an infinity, which is no term
                return y if (x < 0) == (fn == "max") else x
        return self.z3.If(a >= b, a, b) if fn == "max" else self.z3.If(a <= b, a, b)

    def unknown(self, fn: str, *args: Any) -> Any:
        if fn == "abs":
            return self.z3.If(args[0] >= 0, args[0], -args[0])
        if fn == "sign":
            below, above = self.z3.RealVal(-1), self.z3.RealVal(1)
            return self.z3.If(args[0] > 0, above, self.z3.If(args[0] < 0, below, args[0]))
        if fn == "pow" and self.z3.is_rational_value(args[1]) and args[1].as_fraction() in (1, 2, 3, 4):
            return reduce(operator.mul, [args[0]] * int(args[1].as_fraction()))
        real = self.z3.RealSort()
        return self.z3.Function(fn, *([real] * (len(args) + 1)))(*args)

    def apply(self, fn: str, args: Sequence[Array]) -> Array:
        if FUNCTIONS[fn].result == "bool":
            raise NotImplementedError(f"{fn} of terms")
        takes_infinities = fn in ("max", "min")  # an infinity is no real of Z3
        if not takes_infinities and any(isinstance(x, float) for a in args for x in a.flat):
            raise ValueError(f"{fn} of an infinity")
        return super().apply(fn, args)

    def solve_equality(self, a: Array, b: Array) -> Any:
        """Return True where Z3 proves a == b, a model where they differ, None after ten seconds."""
        if a.shape != b.shape:
            raise ValueError(f"the shapes are {a.shape} and {b.shape}")
        pairs = [x != y for x, y in zip(a.flat, b.flat, strict=True)]
        solver = self.z3.Solver()
        solver.set("timeout", 10_000)
        solver.add(self.z3.Or(*pairs))
        with cancel_at_deadline(self.z3.main_ctx().interrupt):
            answer = solver.check()
        return True if answer == self.z3.unsat else solver.model() if answer == self.z3.sat else None

    def equal(self, a: Array, b: Array) -> bool:
        """Return whether Z3 proves the two equal."""
        return a.shape == b.shape and self.solve_equality(a, b) is True

    def model_values(self, data: Array, model: Any) -> Array:
        """Return the fractions that a model gives the terms; irrational numbers are approximated."""

        def number(term: Any) -> Any:
            if not isinstance(term, self.z3.ExprRef):
                return term
            value = model.eval(term, model_completion=True)
            if self.z3.is_algebraic_value(value):
                value = value.approx(20)
            return value.as_fraction() if self.z3.is_rational_value(value) else term

        return self._each(number, data) if self.has_elements(data) else data
