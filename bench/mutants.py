"""Are corrected mutants equal to the original in every element, and are boxes what brute force says they are?

Random products (convolutions of one to three dimensions, with groups, strides, dilations, uneven paddings;
matrix products; pairs of them) meet candidates of the search and candidates that no search draws: several
digits, radices that divide nothing, zeros anywhere, any attributes, and maps that lead nowhere.  Each is
corrected.  Writes bench/tables/mutants.md.

    corrected   equal in every element over GF(2^31 - 1), each box as brute force says, and a correction that
                was made wrong on purpose (a box one too small, or gone) is found
    undecided   the boxes are not known or too many: such a mutant is never proposed
    untyped     the operator does not accept the operands
    wrong       an element differs, a box is not what brute force says, or a wrong correction was not found

    python bench/mutants.py [--mutants 5000] [--seed 0]
    python bench/mutants.py --seed 0 --only 17
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import numpy as np
from revision import name_commit

from tensaurus.check.program.field_check import check_field
from tensaurus.expr.analysis.box import Box, Progression
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.evaluate.two_point_field import PrimeFieldPairs
from tensaurus.expr.ir.scope import axis
from tensaurus.expr.ir.walk import tensors
from tensaurus.expr.sizes.size import polynomial
from tensaurus.finders.mutate.candidate import Candidate, enumerate_candidates
from tensaurus.finders.mutate.compare_boxes import BoxesUndecided
from tensaurus.finders.mutate.correct_mutant import CorrectedMutant, MutantExpressions, correct_mutant
from tensaurus.finders.mutate.mutant_search import Instance, Mutant, OutputMap
from tensaurus.finders.mutate.reindexing import Digit, Reindexing
from tensaurus.finders.mutate.subprogram import Subprogram
from tensaurus.graph.ir.node import Node, apply, source
from tensaurus.graph.ir.program import Program
from tensaurus.ops import TensorType, Untypable, registry
from tensaurus.system.files import replace_file

TABLE = Path(__file__).parent / "tables" / "mutants.md"
VERDICTS = ("corrected", "undecided", "untyped", "wrong")
DRAWS = 20  # of which one must have a type
COUNTED = ("boxes", "agreeing", "proved", "planted")
SEARCHED = 4000  # candidates of a search of which one is drawn


@dataclass(frozen=True)
class Report:
    """What came of one mutant: its kind, the verdict, and in words what was wrong or undecided.

    boxes, agreeing, proved   of its outputs; planted: whether a wrong correction was planted, and found
    """

    number: int
    kind: str
    verdict: str
    reason: str = ""
    boxes: int = 0
    agreeing: int = 0
    proved: int = 0
    planted: bool = False


def draw_subprogram(rng: Random) -> Subprogram:
    """Return a random product, or two of one kind, that is small enough to compare every element."""
    count = 2 if rng.random() < 0.2 else 1
    kind = rng.choice(("conv", "conv", "conv", "matmul"))
    while True:
        nodes = _draw_convolutions(rng, count) if kind == "conv" else _draw_matmuls(rng, count)
        if nodes is not None and (found := Subprogram.of(nodes)) is not None:
            return found


def _draw_convolutions(rng: Random, count: int) -> list[Node] | None:
    rank = rng.choice((1, 2, 2, 2, 3))
    group, batch = rng.choice((1, 1, 1, 2, 3)), rng.choice((1, 1, 2, 3, 4))
    channels, taps = rng.randint(1, 3), [rng.choice((1, 2, 3, 3, 5)) for _ in range(rank)]
    largest = {1: 24, 2: 9, 3: 6}[rank]
    sizes = [rng.randint(2, largest) for _ in range(rank)]
    attrs: dict[str, Any] = {
        "strides": tuple(rng.choice((1, 1, 2, 3)) for _ in range(rank)),
        "dilations": tuple(rng.choice((1, 1, 2, 3)) for _ in range(rank)),
        "pads": tuple(rng.randint(0, 2) for _ in range(2 * rank)),
        "group": group,
    }
    nodes = []
    for k in range(count):
        number = k if rng.random() < 0.7 else 0
        x = source(f"v{number}", TensorType("float32", (batch, group * channels, *sizes)))
        w = source(f"w{k}", TensorType("float32", (group * rng.randint(1, 3), channels, *taps)))
        has_bias = count == 1 and rng.random() < 0.2
        bias = [source("b", TensorType("float32", w.tensor.shape[:1]))] if has_bias else []
        try:
            node = apply(registry["Conv"], [x, w, *bias], attrs)
        except (Untypable, ValueError):
            return None
        if 0 in node.tensor.shape:
            return None
        nodes.append(node)
    return nodes if len(set(nodes)) == count else None


def _draw_matmuls(rng: Random, count: int) -> list[Node] | None:
    batch = [rng.randint(1, 4)] if rng.random() < 0.5 else []
    inner = rng.randint(1, 12)
    nodes = []
    for k in range(count):
        a = source(f"v{k}", TensorType("float32", (*batch, rng.randint(1, 12), inner)))
        b = source(f"w{k}", TensorType("float32", (*batch, inner, rng.randint(1, 12))))
        nodes.append(apply(registry["MatMul"], [a, b]))
    return nodes


def draw_mutant(rng: Random, subprogram: Subprogram) -> tuple[str, Mutant]:
    """Return a mutant with its kind: searched, or drawn; with a map that was fitted, or drawn.

    Raises Untypable where the operator does not accept the operands.
    """
    if len(subprogram.products) > 1 or rng.random() < 0.4:
        kind, candidate = "searched", _pick(rng, subprogram)
    else:
        kind, candidate = "drawn", _draw_candidate(rng, subprogram)
    core = candidate.build(subprogram.inputs)
    instance = Instance(subprogram, rng.randrange(1 << 20))
    output = instance.evaluate(candidate)
    maps = None if output is None else instance.fit_maps(candidate, output)
    if maps is None:
        kind += ", any map"
        maps = tuple(_draw_map(rng, root, core) for root in subprogram.roots)
    return kind, Mutant(candidate, maps, 0.0, 1.0)


@lru_cache(64)
def _searched(subprogram: Subprogram) -> list[Candidate]:
    return list(islice(enumerate_candidates(subprogram), SEARCHED))


def _pick(rng: Random, subprogram: Subprogram) -> Candidate:
    found = _searched(subprogram)
    if not found:
        raise Untypable("no candidate")
    for _ in range(50):
        candidate = rng.choice(found)
        try:
            candidate.build(subprogram.inputs)
            return candidate
        except (Untypable, ValueError):
            continue
    raise Untypable("no candidate has a type")


def _draw_candidate(rng: Random, subprogram: Subprogram) -> Candidate:
    """Return the product's own operator on data that are re-indexed in any way that keeps the channels."""
    (original,) = subprogram.products
    numbers = [subprogram.inputs.index(arg) for arg in original.node.args if arg is not None]
    shape = [n for n in original.node.args[0].tensor.shape if isinstance(n, int)]  # type: ignore[union-attr]
    channels = {d for d, _, _ in original.channels} | set(original.digits)
    free = [d for d in range(len(shape)) if d not in channels]
    counts = [rng.randint(0, 2) if d in free else 0 for d in range(len(shape))]
    radices = [tuple(rng.randint(2, 4) for _ in range(count)) for count in counts]
    groups: list[list[Digit]] = [[Digit(d, 0)] for d in range(len(shape))]
    for d in free:
        for k in range(1, len(radices[d]) + 1):
            to = rng.choice(free)
            groups[to].insert(rng.randint(0, len(groups[to])), Digit(d, k))
    zeros = [[rng.choice((0, 0, 0, 1, 2)) if d in free else 0 for d in range(len(shape))] for _ in range(2)]
    arranged = Reindexing(tuple(radices), tuple(map(tuple, groups)), tuple(zeros[0]), tuple(zeros[1]))
    attrs = dict(original.node.attrs)
    for name, value in attrs.items():
        if name in ("strides", "dilations", "pads") and isinstance(value, tuple) and rng.random() < 0.5:
            attrs[name] = tuple(max(n + rng.choice((-1, 0, 0, 1)), 0 if name == "pads" else 1) for n in value)
    weights = Reindexing.identity(original.node.args[1].tensor.rank)  # type: ignore[union-attr]
    op = original.node.op
    return Candidate(
        op, tuple(sorted(attrs.items())), (arranged, weights),  # type: ignore[arg-type]
        ((numbers[0],), (numbers[1],)), tuple(numbers[2:]),
    )  # fmt: skip


def _draw_map(rng: Random, root: Node, core: Node) -> OutputMap:
    """Return a map that is right by chance at most."""
    axes = tuple(axis(n) for n in root.tensor.shape)
    indices = []
    for d in range(core.tensor.rank):
        a = polynomial(axes[d if d < len(axes) and rng.random() < 0.8 else rng.randrange(len(axes))])
        form = rng.choice((a, a, a // 2, a - 2 * (a // 2), 2 * a, a + 3 * (a // 2)))
        indices.append(polynomial(form + rng.choice((0, 0, -1, 1))))
    return OutputMap(axes, tuple(indices))


def check_mutant(number: int, seed: int) -> Report:
    """Draw a mutant of a seed and a number alone, correct it, and compare everything with brute force."""
    rng = Random(f"{seed} {number}")
    for _ in range(DRAWS):
        subprogram = draw_subprogram(rng)
        try:
            kind, mutant = draw_mutant(rng, subprogram)
            break
        except (Untypable, ValueError):  # small operands seldom fit attributes that were drawn
            continue
    else:
        return Report(number, "drawn", "untyped")
    try:
        corrected = correct_mutant(subprogram, mutant, seed=number)
    except BoxesUndecided as error:
        return Report(number, kind, "undecided", str(error))
    equation = corrected.equation
    left, right = (_program(subprogram, side) for side in (equation.left, equation.right))
    check = check_field(left, right, seed=number)
    reason = "" if check.passed and check.trials else f"elements differ: {check.detail}"
    differing = _differences(subprogram, mutant, number)
    reason = reason or _wrong_box(corrected, differing)
    planted = False
    if not reason and (wrong := plant_wrong_correction(rng, corrected, differing)) is not None:
        planted, results = True, list(equation.right)
        place, boxes = wrong
        results[place] = MutantExpressions(subprogram, mutant).correct_output(place, boxes)
        if check_field(left, _program(subprogram, results), seed=number).passed:
            reason = f"a wrong correction of output {place} was not found: {', '.join(map(str, boxes))}"
    boxes_of_all = [box for boxes in corrected.compared for box in boxes]
    agreeing = [box for box in boxes_of_all if box.agrees]
    return Report(
        number, kind, "wrong" if reason else "corrected", reason,
        len(boxes_of_all), len(agreeing), sum(box.is_proved for box in agreeing), planted,
    )  # fmt: skip


def _program(subprogram: Subprogram, roots: Sequence[Node]) -> Program:
    return Program(subprogram.inputs, tuple((f"y{k}", root) for k, root in enumerate(roots)))


def _differences(subprogram: Subprogram, mutant: Mutant, seed: int) -> list[np.ndarray[Any, Any]]:
    """Return for each output at which places the mutant, without corrections, differs from the original."""
    expressions = MutantExpressions(subprogram, mutant)
    field, rng = PrimeFieldPairs(seed + 1), np.random.default_rng(seed + 1)
    used = dict.fromkeys(x for s in (*expressions.originals, *expressions.mutants) for x in tensors(s))
    values = {x: field.random(tuple(n for n in x.shape if isinstance(n, int)), rng) for x in used}
    pairs = zip(expressions.originals, expressions.mutants, strict=True)
    return [interpret(a, values, field) != interpret(b, values, field) for a, b in pairs]


def _wrong_box(corrected: CorrectedMutant, differing: Sequence[np.ndarray[Any, Any]]) -> str:
    """Return the first box that is not what brute force says, "" where all are right."""
    for boxes, differs in zip(corrected.compared, differing, strict=True):
        seen = np.zeros(differs.shape, int)
        for each in boxes:
            part = tuple(_as_slice(side) for side in each.box.sides)
            seen[part] += 1
            if bool(differs[part].any()) == each.agrees:
                return f"the box {each.box} {'differs' if each.agrees else 'does not differ'} somewhere"
        if not (seen == 1).all():
            return "the boxes are no partition"
    return ""


def _as_slice(side: Progression) -> slice:
    return slice(side.start, side.stop, side.step)


def plant_wrong_correction(
    rng: Random, corrected: CorrectedMutant, differing: Sequence[np.ndarray[Any, Any]]
) -> tuple[int, list[Box]] | None:
    """Return an output and corrections of which one lacks a place that differs; None where there is none."""
    options = []
    for place, boxes in enumerate(corrected.corrections):
        for k, box in enumerate(boxes):
            for smaller in (None, *_one_smaller(box)):
                left = [*boxes[:k], *([smaller] if smaller else []), *boxes[k + 1 :]]
                covered = np.zeros(differing[place].shape, bool)
                for other in left:
                    covered[tuple(map(_as_slice, other.sides))] = True
                if (differing[place] & ~covered).any():
                    options.append((place, left))
    return rng.choice(options) if options else None


def _one_smaller(box: Box) -> Iterator[Box]:
    """Yield the boxes that lack the first or the last index of one side."""
    for d, side in enumerate(box.sides):
        if isinstance(side.count, int) and side.count > 1:
            for start in (side.start, side.start + side.step):
                shorter = Progression(start, side.count - 1, side.step)
                yield replace(box, sides=(*box.sides[:d], shorter, *box.sides[d + 1 :]))


def format_table(reports: Sequence[Report], seed: int, seconds: float) -> str:
    by_kind: dict[str, list[Report]] = defaultdict(list)
    for report in reports:
        by_kind[report.kind].append(report)
    lines = [
        "# Corrected mutants against brute force", "",
        f"`python bench/mutants.py --mutants {len(reports)} --seed {seed}`; made by {name_commit()};"
        f" {seconds:.0f} s.",
        "Every element over GF(2^31 - 1); every box; and for each mutant with corrections one that was made",
        "wrong on purpose, which must be found.", "",
        f"| kind | {' | '.join(VERDICTS)} | boxes | agreeing | proved | wrong corrections found |",
        f"| --- |{' ---: |' * (len(VERDICTS) + 4)}",
    ]  # fmt: skip
    for kind, found in sorted(by_kind.items()):
        counts = Counter(report.verdict for report in found)
        numbers = [counts[verdict] for verdict in VERDICTS]
        numbers += [sum(getattr(report, name) for report in found) for name in COUNTED]
        lines.append(f"| {kind} | {' | '.join(map(str, numbers))} |")
    wrong = [report for report in reports if report.verdict == "wrong"]
    lines += ["", *(f"- {report.number}: {report.reason}" for report in wrong)] if wrong else []
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mutants", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    parser.add_argument("--table", type=Path, default=TABLE)
    options = parser.parse_args()
    if options.only is not None:
        print(check_mutant(options.only, options.seed))
        return
    began, reports = monotonic(), list[Report]()
    for number in range(options.mutants):
        reports.append(check_mutant(number, options.seed))
        if reports[-1].verdict == "wrong":
            print(reports[-1], flush=True)
    with replace_file(options.table) as path:
        path.write_text(format_table(reports, options.seed, monotonic() - began))
    if any(report.verdict == "wrong" for report in reports):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
