"""The profile of a model as a record, a terminal table and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

__all__ = ["CONVERSION", "UNKNOWN_KERNEL", "UNTRACED", "Profile", "ProfiledKernel"]

CONVERSION = "conversions between layouts"
UNTRACED = "not told apart"
UNKNOWN_KERNEL = "a kernel"  # a generated kernel without a title in the summary
MAX_TENSORS = 3  # tensors that a line of the table names


@dataclass(frozen=True)
class ProfiledKernel:
    """One kernel of a runtime, and what it computes of the model. Fields are JSON keys.

    operator    the runtime's name of the kernel
    computes    operators of the model, such as Conv + Relu
    tensors     names of the model's tensors that these operators compute
    seconds     of one run, by the runtime's clock
    operations  scalar operations, counted from the expressions; 0 if they are unknown
    moved       bytes that the kernel reads and writes, each tensor once
    least       seconds that operations and bytes take at the machine's peaks
    subnormal   share of subnormal numbers in its weights, with which processors may be slow
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
    """One run: its seconds without the profiler, and its kernels in the order of the runtime's graph.

    `untold` is the number of further kernels, for which the runtime's clock shows no time of their own.
    """

    model: str
    backend: str
    version: str
    threads: int
    seconds: float
    kernels: tuple[ProfiledKernel, ...]
    untold: int = 0

    def to_json(self) -> str:
        """Return one line of JSON, in the order of the fields."""
        return json.dumps(asdict(self), ensure_ascii=False, allow_nan=False)

    def render(self, *, each: bool = False) -> RenderableType:
        """Return a table: a line for each kind of kernel, the slowest first; or a line for `each` kernel."""
        kernel_seconds = sum(kernel.seconds for kernel in self.kernels)
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        text = Text.assemble((self.model, "bold"), f" on {self.backend} {self.version}, {threads}: ")
        kernels = f"{len(self.kernels)} kernel{'s' * (len(self.kernels) != 1)}"
        text.append(f"{self.seconds * 1e3:.4g} ms a run. While profiled, {kernels} took ")
        more = f"; {self.untold} more have no time of their own" if self.untold else ""
        text.append(f"{kernel_seconds * 1e3:.4g} ms{more}.\n")
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for name in ("ms", "share", "kernels", "GFLOP/s", "GB/s", "of peak"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("tensors" if each else "computes", overflow="fold")
        rows = [[kernel] for kernel in self.kernels] if each else _group_alike(self.kernels)
        for row in rows:
            words = (_format_tensors(row[0]) if each else row[0].computes) + _format_subnormals(row)
            table.add_row(*_format_figures(row, kernel_seconds), Text(words))  # names may look like markup
        note = Text("\nof peak: the roofline's time, for operations or bytes, as a share of the time", "dim")
        if any(kernel.subnormal for kernel in self.kernels):
            note.append("\nsubnormal numbers slow Intel processors down; `tensaurus optimize` makes them 0")
        return Group(text, table, note)


def _group_alike(kernels: Iterable[ProfiledKernel]) -> list[list[ProfiledKernel]]:
    groups: dict[str, list[ProfiledKernel]] = {}
    for kernel in kernels:
        groups.setdefault(kernel.computes, []).append(kernel)
    return sorted(groups.values(), key=lambda group: -sum(kernel.seconds for kernel in group))


def _format_figures(group: list[ProfiledKernel], total_seconds: float) -> Iterator[str]:
    seconds = sum(kernel.seconds for kernel in group)
    yield f"{seconds * 1e3:.4g}"
    yield f"{seconds / total_seconds:.1%}"
    yield str(len(group))
    yield _format_rate(sum(kernel.operations for kernel in group), seconds)
    yield _format_rate(sum(kernel.moved for kernel in group), seconds)
    least = sum(kernel.least for kernel in group)
    yield f"{least / seconds:.0%}" if least else "-"


def _format_rate(amount: int, seconds: float) -> str:
    return f"{amount / seconds / 1e9:.3g}" if amount else "-"


def _format_subnormals(group: list[ProfiledKernel]) -> str:
    """Return how many of the kernels read subnormal weights, and the shares of these; "" if none does."""
    shares = [kernel.subnormal for kernel in group if kernel.subnormal]
    if not shares:
        return ""
    least, most = f"{min(shares):.2g}", f"{max(shares):.2g}"
    many = f"{most}" if least == most else f"{least} to {most}"
    of = "" if len(group) == 1 else f"{len(shares)} of them: "
    return f"; {of}{many} of the weights are subnormal numbers"


def _format_tensors(kernel: ProfiledKernel) -> str:
    """Return what the kernel computes, and the first of its tensors: "Conv + Relu: c, r"."""
    names = [*kernel.tensors[:MAX_TENSORS], *(["..."] if len(kernel.tensors) > MAX_TENSORS else [])]
    return f"{kernel.computes}: {', '.join(names)}" if names else f"{kernel.computes} ({kernel.operator})"
