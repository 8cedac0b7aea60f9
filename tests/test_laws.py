"""The library holds the operator properties of TASO's Table 2, and what ONNX lacks exports as what it has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, helper

from tensaurus.algebra.field import Reals
from tensaurus.egraph.commuting import commute
from tensaurus.egraph.egraph import EGraph
from tensaurus.egraph.finder import find_all
from tensaurus.egraph.ruleset import Ruleset
from tensaurus.egraph.saturate import Limits, saturate
from tensaurus.graph.frame import Frame
from tensaurus.graph.node import Node, apply, constant, source
from tensaurus.graph.onnx_export import export_model
from tensaurus.graph.program import Program
from tensaurus.ops import TensorType, registry
from tensaurus.ops.element_type import dtype_code
from tensaurus.ops.examples import parse_example
from tensaurus.rules.match import Binding, Rewriter, build, commutes, expander
from tensaurus.rules.rule import library
from tensaurus.rules.term import parse_terms
from tensaurus.rules.verify import run

REWRITER = Rewriter(library(), explore=True)

M, N = "2,3", "3,4"  # matrices
IMAGE, KERNEL, POINTWISE = "2,4,5,5", "6,4,3,3", "6,4,1,1"  # activations, kernels
SAME = "pads=(1,1,1,1)"
POOL = "kernel_shape=(2,2), strides=(2,2)"

# The properties in Table 2's order: our law, its two sides, the shapes of its variables.
LAWS = [
    ("sums associate", "Add(x, Add(y, z))", "Add(Add(x, y), z)", {"xyz": M}),
    ("sums commute", "Add(x, y)", "Add(y, x)", {"xy": M}),
    ("products associate", "Mul(x, Mul(y, z))", "Mul(Mul(x, y), z)", {"xyz": M}),
    ("products commute", "Mul(x, y)", "Mul(y, x)", {"xy": M}),
    ("products distribute", "Mul(Add(x, y), z)", "Add(Mul(x, z), Mul(y, z))", {"xyz": M}),
    ("scales associate", "Mul(Mul(x, y), w)", "Mul(x, Mul(y, w))", {"x": M, "yw": ""}),
    ("scales distribute", "Mul(Add(x, y), w)", "Add(Mul(x, w), Mul(y, w))", {"xy": M, "w": ""}),
    ("a product scales", "Mul(Mul(x, y), w)", "Mul(x, Mul(y, w))", {"xy": M, "w": ""}),
    ("two transposes", "Transpose(Transpose(x, perm=(1,0)), perm=(1,0))", "x", {"x": M}),
    ("a sum transposed", "Transpose(Add(x, y), perm=(1,0))",
     "Add(Transpose(x, perm=(1,0)), Transpose(y, perm=(1,0)))", {"xy": M}),
    ("a product transposed", "Transpose(Mul(x, y), perm=(1,0))",
     "Mul(Transpose(x, perm=(1,0)), Transpose(y, perm=(1,0)))", {"xy": M}),
    ("a scale transposed", "Mul(Transpose(x, perm=(1,0)), w)", "Transpose(Mul(x, w), perm=(1,0))",
     {"x": M, "w": ""}),
    ("matrix products associate", "MatMul(x, MatMul(y, z))", "MatMul(MatMul(x, y), z)",
     {"x": M, "y": N, "z": "4,2"}),
    ("a matrix product scales", "Mul(MatMul(x, y), w)", "MatMul(x, Mul(y, w))", {"x": M, "y": N, "w": ""}),
    ("matrix products distribute", "MatMul(x, Add(y, z))", "Add(MatMul(x, y), MatMul(x, z))",
     {"x": M, "yz": N}),
    ("a matrix product transposed", "Transpose(MatMul(x, y), perm=(1,0))",
     "MatMul(Transpose(y, perm=(1,0)), Transpose(x, perm=(1,0)))", {"x": M, "y": N}),
    ("a scale moves to the kernel", f"Conv(Mul(x, w), y, {SAME})", f"Conv(x, Mul(y, w), {SAME})",
     {"x": IMAGE, "y": KERNEL, "w": ""}),
    ("a convolution scales", f"Mul(Conv(x, y, {SAME}), w)", f"Conv(Mul(x, w), y, {SAME})",
     {"x": IMAGE, "y": KERNEL, "w": ""}),
    ("linear in its kernel", f"Conv(x, Add(y, z), {SAME})", f"Add(Conv(x, y, {SAME}), Conv(x, z, {SAME}))",
     {"x": IMAGE, "yz": KERNEL}),
    ("linear in its input", f"Conv(Add(x, y), z, {SAME})", f"Add(Conv(x, z, {SAME}), Conv(y, z, {SAME}))",
     {"xy": IMAGE, "z": KERNEL}),
    ("a kernel enlarged", "Conv(x, y)", f"Conv(x, Enlarge(y, kernel_shape=(3,3)), {SAME})",
     {"x": IMAGE, "y": POINTWISE}),
    ("a convolution with relu", "Relu(Conv(x, y))", "Relu(Conv(x, y))", {"x": IMAGE, "y": POINTWISE}),
    ("relu transposed", "Relu(Transpose(x, perm=(1,0)))", "Transpose(Relu(x), perm=(1,0))", {"x": M}),
    ("an average is a convolution",
     "Conv(x, MeanKernel(channels=4, kernel_shape=(2,2)), group=4, strides=(2,2))",
     f"AveragePool(x, {POOL})", {"x": IMAGE}),
    ("a kernel that copies", f"Conv(x, IdentityKernel(channels=4, kernel_shape=(3,3)), {SAME})", "x",
     {"x": IMAGE}),
    ("the identity matrix", "MatMul(x, EyeLike(y))", "x", {"x": M, "y": "3,3"}),
    ("one", "Mul(x, 1)", "x", {"x": M}),
    ("the first part", "Split(Concat(x, y, axis=0), axis=0, split=(2,3))[0]", "x", {"x": "2,4", "y": N}),
    ("the second part", "Split(Concat(x, y, axis=0), axis=0, split=(2,3))[1]", "y", {"x": "2,4", "y": N}),
    ("rows of columns", "Concat(Concat(x, y, axis=1), Concat(z, w, axis=1), axis=0)",
     "Concat(Concat(x, z, axis=0), Concat(y, w, axis=0), axis=1)", {"xz": M, "yw": "2,4"}),
    ("scales side by side", "Concat(Mul(x, w), Mul(y, w), axis=1)", "Mul(Concat(x, y, axis=1), w)",
     {"xy": M, "w": ""}),
    ("sums side by side", "Concat(Add(x, y), Add(z, w), axis=1)",
     "Add(Concat(x, z, axis=1), Concat(y, w, axis=1))", {"xyzw": M}),
    ("products side by side", "Concat(Mul(x, y), Mul(z, w), axis=1)",
     "Mul(Concat(x, z, axis=1), Concat(y, w, axis=1))", {"xyzw": M}),
    ("relus side by side", "Concat(Relu(x), Relu(y), axis=1)", "Relu(Concat(x, y, axis=1))", {"xy": M}),
    ("transposes side by side", "Concat(Transpose(x, perm=(1,0)), Transpose(y, perm=(1,0)), axis=1)",
     "Transpose(Concat(x, y, axis=0), perm=(1,0))", {"xy": M}),
    ("matrix products side by side", "Concat(MatMul(x, y), MatMul(x, z), axis=1)",
     "MatMul(x, Concat(y, z, axis=1))", {"x": M, "yz": N}),
    ("a sum of matrix products", "MatMul(Concat(x, z, axis=1), Concat(y, w, axis=0))",
     "Add(MatMul(x, y), MatMul(z, w))", {"xz": M, "yw": N}),
    ("batches one after another", f"Concat(Conv(x, z, {SAME}), Conv(y, z, {SAME}), axis=0)",
     f"Conv(Concat(x, y, axis=0), z, {SAME})", {"xy": IMAGE, "z": KERNEL}),
    ("channels out side by side", f"Concat(Conv(x, y, {SAME}), Conv(x, z, {SAME}), axis=1)",
     f"Conv(x, Concat(y, z, axis=0), {SAME})", {"x": IMAGE, "yz": KERNEL}),
    ("channels in side by side", f"Conv(Concat(x, z, axis=1), Concat(y, w, axis=1), {SAME})",
     f"Add(Conv(x, y, {SAME}), Conv(z, w, {SAME}))", {"xz": IMAGE, "yw": KERNEL}),
    ("averages side by side", f"Concat(AveragePool(x, {POOL}), AveragePool(y, {POOL}), axis=1)",
     f"AveragePool(Concat(x, y, axis=1), {POOL})", {"xy": IMAGE}),
    ("maxima one after another", f"Concat(MaxPool(x, {POOL}), MaxPool(y, {POOL}), axis=0)",
     f"MaxPool(Concat(x, y, axis=0), {POOL})", {"xy": IMAGE}),
    ("maxima side by side", f"Concat(MaxPool(x, {POOL}), MaxPool(y, {POOL}), axis=1)",
     f"MaxPool(Concat(x, y, axis=1), {POOL})", {"xy": IMAGE}),
]  # fmt: skip


def sides(left: str, right: str, shapes: dict[str, str]) -> tuple[Node, Node]:
    leaves = {
        name: source(name, TensorType("float32", tuple(map(int, filter(None, text.split(","))))))
        for names, text in shapes.items()
        for name in names
    }
    built = [build(parse_terms(text)[0], Binding(leaves, {}), "float32") for text in (left, right)]
    assert built[0] is not None and built[1] is not None
    return built[0], built[1]


LIMITS = Limits(nodes=4000, rounds=6)


def key(node: Node) -> object:
    """The node, but for the order of commutative arguments."""
    args = [None if a is None else key(a) for a in node.args]
    if node.declared and len(args) == 2 and commutes(node.op):  # type: ignore[arg-type]
        args.sort(key=repr)
    return (str(node.op), tuple(args), str(node.attrs))


@cache
def laws() -> Ruleset:
    return Ruleset(library())


def reached(root: Node, goal: Node) -> bool:
    """Whether the goal is found from this side alone, operands in any order."""
    graph = EGraph()
    number = graph.adopt(root)
    graph.rebuild()
    saturate(graph, laws(), LIMITS, finders=(commute,))
    find_all(graph, (commute,), LIMITS.nodes)
    other = graph.adopt(goal)
    graph.rebuild()
    find_all(graph, (commute,), 2 * LIMITS.nodes)
    return graph.find(other) == graph.find(number)


def test_the_table_is_whole() -> None:
    assert len(LAWS) == 43


@pytest.mark.parametrize(
    ("left", "right", "shapes"), [law[1:4] for law in LAWS], ids=[law[0] for law in LAWS]
)
def test_law_is_derived(left: str, right: str, shapes: dict[str, str]) -> None:
    a, b = sides(left, right, shapes)
    assert key(a) == key(b) or reached(a, b) or reached(b, a)


# a variable is no place to rewrite; what a kernel is enlarged to is read off another one: see enlarge-kernel
EQUATIONS = [law for law in LAWS if "(" in law[2] and "Enlarge" not in law[2]]


@pytest.mark.parametrize(
    ("left", "right", "shapes"), [law[1:4] for law in EQUATIONS], ids=[law[0] for law in EQUATIONS]
)
def test_law_is_derived_both_ways(left: str, right: str, shapes: dict[str, str]) -> None:
    a, b = sides(left, right, shapes)
    assert key(a) == key(b) or reached(a, b) and reached(b, a)


def test_a_kernel_is_enlarged_to_another_and_merged() -> None:
    """TASO section 2: kernels of different sizes over one input become one convolution."""
    leaf = source("x", TensorType("float32", (2, 4, 5, 5)))
    one, three = (constant(np.ones((6, 4, n, n), np.float32)) for n in (1, 3))
    small, large = (apply(registry["Conv"], [leaf, w], {"pads": (p,) * 4}) for w, p in ((one, 0), (three, 1)))
    program = Program((leaf,), (("y", small), ("z", large)))
    by_name = {matcher.rule.name: matcher for matcher in REWRITER.several}
    enlarge, merge = by_name["enlarge-kernel-without-b-c"], by_name["merge-plain-convs-of-one-input"]
    enlarged = [program.replaced(found) for found in enlarge.joint(program)]
    merged = [p.replaced(found) for p in enlarged for found in merge.joint(p)]
    assert min(sum(n.op is registry["Conv"] for n in p.active) for p in merged) == 1


OURS = [(op.name, text) for op in registry.values() if op.domain == "tensaurus" for text in op.examples]


def exported(node: Node, inputs: Sequence[Node], opset: int) -> ModelProto:
    """A model of this opset with one output."""

    def code(value: Node) -> int:
        return dtype_code(value.tensor.dtype)

    frame = Frame(
        helper.make_model(helper.make_graph([], "g", [], []), opset_imports=[helper.make_opsetid("", opset)]),
        tuple(helper.make_tensor_value_info(i.attribute("name"), code(i), i.tensor.shape) for i in inputs),
        (helper.make_tensor_value_info("y", code(node), node.tensor.shape),),
    )
    frame.model.ir_version = 8
    return export_model(Program(tuple(inputs), (("y", node),), frame=frame), expand=expander(library()))


@pytest.mark.parametrize("opset", [7, 11, 13, 17])
@pytest.mark.parametrize(("name", "text"), OURS, ids=[f"{name} {text}" for name, text in OURS])
def test_what_onnx_lacks_is_exported(name: str, text: str, opset: int) -> None:
    """The expansion consists of ONNX's operators, and onnxruntime computes what the expression says."""
    example = parse_example(text)
    inputs = [source(f"x{k}", kind) for k, kind in enumerate(example.types) if kind is not None]
    node = apply(registry[name], inputs, example.attrs)
    values = [v for v in example.values(np.random.default_rng(1)) if v is not None]
    field = Reals()
    (wanted,) = run([node], dict(zip(inputs, map(field.lift, values), strict=True)), field)
    model = exported(node, inputs, opset)
    assert {n.domain for n in model.graph.node} <= {""}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    feeds = {i.attribute("name"): v for i, v in zip(inputs, values, strict=True)}
    (found,) = session.run(None, feeds)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
