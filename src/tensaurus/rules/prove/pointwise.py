"""Reduce a rule of elementwise operators to one case of rank 0 that stands for all shapes.

An operator is elementwise if its expression at any types is that of rank 0, with each input read at the
output's own index: at 0 where the input's size is 1, and without the dimensions that the input lacks (numpy's
broadcasting).  Every element of a term of such operators is the term at rank 0 over one element of each leaf;
the index of that element depends only on the shapes of the leaf and of the result.  So two terms that are
equal at rank 0 are equal at all shapes at which both have one type, and no conditions on shapes are needed.

Whether an operator is elementwise is read off its expression at every pattern of ones and symbols of ranks up
to `MAX_RANKS`; declarations treat higher dimensions as they treat these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import NamedTuple

from tensaurus.expr.ir.scope import Body, Call, Const, Read, Scope, Tensor
from tensaurus.expr.sizes.size import Axis, Poly, Size, atoms, is_same_size, polynomial
from tensaurus.ops import Op, TensorType, Untypable
from tensaurus.ops.examples import examples_of
from tensaurus.rules.language.occurrences import attribute_expressions, inner_first, names_in
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.language.term import Item
from tensaurus.rules.prove.attribute_values import representative_values
from tensaurus.rules.prove.size_assumptions import new_symbol
from tensaurus.rules.prove.unknown_values import UNKNOWN_VALUE_ERRORS

MAX_RANKS = {1: 4, 2: 3}  # largest rank that is tried, by the number of inputs; 2 for more inputs
TYPES = ("float32", "float64", "int64", "uint8", "bool")  # one of each kind that expressions distinguish
SHAPE_FUNCTIONS = frozenset({"shape", "rank", "dim", "numel", "channelwise", "broadcasts"})  # of conditions
ELEMENT_FUNCTIONS = frozenset({"const", "value", "positive", "filled"})


def scalar_rule(rule: Rule) -> Rule | None:
    """Return the rule without its conditions on shapes if all of its operators are elementwise, else None."""
    terms = [*rule.lhs, *rule.rhs]
    if any(isinstance(t, Item) for t in terms):
        return None
    for term in (a for t in terms for a in inner_first(t)):
        if any(isinstance(a, Item) for a in term.args):
            return None
        if not is_elementwise(term.op, tuple(a is not None for a in term.args)):
            return None
    written = [tree for t in terms for tree in attribute_expressions(t)]
    if any(names_in(tree) & SHAPE_FUNCTIONS for tree in written):
        return None
    if any(names_in(c) & SHAPE_FUNCTIONS and names_in(c) & ELEMENT_FUNCTIONS for c in rule.where):
        return None  # a condition on elements may depend on the shape
    return replace(rule, where=tuple(c for c in rule.where if not names_in(c) & SHAPE_FUNCTIONS))


def is_elementwise(op: Op, given: tuple[bool, ...]) -> bool:
    """Return whether the operator, with the inputs that are `given`, is elementwise in float32."""
    return bool(_is_elementwise_for(op, given, ("float32",) * sum(given)))


def is_elementwise_for_all_types(op: Op, given: tuple[bool, ...]) -> bool:
    """Return whether the operator is elementwise for each element type, and for the examples' mixed types."""
    examples = [kinds for kinds, _ in examples_of(op) if tuple(kind is not None for kind in kinds) == given]
    mixed = {tuple(kind.dtype for kind in kinds if kind is not None) for kinds in examples}
    uniform = ((dtype,) * sum(given) for dtype in TYPES)
    known = [_is_elementwise_for(op, given, dtypes) for dtypes in {*mixed, *uniform}]
    return any(known) and False not in known


@cache
def _is_elementwise_for(op: Op, given: tuple[bool, ...], dtypes: tuple[str, ...]) -> bool | None:
    """Return whether the operator is elementwise for these types; None where it accepts no such inputs."""
    count = sum(given)
    if not count:
        return False
    most = MAX_RANKS.get(count, 2)
    names = [new_symbol("n", 1) for _ in range(most)]
    # every shape of ones and of the symbols, which are aligned at the last dimension as in broadcasting
    shapes = [
        shape
        for rank in range(most + 1)
        for shape in product(*((1, names[d]) for d in range(most - rank, most)))
    ]
    accepted: bool | None = None
    full = [tuple(names[most - rank :]) for rank in range(most + 1)]  # shapes without ones, which must type
    for picked in product(*(list(representative_values(op, name, 0)) for name in op.attributes)):
        attrs = dict(zip(op.attributes, picked, strict=True))
        # at all shapes the body must be that of rank 0; `seen_shapes` has the first input's accepted shapes
        scalar, seen_shapes = _scalar_form(op, given, [()] * count, attrs, dtypes), set()
        for kinds in product(shapes, repeat=count):
            result = _scalar_form(op, given, kinds, attrs, dtypes)
            if result is None:
                continue
            if scalar is None or not result.is_aligned or result.body != scalar.body:
                return False
            seen_shapes.add(kinds[0])
        if scalar is None and not seen_shapes:
            continue
        if not seen_shapes.issuperset(full):
            return False
        accepted = True
    return accepted


class _ScalarForm(NamedTuple):
    """An expression's body at rank 0, and whether each read is at the output's own index."""

    body: Body
    is_aligned: bool


def _scalar_form(
    op: Op,
    given: Sequence[bool],
    shapes: Sequence[tuple[Size, ...]],
    attrs: dict[str, object],
    dtypes: Sequence[str],
) -> _ScalarForm | None:
    """Return the form of the operator's first output, None where it does not accept these types."""
    rest = (TensorType(dtype, shape) for dtype, shape in zip(dtypes, shapes, strict=True))
    kinds = tuple(next(rest) if here else None for here in given)
    try:
        scope = op.scopes(kinds, op.canonical(kinds, attrs))[0]
    except (Untypable, *UNKNOWN_VALUE_ERRORS):
        return None
    aligned: list[bool] = []
    body = _scalar_body(scope, scope.body, aligned)
    return _ScalarForm(body, all(aligned))


def _scalar_body(scope: Scope, body: Body, aligned: list[bool]) -> Body:
    """Return the body at rank 0; add to `aligned` whether each part is elementwise.

    A read is where its index is the output's, a number where it does not depend on the axes; reductions and
    choices by indices are not.
    """
    match body:
        case Read(Tensor() as source, indices, None):
            place = [polynomial(a) for a in scope.axes]
            spot: Sequence[Size] = place[len(place) - len(indices) :] if len(indices) <= len(place) else ()
            aligned.append(
                all(
                    is_same_size(index, 0)
                    if is_same_size(size, 1)
                    else k < len(spot) and is_same_size(index, spot[k])
                    for k, (index, size) in enumerate(zip(indices, source.shape, strict=True))
                )
            )
            return Read(Tensor(source.name, (), source.dtype), ())
        case Call(fn, args):
            return Call(fn, tuple(_scalar_body(scope, a, aligned) for a in args))
        case Const(value):
            aligned.append(not isinstance(value, Poly) or not any(isinstance(a, Axis) for a in atoms(value)))
            return body
    aligned.append(False)
    return body
