"""Write symbolic sizes as ONNX nodes that compute int64 vectors from the shapes of values.

Export (`graph.onnx`) needs such nodes where a rewrite makes a Reshape, say, to a size that only the run
knows.  Where n is dimension 0 of the value x:

    2*n + 1   ->   Add(Mul(2, Gather(Shape(x), 0)), 1)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tensaurus.expr.sizes.size import (
    Floor,
    Largest,
    Size,
    Symbol,
    is_nonnegative,
    polynomial,
    single_atom,
    terms_of,
)
from tensaurus.ops.schema import NotInOpset


class SizeWriter:
    """Writes sizes as nodes; a size that is needed again is not written again.

    opset     the version of ONNX's own operators
    where     returns (name, d) of a value whose dimension d has this size; None where there is none
    emit      takes a node or an initializer, in the order in which they must stand
    fresh     makes a name unique
    """

    def __init__(
        self,
        opset: int,
        where: Callable[[Size], tuple[str, int] | None],
        emit: Callable[[NodeProto | TensorProto], object],
        fresh: Callable[[str], str],
    ):
        self.opset, self.where, self.emit, self.fresh = opset, where, emit, fresh
        self.written: dict[Any, str] = {}  # by size, or by (kind, what): the name of its tensor

    def vector(self, sizes: Sequence[Size]) -> str:
        """Return the name of an int64 vector that holds these sizes.  Raises NotInOpset."""
        key = ("vector", tuple(map(polynomial, sizes)))
        if key not in self.written:
            parts = [self.size(size) for size in sizes]
            self.written[key] = self._node("Concat", *parts, axis=0) if len(parts) != 1 else parts[0]
        return self.written[key]

    def tensor(self, sizes: Any) -> str:
        """Return the name of an int64 tensor: a vector for a tuple, else of rank 0.  Raises NotInOpset."""
        if isinstance(sizes, tuple):
            return self.vector(sizes)
        key = ("scalar", polynomial(sizes))
        if key not in self.written:
            axes: dict[str, Any] = {"axes": [0]} if self.opset < 13 else {}
            self.written[key] = self._node("Squeeze", self.size(sizes), **axes)
        return self.written[key]

    def size(self, size: Size) -> str:
        """Return the name of an int64 vector whose one element is the size."""
        size = polynomial(size)
        if size not in self.written:
            self.written[size] = self._size(size)
        return self.written[size]

    def _size(self, size: Size) -> str:
        """Write a size: a constant, a dimension of a value, one atom, or a sum of products."""
        if isinstance(size, int):
            name = self.fresh("size")
            self.emit(numpy_helper.from_array(np.asarray([size], np.int64), name))
            return name
        dimension = self.where(size)
        if dimension is not None:
            value, d = dimension
            return self._node("Gather", self._shape(value), self.size(d), axis=0)
        if (only_atom := single_atom(size)) is not None:
            return self._atom(only_atom)
        total: str | None = None
        for factors, coefficient in terms_of(size):
            if coefficient != int(coefficient):
                raise NotInOpset(f"the size {size} cannot be computed")
            parts = [] if coefficient == 1 and factors else [self.size(int(coefficient))]
            parts += [self.size(polynomial(atom)) for atom in factors]
            product = parts[0]
            for part in parts[1:]:
                product = self._node("Mul", product, part)
            total = product if total is None else self._node("Add", total, product)
        assert total is not None
        return total

    def _shape(self, value: str) -> str:
        key = ("shape", value)
        if key not in self.written:
            self.written[key] = self._node("Shape", value)
        return self.written[key]

    def _atom(self, atom: Any) -> str:
        if isinstance(atom, Symbol):
            raise NotInOpset(f"no value has the size {atom}")
        if isinstance(atom, Floor):
            top, bottom = self.size(atom.top), self.size(atom.bottom)
            if not is_nonnegative(atom.top):  # ONNX truncates: subtract the remainder first
                top = self._node("Sub", top, self._node("Mod", top, bottom, since=10))
            return self._node("Div", top, bottom)
        if isinstance(atom, Largest):
            result, *rest = [self.size(a) for a in atom.args]
            for other in rest:
                if self.opset >= 12:
                    result = self._node("Max", result, other)
                else:
                    is_greater = self._node("Greater", result, other, since=9)
                    result = self._node("Where", is_greater, result, other)
            return result
        raise NotInOpset(f"the size {atom} cannot be computed")

    def _node(self, operator: str, *inputs: str, since: int = 7, **attributes: Any) -> str:
        """Emit a node and return the name of its one output; `since` is the least opset that allows it."""
        # these three compute int64 in every opset; arithmetic broadcasts only from opset 7 on
        if self.opset < since and operator not in ("Shape", "Gather", "Concat"):
            raise NotInOpset(f"opset {self.opset} cannot compute sizes with {operator}")
        name = self.fresh(f"size_{operator.lower()}")
        self.emit(helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name
