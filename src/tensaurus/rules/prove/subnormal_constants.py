"""Constants whose subnormal elements become 0: not the same function, but nearer to it than any rounding.

    Conv(x, w) + b   =   Conv(x, w') + b      w' is w, with 0 in the place of every |element| < 2^-126

On Intel's processors arithmetic with subnormal numbers takes 10 to 100 times as long, and training leaves
them behind by the hundred thousand.  Where what reads a constant may make a large difference of a tiny one
(1 / w, w * 1e38 * 1e38, log w, w == 0), or an output may consist of it alone, it keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tensaurus.graph.analysis.constant_folding import fold_constants
from tensaurus.graph.analysis.constant_influence import MAX_EXACT_ELEMENTS, ChangeBound, ChangeRefused
from tensaurus.graph.ir.node import CONSTANT, Node, constant
from tensaurus.graph.ir.program import Program
from tensaurus.graph.ir.subnormal import find_subnormals, is_float, smallest_magnitude
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.evidence import Bounded

__all__ = [
    *("SUBNORMALS", "Flushed", "flush_folded", "flush_subnormals", "flushed_constants", "refute_flush")
]

SUBNORMALS = "subnormal-constants"
REACHES = (2.0**64, 2.0**40, 2.0**24)  # how large values at run time may be: the first one that does counts
NEARLY = 2.0**30  # times the smallest normal number: products with common numbers may be subnormal
NAMED = 3  # constants that the law names


@dataclass(frozen=True)
class Flushed:
    """A program with zeros in the place of subnormal elements.

    equation  that makes it of the program before; None where nothing changed
    kept      constants that keep theirs, each with the reason
    """

    program: Program
    equation: Equation | None
    kept: Mapping[Node, str]


def flush_subnormals(program: Program, within: bool = False) -> Flushed:
    """The program without the subnormal elements that no result depends on; `within` a body."""
    return _flushed(program, program, within)


def flush_folded(program: Program) -> Flushed:
    """The same of a program whose expressions over constants are computed, where that may make such elements:
    weights that are scaled, or transformed for a fast algorithm."""
    if not any(map(_may_shrink, program.static)):
        return Flushed(program, None, {})
    return _flushed(program, fold_constants(program), False)


def _may_shrink(node: Node) -> bool:
    """Whether it is computed of constants with elements that are nearly subnormal."""
    read = [arg for arg in node.args if arg is not None and arg.op is CONSTANT and is_float(arg.types[0])]
    return any(smallest_magnitude(arg.attribute("data")) < NEARLY for arg in read)


def _flushed(before: Program, program: Program, within: bool) -> Flushed:
    found = {node: zeroed for node in program.nodes if (zeroed := _zeroed(node)) is not None}
    kept = dict[Node, str]()
    bounded = _bounded(program, found, within)
    if found and bounded is None:
        spread = ChangeBound(program, REACHES[-1], within)
        for node in list(found):  # each alone: what one depends on is no reason for another
            _drop_refused(spread, {node: found[node]}, found, kept)
        while found and _drop_refused(spread, found, found, kept):
            pass
        bounded = _bounded(program, found, within)
    if not found or bounded is None:
        return Flushed(before, None, kept)
    made = program.replace_nodes(found)
    return Flushed(made, _equation(before, made, found, bounded), kept)


def _bounded(program: Program, moved: Mapping[Node, Node], within: bool) -> Bounded | None:
    """How far they move the program, for the largest reach at which that can be told."""
    for reach in REACHES:
        try:
            return Bounded("intervals", reach, ChangeBound(program, reach, within)(moved), within)
        except ChangeRefused:
            continue
    return None


def flushed_constants(before: Program, after: Program) -> dict[Node, Node]:
    """Return the constants of a program that have subnormal elements and are not in the other one, each with
    the constant that has zeros there."""
    new = {node for node in after.nodes if node.op is CONSTANT}
    found = {node: zeroed for node in before.nodes if (zeroed := _zeroed(node)) is not None}
    return {node: zeroed for node, zeroed in found.items() if node not in new}


def refute_flush(equation: Equation) -> str | None:
    """Why the equation does not hold within what its evidence says; None where it does.

    All is computed again from its two sides alone.
    """
    assert isinstance(equation.evidence, Bounded)
    sides = [
        Program(equation.leaves, tuple((f"y{place}", root) for place, root in enumerate(roots)))
        for roots in (equation.left, equation.right)
    ]
    for before in (sides[0], fold_constants(sides[0])):
        moved = flushed_constants(before, sides[1])
        if before.replace_nodes(moved).roots == sides[1].roots:
            break
    else:
        return "more than subnormal elements of constants has changed"
    try:
        furthest = ChangeBound(before, equation.evidence.reach, equation.evidence.within)(moved)
    except ChangeRefused as error:
        return str(error)
    if furthest > equation.evidence.distance:
        return f"an output may be moved by {furthest:.2g}"
    return None


def _drop_refused(
    spread: ChangeBound, tried: Mapping[Node, Node], found: dict[Node, Node], kept: dict[Node, str]
) -> bool:
    """Whether some of those that were tried keep their elements from now on."""
    try:
        spread(tried)
    except ChangeRefused as error:
        for node in error.origins:
            del found[node]
            kept[node] = error.reason
        return True
    return False


def _zeroed(node: Node) -> Node | None:
    """The constant with zeros, of their signs, for its subnormal elements; None if it has none."""
    if node.op is not CONSTANT or not is_float(node.types[0]):
        return None
    data = node.attribute("data")
    array = data.array
    if array.size > MAX_EXACT_ELEMENTS or not (small := find_subnormals(array, data.dtype)).any():
        return None
    return constant(np.where(small, np.copysign(array.dtype.type(0), array), array))


def _equation(
    before: Program, after: Program, moved: Mapping[Node, Node], evidence: Bounded
) -> Equation:
    pairs = [(a, b) for a, b in zip(before.roots, after.roots, strict=True) if a is not b]
    left, right = zip(*dict.fromkeys(pairs), strict=True)
    arrays = [(node.attribute("data").array, node.tensor.dtype) for node in moved]
    elements = sum(int(find_subnormals(array, dtype).sum()) for array, dtype in arrays)
    names = ", ".join(sorted(before.names.get(node, "a constant") for node in moved)[:NAMED])
    more = f" and {len(moved) - NAMED} more" if len(moved) > NAMED else ""
    law = f"0 in the place of {elements} subnormal elements of {names}{more}"
    leaves = (*before.inputs, *before.captured)
    return Equation(SUBNORMALS, law, left, right, leaves, evidence)
