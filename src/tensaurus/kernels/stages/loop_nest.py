"""Groups stages in loop nests: a reduction shares a nest with the elementwise stages that follow it.

    s0[i:4] = sum[r:8] x[i, r],  s1[i:4] = exp(s0[i])   ->   one nest that stores s1

A reduction whose only reader reads it element by element is finished in that reader's loops. Of other stages,
those that compute little are inlined in each of their readers; those that compute much, and would be computed
repeatedly, are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensaurus.expr.ir.scalar_functions import FIELD_FUNCTIONS, LATTICE_FUNCTIONS
from tensaurus.expr.ir.scope import Call, Read
from tensaurus.expr.ir.walk import bodies
from tensaurus.expr.sizes.size import polynomial
from tensaurus.kernels.stages.stage import Stage, extent, source_name

__all__ = ["Nest", "find_nests", "format_nests", "count_shared_axes"]

# scalar functions that take no longer than a read, and may be inlined
CHEAP_FUNCTIONS = FIELD_FUNCTIONS - {"div"} | LATTICE_FUNCTIONS


@dataclass(frozen=True)
class Nest:
    """A loop nest, which stores `output`.

    `main` is the reduction that is computed first in its loops, None if there is none.  It may be `output`
    itself; else the stages from `main` to `output` are elementwise, and those between are inlined.
    """

    output: Stage
    main: Stage | None


def find_nests(stages: Sequence[Stage]) -> tuple[Nest, ...]:
    """Returns the nests in the order of their stages; stages in no nest are inlined where they are read."""
    readers: dict[str, list[Stage]] = {stage.tensor.name: [] for stage in stages}
    for stage in stages:
        for tensor in stage.sources:
            if tensor.name in readers:
                readers[tensor.name].append(stage)
    nests: list[Nest] = []
    reductions: dict[str, Stage] = {}  # by the tensor that a nest stores: the nest's reduction
    for stage in stages:
        if not stage.reduced:
            continue
        last = stage  # follow the elementwise stages after the reduction, as long as each has one reader
        while len(after := readers[last.tensor.name]) == 1 and _reads_own_indices(after[0], last):
            last = after[0]
        if last.tensor.name in reductions:  # another reduction is finished there: this one is stored itself
            last = stage
        reductions[last.tensor.name] = stage
    for stage in stages:
        name = stage.tensor.name
        if name in reductions:
            nests.append(Nest(stage, reductions[name]))
        # else the output is stored, and an elementwise stage that costs much and would be computed repeatedly
        elif (
            stage is stages[-1]
            or not stage.reduced
            and _has_expensive_function(stage)
            and _is_computed_repeatedly(stage, readers[name])
        ):
            nests.append(Nest(stage, None))
    return tuple(nests)


def format_nests(stages: Sequence[Stage]) -> str:
    """Returns one line for each nest, with the tensor that it stores, and a line with the inlined stages.

        for [64, 256]: store s4, after s3: sum over [256]
    """
    lines, inlined = [], [stage.tensor.name for stage in stages]
    for nest in find_nests(stages):
        text = f"for [{', '.join(str(extent(a)) for a in nest.output.axes)}]: store {nest.output.tensor.name}"
        done = {nest.output.tensor.name}
        if nest.main is not None:
            done.add(nest.main.tensor.name)
            over = ", ".join(str(extent(a)) for a in nest.main.reduced)
            after = "" if nest.main is nest.output else f", after {nest.main.tensor.name}"
            text += f"{after}: {nest.main.monoid} over [{over}]"
        lines.append(text)
        inlined = [name for name in inlined if name not in done]
    return "\n".join([*lines, *([f"inlined: {', '.join(inlined)}"] if inlined else [])])


def _reads_own_indices(reader: Stage, stage: Stage) -> bool:
    """Whether each element of the reader reads one element of the stage, the one of the same indices."""
    if reader.reduced or len(reader.axes) != len(stage.axes):
        return False
    places = tuple(map(polynomial, reader.axes))
    return all(
        body.indices == places and body.source.shape == reader.tensor.shape
        for body in bodies(reader.body)
        if isinstance(body, Read) and source_name(body) == stage.tensor.name
    )


def _is_computed_repeatedly(stage: Stage, readers: Sequence[Stage]) -> bool:
    """Whether inlining would compute elements repeatedly: in several readers, or in one with more points."""
    return len(readers) > 1 or any(reader.points > stage.points for reader in readers)


def _has_expensive_function(stage: Stage) -> bool:
    return any(isinstance(body, Call) and body.fn not in CHEAP_FUNCTIONS for body in bodies(stage.body))


def count_shared_axes(stages: Sequence[Stage], nests: Sequence[Nest]) -> int:
    """Returns how many leading axes of the output all nests share.

    These axes have the same extents in all nests, and along them each stage reads other stages at its own
    indices only.  So one loop over these axes can compute all nests, one after another, for each index.
    """
    computed = {stage.tensor.name for stage in stages}
    reductions = [nest.main for nest in nests if nest.main is not None]
    output = nests[-1].output
    shared = min(len(nest.output.axes) for nest in nests)
    if any(nest.output.tensor.shape[:shared] != output.tensor.shape[:shared] for nest in nests):
        shapes = [nest.output.tensor.shape for nest in nests]
        # the first dimension in which the shapes differ
        shared = next(d for d in range(shared + 1) if d == shared or len({s[d] for s in shapes}) > 1)
    for stage in stages:
        if stage.reduced and stage not in reductions:  # a reduction without a nest; `find_nests` makes none
            return 0
        for body in bodies(stage.body):
            if isinstance(body, Read) and source_name(body) in computed:
                leading = 0  # the number of leading indices that are the stage's own axes
                for index, a in zip(body.indices, stage.axes, strict=False):
                    if index != polynomial(a):
                        break
                    leading += 1
                shared = min(shared, leading)
    return shared
