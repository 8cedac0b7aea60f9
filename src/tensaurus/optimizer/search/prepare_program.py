"""Prepares programs for a search: flushes subnormal constants, and widens numbers of half precision.

Arithmetic with subnormal numbers is 10 to 100 times slower on Intel processors, and processors without
arithmetic of half precision convert every operand.  To prepare a program needs no search, so it is done
however short the time is.  Each preparation is a step of the candidate like any rewrite:

    model --flush, widen--> prepared model --search's steps--> program --flush of folded constants--> program
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from tensaurus.check.program.candidate import Candidate, Rewritten, prepend_chain
from tensaurus.graph.ir.program import Program
from tensaurus.optimizer.search.outcome import Outcome
from tensaurus.optimizer.search.subgraph_bodies import search_bodies
from tensaurus.rules.prove.subnormal_constants import flush_folded, flush_subnormals
from tensaurus.rules.prove.wide_floats import widen_equation, widen_floats

__all__ = ["flush_program", "flush_bodies", "flush_candidate", "prepend_preparation", "widen_candidate"]


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


def widen_candidate(candidate: Candidate) -> Candidate:
    """Return the candidate computed in float32 where it is of half precision, with one more step then."""
    before, after = candidate.program, widen_floats(candidate.program)
    if after is before:
        return candidate
    return Candidate(after, inf, Rewritten(lambda: (widen_equation(before, after),), candidate))


def prepend_preparation(first: Candidate, outcome: Outcome) -> Outcome:
    """Return the outcome of a search of the prepared program, with its preparation before all steps.

    first  the candidate that was prepared, in one step or several: its program is the one that was searched
    """
    if first.step is None:
        return outcome
    # the model was never measured before: it gets the cost of the prepared model
    model = replace(first.step.before, cost=outcome.original.cost)
    prepared = replace(first, step=Rewritten(first.step.equations, model))
    candidates = [prepend_chain(candidate, prepared) for candidate in outcome.candidates]
    if not candidates[0].sure:  # where estimates rank, the prepared model itself comes first
        candidates.sort(key=lambda candidate: len(candidate.chain) != len(prepared.chain))
    return replace(outcome, candidates=candidates)
