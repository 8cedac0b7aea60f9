"""Many terms compared at once, and laws looked up by the top of a term, as one by one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from random import Random

import numpy as np
import pytest

from tensaurus.expr.evaluate.prime_field import PrimeField
from tensaurus.finders.synthesis import second_fingerprint
from tensaurus.finders.synthesis.second_fingerprint import ComparisonPoints
from tensaurus.finders.synthesis.term_classes import TermClasses, possible_laws
from tensaurus.finders.synthesis.term_order import (
    Laws,
    UseKey,
    match_term,
    order_key,
    rank_key,
    substitute_term,
    use_key,
    variables_in,
)
from tensaurus.finders.synthesis.terms import Application, Pair, Term, Variable, evaluate_term
from tensaurus.finders.synthesis.world import WORLDS, World

COUNT = 5


def candidates(world: World, size: int) -> Iterator[Pair]:
    grown = TermClasses(world)
    for _ in range(size):
        for candidate in grown.grow():
            yield from islice(possible_laws(candidate), 3)


@pytest.mark.parametrize("name", ["matrices", "pooling", "pointwise", "parts", "groups", "lattice"])
def test_many_at_once_are_compared_as_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_fingerprint, "MAX_PAIRS", 7)  # so that there are many rounds
    world, random = WORLDS[name], Random(0)
    pairs = random.sample(every := list(candidates(world, 2)), min(60, len(every)))
    pairs += [(a, b) for (a, _), (_, b) in zip(pairs, pairs[1:], strict=False) if _type(a) == _type(b)]
    groups = [pairs[k : k + k % 4] for k in range(0, len(pairs), 3)]
    at = ComparisonPoints(world, PrimeField(1), COUNT, 3)
    one_by_one = [[pair for pair in group if _equal(at, *pair)] for group in groups]
    found = list(at.keep_equal(enumerate(groups)))
    assert [place for place, _ in found] == list(range(len(groups)))
    assert [equal for _, equal in found] == one_by_one
    assert any(one_by_one) and one_by_one != groups


def _type(term: Term) -> object:
    return term.type if isinstance(term, Variable) else term.use.result


def _equal(at: ComparisonPoints, left: Term, right: Term) -> bool:
    leaves = {x: at._variable_values(x) for x in {*variables_in(left), *variables_in(right)}}
    first, second = (evaluate_term(side, leaves, at.field, COUNT) for side in (left, right))
    return bool(np.array_equal(first, second))


def test_every_variable_has_values_of_its_own() -> None:
    at = ComparisonPoints(WORLDS["matrices"], PrimeField(1), COUNT, 0)
    every = [at._variable_values(Variable(kind, number)) for kind in range(2) for number in range(3)]
    assert len({leaf.tobytes() for leaf in every}) == len(every)
    assert not np.array_equal(every[0][0], every[0][1])
    other = ComparisonPoints(WORLDS["matrices"], PrimeField(1), COUNT, 1)
    assert not np.array_equal(other._variable_values(Variable(0, 0)), every[0])


@pytest.mark.parametrize("alike", [use_key, rank_key])
@pytest.mark.parametrize("name", ["matrices", "pointwise", "parts"])
def test_a_law_is_found_by_what_a_term_looks_like(name: str, alike: UseKey) -> None:
    every = list(candidates(WORLDS[name], 2))
    random = Random(1)
    chosen = random.sample(every, 40)
    laws, plain = Laws(alike), list[Pair]()
    for left, right in chosen:
        laws.add(left, right)
        ways = [(left, right), (right, left)]
        ways = [(a, b) for a, b in ways if isinstance(a, Application)]
        plain += [(a, b) for a, b in ways if {*variables_in(b)} <= {*variables_in(a)}]
    terms = [term for pair in every for term in pair if isinstance(term, Application)]
    answers = [laws.reduces(term) for term in terms]
    assert answers == [_reduced(term, plain, alike) for term in terms]
    assert {True, False} == set(answers)


def _reduced(term: Term, laws: list[Pair], alike: UseKey) -> bool:
    for pattern, other in laws:
        found: dict[Variable, Term] = {}
        is_instance = match_term(pattern, term, found, alike)
        if is_instance and order_key(substitute_term(other, found)) < order_key(term):
            return True
    return False
