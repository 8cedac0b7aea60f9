"""How a reduction reads its operands: which axes move along which dimensions (ETO section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensaurus.expr.ir.scope import Read, Select, Tensor
from tensaurus.expr.ir.walk import bodies, reads
from tensaurus.expr.sizes.size import Axis, atoms
from tensaurus.kernels.stages.copy_operands import slopes
from tensaurus.kernels.stages.stage import Stage

__all__ = ["Operand", "conditional", "operands", "windowed"]


@dataclass(frozen=True)
class Operand:
    """One read of a stage; `forms`: the coefficient of each axis in each dimension, None where not affine."""

    read: Read
    name: str
    forms: tuple[dict[Axis, int] | None, ...]
    repeated: bool  # whether the stage reads the tensor at another place, too

    def along(self, a: Axis) -> list[int]:
        """The dimensions in which the axis moves it."""
        return [d for d, form in enumerate(self.forms) if form is None or a in form]

    def step(self, a: Axis) -> int | None:
        """By how many elements the axis moves along the last dimension alone; None for any other way."""
        places = self.along(a)
        form = self.forms[-1] if self.forms else {}
        if not places:
            return 0
        return form[a] if places == [len(self.forms) - 1] and form is not None else None

    def copyable(self, a: Axis) -> bool:
        return not self.repeated and None not in self.forms and len(self.along(a)) <= 1 and bool(self.forms)


def operands(stage: Stage) -> tuple[Operand, ...]:
    """The reads of tensors, each once."""
    found = [r for r in dict.fromkeys(reads(stage.body)) if isinstance(r.source, Tensor)]
    axes = (*stage.axes, *stage.reduced)
    names = [r.source.name for r in found if isinstance(r.source, Tensor)]
    return tuple(
        Operand(r, name, tuple(slopes(i, axes) for i in r.indices), names.count(name) > 1)
        for r, name in zip(found, names, strict=True)
    )


def windowed(stage: Stage, found: Sequence[Operand]) -> dict[Axis, list[Axis]]:
    """The reduced axes that share a dimension with an axis: a window slides along it."""
    return {
        a: [
            r
            for r in stage.reduced
            if any(form and a in form and r in form for operand in found for form in operand.forms)
        ]
        for a in stage.axes
    }


def conditional(stage: Stage) -> set[Axis]:
    """The axes that conditions depend on: unrolled, they are decided before the kernel runs."""
    guards = [g for body in bodies(stage.body) if isinstance(body, Select) for g in body.guard]
    return {a for guard in guards for a in atoms(guard) if isinstance(a, Axis)}
