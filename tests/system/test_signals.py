"""Ctrl-C, SIGTERM and SIGHUP at chosen moments, and at random ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

import tensaurus
from tensaurus.system import signals
from tensaurus.system.signals import (
    INTERRUPT_MESSAGE,
    Interruptible,
    keep_best_on_interrupt,
    keep_nothing_on_interrupt,
)

SOURCE = Path(tensaurus.__file__).parents[1]
TABLES = Path(__file__).parents[2] / "bench"

START = """
import gc, os, signal, sys, time, weakref
from tensaurus.system import signals
from tensaurus.system.signals import Interruptible, keep_best_on_interrupt

def interrupt(number=signal.SIGINT):
    os.kill(os.getpid(), number)
    for _ in range(10):  # handlers run between two instructions
        pass

class Thing:
    pass

signals.install_handlers()
"""


def run(code: str, *, ignored: int | None = None, tmpdir: Path | None = None) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a process that runs the code."""
    place = {} if tmpdir is None else {"TMPDIR": str(tmpdir)}

    def ignore() -> None:
        if ignored is not None:
            signal.signal(ignored, signal.SIG_IGN)

    done = subprocess.run(
        [sys.executable, "-c", START + code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **place, "PYTHONPATH": str(SOURCE)},
        preexec_fn=ignore,
    )
    return done.returncode, done.stdout, done.stderr


LOST = {
    "a finalizer": """
class Final:
    def __del__(self):
        interrupt()
def lose():
    Final()
""",
    "a weak reference's callback": """
def lose():
    thing = Thing()
    kept.append(weakref.ref(thing, lambda _: interrupt()))
kept = []
""",
    "a callback of the collector": """
def lose():
    def seen(phase, info):
        gc.callbacks.remove(seen)
        interrupt()
    gc.callbacks.append(seen)
    gc.collect()
""",
}


@pytest.mark.parametrize("place", LOST)
def test_an_interrupt_that_is_lost_comes_again(place: str) -> None:
    code = """
with keep_best_on_interrupt():
    try:
        with Interruptible():
            lose()
            time.sleep(30)
    except KeyboardInterrupt:
        print("kept")
"""
    assert run(LOST[place] + code) == (0, "kept\n", INTERRUPT_MESSAGE + "\n")


@pytest.mark.parametrize("place", LOST)
def test_an_interrupt_ends_the_process_wherever_it_arrives(place: str) -> None:
    assert run(LOST[place] + "lose(); time.sleep(30)") == (130, "", "interrupted\n")


def test_an_interrupt_that_another_error_hides_counts() -> None:
    code = """
with keep_best_on_interrupt():
    try:
        with Interruptible():
            try:
                interrupt()
            except KeyboardInterrupt:
                raise ImportError("as an extension module does") from None
    except KeyboardInterrupt:
        print("kept")
"""
    assert run(code) == (0, "kept\n", INTERRUPT_MESSAGE + "\n")


BOUNDED = """
from time import monotonic
from tensaurus.system.deadline import DeadlineBlock
with keep_best_on_interrupt():
    try:
        with Interruptible():
            with DeadlineBlock(monotonic() + {first}) as block:
                {work}
            print("ended", block.ended, flush=True)
            time.sleep(30)
    except KeyboardInterrupt:
        print("kept")
"""


def test_an_interrupt_in_a_block_that_has_a_deadline_is_an_interrupt() -> None:
    assert run(BOUNDED.format(first=20, work="interrupt()")) == (0, "kept\n", INTERRUPT_MESSAGE + "\n")


def test_an_interrupt_comes_through_after_a_block_was_ended() -> None:
    """Also where it comes while the block is left."""
    late = "signal.setitimer(signal.ITIMER_VIRTUAL, 0.3)"
    code = f"signal.signal(signal.SIGVTALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))\n{late}"
    work = "while True: pass"
    waiting = BOUNDED.format(first=0.1, work=work).replace("time.sleep(30)", "while True: pass")
    assert run(code + waiting) == (0, "ended True\nkept\n", INTERRUPT_MESSAGE + "\n")
    together = "interrupt(); signal.setitimer(signal.ITIMER_REAL, 1e-6); time.sleep(30)"
    assert run(BOUNDED.format(first=20, work=together)) == (0, "kept\n", INTERRUPT_MESSAGE + "\n")


@pytest.mark.parametrize(
    ("place", "order"), [("add", "work(), interrupt()"), ("remove", "interrupt(), work()")]
)
def test_an_interrupt_waits_until_a_block_is_entered_or_left(place: str, order: str) -> None:
    """Else the block would stay open, and end what comes after it."""
    code = f"""
from time import monotonic
from tensaurus.system import deadline
change = deadline._SignalTimer.{place}
def interrupted(self, block):
    deadline._SignalTimer.{place} = change
    wrapped(lambda: change(self, block))
names = {{"interrupt": interrupt, "__name__": "tensaurus.system.deadline"}}
wrapped = eval("lambda work: ({order})", names)
deadline._SignalTimer.{place} = interrupted
with keep_best_on_interrupt():
    try:
        with Interruptible():
            with deadline.DeadlineBlock(monotonic() + 0.2):
                pass
            time.sleep(30)
    except KeyboardInterrupt:
        print("kept", deadline._main_thread_timer.open)
    time.sleep(0.4)
"""
    assert run(code) == (0, "kept []\n", INTERRUPT_MESSAGE + "\n")


def test_after_an_enclosed_part_the_rest_is_interruptible() -> None:
    code = """
with keep_best_on_interrupt():
    try:
        with Interruptible():
            with Interruptible():
                pass
            interrupt()
            print("is not reached")
    except KeyboardInterrupt:
        print("kept")
"""
    assert run(code) == (0, "kept\n", INTERRUPT_MESSAGE + "\n")
    code = """
with keep_best_on_interrupt():
    try:
        with Interruptible():
            try:
                with Interruptible():
                    interrupt()
            except KeyboardInterrupt:
                print("ended")
            raise KeyboardInterrupt  # as who encloses it does
    except KeyboardInterrupt:
        print("kept")
    try:
        with Interruptible():
            print("is not reached")
    except KeyboardInterrupt:
        print("waited")
"""
    assert run(code) == (0, "ended\nkept\nwaited\n", INTERRUPT_MESSAGE + "\n")


def test_between_the_parts_an_interrupt_waits() -> None:
    code = """
with keep_best_on_interrupt():
    interrupt()
    print("goes on")
    try:
        with Interruptible():
            print("is not reached")
    except KeyboardInterrupt:
        print("kept")
"""
    assert run(code) == (0, "goes on\nkept\n", INTERRUPT_MESSAGE + "\n")


def test_a_second_interrupt_gives_up() -> None:
    status, said, errors = run(
        "with keep_best_on_interrupt(words='interrupted: nothing was written'):\n"
        "    interrupt(); interrupt(); print('no')"
    )
    assert (status, said) == (130, "")
    assert errors.splitlines() == [INTERRUPT_MESSAGE, "interrupted: nothing was written"]


def test_the_outer_block_keeps_from_the_inner_one_on() -> None:
    code = """
with keep_best_on_interrupt(armed=False):
    with keep_best_on_interrupt():
        pass
    interrupt()
    print("goes on", signals.was_interrupt_announced())
interrupt()
"""
    assert run(code) == (130, "goes on True\n", f"{INTERRUPT_MESSAGE}\ninterrupted\n")
    assert run("with keep_best_on_interrupt(armed=False):\n    interrupt()") == (130, "", "interrupted\n")


def test_work_that_is_a_part_of_other_work_is_not_kept() -> None:
    code = (
        "from tensaurus.system.signals import keep_nothing_on_interrupt\n"
        "with keep_nothing_on_interrupt(), keep_best_on_interrupt():\n    interrupt()"
    )
    assert run(code) == (130, "", "interrupted\n")


@pytest.mark.parametrize("which", ["ignore_interrupts", "ignore_signals"])
def test_what_is_being_written_is_not_interrupted(which: str) -> None:
    """Not even while the interpreter ends."""
    code = f"""
import atexit
class Final:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
signals.{which}()
interrupt()
atexit.register(interrupt)
signals.kept = Final()
"""
    assert run(code) == (0, "", "")


@pytest.mark.parametrize(("number", "status", "line"), [(15, 143, "terminated"), (1, 129, "hung up")])
def test_termination_is_in_order(number: int, status: int, line: str, tmp_path: Path) -> None:
    """Children are ended, files removed, even those that are being written without O_TMPFILE."""
    out = tmp_path / "out"
    out.mkdir()
    code = f"""
import subprocess
from pathlib import Path
from tensaurus.system import cleanups, files, scratch
child = subprocess.Popen(["sleep", "60"])
cleanups.register_child(child.pid)
print(child.pid, flush=True)
files._open_unnamed_file = lambda folder: None
with scratch.temporary_folder() as folder, files.replace_file({str(out / "file")!r}) as beside:
    (folder / "file").write_text("x")
    beside.write_text("half")
    assert len(os.listdir({str(out)!r})) == 1
    interrupt({number})
"""
    ended, said, errors = run(code, tmpdir=tmp_path)
    assert (ended, errors) == (status, f"{line}\n")
    assert list(tmp_path.iterdir()) == [out] and list(out.iterdir()) == []
    assert not Path(f"/proc/{said.strip()}").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_what_was_ignored_stays_ignored(number: signal.Signals) -> None:
    """As under nohup."""
    assert run(f"interrupt({int(number)}); print('goes on')", ignored=number) == (0, "goes on\n", "")


def test_without_the_command_line_an_interrupt_is_an_exception() -> None:
    """And the handler is Python's again afterwards."""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with keep_best_on_interrupt():
        with pytest.raises(KeyboardInterrupt), Interruptible():
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(5)
        with pytest.raises(KeyboardInterrupt):  # the second
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(5)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with keep_nothing_on_interrupt(), keep_best_on_interrupt(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(5)
    assert not signals._state.is_interrupted and not signals._state.keep_depth


def test_other_threads_are_not_interrupted() -> None:
    found: list[str] = []

    def work() -> None:
        with keep_best_on_interrupt(), Interruptible():
            found.append("done")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == ["done"] and not signals._state.keep_depth


def test_the_solver_leaves_the_handler_of_interrupts() -> None:
    """CP-SAT would take it for itself, and leave the action that kills."""
    code = """
from tensaurus.egraph.extract.problem import Problem
from tensaurus.egraph.extract.exact import solve
def caught():
    line = next(l for l in open("/proc/self/status") if l.startswith("SigCgt"))
    return int(line.split()[1], 16) >> 1 & 1
from tensaurus.egraph.extract.cpsat import CpSat
solver = CpSat(1, 0)
model = solver._cp.CpModel()
model.maximize(model.new_bool_var(""))
solver._solver.solve(model)
print(caught())
"""
    assert run(code)[:2] == (0, "1\n")


@pytest.mark.parametrize("command", ["verify", "explain", "bench", "zoo", "optimize"])
def test_an_interrupt_during_the_imports_is_one_line(command: str) -> None:
    """At every module that is imported by itself."""
    code = f"""
import builtins
real, count = builtins.__import__, 0
def imported(name, *rest):
    global count
    if name.startswith(("tensaurus", "typer", "numpy")):
        count += 1
        if count == 5:
            interrupt()
    return real(name, *rest)
builtins.__import__ = imported
sys.argv[1:] = [{command!r}, "--help"]
from tensaurus.__main__ import main
main()
"""
    assert run(code) == (130, "", "interrupted\n")


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = spec_from_file_location("bench_signals", TABLES / "signals.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.nightly
@pytest.mark.measured
def test_signals_at_random_moments(bench: ModuleType, tmp_path: Path) -> None:
    made = bench.Bench(tmp_path, Random(1))
    made.prepare()
    runs = [run for kind in bench.SIGNALS for run in bench.signalled(made, kind, 2)]
    assert Counter(run.signal for run in runs) == dict.fromkeys(bench.SIGNALS, 2)
    assert [(run.signal, run.phase, run.wrong, run.said) for run in runs if run.wrong] == []
    assert bench.table(runs).count("\n| SIG") >= 3
