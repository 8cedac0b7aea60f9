"""Search by saturation: what is measured, and what is found with it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, inf, isclose
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
from explored import explored, fused_by, kept_bytes, operators, weights
from hypothesis import given, settings
from hypothesis import strategies as st
from searches import FACTORED, LAWS, SPREAD, Made, search
from small_programs import PROGRAMS, X, Y, Z, branches, gates, node, program, rules, small, whole_library

from tensaurus.check.program import replay as chain
from tensaurus.check.program.candidate import Candidate, Rewritten
from tensaurus.check.program.field_check import FieldCheck, check_field
from tensaurus.check.program.replay import check_rewrites, refute_equation
from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.finder_protocol import Proposal
from tensaurus.egraph.extract.extraction_choices import Choices
from tensaurus.egraph.extract.local_search import quick_extraction
from tensaurus.egraph.match.fusion_patterns import fusion_patterns
from tensaurus.egraph.match.saturate import Limits, Ruleset, saturate
from tensaurus.expr.evaluate.fields import Reals
from tensaurus.finders.fuse import Fuse
from tensaurus.graph.ir.node import source
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.graph.ir.program_text import format_program, workload  # noqa: F401, another process shows programs
from tensaurus.ops import Op, TensorType
from tensaurus.ops.eop import eop
from tensaurus.optimizer.search import interim_run, part_time_limits, saturating_search
from tensaurus.optimizer.search.backtrack import Backtrack
from tensaurus.optimizer.search.outcome import Outcome
from tensaurus.rules.language import evidence
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.match import Rewriter
from tensaurus.rules.language.rule import library
from tensaurus.runtimes.backends.reference import evaluate
from tensaurus.runtimes.measure.observe import Observation
from tensaurus.runtimes.price import costs
from tensaurus.runtimes.price.roofline import estimate


@dataclass(frozen=True)
class Given:
    """An equality that nobody asks a proof of."""

    reason: object

    def evidence(self, graph: EGraph) -> tuple[list[Equation], list[tuple[int, int]]]:
        return [], []














@pytest.mark.parametrize("guess", [estimate, lambda piece: 1.0, lambda piece: 1e-9 * len(piece.text)])
def test_the_cheapest_program_is_found(guess: Callable[[Piece], float]) -> None:
    """Whatever the estimates say, as long as they say it of every operator."""
    for begun, prices, wanted, cost in (
        (SPREAD, {"Mul": 10.0}, {"Add": 1, "Mul": 1}, 11.0),
        (FACTORED, {"Mul": 10.0}, {"Add": 1, "Mul": 1}, 11.0),
        (FACTORED, {"Mul": 0.1, "Add": 1.0}, {"Add": 1, "Mul": 1}, 1.1),
    ):
        outcome = search(program(begun), Made(prices, guess), LAWS)
        assert operators(outcome.best.program) == wanted and isclose(outcome.best.cost, cost)
        assert outcome.ended_by == "saturated"


def test_products_of_one_input_are_merged() -> None:
    """[x h] by all gates' weights; rounds of multi-patterns merge what the rounds before have made."""
    products = []
    for multi in (0, 1, 3):
        limits = Limits(nodes=2500, rounds=6, multi=multi)
        prices = Made({"MatMul": 10.0, "Gemm": 10.0, "Einsum": 10.0, "Split": 0.5})
        outcome = search(small(gates), prices, whole_library(), exploration_limits=limits)
        made = operators(outcome.best.program)
        products.append(sum(made[name] for name in ("MatMul", "Gemm", "Einsum")))
    assert products[0] == 3 > products[1] >= products[2] == 1
    assert isclose(outcome.best.cost, 10 + 0.5 + 5)  # and Concat, Sigmoid, Tanh, Mul, Relu


def test_nothing_is_measured_twice_and_not_everything_is_measured() -> None:
    whole, prices = small(branches), Made({"Conv": 10.0})
    first = search(whole, prices, whole_library())
    found = explored("branches")
    assert len(prices.seen) < len(Choices(found.graph, found.roots).pieces)
    second = search(whole, prices, whole_library())  # what is known already leaves time for more
    assert len(set(prices.seen)) == len(prices.seen)
    assert second.best.cost <= first.best.cost


@cache
def searched(name: str) -> tuple[Program, Made, Outcome]:
    whole, prices = small(PROGRAMS[name]), Made({"MatMul": 10.0, "Conv": 10.0, "Concat": 0.1, "Split": 0.1})
    return whole, prices, search(whole, prices, whole_library(), keep=4)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_best_programs_are_sorted_and_distinct(name: str) -> None:
    whole, prices, outcome = searched(name)
    costs = [candidate.cost for candidate in outcome.candidates if candidate.sure]
    assert costs == sorted(costs) and outcome.best is outcome.candidates[0]
    assert all(candidate.sure for candidate in outcome.candidates[:-1])
    outputs = {tuple(n for _, n in candidate.program.outputs) for candidate in outcome.candidates}
    assert len(costs) <= 4 + 1 and len(outputs) == len(outcome.candidates)
    assert sum(candidate.program is whole for candidate in outcome.candidates) == 1
    assert len(outcome.candidates) > 1
    for candidate in outcome.candidates:
        assert not candidate.sure or isclose(candidate.cost, prices.total(candidate.program))
        assert (candidate.step is None) == (candidate.program is whole)


@pytest.mark.parametrize("name", PROGRAMS)
def test_rewrites_of_every_candidate_replay(name: str) -> None:
    whole, _, outcome = searched(name)
    for candidate in outcome.candidates:
        assert [c.program for c in candidate.chain][0] is whole
        if candidate.step is not None:
            assert candidate.step.applied
            said: list[tuple[str, int, int]] = []
            replay = check_rewrites([candidate], stage=lambda *what, to=said: to.append(what))  # type: ignore[misc]
            assert replay.passed, replay.detail
            count = len(candidate.step.applied)
            assert said[-1] == ("rewrite", count, count) and said == sorted(said)
            # negation reverses no order of a finite field, which relu(-x) = -min(x, 0) needs
            check = check_field(whole, candidate.program)
            assert check.passed or are_equal_in_floats(whole, candidate.program), check.detail


def are_equal_in_floats(one: Program, other: Program) -> bool:
    """Whether both programs compute the same from random numbers."""
    rng = np.random.default_rng(0)
    feeds = {x.attribute("name"): rng.standard_normal(x.tensor.shape) for x in one.inputs}
    expected, found = (evaluate(each, feeds, Reals()) for each in (one, other))
    return all(np.allclose(found[name], expected[name], rtol=1e-9, atol=1e-9) for name in expected)


def test_a_rewrite_that_is_not_one_does_not_replay() -> None:
    _, _, outcome = searched("gates")
    best = outcome.best
    assert best.step is not None
    tested = evidence.Tested("gf", "it was not")
    law = "Add(x, y) => Mul(x, y)"
    wrong = Equation("wrong", law, (node("Add", X, Y),), (node("Mul", X, Y),), (X, Y), tested)
    broken = Candidate(best.program, 0.0, Rewritten(lambda: (wrong,), best.chain[0]))
    found = check_rewrites([replace(broken, program=program(node("Mul", X, Y)))])
    assert not found.passed
    assert refute_equation(wrong) is not None and refute_equation(replace(wrong, right=wrong.left)) is None


PROVED = evidence.Proved("algebra", "all sizes")


def test_a_program_that_does_not_follow_from_its_rewrites_is_refused() -> None:
    """Each of them holds and is replayed alone, as that is cheaper than two whole programs."""
    shared = node("MatMul", X, Y)
    law, sides = "Add(x, y) => Add(y, x)", ((node("Add", X, Y),), (node("Add", Y, X),))
    right = Equation("right", law, *sides, (X, Y), PROVED)
    before = program(node("MatMul", node("MatMul", shared, Z), node("Add", X, Y)))
    after = program(node("MatMul", node("MatMul", shared, Z), node("Add", Y, X)))
    other = program(node("MatMul", node("MatMul", Z, shared), node("Add", Y, X)))
    for made, holds in ((after, True), (other, False)):
        step = Rewritten(lambda: (right,), Candidate(before, 1.0))
        found = check_rewrites([Candidate(made, 1.0, step)])
        assert found.passed is holds and (holds or "do not prove the candidate equal" in found.detail)
        assert not holds or "1 replayed" in found.detail


def test_equal_rewrites_are_replayed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their leaves are; rewrites that need an order do not make whole programs be evaluated."""
    counted: list[tuple[Program, Program]] = []

    def counting(a: Program, b: Program, **options: Any) -> FieldCheck:
        counted.append((a, b))
        return check_field(a, b, **options)

    monkeypatch.setattr(chain, "check_field", counting)
    line = node("MatMul", X, Y)
    before, equations = line, []
    for _ in range(6):
        before = node("MatMul", node("Relu", node("Relu", before)), Z)
        line = node("MatMul", inner := node("Relu", line), Z)
        pair = (node("Relu", inner),), (inner,)
        equations.append(Equation("twice", "Relu(Relu(x)) => Relu(x)", *pair, (inner.args[0],), PROVED))  # type: ignore[arg-type]
    step = Rewritten(lambda: tuple(equations), Candidate(program(before), 1.0))
    found = check_rewrites([Candidate(program(line), 1.0, step)])
    assert found.passed and len(counted) == 1
    assert all(len(side.nodes) <= 3 for side in counted[0])


def test_fusions_of_the_runtime_are_priced_as_one() -> None:
    """A product, the sum and the function of each gate run as one kernel, whatever else could be merged."""
    whole = small(gates)

    def fused(made: Program) -> list[Piece]:
        return fused_by(made, "onnxruntime")

    @dataclass
    class PerKernel(Made):
        def price(self, piece: Piece) -> float:
            return 1.0

    outcome = search(whole, PerKernel({}), whole_library(), find_fused=fused)
    plain = search(whole, PerKernel({}), whole_library())
    assert outcome.best.cost < plain.best.cost
    assert check_field(whole, outcome.best.program).passed
    # MatMul, and MatMul + Add + function, of each gate; and the product of two gates
    original = next(c for c in outcome.candidates if c.program is whole)
    assert original.cost == 3 * 2 + 1


def test_a_huge_constant_is_not_kept() -> None:
    """x v w with v [64, 1] and w [1, 64]: one product less, and 16 KiB instead of 512 bytes.

    What the original keeps may be kept, whatever the limit.
    """
    x = source("x", TensorType("float32", (2, 64)))
    whole = Program((x,), (("y", node("MatMul", node("MatMul", x, weights(64, 1)), weights(1, 64))),))
    laws = Ruleset(rules("MatMul(MatMul(x, y), z) => MatMul(x, MatMul(y, z))"))
    for memory, products in ((inf, 1), (64 * 64 * 4, 1), (64 * 64 * 4 - 1, 2), (600.0, 2), (100.0, 2)):
        outcome = search(whole, Made({"MatMul": 10.0}, lambda piece: 1.0), laws, max_constant_bytes=memory)
        assert operators(outcome.best.program) == {"MatMul": products}
        assert kept_bytes(outcome.best.program) <= max(memory, 512) and outcome.steps < 30


def test_what_the_model_computes_from_constants_counts_as_these() -> None:
    """x Tile(v) w with v [64, 1], tiled to [64, 32], and w [32, 64]: 8448 bytes, and a product of 16 KiB."""
    x, tiled = source("x", TensorType("float32", (2, 64))), node("Tile", weights(64, 1), repeats=(1, 32))
    whole = Program((x,), (("y", node("MatMul", node("MatMul", x, tiled), weights(32, 64))),))
    laws = rules("MatMul(MatMul(x, y), z) => MatMul(x, MatMul(y, z))")
    for memory, products in ((64 * 64 * 4, 1), (64 * 64 * 4 - 1, 2), (0, 2)):
        made = Made({"MatMul": 10.0}, lambda piece: 1.0)
        outcome = search(whole, made, Ruleset(laws), max_constant_bytes=memory)
        assert operators(outcome.best.program) == {"MatMul": products}
        back = Backtrack(Rewriter(laws), lambda n: 1.0, max_constant_bytes=memory).run(whole)
        assert operators(back.best.program) == {"MatMul": products}


def test_limits_end_it_and_keep_the_best() -> None:
    whole, prices = small(gates), {"MatMul": 10.0}
    full = search(whole, Made(prices), whole_library())
    for steps in range(1, full.steps):
        cut = search(whole, Made(prices), whole_library(), steps=steps)
        assert cut.ended_by == "steps" and cut.steps == steps
        assert full.best.cost <= cut.best.cost or not cut.best.sure
        assert any(candidate.program is whole for candidate in cut.candidates)
    late = search(whole, Made(prices), whole_library(), deadline=monotonic() - 1)
    assert late.ended_by == "time" and late.steps == 0
    soon = search(whole, Made(prices), whole_library(), exploration_limits=Limits(deadline=monotonic() - 1))
    assert soon.ended_by == "time" and soon.best.program is whole


@pytest.mark.parametrize("left", [6, 11])  # four fifths of which are no whole thousands: these round
def test_measuring_ends_before_the_search_does(left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not known then is no choice, and the best of what is known is found in time."""
    whole = small(gates)
    own = len({Piece.of(n).text for n in whole.active if isinstance(n.op, Op)})
    prices, start = Made({"MatMul": 10.0}), monotonic()
    for module in (saturating_search, costs):  # each measurement takes a thousand seconds
        monkeypatch.setattr(module, "monotonic", lambda: start + 1000 * len(prices.seen))
    outcome = search(whole, prices, whole_library(), deadline=start + 1000 * (own + left))
    assert outcome.ended_by != "time" and own <= len(prices.seen) <= own + ceil(0.8 * left)
    assert outcome.best.sure and outcome.best.cost <= prices.total(whole)
    measured = {Piece.of(n).text for n in outcome.best.program.active if isinstance(n.op, Op)}
    assert measured <= set(prices.seen)


@pytest.mark.parametrize("together", [1.0, 3.0])
def test_kernels_that_seem_dear_are_tried_together(together: float) -> None:
    """Among their likes kernels may take less than by themselves: the whole program's time decides."""
    whole = program(node("Exp", node("Neg", X)))
    prices = Made({"eop": 3.0})  # Exp and Neg take 2

    def observe(asked: Program) -> Observation:
        nodes = frozenset(n for n in asked.active if isinstance(n.op, Op))
        seconds = together if any(n.op is eop for n in nodes) else 2.0
        return Observation(seconds, ((nodes, seconds),))

    outcome = search(whole, prices, Ruleset([]), observe=observe, finders=[Fuse()])
    seen = {tuple(operators(one.program)): one.measured for one in outcome.candidates}
    assert seen["eop",] == together and seen["Neg", "Exp"] == 2.0
    assert outcome.best.measured == min(together, 2.0)


@pytest.mark.parametrize("in_context", [0.5, 3.0])
def test_a_program_of_the_first_kernels_is_run_before_all_are_measured(
    in_context: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What kernels take among other operators is known early then, and decides about the others."""
    inputs = [source(f"x{k}", TensorType("float32", (4, 8 + k))) for k in range(3)]
    whole = program(*(node("Exp", node("Neg", x)) for x in inputs))
    prices, start, runs = Made({"eop": 0.5}), monotonic(), list[tuple[int, int]]()
    for module in (saturating_search, costs, interim_run, part_time_limits):  # a measurement takes 1,000 s
        monkeypatch.setattr(module, "monotonic", lambda: start + 1000 * len(prices.seen))

    def observe(asked: Program) -> Observation:
        nodes = [n for n in asked.active if isinstance(n.op, Op)]
        runs.append((len(prices.seen), sum(n.op is eop for n in nodes)))
        seconds = [(frozenset([n]), in_context if n.op is eop else 1.0) for n in nodes]
        return Observation(sum(spent for _, spent in seconds), tuple(seconds))

    outcome = search(
        whole, prices, Ruleset([]), observe=observe, finders=[Fuse()], deadline=start + 1000 * 8
    )
    measured, kernels = runs[1]
    assert runs[0] == (0, 0) and 0 < kernels < 3 and measured < 6
    assert operators(outcome.best.program) == ({"eop": 3} if in_context < 2 else {"Neg": 3, "Exp": 3})
    assert outcome.best.measured == min(3 * in_context, 6.0)


@dataclass
class Hesitant:
    """Knows an equation that it has no time for, until more is granted."""

    equation: Equation
    granted_: float = 0.0

    def __call__(self, graph: EGraph, max_new_enodes: int) -> list[Proposal]:
        known = [Proposal(self.equation, tuple(map(graph.insert_term, self.equation.leaves)))]
        return known if self.granted_ > 0 else []

    def grant_time(self, seconds: float) -> bool:
        before, self.granted_ = self.granted_, self.granted_ + seconds
        return not before


@pytest.mark.parametrize("left, expected", [(100.0, {"Add": 1, "Mul": 1}), (None, {"Add": 1, "Mul": 2})])
def test_what_there_was_no_time_for_is_done_when_nothing_else_is_left(
    left: float | None, expected: dict[str, int]
) -> None:
    """Where there is no deadline nothing was left undone."""
    whole, prices = program(SPREAD), Made({"Mul": 10.0})
    made = Equation("factored", "law", (SPREAD,), (FACTORED,), (X, Y, Z), evidence.Axiom())
    finder = Hesitant(made)

    def observe(asked: Program) -> Observation:
        nodes = frozenset(n for n in asked.active if isinstance(n.op, Op))
        return Observation(prices.total(asked), ((nodes, prices.total(asked)),))

    deadline = None if left is None else monotonic() + left
    outcome = search(whole, prices, Ruleset([]), observe=observe, finders=[finder], deadline=deadline)
    assert operators(outcome.best.program) == expected
    assert left is None or 0 < finder.granted_ <= left


def test_the_operators_of_the_original_are_not_measured_one_by_one() -> None:
    """A run of it tells where its time goes; what makes up half of the time is measured alone, too."""
    whole = small(branches)

    def observe(asked: Program) -> Observation:
        kernels = [(frozenset([n]), 1.0) for n in asked.active if isinstance(n.op, Op)]
        return Observation(float(len(kernels)), tuple(kernels))

    own = {Piece.of(n).text for n in whole.active if isinstance(n.op, Op)}
    prices = Made({"Conv": 10.0})
    outcome = search(whole, prices, Ruleset([]), observe=observe)
    assert 0 < len(prices.seen) < len(own) and set(prices.seen) <= own
    assert outcome.original.measured == len([n for n in whole.active if isinstance(n.op, Op)])
    assert isclose(outcome.original.cost, outcome.original.measured)  # no longer the estimate


def test_no_fusion_goes_through_what_reads_its_own_class() -> None:
    """x + 0 is x: the sum is no choice, and what else it reads need not be in the problem."""
    graph = EGraph()
    root, zero = graph.insert_term(node("Relu", X)), weights(*X.tensor.shape)
    law = rules("Add(x, y) => x")[0]
    graph.union(graph.insert_term(X), graph.insert_term(node("Add", X, zero)), Given(law))
    graph.rebuild()
    choices = Choices(graph, [root], fusion_patterns([Piece(node("Relu", node("Add", X, Y)), (X, Y))]))
    problem = choices.problem(choices.price_choices([1.0] * len(choices.pieces)))
    assert choices.program(program(node("Relu", X)), quick_extraction(problem)).roots == (node("Relu", X),)


def test_what_is_cheaper_by_estimates_is_tried_however_little_time_there_is() -> None:
    whole, prices = program(SPREAD), Made({"Mul": 10.0})
    late = search(whole, prices, LAWS, deadline=monotonic() - 1)
    assert not prices.seen and late.ended_by == "time"
    assert "only 0 of the model's 2 kinds of operators were measured" in late.notes[0]
    assert operators(late.best.program) == {"Add": 1, "Mul": 1} and not late.best.sure
    assert late.best.step is not None and check_rewrites([late.best]).passed
    assert any(candidate.program is whole for candidate in late.candidates)


def test_one_extraction_chooses_among_what_both_searches_have_found() -> None:
    """Each knows one law; the cheapest program needs both."""
    whole, prices = program(node("Neg", node("Neg", SPREAD))), Made({"Mul": 10.0})
    factoring = Rewriter(rules("Add(Mul(x, z), Mul(y, z)) => Mul(Add(x, y), z)"))

    def other(asked: Program) -> Outcome:
        return Backtrack(factoring, lambda n: prices.price(Piece.of(n)), steps=5).run(asked)

    laws = Ruleset(rules("Neg(Neg(x)) => x"))
    outcome = search(whole, prices, laws, search_otherwise=other)
    assert operators(outcome.best.program) == {"Add": 1, "Mul": 1}
    assert outcome.best.step is not None and len(outcome.best.applied) == 2
    assert check_rewrites([outcome.best]).passed
    assert all(operators(one.program)["Mul"] == 2 for one in search(whole, prices, laws).candidates)
    assert any(operators(one.program) == {"Add": 1, "Mul": 1, "Neg": 2} for one in outcome.candidates)


def test_tensors_without_elements_have_costs() -> None:
    """Where nothing is computed the estimate is 0, and no operator of the kind may have been measured."""
    x, y, z = (source(name, TensorType("float32", (0, 4))) for name in "xyz")
    whole = Program((x, y, z), (("o", node("Add", node("Mul", x, z), node("Mul", y, z))),))
    outcome = search(whole, Made({"Mul": 10.0}), LAWS)
    assert operators(outcome.best.program) == {"Add": 1, "Mul": 1}


def test_a_program_that_is_not_proved_is_dropped_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensaurus.egraph.core.egraph_proof.Proof.holds", lambda proof: False)
    whole = program(SPREAD)
    outcome = search(whole, Made({"Mul": 10.0}), LAWS)
    assert [candidate.program for candidate in outcome.candidates] == [whole]
    assert outcome.notes and "do not prove that it equals" in outcome.notes[0]


def test_an_interrupt_keeps_the_best() -> None:
    whole, prices = small(gates), {"MatMul": 10.0}
    full = search(whole, Made(prices), whole_library())
    bests = []
    for last in range(1, full.steps + 1):

        def watch(steps: int, best: float, last: int = last) -> None:
            if steps == last:
                bests.append(best)
                raise KeyboardInterrupt

        cut = search(whole, Made(prices), whole_library(), watch=watch)
        assert cut.ended_by == "interrupt" and cut.steps == last
        assert cut.best.program is whole or cut.best.cost == bests[-1] or not cut.best.sure
        assert any(candidate.program is whole for candidate in cut.candidates)
    assert bests == sorted(bests, reverse=True) and bests[-1] == full.best.cost < bests[0]


def test_an_interrupted_measurement_keeps_the_program() -> None:
    whole, prices = small(gates), Made({"MatMul": 10.0})
    full = search(whole, prices, whole_library())
    for after in range(len(prices.seen)):
        cut = search(whole, Made(prices.by_operator, interrupted_after=after), whole_library())
        assert cut.ended_by == "interrupt"
        assert cut.best.cost >= full.best.cost or not cut.best.sure
        assert any(candidate.program is whole for candidate in cut.candidates)


def test_an_interrupt_during_the_exploration_keeps_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tensaurus.optimizer.search.saturating_search.saturate", interrupted)
    outcome = search(small(gates), Made({}), whole_library())
    assert outcome.ended_by == "interrupt" and [c.step for c in outcome.candidates] == [None]


def test_two_searches_are_the_same() -> None:
    first, second = (search(small(branches), Made({"Conv": 10.0}), whole_library()) for _ in range(2))
    assert [(c.cost, c.program) for c in first.candidates] == [(c.cost, c.program) for c in second.candidates]
    assert [c.step and c.step.applied for c in first.candidates] == [
        c.step and c.step.applied for c in second.candidates
    ]
    assert (first.steps, first.programs, first.ended_by) == (second.steps, second.programs, second.ended_by)


@pytest.mark.nightly
def test_two_processes_find_the_same() -> None:
    """Nothing depends on the order of sets of texts, which Python draws anew for each process."""
    code = (
        "from searches import *\nfrom small_programs import gates, small, whole_library\n"
        "found = search(small(gates), Made({'MatMul': 10.0}), whole_library())\n"
        "print([(c.cost, c.step and [str(a.name) for a in c.step.applied]) for c in found.candidates])\n"
        "print(*(format_program(c.program) for c in found.candidates))"
    )
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    texts = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert texts[0] == texts[1] and "MatMul" in texts[0]


@settings(max_examples=15)
@given(st.dictionaries(st.sampled_from(["MatMul", "Concat", "Split", "Transpose"]), st.floats(0.1, 50)))
def test_whatever_operators_cost_it_never_gets_dearer(by_operator: dict[str, float]) -> None:
    whole, prices = small(PROGRAMS["attention"]), Made(by_operator)
    outcome = search(whole, prices, whole_library(), exploration_limits=Limits(nodes=300, rounds=3))
    assert outcome.best.cost <= prices.total(whole) * (1 + 1e-9)
    assert isclose(outcome.best.cost, prices.total(outcome.best.program))
    assert check_field(whole, outcome.best.program).passed


@pytest.mark.nightly(every=2)
@pytest.mark.parametrize("epsilon", [inf, -inf])
def test_attributes_that_are_not_finite_are_no_numbers_of_a_law(epsilon: float) -> None:
    x = source("x", TensorType("float32", (1, 3, 4)))
    statistics = [source(name, TensorType("float32", (3,))) for name in "sbmv"]
    normalized = node("BatchNormalization", x, *statistics, epsilon=epsilon)
    made = Program((x, *statistics), (("y", normalized),))
    graph = EGraph()
    for root in made.roots:
        graph.insert_term(root)
    graph.rebuild()
    saturate(graph, whole_library(), Limits(nodes=200, rounds=2))
    assert all(made.types for _, made in Rewriter(library(), explore=True).rewrites_at(normalized))
