"""Signals at random moments of `tensaurus optimize`: what they leave, and what is said of it.

    python bench/signals.py [--runs 100] [--seed 0] [--jobs 2]

Each run works on one small model, with an empty database or one that knows it, and gets SIGINT, SIGTERM or
SIGKILL at a random moment of one of its phases, from the first line of ours to the end of the interpreter.
Checked after each: the exit status; one line that says what became of the work; the output is the old one,
whole, or absent; the database is whole; no process, no file beside the output and no scratch folder is left,
after SIGKILL none when the next process has begun.  The counts go to bench/tables/signals.md.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tensaurus.graph.onnx.kernel_libraries import find_libraries, library_path
from tensaurus.optimizer.result.session import session
from tensaurus.optimizer.result.summary import METADATA_KEY
from tensaurus.system.files import replace_file
from tensaurus.system.scratch import PREFIX

TABLE = Path(__file__).parent / "tables" / "signals.md"
FEW = ("--search", "saturation", "--time-limit", "6", "--nodes", "300", "--tuning", "0.5")
OLD = b"what was there before"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
OUTCOMES = {0: "done", 130: "interrupted", 143: "terminated", -9: "killed"}
ALLOWED = {signal.SIGINT: (0, 130), signal.SIGTERM: (0, 143), signal.SIGKILL: (0, -9)}
PHASES = ("importing", "reading", "running", "searching", "measuring", "checking", "ending")


def model() -> onnx.ModelProto:
    """The sum of products of one input with two matrices: one product is faster, so there is one to check."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((256, 256)).astype(np.float32) / 16, name)
        for name in ("v", "w")
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"]),
        helper.make_node("MatMul", ["x", "w"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (64, 256)) for name in ("x", "y"))
    graph = helper.make_graph(nodes, "signals", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def outputs(path: Path) -> np.ndarray:
    """Of a model's file, with the library beside it where it has kernels."""
    feed = np.random.default_rng(1).standard_normal((64, 256)).astype(np.float32)
    return np.asarray(session(path).run(None, {"x": feed})[0])


@dataclass
class Run:
    """What one run was, and what is wrong with what it left."""

    signal: signal.Signals
    warm: bool
    status: int
    phase: str
    said: list[str]
    wrong: list[str] = field(default_factory=list)


@dataclass
class Bench:
    """A folder with a model, a database that knows it, and the times of a run that nobody disturbs."""

    folder: Path
    spare: random.Random
    length: dict[tuple[bool, str], float] = field(default_factory=dict)  # seconds of each phase

    def prepare(self) -> None:
        onnx.save_model(model(), self.folder / "model.onnx")
        for warm in (False, True):  # the first fills the database of the second
            process = self._start(self.folder / "warm.sqlite", self.folder / "out")
            self._await_handlers(process)
            since, phase = time.monotonic(), PHASES[0]
            while process.poll() is None:
                time.sleep(0.001)
                if (now := self._phase()) != phase:
                    self.length[warm, phase] = time.monotonic() - since
                    since, phase = time.monotonic(), now
            self.length[warm, phase] = time.monotonic() - since
            if process.returncode != 0 or phase != PHASES[-1]:
                raise SystemExit("the model cannot be optimized")
            shutil.rmtree(self.folder / "out")

    def run(self, kind: signal.Signals, warm: bool, phase: str, share: float) -> Run:
        """One run with the signal in this phase, after this share of the time that it should take."""
        out, database = self.folder / "out", self.folder / "run.sqlite"
        out.mkdir()
        old = self.spare.random() < 0.5
        if old:
            (out / "fast.onnx").write_bytes(OLD)
        for suffix in ("", "-wal", "-shm"):
            Path(f"{database}{suffix}").unlink(missing_ok=True)
        if warm:
            shutil.copy(self.folder / "warm.sqlite", database)
        process = self._start(database, out)
        self._await_handlers(process)
        while process.poll() is None and PHASES.index(self._phase()) < PHASES.index(phase):
            time.sleep(0.003)
        end = time.monotonic() + share * self.length.get((warm, phase), 0.0)
        children: set[int] = set()
        while process.poll() is None and time.monotonic() < end:
            children |= descendants(process.pid)
            time.sleep(min(0.02, max(0.0, end - time.monotonic())))
        children |= descendants(process.pid)
        met = self._phase()
        process.send_signal(kind)
        status = process.wait(120)
        said = (self.folder / "stderr").read_text(errors="replace").splitlines()
        found = Run(kind, warm, status, met, said)
        found.wrong += self._faults(found, out / "fast.onnx", old, database, children)
        shutil.rmtree(out)
        return found

    def _phase(self) -> str:
        """What the process said last."""
        if (self.folder / "stdout").stat().st_size:
            return PHASES[-1]
        lines = (self.folder / "stderr").read_text(errors="replace").splitlines()
        words = [re.sub(r"^\[\d/\d\] ", "", line).partition(" ")[0].rstrip(":") for line in lines]
        return next((word for word in reversed(words) if word in PHASES), PHASES[0])

    def _start(self, database: Path, out: Path) -> subprocess.Popen[str]:
        out.mkdir(exist_ok=True)
        (self.folder / "tmp").mkdir(exist_ok=True)
        words = ["optimize", self.folder / "model.onnx", "-o", out / "fast.onnx", "--db", database]
        return subprocess.Popen(
            [sys.executable, "-m", "tensaurus", *map(str, words), *FEW],
            stdin=subprocess.DEVNULL,
            stdout=(self.folder / "stdout").open("w"),
            stderr=(self.folder / "stderr").open("w"),
            text=True,
            env={**os.environ, "TMPDIR": str(self.folder / "tmp"), "PYTHONUNBUFFERED": "1"},
        )

    def _await_handlers(self, process: subprocess.Popen[str]) -> None:
        """Until the process handles SIGTERM: what comes before is Python's own start."""
        mask = 1 << (signal.SIGTERM - 1)
        while process.poll() is None:
            status = Path(f"/proc/{process.pid}/status").read_text()
            caught = re.search(r"SigCgt:\s*(\w+)", status)
            if caught and int(caught[1], 16) & mask:
                return
            time.sleep(0.001)

    def _faults(self, run: Run, out: Path, old: bool, database: Path, children: set[int]) -> Iterator[str]:
        if run.status not in ALLOWED[run.signal]:
            yield f"status {run.status}"
        lines = [line for line in run.said if re.match(r"interrupted|terminated|hung up|error", line)]
        expected = {130: r"interrupted(: nothing was written)?", 143: "terminated"}.get(run.status)
        if expected is not None and (len(lines) != 1 or not re.fullmatch(expected, lines[0])):
            yield f"said {lines}"
        if run.status == 0 and (len(lines) > 1 or lines and "best so far" not in lines[0]):
            yield f"said {lines}"
        if strange := [line for line in run.said if "Traceback" in line or "ignored" in line]:
            yield f"said {strange}"
        yield from self._output(run, out, old)
        new = out.exists() and out.read_bytes() != OLD
        kept = {out.name, *(library.name for library in (find_libraries(out) if new else ()))}
        if run.signal == signal.SIGKILL:  # between the library, which is written first, and the model
            kept.add(library_path(out).name)
        if others := sorted({p.name for p in out.parent.iterdir()} - kept):
            yield f"left {len(others)} files beside the output"
        if database.exists():
            with sqlite3.connect(database) as connection:
                if connection.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
                    yield "the database is damaged"
            connection.close()
        end = time.monotonic() + 3  # a child that has just begun looks for its parent when Python is up
        while (left := [pid for pid in children if alive(pid)]) and time.monotonic() < end:
            time.sleep(0.02)
        if left:
            yield f"{len(left)} processes live on"
        if run.signal == signal.SIGKILL:  # the next process tidies up
            code = "from tensaurus.system.scratch import process_folder; process_folder()"
            env = {**os.environ, "TMPDIR": str(self.folder / "tmp")}
            subprocess.run([sys.executable, "-c", code], env=env, check=True)
        if scratch := list((self.folder / "tmp").glob(f"{PREFIX}*")):
            yield "left a scratch folder"
            for path in scratch:
                shutil.rmtree(path, ignore_errors=True)

    def _output(self, run: Run, out: Path, old: bool) -> Iterator[str]:
        found = out.read_bytes() if out.exists() else None
        if found is None or found == OLD:
            if (found is not None) != old:
                yield "the old output is gone"
            if run.status == 0:
                yield "no output was written"
            return
        if run.status == 130:
            yield "an output was written"
        written = onnx.load_from_string(found)
        onnx.checker.check_model(written)
        if METADATA_KEY not in {entry.key for entry in written.metadata_props}:
            yield "the output has no summary"
        expected = outputs(self.folder / "model.onnx")
        if not np.allclose(outputs(out), expected, rtol=1e-4, atol=1e-4):
            yield "the output is wrong"


def descendants(pid: int) -> set[int]:
    """The process's children, and theirs."""
    found: set[int] = set()
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = {int(word) for word in file.read_text().split()}
        except OSError:
            continue
        found |= children.union(*map(descendants, children))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def table(runs: Sequence[Run]) -> str:
    """How the runs ended, by signal and phase."""
    each = max(Counter(run.signal for run in runs).values())
    lines = [
        "# Signals at random moments",
        "",
        f"`tensaurus optimize` on a small model, {each} runs with each signal, half of them with an empty",
        "database. A run is wrong if its status, what it said, its output, the database, its children, its",
        "scratch folder or a file beside the output is not as promised. `bench/signals.py` makes the table.",
        "",
        "| Signal | During | Runs | " + " | ".join(OUTCOMES.values()) + " | Wrong |",
        "|---|---|--:|" + "--:|" * (len(OUTCOMES) + 1),
    ]
    for kind, phase in product(SIGNALS, PHASES):
        some = [run for run in runs if run.signal == kind and run.phase == phase]
        if some:
            ends = Counter(run.status for run in some)
            counts = " | ".join(str(ends.get(status, 0) or "") for status in OUTCOMES)
            wrong = sum(bool(run.wrong) for run in some)
            lines.append(f"| {kind.name} | {phase} | {len(some)} | {counts} | {wrong} |")
    return "\n".join(lines) + "\n"


def signalled(bench: Bench, kind: signal.Signals, runs: int) -> Iterator[Run]:
    """So many runs with the signal, at random moments of all phases."""
    first = bench.spare.randrange(len(PHASES))
    for number in range(first, first + runs):
        phase = PHASES[number % len(PHASES)]
        yield bench.run(kind, number % 2 == 1, phase, bench.spare.random())


def main() -> None:
    parser = argparse.ArgumentParser(description="Signals at random moments.")
    parser.add_argument("--runs", type=int, default=100, help="with each signal")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="signals at a time")
    options = parser.parse_args()

    def tried(kind: signal.Signals) -> list[Run]:
        found = []
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(Path(folder), random.Random(options.seed + kind))
            bench.prepare()
            for run in signalled(bench, kind, options.runs):
                found.append(run)
                wrong = f"{'; '.join(run.wrong)} {run.said}" if run.wrong else ""
                print(f"{kind.name} warm={run.warm} {run.phase}: {run.status} {wrong}", flush=True)
        return found

    with ThreadPoolExecutor(options.jobs) as pool:
        runs = [run for found in pool.map(tried, SIGNALS) for run in found]
    text = table(runs)
    print(text)
    with replace_file(TABLE) as beside:
        beside.write_text(text, encoding="utf-8")
    sys.exit(any(run.wrong for run in runs))


if __name__ == "__main__":
    main()
