"""Replace subnormal elements of constants by 0: not the same function, but closer to it than rounding.

    Conv(x, w) + b   =   Conv(x, w') + b      w' is w, with 0 in the place of every |element| < 2^-126

On Intel processors arithmetic with subnormal numbers takes 10 to 100 times as long, and training produces
them by the hundred thousand.  A constant keeps its elements where its reader may turn a tiny difference into
a large one (1 / w, w * 1e38 * 1e38, log w, w == 0), or where an output may consist of the constant alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tensaurus.graph.analysis.change_bounds import MAX_EXACT_ELEMENTS, ChangeAnalysis, ChangeRefused
from tensaurus.graph.analysis.constant_folding import fold_constants
from tensaurus.graph.ir.node import CONSTANT, Node, constant
from tensaurus.graph.ir.program import Program
from tensaurus.graph.ir.subnormal import find_subnormals, is_float, smallest_magnitude
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.evidence import Bounded

__all__ = [
    *("SUBNORMALS", "Flushed", "flush_folded", "flush_subnormals", "flushed_constants", "refute_flush")
]

SUBNORMALS = "subnormal-constants"
LARGEST_VALUES = (2.0**64, 2.0**40, 2.0**24)  # magnitudes at run time; the first with a bound is used
NEARLY_SUBNORMAL = 2.0**30  # times the smallest normal number: products with common numbers may be subnormal
MAX_NAMES = 3  # number of constants that the law names


@dataclass(frozen=True)
class Flushed:
    """A program with zeros in the place of subnormal elements.

    equation  the equation with the program before; None where nothing changed
    kept      constants that keep their elements, each with the reason
    """

    program: Program
    equation: Equation | None
    kept: Mapping[Node, str]


def flush_subnormals(program: Program, is_in_body: bool = False) -> Flushed:
    """Return the program, or body of an If, Loop or Scan, without subnormals that no result depends on."""
    return _flush(program, program, is_in_body)


def flush_folded(program: Program) -> Flushed:
    """Compute the expressions over constants if that may create subnormal elements, and flush these.

    Such expressions scale weights, or transform them for a fast algorithm.
    """
    if not any(map(_reads_tiny_constant, program.static)):
        return Flushed(program, None, {})
    return _flush(program, fold_constants(program), False)


def _reads_tiny_constant(node: Node) -> bool:
    """Return whether the node reads a constant with elements that are nearly subnormal."""
    read = [arg for arg in node.args if arg is not None and arg.op is CONSTANT and is_float(arg.types[0])]
    return any(smallest_magnitude(arg.attribute("data")) < NEARLY_SUBNORMAL for arg in read)


def _flush(before: Program, program: Program, is_in_body: bool) -> Flushed:
    """Flush the constants of `program`, which is `before` or has its constant expressions computed."""
    found = {node: zeroed for node in program.nodes if (zeroed := _flush_constant(node)) is not None}
    kept = dict[Node, str]()
    bounded = _bound_change(program, found, is_in_body)
    if found and bounded is None:
        analysis = ChangeAnalysis(program, LARGEST_VALUES[-1], is_in_body)
        for node in list(found):  # each by itself, so that one refusal does not affect other constants
            _drop_refused(analysis, {node: found[node]}, found, kept)
        while found and _drop_refused(analysis, found, found, kept):  # then all that are left together
            pass
        bounded = _bound_change(program, found, is_in_body)
    if not found or bounded is None:
        return Flushed(before, None, kept)
    made = program.replace_nodes(found)
    return Flushed(made, _equation(before, made, found, bounded), kept)


def _bound_change(program: Program, moved: Mapping[Node, Node], is_in_body: bool) -> Bounded | None:
    """Return how far the flushed constants move the outputs, for the largest values with a bound."""
    for reach in LARGEST_VALUES:
        try:
            change = ChangeAnalysis(program, reach, is_in_body).bound(moved)
            return Bounded("intervals", reach, change, is_in_body)
        except ChangeRefused:
            continue
    return None


def flushed_constants(before: Program, after: Program) -> dict[Node, Node]:
    """Return constants with subnormal elements that the other program lacks, with what replaces each."""
    new = {node for node in after.nodes if node.op is CONSTANT}
    found = {node: zeroed for node in before.nodes if (zeroed := _flush_constant(node)) is not None}
    return {node: zeroed for node, zeroed in found.items() if node not in new}


def refute_flush(equation: Equation) -> str | None:
    """Return why the equation exceeds the bound of its evidence; None where it does not.

    The bound is computed again, from the two sides alone.
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
        furthest = ChangeAnalysis(before, equation.evidence.reach, equation.evidence.is_in_body).bound(moved)
    except ChangeRefused as error:
        return str(error)
    if furthest > equation.evidence.distance:
        return f"an output may be moved by {furthest:.2g}"
    return None


def _drop_refused(
    analysis: ChangeAnalysis, tried: Mapping[Node, Node], found: dict[Node, Node], kept: dict[Node, str]
) -> bool:
    """Return whether some of the tried constants are refused; move those from `found` to `kept`."""
    try:
        analysis.bound(tried)
    except ChangeRefused as error:
        for node in error.origins:
            del found[node]
            kept[node] = error.reason
        return True
    return False


def _flush_constant(node: Node) -> Node | None:
    """Return the constant with zeros, of the same sign, for its subnormal elements; None if it has none."""
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
    names = ", ".join(sorted(before.names.get(node, "a constant") for node in moved)[:MAX_NAMES])
    more = f" and {len(moved) - MAX_NAMES} more" if len(moved) > MAX_NAMES else ""
    law = f"0 in the place of {elements} subnormal elements of {names}{more}"
    leaves = (*before.inputs, *before.captured)
    return Equation(SUBNORMALS, law, left, right, leaves, evidence)
