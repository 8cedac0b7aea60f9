"""A timeline holds what was recorded inside its block, and prints it at the level that is asked for."""

from __future__ import annotations

import pytest

from tensaurus.system.timeline import DEBUG_LEVELS, Timeline, record


def test_events_belong_to_the_innermost_block() -> None:
    record("phase", name="lost")
    with Timeline() as outer:
        record("phase", name="first")
        with Timeline() as inner:
            record("run", took_ms=1.5)
        record("phase", name="second")
    record("phase", name="lost")
    assert [event.facts for event in outer.events] == [{"name": "first"}, {"name": "second"}]
    assert [(event.kind, event.facts) for event in inner.events] == [("run", {"took_ms": 1.5})]
    assert [event.seconds for event in outer.events] == sorted(event.seconds for event in outer.events)


def test_a_kind_that_no_level_names_is_an_error() -> None:
    with Timeline(), pytest.raises(KeyError):
        record("surprise")


@pytest.mark.parametrize("level", ["", "0", "1", "2", "3", "much"])
def test_debug_prints_events_up_to_its_level(
    level: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TENSAURUS_DEBUG", level)
    with Timeline() as timeline:
        for kind in DEBUG_LEVELS:
            record(kind, number=3, share=0.123456)
    printed = capsys.readouterr().err.splitlines()
    most = int(level) if level.isdecimal() else 0
    assert [line.split()[2] for line in printed] == [k for k, least in DEBUG_LEVELS.items() if least <= most]
    assert all("number=3, share=0.1235" in line for line in printed)
    assert len(timeline.events) == len(DEBUG_LEVELS)
