"""A scope as operators that ONNX has, whatever it computes: how an operator that ONNX lacks is exported.

    sum[r](x[i + r - 1 | 0] * w[r])   ->   MatMul(Gather(Pad(x), i + r), w)

Every body becomes a node whose dimensions are the axes in it: a read takes slices or a Gather, whatever its
index, a sum of products is a matrix product, and a choice a Concat where it cuts one axis, else a Where.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from math import ceil, prod
from typing import Any

import numpy as np
from numpy import ndindex

from tensaurus.expr.evaluate.fields import Reals
from tensaurus.expr.evaluate.interpret import Evaluation
from tensaurus.expr.ir.axis_binding import split_axes, unnested_atoms
from tensaurus.expr.ir.element_types import dtype_of, literal_dtype
from tensaurus.expr.ir.integer_types import is_integer
from tensaurus.expr.ir.scalar_functions import FUNCTIONS, MONOID_FUNCTIONS, cast_target
from tensaurus.expr.ir.scope import (
    Body,
    Call,
    Const,
    Lookup,
    Read,
    Reduce,
    Scope,
    Select,
    Source,
    Table,
    Tensor,
    axis,
    lift,
)
from tensaurus.expr.ir.walk import axes_in, bodies, free_axes, reads, replace_axes, sizes
from tensaurus.expr.sizes.affine import affine_coefficients
from tensaurus.expr.sizes.size import Axis, Floor, Largest, Size, atoms, interval, polynomial, terms_of
from tensaurus.graph.ir.node import Node, apply, constant
from tensaurus.graph.ir.tensor_data import numpy_dtype
from tensaurus.graph.lower.gather_reads import read_elements, require_small, tabulate_size
from tensaurus.graph.lower.labelled_nodes import (
    Labelled,
    apply_function,
    contract_factors,
    length,
    order_axes,
    reduce_axes,
    reshape_node,
)
from tensaurus.graph.lower.primitives import literal, rational_constant
from tensaurus.ops import Op, Untypable
from tensaurus.ops.parts import concat
from tensaurus.system.errors import TensaurusError

__all__ = ["lower_node", "lower_scope"]

NEUTRAL: Mapping[str, Any] = {"sum": 0, "prod": 1, "max": float("-inf"), "min": float("inf")}
MIN_UNROLLED_OUTPUTS = 1 << 12  # elements of a sum, from which on a node for each of its terms is worth it
MAX_UNROLLED_TERMS = 64  # such terms
UNROLLED_DTYPES = ("float32", "float64")  # what every runtime adds and compares element by element
TRAPPING_DIVISIONS = frozenset({"div", "mod", "fmod"})


def lower_node(node: Node) -> Node:
    """A declared node of one output by its expression.  Raises TensaurusError where that is not possible."""
    assert isinstance(node.op, Op)
    kinds = node.arg_types()
    given = {
        leaf: arg
        for leaf, arg in zip(node.op.tensors(kinds), node.args, strict=False)
        if leaf is not None and arg is not None
    }
    if len(node.types) != 1:
        raise TensaurusError(f"{node.op} has several outputs, each with its own expression")
    return lower_scope(node.op.scopes(kinds, node.attrs)[0], given)


def lower_scope(scope: Scope, given: Mapping[Tensor, Node]) -> Node:
    """The scope of these nodes, its tensors.  Raises TensaurusError for what no operator of ONNX computes."""
    try:
        return _Lowering(given).scope(scope)
    except Untypable as error:
        raise TensaurusError(str(error)) from error


class _Lowering:
    """One scope and those in it.

    places    of all axes, in the order in which they were met
    careless  of branches that a choice may throw away: nothing in them may fail
    """

    def __init__(self, given: Mapping[Tensor, Node]):
        self.given = given
        self.inner: dict[int, tuple[Scope, Node]] = {}
        self.places: dict[Axis, int] = {}
        self.careless = 0

    def meet(self, *axes: Axis) -> None:
        for a in axes:
            self.places.setdefault(a, len(self.places))

    def scope(self, scope: Scope) -> Node:
        shape, dtype = [length(a) for a in scope.axes], dtype_of(scope)
        if 0 in shape:
            return constant(np.zeros(shape, numpy_dtype(dtype)))
        flat = split_axes(scope)
        self.meet(*flat.axes)
        made = self.body(flat.body, dtype, flat.axes)
        return reshape_node(made.whole(flat.axes), shape)

    def source(self, source: Source, dtype: str) -> Node:
        if isinstance(source, Tensor):
            return self.given[source]
        if isinstance(source, Table):
            return rational_constant(source.values, source.shape, dtype)
        if id(source) not in self.inner:
            careless, self.careless = self.careless, 0
            self.inner[id(source)] = source, self.scope(source)
            self.careless = careless
        return self.inner[id(source)][1]

    def body(self, body: Body, dtype: str, order: tuple[Axis, ...] = ()) -> Labelled:
        """The body, its literals of this dtype where nothing else says; `order` is a wish."""
        kind = literal_dtype(body)
        dtype = dtype if kind in ("int", "real") else kind
        if kind == "int" and next(reads(body), None) is None:
            return self.numbers(body, dtype)
        match body:
            case Const(value):
                return Labelled(literal(value, dtype), ())
            case Read(source, indices, outside):
                beyond = None if outside is None else outside.value
                return read_elements(self.source(source, dtype), indices, beyond, self.places, self.computed)
            case Call(fn, args):
                return self.call(fn, args, dtype, order)
            case Select():
                return self.select(body, dtype, order)
            case Reduce(monoid, axes, inner):
                return self.reduce(monoid, axes, inner, dtype, order)
        raise TypeError(type(body))

    def numbers(self, body: Body, dtype: str) -> Labelled:
        """What is known ahead of time: integers over axes."""
        require_small(size for part in bodies(body) for size in sizes(part))
        found = Evaluation({}, Reals(), {}).body(body)
        axes = tuple(sorted(found.axes, key=self.places.__getitem__))
        data = np.asarray(found.align(axes))
        if not axes:
            return Labelled(literal(data.item(), dtype), ())
        near = data.astype(numpy_dtype(dtype))
        if not is_integer(dtype) and (near.astype(np.float64) != data.astype(np.float64)).any():
            return apply_function(f"to_{dtype}", Labelled(constant(data), axes))
        return Labelled(constant(near), axes)

    def call(self, fn: str, args: tuple[Body, ...], dtype: str, order: tuple[Axis, ...]) -> Labelled:
        kinds = [literal_dtype(a) for a in args]
        target = cast_target(fn)
        if target is not None:
            real = target if not is_integer(target) or kinds[0] == "int" else "float64"
            found = self.body(args[0], real, order)
            return found if found.dtype == target else apply_function(fn, found)
        wanted = kinds[1:] if fn == "where" else kinds
        met = [kind for kind in wanted if kind not in ("int", "real")]
        if not met and FUNCTIONS[fn].result == "bool":
            dtype = "float64" if "real" in wanted else "int64"
        dtype = met[0] if met else dtype
        found_args = [self.body(a, dtype, order) for a in args]
        if self.careless and fn in TRAPPING_DIVISIONS and is_integer(dtype):
            # runtimes divide integers by the processor's instruction, which a zero stops
            zero, one = (Labelled(literal(n, dtype), ()) for n in (0, 1))
            is_zero = apply_function("eq", found_args[1], zero)
            found_args[1] = apply_function("where", is_zero, one, found_args[1])
        return apply_function(fn, *found_args)

    # ------------------------------------------------------------------------------------ indices

    def computed(self, size: Size) -> Labelled | None:
        """An index that is read from a tensor."""
        if not any(isinstance(a, Lookup) for a in unnested_atoms(size)):
            return None
        return self.body(_as_body(size), "int64")

    # ------------------------------------------------------------------------------------ choices

    def select(self, select: Select, dtype: str, order: tuple[Axis, ...]) -> Labelled:
        guard = list(select.guard)
        while guard:
            size = guard.pop(0)
            rest = Select(tuple(guard), select.then, select.other)
            low, high = interval(size)
            if isinstance(low, int) and low >= 0:
                continue
            if isinstance(high, int) and high < 0:
                return self.body(select.other, dtype, order)
            cut = _guard_cut(size)
            if cut is not None:
                return self.joined(*cut, rest, select.other, dtype, order)
            if any(isinstance(a, Lookup) for a in atoms(size)):
                mask = self.body(Call("le", (Const(0), _as_body(size))), "bool")
            else:
                data, axes = tabulate_size(size, self.places)
                if (data >= 0).all():
                    continue
                if (data < 0).all():
                    return self.body(select.other, dtype, order)
                mask = Labelled(constant(np.ascontiguousarray(data >= 0)), axes)
            self.careless += 1
            chosen = [self.body(branch, dtype, order) for branch in (rest, select.other)]
            self.careless -= 1
            return apply_function("where", mask, *chosen)
        return self.body(select.then, dtype, order)

    def joined(
        self, a: Axis, cut: int, above: bool, then: Body, other: Body, dtype: str, order: tuple[Axis, ...]
    ) -> Labelled:
        """One branch before the cut of an axis, the other from it on."""
        extent = length(a)
        parts = [(0, cut, other if above else then), (cut, extent, then if above else other)]
        pieces, results = [], []
        for start, stop, body in parts:
            if start == stop:
                continue
            piece = axis(stop - start)
            self.meet(piece)
            at: dict[Any, Any] = {a: polynomial(piece) + start}
            places = tuple(piece if x == a else x for x in order)
            pieces.append(piece)
            results.append(self.body(replace_axes(body, at), dtype, places))
        own = {x for r in results for x in r.axes if x not in pieces}
        others = sorted(own, key=self.places.__getitem__)
        full = [*others, a]
        if a in order:
            full = sorted(full, key=lambda x: (order.index(x) if x in order else -1))
        place = full.index(a)
        nodes = []
        for result, piece in zip(results, pieces, strict=True):
            axes = [piece if x == a else x for x in full]
            nodes.append(order_axes(result, axes).whole(axes))
        whole = nodes[0] if len(nodes) == 1 else apply(concat, nodes, {"axis": place})
        return Labelled(whole, tuple(full))

    # --------------------------------------------------------------------------------- reductions

    def reduce(
        self, monoid: str, axes: tuple[Axis, ...], body: Body, dtype: str, order: tuple[Axis, ...]
    ) -> Labelled:
        if any(length(a) == 0 for a in axes):
            return Labelled(literal(NEUTRAL[monoid], dtype), ())
        self.meet(*axes)
        windows = _window_axes(body, axes)
        others = tuple(a for a in axes if a not in windows)
        kept = prod(length(a) for a in free_axes(body).difference(axes))
        alone = not others or len(set(reads(body))) == 1  # no matrix product
        is_long = kept >= MIN_UNROLLED_OUTPUTS and 1 < prod(map(length, windows)) <= MAX_UNROLLED_TERMS
        if alone and dtype in UNROLLED_DTYPES and is_long:
            inner = Reduce(monoid, others, body) if others else body
            return self.unrolled(monoid, windows, inner, dtype)
        if monoid != "sum":
            return reduce_axes(monoid, self.body(body, dtype, (*order, *axes)), axes)
        factors = [self.body(f, dtype, (*order, *axes)) for f in _factors(body)]
        return contract_factors(factors, axes, order)

    def unrolled(self, monoid: str, axes: tuple[Axis, ...], body: Body, dtype: str) -> Labelled:
        """One point of these axes after another: what windows share is not copied for each of them.

        The terms have the order in which they are read: only their sum is turned.
        """
        indices = [axes_in(index).intersection(self.places) for read in reads(body) for index in read.indices]
        order = tuple(dict.fromkeys(a for each in indices for a in sorted(each, key=self.places.__getitem__)))
        result: Labelled | None = None
        for spots in ndindex(*map(length, axes)):
            term = self.body(replace_axes(body, dict(zip(axes, spots, strict=True))), dtype, order)
            result = term if result is None else apply_function(MONOID_FUNCTIONS[monoid], result, term)
        assert result is not None
        return result


def _window_axes(body: Body, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Those of these axes along which a read meets its elements again at other places."""
    found = set[Axis]()
    for read in reads(body):
        for index, size in zip(read.indices, read.source.shape, strict=True):
            inside = set(axes_in(index))
            if isinstance(size, int) and inside.difference(axes) and prod(map(length, inside)) > size:
                found |= inside.intersection(axes)
    return tuple(a for a in axes if a in found)


def _factors(body: Body) -> Iterator[Body]:
    if isinstance(body, Call) and body.fn == "mul":
        for arg in body.args:
            yield from _factors(arg)
    else:
        yield body


def _guard_cut(size: Size) -> tuple[Axis, int, bool] | None:
    """(axis, place, whether above) where a guard holds on one side of a place of one axis."""
    inside = [a for a in unnested_atoms(size) if isinstance(a, Axis)]
    found = affine_coefficients(size, inside)
    if found is None or len(found[0]) != 1 or any(isinstance(a, Lookup) for a in atoms(size)):
        return None
    ((a, slope),) = found[0].items()
    rest = found[1]
    if not isinstance(slope, int) or not isinstance(rest, int):
        return None
    place = ceil(-rest / slope) if slope > 0 else rest // -slope + 1
    return a, min(max(place, 0), length(a)), slope > 0


def _as_body(size: Size) -> Body:
    """A size that reads a tensor, as an expression of int64."""
    if not any(isinstance(a, Lookup) for a in atoms(size)):
        return Const(size)
    total: Body | None = None
    for factors, coefficient in terms_of(size):
        scale: list[Body] = [Const(coefficient)] if coefficient != 1 or not factors else []
        term = reduce(lambda a, b: a * b, [*scale, *map(_atom_as_body, factors)])
        total = term if total is None else total + term
    assert total is not None
    return total


def _atom_as_body(atom: Any) -> Body:
    match atom:
        case Lookup(read, _, _):
            return Call("to_int64", (read,))
        case Floor(top, bottom):
            above, below = _as_body(top), _as_body(bottom)
            # a quotient of integers is rounded towards zero, so that the remainder goes first
            return Call("div", (above - Call("mod", (above, below)), below))
        case Largest(first_and_others):
            first, *others = map(_as_body, first_and_others)
            for other in others:
                first = Call("max", (first, other))
            return first
    return lift(polynomial(atom))
