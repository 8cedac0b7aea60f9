"""Describes how a reduction reads its operands: which axes move along which dimensions (ETO section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensaurus.expr.ir.scope import Read, Select, Tensor
from tensaurus.expr.ir.walk import bodies, reads
from tensaurus.expr.sizes.size import Axis, atoms
from tensaurus.kernels.stages.copy_operands import axis_coefficients
from tensaurus.kernels.stages.stage import Stage

__all__ = ["OperandAccess", "condition_axes", "operand_accesses", "window_axes"]


@dataclass(frozen=True)
class OperandAccess:
    """One read of a stage, with the axes' coefficients in each dimension (None: not affine).

    For x[c, 2*i + r - 1] `name` is x, and `coefficients` are {c: 1}, {i: 2, r: 1}.
    """

    read: Read
    name: str
    coefficients: tuple[dict[Axis, int] | None, ...]
    is_repeated: bool  # the stage has other reads of the same tensor

    def dimensions_moved_by(self, a: Axis) -> list[int]:
        """Returns the dimensions whose index the axis moves, or may move."""
        return [d for d, form in enumerate(self.coefficients) if form is None or a in form]

    def last_dimension_step(self, a: Axis) -> int | None:
        """Returns an axis's coefficient if it moves the last dimension alone, 0 if it moves none, else None.

        Vectors along the axis read equal elements for 0, elements side by side for 1, and others otherwise.
        """
        dimensions = self.dimensions_moved_by(a)
        form = self.coefficients[-1] if self.coefficients else {}
        if not dimensions:
            return 0
        return form[a] if dimensions == [len(self.coefficients) - 1] and form is not None else None

    def is_copyable(self, a: Axis) -> bool:
        """Whether the operand can be copied for vectors along the axis (`stages.copy_operands`)."""
        return (  # read once, at affine indices, at least one; the axis moves one at most
            not self.is_repeated
            and None not in self.coefficients
            and len(self.dimensions_moved_by(a)) <= 1
            and bool(self.coefficients)
        )


def operand_accesses(stage: Stage) -> tuple[OperandAccess, ...]:
    """Returns the reads of tensors in the stage's body, each once."""
    tensor_reads = [r for r in dict.fromkeys(reads(stage.body)) if isinstance(r.source, Tensor)]
    axes = (*stage.axes, *stage.reduced)
    names = [r.source.name for r in tensor_reads if isinstance(r.source, Tensor)]
    return tuple(
        OperandAccess(r, name, tuple(axis_coefficients(i, axes) for i in r.indices), names.count(name) > 1)
        for r, name in zip(tensor_reads, names, strict=True)
    )


def window_axes(stage: Stage, operands: Sequence[OperandAccess]) -> dict[Axis, list[Axis]]:
    """Returns for each axis of the output the reduced axes that move along a dimension together with it.

    Where there are any, the axis places a window, as i in x[2*i + r], and r goes over the window's taps.
    """
    return {
        a: [
            r
            for r in stage.reduced
            if any(form and a in form and r in form for operand in operands for form in operand.coefficients)
        ]
        for a in stage.axes
    }


def condition_axes(stage: Stage) -> set[Axis]:
    """Returns the axes that guards depend on; unrolling these axes decides guards at compile time."""
    guards = [g for body in bodies(stage.body) if isinstance(body, Select) for g in body.guard]
    return {a for guard in guards for a in atoms(guard) if isinstance(a, Axis)}
