"""How much of a program is understood."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tensaurus.graph.node import OPAQUE
from tensaurus.graph.program import Program


@dataclass
class Census:
    """Nodes with a declaration, and opaque ones by operator; bodies of If, Loop and Scan included."""

    typed: int = 0
    opaque: Counter[str] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)  # (operator, why it is opaque)


def census(program: Program) -> Census:
    """Counts over the program and the bodies in it."""
    found = Census()

    def count(part: Program) -> None:
        for node in part.nodes:
            if node.declared:
                found.typed += 1
            elif node.op is OPAQUE:
                form = node.attribute("form")
                found.opaque[form.operator] += 1
                found.reasons[form.operator, form.reason] += 1
                for _, body in form.bodies:
                    count(body)

    count(program)
    return found
