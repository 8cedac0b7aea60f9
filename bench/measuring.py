"""Operators measured alone, one call each, in a database of their own (TASO's cost, section 5)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.build_cache import BuildCache
from tensaurus.rules.language.match import make_expander
from tensaurus.rules.language.rule import library
from tensaurus.runtimes.measure.database import Database
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.measure.measure import Stopwatch
from tensaurus.runtimes.price import standalone_model
from tensaurus.runtimes.price.operator_times import OperatorCosts
from tensaurus.runtimes.price.roofline import Roofline
from tensaurus.system.scratch import temporary_folder


@contextmanager
def measuring(program: Program, backend: str, path: Path) -> Iterator[OperatorCosts]:
    """What measures a program's operators, each with one copy of its weights."""
    machine, copies = Machine.here(), standalone_model.MAX_COPIES
    standalone_model.MAX_COPIES = 1
    try:
        with (
            Database(path) as database,
            Stopwatch(backend, threads=machine.threads) as stopwatch,
            temporary_folder() as folder,
        ):
            opset, expand = program.frame.opset, make_expander(library())
            builds = BuildCache(folder, expand, folded=False)
            roofline = Roofline.here(database, machine)
            yield OperatorCosts(
                database, stopwatch, backend, machine, opset, builds, expand, roofline=roofline
            )
    finally:
        standalone_model.MAX_COPIES = copies
