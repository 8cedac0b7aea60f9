"""Traces elements of a program back through operators that only move elements.

For given positions in an output, the trace says which element of a leaf, or which constant, is there.
`fold_move_chains` turns these numbers into one index expression.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensaurus.expr.ir.scope import Body, Call, Const, Lookup, Read, Scope, Select, Source, Tensor
from tensaurus.expr.sizes.size import Atom, Size, evaluate
from tensaurus.graph.ir.node import CONSTANT, ITEM, Node
from tensaurus.ops import Op

__all__ = ["Booleans", "Integers", "TracedElements", "trace_elements"]

Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]


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
    numbers, constants = _Tracer(leaf).node(node, [np.broadcast_to(place, shape) for place in places])
    return TracedElements(np.broadcast_to(numbers, shape), np.broadcast_to(constants, shape))


Values = tuple[Any, Any]  # numbers and constants, as in `TracedElements`


class _Tracer:
    """Evaluates expressions at positions.

    at      the value of each axis in scope, as one array over the positions
    shape   of the arrays over the positions
    args    the node for which each tensor of an operator's expression stands
    """

    def __init__(self, leaf: Node):
        self.leaf = leaf

    def node(self, node: Node, places: Sequence[Integers]) -> Values:
        if node is self.leaf:
            shape = [n for n in node.tensor.shape if isinstance(n, int)]
            number = np.ravel_multi_index(tuple(places), shape) if shape else np.zeros((), np.int64)
            return np.asarray(number, np.int64), np.zeros(np.shape(number))
        if node.op is CONSTANT:
            found = np.asarray(node.attribute("data").array)[tuple(places)]
            return np.full(np.shape(found), -1, np.int64), found.astype(np.float64)
        owner, output = (node.args[0], node.attribute("index")) if node.op is ITEM else (node, 0)
        if owner is None or not isinstance(owner.op, Op):
            raise ValueError(f"{node} has no expression")
        kinds = owner.arg_types()
        args: dict[Source, Node] = {
            x: arg
            for x, arg in zip(owner.op.tensors(kinds), owner.args, strict=False)
            if x is not None and arg is not None
        }
        return self.scope(owner.op.scopes(kinds, owner.attrs)[output], places, args)

    def scope(self, scope: Scope, places: Sequence[Integers], args: Mapping[Source, Node]) -> Values:
        at: dict[Atom, Any] = dict(zip(scope.axes, places, strict=True))
        shape = places[0].shape if places else ()
        return self.body(scope.body, at, shape, args)

    def body(
        self, body: Body, at: Mapping[Atom, Any], shape: tuple[int, ...], args: Mapping[Source, Node]
    ) -> Values:
        match body:
            case Const(value) if isinstance(value, int | float | bool):
                return np.full(shape, -1, np.int64), np.full(shape, float(value))
            case Read():
                return self.read(body, at, shape, args)
            case Select(guard, then, other):
                holds = np.ones(shape, bool)
                for size in guard:
                    holds = holds & (self.value(size, at, shape, args) >= 0)
                return self.choose(holds, then, other, at, args)
            case Call("where", (condition, then, other)):
                numbers, constants = self.body(condition, at, shape, args)
                if (numbers >= 0).any():
                    raise ValueError("a choice that depends on the leaf")
                return self.choose(constants != 0, then, other, at, args)
        raise ValueError(f"{type(body).__name__} computes")

    def choose(
        self, holds: Any, then: Body, other: Body, at: Mapping[Atom, Any], args: Mapping[Source, Node]
    ) -> Values:
        numbers, constants = np.empty(holds.shape, np.int64), np.empty(holds.shape)
        for branch, chosen in ((then, holds), (other, ~holds)):
            if chosen.any():
                at_chosen = {a: np.broadcast_to(value, holds.shape)[chosen] for a, value in at.items()}
                values = self.body(branch, at_chosen, (int(chosen.sum()),), args)
                numbers[chosen], constants[chosen] = values
        return numbers, constants

    def value(
        self, size: Size, at: Mapping[Atom, Any], shape: tuple[int, ...], args: Mapping[Source, Node]
    ) -> Any:
        def look_up(atom: Atom) -> Any:
            if not isinstance(atom, Lookup):
                return at[atom]
            numbers, constants = self.read(atom.read, at, shape, args)
            if (numbers >= 0).any():
                raise ValueError("an index that depends on the leaf")
            return constants.astype(np.int64)

        try:
            return np.broadcast_to(np.asarray(evaluate(size, look_up), np.int64), shape)
        except KeyError as error:
            raise ValueError(f"the index {size}") from error

    def read(
        self, read: Read, at: Mapping[Atom, Any], shape: tuple[int, ...], args: Mapping[Source, Node]
    ) -> Values:
        source = read.source
        places = [self.value(index, at, shape, args) for index in read.indices]
        inside = np.ones(shape, bool)
        for place, extent in zip(places, source.shape, strict=True):
            if not isinstance(extent, int):
                raise ValueError(f"the size {extent} is not known")
            inside = inside & (place >= 0) & (place < extent)
        numbers, constants = np.full(shape, -1, np.int64), np.zeros(shape)
        if not inside.all():
            if read.outside is None or not isinstance(read.outside.value, int | float):
                raise ValueError("a read beyond an edge")
            constants[~inside] = float(read.outside.value)
        if inside.any():
            inner_places = [place[inside] for place in places]
            if isinstance(source, Scope):
                values = self.scope(source, inner_places, args)
            elif isinstance(source, Tensor) and source in args:
                values = self.node(args[source], inner_places)
            else:
                raise ValueError("a literal table")
            numbers[inside], constants[inside] = values
        return numbers, constants
