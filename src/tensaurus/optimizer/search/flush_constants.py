"""What a search begins with: the program without the subnormal constants that no result depends on.

It costs nothing, and is there however short the time is.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf

from tensaurus.check.program.candidate import Candidate, Rewritten, prepend_chain
from tensaurus.graph.ir.program import Program
from tensaurus.optimizer.search.outcome import Outcome
from tensaurus.optimizer.search.subgraph_bodies import search_bodies
from tensaurus.rules.prove.subnormal_constants import flush_folded, flush_subnormals

__all__ = ["flush_program", "flush_bodies", "prepend_flush", "flush_candidate"]


def flush_program(program: Program, within: bool = False) -> Candidate:
    """The program with its constants flushed, by one step, or as it is."""
    flushed, first = flush_subnormals(program, within), Candidate(program, inf)
    if (equation := flushed.equation) is None:
        return first
    return Candidate(flushed.program, inf, Rewritten(lambda: (equation,), first))


def flush_bodies(program: Program) -> tuple[Program, list[Candidate]]:
    """The program whose bodies are flushed, and these bodies with their steps."""
    return search_bodies(program, lambda body: Outcome([flush_program(body, within=True)]))


def flush_candidate(candidate: Candidate) -> Candidate:
    """The candidate, or one by one step more: what it computes ahead of time is flushed, too."""
    flushed = flush_folded(candidate.program)
    if (equation := flushed.equation) is None:
        return candidate
    return replace(candidate, program=flushed.program, step=Rewritten(lambda: (equation,), candidate))


def prepend_flush(first: Candidate, outcome: Outcome) -> Outcome:
    """The outcome of a search of the program of `first`, whose chains begin where that one's does."""
    if first.step is None:
        return outcome
    cost = outcome.original.cost
    before = replace(first.step.before, cost=cost)
    step = Rewritten(first.step.equations, before)
    on = partial(prepend_chain, first=replace(first, step=step))
    made = [on(candidate) for candidate in outcome.candidates]
    if not made[0].sure:  # what estimates favour comes behind what is known to do less
        made.sort(key=lambda candidate: len(candidate.chain) != len(step.before.chain) + 1)
    return replace(outcome, candidates=made)
