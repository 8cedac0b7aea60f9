"""Where the time of a model goes, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

__all__ = ["CONVERSION", "KERNEL", "UNTRACED", "Profile", "ProfiledKernel"]

CONVERSION = "conversions between layouts"
UNTRACED = "not told apart"
KERNEL = "a kernel"  # that nothing is known of
MORE = 3  # tensors that a line names


@dataclass(frozen=True)
class ProfiledKernel:
    """One kernel of a runtime: its operator there, and what it computes of the model.

    seconds     of one run, by the runtime's clock
    operations  scalar ones, counted from the expressions; 0 where nothing is known
    moved       bytes that it reads and writes, each tensor once
    least       seconds that these would take at the machine's peaks
    subnormal   the share of its weights that are subnormal numbers, which processors may be slow with
    """

    operator: str
    computes: str
    tensors: tuple[str, ...]
    seconds: float
    operations: int
    moved: int
    least: float
    subnormal: float = 0.0


@dataclass(frozen=True)
class Profile:
    """Of one run: its seconds without the profiler, and its kernels in the order of the runtime's graph; so
    many more, `untold`, took less than the runtime's clock tells, or could not be told apart."""

    model: str
    backend: str
    version: str
    threads: int
    seconds: float
    kernels: tuple[ProfiledKernel, ...]
    untold: int = 0

    def to_json(self) -> str:
        """One line of JSON, in this record's order."""
        return json.dumps(asdict(self), ensure_ascii=False, allow_nan=False)

    def render(self, *, each: bool = False) -> RenderableType:
        """A line for all kernels that compute alike, those first that take most; or one for `each`."""
        told = sum(kernel.seconds for kernel in self.kernels)
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        text = Text.assemble((self.model, "bold"), f" on {self.backend} {self.version}, {threads}: ")
        text.append(f"{self.seconds * 1e3:.4g} ms a run; its {len(self.kernels)} kernels took ")
        more = f", {self.untold} more no time that could be told" if self.untold else ""
        text.append(f"{told * 1e3:.4g} ms while they were profiled{more}.\n")
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for name in ("ms", "share", "kernels", "GFLOP/s", "GB/s", "of peak"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("tensors" if each else "computes", overflow="fold")
        rows = [[kernel] for kernel in self.kernels] if each else _alike(self.kernels)
        for row in rows:
            words = (_named(row[0]) if each else row[0].computes) + _slowed(row)
            table.add_row(*_figures(row, told), Text(words))  # names may look like markup
        note = Text("\nof peak: what operations, or bytes where these take longer, take at the peaks", "dim")
        if any(kernel.subnormal for kernel in self.kernels):
            note.append("\nsubnormal numbers slow Intel processors down; `tensaurus optimize` makes them 0")
        return Group(text, table, note)


def _alike(kernels: Iterable[ProfiledKernel]) -> list[list[ProfiledKernel]]:
    groups: dict[str, list[ProfiledKernel]] = {}
    for kernel in kernels:
        groups.setdefault(kernel.computes, []).append(kernel)
    return sorted(groups.values(), key=lambda group: -sum(kernel.seconds for kernel in group))


def _figures(group: list[ProfiledKernel], whole: float) -> Iterator[str]:
    seconds = sum(kernel.seconds for kernel in group)
    yield f"{seconds * 1e3:.4g}"
    yield f"{seconds / whole:.1%}"
    yield str(len(group))
    yield _rate(sum(kernel.operations for kernel in group), seconds)
    yield _rate(sum(kernel.moved for kernel in group), seconds)
    least = sum(kernel.least for kernel in group)
    yield f"{least / seconds:.0%}" if least else "-"


def _rate(amount: int, seconds: float) -> str:
    return f"{amount / seconds / 1e9:.3g}" if amount else "-"


def _slowed(group: list[ProfiledKernel]) -> str:
    """Which of them read subnormal weights, and how many of their weights that are; "" where none does."""
    shares = [kernel.subnormal for kernel in group if kernel.subnormal]
    if not shares:
        return ""
    least, most = f"{min(shares):.2g}", f"{max(shares):.2g}"
    many = f"{most}" if least == most else f"{least} to {most}"
    of = "" if len(group) == 1 else f"{len(shares)} of them: "
    return f"; {of}{many} of the weights are subnormal numbers"


def _named(kernel: ProfiledKernel) -> str:
    """What it computes, and where in the model."""
    names = [*kernel.tensors[:MORE], *(["..."] if len(kernel.tensors) > MORE else [])]
    return f"{kernel.computes}: {', '.join(names)}" if names else f"{kernel.computes} ({kernel.operator})"
