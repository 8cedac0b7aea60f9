"""Runs of the float64 reference that are computed ahead, in several processes."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path

import numpy as np
import onnx
import pytest

from tensaurus.check.files import reference
from tensaurus.check.files.reference import NoReference, Reference, _Evaluator
from tensaurus.check.files.reference_answers import ReferenceAnswers
from tensaurus.check.files.verdict import verify
from tensaurus.graph.onnx.build import Build

TEXT = '<ir_version: 8, opset_import: ["" : 17]> net (float[N, 3] x) => (float[N, 3] y) { y = Softmax (x) }'
BUILD = Build(onnx.parser.parse_model(TEXT).SerializeToString())
FEEDS = [{"x": np.full((n, 3), n, np.float32) * np.arange(3, dtype=np.float32)} for n in range(6)]
WRONG = {"x": np.zeros((2, 4), np.float32)}


@pytest.fixture(autouse=True)
def always_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "LONG_RUN_SECONDS", 0.0)


def expected(feed: dict[str, np.ndarray]) -> np.ndarray:
    powers = np.exp(feed["x"].astype(np.float64))
    return powers / powers.sum(axis=1, keepdims=True)


def check(run: Reference, feeds: Sequence[dict[str, np.ndarray]]) -> None:
    for feed in feeds:
        (found,) = run.run(BUILD, feed)
        np.testing.assert_allclose(found, expected(feed), rtol=1e-12)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_all_runs_are_answered_in_order(threads: int) -> None:
    with Reference(threads, 60.0) as run:
        run.plan_runs(BUILD, [(feed, {}) for feed in FEEDS])
        check(run, FEEDS)
        assert not run._planned and not run._running and not run._done


@pytest.mark.nightly
def test_another_order_and_what_was_not_foreseen() -> None:
    with Reference(2, 60.0) as run:
        run.plan_runs(BUILD, [(feed, {}) for feed in FEEDS[:4]])
        check(run, [FEEDS[2], FEEDS[5], FEEDS[0], FEEDS[3], FEEDS[1], FEEDS[1]])


def test_an_error_is_of_its_run_alone() -> None:
    with Reference(2, 60.0) as run:
        run.plan_runs(BUILD, [(feed, {}) for feed in (FEEDS[1], WRONG, FEEDS[2], FEEDS[3])])
        check(run, FEEDS[1:2])
        with pytest.raises(NoReference):
            run.run(BUILD, WRONG)
        check(run, FEEDS[2:4])


def test_what_is_left_is_forgotten() -> None:
    with Reference(2, 60.0) as run:
        run.plan_runs(BUILD, [(feed, {}) for feed in FEEDS])
        check(run, FEEDS[:1])
        assert run.facts(BUILD, {}).branches == {}
        run.plan_runs(BUILD, [(feed, {}) for feed in FEEDS[3:]])
        check(run, FEEDS[3:4])
    with Reference(2, 60.0) as run:  # its processes had runs on their way
        check(run, FEEDS[::-1])


def test_a_process_that_is_gone_is_replaced() -> None:
    with Reference(2, 60.0) as run:
        run.plan_runs(BUILD, [(feed, {}) for feed in FEEDS])
        check(run, FEEDS[:1])
        for child in reference._evaluators.values():
            child.close()
        lost = 0
        for feed in FEEDS[1:]:
            try:
                check(run, [feed])
            except NoReference:
                lost += 1
        assert lost <= 2
        check(run, FEEDS)


def test_an_interrupt_after_a_question_shifts_no_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = _Evaluator.begin

    def interrupted(self: _Evaluator, verb: str, *arguments: object) -> None:
        begin(self, verb, *arguments)
        if verb == "run":
            monkeypatch.undo()
            raise KeyboardInterrupt

    for foreseen in (FEEDS, []):
        with Reference(2, 60.0) as run:
            check(run, FEEDS[:1])
            run.plan_runs(BUILD, [(feed, {}) for feed in foreseen])
            monkeypatch.setattr(reference, "LONG_RUN_SECONDS", 0.0)
            monkeypatch.setattr(_Evaluator, "begin", interrupted)
            with pytest.raises(KeyboardInterrupt):
                check(run, FEEDS[:1])
            check(run, FEEDS[1:])
        with Reference(2, 60.0) as run:
            check(run, FEEDS[2:4])


def test_answers_that_are_kept_are_not_computed_again() -> None:
    answers = ReferenceAnswers(BUILD)
    assert answers.least_seconds == inf
    with Reference(2, 60.0, answers) as run:
        check(run, FEEDS[:2])
        assert 0 < answers.least_seconds < 60
        run.plan_runs(BUILD, [(feed, {}) for feed in FEEDS])
        assert len(run._planned) == len(FEEDS) - 2
        check(run, FEEDS)


def test_the_verdict_is_the_same(tmp_path: Path) -> None:
    one, two = (verify(BUILD, BUILD, threads=threads) for threads in (1, 2))
    assert one == two and one.passed
