"""Evaluate the expressions of a rule's attributes and conditions: arithmetic of sizes, tuples and numbers.

A value is an integer, a size over symbols (of a model with open sizes, or of a proof), a number that a proof
does not know, a tuple or set of values, or a name.  Symbols may leave a comparison open: neither true nor
false.  An expression that depends on an open comparison is Undefined.  During a proof the answer is no
instead, and the question is recorded (`open_questions`): the proof then tries both answers.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial, reduce
from typing import Any, TypeAlias

from tensaurus.expr.ir.scope import Body
from tensaurus.expr.sizes.open_questions import ask, is_recording_questions
from tensaurus.expr.sizes.size import Arithmetic, is_nonnegative, is_same_size, largest, smallest

__all__ = ["FUNCTIONS", "Fact", "Undefined", "evaluate_expression", "holds"]


class Undefined(ValueError):
    """An expression has no value under this binding: the rule does not apply."""


def _has_unknown(*values: Any) -> bool:
    """Return whether one of the values is a size over symbols, or a number that a proof does not know."""
    return any(isinstance(value, (Arithmetic, Body)) for value in values)


def _multiply(a: Any, b: Any) -> Any:
    if isinstance(a, tuple) and _has_unknown(b) or isinstance(b, tuple) and _has_unknown(a):
        raise TypeError("a tuple repeated an unknown number of times")
    return a * b


def _check_divisor(b: Any) -> Any:
    """Return the divisor.  Raises TypeError for a size that may not be positive."""
    if isinstance(b, Arithmetic) and not is_nonnegative(b - 1):
        raise TypeError(f"a division by {b}, which may not be positive")
    return b


_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: _multiply,
    ast.FloorDiv: lambda a, b: a // _check_divisor(b),
    ast.Mod: lambda a, b: a % _check_divisor(b),
    ast.Div: lambda a, b: a / b if isinstance(a, Body) or isinstance(b, Body) else Fraction(a) / Fraction(b),
}

Thunk: TypeAlias = Callable[[], Any]


def _is_true(value: Any) -> bool:
    """Return the truth of a value; a number is true if not zero.  Raises Undefined where that is open."""
    return not _are_equal(value, 0) if _has_unknown(value) else bool(value)


def _all_hold(parts: Iterable[Thunk]) -> bool:
    """Return whether all conditions hold: False where one is false, even if conditions before it are open.

    So it is the negation of "one is false": `_any_holds` has this property for True.
    """
    return not _any_holds(partial(_is_false, part) for part in parts)


def _is_false(part: Thunk) -> bool:
    return not _is_true(part())


def _any_holds(parts: Iterable[Thunk]) -> bool:
    """Return whether a condition holds, even if conditions before it are open.

    Raises Undefined where none holds and one is open.
    """
    undefined: Undefined | None = None
    for part in parts:
        try:
            if _is_true(part()):
                return True
        except Undefined as error:
            undefined = undefined or error
    if undefined is not None:
        raise undefined
    return False


def _are_equal(a: Any, b: Any) -> bool:
    """Return whether both are equal, sizes for all values of their symbols.

    Raises Undefined where it depends on the symbols: "not equal for all" is not "unequal".  During a proof
    the answer is then no, and the question is recorded.
    """
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and _all_hold(partial(_are_equal, x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, frozenset) and isinstance(b, frozenset):
        return all(_all_hold(partial(_is_among, x, v) for x in u) for u, v in ((a, b), (b, a)))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and _all_hold(partial(_are_equal, a[key], b[key]) for key in a)
    if isinstance(a, Arithmetic) or isinstance(b, Arithmetic):
        if is_same_size(a, b):
            return True
        # in a proof `is_same_size` has just recorded the question
        if is_recording_questions() or is_nonnegative(a - b - 1) or is_nonnegative(b - a - 1):
            return False
        raise Undefined(f"whether {a} is {b}")
    if isinstance(a, Body) or isinstance(b, Body):
        return a is b or ask("eq", (a, b))
    return bool(a == b)


def _is_among(a: Any, values: Iterable[Any]) -> bool:
    return _any_holds(partial(_are_equal, a, value) for value in values)


def _is_less(a: Any, b: Any, strict: bool) -> bool:
    """Return whether a < b, or a <= b if not `strict`.  Raises Undefined where symbols leave it open."""
    if isinstance(a, Body) or isinstance(b, Body):
        return ask("lt" if strict else "le", (a, b))
    if isinstance(a, Arithmetic) or isinstance(b, Arithmetic):
        if is_nonnegative(b - a - strict):
            return True
        if is_recording_questions() or is_nonnegative(a - b - (not strict)):
            return False
        raise Undefined(f"{a} and {b} in order")
    if isinstance(a, frozenset) and _has_unknown(*a, *b):
        raise TypeError("an order of sets of unknown numbers")
    return bool(a < b if strict else a <= b)


_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: _are_equal,
    ast.NotEq: lambda a, b: not _are_equal(a, b),
    ast.Lt: lambda a, b: _is_less(a, b, True),
    ast.LtE: lambda a, b: _is_less(a, b, False),
    ast.Gt: lambda a, b: _is_less(b, a, True),
    ast.GtE: lambda a, b: _is_less(b, a, False),
    ast.In: _is_among,
    ast.NotIn: lambda a, b: not _is_among(a, b),
}


# errors by which Python refuses to evaluate an expression: it then has no value
_EVALUATION_ERRORS = (TypeError, IndexError, KeyError, ZeroDivisionError, AttributeError, ValueError)


def evaluate_expression(tree: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression.  Raises Undefined where it has none."""
    try:
        return _evaluate(tree, names)
    except _EVALUATION_ERRORS as error:
        raise Undefined(f"{ast.unparse(tree)}: {error}") from error


def holds(tree: ast.expr, names: Mapping[str, Any]) -> bool:
    """Return whether a condition holds.  Raises Undefined where it has no value, or an open one."""
    try:
        return _is_true(_evaluate(tree, names))
    except _EVALUATION_ERRORS as error:
        raise Undefined(f"{ast.unparse(tree)}: {error}") from error


def _evaluate(tree: ast.expr, names: Mapping[str, Any]) -> Any:
    match tree:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return names[name]
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return tuple(_evaluate(p, names) for p in parts)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_evaluate(inner, names)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return not _is_true(_evaluate(inner, names))
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_evaluate(left, names), _evaluate(right, names))
        case ast.BoolOp(op=ast.And(), values=parts):
            return _all_hold(partial(_evaluate, p, names) for p in parts)
        case ast.BoolOp(op=ast.Or(), values=parts):
            return _any_holds(partial(_evaluate, p, names) for p in parts)
        case ast.Compare(left=left, ops=ops, comparators=others):
            values = [_evaluate(left, names), *(_evaluate(o, names) for o in others)]
            pairs = zip(ops, values, values[1:], strict=False)
            return _all_hold(partial(_COMPARE[type(o)], a, b) for o, a, b in pairs)
        case ast.IfExp(test=test, body=then, orelse=other):
            return _evaluate(then if _is_true(_evaluate(test, names)) else other, names)
        case ast.Subscript(value=inner, slice=ast.Slice(lower=low, upper=high, step=None)):
            ends = [None if e is None else _evaluate(e, names) for e in (low, high)]
            return _evaluate(inner, names)[ends[0] : ends[1]]
        case ast.Subscript(value=inner, slice=index):
            return _evaluate(inner, names)[_evaluate(index, names)]
        case ast.Call(func=ast.Name(id=("all" | "any") as name), args=[ast.GeneratorExp() as loop]):
            return (_all_hold if name == "all" else _any_holds)(_element_thunks(loop, names))
        case ast.GeneratorExp() | ast.ListComp():
            return tuple(each() for each in _element_thunks(tree, names))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return FUNCTIONS[name](*(_evaluate(a, names) for a in args))
    raise TypeError(f"{type(tree).__name__} is no part of the language")


def _element_thunks(tree: ast.GeneratorExp | ast.ListComp, names: Mapping[str, Any]) -> Iterator[Thunk]:
    """Yield a function for each element in order, so that no unneeded element is computed."""
    (loop,) = tree.generators
    for value in _evaluate(loop.iter, names):
        inner = {**names, **_bind_targets(loop.target, value)}
        if _all_hold(partial(_evaluate, test, inner) for test in loop.ifs):
            yield partial(_evaluate, tree.elt, inner)


def _bind_targets(target: ast.expr, value: Any) -> dict[str, Any]:
    if isinstance(target, ast.Name):
        return {target.id: value}
    assert isinstance(target, ast.Tuple)
    return {k: v for t, x in zip(target.elts, value, strict=True) for k, v in _bind_targets(t, x).items()}


class Fact:
    """What conditions may ask of a tensor variable.

    Each kind of variable (an e-class, a node, one of a proof) has a subclass.
    """

    shape: tuple[Any, ...]
    dtype: str
    static: bool  # whether the tensor depends on constants alone

    @property
    def value(self) -> Fraction:
        """The value of a scalar constant.  Raises Undefined for anything else."""
        raise Undefined("not a scalar constant")

    @property
    def positive(self) -> bool:
        """Whether the tensor is a constant whose elements are all known to be above zero."""
        raise Undefined("not a constant")

    @property
    def filled(self) -> Fraction:
        """The number that all elements of a constant equal.  Raises Undefined where there is none."""
        raise Undefined("not a constant of one number")


def _multiply_all(values: Any) -> Any:
    return reduce(operator.mul, values, 1)


def _unique_values(values: Iterable[Any]) -> frozenset[Any]:
    found: list[Any] = []
    for value in values:
        if not _is_among(value, found):
            found.append(value)
    return frozenset(found)


def _index_of(values: Iterable[Any], wanted: Any) -> int:
    for place, value in enumerate(values):
        if _are_equal(value, wanted):
            return place
    raise ValueError(f"{wanted} is not in {values}")


def _extreme(choose: Callable[[Any, Any], Any], values: Sequence[Any]) -> Any:
    if any(isinstance(value, Body) for value in values):
        raise TypeError("an order of unknown numbers")
    if not values:
        raise ValueError("the largest or smallest of nothing")
    return reduce(choose, values)


def _channelwise(s: Fact, rank: int, channels: Any) -> bool:
    """Return whether `s` broadcasts as one element, or one for each channel (axis 1), to this rank."""
    places = enumerate(s.shape, -len(s.shape))
    return len(s.shape) <= rank and _all_hold(
        partial(_is_among, n, (1, channels) if place == 1 - rank else (1,)) for place, n in places
    )


def _broadcasts(s: Fact, y: Fact) -> bool:
    """Return whether `s` broadcasts to the shape of `y`."""
    pairs = zip(s.shape[::-1], y.shape[::-1], strict=False)
    return len(s.shape) <= len(y.shape) and _all_hold(partial(_is_among, n, (1, m)) for n, m in pairs)


# The functions of the rule language, by name.  x, s and y are tensor variables, as a `Fact` describes them.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "shape": lambda x: x.shape,
    "rank": lambda x: len(x.shape),
    "dim": lambda x, i: x.shape[i],
    "numel": lambda x: _multiply_all(x.shape),
    "const": lambda x: x.static,
    "dtype": lambda x: x.dtype,
    "value": lambda x: x.value,
    "positive": lambda x: x.positive,
    "filled": lambda x: x.filled,
    "len": len,
    "range": range,
    "tuple": tuple,
    "sorted": lambda xs: tuple(sorted(xs)),
    "set": _unique_values,
    "sum": lambda xs: reduce(operator.add, xs, 0),
    "prod": _multiply_all,
    "all": lambda xs: _all_hold(partial(_is_true, x) for x in xs),
    "any": lambda xs: _any_holds(partial(_is_true, x) for x in xs),
    "zip": lambda *xs: tuple(zip(*xs, strict=True)),
    "abs": abs,
    "max": lambda *xs: _extreme(largest, xs[0] if len(xs) == 1 else xs),
    "min": lambda *xs: _extreme(smallest, xs[0] if len(xs) == 1 else xs),
    "index": _index_of,
    "at_least": lambda a, b: _is_less(b, a, False),
    "ones": lambda n: (1,) * n,
    "enumerate": lambda xs: tuple(enumerate(xs)),
    "channelwise": _channelwise,
    "broadcasts": _broadcasts,
}
