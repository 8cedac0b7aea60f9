"""Find out whether an expression may be infinite, given which of its tensors may be.

    neg(x), max(x, 0)            may be infinite where x may be
    min(1, max(x, 0)), tanh(x)   never is
    1 / x                        always may be

Where several terms are added up, an infinite tensor counts only if all terms have one sign: infinite terms of
both signs make the sum NaN anyway, whatever they are multiplied by.  `perturbation_bounds` asks this where a
number may become 0, since 0 times infinity is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, isfinite, isinf

from tensaurus.expr.analysis.interval_bounds import Bounds, bounds_of
from tensaurus.expr.ir.scalar_functions import FUNCTIONS, cast_target
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Select, Source, Tensor
from tensaurus.expr.ir.walk import bodies

__all__ = ["POLES", "Infinities"]

POLES = frozenset({"exp", "log", "pow", "sinh", "cosh", "tan", "atanh"})  # infinite for some finite numbers
NEUTRAL = {"max": Const(-inf), "min": Const(inf)}  # beyond an edge these do not change the result
LARGEST_FLOAT16 = 65504.0  # a conversion to float16 makes larger numbers infinite


class Infinities:
    """Says which bodies of one operator may be infinite: `arise_in(body)`.

    tensor_bounds    bounds of the elements of the operator's tensors, for all inputs of the program
    may_be_infinite  whether a tensor may hold infinities while the program's inputs are finite
    """

    def __init__(self, tensor_bounds: Mapping[Source, Bounds], may_be_infinite: Callable[[Tensor], bool]):
        self.tensor_bounds, self.may_be_infinite = tensor_bounds, may_be_infinite
        self._known: dict[tuple[int, bool], bool] = {}  # answers of `arise_in`

    def arise_in(self, body: Body, reads_finite: bool = False) -> bool:
        """Return whether the body may be infinite; with `reads_finite`, where the tensors read are finite."""
        key = id(body), reads_finite
        if key not in self._known:
            self._known[key] = self._may(body, reads_finite) and not all(
                map(isfinite, bounds_of(body, self.tensor_bounds))
            )
        return self._known[key]

    def vanish_in(self, body: Body) -> bool:
        """Return whether the body may be 0 because a part of it is infinite, such as x in 1 / x."""
        low, high = bounds_of(body, self.tensor_bounds)
        return low <= 0 <= high and any(self.arise_in(part) for part in bodies(body) if part is not body)

    def _may(self, body: Body, reads_finite: bool) -> bool:
        match body:
            case Const(value):
                return isinstance(value, float) and isinf(value)
            case Read(source, _, outside):
                may_be_outside = outside is not None and self.arise_in(outside, reads_finite)
                if isinstance(source, Scope):
                    return may_be_outside or self.arise_in(source.body, reads_finite)
                if may_be_outside or reads_finite or not isinstance(source, Tensor):
                    return may_be_outside
                return self.may_be_infinite(source)
            case Select(_, then, other):
                return self.arise_in(then, reads_finite) or self.arise_in(other, reads_finite)
            case Reduce("sum", axes, inner) if any(axis.extent != 1 for axis in axes):
                if self.arise_in(inner, reads_finite=True):  # a term is infinite by itself, such as exp(x)
                    return True
                # else only infinities of the tensors are left: for these see the module's docstring
                is_bounded_on_one_side = bounds_of(inner, self.tensor_bounds) != (-inf, inf)
                return not reads_finite and is_bounded_on_one_side and self.arise_in(inner)
            case Reduce(monoid, _, inner):
                # a max or a product, or a sum of one term; -inf beyond an edge does not change a max
                return self._may(_without_edge(inner, NEUTRAL.get(monoid)), reads_finite)
            case Call(fn, args):
                if fn in FUNCTIONS and FUNCTIONS[fn].result == "bool":
                    return False
                if (
                    cast_target(fn) == "float16"
                    and max(map(abs, bounds_of(args[0], self.tensor_bounds))) > LARGEST_FLOAT16
                ):
                    return True
                values = args[fn == "where" :]  # without the condition
                return _has_pole(body) or any(self.arise_in(arg, reads_finite) for arg in values)
        return False


def _has_pole(body: Body) -> bool:
    """Return whether the body may be infinite where its operands are finite."""
    if not isinstance(body, Call):
        return False
    return body.fn in POLES or body.fn == "div" and not isinstance(body.args[1], Const)


def _without_edge(body: Body, neutral: Const | None) -> Body:
    """Return a reduction's operand without its edge, where the value beyond it is neutral."""
    match body:
        case Read(source, indices, outside) if neutral is not None and outside == neutral:
            return Read(source, indices)
        case Select(_, then, other) if neutral is not None and other == neutral:
            return then
    return body
