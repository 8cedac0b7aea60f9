"""From a scope and a schedule to Halide's functions with their loops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from tensaurus.expr.ir.printer import free_names
from tensaurus.expr.ir.scope import Scope, Tensor
from tensaurus.expr.ir.walk import free_axes, reads
from tensaurus.kernels.halide.chain_loops import transform
from tensaurus.kernels.halide.lower import LARGEST, Lowered, dense, lower
from tensaurus.kernels.halide.lowering_errors import Unlowered
from tensaurus.kernels.halide.schedule import NOTHING, Around, block, flat, row
from tensaurus.kernels.math.halide_functions import halide_type
from tensaurus.kernels.stages.band_blocks import banded
from tensaurus.kernels.stages.bilinear_chain import chain
from tensaurus.kernels.stages.chain_layout import transformed
from tensaurus.kernels.stages.copy_operands import copied
from tensaurus.kernels.stages.group_long_sums import grouped
from tensaurus.kernels.stages.loop_nest import Nest, nests, rows
from tensaurus.kernels.stages.merge_axes import merged
from tensaurus.kernels.stages.pad_to_blocks import widened
from tensaurus.kernels.stages.sketch import Block, Flat, Prefix, Row, Sketch, Transform, bands, packs
from tensaurus.kernels.stages.split_phases import phased
from tensaurus.kernels.stages.split_row_reduction import Partial, partial
from tensaurus.kernels.stages.stage import Stage, extent, staged

__all__ = ["prepared", "scheduled"]

LONG, GROUP = 512, 256  # terms of a sum beyond which it is one of groups, and terms of one of these at most


def prepared(
    scope: Scope, inputs: Sequence[Tensor], changes: Sequence[Prefix] = ()
) -> tuple[tuple[Stage, ...], tuple[Tensor, ...]]:
    """The stages of a scope, some of whose inputs are packed, as schedules speak of them, and the inputs as
    these read them: without gaps, so that only the number of elements is that of the tensors.

    Raises ValueError for bands of another scope, and Unlowered for element types that kernels lack, and for
    sizes that are no numbers, or too large.
    """
    symbols = free_names(scope).symbols
    if symbols:
        raise Unlowered(f"sizes that are no numbers: {', '.join(map(str, symbols))}")
    _storable(inputs)
    plain = [Tensor(x.name, tuple(n for n in x.shape if n != 1), x.dtype) for x in inputs]
    stages = phased(widened(staged(scope), packs(changes)))
    for band in bands(changes):
        stages = banded(stages, band)
    stages, read = merged(stages, plain)
    _storable([stage.tensor for stage in stages])
    return stages, read


def _storable(tensors: Iterable[Tensor]) -> None:
    for x in tensors:
        try:
            halide_type(x.dtype)
        except KeyError:
            raise Unlowered(f"elements of {x.dtype}") from None
        if prod(n for n in x.shape if isinstance(n, int)) > LARGEST:
            raise Unlowered(f"more than {LARGEST} elements in a tensor: places are 32-bit integers")


def scheduled(
    stages: Sequence[Stage], inputs: Sequence[Tensor], schedule: Sequence[Sketch]
) -> tuple[Lowered, Any]:
    """Halide's functions, and the one of the output, with the loops of a schedule: a sketch for each nest.

    Raises ValueError for a schedule of other stages, and halide.HalideError for loops that Halide refuses:
    `kernels.halide.compile` makes Unlowered of both.
    """
    match schedule:
        case (Transform() as sketch,):
            return _chained(stages, inputs, sketch)
    return _Scheduling(stages, inputs, schedule).whole()


def _chained(stages: Sequence[Stage], inputs: Sequence[Tensor], sketch: Transform) -> tuple[Lowered, Any]:
    """The loops of all stages of a chain."""
    found = chain(stages)
    if found is None or not len(sketch.block) == len(sketch.tile) == len(found.tiles):
        raise ValueError("a sketch of another chain")
    if extent(found.products.axes[found.lane]) != sketch.lanes * sketch.vectors:
        raise ValueError("a sketch of weights that are packed in another way")
    made = transformed(found, sketch.deep, sketch.lanes, found.row)
    orders = {stage.tensor.name: range(len(stage.reduced))[::-1] for stage in made.products}
    lowered = lower(made.stages, inputs, orders)
    func = lowered.funcs[made.output.tensor.name]
    dense(func.output_buffer(), [extent(a) for a in made.output.axes])
    for a in made.output.axes:
        func.bound(lowered.variables[a], 0, extent(a))
    transform(found, made, sketch, lowered)
    return lowered, func


def _long(stage: Stage) -> bool:
    """Whether it adds up so many floats that their order matters."""
    terms = prod(extent(r) for r in stage.reduced)
    return terms > LONG and stage.monoid == "sum" and stage.tensor.dtype.startswith("float")


class _Scheduling:
    def __init__(self, stages: Sequence[Stage], inputs: Sequence[Tensor], schedule: Sequence[Sketch]):
        self.stages = {stage.tensor.name: stage for stage in stages}
        self.before: dict[str, Sequence[Stage]] = {}  # what was made of a stage's operands
        self.copies: dict[str, list[tuple[Stage, int]]] = {}
        self.partials: dict[str, Partial] = {}
        self.groups: dict[str, Stage] = {}  # of which a stage is the sum
        self.orders: dict[str, Sequence[int]] = {}  # of reduced axes, innermost first
        self.nests = nests(stages)
        if len(self.nests) != len(schedule):
            raise ValueError(f"{len(schedule)} sketches for {len(self.nests)} nests")
        self.sketches = dict(zip((n.output.tensor.name for n in self.nests), schedule, strict=True))
        self.rows = rows(stages, self.nests) if len(self.nests) > 1 else 0
        for nest in self.nests:
            self.change(nest, self.sketches[nest.output.tensor.name])
        ordered: list[Stage] = []
        for name, stage in self.stages.items():
            ordered += [*self.before.get(name, ()), stage]
        self.lowered = lower(ordered, inputs, self.orders)

    def change(self, nest: Nest, sketch: Sketch) -> None:
        """The stages that a sketch wants beside those that there are."""
        if nest.main is None:
            return
        name, main = nest.main.tensor.name, nest.main
        if isinstance(sketch, Row):
            found = self.partials[name] = partial(main, main.reduced[-1], sketch.width)
            self.before[name] = found.stages[:-1]
            self.stages[name] = found.whole
        elif isinstance(sketch, Block):
            copies: list[Stage] = []
            levels: list[tuple[Stage, int]] = []
            vector, width = main.axes[sketch.vector], sketch.lanes * sketch.vectors
            exact = extent(vector) >= width or extent(vector) % sketch.lanes == 0
            for source, level in sketch.copies:
                known = (r for r in reads(main.body) if isinstance(r.source, Tensor))
                wanted = next((r for r in known if r.source.name == source), None)  # type: ignore[union-attr]
                filled = 1 if exact else width
                result = None if wanted is None else copied(main, wanted, vector, f"{name}_{source}", filled)
                if result is None:
                    raise ValueError(f"{source} cannot be copied")
                more, main = result
                copies += more
                levels += [(copy, level) for copy in more]
            made = {copy.tensor.name for copy in copies}
            if not exact and any(
                isinstance(r.source, Tensor) and r.source.name not in made and vector in free_axes(r)
                for r in reads(main.body)
            ):
                raise ValueError("a vector that reaches beyond what is no copy")
            self.orders[name] = sketch.order
            before = copies
            if _long(main) and (parts := grouped(main, sketch.order, GROUP, sketch.unrolled)):
                self.groups[name], main = parts
                before = [*copies, parts[0]]
                for stage in parts:
                    self.orders[stage.tensor.name] = range(len(stage.reduced))[::-1]
            self.before[name], self.copies[name], self.stages[name] = before, levels, main

    def whole(self) -> tuple[Lowered, Any]:
        output = self.nests[-1].output
        func = self.lowered.funcs[output.tensor.name]
        dense(func.output_buffer(), [extent(a) for a in output.axes])
        for a in output.axes:
            func.bound(self.lowered.variables[a], 0, extent(a))
        around = self.loops(self.nests[-1], self.rows, NOTHING)
        for nest in reversed(self.nests[:-1]):
            inner = around.computes(self.lowered.funcs[nest.output.tensor.name])
            for a in nest.output.axes[len(around.sizes) :]:
                inner.bound(self.lowered.variables[a], 0, extent(a))
            self.loops(nest, 0, around)
        return self.lowered, func

    def loops(self, nest: Nest, rows_: int, around: Around) -> Around:
        """The loops of one nest; those of its first axes."""
        sketch = self.sketches[nest.output.tensor.name]
        main = None if nest.main is None else self.stages[nest.main.tensor.name]
        now = Nest(self.stages[nest.output.tensor.name], main)
        if isinstance(sketch, Block):
            copies = () if main is None else self.copies.get(main.tensor.name, ())
            groups = None if main is None else self.groups.get(main.tensor.name)
            return block(now, sketch, self.lowered, copies, groups, rows_, around)
        func = self.lowered.funcs[nest.output.tensor.name]

        def inside(found: Sequence[Any], count: int) -> Around:
            return Around(func, found[count - 1], (1,) * count) if count else NOTHING

        if isinstance(sketch, Flat):
            count = min(sketch.around or rows_, rows_)
            return inside(flat(now, sketch, self.lowered, count, around), count)
        assert main is not None
        own = len(now.output.axes)
        found = flat(now, Flat(1, 1, sketch.parallel), self.lowered, own, around)
        one = around.func is not None and all(n == 1 for n in around.within(now.output))
        level = around if one else inside(found, own)
        row(self.partials[main.tensor.name], self.lowered, level, sketch.lanes)
        return inside(found, rows_)
