"""Expressions as text, and back.

    scope  ::=  L[i:extent, ...](body)                     one element per point of the axes; L[()] has rank 0
    body   ::=  size | rational | inf | -inf | nan | True | False
             |  source[index, ...]  |  source[index, ...] | outside          x[()] reads a tensor of rank 0
             |  fn(body, ...)                               add, mul, max, min, and, or may take more than two
             |  body if size >= 0 and ... else body
             |  sum[r:extent, ...](body)                    or max, min, prod
             |  size(size)                                  a size whose text would begin like a function
    source ::=  tensor | scope
    size   ::=  integers, symbols and axes under  + - * // %,  max(size, ...), min(size, ...),
                look(read, low, high)                       an index read from an integer tensor

It is a subset of Python's expressions, parsed by Python's own grammar and never run.  Names that are not
identifiers stand in quotes; `and`, `or`, `not` are written `and_`, `or_`, `not_`.

    L[i:3, j:N](sum[r:3](mul(x[i + r - 1, j] | 0, w[r])))

Axes are named in order of appearance (i, j, k... and r, s, t... for reduced ones), whatever their own names
are, so alpha-equal expressions have equal texts.  Texts are exact: `show(parse(show(s), ...)) == show(s)`.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from hashlib import sha256
from keyword import iskeyword
from typing import Any, NoReturn

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
    Tensor,
    axis,
    children,
    sizes,
    tensors,
)
from tensaurus.algebra.functions import FUNCTIONS, cast_target
from tensaurus.algebra.size import (
    Atom,
    Axis,
    Floor,
    Largest,
    Poly,
    Symbol,
    atoms,
    floordiv,
    largest,
    mod,
    polynomial,
    smallest,
    terms_of,
)

VARIADIC = frozenset({"add", "mul", "max", "min", "and", "or"})
_LITERALS = {"inf": float("inf"), "nan": float("nan")}
_RESERVED = frozenset({*_LITERALS, "L", *MONOIDS, "look", "size"})


def show(item: Scope | Body) -> str:
    """The text of a scope or of a body, whose open axes keep their own names."""
    printer = Printer(names_in(item))
    return printer.scope(item, {}) if isinstance(item, Scope) else printer.body(item, {})


_digests: dict[int, tuple[Scope, str]] = {}
_texts: dict[str, str] = {}


def digest(scope: Scope) -> str:
    """A short name of a scope's text, read scopes in it named likewise: the whole text may be exponential."""
    found = _digests.get(id(scope))
    if found is None:
        if len(_digests) >= 4096:
            _digests.clear()
        text = Printer(names_in(scope), brief=True).scope(scope, {})
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
        self.kept = letters("ijklmnopq")
        self.reduced = letters("rstuvabcdefgh")

    def named(self, axes: Sequence[Axis], letters: Iterator[str]) -> dict[Axis, str]:
        names: dict[Axis, str] = {}
        for a in axes:
            names[a] = next(name for name in letters if name not in self.taken)
        return names

    def scope(self, scope: Scope, names: Mapping[Axis, str]) -> str:
        inner = self.named(scope.axes, self.kept)
        return f"L[{self.ranges(scope.axes, inner)}]({self.body(scope.body, inner)})"

    def ranges(self, axes: Sequence[Axis], names: Mapping[Axis, str]) -> str:
        return ", ".join(f"{names[a]}:{show_size(a.extent, {})}" for a in axes) or "()"

    def body(self, body: Body, names: Mapping[Axis, str]) -> str:
        match body:
            case Const(value):
                return show_constant(value, names)
            case Read(source, indices, outside):
                if isinstance(source, Scope):
                    text = f"{{{digest(source)}}}" if self.brief else self.scope(source, names)
                else:
                    text = _quoted(source.name)
                text += f"[{', '.join(show_size(i, names) for i in indices) or '()'}]"
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


def names_in(item: Scope | Body) -> set[str]:
    """Names of tensors, symbols and open axes: no axis may be given one of them."""
    found: set[str] = set()
    visited: set[int] = set()

    def size(value: Any, bound: frozenset[Atom]) -> None:
        for atom in atoms(value):
            if isinstance(atom, (Symbol, Axis)):
                found.update(() if atom in bound else (atom.name,))
                if isinstance(atom, Axis):
                    size(atom.extent, bound)
            elif isinstance(atom, Looked):
                body(atom.read, bound)

    def scope(value: Scope) -> None:
        if id(value) in visited:
            return
        visited.add(id(value))
        for a in value.axes:
            size(a.extent, frozenset())
        body(value.body, frozenset(value.axes))

    def body(value: Body, bound: frozenset[Atom]) -> None:
        if isinstance(value, Reduce):
            bound = bound | frozenset(value.axes)
            for a in value.axes:
                size(a.extent, frozenset())
        if isinstance(value, Read):
            if isinstance(value.source, Scope):
                scope(value.source)
            else:
                found.add(value.source.name)
        for piece in sizes(value):
            size(piece, bound)
        for child in children(value):
            body(child, bound)

    if isinstance(item, Scope):
        scope(item)
    else:
        body(item, frozenset())
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


def parse(text: str, tensors: Mapping[str, Tensor]) -> Scope:
    """The scope with this text, its axes new.  Raises ValueError."""
    node = _expression(text)
    return _Reader(text, tensors).scope(node, {})


def parse_size(text: str, names: Mapping[str, Any] | None = None) -> Any:
    """The size with this text; names are looked up, or symbols >= 0 where no lookup is given.

    Raises ValueError.
    """
    reader = _Reader(text, {})
    return reader.size(_expression(text), names or {}, free=names is None)


def _expression(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"not an expression: {text[:80]!r}: {error}") from None


class _Reader:
    """One parse: names of axes are lexical, all else is looked up in the tensors."""

    def __init__(self, text: str, tensors: Mapping[str, Tensor]):
        self.text = text
        self.tensors = tensors
        self.symbols = symbols_of(tuple(tensors.values()))

    def fail(self, node: ast.AST, reason: str) -> NoReturn:
        place = ast.get_source_segment(self.text.strip(), node)
        raise ValueError(f"{reason}: {place!r}")

    def scope(self, node: ast.expr, axes: Mapping[str, Any]) -> Scope:
        match node:
            case ast.Call(func=ast.Subscript(ast.Name(id="L"), ranges), args=[body], keywords=[]):
                named = self.ranges(ranges)
                # a scope is closed: the axes around it are not seen inside
                return Scope(tuple(named.values()), self.body(body, _sized(named)))
        self.fail(node, "not a scope L[...](...)")

    def ranges(self, node: ast.expr) -> dict[str, Axis]:
        named: dict[str, Axis] = {}
        for item in _items(node):
            match item:
                case ast.Slice(lower=ast.Name(id=name), upper=ast.expr() as upper, step=None):
                    if name in named:
                        self.fail(item, "an axis twice")
                    named[name] = axis(self.size(upper, {}), name)
                case _:
                    self.fail(item, "not a range name:extent")
        return named

    def body(self, node: ast.expr, axes: Mapping[str, Any]) -> Body:
        match node:
            case ast.Constant(value=bool(value)):
                return Const(value)
            case ast.Name(id=name) if name in _LITERALS:
                return Const(_LITERALS[name])
            case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf")):
                return Const(float("-inf"))
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                source, outside = self.body(left, axes), self.body(right, axes)
                if not isinstance(source, Read) or not isinstance(outside, Const):
                    self.fail(node, "only a read has a constant value outside")
                return Read(source.source, source.indices, outside)
            case ast.IfExp(test=test, body=then, orelse=other):
                return Select(self.guard(test, axes), self.body(then, axes), self.body(other, axes))
            case ast.Subscript(value=source, slice=indices):
                return self.read(node, source, _items(indices), axes)
            case ast.Call(func=ast.Subscript(ast.Name(id=monoid), ranges), args=[inner], keywords=[]):
                if monoid not in MONOIDS:
                    self.fail(node, "not a reduction")
                named = self.ranges(ranges)
                return Reduce(monoid, tuple(named.values()), self.body(inner, {**axes, **_sized(named)}))
            case ast.Call(func=ast.Name(id="size"), args=[inner], keywords=[]):
                return Const(self.size(inner, axes))
            case ast.Call(func=ast.Name(id=fn), args=args, keywords=[]):
                return self.call(node, fn.rstrip("_"), [self.body(a, axes) for a in args])
        return Const(self.size(node, axes))

    def call(self, node: ast.expr, fn: str, args: Sequence[Body]) -> Body:
        if fn not in FUNCTIONS and cast_target(fn) is None:
            self.fail(node, f"no function {fn}")
        arity = FUNCTIONS[fn].arity if fn in FUNCTIONS else 1
        if fn in VARIADIC and len(args) > arity:
            return reduce(lambda a, b: Call(fn, (a, b)), args)
        if len(args) != arity:
            self.fail(node, f"{fn} takes {arity} arguments")
        return Call(fn, tuple(args))

    def read(
        self, node: ast.expr, source: ast.expr, indices: Sequence[ast.expr], axes: Mapping[str, Any]
    ) -> Read:
        match source:
            case ast.Name(id=name) | ast.Constant(value=str(name)):
                if name not in self.tensors:
                    self.fail(node, f"no tensor {name}")
                found: Tensor | Scope = self.tensors[name]
            case _:
                found = self.scope(source, axes)
        if found.rank != len(indices):
            self.fail(node, f"{len(indices)} indices into rank {found.rank}")
        return Read(found, tuple(self.size(i, axes) for i in indices))

    def guard(self, node: ast.expr, axes: Mapping[str, Any]) -> tuple[Any, ...]:
        match node:
            case ast.Constant(value=True):
                return ()
            case ast.BoolOp(op=ast.And(), values=values):
                return tuple(size for value in values for size in self.guard(value, axes))
            case ast.Compare(left=left, ops=[ast.GtE()], comparators=[ast.Constant(value=0)]):
                return (self.size(left, axes),)
        self.fail(node, "not a guard size >= 0 and ...")

    def size(self, node: ast.expr, axes: Mapping[str, Any], free: bool = True) -> Any:
        def run(item: ast.expr) -> Any:
            return self.size(item, axes, free)

        match node:
            case ast.Constant(value=bool()):
                self.fail(node, "not a size")
            case ast.Constant(value=int(value)):
                return value
            case ast.Constant(value=float(value)):
                return Fraction(value)
            case ast.Name(id=name) | ast.Constant(value=str(name)):
                if name in axes:
                    return polynomial(axes[name])
                if not free:
                    self.fail(node, "unknown name")
                return polynomial(self.symbols.get(name) or Symbol(name))
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return 0 - run(inner)
            case ast.BinOp(left=left, op=op, right=right):
                return self.operation(node, op, run(left), run(right))
            case ast.Call(func=ast.Name(id="max" | "min" as fn), args=[_, *_] as args, keywords=[]):
                return reduce(largest if fn == "max" else smallest, map(run, args))
            case ast.Call(func=ast.Name(id="look"), args=[inner, low, high], keywords=[]):
                read = self.body(inner, axes)
                if isinstance(read, Read):
                    return polynomial(Looked(read, run(low), run(high)))
        self.fail(node, "not a size")

    def operation(self, node: ast.expr, op: ast.operator, a: Any, b: Any) -> Any:
        match op:
            case ast.Add():
                return a + b
            case ast.Sub():
                return a - b
            case ast.Mult():
                return a * b
            case ast.FloorDiv():
                return floordiv(a, b)
            case ast.Mod():
                return mod(a, b)
            case ast.Div() if isinstance(a, (int, Fraction)) and isinstance(b, (int, Fraction)) and b != 0:
                return Fraction(a) / b
        self.fail(node, "not a size")


def _sized(named: Mapping[str, Axis]) -> dict[str, Any]:
    return {name: polynomial(a) for name, a in named.items()}


def _items(node: ast.expr) -> Sequence[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else (node,)
