"""Infer the element type of an expression from the types of the tensors that it reads.

    x[i] * 2 + 1   int8 for an int8 x: literals adapt     lt(x[i], y[i])   bool     to_float16(x[i])   float16

`dtype_of` so gives the output type of every declared operator.
"""

from __future__ import annotations

from tensaurus.expr.ir.float_conversions import is_exact_conversion, is_float, is_rounding_conversion
from tensaurus.expr.ir.identity_cache import IdentityCache
from tensaurus.expr.ir.scalar_functions import FUNCTIONS, cast_target
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Select, Source, Table, Tensor
from tensaurus.expr.ir.walk import innermost_first
from tensaurus.expr.sizes.size import Poly

_LITERAL_DTYPES = {"int": "int64", "real": "float32"}  # the types of expressions of literals alone


class Untypable(ValueError):
    """Raised where inputs and attributes have no meaning for an operator."""


# a cache, because scopes are shared: walking along all reads may take exponential time
_dtypes: IdentityCache[str] = IdentityCache()


def dtype_of(source: Source) -> str:
    """Return the element type, e.g. "float32".

    Literals take the type of the tensors that they are combined with; alone they are bool, int64 or float32.
    Raises Untypable.
    """
    if isinstance(source, Tensor):
        return source.dtype
    if isinstance(source, Table):
        return _LITERAL_DTYPES[_table_kind(source)]
    if source not in _dtypes:
        for scope in innermost_first(source, _dtypes):
            dtype = literal_dtype(scope.body)
            _dtypes[scope] = _LITERAL_DTYPES.get(dtype, dtype)
    return _dtypes[source]


def literal_dtype(body: Body) -> str:
    """Return the same as `dtype_of`, but "int" or "real" for expressions of literals alone."""
    match body:
        case Const(value):
            if isinstance(value, bool):
                return "bool"
            return "int" if isinstance(value, (int, Poly)) else "real"
        case Read(Table() as source, _, outside):
            inside = _table_kind(source)
            return inside if outside is None else _unify_dtypes(inside, literal_dtype(outside))
        case Read(source, _, _):
            return dtype_of(source)
        case Select(_, then, other):
            return _unify_dtypes(literal_dtype(then), literal_dtype(other))
        case Reduce(_, _, inner):
            return literal_dtype(inner)
        case Call(fn, args):
            cast_dtype = cast_target(fn)
            if cast_dtype is not None:
                return cast_dtype
            function = FUNCTIONS[fn]
            if len(args) != function.arity:
                raise TypeError(f"{fn} takes {function.arity} arguments, not {len(args)}")
            arg_types = [literal_dtype(a) for a in args]
            if fn == "where":
                return _unify_dtypes(*arg_types[1:])
            if function.result == "bool":
                if len(arg_types) == 2:
                    _unify_dtypes(*arg_types)
                return "bool"
            result = arg_types[0] if len(arg_types) == 1 else _unify_dtypes(*arg_types)
            if function.result == "float" and not result.startswith(("float", "bfloat", "real")):
                return "real" if result == "int" else _raise_untypable(fn, result)
            return "real" if fn == "div" and result == "int" else result
    raise TypeError(type(body))


def is_rounding_cast(body: Body) -> bool:
    """Return whether the body converts to a float type that lacks some numbers of its argument."""
    if not isinstance(body, Call) or (target := cast_target(body.fn)) is None:
        return False
    return is_rounding_conversion(narrowest_dtype(body.args[0]), target)


def narrowest_dtype(body: Body) -> str:
    """Return the narrowest type known to hold all values: float16 for a float16 converted to float32."""
    match strip_exact_casts(body):
        case Read(Scope() as source, _, None):
            return narrowest_dtype(source.body)
        case other:
            return literal_dtype(other)


def strip_exact_casts(body: Body) -> Body:
    """Return the body without the outermost conversions to float types that change no number."""
    while isinstance(body, Call) and is_float(target := cast_target(body.fn) or ""):
        (inner,) = body.args
        if not is_exact_conversion(literal_dtype(inner), target):
            break
        body = inner
    return body


def _table_kind(table: Table) -> str:
    return "int" if all(isinstance(value, int) for value in table.values) else "real"


def _raise_untypable(fn: str, dtype: str) -> str:
    raise Untypable(f"{fn} of {dtype}")


def _unify_dtypes(a: str, b: str) -> str:
    """Return the common type of two operands: literals take that of the other.  Raises Untypable."""
    # equal types, or a literal b beside a type that may take it
    if a == b or b in ("int", "real") and a not in ("int", "bool"):
        if b == "real" and not a.startswith(("float", "bfloat", "real")):
            raise Untypable(f"a real constant beside {a}")
        return a
    if a in ("int", "real"):  # a literal first: exchanged; an "int" and a "real" are "real"
        return _unify_dtypes(b, a) if b not in ("int", "real") else "real"
    raise Untypable(f"{a} beside {b}")
