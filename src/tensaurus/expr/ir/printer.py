"""Expressions as text: `expr.ir.expression_text` has the grammar."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from keyword import iskeyword
from typing import Any, NamedTuple, TypeAlias

from tensaurus.expr.ir.scalar_functions import VARIADIC
from tensaurus.expr.ir.scope import (
    MONOIDS,
    Body,
    Call,
    Const,
    Looked,
    Read,
    Reduce,
    Scope,
    Select,
    Source,
    Table,
    Tensor,
)
from tensaurus.expr.ir.walk import reads, sizes, walk
from tensaurus.expr.sizes.size import Atom, Axis, Floor, Largest, Poly, Size, Symbol, atoms, terms_of

LITERALS = {"inf": float("inf"), "nan": float("nan")}
KEPT, REDUCED = "ijklmnopq", "rstuvabcdefgh"  # names of axes of scopes, of reductions
SHARED = "ABCDEFGHIJKMNOPQRSTUVWXYZ"  # of scopes that are read more than once
_RESERVED = frozenset({*LITERALS, "L", *MONOIDS, "look", "size", "symbol"})

Names: TypeAlias = Mapping[Any, str]  # of axes and symbols


def show(item: Scope | Body) -> str:
    """The text of a scope or of a body, whose open axes keep their own names."""
    free = free_in(item)
    printer = Printer(free.names, free.unbounded, shared=_shared(item))
    return printer.scope(item) if isinstance(item, Scope) else printer.body(item, printer.symbols)


def _shared(item: Scope | Body) -> set[str]:
    """The digests of scopes that are read more than once; equal ones are one, be they one object or two."""
    counts, waiting = Counter[str](), [item]
    while waiting:
        for read in reads(waiting.pop()):
            if isinstance(read.source, Scope):
                name = digest(read.source)
                counts[name] += 1
                if counts[name] == 1:
                    waiting.append(read.source)
    return {name for name, count in counts.items() if count > 1}


_digests: dict[int, tuple[Scope, str]] = {}
_texts: dict[str, str] = {}


def digest(scope: Scope) -> str:
    """A short name of a scope's text, read scopes in it named likewise: the whole text may be exponential."""
    found = _digests.get(id(scope))
    if found is None:
        if len(_digests) >= 4096:
            _digests.clear()
        free = free_in(scope, nested=False)
        text = Printer(free.names, free.unbounded, brief=True).scope(scope)
        found = _digests[id(scope)] = scope, short(text)
    return found[1]


def short(text: str) -> str:
    """A hash of the text.  Raises RuntimeError if two texts were ever given one name."""
    name = sha256(text.encode()).hexdigest()[:16]
    if _texts.setdefault(name, text) != text:
        raise RuntimeError(f"the name {name} stands for two expressions:\n{_texts[name]}\n{text}")
    return name


def show_size(size: Any, names: Names) -> str:
    """The text of a size under these names of axes: sorted by text, so independent of the axes' own names."""
    if not isinstance(size, (Poly, Atom)):
        return str(size)
    terms = terms_of(size)
    if len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1:
        return _factor(terms[0][0][0], names)
    pieces = []
    for factors, coefficient in terms:
        texts = sorted(_factor(a, names) for a in factors)
        pieces.append((-len(texts), texts, coefficient))
    pieces.sort()  # by coefficient last: two axes may go by one name while they are being ordered
    text = ""
    for _, texts, coefficient in pieces:
        sign, amount = ("-", -coefficient) if coefficient < 0 else ("+", coefficient)
        digits = [] if amount == 1 and texts else [str(amount) if isinstance(amount, int) else f"({amount})"]
        text += f" {sign} " + "*".join(digits + texts)
    return text[3:] if text.startswith(" + ") else "-" + text[3:]


def _factor(atom: Atom, names: Names) -> str:
    match atom:
        case Axis():
            return names.get(atom) or _quoted(atom.name)
        case Floor(top, bottom):
            return f"({_operand(top, names)} // {_operand(bottom, names)})"
        case Largest(args):
            return f"max({', '.join(sorted(show_size(a, names) for a in args))})"
        case Looked(Read(source, indices, outside), low, high):
            symbols = {a: text for a, text in names.items() if isinstance(a, Symbol)}
            # a scope is closed: its axes may have any names
            taken = free_in(source).names if isinstance(source, Scope) else set()
            inside = Printer(taken, symbols).element(source, indices, outside, names)
            return f"look({inside}, {show_size(low, names)}, {show_size(high, names)})"
        case Symbol(name):
            return names.get(atom) or _quoted(name)
    return atom.key


def _operand(size: Any, names: Names) -> str:
    text = show_size(size, names)
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def show_name(source: Tensor | Table) -> str:
    """How it is called where it is read."""
    return source.text if isinstance(source, Table) else _quoted(source.name)


def _quoted(name: str) -> str:
    plain = name.isidentifier() and name.isascii() and not iskeyword(name) and name not in _RESERVED
    return name if plain else repr(name)


def letters(letters: str) -> Iterator[str]:
    yield from letters
    for number in itertools.count(2):
        yield from (f"{letter}{number}" for letter in letters)


class Printer:
    """Prints bodies, giving every axis a name that nothing else has, and some symbols a text.

    `shared`: digests of the scopes that are named where they are first read, and read by name from then on;
    `brief`: scopes that are read are their digests.
    """

    def __init__(
        self, taken: set[str], symbols: Names, brief: bool = False, shared: Container[str] = frozenset()
    ):
        self.symbols = symbols
        self.brief = brief
        self.shared = shared
        self.scopes: dict[str, str] = {}  # names of those that were printed, by digest
        self.taken = taken | _RESERVED
        self.kept = letters(KEPT)
        self.reduced = letters(REDUCED)
        self.capitals = letters(SHARED)

    def named(self, axes: Sequence[Axis], letters: Iterator[str]) -> dict[Axis, str]:
        return {a: self.fresh(letters) for a in axes}

    def fresh(self, letters: Iterator[str]) -> str:
        return next(name for name in letters if name not in self.taken)

    def scope(self, scope: Scope) -> str:
        inner = {**self.symbols, **self.named(scope.axes, self.kept)}
        return f"L[{self.ranges(scope.axes, inner)}]({self.body(scope.body, inner)})"

    def ranges(self, axes: Sequence[Axis], names: Names) -> str:
        return ", ".join(f"{names[a]}:{show_size(a.extent, self.symbols)}" for a in axes) or "()"

    def body(self, body: Body, names: Names) -> str:
        match body:
            case Const(value):
                return show_constant(value, names)
            case Read(source, indices, outside):
                return self.element(source, indices, outside, names)
            case Call(fn, args):
                flat = chain(body) if fn in VARIADIC else args
                name = fn + "_" if iskeyword(fn) else fn
                return f"{name}({', '.join(self.body(a, names) for a in flat)})"
            case Select(guard, then, other):
                condition = " and ".join(f"{show_size(g, names)} >= 0" for g in guard) or "True"
                text = f"{self.branch(then, names)} if {condition} else {self.branch(other, names)}"
                return text
            case Reduce(monoid, axes, inner):
                wider = {**names, **self.named(axes, self.reduced)}
                return f"{monoid}[{self.ranges(axes, wider)}]({self.body(inner, wider)})"
        raise TypeError(type(body))

    def element(self, source: Source, indices: Sequence[Size], outside: Const | None, names: Names) -> str:
        text = self.source(source) if isinstance(source, Scope) else show_name(source)
        text += f"[{', '.join(show_size(i, names) for i in indices) or '()'}]"
        return text if outside is None else f"{text} | {show_constant(outside.value, names)}"

    def source(self, scope: Scope) -> str:
        """A scope that is read."""
        if self.brief:
            return f"{{{digest(scope)}}}"
        if not self.shared or (key := digest(scope)) not in self.shared:
            return self.scope(scope)
        if key in self.scopes:
            return self.scopes[key]
        name = self.scopes[key] = self.fresh(self.capitals)
        return f"({name} := {self.scope(scope)})"

    def branch(self, body: Body, names: Names) -> str:
        text = self.body(body, names)
        return f"({text})" if isinstance(body, Select) else text


def show_constant(value: Any, names: Names) -> str:
    """A literal of a body."""
    if isinstance(value, Poly):
        text = show_size(value, names)
        return f"size({text})" if text.startswith(("max(", "look(", "symbol(")) else text
    return str(value)


def chain(body: Call) -> tuple[Body, ...]:
    """(a, b, c) of f(f(a, b), c)."""
    first, *rest = body.args
    if isinstance(first, Call) and first.fn == body.fn:
        return (*chain(first), *rest)
    return body.args


class Free(NamedTuple):
    """What an expression has from outside, each once, in the order of appearance."""

    tensors: dict[Tensor, None]
    symbols: dict[Symbol, None]
    axes: dict[Axis, None]

    @property
    def names(self) -> set[str]:
        """No axis may be given one of them."""
        return {item.name for group in self for item in group}

    @property
    def unbounded(self) -> Names:
        """The texts of symbols whose bounds no shape of the tensors tells."""
        if not self.symbols:
            return {}
        known = symbols_of(self.tensors)
        plain = {s for s in self.symbols if s == (known[s.name] if s.name in known else Symbol(s.name))}
        return {s: _bounded(s) for s in self.symbols if s not in plain}


def free_in(item: Scope | Body, nested: bool = True) -> Free:
    """The tensors, symbols and open axes of an expression; `nested`: those of the scopes it reads, too."""
    found = Free({}, {}, {})

    def add(sizes: Iterable[Size | None], bound: Container[Axis] = ()) -> None:
        for size in sizes:
            for atom in atoms(size) if isinstance(size, Poly) else ():
                if isinstance(atom, Axis):
                    add((atom.extent,), bound)
                    if atom not in bound:
                        found.axes[atom] = None
                elif isinstance(atom, Symbol):
                    found.symbols[atom] = None
                    add((atom.high,))

    if isinstance(item, Scope):
        add(item.shape)
    for body, bound in walk(item, nested):
        add(sizes(body), bound)
        if isinstance(body, Reduce):
            add(a.extent for a in body.axes)
        elif isinstance(body, Read):
            add(body.source.shape)
            if isinstance(body.source, Tensor):
                found.tensors[body.source] = None
    return found


def names_in(item: Scope | Body) -> set[str]:
    """Names of tensors, symbols and open axes: no axis may be given one of them."""
    return free_in(item).names


def symbols_of(tensors: Iterable[Tensor]) -> dict[str, Symbol | None]:
    """The symbols in the shapes of tensors by name, None for a name that two of them have."""
    found: dict[str, Symbol | None] = {}
    for a in (a for t in tensors for extent in t.shape if isinstance(extent, Poly) for a in atoms(extent)):
        if isinstance(a, Symbol) and found.setdefault(a.name, a) != a:
            found[a.name] = None
    return found


def _bounded(symbol: Symbol) -> str:
    high = "" if symbol.high is None else f", {_high(symbol)}"
    return f"symbol({_quoted(symbol.name)}, {symbol.low}{high})"


def _high(symbol: Symbol) -> str:
    inside = {a: _bounded(a) for a in atoms(symbol.high) if isinstance(a, Symbol)}
    return show_size(symbol.high, inside)


def declarations(scope: Scope) -> str:
    """The tensors that a scope reads, and the bounds of the symbols in their shapes.

    N <= 512; N >= 1; w: float32[3] != 0; x: float32[3, N]         != 0 says that no element is zero
    """
    return declared(free_in(scope))


def declared(free: Free) -> str:
    """As `declarations`, of what an expression has from outside."""
    unbounded = free.unbounded
    pieces = []
    for t in free.tensors:
        shape = ", ".join(show_size(n, unbounded) for n in t.shape) or "()"
        pieces.append(f"{_quoted(t.name)}: {t.dtype}[{shape}]{' != 0' if t.nonzero else ''}")
    for s in symbols_of(free.tensors).values():
        if s is not None and s.low != 0:
            pieces.append(f"{_quoted(s.name)} >= {s.low}")
        if s is not None and s.high is not None:
            pieces.append(f"{_quoted(s.name)} <= {_high(s)}")
    return "; ".join(sorted(pieces))
