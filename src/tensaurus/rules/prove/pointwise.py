"""Rules of operators that compute element by element: one case of rank 0 stands for all shapes.

An operator is elementwise if its expression at any types is that of rank 0, each input read at the output's
own place: at 0 where the input's size is 1, and without the dimensions that it lacks (numpy's
broadcasting). Of a term of such operators, every element is the term at rank 0 over one element of each
leaf; which element that is depends on the shapes of the leaf and of the result alone, not on the term. So
two terms that are equal at rank 0 are equal at all shapes at which both have one type, and conditions on
shapes are not needed.

That an operator is elementwise is read off its expression at every pattern of ones and symbols of ranks up
to `RANKS`; its declaration treats the dimensions beyond these as it treats those.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product

from tensaurus.expr.ir.scope import Body, Call, Const, Read, Scope, Tensor
from tensaurus.expr.sizes.size import Axis, Poly, Size, atoms, is_same_size, polynomial
from tensaurus.ops import Op, TensorType, Untypable
from tensaurus.ops.examples import examples_of
from tensaurus.rules.language.occurrences import attribute_expressions, inner_first
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.language.term import Item
from tensaurus.rules.prove.attribute_domain import UNKNOWN_VALUE_ERRORS, representative_values
from tensaurus.rules.prove.size_assumptions import symbol

RANKS = {1: 4, 2: 3}  # by the number of inputs; 2 for more
TYPES = ("float32", "float64", "int64", "uint8", "bool")  # of each kind of which an expression may ask
SHAPES = frozenset({"shape", "rank", "dim", "numel", "channelwise", "broadcasts"})
ELEMENTS = frozenset({"const", "value", "positive", "filled"})


def scalar_rule(rule: Rule) -> Rule | None:
    """The rule without its conditions on shapes, where all of its operators are elementwise; else None."""
    terms = [*rule.lhs, *rule.rhs]
    if any(isinstance(t, Item) for t in terms):
        return None
    for term in (a for t in terms for a in inner_first(t)):
        if any(isinstance(a, Item) for a in term.args):
            return None
        if not elementwise(term.op, tuple(a is not None for a in term.args)):
            return None
    written = [tree for t in terms for tree in attribute_expressions(t)]
    if any(_names(tree) & SHAPES for tree in written):
        return None
    if any(_names(c) & SHAPES and _names(c) & ELEMENTS for c in rule.where):
        return None  # what is asked of the elements may depend on the shape
    return replace(rule, where=tuple(c for c in rule.where if not _names(c) & SHAPES))


def _names(tree: ast.expr) -> set[str]:
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}


def elementwise(op: Op, given: tuple[bool, ...]) -> bool:
    """Whether the operator, with these of its inputs, computes element by element."""
    return bool(_elementwise(op, given, ("float32",) * sum(given)))


def elementwise_of_any(op: Op, given: tuple[bool, ...]) -> bool:
    """Whether it does for every element type that it takes, one for all inputs or as examples have them."""
    examples = [kinds for kinds, _ in examples_of(op) if tuple(kind is not None for kind in kinds) == given]
    mixed = {tuple(kind.dtype for kind in kinds if kind is not None) for kinds in examples}
    known = [_elementwise(op, given, each) for each in {*mixed, *((dtype,) * sum(given) for dtype in TYPES)}]
    return any(known) and False not in known


@cache
def _elementwise(op: Op, given: tuple[bool, ...], dtypes: tuple[str, ...]) -> bool | None:
    """None where it takes no inputs of these types."""
    count = sum(given)
    if not count:
        return False
    most = RANKS.get(count, 2)
    names = [symbol("n", 1) for _ in range(most)]
    shapes = [
        shape
        for rank in range(most + 1)
        for shape in product(*((1, names[d]) for d in range(most - rank, most)))
    ]
    taken: bool | None = None
    full = [tuple(names[most - rank :]) for rank in range(most + 1)]
    for picked in product(*(list(representative_values(op, name, 0)) for name in op.attributes)):
        attrs = dict(zip(op.attributes, picked, strict=True))
        wanted, met = _at(op, given, [()] * count, attrs, dtypes), set()
        for kinds in product(shapes, repeat=count):
            result = _at(op, given, kinds, attrs, dtypes)
            if result is None:
                continue
            if wanted is None or not all(result[1]) or result[0] != wanted[0]:
                return False
            met.add(kinds[0])
        if wanted is None and not met:
            continue
        if not met.issuperset(full):
            return False
        taken = True
    return taken


def _at(
    op: Op,
    given: Sequence[bool],
    shapes: Sequence[tuple[Size, ...]],
    attrs: dict[str, object],
    dtypes: Sequence[str],
) -> tuple[Body, list[bool]] | None:
    """The scalar body of the first output, and whether each read is aligned; None where it does not type."""
    rest = (TensorType(dtype, shape) for dtype, shape in zip(dtypes, shapes, strict=True))
    kinds = tuple(next(rest) if here else None for here in given)
    try:
        scope = op.scopes(kinds, op.canonical(kinds, attrs))[0]
    except (Untypable, *UNKNOWN_VALUE_ERRORS):
        return None
    aligned: list[bool] = []
    return _scalar(scope, scope.body, aligned), aligned


def _scalar(scope: Scope, body: Body, aligned: list[bool]) -> Body:
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
            return Call(fn, tuple(_scalar(scope, a, aligned) for a in args))
        case Const(value):
            aligned.append(not isinstance(value, Poly) or not any(isinstance(a, Axis) for a in atoms(value)))
            return body
    aligned.append(False)
    return body
