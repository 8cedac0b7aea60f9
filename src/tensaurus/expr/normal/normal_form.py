"""The normal form of a body: a sum of guarded summations of products.

    sum     ::=  coefficient * core + ...
    core    ::=  the sum over axes, where all guards are >= 0, of the product of factors
    factor  ::=  read | size atom | literal | 1 / sum | fn(sum, ...) | max[axes](sum) | sum if guard else sum

    (x[i] + 1) * w   ->   1*(x[i] * w) + 1*(w)

A factor need only be defined where the guards hold.  Records compare by `text`, which names bound axes by
their position in the structure, so that alpha-equal records and sums in another order have equal texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import TypeAlias

from tensaurus.expr.ir.element_types import dtype_of
from tensaurus.expr.ir.printer import Names, scope_digest, show_constant, show_size
from tensaurus.expr.ir.scalar_functions import FUNCTIONS
from tensaurus.expr.ir.scope import Const, Scope, Source, Tensor
from tensaurus.expr.normal.canonical_record import Record, name_bound_axes
from tensaurus.expr.sizes.size import Atom, Axis, Number, Size, Symbol, is_nonnegative, polynomial, terms_of


class Leaf(Record):
    """One element of a tensor, a table or a scope that is not inlined.

    `outside`, its value beyond the edge, is set only where it is infinite or NaN: other values become guards.
    """

    __slots__ = ("source", "indices", "outside")

    def __init__(self, source: Source, indices: tuple[Size, ...], outside: Const | None = None):
        super().__init__()
        self.source, self.indices, self.outside = source, indices, outside

    @property
    def name(self) -> str:
        if isinstance(self.source, Tensor):
            return self.source.name
        return f"{{{scope_digest(self.source)}}}" if isinstance(self.source, Scope) else self.source.text

    def sizes(self) -> tuple[Size, ...]:
        return self.indices

    def _print(self, names: Names, depth: int) -> str:
        text = f"{self.name}[{', '.join(show_size(i, names) for i in self.indices)}]"
        return text if self.outside is None else f"{text} | {show_constant(self.outside.value, {})}"


class SizeAtom(Record):
    """An axis, a symbol or another atom of sizes, as a number."""

    __slots__ = ("atom", "_sizes")

    def __init__(self, atom: Atom):
        super().__init__()
        self.atom = atom
        self._sizes: tuple[Size, ...] = (1 * atom,)

    def sizes(self) -> tuple[Size, ...]:
        return self._sizes

    def _print(self, names: Names, depth: int) -> str:
        return show_size(self.atom, names)


class Literal(Record):
    """A bool, an infinity or a NaN: a literal that some fields lack."""

    __slots__ = ("value",)

    def __init__(self, value: bool | float):
        super().__init__()
        self.value = value

    def _print(self, names: Names, depth: int) -> str:
        return str(self.value)


class Inverse(Record):
    """1 / sum, and 0 where the sum is 0."""

    __slots__ = ("sum",)

    def __init__(self, inner: Sum):
        super().__init__()
        self.sum = inner

    def parts(self) -> Sequence[Record]:
        return (self.sum,)

    def _print(self, names: Names, depth: int) -> str:
        return f"1/({self.sum.text(names, depth)})"


class Apply(Record):
    """A function other than +, * and 1/x; with fn "", a sum that is not multiplied out."""

    __slots__ = ("fn", "args")

    def __init__(self, fn: str, args: Sequence[Sum]):
        super().__init__()
        self.fn, self.args = fn, tuple(args)

    def parts(self) -> Sequence[Record]:
        return self.args

    @property
    def commutes(self) -> bool:
        return self.fn in FUNCTIONS and FUNCTIONS[self.fn].commutative

    def _print(self, names: Names, depth: int) -> str:
        texts = [a.text(names, depth) for a in self.args]
        return f"{self.fn}({', '.join(sorted(texts) if self.commutes else texts)})"


class Choose(Record):
    """The value `then` where all guards are >= 0, else `other`.

    Only for infinities, NaN and bools: of others a select is the sum  [guards] then + [not guards] other.
    """

    __slots__ = ("guards", "then", "other")

    def __init__(self, guards: tuple[Size, ...], then: Sum, other: Sum):
        super().__init__()
        self.guards, self.then, self.other = guards, then, other

    def sizes(self) -> tuple[Size, ...]:
        return self.guards

    def parts(self) -> Sequence[Record]:
        return (self.then, self.other)

    def _print(self, names: Names, depth: int) -> str:
        guards = sorted(show_size(g, names) for g in self.guards)
        return f"[{' '.join(guards)} ? {self.then.text(names, depth)} : {self.other.text(names, depth)}]"


class Fold(Record):
    """The max, min or prod over axes."""

    __slots__ = ("monoid", "axes", "body")

    def __init__(self, monoid: str, axes: tuple[Axis, ...], body: Sum):
        super().__init__()
        self.monoid, self.axes, self.body = monoid, axes, body

    def bound(self) -> tuple[Axis, ...]:
        return self.axes

    def parts(self) -> Sequence[Record]:
        return (self.body,)

    def _print(self, names: Names, depth: int) -> str:
        names, ranges = name_bound_axes(self.axes, (self.body,), (), names, depth)
        return f"{self.monoid}{ranges}({self.body.text(names, depth + len(self.axes))})"


Factor: TypeAlias = Leaf | SizeAtom | Literal | Inverse | Apply | Choose | Fold


class Core(Record):
    """The sum over `axes`, where all guards are >= 0, of the product of factors."""

    __slots__ = ("axes", "guards", "factors")

    def __init__(self, axes: tuple[Axis, ...], guards: tuple[Size, ...], factors: tuple[Factor, ...]):
        super().__init__()
        self.axes, self.guards, self.factors = axes, guards, factors

    def sizes(self) -> tuple[Size, ...]:
        return self.guards

    def parts(self) -> Sequence[Record]:
        return self.factors

    def bound(self) -> tuple[Axis, ...]:
        return self.axes

    @property
    def is_product(self) -> bool:
        """Whether the core is a product alone, without axes and guards."""
        return not self.axes and not self.guards

    def _print(self, names: Names, depth: int) -> str:
        names, ranges = name_bound_axes(self.axes, self.factors, self.guards, names, depth)
        depth += len(self.axes)
        guards = sorted(show_size(g, names) for g in self.guards)
        factors = sorted(f.text(names, depth) for f in self.factors)
        return (f"S{ranges}" if self.axes else "") + (str(guards) if guards else "") + " * ".join(factors)


class Sum(Record):
    """The sum of coefficient * core; no two cores are equal."""

    __slots__ = ("terms",)

    def __init__(self, terms: Iterable[tuple[Number, Core]]):
        super().__init__()
        self.terms = tuple(terms)

    def parts(self) -> Sequence[Record]:
        return [core for _, core in self.terms]

    def _print(self, names: Names, depth: int) -> str:
        return " + ".join(sorted(f"{c}*{core.text(names, depth)}" for c, core in self.terms)) or "0"

    @property
    def constant(self) -> Number | None:
        """The sum's value where it is a number, else None."""
        if not self.terms:
            return 0
        if len(self.terms) == 1 and self.terms[0][1].is_product and not self.terms[0][1].factors:
            return self.terms[0][0]
        return None

    @property
    def factor(self) -> Factor | None:
        """The factor that is equal to the sum, None where that is not a single one."""
        if len(self.terms) == 1:
            ((coefficient, core),) = self.terms
            if coefficient == 1 and core.is_product and len(core.factors) == 1:
                return core.factors[0]
        return None


def rational_content(values: Sequence[Number]) -> Fraction:
    """Return the rational that divides all values to coprime integers; negative where all values are."""
    fractions = [Fraction(v) for v in values]
    magnitude = Fraction(gcd(*(v.numerator for v in fractions)), lcm(*(v.denominator for v in fractions)))
    return -magnitude if all(v < 0 for v in fractions) else magnitude


def as_exact_number(value: Number) -> Number:
    """Return a whole number as an int, any other unchanged."""
    return int(value) if isinstance(value, Fraction) and value.denominator == 1 else value


def number_sum(value: Number) -> Sum:
    value = as_exact_number(value)
    return Sum(((value, Core((), (), ())),) if value != 0 else ())


def factor_sum(factor: Factor) -> Sum:
    return Sum(((1, Core((), (), (factor,))),))


def literal_sum(value: bool | float) -> Sum:
    return factor_sum(Literal(value))


def is_bool(factor: Factor) -> bool:
    """Return whether the factor is known to be a truth value."""
    match factor:
        case Literal(value=value):
            return isinstance(value, bool)
        case Leaf(source=Tensor(dtype=dtype)):
            return dtype == "bool"
        case Leaf(source=Scope() as source):
            return dtype_of(source) == "bool"
        case Apply(fn=fn):
            return fn == "to_bool" or (fn in FUNCTIONS and FUNCTIONS[fn].result == "bool")
    return False


def is_addable(inner: Sum) -> bool:
    """Return whether every field can add the sum to zero: no infinity and no bool is in it.

    Else a select of it is no  [guards] then + [not guards] other, in which one term is 0, but a `Choose`.
    """
    factors = [f for _, core in inner.terms for f in core.factors]
    has_infinity = any(isinstance(f, Leaf) and f.outside is not None for f in factors)
    return not has_infinity and not any(isinstance(f, (Literal, Choose)) or is_bool(f) for f in factors)


def cancel_inverses(factors: Sequence[Factor], axes: Sequence[Axis]) -> tuple[Factor, ...]:
    """Return the factors without pairs n * (1/n) where n is not 0.

    n is not 0 where it is at least 1, an element of a tensor without zeros, or a symbol that divides the
    extent of a bound axis: without points the sum is empty.  Also x*x * (1/x) is x, and x * (1/x) * (1/x) is
    1/x, for x = 0 too.  It is not for an infinite x; a pair stays where n is not addable (`is_addable`).
    """
    remaining = list(factors)  # in each round n and 1/n are removed once
    for inverse in [f for f in factors if isinstance(f, Inverse)]:
        divisor = inverse.sum.factor
        if divisor is None or not is_addable(inverse.sum):
            continue
        equal_factors = [f for f in remaining if f.key == divisor.key]
        inverse_count = sum(f.key == inverse.key for f in remaining)
        if equal_factors and (len(equal_factors) > 1 or inverse_count > 1 or _is_nonzero(divisor, axes)):
            remaining.remove(equal_factors[0])
            remaining.remove(inverse)
    return tuple(remaining)


def _is_nonzero(factor: Factor, axes: Sequence[Axis]) -> bool:
    match factor:
        case Leaf(source=Tensor(nonzero=nonzero)):
            return nonzero
        case SizeAtom(atom=atom):
            if is_nonnegative(polynomial(atom) - 1):
                return True
            symbolic = [a.extent for a in axes if not isinstance(a.extent, int)]
            return isinstance(atom, Symbol) and any(all(atom in m for m, _ in terms_of(n)) for n in symbolic)
    return False
