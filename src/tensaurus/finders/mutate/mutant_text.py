"""Formats mutants for people: their programs, the boxes in which they are right, and a drawing of these.

       w 0 1 8
     h 0 . . #         . equal      # corrected, in the plane n = 0, f = 0
       1 . . #
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensaurus.expr.analysis.box import Box
from tensaurus.expr.ir.printer import show_size
from tensaurus.finders.mutate.correct_mutant import CorrectedMutant
from tensaurus.finders.mutate.mutant_search import MutantSearch, OutputMap
from tensaurus.finders.mutate.reindexing import Reindexing, dimension_names
from tensaurus.rules.language.node_text import format_nodes

__all__ = ["draw_boxes", "format_mutants", "format_search"]

MAX_DRAWN = 24  # cuts along a side of a drawing
MAX_LISTED = 6  # corrections that are listed


def format_search(search: MutantSearch, found: int) -> Iterator[str]:
    """Yield lines about a search: the subprogram, the count of candidates, and why some were dropped."""
    yield format_nodes(*search.subprogram.roots)
    stopped = "" if search.is_finished else "; the search was stopped early"
    yield f"  {search.tried} candidates evaluated, {found} mutants found{stopped}"
    for reason, count in search.dropped.most_common():
        yield f"    {count} dropped: {reason}"


def format_mutants(
    ranked: Sequence[tuple[float, CorrectedMutant]], original_seconds: float
) -> Iterator[str]:
    """Yield lines about each mutant.  Seconds are at the machine's peaks, for the mutant and the original."""
    for number, (seconds, corrected) in enumerate(ranked, 1):
        mutant = corrected.mutant
        candidate = mutant.candidate
        yield (
            f"  {number}. about {seconds * 1e6:.3g} us, the original {original_seconds * 1e6:.3g} us;"
            f" {mutant.work:.2f} times its multiplications"
        )
        for name, arrangement, numbers in zip(
            ("data", "weights"), candidate.arrangements, candidate.sources, strict=True
        ):
            unchanged = isinstance(arrangement, Reindexing) and arrangement.is_identity
            inputs = ", ".join(f"x{k}" for k in numbers)
            yield f"     {name + ':':<9}{inputs} {'as it is' if unchanged else arrangement}"
        attrs = ", ".join(f"{key}={value}" for key, value in candidate.attrs if value is not None)
        yield f"     {candidate.op}({attrs})"
        for place, output_map in enumerate(mutant.maps):
            yield from _format_output(corrected, place, output_map)
        yield f"     {corrected.equation.evidence}"


def _format_output(corrected: CorrectedMutant, place: int, output_map: OutputMap) -> Iterator[str]:
    """Yield lines about one output: where it is read, its boxes, what is corrected, and a drawing."""
    names = dimension_names(len(output_map.axes))
    name_of = dict(zip(output_map.axes, names, strict=True))
    indices = ", ".join(show_size(index, name_of) for index in output_map.indices)
    yield f"     y{place}[{', '.join(names)}] = z[{indices}]"
    boxes, corrections = corrected.compared[place], corrected.corrections[place]
    agreeing = [box for box in boxes if box.agrees]
    proved = sum(box.is_proved for box in agreeing)
    yield f"     equal in {len(agreeing)} of {len(boxes)} boxes, proved in {proved} of them"
    for box in corrections[:MAX_LISTED]:
        yield f"       corrected: {box}"
    if len(corrections) > MAX_LISTED:
        yield f"       and {len(corrections) - MAX_LISTED} more"
    if corrections:
        shape = [a.extent for a in output_map.axes if isinstance(a.extent, int)]
        yield from (f"       {line}" for line in draw_boxes(shape, corrections, names))


def draw_boxes(shape: Sequence[int], corrected: Sequence[Box], names: Sequence[str]) -> Iterator[str]:
    """Yield the drawing of the plane of the two dimensions that corrections cut most often.

    Rows and columns begin where something changes.  The plane goes through the first place of a correction.
    """
    cuts = [_cuts(size, [box.sides[d] for box in corrected]) for d, size in enumerate(shape)]
    if len(shape) < 2:
        return
    most_cut = sorted(sorted(range(len(shape)), key=lambda d: (-len(cuts[d]), -d))[:2])
    down, across = most_cut
    place = [int(n) for n in corrected[0].first if isinstance(n, int)]
    rest = ", ".join(f"{names[d]} = {place[d]}" for d in range(len(shape)) if d not in most_cut)
    rows, columns = cuts[down][:MAX_DRAWN], cuts[across][:MAX_DRAWN]
    widths = [max(2, len(str(column))) for column in columns]
    head = " ".join(str(column).rjust(width) for column, width in zip(columns, widths, strict=True))
    yield f"{names[across].rjust(6)} {head}" + (f"    in the plane {rest}; # is corrected" if rest else "")
    for row in rows:
        marks = []
        for column, width in zip(columns, widths, strict=True):
            place[down], place[across] = row, column
            marks.append(("#" if any(tuple(place) in box for box in corrected) else ".").rjust(width))
        yield f"{names[down]} {str(row).rjust(4)} {' '.join(marks)}"


def _cuts(size: int, sides: Sequence[object]) -> list[int]:
    """Return the indices at which a side begins or has ended."""
    inside = [tuple(index in side for side in sides) for index in range(size)]  # type: ignore[operator]
    return [index for index in range(size) if index == 0 or inside[index] != inside[index - 1]]
