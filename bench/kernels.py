"""Do generated kernels compute what the evaluator does, and touch nothing but their buffers?

Random expressions (`kernel_scopes`), or every example of every operator, in blocked layouts too, by schedules
that the analysis proposes, the first, the last and random ones, for AVX2 and AVX-512 and for one and two
threads.  Every array lies against a page that nobody may touch, first behind and then before it; every third
expression is compiled once more with Halide's own checks.  Writes bench/tables/kernels.md.

    right       all schedules tried compute the expression
    refused     Halide refuses one of the schedules
    inexact     Halide's checks bound a read by more than its indices reach
    unlowered   there is no kernel, with the reason
    wrong       other elements, or an input was written to
    crash, hang, memory    of the process in which it is compiled and run

    python bench/kernels.py [--scopes 5000] [--seed 0] [--minutes M]
    python bench/kernels.py --chains | --nests | --operators
    python bench/kernels.py --seed 0 --only 17
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from kernel_way import CORES, Case, Finding, findings, of_blocks, of_chain, of_examples, of_nest, of_number
from revision import name_commit
from servants import Fallen, Servant

from tensaurus.expr.ir.expression_text import show
from tensaurus.system.files import replace_file

TABLE = Path(__file__).parent / "tables" / "kernels.md"
SECONDS, MEMORY = 60.0, 3 << 30  # of one expression
ANSWERS = 200  # of one process: what is compiled stays in it
KINDS = {"random": of_number, "chains": of_chain, "nests": of_nest}
TITLES = {
    "random": "Random expressions",
    "chains": "Convolutions by fast algorithms",
    "nests": "Products in the loops of others, and bands",
}
VERDICTS = ("right", "refused", "inexact", "unlowered", "wrong", "crash", "hang", "memory")


@dataclass(frozen=True)
class Report:
    number: int
    name: str
    dtype: str
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> str:
        found = {finding.verdict for finding in self.findings}
        return next((v for v in reversed(VERDICTS) if v in found), "right")


@cache
def examples() -> list[Case]:
    return [*of_examples(), *of_blocks()]


def work(message: tuple[int | None, int, str], phase: Any) -> Report:
    """In the process: what comes of one expression."""
    seed, number, kind = message
    phase("drawn")
    if seed is None:
        case = examples()[number]
        tries = [(0, 2, True), *((place, 1, False) for place in range(1, len(CORES)))]
    else:
        case = KINDS[kind](seed, number)
        tries = [(number % len(CORES), 1, number % 3 == 0)]
    phase("compiled")
    return Report(number, case.name, case.dtype, tuple(findings(case, tries, Random(number))))


def reports(seed: int | None, numbers: Sequence[int], kind: str = "random") -> Iterator[Report]:
    """As they come."""
    with TemporaryDirectory() as folder:
        servant = Servant(work, Path(folder) / "log", SECONDS, MEMORY)
        try:
            for number in numbers:
                if servant.answers >= ANSWERS:
                    servant.close()
                try:
                    yield servant.ask((seed, number, kind))
                except Fallen as fallen:
                    where = next((line for line in fallen.trace if "compile.py" in line), "")
                    detail = f"{fallen.reason} {where}".strip()
                    yield Report(number, f"{seed} {number}", "", (Finding(fallen.how, "", "", detail),))
        finally:
            servant.close()


def table(found: Sequence[Report], command: str) -> list[str]:
    """Verdicts by element type, and what was not right."""
    told = f"`{command}`: {len(found)} expressions, made by {name_commit()}; the words mean what it says."
    lines = [told, ""]
    lines += [f"| type | expressions | {' | '.join(VERDICTS)} |"]
    lines += [f"| --- | ---: | {' | '.join(['---:'] * len(VERDICTS))} |"]
    for dtype in [*sorted({r.dtype for r in found}), "all"]:
        group = [r for r in found if dtype in ("all", r.dtype)]
        counts = Counter(r.verdict for r in group)
        cells = [len(group), *(counts[v] for v in VERDICTS)]
        lines.append(f"| {dtype or 'unknown'} | {' | '.join(map(str, cells))} |")
    lines += [""]
    reasons = Counter(f.detail for r in found for f in r.findings if f.verdict == "refused")
    lines += [f"- refused {count} times: {reason}" for reason, count in reasons.most_common(12)]
    for report in found:
        for f in report.findings:
            if f.verdict not in ("refused", "inexact"):
                lines.append(f"- {f.verdict}: `{report.name}` {f.cpu} `{f.schedule}` {f.detail}"[:300])
    return [*lines, ""]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scopes", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    parser.add_argument("--operators", action="store_true")
    kinds = parser.add_mutually_exclusive_group()
    for kind in ("chains", "nests"):
        says = TITLES[kind][0].lower() + TITLES[kind][1:]
        kinds.add_argument(f"--{kind}", action="store_const", const=kind, dest="kind", help=says)
    parser.set_defaults(kind="random")
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--table", dest="page", type=Path, default=TABLE)
    given = parser.parse_args()
    name_commit()  # of what runs, whatever is committed meanwhile
    if given.only is not None:
        case = KINDS[given.kind](given.seed, given.only)
        print(show(case.scope), *case.types, sep="\n")
        (report,) = reports(given.seed, [given.only], given.kind)
        print(report.verdict, *report.findings, sep="\n")
        return report.verdict not in VERDICTS[:4]
    until = monotonic() + 60 * given.minutes
    seed = None if given.operators else given.seed
    numbers = range(len(examples()) if given.operators else given.scopes)
    found: list[Report] = []
    for report in islice(reports(seed, numbers, given.kind), len(numbers)):
        found.append(report)
        if report.verdict not in ("right", "refused", "inexact"):
            print(report, flush=True)
        if monotonic() > until:
            break
    title = "Every operator's every example" if given.operators else TITLES[given.kind]
    options = "--operators" if given.operators else f"--seed {given.seed} --scopes {given.scopes}"
    options = options if given.kind == "random" else f"--{given.kind} {options}"
    command = f"python bench/kernels.py {options}"
    section = [f"## {title}", "", *table(found, command)]
    with replace_file(given.page) as path:
        path.write_text("\n".join(_merged(given.page, title, section)))
    return any(r.verdict not in VERDICTS[:4] for r in found)


def _merged(table: Path, title: str, section: Sequence[str]) -> list[str]:
    """The table with this section in the place of its last one."""
    text = table.read_text() if table.exists() else "# Generated kernels against the evaluator\n"
    head, *parts = text.rstrip("\n").split("\n## ")
    kept = [f"## {part}" for part in parts if not part.startswith(f"{title}\n")]
    return [
        head.rstrip("\n"),
        "",
        *(line for part in kept for line in (*part.rstrip("\n").split("\n"), "")),
        *section,
    ]


if __name__ == "__main__":
    raise SystemExit(main())
