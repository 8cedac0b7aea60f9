"""What the paper found by derivation, as operators of any sizes and what must be found of them (EINNET).

A case draws its sizes, strides, dilations and paddings at random; a claim looks at a program that was found,
and says whether it is of the kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from random import Random
from typing import Any, TypeAlias

import numpy as np

from tensaurus.expr.analysis.work_counts import multiply_adds
from tensaurus.expr.ir.expression_text import show
from tensaurus.expr.ir.scope import Reduce
from tensaurus.finders.derive import joint_search
from tensaurus.finders.derive.derivation_search import DerivedProgram, Search, initial_expressions
from tensaurus.finders.derive.linear_regions import LinearRegion
from tensaurus.finders.derive.merge_expressions import JOINED
from tensaurus.graph.ir.node import INPUT, Node, apply, constant, source
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import topological_order
from tensaurus.ops import TensorType, registry
from tensaurus.runtimes.price.operation_counts import number_of, scopes_of


def tensor(name: str, *shape: int) -> Node:
    return source(name, TensorType("float32", shape))


def call(op: str, *shapes: tuple[int, ...], **attrs: Any) -> Node:
    return apply(registry[op], [tensor(f"x{k}", *shape) for k, shape in enumerate(shapes)], attrs)


def made_by(one: DerivedProgram) -> list[Node]:
    """Return the standard operators in a derived program."""
    return [node for _, node in one.state.nodes if node.args and str(node.op) != "eop"]


def copied(node: Node, leaves: Sequence[Node]) -> float:
    """Elements of the operator's arguments over those of the leaves."""
    own = sum(prod(arg.tensor.shape) for arg in node.args if arg is not None)
    return float(own / sum(prod(leaf.tensor.shape) for leaf in leaves))


def sums_of(one: DerivedProgram) -> int:
    """How many elements of operators' outputs an element of the result adds up."""
    (node,) = one.state.results
    body = node.attribute("scope").body if str(node.op) == "eop" else None
    return prod(a.extent for a in body.axes) if isinstance(body, Reduce) else 1


Nodes: TypeAlias = tuple[Node, ...]
Claim: TypeAlias = Callable[[DerivedProgram, Sequence[Node]], bool]


def matmul_and_offsets(one: DerivedProgram, leaves: Sequence[Node]) -> bool:
    """Every element is multiplied as it is, and the products are added with offsets (figure 3b)."""
    made, taps = made_by(one), prod(leaves[1].tensor.shape[2:])
    plain = len(made) == 1 and str(made[0].op) == "MatMul" and copied(made[0], leaves) == 1
    return plain and sums_of(one) == taps


def im2col(one: DerivedProgram, leaves: Sequence[Node]) -> bool:
    """One product of patches (figure 3c)."""
    made = made_by(one)
    plain = len(made) == 1 and str(made[0].op) == "MatMul"
    return plain and copied(made[0], leaves) > 1 and sums_of(one) == 1


def smaller_convolutions(one: DerivedProgram, leaves: Sequence[Node]) -> bool:
    """Convolutions of fewer taps, added up."""
    made = made_by(one)
    taps = [prod(node.args[1].tensor.shape[2:]) for node in made if str(node.op) == "Conv"]
    return len(made) == len(taps) == 1 and 1 < taps[0] < prod(leaves[1].tensor.shape[2:]) and sums_of(one) > 1


def kernel_of(*sizes: int) -> Claim:
    """A convolution with a kernel of these sizes and more channels of its output (figure 6)."""

    def claim(one: DerivedProgram, leaves: Sequence[Node]) -> bool:
        made = made_by(one)
        return len(made) == 1 and str(made[0].op) == "Conv" and made[0].args[1].tensor.shape[2:] == sizes

    return claim


def plain_convolution(one: DerivedProgram, leaves: Sequence[Node]) -> bool:
    """Without dilation, of rearranged data: nothing is added up afterwards."""
    made = made_by(one)
    plain = len(made) == 1 and str(made[0].op) == "Conv" and set(made[0].attribute("dilations")) == {1}
    return plain and sums_of(one) == 1 and copied(made[0], leaves) < 2


def phases(one: DerivedProgram, leaves: Sequence[Node]) -> bool:
    """Of a transposed convolution: every output is one element of one product, and of the products with the
    zeros between its elements at least a third are gone."""
    made, taps = made_by(one), leaves[1].tensor.shape[2:]
    spread = prod(one.state.roots[0].shape) * leaves[0].tensor.shape[1] * prod(taps)
    work = sum(number_of(multiply_adds(scopes_of(node)[0])) for node in made)
    return len(made) == 1 and sums_of(one) == 1 and work < spread * 2 / 3


def selective_sum(one: DerivedProgram, leaves: Sequence[Node]) -> bool:
    """Of a transposed convolution: one product of all elements, of which those that meet are added."""
    made = made_by(one)
    plain = len(made) == 1 and str(made[0].op) == "MatMul" and copied(made[0], leaves) <= 1.001
    return plain and sums_of(one) > 1


def draw(seed: int) -> tuple[Random, int, int, int, int]:
    rng = Random(seed)
    return rng, rng.choice((1, 2)), rng.choice((4, 6, 8)), rng.choice((5, 6, 8)), rng.choice((5, 6, 7, 9))


def convolution(seed: int, kernel: tuple[int, int], dilation: int = 1, stride: int = 1) -> Node:
    rng, n, c, f, size = draw(seed)
    shape = [size + dilation * (k - 1) for k in kernel]
    pads = tuple(rng.randint(0, 2) for _ in range(4))
    return call(
        "Conv", (n, c, *shape), (f, c, *kernel), pads=pads, strides=(stride,) * 2, dilations=(dilation,) * 2
    )


def transposed(seed: int) -> Node:
    rng, n, c, f, size = draw(seed)
    step, taps = rng.choice(((2, 2), (2, 3), (2, 4), (3, 3)))
    shapes = (n, c, size, size - 1), (c, f, taps, taps)
    return call("ConvTranspose", *shapes, strides=(step, step), pads=(1, 0, 0, 1))


def pooled(seed: int) -> Node:
    rng, n, c, _, size = draw(seed)
    pads = tuple(rng.randint(0, 1) for _ in range(4))
    attrs = {"kernel_shape": (3, rng.choice((2, 3))), "strides": (rng.choice((1, 2)), 1), "pads": pads}
    return call("AveragePool", (n, c, size, size), count_include_pad=1, **attrs)


def of_one_number(seed: int) -> Node:
    """Windows of each channel, all elements of which have one weight."""
    rng, n, c, _, size = draw(seed)
    kernel, pads = (3, rng.choice((2, 3))), tuple(rng.randint(0, 1) for _ in range(4))
    weights = np.full((c, 1, *kernel), rng.choice((0.25, 1 / 9, -3.0)), np.float32)
    attrs = {"group": c, "pads": pads, "strides": (rng.choice((1, 2)), 1)}
    return apply(registry["Conv"], [tensor("x0", n, c, size, size), constant(weights)], attrs)


def averages(one: DerivedProgram, leaves: Sequence[Node]) -> bool:
    """Means of windows, times a number."""
    return [str(node.op) for node in made_by(one)] == ["AveragePool"] and sums_of(one) == 1


def of_ones(one: DerivedProgram, leaves: Sequence[Node]) -> bool:
    """One convolution with ones."""
    made = made_by(one)
    return [str(node.op) for node in made] == ["Conv"] and bool(
        np.all(made[0].args[1].attribute("data").array == 1)
    )


def banded(seed: int, mixes: bool, sizes: tuple[int, int, int, int, int] | None = None) -> Node:
    """Products of each row with those in a dilated band around it, or a sum over such a band with the weights
    that these are (G2BMM and GBMM of table 3); `sizes`: heads, rows, width, elements, dilation."""
    rng = Random(seed)
    b, m, w, k, step = sizes or (2, rng.choice((12, 15)), 2, rng.choice((6, 8)), rng.choice((2, 3)))
    row = f"i + {step}*j - {step * w}"
    reads = ("x0[b, i, j]", f"x1[b, {row}, k] | 0") if mixes else ("x0[b, i, k]", f"x1[b, {row}, k] | 0")
    kept, summed = (f"k:{k}", f"j:{2 * w + 1}")[:: 1 if mixes else -1]
    scope = f"L[b:{b}, i:{m}, {kept}](sum[{summed}](mul({reads[0]}, {reads[1]})))"
    first = (b, m, 2 * w + 1) if mixes else (b, m, k)
    return apply(registry["eop"], [tensor("x0", *first), tensor("x1", b, m, k)], {"scope": scope})


def undilated(one: DerivedProgram, leaves: Sequence[Node]) -> bool:
    """One band in which no index steps by more than one, of hardly more products than the operator's and of
    operands that are no larger: batches of remainders."""
    sums = [node for _, node in one.state.nodes if any(map(multiply_adds, scopes_of(node)))]
    if len(sums) != 1 or str(sums[0].op) != "eop" or copied(sums[0], leaves) > 1.3:
        return False
    (scope,) = scopes_of(sums[0])
    wanted = prod((*leaves[0].tensor.shape, one.state.roots[0].shape[-1]))
    plain = not re.search(r"\b[2-9]\*", show(scope)) and "sum[" not in one.state.text
    return plain and number_of(multiply_adds(scope)) < 1.5 * wanted


def transposes_absorbed(one: DerivedProgram, leaves: Sequence[Node]) -> bool:
    """One product of the leaves, and nothing else that computes: at most they are read in another order."""
    return [str(node.op) for node in made_by(one)] == ["MatMul"] and sums_of(one) == 1


def attention(seed: int) -> Node:
    """Scores: queries and keys of several heads, each split and transposed (the products of table 2)."""
    rng = Random(seed)
    rows, heads, size = rng.choice((5, 7)), rng.choice((2, 3)), rng.choice((4, 8))
    shape = {"shape": (rows, heads, size)}
    q, k = (tensor(name, rows, heads * size) for name in ("q", "k"))
    split = [apply(registry["Reshape"], [x], shape) for x in (q, k)]
    queries = apply(registry["Transpose"], [split[0]], {"perm": (1, 0, 2)})
    keys = apply(registry["Transpose"], [split[1]], {"perm": (1, 2, 0)})
    return apply(registry["MatMul"], [queries, keys])


# several expressions of one tensor


def siblings(op: str, shapes: Sequence[tuple[int, ...]], attrs: Sequence[dict[str, Any]]) -> Nodes:
    """Operators of the first shape's tensor, each with weights of another's."""
    x = tensor("x0", *shapes[0])
    made = []
    for k, (shape, attributes) in enumerate(zip(shapes[1:], attrs, strict=True), 1):
        made.append(apply(registry[op], [x, tensor(f"x{k}", *shape)], attributes))
    return tuple(made)


def kernels_of_several_shapes(seed: int) -> Nodes:
    rng = Random(seed)
    c, size = rng.choice((4, 6)), rng.choice((7, 9))
    kernels = rng.sample(((1, 1), (3, 3), (1, 3), (3, 1), (5, 5)), 2)
    shapes = [(rng.choice((1, 2)), c, size, size), *((rng.choice((3, 5)), c, *kernel) for kernel in kernels)]
    return siblings(
        "Conv", shapes, [{"pads": (k[0] // 2, k[1] // 2, k[0] // 2, k[1] // 2)} for k in kernels]
    )


def products_of_one(seed: int) -> Nodes:
    rng = Random(seed)
    m, k = rng.choice((5, 7)), rng.choice((6, 8))
    return siblings("MatMul", [(m, k), *((k, rng.choice((3, 4, 9))) for _ in range(3))], [{}, {}, {}])


def separable_branches(seed: int) -> Nodes:
    """GCN's: a column of taps and a row of them, of one tensor (figure 15)."""
    rng = Random(seed)
    c, size, taps = rng.choice((4, 6)), rng.choice((6, 8)), rng.choice((3, 5))
    half = taps // 2
    shapes = [(1, c, size, size), (4, c, taps, 1), (5, c, 1, taps)]
    return siblings("Conv", shapes, [{"pads": (half, 0, half, 0)}, {"pads": (0, half, 0, half)}])


def merged(name: str) -> Claim:
    """One operator for all."""

    def claim(one: DerivedProgram, leaves: Sequence[Node]) -> bool:
        rules = {move.rule for move in one.state.applied}
        return JOINED in rules and [str(node.op) for node in made_by(one)] == [name]

    return claim


def part_of(nodes: Nodes) -> LinearRegion:
    """Return the region of these nodes, over the inputs that they need."""
    inputs = (tuple(leaf for leaf in topological_order((node,)) if leaf.op is INPUT) for node in nodes)
    return LinearRegion(tuple(Piece(node, leaves) for node, leaves in zip(nodes, inputs, strict=True)), nodes)


def derived(node: Node, leaves: Nodes, search: Search) -> list[DerivedProgram]:
    """Return the programs found for the expression of a node over these leaves."""
    return search.run(*initial_expressions((node,), leaves))


def searched(part: LinearRegion, search: Search) -> list[DerivedProgram]:
    """Return the programs found for a region; of several products, each alone is searched first."""
    single = part.single_regions if len(part.pieces) > 1 else ()
    found = [searched(one, replace(search, max_states=ALONE)) for one in single]
    made = part.expressions()
    assert made is not None, "nothing lies around the products"
    return joint_search.search_region(part, *made, search, found)


def alone(build: Callable[[int], Node]) -> Callable[[int], Nodes]:
    return lambda seed: (build(seed),)


ALONE = 40  # states of the search for each product of several
GUIDED = Search(max_states=40, min_intensity=1.0)  # sizes are small here
SHALLOW = replace(GUIDED, max_states=170, max_depth=3, min_intensity=2.0)
BREADTH_FIRST = replace(GUIDED, max_states=120, is_guided=False, max_depth=2, min_intensity=2.0)
CASES: dict[str, tuple[Callable[[int], Nodes], Claim, Search]] = {
    "Conv3x3 as MatMul and OffsetReduce": (
        alone(lambda s: convolution(s, (3, 3))),
        matmul_and_offsets,
        replace(GUIDED, min_intensity=2.0),
    ),
    "im2col": (alone(lambda s: convolution(s, (3, 2))), im2col, Search(max_states=1)),
    "Conv3x3 as smaller ones": (
        alone(lambda s: convolution(s, (3, 3))),
        smaller_convolutions,
        replace(GUIDED, min_intensity=2.0),
    ),
    "strided Conv as MatMul of patches": (
        alone(lambda s: convolution(s, (3, 3), stride=2)),
        im2col,
        replace(GUIDED, min_intensity=2.0),
    ),
    "Conv5x5 as Conv3x3": (alone(lambda s: convolution(s, (5, 5))), kernel_of(3, 3), SHALLOW),
    "dilated Conv as plain": (
        alone(lambda s: convolution(s, (3, 3), 2 + s % 2)),
        plain_convolution,
        replace(GUIDED, min_intensity=2.0),
    ),
    "ConvTranspose in phases": (alone(transposed), phases, replace(GUIDED, min_intensity=2.0)),
    "ConvTranspose as MatMul and selective sum": (alone(transposed), selective_sum, BREADTH_FIRST),
    "dilated G2BMM as plain": (alone(lambda s: banded(s, mixes=False)), undilated, GUIDED),
    "dilated GBMM as plain": (alone(lambda s: banded(s, mixes=True)), undilated, GUIDED),
    "pooling as convolution": (alone(pooled), of_ones, replace(GUIDED, max_states=20, min_intensity=0.5)),
    "convolution with one number as pooling": (
        alone(of_one_number),
        averages,
        replace(GUIDED, max_states=20),
    ),
    "attention's products without transposes": (alone(attention), transposes_absorbed, GUIDED),
    "convolutions with different kernels as one": (kernels_of_several_shapes, merged("Conv"), GUIDED),
    "products of one tensor as one": (products_of_one, merged("MatMul"), GUIDED),
    "separable branches as merged products": (separable_branches, merged("MatMul"), GUIDED),
}
