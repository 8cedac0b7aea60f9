"""What do mutants gain on this processor, operator by operator (PET, section 8.3, Tables 3 and 4)?

Each operator is a model of its own with constant weights, at batch 1 and 16.  Its mutants with the least
estimated time are corrected and timed on onnxruntime: with a generated kernel for each re-indexing and
correction, with ONNX's operators alone, and as the mutant's operator by itself, without re-indexing and
corrections, which shows what these cost.  Writes tables/mutant_gains.md.

    python bench/mutant_gains.py [--top 4] [--seconds 120] [--tuning 2] [OPERATOR ...]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import onnx
from revision import name_commit

from tensaurus.finders.mutate.correct_mutant import CorrectedMutant
from tensaurus.finders.mutate.mutant_search import MutantSearch
from tensaurus.finders.mutate.mutation_finder import rank_mutants
from tensaurus.finders.mutate.subprogram import Subprogram
from tensaurus.graph.ir.node import Node, apply, constant, replace_args, source
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.graph.onnx.build import Build
from tensaurus.graph.onnx.build_cache import BuildCache
from tensaurus.graph.onnx.onnx_frame import Frame
from tensaurus.kernels.tune.tune import Tuner
from tensaurus.kernels.tune.tuned_kernels import TunedKernels
from tensaurus.ops import registry
from tensaurus.ops.examples import parse_example
from tensaurus.rules.language.match import make_expander
from tensaurus.rules.language.rule import library
from tensaurus.runtimes.measure.database import Database
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.measure.measure import Stopwatch
from tensaurus.runtimes.price.roofline import Roofline
from tensaurus.system.errors import TensaurusError
from tensaurus.system.files import replace_file
from tensaurus.system.scratch import temporary_folder

TABLE = Path(__file__).parent / "tables" / "mutant_gains.md"
OPSET = 17

# name: the operators of one subprogram, each with the types of its data and weights; B is the batch
OPERATORS = {
    "conv": ["Conv f32[B,48,38,38] f32[64,48,5,5] pads=(2,2,2,2)"],
    "dilated conv": ["Conv f32[B,512,14,14] f32[256,512,3,3] pads=(2,2,2,2) dilations=(2,2)"],
    "strided conv": ["Conv f32[B,64,56,56] f32[128,64,3,3] pads=(1,1,1,1) strides=(2,2)"],
    "group conv": ["Conv f32[B,768,18,18] f32[192,768,1,1]", "Conv f32[B,768,18,18] f32[160,768,1,1]"],
    "batch matmul": ["MatMul f32[BN,768] f32[768,768]", "MatMul f32[BN,768] f32[768,768]"],
}
ROWS = 512  # of the matrices at batch 1, as in the paper


@dataclass(frozen=True)
class Row:
    """One mutant of an operator: what it is, and milliseconds; inf where it could not be run."""

    operator: str
    mutant: str
    work: float
    corrected: float
    original_ms: float
    kernels_ms: float
    standard_ms: float
    alone_ms: float


class Timer:
    """Times programs on onnxruntime, each in a process of its own."""

    def __init__(self, machine: Machine, records: Database, folder: Path, tuning: float):
        self.machine, self.folder = machine, folder
        self.tuner = Tuner(records, machine, "native")
        kernels = TunedKernels(self.tuner, lambda least: tuning)
        self.generating = BuildCache(folder, make_expander(library()), kernels, kernels.link)
        self.standard = BuildCache(folder, make_expander(library()))

    def time(self, roots: Sequence[Node], builds: BuildCache) -> float:
        """Return the milliseconds of a run, inf where onnxruntime refuses the program."""
        inputs = [node for node in topological_order(roots) if not node.args and not node.static]
        outputs = tuple((f"y{k}", root) for k, root in enumerate(roots))
        shell = onnx.ModelProto(ir_version=10)
        shell.opset_import.add(domain="", version=OPSET)
        shell.graph.name = "mutant"
        named = [(node.attribute("name"), node) for node in inputs], outputs
        frame = Frame(shell, *(tuple(_value_info(name, node) for name, node in each) for each in named))
        program = Program(tuple(inputs), outputs, frame=frame)
        rng = np.random.default_rng(0)
        feeds: dict[str, np.ndarray[Any, Any]] = {}
        for node in inputs:
            shape = [n for n in node.tensor.shape if isinstance(n, int)]
            feeds[node.attribute("name")] = rng.standard_normal(shape).astype(np.float32)
        try:
            return self._measure(builds(program), feeds)
        except TensaurusError as error:
            print(f"    {error}")
            return inf

    def _measure(self, build: Build, feeds: Mapping[str, np.ndarray[Any, Any]]) -> float:
        with Stopwatch("onnxruntime", threads=self.machine.threads) as stopwatch:
            return 1e3 * (stopwatch.measure(build, feeds) or inf)


def _value_info(name: str, node: Node) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, list(node.tensor.shape))


def subprogram_of(texts: Sequence[str], batch: int) -> Subprogram:
    """Return the operators of one name, over inputs and constant weights."""
    nodes = []
    rng = np.random.default_rng(0)
    for k, text in enumerate(texts):
        name, words = text.replace("BN", str(ROWS * batch)).replace("B", str(batch)).split(" ", 1)
        example = parse_example(words)
        data, weights = (kind for kind in example.types if kind is not None)
        w = rng.standard_normal([n for n in weights.shape if isinstance(n, int)]).astype(np.float32)
        nodes.append(apply(registry[name], [source(f"x{k}", data), constant(w)], example.attrs))
    found = Subprogram.of(nodes)
    assert found is not None
    return found


def describe(corrected: CorrectedMutant) -> str:
    candidate = corrected.mutant.candidate
    attrs = {name: value for name, value in candidate.attrs if name in ("strides", "dilations", "group")}
    words = ", ".join(f"{name} {value}" for name, value in attrs.items() if value not in (1, (1, 1)))
    arranged = "; ".join(str(arrangement) for arrangement in candidate.arrangements)
    return f"{candidate.op}{' ' if words else ''}{words} of {arranged}"


def core_of(subprogram: Subprogram, corrected: CorrectedMutant) -> Node:
    """Return the mutant's operator on inputs of the arranged shapes: neither re-indexed nor corrected."""
    candidate = corrected.mutant.candidate
    core = candidate.build(subprogram.leaves)
    args: list[Node | None] = [
        arg if arg is None or arg.static else source(f"a{k}", arg.types[0]) for k, arg in enumerate(core.args)
    ]
    return replace_args(core, tuple(args))


def rows_of(name: str, batch: int, top: int, seconds: float, timer: Timer, roofline: Roofline) -> list[Row]:
    subprogram = subprogram_of(OPERATORS[name], batch)
    title = f"{name}, batch {batch}"
    search = MutantSearch(subprogram)
    mutants = list(search.run(monotonic() + seconds))
    ranked = rank_mutants(subprogram, mutants, roofline, monotonic() + seconds)
    original = timer.time(subprogram.nodes, timer.standard)
    print(f"{title}: {search.tried} candidates, {len(mutants)} mutants, {original:.3g} ms", flush=True)
    rows = []
    for _, corrected in ranked[:top]:
        leaves = dict(zip(subprogram.inputs, subprogram.leaves, strict=True))
        roots = corrected.equation.over(leaves).right
        kernels, standard = (timer.time(roots, builds) for builds in (timer.generating, timer.standard))
        alone = timer.time([core_of(subprogram, corrected)], timer.standard)
        row = Row(
            title, describe(corrected), corrected.mutant.work, corrected.corrected_share,
            original, kernels, standard, alone,
        )  # fmt: skip
        print(f"  {row.mutant}: {kernels:.3g} {standard:.3g} {alone:.3g}", flush=True)
        rows.append(row)
    return rows


def page(rows: Sequence[Row], machine: Machine, command: str) -> str:
    def ratio(row: Row, milliseconds: float) -> str:
        return f"{row.original_ms / milliseconds:.2f}x" if isfinite(milliseconds) else "-"

    lines = [
        "# What mutants gain, operator by operator", "",
        f"{machine.processor}, {machine.threads} threads; `{command}`; made by {name_commit()}.",
        "Gains are over the original on onnxruntime: of the corrected mutant with generated kernels, with",
        "ONNX's operators alone, and of its operator by itself, neither re-indexed nor corrected.  *Work*:",
        "the multiplications of that operator; *corrected*: the elements that corrections compute.", "",
        "| operator | original, ms | mutant | work | corrected | kernels | ONNX alone | operator by itself |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for r in rows:
        cells = [r.operator, f"{r.original_ms:.3g}", r.mutant, f"{r.work:.2f}", f"{r.corrected:.0%}"]
        cells += [ratio(r, milliseconds) for milliseconds in (r.kernels_ms, r.standard_ms, r.alone_ms)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--batches", type=int, nargs="*", default=(1, 16))
    parser.add_argument("--top", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--tuning", type=float, default=2.0)
    parser.add_argument("--table", type=Path, default=TABLE)
    options = parser.parse_args()
    machine, rows = Machine.here(), list[Row]()
    with temporary_folder() as folder, Database(folder / "times.db") as records:
        timer = Timer(machine, records, folder, options.tuning)
        roofline = Roofline.here(records, machine)
        for name in options.operators or OPERATORS:
            for batch in options.batches:
                rows += rows_of(name, batch, options.top, options.seconds, timer, roofline)
        timer.tuner.close()
    command = f"python bench/mutant_gains.py --top {options.top} --seconds {options.seconds:g}"
    with replace_file(options.table) as path:
        path.write_text(page(rows, machine, command))


if __name__ == "__main__":
    main()
