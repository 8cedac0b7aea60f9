"""Makes the two programs on which an equation is replayed, with smaller tensors in the place of large ones.

    Relu(MaxPool(x)) = ReluMaxPool(x), x of [1, 8, 512, 512]    ->    both sides over x of [1, 8, 9, 9]

The sides are cut only as far as they still type: a window must fit, a reshape may fix sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count, takewhile
from math import prod
from typing import NamedTuple

from tensaurus.graph.ir.node import CONSTANT, INPUT, Node, source
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.ops import TensorType, Untypable
from tensaurus.rules.language.equation import Equation
from tensaurus.runtimes.price.operation_counts import number_of

__all__ = ["UNKNOWN_SIZE", "Sides", "largest_tensor", "count_elements", "sides_to_replay"]

UNKNOWN_SIZE = 4  # stands for every open size where work and memory are estimated
LARGE_LEAF_ELEMENTS = 1 << 15  # a rewrite with a larger leaf is replayed on smaller tensors
LARGE_RESULT_ELEMENTS = 1 << 20  # so is a rewrite that computes a larger tensor
CUT_SIZE = 9  # size to which dimensions of large tensors are cut, where the rewrite's types admit that
CUT_GROWTH = 4  # factor by which the cut size grows, again and again, until the rewrite's types admit it


class Sides(NamedTuple):
    """Both sides of an equation as programs with the same inputs."""

    left: Program
    right: Program


def sides_to_replay(equation: Equation, keep_values: bool = False) -> Sides:
    """Return both sides as programs over the leaves, with smaller leaves in the place of large ones.

    Large constants become inputs of any values, unless `keep_values` says that they keep their own.
    """
    leaves = [leaf for leaf in equation.leaves if leaf.op is not CONSTANT]  # a law may depend on constants
    large = leaves if _has_large_result(equation) else [leaf for leaf in leaves if _is_large(leaf)]
    weights = [] if keep_values else _weights_to_draw(equation)
    # first choice: all dimensions are cut, weights among the inputs, if both sides type like that
    if large or weights:
        sides = _sides_over(equation, _cut_all_sizes([*leaves, *weights]))
        if sides is not None:
            return sides
    # else only spatial dimensions are cut, to sizes that grow, as windows may be long; or those of all leaves
    # but one, whose sizes a reshape may fix
    widest = max((n for leaf in large for n in leaf.tensor.shape[2:] if isinstance(n, int)), default=0)
    cut_sizes = takewhile(lambda size: size < widest, (CUT_SIZE * CUT_GROWTH**power for power in count()))
    ways = [*((size, None) for size in cut_sizes), *((CUT_SIZE, leaf) for leaf in large)]
    typed = list[Sides]()
    for size, uncut in ways:
        kinds = {
            leaf: leaf.tensor if leaf is uncut else _cut_spatial_sizes(leaf.tensor, size) for leaf in leaves
        }
        if (sides := _sides_over(equation, kinds)) is not None:
            typed.append(sides)
            if largest_tensor(*sides) <= LARGE_LEAF_ELEMENTS:
                break
    if not typed:  # no smaller leaves fit
        whole = _sides_over(equation, {leaf: leaf.tensor for leaf in leaves})
        assert whole is not None
        return whole
    return min(typed, key=lambda sides: largest_tensor(*sides))


def _is_large(leaf: Node) -> bool:
    return count_elements(leaf.tensor) > LARGE_LEAF_ELEMENTS


def _has_large_result(equation: Equation) -> bool:
    computed = (kind for node in topological_order([*equation.left, *equation.right]) for kind in node.types)
    return any(
        count_elements(kind) > LARGE_RESULT_ELEMENTS for kind in computed if isinstance(kind, TensorType)
    )


def _weights_to_draw(equation: Equation) -> list[Node]:
    """Return all constants of more than a few elements if one of them is large."""
    constants = [leaf for leaf in equation.leaves if leaf.op is CONSTANT]
    weights = [leaf for leaf in constants if count_elements(leaf.tensor) > CUT_SIZE]
    return weights if any(map(_is_large, weights)) else []


def _sides_over(equation: Equation, kinds: Mapping[Node, TensorType]) -> Sides | None:
    """Return both sides over leaves of these types; None where they do not type: attributes may fix sizes."""
    inputs = {leaf: source(f"v{k}", kind) for k, (leaf, kind) in enumerate(kinds.items())}
    try:
        made = equation.over(inputs)
    except Untypable:
        return None
    if [node.types for node in made.left] != [node.types for node in made.right]:
        return None
    # a side may read inputs besides the leaves
    nodes = topological_order([*made.left, *made.right])
    read = tuple(dict.fromkeys(node for node in nodes if node.op is INPUT))
    left, right = (
        Program(read, tuple((f"y{k}", root) for k, root in enumerate(roots)))
        for roots in (made.left, made.right)
    )
    return Sides(left, right)


def _cut_spatial_sizes(kind: TensorType, size: int = CUT_SIZE) -> TensorType:
    """Return the type with spatial dimensions (from the third on) cut to a size; weights fix the others."""
    head, rest = kind.shape[:2], kind.shape[2:]
    return TensorType(kind.dtype, (*head, *(min(n, size) if isinstance(n, int) else n for n in rest)))


def _cut_all_sizes(leaves: Sequence[Node]) -> dict[Node, TensorType]:
    """Return types with all dimensions cut; in the first two, equal sizes stay equal and others different."""
    heads = [n for leaf in leaves for n in leaf.tensor.shape[:2] if isinstance(n, int) and n > CUT_SIZE]
    cut_sizes = {n: CUT_SIZE + place for place, n in enumerate(sorted(set(heads)))}
    kinds = {}
    for leaf in leaves:
        kind = _cut_spatial_sizes(leaf.tensor)
        head = (cut_sizes.get(n, n) if isinstance(n, int) else n for n in kind.shape[:2])
        kinds[leaf] = TensorType(kind.dtype, (*head, *kind.shape[2:]))
    return kinds


def largest_tensor(*programs: Program) -> int:
    """Return the elements of the largest tensor in these programs, open sizes counted small."""
    kinds = (kind for program in programs for node in program.nodes for kind in node.types)
    return max((count_elements(kind) for kind in kinds if isinstance(kind, TensorType)), default=0)


def count_elements(kind: TensorType) -> int:
    """Return the elements of a tensor, open sizes counted small."""
    return prod(number_of(n, UNKNOWN_SIZE) for n in kind.shape)
