"""Signals at random moments of `tensaurus optimize`: what they leave, and what is said of it.

    python bench/signals.py [--runs 100] [--seed 0]

Each run works on one small model, with an empty database or one that knows it, and gets SIGINT, SIGTERM or
SIGKILL at a moment drawn between the first line of ours and the end of a run that nobody disturbs (some
later, some twice).  Checked after each: the exit status; one line that says what became of the work; the
output is the old one, whole, or absent; the database is whole; no process, no file beside the output and no
scratch folder is left, after SIGKILL none when the next process has begun.  The counts go to
bench/tables/signals.md.
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
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tensaurus import verify
from tensaurus.files import replacing
from tensaurus.report.summary import METADATA_KEY

TABLE = Path(__file__).parent / "tables" / "signals.md"
OLD = b"what was there before"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
OUTCOMES = {0: "done", 130: "interrupted", 143: "terminated", -9: "killed"}
ALLOWED = {signal.SIGINT: (0, 130), signal.SIGTERM: (0, 143), signal.SIGKILL: (0, -9)}
PHASES = ("reading", "trying", "searching", "measuring", "checking", "wrote")
TIME_LIMIT = 1.0


def model() -> onnx.ModelProto:
    """Two convolutions of one input and their sum, beside products that can be merged."""
    rng = np.random.default_rng(0)
    shapes = {"w": (16, 8, 3, 3), "v": (16, 8, 3, 3), "p": (256, 64), "q": (256, 64)}
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 8, name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["x", "v"], ["b"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("Relu", ["c"], ["y"]),
        helper.make_node("MatMul", ["t", "p"], ["d"]),
        helper.make_node("MatMul", ["t", "q"], ["e"]),
        helper.make_node("Add", ["d", "e"], ["z"]),
    ]
    sizes = {"x": (1, 8, 24, 24), "t": (32, 256), "y": (1, 16, 24, 24), "z": (32, 64)}
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in sizes.items()
    }
    graph = helper.make_graph(
        nodes, "signals", [values["x"], values["t"]], [values["y"], values["z"]], weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


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
    length: dict[bool, float] = field(default_factory=dict)

    def prepare(self) -> None:
        onnx.save_model(model(), self.folder / "model.onnx")
        for warm in (False, True):  # the first fills the database of the second
            began = time.monotonic()
            status, _ = self._finish(self._start(self.folder / "warm.sqlite", self.folder / "out"))
            if status != 0:
                raise SystemExit("the model cannot be optimized")
            self.length[warm] = time.monotonic() - began
        shutil.rmtree(self.folder / "out")

    def run(self, kind: signal.Signals, warm: bool, share: float) -> Run:
        """One run with the signal after this share of an undisturbed run's time."""
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
        end = time.monotonic() + share * self.length[warm]
        children: set[int] = set()
        while process.poll() is None and time.monotonic() < end:
            children |= descendants(process.pid)
            time.sleep(0.002 if end - time.monotonic() < 0.02 else 0.01)
        children |= descendants(process.pid)
        process.send_signal(kind)
        status, said = self._finish(process)
        phases = [line for line in said if line.split(" ")[0] in PHASES]
        found = Run(kind, warm, status, phases[-1] if phases else "importing", said)
        found.wrong += self._faults(found, out / "fast.onnx", old, database, children)
        shutil.rmtree(out)
        return found

    def _start(self, database: Path, out: Path) -> subprocess.Popen[str]:
        out.mkdir(exist_ok=True)
        (self.folder / "tmp").mkdir(exist_ok=True)
        words = ["optimize", self.folder / "model.onnx", "-o", out / "fast.onnx", "--db", database]
        return subprocess.Popen(
            [sys.executable, "-m", "tensaurus", *map(str, words), "--time-limit", str(TIME_LIMIT)],
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

    def _finish(self, process: subprocess.Popen[str]) -> tuple[int, list[str]]:
        status = process.wait(120)
        return status, (self.folder / "stderr").read_text(errors="replace").splitlines()

    def _faults(
        self, run: Run, out: Path, old: bool, database: Path, children: set[int]
    ) -> Iterator[str]:
        if run.status not in ALLOWED[run.signal]:
            yield f"status {run.status}"
        if run.signal == signal.SIGINT and run.status == 0 and not self._whole(run):
            pass  # the signal came after the end, or while the output was written
        lines = [line for line in run.said if re.match(r"interrupted|terminated|hung up|error", line)]
        expected = {130: r"interrupted(: nothing was written)?", 143: "terminated"}.get(run.status)
        if expected is not None and (len(lines) != 1 or not re.fullmatch(expected, lines[0])):
            yield f"said {lines}"
        if run.status == 0 and (len(lines) > 1 or lines and "best so far" not in lines[0]):
            yield f"said {lines}"
        if strange := [line for line in run.said if "Traceback" in line or "ignored" in line]:
            yield f"said {strange}"
        yield from self._output(run, out, old)
        if others := sorted({p.name for p in out.parent.iterdir()} - {out.name}):
            yield f"left {len(others)} files beside the output"
        if database.exists():
            with sqlite3.connect(database) as connection:
                if connection.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
                    yield "the database is damaged"
            connection.close()
        end = time.monotonic() + 1
        while (left := [pid for pid in children if alive(pid)]) and time.monotonic() < end:
            time.sleep(0.02)
        if left:
            yield f"{len(left)} processes live on"
        if run.signal == signal.SIGKILL:  # the next process tidies up
            code = "from tensaurus.scratch import folder; folder()"
            env = {**os.environ, "TMPDIR": str(self.folder / "tmp")}
            subprocess.run([sys.executable, "-c", code], env=env, check=True)
        if scratch := list((self.folder / "tmp").iterdir()):
            yield f"left {len(scratch)} temporary files"
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
        if not verify(self.folder / "model.onnx", out, kinds=("random",)).passed:
            yield "the output is wrong"

    def _whole(self, run: Run) -> bool:
        return any("best so far" in line for line in run.said)


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
    lines = [
        "# Signals at random moments",
        "",
        f"`python bench/signals.py --runs {max(Counter(r.signal for r in runs).values())}`: `tensaurus optimize` on a",
        "small model, half of the runs with an empty database. A run is wrong if its status, what it said, its",
        "output, the database, its children, its scratch folder or a file beside the output is not as promised.",
        "",
        "| Signal | During | Runs | " + " | ".join(OUTCOMES.values()) + " | Wrong |",
        "|---|---|--:|" + "--:|" * (len(OUTCOMES) + 1),
    ]
    order = ["importing", *PHASES]
    for kind, phase in product(SIGNALS, order):
        some = [run for run in runs if run.signal == kind and run.phase.split(" ")[0] == phase]
        if some:
            ends = Counter(run.status for run in some)
            counts = " | ".join(str(ends.get(status, 0) or "") for status in OUTCOMES)
            wrong = sum(bool(run.wrong) for run in some)
            lines.append(f"| {kind.name} | {some[0].phase} | {len(some)} | {counts} | {wrong} |")
    return "\n".join(lines) + "\n"


def signalled(
    folder: Path, runs: int, seed: int, kinds: Sequence[signal.Signals] = SIGNALS
) -> Iterator[Run]:
    """So many runs with each signal, at moments drawn evenly over a run and a little beyond."""
    bench = Bench(folder, random.Random(seed))
    bench.prepare()
    for kind in kinds:
        for number in range(runs):
            share = 1.05 * (number + bench.spare.random()) / runs
            yield bench.run(kind, number % 2 == 1, share)


def main() -> None:
    parser = argparse.ArgumentParser(description="Signals at random moments.")
    parser.add_argument("--runs", type=int, default=100, help="with each signal")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--signals", default="SIGINT,SIGTERM,SIGKILL")
    parser.add_argument("--dry", action="store_true", help="write no table")
    options = parser.parse_args()
    kinds = [signal.Signals[name] for name in options.signals.split(",")]
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as folder:
        for run in signalled(Path(folder), options.runs, options.seed, kinds):
            runs.append(run)
            marks = "; ".join(run.wrong)
            said = [line for line in run.said if line not in ("", run.phase)] if run.wrong else ""
            print(f"{run.signal.name} warm={run.warm} {run.phase}: {run.status} {marks} {said}", flush=True)
    text = table(runs)
    print(text)
    if not options.dry:
        with replacing(TABLE) as beside:
            beside.write_text(text, encoding="utf-8")
    sys.exit(any(run.wrong for run in runs))


if __name__ == "__main__":
    main()
