"""Builds Halide's functions with their loops from an expression and a schedule.

    scope -> `schedulable_stages` -> stages -> `build_pipeline` -> scheduled Halide functions

Stages form loop nests (`stages/loop_nest`), and a schedule has one sketch for each. The sketch first adds the
stages that it needs (copies of operands, partial results, groups of long sums); then all stages become Halide
functions, whose loops the sketches arrange. `halide/compile` calls both steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from tensaurus.expr.ir.printer import free_names
from tensaurus.expr.ir.scope import Scope, Tensor
from tensaurus.expr.ir.walk import free_axes, reads
from tensaurus.kernels.halide.chain_loops import schedule_chain
from tensaurus.kernels.halide.lower import MAX_INDEX, LoweredStages, lower_stages, set_dense_layout
from tensaurus.kernels.halide.lowering_errors import LoweringError
from tensaurus.kernels.halide.schedule import (
    AT_ROOT,
    EnclosingLoops,
    schedule_block,
    schedule_flat,
    schedule_row,
)
from tensaurus.kernels.math.halide_functions import halide_type
from tensaurus.kernels.stages.band_blocks import block_band
from tensaurus.kernels.stages.bilinear_chain import recognize_chain
from tensaurus.kernels.stages.chain_layout import lay_out_chain
from tensaurus.kernels.stages.copy_operands import copy_operand
from tensaurus.kernels.stages.group_long_sums import group_long_sum
from tensaurus.kernels.stages.loop_nest import Nest, count_shared_axes, find_nests
from tensaurus.kernels.stages.merge_axes import merge_axes
from tensaurus.kernels.stages.pad_to_blocks import widen_to_blocks
from tensaurus.kernels.stages.sketch import (
    BlockSketch,
    ChainSketch,
    FlatSketch,
    NestChange,
    RowSketch,
    Sketch,
    select_bands,
    select_packs,
)
from tensaurus.kernels.stages.split_phases import split_phases
from tensaurus.kernels.stages.split_row_reduction import SplitReduction, split_row_reduction
from tensaurus.kernels.stages.stage import Stage, build_stages, extent

__all__ = ["schedulable_stages", "build_pipeline"]

# A sum of more floats than LONG_SUM_TERMS is computed in groups of at most GROUP_TERMS, which round less.
LONG_SUM_TERMS, GROUP_TERMS = 512, 256


def schedulable_stages(
    scope: Scope, inputs: Sequence[Tensor], changes: Sequence[NestChange] = ()
) -> tuple[tuple[Stage, ...], tuple[Tensor, ...]]:
    """Returns the stages of a scope that sketches refer to, and the inputs in the shapes that stages read.

    The stages are built, then rewritten in turn by `pad_to_blocks`, `split_phases`, `band_blocks` (packed
    inputs and bands as `changes` say) and `merge_axes`. Inputs keep their elements in row-major order, but
    may have fewer axes.

    Raises ValueError for bands of another scope, and LoweringError for element types that kernels do not
    support and for sizes that are symbolic or too large.
    """
    symbols = free_names(scope).symbols
    if symbols:
        raise LoweringError(f"sizes that are no numbers: {', '.join(map(str, symbols))}")
    _check_storable(inputs)
    squeezed = [Tensor(x.name, tuple(n for n in x.shape if n != 1), x.dtype) for x in inputs]
    stages = split_phases(widen_to_blocks(build_stages(scope), select_packs(changes)))
    for band in select_bands(changes):
        stages = block_band(stages, band)
    stages, read_inputs = merge_axes(stages, squeezed)
    _check_storable([stage.tensor for stage in stages])
    return stages, read_inputs


def _check_storable(tensors: Iterable[Tensor]) -> None:
    for x in tensors:
        try:
            halide_type(x.dtype)
        except KeyError:
            raise LoweringError(f"elements of {x.dtype}") from None
        if prod(n for n in x.shape if isinstance(n, int)) > MAX_INDEX:
            raise LoweringError(f"more than {MAX_INDEX} elements in a tensor: places are 32-bit integers")


def build_pipeline(
    stages: Sequence[Stage], inputs: Sequence[Tensor], schedule: Sequence[Sketch]
) -> tuple[LoweredStages, Any]:
    """Lowers stages and schedules them by a sketch for each nest; returns the output's function, too.

    Raises ValueError for a schedule of other stages, and halide.HalideError for loops that Halide rejects;
    `kernels.halide.compile` turns both into LoweringError.
    """
    match schedule:
        case (ChainSketch() as sketch,):
            return _build_chain_pipeline(stages, inputs, sketch)
    return _PipelineBuilder(stages, inputs, schedule).build()


def _build_chain_pipeline(
    stages: Sequence[Stage], inputs: Sequence[Tensor], sketch: ChainSketch
) -> tuple[LoweredStages, Any]:
    """Lays out, lowers and schedules the stages of a bilinear chain."""
    chain = recognize_chain(stages)
    if chain is None or not len(sketch.block) == len(sketch.tile) == len(chain.tiles):
        raise ValueError("a sketch of another chain")
    if extent(chain.products.axes[chain.lane_place]) != sketch.lanes * sketch.vectors:
        raise ValueError("a sketch of weights that are packed in another way")
    layout = lay_out_chain(chain, sketch.channel_lanes, sketch.lanes, chain.row_elements)
    orders = {stage.tensor.name: range(len(stage.reduced))[::-1] for stage in layout.products}
    lowered = lower_stages(layout.stages, inputs, orders)
    func = lowered.funcs[layout.output.tensor.name]
    set_dense_layout(func.output_buffer(), [extent(a) for a in layout.output.axes])
    for a in layout.output.axes:
        func.bound(lowered.variables[a], 0, extent(a))
    schedule_chain(chain, layout, sketch, lowered)
    return lowered, func


def _is_long_float_sum(stage: Stage) -> bool:
    """Whether the stage adds up so many floats that one long sum would lose accuracy."""
    terms = prod(extent(r) for r in stage.reduced)
    return terms > LONG_SUM_TERMS and stage.monoid == "sum" and stage.tensor.dtype.startswith("float")


class _PipelineBuilder:
    """Lowers and schedules stages that are no bilinear chain."""

    def __init__(self, stages: Sequence[Stage], inputs: Sequence[Tensor], schedule: Sequence[Sketch]):
        self.stages = {stage.tensor.name: stage for stage in stages}
        # by the name of a stage:
        self.operand_stages: dict[str, Sequence[Stage]] = {}  # stages that are added before it
        self.copies: dict[str, list[tuple[Stage, int]]] = {}  # its copied operands and their loop levels
        self.partials: dict[str, SplitReduction] = {}  # its partial results along a row
        self.groups: dict[str, Stage] = {}  # the stage of the groups that it adds up
        self.orders: dict[str, Sequence[int]] = {}  # its reduced axes, innermost first
        self.nests = find_nests(stages)
        if len(self.nests) != len(schedule):
            raise ValueError(f"{len(schedule)} sketches for {len(self.nests)} nests")
        self.sketches = dict(zip((n.output.tensor.name for n in self.nests), schedule, strict=True))
        self.shared_axes = count_shared_axes(stages, self.nests) if len(self.nests) > 1 else 0
        # the stages that sketches need, then all stages as Halide functions, without schedules yet
        for nest in self.nests:
            self.apply_sketch(nest, self.sketches[nest.output.tensor.name])
        ordered: list[Stage] = []
        for name, stage in self.stages.items():
            ordered += [*self.operand_stages.get(name, ()), stage]
        self.lowered = lower_stages(ordered, inputs, self.orders)

    def apply_sketch(self, nest: Nest, sketch: Sketch) -> None:
        """Adds the stages that a sketch needs: copies of operands, partial results, groups of sums."""
        if nest.main is None:
            return
        name, main = nest.main.tensor.name, nest.main
        if isinstance(sketch, RowSketch):
            split = self.partials[name] = split_row_reduction(main, main.reduced[-1], sketch.width)
            self.operand_stages[name] = split.stages[:-1]
            self.stages[name] = split.result
        elif isinstance(sketch, BlockSketch):
            # copies of operands; after each, `main` is the reduction that reads the copy
            copies: list[Stage] = []
            levels: list[tuple[Stage, int]] = []
            vector, width = main.axes[sketch.vector], sketch.lanes * sketch.vectors
            # where this is False, vectors reach beyond the axis: they can only read a copy that is longer
            fills_vectors = extent(vector) >= width or extent(vector) % sketch.lanes == 0
            for source, level in sketch.copies:
                operand_reads = (r for r in reads(main.body) if isinstance(r.source, Tensor))
                operand = next((r for r in operand_reads if r.source.name == source), None)  # type: ignore[union-attr]
                multiple = 1 if fills_vectors else width
                copied = f"{name}_{source}"
                result = None if operand is None else copy_operand(main, operand, vector, copied, multiple)
                if result is None:
                    raise ValueError(f"{source} cannot be copied")
                new_copies, main = result
                copies += new_copies
                levels += [(copy, level) for copy in new_copies]
            # a vector that reaches beyond its axis may only read operands that are copied
            copied_names = {copy.tensor.name for copy in copies}
            if not fills_vectors and any(
                isinstance(r.source, Tensor) and r.source.name not in copied_names and vector in free_axes(r)
                for r in reads(main.body)
            ):
                raise ValueError("a vector reaches beyond an operand that is not copied")
            # a long sum becomes a sum of groups
            self.orders[name] = sketch.order
            added_stages = copies
            is_long = _is_long_float_sum(main)
            if is_long and (parts := group_long_sum(main, sketch.order, GROUP_TERMS, sketch.unrolled)):
                self.groups[name], main = parts
                added_stages = [*copies, parts[0]]
                for stage in parts:  # their reduced axes are outermost first
                    self.orders[stage.tensor.name] = range(len(stage.reduced))[::-1]
            self.operand_stages[name], self.copies[name], self.stages[name] = added_stages, levels, main

    def build(self) -> tuple[LoweredStages, Any]:
        """Schedules the last nest at the root, and the others in its loops over the shared axes, if any.

        In these loops a nest computes only a part of its first axes (`EnclosingLoops.sizes`), so just its
        other axes have known bounds.
        """
        output = self.nests[-1].output
        func = self.lowered.funcs[output.tensor.name]
        set_dense_layout(func.output_buffer(), [extent(a) for a in output.axes])
        for a in output.axes:
            func.bound(self.lowered.variables[a], 0, extent(a))
        around = self.schedule_nest(self.nests[-1], self.shared_axes, AT_ROOT)
        for nest in reversed(self.nests[:-1]):
            inner = around.place_func(self.lowered.funcs[nest.output.tensor.name])
            for a in nest.output.axes[len(around.sizes) :]:
                inner.bound(self.lowered.variables[a], 0, extent(a))
            self.schedule_nest(nest, 0, around)
        return self.lowered, func

    def schedule_nest(self, nest: Nest, shared_axes: int, around: EnclosingLoops) -> EnclosingLoops:
        """Schedules the loops of one nest, and returns those over its first `shared_axes` axes."""
        sketch = self.sketches[nest.output.tensor.name]
        main = None if nest.main is None else self.stages[nest.main.tensor.name]
        scheduled = Nest(self.stages[nest.output.tensor.name], main)
        if isinstance(sketch, BlockSketch):
            copies = () if main is None else self.copies.get(main.tensor.name, ())
            groups = None if main is None else self.groups.get(main.tensor.name)
            return schedule_block(scheduled, sketch, self.lowered, copies, groups, shared_axes, around)
        func = self.lowered.funcs[nest.output.tensor.name]

        def inside(loops: Sequence[Any], count: int) -> EnclosingLoops:
            """Returns the first `count` loops, inside which the axes of these loops have one index."""
            return EnclosingLoops(func, loops[count - 1], (1,) * count) if count else AT_ROOT

        if isinstance(sketch, FlatSketch):
            count = min(sketch.around or shared_axes, shared_axes)
            return inside(schedule_flat(scheduled, sketch, self.lowered, count, around), count)
        # a `RowSketch`: loops over the elements of the output, and in these the partial results of one
        assert main is not None
        rank = len(scheduled.output.axes)
        outer = schedule_flat(scheduled, FlatSketch(1, 1, sketch.parallel), self.lowered, rank, around)
        # a nest of one element in its enclosing loops has its partial results computed in these loops
        is_single = around.func is not None and all(n == 1 for n in around.sizes_inside(scheduled.output))
        level = around if is_single else inside(outer, rank)
        schedule_row(self.partials[main.tensor.name], self.lowered, level, sketch.lanes)
        return inside(outer, shared_axes)
