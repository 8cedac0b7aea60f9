"""Two derivations of a convolution by hand, from a finder to a stock runtime: what an eop is for, end to end.

    im2col          patches of x, and the product of w with them       (EINNET section 3)
    shifted adds    the product of w with x, shifted and added up      (EINNET figure 3)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from op_samples import info
from pretended_times import pretend_times
from rich.console import Console

from tensaurus.app.report.explain import format_explanation
from tensaurus.check.files.equality import Equality
from tensaurus.check.program.candidate import Candidate, Rewritten
from tensaurus.check.program.replay import check_rewrites, refute_equation
from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.egraph_proof import prove
from tensaurus.egraph.core.finder_protocol import Proposal, find_all
from tensaurus.egraph.extract.exact import solve
from tensaurus.egraph.extract.extraction_choices import Choices
from tensaurus.egraph.extract.local_search import quick_extraction
from tensaurus.expr.evaluate.fields import Reals
from tensaurus.expr.ir.scope import Body, Scope, Tensor, compute, total
from tensaurus.expr.ir.walk import replace_tensors, tensors
from tensaurus.expr.sizes.size import Symbol, floordiv, polynomial
from tensaurus.graph.ir.census import count_nodes
from tensaurus.graph.ir.node import Node, apply, source
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.graph.ir.program_text import digest_table, format_program, parse_program
from tensaurus.graph.onnx.build_cache import BuildCache
from tensaurus.graph.onnx.missing_shapes import missing_shape_flags
from tensaurus.graph.onnx.onnx_export import export_model
from tensaurus.graph.onnx.onnx_frame import Frame
from tensaurus.ops import TensorType, registry
from tensaurus.optimizer.optimize import Result, optimize
from tensaurus.optimizer.result.summary import METADATA_KEY, AppliedRule, Summary
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.evidence import Derived
from tensaurus.rules.language.evidence import Tested as Replayed
from tensaurus.rules.language.node_text import format_nodes
from tensaurus.runtimes.backends.reference import evaluate
from tensaurus.runtimes.measure.database import Database
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.measure.observe import Observer
from tensaurus.runtimes.price.operation_counts import operations
from tensaurus.runtimes.price.operator_times import OperatorCosts
from tensaurus.runtimes.price.roofline import estimate
from tensaurus.runtimes.price.standalone_model import standalone_model
from tensaurus.system.errors import TensaurusError

CONV, EOP = registry["Conv"], registry["eop"]
OPSET = 17
USED = Replayed("gf", "where it is used")


@dataclass(frozen=True)
class Case:
    """A convolution: x [batch, channels, *size], w [filters, channels / group, *kernel]."""

    batch: Any = 1
    channels: int = 4
    filters: int = 6
    size: tuple[int, int] = (7, 6)
    kernel: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    dilations: tuple[int, int] = (1, 1)
    group: int = 1

    @property
    def leaves(self) -> tuple[Node, Node]:
        x = TensorType("float32", (self.batch, self.channels, *self.size))
        w = TensorType("float32", (self.filters, self.channels // self.group, *self.kernel))
        return source("x", x), source("w", w)

    def conv(self, x: Node, w: Node) -> Node:
        named = ("strides", "pads", "dilations", "group")
        return apply(CONV, [x, w], {name: getattr(self, name) for name in named})


CASES = [
    Case(),
    Case(batch=3, pads=(0, 0, 0, 0)),
    Case(strides=(2, 3), pads=(1, 0, 2, 1)),
    Case(batch=3, dilations=(2, 1), pads=(2, 1, 0, 1)),
    Case(channels=4, filters=6, group=2, strides=(2, 1)),
    Case(batch=3, channels=4, filters=8, group=4, dilations=(1, 2)),
    Case(channels=1, filters=1, kernel=(1, 1), pads=(0, 0, 0, 0)),
    Case(batch=3, size=(1, 1), pads=(1, 1, 1, 1)),
    Case(size=(5, 9), kernel=(2, 4), strides=(3, 2), pads=(3, 0, 0, 5)),
]


def im2col(case: Case, shape: tuple[Any, ...], off: int = 0) -> Scope:
    """Patches, then their product with the weights; `off` is a mistake in a pad."""
    x, w = (Tensor(f"x{k}", leaf.tensor.shape) for k, leaf in enumerate(case.leaves))
    depth, each = case.channels // case.group, case.filters // case.group
    (sh, sw), (dh, dw), (top, left, *_) = case.strides, case.dilations, case.pads

    def patch(n: Any, g: Any, c: Any, r: Any, s: Any, i: Any, j: Any) -> Body:
        return x.padded(0)[n, g * depth + c, i * sh + r * dh - top + off, j * sw + s * dw - left]

    patches = compute((case.batch, case.group, depth, *case.kernel, *shape[2:]), patch)
    return compute(
        shape,
        lambda n, f, i, j: total(
            (depth, *case.kernel),
            lambda c, r, s: patches[n, floordiv(f, each), c, r, s, i, j] * w[f, c, r, s],
        ),
    )


def shifted(case: Case, shape: tuple[Any, ...], off: int = 0) -> Scope:
    """The product of the weights with every element, shifted and added up."""
    x, w = (Tensor(f"x{k}", leaf.tensor.shape) for k, leaf in enumerate(case.leaves))
    depth, each = case.channels // case.group, case.filters // case.group
    (sh, sw), (dh, dw), (top, left, *_) = case.strides, case.dilations, case.pads

    def product_of(r: Any, s: Any, n: Any, f: Any, h: Any, v: Any) -> Body:
        return total((depth,), lambda c: x[n, floordiv(f, each) * depth + c, h, v] * w[f, c, r, s])

    products = compute((*case.kernel, case.batch, case.filters, *case.size), product_of)

    def element(n: Any, f: Any, i: Any, j: Any) -> Body:
        spots = product(range(case.kernel[0]), range(case.kernel[1]))
        terms: list[Body] = [
            products.padded(0)[r, s, n, f, i * sh + r * dh - top + off, j * sw + s * dw - left]
            for r, s in spots
        ]
        return reduce(lambda a, b: a + b, terms)

    return compute(shape, element)


FORMS = {"im2col": im2col, "shifted-adds": shifted}


def derived(case: Case, name: str, off: int = 0) -> Equation:
    """A convolution is its expression, and that is another one."""
    x, w = case.leaves
    conv = case.conv(x, w)
    (flat,) = CONV.scopes(conv.arg_types(), conv.attrs)
    leaves = CONV.tensors(conv.arg_types())
    renamed = {leaf.name: f"x{k}" for k, leaf in enumerate(leaves) if leaf is not None}
    own = apply(EOP, [x, w], {"scope": named(flat, renamed)})
    made = apply(EOP, [x, w], {"scope": FORMS[name](case, conv.tensor.shape, off)})

    def step(law: str, left: Node, right: Node) -> Equation:
        text = f"{format_nodes(left)} => {format_nodes(right)}"
        return Equation(law, text, (left,), (right,), (x, w), USED)

    steps = step("conv-expression", conv, own), step(name, own, made)
    law = f"{format_nodes(conv)} => {format_nodes(made)}"
    return Equation(f"conv-as-{name}", law, (conv,), (made,), (x, w), Derived(steps))


def named(scope: Scope, names: dict[str, str]) -> Scope:
    """The scope of tensors of other names."""
    return replace_tensors(scope, {t: Tensor(names[t.name], t.shape, t.dtype) for t in tensors(scope)})


@dataclass(frozen=True)
class ByHand:
    """The finder of these derivations."""

    case: Case
    names: tuple[str, ...] = tuple(FORMS)
    off: int = 0

    def __call__(self, graph: EGraph, max_new_enodes: int) -> Iterable[Proposal]:
        for number, head in enumerate(list(graph.heads)):
            if head.op is CONV:
                for name in self.names:
                    yield Proposal(derived(self.case, name, self.off), graph.original_args[number])


def model_of(case: Case) -> Program:
    """Relu of the convolution, so that it is a part of something."""
    x, w = (source(n, leaf.tensor) for n, leaf in zip(("image", "weights"), case.leaves, strict=True))
    y = apply(registry["Relu"], [case.conv(x, w)])
    shell = onnx.ModelProto(ir_version=8)
    shell.opset_import.add(domain="", version=OPSET)
    shell.graph.name = "conv"

    def value(name: str, kind: TensorType) -> onnx.ValueInfoProto:
        shape = tuple(n if isinstance(n, int) else str(n) for n in kind.shape)
        return info(name, TensorType(kind.dtype, shape))  # type: ignore[arg-type]

    inputs = tuple(value(i.attribute("name"), i.tensor) for i in (x, w))
    return Program((x, w), (("y", y),), frame=Frame(shell, inputs, (value("y", y.tensor),)))


def extracted(
    program: Program, finder: ByHand, price: Callable[[Piece], float], exact: bool = False
) -> tuple[Program, tuple[Equation, ...]]:
    """The cheapest program, and the equations that it rests on."""
    graph = EGraph()
    roots = [graph.insert_term(out) for _, out in program.outputs]
    graph.rebuild()
    assert find_all(graph, [finder], 1000) == len(finder.names)
    choices = Choices(graph, roots)
    problem = choices.problem(choices.price_choices([price(piece) for piece in choices.pieces]))
    choice = solve(problem, time_limit=10).selection if exact else quick_extraction(problem)
    made = choices.program(program, choice)
    proof = prove(graph, list(zip(roots, made.roots, strict=True)))
    assert proof.holds()
    return made, proof.equations


def prefers(name: str, case: Case) -> Callable[[Piece], float]:
    """A price by which this form is the cheapest."""
    wanted = derived(case, name).right[0].attrs

    def price(piece: Piece) -> float:
        if piece.root.op is EOP:
            return 1.0 if piece.root.attrs == wanted else 3.0
        return 2.0

    return price


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_derivation_by_hand_goes_all_the_way(case: Case, name: str, tmp_path: Path) -> None:
    original = model_of(case)
    made, equations = extracted(original, ByHand(case), prefers(name, case))
    operators = [node.op for node in made.active]
    assert EOP in operators and CONV not in operators
    assert parse_program(format_program(made), digest_table(made)) == made  # it crosses process borders
    assert count_nodes(made).typed == 2 and not missing_shape_flags(made)

    (used,) = equations
    assert used.evidence.kind == "derived" and len(used.evidence.steps) == 2
    replay = check_rewrites([Candidate(made, 1.0, Rewritten(lambda: equations, Candidate(original, 2.0)))])
    assert replay.passed and replay.trials and replay.error_bound < 1e-6, replay.detail
    assert refute_equation(used) is None  # each step by itself, too

    summary = Summary("conv", "onnxruntime", 1, 2.0, 1.0, 2.0, Equality(0.0, 0.0, True, "here"),
                   tuple(AppliedRule(e.name, str(e.evidence), 1, e.law) for e in equations))  # fmt: skip
    model, plain = export_model(made), export_model(original)
    assert {n.domain for n in model.graph.node} == {""} and all(n.op_type != "Conv" for n in model.graph.node)
    assert any(n.op_type == "MatMul" for n in model.graph.node)
    model.metadata_props.add(key=METADATA_KEY, value=summary.to_json())
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, tmp_path / "fast.onnx")
    with (console := Console(width=200)).capture() as capture:
        console.print(format_explanation(tmp_path / "fast.onnx"))
    text = " ".join(capture.get().split())
    assert f"conv-as-{name}" in text and f"derived(conv-expression, {name})" in text
    assert "eop(x, w, scope='L[i:" in text

    rng = np.random.default_rng(0)
    feeds = {i.attribute("name"): rng.standard_normal(i.tensor.shape).astype(np.float32) for i in made.inputs}
    (found,), (expected,) = (running(m).run(None, feeds) for m in (model, plain))
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
    reference = evaluate(made, {k: v.astype(np.float64) for k, v in feeds.items()}, Reals())["y"]
    np.testing.assert_allclose(found, reference, rtol=2e-5, atol=2e-5)


def running(model: onnx.ModelProto) -> ort.InferenceSession:
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("case", CASES[:5], ids=str)
def test_a_wrong_derivation_is_refused(case: Case, name: str) -> None:
    finder = ByHand(case, (name,), off=1)
    made, equations = extracted(model_of(case), finder, lambda piece: float(piece.root.op is CONV))
    assert EOP in [node.op for node in made.active]
    (wrong,) = equations
    assert "differ" in str(refute_equation(wrong))
    step = Rewritten(lambda: equations, Candidate(model_of(case), 2.0))
    assert not check_rewrites([Candidate(made, 1.0, step)]).passed


@pytest.mark.parametrize("name", FORMS)
def test_what_does_not_follow_from_its_steps_is_refused(name: str) -> None:
    case = CASES[0]
    right, wrong = derived(case, name), derived(case, name, off=1)
    assert isinstance(right.evidence, Derived)
    claimed = Equation(wrong.name, wrong.law, wrong.left, wrong.right, wrong.leaves, right.evidence)
    assert refute_equation(claimed) == "its steps do not prove it"


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_a_batch_of_any_size_is_replayed_and_not_exported(name: str, exact: bool, tmp_path: Path) -> None:
    case = Case(batch=polynomial(Symbol("N", 1)))
    original = model_of(case)
    made, equations = extracted(original, ByHand(case), prefers(name, case), exact)
    assert EOP in [node.op for node in made.active]
    assert parse_program(format_program(made), digest_table(made)) == made
    assert all(refute_equation(equation) is None for equation in equations)
    with pytest.raises(TensaurusError, match="the open size N") as caught:
        export_model(made)
    assert "\n" not in str(caught.value)

    class Unused:
        """A stopwatch for what is not measured."""

    with Database(tmp_path / "costs.db") as records:
        builds = BuildCache(tmp_path, folded=False)
        costs = OperatorCosts(records, Unused(), "onnxruntime", Machine.here(1), OPSET, builds)  # type: ignore[arg-type]
        piece = Piece.of(made.roots[0].args[0])
        assert costs.known(piece) == costs.estimate(piece) == costs.measure(piece) == inf
        kept, _ = extracted(original, ByHand(case), costs.estimate, exact)
    assert kept.roots == original.roots


@pytest.mark.parametrize("name", FORMS)
def test_it_is_priced_as_what_it_computes(name: str) -> None:
    case = Case(batch=3, channels=8, filters=8, size=(16, 16))
    (made,) = derived(case, name).right
    piece = Piece.of(made)
    assert 0 < estimate(piece) < 1
    products = 2 * 3 * 8 * 8 * 9 * 16 * 16
    assert products <= operations(made) <= 1.2 * products
    program, feeds = standalone_model(piece, OPSET, copies=2)
    assert len(running(export_model(program, folded=False)).run(None, feeds)) == 2


@pytest.mark.nightly
@pytest.mark.parametrize("name", FORMS)
def test_the_optimizer_takes_a_finder(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What it proposes is measured, replayed, compared and written as any rewrite."""
    case = Case(batch=3, size=(9, 8))
    form = derived(case, name).right[0].attrs

    def seconds(costs: OperatorCosts, piece: Piece, text: str) -> float:
        return sum(0.1 if n.attrs == form or n.op not in (CONV, EOP) else 2.0 for n in piece.inner)

    monkeypatch.setattr(OperatorCosts, "_measure", seconds)
    monkeypatch.setattr(Observer, "__call__", lambda self, program: None)

    pretend_times(monkeypatch, 2.0, 1.0)
    model = export_model(model_of(case))

    def optimized(off: int) -> Result:
        finders, database = [ByHand(case, off=off)], tmp_path / f"{off}.sqlite"
        return optimize(model, finders=finders, steps=20, search="saturation", database=database)

    result, wrong = optimized(0), optimized(1)
    assert result.summary.equivalence.passed and result.speedup == 2
    assert result.evidence[f"conv-as-{name}"] == f"derived(conv-expression, {name})"
    assert not {"Conv", "eop"} & {node.op_type for node in result.model.graph.node}
    assert wrong.rewrites == () and wrong.model.graph == model.graph
