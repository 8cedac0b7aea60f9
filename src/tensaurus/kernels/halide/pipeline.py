"""Builds Halide's functions with their loops from an expression and a schedule.

    scope -> `schedulable_stages` -> stages -> `build_pipeline` -> scheduled Halide functions

Stages form loop nests (`stages/loop_nest`), and a schedule has one sketch for each. The sketch first adds the
stages that it needs (copies of operands, partial results, groups of long sums); then all stages become Halide
functions, whose loops the sketches arrange. `halide/compile` calls both steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tensaurus.expr.ir.printer import free_names
from tensaurus.expr.ir.scope import Scope, Tensor
from tensaurus.expr.ir.walk import reads
from tensaurus.kernels.halide.block_loops import schedule_block
from tensaurus.kernels.halide.chain_loops import schedule_chain
from tensaurus.kernels.halide.lower import MAX_INDEX, LoweredStages, lower_stages, set_dense_layout
from tensaurus.kernels.halide.lowering_errors import LoweringError
from tensaurus.kernels.halide.schedule import AT_ROOT, EnclosingLoops, schedule_flat, schedule_row_reduction
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
from tensaurus.kernels.stages.stage import Stage, build_stages, extent, source_name

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
    lowered = lower_stages(layout.stages, inputs)
    func = _bound_output(layout.output, lowered)
    schedule_chain(chain, layout, sketch, lowered)
    return lowered, func


def _bound_output(output: Stage, lowered: LoweredStages) -> Any:
    """Returns the output's function, after telling Halide the shape of its dense buffer."""
    func = lowered.funcs[output.tensor.name]
    set_dense_layout(func.output_buffer(), [extent(a) for a in output.axes])
    for a in output.axes:
        func.bound(lowered.variables[a], 0, extent(a))
    return func


@dataclass(frozen=True)
class _SketchedReduction:
    """The reduction of a nest as its sketch computes it.

    main    the stage that takes the reduction's place
    before  stages that are added before it: copies of operands, partial results, sums of groups
    order   its reduced axes, innermost first; None for the last axis innermost
    copies  the copies among the stages before, each with the loop level that it is computed at
    groups  the stage of the groups that `main` adds up
    split   the stages of partial results along a row
    """

    main: Stage
    before: tuple[Stage, ...] = ()
    order: Sequence[int] | None = None
    copies: tuple[tuple[Stage, int], ...] = ()
    groups: Stage | None = None
    split: SplitReduction | None = None


def _sketch_reduction(main: Stage, sketch: Sketch) -> _SketchedReduction:
    """Adds the stages that a sketch needs. Raises ValueError for a sketch of another reduction."""
    if isinstance(sketch, BlockSketch):
        return _sketch_block_reduction(main, sketch)
    if isinstance(sketch, RowSketch):
        split = split_row_reduction(main, main.reduced[-1], sketch.width)
        return _SketchedReduction(split.result, split.stages[:-1], split=split)
    return _SketchedReduction(main)


def _fit_vectors(sketch: Sketch, main: Stage | None) -> Sketch:
    """Returns the sketch with one vector of the axis's extent, where its vectors would reach beyond the axis.

    If only fourteen of a vector's sixteen accumulators are used, LLVM keeps all of them in memory instead of
    a register: a depthwise convolution of 14x14 would take 15 times as long.
    """
    if not isinstance(sketch, BlockSketch) or main is None:
        return sketch
    size = extent(main.axes[sketch.vector])
    if size >= sketch.lanes * sketch.vectors or size % sketch.lanes == 0:
        return sketch
    return replace(sketch, lanes=size, vectors=1)


def _sketch_block_reduction(main: Stage, sketch: BlockSketch) -> _SketchedReduction:
    vector = main.axes[sketch.vector]
    copies: list[tuple[Stage, int]] = []
    for source, level in sketch.copies:
        operand = next((r for r in reads(main.body) if source_name(r) == source), None)
        name = f"{main.tensor.name}_{source}"
        result = None if operand is None else copy_operand(main, operand, vector, name)
        if result is None:
            raise ValueError(f"{source} cannot be copied")
        new_copies, main = result  # `main` reads the last copy now
        copies += [(copy, level) for copy in new_copies]
    before = tuple(copy for copy, _ in copies)
    if _is_long_float_sum(main):
        parts = group_long_sum(main, sketch.order, GROUP_TERMS, sketch.unrolled)
        if parts is not None:
            groups, main = parts
            return _SketchedReduction(main, (*before, groups), copies=tuple(copies), groups=groups)
    return _SketchedReduction(main, before, sketch.order, tuple(copies))


def _is_long_float_sum(stage: Stage) -> bool:
    """Whether the stage adds up so many floats that one long sum would lose accuracy."""
    terms = prod(extent(r) for r in stage.reduced)
    return terms > LONG_SUM_TERMS and stage.monoid == "sum" and stage.tensor.dtype.startswith("float")


class _PipelineBuilder:
    """Lowers and schedules stages that are no bilinear chain."""

    def __init__(self, stages: Sequence[Stage], inputs: Sequence[Tensor], schedule: Sequence[Sketch]):
        self.nests = find_nests(stages)
        if len(self.nests) != len(schedule):
            raise ValueError(f"{len(schedule)} sketches for {len(self.nests)} nests")
        pairs = zip(self.nests, schedule, strict=True)
        self.schedule = [_fit_vectors(sketch, nest.main) for nest, sketch in pairs]
        self.shared_axes = count_shared_axes(stages, self.nests) if len(self.nests) > 1 else 0
        self.reductions = {
            nest.main.tensor.name: _sketch_reduction(nest.main, sketch)
            for nest, sketch in zip(self.nests, self.schedule, strict=True)
            if nest.main is not None
        }
        ordered: list[Stage] = []
        for stage in stages:
            reduction = self.reductions.get(stage.tensor.name)
            ordered += [stage] if reduction is None else [*reduction.before, reduction.main]
        orders = {name: r.order for name, r in self.reductions.items() if r.order is not None}
        self.lowered = lower_stages(ordered, inputs, orders)  # without schedules yet

    def build(self) -> tuple[LoweredStages, Any]:
        """Schedules the last nest at the root, and the others in its loops over the shared axes, if any.

        In these loops a nest computes only a part of its first axes (`EnclosingLoops.sizes`), so just its
        other axes have known bounds.
        """
        *inner_nests, last = zip(self.nests, self.schedule, strict=True)
        func = _bound_output(last[0].output, self.lowered)
        around = self.schedule_nest(*last, self.shared_axes, AT_ROOT)
        for nest, sketch in reversed(inner_nests):
            inner = around.place_func(self.lowered.funcs[nest.output.tensor.name])
            for a in nest.output.axes[len(around.sizes) :]:
                inner.bound(self.lowered.variables[a], 0, extent(a))
            self.schedule_nest(nest, sketch, 0, around)
        return self.lowered, func

    def schedule_nest(
        self, nest: Nest, sketch: Sketch, shared_axes: int, around: EnclosingLoops
    ) -> EnclosingLoops:
        """Schedules the loops of one nest, and returns those over its first `shared_axes` axes."""
        computed = self.nests if shared_axes else (nest,)  # in the nest's loops
        points = sum((each.main or each.output).points for each in computed)
        reduction = None if nest.main is None else self.reductions[nest.main.tensor.name]
        if reduction is not None:
            nest = Nest(reduction.main if nest.main is nest.output else nest.output, reduction.main)
        if isinstance(sketch, BlockSketch):
            copies, groups = ((), None) if reduction is None else (reduction.copies, reduction.groups)
            return schedule_block(nest, sketch, self.lowered, copies, groups, shared_axes, around, points)
        func = self.lowered.funcs[nest.output.tensor.name]

        def loops_inside(loops: Sequence[Any], count: int) -> EnclosingLoops:
            """Returns the first `count` loops, inside which the axes of these loops have one index."""
            return EnclosingLoops(func, loops[count - 1], (1,) * count) if count else AT_ROOT

        if isinstance(sketch, FlatSketch):
            count = min(sketch.around or shared_axes, shared_axes)
            return loops_inside(schedule_flat(nest, sketch, self.lowered, count, around, points), count)
        # a `RowSketch`: loops over the elements of the output, and in these the partial results of one
        assert reduction is not None and reduction.split is not None
        rank = len(nest.output.axes)
        outer = schedule_flat(nest, FlatSketch(1, 1, sketch.parallel), self.lowered, rank, around, points)
        # a nest of one element in its enclosing loops has its partial results computed in these loops
        is_single = around.func is not None and all(n == 1 for n in around.sizes_inside(nest.output))
        level = around if is_single else loops_inside(outer, rank)
        schedule_row_reduction(reduction.split, self.lowered, level, sketch.lanes)
        return loops_inside(outer, shared_axes)
