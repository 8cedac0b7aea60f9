"""Parse expressions from their texts with Python's parser; `expr.ir.expression_text` has the grammar."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from typing import Any, NoReturn

from tensaurus.expr.ir.printer import LITERALS, symbols_of
from tensaurus.expr.ir.scalar_functions import ASSOCIATIVE, FUNCTIONS, cast_target
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
    Tensor,
    axis,
    table,
)
from tensaurus.expr.sizes.size import Axis, Symbol, floordiv, largest, mod, polynomial, smallest
from tensaurus.system.syntax import parse_expression

# one declaration: up to a `;` that is not within quotes
_DECLARATION = re.compile(r"""((?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^;'"])+)""")


def parse(text: str, tensors: Mapping[str, Tensor]) -> Scope:
    """Return the scope with this text, with new axes.  Raises ValueError."""
    node = _parse_python(text)
    # scopes that are named in the text, (A := L[...](...)), by name
    named = [item for item in ast.walk(node) if isinstance(item, ast.NamedExpr)]
    shared = {item.target.id: item.value for item in named}
    if len(shared) < len(named):
        raise ValueError(f"two scopes of one name: {text[:80]!r}")
    # only tensors that the text reads: symbols in their shapes have the bounds that these state
    sources = [item.value for item in ast.walk(node) if isinstance(item, ast.Subscript)]
    names = [_identifier(source) for source in sources]
    used_tensors = {name: tensors[name] for name in names if name in tensors and name not in shared}
    return _Reader(text, used_tensors, shared).scope(node)


def parse_declarations(text: str) -> dict[str, Tensor]:
    """Return the tensors that `declarations` has written, by name.  Raises ValueError."""
    types: dict[str, ast.expr] = {}
    reader = _Reader(text, {})
    for declaration in filter(None, map(str.strip, _DECLARATION.findall(text))):
        match _parse_python("{" + declaration + "}"):
            case ast.Dict([name], [type_node]) if name is not None:  # x: float32[3, N]
                types[_identifier(name)] = type_node
            case ast.Set([ast.Compare(left, [ast.GtE() | ast.LtE() as order], [bound])]):  # N >= 1
                symbol = reader.symbols.get(_identifier(left)) or Symbol(_identifier(left))
                side = "low" if isinstance(order, ast.GtE) else "high"
                reader.symbols[symbol.name] = replace(symbol, **{side: reader.size(bound, {})})
            case _:
                raise ValueError(f"not a declaration: {declaration!r}")
    return {name: reader.tensor(name, type_node) for name, type_node in types.items()}


def _identifier(node: ast.expr) -> str:
    match node:
        case ast.Name(id=str(name)) | ast.Constant(value=str(name)):
            return name
    return ""


def parse_size(text: str, names: Mapping[str, Any] | None = None) -> Any:
    """Return the size with this text.

    Names are looked up in `names`; without it they are symbols >= 0.  Raises ValueError.
    """
    reader = _Reader(text, {})
    return reader.size(_parse_python(text), names or {}, allows_symbols=names is None)


def _parse_python(text: str) -> ast.expr:
    try:
        return parse_expression(text.strip())
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"not an expression: {text[:80]!r}: {error}") from None


class _Reader:
    """Reads one text: names of axes are lexical, others are names of tensors or of shared scopes.

    Methods take nodes of Python's syntax tree; `axes` gives the axes that are bound around a node, by name.
    `scopes` has the shared scopes parsed so far; `symbols` those in the tensors' shapes, None if ambiguous.
    """

    def __init__(
        self, text: str, tensors: Mapping[str, Tensor], shared: Mapping[str, ast.expr] | None = None
    ):
        self.text = text
        self.tensors = tensors
        self.shared = dict(shared or {})  # named scopes that are not parsed yet
        self.scopes: dict[str, Scope] = {}
        self.symbols = symbols_of(tensors.values())

    def fail(self, node: ast.AST, reason: str) -> NoReturn:
        segment = ast.get_source_segment(self.text.strip(), node)
        raise ValueError(f"{reason}: {segment!r}")

    def scope(self, node: ast.expr) -> Scope:
        match node:
            case ast.Call(func=ast.Subscript(ast.Name(id="L"), ranges), args=[body], keywords=[]):
                axes = self.ranges(ranges)
                # a scope is closed: the axes around it are not seen inside
                return Scope(tuple(axes.values()), self.body(body, _axis_sizes(axes)))
        self.fail(node, "not a scope L[...](...)")

    def tensor(self, name: str, node: ast.expr) -> Tensor:
        match node:
            case ast.Compare(kind, [ast.NotEq()], [ast.Constant(value=0)]):
                return replace(self.tensor(name, kind), nonzero=True)
            case ast.Subscript(value=ast.Name(id=dtype), slice=shape):
                return Tensor(name, tuple(self.size(n, {}) for n in _items(shape)), dtype)
        self.fail(node, "not a type")

    def ranges(self, node: ast.expr) -> dict[str, Axis]:
        axes: dict[str, Axis] = {}
        for item in _items(node):
            match item:
                case ast.Slice(lower=ast.Name(id=name), upper=ast.expr() as upper, step=None):
                    if name in axes:
                        self.fail(item, "an axis twice")
                    axes[name] = axis(self.size(upper, {}), name)
                case _:
                    self.fail(item, "not a range name:extent")
        return axes

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
                reduced = self.ranges(ranges)
                return Reduce(
                    monoid, tuple(reduced.values()), self.body(inner, {**axes, **_axis_sizes(reduced)})
                )
            case ast.Call(func=ast.Name(id="size"), args=[inner], keywords=[]):
                return Const(self.size(inner, axes))
            case ast.Call(func=ast.Name(id=fn), args=args, keywords=[]):
                return self.call(node, fn.rstrip("_"), [self.body(a, axes) for a in args])
        return Const(self.size(node, axes))

    def call(self, node: ast.expr, fn: str, args: Sequence[Body]) -> Body:
        if fn not in FUNCTIONS and cast_target(fn) is None:
            self.fail(node, f"no function {fn}")
        arity = FUNCTIONS[fn].arity if fn in FUNCTIONS else 1
        if fn in ASSOCIATIVE and len(args) > arity:
            return reduce(lambda a, b: Call(fn, (a, b)), args)
        if len(args) != arity:
            self.fail(node, f"{fn} takes {arity} arguments")
        return Call(fn, tuple(args))

    def read(
        self, node: ast.expr, source: ast.expr, indices: Sequence[ast.expr], axes: Mapping[str, Any]
    ) -> Read:
        source_tensor: Source
        match source:
            case ast.NamedExpr(target=ast.Name(id=name)) | ast.Name(id=name) if self.is_scope_name(name):
                source_tensor = self.named_scope(name)
            case ast.Name(id=name) | ast.Constant(value=str(name)):
                if name not in self.tensors:
                    self.fail(node, f"no tensor {name}")
                source_tensor = self.tensors[name]
            case ast.List():
                source_tensor = table(self.rows(source))
            case _:
                source_tensor = self.scope(source)
        if source_tensor.rank != len(indices):
            self.fail(node, f"{len(indices)} indices into rank {source_tensor.rank}")
        return Read(source_tensor, tuple(self.size(i, axes) for i in indices))

    def is_scope_name(self, name: str) -> bool:
        return name in self.shared or name in self.scopes

    def named_scope(self, name: str) -> Scope:
        if name not in self.scopes:
            # `pop` before parsing: a scope must not read itself
            self.scopes[name] = self.scope(self.shared.pop(name))
        return self.scopes[name]

    def rows(self, node: ast.expr) -> Any:
        """Return the numbers of a table as nested lists."""
        if isinstance(node, ast.List):
            return [self.rows(item) for item in node.elts]
        number = self.size(node, {}, allows_symbols=False)
        return number if isinstance(number, (int, Fraction)) else self.fail(node, "not a number")

    def guard(self, node: ast.expr, axes: Mapping[str, Any]) -> tuple[Any, ...]:
        match node:
            case ast.Constant(value=True):
                return ()
            case ast.BoolOp(op=ast.And(), values=values):
                return tuple(size for value in values for size in self.guard(value, axes))
            case ast.Compare(left=left, ops=[ast.GtE()], comparators=[ast.Constant(value=0)]):
                return (self.size(left, axes),)
        self.fail(node, "not a guard size >= 0 and ...")

    def size(self, node: ast.expr, axes: Mapping[str, Any], allows_symbols: bool = True) -> Any:
        def parse_part(item: ast.expr) -> Any:
            return self.size(item, axes, allows_symbols)

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
                if not allows_symbols:
                    self.fail(node, "unknown name")
                if name in self.symbols and self.symbols[name] is None:
                    self.fail(node, "two symbols of one name")
                return polynomial(self.symbols.get(name) or Symbol(name))
            case ast.Call(func=ast.Name(id="symbol"), args=[name, low, *high], keywords=[]) if len(high) < 2:
                return polynomial(Symbol(_identifier(name), parse_part(low), *map(parse_part, high)))
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return 0 - parse_part(inner)
            case ast.BinOp(left=left, op=op, right=right):
                return self.operation(node, op, parse_part(left), parse_part(right))
            case ast.Call(func=ast.Name(id="max" | "min" as fn), args=[_, *_] as args, keywords=[]):
                return reduce(largest if fn == "max" else smallest, map(parse_part, args))
            case ast.Call(func=ast.Name(id="look"), args=[inner, low, high], keywords=[]):
                read = self.body(inner, axes)
                if isinstance(read, Read):
                    return polynomial(Lookup(read, parse_part(low), parse_part(high)))
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


def _axis_sizes(axes: Mapping[str, Axis]) -> dict[str, Any]:
    return {name: polynomial(a) for name, a in axes.items()}


def _items(node: ast.expr) -> Sequence[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else (node,)
