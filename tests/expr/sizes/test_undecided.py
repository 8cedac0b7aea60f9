"""Results that depend on assumed answers, and names that do not depend on what was named elsewhere."""

from __future__ import annotations

import pickle
import subprocess
import sys
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensaurus.expr.sizes.open_questions import (
    CacheByAnswers,
    Question,
    forget_open_questions,
    record_questions,
)
from tensaurus.expr.sizes.size import Axis, Symbol, is_nonnegative, is_same_size, polynomial
from tensaurus.ops import registry
from tensaurus.rules.language.rule import parse_rule
from tensaurus.rules.prove.attribute_domain import lower_bound
from tensaurus.rules.prove.case_split import Case, CaseSplit
from tensaurus.rules.prove.size_assumptions import fresh_names, new_symbol

N, M, K = (polynomial(Symbol(name, 1)) for name in "NMK")
ASKED = [(N, M), (M, K), (N, K)]
QUESTIONS = [Question("zero", gap if gap.terms[0][1] > 0 else -gap) for gap in (a - b for a, b in ASKED)]


def merged(forget: bool = False) -> str:
    """Some of the sizes are asked, as far as the answers go: what is asked depends on what is answered."""
    if is_same_size(N, M):
        return "N=M"
    if forget:
        forget_open_questions()
    return "M=K" if is_same_size(M, K) else "N=K" if is_same_size(N, K) else "different"


@given(st.lists(st.tuples(*[st.sampled_from([None, True, False])] * 3), max_size=12), st.booleans())
def test_what_is_recalled_is_what_would_be_computed(
    every: list[tuple[bool | None, ...]], forget: bool
) -> None:
    known = CacheByAnswers[str](4)
    for answers in every:
        assumed = {q: a for q, a in zip(QUESTIONS, answers, strict=True) if a is not None}
        with record_questions(assumed) as anew:
            computed = merged(forget)
        with record_questions(assumed) as watch:
            assert known.get("key", lambda: merged(forget)) == computed
        # a question that was settled on the way is forgotten inside; whoever watches outside keeps his own
        assert list(watch.asked) == list(anew.asked)


def test_it_is_computed_once_for_the_answers_that_it_asks_for() -> None:
    known, calls = CacheByAnswers[str](4), list[str]()

    def compute() -> str:
        calls.append("once")
        return merged()

    for unasked in (True, False, None):  # where N is M, nobody asks for K
        assumed = {QUESTIONS[0]: True, **({} if unasked is None else {QUESTIONS[1]: unasked})}
        with record_questions(assumed):
            assert known.get("key", compute) == "N=M"
    assert calls == ["once"]
    with record_questions({}) as watch:
        assert known.get("key", compute) == "different" and known.get("key", compute) == "different"
    assert calls == ["once"] * 2 and list(watch.asked) == QUESTIONS
    assert known.get("key", compute) == "different" and known.get("key", compute) == "different"
    assert calls == ["once"] * 3  # nobody watches: another answer, which is kept, too


def test_what_raises_has_told_its_questions_and_is_not_kept() -> None:
    known = CacheByAnswers[str](4)

    def fails() -> str:
        assert not is_same_size(N, M)
        raise TypeError("no value")

    for _ in range(2):
        with record_questions({}) as watch, pytest.raises(TypeError):
            known.get("key", fails)
        assert list(watch.asked) == QUESTIONS[:1]
    with record_questions({}):
        assert known.get("key", merged) == "different"


def test_no_more_keys_are_kept_than_are_asked_for() -> None:
    known, calls = CacheByAnswers[int](3), list[int]()

    def compute() -> int:
        calls.append(key)
        return key

    for _, key in product(range(2), range(5)):
        with record_questions({}):
            assert known.get(key, compute) == key
    assert len(calls) > 5  # some were dropped, and computed again


def test_names_differ_in_one_case_and_are_the_same_in_another() -> None:
    with fresh_names() as names:
        first = [new_symbol("x", 0), new_symbol("x", 0), new_symbol("y", 1)]
    with fresh_names(names.taken):
        more = [new_symbol("x", 0), new_symbol("y.1", 1)]
    with fresh_names():
        again = [new_symbol("x", 0), new_symbol("x", 0), new_symbol("y", 1)]
    assert again == first and len({*first, *more}) == 5
    assert new_symbol("x", 0) not in {*first, *more} and new_symbol("x", 0) != new_symbol("x", 0)


def test_the_cases_of_a_rule_are_the_same_again() -> None:
    """So what another proof has computed is of use, and no proof depends on those before it."""
    (rule,) = parse_rule("law: Conv(Add(x, y), w, **a) => Add(Conv(x, w, **a), Conv(y, w, **a))")
    first, _, again = (
        [str(case.state) for case in CaseSplit(other, 3) if isinstance(case, Case)]
        for other in (rule, *parse_rule("law: MatMul(Add(x, y), w) => Add(MatMul(x, w), MatMul(y, w))"), rule)
    )
    assert first and first == again


@pytest.mark.parametrize("op", ["Conv", "MaxPool", "AveragePool", "ConvTranspose"])
@pytest.mark.parametrize("attribute", ["strides", "dilations"])
def test_numbers_that_are_always_refused_are_no_unknowns(op: str, attribute: str) -> None:
    assert lower_bound(registry[op], attribute) == 1


def test_a_pad_may_be_negative() -> None:
    assert lower_bound(registry["Conv"], "pads") < 0
    assert not is_nonnegative(new_symbol("pad", lower_bound(registry["Conv"], "pads")))


ATOMS = [Symbol("N", 1), Symbol("N", 0, polynomial(Symbol("M"))), Axis("i", N)]


@pytest.mark.parametrize("atom", ATOMS, ids=["symbol", "symbol with an end", "axis"])
def test_an_atom_is_found_by_its_equals_of_another_process(atom: Symbol | Axis) -> None:
    code = "import pickle, sys; sys.stdout.buffer.write(pickle.dumps(pickle.load(sys.stdin.buffer)))"
    process = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(atom), capture_output=True, check=True
    )
    back = pickle.loads(process.stdout)
    assert back == atom and back in {atom}
