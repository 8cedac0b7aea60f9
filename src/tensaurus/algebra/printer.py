"""Expressions as text: `algebra.text` has the grammar."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from keyword import iskeyword
from typing import Any

from tensaurus.algebra.expr import (
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
from tensaurus.algebra.size import (
    Atom,
    Axis,
    Floor,
    Largest,
    Poly,
    Size,
    Symbol,
    atoms,
    terms_of,
)
from tensaurus.algebra.walk import binds, sizes, tensors, walk

VARIADIC = frozenset({"add", "mul", "max", "min", "and", "or"})
LITERALS = {"inf": float("inf"), "nan": float("nan")}
KEPT, REDUCED = "ijklmnopq", "rstuvabcdefgh"  # names of axes of scopes, of reductions
_RESERVED = frozenset({*LITERALS, "L", *MONOIDS, "look", "size"})


def show(item: Scope | Body) -> str:
    """The text of a scope or of a body, whose open axes keep their own names."""
    printer = Printer(names_in(item))
    return printer.scope(item) if isinstance(item, Scope) else printer.body(item, {})


_digests: dict[int, tuple[Scope, str]] = {}
_texts: dict[str, str] = {}


def digest(scope: Scope) -> str:
    """A short name of a scope's text, read scopes in it named likewise: the whole text may be exponential."""
    found = _digests.get(id(scope))
    if found is None:
        if len(_digests) >= 4096:
            _digests.clear()
        text = Printer(names_in(scope, nested=False), brief=True).scope(scope)
        found = _digests[id(scope)] = scope, short(text)
    return found[1]


def short(text: str) -> str:
    """A hash of the text.  Raises RuntimeError if two texts were ever given one name."""
    name = sha256(text.encode()).hexdigest()[:16]
    if _texts.setdefault(name, text) != text:
        raise RuntimeError(f"the name {name} stands for two expressions:\n{_texts[name]}\n{text}")
    return name


def show_size(size: Any, names: Mapping[Axis, str]) -> str:
    """The text of a size under these names of axes: sorted by text, so independent of the axes' own names."""
    if not isinstance(size, (Poly, Atom)):
        return str(size)
    pieces = []
    for factors, coefficient in terms_of(size):
        texts = sorted(_factor(a, names) for a in factors)
        pieces.append((-len(texts), texts, coefficient))
    pieces.sort()  # by coefficient last: two axes may go by one name while they are being ordered
    text = ""
    for _, texts, coefficient in pieces:
        sign, amount = ("-", -coefficient) if coefficient < 0 else ("+", coefficient)
        digits = [] if amount == 1 and texts else [str(amount) if isinstance(amount, int) else f"({amount})"]
        text += f" {sign} " + "*".join(digits + texts)
    return text[3:] if text.startswith(" + ") else "-" + text[3:]


def _factor(atom: Atom, names: Mapping[Axis, str]) -> str:
    match atom:
        case Axis():
            return names.get(atom) or _quoted(atom.name)
        case Floor(top, bottom):
            return f"({_operand(top, names)} // {_operand(bottom, names)})"
        case Largest(args):
            return f"max({', '.join(sorted(show_size(a, names) for a in args))})"
        case Looked(read, low, high):
            inside = Printer(set(names.values()) | names_in(read)).body(read, names)
            return f"look({inside}, {show_size(low, names)}, {show_size(high, names)})"
        case Symbol(name):
            return _quoted(name)
    return atom.key


def _operand(size: Any, names: Mapping[Axis, str]) -> str:
    text = show_size(size, names)
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def _quoted(name: str) -> str:
    plain = name.isidentifier() and name.isascii() and not iskeyword(name) and name not in _RESERVED
    return name if plain else repr(name)


def letters(letters: str) -> Iterator[str]:
    yield from letters
    for number in itertools.count(2):
        yield from (f"{letter}{number}" for letter in letters)


class Printer:
    """Prints bodies, giving every axis a name that nothing else has."""

    def __init__(self, taken: set[str], brief: bool = False):
        self.brief = brief
        self.taken = taken | _RESERVED
        self.kept = letters(KEPT)
        self.reduced = letters(REDUCED)

    def named(self, axes: Sequence[Axis], letters: Iterator[str]) -> dict[Axis, str]:
        names: dict[Axis, str] = {}
        for a in axes:
            names[a] = next(name for name in letters if name not in self.taken)
        return names

    def scope(self, scope: Scope) -> str:
        inner = self.named(scope.axes, self.kept)
        return f"L[{self.ranges(scope.axes, inner)}]({self.body(scope.body, inner)})"

    def ranges(self, axes: Sequence[Axis], names: Mapping[Axis, str]) -> str:
        return ", ".join(f"{names[a]}:{show_size(a.extent, {})}" for a in axes) or "()"

    def body(self, body: Body, names: Mapping[Axis, str]) -> str:
        match body:
            case Const(value):
                return show_constant(value, names)
            case Read(source, indices, outside):
                text = self.source(source) + f"[{', '.join(show_size(i, names) for i in indices) or '()'}]"
                return text if outside is None else f"{text} | {show_constant(outside.value, names)}"
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

    def source(self, source: Source) -> str:
        if isinstance(source, Scope):
            return f"{{{digest(source)}}}" if self.brief else self.scope(source)
        return source.text if isinstance(source, Table) else _quoted(source.name)

    def branch(self, body: Body, names: Mapping[Axis, str]) -> str:
        text = self.body(body, names)
        return f"({text})" if isinstance(body, Select) else text


def show_constant(value: Any, names: Mapping[Axis, str]) -> str:
    """A literal of a body."""
    if isinstance(value, Poly):
        text = show_size(value, names)
        return f"size({text})" if text.startswith(("max(", "look(")) else text
    return str(value)


def chain(body: Call) -> tuple[Body, ...]:
    """(a, b, c) of f(f(a, b), c)."""
    first, *rest = body.args
    if isinstance(first, Call) and first.fn == body.fn:
        return (*chain(first), *rest)
    return body.args


def names_in(item: Scope | Body, nested: bool = True) -> set[str]:
    """Names of tensors, symbols and open axes: no axis may be given one of them."""
    found: set[str] = set()

    def size(value: Size, bound: frozenset[Axis]) -> None:
        for atom in atoms(value) if isinstance(value, Poly) else ():
            if isinstance(atom, Axis):
                size(atom.extent, bound)
            if isinstance(atom, (Symbol, Axis)) and atom not in bound:
                found.add(atom.name)

    for a in item.axes if isinstance(item, Scope) else ():
        size(a.extent, frozenset())
    for body, bound in walk(item, nested):
        for value in sizes(body):
            size(value, bound)
        for a in binds(body):
            size(a.extent, frozenset())
        if isinstance(body, Read):
            if isinstance(body.source, Tensor):
                found.add(body.source.name)
            else:
                for extent in body.source.shape:
                    size(extent, frozenset())
    return found


def symbols_of(items: Sequence[Tensor]) -> dict[str, Symbol]:
    """The symbols in the shapes of tensors, by name."""
    inside = (a for t in items for extent in t.shape for a in atoms(extent))
    return {a.name: a for a in inside if isinstance(a, Symbol)}


def declarations(scope: Scope) -> str:
    """The tensors that a scope reads: `x: float32[3, N]; w: float32[3]`, symbols with their least values."""
    known = tensors(scope)
    low = {s.name: s.low for s in symbols_of(known).values() if s.low}
    pieces = [f"{_quoted(t.name)}: {t.dtype}[{', '.join(show_size(n, {}) for n in t.shape)}]" for t in known]
    pieces += [f"{_quoted(name)} >= {low[name]}" for name in sorted(low)]
    return "; ".join(sorted(pieces))
