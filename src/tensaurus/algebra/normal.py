"""The normal form of a body: a sum of guarded summations of products.

    sum     ::=  coefficient * core + ...
    core    ::=  the sum over axes, where all guards are >= 0, of the product of factors
    factor  ::=  read | size atom | literal | 1 / sum | fn(sum, ...) | max[axes](sum) | sum if guard else sum

A factor need only be defined where the guards hold.  Records compare by `text`, which names bound axes by
their place in the structure, so alpha-equal records and sums in another order have equal texts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from math import factorial, prod
from typing import Any, TypeAlias

from tensaurus.algebra.expr import Const, Scope, Source, Tensor
from tensaurus.algebra.functions import FUNCTIONS
from tensaurus.algebra.printer import digest, show_constant, show_size
from tensaurus.algebra.size import Atom, Axis, Number, Size, atoms

Names: TypeAlias = Mapping[Axis, str]

PERMUTATIONS = 720  # orders of indistinguishable axes that are tried; beyond, the order is arbitrary


@lru_cache(maxsize=100_000)
def axes_in(size: Size) -> frozenset[Axis]:
    """The axes of a size, those inside looked-up indices included."""
    if isinstance(size, int):
        return frozenset()
    return frozenset(a for a in atoms(size) if isinstance(a, Axis))


class Normal:
    """What all records share: the axes that occur free, texts by naming, the number of records inside."""

    __slots__ = ("_free", "_nest", "_texts", "_weight")

    def __init__(self) -> None:
        self._free: frozenset[Axis] | None = None
        self._texts: dict[tuple[Any, ...], str] = {}
        self._weight = 0
        self._nest: int | None = None

    def sizes(self) -> tuple[Size, ...]:
        """The sizes directly inside."""
        return ()

    def parts(self) -> Sequence[Normal]:
        """The records directly inside."""
        return ()

    def bound(self) -> tuple[Axis, ...]:
        return ()

    def _print(self, names: Names, depth: int) -> str:
        raise NotImplementedError

    @property
    def free(self) -> frozenset[Axis]:
        if self._free is None:
            inside = [axes_in(s) for s in self.sizes()] + [p.free for p in self.parts()]
            self._free = frozenset().union(*inside).difference(self.bound())
        return self._free

    @property
    def weight(self) -> int:
        if not self._weight:
            self._weight = 1 + sum(p.weight for p in self.parts())
        return self._weight

    @property
    def nest(self) -> int:
        """How deep binders of axes stand in each other: ordering axes costs a power of it."""
        if self._nest is None:
            self._nest = max((p.nest for p in self.parts()), default=0) + bool(self.bound())
        return self._nest

    def text(self, names: Names, depth: int = 0) -> str:
        """The text under these names of free axes (others keep their own); bound ones count from depth."""
        free = self.free
        key = (depth, *sorted((a.name, names[a]) for a in free if a in names))
        found = self._texts.get(key)
        if found is None:
            found = self._texts[key] = self._print(names, depth)
        return found

    @property
    def key(self) -> str:
        return self.text({})


class Leaf(Normal):
    """One element of a tensor, or of a scope that is kept; `outside` only where it is not a number."""

    __slots__ = ("source", "indices", "outside")

    def __init__(self, source: Source, indices: tuple[Size, ...], outside: Const | None = None):
        super().__init__()
        self.source, self.indices, self.outside = source, indices, outside

    @property
    def name(self) -> str:
        if isinstance(self.source, Tensor):
            return self.source.name
        return f"{{{digest(self.source)}}}" if isinstance(self.source, Scope) else self.source.text

    def sizes(self) -> tuple[Size, ...]:
        return self.indices

    def _print(self, names: Names, depth: int) -> str:
        text = f"{self.name}[{', '.join(show_size(i, names) for i in self.indices)}]"
        return text if self.outside is None else f"{text} | {show_constant(self.outside.value, {})}"


class Amount(Normal):
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


class Literal(Normal):
    """A bool, an infinity or a nan: what is no number of every field."""

    __slots__ = ("value",)

    def __init__(self, value: bool | float):
        super().__init__()
        self.value = value

    def _print(self, names: Names, depth: int) -> str:
        return str(self.value)


class Inverse(Normal):
    """1 / sum, and 0 where the sum is 0."""

    __slots__ = ("sum",)

    def __init__(self, inner: Sum):
        super().__init__()
        self.sum = inner

    def parts(self) -> Sequence[Normal]:
        return (self.sum,)

    def _print(self, names: Names, depth: int) -> str:
        return f"1/({self.sum.text(names, depth)})"


class Apply(Normal):
    """A function that is no ring operation; a sum that is not to be multiplied out is fn ""."""

    __slots__ = ("fn", "args")

    def __init__(self, fn: str, args: Sequence[Sum]):
        super().__init__()
        self.fn, self.args = fn, tuple(args)

    def parts(self) -> Sequence[Normal]:
        return self.args

    @property
    def commutes(self) -> bool:
        return self.fn in FUNCTIONS and FUNCTIONS[self.fn].commutative

    def _print(self, names: Names, depth: int) -> str:
        texts = [a.text(names, depth) for a in self.args]
        return f"{self.fn}({', '.join(sorted(texts) if self.commutes else texts)})"


class Choose(Normal):
    """`then` where all guards are >= 0, else `other`, for values that cannot be added to zero."""

    __slots__ = ("guards", "then", "other")

    def __init__(self, guards: tuple[Size, ...], then: Sum, other: Sum):
        super().__init__()
        self.guards, self.then, self.other = guards, then, other

    def sizes(self) -> tuple[Size, ...]:
        return self.guards

    def parts(self) -> Sequence[Normal]:
        return (self.then, self.other)

    def _print(self, names: Names, depth: int) -> str:
        guards = sorted(show_size(g, names) for g in self.guards)
        return f"[{' '.join(guards)} ? {self.then.text(names, depth)} : {self.other.text(names, depth)}]"


class Fold(Normal):
    """max, min or prod over axes."""

    __slots__ = ("monoid", "axes", "body")

    def __init__(self, monoid: str, axes: tuple[Axis, ...], body: Sum):
        super().__init__()
        self.monoid, self.axes, self.body = monoid, axes, body

    def bound(self) -> tuple[Axis, ...]:
        return self.axes

    def parts(self) -> Sequence[Normal]:
        return (self.body,)

    def _print(self, names: Names, depth: int) -> str:
        names, ranges = bind_names(self.axes, (self.body,), (), names, depth)
        return f"{self.monoid}{ranges}({self.body.text(names, depth + len(self.axes))})"


Factor: TypeAlias = Leaf | Amount | Literal | Inverse | Apply | Choose | Fold


class Core(Normal):
    """The sum over `axes`, where all guards are >= 0, of the product of factors."""

    __slots__ = ("axes", "guards", "factors")

    def __init__(self, axes: tuple[Axis, ...], guards: tuple[Size, ...], factors: tuple[Factor, ...]):
        super().__init__()
        self.axes, self.guards, self.factors = axes, guards, factors

    def sizes(self) -> tuple[Size, ...]:
        return self.guards

    def parts(self) -> Sequence[Normal]:
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


class Sum(Normal):
    """coefficient * core + ...; no two cores are equal."""

    __slots__ = ("terms",)

    def __init__(self, terms: Iterable[tuple[Number, Core]]):
        super().__init__()
        self.terms = tuple(terms)

    def parts(self) -> Sequence[Normal]:
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


def number(value: Number) -> Sum:
    if isinstance(value, Fraction) and value.denominator == 1:
        value = int(value)
    return Sum(((value, Core((), (), ())),) if value != 0 else ())


def of_factor(factor: Factor) -> Sum:
    return Sum(((1, Core((), (), (factor,))),))


def bind_names(
    axes: Sequence[Axis], parts: Sequence[Normal], guards: Sequence[Size], names: Names, depth: int
) -> tuple[Names, str]:
    """Names for bound axes by their place in the structure, and the text of their ranges."""
    if not axes:
        return names, ""
    order = ordered(axes, parts, guards, names, depth)
    wider = dict(names)
    for place, a in enumerate(order):
        wider[a] = f"~{depth + place}"
    return wider, "[" + ", ".join(show_size(a.extent, {}) for a in order) + "]"


def ordered(
    axes: Sequence[Axis], parts: Sequence[Normal], guards: Sequence[Size], names: Names, depth: int
) -> tuple[Axis, ...]:
    """Bound axes in an order that does not depend on their names nor on the order of parts.

    Colours are refined by the texts of the parts in which an axis occurs; what remains tied is tried in
    every order, and the least text wins.
    """
    if len(axes) < 2:
        return tuple(axes)
    inner = depth + len(axes)

    def texts(wider: Names, marked: Axis | None = None) -> list[str]:
        found = [p.text(wider, inner) for p in parts if marked is None or marked in p.free]
        found += [show_size(g, wider) for g in guards if marked is None or marked in axes_in(g)]
        return sorted(found)

    signature: dict[Axis, Any] = {a: show_size(a.extent, {}) for a in axes}
    colours = _ranked(signature)
    while max(colours.values()) < len(axes) - 1:
        wider = {**names, **{a: f"?{colours[a]}" for a in axes}}
        signature = {a: (colours[a], tuple(texts({**wider, a: f"*{colours[a]}"}, a))) for a in axes}
        finer = _ranked(signature)
        if len(set(finer.values())) == len(set(colours.values())):
            break
        colours = finer
    groups = [[a for a in axes if colours[a] == c] for c in sorted(set(colours.values()))]
    if all(len(g) == 1 for g in groups):
        return tuple(g[0] for g in groups)
    if prod(factorial(len(g)) for g in groups) > PERMUTATIONS:
        return tuple(a for g in groups for a in g)
    return min(_orders(groups), key=lambda order: texts(_numbered(order, names, depth)))


def _numbered(order: Sequence[Axis], names: Names, depth: int) -> dict[Axis, str]:
    return {**names, **{a: f"~{depth + place}" for place, a in enumerate(order)}}


def _orders(groups: Sequence[Sequence[Axis]]) -> Iterator[tuple[Axis, ...]]:
    for choice in itertools.product(*(itertools.permutations(g) for g in groups)):
        yield tuple(a for group in choice for a in group)


def _ranked(signature: Mapping[Axis, Any]) -> dict[Axis, int]:
    levels = sorted(set(signature.values()))
    return {a: levels.index(s) for a, s in signature.items()}
