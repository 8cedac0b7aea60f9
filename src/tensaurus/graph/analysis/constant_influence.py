"""Where a program reads constants that are moved a little, and how far that moves what it computes.

Through what depends on constants alone it is computed; elsewhere `expr/analysis/perturbation_bounds` bounds
it, where no value that is computed at run time is larger than a stated reach.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, isfinite
from typing import Any, TypeAlias

import numpy as np

from tensaurus.expr.analysis.infinite_values import POLES, Infinities
from tensaurus.expr.analysis.interval_bounds import bounds
from tensaurus.expr.analysis.perturbation_bounds import Influence, Sensitive, bound_influence
from tensaurus.expr.evaluate.fields import Reals
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Source
from tensaurus.expr.ir.walk import bodies
from tensaurus.graph.analysis.constant_folding import evaluate_node
from tensaurus.graph.ir.node import CONSTANT, ITEM, Node
from tensaurus.graph.ir.program import Program
from tensaurus.graph.ir.subnormal import FLOATS, float_limits, is_float
from tensaurus.ops import Op, Untypable

__all__ = ["MAX_OUTPUT_CHANGE", "MAX_EXACT_ELEMENTS", "ChangeRefused", "ChangeBound"]

Array: TypeAlias = np.ndarray[Any, Any]

MAX_EXACT_ELEMENTS = 1 << 24  # elements of a constant that is looked at one by one
ROUNDED_AWAY = 2.0**-8  # of half an ulp: what is smaller is rounded away
MAX_OUTPUT_CHANGE = 2.0**-80  # that an output may be moved, where nothing rounds it away
MAX_RELATIVE_CHANGE = 2.0**-60  # of what an output is where all inputs are as large as they may be
VAST_FACTOR = 2.0**30  # factors from which on products are hardly within any reach
MAX_EXPONENT = 2  # the largest exponent of a power that is not vast
MAX_BOUNDED_ELEMENTS = 1 << 12  # elements of a constant whose bounds are looked for


@dataclass
class ChangeRefused(Exception):
    """What the moved constants of `origins` may make a large difference to."""

    reason: str
    origins: frozenset[Node]

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True)
class _ChangedNode:
    """A node that is moved, by these constants."""

    influence: Influence
    origins: frozenset[Node]


class ChangeBound:
    """How far constants that are moved move a program; callable with {constant: what it becomes}.

    reach   how large values at run time may be
    within  whether the outputs are read by another program, of which nothing is known
    coarse  whether of a constant only its bounds count, which takes less time
    """

    def __init__(self, program: Program, reach: float, within: bool = False, coarse: bool = False):
        self.program, self.reach, self.within, self.coarse = program, reach, within, coarse
        self._values: dict[Node, Array] = {}

    def __call__(self, moved: Mapping[Node, Node], flushing: Collection[Node] = ()) -> float:
        """The distance by which an output is moved at most, 0 where all of it is rounded away.

        Some nodes may be `flushing`: they take subnormal numbers for 0, and make 0 of them.

        Raises Refused where a value may be moved much, or nobody can tell.
        """
        reached: dict[Node, _ChangedNode] = {}
        pairs: dict[Node, tuple[Array, Array]] = {}  # values of static nodes, before and after
        for node, other in moved.items():
            value, after = (n.attribute("data").array.astype(np.float64) for n in (node, other))
            pairs[node] = value, after
            reached[node] = _ChangedNode(Influence.known(value, after), frozenset([node]))
        for node in self.program.nodes:
            read = self._read_by(node)
            origins = frozenset(o for arg in read if arg in reached for o in reached[arg].origins)
            if node in flushing:
                origins |= {node}
            if not origins or node in moved or len(node.types) > 1 and isinstance(node.op, Op):
                continue
            try:
                found = (
                    self._static(node, pairs)
                    if node.static
                    else self._computed(node, reached, node in flushing)
                )
            except Sensitive as error:
                raise ChangeRefused(f"{_operator_label(node)}: {error}", origins) from error
            if found.is_moved:
                reached[node] = _ChangedNode(found, origins)
        return self._outputs(reached)

    def _outputs(self, reached: Mapping[Node, _ChangedNode]) -> float:
        furthest = 0.0
        for name, node in self.program.outputs:
            if (found := reached.get(node)) is None:
                continue
            change, scale = found.influence.change, found.influence.scale
            distance = float(change.max())
            if self.within:
                raise ChangeRefused(f"{name} leaves its body, moved by up to {distance:.2g}", found.origins)
            if not distance <= MAX_OUTPUT_CHANGE:
                reason = f"the output {name} would be moved by up to {distance:.2g}"
                raise ChangeRefused(reason, found.origins)
            if not (change <= MAX_RELATIVE_CHANGE * scale).all():
                reason = f"an element of the output {name} may consist of them alone"
                raise ChangeRefused(reason, found.origins)
            furthest = max(furthest, distance)
        return furthest

    def _read_by(self, node: Node) -> list[Node]:
        owner = node.args[0] if node.op is ITEM else node
        return [] if owner is None else [arg for arg in owner.args if arg is not None]

    def _static(self, node: Node, pairs: dict[Node, tuple[Array, Array]]) -> Influence:
        """By computing it ahead of time, before and after."""
        read = self._read_by(node)
        before, after = (
            _evaluate(node, {arg: pairs[arg][side] if arg in pairs else self._value(arg) for arg in read})
            for side in (0, 1)
        )
        if before.dtype.kind != "f":
            if not np.array_equal(before, after):
                raise Sensitive("it jumps")
            return Influence.within(-inf, inf, before.ndim)
        pairs[node] = before, after
        endless = ~(np.isfinite(before) & np.isfinite(after))
        if not np.array_equal(before[endless], after[endless], equal_nan=True):
            raise Sensitive("it becomes infinite, or no number")
        return Influence.known(before, after)

    def _computed(self, node: Node, reached: Mapping[Node, _ChangedNode], flushing: bool) -> Influence:
        """By bounds of what its operator computes."""
        owner, place = (node.args[0], node.attribute("index")) if node.op is ITEM else (node, 0)
        assert owner is not None
        if not isinstance(owner.op, Op):
            raise Sensitive("nothing is known of what it computes")
        kinds = owner.arg_types()
        scope = owner.op.scopes(kinds, owner.attrs)[place]
        types = [kind.dtype for kind in (*kinds, node.tensor) if kind is not None and is_float(kind)]
        unit = min(float(float_limits(dtype).eps) for dtype in types or ["float64"]) / 4 * ROUNDED_AWAY
        normals = (float(float_limits(dtype).smallest_normal) for dtype in types)
        flushed = max(normals, default=0.0) if flushing else 0.0
        sources: dict[Source, Influence] = {}
        for tensor, arg in zip(owner.op.tensors(kinds), owner.args, strict=False):
            if tensor is not None and arg is not None:
                read = reached[arg].influence if arg in reached else self._still(arg)
                if flushing and is_float(arg.types[0]):
                    read = read.or_zero(read.floor, flushed)
                sources[tensor] = read
        pairs = list(zip(owner.op.tensors(kinds), owner.args, strict=False))
        moved = {tensor for tensor, arg in pairs if tensor and arg in reached}
        if any(arg in self._vast for _, arg in pairs) and _multiplies(scope):
            raise Sensitive("it meets what may be vast")
        found = bound_influence(scope, sources, unit, flushed, moved, self._infinities(owner, self._infinite))
        low, high = (np.clip(bound, -self.reach, self.reach) for bound in (found.low, found.high))
        return replace(found, low=low, high=high)

    def _still(self, node: Node) -> Influence:
        """Of a node that nothing moves."""
        kind = node.tensor
        if node.static:
            try:
                return _describe_constant(self._value(node), self.coarse)
            except (Sensitive, TypeError, ValueError):  # text, or what nobody computes ahead of time
                return Influence.within(-inf, inf, kind.rank)
        low, high = self._bounds.get(node, (-inf, inf))
        if is_float(kind):
            low, high = max(low, -self.reach), min(high, self.reach)
        return Influence.within(low, high, kind.rank)

    def _value(self, node: Node) -> Array:
        """Of a node that nothing moves, and that constants alone decide."""
        if node not in self._values:
            if node.op is CONSTANT:
                array = node.attribute("data").array
                self._values[node] = array.astype(np.float64) if node.tensor.dtype in FLOATS else array
            else:
                self._values[node] = _evaluate(node, {arg: self._value(arg) for arg in self._read_by(node)})
        return self._values[node]

    @cached_property
    def _infinite(self) -> frozenset[Node]:
        """The nodes whose elements may be infinite, where others' are numbers."""
        found: set[Node] = set()
        for node in self.program.nodes:
            if node.static or not is_float(node.types[0]) or self._is_bounded(node):
                continue
            owner, place = (node.args[0], node.attribute("index")) if node.op is ITEM else (node, 0)
            if owner is None or not isinstance(owner.op, Op):
                found.add(node)
                continue
            scope = owner.op.scopes(owner.arg_types(), owner.attrs)[place]
            if self._infinities(owner, found).arise_in(scope.body):
                found.add(node)
        return frozenset(found)

    def _infinities(self, node: Node, found: Set[Node]) -> Infinities:
        """Where a declared node computes what may be infinite, given the other nodes that do."""
        assert isinstance(node.op, Op)
        pairs = zip(node.op.tensors(node.arg_types()), node.args, strict=False)
        args: dict[Source, Node] = {tensor: arg for tensor, arg in pairs if tensor and arg}
        given = {tensor: self._bounds.get(arg, (-inf, inf)) for tensor, arg in args.items()}
        return Infinities(given, lambda tensor: args[tensor] in found or self._holds_infinity(args[tensor]))

    def _is_bounded(self, node: Node) -> bool:
        return all(map(isfinite, self._bounds.get(node, (inf,))))

    def _holds_infinity(self, node: Node) -> bool:
        """Whether constants alone decide that an element is infinite, or nobody can tell."""
        if not node.static or not is_float(node.types[0]):
            return False
        try:
            value = node.attribute("data").array if node.op is CONSTANT else self._value(node)
            return bool(np.isinf(value).any())
        except (Sensitive, TypeError, ValueError):
            return True

    @cached_property
    def _vast(self) -> frozenset[Node]:
        """The nodes whose elements may be beyond every reach for common inputs: exponentials, inverses, what
        is scaled by huge numbers; not what is normalized, or bounded."""
        found: set[Node] = set()
        for node in self.program.nodes:
            if node.static or not is_float(node.types[0]) or not isinstance(node.op, Op):
                continue
            if all(abs(bound) <= VAST_FACTOR for bound in self._bounds.get(node, (inf,))):
                continue
            kinds = node.arg_types()
            pairs = zip(node.op.tensors(kinds), node.args, strict=False)
            static: dict[Source, Node] = {t: arg for t, arg in pairs if t and arg and arg.static}
            inside = list(bodies(node.op.scopes(kinds, node.attrs)[0]))
            called = {body.fn for body in inside if isinstance(body, Call)}
            if "div" in called and any(isinstance(body, Reduce) for body in inside):
                continue  # a softmax, a normalization
            sizes = {tensor: self._sizes(arg) for tensor, arg in static.items()}
            if any(arg in found for arg in node.args) or any(_makes_vast(body, sizes) for body in inside):
                found.add(node)
        return frozenset(found)

    def _sizes(self, node: Node) -> tuple[float, float, float]:
        """The least and the largest magnitude in what constants alone decide, and its least element."""
        if not is_float(node.types[0]):
            return 1.0, 1.0, 1.0
        found = self._still(node)
        ends = found.floor.min(initial=inf), found.size.max(initial=0.0), found.low.min(initial=inf)
        return float(ends[0]), float(ends[1]), float(ends[2])

    @cached_property
    def _bounds(self) -> Mapping[Node, tuple[float, float]]:
        """Of the elements of every declared node, as far as intervals tell."""
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
                kinds = node.arg_types()
                given: dict[Source, tuple[float, float]] = {
                    tensor: found.get(arg, (-inf, inf))
                    for tensor, arg in zip(node.op.tensors(kinds), node.args, strict=False)
                    if tensor is not None and arg is not None
                }
                found[node] = bounds(node.op.scopes(kinds, node.attrs)[0], given)
            except (Untypable, ArithmeticError):
                continue
        return found


def _makes_vast(body: Body, sizes: Mapping[Source, tuple[float, float, float]]) -> bool:
    """Whether it makes vast numbers of common ones, `sizes` being those of constants."""
    if not isinstance(body, Call):
        return False
    read = [sizes.get(arg.source) if isinstance(arg, Read) else None for arg in body.args]
    if body.fn in ("mul", "add", "sub", "where"):
        return any(known is not None and known[1] >= VAST_FACTOR for known in read)
    if body.fn == "div":
        inverse = isinstance(body.args[0], Const) or read[0] is not None
        return inverse if read[1] is None else read[1][0] <= 1 / VAST_FACTOR
    if body.fn == "pow":
        return read[1] is None or not 0 < read[1][2] == read[1][1] <= MAX_EXPONENT
    return body.fn in POLES


def _multiplies(scope: Scope) -> bool:
    return any(isinstance(b, Call) and b.fn in ("mul", "div", "pow") for b in bodies(scope))


def _describe_constant(value: Array, coarse: bool) -> Influence:
    """Of known numbers; of very many only the bounds."""
    if value.size <= (1 if coarse else MAX_EXACT_ELEMENTS):
        return Influence.known(value)
    found = Influence.within(float(value.min()), float(value.max()), value.ndim)
    least = np.full_like(found.low, np.abs(value).min())
    return replace(found, scale=np.zeros_like(found.scale), least=least)


def _evaluate(node: Node, values: Mapping[Node, Array]) -> Array:
    try:
        return np.asarray(evaluate_node(node, values, Reals(strict=True)))
    except (Untypable, NotImplementedError, ArithmeticError, LookupError) as error:
        raise Sensitive("it cannot be computed ahead of time") from error


def _operator_label(node: Node) -> str:
    owner = node.args[0] if node.op is ITEM else node
    assert owner is not None
    form = dict(owner.attrs).get("form")
    return str(form.operator) if form is not None else str(owner.op)
