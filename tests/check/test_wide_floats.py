"""What a model computes in half precision is computed in float32, between its inputs and outputs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from tensaurus.check.program.candidate import Candidate
from tensaurus.check.program.replay import check_rewrites
from tensaurus.graph.ir.node import CONSTANT, Node, apply, constant, source
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.onnx_export import export_with_tensors
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.ops import Op, TensorType, Untypable, registry
from tensaurus.ops.examples import examples_of
from tensaurus.optimizer.search.model_search import ModelSearch
from tensaurus.optimizer.search.outcome import Outcome
from tensaurus.optimizer.search.strategies import Effort
from tensaurus.rules.prove.wide_floats import WIDE_FLOATS, refute_widening, widen_equation, widen_floats
from tensaurus.system.progress import NoProgress


def model(text: str, **constants: Any) -> onnx.ModelProto:
    """A model of ONNX's text, with these initializers."""
    made = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 18, "own": 1]> g ({text}')
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items())
    return made


def widened(proto: onnx.ModelProto) -> tuple[Program, Program]:
    """The program and what it becomes, which is checked as a result is."""
    before = import_model(proto)
    after = widen_floats(before)
    if after is not before:
        assert refute_widening(widen_equation(before, after)) is None
        assert [kind for root in after.roots for kind in root.types] == [
            kind for root in before.roots for kind in root.types
        ]
    return before, after


def types_by_operator(program: Program) -> dict[str, set[str]]:
    """The element types of what each operator makes at run time."""
    found: dict[str, set[str]] = {}
    for node in program.active:
        found.setdefault(str(node.op), set()).update(str(kind).split("[")[0] for kind in node.types)
    return found


def halves(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


LAYER = """float16[1,3,9,9] x) => (float16[1,4,7,7] y) {
    c = Conv(x, w, b) r = Relu(c) s = Sigmoid(c) y = Mul(r, s)
}"""
LAYER_WEIGHTS = {"w": halves(4, 3, 3, 3), "b": halves(4)}


def test_a_layer_is_computed_in_float32() -> None:
    proto = model(LAYER, **LAYER_WEIGHTS)
    before, after = widened(proto)
    wide = {"float32"}
    assert types_by_operator(after) == {
        **dict.fromkeys(("Conv", "Relu", "Sigmoid", "Mul"), wide), "Cast": {"float16", "float32"}
    }  # fmt: skip
    constants = [node.attribute("data").array for node in after.nodes if node.op is CONSTANT]
    assert {array.dtype.name for array in constants} == wide  # converted once, not at every run
    # it is nearer to the exact result than the original is
    x = halves(1, 3, 9, 9, seed=1)
    exported = export_with_tensors(after)[0]
    cpu = ["CPUExecutionProvider"]
    sessions = [ort.InferenceSession(m.SerializeToString(), providers=cpu) for m in (proto, exported)]
    runs = [session.run(None, {"x": x})[0] for session in sessions]
    doubles = {name: array.astype(np.float64) for name, array in LAYER_WEIGHTS.items()}
    reference = ReferenceEvaluator(model(LAYER.replace("float16", "double"), **doubles))
    exact = reference.run(None, {"x": x.astype(np.float64)})[0]
    own, ours = (np.abs(run.astype(np.float64) - exact).max() for run in runs)
    assert runs[1].dtype == np.float16 and ours <= own and ours <= 0.51 * np.spacing(np.abs(runs[1]).max())


@pytest.mark.parametrize(
    "text, types",
    [
        # what is rounded to half precision between operators of float32 is rounded no more
        ("float[4] x) => (float[4] y) { h = Cast<to=10>(x) e = Exp(h) y = Cast<to=1>(e) }",
         {"Exp": {"float32"}}),
        ("bfloat16[4] x) => (bfloat16[4] y) { e = Exp(x) y = Neg(e) }",
         {"Exp": {"float32"}, "Neg": {"float32"}, "Cast": {"bfloat16", "float32"}}),
        # integers and truth values are computed from numbers of half precision
        ("float16[4] x) => (bool[4] y) { e = Exp(x) y = Greater(e, x) }",
         {"Exp": {"float32"}, "Greater": {"bool"}, "Cast": {"float16", "float32"}}),
        ("float16[4] x) => (int64[1] y) { e = Exp(x) y = ArgMax(e) }",
         {"Exp": {"float32"}, "ArgMax": {"int64"}, "Cast": {"float16", "float32"}}),
        # integers that become numbers of half precision become numbers of float32
        ("float16[4] x, int64[4] k) => (float16[4] y) { f = Cast<to=10>(k) e = Exp(x) y = Mul(e, f) }",
         {"Exp": {"float32"}, "Mul": {"float32"}, "Cast": {"float16", "float32"}}),
        # several outputs
        ("float16[4] x) => (float16[2] y) { e = Exp(x) a, b = Split<num_outputs=2>(e) y = Add(a, b) }",
         {"Exp": {"float32"}, "Split": {"float32"}, "Add": {"float32"}, "Cast": {"float16", "float32"}}),
        # an unknown operator reads what it read before
        ("float16[4] x) => (float16[4] y) { e = Exp(x) o = own.Unknown(e) y = Exp(o) }",
         {"Exp": {"float32"}, "opaque": {"float16", "other"}, "Cast": {"float16", "float32"}}),
        # an output and an input that are read as they are
        ("float16[4] x) => (float16[4] y, float16[4] z) { y = Exp(x) z = Identity(x) }",
         {"Exp": {"float32"}, "Cast": {"float16", "float32"}}),
    ],
)  # fmt: skip
def test_what_is_computed_in_which_type(text: str, types: dict[str, set[str]]) -> None:
    _, after = widened(model(text))
    found = types_by_operator(after)
    assert {name: kinds for name, kinds in found.items() if name in types or name != "Identity"} == types


@pytest.mark.parametrize(
    "text",
    [
        "float[4] x) => (float[4] y) { y = Exp(x) }",
        "float16[4,2] x) => (float16[2,4] y) { y = Transpose(x) }",  # nothing is computed
        "float[4] x) => (float[4] y) { c = Cast<to=1>(w) y = Mul(x, c) }",  # weights are only stored
    ],
)
def test_other_programs_stay(text: str) -> None:
    before, after = widened(model(text, w=halves(4)))
    assert after is before


def in_half(kind: TensorType | None, dtype: str) -> TensorType | None:
    return TensorType(dtype, kind.shape) if kind is not None and kind.dtype == "float32" else kind


@pytest.mark.parametrize("op", registry.values(), ids=str)
def test_every_operator_of_half_precision(op: Op) -> None:
    """Is one expression over the reals with what it becomes, and keeps its types."""
    for types, attrs in examples_of(op):
        for dtype in ("float16", "bfloat16"):
            leaves = [
                None if kind is None else source(f"x{k}", in_half(kind, dtype))  # type: ignore[arg-type]
                for k, kind in enumerate(types)
            ]
            try:
                node = apply(op, leaves, dict(attrs), 0)
            except (Untypable, ValueError, NotImplementedError):
                continue
            inputs = tuple(dict.fromkeys(leaf for leaf in leaves if leaf is not None))
            roots = [node] if len(node.types) == 1 else []
            before = Program(inputs, tuple((f"y{k}", root) for k, root in enumerate(roots)))
            after = widen_floats(before)
            assert [root.types for root in after.roots] == [root.types for root in roots]
            if after is not before:
                assert refute_widening(widen_equation(before, after)) is None


def test_a_wrong_widening_is_refuted() -> None:
    """Other constants, attributes, operators, arguments, or a rounding to integers."""
    before, after = widened(model(LAYER, **LAYER_WEIGHTS))
    equation = widen_equation(before, after)

    def changed(change: Any) -> str | None:
        wrong = after.rebuild(lambda node, args: change(node, args) or node_with(node, args))
        assert wrong.roots != after.roots
        return refute_widening(widen_equation(before, wrong))

    def node_with(node: Node, args: tuple[Node | None, ...]) -> Node:
        return node if args == node.args else apply(node.op, args, dict(node.attrs))  # type: ignore[arg-type]

    def other_constant(node: Node, args: tuple[Node | None, ...]) -> Node | None:
        if node.op is not CONSTANT:
            return None
        array = node.attribute("data").array.copy()
        array.reshape(-1)[-1] = np.nextafter(array.reshape(-1)[-1], np.float32(9))
        return constant(array)

    def other_operator(node: Node, args: tuple[Node | None, ...]) -> Node | None:
        return apply(registry["Tanh"], args) if str(node.op) == "Sigmoid" else None

    def other_argument(node: Node, args: tuple[Node | None, ...]) -> Node | None:
        return apply(registry["Mul"], (args[0], args[0])) if str(node.op) == "Mul" else None

    def whole_numbers(node: Node, args: tuple[Node | None, ...]) -> Node | None:
        if str(node.op) != "Relu":
            return None
        cast = registry["Cast"]
        return apply(cast, (apply(cast, (node_with(node, args),), {"to": "int32"}),), {"to": "float32"})

    def more_rounding(node: Node, args: tuple[Node | None, ...]) -> Node | None:
        if str(node.op) != "Relu":
            return None
        cast = registry["Cast"]
        return apply(cast, (apply(cast, (node_with(node, args),), {"to": "bfloat16"}),), {"to": "float32"})

    for change in (other_constant, other_operator, other_argument, whole_numbers):
        assert changed(change) == "more than the types of floats has changed"
    assert changed(more_rounding) == "the right side rounds a value to bfloat16 that the left side does not"
    assert refute_widening(equation) is None


def test_what_makes_truth_values_must_read_the_same_types() -> None:
    before, after = widened(model("float16[4] x) => (bool[4] y) { e = Exp(x) y = Greater(e, x) }"))
    exp = after.roots[0].args[0]
    assert exp is not None and exp.tensor.dtype == "float16"
    wide = [exp.args[0], apply(registry["Cast"], before.inputs, {"to": "float32"})]
    wrong = after.with_outputs([apply(registry["Greater"], wide)])
    assert refute_widening(widen_equation(before, wrong)) == "more than the types of floats has changed"


def test_a_search_begins_with_it() -> None:
    """The widened model is a candidate of a search that has no time, and its chain is checked."""
    program = import_model(model(LAYER, **LAYER_WEIGHTS))

    class Nothing:
        def search(self, program: Program, effort: Effort, watch: Any) -> Outcome:
            return Outcome([Candidate(program, 1.0)])

    runtime = SimpleNamespace(costs=SimpleNamespace(before_measuring=None))
    outcome, _ = ModelSearch(Nothing(), runtime, Effort(), NoProgress()).run(program)  # type: ignore[arg-type]
    (candidate,) = outcome.candidates
    assert outcome.original.program is program
    assert [made.name for made in candidate.applied] == [WIDE_FLOATS]
    check = check_rewrites([candidate])
    assert check.passed and "1 the same expression over the reals, in wider types" in check.detail
    kept, _ = ModelSearch(Nothing(), runtime, Effort(), NoProgress(), widen=False).run(program)  # type: ignore[arg-type]
    assert kept.best.program is program
