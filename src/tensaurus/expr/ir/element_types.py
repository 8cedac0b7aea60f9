"""The element type of an expression, from the types of the tensors it reads."""

from __future__ import annotations

from tensaurus.expr.ir.float_conversions import is_float, keeps_numbers, rounds
from tensaurus.expr.ir.identity_cache import ByIdentity
from tensaurus.expr.ir.scalar_functions import FUNCTIONS, cast_target
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Select, Source, Table, Tensor
from tensaurus.expr.ir.walk import innermost_first
from tensaurus.expr.sizes.size import Poly

_DEFAULTS = {"int": "int64", "real": "float32"}


class Untypable(ValueError):
    """These inputs and attributes have no meaning for this operator."""


_known: ByIdentity[str] = ByIdentity()  # scopes are shared, and a tree of them may be exponential


def dtype_of(source: Source) -> str:
    """The dtype, e.g. "float32".  Literals adapt to what they meet; alone they are bool, int64 or float32."""
    if isinstance(source, Tensor):
        return source.dtype
    if isinstance(source, Table):
        return _DEFAULTS[_literals(source)]
    if source not in _known:
        for scope in innermost_first(source, _known):
            found = literal_dtype(scope.body)
            _known[scope] = _DEFAULTS.get(found, found)
    return _known[source]


def literal_dtype(body: Body) -> str:
    """As `dtype_of`, with "int" and "real" for literals that adapt to what they meet."""
    match body:
        case Const(value):
            if isinstance(value, bool):
                return "bool"
            return "int" if isinstance(value, (int, Poly)) else "real"
        case Read(Table() as source, _, outside):
            inside = _literals(source)
            return inside if outside is None else _unified(inside, literal_dtype(outside))
        case Read(source, _, _):
            return dtype_of(source)
        case Select(_, then, other):
            return _unified(literal_dtype(then), literal_dtype(other))
        case Reduce(_, _, inner):
            return literal_dtype(inner)
        case Call(fn, args):
            target = cast_target(fn)
            if target is not None:
                return target
            function = FUNCTIONS[fn]
            if len(args) != function.arity:
                raise TypeError(f"{fn} takes {function.arity} arguments, not {len(args)}")
            kinds = [literal_dtype(a) for a in args]
            if fn == "where":
                return _unified(*kinds[1:])
            if function.result == "bool":
                if len(kinds) == 2:
                    _unified(*kinds)
                return "bool"
            merged = kinds[0] if len(kinds) == 1 else _unified(*kinds)
            if function.result == "float" and not merged.startswith(("float", "bfloat", "real")):
                return "real" if merged == "int" else _refuse(fn, merged)
            return "real" if fn == "div" and merged == "int" else merged
    raise TypeError(type(body))


def is_rounding(body: Body) -> bool:
    """Whether it is a conversion to floating-point numbers that may make another number of one."""
    if not isinstance(body, Call) or (target := cast_target(body.fn)) is None:
        return False
    return rounds(numbers_of(body.args[0]), target)


def numbers_of(body: Body) -> str:
    """The narrowest type known to have all its numbers: float16, where float16 was converted to float32."""
    match unconverted(body):
        case Read(Scope() as source, _, None):
            return numbers_of(source.body)
        case found:
            return literal_dtype(found)


def unconverted(body: Body) -> Body:
    """What is left of it without the conversions to floating-point numbers that keep every number."""
    while isinstance(body, Call) and is_float(target := cast_target(body.fn) or ""):
        (inner,) = body.args
        if not keeps_numbers(literal_dtype(inner), target):
            break
        body = inner
    return body


def _literals(table: Table) -> str:
    return "int" if all(isinstance(value, int) for value in table.values) else "real"


def _refuse(fn: str, dtype: str) -> str:
    raise Untypable(f"{fn} of {dtype}")


def _unified(a: str, b: str) -> str:
    if a == b or b in ("int", "real") and a not in ("int", "bool"):
        if b == "real" and not a.startswith(("float", "bfloat", "real")):
            raise Untypable(f"a real constant beside {a}")
        return a
    if a in ("int", "real"):
        return _unified(b, a) if b not in ("int", "real") else "real"
    raise Untypable(f"{a} beside {b}")
