"""Match the attributes of an operator against a rule's term, and compute those of an operator that is built.

    left side   Transpose(x, perm=p)                          matching binds p to the operator's perm
    right side  Transpose(x, perm=tuple(q[i] for i in p))     building evaluates the expression
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from tensaurus.expr.ir.scope import Scope
from tensaurus.ops import TensorType, Untypable
from tensaurus.ops.declare import Attributes
from tensaurus.rules.language.side_conditions import evaluate_expression
from tensaurus.rules.language.term import Apply

__all__ = ["evaluate_attributes", "match_attributes", "output_index"]


def match_attributes(
    term: Apply,
    attrs: Attributes,
    facts: Mapping[str, Any],
    values: dict[str, Any],
    arg_types: Callable[[], tuple[TensorType | None, ...]],
) -> bool:
    """Return whether an operator's attributes match the term; bind names that have no value yet.

    `facts` describes the bound tensor variables.  `values` holds the bound attributes by name; a rest
    (`**rest`) is bound to a dict of all attributes that the term does not name.  Without a rest, those must
    have their default, which may depend on `arg_types()`, the types of the operator's arguments.
    Raises Undefined and Untypable.
    """
    unmatched = dict(attrs)
    for name, tree in term.attrs:
        value = unmatched.pop(name)
        if isinstance(tree, ast.Name) and tree.id not in values and tree.id not in facts:
            values[tree.id] = value
        else:
            asked = evaluate_expression(tree, {**facts, **values})
            if not _has_value(term, name, asked, value, attrs, arg_types):
                return False
    if term.rest is not None:
        return bool(values.setdefault(term.rest, unmatched) == unmatched)
    if not unmatched:
        return True
    named = {name: value for name, value in attrs if name not in unmatched}
    return bool(term.op.canonical(arg_types(), named) == attrs)


def _has_value(
    term: Apply,
    name: str,
    asked: Any,
    value: Any,
    attrs: Attributes,
    arg_types: Callable[[], tuple[TensorType | None, ...]],
) -> bool:
    """Return whether an attribute has the value that a term asks for, in the operator's canonical form.

    The rule may count an axis from the end, and name an expression by its text.
    """
    numbers = asked if isinstance(asked, tuple) else (asked,)
    from_end = asked != value and any(isinstance(n, int) and n < 0 for n in numbers)
    if from_end or isinstance(value, Scope) and isinstance(asked, str):
        asked = dict(term.op.canonical(arg_types(), {**dict(attrs), name: asked}))[name]
    return bool(asked == value)


def evaluate_attributes(term: Apply, facts: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that the term writes, by name.  Raises Undefined."""
    given = dict(values[term.rest]) if term.rest is not None else {}
    names = {**facts, **values}
    given.update((name, evaluate_expression(tree, names)) for name, tree in term.attrs)
    return given


def output_index(index: int | str, values: Mapping[str, Any], op: object, outputs: int) -> int:
    """Return which output of an operator a term asks for.  Raises Untypable where there is no such output."""
    number = values[index] if isinstance(index, str) else index
    if not isinstance(number, int) or not 0 <= number < outputs:
        raise Untypable(f"{op} has {outputs} outputs; there is no output {number}")
    return number
