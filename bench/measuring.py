"""Operators measured alone, one call each, in a database of their own (TASO's cost, section 5)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tensaurus.cost import weights
from tensaurus.cost.database import Database
from tensaurus.cost.machine import Machine
from tensaurus.cost.measure import Stopwatch
from tensaurus.cost.operators import OperatorCosts
from tensaurus.cost.roofline import Roofline
from tensaurus.graph.builds import Builds
from tensaurus.graph.program import Program
from tensaurus.rules.match import expander
from tensaurus.rules.rule import library
from tensaurus.scratch import temporary


@contextmanager
def measuring(program: Program, backend: str, path: Path) -> Iterator[OperatorCosts]:
    """What measures a program's operators, each with one copy of its weights."""
    machine, copies = Machine.here(), weights.COPIES
    weights.COPIES = 1
    try:
        with (
            Database(path) as database,
            Stopwatch(backend, threads=machine.threads) as stopwatch,
            temporary() as folder,
        ):
            opset, expand = program.frame.opset, expander(library())
            builds = Builds(folder, expand, folded=False)
            roofline = Roofline.here(database, machine)
            yield OperatorCosts(
                database, stopwatch, backend, machine, opset, builds, expand, roofline=roofline
            )
    finally:
        weights.COPIES = copies
