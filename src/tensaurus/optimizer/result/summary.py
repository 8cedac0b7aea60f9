"""The record of one optimization, as JSON and as text: what changed, why it is right, what it gained.

The JSON is stored in the optimized model's metadata, where `tensaurus explain` reads it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tensaurus.check.files.equality import Equality
from tensaurus.runtimes.measure.comparison import Comparison
from tensaurus.system.timeline import Event

METADATA_KEY = "tensaurus"
"""The key of an optimized model's metadata_props that holds its Summary as JSON."""


# Texts for `ended_by`.
_ENDS = {
    "exhausted": "nothing left to try",
    "patience": "no gain for many steps",
    "steps": "step limit reached",
    "nodes": "limit of e-nodes reached",
    "matches": "limit of matches reached",
    "rounds": "limit of rounds reached",
    "saturated": "no rewrite left",
    "time": "time limit reached",
    "share": "the time for rewrites was used up",
    "interrupt": "interrupted",
}


@dataclass(frozen=True)
class AppliedRule:
    """A rule that was applied: its evidence, how often, and its law as text."""

    rule: str
    evidence: str
    count: int
    law: str = ""

    @property
    def evidence_kind(self) -> str:
        """The kind of its evidence, as `classify_evidence` names it."""
        return classify_evidence(self.evidence)


@dataclass(frozen=True)
class AppliedKernel:
    """A kernel of the result.

    count      number of places in the model
    scope      the expression that it computes
    operators  the operators that it replaces
    title      the operators in short, for example F(4x4, 3x3) + Add + Relu
    """

    name: str
    count: int
    scope: str
    operators: str = ""
    schedule: str = ""
    title: str = ""


@dataclass(frozen=True)
class Summary:
    """The record of one optimization.  Wall-clock times: *_ms of one run of a model, *_seconds of a phase.

    original_ms, optimized_ms  where several runtimes were compared, the original's is that of the fastest
    comparison                 what pairs of runs of the original and the result show about the speedup; None
                               where the model is unchanged, and in files of older versions
    replay                     how the rewrites were checked, in words
    measurements               number of pieces that were measured in this run
    typed, opaque              numbers of nodes that rewrites may touch, and that are kept as they came
    unlock                     --shape flags with which more nodes would be typed
    ended_by, searched         why the search ended (a key of _ENDS), and its size in words
    predicted_ms               what the search expected of the result before it was run, from its operators'
                               costs; original_predicted_ms of the original
    found_ms                   of the fastest program of each search, before it was checked
    runtimes_ms                where several runtimes were compared: the original's time by the name of each
                               runtime, and the result's for it
    constants_mb               megabytes of constants that the result stores
    fast_at                    sizes of inputs, as x=1,3,640,640, that the original leaves open and at which
                               alone the result differs from it; "" where it differs at all sizes
    runs_only                  sizes of inputs, as x=1,3,640,640, that the original leaves open and the result
                               fixes; "" where the result runs at all sizes
    compiler                   the compiler of the kernels, and what it may use of the processor
    no_kernels, dropped        why no kernels were generated, and why some eOperators have none
    tuned                      number of kernels that were tuned in this run
    timeline                   what happened when: phases, sizes of the e-graph, extractions, measurements
    """

    model: str
    backend: str
    threads: int
    original_ms: float
    optimized_ms: float
    speedup: float
    equivalence: Equality
    rewrites: tuple[AppliedRule, ...] = ()
    replay: str = ""
    search_seconds: float = 0.0
    measuring_seconds: float = 0.0
    checking_seconds: float = 0.0
    measurements: int = 0
    typed: int = 0
    opaque: int = 0
    opaque_operators: dict[str, int] = field(default_factory=dict)
    unlock: tuple[str, ...] = ()
    ended_by: str = ""
    searched: str = ""
    predicted_ms: float = math.nan
    original_predicted_ms: float = math.nan
    found_ms: dict[str, float] = field(default_factory=dict)
    constants_mb: float = math.nan
    runtimes_ms: dict[str, float] = field(default_factory=dict)
    comparison: Comparison | None = None
    fast_at: str = ""
    runs_only: str = ""
    kernels: tuple[AppliedKernel, ...] = ()
    compiler: str = ""
    no_kernels: str = ""
    dropped: tuple[str, ...] = ()
    tuned: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    timeline: tuple[Event, ...] = ()

    def to_json(self, *, effort: bool = True) -> str:
        """Return one line of JSON, fields in this record's order; numbers that are not finite become null.

        effort=False leaves out what the search cost, the only difference of two runs that find one model.
        """
        record = {name: _to_json_value(getattr(self, name)) for name in _field_names(Summary)}
        if not effort:
            for phase in ("search", "measuring", "checking"):
                del record[f"{phase}_seconds"]
            del record["measurements"], record["tuned"], record["timeline"]
        return json.dumps(record, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Summary:
        """Return the summary that to_json of this version or a later one wrote.  Raises ValueError."""
        try:
            record = _select_fields(cls, json.loads(text))
            record["equivalence"] = Equality(**_select_fields(Equality, record["equivalence"]))
            if (compared := record.get("comparison")) is not None:
                record["comparison"] = Comparison(**_select_fields(Comparison, compared))
            for name, kind in (("rewrites", AppliedRule), ("kernels", AppliedKernel), ("timeline", Event)):
                record[name] = tuple(kind(**_select_fields(kind, row)) for row in record.get(name, ()))
            for name in ("unlock", "dropped"):
                record[name] = tuple(record.get(name, ()))
            return cls(**record)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a summary: {error}") from error

    @property
    def evidence_counts(self) -> str:
        """The rewrites by kind of evidence: 'proved 12, tested with a bound 3'."""
        counts: Counter[str] = Counter()
        for rewrite in self.rewrites:
            counts[rewrite.evidence_kind] += rewrite.count
        return format_counts(counts)

    def render(self) -> RenderableType:
        """Return the summary as text for users."""
        lines = Table.grid(padding=(0, 2))
        lines.add_column(style="dim", no_wrap=True)
        lines.add_column(overflow="fold")
        lines.add_row("model", Text(self.model))
        threads = f"{self.threads} thread" + ("s" if self.threads != 1 else "")
        lines.add_row("backend", Text(f"{_versioned(self.backend, self.versions)}, {threads}"))
        lines.add_row("time", self._gain())
        if self.fast_at:
            words = f"made for {self.fast_at}; other sizes run without what needs these sizes"
            lines.add_row("sizes", Text(words))
        if self.runs_only:
            lines.add_row("sizes", Text(f"runs only at {self.runs_only}", style="bold yellow"))
        if self.comparison is not None:
            lines.add_row("compared", self._compared(self.comparison))
        lines.add_row("equality", self.equivalence.render())
        if self.runtimes_ms:
            listed = ", ".join(f"{name} {ms:.3f} ms" for name, ms in self.runtimes_ms.items())
            lines.add_row("runtimes", listed)
        if self.rewrites:
            lines.add_row("evidence", Text(self.evidence_counts))
        if self.replay:
            lines.add_row("replay", Text(self.replay))
        lines.add_row("operators", self._operators())
        if self.search_seconds or self.measurements:
            ended = f", {_ENDS.get(self.ended_by, self.ended_by)}" if self.ended_by else ""
            measured = f"{self.measurements} measurement" + ("s" if self.measurements != 1 else "")
            size = f", {self.searched}" if self.searched else ""
            lines.add_row("search", f"{self.search_seconds:.1f} s, {measured}{size}{ended}")
            after = f"measuring {self.measuring_seconds:.1f} s, checking {self.checking_seconds:.1f} s"
            lines.add_row("then", after)
        if math.isfinite(self.predicted_ms):  # infinite where there was no time to measure the operators
            known = self.rewrites and math.isfinite(self.original_predicted_ms)
            original = f"{self.original_predicted_ms:.3f} ms → " if known else ""
            lines.add_row("predicted", f"{original}{self.predicted_ms:.3f} ms from its operators")
        if len(self.found_ms) > 1:
            listed = ", ".join(f"{ms:.3f} ms by {by}" for by, ms in self.found_ms.items())
            lines.add_row("found", listed)
        if not math.isnan(self.constants_mb):
            lines.add_row("weights", f"{self.constants_mb:.3g} MB kept")
        if self.compiler or self.no_kernels:
            lines.add_row("kernels", Text(self._kernels()))
        for reason in self.dropped:
            lines.add_row("no kernel", Text(f"for an expression: {reason}"))
        for flag in self.unlock:
            lines.add_row("unlock", Text.assemble((flag, "bold"), " lets more of the model be optimized"))
        if not self.rewrites:
            cut = self.ended_by in ("time", "share")
            more = ". The time limit ended the search: a longer one may find more" if cut else ""
            return Group(lines, Text(f"nothing faster was found: the model is unchanged{more}", style="dim"))
        return Group(lines, Text(), self._rewrite_table())

    def _gain(self) -> Text:
        if math.isnan(self.original_ms):
            return Text("not measured")
        style = "bold green" if self.speedup > 1.005 else "bold"
        text = f"{self.original_ms:.3f} ms → {self.optimized_ms:.3f} ms, "
        return Text.assemble(text, (f"{self.speedup:.2f}x", style))

    @staticmethod
    def _compared(comparison: Comparison) -> Text:
        doubt = f"  void: {comparison.doubt}" if comparison.disturbed else ""
        return Text.assemble(str(comparison), (doubt, "bold yellow"))

    def _kernels(self) -> str:
        if not self.compiler:
            return f"none: {self.no_kernels}"
        calls = sum(kernel.count for kernel in self.kernels)
        used = f"{len(self.kernels)} at {calls} place{'s' * (calls != 1)}" if calls else "none is used"
        tuned = f", {self.tuned} tuned" if self.tuned else ""
        return f"{used}{tuned}, by {self.compiler}"

    def _operators(self) -> Text:
        if not self.opaque:
            return Text(f"{self.typed} typed, none opaque")
        listed = format_counts(self.opaque_operators)
        return Text(f"{self.typed} typed, {self.opaque} opaque, passed through untouched: {listed}")

    def _rewrite_table(self) -> Table:
        table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
        table.add_column("times", justify="right")
        table.add_column("rewrite", overflow="fold")
        table.add_column("evidence", overflow="fold")
        for rewrite in sorted(self.rewrites, key=lambda item: (-item.count, item.rule)):
            table.add_row(str(rewrite.count), Text(rewrite.rule), Text(rewrite.evidence, style="dim"))
        return table


def classify_evidence(evidence: str) -> str:
    """Return the kind of an evidence text: tested(gf, 40 instances, error < 2^-94) -> tested with a bound."""
    kind = evidence.partition("(")[0]
    if kind != "tested":
        return kind or "unstated"
    if "where it is used" in evidence:
        return "replayed where it is used"
    return f"tested {'with' if 'error < 2^-' in evidence else 'without'} a bound"


def shorten(text: str, most: int = 160) -> str:
    """Return the text, cut off after `most` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def format_counts(counts: Mapping[str, int]) -> str:
    """Return names with their counts, the most frequent first: 'Conv 12, Relu 3'."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda x: (-x[1], x[0])))


def _field_names(record: type[Any]) -> list[str]:
    return [item.name for item in fields(record)]


def _select_fields(record: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return the values that are fields of this version's record; null becomes NaN for a float."""
    floats = {item.name for item in fields(record) if item.type == "float"}
    known = {name: values[name] for name in _field_names(record) if name in values}
    return {name: math.nan if value is None and name in floats else value for name, value in known.items()}


def _to_json_value(value: Any) -> Any:
    """Return the value as JSON types, with the keys of mappings sorted."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _to_json_value(value[key]) for key in sorted(value)}
    if isinstance(value, tuple):
        return [_to_json_value(item) for item in value]
    if isinstance(value, Comparison | Equality | AppliedRule | AppliedKernel | Event):
        return {name: _to_json_value(getattr(value, name)) for name in _field_names(type(value))}
    return value


def _versioned(name: str, versions: dict[str, str]) -> str:
    return f"{name} {versions[name]}" if name in versions else name
