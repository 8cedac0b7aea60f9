"""Enumerates what could be mutants: one operator on re-indexed operands (PET, section 4.1, Algorithm 1).

    Conv(x, w)   ->   Conv([n1, c, h, n0 w] of x, w, dilations 1), Conv([n, c, h0 h1, w0 w1] of x, w), ...

Operators are those of the registry whose expressions are products (`graph/analysis/matchable_operators`);
none is named here.  Algorithm 1 tries every operator on every tensor.  Here the last step, from the
operator's output back to the original's shape, is not tried but found (`mutant_search`), which leaves three
steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any, TypeAlias

from tensaurus.expr.ir.scope import Tensor
from tensaurus.finders.mutate.reindexing import Digit, Reindexing, enumerate_reindexings, possible_radices
from tensaurus.finders.mutate.stacking import Stacking
from tensaurus.finders.mutate.subprogram import ProductOperator, Subprogram, WindowNumbers
from tensaurus.graph.analysis.attribute_roles import Role
from tensaurus.graph.analysis.matchable_operators import Operator, matchable_operators
from tensaurus.graph.analysis.operator_product import Window
from tensaurus.graph.ir.node import Node, apply
from tensaurus.ops import Op
from tensaurus.ops.eop import eop

__all__ = ["Arrangement", "Candidate", "enumerate_candidates"]

Arrangement: TypeAlias = Reindexing | Stacking
"""How an operand is made of tensors of the subprogram."""

_Numbers: TypeAlias = Mapping[int, WindowNumbers]  # of the windows, by dimension of the data


@dataclass(frozen=True)
class Candidate:
    """An operator on arranged operands.

    sources  for each operand the tensors that it is made of: numbers of the subprogram's inputs
    others   further arguments of the operator, which are taken as they are
    steps    by how much strides and dilations exceed 1, in all: runtimes have faster code for small ones
    """

    op: Op
    attrs: tuple[tuple[str, Any], ...]
    arrangements: tuple[Arrangement, ...]
    sources: tuple[tuple[int, ...], ...]
    others: tuple[int, ...] = ()
    steps: int = 0

    def is_original(self, subprogram: Subprogram) -> bool:
        """Return whether the candidate is the subprogram's only product itself."""
        if len(subprogram.products) != 1:
            return False
        (node,) = subprogram.roots
        return all(isinstance(a, Reindexing) and a.is_identity for a in self.arrangements) and (
            self.op is node.op and self.build(subprogram.inputs) is node
        )

    def operand_shapes(self, shapes: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        """Return the shapes of all operands for inputs of these shapes."""
        pairs = zip(self.arrangements, self.sources, strict=True)
        arranged = [arrangement.shape([shapes[k] for k in numbers]) for arrangement, numbers in pairs]
        return [*arranged, *(tuple(shapes[k]) for k in self.others)]

    def output_divisors(self) -> dict[int, tuple[int, ...]]:
        """Return for dimensions of the original's output the divisors of its digits in the candidate's.

        These are the radices of the data, as far as an output's place is that of the data.
        """
        data = self.arrangements[0]
        if not isinstance(data, Reindexing):
            return {}
        found = dict[int, tuple[int, ...]]()
        for d, radices in enumerate(data.radices):
            if radices and min(radices) > 0:
                found[d] = tuple(prod(radices[k:]) for k in range(len(radices)))
        return found

    def build(self, inputs: Sequence[Node]) -> Node:
        """Return the program over these inputs.  Raises Untypable where the operator does not accept them."""
        operands = [
            self.arrange_operand(place, [inputs[k] for k in numbers])
            for place, numbers in enumerate(self.sources)
        ]
        return apply(self.op, [*operands, *(inputs[k] for k in self.others)], dict(self.attrs))

    def arrange_operand(self, place: int, nodes: Sequence[Node]) -> Node:
        """Return one operand, made of these nodes."""
        arrangement = self.arrangements[place]
        if isinstance(arrangement, Reindexing) and arrangement.is_identity:
            return nodes[0]
        own = [Tensor(f"x{k}", node.tensor.shape, node.tensor.dtype) for k, node in enumerate(nodes)]
        return apply(eop, nodes, {"scope": arrangement.scope(own)})


def enumerate_candidates(subprogram: Subprogram) -> Iterator[Candidate]:
    """Yield candidates, simple ones first.  Each has the subprogram's inputs, and any output."""
    if len(subprogram.products) == 1:
        yield from _single_candidates(subprogram)
    else:
        yield from _joint_candidates(subprogram)


def _single_candidates(subprogram: Subprogram) -> Iterator[Candidate]:
    """Yield candidates for one product: re-indexed data, and weights to match."""
    (original,) = subprogram.products
    data, weights, *others = (subprogram.inputs.index(arg) for arg in original.node.args if arg is not None)
    shape = _shape(original, 0)
    numbers = [n for window in original.windows.values() for n in (window.stride, window.dilation)]
    channels = {d for d, _, _ in original.channels}
    splits = {d: possible_radices(n, *numbers) for d, n in enumerate(shape) if d not in channels}
    splits |= {d: (-digits[0],) for d, digits in original.digits.items() if len(digits) == 2}  # groups
    halos = {window.dilation * (window.taps - 1) for window in original.windows.values()}
    gaps = sorted({1, *halos} - {0}) if original.windows else []
    for operator in _operators(original, rank=len(shape)):
        if others and operator.op is not original.node.op:
            continue
        identity = Reindexing.identity(len(shape))
        for arranged in (identity, *enumerate_reindexings(shape, splits, original.windows, gaps)):
            for arranged_weights in _matching_weights(original, arranged):
                for attrs, steps in _attributes(original, operator, arranged, arranged_weights):
                    pair, sources = (arranged, arranged_weights), ((data,), (weights,))
                    yield Candidate(operator.op, attrs, pair, sources, tuple(others), steps)


def _joint_candidates(subprogram: Subprogram) -> Iterator[Candidate]:
    """Yield candidates for several products: their operands stacked, or taken once where they share one."""
    first = subprogram.products[0]
    if any(len(each.node.args) > 2 for each in subprogram.products):
        return
    sources = [
        tuple(subprogram.inputs.index(each.node.args[k]) for each in subprogram.products)
        for k in (0, 1)
    ]
    options = [_stackings(len(_shape(first, k)), numbers) for k, numbers in enumerate(sources)]
    for chosen in product(*options):
        new = [isinstance(each, Stacking) and each.is_new for each, _ in chosen]
        ranks = [len(_shape(first, k)) + is_new for k, is_new in enumerate(new)]
        if ranks[0] != ranks[1]:
            continue
        for operator in _operators(first, rank=ranks[0]):
            for extent in (1, len(subprogram.products)):
                attrs = _set_numbers(operator, _aligned(first.windows, ranks[0]), first, extent)
                if attrs is not None:
                    arrangements = tuple(each for each, _ in chosen)
                    yield Candidate(operator.op, attrs, arrangements, tuple(numbers for _, numbers in chosen))


def _stackings(rank: int, numbers: tuple[int, ...]) -> list[tuple[Arrangement, tuple[int, ...]]]:
    stacked: list[tuple[Arrangement, tuple[int, ...]]] = [(Stacking(d), numbers) for d in range(rank)]
    stacked += [(Stacking(0, is_new=True), numbers)]
    shared = [(Reindexing.identity(rank), numbers[:1])] if len(set(numbers)) == 1 else []
    return [*shared, *stacked]


def _shape(original: ProductOperator, operand: int) -> tuple[int, ...]:
    arg = original.node.args[operand]
    assert arg is not None
    return tuple(n for n in arg.tensor.shape if isinstance(n, int))


def _operators(original: ProductOperator, rank: int) -> list[Operator]:
    """Return the operators with two operands of this rank that have as many windows as the original."""
    found = []
    for operator in matchable_operators():
        places = [d for d, dimension in enumerate(operator.data) if isinstance(dimension, Window)]
        has_room = set(original.windows) <= set(places) or not original.windows and not places
        if not operator.is_unary and len(operator.data) == len(operator.weights) == rank and has_room:
            found.append(operator)
    return found


def _matching_weights(original: ProductOperator, arranged: Reindexing) -> Iterator[Reindexing]:
    """Yield arrangements of the weights: as they are, or taps dealt out as places of the data are.

    Where digits of a window's dimension became channels of the data, digits of its taps become channels of
    the weights; zeros before and behind the taps make their number a multiple.
    """
    rank = len(_shape(original, 1))
    identity = Reindexing.identity(rank)
    moved = [
        (digit, group.index(digit) < group.index(Digit(d, 0)))
        for d, e, _ in original.channels
        if Digit(d, 0) in (group := arranged.groups[d])
        for digit in group
        if digit.dimension in original.windows and digit.place == 1
    ]
    if not moved:
        yield identity
        return
    channel = original.channels[0]
    radices, begins = list(identity.radices), list(identity.begins)
    groups = [list(group) for group in identity.groups]
    for digit, front in moved:
        d = digit.dimension
        radix = arranged.radices[d][0]
        radices[d] = (radix,)
        begins[d] = -original.windows[d].begin % radix
        groups[channel[1]].insert(0 if front else len(groups[channel[1]]), Digit(d, 1))
    yield replace(
        identity, radices=tuple(radices), groups=tuple(map(tuple, groups)), begins=tuple(begins)
    )


def _attributes(
    original: ProductOperator, operator: Operator, arranged: Reindexing, weights: Reindexing
) -> Iterator[tuple[tuple[tuple[str, Any], ...], int]]:
    """Yield attributes, and by how much their strides and dilations exceed 1.

    Windows over dimensions that the re-indexing left alone keep their numbers.
    """
    touched = [d for d in original.windows if arranged.is_touched(d)]
    options = [dict(original.windows)]
    if touched:
        taps = {d: weights.extents(_shape(original, 1))[Digit(d, 0)] for d in touched}
        for stride, dilation, begin, end in _plain_numbers(original, touched, taps):
            changed = {d: WindowNumbers(stride, dilation, begin, end, taps[d]) for d in touched}
            options.append({**original.windows, **changed})
    extents = sorted({1, *(digits[0] for digits in original.digits.values())}, reverse=True)
    seen = set[object]()
    for numbers, extent in product(options, extents):
        attrs = _set_numbers(operator, numbers, original, extent)
        if attrs is not None and attrs not in seen:
            seen.add(attrs)
            yield attrs, sum(window.stride + window.dilation - 2 for window in numbers.values())


def _plain_numbers(
    original: ProductOperator, touched: Sequence[int], taps: Mapping[int, int]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield strides, dilations and paddings that are the original's or none, with paddings up to the taps."""
    first = original.windows[touched[0]]
    most = max(taps.values()) - 1
    paddings = sorted({0, most // 2, most})
    for stride, dilation in dict.fromkeys(product((first.stride, 1), (first.dilation, 1))):
        for begin, end in product(paddings, paddings):
            if begin == end or stride != first.stride:
                yield stride, dilation, begin, end


def _aligned(windows: _Numbers, rank: int) -> _Numbers:
    """Return the windows' numbers; an operand with a new first dimension has none."""
    return windows if all(d < rank for d in windows) else {}


def _set_numbers(
    operator: Operator, numbers: _Numbers, original: ProductOperator, extent: int
) -> tuple[tuple[str, Any], ...] | None:
    """Return the operator's attributes with these windows, None where it cannot have them.

    `extent` is that of iterators that no shape tells, such as groups.
    """
    roles = dict[Role, int]()
    for d, dimension in enumerate(operator.data):
        if isinstance(dimension, Window):
            window = numbers.get(d, WindowNumbers(1, 1, 0, 0, 1))
            roles |= {
                Role("stride", dimension): window.stride,
                Role("dilation", dimension): window.dilation,
                Role("begin", dimension): window.begin,
                Role("end", dimension): window.end,
            }
            roles[Role("extent", dimension.tap)] = window.taps
    for role in operator.roles.values():
        roles.setdefault(role, extent)
    attrs = operator.attributes(roles)
    return None if attrs is None else tuple(sorted(attrs.items()))
