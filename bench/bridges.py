"""What bridge operators save where an operator can reuse smaller or larger ones only (ETO, 7.2, Figure 11).

ETO lets an operator reuse another one if no extent of one is below, and another above (Definition 2).  A
*bridge* of two operators has the smaller of each pair of extents, so that both can reuse it; it is tuned only
for that.  Three variants: no bridges; those of two operators of the set (1-hop); those of bridges, too, until
there are no more.  For each the tree of least cost is tuned.  `python bench/reuse.py` shows the product's own
way, in which any size can reuse any other, so that a bridge would save nothing.

Writes tables/bridges.md.

    python bench/bridges.py [--tuning 5] [SET ...]
"""

from __future__ import annotations

import argparse
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path
from time import monotonic

from form_expressions import write_expression
from reuse import (
    FULL_TRIALS,
    REUSE_TRIALS,
    Kernel,
    Tuning,
    compare_tunings,
    kernels_of,
    tune_set,
    use_records,
)
from revision import name_commit

from tensaurus.graph.ir.node import apply, source
from tensaurus.kernels.stages.sketch import Schedule
from tensaurus.kernels.tune.kernel_speeds import EXTENT, form_distance
from tensaurus.kernels.tune.reuse_trees import ROOT, cheapest_reuse_tree, tuning_order
from tensaurus.kernels.tune.tune import Tuner
from tensaurus.ops.eop import eop
from tensaurus.runtimes.measure.database import Database
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.system.scratch import temporary_folder

TABLE = Path(__file__).parent / "tables" / "bridges.md"
SETS = ("mobilenetv2", "resnet50")
VARIANTS = {  # hops
    "no bridges": 0,
    "1-hop bridges": 1,
    "all bridges": 99,
}


def extents_of(form: str) -> tuple[int, ...]:
    """Return the numbers of a form that are extents, not strides."""
    return tuple(int(number) for number in EXTENT.findall(form))


def is_reuse_pair(form: str, other: str) -> bool:
    """Whether the forms differ in extents only, and those of one are all at least the other's."""
    if EXTENT.sub("#", form) != EXTENT.sub("#", other):
        return False
    pairs = list(zip(extents_of(form), extents_of(other), strict=True))
    return all(a <= b for a, b in pairs) or all(a >= b for a, b in pairs)


def bridge_of(form: str, other: str) -> str | None:
    """Return the form with the smaller of each pair of extents; None where one can reuse the other."""
    if EXTENT.sub("#", form) != EXTENT.sub("#", other) or is_reuse_pair(form, other):
        return None
    smaller = map(min, extents_of(form), extents_of(other))
    return EXTENT.sub(lambda _: str(next(smaller)), form)


def find_bridges(forms: Iterable[str], hops: int, tuner: Tuner) -> dict[str, Kernel]:
    """Return the bridges between forms as kernels, by their forms; those of bridges, too, up to `hops`."""
    known, bridges = set(forms), dict[str, Kernel]()
    newest = known
    for _ in range(hops):
        pairs = [(a, b) for a, b in combinations(sorted(known), 2) if a in newest or b in newest]
        texts = {text for a, b in pairs if (text := bridge_of(a, b)) is not None} - known
        made = {text: kernel for text in sorted(texts) if (kernel := kernel_of_form(text, tuner))}
        if not made:
            break
        bridges |= made
        newest = set(made)
        known |= newest
    return bridges


def kernel_of_form(form: str, tuner: Tuner) -> Kernel | None:
    """Return a kernel of a form; None where no expression has it."""
    if (made := write_expression(form, tuner)) is None:
        return None
    leaves = [source(f"x{k}", kind) for k, kind in enumerate(made.types)]
    output = apply(eop, leaves, {"scope": made.scope}).tensor
    return Kernel(made.scope, made.types, output, made.is_constant, form, 0)


def reuse_tree(forms: Sequence[str], bridges: Iterable[str]) -> list[tuple[str, Hashable]]:
    """Return the cheapest tree as (form, the form that it reuses, or ROOT), in the order of tuning."""
    operators = [*forms, *bridges]
    costs: dict[tuple[Hashable, Hashable], float] = {(ROOT, form): FULL_TRIALS for form in operators}
    for a, b in permutations(operators, 2):
        if is_reuse_pair(a, b):
            costs[a, b] = REUSE_TRIALS + form_distance(a, b)
    tree = cheapest_reuse_tree(costs, forms)
    return [(str(form), source) for form, source in tuning_order(tree)]


def tune_tree(
    kernels: dict[str, Kernel], tree: Sequence[tuple[str, Hashable]], machine: Machine, seconds: float
) -> Tuning:
    """Tune the kernels of a tree, by their forms; those that reuse nothing know of nothing else."""
    schedules: dict[str, Schedule | None] = {}
    with temporary_folder() as folder, Database(folder / "known.sqlite") as known:
        tuner = Tuner(known, machine, "native", ships=False)
        tuner.begin_start()
        tuner.wait_for_start()
        began = monotonic()
        for number, (form, reused) in enumerate(tree):
            kernel = kernels[form]
            with Database(folder / f"{number}.sqlite") as nothing:
                use_records(tuner, nothing if reused is ROOT else known)
                least = tuner.least_seconds(kernel.scope, kernel.types, kernel.is_constant)
                schedules[form] = tuner.best_schedule(
                    kernel.scope, kernel.types, kernel.output, seconds if reused is ROOT else least,
                    kernel.is_constant,
                )  # fmt: skip
                if reused is ROOT:
                    known.put_many(nothing.all())
        tried, spent = tuner.tried_count, monotonic() - began
        tuner.close()
    return Tuning(tried, spent, [schedules[form] for form in kernels if form in schedules])


def measure_set(name: str, seconds: float) -> Iterator[str]:
    """Yield the lines of a set: one for each variant."""
    machine = Machine.here(None)
    with temporary_folder() as folder, Database(folder / "forms.sqlite") as records:
        tuner = Tuner(records, machine, "native", ships=False)
        kernels: dict[str, Kernel] = {}
        for kernel in kernels_of(name, tuner):
            before = kernels[kernel.form].count if kernel.form in kernels else 0
            kernels[kernel.form] = replace(kernel, count=before + kernel.count)
        nothing = tune_set([*kernels.values()], machine, folder, seconds, False)
        for variant, hops in VARIANTS.items():
            bridges = find_bridges(kernels, hops, tuner)
            tree = reuse_tree([*kernels], bridges)
            reuse = tune_tree({**kernels, **bridges}, tree, machine, seconds)
            # the bridges come last in the tuning, and have no part in the network
            total, reused, _ = compare_tunings([*kernels.values()], nothing, reuse, tuner)
            roots, used = sum(reused is ROOT for _, reused in tree), len(tree) - len(kernels)
            yield (
                f"| {name} | {variant} | {len(kernels)} | {len(bridges)} | {used} | {roots} |"
                f" {total / reused:.3f} | {nothing.tried} | {reuse.tried} |"
                f" {nothing.seconds / reuse.seconds:.1f}x |"
            )
        tuner.close()


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("sets", nargs="*")
    parser.add_argument("--tuning", type=float, default=5.0)
    options = parser.parse_args()
    lines = [
        "# What bridge operators save",
        "",
        f"{Machine.here(None).processor}, 2 threads; `python bench/bridges.py`; made by {name_commit()}.",
        "Operators and bridges that exist, bridges that the tree of least cost tunes, and how many operators",
        "it tunes from nothing; throughput beside that of tuning all from nothing, schedules compiled by",
        "that and by the tree, and how many times faster the tree's tuning was.",
        "",
        "| set | variant | operators | bridges | used | from nothing | throughput | compiled | tree "
        "| faster |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in options.sets or SETS:
        for line in measure_set(name, options.tuning):
            lines.append(line)
            print(line, flush=True)
            TABLE.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
