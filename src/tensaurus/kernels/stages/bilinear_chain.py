"""Recognizes bilinear chains among stages: input combinations, products at points, output combinations.

Fast convolution algorithms (Winograd's and others) have this form; the chain is compiled to one kernel. A
tile i is the part of the output that the algorithm computes at once, j an element of a tile, a point p one of
the algorithm's products, c a channel, and f a result: an output channel.

    t[c, i, p]    = sum[a] B[p, a] * x[c, 4*i + a - 1]         input combinations, by literal tables
    s[f, i, p]    = sum[c] t[c, i, p] * u[p, f, c]             the products, at each point p
    z[f, i, j]    = sum[p] A[j, p] * s[f, i, p]                output combinations
    y[f, k]       = z[f, k // 4, k % 4] + b[f]                 the output, here 4 elements a tile
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import NamedTuple

from tensaurus.expr.ir.scope import Body, Call, Read, Table, Tensor
from tensaurus.expr.ir.walk import axes_in, free_axes, reads, replace_axes
from tensaurus.expr.sizes.size import Axis, Size, floordiv, mod, polynomial
from tensaurus.kernels.stages.copy_operands import axis_coefficients, replace_reads
from tensaurus.kernels.stages.register_transpose import is_transposable
from tensaurus.kernels.stages.stage import Stage, extent, source_name, split_reduced_axes

ROW_ELEMENTS = 16  # elements of the output's last axis that are transposed at once: about one vector
MAX_INLINED_READS = 32  # reads in an output that inlines the elementwise stage before it

__all__ = ["BilinearChain", "Combination", "Tile", "recognize_chain", "has_combinations"]


@dataclass(frozen=True)
class Combination:
    """A linear combination: stage[..., p, ...] = sum[a] table[p, a] * body, p being axis number `place`.

    In an algorithm of two dimensions each dimension is combined by a stage of its own.
    """

    stage: Stage
    table: Table
    place: int
    body: Body


@dataclass(frozen=True)
class Tile:
    """Axis number `place` of the products numbers tiles of `size` elements along `axis` of the output."""

    place: int
    axis: Axis
    size: int


@dataclass(frozen=True)
class BilinearChain:
    """The stages of a bilinear chain.

    A place is the position of an axis among the axes of `products`; output combinations have the same order.

    prologue           computed stages that the first combination reads; they are inlined in its copies
    products           the sum of products over `channel_axis` and perhaps other axes
    data_read          the factor that reads the last input combination
    weights_read       the factor that reads an input, with no axis of tiles
    result_places      places of the axes that index the weights, and the data at most in the dimension of its
                       channels: results, perhaps in blocks, and groups of the convolution
    lane_place         the one of `result_places` whose axis is the last dimension of the weights
    result_axis        the axis of the output that goes over results, within one block or over all blocks
    point_places       places of the other axes that both factors have
    tiles              axes that only the data has and that number tiles, in their order
    phase_places       places of the other axes of the data: an output axis modulo their extent, as in a
                       dilated convolution, whose tiles interleave
    channel_axis       the reduced axis that vectors of the input combinations lie along
    channel_dimension  the dimension of `data_read` whose index contains `channel_axis`, perhaps beside groups
    output_read        the output's read of the last output combination
    """

    prologue: tuple[Stage, ...]
    input_combinations: tuple[Combination, ...]
    products: Stage
    data_read: Read
    weights_read: Read
    output_combinations: tuple[Combination, ...]
    output: Stage
    result_places: tuple[int, ...]
    lane_place: int
    result_axis: Axis
    point_places: tuple[int, ...]
    tiles: tuple[Tile, ...]
    phase_places: tuple[int, ...]
    channel_axis: Axis
    channel_dimension: int
    output_read: Read

    @property
    def all_channels(self) -> int:
        """The channels of all groups."""
        return extent(self.input_combinations[0].stage.axes[self.channel_dimension])

    @property
    def row_elements(self) -> int:
        """Elements of the output's last axis that are transposed at once: a whole number of tiles.

        It is a power of two if the size of a tile is a power of two: shuffles can transpose such rows.
        """
        last = self.output.axes[-1]
        size = next((t.size for t in self.tiles if t.axis is last), 1 << (extent(last) - 1).bit_length())
        times = max(min(ROW_ELEMENTS // size, -(-extent(last) // size)), 1)
        return size * (1 << (times - 1).bit_length() if is_transposable(size) else times)


def recognize_chain(stages: Sequence[Stage]) -> BilinearChain | None:
    """Returns the stages as one bilinear chain, or None where they have another form."""
    # the products are the only sum that is no combination by a table
    stages = _inline_final_maps(stages)
    sums = [stage for stage in stages if stage.monoid == "sum" and _recognize_combination(stage) is None]
    if len(sums) != 1 or stages[-1].reduced:
        return None
    middle, output = stages.index(sums[0]), stages[-1]
    products = split_reduced_axes(sums[0])  # merging axes of the stages may have joined channels with others
    start = next(k for k, stage in enumerate(stages) if stage.reduced)
    prologue, input_stages, output_stages = stages[:start], stages[start:middle], stages[middle + 1 : -1]
    inputs, outputs = _recognize_combinations(input_stages), _recognize_combinations(output_stages)
    if not inputs or not outputs:
        return None
    # no stage skips another: the first combination reads only inputs and the prologue; those after it, and
    # the products, read just the stage before
    computed = {stage.tensor.name for stage in stages}
    prologue_names = {stage.tensor.name for stage in prologue}
    if not prologue_names.issuperset(x.name for x in input_stages[0].sources if x.name in computed):
        return None
    for stage, reader in pairwise((*input_stages, products, *output_stages)):
        if [x.name for x in reader.sources if x.name in computed] != [stage.tensor.name]:
            return None
    output_reads = [*dict.fromkeys(r for r in reads(output.body) if source_name(r) in computed)]
    if [source_name(r) for r in output_reads] != [output_stages[-1].tensor.name]:
        return None
    if output_reads[0].outside is not None:
        return None
    return _assemble_chain(prologue, inputs, products, outputs, output, output_reads[0])


def _recognize_combinations(stages: Sequence[Stage]) -> tuple[Combination, ...]:
    """Returns the combinations that the stages compute; none where a stage is no combination."""
    combinations = [c for stage in stages if (c := _recognize_combination(stage)) is not None]
    return tuple(combinations) if len(combinations) == len(stages) else ()


def _inline_final_maps(stages: Sequence[Stage]) -> Sequence[Stage]:
    """Inlines elementwise stages before the output in the output, if it reads them element by element.

        a[i] = s[i] + b[i],  y[i] = a[i] * sigmoid(a[i])   ->   y[i] = (s[i] + b[i]) * sigmoid(s[i] + b[i])
    """
    while len(stages) > 1 and not (stages[-2].reduced or stages[-1].reduced):
        *before, inner, output = stages
        inner_reads = [*dict.fromkeys(r for r in reads(output.body) if r.source == inner.tensor)]
        if len(inner_reads) != 1 or inner.tensor.dtype != output.tensor.dtype:
            break
        (read,) = inner_reads
        is_elementwise = {*read.indices} == {*map(polynomial, output.axes)}  # in any order
        if read.outside is not None or len(inner.axes) != len(output.axes) or not is_elementwise:
            break
        times = sum(r == read for r in reads(output.body))
        if len([*reads(inner.body)]) * times > MAX_INLINED_READS:
            break
        inlined = replace_axes(inner.body, dict(zip(inner.axes, read.indices, strict=True)))
        stages = (*before, replace(output, body=replace_reads(output.body, {read: inlined})))
    return stages


def has_combinations(stages: Sequence[Stage]) -> bool:
    """Whether some of the stages are combinations by literal tables."""
    return any(_recognize_combination(stage) is not None for stage in stages)


def _recognize_combination(stage: Stage) -> Combination | None:
    """Returns the linear combination that a stage computes by a literal table, or None."""
    if stage.monoid != "sum" or len(stage.reduced) != 1:
        return None
    (a,) = stage.reduced
    match stage.body:
        case Call("mul", (Read(Table() as table, (p, q)), body)) if q == polynomial(a):
            for place, own in enumerate(stage.axes):
                if p == polynomial(own) and own not in free_axes(body):
                    return Combination(stage, table, place, body)
    return None


def _reads_own_indices(combination: Combination, source: Tensor) -> bool:
    """Whether the combination reads the source at its own indices, except along the axis that it combines."""
    stage, (a,) = combination.stage, combination.stage.reduced
    own = tuple(polynomial(a if k == combination.place else b) for k, b in enumerate(stage.axes))
    return combination.body == Read(source, own)


def _assemble_chain(
    prologue: Sequence[Stage],
    inputs: Sequence[Combination],
    products: Stage,
    outputs: Sequence[Combination],
    output: Stage,
    output_read: Read,
) -> BilinearChain | None:
    """Returns the chain if the axes of its stages fit together, else None."""
    factors = _match_factors(products, inputs[-1].stage.tensor)
    sources = [*(c.stage.tensor for c in inputs[:-1]), products.tensor, *(c.stage.tensor for c in outputs)]
    if factors is None or not all(map(_reads_own_indices, (*inputs[1:], *outputs), sources)):
        return None
    data_read, weights_read = factors
    channels = _find_channels(inputs[0], data_read, weights_read, products)
    if channels is None:
        return None
    # axes of the products: of the weights alone: results; of both: points; of the data alone: tiles or phases
    axes, of_weights = products.axes, free_axes(weights_read)
    beside_channels = _axes_beside(data_read, channels.dimension)
    results = tuple(k for k, a in enumerate(axes) if a in of_weights and a not in beside_channels)
    points = tuple(k for k, a in enumerate(axes) if a in of_weights and a in beside_channels)
    of_data = [k for k in range(len(axes)) if k not in (*results, *points)]
    lane = next((k for k in results if weights_read.indices[-1] == polynomial(axes[k])), None)
    if lane is None or not points or {c.place for c in outputs} != set(points):
        return None
    phases = tuple(k for k in of_data if _is_remainder(output_read.indices[k], axes[k], output))
    tiles = [_recognize_tile(k, output_read, products, output, outputs) for k in of_data if k not in phases]
    result_axis = _result_axis(output_read, output, products, results, lane)
    if None in tiles or result_axis is None:
        return None
    return BilinearChain(
        prologue=tuple(prologue),
        input_combinations=tuple(inputs),
        products=products,
        data_read=data_read,
        weights_read=weights_read,
        output_combinations=tuple(outputs),
        output=output,
        result_places=results,
        lane_place=lane,
        result_axis=result_axis,
        point_places=points,
        tiles=tuple(tile for tile in tiles if tile),
        phase_places=phases,
        channel_axis=channels.axis,
        channel_dimension=channels.dimension,
        output_read=output_read,
    )


def _match_factors(products: Stage, last_input: Tensor) -> tuple[Read, Read] | None:
    """Returns the factors of the products, (read of the last input combination, read of weights), or None."""
    match products.body:
        case Call("mul", (Read() as one, Read() as other)):
            data, weights = (one, other) if one.source == last_input else (other, one)
            if data.source == last_input and data.outside is None and weights.outside is None:
                return data, weights
    return None


def _axes_beside(read: Read, dimension: int) -> frozenset[Axis]:
    """Returns the axes in the indices of the read's other dimensions."""
    others = (index for d, index in enumerate(read.indices) if d != dimension)
    return frozenset[Axis]().union(*map(axes_in, others))


def _result_axis(
    output_read: Read, output: Stage, products: Stage, results: Sequence[int], lane: int
) -> Axis | None:
    """Returns the output's axis that goes over the results, within one block or over all blocks."""
    own, width = output_read.indices[lane], extent(products.axes[lane])  # the place in a block, its size
    wholes = [own, *(output_read.indices[k] * width + own for k in results if k != lane)]
    return next((a for whole in wholes for a in output.axes if whole == polynomial(a)), None)


def _is_remainder(index: Size, axis_: Axis, output: Stage) -> bool:
    """Whether the index is the remainder of an axis of the output modulo the extent of `axis_`."""
    return any(index == mod(polynomial(a), axis_.extent) for a in output.axes if a.extent != axis_.extent)


def _recognize_tile(
    place: int, output_read: Read, products: Stage, output: Stage, outputs: Sequence[Combination]
) -> Tile | None:
    """Returns the tiles of an output axis that axis number `place` of the products numbers, or None.

    Element i of the output axis is element (i // n) % t of tile i // (n * t): a combination's table has t
    rows, and n is 1 or, if tiles of several phases interleave, the number of phases. An output axis that is
    read as it is has tiles of one element.
    """
    index = output_read.indices[place]
    counts = {1, *map(extent, products.axes)}  # candidates for n
    for a in output.axes:
        own = polynomial(a)
        if index == own:
            return Tile(place, a, 1)
        for combination, n in product(outputs, counts):
            size, inside = combination.table.shape[0], output_read.indices[combination.place]
            if index == floordiv(own, size * n) and inside == mod(floordiv(own, n), size):
                return Tile(place, a, size * n)
    return None


class _Channels(NamedTuple):
    """The reduced axis of the channels, and the dimension of the data whose index contains the axis."""

    axis: Axis
    dimension: int


def _find_channels(
    first: Combination, data_read: Read, weights_read: Read, products: Stage
) -> _Channels | None:
    """Returns the channels: the longest candidate beside which its dimension holds only groups.

    Groups are axes that weights have, too. In a direct convolution no axis can be the channels, as the taps
    are in a dimension of tiles.
    """
    for channels in _channel_candidates(first, data_read, products):
        groups = free_axes(weights_read) - _axes_beside(data_read, channels.dimension)
        if {channels.axis, *groups}.issuperset(axes_in(data_read.indices[channels.dimension])):
            return channels
    return None


def _channel_candidates(first: Combination, data_read: Read, products: Stage) -> list[_Channels]:
    """Returns the axes that may be the channels, the longest first.

    Along such an axis the first combination reads one dimension of its operand, element by element.
    """
    candidates: list[_Channels] = []
    axes = (*first.stage.axes, *first.stage.reduced)
    for dimension, (a, index) in enumerate(zip(first.stage.axes, data_read.indices, strict=False)):
        # reduced axes whose coefficient in the index is 1
        inside = [r for r in products.reduced if r in axes_in(index)]
        inside = [r for r in inside if r not in axes_in(index - polynomial(r))]
        moving_reads = [r for r in reads(first.body) if isinstance(r.source, Tensor) and a in free_axes(r)]
        if inside and all(_is_read_by_element(r, a, axes) for r in moving_reads):
            candidates.append(_Channels(inside[0], dimension))
    return sorted(candidates, key=lambda channels: -extent(channels.axis))


def _is_read_by_element(read: Read, a: Axis, axes: Sequence[Axis]) -> bool:
    """Whether the axis moves one dimension of the operand, alone and by one element at a step."""
    forms = [axis_coefficients(index, axes) for index in read.indices]
    return None not in forms and [form for form in forms if form and a in form] == [{a: 1}]
