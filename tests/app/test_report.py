"""Summaries survive JSON, read well, and explain a model; progress suits where it goes."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from tensaurus.app.report.explain import format_explanation
from tensaurus.check.files.equality import Equality
from tensaurus.optimizer.result.summary import METADATA_KEY, AppliedRule, Summary, format_counts
from tensaurus.system.errors import TensaurusError, get_circumstances
from tensaurus.system.progress import (
    NoProgress,
    PlainProgress,
    TerminalProgress,
    choose_progress,
    format_step,
)
from tensaurus.system.timeline import Event

SUMMARY = Summary(
    model="rec.onnx",
    backend="onnxruntime",
    threads=2,
    original_ms=11.7,
    optimized_ms=9.0,
    speedup=1.3,
    equivalence=Equality(1.5e-6, 2e-5, True, "20 inputs"),
    rewrites=(
        AppliedRule("hardswish", "proved(z3, all reals, all sizes, all ranks)", 14),
        AppliedRule("fold-scale", "axiom(the order is kept)", 40),
        AppliedRule("merge-conv", "tested(gf, 40 instances of ranks 0-4, 8 trials, error < 2^-94)", 1),
    ),
    search_seconds=31.5,
    measurements=210,
    typed=600,
    opaque=3,
    opaque_operators={"LSTM": 1, "Shape": 2},
    unlock=("--shape x=1,3,48,320",),
    ended_by="time",
    versions={"onnxruntime": "1.31.1"},
    timeline=(Event(0.0, "phase", {"name": "searching"}), Event(1.5, "run", {"took_ms": 9.0})),
)


def text(renderable: RenderableType, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_summary_survives_json() -> None:
    assert Summary.from_json(SUMMARY.to_json()) == SUMMARY
    assert "\n" not in SUMMARY.to_json()


finite = st.floats(allow_nan=False, allow_infinity=False)
equalities = st.builds(Equality, finite, finite, st.booleans(), st.text())
rewrites = st.builds(AppliedRule, st.text(), st.text(), st.integers(0))
summaries = st.builds(
    Summary,
    *(st.text(), st.text(), st.integers(1), finite, finite, finite, equalities),
    rewrites=st.lists(rewrites).map(tuple),
    opaque_operators=st.dictionaries(st.text(), st.integers(0)),
    unlock=st.lists(st.text()).map(tuple),
)


@given(summaries)
def test_any_summary_survives_json(summary: Summary) -> None:
    assert Summary.from_json(summary.to_json()) == summary


def test_json_without_effort_is_the_same_for_equal_results() -> None:
    other = replace(SUMMARY, search_seconds=2.0, measurements=0)
    assert SUMMARY.to_json(effort=False) == other.to_json(effort=False)
    assert Summary.from_json(SUMMARY.to_json(effort=False)) == replace(
        SUMMARY, search_seconds=0.0, measurements=0, timeline=()
    )
    one = replace(SUMMARY, opaque_operators={"Shape": 2, "LSTM": 1})
    assert one.to_json() == SUMMARY.to_json()


def test_json_has_no_infinity() -> None:
    odd = replace(SUMMARY, equivalence=Equality(math.inf, math.nan, False))
    record = json.loads(odd.to_json())
    assert record["equivalence"]["max_abs_error"] is None
    back = Summary.from_json(odd.to_json())
    assert math.isnan(back.equivalence.max_abs_error)
    assert "NOT EQUAL" in text(back.render())


def test_json_of_a_later_version_is_read() -> None:
    record = json.loads(SUMMARY.to_json())
    record["novelty"] = {"a": 1}
    record["rewrites"][0]["novelty"] = 1
    assert Summary.from_json(json.dumps(record)) == SUMMARY


@pytest.mark.parametrize(
    "broken", ["", "{", "[]", "3", "null", "{}", '{"equivalence": {}}', '{"rewrites": [1]}']
)
def test_bad_json_is_no_summary(broken: str) -> None:
    with pytest.raises(ValueError, match="."):
        Summary.from_json(broken)


def test_summary_reads_well() -> None:
    said = text(SUMMARY.render())
    assert "onnxruntime 1.31.1, 2 threads" in said
    assert "11.700 ms → 9.000 ms, 1.30x" in said
    assert "equal: max error 1.5e-06 absolute, 2e-05 relative (20 inputs)" in said
    assert "600 typed, 3 opaque, passed through untouched: Shape 2, LSTM 1" in said
    assert "31.5 s, 210 measurements, time limit reached" in said
    assert "--shape x=1,3,48,320 lets more" in said
    assert said.index("fold-scale") < said.index("hardswish") < said.index("merge-conv")


def test_unchanged_model_says_so() -> None:
    unchanged = replace(SUMMARY, rewrites=(), opaque=0, opaque_operators={}, unlock=(), threads=1)
    said = text(unchanged.render())
    assert "nothing faster was found" in said
    assert "none opaque" in said
    assert "1 thread " in said


def test_markup_in_names_is_text() -> None:
    odd = replace(
        SUMMARY, model="[red]x[/nonsense]", rewrites=(AppliedRule("[bold]r", "[/]", 1),), unlock=("[/x]",)
    )
    said = text(odd.render())
    assert "[red]x[/nonsense]" in said
    assert "[bold]r" in said


def save(model: onnx.ModelProto, path: Path, summary: str) -> Path:
    onnx.helper.set_model_props(model, {"author": "someone", METADATA_KEY: summary})
    onnx.save_model(model, path)
    return path


def test_explain(small_model: Path, tmp_path: Path) -> None:
    path = save(onnx.load_model(small_model), tmp_path / "fast.onnx", SUMMARY.to_json())
    said = " ".join(text(format_explanation(path), width=400).split())
    assert f"{path} is rec.onnx: 55 rewrites by 3 rules made it 1.30 times as fast on onnxruntime." in said
    assert (
        "The evidence for its rewrites: axiom 40, proved 14, tested with a bound 1."
        " Result and original were compared: equal"
        in said
    )
    assert "The graph now has 2 nodes: MatMul 1, Relu 1." in said


def test_explain_of_an_unchanged_model(small_model: Path, tmp_path: Path) -> None:
    path = save(onnx.load_model(small_model), tmp_path / "same.onnx", replace(SUMMARY, rewrites=()).to_json())
    said = text(format_explanation(path), width=400)
    assert "nothing was changed, because nothing faster was found" in said


def test_explain_does_not_need_external_data(small_model: Path, tmp_path: Path) -> None:
    model = onnx.load_model(small_model)
    onnx.helper.set_model_props(model, {METADATA_KEY: SUMMARY.to_json()})
    path = tmp_path / "fast.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "weights.bin").unlink()
    assert "rec.onnx" in text(format_explanation(path), width=400)


def test_explain_refuses_other_files(tmp_path: Path) -> None:
    path = tmp_path / "text.onnx"
    path.write_text("not a model, just text that goes on for a while")
    with pytest.raises(TensaurusError, match="is not an ONNX model"):
        format_explanation(path)


def test_counts_are_formatted() -> None:
    assert format_counts({"b": 1, "a": 1, "c": 5}) == "c 5, a 1, b 1"
    assert format_counts({}) == ""


# Progress


def report(progress: NoProgress) -> None:
    with progress:
        progress.phase("search [x]")
        progress.step(1, 40, 8.5, 31.4)
        progress.step(2, 40, 8.499, 31.3)
        progress.step(3, 40, 8.0, 31.0)
        progress.note("a note with [brackets]")
        progress.phase("verify")
        progress.step(7, None, None, None)


def test_plain_progress_prints_what_is_new() -> None:
    console = Console(file=io.StringIO(), width=20)
    report(PlainProgress(console))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == [
        "search [x]",
        "search [x]: 1/40, best 8.500 ms, 31 s left",
        "search [x]: 3/40, best 8.000 ms, 31 s left",
        "a note with [brackets]",
        "verify",
    ]


def test_plain_progress_shows_life_after_a_while() -> None:
    console = Console(file=io.StringIO(), width=80)
    report(PlainProgress(console, every_seconds=0))
    assert isinstance(console.file, io.StringIO)
    assert "verify: 7" in console.file.getvalue().splitlines()


def test_stages_are_shown_after_a_while_and_live() -> None:
    piped, live = (Console(file=io.StringIO(), width=80, force_terminal=live) for live in (False, True))
    shown = {PlainProgress(piped): 0, PlainProgress(piped, every_seconds=0): 1, TerminalProgress(live): 0}
    for progress, lines in shown.items():
        assert isinstance(piped.file, io.StringIO)
        before = piped.file.getvalue().count("checking: rewrite 3 of 12")
        with progress:
            progress.phase("checking")
            progress.stage("rewrite", 3, 12)
            if isinstance(progress, TerminalProgress):
                assert "checking  rewrite 3 of 12" in progress._line().plain
        assert piped.file.getvalue().count("checking: rewrite 3 of 12") == before + lines
    NoProgress().stage("rewrite", 3, 12)


@pytest.mark.parametrize("kind", [NoProgress, PlainProgress, TerminalProgress])
def test_an_error_that_leaves_a_display_has_its_phase(kind: type[NoProgress]) -> None:
    console = Console(file=io.StringIO())
    progress = kind() if kind is NoProgress else kind(console)  # type: ignore[call-arg]
    with pytest.raises(KeyError) as caught, progress:
        progress.phase("reading")
        progress.phase("searching")
        raise KeyError
    assert get_circumstances(caught.value) == (None, "searching")


def test_terminal_progress_is_live() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    report(TerminalProgress(console))
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert "✓ search [x]  3/40, best 8.000 ms, 0.0 s\n" in said
    assert "a note with [brackets]" in said
    assert "✓ verify  7, 0.0 s" in said


def test_terminal_progress_ends_with_an_error() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    progress = TerminalProgress(console)
    with pytest.raises(KeyboardInterrupt), progress:
        progress.phase("search")
        raise KeyboardInterrupt
    assert isinstance(console.file, io.StringIO)
    assert "✓" not in console.file.getvalue()


def test_display_suits_the_console() -> None:
    piped, terminal = Console(file=io.StringIO()), Console(file=io.StringIO(), force_terminal=True)
    assert type(choose_progress(piped, quiet=False)) is PlainProgress
    assert type(choose_progress(terminal, quiet=False)) is TerminalProgress
    assert type(choose_progress(terminal, quiet=True)) is NoProgress


def test_describe() -> None:
    assert format_step(12, 40, 8.2134, 31.2) == "12/40, best 8.213 ms, 31 s left"
    assert format_step(12, None, None, -0.5) == "12, 0 s left"


@pytest.mark.parametrize(
    ("evidence", "ground"),
    [
        ("proved(algebra, at these types)", "proved"),
        ("tested(gf, 40 instances of ranks 0-4, 2 trials, error < 2^-90)", "tested with a bound"),
        ("tested(gf, 40 instances of ranks 0-4, 2 trials, no error bound)", "tested without a bound"),
        ("tested(z3, 9 instances, all reals at 6 of them)", "tested without a bound"),
        ("tested(gf, where it is used)", "replayed where it is used"),
        ("axiom(symmetry)", "axiom"),
        ("derived(a, b)", "derived"),
        ("unproved(allowed by --allow-unproved)", "unproved"),
        ("", "unstated"),
    ],
)
def test_a_rule_without_a_bound_is_counted_as_such(evidence: str, ground: str) -> None:
    assert AppliedRule("r", evidence, 1).evidence_kind == ground
