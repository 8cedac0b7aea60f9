"""Blocks that end at a time: whatever they are at, once, and without harm to what others rely on."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dis import Bytecode
from itertools import count
from math import inf
from time import monotonic
from types import CodeType
from typing import Any

import numpy as np
import pytest
from endless import ignore_exceptions, sleep, spin

from tensaurus.system import deadline, exception_points
from tensaurus.system.deadline import DeadlineBlock, Overdue, atomic, cancel_at_deadline

SOON = 0.05
HANG = 5.0  # seconds: far more than a block goes on for, far less than what is planted would take


def yield_forever() -> None:
    sum(0 for _ in count())


def catch_everything_once() -> None:
    with suppress(BaseException):
        spin()
    spin()


def wait_for_process() -> None:
    subprocess.run([sys.executable, "-c", "import time; time.sleep(1000)"], check=True)


def wait_for_thread() -> None:
    threading.Event().wait()


def match_catastrophically() -> None:
    re.match(r"(a*)*b", "a" * 60)


def raise_to_a_huge_power() -> None:
    pow(3, 10**9)


IN_PYTHON = [spin, ignore_exceptions, yield_forever, catch_everything_once]
IN_C = [wait_for_process, wait_for_thread, match_catastrophically, raise_to_a_huge_power]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "REPEAT_SECONDS", 0.1)


def in_thread(work: Callable[[], Any]) -> Any:
    """What it returns in a thread beside the main one."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(HANG)
    assert found, "it has not come back"
    return found[0]


def bounded(work: Callable[[], object], seconds: float = SOON) -> DeadlineBlock:
    began = monotonic()
    with DeadlineBlock(began + seconds) as block:
        work()
    assert monotonic() - began < HANG
    return block


@pytest.mark.parametrize("work", [*IN_PYTHON, sleep, *IN_C], ids=lambda work: work.__name__)
def test_a_block_ends_whatever_it_is_at(work: Callable[[], None]) -> None:
    assert bounded(work).ended


@pytest.mark.parametrize("work", IN_PYTHON, ids=lambda work: work.__name__)
def test_in_a_thread_python_ends(work: Callable[[], None]) -> None:
    assert in_thread(lambda: bounded(work)).ended


def by_any(test: Callable[[], Any]) -> None:
    test()
    in_thread(lambda: test() or True)


def test_what_is_done_in_time_is_left_alone() -> None:
    def test() -> None:
        assert not bounded(lambda: None).ended
        time.sleep(2 * SOON)
        with DeadlineBlock(inf) as block:
            pass
        assert not block.ended

    by_any(test)


def test_errors_of_a_block_are_its_own_unless_it_was_ended() -> None:
    def test() -> None:
        with pytest.raises(ValueError), DeadlineBlock(monotonic() + HANG):
            raise ValueError
        with DeadlineBlock(monotonic() + SOON) as block:
            try:
                spin()
            except BaseException:
                raise ImportError("as an extension module does") from None
        assert block.ended

    by_any(test)


def test_of_nested_blocks_the_one_that_is_due_ends() -> None:
    def test() -> None:
        with DeadlineBlock(monotonic() + HANG) as outer:
            with DeadlineBlock(monotonic() + SOON) as inner:
                spin()
            after = True
        assert after and inner.ended and not outer.ended
        with DeadlineBlock(monotonic() + SOON) as outer, DeadlineBlock(monotonic() + HANG) as inner:
            spin()
        assert outer.ended and not inner.ended

    by_any(test)


def test_a_deadline_that_is_over_ends_a_block_at_once() -> None:
    def test() -> None:
        with DeadlineBlock(monotonic() - 1) as block:
            spin()
        assert block.ended

    by_any(test)


def test_atomic_functions_finish_first() -> None:
    done = []

    @atomic
    def half() -> None:
        done.append("begun")
        end = monotonic() + 4 * SOON
        while monotonic() < end:
            pass
        done.append("finished")

    def test() -> None:
        done.clear()
        with DeadlineBlock(monotonic() + SOON) as block:
            half()
            spin()
        assert block.ended and done == ["begun", "finished"]

    by_any(test)


def test_an_import_is_not_left_half_done(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = "import time\nfor _ in range(20): time.sleep(0.01)\ndone = True\n"
    (tmp_path / "slow_to_import.py").write_text(slow)
    monkeypatch.syspath_prepend(tmp_path)
    with DeadlineBlock(monotonic() + SOON) as block:
        import slow_to_import  # type: ignore[import-not-found]

        spin()
    assert block.ended and slow_to_import.done


def test_what_is_lost_in_a_finalizer_comes_again(capfd: pytest.CaptureFixture[str]) -> None:
    class Final:
        def __del__(self) -> None:
            spin()

    def lose() -> None:
        Final()
        spin()

    assert bounded(lose).ended
    assert capfd.readouterr().err == ""


def test_a_timer_of_others_goes_on_afterwards() -> None:
    heard = []
    before = signal.signal(signal.SIGALRM, lambda *_: heard.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 3 * SOON)
        assert bounded(spin).ended and not heard
        time.sleep(4 * SOON)
        assert heard
        assert bounded(spin).ended  # and where there is none, none is set
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_nothing_is_raised_outside_of_blocks() -> None:
    """However close to its deadline a block is left."""

    def test() -> None:
        for number in range(200):
            try:
                with DeadlineBlock(monotonic() + 2e-4):
                    end = monotonic() + 1e-6 * (150 + number)
                    while monotonic() < end:
                        pass
                sum(range(1000))
            except Overdue:
                pytest.fail("raised outside of its block")

    by_any(test)


def test_jumps_that_no_handler_covers_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python compiles loops from 3.12 on; what does nothing but jump is ended all the same."""

    def every_jump(code: CodeType) -> frozenset[int]:
        return frozenset(i.offset for i in Bytecode(code) if "JUMP_BACKWARD" in i.opname)

    def call() -> None:
        while True:
            monotonic()

    monkeypatch.setattr(exception_points, "_loose_jumps", every_jump)
    assert bounded(call, 0.05).ended
    begin = monotonic()
    assert bounded(spin, 0.05).ended and monotonic() - begin >= deadline.GRACE_SECONDS


def test_a_solver_that_looks_at_no_signals_is_cancelled() -> None:
    import z3

    x, y, z = z3.Ints("x y z")
    solver = z3.Solver()
    solver.add(x**3 + y**3 == z**3, x > 1, y > 1, z > 1)

    def ask() -> None:
        with cancel_at_deadline(z3.main_ctx().interrupt):
            solver.check()

    assert bounded(ask, 0.2).ended
    with cancel_at_deadline(lambda: pytest.fail("there is no deadline")):
        pass
    with DeadlineBlock(monotonic() + SOON), cancel_at_deadline(lambda: pytest.fail("it was left in time")):
        pass
    time.sleep(2 * SOON)


def test_a_block_that_was_never_left_is_dropped() -> None:
    """Its function has ended: what comes to nobody would be raised anywhere."""

    def never_left() -> None:
        DeadlineBlock(monotonic() + SOON).__enter__()

    def test() -> None:
        with DeadlineBlock(monotonic() + HANG) as outer:
            never_left()
            time.sleep(2 * SOON)
        with DeadlineBlock(monotonic() + HANG) as outer:
            with DeadlineBlock(monotonic() + HANG):
                DeadlineBlock(monotonic() + SOON).__enter__()
            time.sleep(2 * SOON)
        assert not outer.ended and not deadline._get_timer().open
        with ExitStack() as stack:  # it is left by its stack, not by the function that enters it
            block = stack.enter_context(DeadlineBlock(monotonic() + SOON))
            spin()
        assert block.ended

    by_any(test)
    never_left()
    time.sleep(2 * SOON)
    assert not deadline._main_thread_timer.open and signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_a_deadline_that_comes_while_its_block_is_left_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    remove, late = deadline._ThreadTimer.remove, [Overdue, Overdue]

    def interrupted(self: Any, block: DeadlineBlock) -> None:
        remove(self, block)
        if late:
            raise late.pop()

    monkeypatch.setattr(deadline._ThreadTimer, "remove", interrupted)
    assert not in_thread(lambda: bounded(lambda: None)).ended and not late


def test_in_a_thread_an_operator_of_arrays_may_end_a_block() -> None:
    """After it Python does not look for exceptions until `__exit__` has begun."""
    matrix = np.ones((300, 300))

    def test() -> bool:
        for _ in range(20):
            with DeadlineBlock(monotonic() + 2e-4):
                matrix @ matrix
        return True

    assert in_thread(test)
    assert in_thread(lambda: bounded(lambda: [None for _ in count() if (matrix @ matrix).size], 0.01)).ended
