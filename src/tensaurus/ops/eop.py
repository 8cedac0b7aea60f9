"""An expression as an operator (EINNET section 5: eOperators)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensaurus.expr.ir.axis_binding import bind_symbols
from tensaurus.expr.ir.element_types import Untypable
from tensaurus.expr.ir.expression_text import parse
from tensaurus.expr.ir.identity_cache import IdentityCache
from tensaurus.expr.ir.printer import free_names
from tensaurus.expr.ir.scope import Scope, Tensor
from tensaurus.expr.ir.walk import replace_tensors
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.expr.sizes.size import (
    Atom,
    Poly,
    Size,
    Symbol,
    atoms,
    is_nonnegative,
    is_same_size,
    substitute,
)
from tensaurus.ops.composite import OURS
from tensaurus.ops.declare import op

_wider: IdentityCache[Scope] = (
    IdentityCache()
)  # of scopes whose symbols became numbers, those with the symbols


def _over_inputs(inputs: Sequence[Tensor], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The scope, or its text, over the inputs as they are: with their sizes for its symbols.

    What was one of symbols is so again over inputs of other sizes.
    """
    scope = attrs["scope"]
    if isinstance(scope, str):
        try:
            scope = parse(scope, {x.name: x for x in inputs})
        except ValueError as error:
            raise Untypable(str(error)) from error
    try:
        bound = _bound(scope, inputs)
    except Untypable:
        if scope not in _wider:
            raise
        return _over_inputs(inputs, {"scope": _wider[scope]})
    made = intern_scope(bound)
    if made is not scope and free_names(scope).symbols:
        _wider[made] = scope
    return {"scope": made}


def _bound(scope: Scope, inputs: Sequence[Tensor]) -> Scope:
    """The scope over these tensors in the place of its own of the same names.  Raises Untypable."""
    free = free_names(scope)
    own = {x.name: x for x in free.tensors}
    given = {x.name: x for x in inputs}
    if len(own) < len(free.tensors):
        raise Untypable("a scope that gives one name to two tensors")
    if not own.keys() <= given.keys():
        raise Untypable(f"a scope of {', '.join(own)} over {', '.join(given) or 'nothing'}")
    known = {a for x in (*own.values(), *inputs) for n in x.shape for a in atoms(n)}
    unknown = [atom for atom in (*free.symbols, *free.axes) if atom not in known]
    if unknown:
        raise Untypable(f"a scope in which nothing says what {', '.join(map(str, unknown))} is")
    values: dict[Atom, Any] = {}
    for name, x in own.items():
        if x.dtype != given[name].dtype or x.rank != given[name].rank:
            raise Untypable(f"{name} is {x.dtype} of rank {x.rank} in the scope, {given[name].dtype} here")
        for stated, size in zip(x.shape, given[name].shape, strict=True):
            symbol = _symbol(stated)
            if symbol is not None and is_nonnegative(size - symbol.low):
                values.setdefault(symbol, size)
    for name, x in own.items():
        if not all(
            is_same_size(substitute(n, values), m) for n, m in zip(x.shape, given[name].shape, strict=True)
        ):
            raise Untypable(f"{name} is {x.shape} in the scope, {given[name].shape} here")
    changed = {x: given[name] for name, x in own.items() if x != given[name]}
    return replace_tensors(bind_symbols(scope, values), changed) if changed else scope


def _symbol(size: Size) -> Symbol | None:
    """The symbol that a size is."""
    if isinstance(size, Poly) and len(size.terms) == 1:
        (factors, coefficient) = size.terms[0]
        if coefficient == 1 and len(factors) == 1 and isinstance(factors[0], Symbol):
            return factors[0]
    return None


@op(
    "eop",
    domain=OURS,
    normal=_over_inputs,
    examples=[
        "f32[3,4] scope='L[i:4, j:3](x0[j, i])'",
        "f32[2,5] f32[5] scope='L[i:2](sum[r:5](mul(x0[i, r], x1[r])))'",
        "f32[6] scope='L[i:6](max[r:2](x0[i + r - 1] | -inf))'",
        "i64[4] scope='L[i:4](x0[i] if i - 2 >= 0 else 7)'",
        "f32[2,3] scope='L[i:2](exp(L[j:2](max[r:3](x0[j, r]))[i]))'",
    ],
)
def eop(*x: Tensor, scope: Scope) -> Scope:
    """The scope, which is over tensors x0, x1, ... of the types of the inputs, and over nothing else.

    An input may be one that it does not read: what is trivial is gone from interned scopes.
    """
    return _bound(scope, x)
