"""Write expressions as text, and hash the texts; `expr.ir.expression_text` has the grammar."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from keyword import iskeyword
from typing import Any, NamedTuple, TypeAlias

from tensaurus.expr.ir.scalar_functions import ASSOCIATIVE
from tensaurus.expr.ir.scope import (
    MONOIDS,
    Body,
    Call,
    Const,
    Lookup,
    Read,
    Reduce,
    Scope,
    Select,
    Source,
    Table,
    Tensor,
)
from tensaurus.expr.ir.walk import reads, sizes, walk
from tensaurus.expr.sizes.size import (
    Atom,
    Axis,
    Floor,
    Largest,
    Poly,
    Size,
    Symbol,
    atoms,
    single_atom,
    terms_of,
)

LITERALS = {"inf": float("inf"), "nan": float("nan")}
SCOPE_AXIS_LETTERS, REDUCED_AXIS_LETTERS = "ijklmnopq", "rstuvabcdefgh"
SHARED_SCOPE_LETTERS = "ABCDEFGHIJKMNOPQRSTUVWXYZ"  # for scopes that are read twice; no L: it begins a scope
_RESERVED = frozenset({*LITERALS, "L", *MONOIDS, "look", "size", "symbol"})

Names: TypeAlias = Mapping[Any, str]  # texts by axis or symbol


def show(item: Scope | Body) -> str:
    """Return the text of a scope or body; open axes of a body keep their own names."""
    outer = free_names(item)
    printer = Printer(outer.names, outer.unbounded, shared=_shared_digests(item))
    return printer.scope(item) if isinstance(item, Scope) else printer.body(item, printer.symbols)


def _shared_digests(item: Scope | Body) -> set[str]:
    """Return the digests of scopes that are read more than once; equal scopes may be two objects."""
    counts, waiting = Counter[str](), [item]
    while waiting:
        for read in reads(waiting.pop()):
            if isinstance(read.source, Scope):
                key = scope_digest(read.source)
                counts[key] += 1
                if counts[key] == 1:
                    waiting.append(read.source)
    return {key for key, count in counts.items() if count > 1}


_digests: dict[int, tuple[Scope, str]] = {}  # by id; the entry holds the scope, so that its id stays its own
_texts: dict[str, str] = {}  # every hashed text by its hash, to notice two texts of one hash


def scope_digest(scope: Scope) -> str:
    """Return a hash of a scope's text, inner scopes as hashes: the whole text may be exponential."""
    entry = _digests.get(id(scope))
    if entry is None:
        if len(_digests) >= 4096:
            _digests.clear()
        outer = free_names(scope, nested=False)
        text = Printer(outer.names, outer.unbounded, brief=True).scope(scope)
        entry = _digests[id(scope)] = scope, hash_text(text)
    return entry[1]


def hash_text(text: str) -> str:
    """Return a hash of the text.  Raises RuntimeError where two texts have the same hash."""
    name = sha256(text.encode()).hexdigest()[:16]
    if _texts.setdefault(name, text) != text:
        raise RuntimeError(f"the name {name} stands for two expressions:\n{_texts[name]}\n{text}")
    return name


def show_size(size: Any, names: Names) -> str:
    """Return the text of a size under these names of axes, terms sorted by text: i*n + 2*j - 1."""
    if not isinstance(size, (Poly, Atom)):
        return str(size)
    if (only_atom := single_atom(size)) is not None:
        return _show_atom(only_atom, names)
    sortable_terms = []
    for factors, coefficient in terms_of(size):
        texts = sorted(_show_atom(a, names) for a in factors)
        sortable_terms.append((-len(texts), texts, coefficient))
    sortable_terms.sort()  # by coefficient, too: `canonical_axis_order` gives several axes one name
    text = ""
    for _, texts, coefficient in sortable_terms:
        sign, magnitude = ("-", -coefficient) if coefficient < 0 else ("+", coefficient)
        number_text = (
            []
            if magnitude == 1 and texts
            else [str(magnitude) if isinstance(magnitude, int) else f"({magnitude})"]
        )
        text += f" {sign} " + "*".join(number_text + texts)
    return text[3:] if text.startswith(" + ") else "-" + text[3:]


def _show_atom(atom: Atom, names: Names) -> str:
    match atom:
        case Axis():
            return names.get(atom) or _quoted(atom.name)
        case Floor(top, bottom):
            return f"({_show_operand(top, names)} // {_show_operand(bottom, names)})"
        case Largest(args):
            return f"max({', '.join(sorted(show_size(a, names) for a in args))})"
        case Lookup(Read(source, indices, outside), low, high):
            symbols = {a: text for a, text in names.items() if isinstance(a, Symbol)}
            # a scope is closed: its axes may have any names
            taken = free_names(source).names if isinstance(source, Scope) else set()
            inside = Printer(taken, symbols).element(source, indices, outside, names)
            return f"look({inside}, {show_size(low, names)}, {show_size(high, names)})"
        case Symbol(name):
            return names.get(atom) or _quoted(name)
    return atom.key


def _show_operand(size: Any, names: Names) -> str:
    text = show_size(size, names)
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def show_source_name(source: Tensor | Table) -> str:
    """Return the text of a tensor or table where it is read."""
    return source.text if isinstance(source, Table) else _quoted(source.name)


def _quoted(name: str) -> str:
    needs_no_quotes = name.isidentifier() and name.isascii() and not iskeyword(name) and name not in _RESERVED
    return name if needs_no_quotes else repr(name)


def letters(letters: str) -> Iterator[str]:
    """Yield the letters, then the letters with 2, with 3, and so on."""
    yield from letters
    for number in itertools.count(2):
        yield from (f"{letter}{number}" for letter in letters)


class Printer:
    """Prints bodies, giving every axis a name that nothing else in the expression has.

    `symbols`: texts of symbols.  `shared`: digests of scopes that get a name where they are first read, and
    are read by that name afterwards.  `brief`: scopes that are read are printed as their digests.
    """

    def __init__(
        self, taken: set[str], symbols: Names, brief: bool = False, shared: Container[str] = frozenset()
    ):
        self.symbols = symbols
        self.brief = brief
        self.shared = shared
        self.scopes: dict[str, str] = {}  # names of printed shared scopes, by digest
        self.taken = taken | _RESERVED
        self.scope_axis_names = letters(SCOPE_AXIS_LETTERS)
        self.reduced_axis_names = letters(REDUCED_AXIS_LETTERS)
        self.scope_names = letters(SHARED_SCOPE_LETTERS)

    def name_axes(self, axes: Sequence[Axis], letters: Iterator[str]) -> dict[Axis, str]:
        return {a: self.fresh_name(letters) for a in axes}

    def fresh_name(self, letters: Iterator[str]) -> str:
        return next(name for name in letters if name not in self.taken)

    def scope(self, scope: Scope) -> str:
        inner = {**self.symbols, **self.name_axes(scope.axes, self.scope_axis_names)}
        return f"L[{self.ranges(scope.axes, inner)}]({self.body(scope.body, inner)})"

    def ranges(self, axes: Sequence[Axis], names: Names) -> str:
        """Return "i:3, j:N"; extents contain symbols, but no axes."""
        return ", ".join(f"{names[a]}:{show_size(a.extent, self.symbols)}" for a in axes) or "()"

    def body(self, body: Body, names: Names) -> str:
        match body:
            case Const(value):
                return show_constant(value, names)
            case Read(source, indices, outside):
                return self.element(source, indices, outside, names)
            case Call(fn, args):
                flat = left_operands(body) if fn in ASSOCIATIVE else args
                name = fn + "_" if iskeyword(fn) else fn
                return f"{name}({', '.join(self.body(a, names) for a in flat)})"
            case Select(guard, then, other):
                condition = " and ".join(f"{show_size(g, names)} >= 0" for g in guard) or "True"
                text = f"{self.branch(then, names)} if {condition} else {self.branch(other, names)}"
                return text
            case Reduce(monoid, axes, inner):
                wider = {**names, **self.name_axes(axes, self.reduced_axis_names)}
                return f"{monoid}[{self.ranges(axes, wider)}]({self.body(inner, wider)})"
        raise TypeError(type(body))

    def element(self, source: Source, indices: Sequence[Size], outside: Const | None, names: Names) -> str:
        text = self.source(source) if isinstance(source, Scope) else show_source_name(source)
        text += f"[{', '.join(show_size(i, names) for i in indices) or '()'}]"
        return text if outside is None else f"{text} | {show_constant(outside.value, names)}"

    def source(self, scope: Scope) -> str:
        """Return the text of a scope where it is read: a digest, its name, or the scope itself."""
        if self.brief:
            return f"{{{scope_digest(scope)}}}"
        if not self.shared or (key := scope_digest(scope)) not in self.shared:
            return self.scope(scope)
        if key in self.scopes:
            return self.scopes[key]
        name = self.scopes[key] = self.fresh_name(self.scope_names)
        return f"({name} := {self.scope(scope)})"

    def branch(self, body: Body, names: Names) -> str:
        text = self.body(body, names)
        return f"({text})" if isinstance(body, Select) else text


def show_constant(value: Any, names: Names) -> str:
    """Return the text of a literal of a body."""
    if isinstance(value, Poly):
        text = show_size(value, names)
        return f"size({text})" if text.startswith(("max(", "look(", "symbol(")) else text
    return str(value)


def left_operands(body: Call) -> tuple[Body, ...]:
    """Return (a, b, c) for f(f(a, b), c)."""
    first, *rest = body.args
    if isinstance(first, Call) and first.fn == body.fn:
        return (*left_operands(first), *rest)
    return body.args


class FreeNames(NamedTuple):
    """The tensors, symbols and axes that an expression takes from outside, each once, by first appearance."""

    tensors: dict[Tensor, None]
    symbols: dict[Symbol, None]
    axes: dict[Axis, None]

    @property
    def names(self) -> set[str]:
        """The names of all; no axis may be given one of these."""
        return {item.name for group in self for item in group}

    @property
    def unbounded(self) -> Names:
        """The texts of symbols whose bounds the shapes of the tensors do not state."""
        if not self.symbols:
            return {}
        # the name alone is enough for a symbol of a tensor's shape, and for one with the default bounds
        stated_symbols = symbols_of(self.tensors)
        stated = {
            s
            for s in self.symbols
            if s == (stated_symbols[s.name] if s.name in stated_symbols else Symbol(s.name))
        }
        return {s: _show_symbol(s) for s in self.symbols if s not in stated}


def free_names(item: Scope | Body, nested: bool = True) -> FreeNames:
    """Return what an expression takes from outside, with `nested` also what the scopes it reads take."""
    free = FreeNames({}, {}, {})

    def add(sizes: Iterable[Size | None], bound: Container[Axis] = ()) -> None:
        for size in sizes:
            for atom in atoms(size) if isinstance(size, Poly) else ():
                if isinstance(atom, Axis):  # free if not bound; its extent may have symbols
                    add((atom.extent,), bound)
                    if atom not in bound:
                        free.axes[atom] = None
                elif isinstance(atom, Symbol):
                    free.symbols[atom] = None
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
                free.tensors[body.source] = None
    return free


def names_in(item: Scope | Body) -> set[str]:
    """Return the names of tensors, symbols and open axes."""
    return free_names(item).names


def symbols_of(tensors: Iterable[Tensor]) -> dict[str, Symbol | None]:
    """Return the symbols in the shapes of tensors by name, None for a name that two symbols have."""
    symbols: dict[str, Symbol | None] = {}
    for a in (a for t in tensors for extent in t.shape if isinstance(extent, Poly) for a in atoms(extent)):
        if isinstance(a, Symbol) and symbols.setdefault(a.name, a) != a:
            symbols[a.name] = None
    return symbols


def _show_symbol(symbol: Symbol) -> str:
    high = "" if symbol.high is None else f", {_show_upper_bound(symbol)}"
    return f"symbol({_quoted(symbol.name)}, {symbol.low}{high})"


def _show_upper_bound(symbol: Symbol) -> str:
    inside = {a: _show_symbol(a) for a in atoms(symbol.high) if isinstance(a, Symbol)}
    return show_size(symbol.high, inside)


def declarations(scope: Scope) -> str:
    """Return the tensors that a scope reads with their types, and the bounds of the symbols in their shapes.

        N <= 512; N >= 1; w: float32[3] != 0; x: float32[3, N]         != 0: no element is zero
    """
    return show_declarations(free_names(scope))


def show_declarations(free: FreeNames) -> str:
    """Return the same as `declarations`, for given tensors and symbols."""
    unbounded = free.unbounded
    texts = []
    for t in free.tensors:
        shape = ", ".join(show_size(n, unbounded) for n in t.shape) or "()"
        texts.append(f"{_quoted(t.name)}: {t.dtype}[{shape}]{' != 0' if t.nonzero else ''}")
    for s in symbols_of(free.tensors).values():
        if s is not None and s.low != 0:
            texts.append(f"{_quoted(s.name)} >= {s.low}")
        if s is not None and s.high is not None:
            texts.append(f"{_quoted(s.name)} <= {_show_upper_bound(s)}")
    return "; ".join(sorted(texts))
