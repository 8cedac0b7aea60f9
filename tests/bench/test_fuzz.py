"""Mutants of small models: none may crash, hang, fill the memory, or come out unequal."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest


def test_a_mutant_is_made_of_its_seed_and_number_alone() -> None:
    from mutations import KINDS, mutant

    made = [mutant(0, number) for number in range(3 * len(KINDS))]
    assert {found.kind for found in made} == set(KINDS)
    assert made == [mutant(0, found.number) for found in made]
    assert made != [mutant(1, found.number) for found in made]


@pytest.mark.parametrize("name", ["elements", "sparse", "computed"])
def test_a_tensor_whose_file_is_missing_is_left_alone(name: str) -> None:
    from random import Random

    from fuzz_models import Seedling
    from mutations import KINDS
    from mutations.draw import Draft, Inapplicable
    from onnx.external_data_helper import set_external_data

    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 15]>
        net (float[2] x) => (float[2] y) <float[2] w = {1, 2}, int64[1] s = {2}> { y = Add (x, w) }"""
    )
    for place, tensor in enumerate(model.graph.initializer):
        array = onnx.numpy_helper.to_array(tensor)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))  # its bytes in raw_data
        set_external_data(tensor, f"absent{place}")
    mutate = next(m for kind in KINDS.values() for m in kind if m.__name__ == name)
    for seed in range(8):
        with pytest.raises(Inapplicable):
            mutate(Draft(Random(seed), Seedling(model, {})))


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory and time are read from /proc")
def test_ten_mutants() -> None:
    from fuzz import fuzz, table

    reports = sorted(fuzz(7, range(10), lanes=1), key=lambda report: report.number)
    assert [report.number for report in reports] == list(range(10))
    assert [(r.number, r.recipe, r.phase, r.detail) for r in reports if r.verdict == "fault"] == []
    text = table(reports, 7)
    assert "| all | 10 |" in text and "Mutants of each model: " in text


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


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory and time are read from /proc")
def test_a_result_without_a_kernel_is_told_from_one_that_fails(tmp_path: Path) -> None:
    import onnx
    from fuzz import Lane
    from fuzz_way import Walked

    def model(operator: str, dtype: str) -> bytes:
        text = f"""<ir_version: 8, opset_import: ["": 17]>
        net ({dtype}[2] x) => ({dtype}[2] y) <bool[2] c = {{1, 0}}> {{ y = {operator} }}"""
        return bytes(onnx.parser.parse_model(text).SerializeToString())

    feeds = [{"x": np.array([1, 2], np.uint16)}]
    original = model("Identity (x)", "uint16")
    lane = Lane(tmp_path, 0, 20.0)
    lane.walker.ask = lambda *rest: ""  # type: ignore[method-assign]
    for operator, verdict in (("Neg (x)", "fault"), ("Where (c, x, x)", "runtime")):
        walked = Walked("rewritten", "", "", original, model(operator, "uint16"), feeds)
        assert lane._compared(walked)[0] == verdict, lane._compared(walked)
