"""Finds the mutants of a subprogram: candidates most of whose results are the original's (PET, section 4).

A candidate is evaluated at random points of GF(2^31 - 1), as the original is.  Where one of its elements
has the value of an element of the original, it computes that element.  So the last step of a mutant, which
brings its output to the original's shape, is read off: an index map is fitted to where the original's
values are found.

    original  y[n, f, h, w]   candidate  z[2, 8, 9, 18]     values found at z[n // 2, f, h, 9*(n % 2) + w]

Channels are few here, since no output depends on their number; `compare_boxes` then decides at the real
sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf, prod
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensaurus.expr.analysis.fit_index_map import Booleans, Integers, evaluate_at, fit_index
from tensaurus.expr.analysis.work_counts import multiply_adds
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.evaluate.two_point_field import PrimeFieldPairs
from tensaurus.expr.ir.scope import Scope, Tensor, axis
from tensaurus.expr.sizes.size import Atom, Axis, Size, atoms, polynomial, substitute
from tensaurus.finders.mutate.candidate import Candidate, enumerate_candidates
from tensaurus.finders.mutate.reindexing import Reindexing
from tensaurus.finders.mutate.subprogram import Subprogram, known_number
from tensaurus.graph.ir.node import Node
from tensaurus.ops import TensorType, Untypable
from tensaurus.runtimes.price.operation_counts import number_of

__all__ = ["Instance", "Mutant", "MutantSearch", "OutputMap"]

MIN_SHARE = 1 / 3  # of the elements that a mutant must compute: correcting more costs what it gains
MAX_WORK = 2.0  # multiplications of a mutant, as a multiple of the original's
FEW_CHANNELS, FEW_FILTERS = 2, 2  # of the instance on which candidates are compared first
MAX_FITTED = 4096  # places at which the digits of an index are fitted
MAX_ARRANGED = 64  # arranged operands that are kept
MAX_ELEMENTS = 1 << 22  # of an operand or output of a candidate at that instance

NO_MAP = "its elements follow no index map"
TOO_FEW = f"computes less than {MIN_SHARE:.0%} of the elements"

_Keys = NDArray[np.uint64]


@dataclass(frozen=True)
class OutputMap:
    """Where in a mutant's output the elements of one of the original's outputs are: indices over the axes."""

    axes: tuple[Axis, ...]
    indices: tuple[Size, ...]


@dataclass(frozen=True)
class Mutant:
    """A candidate that computes some of the original's elements.

    maps   for each output of the subprogram
    share  of the original's elements that it computes, at the instance at which candidates are compared
    work   its multiplications, as a multiple of the original's
    """

    candidate: Candidate
    maps: tuple[OutputMap, ...]
    share: float
    work: float


class MutantSearch:
    """Searches the mutants of one subprogram, and goes on where a deadline ended it.

    tried        how many candidates were evaluated
    dropped      how many candidates were dropped, by reason
    is_finished  whether every candidate was looked at
    """

    def __init__(self, subprogram: Subprogram, seed: int = 0):
        self.subprogram, self.seed = subprogram, seed
        self.tried, self.dropped, self.is_finished = 0, Counter[str](), False
        self._candidates = enumerate_candidates(subprogram)
        self._works = dict[object, float | None]()
        self._known = set[object]()

    @cached_property
    def _whole(self) -> Instance:
        """The subprogram with all its filters."""
        return Instance(self.subprogram, self.seed)

    @cached_property
    def _screen(self) -> Instance:
        """The instance on which candidates are compared first: of one product with few filters.

        These tell as much as all filters where each is read from its own place (`_enlarge_maps`).
        """
        if len(self.subprogram.products) > 1:
            return self._whole
        return Instance(self.subprogram, self.seed, has_few_filters=True)

    def run(self, deadline: float = inf) -> Iterator[Mutant]:
        """Yield the next mutants, each once, those of simple candidates first, until the deadline.

        The deadline is one of `time.monotonic`; the next call goes on from there.
        """
        try:
            _ = self._screen
        except Untypable as reason:
            self.dropped[str(reason)], self.is_finished = 1, True
        while monotonic() < deadline and not self.is_finished:
            if (candidate := next(self._candidates, None)) is None:
                self.is_finished = True
                return
            result = self._try_candidate(candidate)
            if isinstance(result, Mutant):
                yield result
            elif result:
                self.dropped[result] += 1

    def _try_candidate(self, candidate: Candidate) -> Mutant | str:
        """Return the mutant that the candidate is, or why it is none; "" for the original itself."""
        shapes = [_numbers(leaf.tensor.shape) for leaf in self.subprogram.inputs]
        if (work := self._work(candidate, shapes)) is None:
            return "its operator does not accept the operands"
        if work > MAX_WORK:
            return "more arithmetic than it can save"
        if candidate.is_original(self.subprogram):
            return ""
        self.tried += 1
        if (output := self._screen.evaluate(candidate)) is None:
            return "too large to evaluate"
        mask = self._screen.found_mask(output)
        if mask.mean() < MIN_SHARE:
            return TOO_FEW
        # mutants with one operator, attributes and operand shapes are one program in other clothes
        fingerprint = candidate.op, candidate.attrs, output.shape, mask.tobytes()
        if fingerprint in self._known:
            return "equal to a mutant that is known"
        self._known.add(fingerprint)
        instance = self._screen
        if (fitted := instance.fit_maps(candidate, output)) is None:
            return NO_MAP
        maps = _enlarge_maps(fitted, self.subprogram.roots)
        if maps is None:  # the number of filters decides what an index is
            try:
                instance = self._whole
            except Untypable as reason:
                return str(reason)
            if (output := instance.evaluate(candidate)) is None:
                return "too large to evaluate"
            if (maps := instance.fit_maps(candidate, output)) is None:
                return NO_MAP
            fitted = maps
        share = instance.agreeing_share(output, fitted)
        return Mutant(candidate, maps, share, work) if share >= MIN_SHARE else TOO_FEW

    def _work(self, candidate: Candidate, shapes: Sequence[Sequence[int]]) -> float | None:
        """Return its multiplications as a multiple of the original's, None where it has no type."""
        operands = candidate.operand_shapes(shapes)
        key = candidate.op, candidate.attrs, tuple(operands)
        if key not in self._works:
            typed = _operator_scope(candidate, operands)
            count = None if typed is None else number_of(multiply_adds(typed[0]))
            self._works[key] = None if count is None else count / max(1.0, self.subprogram.multiplications)
        return self._works[key]


class Instance:
    """The subprogram with few channels, at random points of the field, and its elements' values."""

    def __init__(self, subprogram: Subprogram, seed: int, has_few_filters: bool = False):
        """Raises Untypable where the subprogram is too large, or does not exist with few channels."""
        self.field = PrimeFieldPairs(seed)
        rng = np.random.default_rng(seed)
        shapes = _shapes_of_instance(subprogram, has_few_filters)
        self.tensors = [_tensor(k, shape) for k, shape in enumerate(shapes)]
        pairs = zip(self.tensors, shapes, strict=True)
        self.values = {x: self.field.random(shape, rng) for x, shape in pairs}
        self._arranged = dict[object, Any]()
        self.outputs: list[_Keys] = []
        for each in subprogram.products:
            numbers = [subprogram.inputs.index(arg) for arg in each.node.args if arg is not None]
            own = Candidate(
                each.node.op, each.node.attrs,  # type: ignore[arg-type]
                tuple(Reindexing.identity(len(shapes[k])) for k in numbers[:2]),
                tuple((k,) for k in numbers[:2]), tuple(numbers[2:]),
            )  # fmt: skip
            if (value := self.evaluate(own)) is None:
                raise Untypable("the original is too large to evaluate")
            self.outputs.append(value)
        self.sorted_keys = np.unique(np.concatenate([value.ravel() for value in self.outputs]))

    def evaluate(self, candidate: Candidate) -> _Keys | None:
        """Return the candidate's output, None where it is too large or has no type at these sizes."""
        arrays = list[Any]()
        for place, (arrangement, numbers) in enumerate(
            zip(candidate.arrangements, candidate.sources, strict=True)
        ):
            key = place, arrangement, numbers
            if key not in self._arranged:
                sources = [self.tensors[k] for k in numbers]
                if prod(arrangement.shape([_numbers(x.shape) for x in sources])) > MAX_ELEMENTS:
                    return None
                scope = arrangement.scope(sources)
                if len(self._arranged) > MAX_ARRANGED:
                    self._arranged.clear()
                self._arranged[key] = interpret(scope, self.values, self.field)
            arrays.append(self._arranged[key])
        arrays += [self.values[self.tensors[k]] for k in candidate.others]
        typed = _operator_scope(candidate, [array.shape for array in arrays])
        if typed is None or prod(_numbers(typed[0].shape)) > MAX_ELEMENTS:
            return None
        scope, operands = typed
        return interpret(scope, dict(zip(operands, arrays, strict=True)), self.field)

    def found_mask(self, output: _Keys) -> Booleans:
        """Return for each of the original's values, in order, whether the output has it."""
        return np.isin(self.sorted_keys, output)

    def fit_maps(self, candidate: Candidate, output: _Keys) -> tuple[OutputMap, ...] | None:
        """Return where the original's elements are in the output, None where no index map says it."""
        divisors = candidate.output_divisors()
        flat = output.ravel()
        order = np.argsort(flat, kind="stable")
        ordered = flat[order]
        maps = list[OutputMap]()
        for original in self.outputs:
            place = np.minimum(np.searchsorted(ordered, original.ravel()), flat.size - 1)
            number = np.where(ordered[place] == original.ravel(), order[place], -1)
            fitted = _fit_map(number, original.shape, output.shape, divisors)
            if fitted is None:
                return None
            maps.append(fitted)
        return tuple(maps)

    def agreeing_share(self, output: _Keys, maps: Sequence[OutputMap]) -> float:
        """Return the share of the original's elements that are where the maps say."""
        agreeing = total = 0
        for original, fitted in zip(self.outputs, maps, strict=True):
            places = [part.ravel() for part in np.indices(original.shape, np.int64)]
            indices = [evaluate_at(index, fitted.axes, places) for index in fitted.indices]
            inside = np.ones(original.size, bool)
            for index, size in zip(indices, output.shape, strict=True):
                inside &= (index >= 0) & (index < size)
            values = output[tuple(np.where(inside, index, 0) for index in indices)]
            agreeing += int((inside & (values == original.ravel())).sum())
            total += original.size
        return agreeing / total


def _enlarge_maps(maps: Sequence[OutputMap], roots: Sequence[Node]) -> tuple[OutputMap, ...] | None:
    """Return maps for the sizes of the roots, None where a smaller size decides what an index is.

    An axis may have grown if it is one of the indices itself, and in no other.
    """
    enlarged = list[OutputMap]()
    for one, root in zip(maps, roots, strict=True):
        shape = _numbers(root.tensor.shape)
        values: dict[Atom, Any] = {}
        axes = list(one.axes)
        for d, (a, size) in enumerate(zip(one.axes, shape, strict=True)):
            if a.extent == size:
                continue
            readers = [index for index in one.indices if a in atoms(index)]
            if readers != [polynomial(a)]:
                return None
            axes[d] = axis(size)
            values[a] = polynomial(axes[d])
        enlarged.append(OutputMap(tuple(axes), tuple(substitute(index, values) for index in one.indices)))
    return tuple(enlarged)


def _fit_map(
    number: Integers, shape: tuple[int, ...], result_shape: tuple[int, ...],
    divisors: Mapping[int, Sequence[int]]
) -> OutputMap | None:
    """Return the map that gives the row-major numbers in the result, -1 where an element is not there.

    `divisors` are those of each axis' digits, as far as the candidate tells.
    """
    axes = tuple(axis(n) for n in shape)
    if not (number >= 0).any():
        return None
    coordinates = np.unravel_index(np.maximum(number, 0), result_shape)

    def index_along(d: int, places: Sequence[Integers]) -> tuple[Integers, Booleans]:
        at = np.ravel_multi_index(tuple(places), shape)
        return coordinates[d][at], number[at] >= 0

    indices = list[Size]()
    for d in range(len(result_shape)):
        index = fit_index(partial(index_along, d), axes)
        if index is None and (index := _fit_digits(number, coordinates[d], axes, divisors)) is None:
            return None
        indices.append(index)
    return OutputMap(axes, tuple(indices))


def _fit_digits(
    number: Integers, coordinate: Integers, axes: Sequence[Axis], divisors: Mapping[int, Sequence[int]]
) -> Size | None:
    """Return the sum of multiples of axes and their quotients that is the coordinate; None where none is.

    Where small images meet, no element is found: differences between neighbours, of which `fit_index` makes
    its digits, then say nothing of the step from one image to the next.
    """
    forms: list[Size] = [polynomial(a) for a in axes]
    forms += [polynomial(axes[d]) // divisor for d, own in divisors.items() for divisor in own]
    known = np.flatnonzero(number >= 0)
    places = np.unravel_index(known, [known_number(a.extent) for a in axes])
    columns = [evaluate_at(form, axes, places) for form in forms]
    matrix = np.stack([*columns, np.ones(known.size, np.int64)], axis=1)
    sample = np.linspace(0, known.size - 1, min(known.size, MAX_FITTED)).astype(int)
    solution = np.linalg.lstsq(matrix[sample].astype(float), coordinate[known][sample].astype(float))[0]
    rounded = np.rint(solution).astype(np.int64)
    if not np.array_equal(matrix @ rounded, coordinate[known]):
        return None
    *slopes, rest = rounded.tolist()
    index: Size = rest
    for form, slope in zip(forms, slopes, strict=True):
        index = index + form * slope
    return index


def _tensor(number: int, shape: Sequence[Size]) -> Tensor:
    return Tensor(f"x{number}", tuple(shape))


def _numbers(shape: Sequence[Size]) -> tuple[int, ...]:
    return tuple(n for n in shape if isinstance(n, int))


def _operator_scope(
    candidate: Candidate, shapes: Sequence[Sequence[int]]
) -> tuple[Scope, tuple[Tensor, ...]] | None:
    """Return the candidate's operator as an expression of its operands of these shapes, and the operands.

    None where the operator does not accept them, or computes nothing.
    """
    kinds = tuple(TensorType("float32", tuple(shape)) for shape in shapes)
    try:
        (scope,) = candidate.op.scopes(kinds, candidate.op.canonical(kinds, dict(candidate.attrs)))
    except (Untypable, ValueError):
        return None
    operands = tuple(x for x in candidate.op.tensors(kinds) if x is not None)
    return None if 0 in scope.shape else (scope, operands)


def _shapes_of_instance(subprogram: Subprogram, has_few_filters: bool) -> list[tuple[int, ...]]:
    """Return the shapes of the subprogram's inputs with FEW_CHANNELS terms in each sum, beside windows."""
    shapes = [list(_numbers(leaf.tensor.shape)) for leaf in subprogram.inputs]
    changed = set[tuple[int, int]]()
    for each in subprogram.products:
        data, weights, *others = (subprogram.inputs.index(arg) for arg in each.node.args if arg is not None)
        smaller = [((data, d), n, FEW_CHANNELS) for d, _, n in each.channels]
        smaller += [((weights, e), n, FEW_CHANNELS) for _, e, n in each.channels]
        if has_few_filters and not others:  # a bias has as many elements as there are filters
            smaller += [((weights, e), n, FEW_FILTERS) for e, n in each.filters]
        for place, extent, most in smaller:
            if place not in changed:
                changed.add(place)
                shapes[place[0]][place[1]] = shapes[place[0]][place[1]] // extent * min(extent, most)
    return [tuple(shape) for shape in shapes]
