"""Child processes: answers, refusals, time-outs, memory, death; and what runs in them because it must."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tensaurus import optimize
from tensaurus.check import verify
from tensaurus.graph.onnx import shape_inference
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.system.child import Child, ChildError, available_memory
from tensaurus.system.deadline import DeadlineBlock
from tensaurus.system.errors import TensaurusError


class Desk:
    """What the children of these tests do."""

    def __init__(self, word: str = "") -> None:
        self.word = word

    def echo(self, value: object) -> object:
        return (self.word, value)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def fill(self, size: int) -> int:
        return int(np.ones(size, np.uint8).sum())

    def refuse(self) -> None:
        raise ValueError("no")

    def die(self) -> None:
        print("last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)


def child(
    *arguments: str, timeout: float = 300.0, memory: int | None = None, remedy: str | None = None
) -> Child:
    factory = f"{__name__}:Desk"
    return Child("the child", factory, *arguments, timeout=timeout, memory=memory, remedy=remedy)


def test_it_answers_and_refuses_in_turn() -> None:
    with child("hello") as one:
        assert one.ask("echo", [1, None]) == ("hello", [1, None])
        with pytest.raises(ChildError, match="^no$"):
            one.ask("refuse")
        assert one.is_alive and one.ask("echo", 2) == ("hello", 2)
    assert not one.is_alive


def test_an_answer_that_takes_too_long_ends_it() -> None:
    with child(remedy="Wait longer.") as one:
        one.ask("echo", 0)
        one.timeout = 0.2
        with pytest.raises(ChildError, match=r"the child: no answer within 0.2 s\. Wait longer\."):
            one.ask("sleep", 60.0)
        assert not one.is_alive
        with pytest.raises(ProcessLookupError):
            os.kill(one.pid, 0)


def test_memory_is_limited() -> None:
    with child(memory=1 << 29) as one:
        assert one.ask("fill", 1 << 20) == 1 << 20
        with pytest.raises(ChildError, match="not enough memory"):
            one.ask("fill", 1 << 30)
        assert one.is_alive
    assert available_memory() > 1 << 28


def test_its_death_has_a_reason() -> None:
    with child() as one:
        with pytest.raises(ChildError, match="the child: the worker was killed by SIGSEGV: last words"):
            one.ask("die")
        assert not one.is_alive


def test_an_answer_that_was_not_taken_is_never_that_of_another_question() -> None:
    with child() as one:
        one.begin("echo", 1)
        assert not one.is_alive
        with pytest.raises(ChildError, match="the worker is closed"):
            one.ask("echo", 2)


def test_an_interrupt_between_a_question_and_its_answer_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: Child, patience: float) -> None:
        raise KeyboardInterrupt

    with child() as one:
        monkeypatch.setattr(Child, "finish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            one.ask("echo", 1)
        with pytest.raises(ProcessLookupError):
            os.kill(one.pid, 0)


def test_a_deadline_ends_the_wait_for_an_answer_in_a_thread() -> None:
    def wait() -> None:
        with child() as one:
            one.ask("echo", 0)
            began = time.monotonic()
            with DeadlineBlock(began + 0.1) as block:
                one.ask("sleep", 60.0)
            found.append((block.ended, one.is_alive, time.monotonic() - began < 30))

    found: list[object] = []
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(40)
    assert found == [(True, False, True)]


# ------------------------------------------------------------------------------------- what needs one


def doubling(times: int) -> onnx.ModelProto:
    """Shapes joined to themselves again and again: propagating their elements takes 2 ** times of them."""
    nodes = [helper.make_node("Shape", ["x"], ["s0"])]
    nodes += [helper.make_node("Concat", [f"s{k}"] * 2, [f"s{k + 1}"], axis=0) for k in range(times)]
    nodes += [helper.make_node("ReduceSum", [f"s{times}"], ["t"]), helper.make_node("Relu", ["x"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("patience, memory", [(2.0, 1 << 31), (60.0, 1 << 28)])
def test_inference_that_takes_too_much_is_done_without(
    patience: float, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Types that need no elements are found all the same."""
    monkeypatch.setattr(shape_inference, "ANSWER_SECONDS", patience)
    monkeypatch.setattr(shape_inference, "MAX_MEMORY", memory)
    shape_inference._start_child.cache_clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        program = import_model(doubling(40))
    shape_inference._start_child.cache_clear()
    assert str(program.outputs[0][1].tensor) == "float32[2, 3]"
    assert all("only declared types are known" in str(one.message) for one in said)


def endless() -> onnx.ModelProto:
    """A Loop whose condition stays true."""
    boolean = helper.make_tensor_value_info("keep", TensorProto.BOOL, [])
    value = helper.make_tensor_value_info("v", TensorProto.FLOAT, [2])
    body = helper.make_graph(
        [helper.make_node("Identity", ["keep"], ["on"]), helper.make_node("Relu", ["v"], ["w"])],
        "body",
        [helper.make_tensor_value_info("k", TensorProto.INT64, []), boolean, value],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, [2]),
        ],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["", "yes", "x"], ["y"], body=body)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [helper.make_tensor("yes", TensorProto.BOOL, [], [True])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_model_that_does_not_end_is_refused(tmp_path: Path) -> None:
    """Within the limit that is given, with what helps, by everything that runs it."""
    model = endless()
    with pytest.raises(TensaurusError, match=r"no answer within 1 s\. Raise --run-limit"):
        optimize(model, run_limit=1.0, time_limit=1.0, database=tmp_path / "db")
    with pytest.raises(TensaurusError, match=r"no answer within 1 s\. Raise --run-limit"):
        verify(model, model, limit=1.0)
