"""Expressions as operators: that of every operator is typed, written down, evaluated and exported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from op_samples import Sample, info

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.match.saturate import Limits, Ruleset, saturate
from tensaurus.expr.evaluate.fields import Field, PrimeField, Reals
from tensaurus.expr.ir.expression_text import show as show_scope
from tensaurus.expr.ir.scope import Scope, Tensor, compute
from tensaurus.expr.ir.walk import replace_tensors, tensors
from tensaurus.expr.sizes.size import Symbol, polynomial
from tensaurus.graph.analysis.constant_folding import fold_constants
from tensaurus.graph.ir.node import Node, apply, replace_args, source
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.graph.ir.program_text import digest_table, parse_program
from tensaurus.graph.ir.program_text import format_program as show_program
from tensaurus.graph.ir.tensor_data import numpy_dtype
from tensaurus.graph.lower.expression_lowering import lower_node
from tensaurus.graph.onnx.onnx_export import export_model
from tensaurus.graph.onnx.onnx_frame import Frame
from tensaurus.ops import TensorType, Untypable, registry
from tensaurus.ops.examples import parse_example
from tensaurus.rules.language.match import Matcher
from tensaurus.rules.language.rule import parse_rule
from tensaurus.runtimes.backends.reference import evaluate_all
from tensaurus.system.errors import TensaurusError

OPSET = 21  # which onnxruntime runs
EOP = registry["eop"]
OTHERS = [op for _, op in sorted(registry.items()) if op is not EOP]
SAMPLES = [Sample(op, parse_example(text)) for op in OTHERS for text in op.examples]


def wrapped(sample: Sample) -> list[tuple[Node, list[int]]]:
    """Each output as an eop, with the places of the inputs that it reads."""
    leaves = sample.op.tensors(sample.types)
    made = []
    for scope in sample.op.scopes(sample.types, sample.attrs):
        read = [k for k, leaf in enumerate(leaves) if leaf in tensors(scope)]
        renamed = {leaves[k]: Tensor(f"x{n}", leaves[k].shape, leaves[k].dtype) for n, k in enumerate(read)}
        args = [source(f"v{k}", sample.types[k]) for k in read]
        made.append((apply(EOP, args, {"scope": replace_tensors(scope, renamed)}), read))
    return made


def program_of(node: Node) -> Program:
    inputs = tuple(dict.fromkeys(arg for arg in node.args if arg is not None))
    shell = onnx.ModelProto(ir_version=10)
    shell.opset_import.add(domain="", version=OPSET)
    shell.graph.name = "eop"
    named = [value(arg.attribute("name"), arg.tensor) for arg in inputs]
    return Program(inputs, (("y", node),), frame=Frame(shell, tuple(named), (value("y", node.tensor),)))


def value(name: str, kind: TensorType) -> onnx.ValueInfoProto:
    sizes = tuple(n if isinstance(n, int) else str(n) for n in kind.shape)
    return info(name, TensorType(kind.dtype, sizes))  # type: ignore[arg-type]


def over(node: Node, sample: Sample, field: Field, values: list, lowered: Node | None = None):
    feeds = {f"v{k}": np.asarray(field.lift(v)) for k, v in enumerate(values) if v is not None}
    program = program_of(node)
    used = {k: v for k, v in feeds.items() if k in {i.attribute("name") for i in program.inputs}}
    return evaluate_all([program.with_outputs([root]) for root in (node, lowered or node)], used, field)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_every_expression_is_an_operator(sample: Sample) -> None:
    kinds = sample.op.types(sample.types, sample.attrs)
    for (node, _), kind in zip(wrapped(sample), kinds, strict=True):
        assert node.types == (kind,)
        program = program_of(node)
        text = show_program(program)
        assert parse_program(text, digest_table(program)).roots == (node,), text


def rounds(node: Node) -> bool:
    """Whether a node converts integers that the type of its floats may not hold: no field knows that."""
    kinds = [each.tensor.dtype for each in (*node.args, node) if each]
    return node.op.name == "Cast" and kinds == ["int64", "float32"]


@pytest.mark.nightly(every=4)
@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_an_expression_is_computed_by_standard_operators(sample: Sample) -> None:
    expected = sample.real()
    for (node, _), real in zip(wrapped(sample), expected, strict=True):
        made = lower_node(node)
        assert made.types == node.types
        for field in (Reals(), PrimeField(5)):
            whole, spelled = over(node, sample, field, sample.values, made)
            if field.name == "reals":
                np.testing.assert_allclose(whole["y"], real, rtol=1e-12, atol=1e-12)
                # places are computed in float32, which rounds in this field, too
                np.testing.assert_allclose(spelled["y"], real, rtol=1e-6, atol=1e-7)
            elif not any(rounds(part) for part in topological_order([made])):
                assert field.equal(whole["y"], spelled["y"])


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_an_expression_runs_on_a_stock_runtime(sample: Sample) -> None:
    for (node, read), real in zip(wrapped(sample), sample.real(), strict=True):
        program = program_of(node)
        model = export_model(program)
        assert not {n.domain for n in model.graph.node} - {""}
        onnx.checker.check_model(model, full_check=True)
        try:
            (found,) = ran(model, {f"v{k}": sample.values[k] for k in read})
        except REFUSALS as error:
            with pytest.raises(REFUSALS):  # the operator itself, too
                alone = sample.model(OPSET, 1)
                ran(alone, sample.feeds(alone))
            pytest.skip(str(error))
        kind = node.tensor
        assert found.shape == kind.shape and found.dtype == numpy_dtype(kind.dtype)
        if kind.dtype.startswith("float"):
            assert_close(found, real)
        else:
            np.testing.assert_array_equal(found, real.astype(found.dtype))


REFUSALS = (ort.capi.onnxruntime_pybind11_state.NotImplemented, ort.capi.onnxruntime_pybind11_state.Fail)


def ran(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def assert_close(found, real):
    digits = 2e-5 if found.dtype.itemsize >= 4 else 2e-2
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(found, real.astype(found.dtype), rtol=digits, atol=digits)


# What it refuses, and what it is equal to

N = polynomial(Symbol("N", 1))


def eop(scope: str | Scope, *shapes: Any, dtype: str = "float32") -> Node:
    return apply(EOP, [source(f"v{k}", TensorType(dtype, s)) for k, s in enumerate(shapes)], {"scope": scope})


@pytest.mark.parametrize(
    ("scope", "shapes", "reason"),
    [
        ("L[i:3](x0[i] if i >= 0 else x1[i])", [(3,)], "no tensor x1"),
        ("L[i:3](x1[i])", [(3,)], "no tensor x1"),
        ("L[i:3](x0[i, 0])", [(3,)], "2 indices into rank 1"),
        ("L[i:3](x0[j])", [(3,)], "a scope with j, which is a size of none"),
        ("L[i:M](x0[i])", [(3,)], "a scope with M, which is a size of none"),
        ("L[i:3](", [(3,)], "not an expression"),
        ("x0[0]", [(3,)], "not a scope"),
        ("L[i:-1](x0[0])", [(3,)], "negative"),
        ("L[i:3](and_(x0[i], x0[i]))", [(3,)], ""),
    ],
)
def test_what_is_no_expression_of_the_inputs_is_refused(scope: str, shapes: Any, reason: str) -> None:
    if reason:
        with pytest.raises(Untypable, match=reason):
            eop(scope, *shapes)
    else:  # of a type that a function refuses, or gives
        assert eop(scope, *shapes).tensor.dtype == "bool"


def test_what_is_never_read_may_be_anything() -> None:
    text = "L[i:3, j:N](x1[i] if i >= 0 else x0[j])"  # always the first
    node = eop(text, (N,), (3,))
    assert node.tensor.shape == (3, N) and len(node.args) == 2
    program = program_of(node)
    assert parse_program(show_program(program)).roots == (node,)
    values = [np.ones(2, np.float32), np.arange(3, dtype=np.float32)]
    (found,) = run_on_runtime(eop(text.replace("N", "2"), (2,), (3,)), values)
    np.testing.assert_array_equal(found, [[0, 0], [1, 1], [2, 2]])


def test_types_are_those_that_the_scope_declares() -> None:
    x = Tensor("x0", (3, 4))
    scope = compute((4, 3), lambda i, j: x[j, i])
    assert eop(scope, (3, 4)).tensor == TensorType("float32", (4, 3))
    for shape in ((3, 5), (3,), (3, 4, 1), (N, 4)):
        with pytest.raises(Untypable):
            eop(scope, shape)
    with pytest.raises(Untypable, match="float32"):
        eop(scope, (3, 4), dtype="float64")
    twice = compute((4,), lambda i: x[0, i] + Tensor("x0", (4,))[i])
    with pytest.raises(Untypable, match="one name"):
        eop(twice, (3, 4))


def test_symbols_are_sizes_of_the_inputs() -> None:
    x = Tensor("x0", (N, 2 * N))
    scope = compute((N, N), lambda i, j: x[i, 2 * j])
    m = polynomial(Symbol("M", 3))
    for size in (4, N, m, 2 * m + 1):
        node = eop(scope, (size, 2 * size))
        assert node.tensor.shape == (size, size)
        assert node is eop(show_scope(node.attribute("scope")), (size, 2 * size))
        assert replace_args(eop(scope, (N, 2 * N)), node.args) is node
    for shape in ((4, 9), (0, 0), (polynomial(Symbol("K")), 2 * polynomial(Symbol("K")))):
        with pytest.raises(Untypable):  # the expression holds from 1 on
            eop(scope, shape)


def test_equal_scopes_are_equal_nodes() -> None:
    x = Tensor("x0", (3, 4))
    first, second = (compute((4, 3), lambda i, j: x[j, i] * 2) for _ in range(2))
    assert first != second and eop(first, (3, 4)) is eop(second, (3, 4))
    assert eop(first, (3, 4)) is not eop(compute((4, 3), lambda i, j: x[j, i] * 3), (3, 4))


def test_without_inputs_it_is_a_constant() -> None:
    node = eop("L[i:3, j:2](to_float32(i * 2 + j))")
    assert node.static and node.tensor == TensorType("float32", (3, 2))
    (folded,) = fold_constants(program_of(node)).roots
    np.testing.assert_array_equal(folded.attribute("data").array, np.arange(6).reshape(3, 2))


def test_rules_write_it_as_text() -> None:
    square = "eop(x, scope='L[i:4](mul(x0[i], x0[i]))')"
    (rule,) = parse_rule(f"square: Mul(x, x) => {square}")
    x = source("x", TensorType("float32", (4,)))
    product = apply(registry["Mul"], [x, x])
    made = Matcher(rule).rewrite(product)
    assert made is apply(EOP, [x], {"scope": "L[k:4](mul(x0[k], x0[k]))"})
    (back,) = parse_rule(f"back: {square} => Mul(x, x)")
    assert Matcher(back).rewrite(made) is product
    assert Matcher(back).rewrite(apply(EOP, [x], {"scope": "L[k:4](mul(x0[k], 2))"})) is None
    graph = EGraph()
    root = graph.insert_term(made)
    graph.rebuild()
    saturate(graph, Ruleset([back]), Limits())
    assert graph.find(root) == graph.find(graph.insert_term(product))
    longer = source("y", TensorType("float32", (5,)))
    assert Matcher(rule).rewrite(apply(registry["Mul"], [longer, longer])) is None


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_no_runtime_divides_integers_by_zero(dtype: str) -> None:
    text = "L[i:4, j:4](div(x0[i], x1[j]) if j - i - 1 >= 0 and 2 - j >= 0 else 0)"
    values = [np.arange(4, dtype=dtype) + 4, np.array([0, 1, 2, 0], dtype)]
    (found,) = run_on_runtime(eop(text, (4,), (4,), dtype=dtype), values)
    expected = [[a // max(b, 1) if i < j <= 2 else 0 for j, b in enumerate(values[1])]
                for i, a in enumerate(values[0])]  # fmt: skip
    np.testing.assert_array_equal(found, expected)


def test_only_the_branch_that_is_chosen_counts() -> None:
    """Elsewhere it may be an infinity, or no number at all."""
    node = eop("L[i:3, j:3](div(x0[i], x0[j]) if i - j >= 0 else 5)", (3,))
    values = np.array([0, np.inf, 2], np.float32)
    (found,) = run_on_runtime(node, [values])
    with np.errstate(all="ignore"):
        expected = np.where(np.tri(3, dtype=bool), values[:, None] / values[None, :], 5)
    np.testing.assert_array_equal(found, expected)


def run_on_runtime(node: Node, values: Sequence[Any]) -> list[Any]:
    return ran(export_model(program_of(node)), {f"v{k}": v for k, v in enumerate(values)})


@pytest.mark.parametrize(
    ("scope", "shape"),
    [
        ("L[i:4000000000](x0[i % 3])", (3,)),
        ("L[i:4000000000](mul(x0[0], i))", (3,)),
        ("L[i:N](x0[i])", (N,)),
        ("L[i:3](x0[i - N] | 0)", (N,)),
    ],
)
def test_what_cannot_be_written_is_an_error_of_one_line(scope: str, shape: Any) -> None:
    with pytest.raises(TensaurusError) as caught:
        export_model(program_of(eop(scope, shape)))
    assert "\n" not in str(caught.value) and "eop" in str(caught.value)


def test_what_was_of_symbols_is_so_again_over_other_sizes() -> None:
    """Numbers in the place of symbols are those of the inputs, and other inputs have others."""
    n = polynomial(Symbol("N", 1))
    doubled = compute((n, 3), lambda i, j: Tensor("x0", (n, 3))[i, j] * 2)
    first, second = (source("x", TensorType("float32", (k, 3))) for k in (4, 7))
    made = apply(EOP, [first], {"scope": doubled})
    moved = replace_args(made, (second,))
    assert moved.tensor.shape == (7, 3) and moved is apply(EOP, [second], {"scope": doubled})
    with pytest.raises(Untypable):
        replace_args(made, (source("x", TensorType("float32", (4, 5))),))
    plain = apply(EOP, [first], {"scope": "L[i:4, j:3](mul(x0[i, j], 3))"})
    with pytest.raises(Untypable):
        replace_args(plain, (second,))
