"""Expressions of reduction forms: what is written has the form that was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from form_expressions import write_expression

from tensaurus.kernels.tune import shipped_schedules
from tensaurus.kernels.tune.tune import Tuner
from tensaurus.runtimes.measure.database import Database
from tensaurus.runtimes.measure.machine import Machine

SHIPPED = Path(shipped_schedules.__file__).parent / "schedules"
WRITTEN = {
    "float32 sum[9 over 64] of o0[9:1*0, 64:1*1]; o1[64:1*1], with 0 dear functions": True,
    "float32 max[4,8 over 3] of o0[4:1*0, 16:2*1+1*2]|, with 0 dear functions": True,
    "float32 sum[9 over 64] of o0[9:1*0, 64:1*1]; o1[64:1*1], with 1 dear functions": False,
    "float32 min[ over 5] of o0[5:?], with 0 dear functions": False,
    "no form": False,
}


@pytest.fixture
def tuner(tmp_path: Path) -> Tuner:
    with Database(tmp_path / "db.sqlite") as database:
        return Tuner(database, Machine.here(), "native", ships=False)


@pytest.mark.parametrize("form", WRITTEN)
def test_a_form_is_written_or_refused(form: str, tuner: Tuner) -> None:
    made = write_expression(form, tuner)
    assert (made is not None) == WRITTEN[form]
    if made is not None:
        own = tuner.reduction_form(made.scope, made.types, made.is_constant)
        assert own is not None and own.text == form


def test_most_of_what_ships_can_be_tuned_on_another_processor(tuner: Tuner) -> None:
    for file in SHIPPED.glob("*.jsonl"):
        forms = [json.loads(line)[0] for line in file.read_text().splitlines()[1:]]
        written = sum(write_expression(form, tuner) is not None for form in forms)
        assert written > 0.6 * len(forms)
