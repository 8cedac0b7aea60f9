"""What a rule's terms say of attributes: read off an operator that is matched, given to one that is built."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from tensaurus.expr.ir.scope import Scope
from tensaurus.ops import TensorType, Untypable
from tensaurus.ops.declare import Attributes
from tensaurus.rules.language.side_conditions import evaluate_expression
from tensaurus.rules.language.term import Apply

__all__ = ["attributes_given", "attributes_match", "output_of"]


def attributes_match(
    term: Apply,
    attrs: Attributes,
    facts: Mapping[str, Any],
    values: dict[str, Any],
    kinds: Callable[[], tuple[TensorType | None, ...]],
) -> bool:
    """Whether an operator's attributes are those of the term; a name without a value is given one.

    `facts` are what is known of the variables, `values` those of names (of a rest, all that is left over);
    `kinds` gives the types of the operator's arguments: what the term does not mention has its default
    there.  Raises Undefined and Untypable.
    """
    left = dict(attrs)
    for name, tree in term.attrs:
        value = left.pop(name)
        if isinstance(tree, ast.Name) and tree.id not in values and tree.id not in facts:
            values[tree.id] = value
        elif not _is(term, name, evaluate_expression(tree, {**facts, **values}), value, attrs, kinds):
            return False
    if term.rest is not None:
        return bool(values.setdefault(term.rest, left) == left)
    if not left:
        return True
    named = {name: value for name, value in attrs if name not in left}
    return bool(term.op.canonical(kinds(), named) == attrs)


def _is(
    term: Apply,
    name: str,
    asked: Any,
    value: Any,
    attrs: Attributes,
    kinds: Callable[[], tuple[TensorType | None, ...]],
) -> bool:
    """Whether an attribute has the value that a term asks for, in the operator's canonical form of it.

    An axis may be counted from the end, or several, an expression is asked for by its text.
    """
    numbers = asked if isinstance(asked, tuple) else (asked,)
    from_end = asked != value and any(isinstance(n, int) and n < 0 for n in numbers)
    if from_end or isinstance(value, Scope) and isinstance(asked, str):
        asked = dict(term.op.canonical(kinds(), {**dict(attrs), name: asked}))[name]
    return bool(asked == value)


def attributes_given(term: Apply, facts: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that the term writes, by name.  Raises Undefined."""
    given = dict(values[term.rest]) if term.rest is not None else {}
    names = {**facts, **values}
    given.update((name, evaluate_expression(tree, names)) for name, tree in term.attrs)
    return given


def output_of(index: int | str, values: Mapping[str, Any], op: object, outputs: int) -> int:
    """Which output of an operator a term asks for.  Raises Untypable where there is none such."""
    place = values[index] if isinstance(index, str) else index
    if not isinstance(place, int) or not 0 <= place < outputs:
        raise Untypable(f"{op} has {outputs} outputs, and none is {place}")
    return place
