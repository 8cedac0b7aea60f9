"""Terms of rules, and the parser of terms and of the expressions in attributes and conditions.

    term  ::=  variable | variable? | number | Operator(term, ..., attribute=expression, **rest)
               | term[number] | term[name]

A rule is parsed with Python's own grammar but never executed: `side_conditions.evaluate_expression` walks
the few forms of syntax that sizes, tuples and conditions need.
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
from tensaurus.system.syntax import parse_expression as parse_python

OPTIONAL_PREFIX = "_optional_"  # marks `x?` as a Python name while a rule is parsed


@dataclass(frozen=True)
class Variable:
    """A tensor variable; an optional one may stand for an absent input."""

    name: str
    optional: bool = False


@dataclass(frozen=True)
class Literal:
    """A scalar constant, matched by its value."""

    value: Fraction


@dataclass(frozen=True)
class Apply:
    """An operator on terms.  `attrs` maps attributes to expressions; `rest` names all other attributes."""

    op: Op
    args: tuple[Term | None, ...]
    attrs: tuple[tuple[str, ast.expr], ...] = ()
    rest: str | None = None


@dataclass(frozen=True)
class Item:
    """One output of a call with several outputs: its number, or a name that matching binds to the number."""

    term: Apply
    index: int | str


Term: TypeAlias = Variable | Literal | Apply | Item


class RuleError(ValueError):
    """The text of a rule cannot be parsed, with the reason."""


ArgumentOrder: TypeAlias = Callable[[Op, list[str]], list[str]]


def show_term(term: Term | None, arrange: ArgumentOrder = lambda _, args: args) -> str:
    """Return the term as text, the same for equal terms; `arrange` orders an operator's arguments.

    Terms must be compared by this text: their attributes are syntax trees, which `==` compares by identity.
    """
    match term:
        case Variable(name, optional):
            return f"{name}?" if optional else name
        case Literal(value):
            return str(value)
        case Apply(op, args, attrs, rest):
            parts = arrange(op, [show_term(arg, arrange) for arg in args])
            given = [f"{name}={ast.unparse(tree)}" for name, tree in attrs]
            return f"{op.name}({', '.join([*parts, *given, *([f'**{rest}'] if rest else [])])})"
        case Item(inner, index):
            return f"{show_term(inner, arrange)}[{index}]"
    return "None"


def parse_terms(text: str) -> tuple[Term, ...]:
    """Return the roots of one side of a rule."""
    tree = parse_expression(text)
    roots = tree.elts if isinstance(tree, ast.Tuple) else [tree]
    return tuple(_parse_node(root) for root in roots)


def parse_expression(text: str) -> ast.expr:
    """Parse a condition or an attribute without evaluating it.  Raises RuleError."""
    try:
        return parse_python(re.sub(r"\b(\w+)\?", rf"{OPTIONAL_PREFIX}\1", text.strip()))
    except SyntaxError as error:
        raise RuleError(f"cannot parse {text!r}: {error.msg}") from error


def _parse_node(tree: ast.expr) -> Term:
    number = _number(tree)
    if number is not None:
        return Literal(number)
    match tree:
        case ast.Name(id=name):
            if name.startswith(OPTIONAL_PREFIX):
                return Variable(name.removeprefix(OPTIONAL_PREFIX), optional=True)
            return Variable(name)
        case ast.Subscript(value=inner, slice=(ast.Constant(value=int(index)) | ast.Name(id=index))):
            call = _parse_node(inner)
            if not isinstance(call, Apply):
                raise RuleError(f"{ast.unparse(tree)}: only an operator call has outputs")
            return Item(call, index)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            if name not in registry:
                raise RuleError(f"unknown operator {name}")
            absent = [isinstance(a, ast.Constant) and a.value is None for a in args]
            terms = tuple(None if none else _parse_node(a) for a, none in zip(args, absent, strict=True))
            while terms and terms[-1] is None:
                terms = terms[:-1]
            attrs = tuple((k.arg, k.value) for k in keywords if k.arg is not None)
            rests = [k.value.id for k in keywords if k.arg is None and isinstance(k.value, ast.Name)]
            unknown = [k for k, _ in attrs if k not in registry[name].attributes]
            if unknown:
                raise RuleError(f"{name} has no attribute {unknown[0]}")
            return Apply(registry[name], terms, attrs, rests[0] if rests else None)
    raise RuleError(f"not a term: {ast.unparse(tree)}")


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


def check_names(tree: ast.AST, names: Collection[str]) -> None:
    """Raise RuleError where an expression uses a name that is not in `names`, or an unknown function."""
    match tree:
        case ast.GeneratorExp(elt=each, generators=[loop]) | ast.ListComp(elt=each, generators=[loop]):
            check_names(loop.iter, names)
            inner = {*names, *(part.id for part in ast.walk(loop.target) if isinstance(part, ast.Name))}
            for part in (each, *loop.ifs):
                check_names(part, inner)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            if name not in FUNCTIONS:
                suggestion = _suggest(name, FUNCTIONS)
                raise RuleError(f"{ast.unparse(tree)}: unknown function {name}{suggestion}")
            for arg in args:
                check_names(arg, names)
        case ast.Call() | ast.Attribute() | ast.Lambda():
            raise RuleError(f"{ast.unparse(tree)} is not supported in a rule")
        case ast.Name(id=name) if name not in names:
            raise RuleError(f"{name} is not on the left side{_suggest(name, names)}")
        case _:
            for child in ast.iter_child_nodes(tree):
                check_names(child, names)


def _suggest(name: str, names: Collection[str]) -> str:
    close = get_close_matches(name, names, 1)
    return f"; did you mean {close[0]}?" if close else ""
