"""Searches the bodies of If, Loop and Scan, each as a program of its own.

A body is in the `form` of its node, which is opaque: a better body makes another opaque node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tensaurus.check.program.candidate import Candidate
from tensaurus.graph.ir.node import OPAQUE, Node, opaque, replace_args
from tensaurus.graph.ir.program import Program
from tensaurus.optimizer.search.outcome import Outcome


def search_bodies(program: Program, search: Callable[[Program], Outcome]) -> tuple[Program, list[Candidate]]:
    """Return the program with the best form of each of its bodies, and the improved bodies as candidates.

    Inner bodies are searched before the bodies that contain them.
    """
    improvements: list[Candidate] = []

    def improve_body(body: Program) -> Program:
        inner, inner_improvements = search_bodies(body, search)
        improvements.extend(inner_improvements)
        best = search(inner).best
        if best.step is not None:
            improvements.append(best)
        return best.program

    def build(node: Node, args: tuple[Node | None, ...]) -> Node:
        if node.op is not OPAQUE or not node.attribute("form").bodies:
            return replace_args(node, args)
        form = node.attribute("form")
        bodies = tuple((name, improve_body(body)) for name, body in form.bodies)
        if bodies == form.bodies:
            return replace_args(node, args)
        # with effects or randomness it equals no other node; the new one gets a number of its own
        effects = any(key == "identity" for key, _ in node.attrs)
        return opaque(replace(form, bodies=bodies), args, node.types, effects=effects)

    if not any(node.op is OPAQUE and node.attribute("form").bodies for node in program.nodes):
        return program, improvements
    return program.rebuild(build), improvements
