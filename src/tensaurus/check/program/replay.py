"""Checks every rewrite of a result, before any constant is rounded.

A rewrite is replayed by itself: the terms that the rule's variables match become inputs, constants keep their
values, and both sides are compared at random points of GF(2^31 - 1), exactly, or in float64.  Rewrites that
are equal over their leaves are replayed once.

Where this would take longer than to compare the programs before and after a run of rewrites that hold in
every field, these two programs are compared instead.  That may say nothing: the formal degree of a deep
network of products leaves no bound, and some laws need the order of the reals.  Then each rewrite is
replayed.  Equality is transitive, and the bounds of the error add up along the chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TypeAlias

from tensaurus.check.program.candidate import Candidate
from tensaurus.check.program.field_check import FieldCheck, check_field
from tensaurus.check.program.independent_leaves import over_independent_leaves
from tensaurus.check.program.real_check import check_reals
from tensaurus.check.program.replay_sides import (
    UNKNOWN_SIZE,
    Sides,
    count_elements,
    largest_tensor,
    sides_to_replay,
)
from tensaurus.egraph.core.egraph_proof import follows
from tensaurus.expr.evaluate.two_point_field import LAW_LADDER
from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.program import Program
from tensaurus.ops import TensorType
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.evidence import Bounded, Derived, Widened
from tensaurus.rules.prove.subnormal_constants import refute_flush
from tensaurus.rules.prove.wide_floats import refute_widening
from tensaurus.runtimes.price.operation_counts import operations
from tensaurus.system.child import available_memory
from tensaurus.system.progress import Stage, report_nothing

OPERATIONS_PER_ELEMENT = 500  # cost of one element of a tensor, in scalar operations, however it is computed
ALWAYS_REPLAYED_ELEMENTS = 1 << 25  # of one tensor; larger ones are replayed where there is memory
BYTES_PER_ELEMENT = 8 * 8  # memory for one element: about eight arrays of eight bytes each are alive at once
MEMORY_MARGIN = 2  # the available memory must be this many times the memory that a replay takes
MAX_USEFUL_BOUND = 1e-3  # a comparison of whole programs with a larger error bound says too little

# Both sides' roots, and whether they are compared over the field: equal where the replay is the same.
_ReplayKey: TypeAlias = tuple[tuple[Node, ...], tuple[Node, ...], bool]


def check_rewrites(
    candidates: Sequence[Candidate], seed: int = 0, stage: Stage = report_nothing
) -> FieldCheck:
    """Check every rewrite along the candidates' chains; `trials` counts those with an error bound.

    `stage` is called with the number of the rewrite that is being checked.
    """
    checker = _RewriteChecker(seed)
    runs = [run for candidate in candidates for run in _split_into_runs(candidate)]
    count, total = 0, sum(1 for run in runs for _ in _equations_of(run))

    def report_start(number: int) -> None:
        stage("rewrite", count + number, total)

    for run in runs:
        failure = checker.check_run(run, report_start)
        count += sum(1 for _ in _equations_of(run))
        if failure is not None:
            return failure
    return checker.tally.summarize()


def refute_equation(equation: Equation) -> str | None:
    """Return why an equation does not hold; None where it does, as far as its replay tells."""
    check = _RewriteChecker(seed=0).check_equation(equation)
    return None if check.passed else check.detail


def _split_into_runs(candidate: Candidate) -> Iterator[list[Candidate]]:
    """Cut the chain after the original into runs of steps that hold in every field; other steps are alone."""
    run: list[Candidate] = []
    for at in candidate.chain[1:]:
        if all(_holds_in_every_field(equation) for equation in _equations_of([at])):
            run.append(at)
            continue
        if run:
            yield run
        yield [at]
        run = []
    if run:
        yield run


def _equations_of(run: Sequence[Candidate]) -> Iterator[Equation]:
    """Yield every rewrite of the run."""
    for at in run:
        assert at.step is not None
        yield from at.step.applied


def _holds_in_every_field(equation: Equation) -> bool:
    return equation.evidence.is_exact


@dataclass
class _Tally:
    """Counts the rewrites that were checked, by the way of checking, and adds up their error bounds.

    in_programs  rewrites checked by comparing the programs before and after several of them
    in_field     rewrites replayed over GF(2^31 - 1)
    in_reals     rewrites replayed in float64
    in_bounds    rewrites that keep results within a rounding (evidence `Bounded`)
    in_types     rewrites that compute the same expression in wider types (evidence `Widened`)
    degree       the largest degree of all checks over the field
    bound        the sum of their error bounds
    sampled      whether some had integer inputs, whose bounds hold for the integers drawn
    """

    in_programs: int = 0
    in_field: int = 0
    in_reals: int = 0
    in_bounds: int = 0
    in_types: int = 0
    degree: float = 0.0
    bound: float = 0.0
    sampled: bool = False

    def add_bound(self, check: FieldCheck) -> None:
        """Add the bound of a check over the field."""
        self.degree, self.bound = max(self.degree, check.degree), self.bound + check.error_bound
        self.sampled |= check.sampled

    def summarize(self) -> FieldCheck:
        """Return the check of all rewrites together."""
        parts = [
            (self.in_programs, "compared in whole programs over GF(2^31-1)"),
            (self.in_field, "replayed over GF(2^31-1)"),
            (self.in_reals, "replayed in float64, as GF(2^31-1) gives no error bound for them"),
            (self.in_bounds, "not exactly equal, but within one rounding by recomputed bounds"),
            (self.in_types, "the same expression over the reals, in wider types"),
        ]
        counts = ", ".join(f"{count} {words}" for count, words in parts if count)
        detail = f"rewrites: {counts or 'none'}"
        compared = self.in_programs + self.in_field
        return FieldCheck(True, compared, self.degree, min(1.0, self.bound), detail, self.sampled)


class _RewriteChecker:
    """Checks rewrites one by one or in runs; rewrites with the same replay are replayed once."""

    def __init__(self, seed: int):
        self.seed, self.tally = seed, _Tally()
        self._checks: dict[_ReplayKey, FieldCheck] = {}
        self._sides: dict[Equation, Sides] = {}

    def check_run(self, run: Sequence[Candidate], report_start: Callable[[int], None]) -> FieldCheck | None:
        """Return the check that failed, None where the run is right.

        `report_start` is called with the number of each rewrite in the run.
        """
        applied = list(_equations_of(run))
        if (check := self._check_whole_programs(run, applied, report_start)) is not None:
            self.tally.add_bound(check)
            self.tally.in_programs += len(applied)
            return None
        # each step must follow from its equations, and all of these hold
        for at in run:
            assert at.step is not None
            pairs = zip(at.step.before.program.roots, at.program.roots, strict=True)
            if not follows(pairs, at.step.applied):
                return FieldCheck(False, 0, 0, 1.0, "the rewrites do not prove the candidate equal")
        for number, equation in enumerate(applied, 1):
            report_start(number)
            check = self.check_equation(equation)
            if not check.passed:
                reason = f"rewrite {equation.name}: {check.detail}"
                return FieldCheck(False, check.trials, check.degree, 1.0, reason)
            if isinstance(equation.evidence, Bounded):
                self.tally.in_bounds += 1
            elif isinstance(equation.evidence, Widened):
                self.tally.in_types += 1
            elif check.error_bound < 1:
                self.tally.add_bound(check)
                self.tally.in_field += 1
            else:
                self.tally.in_reals += 1
        return None

    def _check_whole_programs(
        self, run: Sequence[Candidate], applied: Sequence[Equation], report_start: Callable[[int], None]
    ) -> FieldCheck | None:
        """Compare the programs before and after the run, if this takes no longer than to replay each rewrite.

        Returns None where it would take longer, or says nothing.
        """
        assert run[0].step is not None
        before, after = _captured_as_inputs(run[0].step.before.program), _captured_as_inputs(run[-1].program)
        if not all(map(_holds_in_every_field, applied)) or _too_large(before, after):
            return None
        replaying = self._replay_operations(applied, set(self._checks))
        if _count_operations(before) + _count_operations(after) > replaying:
            return None
        report_start(len(applied))
        bounded = [step for step in LAW_LADDER if not step[0].order]  # an order leaves no bound
        check = check_field(before, after, seed=self.seed, ladder=bounded)
        return check if check.passed and check.trials and check.error_bound <= MAX_USEFUL_BOUND else None

    def _replay_operations(self, applied: Iterable[Equation], done: set[_ReplayKey]) -> float:
        """Return the operations of replaying every rewrite whose key is not in `done`, and add their keys."""
        total = 0.0
        for equation in applied:
            if isinstance(equation.evidence, Derived):
                steps = (step for step in equation.evidence.steps if isinstance(step, Equation))
                total += self._replay_operations(steps, done)
                continue
            sides, key = self._sides_and_key(equation)
            if key not in done:
                done.add(key)
                total += sum(map(_count_operations, sides))
        return total

    def _sides_and_key(self, equation: Equation) -> tuple[Sides, _ReplayKey]:
        """Return both sides as they are replayed, and a key, equal for rewrites with the same replay."""
        if equation not in self._sides:
            self._sides[equation] = sides_to_replay(equation)
        sides = self._sides[equation]
        return sides, (sides.left.roots, sides.right.roots, _holds_in_every_field(equation))

    def check_equation(self, equation: Equation) -> FieldCheck:
        """Check an equation over its leaves; equations with the same replay are checked once."""
        if isinstance(equation.evidence, Derived):
            return self._check_derivation(equation, equation.evidence)
        # constants that changed are equal in no field; there roundings are unknown functions
        if isinstance(equation.evidence, Bounded | Widened):
            refute = refute_flush if isinstance(equation.evidence, Bounded) else refute_widening
            reason = refute(equation)
            return FieldCheck(reason is None, 0, 0, 1.0, reason or "")
        sides, key = self._sides_and_key(equation)
        if key not in self._checks:
            is_exact = _holds_in_every_field(equation)
            check = _check_sides(sides, is_exact, self.seed)
            if not check.passed:  # the law may need the values of large constants
                check = _check_sides(sides_to_replay(equation, keep_values=True), is_exact, self.seed)
            self._checks[key] = check
        check = self._checks[key]
        # it may hold only because one leaf is computed from another
        if not check.passed and (fewer := over_independent_leaves(equation)) is not None:
            return self.check_equation(fewer)
        return check

    def _check_derivation(self, equation: Equation, derived: Derived) -> FieldCheck:
        """Check that an equation follows from the steps of its derivation, and check each step."""
        pairs = zip(equation.left, equation.right, strict=True)
        if not follows(pairs, derived.steps):
            return FieldCheck(False, 0, 0, 1.0, "its steps do not prove it")
        checks = [self.check_equation(step) for step in derived.steps if isinstance(step, Equation)]
        assert len(checks) == len(derived.steps)
        if failed := next((check for check in checks if not check.passed), None):
            return failed
        return FieldCheck(
            passed=True,
            trials=min((check.trials for check in checks), default=0),
            degree=max((check.degree for check in checks), default=0),
            error_bound=min(1.0, sum(check.error_bound for check in checks)),
            sampled=any(check.sampled for check in checks),
        )


def _check_sides(sides: Sides, is_exact: bool, seed: int) -> FieldCheck:
    """Compare both sides over the field if the equation holds in every field, else in float64."""
    if largest := _too_large(*sides):
        reason = f"replaying a tensor of {largest} elements needs more memory than is available"
        return FieldCheck(False, 0, 0, 1.0, reason)
    if is_exact:
        check = check_field(*sides, seed=seed)
        if not check.passed or check.error_bound < 1:
            return check
    # a bound of 1 says nothing, but in float64 functions such as exp have their own values
    return check_reals(*sides, seed)


def _too_large(*programs: Program) -> int:
    """Return the elements of the largest tensor if there is no memory for its replay, else 0."""
    largest = largest_tensor(*programs)
    if largest <= ALWAYS_REPLAYED_ELEMENTS:
        return 0
    return largest if MEMORY_MARGIN * BYTES_PER_ELEMENT * largest > available_memory() else 0


def _captured_as_inputs(program: Program) -> Program:
    """Return a body with the values that it captures as inputs."""
    return replace(program, inputs=(*program.inputs, *program.captured), captured=())


def _count_operations(program: Program) -> float:
    """Return the scalar operations of one run, open sizes counted small; inf for an input of unknown type."""
    if not all(isinstance(node.types[0], TensorType) for node in program.inputs):
        return inf
    kinds = (kind for node in program.active for kind in node.types)
    elements = sum(count_elements(kind) for kind in kinds if isinstance(kind, TensorType))
    return sum(operations(node, UNKNOWN_SIZE) for node in program.active) + OPERATIONS_PER_ELEMENT * elements
