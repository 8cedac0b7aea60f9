"""Measuring: real runtimes in real processes; no assertion on absolute times."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from _thread import interrupt_main
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from tensaurus.check.files.verdict import verify
from tensaurus.graph.onnx.build import Build
from tensaurus.optimizer.result.session import session
from tensaurus.runtimes import backends
from tensaurus.runtimes.measure import machine_peaks
from tensaurus.runtimes.measure.database import Database
from tensaurus.runtimes.measure.machine import Machine, busy_seconds, default_threads, usable_threads
from tensaurus.runtimes.measure.machine_peaks import Peaks, measure_exchange
from tensaurus.runtimes.measure.measure import (
    Contender,
    Stopwatch,
    Timing,
    compare_timings,
    time_contenders,
    warm_up,
)
from tensaurus.runtimes.measure.worker import Round, Worker, WorkerError
from tensaurus.runtimes.price import roofline
from tensaurus.runtimes.price.roofline import Roofline
from tensaurus.system import child, cleanups

RANDOM = np.random.default_rng(3)


def info(name: str, shape: list[Any] | None = None, kind: int = TensorProto.FLOAT) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: list[NodeProto],
    inputs: list[ValueInfoProto],
    outputs: list[ValueInfoProto],
    weights: dict[str, np.ndarray] | None = None,
) -> Build:
    tensors = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, tensors)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return Build(proto.SerializeToString())


def products(count: int, size: int = 128) -> Build:
    weight = RANDOM.standard_normal((size, size)).astype(np.float32) / size**0.5
    names = ["x", *(f"x{i}" for i in range(1, count)), "y"]
    nodes = [helper.make_node("MatMul", [a, "w"], [b]) for a, b in pairwise(names)]
    return model(nodes, [info("x", [size, size])], [info("y")], {"w": weight})


ONE, TEN = products(1), products(10)
FEEDS = {"x": RANDOM.standard_normal((128, 128)).astype(np.float32)}

ENDLESS = model(
    [
        helper.make_node(
            "Loop",
            ["", "true", "x"],
            ["y"],
            body=helper.make_graph(
                [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Neg", ["a"], ["b"])],
                "body",
                [info("i", [], TensorProto.INT64), info("go", [], TensorProto.BOOL), info("a", [128, 128])],
                [info("on", [], TensorProto.BOOL), info("b", [128, 128])],
            ),
        )
    ],
    [info("x", [128, 128])],
    [info("y", [128, 128])],
    {"true": np.array(True)},
)


def gone(pid: int) -> bool:
    """Whether the process has ended (a zombie that nobody reaped has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def soon(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_no_more_threads_compute_than_there_are_processors(small_model: Path) -> None:
    """64 threads on two cores spin for minutes."""
    most = default_threads()
    assert usable_threads() == usable_threads(None) == usable_threads(most) == most
    assert usable_threads(1) == 1
    with pytest.warns(UserWarning, match=f"using {most} threads, not 1000"):
        assert Machine.here(threads=1000).threads == most
    with pytest.warns(UserWarning, match="threads, not 1000"):
        run = session(small_model, threads=1000).run
    assert run(None, {"x": np.ones((1, 3), np.float32)})[0].shape == (1, 2)
    with pytest.warns(UserWarning, match="threads, not 1000"):
        assert verify(small_model, small_model, shapes={"x": (1, 3)}, threads=1000).passed


def test_machine() -> None:
    machine = Machine.here()
    assert 1 <= machine.threads == default_threads() <= machine.cores
    assert machine.processor and "\n" not in machine.key
    assert Machine.here(threads=1).key != replace(machine, threads=2).key
    assert machine.backend_key("onnxruntime") == f"onnxruntime {backends.find('onnxruntime').version()}"
    before = busy_seconds()
    assert before is not None
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    after = busy_seconds()
    assert after is not None and after - before > 0.1


def test_a_worker_computes_and_rests() -> None:
    with Worker("onnxruntime", threads=2) as worker:
        assert worker.compile(TEN) > 0
        worker.feed(FEEDS)
        (there,) = worker.run()
        assert worker.is_alive and soon(lambda: state(worker.pid) == "T")
        sampled = worker.time(0.05)
        assert len(sampled.samples) >= 1 and all(s > 0 for s in sampled.samples) and sampled.disturbance >= 0
        (here,) = backends.find("onnxruntime").compile(TEN, threads=2).run(None, FEEDS)
        np.testing.assert_array_equal(there, here)
    assert gone(worker.pid)
    with pytest.raises(WorkerError, match="closed"):
        worker.run()


def test_refusals_leave_the_worker_alive() -> None:
    with Worker("onnxruntime", threads=1) as worker:
        with pytest.raises(WorkerError, match="no model"):
            worker.run()
        with pytest.raises(WorkerError, match="protobuf"):
            worker.compile(Build(b"junk"))
        worker.compile(ONE)
        with pytest.raises(WorkerError, match="no feeds"):
            worker.time(0.01)
        with pytest.raises(WorkerError, match="onnxruntime: "):
            worker.run()
        worker.feed(FEEDS)
        assert worker.run()[0].shape == (128, 128)
    with (
        Worker("tpu", threads=1) as worker,
        pytest.raises(WorkerError, match="unknown backend 'tpu'; installed: "),
    ):
        worker.compile(ONE)


def test_killed_while_it_computes() -> None:
    with Worker("onnxruntime", threads=1) as worker:
        worker.compile(ENDLESS)
        worker.feed(FEEDS)
        killer = threading.Timer(0.2, os.kill, (worker.pid, signal.SIGKILL))
        killer.start()
        with pytest.raises(WorkerError, match="killed by SIGKILL"):
            worker.run()
        killer.join()
        assert not worker.is_alive


def test_a_hang_ends() -> None:
    with Worker("onnxruntime", threads=1, timeout=1.0) as worker:
        worker.compile(ENDLESS)
        worker.feed(FEEDS)
        with pytest.raises(WorkerError, match="no answer within 1 s"):
            worker.run()
        assert not worker.is_alive and gone(worker.pid)


def test_compare() -> None:
    contenders = [
        Contender("one", "onnxruntime", ONE),
        Contender("ten", "onnxruntime", TEN),
        Contender("ten again", "onnxruntime", TEN),
    ]
    one, ten, again = time_contenders(contenders, FEEDS, threads=1, rounds=4, seconds=0.05)
    assert [t.name for t in (one, ten, again)] == ["one", "ten", "ten again"]
    assert all(len(t.rounds) == 4 and 0 < t.minimum <= t.median and t.spread >= 0 for t in (one, ten, again))
    assert compare_timings(ten, one).median > 2
    assert compare_timings(one, ten).median < 0.5
    assert 0.4 < compare_timings(ten, again).median < 2.5
    assert len(one.samples) > len(ten.samples)


@pytest.mark.parametrize("broken", [Build(b"junk"), ENDLESS])
def test_compare_names_the_contender_that_fails(broken: Build) -> None:
    contenders = [Contender("good", "onnxruntime", ONE), Contender("bad", "onnxruntime", broken)]
    with pytest.raises(WorkerError, match=r"^bad: onnxruntime: "):
        time_contenders(contenders, FEEDS, threads=1, rounds=1, seconds=0.01, timeout=1.0)


def test_ratio_follows_drift_of_the_machine() -> None:
    """Both get slower by half in the middle; b stays twice as fast."""
    drift = (1.0, 1.0, 1.5, 1.5, 1.5)
    a = Timing("a", tuple((2 * d, 2 * d, 9.0 * d) for d in drift), 0)
    b = Timing("b", tuple((d, d) for d in drift), 0)
    assert compare_timings(a, b).median == 2 and compare_timings(a, b).spread == 0
    assert b.spread > 0 and a.median == 3 and a.minimum == 2
    with pytest.raises(ValueError):
        compare_timings(a, Timing("b", b.rounds[:2], 0))


def test_other_processes_are_noticed() -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(default_threads())]
    try:
        contenders = [Contender("one", "onnxruntime", ONE)]
        (timing,) = time_contenders(contenders, FEEDS, threads=1, rounds=1, seconds=0.2)
        with Stopwatch("onnxruntime", threads=default_threads(), seconds=0.05) as watch:
            assert watch.measure(ONE, FEEDS) is not None
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert timing.disturbed == 1
    assert watch.disturbed == 1


def test_stopwatch() -> None:
    with Stopwatch("onnxruntime", threads=1) as watch:
        one, ten = watch.measure(ONE, FEEDS), watch.measure(TEN, FEEDS)
        assert one is not None and ten is not None and 0 < one < ten
        assert watch.measure(Build(b"junk"), FEEDS) is None
        assert watch.failure is not None and "protobuf" in watch.failure
        assert watch.measure(ONE, {}) is None
        assert watch.measure(ONE, FEEDS) is not None and watch.failure is None


def test_stopwatch_survives_hangs_and_deaths() -> None:
    with Stopwatch("onnxruntime", threads=1, timeout=1.0) as watch:
        assert watch.measure(ENDLESS, FEEDS) is None
        assert watch.failure is not None and "no answer" in watch.failure
        assert watch.measure(ONE, FEEDS) is not None
        worker = watch._worker
        assert worker is not None
        killer = threading.Timer(0.2, os.kill, (worker.pid, signal.SIGKILL))
        killer.start()
        assert watch.measure(ENDLESS, FEEDS) is None
        assert watch.failure is not None and "SIGKILL" in watch.failure
        assert watch.measure(ONE, FEEDS) is not None


SCRIPT = """
import sys, time
import numpy as np
from tensaurus.runtimes.measure.worker import Worker
from tensaurus.graph.onnx.build import Build
model = Build(open(sys.argv[1], "rb").read())
feeds = {"x": np.zeros((128, 128), np.float32)}
with Worker("onnxruntime", threads=1) as resting, Worker("onnxruntime", threads=1) as working:
    for worker in (resting, working):
        worker.compile(model)
        worker.feed(feeds)
    print(resting.pid, working.pid, flush=True)
    working.time(60)
"""


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_worker_outlives_its_parent(ending: signal.Signals, tmp_path: Path) -> None:
    assert isinstance(ONE.model, bytes)
    (tmp_path / "model.onnx").write_bytes(ONE.model)
    parent = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "model.onnx")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert parent.stdout is not None
    resting, working = map(int, parent.stdout.readline().split())
    assert soon(lambda: state(resting) == "T") and not gone(working)
    parent.send_signal(ending)
    _, errors = parent.communicate(timeout=20)
    assert soon(lambda: gone(resting) and gone(working))
    if ending == signal.SIGINT:
        assert errors.rstrip().endswith("KeyboardInterrupt")


def test_an_interrupt_while_a_worker_starts_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is started by another thread, which the interrupt does not end."""
    real = child._start_process
    started: list[int] = []

    def start(*arguments: Any) -> Any:
        interrupt_main()
        time.sleep(0.2)
        process = real(*arguments)
        started.append(process.pid)
        return process

    monkeypatch.setattr(child, "_start_process", start)
    with pytest.raises(KeyboardInterrupt):
        Worker("onnxruntime", threads=1)
    assert soon(lambda: bool(started)) and soon(lambda: gone(started[0]))
    assert started[0] not in cleanups._children


def test_an_interrupt_while_a_worker_is_asked_ends_it() -> None:
    with Worker("onnxruntime", threads=1) as worker:
        worker.compile(ONE)
        worker.feed({"x": np.zeros((128, 128), np.float32)})
        ident = threading.main_thread().ident
        assert ident is not None
        timer = threading.Timer(0.3, signal.pthread_kill, (ident, signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            worker.time(60)
        assert soon(lambda: gone(worker.pid)) and not worker.is_alive


def test_a_worker_outlives_the_thread_that_made_it() -> None:
    made: list[Worker] = []
    thread = threading.Thread(target=lambda: made.append(Worker("onnxruntime", threads=1)))
    thread.start()
    thread.join()
    with made[0] as worker:
        time.sleep(0.1)
        assert worker.compile(ONE) > 0


def _in_a_fork(queue: Any) -> None:
    with Worker("onnxruntime", threads=1) as worker:
        queue.put(worker.compile(ONE))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_processes_have_their_own_workers() -> None:
    with Worker("onnxruntime", threads=1) as mine:
        mine.compile(ONE)
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        process = context.Process(target=_in_a_fork, args=(queue,))
        process.start()
        assert queue.get(timeout=20) > 0
        process.join()
        mine.feed(FEEDS)
        assert mine.run()[0].shape == (128, 128)


def test_a_forgotten_worker_ends() -> None:
    worker = Worker("onnxruntime", threads=1)
    pid = worker.pid
    del worker
    assert soon(lambda: gone(pid))


def test_a_worker_starts_lean() -> None:
    code = (
        "import sys; import tensaurus.runtimes.measure.worker;"
        "from tensaurus.runtimes.backends import find; find('onnxruntime');"
        "print(sorted({'onnx', 'onnxruntime', 'openvino', 'ortools', 'scipy', 'z3'} & set(sys.modules)))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_an_exchange_costs_what_a_neighbours_array_takes_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread alone exchanges nothing, and noise is no gain."""
    assert measure_exchange(1) == 0.0
    copied: list[tuple[float, float]] = []

    def copy(target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
        copied.append((target[0], source[0]))
        target[...] = source + 1

    with monkeypatch.context() as patch:  # arrays of equal turns hold equal numbers
        patch.setattr(machine_peaks.np, "copyto", copy)
        assert machine_peaks._exchange_seconds(3, 1) > 0
    assert len(copied) == 3 * machine_peaks.EXCHANGES
    assert {source for _, source in copied} == {1.0 + turn for turn in range(machine_peaks.EXCHANGES)}
    for others, expected in ((3.0, 2.0 / (4 * machine_peaks.EXCHANGED_FLOATS)), (0.5, 0.0)):
        seconds = {0: 1.0, 1: others}
        monkeypatch.setattr(machine_peaks, "_exchange_seconds", lambda threads, far, s=seconds: s[far])
        assert measure_exchange(2) == expected


def test_the_roofline_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def peaks(threads: int, repeats: int) -> Peaks:
        asked.append(threads)
        return Peaks("AVX2", 4.0, 2.0, 0.5)

    monkeypatch.setattr(roofline, "measure_peaks", peaks)
    monkeypatch.setattr(roofline, "measure_last_cache", lambda threads, repeats: 0.8)
    monkeypatch.setattr(roofline, "measure_exchange", lambda threads: 3.0 * (threads - 1))
    machines = [Machine.here(threads) for threads in (1, 1, 2)]
    with Database(tmp_path / "db.sqlite") as records:
        first, again, other = (Roofline.here(records, machine) for machine in machines)
    assert asked == [1, 2] and first == again and other.cache_bytes == 2 * first.cache_bytes
    assert (first.operation, first.cached, first.streamed, first.shared) == (0.25, 0.5, 2.0, 1.25)
    assert (first.exchange, other.exchange) == (0.0, 3.0)


def test_the_roofline_is_the_larger_of_arithmetic_and_traffic() -> None:
    flat = Roofline(operation=1.0, cached=0.5, streamed=2.0, cache_bytes=10)
    assert flat.seconds(3, 4) == 3.0
    assert flat.seconds(0, 10) == 5.0
    assert flat.seconds(0, 12) == 5.0 + 4.0
    assert flat.seconds(0, 0) == 0.0


@pytest.mark.parametrize(
    ("runs", "turns"),
    [
        pytest.param([0.27, 0.24, 0.12], 2, id="two runs that fetch memory"),
        pytest.param([3.0, 2.9, 2.8], 1, id="slow: one is enough"),
        pytest.param([0.01] * 9, 1, id="several in one turn"),
    ],
)
def test_a_model_is_warmed_up_by_its_first_two_runs(runs: list[float], turns: int) -> None:
    """onnxruntime plans memory in the first run and fetches it anew in the second."""

    class Told:
        done = 0

        def compile(self, build: Build) -> None:
            """Nothing is run."""

        feed = compile

        def time(self, seconds: float) -> Round:
            self.done += 1
            samples = runs if runs[0] < seconds else [runs[self.done - 1]]
            return Round(tuple(samples), 0.0)

    worker = Told()
    warm_up(worker, None, {}, 0.05)  # type: ignore[arg-type]
    assert worker.done == turns
