"""Kernels in blocked layouts: equal to what they stand for, without a division, proposed where it may pay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.finder_protocol import find_all
from tensaurus.expr.evaluate.fields import Field, PrimeField, Reals
from tensaurus.expr.ir.walk import bodies, sizes
from tensaurus.expr.sizes.size import Floor, atoms
from tensaurus.finders.bilinear import best_algorithm, fast_convolution_equation
from tensaurus.finders.fuse.blocked_layouts import (
    Blocked,
    block_tensor,
    blocked_equation,
    inverse_equation,
    is_blockable,
    unblock_tensor,
)
from tensaurus.finders.fuse.composition import compose_region
from tensaurus.graph.ir.node import INPUT, Node, apply, constant, replace_args, source
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.ops import TensorType, Untypable, registry
from tensaurus.ops.eop import eop
from tensaurus.ops.examples import parse_example
from tensaurus.rules.language.equation import Equation
from tensaurus.runtimes.backends.reference import evaluate

WIDTH = 4
REALS = Reals()
# operators one after the other; inputs after the first are weights
KERNELS = {
    "pointwise": "Conv f32[1,8,5,5] f32[12,8,1,1] f32[12] | Relu",
    "3x3": "Conv f32[2,8,5,6] f32[8,8,3,3] pads=(1,1,1,1)",
    "stride": "Conv f32[1,8,7,7] f32[8,8,3,3] f32[8] strides=(2,2) pads=(1,0,1,0) | Sigmoid",
    "depthwise": "Conv f32[1,8,7,7] f32[8,1,3,3] f32[8] group=8 pads=(1,1,1,1) | HardSwish",
    "multiplied": "Conv f32[1,8,7,7] f32[16,1,3,3] group=8 pads=(1,1,1,1)",
    "groups of blocks": "Conv f32[1,16,5,5] f32[8,8,3,3] group=2 pads=(1,1,1,1)",
    "groups in blocks": "Conv f32[1,8,5,5] f32[8,2,3,3] group=4 pads=(1,1,1,1)",
    "one dimension": "Conv f32[2,8,9] f32[4,8,3] pads=(1,1) | Tanh",
    "three dimensions": "Conv f32[1,4,3,4,5] f32[8,4,3,3,3] pads=(1,1,1,1,1,1)",
    "pooling": "MaxPool f32[1,8,7,7] kernel_shape=(3,3) strides=(2,2) pads=(1,1,1,1)",
    "average": "AveragePool f32[1,8,7,7] kernel_shape=(3,3) pads=(1,1,1,1)",
    "map": "HardSwish f32[2,12,3,5]",
    "resize": "Resize f32[1,8,3,3] scales=(1,1,2,2) mode='nearest'",
}


def kernel(text: str) -> Node:
    """The eOperator of a text's operators."""
    first, *others = text.split(" | ")
    name, words = first.split(" ", 1)
    example = parse_example(words)
    values = example.values(np.random.default_rng(0))
    args: list[Any] = []
    for place, (kind, value) in enumerate(zip(example.types, values, strict=True)):
        args.append(kind and (source("x", kind) if place == 0 else constant(value)))
    node = apply(registry[name], args, example.attrs)
    for other in others:
        node = apply(registry[other], [node])
    return fused(node)


def fused(node: Node) -> Node:
    leaves = tuple(n for n in topological_order([node]) if not n.args and n.tensor.dtype == "float32")
    found = compose_region(Piece(node, leaves))
    assert found is not None
    of = dict(zip(found.leaves, leaves, strict=True))
    right = found.right[0]
    return replace_args(right, tuple(arg and of[arg] for arg in right.args))


def value(node: Node, feeds: dict[str, Any], field: Field = REALS) -> np.ndarray:
    inputs = tuple(n for n in topological_order([node]) if n.op is INPUT)
    return np.asarray(evaluate(Program(inputs, (("y", node),)), feeds, field)["y"])


def require_equal(equation: Equation) -> None:
    (left,), (right,) = equation.left, equation.right
    assert left.types == right.types
    rng = np.random.default_rng(1)
    inputs = [n for n in topological_order([left]) if n.op is INPUT]
    feeds = {n.attribute("name"): rng.standard_normal(n.tensor.shape) for n in inputs}
    np.testing.assert_allclose(value(right, feeds), value(left, feeds), rtol=1e-12, atol=1e-12)


def divided(node: Node) -> bool:
    inside = (a for b in bodies(node.attribute("scope")) for s in sizes(b) for a in atoms(s))
    return any(isinstance(a, Floor) and a.bottom == WIDTH for a in inside)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_in_blocks_is_the_kernel(name: str) -> None:
    """What reads and what writes in blocks; in plain layout, what reads them by channels alone divides."""
    node = kernel(KERNELS[name])
    found = {}
    for inputs in ((), (next(k for k, a in enumerate(node.args) if a is not None and not a.static),)):
        for output in (False, True):
            equation = found[bool(inputs), output] = blocked_equation(node, inputs, output, WIDTH)
            if equation is not None:
                require_equal(equation)
                (right,) = equation.right
                assert right.op is eop and not divided(right)
                assert len(right.tensor.shape) == len(node.tensor.shape) + output
    assert found[False, False] is None and found[False, True] is not None
    assert (found[True, True] is not None) == (name != "multiplied")  # two results of a block are of another
    mixing = {"pointwise", "3x3", "stride", "one dimension", "three dimensions"}
    assert (found[True, False] is not None) == (name in mixing)


def test_what_reads_across_blocks_is_in_none() -> None:
    x = source("x", TensorType("float32", (1, 8, 3, 3)))
    shuffled = apply(eop, [x], {"scope": "L[i:1, j:8, k:3, l:3](x0[i, 2*j - 7*(j // 4), k, l])"})
    assert blocked_equation(shuffled, (0,), True, WIDTH) is None
    moved = fused(apply(registry["Transpose"], [x], {"perm": (0, 2, 3, 1)}))
    assert blocked_equation(moved, (0,), False, WIDTH) is None


@pytest.mark.parametrize(
    "shape, fits",
    [
        ((1, 8, 3), True),
        ((1, 8, 1, 1), False),
        ((1, 6, 3, 3), False),
        ((1, 8), False),
        ((3, 4, 2, 2, 2), True),
        ((1, 0, 3), False),
    ],
)
def test_what_has_blocks(shape: tuple[int, ...], fits: bool) -> None:
    assert is_blockable(TensorType("float32", shape), WIDTH) == fits


def test_conversions_are_undone() -> None:
    x = source("x", TensorType("float32", (2, 12, 3, 5)))
    require_equal(inverse_equation(x, WIDTH))
    there = block_tensor(x, WIDTH)
    assert there.tensor.shape == (2, 3, 3, 5, 4) and unblock_tensor(there).types == x.types
    feeds = {"x": np.arange(360.0).reshape(2, 12, 3, 5)}
    wanted = feeds["x"].reshape(2, 3, 4, 3, 5).transpose(0, 1, 3, 4, 2)
    assert np.array_equal(value(there, feeds), wanted)


def test_it_holds_of_others() -> None:
    """A kernel is of its sizes."""
    node = kernel(KERNELS["depthwise"])
    equation = blocked_equation(node, (0,), True, WIDTH)
    assert equation is not None
    by_name = {n: n for n in topological_order([node]) if not n.args}
    (x,) = (n for n in by_name if n.op is INPUT)
    other = equation.over({**by_name, x: source("other", x.tensor)})
    assert other.left != equation.left and other.right != equation.right
    require_equal(other)
    with pytest.raises(Untypable):
        equation.over({**by_name, x: source("x", TensorType("float32", (1, 6, 3, 3)))})


def test_slow_kernels_and_their_neighbours_are_proposed() -> None:
    """Not those whose time is that of their arithmetic, nor what lies beside other operators alone."""
    expand = kernel("Conv f32[1,8,5,5] f32[8,8,1,1] f32[8] | Relu")
    each = kernel("Conv f32[1,8,5,5] f32[8,1,3,3] f32[8] group=8 pads=(1,1,1,1) | Relu")
    (x,) = (a for a in each.args if a is not None and not a.static)
    deep = replace_args(each, tuple(expand if a is x else a for a in each.args))
    last = apply(registry["Relu"], [deep])
    program = Program(tuple(n for n in topological_order([last]) if n.op is INPUT), (("y", last),))
    for slow in (deep, expand, last):
        times = {n: 1.0 if n is slow else 1e-9 for n in (expand, deep, last)}
        finder = Blocked(WIDTH, times.get)
        found = list(finder.find_equations(program))
        for equation in found:
            require_equal(equation)
        names = [equation.name for equation in found]
        if slow is last:
            assert not found
        else:  # the first writes blocks; the second, which nobody asks for blocks, would divide to read them
            assert names == ["in-blocks", "unblocked"] and found[0].left[0].args == (expand,)
    graph = EGraph()
    graph.insert_term(last)
    graph.rebuild()
    graph.programs = [program]
    assert find_all(graph, [Blocked(WIDTH, {deep: 1.0, expand: 1.0}.get)], 10_000) > 0


def test_fast_algorithms_are_left_out() -> None:
    """Their kernels turn what they read and write within registers, and have no schedules in blocks."""
    first = kernel("Conv f32[1,8,8,8] f32[8,8,3,3] pads=(1,1,1,1)")
    made = fast_convolution_equation(
        apply(registry["Conv"], first.args, {"pads": (1, 1, 1, 1)}),
        (best_algorithm(2, 3), best_algorithm(2, 3)),
    )
    assert made is not None
    fast = made.right[0]
    last = apply(eop, [fast], {"scope": "L[i:1, j:8, k:8, l:8](exp(x0[i, j, k, l]))"})
    program = Program(tuple(n for n in topological_order([last]) if n.op is INPUT), (("y", last),))
    assert fast.op is eop and not list(Blocked(WIDTH, {fast: 1.0, last: 1.0}.get).find_equations(program))


def test_a_large_prime_field_agrees() -> None:
    """Exactly, where sums are split in two."""
    node = kernel(KERNELS["3x3"])
    equation = blocked_equation(node, (0,), True, WIDTH)
    assert equation is not None
    field, rng = PrimeField(2**31 - 1), np.random.default_rng(3)
    inputs = [n for n in topological_order(equation.left) if n.op is INPUT]
    feeds = {n.attribute("name"): rng.integers(0, 2**31 - 1, n.tensor.shape) for n in inputs}
    one, other = (value(root, feeds, field) for root in (*equation.left, *equation.right))
    assert np.array_equal(one, other)
