"""What the paper found by derivation, as operators of any sizes and what must be found of them (EINNET).

A case draws its sizes, strides, dilations and paddings at random; a claim looks at a program that was found,
and says whether it is of the kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from random import Random
from typing import Any

from tensaurus.algebra.analysis import multiply_adds
from tensaurus.algebra.expr import Reduce
from tensaurus.cost.demand import number_of, scopes_of
from tensaurus.derive.search import Derived, Search
from tensaurus.graph.node import Node, apply, source
from tensaurus.ops import TensorType, registry


def tensor(name: str, *shape: int) -> Node:
    return source(name, TensorType("float32", shape))


def call(op: str, *shapes: tuple[int, ...], **attrs: Any) -> Node:
    return apply(registry[op], [tensor(f"x{k}", *shape) for k, shape in enumerate(shapes)], attrs)


def made_by(one: Derived) -> list[Node]:
    """The operators that parts of it became."""
    return [node for _, node in one.state.nodes if node.args and str(node.op) != "eop"]


def copied(node: Node, leaves: Sequence[Node]) -> float:
    """Elements of the operator's arguments over those of the leaves."""
    own = sum(prod(arg.tensor.shape) for arg in node.args if arg is not None)  # type: ignore[arg-type]
    return float(own / sum(prod(leaf.tensor.shape) for leaf in leaves))  # type: ignore[arg-type]


def sums_of(one: Derived) -> int:
    """How many elements of operators' outputs an element of the result adds up."""
    (node,) = one.state.results
    body = node.attribute("scope").body if str(node.op) == "eop" else None
    return prod(a.extent for a in body.axes) if isinstance(body, Reduce) else 1  # type: ignore[misc]


Claim = Callable[[Derived, Sequence[Node]], bool]


def matmul_and_offsets(one: Derived, leaves: Sequence[Node]) -> bool:
    """Every element is multiplied as it is, and the products are added with offsets (figure 3b)."""
    made, taps = made_by(one), prod(leaves[1].tensor.shape[2:])  # type: ignore[arg-type]
    plain = len(made) == 1 and str(made[0].op) == "MatMul" and copied(made[0], leaves) == 1
    return plain and sums_of(one) == taps


def im2col(one: Derived, leaves: Sequence[Node]) -> bool:
    """One product of patches (figure 3c)."""
    made = made_by(one)
    plain = len(made) == 1 and str(made[0].op) == "MatMul"
    return plain and copied(made[0], leaves) > 1 and sums_of(one) == 1


def smaller_convolutions(one: Derived, leaves: Sequence[Node]) -> bool:
    """Convolutions of fewer taps, added up."""
    made = made_by(one)
    taps = [prod(node.args[1].tensor.shape[2:]) for node in made if str(node.op) == "Conv"]  # type: ignore
    return len(made) == len(taps) == 1 and 1 < taps[0] < prod(leaves[1].tensor.shape[2:]) and sums_of(one) > 1  # type: ignore


def kernel_of(*sizes: int) -> Claim:
    """A convolution with a kernel of these sizes and more channels of its output (figure 6)."""

    def claim(one: Derived, leaves: Sequence[Node]) -> bool:
        made = made_by(one)
        return len(made) == 1 and str(made[0].op) == "Conv" and made[0].args[1].tensor.shape[2:] == sizes  # type: ignore

    return claim


def plain_convolution(one: Derived, leaves: Sequence[Node]) -> bool:
    """Without dilation, of rearranged data: nothing is added up afterwards."""
    made = made_by(one)
    plain = len(made) == 1 and str(made[0].op) == "Conv" and set(made[0].attribute("dilations")) == {1}
    return plain and sums_of(one) == 1 and copied(made[0], leaves) < 2


def phases(one: Derived, leaves: Sequence[Node]) -> bool:
    """Of a transposed convolution: every output is one element of one product, and of the products with the
    zeros between its elements at least a third are gone."""
    made, taps = made_by(one), leaves[1].tensor.shape[2:]
    spread = prod(one.state.roots[0].shape) * leaves[0].tensor.shape[1] * prod(taps)  # type: ignore[operator]
    work = sum(number_of(multiply_adds(scopes_of(node)[0])) for node in made)
    return len(made) == 1 and sums_of(one) == 1 and work < spread * 2 / 3


def selective_sum(one: Derived, leaves: Sequence[Node]) -> bool:
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


GUIDED = Search(states=40, intense=2.0)  # sizes are small here
SHALLOW = replace(GUIDED, states=170, depth=3)
BREADTH_FIRST = replace(GUIDED, states=120, guided=False, depth=2)
CASES: dict[str, tuple[Callable[[int], Node], Claim, Search]] = {
    "Conv3x3 as MatMul and OffsetReduce": (lambda s: convolution(s, (3, 3)), matmul_and_offsets, GUIDED),
    "im2col": (lambda s: convolution(s, (3, 2)), im2col, Search(states=1)),
    "Conv3x3 as smaller ones": (lambda s: convolution(s, (3, 3)), smaller_convolutions, GUIDED),
    "strided Conv as MatMul of patches": (lambda s: convolution(s, (3, 3), stride=2), im2col, GUIDED),
    "Conv5x5 as Conv3x3": (lambda s: convolution(s, (5, 5)), kernel_of(3, 3), SHALLOW),
    "dilated Conv as plain": (lambda s: convolution(s, (3, 3), 2 + s % 2), plain_convolution, GUIDED),
    "ConvTranspose in phases": (transposed, phases, GUIDED),
    "ConvTranspose as MatMul and selective sum": (transposed, selective_sum, BREADTH_FIRST),
}
