"""Does any model make Tensaurus crash, hang, fill the memory, or return what is not equal?

Mutants of twelve small models go the whole way: read, checked, inlined, searched with estimated costs,
written, replayed, and compared on onnxruntime.  Each is made of a seed and its number alone.  Writes
bench/tables/fuzz.md: verdicts by kind of mutation, mutants of each model, and the faults.

    refused       one line that says why
    kept          no rewrite was found: the model comes out as it went in
    rewritten     and equal
    runtime       onnxruntime refuses the original, crashes, hangs, or fills the memory with it, or lacks a
                  kernel of the result, which is extracted by estimates here
    fault         a traceback, a crash, a hang, too much memory, or a result that is not equal

    python bench/fuzz.py [--mutants 10000] [--seed 0] [--lanes 2]
    python bench/fuzz.py --seed 0 --only 17 [--keep FOLDER]     # one mutant, in this process
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count, takewhile
from math import inf
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from differential_verdict import LACKING
from fuzz_models import seedlings
from fuzz_way import Say, Walked, close, replayed, run, same_everywhere, second_opinion, walk, walk_through
from mutations import KINDS, Mutant, mutant
from revision import name_commit
from servants import Fallen, Servant, die_with_parent

from tensaurus.system.files import replace_file

TABLE = Path(__file__).parent / "tables" / "fuzz.md"
SECONDS, MEMORY = 20.0, 2 << 30  # of one mutant, beyond what the process had before
RUNTIME_SECONDS, RUNTIME_MEMORY = 3.0, 1 << 30
AGAIN = 5  # times as long as the original the result may take
COMPARE_SECONDS = 60.0
ANSWERS = 400  # of one process, before another takes its place
VERDICTS = ("refused", "kept", "rewritten", "runtime", "fault")


@dataclass(frozen=True)
class Report:
    """What came of one mutant, and how."""

    number: int
    kind: str
    model: str
    recipe: str
    verdict: str
    detail: str
    phase: str = ""
    seconds: float = 0.0


class Lane:
    """One mutant after the other, each through its own two processes."""

    def __init__(self, folder: Path, seed: int, seconds: float):
        self.folder, self.seed = folder, seed
        self.walker = Servant(_served, folder / "walker.log", seconds, MEMORY)
        self.runtime = Servant(run, folder / "runtime.log", RUNTIME_SECONDS, RUNTIME_MEMORY)
        self.judge = Servant(
            lambda pair, say: second_opinion(pair), folder / "judge.log", COMPARE_SECONDS, MEMORY
        )

    def report(self, number: int) -> Report:
        start = monotonic()
        made = mutant(self.seed, number)
        verdict, detail, phase = self._verdict(made)
        return Report(number, made.kind, made.model, made.recipe, verdict, detail, phase, monotonic() - start)

    def _verdict(self, made: Mutant) -> tuple[str, str, str]:
        path = write(made, self.folder)
        more = 8 * (len(made.content) + sum(map(len, made.files.values())))
        if self.walker.answers >= ANSWERS:
            self.walker.close()
        try:
            walked: Walked = self.walker.ask(path, more)
        except Fallen as fallen:
            return "fault", f"{fallen.how}: {fallen.reason}{_place(fallen.trace)}", fallen.phase
        if walked.verdict in ("traceback", "unequal"):
            return "fault", f"{walked.verdict}: {walked.reason}", walked.phase
        if walked.verdict == "refused":
            return "refused", walked.reason, walked.phase
        if not walked.feeds:
            return walked.verdict, "not run: an input is no tensor", ""
        return self._compared(walked)

    def _compared(self, walked: Walked) -> tuple[str, str, str]:
        if self.runtime.answers >= ANSWERS:
            self.runtime.close()
        try:
            own = self.runtime.ask((walked.original, walked.feeds, True))
        except Fallen as fallen:
            return "runtime", f"{fallen.how}: {fallen.reason}", fallen.phase
        if isinstance(own, str):
            return "runtime", f"refuses: {own}", ""
        try:
            if reason := self.walker.ask(None):
                return "fault", reason, "replay"
        except Fallen as fallen:
            return "fault", f"{fallen.how}: {fallen.reason}{_place(fallen.trace)}", fallen.phase
        place, expected = own
        try:  # what runs just in time may not a second time, on a machine that does other things
            self.runtime.seconds = AGAIN * RUNTIME_SECONDS
            found = self.runtime.ask((walked.result, walked.feeds[place : place + 1], False))
        except Fallen as fallen:
            return "fault", f"the result does not run: {fallen.how} {fallen.reason}", "run"
        finally:
            self.runtime.seconds = RUNTIME_SECONDS
        if isinstance(found, str):
            if any(word in found for word in LACKING):  # `optimize` would not choose such an operator
                return "runtime", f"has no kernel for the result: {found}", ""
            return "fault", f"the result does not run: {found}", "run"
        if close(expected, found[1]):
            return walked.verdict, "", ""
        try:
            reason = self.judge.ask((walked.original, walked.result))
        except Fallen as fallen:
            return "fault", f"comparison: {fallen.how} {fallen.reason}{_place(fallen.trace)}", "compare"
        return ("fault", f"unequal: {reason}", "run") if reason else (walked.verdict, "", "")

    def close(self) -> None:
        for servant in (self.walker, self.runtime, self.judge):
            servant.close()


def _served(path: Path | None, say: Say) -> Walked | str:
    """A mutant's way; where no path is given, the replay of the rewrites that the last one ended with."""
    if path is None:
        return replayed(say)
    gc.collect()
    same_everywhere()
    return walk(path, say)


def _place(trace: Sequence[str]) -> str:
    """The innermost frame of our own, of what faulthandler wrote."""
    own = [line for line in trace if "/tensaurus/" in line][:1]
    return "".join(f" in {line.split('/tensaurus/')[-1]}".replace('"', "") for line in own)


def write(made: Mutant, folder: Path) -> Path:
    """The mutant's file, with what lies beside it."""
    path = folder / "model.onnx"
    path.write_bytes(made.content)
    for name, content in made.files.items():
        (folder / name).write_bytes(content)
    return path


# -------------------------------------------------------------------------------------- many mutants


def fuzz(seed: int, numbers: Sequence[int], lanes: int, seconds: float = SECONDS) -> Iterator[Report]:
    """Reports as they come, from so many lanes at once."""
    with TemporaryDirectory() as folder:  # what every process begins with: rules compiled, caches filled
        for name, seedling in seedlings().items():
            own = Mutant(0, name, "", "", seedling.model.SerializeToString(), seedling.files)
            walk_through(write(own, Path(folder)), lambda phase: None)
    gc.collect()
    gc.freeze()
    with ExitStack() as stack:
        open_lanes: dict[Connection, int] = {}
        for lane in range(min(lanes, len(numbers))):
            folder = stack.enter_context(TemporaryDirectory())
            here, there = Pipe()
            pid = os.fork()
            if not pid:
                _ride(there, Path(folder), seed, numbers[lane::lanes], seconds)
            there.close()
            open_lanes[here] = pid
        stack.callback(_end, open_lanes)
        gc.unfreeze()
        while open_lanes:
            for connection in wait(list(open_lanes)):
                assert isinstance(connection, Connection)
                try:
                    yield connection.recv()
                except EOFError:
                    os.waitpid(open_lanes.pop(connection), 0)
                    connection.close()


def _end(lanes: dict[Connection, int]) -> None:
    """What still runs, ended."""
    for connection, pid in lanes.items():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        connection.close()


def _ride(connection: Connection, folder: Path, seed: int, numbers: Sequence[int], seconds: float) -> None:
    """A lane's process; it does not return."""
    die_with_parent()
    lane = Lane(folder, seed, seconds)
    try:
        for number in numbers:
            connection.send(lane.report(number))
    except (KeyboardInterrupt, BrokenPipeError):
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        lane.close()
        connection.close()
        sys.stdout.flush()
        os._exit(0)


def complete(reports: Sequence[Report], first: int) -> list[Report]:
    """The reports up to the first number that is missing: a lane may be ahead of another when a run ends."""
    known = {report.number: report for report in reports}
    return [known[number] for number in takewhile(known.__contains__, count(first))]


def table(reports: Sequence[Report], seed: int) -> str:
    """The page: verdicts by kind, where mutants were refused, what the runtime does, and the faults."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for report in reports:
        counts[report.kind][report.verdict] += 1
    names = [*KINDS, "all"]
    counts["all"] = sum((counts[kind] for kind in KINDS), Counter())
    lines = [
        "# Mutants of small models",
        "",
        f"`python bench/fuzz.py --seed {seed} --mutants {len(reports)}`; what the words mean is said there;",
        f"made by {name_commit()}.",
        "",
        f"| mutation | mutants | {' | '.join(VERDICTS)} |",
        f"| --- | {' | '.join(['---:'] * (1 + len(VERDICTS)))} |",
    ]
    for name in names:
        cells = [sum(counts[name].values()), *(counts[name][verdict] for verdict in VERDICTS)]
        lines.append(f"| {name} | {' | '.join(map(str, cells))} |")
    phases = Counter(r.phase for r in reports if r.verdict == "refused")
    runtime = Counter(r.detail.partition(":")[0] for r in reports if r.verdict == "runtime")
    models = Counter(r.model for r in reports)
    said = {"Refused at": phases, "The runtime": runtime, "Mutants of each model": models}
    lines += ["", *(line for words, found in said.items() for line in (f"{words}: {_listed(found)}.", ""))]
    faults = [r for r in reports if r.verdict == "fault"]
    lines += ["## Faults", "", *(_fault(r) for r in sorted(faults, key=lambda r: r.number))]
    lines += [] if faults else ["None."]
    return "\n".join(lines) + "\n"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "none"


def _fault(report: Report) -> str:
    words = " ".join(report.detail.split())[:300]
    return f"- `--only {report.number}` ({report.model}; {report.recipe[:200]}): {report.phase}, {words}"


def alone(seed: int, number: int, keep: Path | None) -> None:
    """One mutant in this process: its file, its way, and the traceback where it ends in one."""
    made = mutant(seed, number)
    print(f"{number}: {made.model}, {made.kind}: {made.recipe}")
    with TemporaryDirectory() as scratch:
        folder = keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        path = write(made, folder)
        same_everywhere()
        walked = walk_through(path, print)
        print(walked.verdict, walked.reason)
        for content, name in ((walked.original, "original"), (walked.result, "result")):
            (folder / f"{name}.onnx").write_bytes(content)
        if walked.feeds:
            lane = Lane(folder, seed, SECONDS)
            try:
                lane.walker.ask(path)
                print(lane._compared(walked))
            finally:
                lane.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutants", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--limit", type=float, default=inf, help="seconds after which it ends")
    parser.add_argument("--lanes", type=int, default=2, help="processes side by side")
    parser.add_argument("--only", type=int, help="one mutant, in this process")
    parser.add_argument("--keep", type=Path, help="with --only: a folder for its files")
    parser.add_argument("--table", type=Path, default=TABLE)
    options = parser.parse_args()
    name_commit()  # of what runs, whatever is committed meanwhile
    if options.only is not None:
        alone(options.seed, options.only, options.keep)
        return 0
    start, reports = monotonic(), []
    try:
        for report in fuzz(
            options.seed, range(options.first, options.first + options.mutants), options.lanes
        ):
            reports.append(report)
            if report.verdict == "fault":
                print(f"{report.seconds:6.1f} s  {_fault(report)}", flush=True)
            if monotonic() - start > options.limit:
                break
    except KeyboardInterrupt:
        pass
    known = complete(reports, options.first)
    print(f"{len(reports)} mutants in {monotonic() - start:.0f} s, {len(known)} without a gap")
    with replace_file(options.table) as beside:
        beside.write_text(table(known, options.seed))
    return int(any(report.verdict == "fault" for report in reports))


if __name__ == "__main__":
    sys.exit(main())
