"""Terms of rules and the side language of their attributes and conditions, parsed from text.

    term  ::=  variable | variable? | number | Operator(term, ..., attribute=expression, **rest)
               | term[number] | term[name]

A rule is read with Python's own grammar and never executed: `side.evaluate_expression` walks the few forms
that sizes, tuples and conditions need.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from typing import TypeAlias

from tensaurus.ops import Op, registry
from tensaurus.rules.language.side_conditions import FUNCTIONS
from tensaurus.system.syntax import parse_expression

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
        return parse_expression(re.sub(r"\b(\w+)\?", rf"{OPTIONAL}\1", text.strip()))
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
