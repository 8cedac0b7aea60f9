"""What never returns is ended, and the search goes on without: finders, extractors, rules, measurements."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from math import inf, isclose
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from endless import ignore_exceptions, sleep, spin
from explored import operators
from searches import FACTORED, LAWS, SPREAD, Made, extract, search
from small_programs import X, Y, Z, program

from tensaurus.check.program.candidate import Candidate
from tensaurus.egraph.core import finder_protocol
from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.finder_protocol import Finder, Proposal, timed_finders
from tensaurus.egraph.match.saturate import Limits, Runner
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.build_cache import BuildCache
from tensaurus.optimizer.optimize import MIN_PREPARING_SECONDS, Result, optimize
from tensaurus.optimizer.result import candidate_models, winner
from tensaurus.optimizer.run import first_run
from tensaurus.optimizer.run.optimization_run import OptimizationRun
from tensaurus.optimizer.search import model_search
from tensaurus.optimizer.search.outcome import Outcome
from tensaurus.optimizer.search.strategies import Effort, Runtime
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.evidence import Axiom
from tensaurus.runtimes.measure.measure import Pairs
from tensaurus.runtimes.measure.observe import Observation
from tensaurus.runtimes.price.operator_times import OperatorCosts
from tensaurus.runtimes.price.roofline import estimate
from tensaurus.system.progress import NoProgress

SECONDS = 0.6  # of a search
HANG = 4 * SECONDS + 2  # the end of waiting, on a busy machine


def yielding(graph: EGraph, max_new_enodes: int) -> Iterator[Proposal]:
    while True:
        yield from ()


FINDERS: list[Finder] = [spin, sleep, ignore_exceptions, yielding]


def searched(seconds: float = SECONDS, **options: Any) -> Outcome:
    """The search of a program that has a cheaper form."""
    began = monotonic()
    prices = options.pop("prices", None) or Made({"Mul": 10.0})
    limits = Limits(multi=1, rounds=4, nodes=500, deadline=began + seconds)
    given = {"deadline": began + seconds, "exploration_limits": limits, **options}
    outcome = search(program(SPREAD), prices, LAWS, **given)
    assert monotonic() - began < HANG
    return outcome


@pytest.mark.parametrize("planted", FINDERS, ids=lambda planted: planted.__name__)
def test_a_finder_that_never_returns_is_ended_and_named(planted: Finder) -> None:
    finders = timed_finders([planted], monotonic() + SECONDS)
    outcome = searched(finders=finders)
    assert operators(outcome.best.program) == {"Add": 1, "Mul": 1}
    (note,) = outcome.notes
    assert note.startswith(f"the finder {planted.__name__} was ended after 0.")
    assert list(finders[0](EGraph(), 100)) == []  # and is not asked again


def test_in_a_thread_beside_the_main_one_a_finder_is_ended_too() -> None:
    found: list[Outcome] = []

    def look() -> None:
        found.append(searched(finders=timed_finders([spin], monotonic() + SECONDS)))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(HANG)
    (outcome,) = found
    assert operators(outcome.best.program) == {"Add": 1, "Mul": 1}
    assert outcome.notes[0].startswith("the finder spin was ended after")


@dataclass
class Talkative:
    """Says something, and never stops."""

    proposals: list[Proposal] = field(default_factory=list)

    def __call__(self, graph: EGraph, max_new_enodes: int) -> Iterator[Proposal]:
        yield from self.proposals
        spin()


def test_what_a_finder_has_said_before_it_was_ended_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = EGraph()
    graph.insert_term(SPREAD)
    graph.rebuild()
    equation = Equation("factor", "", (SPREAD,), (FACTORED,), (X, Y, Z), Axiom())
    proposal = Proposal(equation, tuple(map(graph.insert_term, (X, Y, Z))))
    finders = timed_finders([Talkative([proposal])], monotonic() + SECONDS)
    assert finder_protocol.find_all(graph, finders, 100) == 1
    assert graph.find(graph.insert_term(SPREAD)) == graph.find(graph.insert_term(FACTORED))
    monkeypatch.setattr(finder_protocol, "MAX_PROPOSALS", 10)
    finders = timed_finders([Talkative([proposal] * 11)], monotonic() + SECONDS)
    assert len(list(finders[0](graph, 100))) == 10
    assert "ended after 10 proposals" in finders[0].ended


def test_there_is_no_time_for_finders_after_the_deadline() -> None:
    (timed,) = timed_finders([spin], monotonic() - 1)
    assert list(timed(EGraph(), 100)) == [] and not timed.ended


def test_a_finder_that_is_ended_by_the_end_of_the_search_is_not_to_blame() -> None:
    began, asked = monotonic(), list[float]()

    def slow(graph: EGraph, max_new_enodes: int) -> list[Proposal]:
        asked.append(monotonic() - began)
        time.sleep(0.2 if len(asked) > 1 else 0)
        return []

    (timed,) = timed_finders([slow], began + SECONDS)
    timed(EGraph(), 100)
    timed.deadline = monotonic() + 0.02
    timed(EGraph(), 100)
    assert len(asked) == 2 and not timed.ended
    timed.deadline = monotonic() + 2 * SECONDS  # the search goes on
    timed(EGraph(), 100)
    assert len(asked) == 3 and not timed.ended


def test_an_unhurried_finder_has_what_it_was_granted() -> None:
    @dataclass
    class DeferringFinder:
        seconds: float = 0.0
        looked: bool = False

        def grant_time(self, seconds: float) -> bool:
            self.seconds = seconds
            return True

        def __call__(self, graph: EGraph, max_new_enodes: int) -> list[Proposal]:
            end = monotonic() + self.seconds
            while monotonic() < end:
                pass
            self.looked = True
            return []

    inner = DeferringFinder()
    (timed,) = timed_finders([inner], monotonic() + 10 * SECONDS)
    assert isinstance(timed, finder_protocol.DeferringFinder) and timed.grant_time(SECONDS)
    assert list(timed(EGraph(), 100)) == [] and inner.looked and not timed.ended


@pytest.mark.parametrize("first", [True, False])
def test_an_extractor_that_never_returns_is_ended(first: bool) -> None:
    """The others go on with the best that is known."""
    outcome = searched(4 * SECONDS, extractors=[spin, extract] if first else [extract, spin])
    assert operators(outcome.best.program) == {"Add": 1, "Mul": 1} and outcome.best.step
    (note,) = outcome.notes
    assert note.startswith("one extraction was stopped after")


def test_with_no_extractor_left_the_program_stays() -> None:
    outcome = searched(extractors=[spin])
    assert outcome.best.program.roots == program(SPREAD).roots


class Planted(Made):
    """Prices one of which is never known."""

    def measure(self, piece: Any) -> float:
        return float(spin()) if "Mul" in piece.text else super().measure(piece)


def test_a_measurement_that_never_ends_does_not_keep_what_estimates_favour() -> None:
    outcome = searched(prices=Planted({"Mul": 10.0}))
    assert outcome.ended_by == "time"
    assert any(operators(one.program) == {"Add": 1, "Mul": 1} for one in outcome.candidates)


@pytest.mark.parametrize("part", ["observe", "find_fused", "search_otherwise", "plan_measuring"])
def test_what_the_search_asks_may_never_return(part: str) -> None:
    outcome = searched(**{part: spin})
    assert outcome.ended_by == "time" and outcome.candidates


def test_a_proof_that_never_ends_drops_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensaurus.optimizer.search.rank_programs.prove", spin)
    outcome = searched()
    assert outcome.best.program.roots == program(SPREAD).roots
    assert "dropped a rewritten program: its proof takes too long" in outcome.notes


def test_a_rule_that_never_ends_does_not_keep_the_search_from_extracting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rules of which there are earlier results are applied; what one match hangs in is ended."""
    apply, applied = Runner.apply, list[object]()

    def hanging(self: Runner, *match: Any) -> Any:
        applied.append(match)
        return spin() if len(applied) > 10 else apply(self, *match)

    monkeypatch.setattr(Runner, "apply", hanging)
    outcome = searched()
    assert len(applied) == 11 and outcome.ended_by == "time" and outcome.candidates


@dataclass
class Slow(Made):
    """Prices each of which takes some time to know."""

    each: float = 0.25

    def measure(self, piece: Any) -> float:
        time.sleep(self.each)
        return super().measure(piece)


@dataclass
class Extension:
    """More time, once."""

    seconds: float = 10.0
    asked: list[bool] = field(default_factory=list)

    def __call__(self, program: Program, found: bool) -> float | None:
        self.asked.append(found)
        return monotonic() + self.seconds if len(self.asked) == 1 else None


def test_a_search_that_has_found_nothing_goes_on_in_the_time_of_the_check() -> None:
    """What was kept for the check of a result is not needed where there is none."""
    short = searched(0.2, prices=Slow({"Mul": 10.0}))
    assert short.best.cost < 1  # an estimate
    assert any("were measured in time" in note for note in short.notes)
    extension = Extension()
    outcome = searched(0.2, prices=Slow({"Mul": 10.0}), extend_deadline=extension)
    assert extension.asked == [False] and isclose(outcome.best.cost, 11.0)
    assert operators(outcome.best.program) == {"Add": 1, "Mul": 1} and not outcome.notes
    extension = Extension()
    assert isclose(searched(extend_deadline=extension).best.cost, 11.0)
    assert not extension.asked  # it has ended before its time


def test_without_more_time_the_search_ends_once() -> None:
    extension = Extension(seconds=0.1)
    outcome = searched(0.2, prices=Slow({"Mul": 10.0}, each=0.5), extend_deadline=extension)
    assert extension.asked == [False, False] and outcome.ended_by == "time"


def test_the_search_says_whether_it_has_found_something_when_it_asks_for_more_time() -> None:
    extension, prices = Extension(seconds=0.1), Made({"Mul": 10.0})

    def hanging(graph: EGraph, max_new_enodes: int) -> list[Proposal]:
        """Hangs when it is shown the better program, whose operators were measured."""
        better = any(operators(shown)["Mul"] == 1 for shown in graph.programs)
        return spin() if prices.seen and better else []  # type: ignore[no-any-return]

    outcome = searched(prices=prices, finders=[hanging], extend_deadline=extension)
    assert extension.asked == [True, True] and isclose(outcome.best.cost, 11.0)

    def observe(asked: Program) -> Observation | None:
        """Runs the original alone."""
        if operators(asked)["Mul"] == 1:
            return None
        return Observation(21.0, tuple((frozenset([n]), prices.price(Piece.of(n))) for n in asked.active))

    prices.seen.clear()
    extension = Extension(seconds=0.1)
    outcome = searched(prices=prices, finders=[hanging], extend_deadline=extension, observe=observe)
    assert extension.asked == [False, False]  # what was never run whole is not found yet
    assert outcome.original.measured == 21.0 and isclose(outcome.best.cost, 11.0)


def test_a_program_that_there_was_no_time_to_run_is_run_first_where_there_is_more() -> None:
    """Whatever hangs after it was found hangs again."""
    prices, ran = Made({"Mul": 10.0}), list[int]()

    def hanging(graph: EGraph, max_new_enodes: int) -> list[Proposal]:
        better = any(operators(shown)["Mul"] == 1 for shown in graph.programs)
        return spin() if prices.seen and better else []  # type: ignore[no-any-return]

    def observe(asked: Program) -> Observation | None:
        ran.append(operators(asked)["Mul"])
        spent = tuple((frozenset([n]), prices.price(Piece.of(n))) for n in asked.active)
        return Observation(sum(seconds for _, seconds in spent), spent)

    searched(prices=prices, finders=[hanging], extend_deadline=Extension(seconds=0.3), observe=observe)
    assert ran == [2, 1]


@pytest.mark.parametrize("part", ["flush_program", "flush_bodies"])
def test_constants_whose_influence_nobody_finds_in_time_stay(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_search, part, spin)
    monkeypatch.setattr(model_search, "MIN_FLUSHING_SECONDS", 0.1)

    class Idle:
        def search(self, whole: Program, *effort: object) -> Outcome:
            return Outcome([Candidate(whole, 1.0)])

    began, whole = monotonic(), program(SPREAD)
    runtime = Runtime(SimpleNamespace())  # type: ignore[arg-type]
    effort = Effort(deadline=began + SECONDS)
    outcome, bodies = model_search.ModelSearch(Idle(), runtime, effort, NoProgress()).run(whole)
    assert outcome.best.program.roots == whole.roots and not bodies
    assert monotonic() - began < HANG


def test_a_trial_of_fast_algorithms_that_never_ends_tells_nothing() -> None:
    target = SimpleNamespace(_probe_deadline=monotonic() + 0.1, _probe_error=spin)
    assert OptimizationRun._measure_error(target, program(SPREAD)) == inf  # type: ignore[arg-type]
    assert OptimizationRun._measure_error(target, program(SPREAD)) == inf  # type: ignore[arg-type]
    assert monotonic() < target._probe_deadline + HANG


class Notes(NoProgress):
    """Keeps what is noted."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


LIMIT = 3.0  # seconds of a whole run


def optimized(given: Any, folder: Path, **changes: Any) -> tuple[Result, list[str]]:
    progress, began = Notes(), monotonic()
    changes = {"time_limit": LIMIT, "database": folder / "times.db", "threads": 1, **changes}
    result = optimize(given, progress=progress, **changes)
    assert monotonic() - began < 20 * LIMIT  # processes start slowly on a busy machine
    return result, progress.notes


@pytest.fixture
def scaled(tmp_path: Path) -> Path:
    """A model with less to do than it does: x * 2 * 3."""
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        scaled (float[64, 64] x) => (float[64, 64] y)
        <float two = {2}, float three = {3}> { twice = Mul (x, two) y = Mul (twice, three) }
    """
    onnx.save_model(onnx.parser.parse_model(text), path := tmp_path / "scaled.onnx")
    return path


def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators cost what is estimated, and every candidate is twice as fast."""
    monkeypatch.setattr(OperatorCosts, "_measure", lambda self, piece, text: estimate(piece))
    monkeypatch.setattr(
        candidate_models, "time_models", lambda entries, *_, **__: [1.0, *[0.5] * (len(entries) - 1)]
    )
    monkeypatch.setattr(winner, "time_model_pairs", lambda *_, **__: Pairs(((1.0, 0.5),) * 8, (True,) * 8))


def test_optimize_names_the_finder_that_it_ended(
    scaled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch)
    result, notes = optimized(scaled, tmp_path, finders=[spin], time_limit=4 * LIMIT)
    assert result.rewrites and result.summary.equivalence.passed
    assert any(note.startswith("the finder spin was ended after") for note in notes)


def test_optimize_drops_what_is_not_written_in_time(
    scaled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch)
    write = BuildCache.__call__
    hang = lambda self, made: spin() if self._weights else write(self, made)  # noqa: E731
    monkeypatch.setattr(BuildCache, "__call__", hang)
    result, notes = optimized(scaled, tmp_path, time_limit=3 * LIMIT)
    assert not result.rewrites
    assert any("dropped a rewritten program: writing it as ONNX takes too long" in note for note in notes)


def spinning(folder: Path) -> Path:
    """A model whose loop never ends."""
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        spinning (float[4] x) => (float[4] y)
        <int64 trips = {9223372036854775807}, bool start = {1}> {
            y = Loop (trips, start, x)
                <body = step (int64 i, bool c, float[4] s) => (bool go, float[4] t) {
                    t = Relu (s)
                    go = Identity (c)
                }>
        }
    """
    onnx.save_model(onnx.parser.parse_model(text), path := folder / "spinning.onnx")
    return path


@pytest.mark.nightly(every=2)
@pytest.mark.parametrize("backend", ["onnxruntime", "auto"])
def test_a_model_whose_run_never_ends_is_given_up_within_the_time_limit(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first run took a minute of a limit of ten seconds, and was then refused for --backend auto."""
    monkeypatch.setattr(first_run, "MIN_SECONDS", LIMIT)
    began = monotonic()
    result, notes = optimized(spinning(tmp_path), tmp_path, backend=backend)
    assert monotonic() - began < 6 * LIMIT < MIN_PREPARING_SECONDS
    assert not result.rewrites
    assert notes[-1].startswith(f"the model did not finish one run in {LIMIT:g} s: {LIMIT:g} s are too short")
    assert "the model is left unchanged; raise --time-limit" in notes[-1]


@pytest.mark.parametrize("where", ["OptimizationRun._time_reference", "TimeLimit.why_hopeless"])
def test_optimize_returns_the_model_where_it_cannot_be_measured_in_time(
    where: str, scaled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hopeless = property(lambda self: "one run takes too long")
    replaced = hopeless if where == "TimeLimit.why_hopeless" else spin
    monkeypatch.setattr(f"tensaurus.optimizer.run.optimization_run.{where}", replaced)
    monkeypatch.setattr(import_module("tensaurus.optimizer.optimize"), "MIN_PREPARING_SECONDS", LIMIT)
    result, notes = optimized(scaled, tmp_path)
    assert not result.rewrites and result.model.graph == onnx.load(scaled).graph
    assert "the model is left unchanged; raise --time-limit" in notes[-1]
