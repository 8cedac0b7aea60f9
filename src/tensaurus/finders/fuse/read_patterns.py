"""How an operator reads its arguments, by its expression: what may be fused with it follows from that."""

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

__all__ = ["Access", "access", "arguments"]


@dataclass(frozen=True)
class Access:
    """Of an operator at numbers.

    work       scalar operations
    product    whether it adds up products of different inputs: a contraction
    reduces    whether anything is reduced
    rows       elements that each reduction takes in, where all go over whole dimensions; empty where one
               goes over windows, or there is none
    pointwise  arguments of which each element of the output reads the one at its own place
    once       arguments of which each element of the output reads one at most
    steps      functions, choices and reductions that the expression is written with
    """

    work: int
    product: bool
    reduces: bool
    rows: frozenset[int]
    pointwise: frozenset[int]
    once: frozenset[int]
    steps: int

    @property
    def maps(self) -> bool:
        """Whether each element is computed of single elements: elementwise, broadcast, layout."""
        return not self.reduces

    @property
    def windows(self) -> bool:
        """Whether it reduces parts of dimensions, as pooling does."""
        return self.reduces and not self.product and not self.rows


def arguments(node: Node) -> tuple[Node | None, ...]:
    """What the value is computed of: an output of a call with several, of the call's arguments."""
    owner = node.args[0] if node.op is ITEM else node
    return () if owner is None else owner.args


def access(node: Node) -> Access | None:
    """Of a tensor that an operator computes; None of what has no expression, no elements or unknown sizes.

    A kernel is compiled for numbers: of symbolic sizes nothing is fused.
    """
    owner, place = (node.args[0], int(node.attribute("index"))) if node.op is ITEM else (node, 0)
    if owner is None or not isinstance(owner.op, Op) or len(node.types) != 1:
        return None
    kinds = tuple(arg and arg.types[0] for arg in owner.args)
    for kind in (node.types[0], *kinds):
        if kind is not None and not (isinstance(kind, TensorType) and kind.static and elements_of(kind)):
            return None
    return _access(owner.op, kinds, owner.attrs, place)


@lru_cache(10_000)
def _access(op: Op, kinds: tuple[TensorType | None, ...], attrs: Attributes, place: int) -> Access:
    scope = op.scopes(kinds, attrs)[place]
    computing = [body for body in bodies(scope) if not isinstance(body, Const | Read)]
    reductions = [body for body in computing if isinstance(body, Reduce)]
    whole = bool(reductions) and all(map(_over_rows, reductions))
    lengths = (number_of(product(axis.extent for axis in body.axes)) for body in reductions)
    rows = frozenset(lengths if whole else ())
    places = {tensor: number for number, tensor in enumerate(op.tensors(kinds)) if tensor is not None}
    found: Counter[Tensor] = Counter()
    moved: set[Tensor] = set()
    for stage in scopes(scope):
        own = tuple(polynomial(axis) if axis.extent != 1 else 0 for axis in stage.axes)
        for read in reads(stage):
            if isinstance(read.source, Tensor):
                found[read.source] += 1
                if stage is not scope or not _at_own_place(read, own, scope):
                    moved.add(read.source)
    if reductions:
        moved.update(found)
    once = {places[x] for x, count in found.items() if count == 1 and not reductions}
    pointwise = frozenset(places[x] for x in found if x not in moved)
    products = any(body.monoid == "sum" and _product(body.body) for body in reductions)
    work = number_of(flops(scope))
    return Access(work, products, bool(reductions), rows, pointwise, pointwise | once, len(computing))


def _at_own_place(read: Read, own: tuple[object, ...], scope: Scope) -> bool:
    if read.source.shape != scope.shape:
        return False
    return all(
        index == place or extent == 1
        for index, place, extent in zip(read.indices, own, scope.shape, strict=True)
    )


def _over_rows(reduce: Reduce) -> bool:
    """Whether its axes run along whole dimensions of what is read, one each."""
    bound = set(reduce.axes)
    for read in reads(reduce.body):
        for index, extent in zip(read.indices, read.source.shape, strict=True):
            met = [atom for atom in atoms(index) if isinstance(atom, Axis) and atom in bound]
            if met and (index != polynomial(met[0]) or met[0].extent != extent):
                return False
    return True


def _product(body: Body) -> bool:
    """Whether it multiplies what is read of different inputs."""
    for part in _within(body):
        if isinstance(part, Call) and part.fn == "mul":
            factors = [frozenset(_tensors(factor)) for factor in operands(part)]
            if any(a - b and b - a for a in factors for b in factors):
                return True
    return False


def _within(body: Body) -> Iterator[Body]:
    """The body and those inside it, but for what other reductions take in."""
    yield body
    for child in children(body):
        if not isinstance(child, Reduce):
            yield from _within(child)


def _tensors(body: Body) -> Iterator[Tensor]:
    return (read.source for read in reads(body, nested=True) if isinstance(read.source, Tensor))
