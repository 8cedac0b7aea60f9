"""The bodies of If, Loop and Scan, searched like programs of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tensaurus.check.program.candidate import Candidate
from tensaurus.graph.ir.node import OPAQUE, Node, opaque, replace_args
from tensaurus.graph.ir.program import Program
from tensaurus.optimizer.search.outcome import Outcome


def search_bodies(program: Program, search: Callable[[Program], Outcome]) -> tuple[Program, list[Candidate]]:
    """The program with the best body for each of its bodies, and these bodies with their chains.

    Bodies are searched from the innermost outwards.
    """
    improvements: list[Candidate] = []

    def improved(body: Program) -> Program:
        inner, chains = search_bodies(body, search)
        improvements.extend(chains)
        best = search(inner).best
        if best.step is not None:
            improvements.append(best)
        return best.program

    def build(node: Node, args: tuple[Node | None, ...]) -> Node:
        if node.op is not OPAQUE or not node.attribute("form").bodies:
            return replace_args(node, args)
        form = node.attribute("form")
        bodies = tuple((name, improved(body)) for name, body in form.bodies)
        if bodies == form.bodies:
            return replace_args(node, args)
        effects = any(key == "identity" for key, _ in node.attrs)
        return opaque(replace(form, bodies=bodies), args, node.types, effects=effects)

    if not any(node.op is OPAQUE and node.attribute("form").bodies for node in program.nodes):
        return program, improvements
    return program.rebuild(build), improvements
