"""Pieces of programs, fused by a runtime or of one operator, as they are measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from explored import fused_by, weights
from small_programs import PROGRAMS, X, Y, Z, graph_of, node, small

from tensaurus.app.zoo.builder import Builder, Value
from tensaurus.egraph.extract.extraction_choices import Choices
from tensaurus.egraph.match.fusion_patterns import fusion_patterns
from tensaurus.graph.ir.node import Node, constant, source
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.graph.ir.program_text import workload
from tensaurus.graph.onnx.build import Build
from tensaurus.graph.onnx.onnx_export import export_with_tensors
from tensaurus.ops import Op, TensorType
from tensaurus.runtimes import backends
from tensaurus.runtimes.price.standalone_model import standalone_model


def conv_relu(b: Builder) -> Value:
    return b.relu(b.conv(b.input("x", 1, 8, 6, 6), "c", 8, 3, padding=1))


def conv_add_relu(b: Builder) -> Value:
    x = b.input("x", 1, 16, 8, 8)
    y = b.relu(b.conv(x, "a", 16, 3, padding=1))
    return b.relu(b.add(b.batch_norm(b.conv(y, "c", 16, 3, padding=1), "n"), y))  # both in blocked layout


def gelu(b: Builder) -> Value:
    y = b.node("MatMul", b.input("x", 4, 8), b.weight("w", (8, 8)))
    error = b.node("Erf", b.node("Div", y, b.constant(2**0.5)))
    return b.mul(b.mul(y, b.add(error, b.constant(1.0))), b.constant(0.5))


def skip_norm(b: Builder) -> Value:
    return b.layer_norm(b.add(b.input("x", 1, 4, 8), b.input("y", 1, 4, 8)), "n")


FUSED = {
    conv_relu: {"Conv": 1, "Relu": 1},
    conv_add_relu: {"Conv": 1, "BatchNormalization": 1, "Add": 1, "Relu": 1},
    gelu: {"Div": 1, "Erf": 1, "Add": 1, "Mul": 2},
    skip_norm: {"Add": 1, "LayerNormalization": 1},
}


@pytest.mark.parametrize("make", FUSED, ids=lambda make: make.__name__)
def test_operators_that_onnxruntime_fuses_are_one_piece(make: Callable[[Builder], Value]) -> None:
    whole = small(make)
    (piece,) = (p for p in fused_by(small(make), "onnxruntime") if p.root is whole.outputs[0][1])
    assert Counter(str(n.op) for n in piece.inner if isinstance(n.op, Op)) == FUSED[make]
    # and wherever it occurs in an e-graph
    graph, roots = graph_of(whole)
    choices = Choices(graph, roots, fusion_patterns([piece]))
    (fused,) = (p for p in choices.pieces if len(p.inner) > 1)
    assert fused.root is piece.root and set(fused.leaves) <= set(piece.leaves)


def test_a_result_with_several_readers_is_not_fused() -> None:
    def both(b: Builder) -> list[Value]:
        y = b.conv(b.input("x", 1, 8, 6, 6), "c", 8, 3, padding=1)
        return [b.relu(y), b.node("Sigmoid", y)]

    assert fused_by(small(both), "onnxruntime") == []


def test_a_runtime_without_reports_fuses_nothing() -> None:
    assert fused_by(small(conv_relu), "reference") == []


@pytest.mark.skipif("openvino" not in backends.installed(), reason="openvino is not installed")
def test_operators_that_openvino_fuses_are_pieces() -> None:
    """A convolution that a batch norm was folded into has lost its name in openvino's graph."""
    for make, wanted in (
        (conv_relu, [{"Conv", "Relu"}]),
        (conv_add_relu, [{"Add", "Relu"}, {"BatchNormalization", "Conv"}, {"Conv", "Relu"}]),
    ):
        pieces = fused_by(small(make), "openvino")
        found = [{str(n.op) for n in piece.inner} for piece in pieces]
        assert sorted(found, key=sorted) == wanted


def test_a_piece_may_be_as_large_as_loops_go() -> None:
    def chain(length: int) -> Piece:
        top = X
        for _ in range(length):
            top = node("Relu", top)
        return Piece(top, (X,))

    assert len(fusion_patterns([chain(20)])) == 1
    assert fusion_patterns([chain(21)]) == []
    shared = X
    for _ in range(6):
        shared = node("Mul", shared, shared)
    assert fusion_patterns([Piece(shared, (X,))]) == []  # six operators, but a tree of 63


def test_sizes_and_attributes_of_a_fusion_may_be_any() -> None:
    def other(b: Builder) -> Value:
        return b.relu(b.conv(b.input("x", 2, 4, 9, 9), "c", 12, 5, stride=2))

    def biased(b: Builder) -> Value:
        return b.relu(b.conv(b.input("x", 2, 4, 9, 9), "c", 12, 5, bias=True))

    roots = map(root, (conv_relu, other, biased))
    first, second, third = (Piece(n, Piece.of(n.args[0]).leaves) for n in roots)
    assert len(fusion_patterns([first, second])) == 1 and len(fusion_patterns([first, third])) == 2
    for piece, count in ((second, 1), (third, 0)):
        whole = Program(tuple(leaf for leaf in piece.leaves if not leaf.static), (("y", piece.root),))
        choices = Choices(*graph_of(whole), fusion_patterns([first]))
        assert [p.text for p in choices.pieces if len(p.inner) > 1] == [piece.text] * count


def root(make: Callable[[Builder], Value]) -> Node:
    return small(make).outputs[0][1]


def test_a_split_that_is_fused_is_inside_its_piece() -> None:
    def split(b: Builder) -> Value:
        u, v = b.nodes("Split", 2, b.input("x", 4, 8), b.constant(np.array([4, 4])), axis=1)
        return b.add(u, v)

    from tensaurus.runtimes.measure.runtime_kernels import _piece_of

    whole = small(split)
    names = {n: name for n, name in whole.names.items() if not n.static and n not in whole.inputs}
    piece = _piece_of(frozenset(names.values()), {name: n for n, name in names.items()})
    assert piece is not None and piece.leaves == whole.inputs and len(fusion_patterns([piece])) == 1


def test_a_piece_of_one_operator_is_that_operator() -> None:
    for make in PROGRAMS.values():
        for n in small(make).active:
            if isinstance(n.op, Op):
                piece = Piece.of(n)
                assert piece.inner == (n,) and piece.text == workload(n)
                assert piece.with_leaves({}) is n


def test_equal_pieces_have_equal_texts() -> None:
    u = source("u", TensorType("float32", (4, 4)))
    first = Piece(node("Relu", node("Add", X, Y)), (X, Y))
    inner = node("Neg", Z)
    second = Piece(node("Relu", node("Add", inner, u)), (inner, u))
    static = Piece(node("Relu", node("Add", X, weights(4, 4))), (X, weights(4, 4)))
    twice = Piece(node("Relu", node("Add", X, X)), (X,))
    assert first.text == second.text
    assert len({first.text, static.text, twice.text}) == 3
    assert [n.op for n in first.inner] == [first.root.args[0].op, first.root.op]


def test_a_piece_over_other_leaves() -> None:
    piece = Piece(node("Relu", node("Clip", node("Add", X, Y), None, constant(np.float32(6)))), (X, Y))
    made = piece.with_leaves({X: Z, Y: X})
    assert made is node("Relu", node("Clip", node("Add", Z, X), None, constant(np.float32(6))))
    clipped = node("Clip", node("Add", X, X), None, constant(np.float32(6)))
    assert piece.with_leaves({Y: X}) is node("Relu", clipped)


def run_alone(piece: Piece, copies: int) -> tuple[dict[str, np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Feeds, weights and outputs of the copies on onnxruntime."""
    program, feeds = standalone_model(piece, 17, copies)
    made, _ = export_with_tensors(program, folded=False)
    session = backends.find("onnxruntime").compile(Build(made.SerializeToString()), threads=1)
    constants = [np.frombuffer(tensor.raw_data, np.float32) for tensor in made.graph.initializer]
    return feeds, constants, session.run(None, feeds)


def test_copies_have_weights_of_their_own() -> None:
    x = source("x", TensorType("float32", (1, 4, 5, 5)))
    piece = Piece.of(node("Conv", x, weights(6, 4, 1, 1), weights(6)))
    feeds, constants, results = run_alone(piece, 3)
    assert list(feeds) == ["x0"] and len(results) == 3
    assert len({tensor.tobytes() for tensor in constants}) == 2 * 3
    assert len({result.tobytes() for result in results}) == 3
    assert all(result.shape == (1, 6, 5, 5) for result in results)


def test_copies_without_weights_have_inputs_of_their_own() -> None:
    half = constant(np.float32(0.5))  # a single number is no weight, and stays what it is
    piece = Piece(node("Mul", node("Add", X, Y), half), (X, Y, half))
    feeds, _, results = run_alone(piece, 3)
    assert len(feeds) == 2 * 3 and len({array.tobytes() for array in feeds.values()}) == 2 * 3
    pairs = [(feeds[f"x0{k}"], feeds[f"x1{k}"]) for k in ("", "_1", "_2")]
    for (a, b), result in zip(pairs, results, strict=True):
        np.testing.assert_allclose(result, (a + b) / 2, rtol=1e-6)


def test_copies_of_several_outputs() -> None:
    def split(b: Builder) -> list[Value]:
        return list(b.nodes("Split", 2, b.input("x", 4, 8), b.constant(np.array([5, 3])), axis=1))

    inner = root(split).args[0]  # type: ignore[arg-type]
    _, _, results = run_alone(Piece.of(inner), 2)
    assert [result.shape for result in results] == [(4, 5), (4, 3)] * 2
