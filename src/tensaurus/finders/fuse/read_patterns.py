"""Tells from an operator's expression how it reads its arguments, which decides what it is fused with.

    Add(x[4, 5], y[5])        a map: reads x pointwise (at the output's indices), each element of y many times
    Softmax(x[4, 5])          reduces rows of 5
    MatMul(x[4, 5], w[5, 3])  a contraction
    MaxPool(x)                reduces windows
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from tensaurus.expr.analysis.work_counts import flops
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Tensor
from tensaurus.expr.ir.walk import bodies, children, operands, reads, scopes
from tensaurus.expr.sizes.size import Axis, atoms, polynomial, product
from tensaurus.graph.ir.node import ITEM, Node
from tensaurus.ops import Op, TensorType
from tensaurus.ops.declare import Attributes
from tensaurus.runtimes.price.operation_counts import elements_of, number_of

__all__ = ["ReadPattern", "read_pattern", "value_arguments"]


@dataclass(frozen=True)
class ReadPattern:
    """How an operator, at numeric sizes, reads its arguments.

    work            scalar operations
    is_contraction  the operator adds up products of different inputs
    has_reductions  the operator reduces
    row_lengths     the elements of each reduction, if all go over whole dimensions; empty if one goes over
                    windows, or there is none
    pointwise_args  arguments of which each output element reads the element at its own indices
    once_read_args  arguments of which each output element reads at most one element
    steps           functions, choices and reductions in the expression
    """

    work: int
    is_contraction: bool
    has_reductions: bool
    row_lengths: frozenset[int]
    pointwise_args: frozenset[int]
    once_read_args: frozenset[int]
    steps: int

    @property
    def is_map(self) -> bool:
        """Whether each output element is computed from single elements: elementwise, broadcast, layout."""
        return not self.has_reductions

    @property
    def has_windows(self) -> bool:
        """Whether the operator reduces parts of dimensions, as pooling does."""
        return self.has_reductions and not self.is_contraction and not self.row_lengths


def value_arguments(node: Node) -> tuple[Node | None, ...]:
    """Returns the arguments that the value is computed from; for one of several outputs, the node's."""
    owner = node.args[0] if node.op is ITEM else node
    return () if owner is None else owner.args


def read_pattern(node: Node) -> ReadPattern | None:
    """Returns how the operator of a value reads; None if it has no expression, no elements or symbolic sizes.

    Kernels are compiled for numeric sizes, so that no operator of symbolic sizes is fused.
    """
    owner, output = (node.args[0], int(node.attribute("index"))) if node.op is ITEM else (node, 0)
    if owner is None or not isinstance(owner.op, Op) or len(node.types) != 1:
        return None
    kinds = tuple(arg and arg.types[0] for arg in owner.args)
    for kind in (node.types[0], *kinds):
        if kind is not None and not (isinstance(kind, TensorType) and kind.static and elements_of(kind)):
            return None
    return _pattern_of_operator(owner.op, kinds, owner.attrs, output)


@lru_cache(10_000)
def _pattern_of_operator(
    op: Op, kinds: tuple[TensorType | None, ...], attrs: Attributes, output: int
) -> ReadPattern:
    # reductions, and whether all of them go over whole dimensions (rows)
    scope = op.scopes(kinds, attrs)[output]
    computing = [body for body in bodies(scope) if not isinstance(body, Const | Read)]
    reductions = [body for body in computing if isinstance(body, Reduce)]
    over_rows = bool(reductions) and all(map(_reduces_whole_dimensions, reductions))
    lengths = (number_of(product(axis.extent for axis in body.axes)) for body in reductions)
    rows = frozenset(lengths if over_rows else ())
    # for each input how often it is read, and whether ever at other indices than the output's (moved)
    inputs = op.tensors(kinds)
    number_of_tensor = {tensor: number for number, tensor in enumerate(inputs) if tensor is not None}
    read_counts: Counter[Tensor] = Counter()
    moved: set[Tensor] = set()
    for stage in scopes(scope):
        output_indices = tuple(polynomial(axis) if axis.extent != 1 else 0 for axis in stage.axes)
        for read in reads(stage):
            if isinstance(read.source, Tensor):
                read_counts[read.source] += 1
                if stage is not scope or not _reads_at(output_indices, read, scope):
                    moved.add(read.source)
    if reductions:  # each output element reads many elements
        moved.update(read_counts)
    once = {number_of_tensor[x] for x, count in read_counts.items() if count == 1 and not reductions}
    pointwise = frozenset(number_of_tensor[x] for x in read_counts if x not in moved)
    return ReadPattern(
        work=number_of(flops(scope)),
        is_contraction=any(body.monoid == "sum" and _is_contraction(body.body) for body in reductions),
        has_reductions=bool(reductions),
        row_lengths=rows,
        pointwise_args=pointwise,
        once_read_args=pointwise | once,
        steps=len(computing),
    )


def _reads_at(indices: tuple[object, ...], read: Read, scope: Scope) -> bool:
    """Whether the tensor has the scope's shape and is read at these indices, or at the only ones."""
    if read.source.shape != scope.shape:
        return False
    return all(
        index == wanted or extent == 1
        for index, wanted, extent in zip(read.indices, indices, scope.shape, strict=True)
    )


def _reduces_whole_dimensions(reduce: Reduce) -> bool:
    """Whether each axis of the reduction runs along a whole dimension of each tensor that it moves."""
    bound = set(reduce.axes)
    for read in reads(reduce.body):
        for index, extent in zip(read.indices, read.source.shape, strict=True):
            moving = [atom for atom in atoms(index) if isinstance(atom, Axis) and atom in bound]
            if moving and (index != polynomial(moving[0]) or moving[0].extent != extent):
                return False
    return True


def _is_contraction(body: Body) -> bool:
    """Whether the body multiplies elements of different inputs."""
    for part in _bodies_outside_reductions(body):
        if isinstance(part, Call) and part.fn == "mul":
            factors = [frozenset(_tensors_read(factor)) for factor in operands(part)]
            if any(a - b and b - a for a in factors for b in factors):
                return True
    return False


def _bodies_outside_reductions(body: Body) -> Iterator[Body]:
    """Yields the body and its parts, except those inside other reductions."""
    yield body
    for child in children(body):
        if not isinstance(child, Reduce):
            yield from _bodies_outside_reductions(child)


def _tensors_read(body: Body) -> Iterator[Tensor]:
    return (read.source for read in reads(body, nested=True) if isinstance(read.source, Tensor))
