"""Every rule of the library is verified, matches inside programs, and its evidence is the one on its line."""

from __future__ import annotations

import ast
from dataclasses import replace

import numpy as np
import pytest

from tensaurus.expr.evaluate.fields import Field, PrimeField, Rationals, Reals
from tensaurus.expr.sizes.size import Symbol, polynomial
from tensaurus.graph.ir.node import Node, apply, constant, source
from tensaurus.graph.ir.program import Program
from tensaurus.ops import TensorType, Untypable, registry
from tensaurus.ops.onnx_writer import write_node
from tensaurus.ops.schema import NotInOpset
from tensaurus.rules.language.evidence import Axiom, Evidence
from tensaurus.rules.language.match import Matcher, Rewriter, is_commutative
from tensaurus.rules.language.occurrences import outer_first
from tensaurus.rules.language.rule import Rule, library, parse_rule
from tensaurus.rules.language.term import RuleError
from tensaurus.rules.test.annotate_files import annotate_rules
from tensaurus.rules.test.compare_sides import to_indices
from tensaurus.rules.test.instances import instances
from tensaurus.rules.test.verify_rule import (
    Refuted,
    Undecided,
    draw_leaf_values,
    evaluate_roots,
    refute,
    verify,
)

LIBRARY = library(ops=())  # rules for many operators: see test_data_movement
SOUND = [rule for rule in LIBRARY if "off" not in rule.tags]


def op(name: str, *args: Node | None, **attrs: object) -> Node:
    return apply(registry[name], args, attrs)


def x(*shape: int) -> Node:
    return source("x", TensorType("float32", shape))


def weights(*shape: int) -> Node:
    return constant(np.random.default_rng(7).standard_normal(shape).astype(np.float32))


@pytest.mark.nightly(every=8)
@pytest.mark.parametrize("rule", SOUND, ids=str)
def test_rule_is_right_and_says_why(rule: Rule) -> None:
    assert rule.evidence is not None, "run annotate on the file"
    if rule.evidence.kind == "proved":  # the nightly proves it again; here something is tried against it
        assert refute(rule, wanted=8, seed=11) is None
        return
    found = verify(rule, wanted=8, seed=11, steps=0)
    if isinstance(found, Undecided) and found.reason.startswith(("Z3 finds neither", "Z3 has no term")):
        found = verify(rule, wanted=8, seed=11)  # element by element Z3 finds what it does not of all at once
    assert isinstance(found, Evidence), found.reason
    assert found.by == rule.evidence.by


@pytest.mark.nightly(every=8)
@pytest.mark.parametrize("rule", SOUND, ids=str)
def test_rule_is_found_inside_a_program(rule: Rule) -> None:
    """The left side, used by other nodes, is replaced by the right side, and the program stays equal."""
    rewriter = Rewriter([rule], explore=True)
    for instance in instances(rule, 8, seed=5):  # the evidence may not cover the first
        roots = [op("Neg", root) if root.types[0].dtype != "bool" else root for root in instance.left]
        program = Program((), tuple((str(k), root) for k, root in enumerate(roots)))
        if len(rule.lhs) == 1:
            made = rewriter.rewrite_node(rule, instance.left[0])
            changes = None if made is None else {instance.left[0]: made}
        else:
            changes = next(rewriter.multi_root[0].joint_rewrites(program), None)
        if changes is not None:
            break
    assert changes is not None
    changed = program.replace_nodes(changes)
    assert changed.outputs != program.outputs
    field: Field = PrimeField()
    if rule.evidence is not None and not rule.evidence.is_exact:
        field = Reals() if isinstance(rule.evidence, Axiom) else Rationals()
    values = draw_leaf_values(instance, field, np.random.default_rng(0))
    if any(call.op.name == "Gather" for root in rule.lhs for call in outer_first(root)):
        values = {leaf: to_indices(value, 1, leaf.tensor.dtype) for leaf, value in values.items()}
    for (_, a), (_, b) in zip(program.outputs, changed.outputs, strict=True):
        left, right = evaluate_roots([a, b], values, field)
        if isinstance(field, Reals):
            np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-8)
        else:
            assert field.equal(left, right)


UNSOUND = {
    "a shift folds into a padded convolution": (
        "bad: Conv(Add(x, t), w, group=1, **a) => Add(Conv(x, w, group=1, **a), "
        "Reshape(Mul(ReduceSum(w, axes=tuple(range(1, rank(w))), keepdims=0), t), "
        "shape=(dim(w,0),) + ones(rank(w)-2))) where const(t), const(w), numel(t) == 1, rank(t) == 0"
    ),
    "relu is odd": "bad: Relu(Neg(x)) => Neg(Relu(x))",
    "relu is linear": "bad: Relu(Add(x, y)) => Add(Relu(x), Relu(y)) where shape(x) == shape(y)",
    "relu does nothing": "bad: Relu(x) => Add(x, 0)",
    "a negative scale passes relu": "bad: Relu(Mul(x, s)) => Mul(Relu(x), s) where numel(s) == 1",
    "matrix products commute": "bad: MatMul(x, y) => MatMul(y, x) where shape(x) == shape(y)",
    "half of hardswish": "bad: Div(Mul(x, Clip(Add(x, 3), 0, 6)), 6) => HardSigmoid(x, alpha=1/6, beta=1/2)",
    "a wrong slope": "bad: Div(Clip(Add(x, 3), 0, 6), 6) => HardSigmoid(x, alpha=1/5, beta=1/2)",
    "max pooling is linear": (
        "bad: MaxPool(Mul(x, s), **a) => Mul(MaxPool(x, **a), s) where numel(s) == 1, rank(s) == 0"
    ),
    "padding is no average": (
        "bad: AveragePool(Add(x, t), pads=p, count_include_pad=c, **a) => "
        "Add(AveragePool(x, pads=p, count_include_pad=c, **a), t) where const(t), rank(t) == 0"
    ),
    "a transposed permutation": (
        "bad [any]: Transpose(Transpose(x, perm=p), perm=q) => Transpose(x, perm=tuple(q[i] for i in p))"
    ),
}


@pytest.mark.parametrize("text", UNSOUND.values(), ids=UNSOUND)
def test_wrong_rule_is_refuted(text: str) -> None:
    (rule,) = parse_rule(text)
    found = verify(rule, wanted=30)
    assert isinstance(found, Refuted), f"{rule} passed as {found}"


# (rule, place of a condition): turned around, the condition lets in exactly what it kept out
NEEDED = [
    *(("relu-positive-scale", 0), ("scale-after-conv", 2), ("shift-after-conv", 1), ("scale-before-conv", 2)),
    *(("shift-before-unpadded-conv", 3), ("scale-after-matmul", 3), ("matmul-linear-left", 0)),
    *(("scale-after-convtranspose", 2), ("concat-interchange", 0), ("scale-through-average", 1)),
    *(("average-as-conv", 0), ("transpose-nothing", 0), ("mean-of-pointwise-conv", 2)),
    *(("conv-after-pad", 0), ("copying-conv", 0)),
]


@pytest.mark.nightly(every=4)
@pytest.mark.parametrize(("name", "place"), NEEDED)
def test_conditions_are_needed(name: str, place: int) -> None:
    """bench/rule_mutations.py does this with every condition of the library."""
    rule = next(rule for rule in SOUND if rule.name == name)
    turned = ast.UnaryOp(ast.Not(), rule.where[place])
    found = verify(replace(rule, where=(*rule.where[:place], turned, *rule.where[place + 1 :])), wanted=100)
    assert isinstance(found, Refuted)


def test_accidental_broadcasting_is_no_match() -> None:
    """A law that holds side by side is wrong one above the other, though every type agrees."""
    a, b = (source(name, TensorType("float32", (1,))) for name in "ab")
    c, d = (source(name, TensorType("float32", (2, 2))) for name in "cd")
    left = op("Concat", op("Add", a, c), op("Add", b, d), axis=0)
    right = op("Add", op("Concat", a, b, axis=0), op("Concat", c, d, axis=0))
    assert left.types == right.types
    rewriter = Rewriter(LIBRARY, explore=True)
    assert all(made is not right for _, made in rewriter.rewrites_at(left))
    assert all(made is not left for _, made in rewriter.rewrites_at(right))


def applied(left: Node) -> set[str]:
    return {rule.name for rule, _ in Rewriter(LIBRARY, explore=True).rewrites_at(left)}


def test_a_window_in_the_padding_alone_averages_nothing() -> None:
    shifted = op("Add", x(1, 1, 1, 1), constant(np.float32(0.5)))
    assert "shift-through-average" in applied(op("AveragePool", shifted, kernel_shape=(1, 1)))
    window = {"kernel_shape": (2, 2), "dilations": (2, 2), "pads": (1, 1, 1, 1)}
    assert "shift-through-average" not in applied(op("AveragePool", shifted, **window))


def test_a_shift_of_higher_rank_moves_the_channels() -> None:
    """x [4, 4, 4] has its channels in the middle; with t [1, 4, 4, 1] added they are x's first axis."""
    scaled = op("Mul", x(4, 4, 4), constant(np.full((4, 1), 2, np.float32)))
    name = "scale-of-shifted-before-conv-without-b"
    assert name in applied(op("Conv", op("Add", scaled, weights(4, 1)), weights(4, 4, 2)))
    assert name not in applied(op("Conv", op("Add", scaled, weights(1, 4, 4, 1)), weights(4, 4, 2, 2)))


def test_explored_rules_are_left_out_unless_asked_for() -> None:
    text = "r [back]: Neg(Neg(x)) <=> Add(x, 0)"
    assert [sorted(rule.tags) for rule in parse_rule(text)] == [[], ["explore"]]
    assert [len(Rewriter(parse_rule(text), explore=asked).matchers) for asked in (False, True)] == [1, 2]


def test_commutativity_is_derived_from_expressions() -> None:
    found = {o.name for o in registry.values() if is_commutative(o)}
    assert found >= {"Add", "Mul", "Equal", "And", "Or", "Xor", "Max", "Sum"}
    assert not found & {"Sub", "Div", "Pow", "MatMul", "Less", "Conv", "Concat"}


def test_commutative_arguments_match_in_both_orders() -> None:
    (rule,) = parse_rule("r: Div(Mul(x, Clip(Add(x, 3), 0, 6)), 6) => HardSwish(x)")
    three, zero, six = (constant(np.float32(v)) for v in (3, 0, 6))
    a = x(2, 3)
    for added in (op("Add", a, three), op("Add", three, a)):
        clipped = op("Clip", added, zero, six)
        for product in (op("Mul", a, clipped), op("Mul", clipped, a)):
            assert Matcher(rule).rewrite(op("Div", product, six)) is op("HardSwish", a)
    other = op("Div", op("Mul", x(2, 3), op("Clip", op("Add", op("Relu", a), three), zero, six)), six)
    assert Matcher(rule).rewrite(other) is None


def test_literals_match_exact_values_only() -> None:
    (rule,) = parse_rule("r: Add(x, 3) => x")
    assert Matcher(rule).rewrite(op("Add", x(2), constant(np.float32(3)))) is x(2)
    above = np.nextafter(np.float32(3), np.float32(4))
    assert Matcher(rule).rewrite(op("Add", x(2), constant(above))) is None
    assert Matcher(rule).rewrite(op("Add", x(2), constant(np.full((2,), 3, np.float32)))) is None


def test_a_match_that_would_change_the_type_is_no_match() -> None:
    (rule,) = parse_rule("r: Add(x, 0) => x")
    zero = constant(np.zeros((1, 1, 1), np.float32))
    assert Matcher(rule).rewrite(op("Add", x(2), zero)) is None


def test_integers_are_not_matched_unless_a_rule_says_so() -> None:
    whole = source("x", TensorType("int64", (2,)))
    (rule,) = parse_rule("r: Div(Mul(x, y), y) => x")
    assert Matcher(rule).rewrite(op("Div", op("Mul", whole, whole), whole)) is None


def test_shift_before_padded_convolution_is_left_alone() -> None:
    """At the border the window meets zeros that the addition never touched."""
    rules = [rule for rule in SOUND if rule.name.startswith("shift-before-unpadded-conv")]
    shifted = op("Add", x(1, 4, 6, 6), constant(np.float32(0.5)))
    w = weights(6, 4, 3, 3)
    assert any(Matcher(r).rewrite(op("Conv", shifted, w)) for r in rules)
    assert not any(Matcher(r).rewrite(op("Conv", shifted, w, pads=(1, 1, 1, 1))) for r in rules)
    assert not any(Matcher(r).rewrite(op("Conv", shifted, w, pads=(0, 0, 0, 1))) for r in rules)


def test_rules_of_several_roots_share_what_they_bind() -> None:
    whole = "Split(MatMul(x, Concat(v, w, axis=1)), axis=-1, split=(dim(v, 1), dim(w, 1)))"
    (rule,) = parse_rule(f"merged: MatMul(x, v), MatMul(x, w) => {whole}[0], {whole}[1]")
    left, right = op("MatMul", x(2, 3), weights(3, 4)), op("MatMul", x(2, 3), weights(3, 5))
    other = op("MatMul", source("y", TensorType("float32", (2, 3))), weights(3, 6))
    program = Program((), (("a", left), ("b", right), ("c", other)))
    found = list(Matcher(rule).joint_rewrites(program))
    assert {frozenset(changes) for changes in found} == {frozenset({left, right})}
    merged = program.replace_nodes(found[0])
    assert sum(node.op.name == "MatMul" for node in merged.active) == 2


@pytest.mark.parametrize(
    "text",
    [
        "no arrow: Add(x, y)",
        "r: Addd(x, y) => x",
        "r: Conv(x, w, colour=1) => x",
        "r: Add(x, => x",
        "r: __import__('os') => x",
        "r [unknown]: Add(x, 0) => x",
        "r: Relu(x) => Add(Relu(x), y)",
        "r: Add(x, 0) <=> Sub(x, y)",
        "r: Add(x, 0) => x where rnk(x) == 2",
        "r: Add(x, 0) => x where rank(y) == 2",
        "r: Add(x, 0) => x where all(n == m for n in shape(x))",
        "r: Transpose(x, perm=p) => Transpose(x, perm=reversed(p))",
        "r: Relu(x) => x where __import__('os').system('false')",
    ],
)
def test_bad_text_is_one_clear_error(text: str) -> None:
    with pytest.raises(RuleError):
        parse_rule(text)


def test_a_typo_in_a_condition_gets_a_suggestion() -> None:
    with pytest.raises(RuleError, match=r"unknown function rnk; did you mean rank\?"):
        parse_rule("r: Add(x, 0) => x where rnk(x) == 2")


def test_annotating_marks_and_refutes() -> None:
    text = "# a comment\ngood: Add(x, 0) => x\nbad: Relu(x) => Neg(x)\n"
    found, refuted = annotate_rules(text)
    assert "# a comment\ngood: Add(x, 0) => x | proved(algebra, all sizes" in found
    assert [r.rule.name for r in refuted] == ["bad"]
    assert annotate_rules(found)[0] == found


def test_names_are_unique() -> None:
    names = [rule.name for rule in LIBRARY]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("kernel", "pads", "dilations", "size", "applies"),
    [
        ((3, 3), (1, 1, 1, 1), (1, 1), 5, True),
        ((2, 2), (0, 0, 0, 0), (2, 2), 5, True),
        ((2, 2), (1, 1, 1, 1), (2, 2), 1, False),  # the window at -1 and 1 of a size of 1
        ((2, 2), (1, 0, 1, 0), (1, 1), 5, False),  # a pad on both sides: with no rows, a window of nothing
    ],
)
def test_relu_and_max_where_no_window_is_padding(
    kernel: tuple[int, ...], pads: tuple[int, ...], dilations: tuple[int, ...], size: int, applies: bool
) -> None:
    attrs = {"kernel_shape": kernel, "pads": pads, "dilations": dilations}
    rewriter = Rewriter(LIBRARY, explore=True)
    for root in (
        op("MaxPool", op("Relu", x(1, 2, size, size)), **attrs),
        op("Relu", op("MaxPool", x(1, 2, size, size), **attrs)),
    ):
        found = {rule.name for rule, _ in rewriter.rewrites_at(root)}
        assert bool(found & {"relu-through-max", "relu-through-max-back"}) == applies


@pytest.mark.parametrize(("low", "applies"), [(0, False), (2, False), (3, True)])
def test_an_average_is_a_convolution_where_a_window_fits(low: int, applies: bool) -> None:
    """Two rows under a window of three: the pool has no rows, and onnxruntime refuses the convolution."""
    height = polynomial(Symbol("H", low))
    image = source("x", TensorType("float32", (1, 2, height, 5)))
    pooled = op("AveragePool", image, kernel_shape=(3, 3))
    rewriter = Rewriter(LIBRARY, explore=True)
    assert ("average-as-conv" in {rule.name for rule, _ in rewriter.rewrites_at(pooled)}) == applies
    channels = source("x", TensorType("float32", (1, polynomial(Symbol("C", 1)), 5, 5)))
    pooled = op("AveragePool", channels, kernel_shape=(3, 3))
    assert [rule for rule, _ in rewriter.rewrites_at(pooled)] == []  # as many groups as there are channels


def test_no_rule_fails_where_there_are_no_output_channels() -> None:
    """A filter bank of no filters has no meaning in groups: the merged convolution is refused, not raised."""
    rewriter = Rewriter(LIBRARY, explore=True)
    found = op("Pad", x(1, 2, 5, 5), pads=(0, 0, 1, 1, 0, 0, 1, 1))
    with pytest.raises(Untypable):
        op("Conv", found, source("w", TensorType("float32", (0, 2, 3, 3))))
    with pytest.raises(Untypable):
        op("ConvTranspose", found, source("w", TensorType("float32", (2, 0, 3, 3))))
    assert list(rewriter.rewrites_at(found)) == []


@pytest.mark.parametrize(("bound", "applies"), [(6.0, True), (0.0, True), (-1.0, False)])
def test_a_clip_has_its_bounds_in_order(bound: float, applies: bool) -> None:
    root = op("Min", op("Relu", x(2, 3)), constant(np.float32(bound)))
    found = {rule.name for rule, _ in Rewriter(LIBRARY, explore=True).rewrites_at(root)}
    assert ("relu6-of-min" in found) == applies


@pytest.mark.parametrize(("kernel", "pad", "applies"), [((3, 3), 1, True), ((1, 1), 1, False)])
def test_a_pool_is_larger_than_its_padding(kernel: tuple[int, ...], pad: int, applies: bool) -> None:
    mean = op("MeanKernel", channels=2, kernel_shape=kernel)
    root = op("Conv", x(1, 2, 5, 5), mean, group=2, pads=(pad,) * 4)
    found = {rule.name for rule, _ in Rewriter(LIBRARY, explore=True).rewrites_at(root)}
    assert ("conv-as-average" in found) == applies


def test_an_attribute_of_one_number_takes_no_tensor_of_rank_one() -> None:
    """Opset 9 writes the bounds of a Clip as numbers: one of shape [1] cannot be said there."""
    bound = TensorType("float32", (1,))
    kinds = [TensorType("float32", (2, 3)), None, bound]
    clip = registry["Clip"]
    with pytest.raises(NotInOpset):
        write_node(
            clip,
            kinds,
            clip.canonical(kinds, {}),
            ["x", None, "c"],
            ["y"],
            9,
            constant_of={"c": np.ones(1, np.float32)}.get,
        )


@pytest.mark.nightly(every=3)
@pytest.mark.parametrize("seed", range(3))
def test_a_rule_with_indices_and_functions_is_tried_at_valid_indices(seed: int) -> None:
    """exp(-v) is 1 / exp(v): no exact field has that law, so float64 decides."""
    (rule,) = parse_rule("r [any]: Exp(Neg(Gather(x, i, **a))) => Div(1, Exp(Gather(x, i, **a)))")
    found = verify(rule, 20, seed=seed, steps=0)
    assert isinstance(found, Undecided) and "functions" in found.reason
