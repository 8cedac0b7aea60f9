"""The operator `eop`, which computes any expression: its attribute `scope`, a Scope or its text.

Its nodes are EINNET's eOperators (section 5): no runtime has a kernel for them, so one is generated.
"""

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
    Symbol,
    atoms,
    is_nonnegative,
    is_same_size,
    single_atom,
    substitute,
)
from tensaurus.ops.composite import OUR_DOMAIN
from tensaurus.ops.declare import op

# by scope that `_bind_to_inputs` has bound to inputs: the scope with symbols from which it was made
_symbolic_forms: IdentityCache[Scope] = IdentityCache()


def _bind_to_inputs(inputs: Sequence[Tensor], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attribute `scope`, parsed if it is text, with the sizes of the inputs for its symbols.

    Where a scope with numbers does not fit the inputs, the scope with symbols from which it was made is bound
    to them instead (`_symbolic_forms`): the same node is then used at other sizes.
    """
    scope = attrs["scope"]
    if isinstance(scope, str):
        try:
            scope = parse(scope, {x.name: x for x in inputs})
        except ValueError as error:
            raise Untypable(str(error)) from error
    try:
        bound = _replace_tensors_by_inputs(scope, inputs)
    except Untypable:
        if scope not in _symbolic_forms:
            raise
        return _bind_to_inputs(inputs, {"scope": _symbolic_forms[scope]})
    interned = intern_scope(bound)
    if interned is not scope and free_names(scope).symbols:
        _symbolic_forms[interned] = scope
    return {"scope": interned}


def _replace_tensors_by_inputs(scope: Scope, inputs: Sequence[Tensor]) -> Scope:
    """Return the scope over the inputs in place of its own tensors of the same names.  Raises Untypable."""
    # check the names: each tensor of the scope is an input, each symbol is a size of a tensor
    outer = free_names(scope)
    own_tensors = {x.name: x for x in outer.tensors}
    inputs_by_name = {x.name: x for x in inputs}
    if len(own_tensors) < len(outer.tensors):
        raise Untypable("a scope that gives one name to two tensors")
    if not own_tensors.keys() <= inputs_by_name.keys():
        raise Untypable(f"a scope of {', '.join(own_tensors)} over {', '.join(inputs_by_name) or 'nothing'}")
    stated_atoms = {a for x in (*own_tensors.values(), *inputs) for n in x.shape for a in atoms(n)}
    unstated = [atom for atom in (*outer.symbols, *outer.axes) if atom not in stated_atoms]
    if unstated:
        raise Untypable(
            f"a scope with {', '.join(map(str, unstated))}, which is a size of none of its tensors"
        )
    # where a tensor of the scope has a symbol as a size, the symbol stands for the input's size
    values: dict[Atom, Any] = {}
    for name, x in own_tensors.items():
        if x.dtype != inputs_by_name[name].dtype or x.rank != inputs_by_name[name].rank:
            raise Untypable(
                f"{name} is {x.dtype} of rank {x.rank} in the scope, {inputs_by_name[name].dtype} here"
            )
        for own_size, size in zip(x.shape, inputs_by_name[name].shape, strict=True):
            symbol = single_atom(own_size)
            if isinstance(symbol, Symbol) and is_nonnegative(size - symbol.low):
                values.setdefault(symbol, size)
    for name, x in own_tensors.items():  # with these values all shapes must be equal
        if not all(
            is_same_size(substitute(n, values), m)
            for n, m in zip(x.shape, inputs_by_name[name].shape, strict=True)
        ):
            raise Untypable(f"{name} is {x.shape} in the scope, {inputs_by_name[name].shape} here")
    changed = {x: inputs_by_name[name] for name, x in own_tensors.items() if x != inputs_by_name[name]}
    return replace_tensors(bind_symbols(scope, values), changed) if changed else scope


@op("eop", domain=OUR_DOMAIN, canonicalize=_bind_to_inputs, examples=[
    "f32[3,4] scope='L[i:4, j:3](x0[j, i])'",
    "f32[2,5] f32[5] scope='L[i:2](sum[r:5](mul(x0[i, r], x1[r])))'",
    "f32[6] scope='L[i:6](max[r:2](x0[i + r - 1] | -inf))'",
    "i64[4] scope='L[i:4](x0[i] if i - 2 >= 0 else 7)'",
    "f32[2,3] scope='L[i:2](exp(L[j:2](max[r:3](x0[j, r]))[i]))'",
])  # fmt: skip
def eop(*x: Tensor, scope: Scope) -> Scope:
    """The scope, over tensors x0, x1, ... of the types of the inputs and nothing else.

    It need not read every input: a read that does not matter may have been simplified away.
    """
    return _replace_tensors_by_inputs(scope, x)
