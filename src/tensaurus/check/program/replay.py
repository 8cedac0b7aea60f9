"""The rewrites of a result, checked before any constant is rounded.

Each rewrite is replayed alone: what the rule's variables bound becomes an input, constants stay what they
are, and both sides are compared at random points of GF(2^31 - 1), exactly, or in float64; what is the same
over equal leaves is replayed once.  Where that would take longer than to compare the programs before and
after a run of rewrites that hold in every field, these are compared instead, unless that says nothing (the
formal degree of a deep network of products leaves no bound, or the order of the reals is needed).  Equality
is transitive, and the bounds of the error add up along the chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, takewhile
from math import inf, prod
from typing import Any, TypeAlias

from tensaurus.check.program.candidate import Candidate
from tensaurus.check.program.field_check import FieldCheck, check_field
from tensaurus.check.program.independent_leaves import independent
from tensaurus.check.program.real_check import check_reals
from tensaurus.egraph.core.egraph_proof import follows
from tensaurus.expr.evaluate.two_point_field import LADDER
from tensaurus.graph.ir.node import CONSTANT, INPUT, Node, source
from tensaurus.graph.ir.program import Program, topological
from tensaurus.ops import TensorType, Untypable
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.evidence import Bounded, Derived
from tensaurus.rules.prove.subnormal_constants import refute_flush
from tensaurus.runtimes.price.operation_counts import number_of, operations
from tensaurus.system.child import available_memory
from tensaurus.system.progress import Stage, silent

ELEMENT = 500  # operations that go by for each element of a tensor, however it is computed
ROOM = 1 << 25  # elements of one tensor that is computed on any machine; of more where there is memory
HELD = 8 * 8  # bytes for each of them: some eight arrays of its size are alive at once
SPARED = 2  # times the memory that this takes, which there must be
USEFUL = 1e-3  # an error bound above this says too little
LARGE = 1 << 15  # elements of one bound tensor above which a rewrite is replayed on a smaller one
HUGE = 1 << 20  # elements of one that is made of them, above which it is, too
SMALL = 9  # size to which the dimensions of a large tensor are cut, where the rule still types
WIDER = 4  # times that size, and again, where it does not
UNKNOWN = 4  # of every dimension that is not known, where work and memory are estimated


Sides: TypeAlias = tuple[Program, Program]


@dataclass
class Tally:
    """What was checked so far: rewrites by the way they were checked, and the sum of the error bounds."""

    whole: int = 0
    alone: int = 0
    ordered: int = 0
    bounded: int = 0
    degree: float = 0.0
    bound: float = 0.0
    sampled: bool = False  # whether some were of integers, too
    known: dict[Any, FieldCheck] = field(default_factory=dict)  # of rewrites that are the same over leaves
    cuts: dict[Equation, Sides] = field(default_factory=dict)

    def cut(self, equation: Equation) -> tuple[Sides, Any]:
        """Both sides as they are replayed, and what is equal for rewrites whose replay is the same."""
        if equation not in self.cuts:
            self.cuts[equation] = _cut(equation)
        left, right = self.cuts[equation]
        return (left, right), (left.roots, right.roots, _exact(equation))

    def add(self, check: FieldCheck) -> None:
        self.degree, self.bound = max(self.degree, check.degree), self.bound + check.error_bound
        self.sampled |= check.sampled

    @property
    def found(self) -> FieldCheck:
        parts = [
            (self.whole, "compared in whole programs over GF(2^31-1)"),
            (self.alone, "replayed over GF(2^31-1)"),
            (self.ordered, "replayed in float64, as over GF(2^31-1) there is no bound for them"),
            (self.bounded, "no equality, but within a rounding by bounds that were computed again"),
        ]
        detail = ", ".join(f"{count} {words}" for count, words in parts if count)
        compared = self.whole + self.alone
        said = f"rewrites: {detail or 'none'}"
        return FieldCheck(True, compared, self.degree, min(1.0, self.bound), said, self.sampled)


def check_rewrites(candidates: Sequence[Candidate], seed: int = 0, stage: Stage = silent) -> FieldCheck:
    """Every application of a rule along the candidates' chains; `trials` counts those with an error bound.

    `stage` gets which one is being replayed.
    """
    tally = Tally()
    runs = [run for candidate in candidates for run in _runs(candidate)]
    count, total = 0, sum(1 for run in runs for _ in _applied(run))

    def began(applied: int) -> None:
        stage("rewrite", count + applied, total)

    for run in runs:
        failure = _check_run(run, tally, seed, began)
        count += sum(1 for _ in _applied(run))
        if failure is not None:
            return failure
    return tally.found


def _runs(candidate: Candidate) -> Iterator[list[Candidate]]:
    """The chain after the original, cut into runs of rewrites that hold in every field and single others."""
    run: list[Candidate] = []
    for at in candidate.chain[1:]:
        if all(_exact(equation) for equation in _applied([at])):
            run.append(at)
            continue
        if run:
            yield run
        yield [at]
        run = []
    if run:
        yield run


def _applied(run: Sequence[Candidate]) -> Iterator[Equation]:
    """Every rewrite of the run."""
    for at in run:
        assert at.step is not None
        yield from at.step.applied


def _exact(equation: Equation) -> bool:
    """Whether it holds in every field."""
    return equation.evidence.exact


def _check_run(
    run: Sequence[Candidate], tally: Tally, seed: int, began: Callable[[int], None]
) -> FieldCheck | None:
    """None where the run is right, else the check that failed; `began` gets the rewrite's number in it."""
    applied = list(_applied(run))
    if (whole := _check_whole(run, tally, seed, began)) is not None:
        tally.add(whole)
        tally.whole += len(applied)
        return None
    for at in run:
        assert at.step is not None
        pairs = zip(at.step.before.program.roots, at.program.roots, strict=True)
        if not follows(pairs, at.step.applied):
            return FieldCheck(False, 0, 0, 1.0, "a program does not follow from the rewrites that lead to it")
    for number, equation in enumerate(applied, 1):
        began(number)
        check = _check_alone(equation, seed, tally)
        if not check.passed:
            reason = f"rewrite {equation.name}: {check.detail}"
            return FieldCheck(False, check.trials, check.degree, 1.0, reason)
        if isinstance(equation.evidence, Bounded):
            tally.bounded += 1
        elif check.error_bound < 1:
            tally.add(check)
            tally.alone += 1
        else:
            tally.ordered += 1
    return None


def _check_whole(
    run: Sequence[Candidate], tally: Tally, seed: int, began: Callable[[int], None]
) -> FieldCheck | None:
    """The programs before and after the run, where that takes no longer than to replay each rewrite.

    None where it does, or says nothing.
    """
    assert run[0].step is not None
    before, after = _closed(run[0].step.before.program), _closed(run[-1].program)
    applied = list(_applied(run))
    if not all(map(_exact, applied)) or _too_large(before, after):
        return None
    if not _operations(before) + _operations(after) <= _operations_alone(applied, tally, set(tally.known)):
        return None
    began(len(applied))
    bounded = [step for step in LADDER if not step[0].order]
    check = check_field(before, after, seed=seed, ladder=bounded)
    return check if check.passed and check.trials and check.error_bound <= USEFUL else None


def _operations_alone(applied: Iterable[Equation], tally: Tally, done: set[Any]) -> float:
    """Of the replay of every rewrite that is not among those done, which it enters."""
    total = 0.0
    for equation in applied:
        if isinstance(equation.evidence, Derived):
            steps = (step for step in equation.evidence.steps if isinstance(step, Equation))
            total += _operations_alone(steps, tally, done)
            continue
        sides, key = tally.cut(equation)
        if key not in done:
            done.add(key)
            total += sum(map(_operations, sides))
    return total


def _check_alone(equation: Equation, seed: int, tally: Tally) -> FieldCheck:
    """The equation over its leaves; what is the same over leaves of the same types has the same answer."""
    if isinstance(equation.evidence, Derived):
        return _check_steps(equation, equation.evidence, seed, tally)
    if isinstance(equation.evidence, Bounded):  # constants that changed are equal in no field
        reason = refute_flush(equation)
        return FieldCheck(reason is None, 0, 0, 1.0, reason or "")
    sides, key = tally.cut(equation)
    if key not in tally.known:
        check = _check_pieces(sides, _exact(equation), seed)
        tally.known[key] = (
            check if check.passed else _check_pieces(_cut(equation, values=True), _exact(equation), seed)
        )
    check = tally.known[key]
    if not check.passed and (fewer := independent(equation)) is not None:
        return _check_alone(fewer, seed, tally)
    return check


def _check_steps(equation: Equation, derived: Derived, seed: int, tally: Tally) -> FieldCheck:
    """What follows from other equations, if each of them holds."""
    pairs = zip(equation.left, equation.right, strict=True)
    if not follows(pairs, derived.steps):
        return FieldCheck(False, 0, 0, 1.0, "it does not follow from its steps")
    checks = [_check_alone(step, seed, tally) for step in derived.steps if isinstance(step, Equation)]
    assert len(checks) == len(derived.steps)
    if failed := next((check for check in checks if not check.passed), None):
        return failed
    bound = min(1.0, sum(check.error_bound for check in checks))
    trials = min((check.trials for check in checks), default=0)
    sampled = any(check.sampled for check in checks)
    return FieldCheck(True, trials, max((check.degree for check in checks), default=0), bound, "", sampled)


def _check_pieces(pieces: Sides, exact: bool, seed: int) -> FieldCheck:
    if largest := _too_large(*pieces):
        reason = f"a tensor of {largest} elements is too large to be replayed in the memory that there is"
        return FieldCheck(False, 0, 0, 1.0, reason)
    if exact:
        check = check_field(*pieces, seed=seed)
        if not check.passed or check.error_bound < 1:
            return check
    # a bound of 1 says nothing: such a law is tried where its functions are what they are
    return check_reals(*pieces, seed)


def refutation(equation: Equation) -> str | None:
    """Why an equation does not hold; None where it does, as far as its replay tells."""
    check = _check_alone(equation, 0, Tally())
    return None if check.passed else check.detail


def _closed(program: Program) -> Program:
    """A body with what it captures as inputs."""
    return replace(program, inputs=(*program.inputs, *program.captured), captured=())


def _operations(program: Program) -> float:
    """Scalar operations of one run, unknown sizes counted small; inf where an input has no known type."""
    if not all(isinstance(node.types[0], TensorType) for node in program.inputs):
        return inf
    kinds = (kind for node in program.active for kind in node.types)
    elements = (_elements(kind) for kind in kinds if isinstance(kind, TensorType))
    return sum(operations(node, UNKNOWN) for node in program.active) + ELEMENT * sum(elements)


def _largest(program: Program) -> int:
    """Elements of the largest tensor, unknown sizes counted small."""
    kinds = (kind for node in program.nodes for kind in node.types)
    return max((_elements(kind) for kind in kinds if isinstance(kind, TensorType)), default=0)


def _too_large(*programs: Program) -> int:
    """The elements of their largest tensor, where there is no memory for a replay of it; else 0."""
    largest = max(map(_largest, programs))
    if largest <= ROOM or SPARED * HELD * largest <= available_memory():
        return 0
    return largest


def _cut(equation: Equation, values: bool = False) -> Sides:
    """Both sides as programs over the leaves, on smaller ones where these are large.

    Large constants are any of their types, unless `values` says that they keep theirs.
    """
    leaves = [leaf for leaf in equation.leaves if leaf.op is not CONSTANT]  # whose values a law may ask for
    made = (kind for node in topological([*equation.left, *equation.right]) for kind in node.types)
    most = max((_elements(kind) for kind in made if isinstance(kind, TensorType)), default=0)
    large = [leaf for leaf in leaves if _elements(leaf.tensor) > LARGE or most > HUGE]
    weights = [leaf for leaf in equation.leaves if leaf.op is CONSTANT and _elements(leaf.tensor) > SMALL]
    known = [] if values or not any(_elements(leaf.tensor) > LARGE for leaf in weights) else weights
    if (large or known) and (pieces := _pieces(equation, _narrower([*leaves, *known]))) is not None:
        return pieces
    widest = max((n for leaf in large for n in leaf.tensor.shape[2:] if isinstance(n, int)), default=0)
    sizes = takewhile(lambda size: size < widest, (SMALL * WIDER**power for power in count()))
    # long windows need more; weights in another form have the sizes that they have
    ways = [*((size, None) for size in sizes), *((SMALL, leaf) for leaf in large)]
    found = list[Sides]()
    for size, kept in ways:
        kinds = {leaf: leaf.tensor if leaf is kept else _smaller(leaf.tensor, size) for leaf in leaves}
        if (pieces := _pieces(equation, kinds)) is not None:
            found.append(pieces)
            if _most_elements(pieces) <= LARGE:
                break
    if not found:
        whole = _pieces(equation, {leaf: leaf.tensor for leaf in leaves})
        assert whole is not None
        return whole
    return min(found, key=_most_elements)


def _most_elements(sides: Sides) -> int:
    """Return how many elements the largest tensor of both sides has."""
    kinds = (kind for side in sides for node in side.nodes for kind in node.types)
    return max((_elements(kind) for kind in kinds if isinstance(kind, TensorType)), default=0)


def _pieces(equation: Equation, kinds: Mapping[Node, TensorType]) -> Sides | None:
    """Both sides over leaves of these types; None where an attribute holds the sizes that were."""
    inputs = {leaf: source(f"v{k}", kind) for k, (leaf, kind) in enumerate(kinds.items())}
    try:
        made = equation.over(inputs)
    except Untypable:
        return None
    left, right = made.left, made.right
    if [node.types for node in left] != [node.types for node in right]:
        return None
    # what is read besides the leaves is an input, too
    read = dict.fromkeys(node for node in topological([*left, *right]) if node.op is INPUT)
    return tuple(  # type: ignore[return-value]
        Program(tuple(read), tuple((f"y{k}", root) for k, root in enumerate(side))) for side in (left, right)
    )


def _elements(kind: TensorType) -> int:
    return prod(number_of(n, UNKNOWN) for n in kind.shape)


def _smaller(kind: TensorType, size: int = SMALL) -> TensorType:
    """Spatial dimensions (from the third on) cut to this size: weights fix the others."""
    head, rest = kind.shape[:2], kind.shape[2:]
    return TensorType(kind.dtype, (*head, *(min(n, size) if isinstance(n, int) else n for n in rest)))


def _narrower(leaves: Sequence[Node]) -> dict[Node, TensorType]:
    """As `_smaller`, and of the first two dimensions equal ones stay equal, others different."""
    heads = [n for leaf in leaves for n in leaf.tensor.shape[:2] if isinstance(n, int) and n > SMALL]
    found = {n: SMALL + place for place, n in enumerate(sorted(set(heads)))}
    kinds = {}
    for leaf in leaves:
        kind = _smaller(leaf.tensor)
        head = (found.get(n, n) if isinstance(n, int) else n for n in kind.shape[:2])
        kinds[leaf] = TensorType(kind.dtype, (*head, *kind.shape[2:]))
    return kinds
