"""Write any expression as operators of ONNX, to export operators that ONNX lacks.

    sum[r](x[i + r - 1 | 0] * w[r])   ->   MatMul(Gather(Pad(x), i + r), w)

Every part of an expression becomes a node whose dimensions are the axes in that part:

    a read               slices or a Gather, whatever its index
    a sum of products    a matrix product
    a choice             a Concat where it cuts one axis in two, else a Where

Export (`program_lowering`) calls `lower_node`, and so do derivations, to price their results by ONNX's
operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from math import ceil, prod
from typing import Any, NamedTuple

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
    LabelledNode,
    apply_function,
    contract_factors,
    length,
    order_axes,
    reduce_axes,
    reshape_node,
)
from tensaurus.graph.lower.primitives import literal, rational_constant
from tensaurus.ops import Untypable
from tensaurus.ops.parts import concat
from tensaurus.system.errors import TensaurusError

NEUTRAL: Mapping[str, Any] = {"sum": 0, "prod": 1, "max": float("-inf"), "min": float("inf")}
MIN_UNROLLED_OUTPUTS = 1 << 12  # a smaller result is not worth one node for each term of its sum
MAX_UNROLLED_TERMS = 64  # a longer sum would make too many nodes
UNROLLED_DTYPES = ("float32", "float64")  # types that every runtime adds and compares elementwise
TRAPPING_DIVISIONS = frozenset({"div", "mod", "fmod"})  # on integers, a division by 0 stops the process


def lower_node(node: Node) -> Node:
    """Return a declared node of one output as operators of ONNX that compute its expression.

    Raises TensaurusError where the expression cannot be written so.
    """
    if len(node.types) != 1:
        raise TensaurusError(f"{node.op} has several outputs, each with its own expression")
    return lower_scope(node.scopes()[0], node.tensor_args())


def lower_scope(scope: Scope, args: Mapping[Tensor, Node]) -> Node:
    """Return the expression as nodes over `args`.  Raises TensaurusError where ONNX lacks an operator."""
    try:
        return _Lowering(args).lower_scope(scope)
    except Untypable as error:
        raise TensaurusError(str(error)) from error


class _Lowering:
    """Lowers one scope and the scopes that it reads.

    args           the node of each tensor
    inner          the node of each inner scope by its `id`, with the scope so that it stays alive
    axis_order     number of each axis, in the order in which they occur
    branch_depth   how many choices are around the current expression: both branches are computed, and one is
                   thrown away, so that neither may stop the process
    """

    def __init__(self, args: Mapping[Tensor, Node]):
        self.args = args
        self.inner: dict[int, tuple[Scope, Node]] = {}
        self.axis_order: dict[Axis, int] = {}
        self.branch_depth = 0

    def add_axes(self, *axes: Axis) -> None:
        for a in axes:
            self.axis_order.setdefault(a, len(self.axis_order))

    def lower_scope(self, scope: Scope) -> Node:
        """Return the node of a scope, with one dimension for each axis."""
        shape, dtype = [length(a) for a in scope.axes], dtype_of(scope)
        if 0 in shape:
            return constant(np.zeros(shape, numpy_dtype(dtype)))
        flat = split_axes(scope)
        self.add_axes(*flat.axes)
        return reshape_node(self.lower_body(flat.body, dtype, flat.axes).expanded(flat.axes), shape)

    def source_node(self, source: Source, dtype: str) -> Node:
        if isinstance(source, Tensor):
            return self.args[source]
        if isinstance(source, Table):
            return rational_constant(source.values, source.shape, dtype)
        if id(source) not in self.inner:
            depth, self.branch_depth = self.branch_depth, 0
            self.inner[id(source)] = source, self.lower_scope(source)
            self.branch_depth = depth
        return self.inner[id(source)][1]

    def lower_body(self, body: Body, dtype: str, order: tuple[Axis, ...] = ()) -> LabelledNode:
        """Return the body as a node.

        dtype  type of literals beside which no tensor states a type
        order  preferred order of axes, so that the result need not be transposed
        """
        kind = literal_dtype(body)  # "int" or "real" where the body has literals only
        dtype = dtype if kind in ("int", "real") else kind
        if kind == "int" and next(reads(body), None) is None:
            return self.lower_integers(body, dtype)
        match body:
            case Const(value):
                return LabelledNode(literal(value, dtype), ())
            case Read(source, indices, outside):
                beyond = None if outside is None else outside.value
                node = self.source_node(source, dtype)
                return read_elements(node, indices, beyond, self.axis_order, self.index_node)
            case Call(fn, args):
                return self.lower_call(fn, args, dtype, order)
            case Select():
                return self.lower_choice(body, dtype, order)
            case Reduce(monoid, axes, inner):
                return self.lower_reduction(monoid, axes, inner, dtype, order)
        raise TypeError(type(body))

    def lower_integers(self, body: Body, dtype: str) -> LabelledNode:
        """Return a body that reads no tensor as a constant: integers over axes."""
        require_small(size for part in bodies(body) for size in sizes(part))
        values = Evaluation({}, Reals(), {}).body(body)
        axes = tuple(sorted(values.axes, key=self.axis_order.__getitem__))
        data = np.asarray(values.align(axes))
        if not axes:
            return LabelledNode(literal(data.item(), dtype), ())
        near = data.astype(numpy_dtype(dtype))
        if not is_integer(dtype) and (near.astype(np.float64) != data.astype(np.float64)).any():
            return apply_function(f"to_{dtype}", LabelledNode(constant(data), axes))
        return LabelledNode(constant(near), axes)

    def lower_call(
        self, fn: str, args: tuple[Body, ...], dtype: str, order: tuple[Axis, ...]
    ) -> LabelledNode:
        """Return a scalar function of bodies; literals among its arguments take the type of the others."""
        kinds = [literal_dtype(a) for a in args]
        target = cast_target(fn)
        if target is not None:
            # literals in what is cast to integers may be real numbers
            literal_type = target if not is_integer(target) or kinds[0] == "int" else "float64"
            arg = self.lower_body(args[0], literal_type, order)
            return arg if arg.dtype == target else apply_function(fn, arg)
        operand_kinds = kinds[1:] if fn == "where" else kinds  # without the condition
        known = [kind for kind in operand_kinds if kind not in ("int", "real")]
        if not known and FUNCTIONS[fn].result == "bool":  # a comparison of literals
            dtype = "float64" if "real" in operand_kinds else "int64"
        dtype = known[0] if known else dtype
        operands = [self.lower_body(a, dtype, order) for a in args]
        if self.branch_depth and fn in TRAPPING_DIVISIONS and is_integer(dtype):
            # runtimes divide integers by the processor's instruction, which a zero stops
            zero, one = (LabelledNode(literal(n, dtype), ()) for n in (0, 1))
            is_zero = apply_function("eq", operands[1], zero)
            operands[1] = apply_function("where", is_zero, one, operands[1])
        return apply_function(fn, *operands)

    # ------------------------------------------------------------------------------------ indices

    def index_node(self, size: Size) -> LabelledNode | None:
        """Return the node of an index that is read from a tensor, None for any other index."""
        if not any(isinstance(a, Lookup) for a in unnested_atoms(size)):
            return None
        return self.lower_body(_as_body(size), "int64")

    # ------------------------------------------------------------------------------------ choices

    def lower_choice(self, select: Select, dtype: str, order: tuple[Axis, ...]) -> LabelledNode:
        """Return a choice by its guard, one condition of the guard after another."""
        guard = list(select.guard)
        while guard:
            size = guard.pop(0)
            rest = Select(tuple(guard), select.then, select.other)
            low, high = interval(size)
            if isinstance(low, int) and low >= 0:  # size >= 0 always holds
                continue
            if isinstance(high, int) and high < 0:  # size >= 0 never holds
                return self.lower_body(select.other, dtype, order)
            cut = _guard_cut(size)
            if cut is not None:
                return self.concatenate_branches(cut, rest, select.other, dtype, order)
            mask = self.guard_mask(size)
            if mask is True:
                continue
            if mask is False:
                return self.lower_body(select.other, dtype, order)
            self.branch_depth += 1
            chosen = [self.lower_body(branch, dtype, order) for branch in (rest, select.other)]
            self.branch_depth -= 1
            return apply_function("where", mask, *chosen)
        return self.lower_body(select.then, dtype, order)

    def guard_mask(self, size: Size) -> LabelledNode | bool:
        """Return where size >= 0, computed at run time or tabulated here; a bool where all points agree."""
        if any(isinstance(a, Lookup) for a in atoms(size)):
            return self.lower_body(Call("le", (Const(0), _as_body(size))), "bool")
        data, axes = tabulate_size(size, self.axis_order)
        holds = data >= 0
        if holds.all() or not holds.any():
            return bool(holds.all())
        return LabelledNode(constant(np.ascontiguousarray(holds)), axes)

    def concatenate_branches(
        self, cut: _AxisCut, then: Body, other: Body, dtype: str, order: tuple[Axis, ...]
    ) -> LabelledNode:
        """Return a Concat along the axis of the cut: `then` where the guard holds, `other` elsewhere."""
        a, position, extent = cut.axis, cut.position, length(cut.axis)
        before, behind = (other, then) if cut.holds_behind else (then, other)
        parts = [(0, position, before), (position, extent, behind)]
        part_axes, results = [], []
        for start, stop, body in parts:
            if start == stop:
                continue
            part_axis = axis(stop - start)
            self.add_axes(part_axis)
            # the part has an axis of its own, which begins at 0
            at: dict[Any, Any] = {a: polynomial(part_axis) + start}
            part_order = tuple(part_axis if x == a else x for x in order)
            part_axes.append(part_axis)
            results.append(self.lower_body(replace_axes(body, at), dtype, part_order))
        others = {x for r in results for x in r.axes if x not in part_axes}
        full = [*sorted(others, key=self.axis_order.__getitem__), a]
        if a in order:
            full = sorted(full, key=lambda x: order.index(x) if x in order else -1)
        nodes = []
        for result, part_axis in zip(results, part_axes, strict=True):
            axes = [part_axis if x == a else x for x in full]
            nodes.append(order_axes(result, axes).expanded(axes))
        node = nodes[0] if len(nodes) == 1 else apply(concat, nodes, {"axis": full.index(a)})
        return LabelledNode(node, tuple(full))

    # --------------------------------------------------------------------------------- reductions

    def lower_reduction(
        self, monoid: str, axes: tuple[Axis, ...], body: Body, dtype: str, order: tuple[Axis, ...]
    ) -> LabelledNode:
        if any(length(a) == 0 for a in axes):
            return LabelledNode(literal(NEUTRAL[monoid], dtype), ())
        self.add_axes(*axes)
        windows = _window_axes(body, axes)
        others = tuple(a for a in axes if a not in windows)
        outputs = prod(length(a) for a in free_axes(body).difference(axes))
        # a convolution, which sums over channels, too, is one matrix product of copied windows
        is_matrix_product = bool(others) and len(set(reads(body))) != 1
        is_worth_it = outputs >= MIN_UNROLLED_OUTPUTS and 1 < prod(map(length, windows)) <= MAX_UNROLLED_TERMS
        # a pooling or a depthwise convolution becomes elementwise nodes, a term for each point of the window
        if not is_matrix_product and dtype in UNROLLED_DTYPES and is_worth_it:
            inner = Reduce(monoid, others, body) if others else body
            return self.unroll_reduction(monoid, windows, inner, dtype)
        if monoid != "sum":
            return reduce_axes(monoid, self.lower_body(body, dtype, (*order, *axes)), axes)
        factors = [self.lower_body(f, dtype, (*order, *axes)) for f in _factors(body)]
        return contract_factors(factors, axes, order)

    def unroll_reduction(self, monoid: str, axes: tuple[Axis, ...], body: Body, dtype: str) -> LabelledNode:
        """Return a reduction written out, one node for each point of these axes.

        So the elements that windows share are not copied for each window.  All terms have the axis order in
        which their tensors are read: only the result is transposed.
        """
        known = self.axis_order
        indices = [axes_in(index).intersection(known) for read in reads(body) for index in read.indices]
        order = tuple(dict.fromkeys(a for each in indices for a in sorted(each, key=known.__getitem__)))
        result: LabelledNode | None = None
        for point in ndindex(*map(length, axes)):
            term = self.lower_body(replace_axes(body, dict(zip(axes, point, strict=True))), dtype, order)
            result = term if result is None else apply_function(MONOID_FUNCTIONS[monoid], result, term)
        assert result is not None
        return result


def _window_axes(body: Body, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Return the axes along which a read overlaps itself, as r in x[i + r]."""
    windows = set[Axis]()
    for read in reads(body):
        for index, size in zip(read.indices, read.source.shape, strict=True):
            inside = set(axes_in(index))
            # an index over more points than there are elements reads some elements several times
            if isinstance(size, int) and inside.difference(axes) and prod(map(length, inside)) > size:
                windows |= inside.intersection(axes)
    return tuple(a for a in axes if a in windows)


def _factors(body: Body) -> Iterator[Body]:
    """Yield the factors of a product, those of its factors included."""
    if isinstance(body, Call) and body.fn == "mul":
        for arg in body.args:
            yield from _factors(arg)
    else:
        yield body


class _AxisCut(NamedTuple):
    """Where a guard on an axis changes: it holds from the position on (`holds_behind`), or only before it."""

    axis: Axis
    position: int
    holds_behind: bool


def _guard_cut(size: Size) -> _AxisCut | None:
    """Return the cut of a guard size >= 0, None unless it is an affine function of one axis."""
    inside = [a for a in unnested_atoms(size) if isinstance(a, Axis)]
    affine = affine_coefficients(size, inside)
    if affine is None or len(affine[0]) != 1 or any(isinstance(a, Lookup) for a in atoms(size)):
        return None
    slopes, rest = affine
    ((a, slope),) = slopes.items()
    if not isinstance(slope, int) or not isinstance(rest, int):
        return None
    # the guard is slope * a + rest >= 0
    position = ceil(-rest / slope) if slope > 0 else rest // -slope + 1
    return _AxisCut(a, min(max(position, 0), length(a)), slope > 0)


def _as_body(size: Size) -> Body:
    """Return a size as an expression of int64."""
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
            # integer division rounds towards zero: subtract the remainder first
            return Call("div", (above - Call("mod", (above, below)), below))
        case Largest(first_and_others):
            first, *others = map(_as_body, first_and_others)
            for other in others:
                first = Call("max", (first, other))
            return first
    return lift(polynomial(atom))
