"""Terms of rules and the side language of their attributes and conditions, parsed from text.

    term  ::=  variable | variable? | number | Operator(term, ..., attribute=expression, **rest)
               | term[number] | term[name]

A rule is read with Python's own grammar and never executed: `evaluate_expression` walks the few forms that
sizes, tuples and conditions need.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from functools import reduce
from typing import Any, TypeAlias

from tensaurus.algebra.expr import Body
from tensaurus.algebra.size import Arithmetic, largest, nonnegative, same, smallest
from tensaurus.algebra.undecided import answer, watching
from tensaurus.ops import Op, registry
from tensaurus.syntax import expression as parsed

OPTIONAL = "_optional_"


@dataclass(frozen=True)
class Variable:
    """A tensor; an optional one may be an absent input."""

    name: str
    optional: bool = False


@dataclass(frozen=True)
class Literal:
    """A scalar constant, matched by value."""

    value: Fraction


@dataclass(frozen=True)
class Apply:
    """An operator on terms.  `attrs` maps attributes to expressions; `rest` names all others."""

    op: Op
    args: tuple[Term | None, ...]
    attrs: tuple[tuple[str, ast.expr], ...] = ()
    rest: str | None = None


@dataclass(frozen=True)
class Item:
    """One output of a term with several: a number, or a name for whichever it is."""

    term: Apply
    index: int | str


Term: TypeAlias = Variable | Literal | Apply | Item


class RuleError(ValueError):
    """A rule's text that means nothing, with the reason."""


Arranged: TypeAlias = Callable[[Op, list[str]], list[str]]


def show_term(term: Term | None, arranged: Arranged = lambda _, args: args) -> str:
    """The term as text, the same for equal ones; `arranged` are an operator's arguments in another order.

    Terms are not compared by `==`: their attributes are trees, each its own.
    """
    match term:
        case Variable(name, optional):
            return f"{name}?" if optional else name
        case Literal(value):
            return str(value)
        case Apply(op, args, attrs, rest):
            parts = arranged(op, [show_term(arg, arranged) for arg in args])
            given = [f"{name}={ast.unparse(tree)}" for name, tree in attrs]
            return f"{op.name}({', '.join([*parts, *given, *([f'**{rest}'] if rest else [])])})"
        case Item(inner, index):
            return f"{show_term(inner, arranged)}[{index}]"
    return "None"


def parse_terms(text: str) -> tuple[Term, ...]:
    """The roots of one side of a rule."""
    tree = _tree(text)
    roots = tree.elts if isinstance(tree, ast.Tuple) else [tree]
    return tuple(_term(root) for root in roots)


def expression(text: str) -> ast.expr:
    """A condition or an attribute, unevaluated."""
    return _tree(text)


def _tree(text: str) -> ast.expr:
    try:
        return parsed(re.sub(r"\b(\w+)\?", rf"{OPTIONAL}\1", text.strip()))
    except SyntaxError as error:
        raise RuleError(f"cannot read {text!r}: {error.msg}") from error


def _term(tree: ast.expr) -> Term:
    number = _number(tree)
    if number is not None:
        return Literal(number)
    match tree:
        case ast.Name(id=name):
            if name.startswith(OPTIONAL):
                return Variable(name.removeprefix(OPTIONAL), optional=True)
            return Variable(name)
        case ast.Subscript(value=inner, slice=(ast.Constant(value=int(index)) | ast.Name(id=index))):
            call = _term(inner)
            if not isinstance(call, Apply):
                raise RuleError(f"{ast.unparse(tree)}: only an operator has outputs")
            return Item(call, index)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            if name not in registry:
                raise RuleError(f"no operator {name}")
            terms = tuple(None if isinstance(a, ast.Constant) and a.value is None else _term(a) for a in args)
            while terms and terms[-1] is None:
                terms = terms[:-1]
            attrs = tuple((k.arg, k.value) for k in keywords if k.arg is not None)
            rests = [k.value.id for k in keywords if k.arg is None and isinstance(k.value, ast.Name)]
            unknown = [k for k, _ in attrs if k not in registry[name].attributes]
            if unknown:
                raise RuleError(f"{name} has no attribute {unknown[0]}")
            return Apply(registry[name], terms, attrs, rests[0] if rests else None)
    raise RuleError(f"no term: {ast.unparse(tree)}")


def _number(tree: ast.expr) -> Fraction | None:
    match tree:
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=(int() | float()) as value):
            return Fraction(str(value))
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            number = _number(inner)
            return None if number is None else -number
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            a, b = _number(left), _number(right)
            return None if a is None or not b else a / b
    return None


# ------------------------------------------------------------------------------- the side language

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Div: lambda a, b: a / b if isinstance(a, Body) or isinstance(b, Body) else Fraction(a) / Fraction(b),
}


def _equal(a: Any, b: Any) -> bool:
    """Equal, sizes for all values of their symbols."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, Arithmetic) or isinstance(b, Arithmetic):
        return same(a, b)
    if isinstance(a, Body) or isinstance(b, Body):
        return a is b or answer("eq", (a, b))
    return bool(a == b)


def _less(a: Any, b: Any, strict: bool) -> bool:
    """Whether a < b or a <= b.  Raises Undefined for sizes whose symbols leave it open."""
    if isinstance(a, Body) or isinstance(b, Body):
        return answer("lt" if strict else "le", (a, b))
    if isinstance(a, Arithmetic) or isinstance(b, Arithmetic):
        if nonnegative(b - a - strict):
            return True
        if watching() or nonnegative(a - b - (not strict)):
            return False
        raise Undefined(f"{a} and {b} in order")
    return bool(a < b if strict else a <= b)


_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: _equal,
    ast.NotEq: lambda a, b: not _equal(a, b),
    ast.Lt: lambda a, b: _less(a, b, True),
    ast.LtE: lambda a, b: _less(a, b, False),
    ast.Gt: lambda a, b: _less(b, a, True),
    ast.GtE: lambda a, b: _less(b, a, False),
    ast.In: lambda a, b: any(_equal(a, x) for x in b),
    ast.NotIn: lambda a, b: not any(_equal(a, x) for x in b),
}


def require_known(tree: ast.AST, names: Collection[str]) -> None:
    """Raises RuleError where an expression names what is none of these, or a function that there is not."""
    match tree:
        case ast.GeneratorExp(elt=each, generators=[loop]) | ast.ListComp(elt=each, generators=[loop]):
            require_known(loop.iter, names)
            inner = {*names, *(part.id for part in ast.walk(loop.target) if isinstance(part, ast.Name))}
            for part in (each, *loop.ifs):
                require_known(part, inner)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            if name not in FUNCTIONS:
                raise RuleError(f"{ast.unparse(tree)}: there is no function {name}{_meant(name, FUNCTIONS)}")
            for arg in args:
                require_known(arg, names)
        case ast.Call() | ast.Attribute() | ast.Lambda():
            raise RuleError(f"{ast.unparse(tree)} is no part of the language")
        case ast.Name(id=name) if name not in names:
            raise RuleError(f"{name} is not on the left side{_meant(name, names)}")
        case _:
            for child in ast.iter_child_nodes(tree):
                require_known(child, names)


def _meant(name: str, names: Collection[str]) -> str:
    close = get_close_matches(name, names, 1)
    return f"; {close[0]} is meant?" if close else ""


class Undefined(ValueError):
    """An expression that has no value under this binding: the rule does not apply."""


def evaluate_expression(tree: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of a side expression.  Raises Undefined."""
    try:
        return _evaluate(tree, names)
    except (TypeError, IndexError, KeyError, ZeroDivisionError, AttributeError, ValueError) as error:
        raise Undefined(f"{ast.unparse(tree)}: {error}") from error


def _evaluate(tree: ast.expr, names: Mapping[str, Any]) -> Any:
    match tree:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return names[name]
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return tuple(_evaluate(p, names) for p in parts)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_evaluate(inner, names)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return not _evaluate(inner, names)
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_evaluate(left, names), _evaluate(right, names))
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_evaluate(p, names) for p in parts)
        case ast.BoolOp(op=ast.Or(), values=parts):
            return any(_evaluate(p, names) for p in parts)
        case ast.Compare(left=left, ops=ops, comparators=others):
            values = [_evaluate(left, names), *(_evaluate(o, names) for o in others)]
            return all(_COMPARE[type(o)](a, b) for o, a, b in zip(ops, values, values[1:], strict=False))
        case ast.IfExp(test=test, body=then, orelse=other):
            return _evaluate(then if _evaluate(test, names) else other, names)
        case ast.Subscript(value=inner, slice=ast.Slice(lower=low, upper=high, step=None)):
            ends = [None if e is None else _evaluate(e, names) for e in (low, high)]
            return _evaluate(inner, names)[ends[0] : ends[1]]
        case ast.Subscript(value=inner, slice=index):
            return _evaluate(inner, names)[_evaluate(index, names)]
        case ast.Call(func=ast.Name(id=("all" | "any") as name), args=[ast.GeneratorExp() as loop]):
            return FUNCTIONS[name](_elements(loop, names))  # no further than the answer needs
        case ast.GeneratorExp() | ast.ListComp():
            return tuple(_elements(tree, names))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return FUNCTIONS[name](*(_evaluate(a, names) for a in args))
    raise TypeError(f"{type(tree).__name__} is no part of the language")


def _elements(tree: ast.GeneratorExp | ast.ListComp, names: Mapping[str, Any]) -> Iterator[Any]:
    (loop,) = tree.generators
    for value in _evaluate(loop.iter, names):
        inner = {**names, **_bound(loop.target, value)}
        if all(_evaluate(test, inner) for test in loop.ifs):
            yield _evaluate(tree.elt, inner)


def _bound(target: ast.expr, value: Any) -> dict[str, Any]:
    if isinstance(target, ast.Name):
        return {target.id: value}
    assert isinstance(target, ast.Tuple)
    return {k: v for t, x in zip(target.elts, value, strict=True) for k, v in _bound(t, x).items()}


class Fact:
    """What conditions may ask of a tensor variable."""

    shape: tuple[Any, ...]
    dtype: str
    static: bool  # depends on constants alone

    @property
    def value(self) -> Fraction:
        """The value of a scalar constant.  Raises Undefined for anything else."""
        raise Undefined("not a scalar constant")

    @property
    def positive(self) -> bool:
        """True for a constant whose elements are all known to be above zero."""
        raise Undefined("not a constant")

    @property
    def filled(self) -> Fraction:
        """The number that all elements of a constant are.  Raises Undefined where there is none."""
        raise Undefined("not a constant of one number")


def _product(values: Any) -> Any:
    return reduce(operator.mul, values, 1)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "shape": lambda x: x.shape,
    "rank": lambda x: len(x.shape),
    "dim": lambda x, i: x.shape[i],
    "numel": lambda x: _product(x.shape),
    "const": lambda x: x.static,
    "dtype": lambda x: x.dtype,
    "value": lambda x: x.value,
    "positive": lambda x: x.positive,
    "filled": lambda x: x.filled,
    "len": len,
    "range": range,
    "tuple": tuple,
    "sorted": lambda xs: tuple(sorted(xs)),
    "set": frozenset,
    "sum": lambda xs: reduce(operator.add, xs, 0),
    "prod": _product,
    "all": all,
    "any": any,
    "zip": lambda *xs: tuple(zip(*xs, strict=True)),
    "abs": abs,
    "max": lambda *xs: reduce(largest, xs[0] if len(xs) == 1 else xs),
    "min": lambda *xs: reduce(smallest, xs[0] if len(xs) == 1 else xs),
    "index": lambda xs, x: xs.index(x),
    "at_least": lambda a, b: nonnegative(a - b),  # for all values of the symbols
    "ones": lambda n: (1,) * n,
    "enumerate": lambda xs: tuple(enumerate(xs)),
    # one element per channel (axis 1, of so many channels) of a tensor of this rank, or one element alone
    "channelwise": lambda s, rank, channels: len(s.shape) <= rank
    and all(
        same(n, 1) or (place == 1 - rank and same(n, channels))
        for place, n in enumerate(s.shape, -len(s.shape))
    ),
    "broadcasts": lambda s, y: len(s.shape) <= len(y.shape)
    and all(same(n, 1) or same(n, m) for n, m in zip(s.shape[::-1], y.shape[::-1], strict=False)),
}
