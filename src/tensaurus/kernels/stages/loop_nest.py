"""Which stages share one nest of loops: a reduction with what is computed of it at once, or neither.

A reduction whose only reader reads it place by place is finished in that reader's loops; what computes
little is
computed again in each of its readers, and what moves or costs much is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensaurus.expr.ir.scalar_functions import FIELD_FUNCTIONS, LATTICE_FUNCTIONS
from tensaurus.expr.ir.scope import Call, Read, Tensor
from tensaurus.expr.ir.walk import bodies
from tensaurus.expr.sizes.size import polynomial
from tensaurus.kernels.stages.stage import Stage

__all__ = ["Nest", "nests", "rows"]

CHEAP = FIELD_FUNCTIONS - {"div"} | LATTICE_FUNCTIONS  # functions that take no longer than a read


@dataclass(frozen=True)
class Nest:
    """`output` is stored; `main` is the reduction that it finishes, itself perhaps; others are put in
    them.
    """

    output: Stage
    main: Stage | None


def nests(stages: Sequence[Stage]) -> tuple[Nest, ...]:
    """The nests in their order; stages in none of them are computed where they are read."""
    readers: dict[str, list[Stage]] = {stage.tensor.name: [] for stage in stages}
    for stage in stages:
        for tensor in stage.sources:
            if tensor.name in readers:
                readers[tensor.name].append(stage)
    found: list[Nest] = []
    ends: dict[str, Stage] = {}
    for stage in stages:
        if not stage.reduced:
            continue
        last = stage
        while len(after := readers[last.tensor.name]) == 1 and _finishes(after[0], last):
            last = after[0]
        if last.tensor.name in ends:
            last = stage
        ends[last.tensor.name] = stage
    for stage in stages:
        name = stage.tensor.name
        if name in ends:
            found.append(Nest(stage, ends[name]))
        elif stage is stages[-1] or not stage.reduced and _dear(stage) and _repeated(stage, readers[name]):
            found.append(Nest(stage, None))
    return tuple(found)


def _finishes(reader: Stage, stage: Stage) -> bool:
    """Whether it reads the stage place by place, and nothing else of it."""
    if reader.reduced or len(reader.axes) != len(stage.axes):
        return False
    own = tuple(map(polynomial, reader.axes))
    return all(
        body.indices == own and body.source.shape == reader.tensor.shape
        for body in bodies(reader.body)
        if isinstance(body, Read)
        and isinstance(body.source, Tensor)
        and body.source.name == stage.tensor.name
    )


def _repeated(stage: Stage, readers: Sequence[Stage]) -> bool:
    """Whether its elements would be computed more than once: by several readers, or in one's reduction."""
    return len(readers) > 1 or any(reader.points > stage.points for reader in readers)


def _dear(stage: Stage) -> bool:
    return any(isinstance(body, Call) and body.fn not in CHEAP for body in bodies(stage.body))


def rows(stages: Sequence[Stage], found: Sequence[Nest]) -> int:
    """How many leading axes of the output all nests share: each reads what it reads of others in its own
    row.
    """
    computed = {stage.tensor.name for stage in stages}
    inner = [nest.main for nest in found if nest.main is not None]
    output = found[-1].output
    shared = min(len(nest.output.axes) for nest in found)
    if any(nest.output.tensor.shape[:shared] != output.tensor.shape[:shared] for nest in found):
        shapes = [nest.output.tensor.shape for nest in found]
        shared = next(d for d in range(shared + 1) if d == shared or len({s[d] for s in shapes}) > 1)
    for stage in stages:
        if stage.reduced and stage not in inner:
            return 0
        for body in bodies(stage.body):
            source = body.source if isinstance(body, Read) else None
            if isinstance(body, Read) and isinstance(source, Tensor) and source.name in computed:
                alike = 0
                for index, a in zip(body.indices, stage.axes, strict=False):
                    if index != polynomial(a):
                        break
                    alike += 1
                shared = min(shared, alike)
    return shared
