"""The schedules that ship: which machines take them, and what the tuner does with them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tensaurus.expr.ir.expression_text import parse as parse_scope
from tensaurus.expr.ir.scope import Scope
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.kernels.halide.compile import input_tensors
from tensaurus.kernels.stages.sketch import parse_schedule
from tensaurus.kernels.tune import reduction_histories, shipped_schedules
from tensaurus.kernels.tune.shipped_schedules import (
    TunedForm,
    processor_class,
    read_shipped_schedules,
    write_schedules,
)
from tensaurus.kernels.tune.tune import REVISION, Tuner
from tensaurus.ops import TensorType
from tensaurus.runtimes.measure.database import Database
from tensaurus.runtimes.measure.machine import Machine

FORMS = [
    TunedForm("sum[8 over 4] of o0", 5.0, 1.25, ("row(w=8/8, p=0)",)),
    TunedForm("sum[8 over 9]", 0.5, 0.0, ()),
]


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder in place of the one that ships."""
    (tmp_path / "schedules").mkdir()
    monkeypatch.setattr(shipped_schedules, "files", lambda package: tmp_path)
    read_shipped_schedules.cache_clear()
    yield tmp_path / "schedules"
    read_shipped_schedules.cache_clear()


def test_classes_of_processors() -> None:
    assert processor_class("AMD EPYC 9R14, cpu family 25", 512) == "512-amd"
    assert processor_class("Intel(R) Xeon(R) Platinum 8488C", 256) == "256-intel"
    assert processor_class("x86_64", 256) == "256-other"


def test_a_file_for_each_class(shipped: Path) -> None:
    """Of its own class a processor takes all; of another vendor's, or another revision's, not the effort."""
    assert read_shipped_schedules("512-amd", "r1") == {}
    write_schedules(shipped / "512-amd.jsonl", "AMD EPYC", "halide 21 r1 avx512", FORMS)
    read_shipped_schedules.cache_clear()
    assert read_shipped_schedules("512-amd", "r1") == {form.text: form for form in FORMS}
    begun = {form.text: replace(form, seconds=0.0, peak_multiple=0.0) for form in FORMS}
    assert read_shipped_schedules("512-amd", "r2") == begun
    assert read_shipped_schedules("512-intel", "r1") == begun
    assert read_shipped_schedules("256-amd", "r1") == {}


def test_forms_that_a_class_lacks_begin_with_those_of_another(shipped: Path) -> None:
    first, second = FORMS
    of_intel = replace(first, seconds=3.0, fastest=("row(w=16/16, p=0)",))
    write_schedules(shipped / "512-amd.jsonl", "AMD EPYC", "halide 21 r1 avx512", FORMS)
    write_schedules(shipped / "512-intel.jsonl", "Intel Xeon", "halide 21 r1 avx512", [of_intel])
    begun = replace(second, seconds=0.0, peak_multiple=0.0)
    assert read_shipped_schedules("512-intel", "r1") == {first.text: of_intel, second.text: begun}
    assert read_shipped_schedules("512-amd", "r1") == {form.text: form for form in FORMS}


@pytest.mark.parametrize("text", ["", "{}", "[1]", "{\"compiler\": \"r1\"}\n[1, 2]", "\0"])
def test_a_damaged_file_is_left_out(shipped: Path, text: str) -> None:
    (shipped / "512-amd.jsonl").write_text(text)
    with pytest.warns(UserWarning, match="cannot be read"):
        assert read_shipped_schedules("512-amd", "r1") == {}


def test_every_shipped_file_can_be_read() -> None:
    folder = Path(shipped_schedules.__file__).parent / "schedules"
    assert list(folder.iterdir())
    for file in folder.iterdir():
        head, *rows = map(json.loads, file.read_text().splitlines())
        assert head.keys() == {"machine", "compiler"} and REVISION in head["compiler"].split()
        forms = read_shipped_schedules(file.stem, REVISION)
        assert {text for text, *_ in rows} <= forms.keys()
        for form in forms.values():
            assert form.seconds >= 0 and form.peak_multiple >= 0 and form.fastest
            for schedule in form.fastest:
                parse_schedule(re.sub(r"\bo(?=\d)", "x", schedule))  # roles stand for names of tensors


PRODUCT = "L[i:32, j:24](sum[r:16](mul(x0[i, r], x1[r, j])))"
TYPES = TensorType("float32", (32, 16)), TensorType("float32", (16, 24))
OUT = TensorType("float32", (32, 24))


def product_scope() -> Scope:
    return intern_scope(parse_scope(PRODUCT, {x.name: x for x in input_tensors(TYPES)}))


def test_the_tuner_takes_what_ships_for_its_own(
    shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It compiles and times one schedule; what it measured itself comes first the next time."""
    monkeypatch.setattr(reduction_histories, "MIN_TRIES", 1)
    scope, machine = product_scope(), Machine.here()
    with Database(tmp_path / "first.sqlite") as first:
        maker = Tuner(first, machine, "native")
        found = maker.best_schedule(scope, TYPES, OUT, 0.5)
        maker.close()
        (form,) = maker.histories.tuned_forms()
        write_schedules(shipped / f"{maker.processor_class}.jsonl", "here", maker.backend, [form])
    read_shipped_schedules.cache_clear()
    with Database(tmp_path / "second.sqlite") as second:
        taker = Tuner(second, machine, "native")
        assert taker.best_schedule(scope, TYPES, OUT, 0.2) == found
        assert taker.tried_count == 1
        assert [known.fastest for known in taker.histories.tuned_forms()] == [form.fastest[:1]]
        assert form.peak_multiple > 0
        taker.close()


def test_a_form_needs_less_tuning_the_more_is_known(tmp_path: Path, shipped: Path) -> None:
    """Full tuning at first, few trials at another size, none for the same form, however few it had."""
    scope, machine = product_scope(), Machine.here()
    twice = "L[i:32, j:24](add(x2[j], sum[r:16](mul(x0[i, r], x1[r, j]))))"
    other = "L[i:48, j:24](sum[r:16](mul(x0[i, r], x1[r, j])))"
    twice_types = (*TYPES, TensorType("float32", (24,)))
    other_types = TensorType("float32", (48, 16)), TYPES[1]
    twice_scope, other_scope = (
        intern_scope(parse_scope(text, {x.name: x for x in input_tensors(types)}))
        for text, types in ((twice, twice_types), (other, other_types))
    )
    with Database(tmp_path / "db.sqlite") as database:
        tuner = Tuner(database, machine, "native")
        assert tuner.least_seconds(scope, TYPES, ()) == reduction_histories.MIN_TUNING_SECONDS
        assert tuner.best_schedule(twice_scope, twice_types, OUT, 0.0) is None
        found = tuner.best_schedule(scope, TYPES, OUT, 0.001)
        assert found is not None and tuner.tried_count < reduction_histories.MIN_TRIES
        assert tuner.least_seconds(other_scope, other_types, ()) == reduction_histories.REUSE_SECONDS
        assert tuner.best_schedule(other_scope, other_types, TensorType("float32", (48, 24)), 0.0) is None
        assert tuner.least_seconds(twice_scope, twice_types, ()) == 0
        tried = tuner.tried_count
        assert tuner.best_schedule(twice_scope, twice_types, OUT, 0.0) == found
        assert tuner.tried_count == tried + 1
        tuner.close()


@pytest.mark.parametrize(("times", "is_tuned_on"), [(0.9, False), (1.1, True)])
def test_a_form_is_tuned_on_only_in_much_more_time(
    tmp_path: Path, shipped: Path, monkeypatch: pytest.MonkeyPatch, times: float, is_tuned_on: bool
) -> None:
    """Other kernels gain more by it; `tune_on`, which makes the schedules that ship, does tune on."""
    monkeypatch.setattr(reduction_histories, "MIN_TRIES", 1)
    scope, twice = product_scope(), "L[i:32, j:24](add(x2[j], sum[r:16](mul(x0[i, r], x1[r, j]))))"
    twice_types = (*TYPES, TensorType("float32", (24,)))
    twice_scope = intern_scope(parse_scope(twice, {x.name: x for x in input_tensors(twice_types)}))
    with Database(tmp_path / "db.sqlite") as database:
        tuner = Tuner(database, Machine.here(), "native")
        assert tuner.best_schedule(scope, TYPES, OUT, 0.001) is not None
        form = tuner.reduction_form(scope, TYPES, ())
        assert form is not None
        seconds = times * reduction_histories.RETUNING_FACTOR * tuner.histories.of(form).seconds
        tried = tuner.tried_count
        tuner.best_schedule(twice_scope, twice_types, OUT, seconds)
        assert (tuner.tried_count > tried + 1) == is_tuned_on
        tuner.tune_on(twice_scope, twice_types, OUT, seconds, ())
        assert tuner.tried_count > tried + 2 or is_tuned_on
        tuner.close()


@pytest.mark.parametrize(
    ("schedule", "seconds"),
    [
        ("block(v=7*16x3, u=0:4, p=1)", 0.3),  # an axis that there is not
        ("block(v=1*16x1, k=0., p=0); flat(u=1*16, p=1)", 0.3),  # of an expression with one nest more
        ("flat(u=1*16, p=1); block(v=1*16x1, k=0., p=0); flat(u=1*16, p=1)", 0.0),
    ],
)
def test_a_shipped_schedule_that_does_not_fit_is_passed_over(
    shipped: Path, tmp_path: Path, schedule: str, seconds: float
) -> None:
    scope, machine = product_scope(), Machine.here()
    with Database(tmp_path / "db.sqlite") as database:
        tuner = Tuner(database, machine, "native")
        form = tuner.reduction_form(scope, TYPES, ())
        assert form is not None
        wrong = TunedForm(form.text, 99.0, 1.0, (schedule,))
        write_schedules(shipped / f"{tuner.processor_class}.jsonl", "here", tuner.backend, [wrong])
        read_shipped_schedules.cache_clear()
        assert tuner.best_schedule(scope, TYPES, OUT, seconds) is not None
        tuner.close()
