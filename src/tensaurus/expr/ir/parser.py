"""Expressions parsed from their texts by Python's own parser; `expr.ir.expression_text` has the grammar."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from typing import Any, NoReturn

from tensaurus.expr.ir.printer import LITERALS, symbols_of
from tensaurus.expr.ir.scalar_functions import FUNCTIONS, VARIADIC, cast_target
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
    Tensor,
    axis,
    table,
)
from tensaurus.expr.sizes.size import Axis, Symbol, floordiv, largest, mod, polynomial, smallest
from tensaurus.system.syntax import expression

_PIECE = re.compile(r"""((?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^;'"])+)""")  # no semicolon but in quotes


def parse(text: str, tensors: Mapping[str, Tensor]) -> Scope:
    """The scope with this text, its axes new.  Raises ValueError."""
    node = _expression(text)
    named = [item for item in ast.walk(node) if isinstance(item, ast.NamedExpr)]
    shared = {item.target.id: item.value for item in named}
    if len(shared) < len(named):
        raise ValueError(f"two scopes of one name: {text[:80]!r}")
    sources = [item.value for item in ast.walk(node) if isinstance(item, ast.Subscript)]
    names = [_name(source) for source in sources]
    read = {name: tensors[name] for name in names if name in tensors and name not in shared}
    return _Reader(text, read, shared).scope(node)


def parse_declarations(text: str) -> dict[str, Tensor]:
    """The tensors that `declarations` shows.  Raises ValueError."""
    kinds: dict[str, ast.expr] = {}
    reader = _Reader(text, {})
    for piece in filter(None, map(str.strip, _PIECE.findall(text))):
        match _expression("{" + piece + "}"):
            case ast.Dict([name], [kind]) if name is not None:
                kinds[_name(name)] = kind
            case ast.Set([ast.Compare(left, [ast.GtE() | ast.LtE() as order], [bound])]):
                found = reader.symbols.get(_name(left)) or Symbol(_name(left))
                side = "low" if isinstance(order, ast.GtE) else "high"
                reader.symbols[found.name] = replace(found, **{side: reader.size(bound, {})})
            case _:
                raise ValueError(f"not a declaration: {piece!r}")
    return {name: reader.tensor(name, kind) for name, kind in kinds.items()}


def _name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=str(name)) | ast.Constant(value=str(name)):
            return name
    return ""


def parse_size(text: str, names: Mapping[str, Any] | None = None) -> Any:
    """The size with this text; names are looked up, or symbols >= 0 where no lookup is given.

    Raises ValueError.
    """
    reader = _Reader(text, {})
    return reader.size(_expression(text), names or {}, free=names is None)


def _expression(text: str) -> ast.expr:
    try:
        return expression(text.strip())
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"not an expression: {text[:80]!r}: {error}") from None


class _Reader:
    """One parse: names of axes are lexical, all else is looked up in the tensors and in the named scopes."""

    def __init__(
        self, text: str, tensors: Mapping[str, Tensor], shared: Mapping[str, ast.expr] | None = None
    ):
        self.text = text
        self.tensors = tensors
        self.shared = dict(shared or {})  # those that are not read yet
        self.scopes: dict[str, Scope] = {}
        self.symbols = symbols_of(tensors.values())

    def fail(self, node: ast.AST, reason: str) -> NoReturn:
        place = ast.get_source_segment(self.text.strip(), node)
        raise ValueError(f"{reason}: {place!r}")

    def scope(self, node: ast.expr) -> Scope:
        match node:
            case ast.Call(func=ast.Subscript(ast.Name(id="L"), ranges), args=[body], keywords=[]):
                named = self.ranges(ranges)
                # a scope is closed: the axes around it are not seen inside
                return Scope(tuple(named.values()), self.body(body, _sized(named)))
        self.fail(node, "not a scope L[...](...)")

    def tensor(self, name: str, node: ast.expr) -> Tensor:
        match node:
            case ast.Compare(kind, [ast.NotEq()], [ast.Constant(value=0)]):
                return replace(self.tensor(name, kind), nonzero=True)
            case ast.Subscript(value=ast.Name(id=dtype), slice=shape):
                return Tensor(name, tuple(self.size(n, {}) for n in _items(shape)), dtype)
        self.fail(node, "not a type")

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
            case ast.Name(id=name) if name in LITERALS:
                return Const(LITERALS[name])
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
        found: Source
        match source:
            case ast.NamedExpr(target=ast.Name(id=name)) | ast.Name(id=name) if self.names(name):
                found = self.named(name)
            case ast.Name(id=name) | ast.Constant(value=str(name)):
                if name not in self.tensors:
                    self.fail(node, f"no tensor {name}")
                found = self.tensors[name]
            case ast.List():
                found = table(self.rows(source))
            case _:
                found = self.scope(source)
        if found.rank != len(indices):
            self.fail(node, f"{len(indices)} indices into rank {found.rank}")
        return Read(found, tuple(self.size(i, axes) for i in indices))

    def names(self, name: str) -> bool:
        """Whether it is the name of a scope."""
        return name in self.shared or name in self.scopes

    def named(self, name: str) -> Scope:
        if name not in self.scopes:
            # it is not known inside of itself
            self.scopes[name] = self.scope(self.shared.pop(name))
        return self.scopes[name]

    def rows(self, node: ast.expr) -> Any:
        """The numbers of a table."""
        if isinstance(node, ast.List):
            return [self.rows(item) for item in node.elts]
        value = self.size(node, {}, free=False)
        return value if isinstance(value, (int, Fraction)) else self.fail(node, "not a number")

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
                if name in self.symbols and self.symbols[name] is None:
                    self.fail(node, "two symbols of one name")
                return polynomial(self.symbols.get(name) or Symbol(name))
            case ast.Call(func=ast.Name(id="symbol"), args=[name, low, *high], keywords=[]) if len(high) < 2:
                return polynomial(Symbol(_name(name), run(low), *map(run, high)))
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
