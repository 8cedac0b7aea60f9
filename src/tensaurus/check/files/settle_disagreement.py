"""Where the runtime and the float64 reference are further apart than rounding explains: which is right?

Asked first is whether rounding is the original's meaning there (`meaning`), then the witness.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from tensaurus.check.files.compared_model import Model
from tensaurus.check.files.comparison_row import Row
from tensaurus.check.files.judge import Original
from tensaurus.check.files.output_bounds import reach
from tensaurus.check.files.reference import Reference
from tensaurus.check.files.rounded_meaning import astray, take_own
from tensaurus.check.files.unfused_run import Witness
from tensaurus.system.errors import TensaurusError

__all__ = ["Comparison", "settle"]


class Comparison(Protocol):
    """What is asked of a baseline here."""

    original: Model
    names: list[str]
    rows: list[Row]
    random: dict[str, tuple[Any, Any]]
    faults: list[str]
    backend: str
    witness: Witness
    reference: Reference

    @property
    def digits(self) -> int: ...
    def run_perturbed(self, rows: Iterable[Row]) -> None: ...
    def witnessed(self, whose: str, model: Model, row: Row) -> list[Any] | None: ...
    def note(self, text: str) -> None: ...


def settle(of: Comparison) -> None:
    """Give every output of every row the results that a candidate is compared with."""
    scales = [
        max((row.results[n].largest for row in of.rows if row.feed.plausible), default=0.0)
        for n in range(len(of.names))
    ]
    reaches = [reach(of.original.proto.graph, name) for name in of.names]
    for row in of.rows:
        for original, scale, most in zip(row.results, scales, reaches, strict=False):
            original.scale, original.reach = scale, most
    _settle_rounding(of)
    _settle_wrong(of)


def _settle_rounding(of: Comparison) -> None:
    """Where rounding is the meaning of an output, the original's own results are the reference."""
    far: dict[str, tuple[float, str]] = {}
    rows: list[tuple[Row, list[int]]] = []
    for row in of.rows:
        plausible = row.feed.plausible
        places = _places(row, lambda o, plausible=plausible: astray(o, o.own, of.digits, plausible))
        if places and row.truth is not None:
            rows.append((row, places))
    of.run_perturbed(row for row, _ in rows)
    for row, places in rows:
        witness = of.witnessed("original", of.original, row)
        rounded = _rounded(of, row)
        if witness is None or rounded is None:
            continue
        for place in places:
            if (name := of.names[place]) not in of.random:
                plausible = row.feed.plausible
                size = take_own(row.results[place], witness[place], rounded[place], of.digits, plausible)
                far[name] = max(far.get(name, (0.0, "")), (size, row.feed.kind))
    for name, (size, kind) in far.items():
        if size:
            what = f"rounding makes {size:.2g} of the largest element of output {name} on {kind} inputs"
            of.note(f"{what}, and is its meaning: the original's own results are what is compared with")


def _settle_wrong(of: Comparison) -> None:
    """Elsewhere the witness says who is wrong, the runtime or the reference."""
    wrong: dict[str, tuple[float, str]] = {}
    doubtful: dict[str, tuple[float, str]] = {}
    of.run_perturbed(row for row in of.rows if _implausible(row))
    for row in of.rows:
        if not _implausible(row):
            continue
        for original, output in zip(row.results, _rounded(of, row) or (), strict=False):
            original.shake(output)
        if not (far := _implausible(row)):
            continue
        outputs = of.witnessed("original", of.original, row)
        for place in far:
            if (name := of.names[place]) in of.random:
                continue
            witness = None if outputs is None else outputs[place]
            for worst, size in zip((wrong, doubtful), row.results[place].settle(witness), strict=True):
                worst[name] = max(worst.get(name, (0.0, "")), (size, row.feed.kind))
    plainly = f"{of.witness.name} without graph optimizations"
    for name, (size, kind) in wrong.items():
        if size:
            what = f"{of.backend} computes output {name} of the original wrong, by {size:.2g} of its"
            how = f"{plainly} agrees with the float64 reference"
            of.faults.append(f"{what} largest element on {kind} inputs: {how}")
    for name, (size, kind) in doubtful.items():
        if size:
            what = f"output {name} of the original is {size:.2g} of its largest element off the float64"
            more = "one of them is wrong, so the result must agree with both"
            how = f"{plainly} does not agree with it either: {more}"
            of.faults.append(f"{what} reference on {kind} inputs, and {how}")


def _implausible(row: Row) -> list[int]:
    """The outputs that no rounding explains."""
    return _places(row, lambda original: original.implausible)


def _places(row: Row, differs: Any) -> list[int]:
    """The outputs, arrays of numbers, of which that is so somewhere."""
    return [n for n, o in enumerate(row.results) if _is_array(o) and differs(o).any()]


def _is_array(original: Original) -> bool:
    return isinstance(original.own, np.ndarray) and original.own.dtype.kind not in "OSU"


def _rounded(of: Comparison, row: Row) -> Sequence[Any] | None:
    """What the reference has where every operator's result is rounded to its type."""
    with suppress(TensaurusError):  # it has run in float64
        return of.reference.run(of.original.build, row.feed.arrays, row.shapes, rounded=True)
    return None
