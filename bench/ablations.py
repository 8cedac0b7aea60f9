"""What derivation is worth: its rules, their depth, and all of it beside the rest (EINNET, section 7).

    python bench/ablations.py --rules [MODELS...]
        what the parts of each model may save by estimates, with all rules and with each switched off; writes
        tables/derivation_rules.md
    python bench/ablations.py --depths [MODELS...]
        the same with fewer rules one after the other; writes tables/derivation_depths.md
    python bench/ablations.py --finders [MODELS...] [--time-limit 60]
        what each model gains with derivation, without it, and by rules alone; writes
        tables/derivation_finders.md
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from derivation_cases import Nodes
from measuring import measuring

import tensaurus
from tensaurus.app.zoo.selection import select_models
from tensaurus.finders.derive import joint_search
from tensaurus.finders.derive.derivation_finder import MAX_TIME_RATIO, Derive
from tensaurus.finders.derive.derivation_search import (
    CONVERGING,
    EXPLORATIVE,
    JOINT,
    MAX_DEPTH,
    DerivedProgram,
    Search,
)
from tensaurus.finders.derive.derivation_state import State
from tensaurus.finders.derive.linear_regions import LinearRegion, find_linear_regions
from tensaurus.finders.derive.merge_expressions import JOINED
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.optimizer.run.available_finders import FINDERS
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.system.scratch import temporary_folder

TABLES = Path(__file__).parent / "tables"
MATCHED = ("operator matching", "eOperator generation")  # steps that instantiate, not derive
PATIENCE = 20.0  # seconds of one search for a part of a model
DERIVED = "derived-"  # begins the names of derivations

KINDS: dict[str, tuple[Any, ...]] = {"explorative": EXPLORATIVE, "joint": JOINT, "converging": CONVERGING}
ALL = "all"
OFF = {
    f"{rule.__module__.rsplit('.', 1)[-1]}.{rule.__name__}": (kind, rule)
    for kind, rules in KINDS.items()
    for rule in rules
}


def without(name: str) -> dict[str, Any]:
    """The rules of a search: all, or all but one."""
    if name == ALL:
        return {}
    kind, off = OFF[name]
    return {kind: tuple(rule for rule in KINDS[kind] if rule is not off)}


def used(path: Sequence[State]) -> set[str]:
    """The rules that lead from each state to the next."""
    found = set[str]()
    for before, after in pairwise(path):
        rule = after.applied[-1].rule
        if rule in MATCHED:
            continue
        if rule == JOINED:
            found |= {name for name, (kind, _) in OFF.items() if kind == "joint"}
            continue
        single = ((name, rule) for name, (kind, rule) in OFF.items() if kind != "joint")
        found |= {
            name
            for name, rule in single
            if any(
                before.after_step(stage, step).key == after.key
                for stage in before.compute_bound_stages()
                for step in rule(stage)
            )
        }
    return found


class Worth:
    """What derivations of a model's products should save of its time (operators alone, on onnxruntime).

    A rule that is not on the path of the best form is not missed by it: nothing is searched for again.
    """

    def __init__(self, model: str, states: int):
        self.model, self.states = model, states
        (subject,) = select_models([model])
        program = import_model(subject.load(), dict(subject.shapes), subject.name)
        self.parts: dict[Nodes, list[LinearRegion]] = {}
        for part in find_linear_regions(program):
            self.parts.setdefault(part.forms, []).append(part)
        with TemporaryDirectory() as folder, measuring(program, "onnxruntime", Path(folder) / "db") as costs:
            self.whole = 1e3 * sum(map(costs, program.active))
            self.roofline = costs.roofline
            derive = Derive(costs, costs.roofline)
            times = {forms: derive.region_seconds(each[0]) for forms, each in self.parts.items()}
        # the finder leaves alone what takes little more than its arithmetic
        slow = {forms for forms, (now, least) in times.items() if MAX_TIME_RATIO * now > least}
        self.parts = {forms: each for forms, each in self.parts.items() if forms in slow}
        self.now = {forms: now for forms, (now, _) in times.items()}
        self._found: dict[tuple[Nodes, str], list[DerivedProgram]] = {}

    def found(self, forms: Nodes, name: str, depth: int = MAX_DEPTH) -> list[DerivedProgram]:
        """What a search for a part finds without a rule, the fastest first."""
        key = forms, f"{name} {depth}"
        if key not in self._found:
            if forms not in self.parts:
                return []
            part = self.parts[forms][0]
            if (made := part.expressions()) is None:
                return []
            deadline = monotonic() + PATIENCE
            search = Search(
                self.roofline,
                max_states=self.states,
                max_depth=depth,
                deadline=deadline,
                weights=part.weights,
                **without(name),
            )
            before = [self.found(one.forms, name, depth) for one in part.single_regions if len(forms) > 1]
            self._found[key] = joint_search.search_region(part, *made, search, before)
        return self._found[key]

    def best(self, forms: Nodes, name: str, depth: int = MAX_DEPTH) -> float:
        """Seconds of the fastest form without a rule."""
        found = self.found(forms, ALL, depth)
        if found and name != ALL and name in used(found[0].path):
            found = self.found(forms, name, depth)
        return found[0].seconds if found else inf

    def saved(self, name: str, depth: int = MAX_DEPTH) -> tuple[float, float]:
        """Milliseconds by forms of products alone, and by merging several beyond that."""
        left: dict[Nodes, float] = {}  # seconds after derivation
        single = joint = 0.0
        for forms, each in self.parts.items():
            best = self.best(forms, name, depth)
            if len(forms) == 1:
                now = self.now[forms]
                left[forms] = best if best <= MAX_TIME_RATIO * now else now
                single += len(each) * (now - left[forms])
            else:
                alone = sum(left.get(one.forms, self.now[one.forms]) for one in each[0].single_regions)
                joint += len(each) * max(0.0, alone - best)
        print(self.model, name, depth, f"{1e3 * single:.3g} {1e3 * joint:.3g}", flush=True)
        return 1e3 * single, 1e3 * joint


def ruled(models: Sequence[str], states: int) -> Iterator[str]:
    """The table of what rules are worth, line by line."""
    yield from [
        "# What derivation rules are worth",
        "",
        f"{Machine.here().processor}; `python bench/ablations.py --rules`.  Milliseconds of the original,",
        "operators measured alone on onnxruntime; what derivations of its products should save of it (by",
        f"estimates, {states} states each, where that is at least a fifth of a product's time) with all",
        "rules, and what merging products of one tensor should save beyond that; then what is lost of both",
        "where one rule is off.  Kernels are assumed for what is no operator.",
        "",
        f"| model | ms | saved | merged | {' | '.join(OFF)} |",
        f"| --- | ---: | ---: | ---: | {' | '.join('---:' for _ in OFF)} |",
    ]
    for model in models:
        worth = Worth(model, states)
        all_ = worth.saved(ALL)
        lost = [max(0.0, sum(all_) - sum(worth.saved(name))) for name in OFF]
        cells = [f"{worth.whole:.3g}", *(f"{value:.2g}" for value in (*all_, *lost))]
        yield f"| {model} | {' | '.join(cells)} |"


def deep(models: Sequence[str], states: int) -> Iterator[str]:
    """The table of what depth is worth, line by line (EINNET, figure 17)."""
    depths = range(MAX_DEPTH + 1)
    yield from [
        "# What deeper derivations are worth",
        "",
        f"{Machine.here().processor}; `python bench/ablations.py --depths`.  Milliseconds of the original,",
        "operators measured alone on onnxruntime, and what derivations should save of it, merging included",
        f"(by estimates, {states} states each), with so many explorative rules one after the other at most.",
        "",
        f"| model | ms | {' | '.join(map(str, depths))} |",
        f"| --- | ---: | {' | '.join('---:' for _ in depths)} |",
    ]
    for model in models:
        worth = Worth(model, states)
        cells = [f"{worth.whole:.3g}", *(f"{sum(worth.saved(ALL, depth)):.2g}" for depth in depths)]
        yield f"| {model} | {' | '.join(cells)} |"


def written_to(path: Path, lines: Iterable[str]) -> None:
    """Every line as soon as it is known."""
    with path.open("w") as file:
        for line in lines:
            print(line, file=file, flush=True)


# who proposes equalities beside the rules
ABLATIONS: dict[str, tuple[str, ...]] = {
    "all": (),
    "no derivation": ("derive",),
    "rules alone": tuple(FINDERS),
}


def ablated(models: Sequence[str], limit: float) -> Iterator[str]:
    """The table of what is gained without derivation, and by rules alone, line by line."""
    yield from [
        "# What derivation gains beside the rest",
        "",
        f"{Machine.here().processor}; `python bench/ablations.py --finders --time-limit {limit:g}`.",
        "Each model, optimized for onnxruntime with generated kernels: by everything, without derivation,",
        "and by rules alone; each in that time, from nothing.  Milliseconds of the original, and how many",
        "times as fast each result is, by rounds in pairs; then which rewrites of the first result are",
        "derivations.",
        "",
        f"| model | ms | {' | '.join(ABLATIONS)} | derivations |",
        f"| --- | ---: | {' | '.join('---:' for _ in ABLATIONS)} | --- |",
    ]
    for model in models:
        (subject,) = select_models([model])
        cells, names = list[str](), list[str]()
        for name, left_out in ABLATIONS.items():
            with temporary_folder() as folder:  # what one has measured would give the next one time
                result = tensaurus.optimize(
                    subject.load(),
                    shapes=dict(subject.shapes),
                    time_limit=limit,
                    without=left_out,
                    database=folder / "ablations.db",
                )
                print(model, name, f"{result.speedup:.2f}", flush=True)
                cells.append(f"{result.speedup:.2f}")
                if name == "all":
                    before = f"{result.summary.original_ms:.3g}"
                    own = (one.rule for one in result.rewrites if one.rule.startswith(DERIVED))
                    names += dict.fromkeys(own)
        yield f"| {model} | {before} | {' | '.join(cells)} | {', '.join(names)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rules", nargs="*")
    parser.add_argument("--depths", nargs="*")
    parser.add_argument("--finders", nargs="*")
    parser.add_argument("--states", type=int, default=20)
    parser.add_argument("--time-limit", type=float, default=60.0)
    options = parser.parse_args()

    def named(models: list[str]) -> list[str]:
        return [subject.name for subject in select_models(models or ["zoo"])]

    if options.rules is not None:
        written_to(TABLES / "derivation_rules.md", ruled(named(options.rules), options.states))
    if options.depths is not None:
        written_to(TABLES / "derivation_depths.md", deep(named(options.depths), options.states))
    if options.finders is not None:
        written_to(TABLES / "derivation_finders.md", ablated(named(options.finders), options.time_limit))


if __name__ == "__main__":
    main()
