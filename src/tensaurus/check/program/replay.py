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

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, takewhile
from math import inf, prod
from typing import Any, TypeAlias

from tensaurus.check.program.candidate import Candidate
from tensaurus.check.program.field_check import FieldCheck, check_field
from tensaurus.check.program.independent_leaves import over_independent_leaves
from tensaurus.check.program.real_check import check_reals
from tensaurus.egraph.core.egraph_proof import follows
from tensaurus.expr.evaluate.two_point_field import LAW_LADDER
from tensaurus.graph.ir.node import CONSTANT, INPUT, Node, source
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.ops import TensorType, Untypable
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.evidence import Bounded, Derived
from tensaurus.rules.prove.subnormal_constants import refute_flush
from tensaurus.runtimes.price.operation_counts import number_of, operations
from tensaurus.system.child import available_memory
from tensaurus.system.progress import Stage, report_nothing

OPERATIONS_PER_ELEMENT = 500  # cost of one element of a tensor, in scalar operations, however it is computed
ALWAYS_REPLAYED_ELEMENTS = 1 << 25  # of one tensor; larger ones are replayed where there is memory
BYTES_PER_ELEMENT = 8 * 8  # memory for one element: about eight arrays of eight bytes each are alive at once
MEMORY_MARGIN = 2  # the available memory must be this many times the memory that a replay takes
MAX_USEFUL_BOUND = 1e-3  # a comparison of whole programs with a larger error bound says too little
LARGE_LEAF_ELEMENTS = 1 << 15  # a rewrite with a larger leaf is replayed on smaller tensors
LARGE_RESULT_ELEMENTS = 1 << 20  # so is a rewrite that computes a larger tensor
CUT_SIZE = 9  # size to which dimensions of large tensors are cut, where the rewrite's types admit that
CUT_GROWTH = 4  # factor by which the cut size grows, again and again, until the rewrite's types admit it
UNKNOWN_SIZE = 4  # stands for every open size where work and memory are estimated


Sides: TypeAlias = tuple[Program, Program]


@dataclass
class Tally:
    """Counts the rewrites that were checked, by the way of checking, and adds up their error bounds.

    in_programs  rewrites checked by comparing the programs before and after several of them
    in_field     rewrites replayed over GF(2^31 - 1)
    in_reals     rewrites replayed in float64
    in_bounds    rewrites that keep results within a rounding (evidence `Bounded`)
    degree       the largest degree of all checks over the field
    bound        the sum of their error bounds
    sampled      whether some had integer inputs, whose bounds hold for the integers drawn
    known        checks by keys that are equal for rewrites whose replay is the same
    sides        both sides of each equation as they are replayed
    """

    in_programs: int = 0
    in_field: int = 0
    in_reals: int = 0
    in_bounds: int = 0
    degree: float = 0.0
    bound: float = 0.0
    sampled: bool = False
    known: dict[Any, FieldCheck] = field(default_factory=dict)
    sides: dict[Equation, Sides] = field(default_factory=dict)

    def sides_and_key(self, equation: Equation) -> tuple[Sides, Any]:
        """Return both sides as they are replayed, and a key, equal for rewrites with the same replay."""
        if equation not in self.sides:
            self.sides[equation] = _sides_to_replay(equation)
        left, right = self.sides[equation]
        return (left, right), (left.roots, right.roots, _holds_in_every_field(equation))

    def add(self, check: FieldCheck) -> None:
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
        ]
        counts = ", ".join(f"{count} {words}" for count, words in parts if count)
        detail = f"rewrites: {counts or 'none'}"
        compared = self.in_programs + self.in_field
        return FieldCheck(True, compared, self.degree, min(1.0, self.bound), detail, self.sampled)


def check_rewrites(
    candidates: Sequence[Candidate], seed: int = 0, stage: Stage = report_nothing
) -> FieldCheck:
    """Check every rewrite along the candidates' chains; `trials` counts those with an error bound.

    `stage` is called with the number of the rewrite that is being checked.
    """
    tally = Tally()
    runs = [run for candidate in candidates for run in _split_into_runs(candidate)]
    count, total = 0, sum(1 for run in runs for _ in _equations_of(run))

    def report_start(number: int) -> None:
        stage("rewrite", count + number, total)

    for run in runs:
        failure = _check_run(run, tally, seed, report_start)
        count += sum(1 for _ in _equations_of(run))
        if failure is not None:
            return failure
    return tally.summarize()


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


def _check_run(
    run: Sequence[Candidate], tally: Tally, seed: int, report_start: Callable[[int], None]
) -> FieldCheck | None:
    """Return the check that failed, None where the run is right.

    `report_start` is called with the number of each rewrite in the run.
    """
    # whole programs if that is cheaper; else each step must follow from its equations, and all of these hold
    applied = list(_equations_of(run))
    if (check := _check_whole_programs(run, tally, seed, report_start)) is not None:
        tally.add(check)
        tally.in_programs += len(applied)
        return None
    for at in run:
        assert at.step is not None
        pairs = zip(at.step.before.program.roots, at.program.roots, strict=True)
        if not follows(pairs, at.step.applied):
            return FieldCheck(False, 0, 0, 1.0, "the rewrites do not prove the candidate equal")
    for number, equation in enumerate(applied, 1):
        report_start(number)
        check = _check_equation(equation, seed, tally)
        if not check.passed:
            reason = f"rewrite {equation.name}: {check.detail}"
            return FieldCheck(False, check.trials, check.degree, 1.0, reason)
        if isinstance(equation.evidence, Bounded):
            tally.in_bounds += 1
        elif check.error_bound < 1:
            tally.add(check)
            tally.in_field += 1
        else:
            tally.in_reals += 1
    return None


def _check_whole_programs(
    run: Sequence[Candidate], tally: Tally, seed: int, report_start: Callable[[int], None]
) -> FieldCheck | None:
    """Compare the programs before and after the run, if this takes no longer than to replay each rewrite.

    Returns None where it would take longer, or says nothing.
    """
    assert run[0].step is not None
    before, after = _captured_as_inputs(run[0].step.before.program), _captured_as_inputs(run[-1].program)
    applied = list(_equations_of(run))
    if not all(map(_holds_in_every_field, applied)) or _too_large(before, after):
        return None
    if not _count_operations(before) + _count_operations(after) <= _replay_operations(
        applied, tally, set(tally.known)
    ):
        return None
    report_start(len(applied))
    bounded = [step for step in LAW_LADDER if not step[0].order]  # an order leaves no bound
    check = check_field(before, after, seed=seed, ladder=bounded)
    return check if check.passed and check.trials and check.error_bound <= MAX_USEFUL_BOUND else None


def _replay_operations(applied: Iterable[Equation], tally: Tally, done: set[Any]) -> float:
    """Return the operations of replaying every rewrite whose key is not in `done`, and add their keys."""
    total = 0.0
    for equation in applied:
        if isinstance(equation.evidence, Derived):
            steps = (step for step in equation.evidence.steps if isinstance(step, Equation))
            total += _replay_operations(steps, tally, done)
            continue
        sides, key = tally.sides_and_key(equation)
        if key not in done:
            done.add(key)
            total += sum(map(_count_operations, sides))
    return total


def _check_equation(equation: Equation, seed: int, tally: Tally) -> FieldCheck:
    """Check an equation over its leaves; equations with the same replay are checked once."""
    if isinstance(equation.evidence, Derived):
        return _check_steps(equation, equation.evidence, seed, tally)
    if isinstance(equation.evidence, Bounded):  # constants that changed are equal in no field
        reason = refute_flush(equation)
        return FieldCheck(reason is None, 0, 0, 1.0, reason or "")
    sides, key = tally.sides_and_key(equation)
    if key not in tally.known:
        is_exact = _holds_in_every_field(equation)
        check = _check_sides(sides, is_exact, seed)
        if not check.passed:  # the law may need the values of large constants
            check = _check_sides(_sides_to_replay(equation, keep_values=True), is_exact, seed)
        tally.known[key] = check
    check = tally.known[key]
    # it may hold only because one leaf is computed from another
    if not check.passed and (fewer := over_independent_leaves(equation)) is not None:
        return _check_equation(fewer, seed, tally)
    return check


def _check_steps(equation: Equation, derived: Derived, seed: int, tally: Tally) -> FieldCheck:
    """Check that an equation follows from the steps of its derivation, and check each step."""
    pairs = zip(equation.left, equation.right, strict=True)
    if not follows(pairs, derived.steps):
        return FieldCheck(False, 0, 0, 1.0, "its steps do not prove it")
    checks = [_check_equation(step, seed, tally) for step in derived.steps if isinstance(step, Equation)]
    assert len(checks) == len(derived.steps)
    if failed := next((check for check in checks if not check.passed), None):
        return failed
    bound = min(1.0, sum(check.error_bound for check in checks))
    trials = min((check.trials for check in checks), default=0)
    sampled = any(check.sampled for check in checks)
    return FieldCheck(True, trials, max((check.degree for check in checks), default=0), bound, "", sampled)


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


def refute_equation(equation: Equation) -> str | None:
    """Return why an equation does not hold; None where it does, as far as its replay tells."""
    check = _check_equation(equation, 0, Tally())
    return None if check.passed else check.detail


def _captured_as_inputs(program: Program) -> Program:
    """Return a body with the values that it captures as inputs."""
    return replace(program, inputs=(*program.inputs, *program.captured), captured=())


def _count_operations(program: Program) -> float:
    """Return the scalar operations of one run, open sizes counted small; inf for an input of unknown type."""
    if not all(isinstance(node.types[0], TensorType) for node in program.inputs):
        return inf
    kinds = (kind for node in program.active for kind in node.types)
    elements = (_count_elements(kind) for kind in kinds if isinstance(kind, TensorType))
    return sum(operations(node, UNKNOWN_SIZE) for node in program.active) + OPERATIONS_PER_ELEMENT * sum(
        elements
    )


def _largest_tensor(program: Program) -> int:
    """Return the elements of the largest tensor, open sizes counted small."""
    kinds = (kind for node in program.nodes for kind in node.types)
    return max((_count_elements(kind) for kind in kinds if isinstance(kind, TensorType)), default=0)


def _too_large(*programs: Program) -> int:
    """Return the elements of the largest tensor if there is no memory for its replay, else 0."""
    largest = max(map(_largest_tensor, programs))
    if (
        largest <= ALWAYS_REPLAYED_ELEMENTS
        or MEMORY_MARGIN * BYTES_PER_ELEMENT * largest <= available_memory()
    ):
        return 0
    return largest


def _sides_to_replay(equation: Equation, keep_values: bool = False) -> Sides:
    """Return both sides as programs over the leaves, with smaller leaves in the place of large ones.

    Large constants become inputs of any values, unless `keep_values` says that they keep their own.
    """
    leaves = [leaf for leaf in equation.leaves if leaf.op is not CONSTANT]  # a law may depend on constants
    computed = (kind for node in topological_order([*equation.left, *equation.right]) for kind in node.types)
    most = max((_count_elements(kind) for kind in computed if isinstance(kind, TensorType)), default=0)
    has_large_result = most > LARGE_RESULT_ELEMENTS  # then all leaves count as large
    large = [
        leaf for leaf in leaves if has_large_result or _count_elements(leaf.tensor) > LARGE_LEAF_ELEMENTS
    ]
    # all constants of more than a few elements become inputs where one of them is large
    weights = [
        leaf for leaf in equation.leaves if leaf.op is CONSTANT and _count_elements(leaf.tensor) > CUT_SIZE
    ]
    if keep_values or not any(_count_elements(leaf.tensor) > LARGE_LEAF_ELEMENTS for leaf in weights):
        weights = []
    # first choice: all dimensions are cut, weights among the inputs, if both sides type like that
    if (large or weights) and (
        sides := _sides_over(equation, _cut_all_sizes([*leaves, *weights]))
    ) is not None:
        return sides
    widest = max((n for leaf in large for n in leaf.tensor.shape[2:] if isinstance(n, int)), default=0)
    cut_sizes = takewhile(lambda size: size < widest, (CUT_SIZE * CUT_GROWTH**power for power in count()))
    # else only spatial dimensions are cut: (size, leaf that is not cut).  Long windows need larger sizes; a
    # reshape may fix the sizes of one leaf
    ways = [*((size, None) for size in cut_sizes), *((CUT_SIZE, leaf) for leaf in large)]
    typed = list[Sides]()
    for size, uncut in ways:
        kinds = {
            leaf: leaf.tensor if leaf is uncut else _cut_spatial_sizes(leaf.tensor, size) for leaf in leaves
        }
        if (sides := _sides_over(equation, kinds)) is not None:
            typed.append(sides)
            if _most_elements(sides) <= LARGE_LEAF_ELEMENTS:
                break
    if not typed:  # no smaller leaves fit
        whole = _sides_over(equation, {leaf: leaf.tensor for leaf in leaves})
        assert whole is not None
        return whole
    return min(typed, key=_most_elements)


def _most_elements(sides: Sides) -> int:
    """Return how many elements the largest tensor of both sides has."""
    kinds = (kind for side in sides for node in side.nodes for kind in node.types)
    return max((_count_elements(kind) for kind in kinds if isinstance(kind, TensorType)), default=0)


def _sides_over(equation: Equation, kinds: Mapping[Node, TensorType]) -> Sides | None:
    """Return both sides over such leaves; None where they do not type (attributes may fix sizes)."""
    inputs = {leaf: source(f"v{k}", kind) for k, (leaf, kind) in enumerate(kinds.items())}
    try:
        made = equation.over(inputs)
    except Untypable:
        return None
    left, right = made.left, made.right
    if [node.types for node in left] != [node.types for node in right]:
        return None
    # a side may read inputs besides the leaves
    read = dict.fromkeys(node for node in topological_order([*left, *right]) if node.op is INPUT)
    return tuple(  # type: ignore[return-value]
        Program(tuple(read), tuple((f"y{k}", root) for k, root in enumerate(side))) for side in (left, right)
    )


def _count_elements(kind: TensorType) -> int:
    return prod(number_of(n, UNKNOWN_SIZE) for n in kind.shape)


def _cut_spatial_sizes(kind: TensorType, size: int = CUT_SIZE) -> TensorType:
    """Return the type with spatial dimensions (from the third on) cut to a size; weights fix the others."""
    head, rest = kind.shape[:2], kind.shape[2:]
    return TensorType(kind.dtype, (*head, *(min(n, size) if isinstance(n, int) else n for n in rest)))


def _cut_all_sizes(leaves: Sequence[Node]) -> dict[Node, TensorType]:
    """Return types with all dimensions cut; in the first two, equal sizes stay equal and others different."""
    heads = [n for leaf in leaves for n in leaf.tensor.shape[:2] if isinstance(n, int) and n > CUT_SIZE]
    cut_sizes = {n: CUT_SIZE + place for place, n in enumerate(sorted(set(heads)))}
    kinds = {}
    for leaf in leaves:
        kind = _cut_spatial_sizes(leaf.tensor)
        head = (cut_sizes.get(n, n) if isinstance(n, int) else n for n in kind.shape[:2])
        kinds[leaf] = TensorType(kind.dtype, (*head, *kind.shape[2:]))
    return kinds
