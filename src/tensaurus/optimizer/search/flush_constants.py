"""Replaces subnormal constants that no result depends on by 0, before and after a search.

Arithmetic with subnormal numbers is 10 to 100 times slower on Intel processors.  Removing them needs no
search, so it is done however short the time is.  The flush is a step of the candidate like any rewrite:

    model --flush--> flushed model --search's steps--> program --flush of folded constants--> program
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from tensaurus.check.program.candidate import Candidate, Rewritten, prepend_chain
from tensaurus.graph.ir.program import Program
from tensaurus.optimizer.search.outcome import Outcome
from tensaurus.optimizer.search.subgraph_bodies import search_bodies
from tensaurus.rules.prove.subnormal_constants import flush_folded, flush_subnormals

__all__ = ["flush_program", "flush_bodies", "prepend_flush", "flush_candidate"]


def flush_program(program: Program, within: bool = False) -> Candidate:
    """Return the program with its subnormal constants flushed, as a candidate of one step, or of none.

    Its cost is infinite, as nothing was measured.  `within`: the program is a body of an If, Loop or Scan.
    """
    flushed, first = flush_subnormals(program, within), Candidate(program, inf)
    if (equation := flushed.equation) is None:
        return first
    return Candidate(flushed.program, inf, Rewritten(lambda: (equation,), first))


def flush_bodies(program: Program) -> tuple[Program, list[Candidate]]:
    """Return the program with its bodies flushed, and the bodies as candidates."""
    return search_bodies(program, lambda body: Outcome([flush_program(body, within=True)]))


def flush_candidate(candidate: Candidate) -> Candidate:
    """Return the candidate, with one more step if constants that it computes ahead of time are subnormal."""
    flushed = flush_folded(candidate.program)
    if (equation := flushed.equation) is None:
        return candidate
    return replace(candidate, program=flushed.program, step=Rewritten(lambda: (equation,), candidate))


def prepend_flush(first: Candidate, outcome: Outcome) -> Outcome:
    """Return the outcome of a search of the flushed program, with the flush before each candidate's steps.

    first  the candidate that `flush_program` made: its program is the one that was searched
    """
    if first.step is None:
        return outcome
    # the model was never measured before the flush: it gets the cost of the flushed model
    model = replace(first.step.before, cost=outcome.original.cost)
    flushed = replace(first, step=Rewritten(first.step.equations, model))
    candidates = [prepend_chain(candidate, flushed) for candidate in outcome.candidates]
    if not candidates[0].sure:  # where estimates rank, the flush alone comes first
        candidates.sort(key=lambda candidate: len(candidate.chain) != len(flushed.chain))
    return replace(outcome, candidates=candidates)
