"""Does any rewrite rule, or any operator, make something else of a model than the runtime does?

Random small models over every declared operator, and the left sides of all rules with surroundings; others
that round, that have integers around constants, or that branch by size; now and then a size beyond 400; every
rule applied wherever it matches; everything compared on onnxruntime with optimizations off and on, and with
the float64 reference.  Of each a finder is asked what it knows, which is replayed.  Each model is made of
a seed and its number alone.  Writes bench/tables/differential.md.

    right         equal everywhere
    unsupported   the runtime has no kernel for it
    runtime       the runtime differs from itself with optimizations, or alone from two references
    empty         what a rule made does not run where a size is 0, given or on the way, and the original does
    wrong         a rule, an operator, import or export; or a finder, which may also take too long

    python bench/differential.py [--models 10000] [--seed 0] [--lanes 2]
    python bench/differential.py --seed 0 --only 17 [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import sys
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import numpy as np
import onnx
from differential_finders import proposed
from differential_verdict import Finding, judge
from differential_way import LEVELS, Case, Undefined, by_head, case, matchers, opcodes, run
from revision import name_commit
from servants import Fallen, Servant
from sketches import Sketch, Undrawn, of_branches, of_integers, of_operators, of_precision, of_rule
from sketches.operators import declared

from tensaurus.system.files import replace_file

TABLE = Path(__file__).parent / "tables" / "differential.md"
OPSETS = (7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24)
SECONDS, MEMORY = 5.0, 1 << 30  # of the runtime, on all files of one model
REFERENCE_MEMORY = 8 << 30  # bytes of this process, which evaluates models beside the runtime
ANSWERS = 2000  # of one process, before another takes its place
SHARES = {  # of the models, by what they are about, and who draws them
    "precision": (0.05, of_precision),
    "integers": (0.05, of_integers),
    "branches": (0.05, of_branches),
}
TRIES = 8  # sketches for one model, until one has a meaning, and kernels


@dataclass
class Report:
    """What came of one model."""

    number: int
    origin: str = ""
    dynamic: bool = False
    large: bool = False
    operators: set[str] = field(default_factory=set)
    applied: Counter[str] = field(default_factory=Counter)
    programs: int = 0
    lacking: int = 0
    findings: list[Finding] = field(default_factory=list)
    drawn: bool = True
    skipped: int = 0  # models of this number before that the runtime has no kernels for

    @property
    def verdict(self) -> str:
        found = {f.verdict for f in self.findings}
        if any(f.verdict == "unsupported" and not f.of for f in self.findings):
            return "unsupported"
        return next((v for v in ("wrong", "empty", "runtime") if v in found), "right")


class Lane:
    """One model after the other; the runtime in a process of its own."""

    def __init__(self, folder: Path, seed: int):
        self.seed = seed
        self.runtime = Servant(run, folder / "runtime.log", SECONDS, MEMORY)

    def sketch(self, number: int, rng: Any) -> Sketch:
        """One of twenty for each of SHARES; else half come from rules in turn, the others begin with every
        operator in turn."""
        opset = int(rng.choice(OPSETS))
        turn = number // 2
        draw = rng.random()
        for share, drawer in SHARES.values():
            if draw < share:
                return drawer(opset, rng)
            draw -= share
        if number % 2:
            rules = [m.rule for m in matchers()]
            rule = rules[turn % len(rules)]
            return of_rule(rule, turn // len(rules), self.seed, opset, rng)
        choices = declared(opset)
        return of_operators(opset, rng, choices[turn % len(choices)])

    def drawn(self, number: int) -> Iterator[Case]:
        """Models of this number with their variants: what has no meaning is left out."""
        for trial in range(TRIES):
            rng = np.random.default_rng((self.seed, number, trial))
            try:
                yield case(self.sketch(number, rng), rng)
            except (Undrawn, Undefined):
                continue

    def report(self, number: int) -> Report:
        """What comes of the first model of this number that the runtime has kernels for."""
        report = Report(number, drawn=False)
        try:
            for found in self.drawn(number):
                skipped, report = report.skipped, self.compared(number, found)
                report.skipped = skipped + (report.verdict == "unsupported")
                if report.verdict != "unsupported":
                    break
        except Exception:
            return Report(number, findings=[Finding("wrong", (), _trace())])
        return report

    def compared(self, number: int, found: Case) -> Report:
        report = Report(
            *(number, found.sketch.origin, found.sketch.dynamic, found.large),
            *(opcodes(found.program), found.applied),
        )
        contents = [found.model, *(v.content for v in found.variants if v.content)]
        report.programs = len(contents) - 1
        report.lacking = len(found.variants) - report.programs
        report.findings = judge(found, self.results(contents, found.feeds))
        report.findings += proposed(found.program, number // 2)
        return report

    def results(self, contents: Sequence[bytes], feeds: Any) -> list[Any]:
        """What the runtime makes of each file at each assignment; the one that ends it says so."""
        if self.runtime.answers >= ANSWERS:
            self.runtime.close()
        try:
            return list(self.runtime.ask((contents, feeds)))
        except Fallen as fallen:
            if len(contents) == len(feeds) == 1:
                return [[[f"{fallen.how}: {fallen.reason}"]] * len(LEVELS)]
        if len(contents) > 1:
            return [self.results([content], feeds)[0] for content in contents]
        alone = [self.results(contents, [feed])[0] for feed in feeds]
        return [[[levels[k][0] for levels in alone] for k in range(len(LEVELS))]]

    def close(self) -> None:
        self.runtime.close()


def _trace() -> str:
    lines = traceback.format_exc().strip().splitlines()
    own = [line.strip() for line in lines if "tensaurus/" in line or "bench/" in line][-1:]
    return f"traceback: {lines[-1][:200]} {' '.join(own)[-100:]}"


def differential(seed: int, numbers: Sequence[int], lanes: int = 1) -> Iterator[Report]:
    """Yield the reports in order, from processes side by side where there are several lanes."""
    with TemporaryDirectory() as folder:
        if lanes > 1:
            by_head()  # every process begins with compiled rules
            with get_context("fork").Pool(lanes, _open, (Path(folder), seed)) as pool:
                yield from pool.imap(_reported, numbers)
            return
        _open(Path(folder), seed)
        try:
            yield from map(_reported, numbers)
        finally:
            _lanes.pop().close()


_lanes: list[Lane] = []  # of this process, at most one


def _open(folder: Path, seed: int) -> None:
    own = folder / str(os.getpid())
    own.mkdir()
    _lanes[:] = [Lane(own, seed)]


def _reported(number: int) -> Report:
    return _lanes[0].report(number)


# ------------------------------------------------------------------------------------------ the table

TITLES = {  # of what a model is made; else of a rule
    "operators": "of operators",
    "rules": "of rules",
    "precision": "of what rounds",
    "integers": "of integers around constants",
    "branches": "of branches by size",
}


def table(reports: Sequence[Report], seed: int) -> str:
    """Verdicts by kind of model, how often each rule was applied, and what was not right."""
    made = [r for r in reports if r.drawn]
    groups: dict[str, list[Report]] = {}
    for origin, title in TITLES.items():
        own = [r for r in made if (r.origin if r.origin in TITLES else "rules") == origin]
        groups[f"{title}, static"] = [r for r in own if not r.dynamic]
        groups[f"{title}, dynamic"] = [r for r in own if r.dynamic]
    groups |= {"all": made, "with a size beyond 400": [r for r in made if r.large]}
    verdicts = ("right", "unsupported", "runtime", "empty", "wrong")
    lines = [
        "# Rules and operators against the runtime",
        "",
        f"`python bench/differential.py --seed {seed} --models {len(reports)}` says what the words mean;",
        f"made by {name_commit()}.",
        f"{len(reports) - len(made)} numbers gave no model that has a meaning.",
        "",
        f"| models | number | programs that rules made | {' | '.join(verdicts)} |",
        f"| --- | ---: | ---: | {' | '.join(['---:'] * len(verdicts))} |",
    ]
    for name, group in groups.items():
        counts = Counter(r.verdict for r in group)
        cells = [len(group), sum(r.programs for r in group), *(counts[v] for v in verdicts)]
        lines.append(f"| {name} | {' | '.join(map(str, cells))} |")
    applied = sum((r.applied for r in made), Counter[str]())
    rules = [m.rule.name for m in matchers()]
    never = [name for name in rules if not applied[name]]
    operators = Counter(name for r in made for name in r.operators)
    from tensaurus.ops import registry

    unmet = sorted(set(registry) - set(operators))
    lacking = sum(r.lacking for r in made)
    lines += [
        "",
        f"{sum(r.skipped for r in reports)} models were drawn anew: the runtime has no kernels for them.",
        f"{lacking} programs could not be said in the opset of their model.",
        "",
        "## What was tried",
        "",
        f"Rules that were never applied: {', '.join(never) or 'none'}.",
        "",
        f"Operators that were never met: {', '.join(unmet) or 'none'}.",
        "",
        "Applications of each rule, fewest first: "
        + ", ".join(f"{name} {applied[name]}" for name in sorted(rules, key=lambda n: (applied[n], n)))
        + ".",
        "",
        "Models with each operator, fewest first: "
        + ", ".join(
            f"{name} {operators[name]}" for name in sorted(operators, key=lambda n: (operators[n], n))
        )
        + ".",
    ]
    titles = {"wrong": "Wrong", "empty": "Not run where a size is 0", "runtime": "The runtime's own failures"}
    for verdict, title in titles.items():
        lines += ["", f"## {title}", "", *(_grouped(made, verdict) or ["None."])]
    return "\n".join(lines) + "\n"


def _grouped(reports: Sequence[Report], verdict: str) -> list[str]:
    """Findings that are alike, one line each, with a number that shows it."""
    alike: dict[tuple[Any, ...], list[tuple[Report, Finding]]] = defaultdict(list)
    for report in reports:
        if report.verdict == "unsupported":
            continue
        for found in report.findings:
            if found.verdict == verdict:
                where = found.of[-1:] or tuple(sorted(report.operators))
                alike[(where, _kind(found.detail))].append((report, found))
    lines = []
    for (where, _), found in sorted(alike.items(), key=lambda pair: -len(pair[1])):
        report, finding = found[0]
        words = " ".join(finding.detail.split())[:200]
        lines.append(f"- {', '.join(where)}: {len(found)} ({'--only ' + str(report.number)}), {words}")
    return lines


def _kind(detail: str) -> str:
    return re.sub(r"[-\d.e+]+|nan|inf", "#", detail.rpartition("optimizations: ")[2])[:40]


def alone(seed: int, number: int, keep: Path | None) -> None:
    """One model, with everything that is not right."""
    with TemporaryDirectory() as scratch:
        folder = keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        lane = Lane(folder, seed)
        try:
            for found in lane.drawn(number):
                if lane.compared(number, found).verdict != "unsupported":
                    break
            else:
                print("nothing was drawn that has a meaning, and kernels of the runtime")
                return
            print(onnx.printer.to_text(onnx.ModelProto.FromString(found.model)))
            print(
                {n: (v.dtype, v.shape) for n, v in found.feeds[0].items()}, "strange" if found.strange else ""
            )
            contents = [found.model, *(v.content for v in found.variants if v.content)]
            for place, content in enumerate(contents):
                (folder / f"{place}.onnx").write_bytes(content)
            np.savez(folder / "feeds.npz", **found.feeds[0])
            for place, v in enumerate((v for v in found.variants if v.content), 1):
                print(place, " then ".join(v.rules) or "read and written", v.lacks)
            for finding in judge(found, lane.results(contents, found.feeds)):
                print(finding.verdict, finding.of, finding.detail)
        finally:
            lane.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", type=int, default=10_000)
    parser.add_argument("--lanes", type=int, default=2, help="processes side by side")
    parser.add_argument("--first", type=int, default=0, help="number of the first model")
    parser.add_argument("--limit", type=float, default=inf, help="seconds after which it ends")
    parser.add_argument("--only", type=int, help="one model, in this process")
    parser.add_argument("--keep", type=Path, help="with --only: a folder for its files")
    parser.add_argument("--table", type=Path, default=TABLE)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_DATA, (REFERENCE_MEMORY, REFERENCE_MEMORY))
    name_commit()  # of what runs, whatever is committed meanwhile
    if options.only is not None:
        alone(options.seed, options.only, options.keep)
        return 0
    start, reports = monotonic(), []
    numbers = range(options.first, options.first + options.models)
    try:
        for report in differential(options.seed, numbers, options.lanes):
            reports.append(report)
            if report.verdict in ("wrong", "empty", "runtime"):
                for finding in report.findings:
                    if finding.verdict == report.verdict:
                        where = ",".join(finding.of) or ",".join(sorted(report.operators))
                        print(
                            f"{report.number} {report.verdict} [{where}] {finding.detail[:240]}", flush=True
                        )
                        break
            if monotonic() - start > options.limit:
                break
    except KeyboardInterrupt:
        pass
    seconds = monotonic() - start
    print(
        f"{len(reports)} models in {seconds:.0f} s, {len(reports) / max(seconds, 1):.1f} a second",
        file=sys.stderr,
    )
    with replace_file(options.table) as beside:
        beside.write_text(table(reports, options.seed))
    return int(any(report.verdict == "wrong" for report in reports))


if __name__ == "__main__":
    sys.exit(main())
