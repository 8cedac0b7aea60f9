"""Find what occurs in a term: its operators, its variables, the names and expressions of its attributes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tensaurus.rules.language.term import Apply, Item, Term, Variable


def outer_first(term: Term | None) -> Iterator[Apply]:
    """Yield the operators of a term, each before its arguments."""
    match term:
        case Item(inner, _):
            yield from outer_first(inner)
        case Apply(_, args, _, _):
            yield term
            for arg in args:
                yield from outer_first(arg)


def inner_first(term: Term | None) -> Iterator[Apply]:
    """Yield the operators of a term, each after its arguments."""
    match term:
        case Item(inner, _):
            yield from inner_first(inner)
        case Apply(_, args, _, _):
            for arg in args:
                yield from inner_first(arg)
            yield term


def names_in(tree: ast.AST) -> set[str]:
    """Return the names in an expression."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def attribute_expressions(term: Term | None) -> list[ast.expr]:
    """Return the expressions of a term's attributes."""
    return [tree for call in outer_first(term) for _, tree in call.attrs]


def variables(term: Term | None) -> dict[str, Variable]:
    """Return the tensor variables of a term by name, in order of appearance."""
    match term:
        case Variable(name, _):
            return {name: term}
        case Apply(_, args, _, _):
            return {k: v for a in args for k, v in variables(a).items()}
        case Item(inner, _):
            return variables(inner)
    return {}


def bound_names(term: Term | None) -> set[str]:
    """Return the names that matching the term binds: tensors, attributes, rests of attributes, outputs."""
    match term:
        case Variable(name, _):
            return {name}
        case Apply(_, args, attrs, rest):
            names = {value.id for _, value in attrs if isinstance(value, ast.Name)}
            return names.union({rest} if rest else (), *(bound_names(arg) for arg in args))
        case Item(inner, index):
            return bound_names(inner) | ({index} if isinstance(index, str) else set())
    return set()


def named_outputs(term: Term | None) -> list[tuple[str, Apply]]:
    """Return the names that stand for the number of an output, each with the call whose output it is."""
    match term:
        case Apply(_, args, _, _):
            return [output for arg in args for output in named_outputs(arg)]
        case Item(inner, index):
            return [*([(index, inner)] if isinstance(index, str) else []), *named_outputs(inner)]
    return []
