"""Traces elements of a program back through operators that only move elements.

    node = Pad(Slice(x)), leaf = x of 5 elements      position     0  1  2  3
                                                      element     -1  2  3  4     (-1: the constant 0)

For given positions in an output, the trace says which element of a leaf, or which constant, is there.
`fold_move_chains` turns these numbers into one index expression.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensaurus.expr.analysis.fit_index_map import Booleans, Integers
from tensaurus.expr.ir.scope import Body, Call, Const, Lookup, Read, Scope, Select, Source, Tensor
from tensaurus.expr.sizes.size import Atom, Size, evaluate
from tensaurus.graph.ir.node import CONSTANT, ITEM, Node
from tensaurus.ops import Op

__all__ = ["TracedElements", "trace_elements"]


@dataclass(frozen=True)
class TracedElements:
    """What is at each traced position: an element of the leaf, or a constant.

    numbers    the row-major number of the element; -1 where a constant is
    constants  the constant where `numbers` is -1
    """

    numbers: Integers
    constants: NDArray[np.float64]

    @cached_property
    def is_element(self) -> Booleans:
        """For each position whether an element of the leaf is there."""
        return np.asarray(self.numbers >= 0, np.bool_)


def trace_elements(node: Node, leaf: Node, places: Sequence[Integers]) -> TracedElements:
    """Return what the node has at these positions, given as one array of indices for each dimension.

    Raises ValueError where a value is computed, or a choice or an index depends on the leaf.
    """
    shape = np.broadcast_shapes(*(place.shape for place in places)) if places else ()
    numbers, constants = _Tracer(leaf).trace_node(node, [np.broadcast_to(place, shape) for place in places])
    return TracedElements(np.broadcast_to(numbers, shape), np.broadcast_to(constants, shape))


class _Traced(NamedTuple):
    """Numbers and constants as in `TracedElements`, not yet broadcast."""

    numbers: Any
    constants: Any


class _Positions(NamedTuple):
    """Where an expression is evaluated.

    values  the value of each axis in scope, as one array over the positions
    shape   of these arrays
    args    the node for which each tensor of the operator's expression stands
    """

    values: Mapping[Atom, Any]
    shape: tuple[int, ...]
    args: Mapping[Source, Node]

    def where(self, chosen: Booleans) -> _Positions:
        """Return the chosen positions alone."""
        values = {a: np.broadcast_to(value, self.shape)[chosen] for a, value in self.values.items()}
        return _Positions(values, (int(chosen.sum()),), self.args)


class _Tracer:
    """Evaluates nodes and expressions to element numbers of the leaf and constants."""

    def __init__(self, leaf: Node):
        self.leaf = leaf

    def trace_node(self, node: Node, places: Sequence[Integers]) -> _Traced:
        if node is self.leaf:
            shape = [n for n in node.tensor.shape if isinstance(n, int)]
            number = np.ravel_multi_index(tuple(places), shape) if shape else np.zeros((), np.int64)
            return _Traced(np.asarray(number, np.int64), np.zeros(np.shape(number)))
        if node.op is CONSTANT:
            found = np.asarray(node.attribute("data").array)[tuple(places)]
            return _Traced(np.full(np.shape(found), -1, np.int64), found.astype(np.float64))
        owner, output = (node.args[0], node.attribute("index")) if node.op is ITEM else (node, 0)
        if owner is None or not isinstance(owner.op, Op):
            raise ValueError(f"{node} has no expression")
        kinds = owner.arg_types()
        args: dict[Source, Node] = {
            x: arg
            for x, arg in zip(owner.op.tensors(kinds), owner.args, strict=False)
            if x is not None and arg is not None
        }
        return self._trace_scope(owner.op.scopes(kinds, owner.attrs)[output], places, args)

    def _trace_scope(self, scope: Scope, places: Sequence[Integers], args: Mapping[Source, Node]) -> _Traced:
        values: dict[Atom, Any] = dict(zip(scope.axes, places, strict=True))
        return self._trace_body(scope.body, _Positions(values, places[0].shape if places else (), args))

    def _trace_body(self, body: Body, at: _Positions) -> _Traced:
        match body:
            case Const(value) if isinstance(value, int | float | bool):
                return _Traced(np.full(at.shape, -1, np.int64), np.full(at.shape, float(value)))
            case Read():
                return self._trace_read(body, at)
            case Select(guard, then, other):
                holds = np.ones(at.shape, bool)
                for size in guard:
                    holds = holds & (self._evaluate(size, at) >= 0)
                return self._trace_choice(holds, then, other, at)
            case Call("where", (condition, then, other)):
                numbers, constants = self._trace_body(condition, at)
                if (numbers >= 0).any():
                    raise ValueError("a choice that depends on the leaf")
                return self._trace_choice(constants != 0, then, other, at)
        raise ValueError(f"{type(body).__name__} computes")

    def _trace_choice(self, holds: Booleans, then: Body, other: Body, at: _Positions) -> _Traced:
        numbers, constants = np.empty(holds.shape, np.int64), np.empty(holds.shape)
        for branch, chosen in ((then, holds), (other, ~holds)):
            if chosen.any():
                numbers[chosen], constants[chosen] = self._trace_body(branch, at.where(chosen))
        return _Traced(numbers, constants)

    def _trace_read(self, read: Read, at: _Positions) -> _Traced:
        source = read.source
        places = [self._evaluate(index, at) for index in read.indices]
        inside = np.ones(at.shape, bool)
        for place, extent in zip(places, source.shape, strict=True):
            if not isinstance(extent, int):
                raise ValueError(f"the size {extent} is not known")
            inside = inside & (place >= 0) & (place < extent)
        numbers, constants = np.full(at.shape, -1, np.int64), np.zeros(at.shape)
        if not inside.all():
            if read.outside is None or not isinstance(read.outside.value, int | float):
                raise ValueError("a read beyond an edge")
            constants[~inside] = float(read.outside.value)
        if inside.any():
            inner_places = [place[inside] for place in places]
            if isinstance(source, Scope):
                values = self._trace_scope(source, inner_places, at.args)
            elif isinstance(source, Tensor) and source in at.args:
                values = self.trace_node(at.args[source], inner_places)
            else:
                raise ValueError("a literal table")
            numbers[inside], constants[inside] = values
        return _Traced(numbers, constants)

    def _evaluate(self, size: Size, at: _Positions) -> Integers:
        """Return the size's value at each position."""

        def look_up(atom: Atom) -> Any:
            if not isinstance(atom, Lookup):
                return at.values[atom]
            numbers, constants = self._trace_read(atom.read, at)
            if (numbers >= 0).any():
                raise ValueError("an index that depends on the leaf")
            return constants.astype(np.int64)

        try:
            return np.broadcast_to(np.asarray(evaluate(size, look_up), np.int64), at.shape)
        except KeyError as error:
            raise ValueError(f"the index {size}") from error
