"""Derivation: what is found, how the search gets there, and what the forms take (EINNET, section 7).

    python bench/derivations.py
        the papers' cases at their sizes: states and seconds until each is found, with and without
        fingerprints, guidance and converging rules; writes tables/derivations.md
    python bench/derivations.py --draws 20
        every case at so many random sizes, strides, dilations and pads: whether it is found, and whether the
        equation holds; writes tables/derivations_drawn.md
    python bench/derivations.py --times [--tuning 10]
        the papers' cases and their forms on onnxruntime and openvino; writes tables/derivation_times.md
    python bench/derivations.py --choices [--time-limit 40]
        what `tensaurus.optimize` makes of the papers' cases on each runtime, and what it gains;
        writes tables/derivation_choices.md
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from math import inf, isfinite, nan
from pathlib import Path
from statistics import median
from time import monotonic

import numpy as np
import onnx
from derivation_cases import (
    CASES,
    Claim,
    Nodes,
    banded,
    call,
    kernel_of,
    matmul_and_offsets,
    part_of,
    plain_convolution,
    searched,
    selective_sum,
    undilated,
)
from operators import timed

import tensaurus
from tensaurus.check.program.replay import refute_equation
from tensaurus.finders.derive.derivation_equation import make_equation
from tensaurus.finders.derive.derivation_search import DerivedProgram, Search
from tensaurus.finders.derive.linear_regions import LinearRegion
from tensaurus.graph.ir.node import constant, replace_args
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import topological_order
from tensaurus.graph.onnx.build_cache import BuildCache
from tensaurus.graph.onnx.onnx_export import export_model
from tensaurus.kernels.tune.tune import Tuner
from tensaurus.kernels.tune.tuned_kernels import TunedKernels
from tensaurus.ops.eop import eop
from tensaurus.rules.language.match import make_expander
from tensaurus.rules.language.rule import library
from tensaurus.runtimes.measure.database import Database
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.price.standalone_model import standalone_model
from tensaurus.system.scratch import temporary_folder

TABLES = Path(__file__).parent / "tables"
MATCHED = ("operator matching", "eOperator generation")  # steps that instantiate, not derive
SECONDS = 60.0  # of one search
MOST = 1000  # states of the search for a random case
FORMS = 200  # states of the search for a form that is timed
WEIGHTED = {"Conv", "ConvTranspose"}  # whose second input is a weight
OPSET = 17

# at the sizes of EINNET's table 3 and figures 6 and 14
PAPER: dict[str, tuple[Callable[[], Nodes], Claim]] = {
    "Conv3x3 as MatMul and OffsetReduce, 1x512x7x7": (
        lambda: (call("Conv", (1, 512, 7, 7), (512, 512, 3, 3), pads=(1, 1, 1, 1)),),
        matmul_and_offsets,
    ),
    "ConvTranspose as MatMul and selective sum, 16x448x2x2": (
        lambda: (
            call("ConvTranspose", (16, 448, 2, 2), (448, 256, 4, 4), strides=(2, 2), pads=(1, 1, 1, 1)),
        ),
        selective_sum,
    ),
    "Conv5x5 as Conv3x3, 16x32x224x224": (
        lambda: (call("Conv", (16, 32, 224, 224), (1, 32, 5, 5), pads=(2, 2, 2, 2)),),
        kernel_of(3, 3),
    ),
    "dilated Conv as plain, 1x512x14x14": (
        lambda: (
            call("Conv", (1, 512, 14, 14), (512, 512, 3, 3), pads=(2, 2, 2, 2), dilations=(2, 2)),
        ),
        plain_convolution,
    ),
    "dilated G2BMM as plain, 8x10000x64": (
        lambda: (banded(0, False, (8, 10000, 32, 64, 4)),),
        undilated,
    ),
    "dilated GBMM as plain, 8x10000x64": (
        lambda: (banded(0, True, (8, 10000, 32, 64, 4)),),
        undilated,
    ),
}

WAYS = {
    "all": Search(),
    "no fingerprints": Search(prunes_known=False),
    "not guided": Search(is_guided=False),
    "no converging": Search(converging=()),
}


@dataclass(frozen=True)
class Found:
    """After how many states, met and pruned ones, programs and seconds; by how many rules."""

    states: int
    met: int
    pruned: int
    programs: int
    rules: int
    seconds: float


def until(part: LinearRegion, claim: Claim, search: Search) -> tuple[DerivedProgram, Found] | None:
    """The first program of which the claim is true; None where the search ends before."""
    leaves, began, most, seen = tuple(part.names.values()), monotonic(), search.max_states, 0
    search.deadline, search.max_states = began + SECONDS, 0
    searched(part, search)
    while search.is_cut and search.max_states < most and not search.is_late:
        search.max_states += 1
        found = search.resume()
        one = next((one for one in found if claim(one, leaves)), None) if search.found > seen else None
        if one is not None:
            rules = [move.rule for move in one.state.applied if move.rule not in MATCHED]
            counts = search.explored, search.produced, search.pruned, search.found, len(rules)
            return one, Found(*counts, monotonic() - began)
        seen = search.found
    return None


def compared() -> str:
    """The table of ways to search."""
    lines = [
        "# How derivations are found",
        "",
        f"{Machine.here().processor}, one thread; `python bench/derivations.py`.  States explored until",
        "the program is found, those met, those pruned by fingerprint, programs by then, rules on its path,",
        f"seconds; at most {SECONDS:g} s and {WAYS['all'].max_states} states, *no* where that is not enough.",
        "",
        "| case | search | states | met | pruned | programs | rules | s |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, (build, claim) in PAPER.items():
        for way, search in WAYS.items():
            found = until(part_of(build()), claim, replace(search))
            cells = ["no"] + [""] * 5 if found is None else list(map(_said, astuple(found[1])))
            print(name, way, *cells, flush=True)
            lines.append(f"| {name} | {way} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _said(value: int | float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.2g}"


def drawn(draws: int) -> str:
    """The table of random cases."""
    lines = [
        "# What is found at random sizes",
        "",
        f"`python bench/derivations.py --draws {draws}`: of so many draws of each case those found, and",
        "of what is found those whose equation holds over GF(p).",
        f"States until it is found, the median and the most of {MOST}, and seconds.",
        "",
        "| case | found | right | states | at most | s |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, (build, claim, search) in CASES.items():
        counts, right, seconds = list[int](), 0, 0.0
        for seed in range(draws):
            part = part_of(build(seed))
            made = until(part, claim, replace(search, max_states=MOST))
            if made is None:
                print(name, seed, "not found", flush=True)
                continue
            counts.append(made[1].states)
            seconds += made[1].seconds
            law = make_equation(part.forms, tuple(part.names.values()), made[0])
            if law is not None and refute_equation(law) is None:
                right += 1
            else:
                print(name, seed, "WRONG", flush=True)
        found = len(counts)
        middle, mean = (median(counts), seconds / found) if found else (nan, nan)
        line = f"| {name} | {found} | {right} | {middle:g} | {max(counts, default=0)} | {mean:.2g} |"
        print(line, flush=True)
        lines.append(line)
    return "\n".join(lines) + "\n"


# --------------------------------------------------------------------------------- what forms take


def form_of(name: str) -> tuple[Piece, Piece] | None:
    """A paper's case, and the fastest form of its kind that is found; weights are constants in both."""
    build, claim = PAPER[name]
    nodes = build()
    part = part_of(nodes)
    leaves = tuple(part.names.values())
    matching = (one for one in searched(part, Search(max_states=FORMS)) if claim(one, leaves))
    laws = (make_equation(part.forms, leaves, one) for one in matching)
    law = next((law for law in laws if law is not None), None)
    if law is None:
        return None
    rng = np.random.default_rng(0)
    fixed = {
        leaf: constant(rng.standard_normal(leaf.tensor.shape).astype(np.float32))
        for leaf in leaves[1:]
        if nodes[0].op.name in WEIGHTED
    }
    law = law.over({leaf: fixed.get(leaf, leaf) for leaf in leaves})
    first, second = (
        Piece(root, tuple(node for node in topological_order((root,)) if not node.args))
        for root in (law.left[0], law.right[0])
    )
    return first, second


def taken(piece: Piece, machine: Machine, tuning: float) -> dict[str, float]:
    """Seconds by standard operators on each runtime and, where it has eOperators, with kernels."""
    found = {}
    with temporary_folder() as folder, Database(folder / "times.db") as records:
        program, feeds = standalone_model(piece, OPSET)
        build = BuildCache(folder, make_expander(library()), folded=False)(program)
        for backend in ("onnxruntime", "openvino"):
            found[backend] = timed(backend, build, feeds, machine.threads)
        if piece.has_eoperators:
            tuner = Tuner(records, machine, "native")
            kernels = TunedKernels(tuner, lambda least: tuning)
            builds = BuildCache(folder, make_expander(library()), kernels, kernels.link, folded=False)
            build = builds(program)
            tuner.close()
            found["kernels"] = timed("onnxruntime", build, feeds, machine.threads)
    return found


def forms(tuning: float) -> str:
    """The table of what forms take."""
    machine = Machine.here()
    lines = [
        "# What derived forms take",
        "",
        f"{machine.processor}, {machine.threads} threads; `python bench/derivations.py --times`.",
        "Milliseconds of the operator and of the fastest form of the kind, by standard operators, and with",
        f"kernels for what is no operator, each tuned for {tuning:g} s; the last columns are the operator's",
        "time over the form's on the same runtime, and the better runtime's over that with kernels.  A band",
        "is no operator: its own times are of its expression, written out in standard operators.  *-*: it",
        "did not run, in time or memory.",
        "",
        "| case | onnxruntime | openvino | form on onnxruntime | on openvino | with kernels | ratios | | |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in PAPER:
        pieces = form_of(name)
        if pieces is None:
            lines.append(f"| {name} | | | not found | | | | | |")
            continue
        plain, made = (taken(piece, machine, tuning) for piece in pieces)
        best = min(plain["onnxruntime"], plain["openvino"])
        kernels = made.get("kernels", inf)
        times = [plain["onnxruntime"], plain["openvino"], made["onnxruntime"], made["openvino"], kernels]
        pairs = ((times[0], times[2]), (times[1], times[3]), (best, kernels))
        ratios = [f"{a / b:.2f}" if isfinite(a) and isfinite(b) else "-" for a, b in pairs]
        line = " | ".join([*(f"{1e3 * t:.3g}" if isfinite(t) else "-" for t in times), *ratios])
        print(name, line, flush=True)
        lines.append(f"| {name} | {line} |")
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------------------ what extraction chooses

# who chooses: the runtime, whether kernels may be generated, and times of the limit: these have to be tuned
CHOOSERS = (("onnxruntime", True, 3), ("onnxruntime", False, 1), ("openvino", False, 1))


def model_of(name: str) -> onnx.ModelProto | None:
    """A paper's case as a model, its weights constants; None where it is no operator of ONNX."""
    (node,) = PAPER[name][0]()
    if node.op.domain or node.op is eop:
        return None
    weights = node.args[1:] if node.op.name in WEIGHTED else ()
    # whose elements `alone` draws
    fixed = {x: constant(np.zeros(x.tensor.shape, np.float32)) for x in weights if x is not None}
    root = replace_args(node, tuple(None if x is None else fixed.get(x, x) for x in node.args))
    program, _ = standalone_model(Piece.of(root), OPSET)
    return export_model(program)


def choices(limit: float) -> str:
    """The table of what `optimize` makes of the papers' cases."""
    lines = [
        "# What extraction chooses",
        "",
        f"{Machine.here().processor}; `python bench/derivations.py --choices --time-limit {limit:g}`.",
        f"Each operator is a model of its own, its weights constants, optimized in {limit:g} s for each",
        "runtime with standard operators alone, and in three times as much for onnxruntime with generated",
        "kernels, too.  Bands are no operators of ONNX; networks of them are in the zoo.",
        "",
        "| case | for | before, ms | after, ms | gain | chosen |",
        "| --- | --- | ---: | ---: | ---: | --- |",
    ]
    for name in PAPER:
        model = model_of(name)
        for backend, kernels, times_more in CHOOSERS if model is not None else ():
            with temporary_folder() as folder:
                result = tensaurus.optimize(
                    model,
                    backend=backend,
                    custom_ops=kernels,
                    time_limit=times_more * limit,
                    database=folder / "choices.db",
                )
            found = ", ".join(dict.fromkeys(one.rule for one in result.rewrites)) or "the operator itself"
            summary = result.summary
            times = f"{summary.original_ms:.3g} | {summary.optimized_ms:.3g} | {result.speedup:.2f}"
            whose = f"{backend}, kernels" if kernels else backend
            lines.append(f"| {name} | {whose} | {times} | {found} |")
            print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=0)
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--choices", action="store_true")
    parser.add_argument("--tuning", type=float, default=10.0)
    parser.add_argument("--time-limit", type=float, default=40.0)
    options = parser.parse_args()
    if options.times:
        (TABLES / "derivation_times.md").write_text(forms(options.tuning))
    elif options.choices:
        (TABLES / "derivation_choices.md").write_text(choices(options.time_limit))
    elif options.draws:
        (TABLES / "derivations_drawn.md").write_text(drawn(options.draws))
    else:
        (TABLES / "derivations.md").write_text(compared())


if __name__ == "__main__":
    main()
