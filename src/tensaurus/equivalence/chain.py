"""Every rewrite of a result, replayed: the programs of its chain compared before any constant is rounded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from tensaurus.algebra.field import Reals
from tensaurus.backends import BackendError
from tensaurus.backends.reference import evaluate_all
from tensaurus.equivalence.field_check import SIZE, FieldCheck, check_field
from tensaurus.graph.program import Program
from tensaurus.ops import TensorType
from tensaurus.search.backtrack import Candidate

TOLERANCE = 1e-9  # of float64 results, relative to the largest element: four digits above its rounding


def check_rewrites(candidates: Sequence[Candidate], seed: int = 0) -> FieldCheck:
    """The programs along each candidate's chain, pairwise equal.

    Runs of rewrites that hold in every field are compared over GF(2^31 - 1).  A rewrite that needs the order
    of the reals (its rule was proved or tested with the true max and min) is compared in float64 instead.
    """
    checks: list[FieldCheck] = []
    for candidate in candidates:
        for before, after, exact in _links(candidate):
            a, b = _closed(before), _closed(after)
            check = check_field(a, b, seed=seed) if exact else _check_reals(a, b, seed)
            if not check.passed:
                return check
            checks.append(check)
    compared = [c for c in checks if c.trials]
    return FieldCheck(
        passed=True,
        trials=min((c.trials for c in compared), default=0),
        degree=max((c.degree for c in compared), default=0),
        error_bound=min(1.0, sum(c.error_bound for c in compared)) if compared else 1.0,
        detail="; ".join(dict.fromkeys(c.detail for c in checks if c.detail)),
    )


def _links(candidate: Candidate) -> Iterator[tuple[Program, Program, bool]]:
    """(before, after, whether over a finite field): field rewrites in runs, the others one by one."""
    chain = candidate.chain
    start = chain[0].program
    for at in chain[1:]:
        assert at.step is not None
        evidence = at.step.rule.evidence
        if evidence is not None and evidence.by in ("gf", "canonical form", "symbols"):
            continue
        before = at.step.before.program
        if before is not start:
            yield start, before, True
        yield before, at.program, False
        start = at.program
    if start is not chain[-1].program:
        yield start, chain[-1].program, True


def _closed(program: Program) -> Program:
    """A body with what it captures as inputs."""
    return replace(program, inputs=(*program.inputs, *program.captured), captured=())


def _check_reals(a: Program, b: Program, seed: int) -> FieldCheck:
    rng = np.random.default_rng(seed)
    feeds = {}
    for node in a.inputs:
        kind = node.types[0]
        if not isinstance(kind, TensorType) or kind.dtype == "string":
            return FieldCheck(True, 0, 0, 1.0, "a body with inputs of unknown type was not replayed")
        shape = [n if isinstance(n, int) else SIZE for n in kind.shape]
        name = node.attribute("name")
        if kind.dtype.startswith(("float", "bfloat")):
            feeds[name] = rng.standard_normal(shape) * 4
        else:
            feeds[name] = rng.integers(0, 2, shape).astype(bool if kind.dtype == "bool" else np.int64)
    try:
        left, right = evaluate_all([a, b], feeds, Reals())
    except BackendError as error:
        return FieldCheck(True, 0, 0, 1.0, f"not replayed: {error}")
    for name, value in left.items():
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub":
            continue
        allowed = TOLERANCE * (1 + np.max(np.abs(value), initial=0.0, where=np.isfinite(value)))
        same = np.isclose(right[name], value, rtol=0, atol=allowed, equal_nan=True)
        if not same.all():
            return FieldCheck(False, 1, 0, 1.0, f"output {name} differs in {int((~same).sum())} elements")
    return FieldCheck(True, 0, 0, 0.0, "rewrites that need the order of the reals were replayed in float64")
