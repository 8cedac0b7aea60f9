"""Whole programs that are run: where their time goes, and what their operators cost from then on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import isclose
from pathlib import Path

import numpy as np
import pytest
from searches import Made
from small_programs import graph_of, model, node, rules, small

from tensaurus.app.zoo.builder import Builder, Value
from tensaurus.egraph.extract.extraction_choices import Choices
from tensaurus.egraph.extract.local_search import quick_extraction
from tensaurus.egraph.extract.problem import Problem, Selection
from tensaurus.egraph.match.fusion_patterns import fusion_patterns
from tensaurus.egraph.match.saturate import Ruleset
from tensaurus.expr.ir.expression_text import parse
from tensaurus.expr.ir.scope import Tensor
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.graph.ir.node import Node, apply, source
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.build_cache import BuildCache
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.ops import Op, TensorType
from tensaurus.ops.eop import eop
from tensaurus.optimizer.search.saturation import Saturation
from tensaurus.rules.language.match import make_expander
from tensaurus.rules.language.rule import library
from tensaurus.runtimes import backends
from tensaurus.runtimes.backends import Kernel
from tensaurus.runtimes.measure.database import Database
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.measure.observe import Observation, Observer
from tensaurus.runtimes.measure.worker import Worker
from tensaurus.runtimes.price.costs import Costs
from tensaurus.runtimes.price.estimates import OPTIMISM
from tensaurus.runtimes.price.in_context_costs import InContextCosts, PlacedChoice

RUNTIMES = backends.targets()


def hard(b: Builder) -> Value:
    """HardSwish is no kernel of onnxruntime, and no operator of the builder's opset."""
    x = b.relu(b.conv(b.input("x", 1, 8, 6, 6), "c", 8, 3, padding=1))
    return b.node("Sigmoid", b.node("Neg", x))


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Database]:
    with Database(tmp_path / "db.sqlite") as database:
        yield database


def observer(backend: str, records: Database, folder: Path) -> Observer:
    feeds = {"x": np.ones((1, 8, 6, 6), np.float32)}
    return Observer(feeds, backend, Machine.here(1), records, BuildCache(folder, make_expander(library())))


@pytest.mark.parametrize("backend", RUNTIMES)
def test_every_operator_is_charged(backend: str, records: Database, tmp_path: Path) -> None:
    """Also one that is exported as several; and a program that was run is remembered."""
    whole = import_model(model(hard))
    other = whole.replace_nodes({n: node("HardSwish", n.args[0]) for n in whole.active if str(n.op) == "Neg"})
    with observer(backend, records, tmp_path) as look:
        for program in (whole, other):
            seen = look(program)
            assert seen is not None and isclose(seen.seconds, sum(seconds for _, seconds in seen.kernels))
            assert all(seconds > 0 for _, seconds in seen.kernels)
            assert frozenset().union(*(nodes for nodes, _ in seen.kernels)) == set(program.active)
            assert any(len(nodes) >= 2 for nodes, _ in seen.kernels)  # Conv and Relu
        assert look.runs == 2
    with observer(backend, records, tmp_path) as again:
        assert again(other) == seen and again.runs == 0


def test_what_cannot_tell_is_none(records: Database, tmp_path: Path) -> None:
    with observer("reference", records, tmp_path) as look:
        assert look(small(hard)) is None


def test_what_takes_no_time_that_is_told_is_none(
    records: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of nodes below the resolution of the runtime's clock."""
    kernel = Kernel("a", "Op", ("x",), ("y",), frozenset({"y"}))
    monkeypatch.setattr(Worker, "profile", lambda *arguments: [(kernel, 0.0)])
    with observer("onnxruntime", records, tmp_path) as look:
        assert look(small(hard)) is None


X = source("x", TensorType("float32", (2, 3)))


def placed(place: int, operator: str, alone: float, argument: Node = X) -> PlacedChoice:
    made = node(operator, argument)
    return PlacedChoice((place,), Piece.of(made), alone, frozenset([made]))


def test_a_kernel_is_shared_out_by_what_its_choices_cost_alone() -> None:
    first = placed(0, "Relu", 1.0)
    (relu,) = first.nodes
    second, third = placed(1, "Neg", 3.0, relu), placed(2, "Exp", 5.0)
    kernels = ((first.nodes | second.nodes, 8.0), (third.nodes, 1.0), (frozenset[Node](), 0.5))
    known = InContextCosts()
    known.learn(Observation(9.5, kernels), [first, second, third])
    assert known.places == {(0,): 2.0, (1,): 6.0, (2,): 1.0} and known.other_seconds == 0.5
    # of its like, what that took; of its operators, by as much dearer as those were; else as all were
    other = Piece.of(node("Exp", source("y", TensorType("float32", (7, 7)))))
    strange = Piece.of(node("Tanh", X))
    like, same, new = known.costs_elsewhere([first.piece, other, strange], [1.0, 10.0, 10.0])
    assert like == 2.0
    every = (2.0 * 2.0**3 * 0.2**5) ** (1 / 9)  # each as often as it has seconds alone
    assert isclose(new, 10 * every)
    assert isclose(same, 10 * (0.2 * every**0.25) ** (1 / 1.25))


def test_tiny_operators_say_nothing_of_large_ones() -> None:
    """Two that take six times as long in a program as alone, and one of 50 ms that takes what it took."""
    choices = [placed(0, "Relu", 1e-6), placed(1, "Neg", 1e-6), placed(2, "Exp", 0.05)]
    kernels = tuple((choice.nodes, s) for choice, s in zip(choices, (6e-6, 6e-6, 0.05), strict=True))
    known = InContextCosts()
    known.learn(Observation(0.050012, kernels), choices)
    (cost,) = known.costs_elsewhere([Piece.of(node("Tanh", X))], [0.02])
    assert isclose(cost, 0.02, rel_tol=1e-3)


def test_nothing_seen_changes_nothing() -> None:
    assert InContextCosts().costs_elsewhere([Piece.of(node("Relu", X))], [3.0]) == [3.0]


def test_the_mean_of_all_looks_at_a_place_counts() -> None:
    known, part = InContextCosts(), placed(0, "Relu", 1.0)
    other = placed(1, "Exp", 1.0)
    for seconds in (4.0, 2.0):
        kernels = ((part.nodes, seconds), (other.nodes, 8.0))
        known.learn(Observation(seconds + 8.0, kernels), [part, other])
    assert known.places == {(0,): 3.0, (1,): 8.0}
    assert known.costs_elsewhere([part.piece], [1.0]) == [3.0]  # of its like, their mean


def test_the_nodes_of_choices_are_those_of_the_program() -> None:
    """Each node that computes is one choice's, fused ones too."""
    whole = small(hard)
    graph, roots = graph_of(whole)
    relu = next(n for n in whole.active if str(n.op) == "Relu")
    assert relu.args[0] is not None
    pieces = [Piece(relu, Piece.of(relu.args[0]).leaves)]
    choices = Choices(graph, roots, fusion_patterns(pieces))
    problem = choices.problem(choices.price_choices([1.0] * len(choices.pieces)))
    choice = quick_extraction(problem)
    computed = choices.computed_nodes(choice)
    nodes = [n for found in computed.values() for n in found if isinstance(n.op, Op)]
    assert sorted(map(str, nodes)) == sorted(map(str, whole.active))
    assert any(len(found) == 2 for found in computed.values())
    places = [choices.place(number) for number in range(len(choices.keys))]
    assert len(set(places)) == len(places)


def test_what_slows_everything_down_is_the_constants_price() -> None:
    known, part = InContextCosts(), placed(0, "Relu", 1.0)
    other = placed(1, "Exp", 1.0)

    def note(relu: float, exp: float, kept: int) -> None:
        known.learn(Observation(relu + exp, ((part.nodes, relu), (other.nodes, exp))), [part, other], kept)

    known.learn(Observation(2.0, ((part.nodes, 2.0),)), [part], 100)
    note(6.0, 9.0, 110)  # Relu takes three times what it took: so does Exp, then
    assert known.places == {(0,): 2.0, (1,): 3.0}
    assert isclose(known.seconds_per_byte, (15.0 - 5.0) / 10)
    note(1.0, 1.5, 90)  # a calmer machine
    assert known.places == {(0,): 2.0, (1,): 3.0} and isclose(known.seconds_per_byte, 1.0)


def test_kernels_pay_for_what_their_neighbours_lose() -> None:
    """Exp takes 3 s more beside a kernel of 1 s, which so costs 4; without a kernel Exp itself costs more."""
    relu, exp, tanh = (placed(place, op, 1.0) for place, op in enumerate(("Relu", "Exp", "Tanh")))
    text, kind = "L[i:2, j:3](neg(x0[i, j]))", TensorType("float32", (2, 3))
    scope = intern_scope(parse(text, {"x0": Tensor("x0", kind.shape, kind.dtype)}))
    kernel = apply(eop, [X], {"scope": scope})
    generated = PlacedChoice((2,), Piece.of(kernel), 1.0, frozenset([kernel]))

    def learn(known: InContextCosts, last: PlacedChoice, *seconds: float) -> InContextCosts:
        choices = [relu, exp, last]
        parts = [(choice.nodes, spent) for choice, spent in zip(choices, seconds, strict=True)]
        known.learn(Observation(sum(seconds), tuple(parts)), choices)
        return known

    first = InContextCosts()
    learn(first, tanh, 4.0, 4.0, 8.0)
    assert learn(first, generated, 4.0, 7.0, 1.0).places == {(0,): 4.0, (1,): 4.0, (2,): (8.0 + 4.0) / 2}
    other = InContextCosts()
    learn(other, tanh, 4.0, 4.0, 8.0)
    assert learn(other, tanh, 4.0, 7.0, 8.0).places == {(0,): 4.0, (1,): 5.5, (2,): 8.0}


def test_an_operator_in_a_kernel_of_several_costs_its_share() -> None:
    """Where it was observed by itself, or measured alone, that counts."""
    known = InContextCosts()
    relu, exp = (Piece.of(node(op, X)) for op in ("Relu", "Exp"))
    known.learn(Observation(2.0, ((placed(0, "Relu", 1.0).nodes, 2.0),)), [placed(0, "Relu", 1.0)])
    known.learn_shares([(exp, 3.0), (exp, 5.0), (relu, 9.0)])
    assert known.observed_seconds(exp) == 4.0
    assert known.costs_elsewhere([relu, exp], [1.0, 4.0]) == [2.0, 4.0]  # 4.0: known from the share alone
    assert known.costs_elsewhere([exp], [3.0]) == [6.0]  # measured: as Relu, twice as long as alone


def test_what_is_measured_after_the_run_is_compared_with_it() -> None:
    """Relu takes twice as long in the program as alone; so does another one, which was never run."""
    known, part = InContextCosts(), replace(placed(0, "Relu", 7.0), is_measured=False)
    known.learn(Observation(2.0, ((part.nodes, 2.0),)), [part])
    other = Piece.of(node("Relu", source("z", TensorType("float32", (64, 3)))))
    assert known.costs_elsewhere([other], [5.0]) == [5.0]  # 7.0 was an estimate
    known.learn_measured(part.piece, 1.0)
    assert known.costs_elsewhere([other], [5.0]) == [10.0]


def test_an_operator_that_takes_no_time_makes_no_estimate_zero() -> None:
    """Runtimes drop some operators; what was never measured still costs something."""
    prices = Made({})
    known = Costs(prices)
    part = replace(placed(0, "Identity", 1.0), is_measured=False)
    known.in_context.learn(Observation(0.0, ()), [part])
    other = Piece.of(node("Exp", source("z", TensorType("float32", (64, 3)))))
    (dropped, estimated), measured = known.standalone_seconds([part.piece, other])
    assert dropped == 0 and measured == [True, False]
    assert estimated == OPTIMISM * prices.estimate(other) > 0


class Misleading:
    """Alone a product costs little; within a program each costs what `within` says."""

    alone = {"MatMul": 1.0, "Add": 1.0}

    def known(self, piece: Piece) -> float | None:
        return self.measure(piece)

    def measure(self, piece: Piece) -> float:
        return sum(self.alone.get(str(n.op), 0.5) for n in piece.inner)

    estimate = measure

    def product_seconds(self, piece: Piece) -> float:
        return 0.0

    def kernel_seconds(self, piece: Piece) -> float:
        return 0.0

    def note_observed(self, piece: Piece, seconds: float) -> None:
        """Finders, of which there are none here, would be told."""


def quickly(problem: Problem, seconds: float, start: Selection | None) -> Selection:
    return quick_extraction(problem, start)


@pytest.mark.parametrize(
    ("within", "products", "looks"),
    [
        ({"MatMul": 1.0, "Add": 1.0}, 1, 2),  # as alone: the first result is confirmed
        ({"MatMul": 9.0, "Add": 1.0}, 1, 2),
        ({"MatMul": 1.0, "Add": 3.0}, 2, 2),  # the sum of the weights' operands is dearer than it seemed
    ],
)
def test_the_program_that_is_fastest_when_run_is_found(
    within: dict[str, float], products: int, looks: int
) -> None:
    """(x + y) w for x w + y w: one product less; Add over the large inputs may cost more than it seems."""
    x, y = (source(name, TensorType("float32", (4, 4))) for name in "xy")
    w = source("w", TensorType("float32", (4, 4)))
    spread = node("Sub", node("MatMul", x, w), node("MatMul", y, w))
    whole = Program((x, y, w), (("z", spread),))
    laws = Ruleset(
        rules("Sub(MatMul(x, z), MatMul(y, z)) => MatMul(Sub(x, y), z)")
        + rules("Sub(x, y) => Add(x, Neg(y))")
        + rules("Add(x, Neg(y)) => Sub(x, y)")
    )
    seen: list[Program] = []

    def observe(program: Program) -> Observation:
        seen.append(program)
        kernels = []
        for n in program.active:
            name = str(n.op)
            read = [str(arg.op) for arg in n.args if arg is not None]
            own = within.get("Add" if name == "Sub" and "MatMul" not in read else name, 0.5)
            kernels.append((frozenset([n]), own))
        return Observation(sum(seconds for _, seconds in kernels), tuple(kernels))

    outcome = Saturation(laws, Misleading(), [quickly], observe=observe).run(whole)
    best = outcome.best
    assert sum(str(n.op) == "MatMul" for n in best.program.active) == products
    assert len(seen) == len({program.roots for program in seen}) == looks
    assert best.measured == min(observe(program).seconds for program in list(seen))
    for candidate in outcome.candidates:
        if candidate.measured is not None:
            assert candidate.measured == observe(candidate.program).seconds
    assert replace(best, measured=None).seconds == best.cost
