"""What the finders know of a small model: told in time, and each equation of theirs replayed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from differential_verdict import Finding

from tensaurus.check.program.replay import refute_equation
from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.finder_protocol import Finder
from tensaurus.finders.bilinear import Bilinear
from tensaurus.finders.derive import Derive
from tensaurus.finders.fuse import Fuse
from tensaurus.graph.ir.program import Program
from tensaurus.runtimes.price.roofline import Roofline

PLAIN = Roofline(1e-9, 0.0, 0.0)  # seconds of nothing but products
BUDGET = 1.0  # seconds of a derivation
SECONDS = 30.0  # within which a finder tells what it knows of a few nodes, on any machine
ROOM, MOST = 1000, 3  # e-nodes, and equations that are replayed
FINDERS: tuple[Callable[[], Finder], ...] = (
    lambda: Bilinear(PLAIN),
    lambda: Fuse(roofline=PLAIN, variants=Bilinear(PLAIN).variants),
    lambda: Derive(lambda node: 1.0, PLAIN, budget=BUDGET),
)


class Late(Exception):
    """The time is over."""


def proposed(program: Program, turn: int) -> list[Finding]:
    """What is not right with the equations of one finder, which is another in every turn."""
    finder = FINDERS[turn % len(FINDERS)]()
    name = type(finder).__name__.lower()
    graph = EGraph()
    for _, node in program.outputs:
        graph.insert_term(node)
    graph.programs.append(program)
    try:
        with within(SECONDS):
            equations = [proposal.equation for proposal in islice(finder(graph, ROOM), MOST)]
    except Late:
        return [Finding("wrong", (name,), f"hang: says nothing in {SECONDS:g} s")]
    refuted = ((equation, refute_equation(equation)) for equation in equations)
    return [Finding("wrong", (name, e.name), why) for e, why in refuted if why is not None]


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raises Late where what stands in it takes longer."""

    def late(*given: Any) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
