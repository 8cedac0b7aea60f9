"""The float64 reference: as onnx in double, integers that wrap, control flow, opaque nodes, fields."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tensaurus.expr.evaluate.fields import PrimeField, Reals
from tensaurus.graph.ir.node import CONSTANT, INPUT
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.build import Build
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.runtimes import backends
from tensaurus.runtimes.backends import BackendError
from tensaurus.runtimes.backends.reference import Session, Token, evaluate, evaluate_all
from tensaurus.runtimes.backends.reference import evaluation as evaluating

RNG = np.random.default_rng(11)


def parsed(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    """A model of opset 17 from ONNX's text, with initializers."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>\n{text}')
    model.graph.initializer.extend(numpy_helper.from_array(w, name) for name, w in weights.items())
    return model


def reference(model: onnx.ModelProto, **feeds: np.ndarray) -> list[Any]:
    return backends.find("reference").compile(Build(model.SerializeToString()), threads=1).run(None, feeds)


def runtime(model: onnx.ModelProto, **feeds: np.ndarray) -> list[Any]:
    return backends.find("onnxruntime").compile(Build(model.SerializeToString()), threads=1).run(None, feeds)


def program(text: str, **weights: np.ndarray) -> Program:
    return import_model(parsed(text, **weights))


NETS = {
    "convolutions": (
        """net (double[2,4,9,8] x) => (double[2,6,N,M] y) {
            c = Conv <pads = [1,0,2,1], strides = [2,1], group = 2> (x, w, b)
            r = LeakyRelu <alpha = 0.2> (c)
            p = MaxPool <kernel_shape = [3,2], pads = [1,0,1,1], strides = [1,2]> (r)
            s = Sigmoid (p)
            y = Mul (p, s)
        }""",
        {"w": (6, 2, 3, 3), "b": (6,)},
    ),
    "normalization": (
        """net (double[3,5,7] x) => (double[3,5,7] y) {
            axes = Constant <value_ints = [-1]> ()
            m = ReduceMean <axes = [-1]> (x)
            d = Sub (x, m)
            q = Mul (d, d)
            v = ReduceMean <axes = [-1]> (q)
            s = Sqrt (v)
            n = Div (d, s)
            y = Softmax <axis = 1> (n)
        }""",
        {},
    ),
    "products": (
        """net (double[4,6] x) => (double[8,4] y, double[4,4] z) {
            a = MatMul (x, w)
            e = Tanh (a)
            t = Transpose (e)
            h1, h2 = Split <axis = 0> (t)
            y = Concat <axis = 0> (h2, h1)
            xt = Transpose (x)
            z = MatMul (x, xt)
        }""",
        {"w": (6, 8)},
    ),
}


@pytest.mark.parametrize("name", NETS)
def test_agrees_with_onnx_in_double(name: str) -> None:
    text, shapes = NETS[name]
    model = parsed(text, **{w: RNG.standard_normal(shape) for w, shape in shapes.items()})
    x = RNG.standard_normal([d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim])
    expected = ReferenceEvaluator(model).run(None, {"x": x})
    for mine, theirs in zip(reference(model, x=x), expected, strict=True):
        assert mine.dtype == np.float64
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-13)


def test_float32_models_are_computed_in_float64() -> None:
    model = parsed("net (float[3] x) => (float[3] y) { y = Add (x, c) }", c=np.float32([1e-9, 1e-9, 1e-9]))
    x = np.ones(3, np.float32)
    assert np.all(reference(model, x=x)[0] > 1)
    assert np.all(runtime(model, x=x)[0] == 1)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "int32", "int64"])
def test_integers_wrap_as_their_type(kind: str) -> None:
    model = parsed(f"net ({kind}[4] x) => ({kind}[4] y) {{ s = Add (x, x) y = Mul (s, x) }}")
    high = np.iinfo(kind).max if kind != "int64" else 2**40
    x = np.array([high, high // 2, 3, 100], kind)
    with np.errstate(over="ignore"):
        expected = (x + x) * x
    (found,) = reference(model, x=x)
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)


def test_booleans_and_casts() -> None:
    model = parsed(
        "net (float[4] x) => (int32[4] i, bool[4] b) { i = Cast <to = 6> (x) b = Less (x, c) }",
        c=np.zeros(1, "f"),
    )
    x = np.float32([-1.7, -0.2, 0.2, 1.7])
    whole, signs = reference(model, x=x)
    assert whole.dtype == np.int32 and whole.tolist() == [-1, 0, 0, 1]
    assert signs.dtype == np.bool_ and signs.tolist() == [True, True, False, False]


CONTROL = {
    "if": """net (bool go, float[3] x) => (float[3] y) {
        y = If (go) <then_branch = yes () => (float[3] p) { p = Add (x, x) },
                     else_branch = no () => (float[3] q) { q = Neg (x) }>
    }""",
    "loop": """net (bool go, float[3] x) => (float[3] last, float[N,3] all) {
        four = Constant <value_int = 4> ()
        last, all = Loop (four, go, x) <body =
            step (int64 i, bool c, float[3] s) => (bool d, float[3] t, float[3] u) {
            d = Identity (c)
            n = Cast <to = 1> (i)
            t = Add (s, n)
            u = Mul (t, x)
        }>
    }""",
    "scan": """net (bool go, float[3] x) => (float last, float[3] sums) {
        zero = Constant <value_float = 0.0> ()
        last, sums = Scan <num_scan_inputs = 1, body = step (float s, float e) => (float t, float u) {
            t = Add (s, e)
            u = Identity (t)
        }> (zero, x)
    }""",
}


@pytest.mark.parametrize("name", CONTROL)
@pytest.mark.parametrize("go", [True, False])
def test_control_flow(name: str, go: bool) -> None:
    model = parsed(CONTROL[name])
    feeds = {"go": np.array(go), "x": np.float32([1, -2, 0.5])}
    if name == "scan":
        del model.graph.input[0], feeds["go"]
    for mine, theirs in zip(reference(model, **feeds), runtime(model, **feeds), strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_a_loop_that_ends_itself() -> None:
    model = parsed("""net (float x) => (float y, int64 n) {
        yes = Constant <value = bool {1}> ()
        none = Constant <value_int = 0> ()
        limit = Constant <value_int = 100> ()
        y, n = Loop (limit, yes, x, none) <body =
            step (int64 i, bool c, float s, int64 k) => (bool d, float t, int64 m) {
            t = Add (s, s)
            big = Constant <value_float = 50.0> ()
            d = Less (t, big)
            one = Constant <value_int = 1> ()
            m = Add (k, one)
        }>
    }""")
    y, n = reference(model, x=np.float32(3))
    assert (float(y), int(n)) == (96.0, 5)


OPAQUE = {
    "Det": "net (float[3,3] x) => (float y) { y = Det (x) }",
    "TopK": """net (float[3,3] x) => (float[3,2] y, int64[3,2] i) {
        k = Constant <value_ints = [2]> ()
        y, i = TopK (x, k)
    }""",
    "NonZero": "net (float[3,3] x) => (int64[2,N] y) { y = NonZero (x) }",
    "CumSum": "net (float[3,3] x) => (float[3,3] y) { k = Constant <value_int = 1> () y = CumSum (x, k) }",
    "Sequence": """net (float[3,3] x) => (float[3,3] y) {
        n = Neg (x)
        s = SequenceConstruct (x, n)
        one = Constant <value_int = 1> ()
        y = SequenceAt (s, one)
    }""",
    "Einsum": 'net (float[3,3] x) => (float[3] y) { y = Einsum <equation = "ij,ij->i"> (x, x) }',
    "ml": """net (float[3,3] x) => (float[3,3] y) {
        y = ai.onnx.ml.Scaler <scale = [2.0, 1.0, 0.5], offset = [1.0, 0.0, 0.0]> (x)
    }""",
}


@pytest.mark.parametrize("name", OPAQUE)
def test_operators_without_a_declaration(name: str) -> None:
    model = parsed(OPAQUE[name])
    x = np.float32([[1, 0, 3], [4, 5, 0], [7, 8, 10]])
    for mine, theirs in zip(reference(model, x=x), runtime(model, x=x), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)
        assert mine.dtype == (np.float64 if theirs.dtype == np.float32 else theirs.dtype)


def test_text_passes_through() -> None:
    model = parsed(
        "net (string[2] x) => (string[2,1] y) { k = Constant <value_ints = [1]> () y = Unsqueeze (x, k) }"
    )
    x = np.array(["b", "a"], object)
    assert reference(model, x=x)[0].tolist() == [["b"], ["a"]]


def test_symbolic_sizes_are_known_at_the_run() -> None:
    model = parsed("net (float[N,3] x) => (float[N,3] y) { m = ReduceMean <axes = [0]> (x) y = Sub (x, m) }")
    session = backends.find("reference").compile(Build(model.SerializeToString()), threads=1)
    for count in (2, 5):
        x = RNG.standard_normal((count, 3)).astype(np.float32)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], x - x.astype(float).mean(0), rtol=1e-12)


@pytest.mark.parametrize(
    ("names", "feeds", "words"),
    [
        (["z"], {"x": np.zeros(3, "f")}, "no output 'z'"),
        (None, {"x": np.zeros(3, "f"), "z": np.zeros(3, "f")}, "no input 'z'"),
        (None, {}, "'x' is missing"),
        (None, {"x": np.zeros(3)}, "float64, the model expects float32"),
        (None, {"x": np.zeros(4, "f")}, "shape [4]"),
    ],
)
def test_refusals(names: Any, feeds: dict[str, Any], words: str) -> None:
    model = parsed("net (float[3] x) => (float[3] y) { y = Neg (x) }")
    session = backends.find("reference").compile(Build(model.SerializeToString()), threads=1)
    with pytest.raises(BackendError) as caught:
        session.run(names, feeds)
    assert words in str(caught.value)


def test_bytes_that_are_no_model() -> None:
    with pytest.raises(BackendError, match="reference"):
        backends.find("reference").compile(Build(b"\xff\xff\xff"), threads=1)


def test_values_are_freed_after_their_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = " ".join(f"v{k + 1} = Neg (v{k})" for k in range(50))
    chain = program(f"net (float[3] x) => (float[3] y) {{ v0 = Neg (x) {steps} y = Neg (v50) }}")
    sizes: list[int] = []
    plain = evaluating._Evaluation.evaluate_node
    monkeypatch.setattr(
        evaluating._Evaluation,
        "evaluate_node",
        lambda self, n, held: sizes.append(len(held)) or plain(self, n, held),
    )
    evaluate(chain, {"x": np.ones(3)}, Reals())
    assert len(sizes) == 52 and max(sizes) <= 2


def test_what_two_programs_share_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "net (float[3] x) => (float[3] y) {{ a = Exp (x) b = Neg (a) y = {} (b) }}"
    one, other = program(text.format("Tanh")), program(text.format("Sqrt"))
    calls: list[Any] = []
    plain = evaluating._Evaluation.evaluate_node
    monkeypatch.setattr(
        evaluating._Evaluation, "evaluate_node", lambda self, n, held: calls.append(n) or plain(self, n, held)
    )
    feeds = {"x": np.ones(3)}
    together = evaluate_all([one, other], feeds, Reals())
    assert len(calls) == 4
    cache: dict[Any, Any] = {}
    alone = [evaluate(p, feeds, Reals(), cache=cache) for p in (one, other)]
    assert len(calls) == 8
    for a, b in zip(together, alone, strict=True):
        np.testing.assert_array_equal(a["y"], b["y"])


OPAQUE_PAIR = """net (float[3,3] x, float[3,3] w) => (float p, float q, float r, float[3,3] s) {
    p = Det (x)  q = Det (w)  r0 = Det (x)  r = Identity (r0)
    k = Constant <value_int = 1> ()  s = CumSum (x, k)
}"""


def test_opaque_nodes_are_unknown_functions_of_a_field() -> None:
    field = PrimeField(5)
    x, w = (field.random((3, 3), np.random.default_rng(k)) for k in (1, 2))
    graph = program(OPAQUE_PAIR)
    found = evaluate(graph, {"x": x, "w": w}, field)
    assert found["p"] == found["r"] != found["q"]
    assert found["s"].shape == (3, 3) and len(np.unique(found["s"])) == 9
    same = evaluate(graph, {"x": x, "w": x}, PrimeField(5))
    assert same["p"] == same["q"] == found["p"]
    assert evaluate(graph, {"x": x, "w": x}, PrimeField(6))["p"] != found["p"]


def test_a_value_that_a_field_cannot_hold_is_a_token() -> None:
    graph = program(
        """net (float[4] x) => (int64[1,N] i, float[M] y) {
            i = NonZero (x)
            s = SequenceConstruct (x, x)
            k = Constant <value_int = 0> ()
            y = SequenceAt (s, k)
        }"""
    )
    x = PrimeField(1).random((4,), np.random.default_rng(1))
    found = evaluate(graph, {"x": x}, PrimeField(1))
    assert isinstance(found["i"], Token)
    assert found["i"] == evaluate(graph, {"x": x}, PrimeField(1))["i"]
    assert found["i"] != evaluate(graph, {"x": x + np.uint64(1)}, PrimeField(1))["i"]


def test_a_branch_is_chosen_in_every_field() -> None:
    graph = program(CONTROL["if"])
    field = PrimeField(3)
    x = field.random((3,), np.random.default_rng(1))
    for go, fn, args in ((True, "add", [x, x]), (False, "neg", [x])):
        found = evaluate(graph, {"go": np.array(go), "x": x}, field)
        assert np.array_equal(found["y"], field.apply(fn, args))


def test_effects_differ_from_each_other_and_agree_with_themselves() -> None:
    text = (
        "net (float[2] x) => (float[2] p, float[2] q) { p = RandomNormalLike (x) q = RandomNormalLike (x) }"
    )
    one, again = program(text), program(text)
    x = PrimeField(1).random((2,), np.random.default_rng(1))
    first, second = evaluate_all([one, again], {"x": x}, PrimeField(1))
    assert not np.array_equal(first["p"], first["q"])
    assert all(np.array_equal(first[name], second[name]) for name in "pq")


def test_outputs_that_are_inputs_or_constants() -> None:
    model = helper.make_model(
        helper.make_graph(
            [],
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    assert reference(model, x=np.ones(2, np.float32))[0].tolist() == [1, 1]


@pytest.mark.parametrize("field", [Reals(), PrimeField(seed=3)])
def test_a_loop_without_end_is_not_waited_for(field: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the reals it has no value that could be computed, in a field it is an unknown function."""
    monkeypatch.setattr(evaluating, "MAX_LOOP_NODES", 400)
    monkeypatch.setattr(evaluating, "MAX_LOOP_NODES_OVER_REALS", 400)
    program = import_model(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17]> net (float[2] x) => (float[2] y) {'
            " turns = Constant <value = int64 {1000000000}> ()  on = Constant <value = bool {1}> ()"
            " y = Loop (turns, on, x) <body = turn (int64 i, bool go, float[2] v) => (bool on2, float[2] w)"
            " { on2 = Identity(go)  w = Neg(v) }> }"
        )
    )
    feeds = {"x": field.lift(np.array([1.0, 2.0]))}
    if field.name == "reals":
        with pytest.raises(BackendError, match="round"):
            evaluate(program, feeds, field)
    else:
        once, again = evaluate_all([program, program], feeds, field)
        np.testing.assert_array_equal(once["y"], again["y"])


def test_the_shape_of_what_a_field_cannot_hold() -> None:
    """A value without a type is a token in a field, and so is its shape."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "other": 1]>'
        "net (float[2] x) => (int64[N] y) { a = other.Unknown(x)  y = Shape(a) }"
    )
    program, field = import_model(model), PrimeField(seed=3)
    once, again = evaluate_all([program, program], {"x": field.lift(np.array([1.0, 2.0]))}, field)
    assert once["y"] is again["y"] or np.array_equal(once["y"], again["y"])


def test_a_small_softplus_keeps_its_digits() -> None:
    """log(1 + 4e-18) is not the logarithm of 1."""
    text = "net (double[5] x) => (double[5] y) { y = Softplus (x) }"
    x = np.array([-700.0, -40.0, 0.0, 40.0, 1000.0])
    (found,) = reference(parsed(text), x=x)
    assert np.allclose(found, [np.exp(-700.0), np.exp(-40.0), np.log(2.0), 40.0, 1000.0], rtol=1e-14, atol=0)


@pytest.mark.parametrize("sizes", [(0, 3), (2, 0), (0, 0), (2, 3)])
@pytest.mark.parametrize("fixed", [False, True])
def test_an_empty_tensor_is_tiled(sizes: tuple[int, int], fixed: bool) -> None:
    """Elements are found by a remainder of a size that may be 0, where there are none to be found."""
    text = '<ir_version: 8, opset_import: ["" : 17]> net (float[n, m] x) => (float[p, q] y) {'
    model = onnx.parser.parse_model(text + "r = Constant <value_ints = [2, 3]> () y = Tile (x, r) }")
    program = import_model(model, {"x": sizes} if fixed else {})
    x = np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes)
    (tiled,) = Session(program).run(None, {"x": x})
    assert all(node.is_declared for node in program.nodes if node.op not in (INPUT, CONSTANT))
    assert np.array_equal(tiled, np.tile(x, (2, 3)))


@pytest.mark.parametrize("room", [0, 100, 1 << 20])
def test_constants_are_kept_for_further_runs(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later runs equal the first, also between rounded runs; and no more is kept than there is room for."""
    text = """net (float[n, 4] x) => (float[n, 3] y, float[3, 4] z) {
        t = Transpose (w) h = Mul (t, third) p = MatMul (x, h) y = Add (p, b) z = Transpose (h)
    }"""
    drawn = {"w": RNG.standard_normal((3, 4)), "third": RNG.standard_normal(1), "b": RNG.standard_normal(3)}
    weights = {name: w.astype(np.float32) for name, w in drawn.items()}
    made = program(text, **weights)
    monkeypatch.setattr("tensaurus.system.child.available_memory", lambda: 4 * room)
    kept = Session(made)
    for rows in (2, 5, 2):
        x = RNG.standard_normal((rows, 4)).astype(np.float32)
        for rounded in (False, True, False):
            fresh = Session(made).run(None, {"x": x}, rounded=rounded)
            for one, other in zip(kept.run(None, {"x": x}, rounded=rounded), fresh, strict=True):
                assert np.array_equal(one, other)
        assert np.allclose(fresh[0], x @ (weights["w"].T * weights["third"]) + weights["b"])
    assert kept._constants is not None
    held = sum(value.nbytes for value in kept._constants.values.values())
    assert held == room - kept._constants.bytes_left and (held > 0) == (room > 0)
