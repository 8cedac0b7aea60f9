"""The library holds TASO's Table 2 and the papers' figures; operators that ONNX lacks are exported."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, helper

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.finder_protocol import find_all
from tensaurus.egraph.match.commuting_calls import commute
from tensaurus.egraph.match.flatten_nested_calls import flatten
from tensaurus.egraph.match.ruleset import Ruleset
from tensaurus.egraph.match.saturate import Limits, saturate
from tensaurus.expr.evaluate.fields import Reals
from tensaurus.graph.ir.node import Node, apply, constant, source
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.onnx_export import export_model
from tensaurus.graph.onnx.onnx_frame import Frame
from tensaurus.ops import TensorType, registry
from tensaurus.ops.element_type import dtype_code
from tensaurus.ops.examples import parse_example
from tensaurus.rules.language.match import Binding, Rewriter, build_term, is_commutative, make_expander
from tensaurus.rules.language.rule import library
from tensaurus.rules.language.term import parse_terms
from tensaurus.rules.test.verify_rule import evaluate_roots

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


SMALL, LARGE = "4,1,3,3", "4,1,5,5"  # kernels of each channel
AVERAGE = f"kernel_shape=(3,3), count_include_pad=1, {SAME}"
MEANS = "MeanKernel(channels=4, kernel_shape=(3,3))"
GROUPS = f"group=2, {SAME}"


def parts(whole: str, axis: int, *sizes: int) -> str:
    """Return all outputs of a split."""
    split = f"Split({whole}, axis={axis}, split=({','.join(map(str, sizes))}))"
    return ", ".join(f"{split}[{place}]" for place in range(len(sizes)))


# What the papers' figures show, sources and targets; each step of what one search is not to find as a whole.
FIGURES = [
    ("TASO 2a", "MatMul(MatMul(x, y), z)", "MatMul(x, MatMul(y, z))", {"x": M, "y": N, "z": "4,5"}),
    ("TASO 2b", "MatMul(x, y), MatMul(x, z)", parts("MatMul(x, Concat(y, z, axis=1))", 1, 4, 2),
     {"x": M, "y": N, "z": "3,2"}),
    ("TASO section 2, enlarged", f"Conv(x, v), Conv(x, w, {SAME})",
     parts(f"Conv(x, Concat(Enlarge(v, kernel_shape=(3,3)), w, axis=0), {SAME})", 1, 6, 6),
     {"x": IMAGE, "v": POINTWISE, "w": KERNEL}),
    ("TASO 5", "Transpose(MatMul(x, y), perm=(1,0))",
     "MatMul(Transpose(y, perm=(1,0)), Transpose(x, perm=(1,0)))", {"x": M, "y": N}),
    ("TASO 8b", f"Add(AveragePool(x, {AVERAGE}), AveragePool(y, {AVERAGE}))",
     f"Conv(Add(x, y), {MEANS}, group=4, {SAME})", {"xy": IMAGE}),
    ("TASO 8b, of one tensor", f"Add(AveragePool(x, {AVERAGE}), AveragePool(x, {AVERAGE}))",
     f"Conv(x, Add({MEANS}, {MEANS}), group=4, {SAME})", {"x": IMAGE}),
    ("TASO 8c, enlarged", f"Conv(x, v, group=4, {SAME}), Conv(y, w, group=4, pads=(2,2,2,2))",
     "Conv(x, Enlarge(v, kernel_shape=(5,5)), group=4, pads=(2,2,2,2)), Conv(y, w, group=4, pads=(2,2,2,2))",
     {"xy": IMAGE, "v": SMALL, "w": LARGE}),
    ("TASO 8c, merged", f"Add(Conv(Conv(x, v, group=4, {SAME}), a), Conv(Conv(y, w, group=4, {SAME}), b))",
     f"Conv(Conv(Concat(x, y, axis=1), Concat(v, w, axis=0), group=8, {SAME}), Concat(a, b, axis=1))",
     {"xy": IMAGE, "vw": SMALL, "ab": POINTWISE}),
    ("TASO 8c, of one tensor",
     f"Add(Conv(Conv(x, v, group=4, {SAME}), a), Conv(Conv(x, w, group=4, pads=(2,2,2,2)), b))",
     "Conv(Conv(Concat(x, x, axis=1), Concat(Enlarge(v, kernel_shape=(5,5)), w, axis=0), group=8, "
     "pads=(2,2,2,2)), Concat(a, b, axis=1))", {"x": IMAGE, "v": SMALL, "w": LARGE, "ab": POINTWISE}),
    ("TASO 9b of 9a", f"Concat(Conv(x, v, {SAME}), Conv(y, w, {SAME}), axis=1)",
     f"Conv(Concat(x, y, axis=1), Concat(v, w, axis=0), {GROUPS})", {"xy": IMAGE, "vw": KERNEL}),
    ("TASO 9b of 9c", f"Concat(Conv(x, v, {GROUPS}), Conv(y, w, {GROUPS}), axis=1)",
     f"Conv(Concat(x, y, axis=1), Concat(v, w, axis=0), group=4, {SAME})", {"xy": IMAGE, "vw": "6,2,3,3"}),
    ("TASO 9c of 9b", f"Conv(x, w, group=4, {SAME})",
     f"Concat(Conv(Split(x, axis=1, split=(4,4))[0], Split(w, axis=0, split=(6,6))[0], {GROUPS}), "
     f"Conv(Split(x, axis=1, split=(4,4))[1], Split(w, axis=0, split=(6,6))[1], {GROUPS}), axis=1)",
     {"x": "2,8,5,5", "w": "12,2,3,3"}),
    ("TENSAT 7", "MatMul(x, v), MatMul(x, w)", parts("MatMul(x, Concat(v, w, axis=1))", 1, 4, 4),
     {"x": M, "vw": N}),
    ("TENSAT 7, of three", "MatMul(x, u), MatMul(x, v), MatMul(x, w)",
     parts("MatMul(x, Concat(u, v, w, axis=1))", 1, 4, 4, 4), {"x": M, "uvw": N}),
    ("TENSAT 8", f"Conv(x, v, {SAME}), Conv(x, w, {SAME})",
     parts(f"Conv(x, Concat(v, w, axis=0), {SAME})", 1, 6, 3), {"x": IMAGE, "v": KERNEL, "w": "3,4,3,3"}),
    ("TENSAT 8, of three", f"Conv(x, u, {SAME}), Conv(x, v, {SAME}), Conv(x, w, {SAME})",
     parts(f"Conv(x, Concat(u, v, w, axis=0), {SAME})", 1, 6, 3, 5),
     {"x": IMAGE, "u": KERNEL, "v": "3,4,3,3", "w": "5,4,3,3"}),
    ("TENSAT 9", f"Add(Conv(Conv(x, v, {SAME}), a, {SAME}), Conv(Conv(x, w, {SAME}), b, {SAME}))",
     f"Conv(Conv(x, Concat(v, w, axis=0), {SAME}), Concat(a, b, axis=1), {SAME})",
     {"x": IMAGE, "v": KERNEL, "w": "3,4,3,3", "a": "2,6,3,3", "b": "2,3,3,3"}),
    ("TENSAT 10", "Add(MatMul(x, v), MatMul(y, w)), Add(MatMul(x, a), MatMul(y, b))",
     parts("MatMul(Concat(x, y, axis=1), Concat(Concat(v, w, axis=0), Concat(a, b, axis=0), axis=1))",
           1, 4, 4), {"x": M, "y": "2,5", "va": N, "wb": "5,4"}),
    ("PET 8.3.2, a group", f"Conv(x, w, {GROUPS})", f"Conv(x, MergeGroups(w, group=2, count=2), {SAME})",
     {"x": IMAGE, "w": "6,2,3,3"}),
    ("PET 8.3.2, an average", f"AveragePool(x, {POOL})",
     "Conv(x, MeanKernel(channels=4, kernel_shape=(2,2)), group=4, strides=(2,2))", {"x": IMAGE}),
    ("PET 10b", f"Conv(x, v, {SAME}), Conv(y, w, {SAME})",
     parts(f"Conv(Concat(x, y, y, axis=1), Concat(v, w, axis=0), group=3, {SAME})", 1, 3, 6),
     {"xy": IMAGE, "v": "3,4,3,3", "w": KERNEL}),
]  # fmt: skip


def roots(text: str, shapes: dict[str, str]) -> list[Node]:
    leaves = {
        name: source(name, TensorType("float32", tuple(map(int, filter(None, text.split(","))))))
        for names, text in shapes.items()
        for name in names
    }
    built = [build_term(term, Binding(leaves, {}), "float32") for term in parse_terms(text)]
    assert None not in built
    return [node for node in built if node is not None]


def sides(left: str, right: str, shapes: dict[str, str]) -> tuple[Node, Node]:
    (one,), (other,) = roots(left, shapes), roots(right, shapes)
    return one, other


LIMITS = Limits(nodes=4000, rounds=6)
SEVERAL = Limits(nodes=20_000, rounds=8, multi=2)
FINDERS = (flatten, commute)


def key(node: Node) -> object:
    """Return the node with commutative arguments in a fixed order."""
    args = [None if a is None else key(a) for a in node.args]
    if node.is_declared and len(args) == 2 and is_commutative(node.op):  # type: ignore[arg-type]
        args.sort(key=repr)
    return (str(node.op), tuple(args), str(node.attrs))


@cache
def laws() -> Ruleset:
    return Ruleset(library())


def reached(root: Node, goal: Node) -> bool:
    """Return whether the goal is found from this side alone, operands in any order."""
    return all_reached([root], [goal], LIMITS)


def all_reached(sources: Sequence[Node], goals: Sequence[Node], limits: Limits) -> bool:
    """Return whether each goal is found equal to its source, starting from the sources alone."""
    graph = EGraph()
    numbers = [graph.insert_term(root) for root in sources]
    graph.rebuild()
    saturate(graph, laws(), limits, finders=FINDERS)
    find_all(graph, FINDERS, limits.nodes)
    others = [graph.insert_term(goal) for goal in goals]
    graph.rebuild()
    find_all(graph, FINDERS, 2 * limits.nodes)
    return all(graph.find(a) == graph.find(b) for a, b in zip(numbers, others, strict=True))


def test_the_table_is_complete() -> None:
    assert len(LAWS) == 43


@pytest.mark.nightly(every=3)
@pytest.mark.parametrize(
    ("left", "right", "shapes"), [law[1:4] for law in LAWS], ids=[law[0] for law in LAWS]
)
def test_law_is_derived(left: str, right: str, shapes: dict[str, str]) -> None:
    a, b = sides(left, right, shapes)
    assert key(a) == key(b) or reached(a, b) or reached(b, a)


# a variable is no place to rewrite; what a kernel is enlarged to is read off another one: see enlarge-kernel
EQUATIONS = [law for law in LAWS if "(" in law[2] and "Enlarge" not in law[2]]


@pytest.mark.nightly(every=3)
@pytest.mark.parametrize(
    ("left", "right", "shapes"), [law[1:4] for law in EQUATIONS], ids=[law[0] for law in EQUATIONS]
)
def test_law_is_derived_both_ways(left: str, right: str, shapes: dict[str, str]) -> None:
    a, b = sides(left, right, shapes)
    assert key(a) == key(b) or reached(a, b) and reached(b, a)


@pytest.mark.nightly(every=3)
@pytest.mark.parametrize(
    ("left", "right", "shapes"), [figure[1:] for figure in FIGURES], ids=[figure[0] for figure in FIGURES]
)
def test_figure_is_derived(left: str, right: str, shapes: dict[str, str]) -> None:
    """The search starts from the source alone."""
    sources, goals = roots(left, shapes), roots(right, shapes)
    assert [node.types for node in sources] == [node.types for node in goals]
    assert all_reached(sources, goals, SEVERAL)


def test_a_kernel_is_enlarged_to_another_and_merged() -> None:
    """TASO section 2: kernels of different sizes over one input become one convolution."""
    leaf = source("x", TensorType("float32", (2, 4, 5, 5)))
    one, three = (constant(np.ones((6, 4, n, n), np.float32)) for n in (1, 3))
    small, large = (apply(registry["Conv"], [leaf, w], {"pads": (p,) * 4}) for w, p in ((one, 0), (three, 1)))
    program = Program((leaf,), (("y", small), ("z", large)))
    (enlarge,) = (each for each in REWRITER.multi_root if each.rule.name == "enlarge-kernel-without-b-c")
    enlarged = [program.replace_nodes(found) for found in enlarge.joint_rewrites(program)]
    pairs = ((p, each) for p in enlarged for each in REWRITER.multi_root)
    merged = [p.replace_nodes(found) for p, each in pairs for found in each.joint_rewrites(p)]
    assert min(sum(n.op is registry["Conv"] for n in p.active) for p in merged) == 1


OURS = [(op.name, text) for op in registry.values() if op.domain == "tensaurus" for text in op.examples]


def exported(node: Node, inputs: Sequence[Node], opset: int) -> ModelProto:
    """Return a model of this opset with one output."""

    def code(value: Node) -> int:
        return dtype_code(value.tensor.dtype)

    frame = Frame(
        helper.make_model(helper.make_graph([], "g", [], []), opset_imports=[helper.make_opsetid("", opset)]),
        tuple(helper.make_tensor_value_info(i.attribute("name"), code(i), i.tensor.shape) for i in inputs),
        (helper.make_tensor_value_info("y", code(node), node.tensor.shape),),
    )
    frame.model.ir_version = 8
    return export_model(Program(tuple(inputs), (("y", node),), frame=frame), expand=make_expander(library()))


@pytest.mark.nightly(every=10)
@pytest.mark.parametrize("opset", [7, 11, 13, 17])
@pytest.mark.parametrize(("name", "text"), OURS, ids=[f"{name} {text}" for name, text in OURS])
def test_operators_that_onnx_lacks_are_exported(name: str, text: str, opset: int) -> None:
    """The expansion consists of ONNX's operators, and onnxruntime computes what the expression says."""
    example = parse_example(text)
    inputs = [source(f"x{k}", kind) for k, kind in enumerate(example.types) if kind is not None]
    node = apply(registry[name], inputs, example.attrs)
    values = [v for v in example.values(np.random.default_rng(1)) if v is not None]
    field = Reals()
    (wanted,) = evaluate_roots([node], dict(zip(inputs, map(field.lift, values), strict=True)), field)
    model = exported(node, inputs, opset)
    assert {n.domain for n in model.graph.node} <= {""}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    feeds = {i.attribute("name"): v for i, v in zip(inputs, values, strict=True)}
    (found,) = session.run(None, feeds)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
