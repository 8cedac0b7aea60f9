"""The bench: its records, its page, its plots, and timings of real runtimes; no time is asserted."""

from __future__ import annotations

import csv
import ctypes
from dataclasses import replace
from math import inf, isnan, nan
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tensaurus.app.benchmark import Benchmark, largest_difference, measure_setting
from tensaurus.app.report.bench_records import Record, Setting, append_records, compare_rounds, read_records
from tensaurus.app.report.bench_table import bench_table
from tensaurus.app.report.benchmark_page import compare_best, find_fastest, group_by_model, render_page
from tensaurus.app.report.plots import PLOTS
from tensaurus.app.zoo.builder import Builder
from tensaurus.app.zoo.selection import Subject, select_models
from tensaurus.runtimes import backends
from tensaurus.runtimes.measure import machine_peaks
from tensaurus.runtimes.measure.machine_peaks import measure_peaks
from tensaurus.system.errors import TensaurusError

SETTING = Setting("a processor", 2, 2, "onnxruntime 1", "abc", "2026-01-01", "AVX2", 200.0, 100.0, 25.0)


def record(contender: str, *rounds: float, **changes: object) -> Record:
    ours = contender.startswith("tensaurus")
    made = Record(
        **vars(SETTING),
        model="m",
        contender=contender,
        backend=contender.removeprefix("tensaurus on "),
        ours=ours,
        exact=True,
        rounds_ms=rounds,
        median_ms=float(np.median(rounds)) if rounds else nan,
        minimum_ms=min(rounds, default=nan),
        spread=0.01,
        disturbed=0,
        error=0.0,
        gflop=1.0,
        compulsory_mb=10.0,
        traffic_mb=100.0,
        note="",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


BASE = record("onnxruntime", 10.0, 10.2, 9.8)
OTHER = record("openvino", 8.0, 8.1, 8.0)
BFLOAT = record("openvino_bf16", 4.0, 4.0, 4.0, exact=False, error=0.02)
OURS = record("tensaurus on onnxruntime", 5.0, 5.1, 4.9, error=1e-6)
SAME = record("tensaurus on openvino", 8.0, 8.1, 8.0, note="unchanged")
REFUSED = record("inductor", note="no rendering of Foo")
ROWS = [BASE, OTHER, BFLOAT, REFUSED, OURS, SAME]


def test_rates() -> None:
    assert BASE.gflops == pytest.approx(100)
    assert BASE.arithmetic_share == pytest.approx(0.5)
    assert BASE.memory_share == pytest.approx(10e6 / 10e-3 / 25e9)
    assert BASE.cache_share == pytest.approx(100e6 / 10e-3 / 100e9)
    assert BASE.has_run and not REFUSED.has_run


def test_two_contenders_are_compared_round_by_round() -> None:
    found = compare_rounds(BASE, OURS)
    assert found.median == 2.0 and not found.is_void and not found.is_tie
    assert compare_rounds(BASE, BASE).is_tie
    assert compare_rounds(BASE, record("x", 5.0, 10.0, 20.0)).is_void
    assert compare_rounds(BASE, replace(OURS, disturbed=2)).is_void
    assert compare_rounds(record("x", 3.0), record("y", 2.0)).median == 1.5
    with pytest.raises(ValueError):
        compare_rounds(BASE, record("x", 1.0))


def test_the_fastest_peer_and_the_fastest_result() -> None:
    assert find_fastest(ROWS, ours=False) == OTHER
    assert find_fastest(ROWS, ours=True) == OURS
    assert find_fastest([BFLOAT, REFUSED], ours=False) is None
    assert find_fastest([replace(OTHER, error=0.5), BASE], ours=False) == BASE
    found = compare_best(ROWS)
    assert found is not None and found.median == pytest.approx(1.6)
    assert compare_best([BASE]) is None


def test_records_survive_the_file(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    append_records(file, ROWS)
    again = read_records(file)
    assert again[0] == BASE and isnan(again[3].median_ms) and again[3].rounds_ms == ()
    assert [r.contender for r in again] == [r.contender for r in ROWS]
    append_records(file, [replace(BASE, model="n")])
    append_records(file, [replace(BASE, minimum_ms=1.0)])
    assert [(r.model, r.minimum_ms) for r in read_records(file)] == [("n", 9.8), ("m", 1.0)]
    with file.open(newline="") as opened:
        assert list(csv.DictReader(opened))[0]["rounds_ms"] == "10 10.2 9.8"


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "\x00\xff", "model\n\n1\n"])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "table.csv"
    file.write_text(text)
    with pytest.raises(TensaurusError, match="is not a table that `tensaurus bench --csv` wrote"):
        read_records(file)


def test_the_page_shows_every_figure() -> None:
    text = render_page([*ROWS, replace(BASE, model="lonely | pipe")], {"A picture": "p/a.png"})
    assert "![A picture](p/a.png)" in text and "a processor; 2 cores, 2 threads" in text
    (line,) = [line for line in text.splitlines() if line.startswith("| m | 1 |")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["m", "1", "10", "8", "4", "-", "**5** (2.00x)", "unchanged", "1.60"]
    assert "lonely \\| pipe" in text
    again = replace(BASE, peak_cache_gbs=BASE.peak_cache_gbs + 11, model="again")
    span = f"{BASE.peak_cache_gbs:.0f}-{BASE.peak_cache_gbs + 11:.0f} GB/s from cache"
    both = render_page([*ROWS, again], {})
    assert both.count("a processor; 2 cores") == 1 and span in both
    assert "Over 1 models (0 void) our best is 1.60 times as fast" in text
    assert "no rendering of Foo" in text and "lower precision, not comparable" in text
    assert render_page(ROWS, {}) == render_page(ROWS, {})


@pytest.mark.parametrize("name", ["contest_zoo", "contest_batches", "contest_pretrained"])
def test_a_page_in_the_documentation_is_what_its_table_gives(name: str) -> None:
    docs = Path(__file__).parents[2] / "docs"
    plots = {caption: f"{name}/{plot}.png" for plot, caption, _ in PLOTS}
    assert render_page(read_records(docs / f"{name}.csv"), plots) == (docs / f"{name}.md").read_text()
    assert all((docs / path).is_file() for path in plots.values())


def test_a_page_where_nothing_can_be_compared() -> None:
    text = render_page([BASE, REFUSED], {})
    assert "geometric mean" not in text


def test_the_terminal_table() -> None:
    console = Console(width=150, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(bench_table([*ROWS, record("late", 1.0, 30.0, 9.0)]))
    lines = console.export_text().splitlines()
    assert lines[1].split() == ["onnxruntime", "10.000", "9.800", "1%", "100.0", "50%", "1.00x"]
    assert lines[4].split() == ["inductor", *["-"] * 6, "no", "rendering", "of", "Foo"]
    assert lines[5].split()[-2:] == ["100%", "2.00x"]
    assert lines[6].rstrip().endswith("unchanged")
    assert lines[7].rstrip().endswith("comparison void: the rounds disagree")


def test_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from tensaurus.app.report.plots import draw_plots

    rows = [*ROWS, *(replace(row, model="n", gflop=0.0) for row in ROWS)]
    found = draw_plots(rows, tmp_path)
    assert {path.name for path in found.values()} == {"roofline.png", "speedups.png"}
    for name in ("roofline", "speedups"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(first) == 4 and b"a processor" not in first["roofline.svg"]
    draw_plots(rows, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first


# Peaks


@pytest.mark.parametrize("width", [512, 256])
def test_the_loop_of_multiply_adds_ends(width: int) -> None:
    flag = {512: "avx512f", 256: "fma"}[width]
    if flag not in machine_peaks._processor_flags():
        pytest.skip(f"the processor has no {flag}")
    machine_peaks._MachineCode(machine_peaks._loop_code(width))(3)


def test_the_machine_code_takes_its_argument() -> None:
    if not machine_peaks._processor_flags():
        pytest.skip("not an x86-64 processor")
    memory = machine_peaks._MachineCode(b"\xc7\x07\x2a\x00\x00\x00\xc3")  # mov dword [rdi], 42; ret
    value = ctypes.c_int32(0)
    memory(ctypes.addressof(value))
    assert value.value == 42


def test_peaks_without_executable_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(code: bytes) -> None:
        raise PermissionError

    monkeypatch.setattr(machine_peaks, "_MachineCode", refuse)
    found = measure_peaks(1, repeats=2)
    assert found.instructions == "matrix product"
    assert found.flops > 1e8 and found.cache > 1e8 and found.memory > 1e8


# Benchmarks


def test_the_largest_difference_of_outputs() -> None:
    one, other = np.array([1.0, -4.0, np.nan, np.inf]), np.array([1.0, -2.0, np.nan, np.inf])
    assert largest_difference([other], [one]) == 0.5
    assert largest_difference([one], [one]) == 0.0
    assert largest_difference([one[:2]], [one]) == inf
    assert largest_difference([np.array([np.nan])], [np.array([1.0])]) == inf
    assert largest_difference([], [one]) == inf
    assert largest_difference([np.array(["a"])], [np.array(["a"])]) == 0.0


def small() -> Subject:
    b = Builder("small")
    x = b.input("x", 1, 8, 16, 16)
    y = b.relu(b.batch_norm(b.conv(x, "a", 8, 3, padding=1), "n"))
    return Subject("small", lambda: b.model(y))


def test_benchmark_times_every_contender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensaurus.app.benchmark.MIN_PEAK_SHARE", 0.0)
    setting = measure_setting(1)
    assert setting.peak_gflops > 0 and setting.threads == 1
    benchmark = Benchmark(
        setting,
        peers=["onnxruntime"],
        ours=["onnxruntime"],
        rounds=2,
        steps=3,
        database=tmp_path / "m.sqlite",
    )
    first, ours = benchmark.measure_model(small())
    assert (first.contender, ours.contender) == ("onnxruntime", "tensaurus on onnxruntime")
    assert first.has_run and ours.has_run and ours.ours and not first.ours
    assert len(first.rounds_ms) == len(ours.rounds_ms) == 2
    assert first.gflop == pytest.approx(2 * 256 * 8 * 8 * 9 / 1e9)
    assert first.error == 0 and ours.error < 1e-5
    assert ours.note in ("", "unchanged")


def test_a_contender_that_does_not_run_is_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets its row; where nobody runs the model, that is an error that names it."""
    monkeypatch.setattr("tensaurus.app.benchmark.TURN_SECONDS", 0.01)
    monkeypatch.setattr("tensaurus.app.benchmark.MIN_PEAK_SHARE", 0.0)
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    benchmark = Benchmark(SETTING, ["onnxruntime"], against=[broken], rounds=1)
    first, refused = benchmark.measure_model(small())
    assert first.has_run and not refused.has_run and "onnxruntime" in refused.note
    assert refused.contender == f"{broken} on onnxruntime"


@pytest.mark.parametrize("ours", ["onnxruntime", "auto"])
def test_a_model_that_cannot_be_optimized_has_a_record_that_says_why(
    ours: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensaurus.app.benchmark.TURN_SECONDS", 0.01)
    monkeypatch.setattr("tensaurus.app.benchmark.MIN_PEAK_SHARE", 0.0)

    def refuse(*given: object, **more: object) -> None:
        raise TensaurusError("no result")

    monkeypatch.setattr("tensaurus.app.benchmark.optimize", refuse)
    _, record = Benchmark(SETTING, ["onnxruntime"], [ours], rounds=1).measure_model(small())
    assert not record.has_run and record.ours and record.note == "no result"
    assert (record.contender, record.backend) == (f"tensaurus on {ours}", "onnxruntime")


def test_timing_is_repeated_while_other_work_disturbs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensaurus.app.benchmark.TURN_SECONDS", 0.01)
    shares = iter([1.0, 0.5, 0.9, 0.8, *[0.1] * 6, None])
    monkeypatch.setattr(Benchmark, "_measure_peak_share", lambda self: next(shares))
    benchmark = Benchmark(SETTING, ["onnxruntime"], rounds=2)
    list(benchmark.measure_model(small()))  # takes the second attempt, at 80 %
    (second,) = benchmark.measure_model(small())  # none of three is calm
    assert next(shares) is None
    assert second.disturbed == 2 and compare_rounds(second, second).is_void


def test_every_workload_can_be_selected_by_its_name() -> None:
    (subject,) = select_models(["nasrnn"])
    assert subject.name == "nasrnn" and subject.load().graph.name == "nasrnn"


def test_peers_are_targets_first() -> None:
    found = backends.peers()
    flags = [backends.find(name).target for name in found]
    assert flags == sorted(flags, reverse=True) and "reference" not in found


def test_grouping_by_model_keeps_the_order() -> None:
    other = replace(BASE, model="a")
    assert list(group_by_model([*ROWS, other])) == ["m", "a"]


def test_the_readme_quotes_the_table() -> None:
    """`python bench/readme.py` writes the table."""
    import readme

    text = readme.README.read_text(encoding="utf-8")
    assert readme.with_table(text, readme.table()) == text
    assert readme.with_table(text, "other\n") != text
