"""Compares two programs at random points of a finite field: exactly, with a bound on the error (PET §5.2).

An element is a pair of numbers modulo p = 2^31 - 1, so that each trial is at two points at once.  An unknown
function, such as exp, has a random value for each distinct argument.  Some programs are equal only by a law
that such functions keep: 1/x is the inverse of x, or max and min follow an order of the numbers.

A false equality passes one trial with probability at most (1 + m d) (d / p)^2, where d bounds the degree of
the polynomials between unknown functions (exp, opaque operators) and m counts the values that unknown
functions took.  Either the outputs' difference, a polynomial in inputs and values of unknown functions,
vanishes at both points, or one of the at most d values in a monomial of it equals another value by chance.

`replay` compares the two sides of a rewrite like this, or whole programs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensaurus.check.inputs.integer_uses import shared_index_limits
from tensaurus.check.program.meeting_numbers import find_meeting_numbers, unspecified_elements
from tensaurus.check.program.replay_sizes import Sizes, shape_at, size_choices
from tensaurus.expr.analysis.breaking_values import draw_integers, draw_integers_near
from tensaurus.expr.evaluate.fields import Array
from tensaurus.expr.evaluate.two_point_field import LAW_LADDER, Laws, PrimeFieldPairs
from tensaurus.expr.ir.integer_types import integer_limits, is_integer, to_int64
from tensaurus.graph.analysis.program_degree import bound_degree
from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.program import Program
from tensaurus.ops import TensorType
from tensaurus.runtimes.backends import BackendError
from tensaurus.runtimes.backends.reference.evaluation import evaluate_all

ORDER_TRIALS = 8  # trials where a random order is among the laws: max hides a wrong argument that it drops
INTEGER_DRAWS = 12  # trials where integer inputs take any number: the numbers drawn are only a sample
MAX_PLAIN_INTEGER = 120  # for integers from 1 to this one nearly every result is specified
PLAIN_DRAWS = 3  # further draws of a trial, of plain integers, where outputs are unspecified for others


@dataclass(frozen=True)
class FieldCheck:
    """The result of comparing two programs over a finite field.

    passed       whether no difference was found
    trials       how often the programs were compared, each time at two points; 0: impossible, see `detail`
    degree       bound on the degree of the polynomials between unknown functions, inf where vast
    error_bound  bound on the probability that different programs pass; 1 says nothing
    detail       in words the first difference, why nothing was compared, or which laws were needed
    sampled      whether inputs were integers or booleans; the bound holds for those that were drawn
    """

    passed: bool
    trials: int
    degree: float
    error_bound: float
    detail: str = ""
    sampled: bool = False

    @property
    def odds(self) -> str:
        """Return the error bound in words."""
        if not self.trials:
            return "not compared over a finite field"
        if self.error_bound >= 1:
            return "without a bound of the error"
        integers = ", for the integers drawn" if self.sampled else ""
        return f"wrong with probability at most {self.error_bound:.1g}{integers}"


def check_field(
    a: Program,
    b: Program,
    *,
    trials: int = 1,
    seed: int = 0,
    ranges: Mapping[str, tuple[int, int]] | None = None,
    ladder: Sequence[tuple[Laws, str]] = LAW_LADDER,
) -> FieldCheck:
    """Compare all outputs of two programs with the same inputs, over GF(2^31 - 1).

    Weights are lifted exactly, so neither program's constants may have been rounded.  Integer inputs are
    drawn from `ranges` (by name, both ends included), else from the indices that are valid in both programs,
    else from their whole type and near numbers at which a comparison, a rounding or the like turns
    (`meeting_numbers`); where the programs cannot be evaluated there, from 0..1.
    The bound holds for the integers drawn; if all inputs are integers there is none.  The field keeps the
    laws of one step of the `ladder` after the other, until the programs agree: fewer laws, better bound.
    """
    check: FieldCheck | None = None
    draws = _IntegerDraws(a, b, {**shared_index_limits(a, b), **(ranges or {})}, seed)
    for laws, words in ladder:
        least = ORDER_TRIALS if laws.order else INTEGER_DRAWS if draws.from_whole_type else 1
        check = _check_with_laws(a, b, laws, max(trials, least), seed, draws)
        if check.passed:
            text = ", ".join(t for t in (check.detail, words) if t)
            return replace(check, detail=text)
    assert check is not None
    return check


class _IntegerDraws:
    """Draws integer inputs from known ranges, else from the whole type and near meeting numbers.

    has_integers     whether some input is of integers or booleans
    from_whole_type  whether inputs without a range are drawn from their whole type, else from 0..1
    """

    def __init__(self, a: Program, b: Program, ranges: Mapping[str, tuple[int, int]], seed: int):
        kinds = {n.attribute("name"): n.types[0] for n in a.inputs if isinstance(n.types[0], TensorType)}
        self.ranges = ranges
        self.has_integers = any(not kind.dtype.startswith(("float", "bfloat")) for kind in kinds.values())
        free = [name for name, kind in kinds.items() if is_integer(kind.dtype) and name not in ranges]
        self.near = find_meeting_numbers([a, b], free, seed) if free else {}
        self.from_whole_type = bool(free)

    def draw(
        self, name: str, kind: TensorType, shape: Sequence[int], rng: np.random.Generator, redraw: int = 0
    ) -> Array:
        """Draw integers or booleans of one input.

        The first redraw has plain integers (up to MAX_PLAIN_INTEGER), later ones a single plain integer.
        """
        if redraw and kind.dtype != "bool" and name not in self.ranges:
            most = min(MAX_PLAIN_INTEGER, integer_limits(kind.dtype)[1])
            return np.broadcast_to(rng.integers(1, most, shape if redraw == 1 else (), endpoint=True), shape)
        if kind.dtype != "bool" and (not self.from_whole_type or name in self.ranges):
            return np.asarray(rng.integers(*self.ranges.get(name, (0, 1)), shape, endpoint=True))
        near = [int(n) for n in self.near.get(name, ())]
        draw = draw_integers_near if near and rng.random() < 0.5 else draw_integers
        values = draw(kind.dtype, shape, rng, near)
        return values if kind.dtype == "bool" else to_int64(values)


def _check_with_laws(
    a: Program, b: Program, laws: Laws, trials: int, seed: int, draws: _IntegerDraws
) -> FieldCheck:
    """Compare the programs in `trials` trials over the field with these laws."""
    degree = bound_degree((*a.roots, *b.roots), laws)
    bound = 1.0
    unknown: set[str] = set()
    for trial in range(trials):
        unspecified = {name for name, _ in a.outputs}  # outputs of which no draw has compared all elements
        # drawn again while some output has differed in unspecified elements only, in all draws
        for redraw in range(1 + PLAIN_DRAWS):
            field = PrimeFieldPairs(seed * 1_000_003 + trial, laws)
            try:
                found = _run_trial(
                    a, b, field, [seed, trial, redraw] if redraw else [seed, trial], redraw, draws
                )
            except BackendError as error:
                if draws.from_whole_type and not redraw:
                    draws.from_whole_type = False  # some drawn integers are invalid as indices or sizes
                    return _check_with_laws(a, b, laws, trials, seed, draws)
                if not redraw:
                    return _not_compared(degree, str(error))
                continue
            if found.difference:
                return FieldCheck(False, trial + 1, degree, 1.0, found.difference)
            unspecified &= found.unspecified
            if not unspecified:
                break
        unknown |= unspecified
        bound *= field.error(degree) if found.drawn else 1.0
    if unknown:
        return _not_compared(degree, f"nothing specifies what output {min(unknown)} is")
    no_bound = "" if bound < 1 or laws.order else "of a degree too large for a bound"
    if draws.has_integers and not any(_is_float(node) for node in a.inputs):
        no_bound = "" if laws.order else "of integers alone, for which there is no bound"
    return FieldCheck(True, trials, degree, bound, no_bound, draws.has_integers)


@dataclass(frozen=True)
class _Trial:
    """The result of comparing the programs at one draw of the inputs.

    difference   the first difference in words, "" where there is none
    unspecified  outputs that differ in unspecified elements only: those that depend on, say, an integer
                 quotient by 0, which plain integers hardly ever have (`unspecified_elements`)
    drawn        how many elements of the field were drawn for inputs; 0: the trial improves no bound
    """

    difference: str
    unspecified: frozenset[str]
    drawn: int


def _run_trial(
    a: Program, b: Program, field: PrimeFieldPairs, seeds: Sequence[int], redraw: int, draws: _IntegerDraws
) -> _Trial:
    """Compare both programs at one draw of their inputs.  Raises BackendError where one is not evaluated."""
    reason: BackendError | None = None
    for sizes in size_choices([a, b]):
        rng = np.random.default_rng(seeds)
        feeds: dict[str, Array] = {}
        for node in a.inputs:
            name = node.attribute("name")
            kind = node.types[0]
            if not isinstance(kind, TensorType) or kind.dtype == "string":
                raise BackendError(f"input {name} is no tensor of numbers")
            feeds[name] = _draw_input(name, kind, sizes, field, rng, draws, redraw)
        drawn = field.drawn
        try:
            left, right = evaluate_all([a, b], feeds, field, sizes=sizes)
            break
        except BackendError as error:
            reason = reason or error
    else:
        raise reason or BackendError("there are no sizes")
    unspecified: set[str] = set()
    for name, value in left.items():
        if name not in right:
            return _Trial(f"there is no output {name}", frozenset(), drawn)
        difference = _difference(value, right[name])
        if difference and draws.from_whole_type:
            difference = _difference(value, right[name], unspecified_elements(a, name, feeds, field, sizes))
            unspecified |= set() if difference else {name}
        if difference:
            return _Trial(f"output {name} {difference}", frozenset(), drawn)
    return _Trial("", frozenset(unspecified), drawn)


def _is_float(node: Node) -> bool:
    kind = node.types[0]
    return isinstance(kind, TensorType) and kind.dtype.startswith(("float", "bfloat"))


def _not_compared(degree: float, reason: str) -> FieldCheck:
    return FieldCheck(True, 0, degree, 1.0, f"not compared over a finite field: {reason}")


def _draw_input(
    name: str,
    kind: TensorType,
    sizes: Sizes,
    field: PrimeFieldPairs,
    rng: np.random.Generator,
    draws: _IntegerDraws,
    redraw: int,
) -> Array:
    """Draw one input: integers and booleans by `draws`, floats as random elements of the field."""
    shape = shape_at(kind, sizes)
    if kind.dtype == "bool" or is_integer(kind.dtype):
        return draws.draw(name, kind, shape, rng, redraw)
    return field.random(shape, rng)


def _difference(left: Any, right: Any, excluded: Any = False) -> str:
    """Return in words how two outputs differ, the `excluded` elements (True: all) aside; "": not at all."""
    if np.ndim(excluded) == 0 and excluded:
        return ""
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return next((text for pair in zip(left, right, strict=True) if (text := _difference(*pair))), "")
    if not isinstance(left, np.ndarray) or not isinstance(right, np.ndarray):
        return "" if type(left) is type(right) and left == right else "differs"
    if left.shape != right.shape:
        return f"has the shapes {list(left.shape)} and {list(right.shape)}"
    count = int(np.sum((left != right) & ~np.asarray(excluded)))
    return f"differs in {count} of {left.size} elements" if count else ""
