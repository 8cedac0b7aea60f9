"""Random expressions written as operators of ONNX agree with the evaluator, also on a runtime."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from op_samples import Sample, info, samples

from tensaurus.expr.evaluate.fields import Field, PrimeField, Reals
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.ir.scope import Body, Scope, Table, Tensor, call, compute, fold, lift, look, where, within
from tensaurus.expr.ir.walk import replace_tensors, tensors
from tensaurus.expr.sizes.size import floordiv, mod
from tensaurus.graph.ir.node import CONSTANT, Node, apply, constant, source
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.graph.ir.program_text import format_program, parse_program
from tensaurus.graph.lower import expression_lowering as standard_
from tensaurus.graph.lower.expression_lowering import lower_node
from tensaurus.graph.onnx.onnx_export import export_model
from tensaurus.graph.onnx.onnx_frame import Frame
from tensaurus.ops import TensorType, registry
from tensaurus.rules.language.match import make_expander
from tensaurus.rules.language.rule import library
from tensaurus.runtimes.backends.reference import evaluate
from tensaurus.runtimes.price.operation_counts import elements

EOP = registry["eop"]
INFINITY = float("inf")
Array = np.ndarray[Any, Any]


@st.composite
def scopes(draw: st.DrawFn, dtype: str = "float32") -> Scope:
    """Reads of tensors and of scopes at all kinds of indices, choices, reductions."""
    count = draw(st.integers(1, 3))
    sizes = st.integers(1, 4)
    shapes = [draw(st.lists(sizes, max_size=3)) for _ in range(count)]
    if draw(st.integers(0, 9)) == 0 and shapes[0]:
        shapes[0][0] = 0
    leaves = [Tensor(f"x{k}", tuple(shape), dtype) for k, shape in enumerate(shapes)]
    table = Tensor(f"x{count}", (draw(sizes), draw(sizes)), "int64")

    def index(axes: list[Any]) -> Any:
        """An index somewhere near the small ones."""
        kind = draw(st.integers(0, 7 if axes else 0))
        if kind == 0:
            return draw(st.integers(-1, 4))
        a, b = draw(st.sampled_from(axes)), draw(st.sampled_from(axes))
        match kind:
            case 1 | 2:
                return a
            case 3:
                return draw(st.sampled_from([-2, -1, 1, 2, 3])) * a + draw(st.integers(-2, 4))
            case 4:
                return a + draw(st.integers(1, 2)) * b - draw(st.integers(0, 2))
            case 5:
                return floordiv(a + draw(st.integers(0, 3)), draw(st.integers(1, 3)))
            case 6:
                return mod(a * draw(st.integers(1, 3)) + b, draw(st.integers(1, 4)))
        rows = [mod(index(axes[:1]), n) for n in table.shape]
        looked = look(table[tuple(rows)], -9, 9)
        return looked + draw(st.integers(-1, 1)) * a if draw(st.booleans()) else floordiv(looked, 2)

    def typed(found: Body) -> Body:
        """What reads no tensor has no type of its own, and integers have another order than GF(p)."""
        return call(f"to_{dtype}", found)

    def read(axes: list[Any], depth: int) -> Body:
        nested = depth > 0 and draw(st.integers(0, 3)) == 0
        found: Any = draw(st.sampled_from(leaves))
        if nested:
            found = compute(draw(st.lists(sizes, max_size=3)), lambda *i: typed(body(list(i), depth - 1)))
        spots = [index(axes) for _ in found.shape]
        way = draw(st.integers(0, 3))
        if way == 0 or 0 in found.shape:
            beyond = [0, 1, 7] + ([INFINITY, -INFINITY, 0.5] if dtype == "float32" else [])
            return found.padded(draw(st.sampled_from(beyond)))[tuple(spots)]
        if way == 1 and spots:
            guard = [g for i, n in zip(spots, found.shape, strict=True) for g in within(i, 0, n)]
            return where(guard, found[tuple(spots)], draw(st.integers(-2, 2)))
        return found[tuple(mod(i, n) for i, n in zip(spots, found.shape, strict=True))]

    def body(axes: list[Any], depth: int) -> Body:
        kind = draw(st.integers(0, 9 if depth else 2))
        if kind < 2:
            return read(axes, depth)
        if kind == 2:
            return lift(draw(st.sampled_from([draw(st.integers(-2, 3)), *axes])))
        if kind < 6:
            fn = draw(st.sampled_from(["add", "mul", "sub", "max", "min", "mul"]))
            return call(fn, typed(body(axes, depth - 1)), typed(body(axes, depth - 1)))
        if kind < 8:
            monoid = draw(st.sampled_from(["sum", "sum", "max", "min", "prod"]))
            least = 0 if draw(st.integers(0, 9)) == 0 else 1
            extents = draw(st.lists(st.integers(least, 3), min_size=1, max_size=2))
            return fold(monoid, extents, lambda *r: typed(body([*axes, *r], depth - 1)))
        guards = [index(axes) - draw(st.integers(0, 2)) for _ in range(draw(st.integers(1, 2)))]
        return where(guards, body(axes, depth - 1), body(axes, depth - 1))

    return compute(draw(st.lists(st.integers(0, 4) if draw(st.integers(0, 9)) == 0 else sizes, max_size=3)),
                   lambda *i: typed(body(list(i), 3)))  # fmt: skip


def renamed(scope: Scope) -> tuple[Scope, list[Tensor]]:
    """With the tensors that it reads as x0, x1, ..."""
    new = {t: Tensor(f"x{k}", t.shape, t.dtype) for k, t in enumerate(tensors(scope))}
    return replace_tensors(scope, new), list(new.values())


def drawn(leaves: list[Tensor], seed: int) -> dict[Tensor, Array]:
    rng = np.random.default_rng(seed)
    return {
        t: rng.integers(-9, 10, t.shape) if t.dtype == "int64" else
        rng.standard_normal(t.shape).astype(np.float32)
        for t in leaves
    }  # fmt: skip


def program_of(scope: Scope, leaves: list[Tensor]) -> tuple[Program, Node]:
    args = [source(t.name, TensorType(t.dtype, t.shape)) for t in leaves]
    node = apply(EOP, args, {"scope": scope})
    shell = onnx.ModelProto(ir_version=8)
    shell.opset_import.add(domain="", version=18)
    shell.graph.name = "scope"
    frame = Frame(shell, tuple(info(a.attribute("name"), a.tensor) for a in args), (info("y", node.tensor),))
    return Program(tuple(args), (("y", node),), frame=frame), node


def same(found: Array, expected: Array, digits: float) -> None:
    """Equal wherever that is a number; infinities times zeros have their own ideas."""
    assert found.shape == expected.shape
    finite = np.isfinite(expected) & (np.abs(expected) < 1e6)
    np.testing.assert_allclose(found[finite], expected[finite], rtol=digits, atol=digits)


SUMS = st.sampled_from((1, standard_.MIN_UNROLLED_OUTPUTS))  # least elements of unrolled sums


@settings(max_examples=150, deadline=None)
@given(scope=st.one_of(scopes(), scopes(dtype="int64")), seed=st.integers(0, 99), long=SUMS)
def test_every_scope_is_written_with_operators(scope: Scope, seed: int, long: int) -> None:
    scope, leaves = renamed(scope)
    values = drawn(leaves, seed)
    program, node = program_of(scope, leaves)
    assert parse_program(format_program(program)).roots == (node,)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(standard_, "MIN_UNROLLED_OUTPUTS", long)
        made = lower_node(node)
    assert made.types == node.types
    fields: list[Field] = [Reals(), PrimeField(seed)]
    for field in fields:
        held = {t: np.asarray(field.lift(v)) for t, v in values.items()}
        try:
            expected = interpret(scope, held, field)
        except IndexError:  # whose bounds of an index need not be tight
            assume(False)
        feeds = {t.name: v for t, v in held.items()}
        found = evaluate(program.with_outputs([made]), feeds, field)["y"]
        if field.has_elements(expected) and field.name != "reals":
            assert field.equal(found, expected)
        else:
            same(found, expected, 1e-7)


@settings(max_examples=150, deadline=None)
@given(scope=st.one_of(scopes(), scopes(dtype="int64")), seed=st.integers(0, 99), long=SUMS)
def test_every_scope_runs_on_a_runtime(scope: Scope, seed: int, long: int) -> None:
    scope, leaves = renamed(scope)
    values = drawn(leaves, seed)
    program, _ = program_of(scope, leaves)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(standard_, "MIN_UNROLLED_OUTPUTS", long)
        model = export_model(program)
    onnx.checker.check_model(model, full_check=True)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {t.name: v for t, v in values.items()})
    try:
        expected = interpret(scope, {t: Reals().lift(v) for t, v in values.items()}, Reals())
    except IndexError:
        assume(False)
    same(found, expected, 1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_a_literal_table_is_a_constant(dtype: str) -> None:
    """Winograd's output transform, say; thirds are quotients until export."""
    rows = [[1, 1, 1, 0], [0, 1, -1, 1]] if dtype == "int64" else [[1, Fraction(1, 3), 1, 0], [0, 1, -1, 0.5]]
    weights = Table((2, 4), tuple(Fraction(n) for row in rows for n in row))
    x = Tensor("x0", (3, 4), dtype)
    scope = compute((2, 3), lambda i, j: fold("sum", (4,), lambda r: weights[i, r] * x[j, r]))
    program, node = program_of(scope, [x])
    made = lower_node(node)
    fields: list[Field] = [Reals(), PrimeField(2)]
    for field in fields:
        value = field.lift(np.arange(12).reshape(3, 4).astype(dtype))
        found = evaluate(program.with_outputs([made]), {"x0": value}, field)["y"]
        expected = interpret(scope, {x: value}, field)
        if field.name == "reals":
            same(found, expected, 1e-12)
        else:
            assert field.equal(found, expected)


@pytest.mark.parametrize("monoid", ["sum", "max", "min", "prod"])
def test_windows_are_not_copied_for_each_of_their_places(monoid: str) -> None:
    """Shifted slices that are added, as after a product with every tap; what is small is read at once."""
    x = Tensor("x0", (5, 70, 70), "float32")
    scope = compute((70, 70), lambda i, j: fold(monoid, (5,), lambda r: x.padded(0)[r, i + r - 2, j]))
    _, node = program_of(scope, [x])
    made = lower_node(node)
    inner = topological_order((made,))
    assert max(elements(one) for one in inner if one.args) <= 74 * 70 * 5  # of the padded tensor itself
    assert not any(one.op.name.startswith("Reduce") for one in inner)  # type: ignore[union-attr]
    values = drawn([x], 3)
    found = evaluate(Program(tuple(node.args), (("y", made),)), {"x0": values[x]}, Reals())["y"]  # type: ignore[arg-type]
    same(found, interpret(scope, {x: Reals().lift(values[x])}, Reals()), 1e-6)
    small = compute((7, 7), lambda i, j: fold(monoid, (5,), lambda r: x.padded(0)[r, i + r - 2, j]))
    assert len(topological_order((lower_node(program_of(small, [x])[1]),))) < len(inner)


OLD = 13  # an opset that many models have


def program_of_sample(sample: Sample) -> Program:
    """The operator alone in a model of the opset OLD; integers are constants, as axes are."""
    args = [
        None if kind is None or value is None
        else constant(value) if value.dtype.kind == "i"
        else source(f"x{place}", kind)
        for place, (kind, value) in enumerate(zip(sample.types, sample.values, strict=True))
    ]  # fmt: skip
    node = apply(sample.op, args, sample.example.attrs)
    shell = onnx.ModelProto(ir_version=8)
    shell.opset_import.add(domain="", version=OLD)
    shell.graph.name = "one"
    inputs = tuple(arg for arg in args if arg is not None and arg.op is not CONSTANT)
    declared = tuple(info(arg.attribute("name"), arg.tensor) for arg in inputs)
    frame = Frame(shell, declared, (info("y", node.tensor),))
    return Program(inputs, (("y", node),), frame=frame)


NEWER = [
    sample
    for sample in samples()
    if sample.op.since > OLD
    and len(sample.op.types(sample.types, sample.attrs)) == 1
    and all(kind is None or kind.dtype in ("float32", "int64") for kind in sample.types)
]


@pytest.mark.parametrize("sample", NEWER, ids=str)
def test_what_an_opset_lacks_is_written_by_its_expression(sample: Sample) -> None:
    """A rewrite may use Swish in a model of an old opset: it is a product there."""
    program = program_of_sample(sample)
    model = export_model(program, expand=make_expander(library()))
    assert all(node.op_type != sample.op.name for node in model.graph.node)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {f"x{k}": value for k, value in enumerate(sample.values) if value is not None}
    names = {given.name for given in session.get_inputs()}
    (found,) = session.run(None, {name: value for name, value in feeds.items() if name in names})
    same(found, sample.real()[0], 1e-5)
