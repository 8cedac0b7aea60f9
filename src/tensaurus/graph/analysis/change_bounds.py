"""Bound how far small changes of constants change the outputs of a program.

    Add(Mul(x, w), 1) does not change where w = 2^-127 becomes 0 and |x| <= 2^24: the product changes by at
    most 2^-103, which the sum rounds away

Subnormal weights make a model slow.  Replacing them by 0 is right where the change does not reach the digits
of any output; `ChangeAnalysis` proves that.  Nodes that depend on constants alone are computed with the old
and with the new constants.  For all other nodes `expr/analysis/perturbation_bounds` bounds the change,
assuming that no value at run time is larger than a given reach.

Changes have two causes: constants that are replaced (`rules/prove/subnormal_constants`), and nodes whose
kernels flush subnormal numbers to 0 (`flush_to_zero`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, isfinite
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from tensaurus.expr.analysis.infinite_values import POLES, Infinities
from tensaurus.expr.analysis.interval_bounds import bounds
from tensaurus.expr.analysis.perturbation_bounds import Perturbation, Sensitive, bound_perturbation
from tensaurus.expr.evaluate.fields import Array, Reals
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Source
from tensaurus.expr.ir.walk import bodies
from tensaurus.graph.analysis.evaluate_node import evaluate_node
from tensaurus.graph.ir.node import CONSTANT, OPAQUE, Node
from tensaurus.graph.ir.program import Program
from tensaurus.graph.ir.subnormal import FLOATS, float_limits, is_float
from tensaurus.ops import Op, Untypable

# Bounds of constants of which one is kept for all elements: the programs of a search share most weights.
_COARSE_BOUNDS: WeakKeyDictionary[Node, Perturbation] = WeakKeyDictionary()
MAX_EXACT_ELEMENTS = 1 << 24  # of a larger constant only the bounds count, to save time and memory
CACHED_ELEMENTS = 1 << 16  # of a constant that are looked at together, few enough to stay in the cache
ROUNDED_AWAY = 2.0**-8  # a change below this part of half an ulp is lost when the result is rounded
MAX_OUTPUT_CHANGE = 2.0**-80  # largest absolute change of an output element, where rounding removes none
MAX_RELATIVE_CHANGE = 2.0**-60  # largest change, relative to an output when all inputs have maximal size
VAST_FACTOR = 2.0**30  # a product with such a factor probably exceeds the magnitude that is assumed (`reach`)
MAX_EXPONENT = 2  # a power with a larger exponent may make vast numbers of common ones
MAX_BOUNDED_ELEMENTS = 1 << 12  # intervals start from the bounds of constants up to this size, to save time


@dataclass
class ChangeRefused(Exception):
    """The changes that start at `origins`, constants or flushing nodes, may have a large effect."""

    reason: str
    origins: frozenset[Node]

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True)
class _NodeChange:
    """The bounds of a node's values and of their change, and the constants or nodes where it starts."""

    perturbation: Perturbation
    origins: frozenset[Node]


class ChangeAnalysis:
    """Bounds how far a program's outputs change where constants change, or kernels flush.

    reach   magnitude that no value exceeds at run time, as is assumed
    is_body whether the program is the body of another node, so that any change of an output is refused
    coarse  whether only the bounds of each constant are used, which takes less time
    """

    def __init__(self, program: Program, reach: float, is_body: bool = False, coarse: bool = False):
        self.program, self.reach, self.is_body, self.coarse = program, reach, is_body, coarse
        self._values: dict[Node, Array] = {}

    def bound(self, moved: Mapping[Node, Node], flushing: Collection[Node] = ()) -> float:
        """Return the largest change of an output element, 0 where rounding removes all changes.

        `moved` gives the constant that takes the place of each constant that is changed.
        The nodes in `flushing` read subnormal numbers as 0, and write 0 instead of them.

        Raises ChangeRefused where the change may be large, or cannot be bounded.
        """
        reached: dict[Node, _NodeChange] = {}
        pairs: dict[Node, tuple[Array, Array]] = {}  # values of constant nodes, before and after
        for node, other in moved.items():
            value, after = (n.attribute("data").array.astype(np.float64) for n in (node, other))
            pairs[node] = value, after
            reached[node] = _NodeChange(Perturbation.known(value, after), frozenset([node]))
        for node in self.program.nodes:
            read = self._values_read(node)
            origins = frozenset(o for arg in read if arg in reached for o in reached[arg].origins)
            if node in flushing:
                origins |= {node}
            if not origins or node in moved or len(node.types) > 1 and isinstance(node.op, Op):
                # unchanged; or known from `moved`; or of several outputs, which are bounded one by one
                continue
            try:
                if node.static:
                    found = self._changed_constant(node, pairs)
                else:
                    found = self._changed_node(node, reached, node in flushing)
            except Sensitive as error:
                raise ChangeRefused(f"{_operator_label(node)}: {error}", origins) from error
            if found.is_moved:
                reached[node] = _NodeChange(found, origins)
        return self._largest_output_change(reached)

    def _largest_output_change(self, reached: Mapping[Node, _NodeChange]) -> float:
        """Return the largest change of an output element.  Raises ChangeRefused where it is too large."""
        furthest = 0.0
        for name, node in self.program.outputs:
            if (found := reached.get(node)) is None:
                continue
            change, scale = found.perturbation.change, found.perturbation.scale
            distance = float(change.max())
            if self.is_body:
                raise ChangeRefused(f"{name} leaves its body, moved by up to {distance:.2g}", found.origins)
            if not distance <= MAX_OUTPUT_CHANGE:
                reason = f"the output {name} would be moved by up to {distance:.2g}"
                raise ChangeRefused(reason, found.origins)
            # a change must be tiny beside the magnitude that the element has for large inputs (`scale`; 0:
            # unknown), else the element may consist of nothing but changed constants
            if not (change <= MAX_RELATIVE_CHANGE * scale).all():
                reason = f"an element of the output {name} may consist of changed constants alone"
                raise ChangeRefused(reason, found.origins)
            furthest = max(furthest, distance)
        return furthest

    def _values_read(self, node: Node) -> list[Node]:
        """Return the arguments that a node is computed from: of an item those of its call."""
        return [arg for arg in node.owner[0].args if arg is not None]

    def _changed_constant(self, node: Node, pairs: dict[Node, tuple[Array, Array]]) -> Perturbation:
        """Return the change of a constant expression, computed with the old and the new constants."""
        read = self._values_read(node)
        before, after = (
            _evaluate(node, {x: pairs[x][side] if x in pairs else self._constant_value(x) for x in read})
            for side in (0, 1)
        )
        if before.dtype.kind != "f":  # no change of an integer or bool is small
            if not np.array_equal(before, after):
                raise Sensitive("it jumps")
            return Perturbation.within(-inf, inf, before.ndim)
        pairs[node] = before, after
        is_infinite = ~(np.isfinite(before) & np.isfinite(after))
        if not np.array_equal(before[is_infinite], after[is_infinite], equal_nan=True):
            raise Sensitive("it becomes infinite, or no number")
        return Perturbation.known(before, after)

    def _changed_node(self, node: Node, reached: Mapping[Node, _NodeChange], flushing: bool) -> Perturbation:
        """Return bounds of the change of a node that is computed at run time."""
        owner, index = node.owner
        if not owner.is_declared:
            raise Sensitive("nothing is known of what it computes")
        scope, args = owner.scopes()[index], owner.tensor_args()
        kinds = (*owner.arg_types(), node.tensor)
        types = [kind.dtype for kind in kinds if kind is not None and is_float(kind)]
        # half an ulp of x is more than |x| * eps / 4; of several types the one with the most digits counts
        unit = min(float(float_limits(dtype).eps) for dtype in types or ["float64"]) / 4 * ROUNDED_AWAY
        normals = (float(float_limits(dtype).smallest_normal) for dtype in types)
        flushed = max(normals, default=0.0) if flushing else 0.0
        # the bounds of what the expression reads, which a flushing kernel may read as 0
        sources: dict[Source, Perturbation] = {}
        for tensor, arg in args.items():
            read = reached[arg].perturbation if arg in reached else self._unchanged(arg)
            if flushing and is_float(arg.types[0]):  # an element above the subnormal numbers stays
                read = read.after_flushing(read.min_magnitude, flushed)
            sources[tensor] = read
        moved = {tensor for tensor, arg in args.items() if arg in reached}
        # values of vast nodes may well exceed `reach`, which is only assumed
        if any(arg in self._vast_nodes for arg in args.values()) and _multiplies(scope):
            raise Sensitive("it meets what may be vast")
        # a subnormal times an infinite element is infinite, but 0 times it is NaN
        infinities = self._infinity_analysis(owner, self._infinite_nodes)
        found = bound_perturbation(scope, sources, unit, flushed, moved, infinities)
        low, high = (np.clip(bound, -self.reach, self.reach) for bound in (found.low, found.high))
        return replace(found, low=low, high=high)

    def _unchanged(self, node: Node) -> Perturbation:
        """Return bounds of a node's values where its value does not change."""
        kind = node.tensor
        if node.static:
            if self.coarse and node in _COARSE_BOUNDS:
                return _COARSE_BOUNDS[node]
            try:
                if self.coarse and node.op is CONSTANT:
                    value = node.attribute("data").array  # not converted to float64, as it may be large
                else:
                    value = self._constant_value(node)
                found = _describe_constant(value, self.coarse)
                if self.coarse:
                    _COARSE_BOUNDS[node] = found
                return found
            except (Sensitive, TypeError, ValueError):  # text, or an expression that cannot be evaluated
                return Perturbation.within(-inf, inf, kind.rank)
        low, high = self._bounds.get(node, (-inf, inf))
        if is_float(kind):
            low, high = max(low, -self.reach), min(high, self.reach)
        return Perturbation.within(low, high, kind.rank)

    def _constant_value(self, node: Node) -> Array:
        """Return the elements of a constant expression that does not change."""
        if node not in self._values:
            if node.op is CONSTANT:
                array = node.attribute("data").array
                self._values[node] = array.astype(np.float64) if node.tensor.dtype in FLOATS else array
            else:
                values = {arg: self._constant_value(arg) for arg in self._values_read(node)}
                self._values[node] = _evaluate(node, values)
        return self._values[node]

    @cached_property
    def _infinite_nodes(self) -> frozenset[Node]:
        """Return the nodes that may compute an infinite element although all inputs are finite."""
        found: set[Node] = set()
        for node in self.program.nodes:
            if node.static or not is_float(node.types[0]) or self._is_bounded(node):
                continue
            owner, index = node.owner
            if not owner.is_declared:
                found.add(node)
                continue
            if self._infinity_analysis(owner, found).arise_in(owner.scopes()[index].body):
                found.add(node)
        return frozenset(found)

    def _infinity_analysis(self, node: Node, found: Set[Node]) -> Infinities:
        """Return the analysis of infinite elements of a declared node, given the other infinite nodes."""
        args: dict[Source, Node] = dict(node.tensor_args().items())
        given = {tensor: self._bounds.get(arg, (-inf, inf)) for tensor, arg in args.items()}
        return Infinities(given, lambda tensor: args[tensor] in found or self._holds_infinity(args[tensor]))

    def _is_bounded(self, node: Node) -> bool:
        return all(map(isfinite, self._bounds.get(node, (inf,))))

    def _holds_infinity(self, node: Node) -> bool:
        """Return whether a constant expression has an infinite element, or cannot be evaluated."""
        if not node.static or not is_float(node.types[0]):
            return False
        try:
            value = node.attribute("data").array if node.op is CONSTANT else self._constant_value(node)
            return bool(np.isinf(value).any())
        except (Sensitive, TypeError, ValueError):
            return True

    @cached_property
    def _vast_nodes(self) -> frozenset[Node]:
        """Return the nodes whose elements may be beyond every reach for common inputs.

        Such nodes are exponentials, inverses and products with huge numbers, and whatever reads them, except
        normalizations (a sum and a division) and nodes with known bounds.
        """
        found: set[Node] = set()
        for node in self.program.nodes:
            if node.static or not is_float(node.types[0]) or not isinstance(node.op, Op):
                continue
            if all(abs(bound) <= VAST_FACTOR for bound in self._bounds.get(node, (inf,))):
                continue
            inside = list(bodies(node.scopes()[0]))
            called = {body.fn for body in inside if isinstance(body, Call)}
            if "div" in called and any(isinstance(body, Reduce) for body in inside):
                continue  # a softmax, a normalization
            constants: dict[Source, _ConstantRange] = {
                tensor: self._constant_range(arg) for tensor, arg in node.tensor_args().items() if arg.static
            }
            if any(arg in found for arg in node.args) or any(_makes_vast(body, constants) for body in inside):
                found.add(node)
        return frozenset(found)

    def _constant_range(self, node: Node) -> _ConstantRange:
        """Return the range of a constant expression."""
        if not is_float(node.types[0]):  # integers make nothing vast: they count as 1
            return _ConstantRange(1.0, 1.0, 1.0)
        found = self._unchanged(node)
        least, largest = found.min_magnitude.min(initial=inf), found.max_magnitude.max(initial=0.0)
        return _ConstantRange(float(least), float(largest), float(found.low.min(initial=inf)))

    @cached_property
    def _bounds(self) -> Mapping[Node, tuple[float, float]]:
        """Return (least, largest) element of the declared nodes that interval arithmetic bounds."""
        found: dict[Node, tuple[float, float]] = {}
        for node in self.program.nodes:
            if not is_float(node.types[0]):
                continue
            if node.op is CONSTANT:
                values = node.attribute("data").array
                if 0 < values.size <= MAX_BOUNDED_ELEMENTS:
                    found[node] = float(values.min()), float(values.max())
            if node.static or not isinstance(node.op, Op):
                continue
            try:
                given: dict[Source, tuple[float, float]] = {
                    tensor: found.get(arg, (-inf, inf)) for tensor, arg in node.tensor_args().items()
                }
                found[node] = bounds(node.scopes()[0], given)
            except (Untypable, ArithmeticError):
                continue
        return found


class _ConstantRange(NamedTuple):
    """The least and the largest magnitude of a constant's elements, and its least element."""

    least_magnitude: float
    largest_magnitude: float
    least_element: float


def _makes_vast(body: Body, constants: Mapping[Source, _ConstantRange]) -> bool:
    """Return whether a scalar function that reads these constants may make vast numbers of common ones."""
    if not isinstance(body, Call):
        return False
    read = [constants.get(arg.source) if isinstance(arg, Read) else None for arg in body.args]
    if body.fn in ("mul", "add", "sub", "where"):
        return any(known is not None and known.largest_magnitude >= VAST_FACTOR for known in read)
    if body.fn == "div":  # a constant by a computed number may be vast, and anything by a constant near 0
        is_inverse = isinstance(body.args[0], Const) or read[0] is not None
        return is_inverse if read[1] is None else read[1].least_magnitude <= 1 / VAST_FACTOR
    if body.fn == "pow":  # harmless if all exponents are one number in (0, MAX_EXPONENT]
        exponent = read[1]
        return exponent is None or not (
            0 < exponent.least_element == exponent.largest_magnitude <= MAX_EXPONENT
        )
    return body.fn in POLES


def _multiplies(scope: Scope) -> bool:
    return any(isinstance(b, Call) and b.fn in ("mul", "div", "pow") for b in bodies(scope))


def _describe_constant(value: Array, coarse: bool) -> Perturbation:
    """Return the bounds of each element of an unchanged constant; a large one has one bound for all."""
    if value.size <= (1 if coarse else MAX_EXACT_ELEMENTS):
        return Perturbation.known(value)
    lows, highs, magnitudes = [], [], []
    flat = value.reshape(-1)
    for start in range(0, flat.size, CACHED_ELEMENTS):
        part = flat[start : start + CACHED_ELEMENTS].astype(np.float64)
        lows.append(part.min())
        highs.append(part.max())
        magnitudes.append(np.abs(part).min())
    found = Perturbation.within(float(np.min(lows)), float(np.max(highs)), value.ndim)
    least = np.full_like(found.low, np.min(magnitudes))
    return replace(found, scale=np.zeros_like(found.scale), least=least)


def _evaluate(node: Node, values: Mapping[Node, Array]) -> Array:
    try:
        return np.asarray(evaluate_node(node, values, Reals(strict=True)))
    except (Untypable, NotImplementedError, ArithmeticError, LookupError) as error:
        raise Sensitive("it cannot be computed ahead of time") from error


def _operator_label(node: Node) -> str:
    owner, _ = node.owner
    return str(owner.op if owner.op is not OPAQUE else owner.attribute("form").operator)
