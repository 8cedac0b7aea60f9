"""Pieces that a runtime refuses are never chosen, except those of the original."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import given
from onnx import helper
from small_programs import graph_of, node, problems, program, rules, small

from tensaurus.egraph.extract.exact import solve
from tensaurus.egraph.extract.extraction_choices import Choices
from tensaurus.egraph.extract.local_search import quick_extraction
from tensaurus.egraph.extract.problem import Problem, Selection, dag_cost
from tensaurus.egraph.match.saturate import Ruleset
from tensaurus.graph.ir.node import source
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.build import Build
from tensaurus.graph.onnx.build_cache import BuildCache
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.graph.onnx.value_types import symbol_of
from tensaurus.ops import TensorType
from tensaurus.optimizer.optimize import optimize
from tensaurus.optimizer.run import optimization_run
from tensaurus.optimizer.search.saturation import Saturation
from tensaurus.runtimes.measure.database import Database
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.price.operator_times import OperatorCosts
from tensaurus.runtimes.price.roofline import estimate
from tensaurus.system.errors import TensaurusError
from tensaurus.system.progress import NoProgress

X = source("x", TensorType("float32", (4, 4)))


class Stub:
    """A stopwatch by which every model takes a second, but for those with what is refused."""

    def __init__(self, *refused: str, ended: bool = False) -> None:
        self.refused, self.measured, self.ended = refused, 0, ended

    def measure(self, build: Build, feeds: Any) -> float | None:
        self.measured += 1
        return None if {n.op_type for n in build.proto().graph.node} & {*self.refused} else 1.0


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Database]:
    with Database(tmp_path / "db.sqlite") as database:
        yield database


def costs_of(records: Database, watch: Stub, original: Program | None, **more: Any) -> OperatorCosts:
    builds = BuildCache(records.path.parent, folded=False)
    return OperatorCosts(
        records, watch, "onnxruntime", Machine.here(1), 17, builds, original=original, **more  # type: ignore[arg-type]
    )


def test_a_refused_piece_costs_infinitely_much(records: Database) -> None:
    watch = Stub("Exp")
    costs = costs_of(records, watch, program(node("Relu", X)))
    refused, fine = Piece.of(node("Exp", X)), Piece.of(node("Relu", X))
    assert costs.known(refused) is None and costs.measure(refused) == inf == costs.known(refused)
    assert 0 < costs.measure(fine) < inf and costs(refused.root) == inf
    before = watch.measured
    again = costs_of(records, watch, program(node("Relu", X)))  # from the database
    assert again.known(refused) == inf and again.measure(refused) == inf and watch.measured == before


def test_pieces_of_the_original_are_estimated(records: Database) -> None:
    watch = Stub("Exp")
    both = node("Relu", node("Exp", X))
    costs = costs_of(records, watch, program(both))
    like = Piece.of(node("Exp", source("other", TensorType("float32", (4, 4)))))
    assert costs.measure(like) == estimate(like) > 0 and costs.known(like) is None
    before = watch.measured
    assert costs.measure(like) == estimate(like) and watch.measured == before  # asked once
    chain = Piece(both, (X,))  # fused from what the original has
    assert costs.measure(chain) == estimate(chain) and costs.known(chain) is None
    larger = Piece.of(node("Exp", source("other", TensorType("float32", (8, 4)))))
    assert costs.measure(larger) == inf
    foreign = Piece(node("Neg", node("Exp", X)), (X,))
    assert costs.measure(foreign) == inf


def test_unsupported_pieces_are_not_measured(records: Database) -> None:
    watch = Stub()
    costs = costs_of(records, watch, None, supports=lambda n: str(n.op) != "Exp")
    assert costs.measure(Piece.of(node("Exp", X))) == inf and watch.measured == 0
    assert costs.measure(Piece.of(node("Neg", X))) < inf


@pytest.mark.parametrize("ended", [False, True])
def test_a_piece_that_hung_is_measured_again_another_day(records: Database, ended: bool) -> None:
    """A machine may have been busy; a refusal is one on any day."""
    assert costs_of(records, Stub("Exp", ended=ended), None).measure(Piece.of(node("Exp", X))) == inf
    assert len(records.all()) == (not ended)


def test_no_room_for_copies_is_no_refusal(records: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    import tensaurus.runtimes.price.operator_times as operators

    made, tried = operators.standalone_model, []

    def alone(piece: Piece, opset: int, copies: int) -> Any:
        tried.append(copies)
        if copies > 1:
            raise MemoryError
        return made(piece, opset, copies)

    monkeypatch.setattr(operators, "standalone_model", alone)
    costs = costs_of(records, Stub(), None)
    assert costs.measure(Piece.of(node("Exp", X))) == 1.0
    assert len(tried) == 2 and tried[0] > 1 == tried[1]


def test_bodies_of_the_original_count(records: Database) -> None:
    branch = [
        helper.make_graph(
            [helper.make_node(op, ["x"], [f"{op}_y"])],
            op,
            [],
            [helper.make_tensor_value_info(f"{op}_y", onnx.TensorProto.FLOAT, [4, 4])],
        )
        for op in ("Exp", "Relu")
    ]
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], then_branch=branch[0], else_branch=branch[1])],
        "g",
        [
            helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4, 4]),
        ],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4, 4])],
    )
    whole = import_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    costs = costs_of(records, Stub("Exp", "Tanh"), whole)
    assert costs.measure(Piece.of(node("Exp", X))) < inf
    assert costs.measure(Piece.of(node("Tanh", X))) == inf


@given(problems())
def test_pieces_of_infinite_cost_are_not_extracted(problem: Problem) -> None:
    """Every second choice of a class is refused: what is left is chosen as if the others were not there."""
    refused = {group[1] for group in problem.members if len(group) > 1}
    dear = Problem(
        [inf if number in refused else cost for number, cost in enumerate(problem.costs)],
        problem.children,
        problem.class_of_choice,
        problem.members,
        problem.roots,
    ).without_infinite_costs()
    assert problem.without_infinite_costs() is problem
    choice = quick_extraction(dear)
    if dag_cost(dear, choice) < inf:
        assert refused.isdisjoint(choice.values())
        assert dag_cost(dear, solve(dear, time_limit=5.0).selection) <= dag_cost(dear, choice) * (1 + 1e-6)
    else:
        with pytest.raises(ValueError, match="a root class has no program"):
            solve(dear, time_limit=5.0)


def extract(problem: Problem, seconds: float, start: Selection | None) -> Selection:
    return quick_extraction(problem, start)


@pytest.mark.parametrize("refused", [("Mul",), ("Add",), ("Mul", "Add"), ("Relu",), ("Relu", "Add", "Mul")])
def test_a_search_avoids_what_is_refused(refused: tuple[str, ...], records: Database) -> None:
    """The Add of the original stays, though it is refused alone; a Mul that seems cheaper is not taken."""
    whole = program(node("Relu", node("Add", X, X)))
    two = rules("Add(x, x) => Mul(x, 2)")
    costs = costs_of(records, Stub(*refused), whole)
    outcome = Saturation(Ruleset(two), costs, [extract]).run(whole)
    assert any(candidate.program is whole for candidate in outcome.candidates)
    for candidate in outcome.candidates:
        names = {str(n.op) for n in candidate.program.active}
        if candidate.sure and "Mul" in refused:
            assert "Mul" not in names
        assert candidate.cost < inf


def test_the_original_is_extracted_where_everything_is_refused(records: Database) -> None:
    whole = small(lambda b: b.relu(b.conv(b.input("x", 1, 8, 6, 6), "c", 8, 3, padding=1)))
    costs = costs_of(records, Stub("Conv", "Relu"), whole)
    graph, roots = graph_of(whole)
    choices = Choices(graph, roots)
    prices = [costs.measure(piece) for piece in choices.pieces]
    problem = choices.problem(choices.price_choices(prices)).without_infinite_costs()
    assert dag_cost(problem, quick_extraction(problem)) < inf


@pytest.mark.nightly
def test_a_program_that_cannot_be_written_is_dropped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The run goes on with the others."""
    notes: list[str] = []

    class Progress(NoProgress):
        def note(self, text: str) -> None:
            notes.append(text)

    class Broken(BuildCache):
        def __call__(self, program: Program) -> Build:
            raise TensaurusError("opset 12 has no Enlarge, and no expansion is known", node="e")

    monkeypatch.setattr(optimization_run, "BuildCache", Broken)
    from small_programs import affine_model

    result = optimize(affine_model(), steps=9, threads=1, database=tmp_path / "db", progress=Progress())
    assert result.rewrites == () and result.speedup == 1
    assert any("written as ONNX: node e: opset 12 has no Enlarge" in text for text in notes)


# Sizes


def test_a_piece_is_measured_at_the_sizes_of_a_run(records: Database) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> net (float[n, 4] x) => (float[n, 2, 2] y) {'
    text += "s = Constant <value_ints = [0, 2, 2]> () r = Reshape (x, s) y = Relu (r) }"
    whole = import_model(onnx.parser.parse_model(text))
    n, _ = whole.inputs[0].tensor.shape
    costs = costs_of(records, Stub(), whole, sizes={symbol_of(n): 3})
    assert [str(made.op) for made in whole.active] == ["Reshape", "Relu"]  # both typed
    assert all(0 < costs(made) < inf for made in whole.active)
    assert any("float32[3, 2, 2]" in row.workload for row in records.all())  # a reshape is no measurement
    assert not [row for row in records.all() if "n," in row.workload or row.seconds == inf]
    static = Piece.of(node("Relu", X))
    assert static.with_sizes(lambda symbol: 7) is static


def test_a_piece_that_does_not_type_at_the_sizes_stays() -> None:
    from tensaurus.expr.sizes.size import Symbol

    n, m = Symbol("n"), Symbol("m")
    x, y = (source(name, TensorType("float32", (2, size))) for name, size in (("x", n), ("y", m)))
    joined = Piece.of(node("Concat", x, y, axis=1))
    assert joined.with_sizes({n: 3, m: 5}.__getitem__).root.tensor.shape == (2, 8)
    whole = source("z", TensorType("float32", (n, m)))
    reshaped = Piece.of(node("Concat", whole, whole, axis=0))
    assert reshaped.with_sizes(lambda symbol: 4).root.tensor.shape == (8, 4)


