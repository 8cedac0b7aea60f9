"""The normal form of a body: a sum of guarded summations of products.

    sum     ::=  coefficient * core + ...
    core    ::=  the sum over axes, where all guards are >= 0, of the product of factors
    factor  ::=  read | size atom | literal | 1 / sum | fn(sum, ...) | max[axes](sum) | sum if guard else sum

A factor need only be defined where the guards hold.  Records compare by `text`, which names bound axes by
their place in the structure, so alpha-equal records and sums in another order have equal texts.
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
from tensaurus.expr.normal.canonical_record import Record, bind_names
from tensaurus.expr.sizes.size import Atom, Axis, Number, Size, Symbol, is_nonnegative, polynomial, terms_of


class Leaf(Record):
    """One element of a tensor, or of a scope that is kept; `outside` only where it is not a number."""

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


class Amount(Record):
    """An axis, a symbol or another atom of sizes, as a number."""

    __slots__ = ("atom", "_inside")

    def __init__(self, atom: Atom):
        super().__init__()
        self.atom = atom
        self._inside: tuple[Size, ...] = (1 * atom,)

    def sizes(self) -> tuple[Size, ...]:
        return self._inside

    def _print(self, names: Names, depth: int) -> str:
        return show_size(self.atom, names)


class Literal(Record):
    """A bool, an infinity or a nan: what is no number of every field."""

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
    """A function that is no ring operation; a sum that is not to be multiplied out is fn ""."""

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
    """`then` where all guards are >= 0, else `other`, for values that cannot be added to zero."""

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
    """max, min or prod over axes."""

    __slots__ = ("monoid", "axes", "body")

    def __init__(self, monoid: str, axes: tuple[Axis, ...], body: Sum):
        super().__init__()
        self.monoid, self.axes, self.body = monoid, axes, body

    def bound(self) -> tuple[Axis, ...]:
        return self.axes

    def parts(self) -> Sequence[Record]:
        return (self.body,)

    def _print(self, names: Names, depth: int) -> str:
        names, ranges = bind_names(self.axes, (self.body,), (), names, depth)
        return f"{self.monoid}{ranges}({self.body.text(names, depth + len(self.axes))})"


Factor: TypeAlias = Leaf | Amount | Literal | Inverse | Apply | Choose | Fold


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
    def plain(self) -> bool:
        """A product alone."""
        return not self.axes and not self.guards

    def _print(self, names: Names, depth: int) -> str:
        names, ranges = bind_names(self.axes, self.factors, self.guards, names, depth)
        depth += len(self.axes)
        guards = sorted(show_size(g, names) for g in self.guards)
        factors = sorted(f.text(names, depth) for f in self.factors)
        return (f"S{ranges}" if self.axes else "") + (str(guards) if guards else "") + " * ".join(factors)


class Sum(Record):
    """coefficient * core + ...; no two cores are equal."""

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
        """Its value where it is a plain number."""
        if not self.terms:
            return 0
        if len(self.terms) == 1 and self.terms[0][1].plain and not self.terms[0][1].factors:
            return self.terms[0][0]
        return None

    @property
    def factor(self) -> Factor | None:
        """The factor that it is, where it is a single one."""
        if len(self.terms) == 1:
            (coefficient, core), = self.terms
            if coefficient == 1 and core.plain and len(core.factors) == 1:
                return core.factors[0]
        return None


def content(values: Sequence[Number]) -> Fraction:
    """The positive rational that divides all to coprime integers; negative where all are."""
    exact = [Fraction(v) for v in values]
    size = Fraction(gcd(*(v.numerator for v in exact)), lcm(*(v.denominator for v in exact)))
    return -size if all(v < 0 for v in exact) else size


def whole(value: Number) -> Number:
    """A whole number as an int."""
    return int(value) if isinstance(value, Fraction) and value.denominator == 1 else value


def number(value: Number) -> Sum:
    value = whole(value)
    return Sum(((value, Core((), (), ())),) if value != 0 else ())


def of_factor(factor: Factor) -> Sum:
    return Sum(((1, Core((), (), (factor,))),))


def of_literal(value: bool | float) -> Sum:
    return of_factor(Literal(value))


def is_bool(factor: Factor) -> bool:
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


def addable(inner: Sum) -> bool:
    """Nothing infinite and no bool, which not every field can add to zero."""
    factors = [f for _, core in inner.terms for f in core.factors]
    infinite = any(isinstance(f, Leaf) and f.outside is not None for f in factors)
    return not infinite and not any(isinstance(f, (Literal, Choose)) or is_bool(f) for f in factors)


def cancelled(factors: Sequence[Factor], axes: Sequence[Axis]) -> tuple[Factor, ...]:
    """Without n * (1/n), where n is not 0: it is at least 1, or a range of n's multiples has points.

    x * x * (1/x) is x, and x * (1/x) * (1/x) is 1/x, for x = 0 too, but for no infinity.
    """
    left = list(factors)
    for inverse in [f for f in factors if isinstance(f, Inverse)]:
        of = inverse.sum.factor
        if of is None or not addable(inverse.sum):
            continue
        same = [f for f in left if f.key == of.key]
        again = sum(f.key == inverse.key for f in left)
        if same and (len(same) > 1 or again > 1 or _nonzero(of, axes)):
            left.remove(same[0])
            left.remove(inverse)
    return tuple(left)


def _nonzero(factor: Factor, axes: Sequence[Axis]) -> bool:
    match factor:
        case Leaf(source=Tensor(nonzero=nonzero)):
            return nonzero
        case Amount(atom=atom):
            if is_nonnegative(polynomial(atom) - 1):
                return True
            symbolic = [a.extent for a in axes if not isinstance(a.extent, int)]
            return isinstance(atom, Symbol) and any(all(atom in m for m, _ in terms_of(n)) for n in symbolic)
    return False
