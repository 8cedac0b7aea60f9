"""Mutants of small models: none may crash, hang, fill the memory, or come out unequal."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def test_a_mutant_is_made_of_its_seed_and_number_alone() -> None:
    from mutations import KINDS, mutant

    made = [mutant(0, number) for number in range(3 * len(KINDS))]
    assert {found.kind for found in made} == set(KINDS)
    assert made == [mutant(0, found.number) for found in made]
    assert made != [mutant(1, found.number) for found in made]


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory and time are read from /proc")
def test_two_dozen_mutants() -> None:
    from fuzz import fuzz, table

    reports = sorted(fuzz(7, range(24), lanes=1), key=lambda report: report.number)
    assert [report.number for report in reports] == list(range(24))
    assert [(r.number, r.recipe, r.phase, r.detail) for r in reports if r.verdict == "fault"] == []
    text = table(reports, 7)
    assert "| all | 24 |" in text and "Mutants of each model: " in text


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory and time are read from /proc")
def test_what_hangs_crashes_or_grows_is_replaced(tmp_path: Path) -> None:
    from servants import Fallen, Servant

    def work(task: str, say: object) -> str:
        held = []
        while task == "hang":
            pass
        while task == "grow":
            held.append(bytearray(1 << 20))
        if task == "crash":
            import ctypes

            ctypes.string_at(0)
        return task

    servant = Servant(work, tmp_path / "log", 0.3, 1 << 27)
    try:
        for task, how in (("hang", "hang"), ("crash", "crash"), ("grow", "memory")):
            assert servant.ask("fine") == "fine"
            with pytest.raises(Fallen) as caught:
                servant.ask(task)
            assert caught.value.how == how
            assert any("work" in line for line in caught.value.trace)
    finally:
        servant.close()
