"""Estimates the cycles of a reduction that is computed by register blocks.

A step of a block's reduction takes as long as its multiplications or its loads, whichever is longer (ETO
section 5.1, here for one core). `register_blocks` ranks blocks by these estimates.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

from tensaurus.expr.sizes.size import Axis
from tensaurus.kernels.stages.stage import Stage, extent
from tensaurus.kernels.tune.operand_access import OperandAccess, condition_axes, operand_accesses, window_axes
from tensaurus.kernels.tune.target_core import ELEMENT_BYTES, NestShape, TargetCore

__all__ = ["BlockedReduction", "RegisterBlock"]

MIN_STEP_CYCLES = 4.0  # the latency of a multiplication


@dataclass(frozen=True)
class RegisterBlock:
    """Vectors along axis number `vector`, times a block of other axes; and the operands that are copied."""

    vector: int
    vectors: int
    block: tuple[tuple[int, int], ...]
    copies: tuple[str, ...]

    @property
    def size(self) -> int:
        """The number of accumulators, each of which is a vector."""
        return self.vectors * prod(n for _, n in self.block)


class BlockedReduction:
    """One reduction on one processor, computed by register blocks in vectors of `lanes` elements.

    taps      numbers of the reduced axes along which a window slides, as r in x[c, 2*i + r]
    channels  numbers of the other reduced axes
    computed  operations for each element of an operand that is computed where it is read
    guarded   axes that guards depend on
    """

    def __init__(self, main: Stage, core: TargetCore, lanes: int, computed: Mapping[str, int]):
        self.computed = computed
        self.main, self.core, self.lanes, self.axes = main, core, lanes, main.axes
        self.sizes = [extent(a) for a in main.axes]
        self.shape = NestShape(tuple(self.sizes), main.points)
        self.operands = operand_accesses(main)
        self.window_axes = window_axes(main, self.operands)
        self.guarded = condition_axes(main)
        self.taps = [k for k, r in enumerate(main.reduced) if any(r in s for s in self.window_axes.values())]
        self.channels = [k for k in range(len(main.reduced)) if k not in self.taps]

    def is_copied_at_root(self, operand: OperandAccess, vector: int) -> bool:
        """Whether the copy is made before all loops: the operand is computed, and fixed along vectors."""
        return operand.name in self.computed and not operand.dimensions_moved_by(self.axes[vector])

    def step_cycles(self, registers: RegisterBlock, unrolled: Collection[Axis]) -> float:
        """Estimates the cycles of one step of the reduction, divided by the block's vectors.

        The step takes as long as its multiplications, one for each vector, or its loads, whichever is longer.
        """
        size = registers.size
        loads, scalars = self.count_loads(registers, unrolled)
        cycles = max(size, loads + scalars / 2, MIN_STEP_CYCLES)  # a scalar costs half a load
        # more values than registers: some are stored and loaded again
        if size + min(loads, scalars) > self.core.registers:
            cycles *= 1.5
        # what is computed beyond the ends of axes
        width, vector_size = self.lanes * registers.vectors, self.sizes[registers.vector]
        waste = ceil(vector_size / width) * width / vector_size
        for k, n in registers.block:
            waste *= ceil(self.sizes[k] / n) * n / self.sizes[k]
        return cycles / size * waste

    def count_loads(self, registers: RegisterBlock, unrolled: Collection[Axis]) -> tuple[float, float]:
        """Counts the loads of vectors and of scalars in one step of the reduction.

        A vector counts the more the farther the cache that holds its panel, all vectors of one block.
        """
        v = self.axes[registers.vector]
        loads = scalars = 0.0
        block = [(self.axes[k], n) for k, n in registers.block]
        for operand in self.operands:
            moving_block = [(a, n) for a, n in block if operand.dimensions_moved_by(a)]
            times = prod((n for _, n in moving_block), start=1.0)
            if operand.name not in registers.copies:
                times *= self.computed.get(operand.name, 1)
            if not operand.dimensions_moved_by(v):
                scalars += times
                continue
            # rows that taps of a window share are loaded once if the rows and the taps are unrolled
            for a, n in moving_block:
                for r in self.window_axes[a]:
                    if r in unrolled:
                        times *= (n + extent(r) - 1) / (n * extent(r))
            along = prod(extent(r) for r in self.main.reduced if operand.dimensions_moved_by(r))
            panel = registers.vectors * self.lanes * times * along * ELEMENT_BYTES
            far = 1.0 if panel <= self.core.l1_bytes else 1.5 if panel <= self.core.l2_bytes else 3.0
            loads += registers.vectors * times * far * (1.5 if self.window_axes[v] else 1.0)
        return loads, scalars

    def compute_cycles(self, registers: RegisterBlock, order: Sequence[int], unrolled: int) -> float:
        """Estimates the cycles of multiplications and stores.

        `order` has the reduced axes, innermost first; the first `unrolled` of them are unrolled.
        """
        step = self.step_cycles(registers, [self.main.reduced[k] for k in order[:unrolled]])
        results, after = prod(self.sizes), range(registers.vector + 1, len(self.axes))
        points = prod(extent(r) for r in self.main.reduced)
        cycles = results / self.lanes * points * step
        # Stores, and what begins and ends a block.  A vector's results lie side by side if the axes after its
        # own have one element each (dense).  Else they lie apart, and the block fills the gaps between them
        # if it has all these axes (inside); blocks that are stored with gaps take longest.
        inside = all(k in dict(registers.block) for k in after)
        dense = all(self.sizes[k] == 1 for k in after)
        cycles += results * (4 / self.lanes if dense else 1.0 if inside else 2.0)
        if unrolled == 0 and points > 1:  # the loop's own instructions
            cycles += results / self.lanes * points * 0.05
        return cycles

    def copy_cycles(self, registers: RegisterBlock, tiles: Sequence[tuple[int, int]]) -> float:
        """Estimates the cycles of copying operands, in tiles as in `BlockSketch.tile`.

        A copy is made again in each tile, unless it is made before all loops.
        """
        rounds = prod(-(-self.sizes[k] // n) for k, n in tiles)
        v, cycles = self.axes[registers.vector], 0.0
        for operand in self.operands:
            if operand.name not in registers.copies:
                continue
            elements = self.copied_elements(operand, dict(tiles))
            moved = operand.dimensions_moved_by(v)
            last = [len(operand.coefficients) - 1]
            # vectors go along another dimension than the last, or with a stride: the copy rearranges elements
            far = bool(moved) and (moved != last or operand.last_dimension_step(v) not in (0, 1))
            times = 1 if self.is_copied_at_root(operand, registers.vector) else rounds
            # a copy larger than the cache is written to memory and read again
            is_large = ELEMENT_BYTES * elements > self.core.l2_bytes
            cycles += elements * times * ((2.0 if far else 0.3) + (0.5 if is_large else 0.0))
        return cycles

    def copied_elements(self, operand: OperandAccess, tiles: Mapping[int, int]) -> float:
        """Returns the elements of a copy inside the tiles: the product of the spans of the indices."""
        elements = 1.0
        for form in operand.coefficients:
            span = 1.0
            for a, factor in (form or {}).items():
                width = extent(a)
                if a in self.axes:
                    width = min(tiles.get(self.axes.index(a), width), width)
                span += (width - 1) * abs(factor)
            elements *= span
        return elements
