"""Finds the subprograms that are mutated: multilinear operators, alone or several alike (PET, section 6.1).

A program is split at operators that are not linear.  What remains between them and costs time are products:
sums over products of two operands, such as Conv and MatMul.  Independent products of one kind are also taken
together, as the convolutions of parallel branches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import prod
from typing import NamedTuple

from tensaurus.expr.analysis.iterator_table import IteratorTable, Operand
from tensaurus.expr.analysis.work_counts import multiply_adds
from tensaurus.expr.sizes.size import Axis, Size
from tensaurus.graph.analysis.operator_product import product_table
from tensaurus.graph.ir.node import Node, replace_args, source
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.ops import Op, TensorType
from tensaurus.ops.eop import eop
from tensaurus.runtimes.price.operation_counts import number_of

__all__ = [
    *("ProductOperator", "Subprogram", "WindowNumbers", "find_subprograms", "known_number", "read_product"),
]

MIN_MULTIPLICATIONS = 1 << 14  # smaller products take microseconds, whatever they become
MAX_GROUPS_OF_ONE_KIND = 8  # pairs of independent products that are looked at for each kind


class WindowNumbers(NamedTuple):
    """How a dimension of the data is read: at stride * place + dilation * tap - begin.

    taps  number of taps, 1 where there is no window
    end   zeros behind the last element
    """

    stride: int
    dilation: int
    begin: int
    end: int
    taps: int


@dataclass(frozen=True, eq=False)
class ProductOperator:
    """A node that adds up products of its first two arguments, data and weights.

    windows    by dimension of the data that is read at places and taps, the numbers of its window
    channels   for each iterator of the sum that is in no window: its dimensions in both, its extent
    filters    for each iterator of weights and output alone: its dimension in the weights, its extent
    digits     by dimension of the data the extents of its iterators, slowest first, where there are several
    """

    node: Node
    windows: Mapping[int, WindowNumbers]
    channels: tuple[tuple[int, int, int], ...]
    filters: tuple[tuple[int, int], ...]
    digits: Mapping[int, tuple[int, ...]]

    @property
    def multiplications(self) -> float:
        return number_of(multiply_adds(self.node.scopes()[0]))

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for operators that may become one: the same operator, attributes and ranks."""
        ranks = tuple(arg.tensor.rank for arg in self.node.args if arg is not None)
        return self.node.op, self.node.attrs, ranks


@dataclass(frozen=True, eq=False)
class Subprogram:
    """One product, or several independent ones of one kind.

    nodes     the products in their program
    products  the same over inputs x0, x1, ... in place of the leaves
    leaves    the nodes for which the inputs stand, in the same order
    """

    nodes: tuple[Node, ...]
    products: tuple[ProductOperator, ...]
    leaves: tuple[Node, ...]

    @property
    def roots(self) -> tuple[Node, ...]:
        """The products over the inputs: equal for subprograms that compute the same of other leaves."""
        return tuple(each.node for each in self.products)

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        return tuple(source(f"x{k}", leaf.types[0]) for k, leaf in enumerate(self.leaves))

    @property
    def multiplications(self) -> float:
        return sum(each.multiplications for each in self.products)

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> Subprogram | None:
        """Return the subprogram of these nodes, None where one is no product."""
        leaves = tuple(dict.fromkeys(arg for node in nodes for arg in node.args if arg is not None))
        names = {leaf: source(f"x{k}", leaf.types[0]) for k, leaf in enumerate(leaves)}
        forms = [replace_args(node, tuple(arg and names[arg] for arg in node.args)) for node in nodes]
        products = [read_product(form) for form in forms]
        found = tuple(each for each in products if each is not None)
        return cls(tuple(nodes), found, leaves) if len(found) == len(nodes) else None


def find_subprograms(program: Program) -> Iterator[Subprogram]:
    """Yield each product of the program, then pairs of independent products of one kind.

    eOperators are none: their expressions were composed of operators that were looked at before.
    """
    products = dict[Node, ProductOperator]()
    for node in program.active:
        found = None if node.op is eop else read_product(node)
        if found is None or found.multiplications < MIN_MULTIPLICATIONS:
            continue
        products[node] = found
        if (single := Subprogram.of([node])) is not None:
            yield single
    kinds = dict[object, list[Node]]()
    for node, product in products.items():
        kinds.setdefault(product.kind, []).append(node)
    for nodes in kinds.values():
        for pair in _independent_pairs(nodes)[:MAX_GROUPS_OF_ONE_KIND]:
            if (joint := Subprogram.of(pair)) is not None:
                yield joint


def _independent_pairs(nodes: Sequence[Node]) -> list[tuple[Node, Node]]:
    """Return pairs of neighbours in program order of which neither needs the other."""
    needed = {node: set(topological_order([node])) for node in nodes}
    pairs = ((a, b) for a, b in combinations(nodes, 2) if abs(nodes.index(a) - nodes.index(b)) <= 2)
    return [(a, b) for a, b in pairs if a not in needed[b] and b not in needed[a]]


def read_product(node: Node) -> ProductOperator | None:
    """Return the node as a product of floats with numeric sizes, None where it is none.

    A third argument, as the bias of a convolution, may be added to the sum: it is no operand.
    """
    if not isinstance(node.op, Op) or len(node.types) != 1 or len(node.args) < 2 or None in node.args[:2]:
        return None
    kinds = [part.types[0] for part in (node, *filter(None, node.args))]
    if not all(isinstance(k, TensorType) and k.static and k.dtype == "float32" for k in kinds):
        return None
    if any(0 in kind.shape for kind in kinds if isinstance(kind, TensorType)):
        return None
    operands = tuple(arg.tensor for arg in node.args[:2] if arg is not None)
    table = product_table(node.op, operands, dict(node.attrs))
    return None if table is None else _read_table(node, table)


def _read_table(node: Node, table: IteratorTable) -> ProductOperator | None:
    """Return the product with this table, None where an index of the data is neither digits nor a window."""
    data, weights, _ = table.operands
    patterns = {a: table.pattern(a) for a in table.iterators}
    windows, digits = dict[int, WindowNumbers](), dict[int, tuple[int, ...]]()
    windowed = set[Axis]()
    for d, (form, size) in enumerate(zip(data.dimensions, data.shape, strict=True)):
        slopes = {a: slope for a, slope in form.slopes.items() if isinstance(slope, int)}
        if len(slopes) < len(form.slopes) or not isinstance(size, int) or not isinstance(form.rest, int):
            return None
        taps = [a for a in slopes if patterns[a] == (True, True, False)]
        places = [a for a in slopes if patterns[a] == (True, False, True)]
        # plain digits take each index of the dimension once: as many values as indices, up to the last one
        last = sum(slope * (known_number(a.extent) - 1) for a, slope in slopes.items())
        count = prod(known_number(a.extent) for a in slopes)
        is_plain = form.rest == 0 and last == size - 1 and count == size
        is_window = len(places) <= 1 and len(taps) <= 1 and len(slopes) == len(places) + len(taps)
        if is_window and not (is_plain and len(slopes) <= 1):
            windows[d] = _window_numbers(slopes, places, taps, form.rest, size)
            windowed |= {*places, *taps}
        elif len(slopes) > 1:
            digits[d] = tuple(known_number(a.extent) for a in sorted(slopes, key=lambda a: -slopes[a]))
    channels, filters = list[tuple[int, int, int]](), list[tuple[int, int]]()
    for a, pattern in patterns.items():
        in_data, e = _dimension_with(a, data), _dimension_with(a, weights)
        is_sum = pattern == (True, True, False) and a not in windowed
        if is_sum and in_data is not None and e is not None:
            channels.append((in_data, e, known_number(a.extent)))
        if pattern == (False, True, True) and e is not None:
            filters.append((e, known_number(a.extent)))
    return ProductOperator(node, windows, tuple(channels), tuple(filters), digits)


def _dimension_with(a: Axis, operand: Operand) -> int | None:
    """Return the dimension of the operand whose index has the iterator."""
    return next((d for d, form in enumerate(operand.dimensions) if a in form.slopes), None)


def known_number(size: Size) -> int:
    """Return a size that is known to be a number."""
    assert isinstance(size, int)
    return size


def _window_numbers(
    slopes: Mapping[Axis, int], places: Sequence[Axis], taps: Sequence[Axis], rest: int, size: int
) -> WindowNumbers:
    """Return the numbers of a window; of one place, or one tap, there is no iterator."""
    count = known_number(taps[0].extent) if taps else 1
    dilation = slopes[taps[0]] if taps else 1
    stride = slopes[places[0]] if places else 1
    last_place = known_number(places[0].extent) - 1 if places else 0
    span = stride * last_place + dilation * (count - 1) + 1
    return WindowNumbers(stride, dilation, -rest, max(0, span + rest - size), count)
